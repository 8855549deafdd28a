"""Problems for statements about several layers; those of statements about all matrices need no flow."""

from typing import Any

_DISTORTED = [1.0, 1.0, 0.25, 0.0625, 1.0]  # D^2 of sections 5.3 and 6.1


def _layers(name: str, covariance: Any, context_length: int, layers: int, *, symmetric: bool = True) -> dict[str, Any]:
    """A problem of a statement that needs no flow."""
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
    """Section 5.3, with a covariance and a start for each seed."""
    return {
        "name": f"section 5.3, seed {seed}",
        "task": {"covariance": _rotated(_DISTORTED, seed), "context_length": 20},
        "model": {"architecture": "multi-layer", "layers": 3},
        "init": {"kind": "random", "scale": 1.0, "seed": seed},
    }


PAPER = _layers("section 5.3: d = 5, n = 20, k = 3", _rotated(_DISTORTED), 20, 3)
PAPER_B = _layers("section 6.1: d = 5, n = 10, k = 3", _rotated(_DISTORTED), 10, 3)
SHORT = _layers("d = 3, condition 40, n = 2, k = 2", _rotated([0.1, 1.0, 4.0]), 2, 2)
LARGE = _layers("d = 3, covariance 5 to 40, n = 10, k = 2", _rotated([5.0, 10.0, 40.0], 1), 10, 2)
DEEP = _layers("d = 3, condition 40, n = 4, k = 4", _rotated([0.1, 1.0, 4.0], 2), 4, 4)
ONE_LAYER = _layers("d = 3, condition 40, n = 4, k = 1", _rotated([0.1, 1.0, 4.0]), 4, 1)
FREE = _layers("d = 3, condition 40, n = 4, k = 2, all matrices", _rotated([0.1, 1.0, 4.0]), 4, 2, symmetric=False)
FREE_DEEP = _layers("d = 2, condition 10, n = 4, k = 3, all matrices", _rotated([0.1, 1.0]), 4, 3, symmetric=False)
_UNIT = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
ISOTROPIC = (
    _layers("d = 3, identity, n = 4, k = 2", _UNIT, 4, 2),
    _layers("d = 3, identity, n = 1, k = 2", _UNIT, 1, 2),
    _layers("d = 5, identity, n = 20, k = 2", {"eigenvalues": [1.0] * 5}, 20, 2),
)
TRAINED = tuple(_trained(seed) for seed in range(5))
