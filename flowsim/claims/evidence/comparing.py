"""Both sides of claims as NumPy arrays: of one claim, or of all claims on one flow in one program."""

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PyTree

from flowsim._core.balls.costs import memory_of, memory_of_device, operations_of
from flowsim._core.balls.reading import Kind, kinds_of
from flowsim._core.checks import ProblemError, refuse
from flowsim._core.text import in_short
from flowsim.claims.claim import Claim, Comparison
from flowsim.claims.evidence.series import Padded, is_large, made, padded, weights_of
from flowsim.claims.limits import TracedFlowError
from flowsim.flow.gradient_flow import start_alone
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.sampled.monte_carlo import stated

_MOST_OPERATIONS = 1e11  # of one comparison for a flow of many weights; a verdict needs about twenty
_MOST_MEMORY = 0.5  # of the memory of the device, likewise
_ROUNDING = 1e-9  # of the bound
_FEW = 128  # weights: of a flow of fewer, comparisons take less than looking at their programs
WORST_RESOLUTION = 1e-4  # of the size: an identity with a larger error is unresolved

Sides = tuple[Comparison, dict[str, Array]]
Group = list[tuple[Claim, Sides]]
Result = TypeVar("Result")

# Raised if a claim needs the value of a number, for example for float().
_NEEDS_VALUES = (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError, TracedFlowError)
# The functions that raised one of these, by their ids. To trace them again until they raise takes longer than the call.
_NOT_COMPILED: weakref.WeakValueDictionary[int, Callable] = weakref.WeakValueDictionary()


class Panel:
    """Claims along one flow that are compared together, since their sides share most computations.

    On each solve one program computes the comparisons and constants of all claims. If the program raises an
    exception, the claim that causes it is compared alone from then on, as is a claim that is not in the panel.
    """

    def __init__(self, claims: Sequence[Claim] = ()):
        self._claims = tuple(claims) if len(claims) > 1 else ()
        self._by_rows: dict[int, tuple[Callable, bool]] = {}
        # The values hold the loss, and the run or a weak reference to it, so that their ids are not reused.
        self._found: dict[tuple[int, int, bool], tuple[AbstractPopulationLoss, Padded, Group]] = {}
        self._last: Claim | None = None
        self._of_last: dict[tuple[int, int], tuple[weakref.ref, AbstractPopulationLoss, Comparison]] = {}

    def compared(self, claim: Claim, loss: AbstractPopulationLoss, run: Padded) -> Comparison:
        """The comparison of a claim, as the function `compared` returns it.

        Of the claims that are compared alone, only the comparisons of the last one are cached.
        """
        if (sides := self._sides(claim, loss, run)) is not None:
            return _on_the_host(claim, sides[0], run)
        if claim is not self._last:
            self._last = claim
            self._of_last.clear()
        key = (id(loss), id(run))
        if key not in self._of_last:
            dies = weakref.ref(run, lambda _: self._of_last.pop(key, None))
            self._of_last[key] = dies, loss, compared(claim, loss, made(run))
        return self._of_last[key][-1]

    def constants(self, claim: Claim, loss: AbstractPopulationLoss, run: Trajectory) -> dict[str, float]:
        """The constants of a claim by name."""
        sides = None if is_large(run) else self._sides(claim, loss, run)
        found = evaluated(claim, claim.constants, loss, run) if sides is None else sides[1]
        return {name: float(value) for name, value in found.items()}

    def _sides(self, claim: Claim, loss: AbstractPopulationLoss, run: Padded) -> Sides | None:
        """The sides and constants of the claim from the common program; None if the claim is compared alone."""
        if claim not in self._claims:
            return None
        alike = self.is_row_by_row(claim, loss, run)
        key = (id(loss), id(run), alike)
        if key not in self._found:
            try:
                group = [one for one in self._claims if self.is_row_by_row(one, loss, run) is alike]
                sides = _all_sides(group, loss, made(run))
                self._found[key] = (loss, run, list(zip(group, sides, strict=True)))
            except Exception:
                # Each claim is traced alone to find the one that raises or is too costly. If there is none, for example
                # if memory ran out, all are compared alone.
                whole = made(run)
                traced = tuple(one for one in self._claims if _can_be_compared(one, loss, whole))
                self._claims = traced if len(traced) < len(self._claims) else ()
                self._found.clear()
                return self._sides(claim, loss, run) if claim in self._claims else None
        return next(sides for one, sides in self._found[key][2] if one == claim)

    def is_row_by_row(self, claim: Claim, loss: AbstractPopulationLoss, run: Padded) -> bool:
        """Whether the slack, the allowance and ``promised`` of a claim's comparison at each time depend only on the
        flow at that time and at the start.

        If so, the claim need not be compared on flows with false numbers. Always false for a flow of at most 128
        weights, for which such comparisons are cheap.
        """
        key = id(claim.compare)
        if key not in self._by_rows:
            # The value holds the function, so that its id is not reused.
            whole = made(run)
            self._by_rows[key] = claim.compare, weights_of(whole) > _FEW and _is_row_by_row(claim.compare, loss, whole)
        return self._by_rows[key][1]


def compared(claim: Claim, loss: AbstractPopulationLoss, run: Trajectory) -> Comparison:
    """The comparison of a claim as NumPy arrays, (points,), or (points, entries) for several entries in each row.

    The claim's function is compiled if possible; see `evaluated`.

    **Raises:** `ValueError` if the rows of several entries are not on the first axis.
    """
    return _on_the_host(claim, evaluated(claim, claim.compare, loss, run), run)


def evaluated(claim: Claim, function: Callable[..., Result], loss: AbstractPopulationLoss, run: Trajectory) -> Result:
    """Call a function of a loss and a flow. It is compiled if it can be traced and the flow is large or the claim
    is about the flow.

    **Arguments:** claim: the claim that the function belongs to; function: (loss, trajectory) -> arrays; loss; run:
    the flow.

    **Raises:** `CostlyError` if the function is too costly for a large flow.
    """
    if id(function) in _NOT_COMPILED:
        return function(loss, run)
    try:
        if is_large(run):
            return _within_limits((function,), loss, run)[0]
        if claim.along_flow:
            return _compiled(function, loss, run)
    except _NEEDS_VALUES:
        _NOT_COMPILED[id(function)] = function
    return function(loss, run)


class CostlyError(Exception):
    """Raised if a comparison needs more operations or memory than the limit; the message says how much."""


def _all_sides(claims: Sequence[Claim], loss: AbstractPopulationLoss, run: Trajectory) -> Sequence[Sides]:
    """The sides of several claims and their constants, from one program. For a large flow the constants are left
    out.
    """
    if is_large(run):
        return [(sides, {}) for sides in _within_limits(tuple(one.compare for one in claims), loss, run)]
    return _together(tuple((one.compare, one.constants) for one in claims), loss, run)


def _within_limits(functions: tuple[Callable, ...], loss: AbstractPopulationLoss, run: Trajectory) -> tuple:
    """Call several functions of a loss and a large flow in one program.

    **Raises:** `CostlyError` if one of them takes too many operations, or all together too much memory.
    """
    arrays, rest = eqx.partition((loss, run), eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
    reason, program = _program(functions, shapes, structure, _Fixed(rest), memory_of_device(run.t))
    if program is None:
        raise CostlyError(reason)
    return program(*leaves)


class _Fixed:
    """The parts of a module that are not arrays, compared and hashed by value."""

    def __init__(self, rest: PyTree):
        leaves, structure = jax.tree.flatten(rest)
        self.rest, self._value = rest, (structure, *leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fixed) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)


@functools.lru_cache(256)
def _program(
    functions: tuple[Callable, ...], shapes: tuple, structure: Hashable, fixed: _Fixed, memory: float
) -> tuple[str, Callable | None]:
    """A compiled program for several functions of a loss and a flow, or the reason why they are too costly.

    **Arguments:**

    - functions: (loss, trajectory) -> arrays.
    - shapes, structure: the shapes of the arrays in (loss, trajectory), and the tree that holds them.
    - fixed: the other parts of (loss, trajectory).
    - memory: the memory of the device in bytes.

    **Returns:** the reason, empty if there is none, and the program or None.
    """
    given = lambda leaves: eqx.combine(jax.tree.unflatten(structure, leaves), fixed.rest)
    for function in functions:
        operations = operations_of(lambda *leaves, function=function: function(*given(leaves)), *shapes)
        if operations > _MOST_OPERATIONS:
            most = f"the limit is {_MOST_OPERATIONS:.0e}"
            return f"One comparison takes {operations:.1e} operations at this size; {most}.", None
    program = jax.jit(lambda *leaves: tuple(function(*given(leaves)) for function in functions))
    program = program.lower(*shapes).compile()
    if (needed := memory_of(program)) > _MOST_MEMORY * memory:
        return f"It needs {needed / 1e9:.3g} GB at this size; the limit is {_MOST_MEMORY * memory / 1e9:.3g} GB.", None
    return "", program


def _is_row_by_row(compare: Callable[..., Comparison], loss: AbstractPopulationLoss, run: Trajectory) -> bool:
    # The bound on the way to go is a number until it is computed.
    run = dataclasses.replace(run, way_to_go=jax.device_put(np.asarray(run.way_to_go, dtype=float)))
    ids = lambda *parts: {id(leaf) for leaf in jax.tree.leaves(eqx.filter(parts, eqx.is_array))}
    in_rows = ids(run.t, run.models, run.loss, run.excess, run.grad_norm_sq, run.dissipated)
    fixed = ids(loss, run.descent)
    arrays, rest = eqx.partition((loss, run), eqx.is_array)

    def sides(arrays):
        ours = compare(*eqx.combine(arrays, rest))
        return ours.slack, ours.promised, ours.allowance

    def kind(leaf: Array) -> Kind:
        return Kind.ROWS if id(leaf) in in_rows else Kind.FIXED if id(leaf) in fixed else Kind.MIXED

    try:
        jaxpr = jax.make_jaxpr(sides)(arrays).jaxpr
    except Exception:
        # The comparison itself reports the exception.
        return False
    return Kind.MIXED not in kinds_of(jaxpr, [kind(leaf) for leaf in jax.tree.leaves(arrays)], run.t.shape[0])


def _can_be_compared(claim: Claim, loss: AbstractPopulationLoss, run: Trajectory) -> bool:
    both = lambda loss, run: (claim.compare(loss, run), claim.constants(loss, run))
    try:
        if not is_large(run):
            eqx.filter_eval_shape(both, loss, run)
            return True
        arrays, rest = eqx.partition((loss, run), eqx.is_array)
        return operations_of(lambda arrays: claim.compare(*eqx.combine(arrays, rest)), arrays) <= _MOST_OPERATIONS
    except Exception:
        return False


def refuse_misshapen(claims: Iterable[Claim], loss: AbstractPopulationLoss, model: PyTree) -> None:
    """Raise an error for a claim whose arrays have shapes that do not match, before a flow is integrated.

    **Arguments:**

    - claims: the claims.
    - loss: the loss.
    - model: the start of the flow.

    **Raises:** `ValueError` naming the claim.
    """
    claims = tuple(claims)
    if not claims:
        return
    run = padded(start_alone(loss, model))
    for claim in claims:
        try:
            with contextlib.suppress(*_NEEDS_VALUES):
                _check_shape(claim, eqx.filter_eval_shape(claim.compare, stated(loss), run).slack.shape, run)
        except ProblemError:
            raise
        except (TypeError, ValueError) as error:
            refuse(claim.id, "a comparison of arrays whose shapes broadcast together", in_short(error))
        except Exception:
            # Any other exception is reported in the verdict on the claim.
            continue


def of_one_flow(claim: Claim, comparison: object) -> Comparison:
    """Check that the function of a claim returned a comparison along one flow, and return this comparison.

    **Raises:** `ValueError` if the function returned something else.
    """
    if not isinstance(comparison, Comparison):
        refuse(claim.id, "a function that returns what flowsim.at_least does", f"it returns {comparison!r:.60}")
    if comparison.family is not None:
        refuse(claim.id, "judged over a family, by flowsim.Family or --over", "it was judged along one flow")
    return comparison


def refuse_without_sides(claim: Claim, loss: AbstractPopulationLoss, model: PyTree) -> None:
    """Raise an error for a claim whose function does not return a comparison along one flow.

    Nothing is raised if the function itself raises an exception.

    **Arguments:** claim; loss; model: the start of the flow.

    **Raises:** `ValueError` naming the claim.
    """
    try:
        found = eqx.filter_eval_shape(claim.compare, stated(loss), padded(start_alone(loss, model)))
    except Exception:
        return
    of_one_flow(claim, found)


def _on_the_host(claim: Claim, comparison: object, run: Padded) -> Comparison:
    comparison = of_one_flow(claim, comparison)
    shape = comparison.slack.shape
    _check_shape(claim, shape, run)
    rows = shape[:1] + ((-1,) if len(shape) > 1 else ())
    ours = jax.tree.map(lambda side: np.asarray(side).reshape(rows or (1,)), comparison)
    if np.any(ours.size < 0):
        refuse(claim.id, "a comparison with sizes of at least 0", f"one is {np.min(ours.size):g}")
    if np.any(np.isinf(ours.size) & np.isfinite(ours.bound) & ours.promised):
        refuse(claim.id, "a comparison with finite sizes", "one is infinite")
    # An excess may be negative by rounding.
    if np.any(ours.allowance < -_ROUNDING * ours.reference):
        refuse(claim.id, "a comparison with allowances of at least 0", f"one is {np.min(ours.allowance):g}")
    return eqx.tree_at(lambda one: one.allowance, ours, np.maximum(ours.allowance, 0.0))


def _check_shape(claim: Claim, shape: tuple[int, ...], run: Padded) -> None:
    times = run.t.shape[0]
    # A descent may have a row for each of its steps.
    if claim.along_flow and len(shape) > 1 and shape[0] not in (1, times, times - claim.of_descent):
        came = "x".join(map(str, shape)) + f" where the flow, its end repeated, has {times} times"
        refuse(claim.id, "a comparison of arrays with a row for each output time", f"it is {came}")


@eqx.filter_jit
def _compiled(function, loss, run):
    return function(loss, run)


@eqx.filter_jit
def _together(functions, loss, run):
    return tuple((compare(loss, run), constants(loss, run)) for compare, constants in functions)
