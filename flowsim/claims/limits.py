"""Limits along a flow, limits of sequences, and the least norm of a solution, each with an error bound."""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
import scipy.linalg
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowsim._core import checks
from flowsim._core.balls.enclosure import enclose, lower, upper
from flowsim._core.balls.floats import difference, norm, product, wide
from flowsim._core.balls.operations import UndecidedError, balls
from flowsim._core.checks import is_concrete
from flowsim.claims.claim import Comparison
from flowsim.flow.basin import Tail, least_singular_value
from flowsim.flow.schedule import Stop
from flowsim.flow.solvers.threads import blas_in_one_thread
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss

_ROUNDING = 4 * np.finfo(float).eps
_LEAST = float(np.finfo(float).tiny)
_FEWEST = 5  # numbers whose limit can be extrapolated and checked
_SLOWEST = 0.9  # the largest factor by which the differences may shrink
_LOOK_BACK = 3  # differences, and factors, from which the last ones are estimated
_LAG = 4.0  # the factor still grows by at most this many times its last growth
_INTERVAL = 3.0  # times the distance that is still to go

_STRICTLY = 1e-13  # the tolerance of a continuation
_CLOSEST = 1e-12  # of the weights: an end this near to the limit is near enough
_ROOM = 2.0  # times its bound: a way that is longer is wrong
_CLOSER = 1e-3  # of the accuracy that was asked: how near to the limit a flow is continued


class End(NamedTuple):
    """The end of a flow, and how far its limit is from there.

    **Fields:**

    - model: the last model of the flow.
    - further: the model to which the flow was continued, or the last model.
    - remaining: a bound on the distance from ``further`` to the limit.
    - near: the factor by which `place` shrinks distances: it maps models within r of ``model`` to models within
      near * r of ``further``.
    """

    model: PyTree
    further: PyTree
    remaining: float
    near: float = 1.0

    @staticmethod
    def of(model: PyTree, remaining: float, tail: Tail | None, near: float = 1.0) -> "End":
        """The `End` of a flow that ends at ``model``, with a bound on its remaining length and its continuation, if
        any.
        """
        if tail is None:
            return End(model, model, remaining)
        return End(model, _moved(model, tail.moved), tail.way_to_go, near)

    def place(self, model: PyTree) -> PyTree:
        """Map a model near the end of the flow to the corresponding model near the limit.

        Let e and f be the weights of ``model`` and ``further``. Weights w are mapped to f + near (w - e).
        """
        if self.further is self.model:
            return model
        follow = lambda here, end, further: further + self.near * (here - end)
        weights = (eqx.filter(one, eqx.is_inexact_array) for one in (model, self.model, self.further))
        return eqx.combine(jax.tree.map(follow, *weights), model)


class TracedFlowError(TypeError):
    """Raised if `limit` is called inside a transformation of JAX, in which the values of the flow are unknown."""


_END: contextvars.ContextVar[End | None] = contextvars.ContextVar("end", default=None)


@contextlib.contextmanager
def ending_at(end: End) -> Iterator[None]:
    """A context manager in which `limit` uses the given end for every traced flow."""
    token = _END.set(end)
    try:
        yield
    finally:
        _END.reset(token)


class _Asking(NamedTuple):
    """A record of the calls of `limit` while a comparison is evaluated on trial.

    During the trial `limit` returns the value at the end of the flow with error bound 0, if the flow is not traced.

    **Fields:**

    - traced: for each call, whether its flow is traced.
    - forgets: whether `limit` returns NaN instead of the value at the end.
    """

    traced: list[bool]
    forgets: bool = False


_ASKING: contextvars.ContextVar[_Asking | None] = contextvars.ContextVar("asking", default=None)


@contextlib.contextmanager
def _asking(*, forgets: bool = False) -> Iterator[list[bool]]:
    asking = _Asking([], forgets)
    token = _ASKING.set(asking)
    try:
        yield asking.traced
    finally:
        _ASKING.reset(token)


def takes_limit(compare: Callable[..., Comparison], loss: AbstractPopulationLoss, run: Trajectory) -> bool:
    """Whether a comparison depends on a value that `limit` returns, and not only on its error bound.

    True also if `limit` is called and the comparison then raises an exception.
    """
    # Most comparisons ask for no limit, which is seen without computing them.
    with _asking() as asked, contextlib.suppress(Exception):
        eqx.filter_eval_shape(compare, loss, run)
    if not asked:
        return False
    try:
        with _asking():
            known = compare(loss, run)
        with _asking(forgets=True):
            unknown = compare(loss, run)
    except Exception:
        # A size that is NaN is refused.
        return True
    same = np.array_equal(known.slack, unknown.slack, equal_nan=True)
    return not (same and np.array_equal(known.promised, unknown.promised))


def tail_of(
    run: Trajectory,
    remaining: float,
    accuracy: float,
    go_on: Callable[..., Trajectory],
    way_to_go: Callable[[PyTree], float],
) -> Tail | None:
    """Continue a flow from its end until it is close to its limit. None if that is not needed, or fails.

    **Arguments:**

    - run: the flow.
    - remaining: a bound on the distance from the end of the flow to its limit, infinite if none is known.
    - accuracy: the acceptable error of the limit, relative to the norm of the weights. If ``remaining`` is at most
      this error, the flow is not continued.
    - go_on: (model, settings of `gradient_flow` by name) -> the flow from this model.
    - way_to_go: model -> a bound on the length of the flow from this model to its limit.
    """
    end, size = run.end, _norm(run.end)
    if not max(accuracy, _CLOSEST) * size < remaining < math.inf:
        return None
    share = max(_CLOSER * accuracy, _STRICTLY) * size / remaining
    stop = Stop(excess=share**2, grad_norm=share)
    further = go_on(end, rtol=_STRICTLY, stop=stop, points_per_decade=1)
    if not further.status.finished:
        return None
    weights = (eqx.filter(model, eqx.is_inexact_array) for model in (further.end, end))
    moved = jax.tree.map(lambda one, other: np.asarray(one) - np.asarray(other), *weights)
    # Flows near a minimum do not part, so that errors of steps at most add up.
    error = further.certificates.steps * _STRICTLY * size
    rest = way_to_go(_moved(end, moved)) + error
    # A flow goes no further than ``remaining``, which may be that of a repetition close by.
    return Tail(moved, rest) if _norm(moved) <= _ROOM * remaining and rest < remaining else None


def _norm(tree: PyTree) -> float:
    leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))]
    return norm(np.concatenate(leaves))


def _moved(model: PyTree, moved: PyTree) -> PyTree:
    weights = eqx.filter(model, eqx.is_inexact_array)
    return eqx.combine(jax.tree.map(lambda one, by: jax.device_put(np.asarray(one) + by), weights, moved), model)


def limit(
    flow: Trajectory, f: Callable[[PyTree], Array]
) -> tuple[Float[Array, "1 *values"], Float[Array, "1 *values"]]:
    """The limit of a function along a flow, and a bound on its error.

    The value is f at the end of the flow. The bound is the largest change of f over a ball around the end that the
    flow cannot leave. In a verdict the flow is first continued, and both are computed at its new end. The bound
    does not include the numerical error of the flow up to its end: a verdict measures that separately. The bound is
    infinite if no such ball is found (t1 is short, the flow ends on a plateau or at a degenerate minimum, or the
    weights diverge), or if f cannot be computed in ball arithmetic.

    Both results have a leading axis of length 1, as a claim about a limit needs them: ``value, allowance =
    limit(flow, f); return equal(value, expected, size, allowance=allowance)``.

    **Arguments:**

    - flow: the trajectory.
    - f: model -> an array.

    **Raises:** `TracedFlowError` inside a transformation of JAX.
    """
    traced, asking = _is_traced(flow), _ASKING.get()
    if asking is not None:
        asking.traced.append(traced)
        if not traced:
            value = jnp.asarray(f(flow.end), dtype=float)[None]
            return jnp.where(asking.forgets, jnp.nan, value), jnp.zeros(value.shape)
    end = _END.get() if traced else End.of(flow.end, _way_to_go(flow), flow.tail)
    if end is None:
        raise TracedFlowError("limit needs a flow with known values: call it outside of jax transformations")
    value = jnp.asarray(f(end.place(flow.end)), dtype=float)
    with jax.ensure_compile_time_eval():
        bound = _variation(f, end.further, end.remaining)
    return value[None], jnp.asarray(bound).reshape(value.shape)[None]


def known_limit(flow: Trajectory) -> PyTree | None:
    """The last model of a flow if it is known to be the exact limit, as in a proof; else None.

    It is known inside `ending_at` with ``remaining`` = 0, for a traced flow or a flow with remaining length 0.
    """
    end = _END.get()
    if end is None or end.remaining != 0:
        return None
    return flow.end if _is_traced(flow) or _way_to_go(flow) == 0 else None


def _is_traced(flow: Trajectory) -> bool:
    return not all(is_concrete(leaf) for leaf in jax.tree.leaves((flow.models, flow.way_to_go)))


def _way_to_go(flow: Trajectory) -> float:
    """The bound on the remaining length of a flow after its end. It is computed if it is not known yet."""
    if isinstance(flow.way_to_go, float) and math.isinf(flow.way_to_go) and flow.descent is not None:
        return flow.descent.way_to_go(flow.end, flow.start)
    return float(jnp.asarray(flow.way_to_go))


def _variation(f: Callable[[PyTree], Array], model: PyTree, remaining: float) -> np.ndarray:
    """A bound on the change of each entry of f between a model and all models within a distance ``remaining`` of
    it.

    Infinite if the distance is infinite or f cannot be computed in ball arithmetic.
    """
    weights, rest = eqx.partition(model, eqx.is_inexact_array)
    of_weights = lambda weights: jnp.asarray(f(eqx.combine(weights, rest)), dtype=float)
    shape = jax.eval_shape(of_weights, weights).shape
    if not math.isfinite(remaining):
        return np.full(shape, np.inf)
    around = jax.tree.map(lambda leaf: balls(np.asarray(leaf), remaining), weights)
    try:
        within, here = (enclose(of_weights, where, open_branches=True) for where in (around, weights))
    except (UndecidedError, jax.errors.JAXTypeError):
        return np.full(shape, np.inf)
    found = np.maximum(upper(within) - lower(here), upper(here) - lower(within))
    return np.where(np.isfinite(found), found, np.inf)


def least_norm(X: ArrayLike | Iterable, y: ArrayLike | Iterable, *, order: int = 1) -> tuple[float, float]:
    """The least norm of a solution of X b = y, and a bound on its error.

    The least norm lies between two numbers, which are computed with bounds on their rounding errors: the norm of a
    solution, and y.z/|X^T z|, where z solves the dual problem and |.| is the dual norm. The result is their mean
    and half their difference. The bound is infinite unless X is shown to have full row rank.

    **Arguments:**

    - X: (m, n), with m at most n.
    - y: (m,).
    - order: 1 for the norm sum_i |b_i|, 2 for the Euclidean norm.

    **Raises:** `ValueError` on other arguments.
    """
    matrix = np.asarray(checks.as_array("X", X, (None, None)))
    right = np.asarray(checks.as_array("y", y, (matrix.shape[0],)))
    m, n = matrix.shape
    if order not in (1, 2):
        checks.refuse("order", "1 or 2", f"it is {order}")
    if not 0 < m <= n:
        checks.refuse("X", "a matrix with at most as many rows as columns", f"it is {m} x {n}")
    # Powers of two, so that tiny and huge numbers become moderate exactly.
    (of_matrix, matrix), (of_right, right) = map(_moderate, (matrix, right))
    with blas_in_one_thread():
        steepness = least_singular_value(wide(matrix))
        if not steepness > 0:
            return 0.0, math.inf
        try:
            below, above = _around(matrix, right, order, steepness)
        except (ArithmeticError, np.linalg.LinAlgError):
            return 0.0, math.inf
    back = lambda number: float(np.ldexp(number, of_right - of_matrix))
    return back((above + below) / 2), back((above - below) / 2 + _ROUNDING * above) + _LEAST


def _moderate(numbers: np.ndarray) -> tuple[int, np.ndarray]:
    """An exponent e, and the array divided by 2^e, whose largest absolute value is then in [1/2, 1)."""
    exponent = int(np.frexp(np.max(np.abs(numbers), initial=0.0))[1])
    return exponent, np.ldexp(numbers, -exponent)


def _around(X: np.ndarray, y: np.ndarray, order: int, steepness: float) -> tuple[float, float]:
    """A lower and an upper bound on the least norm of a solution of X b = y.

    **Arguments:** X, y, order: as in `least_norm`; steepness: a lower bound on the singular values of X.
    """
    solution, dual = _shortest(X, y, order)
    size, of_slopes = (norm, norm) if order == 2 else (lambda x: float(np.sum(np.abs(x))), lambda x: float(np.max(x)))
    # A solution is at most |X b - y|/sigma away in the Euclidean norm.
    off = norm(difference(product(wide(X), wide(solution[:, None])), wide(y[:, None])).largest) / steepness
    above = size(solution) + math.sqrt(X.shape[1]) ** (2 - order) * off
    steepest = of_slopes(product(wide(X.T), wide(dual[:, None])).largest)
    reward = product(wide(y[None]), wide(dual[:, None]))
    below = float(reward.middle[0, 0] - reward.radius[0, 0]) / steepest if steepest > 0 else 0.0
    return max(0.0, below) * (1 - _ROUNDING), above * (1 + X.shape[1] * _ROUNDING)


def _shortest(X: np.ndarray, y: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """A solution of X b = y of least norm, and a solution of the dual problem, both up to rounding."""
    if order == 2:
        basis, triangle = np.linalg.qr(X.T)
        inside = scipy.linalg.solve_triangular(triangle.T, y, lower=True)
        return basis @ inside, scipy.linalg.solve_triangular(triangle, inside)
    found = scipy.optimize.linprog(np.ones(2 * X.shape[1]), A_eq=np.hstack([X, -X]), b_eq=y, method="highs")
    if found.status != 0:
        raise ArithmeticError(f"no solution of least norm was found: {found.message}")
    plus, minus = np.split(found.x, 2)
    return plus - minus, found.eqlin.marginals


class Interval(NamedTuple):
    """The numbers within ``radius`` of ``centre``."""

    centre: float
    radius: float


def extrapolated(values: np.ndarray, errors: np.ndarray) -> Interval | str:
    """The extrapolated limit of a sequence with its error, or a text that says why it could not be found.

    If the differences of a sequence q_1, q_2, .. shrink at least by a factor rho < 1 each, the distance of q_n from
    the limit is at most |q_n - q_{n-1}| rho/(1 - rho). Here rho is estimated from the last differences and their
    errors, and is increased if it still grows, as it does for a sequence like 1/n. The radius is three times this
    bound. As a check, the limit that is extrapolated without the last member must agree with the last member.

    **Arguments:** values: the sequence; errors: the errors of its members.
    """
    if values.size < _FEWEST:
        return f"An extrapolation needs {_FEWEST} numbers or more, and there are {values.size}: add members."
    # The last members can be known less well than those before: then they only confirm these.
    clear = np.flatnonzero(np.abs(np.diff(values)) > errors[1:] + errors[:-1])
    first = max(int(clear[-1]) + 2 if clear.size else 0, _FEWEST - 1)
    end = first + int(np.argmin(errors[first - 1 :]))
    found = _limit(values[:end], errors[:end])
    before = found if end < values.size else _limit(values[:-1], errors[:-1])
    if found is None or before is None:
        return "It does not converge: its differences do not shrink fast enough. Extend the range of the parameter."
    later = slice(min(end, values.size - 1), None)
    if np.any(np.abs(values[later] - before.centre) > before.radius + errors[later]):
        return "It does not converge: the last member is far from the value extrapolated from the others."
    return found


def _limit(values: np.ndarray, errors: np.ndarray) -> Interval | None:
    moved, blur = np.diff(values), errors[1:] + errors[:-1]
    most, least = np.abs(moved) + blur, np.maximum(np.abs(moved) - blur, 0.0)
    clear = least > 0
    if not clear.any():
        return Interval(float(values[-1]), float(values.size * np.max(most)))
    signs = np.sign(moved[clear])[-_LOOK_BACK:]
    if not (np.all(signs == signs[-1]) or np.all(signs[1:] == -signs[:-1])):
        return None
    both = clear[1:] & clear[:-1]
    usable = both if both.any() else clear[:-1]
    if not usable.any():
        return None
    factors = (most[1:][usable] / least[:-1][usable])[-_LOOK_BACK:]
    factor = np.max(factors) + _LAG * max(float(np.max(np.diff(factors), initial=0.0)), 0.0)
    if not factor < _SLOWEST:
        return None
    # A difference can be small by accident.
    last = np.max(most[-_LOOK_BACK:] * factor ** np.arange(min(_LOOK_BACK, most.size))[::-1])
    return Interval(float(values[-1]), float(_INTERVAL * last * factor / (1 - factor) + errors[-1]))
