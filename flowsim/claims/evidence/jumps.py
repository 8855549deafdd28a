"""Operations through which the sides of a statement may jump or oscillate between two rows of a flow."""

import contextlib

import flint
import jax
import numpy as np
from jaxtyping import PyTree

from flowsim._core.balls.enclosure import Traced, lower, truth, upper
from flowsim._core.balls.operations import ROUNDING_TO_INTEGERS, Balls, UndecidedError, as_balls, balls, is_open
from flowsim._core.balls.reading import operations_in_loops, operations_with_names

_JUMPS = (*ROUNDING_TO_INTEGERS, "round", "rem", "argmax", "argmin", "top_k")
_CHOICES = ("select_n", "convert_element_type")  # that convert or branch on truth values
_SEEN = {"where", *ROUNDING_TO_INTEGERS}  # whose changes are looked for between rows
_WAVES = ("sin", "cos", "tan")
_PARTS = (1, 8)  # the parts into which the time between two rows is divided
_OVERLAP = 1e-12
_SWINGS, _NOTICED = 0.5, 0.05  # of the change of the slack from row to row, and of the larger side


def jumps_in(traced: Traced, given: PyTree, whole: bool, most_operations: float) -> tuple[str, ...]:
    """The operations through which the sides may jump or oscillate between rows, so that their values at the rows
    say nothing about the times between.

    These are rounding to an integer, branches on the time, the weights or the loss, and any other explicit
    dependence on the time ("t").

    **Arguments:**

    - traced: (numbers of the loss, series, weights) -> slack, promised, allowance, scale. The first series is the
      time.
    - given: the arguments of ``traced`` as balls, or as arrays of the same shapes if the program is too costly in
      balls.
    - whole: whether the rows are all rows of a flow. Then oscillations in the time are searched for; otherwise any
      trigonometric function of the time is listed.
    - most_operations: the limit on the cost.
    """
    arrays, series, models = given
    names = ["loss"] * len(jax.tree.leaves(arrays)) + ["t"] + ["series"] * (len(series) - 1)
    names += ["models"] * len(jax.tree.leaves(models))
    rows, found, timed = len(series[0]), set(), False
    # A loop over the rows computes each of them separately.
    looped = {id(eqn) for eqn in operations_in_loops(traced.jaxpr, rows)}
    for eqn, inputs in operations_with_names(traced.jaxpr, names):
        kind = eqn.primitive.name
        timed |= any("t" in names for names in inputs)
        in_a_loop = id(eqn) in looped and kind in (*_JUMPS, *_CHOICES)
        if not in_a_loop and not any(getattr(var.aval, "shape", ())[:1] == (rows,) for var in eqn.outvars):
            continue
        of_the_flow = [bool(names & {"t", "series", "models"}) for names in inputs]
        if kind in _JUMPS and any(of_the_flow):
            found.add(kind)
        elif kind == "select_n" and of_the_flow[0]:
            found.add("where")
        elif kind == "convert_element_type" and of_the_flow[0]:
            before, after = (np.dtype(getattr(var.aval, "dtype", None)).kind for var in (*eqn.invars, *eqn.outvars))
            if before == "b" and after != "b":
                found.add("where")
            elif before == "f" and after in "iu":
                found.add("astype")
        elif kind in _WAVES and inputs[0] == {"t"} and not whole:
            found.add(kind)
    if traced.operations > most_operations:
        return tuple(sorted(found))
    with contextlib.suppress(UndecidedError):
        if found & _SEEN:
            found -= _SEEN - _switching(traced, given, most_operations)
        if timed and whole and _swings(traced, given, most_operations):
            found.add("t")
    return tuple(sorted(found))


def _switching(traced: Traced, given: PyTree, most_operations: float) -> set[str]:
    """The kinds of branches, and of roundings to integers, whose result may change between two rows.

    Only rows at which the statement asserts something count. Weights are assumed to move along a straight line from
    one row to the next.
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
    _, certain = truth(promised)
    certain = certain[:rows].reshape(rows, -1).any(axis=1) if certain.shape[:1] >= (rows,) else np.full(rows, True)
    found: dict[int, list] = {}
    kinds: dict[int, str] = {}
    for eqn, choice in choices:
        found.setdefault(id(eqn), []).append(choice)
        kinds[id(eqn)] = eqn.primitive.name if eqn.primitive.name in ROUNDING_TO_INTEGERS else "where"
    looped = {id(eqn) for eqn in operations_in_loops(traced.jaxpr, rows)}
    return {kinds[eqn] for eqn, chosen in found.items() if np.any(certain & _open_at(chosen, rows, eqn in looped))}


def _open_at(chosen: list, rows: int, looped: bool) -> np.ndarray:
    """(rows,) whether a branch is undecided at each row.

    **Arguments:** chosen: the conditions of the branch, in balls; rows: the number of rows; looped: whether the
    conditions come from a loop over the rows, one row at a time. Otherwise each condition covers all rows.
    """
    if looped:
        repeats = len(chosen) // rows
        return np.asarray([any(map(is_open, chosen[i * repeats : (i + 1) * repeats])) for i in range(rows)])
    at_once = [choice for choice in chosen if choice.shape[:1] == (rows,)]
    return np.asarray([any(is_open(choice[i : i + 1]) for choice in at_once) for i in range(rows)])


def _swings(traced: Traced, given: PyTree, most_operations: float) -> bool:
    """Whether the slack may come near zero between two rows, far below its values at both, because it depends
    explicitly on the time.

    To find out, balls contain all times between the rows, and everything else anywhere between its values at both.
    """
    arrays, (t, *series), models = given
    series, models = jax.tree.map(_until_the_next, (series, models))
    begin = np.asarray([float(one.mid()) for one in t])
    length = np.append(np.diff(begin), 0.0)

    def sides(t: Balls) -> tuple[np.ndarray, ...]:
        slack, promised, allowance, scale, *_ = traced.on(
            arrays, (t, *series), models, proved=False, open_branches=True, most_operations=most_operations
        )
        low, high = (np.asarray(side(as_balls(slack))) for side in (lower, upper))
        low, high = low - upper(as_balls(allowance)), high - lower(as_balls(allowance))
        # A comparison may have points after the times.
        return tuple(np.atleast_1d(side)[: t.size] for side in (low, high, *truth(promised), upper(as_balls(scale))))

    (low, high, *_, scale), (low_next, high_next, *_) = sides(t), sides(balls(begin + length))
    if low.shape[:1] != t.shape:
        return False
    low, high = np.fmin(low, low_next), np.fmax(high, high_next)
    with np.errstate(invalid="ignore"):
        enough = np.minimum(0.0, low - _SWINGS * (high - low) - _NOTICED * scale)
        for parts in _PARTS:
            found_below = False
            for part in range(parts):
                middle = begin + length * (part + 0.5) / parts
                least, _, possible, certain, _ = sides(balls(middle, length * (0.5 + _OVERLAP) / parts))
                found_below |= bool(
                    np.any(possible & (least < enough) | certain & np.isnan(least) & np.isfinite(enough))
                )
            if not found_below:
                return False
    return True


def _until_the_next(rows: Balls) -> Balls:
    """Balls that contain each row and the row after it."""
    union = np.frompyfunc(flint.arb.union, 2, 1)
    return np.concatenate([np.asarray(union(rows[:-1], rows[1:]), dtype=object), rows[-1:]])
