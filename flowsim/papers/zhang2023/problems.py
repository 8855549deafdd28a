"""Problems for statements about a task alone: the start is a saddle, where nothing flows."""

from typing import Any


def _still(name: str, covariance: Any, context_length: int | str, **task: Any) -> dict[str, Any]:
    table = {"covariance": covariance, "context_length": context_length, **task}
    return {"name": name, "task": table, "init": {"kind": "zeros"}}


STILL_EASY = _still("d = 3, diagonal covariance", [[0.5, 0, 0], [0, 1, 0], [0, 0, 2]], 10)
STILL_HARD = _still(
    "d = 8, condition 100, N = 3",
    {"eigenvalues": [0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0], "rotation_seed": 1},
    3,
)
NEAR_SINGULAR = _still("d = 3, condition 1e6, N = 2", {"eigenvalues": [1e-6, 1e-3, 1.0], "rotation_seed": 3}, 2)
ISOTROPIC = _still("d = 3, identity, N = 3", "identity", 3, dimension=3)
STILL_ONE = _still("d = 1, N = 1", [[2.0]], 1)
LONG = _still("d = 3, N = 100000", {"eigenvalues": [0.1, 0.3, 3.0], "rotation_seed": 2}, 100_000)
INFINITE = _still("d = 3, N = inf", {"eigenvalues": [0.2, 1.0, 3.0], "rotation_seed": 4}, "inf")
