"""Writes a self-contained page with sliders that shows the flows of a grid of problems."""

import contextlib
import hashlib
import json
import math
import os
import pathlib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import markupsafe
import numpy as np

from flowsim._core.checks import refuse
from flowsim._core.documents import origin, versions
from flowsim._core.files import folder_of, write_whole
from flowsim._core.text import listed, value_text
from flowsim._core.types import Document, Tables
from flowsim.claims import Claim
from flowsim.experiments.modes import learned
from flowsim.experiments.sweep import maps
from flowsim.experiments.sweep.axes import GridAxis, grid_shape
from flowsim.experiments.sweep.courses import MODES, ROWS
from flowsim.experiments.sweep.judged import Asked, chosen
from flowsim.experiments.sweep.maps import Map
from flowsim.experiments.sweep.planning import SweepPlan, checked
from flowsim.experiments.sweep.portrait import Portrait, flat, portrait_of
from flowsim.flow.trajectory import Status
from flowsim.papers import predictions_of
from flowsim.problem import AbstractSpec, Problem, ProblemSpec, toml
from flowsim.report.explore.numbers import short
from flowsim.report.explore.portrait import portrayed
from flowsim.report.mathml import name_in_html, statement_in_html
from flowsim.report.page import template

MOST_BYTES = 2_000_000
_FEWEST_ROWS = 16  # of a flow
_NUMBER, _CELL = 8, 160  # bytes of a number, and of a cell without its rows
_GRID_OF_ROWS = (ROWS, 48, 32, 24, _FEWEST_ROWS)
_FLAT = 0.999  # of the value at the start, above which a flow has not begun to move
_DECADES = 18  # below the largest value, that are drawn
_SMALL = 1e-14  # of the largest: a singular value that is rounding
_CURVED = 20.0  # the ratio of values from which on an axis is logarithmic
_RELATIONS = {"<=": "≤", ">=": "≥"}
_PLAIN = {"$u_{-1} U_{11}$": "u₋₁ U₁₁"}


def explore(
    problem: AbstractSpec | Tables,
    over: Mapping[str, Iterable[Any] | str],
    *,
    out: str | os.PathLike,
    claims: str | None = None,
    portrait: str | Sequence[str] | None = None,
    progress: bool = False,
) -> pathlib.Path:
    """Write a page with a slider for each axis of a grid of problems.

    For the chosen cell the page shows the loss with the upper bound that a paper guarantees, what the model learns,
    the margins of claims, and whether their hypotheses are met. It is one file of at most 2 MB that needs neither a
    server nor the network. The flows are those of `sweep`. Their finished batches stay in a folder next to the page
    until it is written, so that the same call can resume from them. A margin is an estimate; only `run` and `check`
    give a verdict.

    **Arguments:**

    - problem: what all cells share, as for `sweep`.
    - over: the values of each field that varies, by dotted name, as for `sweep`.
    - out: the path of the page, which must end with .html.
    - claims: a pattern for the ids of claims whose margins are shown, as for `sweep`.
    - portrait: the names of two weights, such as ("a", "b") or ("u_minus1", "U11[0][1]"), or of observables of the
      user's file. The page then also shows all flows in the plane of these two numbers. There the start can be
      dragged from one start of the grid to another. Starts whose flows end together have one colour. If the flows
      conserve a conic in the two weights, the conic through the start is drawn.
    - progress: whether to show a progress bar.

    **Returns:** the path of the page.

    **Raises:** `ProblemError`, a `ValueError` with a message of one line, before anything is integrated.
    """
    axes = tuple(GridAxis.of(field, values) for field, values in over.items())
    return write_explored(to_explore(maps.tables_of(problem), axes, pathlib.Path(out), claims, portrait), progress)


class Explorable(NamedTuple):
    """A page that passed all checks and can be written.

    **Fields:**

    - out: the path of the page.
    - unfinished: the map of the grid, still without quantities.
    - plan: the cells and the batches in which they are integrated.
    - problems: the problem of each cell.
    - named: the claims behind each margin, by the name of the margin.
    - plane: the two coordinates of the portrait, or None.
    """

    out: pathlib.Path
    unfinished: Map
    plan: SweepPlan
    problems: list[Problem]
    named: dict[str, list[Claim]]
    plane: Portrait | None


def to_explore(
    tables: Document,
    axes: tuple[GridAxis, ...],
    out: pathlib.Path,
    claims: str | None,
    portrait: str | Sequence[str] | None = None,
) -> Explorable:
    """Check everything about a page that can be checked before the grid is integrated, and return the page to
    write.

    **Arguments:** tables: the problem that all cells share; axes: those of the grid; out, claims, portrait: as for
    `explore`.

    **Raises:** `ProblemError` naming the option that is wrong.
    """
    if out.suffix != ".html" or out.is_dir():
        refuse("--out", "a file that ends with .html", f"it is {out}")
    _check_size(math.prod(grid_shape(axes)), 0, 0)  # before so many problems are built
    pair = None if portrait is None else tuple(listed(portrait) if isinstance(portrait, str) else portrait)
    plan = checked(tables, axes, Asked(claims, True, pair), maps.DISK_BUDGET, None)
    problems = [spec.build() for spec in plan.cells]
    plane = None if pair is None else portrait_of(pair, problems[0])
    if plane is not None and any(flat(problem.start).size != plane.size for problem in problems):
        refuse("--portrait", "of models with equally many weights", "those of this grid differ")
    named = _said(chosen(claims, problems).claims, problems)
    modes = max(_count_of_modes(problem) for problem in (problems[0], problems[-1]))
    _check_size(len(problems), modes + (0 if plane is None else 2), len(named))
    # Each grid has its own folder: the batches of another grid, or of other software, are not in the way.
    digest = hashlib.sha256(
        origin([claims, *([pair] if pair else []), *(problem.identity for problem in problems)]).encode()
    ).hexdigest()
    unfinished = Map(tables, axes, {}, out.with_name(f"{out.name}.{digest[:12]}.parts"), claims, True, plan.made)
    return Explorable(out, unfinished, plan, problems, named, plane)


def write_explored(page: Explorable, progress: bool) -> pathlib.Path:
    """Integrate the grid of a page, write the page, and return its path. Finished batches are then removed."""
    out, unfinished, plan = page.out, page.unfinished, page.plan
    with folder_of(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
        found = maps.entered(unfinished, plan, True, progress, None, None)
        html = _fitting(found, page)
        write_whole(out, lambda file: file.write(html))
    for file in ("map.npz", "sweep.json", "problem.toml"):
        (found.folder / file).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        found.folder.rmdir()
    return out


def _said(named: Mapping[str, Sequence[Claim]], problems: Sequence[Problem]) -> dict[str, list[Claim]]:
    """Return the claims that are about at least one of the problems, by the name of their margin."""
    kinds = {(type(problem.loss), type(problem.start)): problem for problem in problems}.values()
    about = lambda claim: any(claim.foreign(problem.loss, problem.start) is None for problem in kinds)
    found = {name: [claim for claim in claims if about(claim)] for name, claims in named.items()}
    return {name: claims for name, claims in found.items() if claims}


def _check_size(cells: int, modes: int, claims: int) -> None:
    """Refuse a grid whose page would be too large even with the fewest rows for each flow.

    **Arguments:** cells, modes, claims: the numbers of cells, of curves of each flow besides time and loss, and of
    margins.
    """
    least = cells * (_CELL + _NUMBER * (_FEWEST_ROWS * (2 + modes) + claims))
    if least > MOST_BYTES:
        came = f"its {cells} cells take about {least / 1e6:.2g} MB"
        refuse("the page", f"at most {MOST_BYTES / 1e6:g} MB", f"{came}: take fewer values with --over")


def _count_of_modes(problem: Problem) -> int:
    once = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, problem.start)
    return min(sum(values.shape[1] for values, _ in learned(once).values()), MODES)


def _fitting(found: Map, asked: Explorable) -> bytes:
    """Return the page as bytes, with as many rows (output times) of each flow as fit in 2 MB.

    **Raises:** `ProblemError` if even the fewest rows do not fit.
    """
    size = 0
    data = _data(found, asked)
    for rows in _GRID_OF_ROWS:
        page = _page(found, asked, data | {"cells": [_thinned(cell, rows) for cell in data["cells"]]}).encode()
        if (size := len(page)) <= MOST_BYTES:
            return page
    refuse(
        "the page", f"at most {MOST_BYTES / 1e6:g} MB", f"it takes {size / 1e6:.3g} MB: take fewer values with --over"
    )


def _page(found: Map, asked: Explorable, data: Document) -> str:
    named, cells = asked.named, asked.plan.cells
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    shown = [
        {
            "ids": ", ".join(dict.fromkeys(claim.id for claim in named[name])),
            "statement": statement_in_html(named[name][0]),
        }
        for name in data["claims"]
    ]
    return template("explore.html.jinja").render(
        axes=data["axes"],
        count=len(cells),
        problem=", ".join(dict.fromkeys(map(_what, cells))),
        plane=data["portrait"],
        claims=shown,
        toml=toml.write(found.tables),
        versions=versions(),
        # A script ends at its first "</".
        data=markupsafe.Markup(text.replace("<", "\\u003c")),
    )


def _what(spec: AbstractSpec) -> str:
    return spec.model.architecture if isinstance(spec, ProblemSpec) else spec.heading.splitlines()[0]


class _Numbered:
    """Numbers different strings in the order in which they first occur, so that repeated texts are stored once."""

    def __init__(self):
        self._numbers: dict[str, int] = {}

    def __call__(self, value: str) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)


def _data(found: Map, asked: Explorable) -> Document:
    """Return the data of the page for JSON: axes, texts, the ends of the drawn axes, and the cells in the order of
    the grid, with its last axis varying fastest.
    """
    problems, named = asked.problems, asked.named
    columns = {
        name: array.reshape(len(problems), *array.shape[len(found.shape) :]) for name, array in found.quantities.items()
    }
    said = [name for name in named if np.any(np.isfinite(columns[f"margin_{name}"]))]
    texts, names = _Numbered(), _Numbered()
    cells = []
    for place, problem in enumerate(problems):
        row = {name: array[place] for name, array in columns.items()}
        t, y, modes = _rows(row)
        ended = f"Outcome: {row['outcome']} ({Status(str(row['status'])).in_words})."
        cell = {
            "t": t,
            "y": y,
            "m": modes,
            "excess": bool(row["curve_is_excess"]),
            "names": names(str(row["curve_names"])),
            "end": texts(ended),
            "margins": [short(row[f"margin_{name}"]) for name in said],
            "met": [int(row[f"met_{name}"]) for name in said],
        }
        cells.append(cell | _promised(problem, bool(row["curve_is_excess"]), texts))
    portrait = None
    if asked.plane is not None:
        portrait, of_cells = portrayed(asked.plane, columns, found.shape, problems)
        cells = [cell | more for cell, more in zip(cells, of_cells, strict=True)]
    axes = [
        {
            "field": axis.field,
            "texts": [value_text(value) for value in axis.values],
            "sets": [shlex.quote(axis.as_text(place)) for place in range(len(axis.values))],
        }
        for axis in found.axes
    ]
    learned_names = [[[_PLAIN.get(name, name), *rest] for name, *rest in json.loads(one)] for one in names]
    return {
        "axes": axes,
        "view": _view(cells),
        "texts": list(texts),
        "names": learned_names,
        "claims": said,
        "portrait": portrait,
        "cells": cells,
    }


def _rows(row: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the times (T,), values (T,) and modes (k, T) of a cell, without the NaN that pad its arrays."""
    count = int(np.sum(np.isfinite(row["curve_t"])))
    modes = row["curve_modes"][:count]
    return row["curve_t"][:count], row["curve_value"][:count], modes[:, np.isfinite(modes[0])].T


def _promised(problem: Problem, known: bool, texts: _Numbered) -> Document:
    """Return what a paper predicts for a cell without integration: the rate of its envelope and the conditions on
    the start. The rate is 0 if no paper predicts one.

    **Arguments:** known: whether the excess is known; texts: the numbered texts of the page, to which texts are
    added.
    """
    predicted = predictions_of(problem)
    if predicted is None:
        return {"rate": 0, "conditions": []}
    relation = lambda one: _RELATIONS.get(one.relation, one.relation)
    conditions = [
        [texts(name_in_html(one.name)), short(one.value), relation(one), short(one.bound), int(bool(one.met))]
        for one in predicted.conditions
    ]
    if not (known and 0 < predicted.rate.value < math.inf):
        return {"rate": 0, "conditions": conditions}
    source = texts(f"{predicted.rate.source} of {predicted.paper}")
    return {"rate": short(predicted.rate.value, 7), "source": source, "conditions": conditions}


def _view(cells: Sequence[Document]) -> Document:
    """Return the ends of the drawn axes, which all cells share.

    **Returns:** "t": [low, high] of time; "y" and "m": [low, high, whether the axis is logarithmic] of the loss and
    of the modes, or None if there is nothing to draw.
    """
    begins, ends = [], []
    for cell in cells:
        t, y = cell["t"], cell["y"]
        if np.any(t > 0):
            moved = (t > 0) & (np.abs(y - y[0]) >= (1 - _FLAT) * np.abs(y[0]))
            begins.append(np.min(t[moved if np.any(moved) else t > 0]) / 3)
            ends.append(t[-1])
    low, high = min(begins, default=0.1), max(ends, default=1.0)
    values = np.concatenate([cell["y"] for cell in cells])
    values = values[np.isfinite(values)]
    modes = np.concatenate([cell["m"].ravel() for cell in cells])
    excess = any(cell["excess"] for cell in cells)
    return {
        "t": [short(low), short(max(high, 10 * low))],
        "y": _ends(values, excess or bool(values.size and np.min(values) > 0)),
        "m": _ends(modes, bool(modes.size and np.min(modes) >= 0 and _curved(modes))),
    }


def _curved(values: np.ndarray) -> bool:
    seen = values[values > _SMALL * np.max(values)]
    return bool(seen.size and np.max(seen) > _CURVED * np.min(seen))


def _ends(values: np.ndarray, logarithmic: bool) -> list[float | int | bool | None] | None:
    if logarithmic:
        values = values[values > 0]
    if not values.size:
        return None
    low, high = float(np.min(values)), float(np.max(values))
    if logarithmic:
        return [short(max(low, high * 10.0**-_DECADES) / 1.5), short(max(high, low * 1.1) * 1.5), True]
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return [short(low - room), short(high + room), False]


def _thinned(cell: Document, most: int) -> Document:
    """Convert a cell to JSON's types, with at most ``most`` rows of its flow and of its path."""
    count = cell["t"].size
    rows = np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))
    numbers = {
        "t": [short(value, 5) for value in cell["t"][rows]],
        "y": [short(value) for value in cell["y"][rows]],
        "m": [[short(value) for value in mode[rows]] for mode in cell["m"]],
    }
    if "p" in cell:
        count = cell["p"].shape[1]
        rows = np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))
        numbers["p"] = [[short(value, 5) for value in along[rows]] for along in cell["p"]]
    return cell | numbers
