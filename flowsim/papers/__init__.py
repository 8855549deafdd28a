"""The papers whose claims flowsim judges: one package per paper."""

from typing import Any

import jax
from jaxtyping import Array, PyTree

from flowsim._core.checks import refuse
from flowsim.claims import Claim
from flowsim.flow.trajectory import weights
from flowsim.papers.ahn2023 import PAPER as _AHN2023
from flowsim.papers.gatmiry2024 import PAPER as _GATMIRY2024
from flowsim.papers.paper import AbstractPromises, Paper
from flowsim.papers.xie2025 import PAPER as _XIE2025
from flowsim.papers.zhang2023 import PAPER as _ZHANG2023
from flowsim.papers.zhang2023.predictions import Predictions
from flowsim.papers.zhang2023.predictions import predictions as _predictions
from flowsim.papers.zhang2025 import PAPER as _ZHANG2025
from flowsim.problem import Problem
from flowsim.tasks import LinearRegression, RandomCovarianceRegression

PAPERS: tuple[Paper, ...] = (_ZHANG2023, _AHN2023, _GATMIRY2024, _XIE2025, _ZHANG2025)
_TASKS = (LinearRegression, RandomCovarianceRegression)
ALL_CLAIMS: tuple[Claim, ...] = tuple(claim for paper in PAPERS for claim in paper.claims)


def predictions(task: Any, start: PyTree) -> Predictions:
    """What zhang2023 predicts by formula for a task and a start, before anything is integrated.

    **Raises:** `ValueError` on a task or a start that the paper does not cover.
    """
    for name, value, kinds in (("task", task, _TASKS), ("start", start, _ZHANG2023.models)):
        if not isinstance(value, kinds):
            refuse(name, f"a {' or a '.join(kind.__name__ for kind in kinds)}", f"it is a {type(value).__name__}")
    return _predictions(task, start)


def promises_of(problem: Problem) -> AbstractPromises | None:
    """What the first paper that covers a problem's flow says about it before anything is integrated, or None."""
    found = (paper.promises(problem) for paper in PAPERS if paper.speaks_of(problem.start))
    return next((promised for promised in found if promised is not None), None)


def constants_of(problem: Problem) -> dict[str, float]:
    """The constants of a problem that are known before anything is integrated, by name."""
    promised = promises_of(problem)
    return {"minimum": float(problem.loss.minimum)} if promised is None else promised.constants()


def limits_of(problem: Problem) -> dict[str, Array]:
    """The weights that the flow is predicted to tend to, by name; where no paper says, those of least known loss."""
    promised = promises_of(problem)
    if promised is not None:
        return promised.limits()
    best = problem.minimizer
    alone = jax.tree.map(lambda leaf: leaf[None], best)
    return weights(best) | {name: leaf[0] for name, leaf in problem.matrices(alone).items()}
