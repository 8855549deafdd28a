"""Draws a flow with what a theorem predicts. Every public plot draws on the axes ``ax``, or on new ones, and
returns them.

Only ratios of recorded numbers are computed here. No global state changes: figures of a run are created without
pyplot, and the style applies only during drawing.
"""

import contextlib
import dataclasses
import functools
import inspect
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import matplotlib.style
import numpy as np
from jaxtyping import ArrayLike, PyTree
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from flowsim._core.files import write_whole
from flowsim._core.text import in_tex
from flowsim._core.types import Options
from flowsim.flow.risk_curve import RiskCurve
from flowsim.flow.solvers.clock import counted
from flowsim.flow.trajectory import Trajectory, weights
from flowsim.papers.paper import Predictions
from flowsim.problem.architecture import Curve
from flowsim.report.plots.axes import count_steps, readable, time_axis

STYLE = pathlib.Path(__file__).with_name("flowsim.mplstyle")

# Roles are distinct by line style and by grey value; their colours are those of the current style.
_DATA: Options = {"color": "C0", "linestyle": "-"}
_BOUND: Options = {"color": "C1", "linestyle": "--"}
_PREDICTION: Options = {"color": "C2", "linestyle": "-."}
_SECOND: Options = {"color": "C3", "linestyle": ":", "marker": ".", "markevery": 6}
_LARGEST = 1e200  # on a logarithmic axis, whose margins would otherwise overflow


@dataclasses.dataclass(frozen=True)
class Sized:
    """A figure whose size differs from that of the style.

    **Fields:** draw: draws it on axes; size: its width and height in inches.
    """

    draw: Callable[..., Axes]
    size: tuple[float, float]

    def __call__(self, *, ax: Axes | None = None) -> Axes:
        return self.draw(ax=ax)


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """A context with flowsim's style. Values that are not finite are left out of figures without a warning."""
    with matplotlib.style.context(["default", str(STYLE)]), np.errstate(all="ignore"):
        yield


def on_axes(draw: Callable[..., Axes]) -> Callable[..., Axes]:
    """Turn a function ``draw(axes, ...)`` into ``drawn(..., ax=None)``.

    Without ``ax`` the result draws on new axes of pyplot, in flowsim's style.
    """

    @functools.wraps(draw)
    def drawn(*given: object, ax: Axes | None = None, **options: object) -> Axes:
        if ax is not None:
            with np.errstate(all="ignore"):
                return draw(ax, *given, **options)
        from matplotlib import pyplot  # imported only when needed, since a notebook chooses the backend

        with styled():
            axes = draw(pyplot.subplots()[1], *given, **options)
            # A colour such as C0 is resolved when a figure is shown, possibly under another style.
            for artist in axes.findobj(Line2D) + axes.findobj(Text):
                artist.set(color=to_hex(artist.get_color()))
        return axes

    _, *others = inspect.signature(draw).parameters.values()
    own = inspect.Parameter("ax", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Axes | None)
    vars(drawn)["__signature__"] = inspect.Signature([*others, own], return_annotation=Axes)
    return drawn


@on_axes
def excess(axes: Axes, trajectory: Trajectory, predictions: Predictions | None = None, time: str = "log") -> Axes:
    """Draw the excess loss over time, with the decay at the local rate, and with the envelope e^{-mu t} excess(0),
    where mu is the rate that a theorem guarantees.

    The line of the local rate passes through the last point. With ``time="linear"`` an exponential is a straight
    line.

    **Arguments:**

    - axes: the axes to draw on; callers give them as ``ax``.
    - trajectory: the flow.
    - predictions: what a paper predicts for the start, or None.
    - time: the scale of the time axis, "log" or "linear".
    """
    t, values = counted(trajectory)[0], positive(trajectory.excess)
    if not np.any(np.isfinite(values)):
        return _nothing(axes, "the minimum of this loss is not known,\nor the start is at it: no excess to draw")
    axes.plot(t, values, label="computed", **_DATA, **_dots(t))
    if predictions is not None:
        rate, local_rate = predictions.rate, predictions.local_rate
        last = np.flatnonzero(np.isfinite(values))[-1]
        if rate.value > 0:
            envelope = values[0] * np.exp(-rate.value * np.asarray(trajectory.t))
            label = rf"$e^{{-{rate.symbol} t}}$ with {rate.source}, ${rate.symbol}$ = {in_tex(rate.value)}"
            axes.plot(t, envelope, label=label, **_BOUND)
        local = values[last] * np.exp(-local_rate.value * (t - t[last]))
        shown = local <= np.nanmax(values)
        label = f"rate at the limit {local_rate.source}, {in_tex(local_rate.value)}"
        axes.plot(t[shown], local[shown], label=label, **_PREDICTION)
    axes.set_yscale("log")
    axes.set_ylabel(r"excess loss  $\ell(t) - \min\,\ell$")
    axes.legend(loc="lower left")
    return time_axis(axes, t, time)


@on_axes
def loss(axes: Axes, trajectory: Trajectory, above_least: bool = False) -> Axes:
    """Draw the loss over time. With ``above_least`` its least value along the flow is subtracted."""
    t, values = counted(trajectory)[0], np.asarray(trajectory.loss)
    axes.plot(t, positive(values - np.min(values)) if above_least else values, **_DATA, **_dots(t))
    if above_least and np.max(values) > np.min(values):
        axes.set_yscale("log")
    axes.set_ylabel(r"$L(t)$ less its least value found" if above_least else "loss  $L(t)$")
    return time_axis(axes, t)


@on_axes
def pl_ratio(axes: Axes, trajectory: Trajectory, predictions: Predictions | None = None) -> Axes:
    """Draw the Polyak-Lojasiewicz ratio |grad L|^2 / (L - min L) over time, with the rate that a theorem
    guarantees.

    The smallest ratio is marked. It is the sharp constant along this trajectory.

    **Arguments:**

    - axes: the axes to draw on; callers give them as ``ax``.
    - trajectory: the flow.
    - predictions: what a paper predicts for the start, or None.
    """
    t, gap = counted(trajectory)[0], positive(trajectory.excess)
    ratio = positive(trajectory.grad_norm_sq / gap)
    if not np.any(np.isfinite(ratio)):
        return _nothing(axes, "no positive ratio: the gradient or the excess is zero or unknown")
    axes.plot(t, ratio, **_DATA, **_dots(t))
    lowest = int(np.nanargmin(ratio))
    axes.plot(t[lowest], ratio[lowest], "o", color="C0", mfc="white", clip_on=False)
    side = ("left", "center", "right")[3 * lowest // t.size]
    place = (t[lowest], ratio[lowest]), (0, -6)
    axes.annotate(f"smallest: {in_tex(ratio[lowest])}", *place, textcoords="offset points", ha=side, va="top")
    axes.set_yscale("log")
    if predictions is not None and predictions.rate.value > 0:
        rate = predictions.rate
        _level(axes, t, rate.value, rf"{rate.source}: ${rate.symbol}$ = {in_tex(rate.value)}", _BOUND, below=True)
    axes.set_ylabel(r"$\|\nabla\ell\|^2 \,/\, (\ell - \min\,\ell)$")
    return time_axis(axes, t)


@on_axes
def curve(axes: Axes, trajectory: Trajectory, drawn: Curve, minimizer: PyTree) -> Axes:
    """Draw a quantity along the flow over time, with its bounds and predicted values as horizontal lines.

    **Arguments:**

    - axes: the axes to draw on; callers give them as ``ax``.
    - trajectory: the flow.
    - drawn: the quantity.
    - minimizer: the model of least known loss.
    """
    t, values = counted(trajectory)[0], drawn.values(trajectory, minimizer)
    logarithmic = drawn.logarithmic or bool(0 < np.min(values) < np.max(values) / 20)
    axes.plot(t, positive(values) if drawn.logarithmic else values, **_DATA, **_dots(t))
    if logarithmic:
        axes.set_yscale("log")
    for level in drawn.levels:
        _level(axes, t, level.value, level.label, _BOUND if level.is_bound else _PREDICTION, below=level.is_bound)
    axes.set_ylabel(drawn.label)
    return time_axis(axes, t)


@on_axes
def conservation(axes: Axes, trajectory: Trajectory) -> Axes:
    """Draw the relative errors of quantities that are zero along an exact flow, over time.

    They are the energy defect |L(0) - L(t) - int_0^t |grad L|^2| and, if the model has a balance, the drift of this
    conserved balance. The solver's tolerance is drawn for comparison. Exact zeros are left out, since a logarithmic
    axis cannot show them.
    """
    t, dissipated = counted(trajectory)[0], np.asarray(trajectory.dissipated)
    known = trajectory.excess if np.all(np.isfinite(trajectory.excess)) else trajectory.loss
    energy = _relative(np.asarray(known[0] - known) - dissipated, dissipated)
    curves = [(energy, "energy defect", _DATA)]
    if hasattr(trajectory.start, "balance"):
        balance = np.asarray(eqx.filter_vmap(lambda model: model.balance)(trajectory.models))
        size = np.sum([_squared_norm(leaf) for leaf in weights(trajectory.models).values()], axis=0)
        drift = _relative(balance - balance[0], size)
        curves.append((drift, "balance drift", _SECOND))
    if not any(np.any(np.isfinite(values)) for values, _, _ in curves):
        return _nothing(axes, "zero at every output time")
    for values, label, role in curves:
        axes.plot(t, values, label=label, **role)
    axes.set_yscale("log")
    _level(axes, t, trajectory.settings.rtol, f"relative tolerance: {in_tex(trajectory.settings.rtol)}", _BOUND)
    axes.set_ylabel("relative error")
    axes.legend()
    return time_axis(axes, t)


@on_axes
def scale_condition(axes: Axes, predictions: Predictions) -> Axes:
    """Draw the scale of the start, the bound below which a theorem guarantees a rate, and this rate as a function
    of the scale.
    """
    known, rate = predictions.scale_bound, predictions.rate
    bound = known.bound
    s = abs(known.scale) / bound if bound > 0 else np.nan
    if not s < _LARGEST:
        return _nothing(axes, "no condition on the scale is known of this start")
    low = bound * min(1e-2, s / 10 if s > 0 else 1e-2)
    axes.set_xscale("log")
    axes.set_xlim(low, 10 * bound * max(1, s))
    axes.axvspan(low, bound, facecolor="C2", alpha=0.12)
    axes.axvline(bound, **_BOUND)
    # Points are denser near the bound, where the promise falls to zero.
    others = (1 - np.geomspace(1 - low / bound, 1e-4, 400)) * bound
    rates = positive(known.rates(others))
    if np.any(np.isfinite(rates)):
        axes.plot(others, rates, **_DATA)
        axes.set_yscale("log")
        axes.set_ylabel(rf"promised rate  ${rate.symbol}$")
        axes.margins(y=0.1)
    else:
        axes.set_yticks([])
    # Without a promised rate the start is drawn on the axis; with scale 0, at its left end.
    height, place = (rate.value, axes.transData) if rate.value > 0 else (0, axes.get_xaxis_transform())
    position = max(s * bound, low)
    axes.plot(position, height, "o", color="C0", mfc="white", clip_on=False, transform=place)
    label = rf"start: $\sigma$ = {in_tex(known.scale)}" + ("" if rate.value > 0 else "\nno promise")
    leftwards = 0.05 < s < 1 or s > 10
    side, offset = ("right", (-7, 4)) if leftwards else ("left", (7, 4 if s > 1 or not rate.value > 0 else -9))
    axes.annotate(label, (position, height), offset, xycoords=place, textcoords="offset points", ha=side)
    axes.text(0.02, 1.03, f"{known.condition} {in_tex(bound)}", transform=axes.transAxes)
    axes.set_xlabel(r"scale of the start  $\sigma$")
    return axes


@on_axes
def test_risk(axes: Axes, curve: RiskCurve) -> Axes:
    """Draw the risk on new prompts over time, with the risks of the predicted limit and of the best linear
    predictor.
    """
    axes.plot(curve.t, positive(curve.risk), **_DATA, **_dots(curve.t))
    axes.set_yscale("log")
    if curve.limit > 0:
        _level(axes, curve.t, curve.limit, f"limit: {in_tex(curve.limit)}", _PREDICTION)
    if curve.best_linear_error > 0:
        label = f"best linear predictor: {in_tex(curve.best_linear_error)}"
        _level(axes, curve.t, curve.best_linear_error, label, _BOUND, below=True)
    length = r"\infty" if np.isinf(curve.test_length) else f"{curve.test_length:g}"
    axes.set_ylabel(rf"risk on prompts with $M = {length}$")
    return time_axis(axes, curve.t)


def draw_all(
    folder: str | os.PathLike,
    trajectory: Trajectory,
    predictions: Predictions | None = None,
    format: str = "png",
    tested: RiskCurve | None = None,
    more: Mapping[str, Callable[..., Axes]] | None = None,
) -> dict[str, pathlib.Path]:
    """Draw every figure of a run into a folder. Partial files are never visible.

    **Arguments:**

    - folder: the folder, which exists.
    - trajectory: the flow.
    - predictions: what a paper predicts for the start, or None.
    - format: "png", "svg", "pdf", or "pgf", which needs pdflatex.
    - tested: the risk on new prompts, or None.
    - more: further figures by name, each a function that draws on axes.

    **Returns:** the file of each figure by name, in the order of a report, for `flowsim.report.page.write_report`.
    A page cannot show pdf or pgf, so that with these formats the figures are also written as png, and the png are
    returned.
    """
    folder = pathlib.Path(folder)
    paths = {}
    with styled():
        figures = _figures(trajectory, predictions, tested)
        for name, draw in (more or {}).items():
            figures[name] = Figure(figsize=draw.size if isinstance(draw, Sized) else None)
            draw(ax=figures[name].add_subplot())
        for name, figure in figures.items():
            if trajectory.step_size is not None:
                count_steps(figure)
            paths[name] = folder / f"{name}.{format if format == 'svg' else 'png'}"
            for path in {paths[name], folder / f"{name}.{format}"}:
                save(figure, path)
    return paths


@contextlib.contextmanager
def drawing(path: str | os.PathLike, **options: Any) -> Iterator[Figure]:
    """A context whose value is a new figure in flowsim's style, which is written to ``path`` at the end.

    **Arguments:** path: the file, in the format of its suffix; options: those of `Figure`.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with styled():
        figure = Figure(**options)
        yield figure
        save(figure, path)


def save(figure: Figure, path: str | os.PathLike) -> None:
    """Write a figure in the format of the path's suffix, never partially. Equal figures give equal bytes."""
    readable(figure)
    kind = pathlib.Path(path).suffix.removeprefix(".")
    date = {"svg": "Date", "pdf": "CreationDate"}.get(kind)
    undated: Options = {"metadata": {date: None}} if date else {}
    write_whole(path, lambda file: figure.savefig(file, format=kind, **undated))


def _figures(trajectory: Trajectory, predictions: Predictions | None, tested: RiskCurve | None) -> dict[str, Figure]:
    wide = Figure(figsize=(8.0, 3.1))
    known = bool(np.any(np.isfinite(positive(trajectory.excess))))
    left, right = wide.subplots(1, 2, sharey=known)
    if known:
        excess(trajectory, predictions, ax=left)
        excess(trajectory, predictions, time="linear", ax=right).set_ylabel("")
        right.legend().remove()
    else:
        loss(trajectory, ax=left)
        loss(trajectory, above_least=True, ax=right)
    figures, drawn = {"excess" if known else "loss": wide}, {}
    if predictions is not None:
        drawn = {"pl-ratio": functools.partial(pl_ratio, trajectory, predictions)}
        for name, quantity in predictions.curves.items():
            drawn[name] = functools.partial(curve, trajectory, quantity, predictions.limit)
        drawn["scale-condition"] = functools.partial(scale_condition, predictions)
    if tested is not None:
        drawn["test_risk"] = functools.partial(test_risk, tested)
    if trajectory.step_size is None:
        drawn["conservation"] = functools.partial(conservation, trajectory)
    for name, draw in drawn.items():
        figures[name] = Figure()
        draw(ax=figures[name].add_subplot())
    return figures


def positive(values: ArrayLike) -> np.ndarray:
    """Return the values as float64, with NaN in place of those that a logarithmic axis cannot show."""
    values = np.asarray(values, dtype=float)
    return np.where((values > 1 / _LARGEST) & (values < _LARGEST), values, np.nan)


def _relative(error: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """Return |error| divided by the largest of |terms| at any time; NaN where the error is zero."""
    return positive(np.abs(error) / max(np.max(np.abs(terms)), np.finfo(float).tiny))


def _squared_norm(leaf: ArrayLike) -> np.ndarray:
    """Return the sum of the squared entries of a weight at each output time, (T,)."""
    entries = np.asarray(leaf)
    return np.sum(entries**2, axis=tuple(range(1, entries.ndim)))


def _dots(t: np.ndarray) -> Options:
    """Return the options of markers for a line with a single point, which would be invisible without a marker."""
    return {"marker": "o"} if t.size == 1 else {}


def _level(axes: Axes, t: np.ndarray, value: float, label: str, role: Options, below: bool = False) -> None:
    """Draw a horizontal line with a label, which is under the line if ``below`` is set, else above."""
    axes.plot([t[0], t[-1]], [value, value], **role)
    side, offset = ("top", -4) if below else ("bottom", 3)
    place = (0.02, value), (0, offset)
    axes.annotate(label, *place, xycoords=axes.get_yaxis_transform(), textcoords="offset points", va=side,
                  color=role["color"])  # fmt: skip


def _nothing(axes: Axes, reason: str) -> Axes:
    axes.text(0.5, 0.5, reason, ha="center", va="center", transform=axes.transAxes)
    axes.set_axis_off()
    return axes
