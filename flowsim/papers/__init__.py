"""The papers: a package each, a line each here."""

import jax
from jaxtyping import Array

from flowsim.claims import Claim
from flowsim.flow.trajectory import weights
from flowsim.papers.ahn2023 import PAPER as _AHN2023
from flowsim.papers.gatmiry2024 import PAPER as _GATMIRY2024
from flowsim.papers.paper import AbstractPromises, Paper
from flowsim.papers.xie2025 import PAPER as _XIE2025
from flowsim.papers.zhang2023 import PAPER as _ZHANG2023
from flowsim.papers.zhang2025 import PAPER as _ZHANG2025
from flowsim.problem import Problem

PAPERS: tuple[Paper, ...] = (_ZHANG2023, _AHN2023, _GATMIRY2024, _XIE2025, _ZHANG2025)
ALL_CLAIMS: tuple[Claim, ...] = tuple(claim for paper in PAPERS for claim in paper.claims)


def promises_of(problem: Problem) -> AbstractPromises | None:
    """What the first paper that speaks of a problem's flow says of it before anything is integrated."""
    found = (paper.promises(problem) for paper in PAPERS if paper.speaks_of(problem.start))
    return next((promised for promised in found if promised is not None), None)


def constants_of(problem: Problem) -> dict[str, float]:
    """What is known before anything is integrated, by name."""
    promised = promises_of(problem)
    return {"minimum": float(problem.loss.minimum)} if promised is None else promised.constants()


def limits_of(problem: Problem) -> dict[str, Array]:
    """The weights that the flow is predicted to tend to, by name: where no paper says, those of least known loss."""
    promised = promises_of(problem)
    if promised is not None:
        return promised.limits()
    best = problem.minimizer
    alone = jax.tree.map(lambda leaf: leaf[None], best)
    return weights(best) | {name: leaf[0] for name, leaf in problem.matrices(alone).items()}
