"""The problems that ahn2023's statements cover, as spaces to search for counterexamples."""

from typing import Any

from flowsim._core.types import Document
from flowsim.claims.spaces import Axis, Real, Space, Whole

_COVARIANCE: dict[str, Axis] = {
    "task.covariance.dimension": Whole(1, 8),
    "task.covariance.condition": Real(1.0, 1e3),
    "task.covariance.scale": Real(1e-2, 1e2),
}
_LENGTH: dict[str, Axis] = {"task.context_length": Whole(1, 1000)}
_FEW: dict[str, Axis] = {
    "task.covariance.dimension": Whole(1, 4),
    "task.covariance.condition": Real(1.0, 100.0),
    "task.covariance.scale": Real(0.1, 10.0),
    "task.context_length": Whole(1, 100),
}
_START: dict[str, Axis] = {"init.scale": Real(1e-2, 1.0), "init.seed": Whole(0, 999)}
_STILL = {"kind": "zeros"}


def _single(axes: dict[str, Axis], init: Document = _STILL, **task: Any) -> Space:
    return Space(axes, {"task": task, "model": {"architecture": "masked-attention"}, "init": init})


MASKED = (_single(_COVARIANCE | _LENGTH, covariance={"rotation_seed": 0}),)
MASKED_DIAGONAL = (_single(_COVARIANCE | _LENGTH, covariance={}),)
MASKED_ISOTROPIC = (_single({"task.dimension": Whole(1, 20)} | _LENGTH, covariance="identity"),)
MASKED_FLOWS = (_single(_FEW | _START, {"kind": "random"}, covariance={"rotation_seed": 0}),)


def _layers(axes: dict[str, Axis], model: Document, init: Document = _STILL, **tables: Any) -> Space:
    problem = {"task": {"covariance": {"rotation_seed": 0}}, "model": {"architecture": "multi-layer", **model}}
    return Space(axes, problem | {"init": init} | tables)


_NO_FLOW = {"flow": {"t1": 1e-6, "solver": "explicit"}}
LAYERS = (
    _layers(_FEW | {"model.layers": Whole(1, 3)}, {"symmetric": True}, **_NO_FLOW),
    _layers(_FEW | {"model.layers": Whole(1, 2)}, {"symmetric": False}, **_NO_FLOW),
)
SEVERAL_LAYERS = (_layers(_FEW | {"model.layers": Whole(2, 3)}, {"symmetric": True}, **_NO_FLOW),)
_ISOTROPIC = {name: _FEW[name] for name in ("task.covariance.dimension", "task.context_length")}
_IDENTITY = {"task": {"covariance": {"condition": 1.0}}}
ISOTROPIC_LAYERS = (_layers(_ISOTROPIC, {"layers": 2, "symmetric": True}, **_NO_FLOW, **_IDENTITY),)
_SMALL: dict[str, Axis] = {"task.covariance.dimension": Whole(1, 2), "model.layers": Whole(2, 3)}
RESIDUAL_STREAM = (_layers(_FEW | _SMALL, {"symmetric": True}, **_NO_FLOW),)
_DISTORTED = {"eigenvalues": [1.0, 1.0, 0.25, 0.0625, 1.0]}
_TURNED: dict[str, Axis] = {"task.covariance.rotation_seed": Whole(0, 999)}
SECTION_5 = (
    _layers(
        _TURNED | {"init.seed": Whole(0, 999)},
        {"layers": 3},
        {"kind": "random", "scale": 1.0},
        task={"covariance": _DISTORTED, "context_length": 20},
        flow={"t1": 70000.0},
    ),
)
_PAPER_B = {"task": {"covariance": _DISTORTED, "context_length": 10}}
SECTION_6 = (_layers(_TURNED, {"layers": 3, "symmetric": True}, **_PAPER_B, **_NO_FLOW),)


def _sampled(axes: dict[str, Axis], covariance: Document, init: Document, samples: int, t1: float) -> Space:
    """A space of problems with two layers that have matrices B_i, and with a Monte Carlo loss."""
    return _layers(
        axes,
        {"layers": 2, "residual_stream": True},
        init,
        task={"covariance": covariance},
        loss={"kind": "monte-carlo", "samples": samples, "method": "covariances"},
        flow={"t1": t1, "rtol": 1e-4},
    )


_DRAWN: dict[str, Axis] = {
    "task.context_length": Whole(50, 200),
    "task.covariance.rotation_seed": Whole(0, 99),
    "init.seed": Whole(0, 99),
}
_SCALED: dict[str, Axis] = {"task.context_length": Whole(10, 100), "task.covariance.scale": Real(0.5, 5.0)}
SAMPLED = (_sampled(_DRAWN, {"eigenvalues": [1.0, 1.0, 0.25]}, {"kind": "random", "scale": 0.3}, 2048, 2000.0),)
_AT_SCALARS = {"kind": "scaled-identity", "scale": 0.3}
ON_SCALARS = (_sampled(_SCALED, {"condition": 1.0, "dimension": 3}, _AT_SCALARS, 131072, 1e-6),)
