"""The path of a gradient flow: what was computed, how accurately, and why it ended."""

import abc
import contextlib
import contextvars
import dataclasses
import enum
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowsim import models as own_models
from flowsim._core import checks
from flowsim._core.documents import extra, html_table, origin
from flowsim._core.files import read_arrays, write_arrays
from flowsim._core.text import number_text
from flowsim._core.types import Document

SAME = 1e-12  # relative, between times; no solve can tell the weights there apart
_ASKED: contextvars.ContextVar[tuple[list[float], ...]] = contextvars.ContextVar("asked", default=())


@contextlib.contextmanager
def times_asked() -> Iterator[list[float]]:
    """The times that `Trajectory.at` is asked for within."""
    asked: list[float] = []
    token = _ASKED.set((*_ASKED.get(), asked))
    try:
        yield asked
    finally:
        _ASKED.reset(token)


class Status(enum.StrEnum):
    """How a run ended. After those that did not finish as asked no claim is judged, except before a kink."""

    EXCESS = "stopped-excess"  # the excess fell below the asked fraction of the start's
    GRAD_NORM = "stopped-grad-norm"  # the gradient norm fell below the asked fraction of its largest value
    TIME = "reached-t1"  # t1, or the last requested time of a run without stops, was reached
    STATIONARY = "stationary"  # the start has zero gradient: it stays where it is for ever
    LOST = "gradient-lost"  # the start's gradient is zero to rounding, and not in truth
    HORIZON = "reached-horizon"  # no stop was met within the longest time a run goes to by itself
    DESCENT = "steps-done"  # explicit gradient descent made the asked steps
    BUDGET = "budget-spent"  # the wall-clock budget ran out
    STEPS = "too-many-steps"  # the solver needed more steps than it may take
    NONFINITE = "nonfinite"  # the field or the weights became NaN or infinite
    NEWTON = "solver-failed"  # the step size fell to nothing: Newton diverged or the error cannot be met
    KINK = "stopped-at-kink"  # the gradient jumps just ahead, and the flow can only rest there or slide along the jump

    @property
    def finished(self) -> bool:
        """Whether the run did what was asked, so that it can be judged."""
        return self not in _ADVICE

    @property
    def judged(self) -> bool:
        """Whether what the run reached is judged."""
        return self.finished or self is Status.KINK

    @property
    def advice(self) -> str:
        """What to change where the run did not finish; empty where it did."""
        return _ADVICE.get(self, "")


_ADVICE = {
    Status.LOST: "Write the loss so that its gradient does not round to zero at the start, or start elsewhere.",
    Status.BUDGET: "Give it more time (budget_seconds), or go on with --resume.",
    Status.STEPS: "Ask for less: a larger rtol or atol, an earlier t1, or the implicit solver where the flow is stiff.",
    Status.NONFINITE: "Look for an overflow in the loss or its gradient, and start from smaller weights.",
    Status.NEWTON: "Ask for less: a larger rtol, or an atol in the size of the weights to come.",
    Status.KINK: "Smooth the kink to go on: the flow can only rest on it, or slide along it.",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the solver was asked for, so that a run can be repeated more accurately.

    solver: "in-turns" is explicit first, then in turns implicit and explicit, changing at the times ``changes``; atol:
    absolute, in the units of the weights; with_steps: whether the solver's steps are among the output times.
    """

    solver: str
    rtol: float
    atol: float
    changes: tuple[float, ...] = ()
    with_steps: bool = True

    @property
    def method(self) -> str:
        """The solver in words: of one in turns, which one from when."""
        if self.solver != "in-turns":
            return self.solver
        turns = zip(itertools.cycle(("implicit", "explicit")), self.changes, strict=False)
        return ", ".join(["explicit", *(f"{name} from t = {t:.4g}" for name, t in turns)])


@dataclasses.dataclass(frozen=True)
class Certificates:
    """Evidence of accuracy, each number relative and ideally zero.

    energy_defect: largest |L(0) - L(t) - int_0^t |grad L|^2|, beyond the rounding of the loss, over the largest energy
    dissipated;
    balance_drift: largest change of the loss's conserved quantity over the largest squared norm of the
    weights, None where no such quantity is known; steps, rejected_steps: of the solver.
    """

    energy_defect: float
    balance_drift: float | None
    steps: int
    rejected_steps: int


class AbstractDescent(eqx.Module):
    """The field of a gradient flow, in the shape of a model."""

    @abc.abstractmethod
    def __call__(self, model: PyTree) -> PyTree:
        """The velocity of a model: minus the gradient."""

    @abc.abstractmethod
    def way_to_go(self, model: PyTree, start: PyTree) -> float:
        """A proved bound on how far the flow from a start still goes from a model; infinite where none is found."""


class Trajectory(eqx.Module):
    """A gradient flow at its output times.

    t: (T,) increasing, from 0, strictly so unless the flow leaves a saddle so late that rounding of the time is more
    than the time in which it then moves: there time is counted from a later ``origin``, and ``since`` it; counted: both
    of them, None where the origin is 0 throughout; models: the model with time leading every weight; loss,
    excess, grad_norm_sq, dissipated: (T,) population loss, loss minus its minimum, squared gradient norm,
    and int_0^t |grad L|^2, integrated beside the weights. excess is NaN where no minimum is known. way_to_go: a proved
    bound on how far the weights still move after the last time, infinite where none was found (math.inf itself where
    none was looked for); descent: model -> its velocity, None of a trajectory that was read from a file.
    """

    t: Float[Array, " T"]
    models: PyTree
    loss: Float[Array, " T"]
    excess: Float[Array, " T"]
    grad_norm_sq: Float[Array, " T"]
    dissipated: Float[Array, " T"]
    certificates: Certificates = eqx.field(static=True)
    settings: Settings = eqx.field(static=True)
    status: Status = eqx.field(static=True)
    way_to_go: Float[ArrayLike, ""] = math.inf
    descent: AbstractDescent | None = None
    counted: tuple[Float[Array, " T"], Float[Array, " T"]] | None = None

    @property
    def origin(self) -> Float[Array, " T"]:
        """The time from which each output time counts."""
        return jnp.zeros_like(self.t) if self.counted is None else self.counted[0]

    @property
    def since(self) -> Float[Array, " T"]:
        """What has passed since then."""
        return self.t if self.counted is None else self.counted[1]

    def row(self, index: int) -> PyTree:
        """The model at the output time of that number."""
        return jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, self.models)

    def at(self, t: float) -> PyTree:
        """The model at the time t, which is an output time; in a claim any time up to the end of the flow.

        **Raises:** `ValueError` where it is none.
        """
        t = float(t)
        if not math.isfinite(t):
            checks.refuse("t", "a time (flowsim.limit is of the limit)", f"it is {t:g}")
        for asked in _ASKED.get():
            asked.append(t)
        here = jnp.abs(self.t - t) <= SAME * t
        if checks.is_concrete(here) and not np.any(here):
            checks.refuse("t", "an output time (gradient_flow(.., times=[t]) makes it one)", f"it is {t:g}")
        # The end may be repeated.
        first = here & (jnp.cumsum(here) == 1)

        def pick(leaf):
            if not eqx.is_inexact_array(leaf):
                return leaf[0] if eqx.is_array(leaf) else leaf
            picked = jnp.sum(jnp.where(first.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0.0), axis=0)
            return jnp.where(jnp.any(first), picked, jnp.nan)

        return jax.tree.map(pick, self.models)

    @property
    def start(self) -> PyTree:
        """The model at time 0."""
        return self.row(0)

    @property
    def end(self) -> PyTree:
        """The model at the last output time. Of the limit, `flowsim.limit` knows more."""
        return self.row(-1)

    @property
    def velocity(self) -> PyTree:
        """d models/dt, which is -grad L, at all output times: a model with time leading every weight.

        **Raises:** `ValueError` of a trajectory that was read from a file, which has no loss.
        """
        if self.descent is None:
            checks.refuse("velocity", "asked of a flow that has its loss", "this trajectory was read from a file")
        return eqx.filter_vmap(self.descent)(self.models)

    def __str__(self) -> str:
        certificates = self.certificates
        balance = "" if certificates.balance_drift is None else f", balance drift {certificates.balance_drift:.1e}"
        return (
            f"gradient flow to t = {float(self.t[-1]):.4g} ({self.status}); {self.t.shape[0]} output times\n"
            f"  loss {float(self.loss[0]):.6g} -> {float(self.loss[-1]):.6g}, "
            f"excess {float(self.excess[0]):.3g} -> {float(self.excess[-1]):.3g}\n"
            f"  {self.settings.method}, rtol {self.settings.rtol:g}: {certificates.steps} steps "
            f"({certificates.rejected_steps} rejected), energy defect {certificates.energy_defect:.1e}{balance}"
        )

    def _repr_html_(self) -> str:
        return html_table(("", "start", "end"), self._ends(), str(self))

    def _ends(self) -> list[tuple[str, str, str]]:
        series = {name: np.asarray(getattr(self, name)) for name in SERIES}
        return [(name, number_text(values[0]), number_text(values[-1])) for name, values in series.items()]

    def to_xarray(self) -> Any:
        """An ``xarray.Dataset`` over time ``t``: the series and every weight under its own name, whose axes are called
        after it; status, settings and certificates are its attributes.

        **Raises:** `ProblemError` where xarray is not installed.
        """
        arrays = {name: np.asarray(getattr(self, name)) for name in SERIES}
        arrays |= {name: np.asarray(leaf) for name, leaf in weights(self.models).items()}
        t = arrays.pop("t")
        dims = lambda name, array: ("t", *(f"{name}_{axis}" for axis in range(1, array.ndim)))
        attributes = {"status": self.status.value, **dataclasses.asdict(self.certificates)}
        counted = {} if self.counted is None else dict(zip(COUNTED, map(np.asarray, self.counted), strict=True))
        return extra("xarray").Dataset(
            {name: (dims(name, array), array) for name, array in arrays.items()},
            coords={"t": t, **{name: ("t", array) for name, array in counted.items()}},
            attrs={
                **attributes,
                "solver": self.settings.method,
                "rtol": self.settings.rtol,
                "atol": self.settings.atol,
            },
        )

    def save(
        self, path: str | os.PathLike, beside: Mapping[str, ArrayLike] | None = None, problem: str | None = None
    ) -> None:
        """Write an npz file (no pickle), whole or not at all; each weight under its own name.

        **Arguments:** beside: further arrays for readers of the file, which `load` leaves out; problem: the identity of
        the problem that the flow is of, such as `flowsim.ProblemSpec.identity`.
        """
        arrays = {name: np.asarray(getattr(self, name)) for name in SERIES}
        arrays |= {name: np.asarray(leaf) for name, leaf in (weights(self.models) | dict(beside or {})).items()}
        if self.counted is not None:
            arrays |= dict(zip(COUNTED, map(np.asarray, self.counted), strict=True))
        metadata = {
            "counted": self.counted is not None,
            "model": type(self.models).__name__,
            "fields": _static_fields(self.models),
            "beside": list(beside or ()),
            "status": self.status.value,
            "settings": dataclasses.asdict(self.settings),
            "certificates": dataclasses.asdict(self.certificates),
            "origin": origin(problem),
        }
        arrays["metadata"] = np.asarray(json.dumps(metadata))
        write_arrays(path, arrays)

    @staticmethod
    def load(path: str | os.PathLike, like: PyTree | None = None) -> "Trajectory":
        """Read a trajectory; ``like`` is a model of the same structure, needed for a user's own and for modules within.

        **Raises:** `ValueError` where the file is damaged or no trajectory, or ``like`` is missing or does not fit.
        """
        return Trajectory.of_arrays(read_arrays(path), path, like)

    @staticmethod
    def of_arrays(
        arrays: Mapping[str, np.ndarray],
        path: str | os.PathLike,
        like: PyTree | None = None,
    ) -> "Trajectory":
        """The trajectory in the arrays of a file; ``path`` says in errors which one. See `load`."""
        arrays, metadata = dict(arrays), metadata_of(arrays, path)
        for name in (*metadata["beside"], "metadata"):
            del arrays[name]
        series = {name: jnp.asarray(arrays.pop(name)) for name in SERIES}
        origin, since = (jnp.asarray(arrays.pop(name)) if metadata.get("counted") else series["t"] for name in COUNTED)
        if like is None:
            kind = _OWN_MODELS.get(metadata["model"])
            if kind is None or any("." in name for name in arrays):
                checks.refuse("like", f"a model of the class {metadata['model']}", "nothing was given")
            like = _pattern(kind, arrays, metadata["fields"])
        names = list(weights(like))
        if set(names) != set(arrays):
            checks.refuse("like", f"a model with the weights {sorted(arrays)}", f"it has {sorted(names)}")
        values = iter([jnp.asarray(arrays[name]) for name in names])
        models = jax.tree.map(lambda leaf: next(values) if eqx.is_array(leaf) else leaf, like)
        t, loss, excess, grad_norm_sq, dissipated = (series[name] for name in SERIES)
        return Trajectory(
            t,
            models,
            loss,
            excess,
            grad_norm_sq,
            dissipated,
            certificates=Certificates(**metadata["certificates"]),
            settings=_settings(**metadata["settings"]),
            status=Status(metadata["status"]),
            counted=(origin, since) if metadata.get("counted") else None,
        )


def metadata_of(arrays: Mapping[str, np.ndarray], path: str | os.PathLike) -> Document:
    """What the file of a trajectory says of it beside its arrays; ``origin`` is that of its problem.

    **Raises:** `ValueError` where the file holds no trajectory.
    """
    if not {"metadata", *SERIES} <= set(arrays):
        checks.refuse("path", "a trajectory written by flowsim", f"{path} is not")
    try:
        return json.loads(str(arrays["metadata"]))
    except ValueError:
        checks.refuse("path", "a trajectory written by flowsim", f"{path} is not")


def _settings(changes: Sequence[float] = (), **rest: Any) -> Settings:
    """Settings as JSON has them."""
    return Settings(changes=tuple(changes), **rest)


_OWN_MODELS = {name: kind for name, kind in vars(own_models).items() if isinstance(kind, type)}
COUNTED = ("origin", "since")
SERIES = ("t", "loss", "excess", "grad_norm_sq", "dissipated")


def weights(model: PyTree) -> dict[str, Any]:
    """The weights of a model by name: attribute names, joined by dots where nested."""
    leaves = jax.tree_util.tree_leaves_with_path(model)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves if eqx.is_array(leaf)}


def _static_fields(model: PyTree) -> dict[str, Any]:
    """The fields of one of flowsim's own models that are no weights, such as its number of loops."""
    if type(model) not in _OWN_MODELS.values():
        return {}
    fields = dataclasses.fields(model)
    return {field.name: getattr(model, field.name) for field in fields if field.metadata.get("static", False)}


def _pattern(kind: type, arrays: Mapping[str, np.ndarray], fixed: Mapping[str, Any]) -> PyTree:
    """A model of one of flowsim's own classes with these weights, which have time first, and other fields."""
    model = object.__new__(kind)
    found = {name: jnp.zeros(array.shape[1:]) for name, array in arrays.items()} | dict(fixed)
    for field in dataclasses.fields(kind):
        object.__setattr__(model, field.name, found.get(field.name))
    return model


def uncertified(
    t: Float[Array, " T"],
    models: PyTree,
    loss: Float[Array, " T"],
    excess: Float[Array, " T"],
    grad_norm_sq: Float[Array, " T"],
    dissipated: Float[Array, " T"],
    descent: AbstractDescent | None = None,
) -> Trajectory:
    """A trajectory for comparisons alone, which may be traced: what is static in it is always the same."""
    certificates = Certificates(energy_defect=0.0, balance_drift=None, steps=0, rejected_steps=0)
    settings = Settings(solver="", rtol=0.0, atol=0.0)
    return Trajectory(
        t,
        models,
        loss,
        excess,
        grad_norm_sq,
        dissipated,
        certificates,
        settings,
        Status.TIME,
        way_to_go=jnp.asarray(jnp.inf),
        descent=descent,
    )
