"""Problems for statements about the single layer of section 4; those about the task alone start at a saddle."""

from collections.abc import Sequence
from typing import Any


def _single_layer(name: str, covariance: Any, context_length: int | str, **task: Any) -> dict[str, Any]:
    table = {"covariance": covariance, "context_length": context_length, **task}
    return {"name": name, "task": table, "model": {"architecture": "masked-attention"}, "init": {"kind": "zeros"}}


def _from(problem: dict[str, Any], b: Sequence[float], A: Sequence[Sequence[float | int]]) -> dict[str, Any]:
    return {**problem, "init": {"kind": "explicit", "b": b, "A": A}}


EASY = _single_layer("d = 3, diagonal covariance, n = 10", [[0.5, 0, 0], [0, 1, 0], [0, 0, 2]], 10)
HARD = _single_layer(
    "d = 8, condition 100, n = 3",
    {"eigenvalues": [0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0], "rotation_seed": 1},
    3,
)
DOMINANT = _single_layer(
    "d = 3, one dominant direction, n = 3", {"eigenvalues": [0.1, 0.3, 3.0], "rotation_seed": 2}, 3
)
INFINITE = _single_layer("d = 3, n = inf", {"eigenvalues": [0.2, 1.0, 3.0], "rotation_seed": 4}, "inf")
DIAGONAL = _single_layer("d = 8, diagonal covariance of condition 100, n = 1", {"condition": 100, "dimension": 8}, 1)
DIAGONAL_LARGE = _single_layer(
    "d = 20, diagonal covariance of condition 100, n = 5", {"condition": 100, "dimension": 20}, 5
)
ISOTROPIC = _single_layer("d = 3, identity, n = 4", "identity", 4, dimension=3)
ISOTROPIC_SHORT = _single_layer("d = 8, identity, n = 1", "identity", 1, dimension=8)
ISOTROPIC_LARGE = _single_layer("d = 20, identity, n = 2", "identity", 2, dimension=20)
ISOTROPIC_INFINITE = _single_layer("d = 3, identity, n = inf", "identity", "inf", dimension=3)
ISOTROPIC_PAIR = _single_layer("d = 2, identity, n = 1", "identity", 1, dimension=2)
ONE = _single_layer("d = 1, n = 1", [[2.0]], 1)
# Starts from which the flow ends at another local minimum.
ELSEWHERE = (
    _from(EASY, [0.1, 0.2, 0.6, 0.1], [[-0.5, 0.1, 0.0], [0.0, -0.5, 0.1], [0.1, 0.0, 0.1], [0.0, 0.1, -0.5]]),
    _from(ISOTROPIC_PAIR, [0.5, 0.1, 0.1], [[0.1, 0.0], [0.0, 0.1], [-0.5, 0.1]]),
    _from(DOMINANT, [0.5, 0.4, 0.3, 0.1], [[0.1, 0.0, 0.0], [0.0, 0.1, 0.0], [0.0, 0.0, 0.1], [-0.5, -0.4, -0.3]]),
)
# For statements about every covariance and every context length.
EVERY = (EASY, HARD, DIAGONAL_LARGE, ISOTROPIC, DOMINANT, INFINITE, ONE)
