"""Loops whose iterations are independent, as one program for all iterations at once."""

import itertools
import math
from collections.abc import Iterable, Iterator

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from flowsim._core.balls.array_moves import MOVES, PLAIN
from flowsim._core.balls.operations import OPERATIONS
from flowsim._core.balls.reading import parts_of_scan, programs_of
from flowsim._core.types import Params

Shapes = list[tuple[int, ...]]

MOST_TOGETHER = 1e6  # numbers that are held at a time

# Those of which JAX makes others for several turns: a choice of branches evaluates them all.
_OTHERS = {"dynamic_slice", "scatter-add"}
_CALLS = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"}
_TOGETHER = (OPERATIONS.keys() | MOVES.keys() | PLAIN.keys() | _CALLS | {"scan"}) - _OTHERS


def all_turns(params: Params) -> ClosedJaxpr | None:
    """One program for all iterations of a scan, with the same inputs.

    None if an iteration depends on the one before it, has an operation that cannot be batched, or if the arrays would
    be too large.
    """
    constants, carried = parts_of_scan(params)
    program, length = params["jaxpr"], params["length"]
    if carried or length < 2:
        return None
    made = 0
    for name, shapes in _operations_of_turns(program.jaxpr, program.jaxpr.invars[constants:]):
        made += sum(map(math.prod, shapes))
        if name not in _TOGETHER or length * made > MOST_TOGETHER:
            return None
    axes = [None if place < constants else 0 for place in range(len(program.in_avals))]
    given = [
        jax.ShapeDtypeStruct(aval.shape if axis is None else (length, *aval.shape), aval.dtype)
        for aval, axis in zip(program.in_avals, axes, strict=True)
    ]
    # To name a partial function JAX would write out the whole program.
    turn = lambda *inputs: jaxpr_as_fun(program)(*inputs)
    try:
        return jax.make_jaxpr(jax.vmap(turn, in_axes=axes, axis_size=length))(*given)
    except NotImplementedError:  # of an operation that JAX cannot do for several
        return None


def _operations_of_turns(jaxpr: Jaxpr, in_turn: Iterable[Var]) -> Iterator[tuple[str, Shapes]]:
    """The name of each operation that is another one in each turn, with the shapes of what it makes.

    **Arguments:** in_turn: the inputs that are others in each turn.
    """
    read_in_turn = set(in_turn)
    for eqn in jaxpr.eqns:
        others = [not isinstance(var, Literal) and var in read_in_turn for var in eqn.invars]
        if not any(others):
            continue
        read_in_turn.update(eqn.outvars)
        programs = programs_of(eqn)
        if eqn.primitive.name in _CALLS and len(programs) == 1:
            yield from _operations_of_turns(programs[0], itertools.compress(programs[0].invars, others))
        else:
            yield from _operations(eqn)


def _operations(eqn: JaxprEqn) -> Iterator[tuple[str, Shapes]]:
    """The name of an operation with the shapes of what it makes, and of all in the programs that it calls."""
    yield eqn.primitive.name, [getattr(var.aval, "shape", ()) for var in eqn.outvars]
    for program in programs_of(eqn):
        for inner in program.eqns:
            yield from _operations(inner)
