"""Maps: what becomes of a flow over a grid of problems and starts."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import os
import pathlib
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from jax.sharding import Mesh

from flowsim._core import checks
from flowsim._core.checks import refuse
from flowsim._core.files import DamagedFileError, done_without, held, read_arrays, read_document, write_whole
from flowsim._core.progress import progress_bar
from flowsim._core.types import Document, Tables
from flowsim.experiments.executors import Executor, gathered
from flowsim.experiments.sweep import integration
from flowsim.experiments.sweep.axes import GridAxis, grid_shape, specs
from flowsim.experiments.sweep.integration import CellBatch
from flowsim.experiments.sweep.records import DTYPES, MapRecord
from flowsim.problem import AbstractSpec, known_fields, signed, toml

DISK_BUDGET = 256.0  # MB
_OF_BATCHES = ("identity", "cells", "metadata")  # arrays beside the quantities


@dataclasses.dataclass(frozen=True)
class Map:
    """What a sweep found, a value a cell.

    tables: the problem that all cells share, as nested mappings in the form of a problem file; axes: what varies;
    quantities: arrays by name in the shape of the grid, an axis each, which ``docs/maps.md`` lists; folder: where the
    map lies.
    """

    tables: Tables
    axes: tuple[GridAxis, ...]
    quantities: MapRecord
    folder: pathlib.Path

    @property
    def shape(self) -> tuple[int, ...]:
        """How many cells there are along each axis."""
        return grid_shape(self.axes)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.quantities:
            hint = checks.nearest(name, self.quantities)
            raise KeyError(f"{name} is not in the map{hint or '; known: ' + ', '.join(self.quantities)}")
        return self.quantities[name]

    def command(self, index: int | Sequence[int]) -> str:
        """The line for a shell that integrates one cell by itself, as ``flowsim run`` does.

        **Arguments:** index: the place of the cell along each axis, or along the only one; negative ones count from
        the end.

        **Raises:** `ValueError` where there is no such cell.
        """
        places = self._places(index)
        values = [axis.as_text(place) for axis, place in zip(self.axes, places, strict=True)]
        out = self.folder / "runs" / "-".join(map(str, places))
        words = ["flowsim", "run", str(self.folder / "problem.toml")]
        return shlex.join([*words, *itertools.chain(*(("--set", value) for value in values)), "--out", str(out)])

    def problem(self, index: int | Sequence[int]) -> AbstractSpec:
        """The problem of one cell; its arguments are those of `command`."""
        chosen = zip(self.axes, self._places(index), strict=True)
        (spec,) = specs(
            self.tables, tuple(GridAxis(axis.field, axis.values[place : place + 1]) for axis, place in chosen)
        )
        return spec

    def save(self) -> None:
        """Write ``map.npz`` to the folder, whole or not at all; it holds no pickle."""
        axes = [dataclasses.asdict(axis) for axis in self.axes]
        arrays = {"metadata": np.asarray(json.dumps({"problem": self.tables, "axes": axes}))} | self.quantities
        write_whole(self.folder / "map.npz", lambda file: np.savez(file, allow_pickle=False, **arrays))

    @staticmethod
    def load(path: str | os.PathLike) -> "Map":
        """Read the map of a folder, or its ``map.npz``.

        **Raises:** `ValueError` where the file is damaged or no map.
        """
        path = pathlib.Path(path)
        path = path / "map.npz" if path.is_dir() else path
        arrays = read_arrays(path)
        if not {"metadata", *DTYPES} <= set(arrays):
            checks.refuse("path", "a map written by flowsim", f"{path} is none")
        metadata = json.loads(str(arrays["metadata"]))
        quantities = {name: array for name, array in arrays.items() if name != "metadata"}
        axes = tuple(GridAxis(axis["field"], tuple(axis["values"])) for axis in metadata["axes"])
        return Map(metadata["problem"], axes, quantities, path.parent)

    def _places(self, index: int | Sequence[int]) -> tuple[int, ...]:
        given = (index,) if isinstance(index, int | np.integer) else tuple(index)
        fits = len(given) == len(self.shape) and all(-n <= i < n for i, n in zip(given, self.shape, strict=True))
        if not fits:
            checks.refuse("index", f"that of a cell of the grid of shape {self.shape}", f"it is {index}")
        return tuple(int(i) % n for i, n in zip(given, self.shape, strict=True))


def sweep(
    problem: AbstractSpec | Mapping[str, Any],
    axes: Mapping[str, Iterable[Any] | str],
    *,
    out: str | os.PathLike,
    resume: bool = False,
    disk_budget: float = DISK_BUDGET,
    progress: bool = False,
    mesh: Mesh | None = None,
    executor: Executor | None = None,
) -> Map:
    """Integrate the flows of a grid of problems, and keep of each where it ends, how long it takes, and its margins.

    Cells whose flow is an arrowhead are integrated in batches, the others one by one with `gradient_flow`. Finished
    batches are kept in ``out/cells`` until the map is whole; a sweep that was stopped goes on from them to the same
    map, bit for bit.

    **Arguments:** problem: what all cells share, a `ProblemSpec` or nested mappings in the form of a problem file;
    axes: dotted names of fields with the values each takes, as a list or in the form of the command line
    (``"geom:1e-3:1:31"``); out: a folder for ``map.npz``; resume: go on with the sweep that is there; disk_budget: how
    much may be written, in MB; progress: show a bar; mesh: devices of this process to share the cells of a batch, by an
    axis named "samples"; executor: what integrates the batches instead of this process, anything with
    ``submit(function, *arguments).result()``; the map is the same, byte for byte.

    **Returns:** the `Map`; a cell whose flow could not be integrated has the outcome "failed".

    **Raises:** `ProblemError`, a `ValueError`, in one line, before anything is written.
    """
    tables = tables_of(problem)
    parsed = tuple(
        GridAxis.parse(f"{field}={values}") if isinstance(values, str) else GridAxis.of(field, values)
        for field, values in axes.items()
    )
    plan = checked(tables, parsed, disk_budget, mesh)
    return entered(Map(tables, parsed, {}, pathlib.Path(out)), plan, resume, progress, mesh, executor)


def tables_of(problem: AbstractSpec | Mapping[str, Any]) -> Document:
    """A problem as nested mappings, without the fields that are left out."""
    tables = signed(problem) if isinstance(problem, Mapping) else msgspec.to_builtins(problem)
    return json.loads(json.dumps(_given(tables)))


def _given(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _given(part) for key, part in value.items() if part is not None}
    return value


class SweepPlan(NamedTuple):
    """The problems of all cells, the last axis running fastest, and the batches in which they are integrated."""

    cells: list[AbstractSpec]
    batches: list[CellBatch]


def checked(tables: Tables, axes: tuple[GridAxis, ...], disk_budget: float, mesh: Mesh | None) -> SweepPlan:
    """What a sweep will do; nothing is integrated or written.

    **Raises:** `ProblemError` in one line where one of them is no problem, or the map is larger than the disk budget,
    in MB.
    """
    checks.require_float64()
    if not axes:
        refuse("a sweep", "over at least one axis", "there is none")
    names, known = [axis.field for axis in axes], known_fields(tables)
    for name in names:
        if name not in known:
            raise checks.ProblemError(f"{name} is not a known field{checks.nearest(name, known)}")
        if names.count(name) > 1:
            refuse("a sweep", "over different fields", f"{name} is there twice")
    if "budget_seconds" in tables.get("flow", {}):
        refuse("flow.budget_seconds", "left out of a sweep, whose cells do not depend on the clock", "it is given")
    count = math.prod(grid_shape(axes))
    # Finished batches and the map lie side by side until the map is whole.
    megabytes = 2 * count * sum(dtype.itemsize for dtype in DTYPES.values()) / 1e6
    if not megabytes <= disk_budget:
        came = f"its {count} cells take {megabytes:.3g} MB"
        refuse("the map", f"within the disk budget of {disk_budget:g} MB (--disk-budget)", came)
    cells = list(specs(tables, axes))
    for name in cells[0].observables:
        if name in (*DTYPES, *_OF_BATCHES):
            refuse("OBSERVABLES", "names that no array of a map has", f'one is "{name}"')
    return SweepPlan(cells, integration.plan(cells, mesh))


def entered(
    unfinished: Map, plan: SweepPlan, resume: bool, progress: bool, mesh: Mesh | None, executor: Executor | None
) -> Map:
    """The map of a sweep, in whose folder this process alone is at work.

    **Raises:** `ProblemError` in one line where the folder is another's, or another process is at work in it.
    """
    if mesh is not None and executor is not None:
        refuse("mesh", "left out with an executor, whose processes have devices of their own", "it is given")
    unfinished.folder.mkdir(parents=True, exist_ok=True)
    with held(unfinished.folder) as alone:
        if not alone:
            refuse("--out", "a folder in which no other sweep is at work", f"one is in {unfinished.folder}")
        enter(unfinished.folder, unfinished.tables, unfinished.axes, resume)
        return finish(unfinished, plan, progress, mesh, executor)


def enter(folder: pathlib.Path, tables: Tables, axes: tuple[GridAxis, ...], resume: bool) -> None:
    """Make the folder of a sweep, or come back to it.

    **Raises:** `ProblemError` in one line where it holds a run, another sweep, or this one without ``resume``.
    """
    marker, document = folder / "sweep.json", _document(tables, axes)
    if marker.exists():
        if not resume:
            refuse("--out", "a folder without a sweep", f"{folder} holds one: add --resume to go on, or take another")
        _check_same(marker, document)
    elif (folder / "problem.toml").exists():
        refuse("--out", "a folder without a run", f"{folder} holds one: take another")
    if (folder / "map.npz").exists():
        _check_map(folder / "map.npz", document, known=marker.exists())
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    for partial in (*folder.glob(".*.part"), *folder.glob("*/.*.part")):
        partial.unlink()
    text = json.dumps(document, indent=1) + "\n"
    write_whole(marker, lambda file: file.write(text.encode()))
    write_whole(folder / "problem.toml", lambda file: file.write(toml.write(tables).encode()))


def _document(tables: Tables, axes: tuple[GridAxis, ...]) -> Document:
    """What tells a sweep from others, as JSON has it."""
    return json.loads(json.dumps({"problem": dict(tables), "axes": [dataclasses.asdict(axis) for axis in axes]}))


def _digest(document: Document) -> str:
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()


def _check_same(marker: pathlib.Path, document: Document) -> None:
    """Refuse the marker of another sweep; a damaged one is done without, since each batch knows its own sweep."""
    try:
        found = read_document(marker)
        difference = None if found == document else _difference(found, document)
    except DamagedFileError as error:
        _check_batches(marker.parent / "cells", _digest(document))
        return done_without(error, "it is written again")
    except (KeyError, TypeError, AttributeError):
        refuse("--out", "the folder of this same sweep", f"{marker} holds something else: take another folder")
    if difference is not None:
        refuse("--out", "the folder of this same sweep", f"{difference} differs from {marker}: take another folder")


def _check_batches(folder: pathlib.Path, identity: str) -> None:
    """Refuse the batches of another sweep."""
    for path in sorted(folder.glob("batch-*.npz")):
        with contextlib.suppress(DamagedFileError):
            _check_batch(read_arrays(path), path, identity)


def _check_batch(arrays: Mapping[str, np.ndarray], path: pathlib.Path, identity: str) -> None:
    if str(arrays.get("identity")) != identity:
        refuse("--out", "the folder of this same sweep", f"{path} is of another: take another folder")


def _check_map(file: pathlib.Path, document: Document, known: bool) -> None:
    """Refuse the map of another sweep; a damaged one in the folder of this sweep is removed."""
    try:
        found = Map.load(file)
        came = f"{file} is of another: take another folder"
        if _document(found.tables, found.axes) == document:
            return
    except DamagedFileError as error:
        if known:
            done_without(error, "its cells are integrated again")
            return file.unlink()
        came = f"{error}: take another folder"
    refuse("--out", "the folder of this same sweep", came)


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first axis or field in which two sweeps differ."""
    left, right = (
        {f"the axis {axis['field']}": (place, axis["values"]) for place, axis in enumerate(document["axes"])}
        | dict(toml.flat(document["problem"]))
        for document in (one, other)
    )
    return next((name for name in left | right if left.get(name) != right.get(name)), None)


def finish(
    unfinished: Map, plan: SweepPlan, progress: bool, mesh: Mesh | None, executor: Executor | None = None
) -> Map:
    """The map of a sweep, from its finished batches and the others, which are integrated."""
    folder = unfinished.folder
    if (folder / "map.npz").exists():
        shutil.rmtree(folder / "cells", ignore_errors=True)
        return Map.load(folder)
    cells, batches = plan
    records: list[MapRecord] = []
    with progress_bar("sweep", len(cells), unit="cell", shown=progress) as bar:
        for batch, record in zip(batches, _records(unfinished, plan, mesh, executor), strict=True):
            records.append(record)
            bar.update(len(batch.cells))
    order = np.concatenate([np.asarray(batch.cells) for batch in batches])
    quantities = {}
    for name in records[0]:
        found = np.concatenate([record[name] for record in records])
        flat = np.empty_like(found)
        flat[order] = found
        quantities[name] = flat.reshape(unfinished.shape)
    finished = dataclasses.replace(unfinished, quantities=quantities)
    finished.save()
    shutil.rmtree(folder / "cells")
    return finished


def _records(sweep: Map, plan: SweepPlan, mesh: Mesh | None, executor: Executor | None) -> Iterator[MapRecord]:
    """What is found of every batch, by the folder or by integration."""
    (cells, batches), folder, identity = plan, sweep.folder / "cells", _digest(_document(sweep.tables, sweep.axes))
    if executor is not None:
        _integrate_elsewhere(plan, folder, identity, executor)
    for places in integration.together(batches, 1 if mesh is None else mesh.size):
        stored = {place: _stored(_path(folder, place), batches[place], identity) for place in places}
        missing = [place for place in places if stored[place] is None]
        # One at a time on a device: XLA shares a batch among the cores, and two can wait for each other.
        fresh = integration.run([batches[place] for place in missing], cells, mesh) if missing else []
        for place, record in zip(missing, fresh, strict=True):
            _store(_path(folder, place), batches[place], identity, record)
            stored[place] = record
        yield from (record for record in stored.values() if record is not None)


def _integrate_elsewhere(plan: SweepPlan, folder: pathlib.Path, identity: str, executor: Executor) -> None:
    """Finish the batches that are not."""
    cells, batches = plan
    missing = [place for place, batch in enumerate(batches) if _stored(_path(folder, place), batch, identity) is None]
    calls = [(batches[place], [cells[index].to_toml() for index in batches[place].cells]) for place in missing]
    for number, record in gathered(executor, integration.run_by_text, calls):
        _store(_path(folder, missing[number]), batches[missing[number]], identity, record)


def _store(path: pathlib.Path, batch: CellBatch, identity: str, record: MapRecord) -> None:
    arrays = {"identity": np.asarray(identity), "cells": np.asarray(batch.cells)} | record
    write_whole(path, functools.partial(np.savez, allow_pickle=False, **arrays))


def _path(folder: pathlib.Path, number: int) -> pathlib.Path:
    return folder / f"batch-{number:05d}.npz"


def _stored(path: pathlib.Path, batch: CellBatch, identity: str) -> MapRecord | None:
    """A finished batch; None where there is none, or it is damaged.

    **Raises:** `ProblemError` where it is of another sweep.
    """
    if not path.exists():
        return None
    try:
        arrays = read_arrays(path)
    except DamagedFileError as error:
        return done_without(error, "its cells are integrated again")
    _check_batch(arrays, path, identity)
    if not np.array_equal(arrays["cells"], np.asarray(batch.cells)):
        return None
    return {name: array for name, array in arrays.items() if name not in _OF_BATCHES}
