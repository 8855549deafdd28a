"""The problems that zhang2025's statements are about, as spaces to search."""

from typing import Any

from flowsim.problem.spaces import Axis, Choice, Real, Space, Whole

_COVARIANCE: dict[str, Axis] = {
    "task.covariance.dimension": Whole(1, 6),
    "task.covariance.condition": Real(1.0, 100.0),
    "task.covariance.scale": Real(0.1, 10.0),
}
_LENGTH: dict[str, Axis] = {"task.context_length": Whole(1, 1000)}
_START: dict[str, Axis] = {"init.scale": Real(1e-3, 1.0), "init.seed": Whole(0, 99)}
_HEADS: dict[str, Axis] = {"model.heads": Whole(1, 8)}
_RANDOM = {"kind": "random"}


def _heads(axes: dict[str, Axis], keys: str, init: dict[str, Any], **task: Any) -> Space:
    tables = {"task": {"covariance": {"rotation_seed": 0}} | task, "init": init}
    return Space(axes, {**tables, "model": {"architecture": "attention", "keys": keys}})


MERGED = (_heads(_COVARIANCE | _LENGTH | _HEADS | _START, "merged", _RANDOM),)
MERGED_PLANE = (
    _heads(_COVARIANCE | {"task.covariance.dimension": Whole(2, 6)} | _LENGTH | _HEADS | _START, "merged", _RANDOM),
)
SEPARATE = (_heads(_COVARIANCE | _LENGTH | _HEADS | _START, "separate", _RANDOM),)
SEPARATE_PLANE = (
    _heads(_COVARIANCE | {"task.covariance.dimension": Whole(2, 6)} | _LENGTH | _HEADS | _START, "separate", _RANDOM),
)
SMALL_MERGED = (
    _heads(
        _COVARIANCE | _LENGTH | _HEADS | {"init.scale": Real(1e-8, 1e-5), "init.seed": Whole(0, 99)}, "merged", _RANDOM
    ),
)
WHITE = (
    _heads(
        {"task.covariance.scale": Real(0.1, 10.0), "init.v": Choice(([0.1], [1e-3]))} | _LENGTH,
        "merged",
        {"kind": "explicit", "U": [[[0.1]]]},
        covariance={"dimension": 1, "condition": 1.0},
    ),
)
ONE_HEAD = (
    _heads(
        {"task.covariance.condition": Real(1.0, 100.0), "task.covariance.scale": Real(0.1, 10.0)} | _LENGTH,
        "separate",
        {"kind": "explicit", "v": [0.1], "k": [[[0.1, 0.0, 0.0]]], "q": [[[0.1, 0.0, 0.0]]]},
        covariance={"dimension": 3},
    ),
)
SADDLES = (
    _heads(
        {"task.covariance.condition": Real(2.0, 10.0), "init.scale": Real(1e-5, 3e-4), "init.seed": Whole(0, 99)}
        | {"task.covariance.scale": Real(0.5, 4.0), "model.heads": Whole(2, 8)}
        | _LENGTH,
        "separate",
        _RANDOM,
        covariance={"dimension": 2, "rotation_seed": 0},
    ),
)
LONG = (_heads(_COVARIANCE | _HEADS, "separate", {"kind": "random", "scale": 0.1}, context_length="inf"),)
LENGTHS = (
    _heads(
        _COVARIANCE | _HEADS,
        "merged",
        {"kind": "random", "scale": 0.1},
        context_length={"lengths": [1, 3, 100], "probabilities": [0.2, 0.3, 0.5]},
    ),
    _heads(
        _COVARIANCE | _HEADS,
        "separate",
        {"kind": "random", "scale": 0.1},
        context_length={"lengths": [1, 50]},
    ),
)
