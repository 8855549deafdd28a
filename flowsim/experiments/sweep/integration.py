"""Plan which cells of a sweep are integrated together, and integrate them."""

import dataclasses
import enum
import math
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from flowsim.experiments.sweep import any_loss, arrowheads
from flowsim.experiments.sweep.judged import ASKED, Asked, chosen
from flowsim.experiments.sweep.records import MapRecord, record
from flowsim.flow.solvers.lockstep import Record
from flowsim.flow.solvers.summary import Ends, Scales, Summary
from flowsim.losses.arrowhead import Arrowhead
from flowsim.problem import AbstractSpec, Problem, ProblemSpec, spec_of, toml

_LANE_ENTRIES, _MOST_LANES = 2**15, 128  # on a CPU: this many fill its caches
_GPU_LANE_ENTRIES, _GPU_MOST_LANES = 2**24, 2**16  # on a GPU a step takes as long for a few lanes as for thousands
_FEWEST_LANES = 8


@dataclasses.dataclass(frozen=True)
class CellBatch:
    """Cells that are integrated together.

    **Fields:**

    - cells: the indices of the cells in the flattened grid.
    - dimension: for cells with an arrowhead, their largest dimension d, rounded up to one of few values; None for
      others.
    - lanes: for cells with an arrowhead, the number of cells for which the program is compiled. Spare lanes repeat
      the last cell.
    """

    cells: tuple[int, ...]
    dimension: int | None = None
    lanes: int = 1


class _Route(enum.Enum):
    """How a cell is integrated: with other arrowheads in lockstep, with other flows of its structure in lockstep,
    or alone.
    """

    ARROWHEAD = enum.auto()
    TOGETHER = enum.auto()
    ALONE = enum.auto()


def plan(specs: Sequence[AbstractSpec], mesh: Mesh | None) -> list[CellBatch]:
    """Divide the cells of a sweep into batches. The batches are the same on every CPU, and larger on a GPU.

    Cells with an arrowhead and similar dimensions are together, ordered by the time that their flows take, since a
    batch takes as long as its slowest cell. Other cells are grouped by their values that are not numbers, and
    ordered by their integers, which usually determine the shapes of arrays. A cell that cannot be integrated in
    lockstep is a batch by itself.

    **Arguments:** specs: the problems of the cells; mesh: devices that share the samples of a cell.

    **Raises:** `ValueError` if a value is outside its mathematical range.
    """
    classes: dict[int, list[tuple[float, int]]] = {}
    others: dict[Hashable, list[tuple[list[int], int]]] = {}
    alone: list[int] = []
    slowest: dict[tuple, float] = {}
    routes: dict[Hashable, _Route] = {}
    for index, spec in enumerate(specs):
        words, numbers = _words_and_whole_numbers(spec)
        kind = words
        if isinstance(spec, ProblemSpec):
            law = spec.task.covariance_law
            start = arrowheads.without_numbers(spec.init)
            kind = (start, spec.task.size, spec.flow.solver, law and law.family, spec.model, spec.loss)
        if kind not in routes:
            routes[kind] = _route(spec.build(mesh=mesh))
        if routes[kind] is _Route.ARROWHEAD:
            assert isinstance(spec, ProblemSpec)
            of_loss = (spec.task, spec.model, spec.loss)
            if of_loss not in slowest:
                slowest[of_loss] = arrowheads.slowest_rate(spec.build(mesh=mesh))
            classes.setdefault(arrowheads.rounded_up(spec.task.size), []).append((slowest[of_loss], index))
        elif routes[kind] is _Route.TOGETHER:
            others.setdefault(words, []).append((numbers, index))
        else:
            alone.append(index)
    batches = []
    cpu = jax.default_backend() == "cpu"
    entries, most = (_LANE_ENTRIES, _MOST_LANES) if cpu else (_GPU_LANE_ENTRIES, _GPU_MOST_LANES)
    for dimension, members in sorted(classes.items()):
        cells = [index for _, index in sorted(members)]
        count = math.ceil(len(cells) / np.clip(entries // dimension**2, 1, most))
        share = math.ceil(len(cells) / count)
        lanes = max(_FEWEST_LANES, 1 << (share - 1).bit_length())
        batches += [CellBatch(tuple(cells[i : i + share]), dimension, lanes) for i in range(0, len(cells), share)]
    for like in others.values():
        cells = [index for _, index in sorted(like)]
        most = any_loss.most_cells()
        batches += [CellBatch(tuple(cells[i : i + most])) for i in range(0, len(cells), most)]
    return batches + [CellBatch((index,)) for index in alone]


def _route(problem: Problem) -> _Route:
    if any_loss.suits_lockstep(problem):
        return _Route.TOGETHER
    one_layer = isinstance(problem.spec, ProblemSpec) and problem.spec.flow.solver == "auto"
    return (
        _Route.ARROWHEAD if one_layer and isinstance(problem.loss.arrowhead(problem.start), Arrowhead) else _Route.ALONE
    )


def _words_and_whole_numbers(spec: AbstractSpec) -> tuple[Hashable, list[int]]:
    """The texts and truth values of a problem with their names, and its integers, both in the order of the file."""
    values = list(toml.flat(msgspec.to_builtins(spec)))
    words = tuple((name, value) for name, value in values if isinstance(value, str | bool))
    return words, [value for _, value in values if isinstance(value, int) and not isinstance(value, bool)]


def together(batches: Sequence[CellBatch], most: int) -> list[list[int]]:
    """Group the indices of consecutive batches that are integrated at the same time, each by one device.

    The batches of a group have the same dimension and lanes, and there are at most ``most`` of them. A batch
    without a dimension is alone.
    """
    groups: list[list[int]] = []
    for place, batch in enumerate(batches):
        like = batches[groups[-1][0]] if groups else None
        same = like is not None and (like.dimension, like.lanes) == (batch.dimension, batch.lanes)
        if same and batch.dimension is not None and len(groups[-1]) < most:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def run(
    batches: Sequence[CellBatch], cells: Sequence[AbstractSpec], mesh: Mesh | None, asked: Asked = ASKED
) -> list[MapRecord]:
    """Integrate batches of one shape.

    Each device of a mesh takes a batch and runs the program of a single device, so that the results are bitwise the
    same. If a cell has samples, all devices share them.

    **Arguments:**

    - batches: the batches.
    - cells: the problems of all cells of the sweep.
    - mesh: the devices.
    - asked: what is recorded.

    **Returns:** for each batch the columns of the map, with one row for each of its cells.
    """
    members = [[cells[index] for index in batch.cells] for batch in batches]
    if batches[0].dimension is None:
        return [any_loss.run(specs, jax.tree.map(np.asarray, _ends(specs)), mesh, asked) for specs in members]
    devices = [None] * len(batches) if mesh is None else mesh.devices.flat
    # All are started before the first is waited for.
    begun = [
        _start_batch(batch, specs, device) for batch, specs, device in zip(batches, members, devices, strict=False)
    ]
    return [_finish_batch(specs, *batch, asked) for specs, batch in zip(members, begun, strict=True)]


def run_by_text(batch: CellBatch, problems: Sequence[str], asked: Asked) -> MapRecord:
    """Integrate one batch like `run`, with arguments that can be sent to another process.

    **Arguments:**

    - batch: the batch.
    - problems: the texts of the problem files of its cells.
    - asked: what is recorded.
    """
    cells = [spec_of(toml.parse(problem)) for problem in problems]
    return run([dataclasses.replace(batch, cells=tuple(range(len(cells))))], cells, None, asked)[0]


def _start_batch(
    batch: CellBatch, specs: Sequence[Any], device: Any
) -> tuple[tuple[Summary, Scales, Record], list[arrowheads.Group], Array]:
    """Start to integrate a batch of cells with arrowheads on a device.

    **Returns:** the summaries, natural scales and recorded steps, which the device may still compute; the groups of
    flows; and the tolerances.
    """
    assert batch.dimension is not None, "these cells have one"
    lanes = [*specs, *[specs[-1]] * (batch.lanes - len(specs))]
    flows, groups = arrowheads.prepared(lanes, batch.dimension)
    ends = _ends(lanes)
    return arrowheads.integrate(*jax.device_put((flows, ends), device)), groups, ends.rtol


def _finish_batch(
    specs: Sequence[AbstractSpec],
    found: tuple[Summary, Scales, Record],
    groups: Sequence[arrowheads.Group],
    rtol: Array,
    asked: Asked,
) -> MapRecord:
    """The columns of the map for a batch that was started. A flow with more steps than were recorded is integrated
    again, alone.

    **Arguments:**

    - specs: the problems of the cells.
    - found, groups, rtol: as returned by `_start_batch`.
    - asked: what is recorded.
    """
    summary, scales, steps = jax.tree.map(np.asarray, found)
    judged = chosen(asked.claims, [specs[0].build()], asked.curves, asked.portrait)
    rows = record(summary, scales, np.asarray(rtol))
    for group in groups:
        for name, values in arrowheads.record_of_group(judged, group, steps).items():
            if name not in rows:
                rows[name] = np.zeros((rtol.size, *values.shape[1:]), values.dtype)
            rows[name][group.lanes] = values
    for lane in np.flatnonzero(~steps.whole[: len(specs)]).tolist():
        for name, (value,) in any_loss.alone(specs[lane].build(), judged).items():
            rows[name][lane] = value
    return {name: values[: len(specs)] for name, values in rows.items()}


def _ends(specs: Sequence[AbstractSpec]) -> Ends:
    rows = []
    for flow in (spec.flow for spec in specs):
        stop = (0.0, 0.0) if flow.stop is None else (flow.stop.excess, flow.stop.grad_norm)
        rows.append((flow.t1 or math.inf, flow.times[-1] if flow.times else 0.0, *stop, flow.rtol))
    return Ends(*jnp.asarray(np.asarray(rows).T))
