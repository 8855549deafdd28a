"""What the page shows in the plane of two weights: paths, the ends that flows reach, and the curve that they keep."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowsim._core.text import in_unicode
from flowsim._core.types import Document
from flowsim.experiments.sweep.portrait import Conic, Portrait, basins, kept
from flowsim.problem import Problem
from flowsim.report.explore.numbers import short

_NOT_AT_REST = {
    "undecided": "come so near the saddle at zero weights that rounding decides where they end",
    "unfinished": "are not at rest where they end",
    "failed": "were not integrated to their end",
}
_AT_REST = {
    "global-minimum": "reach the least loss",
    "saddle": "end in the saddle at zero weights",
    "other-critical-point": "come to rest",
}
_SAME_START = 1e-12  # of the picture
_POINT = 1e-2  # of the picture: a set of ends that is called a point
_NOTHING = 1e-4  # of the picture
_TERMS = ("{x}²", "{y}²", "{x} {y}", "{x}", "{y}")


def portrayed(
    plane: Portrait, flat: Mapping[str, np.ndarray], shape: Sequence[int], problems: Sequence[Problem]
) -> tuple[Document, list[Document]]:
    """The portrait in JSON's types, and what it adds to each cell: p, the points of its path, and k, the number of what
    becomes of it.

    **Arguments:**

    - plane: the two coordinates.
    - flat: the quantities of a map, with the cells on the first axis.
    - shape: of the grid.
    - problems: of the cells.
    """
    problems = [problem.prepared() for problem in problems]
    paths = [path[np.all(np.isfinite(path), axis=1)] for path in flat["curve_path"]]
    starts, outcomes = np.stack([path[0] for path in paths]), flat["outcome"]
    whole = [path for path, outcome in zip(paths, outcomes, strict=True) if outcome != "failed"]
    low, high = (end(np.concatenate([*whole, starts]), axis=0) for end in (np.min, np.max))
    wide = np.where(high > low, high - low, np.maximum(np.abs(high), 1.0))
    grid = starts.reshape(*shape, 2)
    moves = [bool(np.any(np.ptp(grid, axis=axis) > _SAME_START * wide)) for axis in range(len(shape))]
    sets, numbers = [], np.zeros(len(paths), int)
    places = np.stack(np.unravel_index(np.arange(len(paths)), tuple(shape)), axis=1)
    still = [axis for axis, moving in enumerate(moves) if not moving]
    _, groups = np.unique(places[:, still], axis=0, return_inverse=True)
    for group in range(np.max(groups) + 1):
        _add_sets(np.flatnonzero(groups == group), plane, paths, flat, problems, wide, sets, numbers)
    conic = kept(plane, problems, whole) if whole else None
    portrait = {
        "names": [plane.x.name, plane.y.name],
        "view": [short(end) for ends in zip(low - 0.06 * wide, high + 0.06 * wide, strict=True) for end in ends],
        "moves": moves,
        "sets": sets,
        "kept": None
        if conic is None
        else {"c": conic.coefficients, "name": _named(conic, plane), "drift": short(conic.drift, 1)},
    }
    return portrait, [{"p": path.T, "k": int(number)} for path, number in zip(paths, numbers, strict=True)]


def _add_sets(
    cells: np.ndarray,
    plane: Portrait,
    paths: Sequence[np.ndarray],
    flat: Mapping[str, np.ndarray],
    problems: Sequence[Problem],
    wide: np.ndarray,
    sets: list[Document],
    numbers: np.ndarray,
) -> None:
    """Add the sets of ends of cells that differ in their starts, and the number of the set of each cell."""
    last = np.stack([path[-1] for path in paths])
    found: list[tuple[Any, str, np.ndarray]] = []
    for outcome in dict.fromkeys(flat["outcome"][cells].tolist()):
        same = cells[flat["outcome"][cells] == outcome]
        if outcome in _NOT_AT_REST:
            found.append(((1, outcome), _NOT_AT_REST[outcome], same))
            continue
        labels = basins([problems[cell] for cell in same], list(flat["curve_end"][same]))
        for label in range(np.max(labels) + 1):
            of_set = same[labels == label]
            ends = last[of_set]
            where = _where(plane, ends, wide)
            found.append(((0, *np.mean(ends, axis=0).tolist()), f"{_AT_REST[outcome]}, {where}", of_set))
    for rank, (key, text, of_set) in enumerate(sorted(found, key=lambda one: one[0])):
        numbers[of_set] = len(sets)
        sets.append({"rank": -1 if key[0] else rank, "text": text, "count": len(of_set)})


def _where(plane: Portrait, ends: np.ndarray, wide: np.ndarray) -> str:
    low, high = np.min(ends, axis=0), np.max(ends, axis=0)
    if np.all(high - low <= _POINT * wide):
        low = high = (low + high) / 2
    # What no picture shows is no number to read.
    low, high = (np.where(np.abs(end) <= _NOTHING * wide, 0.0, end) for end in (low, high))
    ranges = zip((plane.x.name, plane.y.name), low, high, strict=True)
    said = [
        f"{name} = {in_unicode(a)}" if a == b else f"{name} from {in_unicode(a)} to {in_unicode(b)}"
        for name, a, b in ranges
    ]
    return " and ".join(said)


def _named(conic: Conic, plane: Portrait) -> str:
    """The kept quantity in words, such as a² − b²."""
    said = ""
    for coefficient, term in zip(conic.coefficients, _TERMS, strict=True):
        if coefficient:
            sign = "−" if coefficient < 0 else "+" if said else ""
            size = "" if abs(coefficient) == 1 else f"{in_unicode(abs(coefficient))} "
            said += f" {sign} " if said else sign
            said += size + term.format(x=plane.x.name, y=plane.y.name)
    return said
