"""The data of a page about the plane of two weights: the paths, where flows end, and the conserved conic."""

from collections.abc import Mapping, Sequence

import numpy as np

from flowsim._core.checks import refuse
from flowsim._core.text import in_unicode
from flowsim._core.types import Document
from flowsim.experiments.sweep.portrait import Conic, Portrait, basins, kept
from flowsim.problem import Problem
from flowsim.report.explore.numbers import short

_NOT_AT_REST = {
    "undecided": "come so near zero weights, a critical point, that rounding decides where they end",
    "unfinished": "are not at rest where they end",
    "failed": "were not integrated to their end",
}
_AT_REST = {
    "global-minimum": "reach the least loss",
    "saddle": "end in the saddle at zero weights",
    "other-critical-point": "come to rest",
}
_ZERO = "come to rest at zero weights"  # a saddle or a minimum, where the least loss is not known
_SAME_START = 1e-12  # of the picture
_POINT = 1e-2  # of the picture: a set of ends that is called a point
_NOTHING = 1e-4  # of the picture
_TERMS = ("{x}²", "{y}²", "{x} {y}", "{x}", "{y}")


def portrayed(
    plane: Portrait, columns: Mapping[str, np.ndarray], shape: Sequence[int], problems: Sequence[Problem]
) -> tuple[Document, list[Document]]:
    """Return the portrait of all flows in JSON's types, and the data that it adds to each cell.

    **Arguments:**

    - plane: the two coordinates.
    - columns: the quantities of a map, with the cells on the first axis.
    - shape: the shape of the grid.
    - problems: the problem of each cell.

    **Returns:** the portrait; for each cell "p", its path (2, points), and "k", the index of the set of ends in
    which its flow ends.

    **Raises:** `ProblemError` if a flow has no point with finite coordinates.
    """
    problems = [problem.prepared() for problem in problems]
    paths = [path[np.all(np.isfinite(path), axis=1)] for path in columns["curve_path"]]
    if not all(map(len, paths)):
        refuse("--portrait", "of numbers that are finite along each flow", f"{plane.x.name} or {plane.y.name} is not")
    starts, outcomes = np.stack([path[0] for path in paths]), columns["outcome"]
    whole = [path for path, outcome in zip(paths, outcomes, strict=True) if outcome != "failed"]
    low, high = (end(np.concatenate([*whole, starts]), axis=0) for end in (np.min, np.max))
    wide = np.where(high > low, high - low, np.maximum(np.abs(high), 1.0))
    grid = starts.reshape(*shape, 2)
    moves = [bool(np.any(np.ptp(grid, axis=axis) > _SAME_START * wide)) for axis in range(len(shape))]
    sets, numbers = [], np.zeros(len(paths), int)
    cells_at = np.stack(np.unravel_index(np.arange(len(paths)), tuple(shape)), axis=1)
    still = [axis for axis, moving in enumerate(moves) if not moving]
    _, groups = np.unique(cells_at[:, still], axis=0, return_inverse=True)
    last = np.stack([path[-1] for path in paths])
    for group in range(np.max(groups) + 1):
        cells = np.flatnonzero(groups == group)
        of_group = {name: columns[name][cells] for name in ("outcome", "curve_end", "curve_is_excess")}
        for rank, text, places in _sets(plane, of_group, [problems[cell] for cell in cells], last[cells], wide):
            numbers[cells[places]] = len(sets)
            sets.append({"rank": rank, "text": text, "count": len(places)})
    conic = kept(plane, problems, whole) if whole else None
    kept_there = None
    if conic is not None:
        name, drift = _named(conic, plane), short(conic.drift, 1)
        kept_there = {"c": conic.coefficients, "name": name, "drift": drift}
    portrait = {
        "names": [plane.x.name, plane.y.name],
        "view": [short(end) for ends in zip(low - 0.06 * wide, high + 0.06 * wide, strict=True) for end in ends],
        "moves": moves,
        "sets": sets,
        "others": plane.size > 2,
        "kept": kept_there,
    }
    return portrait, [{"p": path.T, "k": int(number)} for path, number in zip(paths, numbers, strict=True)]


def _sets(
    plane: Portrait, columns: Mapping[str, np.ndarray], problems: Sequence[Problem], last: np.ndarray, wide: np.ndarray
) -> list[tuple[int, str, np.ndarray]]:
    """Group flows from different starts by the set of ends that they reach.

    **Arguments:**

    - plane: the two coordinates.
    - columns, problems: the quantities and the problem of each flow.
    - last: the last points of the paths in the plane, (flows, 2).
    - wide: the width and height of the portrait.

    **Returns:** for each set its rank, its description, and the indices of its flows. The rank is negative for
    flows that are not at rest at their end.
    """
    found: list[tuple[tuple[float, ...], str, np.ndarray]] = []
    outcomes = columns["outcome"]
    for outcome in np.unique(outcomes).tolist():
        same = np.flatnonzero(outcomes == outcome)
        if outcome in _NOT_AT_REST:
            continue
        labels = basins([problems[cell] for cell in same.tolist()], list(columns["curve_end"][same]))
        for label in range(np.max(labels) + 1):
            ends = last[same[labels == label]]
            unknown = outcome == "saddle" and not np.all(columns["curve_is_excess"][same])
            text = f"{_ZERO if unknown else _AT_REST[outcome]}, {_where(plane, ends, wide)}"
            found.append((tuple(np.mean(ends, axis=0)), text, same[labels == label]))
    # Sets keep their colours, as far as they stay in order, when another slider moves them.
    found.sort(key=lambda one: one[0])
    ranked = [(rank, text, cells) for rank, (_, text, cells) in enumerate(found)]
    for number, (outcome, text) in enumerate(_NOT_AT_REST.items(), 1):
        if np.any(outcomes == outcome):
            ranked.append((-number, text, np.flatnonzero(outcomes == outcome)))
    return ranked


def _where(plane: Portrait, ends: np.ndarray, wide: np.ndarray) -> str:
    low, high = np.min(ends, axis=0), np.max(ends, axis=0)
    if np.all(high - low <= _POINT * wide):
        low = high = (low + high) / 2
    # A value that is too small to see in the picture is rounding.
    low, high = (np.where(np.abs(end) <= _NOTHING * wide, 0.0, end) for end in (low, high))
    ranges = zip((plane.x.name, plane.y.name), low, high, strict=True)
    said = [
        f"{name} = {in_unicode(a)}" if a == b else f"{name} from {in_unicode(a)} to {in_unicode(b)}"
        for name, a, b in ranges
    ]
    return " and ".join(said)


def _named(conic: Conic, plane: Portrait) -> str:
    """Write the conserved quantity as a formula, such as a² − b²."""
    said = ""
    for coefficient, term in zip(conic.coefficients, _TERMS, strict=True):
        if coefficient:
            sign = "−" if coefficient < 0 else "+" if said else ""
            size = "" if abs(coefficient) == 1 else f"{in_unicode(abs(coefficient))} "
            said += f" {sign} " if said else sign
            said += size + term.format(x=plane.x.name, y=plane.y.name)
    return said
