"""Draws verdicts: how tight each statement is, and both sides of a statement."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from flowsim._core.text import in_tex
from flowsim._core.types import Options
from flowsim.claims import Claim, Comparison, Evidence, Judgement, Verdict
from flowsim.claims.deciding.iterates import DescentEvidence
from flowsim.claims.evidence.comparing import compared
from flowsim.report.plots.axes import time_axis
from flowsim.report.plots.flows import Sized, on_axes

SIDES = "sides-"  # what the names of the figures of both sides begin with
_MOST = 8  # pictures of sides
_JUDGED = (Judgement.VIOLATED, Judgement.UNRESOLVED, Judgement.HOLDS)
COLOURS = {Judgement.VIOLATED: "#b3261e", Judgement.UNRESOLVED: "#9a9a9a", Judgement.HOLDS: "#4a83bd"}
_HATCHES = {Judgement.VIOLATED: "////", Judgement.UNRESOLVED: "....", Judgement.HOLDS: ""}
_LEAST = 1e-12  # of a tightness that is drawn; what is less has a bar of this length
_CURVED = 20.0  # the ratio of values from which on an axis is logarithmic


@dataclasses.dataclass(frozen=True)
class Sides:
    """Both sides of one statement, at the output times of a flow or at the points that the statement compares.

    **Fields:**

    - t: the times, (T,), or None for points.
    - value, bound: the left and the right side, (T,), or one number for each point; NaN where the statement says
      nothing.
    - slack: by how much the statement is satisfied, in the shape of ``value``; NaN where the statement says
      nothing.
    - relation: how ``value`` relates to ``bound``: "at most", "at least" or "equal to".
    """

    t: np.ndarray | None
    value: np.ndarray
    bound: np.ndarray
    slack: np.ndarray
    relation: str


def sides_of(claim: Claim, evidence: Evidence | DescentEvidence) -> Sides:
    """Return both sides of a claim on a flow, at its output times or at the points that the claim compares.

    If the sides are arrays at each time, only the entry with the least margin is returned.

    **Arguments:** claim: the claim; evidence: the flow that it is judged on.
    """
    if isinstance(evidence, DescentEvidence):
        both = compared(claim, evidence.stated, evidence.run)
        t = np.asarray(evidence.run.t)[: np.shape(both.slack)[0]]
        along = claim.along_flow and t.size > 1
    else:
        case = evidence.cases[0]
        both = case.panel.compared(claim, evidence.stated, case.padded)
        along, t = case.has_times(claim, np.shape(both.slack)[0]), evidence.clock.since_start(np.asarray(case.run.t))
    kept = slice(t.size if along else None)
    margin = np.where(both.promised, both.margin, np.nan)[kept]
    entry: tuple = (kept,)
    if margin.ndim > 1:
        flat = np.where(np.isnan(margin), np.inf, margin).reshape(margin.shape[0], -1)
        entry = kept, *np.unravel_index(int(np.argmin(flat.min(axis=0))), margin.shape[1:])
    value, bound, slack = (_promised(both, side)[entry] for side in (both.value, both.bound, both.slack))
    return Sides(t if along else None, value, bound, slack, _relation(both))


def _promised(both: Comparison, side: object) -> np.ndarray:
    return np.where(both.promised, np.asarray(side, dtype=float), np.nan)


def _relation(both: Comparison) -> str:
    if np.any(both.identity):
        return "equal to"
    # One of the two is the slack itself, to within rounding.
    slack, room = np.asarray(both.slack), np.asarray(both.value) - np.asarray(both.bound)
    known = np.isfinite(slack) & np.isfinite(room)
    return "at least" if np.sum(np.abs(slack - room)[known]) <= np.sum(np.abs(slack + room)[known]) else "at most"


def of_judged(
    verdicts: Sequence[Verdict], claims: Iterable[Claim], evidence: Evidence | DescentEvidence, own: Iterable[Claim]
) -> dict[str, Callable[..., Axes]]:
    """Return the figures of verdicts by name: functions that take axes and draw on them.

    One figure shows how tight all statements are. Each of the others shows both sides of one statement. Violated
    statements come first, then unresolved ones, then those of the user. The number of figures is limited.

    **Arguments:**

    - verdicts: the verdicts.
    - claims: the claims that were judged.
    - evidence: the evidence on which they were judged.
    - own: the claims of the user, whose sides are drawn for any verdict.
    """
    found = of_tightness(verdicts)
    known, users = {(claim.id, claim.form): claim for claim in claims}, {(claim.id, claim.form) for claim in own}
    open_ones = [verdict for verdict in verdicts if verdict.verdict in _JUDGED[:2]]
    others = [verdict for verdict in verdicts if (verdict.id, verdict.form) in users and verdict not in open_ones]
    for verdict in [*sorted(open_ones, key=lambda one: _JUDGED.index(one.verdict)), *others]:
        claim = known.get((verdict.id, verdict.form))
        # What could not be compared has no margin.
        if claim is None or verdict.margin is None or len(found) > _MOST:
            continue
        both = sides_of(claim, evidence)
        # Two numbers make no picture.
        if both.value.size > 1 and np.any(np.isfinite(both.value)) and np.any(np.isfinite(both.bound)):
            found[f"{SIDES}{verdict.id}-{verdict.form}"] = functools.partial(sides, verdict=verdict, both=both)
    return found


def of_tightness(verdicts: Sequence[Verdict]) -> dict[str, Callable[..., Axes]]:
    """Return {"tightness": draw}, where ``draw`` takes axes and draws on them what `tightness` draws. Return an
    empty dictionary if no verdict has a tightness.
    """
    rows = sum(verdict.verdict in _JUDGED and verdict.tightness is not None for verdict in verdicts)
    size = 5.8, 0.8 + 0.19 * rows
    return {"tightness": Sized(functools.partial(tightness, verdicts=verdicts), size)} if rows else {}


@on_axes
def tightness(axes: Axes, verdicts: Iterable[Verdict]) -> Axes:
    """Draw how tight each judged statement is, as a bar. The tightness is the ratio of the smaller side to the
    larger one where the margin is least; it is 1 if the bound is attained.

    Violated statements are red and hatched, unresolved ones grey and dotted. A statement whose bound is zero has no
    tightness and is left out.
    """
    shown = [verdict for verdict in verdicts if verdict.verdict in _JUDGED and verdict.tightness is not None]
    shown.sort(key=lambda verdict: (_JUDGED.index(verdict.verdict), verdict.tightness))
    low = min([1e-1, *(max(float(verdict.tightness or 0.0), _LEAST) / 3 for verdict in shown)])
    axes.set_xscale("log")
    for row, verdict in enumerate(shown):
        ratio = max(float(verdict.tightness or 0.0), _LEAST)
        colour, hatch = COLOURS[verdict.verdict], _HATCHES[verdict.verdict]
        axes.barh(row, ratio - low, left=low, color=colour, hatch=hatch, height=0.66, edgecolor="white", linewidth=0)
        text = in_tex(ratio) if verdict.verdict is Judgement.HOLDS else str(verdict.verdict)
        axes.annotate(text, (ratio, row), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(shown)), [_short(verdict) for verdict in shown], fontsize=8)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(low, 1)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("tightness: the smaller side over the larger")
    return axes


@on_axes
def sides(axes: Axes, verdict: Verdict, both: Sides) -> Axes:
    """Draw both sides of a statement over time, or over the points that it compares. The least slack is marked, and
    the times at which the statement fails are shaded.

    **Arguments:**

    - axes: the axes to draw on; callers give them as ``ax``.
    - verdict: the verdict.
    - both: the sides.
    """
    points = both.t is None
    place = np.arange(both.value.size) + 1.0 if both.t is None else both.t
    values = np.concatenate([both.value, both.bound])
    values = values[np.isfinite(values)]
    logarithmic = bool(np.all(values > 0) and values.max() > _CURVED * values.min())
    mark: Options = {"marker": "o"} if points or place.size == 1 else {}
    left: Options = {"linestyle": "none" if points else "-", "label": "one side"}
    right: Options = {"linestyle": "none" if points else "--", "label": "the other, which it equals", "mfc": "none"}
    if both.relation != "equal to":
        left["label"], right["label"] = "left side", f"right side, which it is {both.relation}"
    axes.plot(place, both.value, color="C0", **left, **mark)
    axes.plot(place, both.bound, color="C1", **right, **mark)
    if verdict.verdict is Judgement.VIOLATED and not points:
        fails = both.slack < -abs(verdict.floor or 0.0) * np.maximum(np.abs(both.bound), np.finfo(float).tiny)
        edge = axes.get_xaxis_transform()
        axes.fill_between(place, 0, 1, where=fails, transform=edge, color=COLOURS[Judgement.VIOLATED], alpha=0.12, lw=0)
    worst = _worst(verdict, both)
    if worst is not None:
        axes.axvline(place[worst], color="C3", linestyle=":", lw=0.9)
        for side in (both.value, both.bound):
            ring: Options = {"mfc": "none", "ms": 10} if points else {"mfc": "white", "ms": 6}
            axes.plot(place[worst], side[worst], "o", color="C3", clip_on=False, zorder=4, **ring)
        axes.plot([], [], "o", color="C3", mfc="white", label=f"least slack, {_where(verdict)}")
    if logarithmic:
        axes.set_yscale("log")
    axes.set_title(f"{_short(verdict)}: {verdict.verdict_text()}", fontsize=9, loc="left")
    axes.legend(fontsize=8)
    if points:
        axes.set_xlabel("what the statement compares, in its order")
        axes.set_xticks(place if place.size <= 12 else [])
        axes.set_xlim(0.4, place.size + 0.6)
        return axes
    return time_axis(axes, place)


def _worst(verdict: Verdict, both: Sides) -> int | None:
    """Return the index of the least slack. Along a flow it is at the time that the verdict names. For points it is
    where slack/|bound| is least. None if no slack is known.
    """
    if both.t is not None and isinstance(verdict.where, float):
        return int(np.argmin(np.abs(both.t - verdict.where)))
    size = np.where(both.bound != 0, np.abs(both.bound), 1.0)
    margin = np.where(np.isfinite(both.slack), both.slack / size, np.inf)
    return int(np.argmin(margin)) if np.any(np.isfinite(margin)) else None


def _where(verdict: Verdict) -> str:
    return f"$t$ = {in_tex(verdict.where)}" if isinstance(verdict.where, float) else "there"


def _short(verdict: Verdict) -> str:
    """Return the id of a statement without its paper, followed by the form if this is not "printed"."""
    name = verdict.id.partition(".")[2] or verdict.id
    return name if verdict.form == "printed" else f"{name} ({verdict.form})"
