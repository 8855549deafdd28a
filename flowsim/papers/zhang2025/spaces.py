"""The sets of problems that zhang2025's claims cover, as spaces to search for counterexamples."""

from typing import Any

from flowsim._core.types import Document
from flowsim.claims.spaces import Axis, Choice, Real, Space, Whole

_COVARIANCE: dict[str, Axis] = {
    "task.covariance.dimension": Whole(1, 6),
    "task.covariance.condition": Real(1.0, 100.0),
    "task.covariance.scale": Real(0.1, 10.0),
}
_LENGTH: dict[str, Axis] = {"task.context_length": Whole(1, 1000)}
_START: dict[str, Axis] = {"init.scale": Real(1e-3, 1.0), "init.seed": Whole(0, 99)}
_HEADS: dict[str, Axis] = {"model.heads": Whole(1, 8)}
_FLOWS = _COVARIANCE | _LENGTH | _HEADS | _START
_PLANE: dict[str, Axis] = {"task.covariance.dimension": Whole(2, 6)}
_SCALED: dict[str, Axis] = {"task.covariance.condition": Real(1.0, 100.0), "task.covariance.scale": Real(0.1, 10.0)}
_RANDOM = {"kind": "random"}
_STILL = {"kind": "random", "scale": 0.1}


def _heads(keys: str, axes: dict[str, Axis], init: Document = _RANDOM, **task: Any) -> Space:
    tables = {"task": {"covariance": {"rotation_seed": 0}} | task, "init": init}
    return Space(axes, {**tables, "model": {"architecture": "attention", "keys": keys}})


MERGED = (_heads("merged", _FLOWS),)
MERGED_PLANE = (_heads("merged", _FLOWS | _PLANE),)
SEPARATE = (_heads("separate", _FLOWS),)
SEPARATE_PLANE = (_heads("separate", _FLOWS | _PLANE),)
SMALL_MERGED = (_heads("merged", _FLOWS | {"init.scale": Real(1e-8, 1e-5)}),)
WHITE = (
    _heads(
        "merged",
        {"task.covariance.scale": Real(0.1, 10.0), "init.v": Choice(([0.1], [1e-3]))} | _LENGTH,
        {"kind": "explicit", "U": [[[0.1]]]},
        covariance={"dimension": 1, "condition": 1.0},
    ),
)
_ALONG = {"kind": "explicit", "v": [0.1], "k": [[[0.1, 0.0, 0.0]]], "q": [[[0.1, 0.0, 0.0]]]}
ONE_HEAD = (_heads("separate", _SCALED | _LENGTH, _ALONG, covariance={"dimension": 3}),)
_APART: dict[str, Axis] = {
    "task.covariance.condition": Real(2.0, 10.0),
    "init.scale": Real(1e-5, 3e-4),
    "init.seed": Whole(0, 99),
    "task.covariance.scale": Real(0.5, 4.0),
    "model.heads": Whole(2, 8),
}
SADDLES = (_heads("separate", _APART | _LENGTH, covariance={"dimension": 2, "rotation_seed": 0}),)
LONG = (_heads("separate", _COVARIANCE | _HEADS, _STILL, context_length="inf"),)
_LAWS = ({"lengths": [1, 3, 100], "probabilities": [0.2, 0.3, 0.5]}, {"lengths": [1, 50]})
LENGTHS = tuple(
    _heads(keys, _COVARIANCE | _HEADS, _STILL, context_length=law)
    for keys, law in zip(("merged", "separate"), _LAWS, strict=True)
)
