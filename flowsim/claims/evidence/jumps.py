"""Where the sides of a statement may jump, or swing, between one row of a flow and the next."""

import flint
import jax
import numpy as np
from jaxtyping import PyTree

from flowsim._core.balls.enclosure import Traced, lower
from flowsim._core.balls.operations import Balls, is_balls, is_open
from flowsim._core.balls.reading import operations_with_names

_JUMPS = ("floor", "ceil", "round", "sign", "rem")
_WAVES = ("sin", "cos", "tan")


def jumps_in(traced: Traced, given: PyTree, most_operations: float) -> tuple[str, ...]:
    """What jumps in the sides from one row to the next, or swings, so that points do not tell what is between them: a
    number made whole, a choice by the time, weights or the loss, a wave of the time.

    **Arguments:** traced: of the numbers of a loss, the series of a flow with its times first, and its weights, to
    sides of which the second says where anything is promised; given: these, as balls.

    **Raises:** `UndecidedError`.
    """
    arrays, series, models = given
    names = ["loss"] * len(jax.tree.leaves(arrays)) + ["t"] + ["series"] * (len(series) - 1)
    names += ["models"] * len(jax.tree.leaves(models))
    rows, found = len(series[0]), set()
    for eqn, inputs in operations_with_names(traced.jaxpr, names):
        kind = eqn.primitive.name
        if not any(getattr(var.aval, "shape", ())[:1] == (rows,) for var in eqn.outvars):
            continue
        if kind in _JUMPS and inputs[0] & {"t", "series", "models"}:
            found.add(kind)
        elif kind == "select_n" and inputs[0] & {"t", "series", "models"}:
            found.add("where")
        elif kind in _WAVES and inputs[0] == {"t"}:
            found.add(kind)
    if "where" in found and not _may_switch(traced, given, most_operations):
        found.remove("where")
    return tuple(sorted(found))


def _may_switch(traced: Traced, given: PyTree, most_operations: float) -> bool:
    """Whether a choice may change from one row to the next where the statement promises something all the way, as
    weights go straight from row to row.
    """
    arrays, *series = given
    choices: list = []
    _, promised, *_ = traced.on(
        arrays,
        *jax.tree.map(_until_the_next, series),
        proved=False,
        open_branches=True,
        most_operations=most_operations,
        choices=choices,
    )
    rows = len(series[0][0])
    certain = lower(promised) > 0.5 if is_balls(promised) else np.asarray(promised)
    certain = certain[:rows].reshape(rows, -1).any(axis=1) if certain.shape[:1] >= (rows,) else np.full(rows, True)
    return any(
        np.any(certain & np.asarray([is_open(choice[i : i + 1]) for i in range(rows)]))
        for choice in choices
        if choice.shape[:1] == (rows,)
    )


def _until_the_next(rows: Balls) -> Balls:
    """Each row, widened until it holds the next one."""
    union = np.frompyfunc(flint.arb.union, 2, 1)
    return np.concatenate([np.asarray(union(rows[:-1], rows[1:]), dtype=object), rows[-1:]])
