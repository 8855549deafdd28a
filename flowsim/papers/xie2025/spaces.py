"""The problems that the statements of xie2025 are about, as spaces to search."""

from typing import Any

from flowsim._core.types import Document
from flowsim.claims.spaces import Axis, Each, Real, Space, Whole

_PRIOR_MEAN: dict[str, Axis] = {"task.prior_mean": Each(Real(-3.0, 3.0))}
_DIMENSION: dict[str, Axis] = {"task.dimension": Whole(1, 6)} | _PRIOR_MEAN
_LENGTH: dict[str, Axis] = {"task.context_length": Whole(1, 1000)}
_FEW: dict[str, Axis] = {"task.dimension": Whole(1, 3), "task.context_length": Whole(1, 20)} | _PRIOR_MEAN
_FEW_PROMPTS: dict[str, Axis] = {"task.dimension": Whole(1, 3), "task.context_length": Whole(1, 4)} | _PRIOR_MEAN
_START: dict[str, Axis] = {"init.scale": Real(0.1, 0.5), "init.seed": Whole(0, 99)}
_STILL = {"kind": "zeros"}
_RANDOM = {"kind": "random"}


def _heads(axes: dict[str, Axis], init: Document, model: Document, **task: Any) -> Space:
    return Space(axes, {"task": {"covariance": "identity", **task}, "model": model, "init": init})


_ONE_HEAD = {"architecture": "multi-head", "heads": 1}
FINITE = (_heads(_DIMENSION | _LENGTH, _STILL, _ONE_HEAD),)
LIMITS = (_heads(_DIMENSION, _STILL, _ONE_HEAD, context_length="inf"),)
ZERO_MEAN_LIMITS = (_heads({"task.dimension": Whole(1, 6)}, _STILL, _ONE_HEAD, context_length="inf"),)
TASKS = FINITE + LIMITS
FEW = (_heads(_FEW_PROMPTS, _STILL, _ONE_HEAD),)
_BIAS: dict[str, Axis] = {"model.guess.bias": Real(-3.0, 3.0)}
_LINEAR: dict[str, Axis] = {"model.guess.linear": Each(Real(-3.0, 3.0))}
GUESSES = (
    _heads(_DIMENSION | _LENGTH | _BIAS, _STILL, _ONE_HEAD),
    _heads(_DIMENSION | _LENGTH | _BIAS | _LINEAR, _STILL, _ONE_HEAD),
)
_HEADS: dict[str, Axis] = {"model.heads": Whole(1, 4)}
FLOWS = (_heads(_FEW | _HEADS | _START, _RANDOM, {"architecture": "multi-head"}),)
GUESSED_FLOWS = (*FLOWS, _heads(_FEW | _HEADS | _START | _BIAS | _LINEAR, _RANDOM, {"architecture": "multi-head"}))
TRAINED_GUESS = (
    _heads(_FEW | _START, _RANDOM, {"architecture": "initial-guess"}),
    _heads(_FEW | _START, _RANDOM, {"architecture": "linear-block"}),
)
