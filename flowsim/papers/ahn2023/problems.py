"""Problems for ahn2023's statements about one layer and several layers.

A statement about the task alone has a problem that starts at zero weights, a saddle of the loss.
"""

from collections.abc import Sequence
from typing import Any

from flowsim._core.types import Document


def _single_layer(name: str, covariance: Any, context_length: int | str, **task: Any) -> Document:
    table = {"covariance": covariance, "context_length": context_length, **task}
    return {"name": name, "task": table, "model": {"architecture": "masked-attention"}, "init": {"kind": "zeros"}}


def _from(problem: Document, b: Sequence[float], A: Sequence[Sequence[float | int]]) -> Document:
    return {**problem, "init": {"kind": "explicit", "b": b, "A": A}}


EASY = _single_layer("d = 3, diagonal covariance, n = 10", [[0.5, 0, 0], [0, 1, 0], [0, 0, 2]], 10)
HARD = _single_layer(
    "d = 8, condition 100, n = 3", {"eigenvalues": [0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0], "rotation_seed": 1}, 3
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

_DISTORTED = [1.0, 1.0, 0.25, 0.0625, 1.0]  # D^2 of sections 5.3 and 6.1


def _layers(name: str, covariance: Any, context_length: int, layers: int, *, symmetric: bool = True) -> Document:
    """A problem for a statement that needs no flow. The start is zero, and the flow ends at once."""
    return {
        "name": name,
        "task": {"covariance": covariance, "context_length": context_length},
        "model": {"architecture": "multi-layer", "layers": layers, "symmetric": symmetric},
        "init": {"kind": "zeros"},
        "flow": {"t1": 1e-6, "solver": "explicit"},
    }


def _rotated(eigenvalues: list[float], seed: int = 0) -> Document:
    return {"eigenvalues": eigenvalues, "rotation_seed": seed}


def _trained(seed: int) -> Document:
    """The problem of section 5.3. ``seed`` determines the rotation of the covariance, and the start.

    The flow is long enough to bound the distance from its end to its limit.
    """
    return {
        "name": f"section 5.3, seed {seed}",
        "task": {"covariance": _rotated(_DISTORTED, seed), "context_length": 20},
        "model": {"architecture": "multi-layer", "layers": 3},
        "init": {"kind": "random", "scale": 1.0, "seed": seed},
        "flow": {"t1": 70000.0},
    }


PAPER = _layers("section 5.3: d = 5, n = 20, k = 3", _rotated(_DISTORTED), 20, 3)
PAPER_B = _layers("section 6.1: d = 5, n = 10, k = 3", _rotated(_DISTORTED), 10, 3)
SHORT = _layers("d = 3, condition 40, n = 2, k = 2", _rotated([0.1, 1.0, 4.0]), 2, 2)
LARGE = _layers("d = 3, covariance 5 to 40, n = 10, k = 2", _rotated([5.0, 10.0, 40.0], 1), 10, 2)
DEEP = _layers("d = 3, condition 40, n = 4, k = 4", _rotated([0.1, 1.0, 4.0], 2), 4, 4)
ONE_LAYER = _layers("d = 3, condition 40, n = 4, k = 1", _rotated([0.1, 1.0, 4.0]), 4, 1)
FREE = _layers("d = 3, condition 40, n = 4, k = 2, all matrices", _rotated([0.1, 1.0, 4.0]), 4, 2, symmetric=False)
FREE_DEEP = _layers("d = 2, condition 10, n = 4, k = 3, all matrices", _rotated([0.1, 1.0]), 4, 3, symmetric=False)
STATIC = (PAPER, SHORT, LARGE, FREE)
ON_PROMPTS = (PAPER, SHORT)
_UNIT = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
ISOTROPIC_LAYERS = (
    _layers("d = 3, identity, n = 4, k = 2", _UNIT, 4, 2),
    _layers("d = 3, identity, n = 1, k = 2", _UNIT, 1, 2),
    _layers("d = 5, identity, n = 20, k = 2", {"eigenvalues": [1.0] * 5}, 20, 2),
)
# Small enough for a cubature over the sample covariance to be exact with B.
WITH_B = (
    _layers("d = 2, condition 40, n = 1, k = 2", _rotated([0.1, 4.0]), 1, 2),
    _layers("d = 2, covariance 5 and 40, n = 10, k = 2", _rotated([5.0, 40.0], 1), 10, 2),
    SHORT,
    _layers("d = 2, condition 16, n = 10, k = 3", _rotated([0.0625, 1.0]), 10, 3),
)
TRAINED = tuple(_trained(seed) for seed in range(5))


def _sampled(
    name: str, covariance: Any, context_length: int, init: Any, *, layers: int, samples: int, t1: float
) -> Document:
    """A problem with a Monte Carlo loss, for layers with unrestricted matrices A_i and B_i."""
    return {
        "name": name,
        "task": {"covariance": covariance, "context_length": context_length},
        "model": {"architecture": "multi-layer", "layers": layers, "residual_stream": True},
        "init": init,
        "loss": {"kind": "monte-carlo", "samples": samples, "method": "covariances"},
        "flow": {"t1": t1, "rtol": 1e-4},
    }


def _at_scalars(name: str, variances: list[float], context_length: int, a: list[float], b: list[float]) -> Document:
    """A problem that starts on S at A_i = a_i Sigma^-1 and B_i = b_i I, with Sigma = diag(``variances``).

    At these starts the law of the sampled losses has a light tail.
    """
    diagonal = lambda values: [[value if i == j else 0.0 for j in range(len(values))] for i, value in enumerate(values)]
    A = [diagonal([scalar / variance for variance in variances]) for scalar in a]
    B = [diagonal([scalar] * len(variances)) for scalar in b]
    init = {"kind": "explicit", "A": A, "B": B}
    return _sampled(name, diagonal(variances), context_length, init, layers=len(a), samples=131072, t1=1e-6)


ON_SCALARS = (
    _at_scalars("d = 3, condition 8, n = 20, k = 2, a point of S", [0.25, 1.0, 2.0], 20, [0.3, 0.5], [0.3]),
    _at_scalars("d = 3, covariance 5 to 40, n = 20, k = 2, a point of S", [5.0, 10.0, 40.0], 20, [0.2, 0.3], [0.5]),
    _at_scalars("section 6.1: d = 5, n = 10, k = 3, a point of S", _DISTORTED, 10, [0.1, 0.2, 0.2], [0.2, 0.1]),
)
# The best scalars without B: the gradients in the A_i vanish there, so those in the B_i decide (35).
WITHOUT_B = _at_scalars(
    "d = 2, covariance 4 and 8, n = 100, k = 2, best without B",
    [4.0, 8.0],
    100,
    [0.8181977716400743, 1.147697401553406],
    [0.0],
)


def _random(seed: int) -> Document:
    return {"kind": "random", "scale": 0.3, "seed": seed}


_TWO_LAYERS = {"layers": 2, "samples": 2048, "t1": 2000.0}
SAMPLED = (
    _sampled(
        "section 6.1: d = 5, n = 10, k = 3", _rotated(_DISTORTED), 10, _random(0), layers=3, samples=1024, t1=20.0
    ),
    _sampled("d = 3, n = 100, k = 2", _rotated([1.0, 1.0, 0.25]), 100, _random(0), **_TWO_LAYERS),
    _sampled("d = 3, n = 100, k = 2, seed 1", _rotated([1.0, 1.0, 0.25], 1), 100, _random(1), **_TWO_LAYERS),
)
