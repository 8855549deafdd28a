"""The L, n and spectrum of the covariance in gatmiry2024's lemmas, and the problems on which to judge them."""

import dataclasses
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np

from flowsim.claims.hypotheses import Hypothesis, can_be_drawn, hypothesis, unmet
from flowsim.losses import AbstractPopulationLoss, LoopedLoss
from flowsim.papers.gatmiry2024.setting import Loss, looped
from flowsim.papers.gatmiry2024.setting import loops as loops_of
from flowsim.tasks import LinearRegression

_FEW_DIMENSIONS = 100.0


@dataclasses.dataclass(frozen=True)
class Shape:
    """L, d, n (None for infinity) and the eigenvalues of the covariance, largest first, with their multiplicities."""

    loops: int
    dimension: int
    length: int | None
    eigenvalues: tuple[Fraction, ...]
    multiplicities: tuple[int, ...]

    @property
    def root_length(self) -> float:
        """sqrt(n), infinite where n is."""
        return np.inf if self.length is None else float(self.length) ** 0.5

    @property
    def accuracy(self) -> float:
        """delta = (8 L d / sqrt(n))^{1/(2L)}. **Source:** gatmiry2024, section 3.5."""
        return (8 * self.loops * self.dimension / self.root_length) ** (1 / (2 * self.loops))

    @property
    def finite_length(self) -> int:
        """n, in a setting where it is finite."""
        assert self.length is not None, "the setting of the claim"
        return self.length

    def first_order(self, power: int) -> float:
        """4 k d / sqrt(n). **Source:** gatmiry2024, Lemma A.2."""
        return 4 * power * self.dimension / self.root_length


def shape(loss: Loss) -> Shape:
    """The `Shape` of a looped model's problem; its eigenvalues are exactly those of the floats."""
    task = loss.task
    if isinstance(task, LinearRegression):
        values, counts = jnp.linalg.eigvalsh(task.covariance), np.ones(task.dimension)
    else:
        values, counts = task.eigenvalues, task.multiplicities
    n = float(task.context_length)
    pairs = sorted(zip(np.asarray(values).tolist(), np.asarray(counts, dtype=int).tolist(), strict=True), reverse=True)
    eigenvalues, multiplicities = zip(*pairs, strict=True)
    length = None if np.isinf(n) else int(n)
    return Shape(loops_of(loss), task.dimension, length, tuple(map(Fraction, eigenvalues)), multiplicities)


def looped_with_finite_context(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """None in the paper's setting with finite n; else the unmet hypothesis."""
    foreign = looped(loss)
    if foreign is not None or not isinstance(loss, Loss):
        return foreign
    length = float(loss.task.context_length)
    return None if np.isfinite(length) else hypothesis("n < infinity", length, "<", np.inf)


def looped_with_few_dimensions(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """None in the figures' setting, with n finite and d small enough to draw contexts; else what is unmet."""
    if (foreign := looped_with_finite_context(loss)) is not None or not isinstance(loss, Loss):
        return foreign
    d = float(loss.task.dimension)
    return None if d <= _FEW_DIMENSIONS else hypothesis("d small enough for draws", d, "<=", _FEW_DIMENSIONS)


def looped_by_matrices(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """None in the paper's setting with a loss of matrices and prompts that can be drawn; else the unmet hypothesis."""
    if isinstance(loss, LoopedLoss) and looped(loss) is None and can_be_drawn(loss.task):
        return None
    return unmet("a looped transformer on matrices, w drawn from N(0, covariance^-1), n for prompts to draw")


def long_for_moments(multiple: int):
    """n >= multiple k^2 d^2 for every k <= 2L; Lemma A.2 has multiple = 4."""

    def hypotheses(loss: Loss, start: Any) -> list[Hypothesis]:
        known = shape(loss)
        bound = float(multiple * (2 * known.loops * known.dimension) ** 2)
        return [hypothesis(f"n >= {multiple} k^2 d^2 for k = 2L", float(loss.task.context_length), ">=", bound)]

    return hypotheses


def problem(name: str, loops: int, length: float | int | str, covariance: Any, **task: Any) -> dict[str, Any]:
    """A problem given by a task and L, for statements without a flow."""
    return {
        "name": name,
        "task": {"covariance": covariance, "context_length": length, **task},
        "model": {"architecture": "looped", "loops": loops},
        "init": {"kind": "zeros"},
    }


SKEW = [[0.5, 0.1, 0.0], [0.1, 1.0, -0.2], [0.0, -0.2, 2.0]]
SHORTEST = problem("L = 3, d = 10, n = d + 1", 3, 11, "identity", dimension=10)
PAPER = problem("L = 3, d = 10, n = 20, as in section 5", 3, 20, "identity", dimension=10)
EDGE = problem("L = 3, d = 3, anisotropic, n = 4 k^2 d^2 at k = 2L", 3, 1296, SKEW)
TWICE_EDGE = problem("L = 2, d = 3, identity, n = 16 k^2 d^2 at k = 2L", 2, 2304, "identity", dimension=3)
ONE_LOOP = problem(
    "L = 1, d = 4, condition 100, n = 5", 1, 5, {"eigenvalues": [0.01, 0.1, 0.3, 1.0], "rotation_seed": 1}
)
ONE_DIMENSION = problem("L = 2, d = 1, n = 64", 2, 64, [[2.0]])
SHORT = problem("L = 2, d = 3, anisotropic, n = 5", 2, 5, SKEW)
SINGLE = problem("L = 1, d = 3, anisotropic, n = 4", 1, 4, SKEW)
DEEP = problem("L = 3, d = 4, condition 100, n = 6", 3, 6, {"eigenvalues": [0.01, 0.1, 0.3, 1.0], "rotation_seed": 1})
LONG = problem("L = 2, d = 3, anisotropic, n = 1000", 2, 1000, SKEW)
ASTRONOMICAL = problem(
    "L = 3, d = 3, condition 1e4, n = 1e15", 3, 10**15, {"eigenvalues": [1e-4, 0.1, 1.0], "rotation_seed": 2}
)
