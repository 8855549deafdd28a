"""Problems for statements about several layers; statements about all matrices need no flow."""

from typing import Any

_DISTORTED = [1.0, 1.0, 0.25, 0.0625, 1.0]  # D^2 of sections 5.3 and 6.1


def _layers(name: str, covariance: Any, context_length: int, layers: int, *, symmetric: bool = True) -> dict[str, Any]:
    """A problem for a statement that needs no flow."""
    return {
        "name": name,
        "task": {"covariance": covariance, "context_length": context_length},
        "model": {"architecture": "multi-layer", "layers": layers, "symmetric": symmetric},
        "init": {"kind": "zeros"},
        "flow": {"t1": 1e-6, "solver": "explicit"},
    }


def _rotated(eigenvalues: list[float], seed: int = 0) -> dict[str, Any]:
    return {"eigenvalues": eigenvalues, "rotation_seed": seed}


def _trained(seed: int) -> dict[str, Any]:
    """Section 5.3 with a covariance and a start per seed, run until the distance to the limit can be bounded."""
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
ISOTROPIC = (
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


def _sampled(name: str, covariance: Any, context_length: int, init: dict[str, Any], **how: Any) -> dict[str, Any]:
    """Layers with B over all matrices, with a Monte Carlo loss."""
    layers, samples, t1 = how["layers"], how["samples"], how["t1"]
    return {
        "name": name,
        "task": {"covariance": covariance, "context_length": context_length},
        "model": {"architecture": "multi-layer", "layers": layers, "residual_stream": True},
        "init": init,
        "loss": {"kind": "monte-carlo", "samples": samples, "method": "covariances"},
        "flow": {"t1": t1, "rtol": 1e-4},
    }


def _at_scalars(
    name: str, variances: list[float], context_length: int, a: list[float], b: list[float]
) -> dict[str, Any]:
    """A start on S for a diagonal covariance, where the sampled losses have a light tail."""
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


def _random(seed: int) -> dict[str, Any]:
    return {"kind": "random", "scale": 0.3, "seed": seed}


_TWO_LAYERS = {"layers": 2, "samples": 2048, "t1": 2000.0}
SAMPLED = (
    _sampled(
        "section 6.1: d = 5, n = 10, k = 3", _rotated(_DISTORTED), 10, _random(0), layers=3, samples=1024, t1=20.0
    ),
    _sampled("d = 3, n = 100, k = 2", _rotated([1.0, 1.0, 0.25]), 100, _random(0), **_TWO_LAYERS),
    _sampled("d = 3, n = 100, k = 2, seed 1", _rotated([1.0, 1.0, 0.25], 1), 100, _random(1), **_TWO_LAYERS),
)
