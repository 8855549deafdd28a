"""Programs that run all iterations of a loop at once, for loops whose iterations are independent."""

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
    """One program that runs all iterations of a scan at once. It takes the inputs of the scan.

    The result is None if an iteration depends on the previous one or has an operation that cannot be batched, if
    there are fewer than two iterations, or if the arrays would be too large.

    **Arguments:** params: the parameters of the scan.
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
    """The name and the output shapes of each operation that depends on inputs which change between iterations.

    **Arguments:** in_turn: the inputs of the program that change between iterations.
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
    """The name and the output shapes of an operation, and of every operation inside the programs that it calls."""
    yield eqn.primitive.name, [getattr(var.aval, "shape", ()) for var in eqn.outvars]
    for program in programs_of(eqn):
        for inner in program.eqns:
            yield from _operations(inner)
