"""Integrate cells of a sweep whose losses have an `Arrowhead`. Flows of similar dimension are padded to one
shape.
"""

import functools
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from flowsim.experiments.sweep.judged import Judged, record_of_claims
from flowsim.experiments.sweep.records import MapRecord
from flowsim.flow.solvers.arrowhead.kernel import ReducedKernel, models_of
from flowsim.flow.solvers.lockstep import Record, Row, follow
from flowsim.flow.solvers.rows import trajectory_of
from flowsim.flow.solvers.summary import Ends, Scales, Summarizing, Summary, scales_of
from flowsim.flow.trajectory import Trajectory
from flowsim.losses.arrowhead import Arrowhead
from flowsim.problem import Problem, ProblemSpec
from flowsim.problem.architectures import architecture_of
from flowsim.problem.init_table import InitTable
from flowsim.problem.model_table import ModelTable
from flowsim.problem.task_tables import TaskTable


class Flows(NamedTuple):
    """A batch of flows. All arrays have one flow (lane) for each index of the first axis.

    **Fields:**

    - curvature, drive: the coefficients of the arrowheads.
    - U, u: the starts in the basis of the arrowheads.
    """

    curvature: Float[Array, "lanes d d"]
    drive: Float[Array, "lanes d"]
    U: Float[Array, "lanes d d"]
    u: Float[Array, " lanes"]


class _Task(NamedTuple):
    """A loss with the arrowhead of its flows, as NumPy arrays."""

    loss: PyTree
    arrowhead: PyTree


class Group(NamedTuple):
    """Flows of a batch that have one dimension and losses of one structure.

    **Fields:**

    - lanes: the lanes of the batch that these flows take.
    - tasks, starts: the losses with their arrowheads, and the models at t = 0. Spare lanes, at the end, repeat the
      last flow.
    """

    lanes: list[int]
    tasks: _Task
    starts: PyTree


@jax.jit
def integrate(flows: Flows, ends: Ends) -> tuple[Summary, Scales, Record]:
    """Integrate a batch of flows in lockstep.

    **Returns:** the summaries, the natural scales and the recorded steps of the flows.
    """

    def one(flow: Flows, ends: Ends) -> tuple[Summary, Scales, Record]:
        arrowhead = Arrowhead(flow.curvature, flow.drive, jnp.eye(flow.drive.shape[0]))
        kernel, scales = ReducedKernel.of(arrowhead, (flow.U, flow.u), ends.rtol), scales_of(arrowhead)
        observer = Summarizing(ends, scales, kernel.timescale, jnp.zeros(()), arrowhead=True)
        summary, _, record = follow(kernel, observer, observer.last)
        return summary, scales, record

    return jax.vmap(one)(flows, ends)


def without_numbers(table: InitTable) -> InitTable:
    """The initialization table with fixed values for its scale and seed. Starts for which this table is equal are
    computed by one program.
    """
    common = {name: like for name, like in {"scale": 1.0, "seed": 0}.items() if getattr(table, name) is not None}
    return msgspec.structs.replace(table, **common)


def rounded_up(d: int) -> int:
    """The least of 4, 6, 8, 12, 16, 24, ... that is at least d, so that few programs serve all dimensions."""
    power = 1 << (max(d, 4) - 1).bit_length()
    return 3 * power // 4 if power > 4 and d <= 3 * power // 4 else power


def slowest_rate(problem: Problem) -> float:
    """The decimal logarithm of the approximate rate of convergence at the end of a flow with an arrowhead. It is
    rounded, so that it orders cells equally on every machine.
    """
    arrowhead = problem.loss.arrowhead(problem.start)
    assert arrowhead is not None
    return round(float(jnp.log10(jnp.min(arrowhead.curvature) * scales_of(arrowhead).weights ** 2)), 3)


@functools.lru_cache(maxsize=256)
def _task(task: TaskTable, model: ModelTable) -> _Task:
    # The arrowhead of a loss is the same for all weights that have one, as zeros have.
    problem = ProblemSpec(task, model, InitTable(kind="zeros")).build()
    return jax.tree.map(np.asarray, _Task(problem.loss, problem.loss.arrowhead(problem.start)))


def prepared(specs: Sequence[ProblemSpec], dimension: int) -> tuple[Flows, list[Group]]:
    """The flows of cells, padded to one dimension, and their groups.

    **Arguments:** specs: the problem of each lane; dimension: the dimension to pad to.
    """
    lanes = len(specs)
    alike: dict[tuple[ModelTable, InitTable, int, Hashable], list[int]] = {}
    for lane, spec in enumerate(specs):
        kind = jax.tree.structure(_task(spec.task, spec.model))
        alike.setdefault((spec.model, without_numbers(spec.init), spec.task.size, kind), []).append(lane)
    # A padded weight is zero and stays so; its curvature need only be positive on the diagonal.
    curvature, drive = np.tile(np.eye(dimension), (lanes, 1, 1)), np.zeros((lanes, dimension))
    U, u = np.zeros((lanes, dimension, dimension)), np.zeros(lanes)
    groups = []
    for (model, table, d, _), members in alike.items():
        chosen = [specs[lane] for lane in members + members[-1:] * (lanes - len(members))]
        tasks = jax.tree.map(
            lambda *leaves: jnp.asarray(np.stack(leaves)), *[_task(spec.task, model) for spec in chosen]
        )
        scales = np.asarray([1.0 if spec.init.scale is None else spec.init.scale for spec in chosen])
        seeds = np.asarray([spec.init.seed or 0 for spec in chosen])
        starts, states = _starts(model, table, d, tasks, scales, seeds)
        groups.append(Group(members, tasks, starts))
        own_U, own_u = map(np.asarray, states)
        for place, lane in enumerate(members):
            U[lane, :d, :d], u[lane] = own_U[place], own_u[place]
            curvature[lane, :d, :d] = tasks.arrowhead.curvature[place]
            drive[lane, :d] = tasks.arrowhead.drive[place]
    return Flows(*(jnp.asarray(array) for array in (curvature, drive, U, u))), groups


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _starts(
    model: ModelTable, table: InitTable, d: int, tasks: _Task, scales: Float[Array, " n"], seeds: Int[Array, " n"]
):
    """The starts of flows as models, and as states (U, u) in the basis of their arrowheads.

    **Arguments:**

    - model, table: the model and initialization tables of all flows.
    - d: their dimension.
    - tasks: their losses with arrowheads.
    - scales, seeds: the scale and the seed of each start.
    """

    def one(task, scale, seed):
        start = architecture_of(model.architecture).start_with(table, d, scale, seed)
        return start, task.arrowhead.state(start)

    return jax.vmap(one)(tasks, scales, seeds)


def record_of_group(judged: Judged, group: Group, record: Record) -> MapRecord:
    """The columns of a map about claims for a group of flows, and the columns that papers add.

    **Arguments:**

    - judged: the claims.
    - group: the flows.
    - record: the recorded steps of their whole batch.
    """
    lanes = np.asarray(group.lanes + group.lanes[-1:] * (record.whole.size - len(group.lanes)))
    used = 1 << (int(np.max(record.count)) - 1).bit_length()
    rows = jax.tree.map(lambda leaf: leaf[lanes, : min(used, leaf.shape[1])], record.rows)
    runs = _runs(group.tasks, group.starts, rows)
    found = record_of_claims(judged, group.tasks.loss, group.starts, runs, jnp.zeros(lanes.size))
    return {name: values[: len(group.lanes)] for name, values in found.items()}


@jax.jit
def _runs(tasks: _Task, starts: PyTree, rows: Row) -> Trajectory:
    """The trajectories of flows from their recorded steps, with lanes on the first axis."""

    def one(task, start, rows):
        point, arrowhead = rows.point, task.arrowhead
        point = point._replace(shaft=point.shaft[:, : arrowhead.drive.shape[0]])
        models = models_of(arrowhead, arrowhead.state(start), point)
        return trajectory_of(rows, models, task.loss(start) - rows.excess[0])

    return jax.vmap(one)(tasks, starts, rows)
