"""The spaces of problems to search for each of gatmiry2024's statements."""

from typing import Any

from flowsim.claims.spaces import Axis, Real, Space, Whole

_DIMENSION: dict[str, Axis] = {"task.dimension": Whole(1, 6)}
_COVARIANCE: dict[str, Axis] = {
    "task.covariance.dimension": Whole(1, 5),
    "task.covariance.condition": Real(1.0, 1e3),
    "task.covariance.scale": Real(1e-2, 1e2),
}
_LOOPS: dict[str, Axis] = {"model.loops": Whole(1, 3)}
_LENGTH: dict[str, Axis] = {"task.context_length": Whole(1, 1000)}
_ANY_LENGTH: dict[str, Axis] = {"task.context_length": Whole(1, 10**30)}
_START: dict[str, Axis] = {"init.scale": Real(1e-2, 3.0), "init.seed": Whole(0, 99)}


def _looped(axes: dict[str, Axis], kind: str = "zeros", *, covariance: Any = "identity", **tables: Any) -> Space:
    task = {"covariance": covariance, "weights": "inverse-covariance", **tables.pop("task", {})}
    return Space(axes, {"task": task, "model": {"architecture": "looped"}, "init": {"kind": kind}} | tables)


def _wide(axes: dict[str, Axis], **task: Any) -> Space:
    """Problems of up to 10^6 dimensions, restricted to eigenvalues so that no array grows with the dimension."""
    problem = _looped({}, task=task, flow={"restrict": "eigenbasis", "rtol": 1e-6}).problem
    return Space({"task.dimension": Whole(1, 10**6)} | _LOOPS | axes, problem, shapes=("model.loops",))


def _drawn(dimension: int, loops: int) -> Space:
    return _looped(
        {"task.context_length": Whole(2, 1000), "init.seed": Whole(0, 99)},
        task={"dimension": dimension},
        model={"architecture": "looped", "loops": loops},
        init={"kind": "random", "scale": 0.1},
    )


_ROTATED = {"rotation_seed": 0}
_MATRICES = _looped(_DIMENSION | _LOOPS | _ANY_LENGTH)
_ANISOTROPIC = _looped(_COVARIANCE | _LOOPS | _ANY_LENGTH, covariance=_ROTATED)
_WIDE, _WIDE_INFINITE = _wide(_ANY_LENGTH), _wide({}, context_length="inf")
_RANDOM = _looped(_DIMENSION | _LOOPS | _LENGTH | _START, "random")

OPTIMUM = (_MATRICES, _ANISOTROPIC, _WIDE)
ISOTROPIC_FLOWS = (_WIDE_INFINITE, _MATRICES, _WIDE, _RANDOM)
LANDSCAPES = (_ANISOTROPIC, _looped(_COVARIANCE | _LOOPS, covariance=_ROTATED, task={"context_length": "inf"}))
ANY_COVARIANCE = (_WIDE_INFINITE, _ANISOTROPIC, _MATRICES, _WIDE)
LONG_FLOWS = (_WIDE_INFINITE, _MATRICES, _WIDE)
PROXIMITY = (_WIDE_INFINITE, _MATRICES, _ANISOTROPIC, _WIDE)
STILL_ISOTROPIC = (_MATRICES,)
PROMPTS = (_looped(_DIMENSION | _LOOPS | _LENGTH, init={"kind": "random", "scale": 1.0, "seed": 0}),)
NEW_COVARIANCES = (_ANISOTROPIC, _MATRICES)
SYMMETRIC_STARTS = (_RANDOM,)
ANY_START = (
    _looped(
        {"task.dimension": Whole(2, 3), "init.scale": Real(0.5, 3.0), "init.seed": Whole(0, 99)},
        "random",
        task={"context_length": "inf"},
        model={"architecture": "looped", "loops": 2, "symmetric": False},
        flow={"times": [1e4]},
    ),
)
SHORT_FLOWS = (_looped(_DIMENSION | {"model.loops": Whole(2, 3)} | _LENGTH), _RANDOM)

# Lemmas on moments and layers.
LEMMAS = (_looped(_COVARIANCE | _LOOPS | _LENGTH, covariance=_ROTATED),)
MOMENTS = (_looped({"task.dimension": Whole(1, 20)} | _LOOPS | _ANY_LENGTH), _ANISOTROPIC)
PAIRINGS = (_looped({"task.dimension": Whole(1, 10)} | _LOOPS | _ANY_LENGTH),)

_FIGURES: dict[str, Axis] = {"task.dimension": Whole(2, 10), "task.context_length": Whole(2, 1000)}
FIGURES = (_looped(_FIGURES, model={"architecture": "looped", "loops": 2}),)
FIGURE_1, ONE_LOOP = (_drawn(5, 2),), (_drawn(10, 1),)
