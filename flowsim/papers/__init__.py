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
    """A tuple of claims in a fixed order. Its repr counts the claims of each paper."""

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
    """Judge claims along one flow or descent, in the given order; see `check`.

    **Arguments:**

    - claims: one claim or several, each a `Claim` or an id that `flowsim claims` lists. An id selects the claim in
      every form; the id of a statement with parts selects all its parts.
    - loss: the loss.
    - trajectory: a flow or a descent of the loss.
    - checkpoint: a folder for finished chunks of the more accurate solves with which `check` measures errors.
    - progress: whether to show a progress bar for each of these solves.

    **Raises:** `ValueError` with the nearest id if there is no such claim, and the errors of `check`.
    """
    given = [claims] if isinstance(claims, str | Claim) else claims
    found = [[entry] if isinstance(entry, Claim) else find_claims(ALL_CLAIMS, entry) for entry in given]
    return judge_claims(sum(found, []), loss, trajectory, checkpoint=checkpoint, progress=progress)


def predictions_of(problem: Problem) -> Predictions | None:
    """The predictions of the first paper that has predictions for a problem's flow, or None if no paper has any.

    No flow is integrated.
    """
    found = (paper.predictions(problem) for paper in PAPERS if paper.speaks_of(problem.start))
    return next((predicted for predicted in found if predicted is not None), None)


def columns_of(loss: Any, run: Trajectory) -> dict[str, Array]:
    """The columns that the papers add to a map for a loss and one of its flows: scalars by name."""
    return {name: value for paper in PAPERS for name, value in paper.columns(loss, run).items()}


def constants_of(problem: Problem) -> dict[str, float]:
    """The predicted constants for a problem's flow, by name.

    If no paper predicts the flow, the minimum of the loss is the only constant.
    """
    predicted = predictions_of(problem)
    return {"minimum": float(problem.loss.minimum)} if predicted is None else dict(predicted.constants)


def limits_of(problem: Problem) -> dict[str, Array]:
    """The predicted limits of the weights, by name.

    If no paper predicts the flow, these are the weights of the model with the least known loss, and the matrices
    that this model represents.
    """
    predicted = predictions_of(problem)
    if predicted is not None:
        return dict(predicted.limits)
    best = problem.minimizer
    alone = jax.tree.map(lambda leaf: leaf[None], best)
    return weights(best) | {name: leaf[0] for name, leaf in problem.matrices(alone).items()}
