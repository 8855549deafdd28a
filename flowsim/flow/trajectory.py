"""The trajectory of a gradient flow or descent, with its accuracy and the reason why it ended."""

import abc
import dataclasses
import enum
import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
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
from flowsim._core.functions import TIMES_ASKED
from flowsim._core.text import number_text
from flowsim._core.types import Document
from flowsim.flow.basin import Tail

DESCENT = "gradient-descent"
SAME = 1e-12  # relative: no solve distinguishes the weights at closer times


class Status(enum.StrEnum):
    """How a run ended. Claims are not judged on an unfinished run, except on a run that ended before a kink."""

    in_words: str

    def __new__(cls, value: str, in_words: str) -> "Status":
        status = str.__new__(cls, value)
        status._value_, status.in_words = value, in_words
        return status

    EXCESS = "stopped-excess", "stopped: excess below the asked share of the start's"
    GRAD_NORM = "stopped-grad-norm", "stopped: gradient norm below the asked share of its largest"
    TIME = "reached-t1", "ended: t1, or the last requested time of a run without stops"
    STATIONARY = "stationary", "at rest: the gradient of the start is zero"
    LOST = "gradient-lost", "not started: the gradient of the start rounds to zero but is not zero"
    HORIZON = "reached-horizon", "ended: no stop was met within the longest time of a run without t1"
    DESCENT = "steps-done", "ended: all steps of gradient descent are done"
    BUDGET = "budget-spent", "not finished: the wall-clock budget is spent"
    STEPS = "too-many-steps", "not finished: the solver needed more steps than it may take"
    NONFINITE = "nonfinite", "not finished: the field or the weights became NaN or infinite"
    NEWTON = (
        "solver-failed",
        "not finished: the step size is zero",
    )  # Newton diverged or the error cannot be met
    KINK = "stopped-at-kink", "not finished: the gradient jumps just ahead"  # the flow can only rest or slide there

    @property
    def finished(self) -> bool:
        """Whether the run reached its end without a failure."""
        return self not in _ADVICE

    @property
    def judged(self) -> bool:
        """Whether claims are judged on the trajectory."""
        return self.finished or self is Status.KINK

    @property
    def advice(self) -> str:
        """Advice on what to change if the run did not finish; else empty."""
        return _ADVICE.get(self, "")


_ADVICE = {
    Status.LOST: "Write the loss so that its gradient does not round to zero at the start, or start elsewhere.",
    Status.BUDGET: "Give it more time (budget_seconds), or continue with --resume.",
    Status.STEPS: "Ask for less: a larger rtol or atol, an earlier t1, or the implicit solver where the flow is stiff.",
    Status.NONFINITE: "Look for an overflow in the loss or its gradient, and start from smaller weights.",
    Status.NEWTON: "Ask for less: a larger rtol, or an atol in the size of the weights to come.",
    Status.KINK: "Smooth the kink to continue: the flow can only rest on it, or slide along it.",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a solver. The solver "in-turns" begins explicitly and alternates at the times ``changes``.
    The tolerances are those of `gradient_flow`; momentum and direction those of `gradient_descent`. ``with_steps``
    says whether the ends of steps are recorded.
    """

    solver: str
    rtol: float
    atol: float
    changes: tuple[float, ...] = ()
    with_steps: bool = True
    momentum: float = 0.0
    direction: str = "gradient"

    @property
    def method(self) -> str:
        """The solver in words. If solvers alternate, each is followed by the time from which it is used."""
        if self.solver == DESCENT:
            kind = {"sign": "signed ", "normalized": "normalized "}.get(self.direction, "")
            return f"{kind}gradient descent{f', momentum {self.momentum:g}' if self.momentum else ''}"
        if self.solver != "in-turns":
            return self.solver
        turns = zip(itertools.cycle(("implicit", "explicit")), self.changes, strict=False)
        return ", ".join(["explicit", *(f"{name} from t = {t:.4g}" for name, t in turns)])


@dataclasses.dataclass(frozen=True)
class Certificates:
    """Evidence of accuracy: two relative errors, both ideally zero, and the numbers of steps.

    **Fields:**

    - energy_defect: the largest |L(0) - L(t) - int_0^t |grad L|^2| beyond rounding of the loss, divided by the
      dissipated energy.
    - balance_drift: the largest change of the conserved quantity, divided by the largest squared norm of the
      weights. None if no conserved quantity is known.
    - steps, rejected_steps: the numbers of accepted and rejected steps.
    """

    energy_defect: float
    balance_drift: float | None
    steps: int
    rejected_steps: int


class AbstractDescent(eqx.Module):
    """The velocity field of a gradient flow, as a function of the model."""

    @abc.abstractmethod
    def __call__(self, model: PyTree) -> PyTree:
        """The velocity -grad L at a model, in the form of the model."""

    @abc.abstractmethod
    def way_to_go(self, model: PyTree, start: PyTree) -> float:
        """A proved bound on the length of the flow from a model to its limit; infinite if no bound is found."""


class Trajectory(eqx.Module):
    """A gradient flow at its output times, or a gradient descent at its iterates.

    **Fields:**

    - t: (T,) the output times, increasing from 0. They can be equal during a drop of the loss that is so late that
      float64 cannot resolve it. For a descent, the numbers k = 0, 1, .. of the iterates.
    - models: the model, with time on the first axis of every weight.
    - loss, excess, grad_norm_sq: (T,) L, L - min L (NaN if the minimum is unknown) and |grad L|^2.
    - dissipated: (T,) int_0^t |grad L|^2, integrated together with the weights. For a descent, the sum over its
      steps of <grad L(x_k), x_k - x_{k+1}>.
    - certificates, settings, status: the accuracy, the settings of the solver, and how the run ended.
    - way_to_go: a proved bound on the length of the flow after the last time. An infinite array if no bound was
      found; the Python number math.inf if the bound has not been computed.
    - descent: maps a model to its velocity; None for a trajectory from a file.
    - counted: `origin` and `since` of a flow with a late drop of the loss, else None.
    - step_size: (T,) eta_k of a descent, for the step from x_k to x_{k+1}. None for a flow.
    - tail: the continuation beyond the end, for verdicts on limits; None if the flow was not continued.
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
    step_size: Float[Array, " T"] | None = None
    tail: Tail | None = None

    @property
    def origin(self) -> Float[Array, " T"]:
        """(T,) the origin of each output time, the time of the flow from which `since` counts."""
        return jnp.zeros_like(self.t) if self.counted is None else self.counted[0]

    @property
    def since(self) -> Float[Array, " T"]:
        """(T,) each output time, counted from its `origin`."""
        return self.t if self.counted is None else self.counted[1]

    def row(self, index: int) -> PyTree:
        """The model at the output time with this number."""
        # By NumPy where possible, as JAX compiles a program for every number of times.
        known = lambda leaf: eqx.is_inexact_array(leaf) and checks.is_concrete(leaf)
        at = lambda leaf: jax.device_put(np.asarray(leaf)[index]) if known(leaf) else leaf[index]
        return jax.tree.map(lambda leaf: at(leaf) if eqx.is_array(leaf) else leaf, self.models)

    def at(self, t: float | int) -> PyTree:
        """The model at an output time t. Inside a claim, t may be any time up to the end of the flow.

        **Raises:** `ValueError` if t is not an output time.
        """
        t = float(t)
        if not math.isfinite(t):
            checks.refuse("t", "a finite time (flowsim.limit gives the limit)", f"it is {t:g}")
        for asked in TIMES_ASKED.get():
            asked.append(t)
        here = jnp.abs(self.t - t) <= SAME * t
        if checks.is_concrete(here) and not np.any(here):
            checks.refuse("t", "an output time (gradient_flow(.., times=[t]) makes it one)", f"it is {t:g}")
        # Padding repeats the end.
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
        """The model at the last output time. For the limit of the flow, with a bound, see `flowsim.limit`."""
        return self.row(-1)

    @property
    def velocity(self) -> PyTree:
        """d models/dt = -grad L at all output times, in the form of ``models``.

        **Raises:** `ValueError` for a trajectory from a file, which has no loss.
        """
        if self.descent is None:
            checks.refuse("the trajectory", "one with its loss, for the velocity", "it was read from a file")
        return eqx.filter_vmap(self.descent)(self.models)

    def __str__(self) -> str:
        certificates = self.certificates
        balance = "" if certificates.balance_drift is None else f", balance drift {certificates.balance_drift:.1e}"
        t, loss, excess = map(np.asarray, (self.t, self.loss, self.excess))
        lines = f"  loss {loss[0]:.6g} -> {loss[-1]:.6g}, excess {excess[0]:.3g} -> {excess[-1]:.3g}"
        if self.step_size is not None:
            eta = np.asarray(self.step_size)
            sizes = f"{eta.min():.4g}" if np.ptp(eta) == 0 else f"{eta.min():.4g} to {eta.max():.4g}"
            return f"{self.settings.method} to k = {t[-1]:g} ({self.status}), step size {sizes}\n{lines}"
        return (
            f"gradient flow to t = {t[-1]:.4g}; {t.size} output times\n  {self.status.in_words}\n{lines}\n"
            f"  {self.settings.method}, rtol {self.settings.rtol:g}: {certificates.steps} steps "
            f"({certificates.rejected_steps} rejected)\n  energy defect {certificates.energy_defect:.1e}{balance}"
        )

    def __repr__(self) -> str:  # several flows at once, or traced ones, have no numbers to show
        return str(self) if checks.is_concrete(self.t) and np.ndim(self.t) == 1 else eqx.tree_pformat(self)

    def _repr_html_(self) -> str:
        return html_table(("", "start", "end"), self._ends(), str(self))

    def _ends(self) -> list[tuple[str, str, str]]:
        series = {name: np.asarray(getattr(self, name)) for name in SERIES}
        return [(name, number_text(values[0]), number_text(values[-1])) for name, values in series.items()]

    def to_xarray(self) -> Any:
        """An ``xarray.Dataset`` of series and weights over ``t``, with the settings and certificates as attributes.

        **Raises:** `ProblemError` if xarray is not installed.
        """
        arrays = {name: np.asarray(getattr(self, name)) for name in SERIES}
        arrays |= {name: np.asarray(leaf) for name, leaf in weights(self.models).items()}
        t = arrays.pop("t")
        dims = lambda name, array: ("t", *(f"{name}_{axis}" for axis in range(1, array.ndim)))
        settings, attributes = self.settings, {"status": self.status.value, **dataclasses.asdict(self.certificates)}
        counted = {} if self.counted is None else dict(zip(COUNTED, map(np.asarray, self.counted), strict=True))
        return extra("xarray").Dataset(
            {name: (dims(name, array), array) for name, array in arrays.items()},
            coords={"t": t, **{name: ("t", array) for name, array in counted.items()}},
            attrs=attributes | {"solver": settings.method, "rtol": settings.rtol, "atol": settings.atol},
        )

    def save(
        self, path: str | os.PathLike, extras: Mapping[str, ArrayLike] | None = None, problem: str | None = None
    ) -> None:
        """Write an npz file with each series and weight under its name, no pickle. A partial file is never visible.

        **Arguments:** extras: arrays to add to the file, which `load` ignores; problem: the identity of the
        problem, such as `flowsim.ProblemSpec.identity`.
        """
        arrays = {name: np.asarray(getattr(self, name)) for name in SERIES}
        arrays |= {name: np.asarray(leaf) for name, leaf in (weights(self.models) | dict(extras or {})).items()}
        if self.step_size is not None:
            arrays[STEP_SIZE] = np.asarray(self.step_size)
        if self.counted is not None:
            arrays |= dict(zip(COUNTED, map(np.asarray, self.counted), strict=True))
        metadata = {
            "counted": self.counted is not None,
            "model": type(self.models).__name__,
            "fields": _static_fields(self.models),
            "beside": list(extras or ()),
            "status": self.status.value,
            "settings": dataclasses.asdict(self.settings),
            "certificates": dataclasses.asdict(self.certificates),
            "origin": origin(problem),
        }
        arrays["metadata"] = np.asarray(json.dumps(metadata))
        write_arrays(path, arrays)

    @staticmethod
    def load(path: str | os.PathLike, like: PyTree | None = None) -> "Trajectory":
        """Read a trajectory. ``like``, a model of the same structure, is needed if its class is not one of flowsim.

        **Raises:** `ValueError` if the file is damaged or not a trajectory, or if ``like`` is missing or does not
        match.
        """
        return Trajectory.of_arrays(read_arrays(path), path, like)

    @staticmethod
    def of_arrays(
        arrays: Mapping[str, np.ndarray], path: str | os.PathLike, like: PyTree | None = None
    ) -> "Trajectory":
        """The trajectory made from the arrays of the file ``path``; see `load`."""
        arrays, metadata = dict(arrays), metadata_of(arrays, path)
        for name in (*metadata["beside"], "metadata"):
            del arrays[name]
        series = {name: jnp.asarray(arrays.pop(name)) for name in SERIES}
        origin, since = (jnp.asarray(arrays.pop(name)) if metadata.get("counted") else series["t"] for name in COUNTED)
        step_size = jnp.asarray(arrays.pop(STEP_SIZE)) if STEP_SIZE in arrays else None
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
            step_size=step_size,
        )


def metadata_of(arrays: Mapping[str, np.ndarray], path: str | os.PathLike) -> Document:
    """The metadata of a trajectory, from the arrays of the file ``path``. Its "origin" identifies the problem.

    **Raises:** `ValueError` if the file is not a trajectory.
    """
    if not {"metadata", *SERIES} <= set(arrays):
        checks.refuse("path", "a trajectory written by flowsim", f"{path} is not")
    try:
        return json.loads(str(arrays["metadata"]))
    except ValueError:
        checks.refuse("path", "a trajectory written by flowsim", f"{path} is not")


def _settings(changes: Sequence[float] = (), **rest: Any) -> Settings:
    return Settings(changes=tuple(changes), **rest)


_OWN_MODELS = {name: kind for name, kind in vars(own_models).items() if isinstance(kind, type)}
COUNTED = ("origin", "since")
STEP_SIZE = "step_size"
SERIES = ("t", "loss", "excess", "grad_norm_sq", "dissipated")


def weights(model: PyTree) -> dict[str, Array]:
    """The weights of a model by name. A name consists of the name of an attribute or, for nested models, of several
    names that are joined by dots.
    """
    leaves = jax.tree_util.tree_leaves_with_path(model)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves if eqx.is_array(leaf)}


def _static_fields(model: PyTree) -> Document:
    """The static fields of a model by name, such as its number of loops; empty if its class is not one of flowsim."""
    if type(model) not in _OWN_MODELS.values():
        return {}
    fields = dataclasses.fields(model)
    return {field.name: getattr(model, field.name) for field in fields if field.metadata.get("static", False)}


def _pattern(kind: type, arrays: Mapping[str, np.ndarray], fixed: Document) -> PyTree:
    """A model of the class ``kind`` with the static fields ``fixed`` and zero weights, in the shapes of ``arrays``."""
    model = object.__new__(kind)
    found = {name: jnp.zeros(array.shape[1:]) for name, array in arrays.items()} | dict(fixed)
    for field in dataclasses.fields(kind):
        object.__setattr__(model, field.name, found.get(field.name))
    return model
