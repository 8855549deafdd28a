"""The sets of problems that zhang2023's claims cover, as spaces to search for counterexamples."""

from typing import Any

from flowsim.claims.spaces import Axis, Each, Real, Space, Whole

_COVARIANCE: dict[str, Axis] = {
    "task.covariance.dimension": Whole(1, 8),
    "task.covariance.condition": Real(1.0, 1e3),
    "task.covariance.scale": Real(1e-2, 1e2),
}
_LENGTH: dict[str, Axis] = {"task.context_length": Whole(1, 1000)}
_START: dict[str, Axis] = {"init.scale": Real(1e-4, 10.0), "init.seed": Whole(0, 999)}
_RANK: dict[str, Axis] = {"init.rank": Whole(1, 8)}
_ROTATED = {"covariance": {"rotation_seed": 0}}


def _flow(axes: dict[str, Axis], kind: str, **task: Any) -> Space:
    return Space(axes, {"task": task or _ROTATED, "init": {"kind": kind}})


BALANCED = (_flow(_COVARIANCE | _LENGTH | _START | _RANK, "balanced"),)
UNBALANCED = (_flow(_COVARIANCE | _LENGTH | _START | _RANK, "unbalanced"),)
INDEFINITE = (_flow(_COVARIANCE | _LENGTH | _START, "balanced-indefinite"),)
# U11(0) = sigma I/sqrt(3), which Assumption 3.3 allows, and blocks that it does not.
ALL_WEIGHTS = (
    Space(
        {
            "task.covariance.condition": Real(1.0, 1e3),
            "task.context_length": Whole(1, 1000),
            "init.u12": Each(Real(-0.3, 0.3)),
            "init.u21": Each(Real(-0.3, 0.3)),
        },
        {
            "task": {"covariance": {"dimension": 3, "scale": 2.0}},
            "init": {
                "kind": "explicit",
                "U11": [[0.01 / 3**0.5 * (i == j) for j in range(3)] for i in range(3)],
                "u_minus1": 0.01,
            },
        },
    ),
)

STILL = (_flow(_COVARIANCE | _LENGTH, "zeros"),)
STILL_INFINITE = (_flow(_COVARIANCE, "zeros", covariance={"rotation_seed": 0}, context_length="inf"),)
PANEL = (
    _flow({"task.dimension": Whole(1, 30), "task.context_length": Whole(1, 1000)}, "zeros", covariance="identity"),
)

_VARIANCES = Each(Real(0.1, 10.0))


def _law(family: str, **parameters: Axis) -> Space:
    of_law = {f"task.covariance_law.{name}": axis for name, axis in parameters.items()}
    axes: dict[str, Axis] = {"task.covariance_law.dimension": Whole(1, 5)} | of_law
    return _flow(axes | _LENGTH | _START | _RANK, "balanced", covariance_law={"family": family})


RANDOM = (
    _law("exponential", rate=_VARIANCES),
    _law("gamma", shape=Each(Real(0.1, 10.0)), rate=_VARIANCES),
    _law("log-normal", location=Each(Real(-1.0, 1.0)), spread=Each(Real(0.1, 1.0))),
    _law("uniform", low=Each(Real(0.01, 1.0)), high=Each(Real(1.0, 10.0))),
)
_EXPONENTIAL = {"covariance_law": {"family": "exponential", "rate": 1.0}, "context_length": "inf"}
EXPONENTIAL = (_flow({"task.covariance_law.dimension": Whole(1, 8)} | _START | _RANK, "balanced", **_EXPONENTIAL),)
DASHED = (_flow({"task.covariance_law.dimension": Whole(1, 30)}, "zeros", **_EXPONENTIAL),)
