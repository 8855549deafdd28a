"""Integration with diffrax: of a stretch of a flow, of its states inside steps, and of the reduced flow."""

import contextlib
import math
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import optimistix
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

from flowsim._core.types import Scalar
from flowsim.flow.solvers.arrowhead.newton import radau_step
from flowsim.flow.solvers.arrowhead.reduced import Kept, before_first_step, end_of
from flowsim.flow.solvers.arrowhead.reduced import step as reduced_step
from flowsim.flow.solvers.collocation import AbstractRadau
from flowsim.flow.solvers.dense.radau import DenseRadau
from flowsim.flow.solvers.dense.stabilized import Stabilized
from flowsim.flow.solvers.step_size import SMALLEST, PredictiveStepSize
from flowsim.flow.solvers.threads import blas_in_one_thread
from flowsim.flow.systems import WITH_ENERGY, AbstractSystem, ReducedSystem
from flowsim.losses.arrowhead import AbstractArrowhead, State

DENSE_LIMIT = 2048  # weights, above which the Hessian is not formed
ALWAYS_WHOLE = 256  # weights, up to which all eigenvectors of the Hessian are kept
_DIRECTIONS = (128, 256, 512)  # numbers of eigenvectors that are kept for more weights
_STIFF = 0.1  # times the length of a step: for a larger rate of the other directions more eigenvectors are kept
_EXPLICIT_FIELDS = 7  # evaluations of the field in a step of Tsit5 and at its end
MATRIX_FREE_FIELDS = 1000  # the approximate number in a step of Kvaerno5 with GMRES
_MOST_STAGES = 60  # in a step of `DenseRadau` that is given up
_SLOW = 1e-2  # of the dissipated energy: |grad|^2 t of a flow that may end
_MOST_REDUCED_STEPS = 2_000_000


class Method(NamedTuple):
    """A solver, "arrowhead", "explicit" or "implicit", and the number of eigenvectors of the Hessian that an
    implicit solver keeps. If this number is larger than `DENSE_LIMIT`, the Hessian is not formed: the solver is
    Kvaerno5 with GMRES for its Newton steps.
    """

    solver: str
    directions: int = 0


def more_directions(weights: int, directions: int) -> int:
    """The next larger number of eigenvectors of a Hessian to keep.

    **Arguments:** weights: the number of weights; directions: the number of eigenvectors so far.
    """
    few = [count for count in _DIRECTIONS if directions < count < weights / 2 and weights > ALWAYS_WHOLE]
    return min([*few, weights])


class Asked(NamedTuple):
    """The tolerances of a solver, and limits of its steps.

    **Fields:**

    - rtol, atol: the relative and the absolute error of a step.
    - sizes: the sizes of the weights at the start, for the relative error.
    - growth: the longest step, relative to the larger of the time and ``timescale``.
    - timescale: the time in which the gradient changes at the origin of time.
    - renewal: the cost of a Hessian in evaluations of the field.
    """

    rtol: Scalar
    atol: Scalar
    sizes: PyTree
    growth: Scalar
    timescale: Scalar
    renewal: Int[Array, ""]


class Ending(NamedTuple):
    """Conditions under which a stretch of a flow ends before its last time, but not before ``earliest``.

    The stretch ends where the excess loss is at most ``excess``. From the time ``leaving`` on, the stretch also
    ends where |grad L|^2 is small: at most ``grad_norm_sq`` if the excess is unknown or at most ``least``, else at
    most ``rounding``.
    """

    earliest: ArrayLike
    excess: ArrayLike
    grad_norm_sq: ArrayLike
    least: ArrayLike
    rounding: ArrayLike
    leaving: ArrayLike


def ending(*numbers: ArrayLike) -> Ending:
    """An `Ending` with its fields given as numbers, in order."""
    return Ending(*[np.asarray(number, dtype=float) for number in numbers])


NEVER = ending(math.inf, -math.inf, -math.inf, -math.inf, -math.inf, 0.0)


class Steps(NamedTuple):
    """The ends of the accepted steps of a stretch, padded to a fixed number.

    **Fields:**

    - t, states, dissipated: times, states and dissipated energies, with steps on the first axis.
    - accepted, rejected, fields: the numbers of accepted steps, rejected steps and evaluations of the field.
    - too_few: whether the implicit solver should keep more eigenvectors of the Hessian.
    - result: the result of diffrax.
    """

    t: Float[Array, " steps"]
    states: PyTree
    dissipated: Float[Array, " steps"]
    accepted: int
    rejected: int
    fields: int
    too_few: Bool[Array, ""]
    result: diffrax.RESULTS

    @property
    def ended(self) -> bool:
        """Whether a condition of the `Ending` was met."""
        return bool(self.result == diffrax.RESULTS.event_occurred)

    @property
    def stuck(self) -> bool:
        """Whether the solver stopped because steps became too short relative to the time."""
        return bool(self.result == diffrax.RESULTS.dt_min_reached)

    @property
    def finished(self) -> bool:
        """Whether the stretch reached its last time, met a condition of the `Ending`, or made its number of steps."""
        full = bool(self.result == diffrax.RESULTS.max_steps_reached) and int(self.accepted) > 0
        return full or self.ended or bool(self.result == diffrax.RESULTS.successful)


class _ArrowheadRadau(AbstractRadau):
    """Radau IIA on (U, u) of an arrowhead, with the structured Newton's method of `radau_step`."""

    rtol: Scalar

    def init(self, terms, t0, t1, y0, args):
        return None

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        state, dissipated = y0
        # Newton's error is about the square of its last correction.
        outcome = radau_step(args.arrowhead, state, jnp.asarray(t1 - t0), jnp.sqrt(self.rtol) / 100)
        converged = outcome.converged & jnp.isfinite(outcome.error)
        error = jnp.where(converged, outcome.error / self.rtol, jnp.inf)
        y1 = (outcome.state, dissipated + outcome.dissipated)
        return y1, error, {"y0": y0, "y1": y1}, None, diffrax.RESULTS.successful


class _ReducedRadau(AbstractRadau):
    """Radau IIA on the reduced arrowhead flow: the diagonal of U, u and the clock."""

    rtol: Scalar

    def init(self, terms, t0, t1, y0, args):
        return before_first_step(y0[0], args.layer.reduction.seen(y0[0]), jnp.asarray(t1 - t0))

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        (point, dissipated), kept, length = y0, solver_state, jnp.asarray(t1 - t0)
        guess = kept.guess(point, length)
        outcome = reduced_step(args.layer.reduction, point, kept.seen, guess, length, self.rtol)
        converged = outcome.converged & jnp.isfinite(outcome.error)
        error = jnp.where(converged, outcome.error / self.rtol, jnp.inf)
        end, seen = end_of(outcome)
        kept = Kept(seen, jnp.append(point.u, outcome.stages.u), length)
        y1 = (end, dissipated + outcome.dissipated)
        return y1, error, {"y0": y0, "y1": y1}, kept, diffrax.RESULTS.successful


def integrate(
    system: AbstractSystem,
    y: PyTree,
    times: tuple[float, float, float],
    asked: Asked,
    ending: Ending,
    method: Method,
    most_steps: int,
) -> Steps:
    """Integrate a stretch of a flow until its last time, a condition for an early end, or a number of steps.

    **Arguments:**

    - system: the flow.
    - y: the state and the energy dissipated so far.
    - times: the first time, the last time, and the length of the first step.
    - asked: the tolerances.
    - ending: the conditions for an early end.
    - method: the solver.
    - most_steps: the largest number of steps.
    """
    with _threads(method):
        found = _integrate(system, y, np.asarray(times), asked, ending, method, most_steps)
        return Steps(*jax.block_until_ready(found))


def _threads(method: Method) -> contextlib.AbstractContextManager:
    """A context that limits BLAS to the number of threads that suits a method."""
    return blas_in_one_thread() if method.solver == "implicit" else contextlib.nullcontext()


@eqx.filter_jit
def _integrate(system, y, times, asked, ending, method, most_steps):
    first, last, length = times

    def ends(t, y, args, **_):
        state, dissipated = y

        def met(grad_norm_sq):
            excess = args.excess(state)
            at_least = jnp.isnan(excess) | (excess <= ending.least)
            threshold = jnp.where(at_least, ending.grad_norm_sq, ending.rounding)
            # The square of a tiny gradient, and its share, may underflow to zero.
            small = (threshold > 0) & (grad_norm_sq <= threshold) & (t >= ending.leaving)
            return small | (excess <= ending.excess)

        def met_where_slow():
            grad_norm_sq = args.speed(state) ** 2
            # A flow that still moves is not tested further.
            slow = grad_norm_sq * t <= _SLOW * dissipated
            return jax.lax.cond(slow, met, lambda _: jnp.asarray(False), grad_norm_sq)

        may_end = (t > first) & (t >= ending.earliest)
        return jax.lax.cond(may_end, met_where_slow, lambda: jnp.asarray(False))

    solver, controller = _solver(system, method, y, asked, first)
    solution = diffrax.diffeqsolve(
        WITH_ENERGY,
        solver,
        first,
        last,
        length,
        y,
        system,
        saveat=diffrax.SaveAt(steps=True, solver_state=True),
        stepsize_controller=controller,
        event=diffrax.Event(ends),
        adjoint=diffrax.ForwardMode(),
        max_steps=most_steps,
        throw=False,
    )
    assert solution.ts is not None and solution.ys is not None
    states, dissipated = solution.ys
    stats = solution.stats
    accepted, rejected = stats["num_accepted_steps"], stats["num_rejected_steps"]
    kept: Any = solution.solver_state
    fields, too_few = MATRIX_FREE_FIELDS * (accepted + rejected), jnp.asarray(False)
    # Diffrax forgets what a rejected step computed: a Hessian, as a rule, and all the iterations there are.
    if isinstance(solver, DenseRadau):
        fields = kept.fields + rejected * (solver.renewal + _MOST_STAGES)
        too_few = kept.length * jnp.abs(kept.curvature.rest) > _STIFF
    elif isinstance(solver, Stabilized):
        fields = kept.fields + rejected * _EXPLICIT_FIELDS
    return solution.ts, states, dissipated, accepted, rejected, fields, too_few, solution.result


def _solver(system: AbstractSystem, method: Method, y: PyTree, asked: Asked, first: Scalar):
    predictive = PredictiveStepSize(asked.growth, asked.timescale)
    if isinstance(system, ReducedSystem):
        return _ReducedRadau(asked.rtol), predictive
    if method.solver == "arrowhead":
        return _ArrowheadRadau(asked.rtol), predictive
    if method.solver == "implicit" and method.directions <= DENSE_LIMIT:
        implicit = DenseRadau(asked.rtol, asked.atol, asked.sizes, asked.renewal, system.columns, method.directions)
        return implicit, predictive
    rtol: Any = asked.rtol
    # Explicit steps do not know the rounding of the field, so that the smallest tolerance is used for all weights.
    atol: Any = asked.atol + rtol * jnp.min(jnp.stack([jnp.min(size) for size in jax.tree.leaves(asked.sizes)]))
    shortest = SMALLEST * jnp.maximum(first, asked.timescale)
    norm = optimistix.max_norm
    controller = diffrax.PIDController(rtol, atol, norm=norm, dtmin=shortest, force_dtmin=False)
    if method.solver == "explicit":
        return Stabilized(), controller
    linear = lineax.GMRES(rtol / 10, atol / 10)
    newton = optimistix.Newton(rtol, atol, norm=norm, linear_solver=linear)
    return diffrax.Kvaerno5(root_finder=newton), controller


def between(
    system: AbstractSystem, steps: tuple[PyTree, PyTree], times: Float[Array, "n 3"], asked: Asked, method: Method
) -> tuple[PyTree, Bool[Array, " n"]]:
    """Compute the state of a flow at one time inside each of n steps, by a shorter step from the start of the step.

    **Arguments:**

    - system: the flow.
    - steps: (state, dissipated energy) at the start of each step and at its end, with steps on the first axis.
    - times: (n, 3) the start of each step, a time in the step, and its end.
    - asked: the tolerances.
    - method: the solver.

    **Returns:** (state, dissipated energy) at these times, and (n,) whether the shorter step succeeded.
    """
    begins, ends = steps
    with _threads(method):
        return jax.block_until_ready(_between(system, begins, ends, times, asked, method))


@eqx.filter_jit
def _between(system, begins, ends, times, asked, method):
    first = jax.tree.map(lambda leaf: leaf[0], begins)
    solver: Any
    controller: Any
    solver, controller = _solver(system, method, first, asked, times[0, 0])
    keeps = isinstance(solver, DenseRadau)

    def one(kept, row):
        begin, end, (t0, t, t1) = row
        if keeps:
            state = solver.within(WITH_ENERGY, t0, t1, begin, end, system, kept)
        else:
            state = solver.init(WITH_ENERGY, t0, t, begin, system)
        y, error, _, after, result = solver.step(WITH_ENERGY, t0, t, begin, system, state, made_jump=np.asarray(False))
        finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((y, error))])
        # Implicit solvers of diffrax return the result of their Newton method.
        results = diffrax.RESULTS if isinstance(result, diffrax.RESULTS) else optimistix.RESULTS
        found = jnp.all(finite) & (result == results.successful)
        if isinstance(solver, Stabilized):
            # A rate that is found anew may be too small for a step that is as long as one was.
            scaled = jax.tree.map(lambda e, x: e / (controller.atol + controller.rtol * jnp.abs(x)), error, y)
            found &= optimistix.max_norm(scaled) <= 1
        return after if keeps else kept, (y, found)

    kept = solver.init(WITH_ENERGY, times[0, 0], times[0, 2], first, system) if keeps else None
    return jax.lax.scan(one, kept, (begins, ends, times))[1]


def solve_reduced(arrowhead: AbstractArrowhead, start: State, ts: Float[Array, " T"], rtol: float, atol: float):
    """Integrate an arrowhead flow by its reduction, with the explicit method Dopri8.

    **Arguments:**

    - arrowhead: the structure of the flow.
    - start: U and u at t = 0.
    - ts: (T,) the output times from 0 on.
    - rtol, atol: the relative and the absolute error of a step.

    **Returns:** the diagonal of U (T, d), u, the clock and the dissipated energy (T,), in one tuple; and the
    numbers of accepted and rejected steps.

    **Raises:** `RuntimeError` if the integration fails.
    """
    solution = _solve_reduced(arrowhead, *start, ts, rtol, atol)
    if solution.result != diffrax.RESULTS.successful or solution.ys is None:
        raise RuntimeError(f"the reduced flow could not be integrated: {solution.result}")
    return solution.ys, (solution.stats["num_accepted_steps"], solution.stats["num_rejected_steps"])


@eqx.filter_jit
def _solve_reduced(arrowhead, U0, u0, ts, rtol, atol):
    a, b = arrowhead.curvature, arrowhead.drive
    shaft_curvature = jnp.diagonal(a)
    squares = (U0 * (1 - jnp.eye(b.shape[0]))) ** 2

    def field(t, y, args):
        shaft, u, clock, _ = y
        decayed = squares * jnp.exp(-2 * a * clock)
        shaft_slope = -(u**2) * shaft_curvature * shaft + u * b
        slope = jnp.sum(b * shaft) - u * (jnp.sum(shaft_curvature * shaft**2) + jnp.sum(a * decayed))
        grad_norm_sq = jnp.sum(shaft_slope**2) + slope**2 + u**4 * jnp.sum(a**2 * decayed)
        return shaft_slope, slope, u**2, grad_norm_sq

    controller = diffrax.PIDController(rtol, atol, norm=optimistix.max_norm)
    return diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Dopri8(),
        ts[0],
        ts[-1],
        None,
        (jnp.diagonal(U0), u0, jnp.zeros(()), jnp.zeros(())),
        saveat=diffrax.SaveAt(ts=ts),
        stepsize_controller=diffrax.ClipStepSizeController(controller, step_ts=ts),
        adjoint=diffrax.ForwardMode(),
        max_steps=_MOST_REDUCED_STEPS,
        throw=False,
    )
