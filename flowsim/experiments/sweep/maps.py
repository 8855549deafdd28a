"""Maps: flows over a grid of problems and starts."""

import collections
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from jax.sharding import Mesh

from flowsim._core import checks
from flowsim._core.checks import refuse
from flowsim._core.documents import extra, html_table, origin, require_origin
from flowsim._core.files import (
    DamagedFileError,
    at_work_in,
    ignore_damaged,
    read_arrays,
    write_arrays,
    write_whole,
)
from flowsim._core.progress import progress_bar
from flowsim._core.text import value_text
from flowsim._core.types import Document, Tables
from flowsim.experiments.executors import Executor, gathered
from flowsim.experiments.sweep import integration
from flowsim.experiments.sweep.axes import GridAxis, grid_shape, specs
from flowsim.experiments.sweep.integration import CellBatch
from flowsim.experiments.sweep.judged import Asked
from flowsim.experiments.sweep.kept import KeptBatches, check_marker
from flowsim.experiments.sweep.planning import SweepPlan, checked
from flowsim.experiments.sweep.records import DTYPES, MapRecord
from flowsim.problem import AbstractSpec, signed, toml

DISK_BUDGET = 256.0  # MB


@dataclasses.dataclass(frozen=True)
class Map:
    """The result of a sweep: one value of every quantity for each cell.

    **Fields:**

    - tables: the problem that all cells share, as nested mappings in the form of a problem file.
    - axes: the axes of the grid.
    - quantities: arrays by name in the shape of the grid; ``docs/maps.md`` lists them.
    - folder: the folder of the map.
    - claims: the pattern of the ids of claims, None for those that papers name for maps.
    - curves: whether the time series of each flow are among the quantities.
    - made: a digest of the losses and starts that a user's function returned for the cells, or None.
    """

    tables: Tables
    axes: tuple[GridAxis, ...]
    quantities: MapRecord
    folder: pathlib.Path
    claims: str | None = None
    curves: bool = False
    made: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of cells along each axis."""
        return grid_shape(self.axes)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.quantities:
            hint = checks.nearest(name, self.quantities)
            raise KeyError(f"{name} is not in the map{hint or '; known: ' + ', '.join(self.quantities)}")
        return self.quantities[name]

    def command(self, index: int | Sequence[int]) -> str:
        """The shell command that integrates one cell alone, by ``flowsim run``.

        **Arguments:** index: the place of the cell along each axis, or along the only one. Negative numbers count from
        the end.

        **Raises:** `ValueError` if there is no such cell.
        """
        places = self._places(index)
        values = [axis.as_text(place) for axis, place in zip(self.axes, places, strict=True)]
        out = self.folder / "runs" / "-".join(map(str, places))
        words = ["flowsim", "run", str(self.folder / "problem.toml")]
        return shlex.join([*words, *itertools.chain(*(("--set", value) for value in values)), "--out", str(out)])

    def problem(self, index: int | Sequence[int]) -> AbstractSpec:
        """The problem of one cell.

        **Arguments:** index: the place of the cell along each axis, or along the only one.

        **Raises:** `ValueError` if there is no such cell.
        """
        chosen = zip(self.axes, self._places(index), strict=True)
        (spec,) = specs(
            self.tables, tuple(GridAxis(axis.field, axis.values[place : place + 1]) for axis, place in chosen)
        )
        return spec

    def _repr_html_(self) -> str:
        counts = collections.Counter(self["outcome"].ravel().tolist())
        ends = lambda axis: f"{value_text(axis.values[0])} to {value_text(axis.values[-1])} ({len(axis.values)})"
        axes = [(axis.field, ends(axis)) for axis in self.axes]
        return html_table((), [*axes, *((name, str(count)) for name, count in counts.most_common())], str(self.folder))

    def to_xarray(self) -> Any:
        """An ``xarray.Dataset`` of the quantities, over axes with the names of their fields. The problem that all cells
        share is its attribute. Values that are lists or tables are texts in TOML.

        **Raises:** `ProblemError` if xarray is not installed.
        """
        names = [axis.field for axis in self.axes]
        text = lambda value: toml.write_value(value) if isinstance(value, list | dict) else value
        return extra("xarray").Dataset(
            {name: ([*names, "row", "mode"][: array.ndim], array) for name, array in self.quantities.items()},
            coords={axis.field: list(map(text, axis.values)) for axis in self.axes},
            attrs={"problem": toml.write(self.tables)},
        )

    def save(self) -> None:
        """Write ``map.npz`` to the folder, whole or not at all, without pickle."""
        metadata = _document(self) | {"origin": origin(_identity(self))}
        arrays = {"metadata": np.asarray(json.dumps(metadata))} | self.quantities
        write_arrays(self.folder / "map.npz", arrays)

    @staticmethod
    def load(path: str | os.PathLike) -> "Map":
        """Read the map of a folder, or its ``map.npz``.

        **Raises:** `ValueError` if the file is damaged or not a map.
        """
        path = pathlib.Path(path)
        path = path / "map.npz" if path.is_dir() else path
        arrays = read_arrays(path)
        metadata = _metadata_of(arrays, path)
        quantities = {name: array for name, array in arrays.items() if name != "metadata"}
        axes = tuple(GridAxis(axis["field"], tuple(axis["values"])) for axis in metadata["axes"])
        return Map(
            metadata["problem"],
            axes,
            quantities,
            path.parent,
            metadata["claims"],
            metadata.get("curves", False),
            metadata.get("made"),
        )

    def _places(self, index: int | Sequence[int]) -> tuple[int, ...]:
        given = (index,) if isinstance(index, int | np.integer) else tuple(index)
        fits = len(given) == len(self.shape) and all(-n <= i < n for i, n in zip(given, self.shape, strict=True))
        if not fits:
            checks.refuse("index", f"that of a cell of the grid of shape {self.shape}", f"it is {index}")
        return tuple(int(i) % n for i, n in zip(given, self.shape, strict=True))


def sweep(
    problem: AbstractSpec | Tables,
    axes: Mapping[str, Iterable[Any] | str],
    *,
    out: str | os.PathLike,
    claims: str | None = None,
    curves: bool = False,
    resume: bool = False,
    disk_budget: float = DISK_BUDGET,
    progress: bool = False,
    mesh: Mesh | None = None,
    executor: Executor | None = None,
) -> Map:
    """Integrate the flows of a grid of problems, and record where each ends, how long it takes, and the margins of
    claims.

    Cells with an arrowhead are integrated in batches, those with another exact loss and at most 256 weights in
    lockstep on all cores, and all others one by one with `gradient_flow`. Finished batches are kept in
    ``out/cells`` until the map is complete. A sweep that was stopped resumes from them, with a bitwise equal map.

    **Arguments:**

    - problem: what all cells share, a `ProblemSpec` or nested mappings in the form of a problem file.
    - axes: dotted names of fields with their values, as a list or in the form of the command line
      (``"geom:1e-3:1:31"``).
    - out: a folder for ``map.npz``.
    - claims: a pattern of the ids of claims, of papers or in the problem's file, whose margins are recorded. By
      default a few that papers name for maps.
    - curves: also record the excess and the modes of each flow at some of its times; see `courses`.
    - resume: continue the sweep in the folder.
    - disk_budget: the largest size of the map in MB.
    - progress: whether to show a progress bar.
    - mesh: devices of this process that share the cells of a batch, by an axis named "samples".
    - executor: integrates the batches instead of this process: anything with
      ``submit(function, *arguments).result()``. The map is bitwise that of a process that has called
      `flowsim.setup`, as the workers do.

    **Returns:** the `Map`. A cell whose flow could not be integrated has the outcome "failed".

    **Raises:** `ProblemError`, a `ValueError`, in one line, before anything is written.
    """
    tables = tables_of(problem)
    parsed = tuple(GridAxis.of(field, values) for field, values in axes.items())
    plan = checked(tables, parsed, Asked(claims, curves), disk_budget, mesh)
    unfinished = Map(tables, parsed, {}, pathlib.Path(out), claims, curves, plan.made)
    return entered(unfinished, plan, resume, progress, mesh, executor)


def tables_of(problem: AbstractSpec | Tables) -> Document:
    """A problem as nested mappings, without optional fields that are not given."""
    tables = signed(problem) if isinstance(problem, Mapping) else msgspec.to_builtins(problem)
    return json.loads(json.dumps(_given(tables)))


def _given(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _given(part) for key, part in value.items() if part is not None}
    return value


def entered(
    unfinished: Map, plan: SweepPlan, resume: bool, progress: bool, mesh: Mesh | None, executor: Executor | None
) -> Map:
    """Create or open the folder of a sweep, finish the sweep, and return its map. No other process may use the
    folder.

    **Arguments:** as for `finish`; resume: as for `sweep`.

    **Raises:** `ProblemError` in one line if the folder contains another sweep or other files, or if another
    process works in it.
    """
    _refuse_mesh_elsewhere(mesh, executor)
    with at_work_in(unfinished.folder, "sweep"):
        enter(unfinished, plan, resume)
        for partial in (*unfinished.folder.glob(".*.part"), *unfinished.folder.glob("*/.*.part")):
            partial.unlink()
        return finish(unfinished, plan, progress, mesh, executor)


def integrate_part(
    unfinished: Map,
    plan: SweepPlan,
    part: tuple[int, int],
    progress: bool,
    mesh: Mesh | None,
    executor: Executor | None,
) -> list[int]:
    """Integrate the i-th of n parts of the batches of a sweep, while other processes may work at other parts.

    **Arguments:** as for `finish`; part: (i, n).

    **Returns:** the indices of the batches that are still missing, in all parts.
    """
    number, parts = part
    _refuse_mesh_elsewhere(mesh, executor)
    with at_work_in(unfinished.folder, "sweep", shared=True):
        enter(unfinished, plan, resume=True)
        if (unfinished.folder / "map.npz").exists():
            return []
        kept = _kept(unfinished, plan)
        places = [place for place in kept.missing() if place % parts == number - 1]
        with progress_bar("sweep", _count(plan, places), unit="cell", shown=progress) as bar:
            for place, _ in _integrated(plan, places, kept, mesh, executor):
                bar.update(_count(plan, [place]))
        return kept.missing()


def _refuse_mesh_elsewhere(mesh: Mesh | None, executor: Executor | None) -> None:
    if mesh is not None and executor is not None:
        refuse("mesh", "left out with an executor, whose processes choose their devices", "it is given")


def enter(sweep: Map, plan: SweepPlan, resume: bool) -> None:
    """Create the folder of a sweep, or open it again.

    **Arguments:** sweep: the sweep; plan: its plan; resume: whether to continue a sweep that is in the folder.

    **Raises:** `ProblemError` if the folder holds a run, another sweep, or this sweep without ``resume``.
    """
    folder, document = sweep.folder, _document(sweep)
    # The problem is tested first: a process that enters at the same time writes it last.
    has_problem, marker = (folder / "problem.toml").exists(), folder / "sweep.json"
    if marker.exists():
        if not resume:
            refuse("--out", "a folder without a sweep", f"{folder} holds one: add --resume, or take another folder")
        check_marker(marker, document, _kept(sweep, plan))
    elif has_problem:
        refuse("--out", "a folder without a run", f"{folder} holds one: take another folder")
    if (folder / "map.npz").exists():
        _check_map(folder / "map.npz", sweep, known=marker.exists())
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1) + "\n"
    write_whole(marker, lambda file: file.write(text.encode()))
    write_whole(folder / "problem.toml", lambda file: file.write(toml.write(sweep.tables).encode()))


def _document(sweep: Map) -> Document:
    """The data that identify a sweep, in the form of JSON."""
    axes = [dataclasses.asdict(axis) for axis in sweep.axes]
    asked = {"claims": sweep.claims, "curves": sweep.curves} | ({"made": sweep.made} if sweep.made else {})
    return json.loads(json.dumps({"problem": dict(sweep.tables), "axes": axes, **asked}))


def _kept(sweep: Map, plan: SweepPlan) -> KeptBatches:
    return KeptBatches(sweep.folder / "cells", _identity(sweep), plan.batches)


def _identity(sweep: Map) -> str:
    return hashlib.sha256(json.dumps(_document(sweep)).encode()).hexdigest()


def _metadata_of(arrays: MapRecord, path: pathlib.Path) -> Document:
    if not {"metadata", *DTYPES} <= set(arrays):
        refuse("path", "a map written by flowsim", f"{path} is not")
    return json.loads(str(arrays["metadata"]))


def _check_map(file: pathlib.Path, sweep: Map, known: bool) -> None:
    """Raise `ForeignFileError` for the map of another sweep. A damaged map is removed if the folder is ``known`` to
    be of this sweep; otherwise it raises `ProblemError`.
    """
    try:
        found = _metadata_of(read_arrays(file), file).get("origin")
    except DamagedFileError as error:
        if not known:
            refuse("--out", "the folder of this same sweep", f"{error}: take another folder")
        ignore_damaged(error, "its cells are integrated again")
        return file.unlink()
    require_origin(found, _identity(sweep), "--out", "sweep", file)


def finish(
    unfinished: Map, plan: SweepPlan, progress: bool, mesh: Mesh | None, executor: Executor | None = None
) -> Map:
    """Load the finished batches of a sweep, integrate the others, and write and return the map.

    **Arguments:**

    - unfinished: the map without quantities.
    - plan: the plan of the sweep.
    - progress: whether to show a progress bar.
    - mesh, executor: as for `sweep`.
    """
    folder = unfinished.folder
    if (folder / "map.npz").exists():
        shutil.rmtree(folder / "cells", ignore_errors=True)
        return Map.load(folder)
    cells, batches = plan.cells, plan.batches
    kept = _kept(unfinished, plan)
    records = {place: record for place in range(len(batches)) if (record := kept.load(place)) is not None}
    missing = [place for place in range(len(batches)) if place not in records]
    with progress_bar("sweep", len(cells), unit="cell", shown=progress) as bar:
        bar.update(_count(plan, records))
        for place, record in _integrated(plan, missing, kept, mesh, executor):
            records[place] = record
            bar.update(_count(plan, [place]))
    order = np.argsort(np.concatenate([np.asarray(batch.cells) for batch in batches]))
    parts = [records[place] for place in range(len(batches))]
    kinds = {name: values.dtype for part in parts for name, values in part.items()}
    quantities = {}
    for name, kind in kinds.items():
        # Claims about one model have no margin in cells of another.
        none = np.asarray(np.nan if kind.kind == "f" else kind.type(), kind)
        found = np.concatenate([part.get(name, np.full(part["outcome"].size, none)) for part in parts])
        quantities[name] = found[order].reshape(unfinished.shape + found.shape[1:])
    finished = dataclasses.replace(unfinished, quantities=quantities)
    finished.save()
    shutil.rmtree(folder / "cells")
    return finished


def _count(plan: SweepPlan, places: Iterable[int]) -> int:
    """The number of cells in some batches."""
    return sum(len(plan.batches[place].cells) for place in places)


def _integrated(
    plan: SweepPlan, places: Sequence[int], kept: KeptBatches, mesh: Mesh | None, executor: Executor | None
) -> Iterator[tuple[int, MapRecord]]:
    """Integrate batches, save each, and yield its index and its record, in the order in which they finish."""
    chosen = [plan.batches[place] for place in places]
    for number, record in _records(chosen, plan, mesh, executor):
        kept.save(places[number], record)
        yield places[number], record


def _records(
    batches: Sequence[CellBatch], plan: SweepPlan, mesh: Mesh | None, executor: Executor | None
) -> Iterator[tuple[int, MapRecord]]:
    """Integrate batches, and yield the index of each in the list with its record."""
    if executor is not None:
        calls = [(batch, [plan.cells[index].to_toml() for index in batch.cells], plan.asked) for batch in batches]
        yield from gathered(executor, integration.run_by_text, calls)
        return
    for numbers in integration.together(batches, 1 if mesh is None else mesh.size):
        # One at a time on each device: XLA spreads a batch over the cores, and two batches can wait for each other.
        fresh = integration.run([batches[number] for number in numbers], plan.cells, mesh, plan.asked)
        yield from zip(numbers, fresh, strict=True)
