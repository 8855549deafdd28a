"""Cells of a sweep whose flows have an arrowhead: those of similar dimension in lanes of one shape."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from flowsim import initialization
from flowsim.flow.solvers.arrowhead.kernel import ReducedKernel
from flowsim.flow.solvers.arrowhead.reduced import Point
from flowsim.flow.solvers.lockstep import follow
from flowsim.flow.solvers.summary import Ends, Scales, Summarizing, Summary, scales_of
from flowsim.losses.arrowhead import AbstractArrowhead, Arrowhead
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023.conditions import TracedPromises, traced_promises
from flowsim.problem import Problem, ProblemSpec
from flowsim.problem.architectures.linear_attention import LINEAR_ATTENTION
from flowsim.problem.init_table import InitTable
from flowsim.problem.task_tables import TaskTable


class Flows(NamedTuple):
    """Flows with lanes leading: coefficients of their arrowheads, and starts in the eigenbasis."""

    curvature: Float[Array, "lanes d d"]
    drive: Float[Array, "lanes d"]
    U: Float[Array, "lanes d d"]
    u: Float[Array, " lanes"]


class _Task(NamedTuple):
    """A task's loss with the arrowhead of its flows, as NumPy arrays."""

    loss: PyTree
    arrowhead: PyTree


@jax.jit
def integrate(flows: Flows, ends: Ends) -> tuple[Summary, Point, Scales]:
    """Integrate a batch of flows in lockstep: their summaries, where they end, and their natural scales."""

    def one(flow: Flows, ends: Ends) -> tuple[Summary, Point, Scales]:
        arrowhead = Arrowhead(flow.curvature, flow.drive, jnp.eye(flow.drive.shape[0]))
        kernel, scales = ReducedKernel.of(arrowhead, (flow.U, flow.u), ends.rtol), scales_of(arrowhead)
        observer = Summarizing(ends, scales, kernel.timescale, jnp.zeros(()), arrowhead=True)
        summary, view = follow(kernel, observer, observer.last)
        return summary, view.point, scales

    return jax.vmap(one)(flows, ends)


def without_numbers(table: InitTable) -> InitTable:
    """What starts have in common that one program makes."""
    common = {name: like for name, like in {"scale": 1.0, "seed": 0}.items() if getattr(table, name) is not None}
    return msgspec.structs.replace(table, **common)


def rounded_up(d: int) -> int:
    """The least of 4, 6, 8, 12, 16, 24, ... that is at least d: few programs serve all dimensions."""
    power = 1 << (max(d, 4) - 1).bit_length()
    return 3 * power // 4 if power > 4 and d <= 3 * power // 4 else power


def slowest_rate(problem: Problem) -> float:
    """About the rate at which a flow ends, rounded so that it orders the cells on every machine alike; 0 for a model
    whose cells are in no batch.
    """
    if not isinstance(problem.start, LinearAttention):
        return 0.0
    arrowhead = _arrowhead(problem.loss, problem.task.dimension)
    return round(float(jnp.log10(jnp.min(arrowhead.curvature) * scales_of(arrowhead).weights ** 2)), 3)


def _arrowhead(loss: Any, d: int) -> AbstractArrowhead:
    """The arrowhead of a loss, which is the same for all weights that have one."""
    arrowhead = loss.arrowhead(initialization.zeros(d))
    assert arrowhead is not None
    return arrowhead


@functools.lru_cache(maxsize=256)
def _task(table: TaskTable) -> _Task:
    loss = ProblemSpec(table, init=InitTable(kind="zeros")).build().loss
    return jax.tree.map(np.asarray, _Task(loss, _arrowhead(loss, table.size)))


def prepared(specs: Sequence[ProblemSpec], dimension: int) -> tuple[Flows, TracedPromises]:
    """The flows of cells in lanes of one dimension, and what is promised of them."""
    lanes = len(specs)
    groups: dict[tuple[InitTable, int, Any], list[int]] = {}
    for lane, spec in enumerate(specs):
        kind = jax.tree.structure(_task(spec.task))
        groups.setdefault((without_numbers(spec.init), spec.task.size, kind), []).append(lane)
    # A padded weight is zero and stays so; its curvature need only be positive on the diagonal.
    curvature, drive = np.tile(np.eye(dimension), (lanes, 1, 1)), np.zeros((lanes, dimension))
    U, u = np.zeros((lanes, dimension, dimension)), np.zeros(lanes)
    rows: list[Any] = [None] * lanes
    for (table, d, _), members in groups.items():
        chosen = [specs[lane] for lane in members + members[-1:] * (lanes - len(members))]
        tasks = jax.tree.map(lambda *leaves: np.stack(leaves), *[_task(spec.task) for spec in chosen])
        scales = np.asarray([1.0 if spec.init.scale is None else spec.init.scale for spec in chosen])
        seeds = np.asarray([spec.init.seed or 0 for spec in chosen])
        found = jax.tree.map(np.asarray, _starts(table, d, tasks, scales, seeds))
        for place, lane in enumerate(members):
            (own_U, own_u), rows[lane] = jax.tree.map(lambda leaf, place=place: leaf[place], found)
            U[lane, :d, :d], u[lane] = own_U, own_u
            curvature[lane, :d, :d] = tasks.arrowhead.curvature[place]
            drive[lane, :d] = tasks.arrowhead.drive[place]
    promises = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    return Flows(*(jnp.asarray(array) for array in (curvature, drive, U, u))), promises


@functools.partial(jax.jit, static_argnums=(0, 1))
def _starts(table: InitTable, d: int, tasks: _Task, scales: Float[Array, " n"], seeds: Int[Array, " n"]):
    """States in the eigenbasis, and what is promised of them."""

    def one(task, scale, seed):
        start = LINEAR_ATTENTION.start_with(table, d, scale, seed)
        return task.arrowhead.state(start), traced_promises(task.loss, start)

    return jax.vmap(one)(tasks, scales, seeds)
