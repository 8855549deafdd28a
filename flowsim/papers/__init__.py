"""The papers whose claims flowsim judges: one package per paper."""

import collections
import os
from collections.abc import Iterable
from typing import Any

import jax
from jaxtyping import Array

from flowsim.claims import Claim, Verdicts, find_claims
from flowsim.claims import judge as judge_claims
from flowsim.flow.trajectory import Trajectory, weights
from flowsim.losses import AbstractPopulationLoss
from flowsim.papers.ahn2023 import PAPER as _AHN2023
from flowsim.papers.gatmiry2024 import PAPER as _GATMIRY2024
from flowsim.papers.paper import Paper, Predictions
from flowsim.papers.xie2025 import PAPER as _XIE2025
from flowsim.papers.zhang2023 import PAPER as _ZHANG2023
from flowsim.papers.zhang2023.predictions import predictions as predictions
from flowsim.papers.zhang2023.prompt_lengths import prompt_lengths as prompt_lengths
from flowsim.papers.zhang2025 import PAPER as _ZHANG2025
from flowsim.problem import Problem


class Claims(tuple[Claim, ...]):
    """Claims in a fixed order, counted in their repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        counts = collections.Counter(claim.id.partition(".")[0] for claim in self)
        return f"<{len(self)} claims: {', '.join(f'{count} of {paper}' for paper, count in counts.items())}>"


PAPERS: tuple[Paper, ...] = (_ZHANG2023, _AHN2023, _GATMIRY2024, _XIE2025, _ZHANG2025)
ALL_CLAIMS = Claims(claim for paper in PAPERS for claim in paper.claims)
MAPPED: dict[str, tuple[Claim, ...]] = {name: claims for paper in PAPERS for name, claims in paper.mapped.items()}


def judge(
    claims: str | Claim | Iterable[str | Claim],
    loss: AbstractPopulationLoss,
    trajectory: Trajectory,
    *,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = False,
) -> Verdicts:
    """Judge claims along one flow, in order; see `check`.

    **Arguments:**

    - claims: one claim or several, each a `Claim` or an id that `flowsim claims` lists; the id of a statement with
      parts takes all of them, in every form.
    - loss: the loss.
    - trajectory: a flow of the loss.
    - checkpoint: a folder for finished chunks of the more accurate solves.
    - progress: whether to show a bar for each of these solves.

    **Raises:** `ValueError` with the nearest id if there is no such claim, and where `check` does.
    """
    given = [claims] if isinstance(claims, str | Claim) else claims
    found = [[entry] if isinstance(entry, Claim) else find_claims(ALL_CLAIMS, entry) for entry in given]
    return judge_claims(sum(found, []), loss, trajectory, checkpoint=checkpoint, progress=progress)


def predictions_of(problem: Problem) -> Predictions | None:
    """What the first paper that covers a problem's flow says about it before anything is integrated, or None."""
    found = (paper.predictions(problem) for paper in PAPERS if paper.speaks_of(problem.start))
    return next((predicted for predicted in found if predicted is not None), None)


def columns_of(loss: Any, run: Trajectory) -> dict[str, Array]:
    """The numbers that papers have for a map, by name, of a loss and a flow of it."""
    return {name: value for paper in PAPERS for name, value in paper.columns(loss, run).items()}


def constants_of(problem: Problem) -> dict[str, float]:
    """The constants of a problem that are known before anything is integrated, by name."""
    predicted = predictions_of(problem)
    return {"minimum": float(problem.loss.minimum)} if predicted is None else dict(predicted.constants)


def limits_of(problem: Problem) -> dict[str, Array]:
    """The weights that the flow is predicted to tend to, by name; where no paper says, those of least known loss."""
    predicted = predictions_of(problem)
    if predicted is not None:
        return dict(predicted.limits)
    best = problem.minimizer
    alone = jax.tree.map(lambda leaf: leaf[None], best)
    return weights(best) | {name: leaf[0] for name, leaf in problem.matrices(alone).items()}
