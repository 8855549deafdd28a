"""The solvers: one chunk of a flow, and the reduced flow, by diffrax. Nothing else imports it."""

from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import optimistix
from jaxtyping import Array, Float, PyTree

from flowsim._core.types import Scalar
from flowsim.flow.arrowhead.newton import ORDER, STAGES, radau_step
from flowsim.flow.systems import AbstractSystem, norm_sq
from flowsim.losses.arrowhead import AbstractArrowhead, State

_DENSE_LIMIT = 512  # weights, above which the Newton matrix is not formed
_MOST_REDUCED_STEPS = 2_000_000


class Steps(NamedTuple):
    """The ends of the accepted steps of a chunk, padded at the end: times, weights, and the energy dissipated so far;
    with the numbers of accepted and rejected steps, and the solver's result.
    """

    t: Float[Array, " steps"]
    states: PyTree
    dissipated: Float[Array, " steps"]
    accepted: int
    rejected: int
    result: diffrax.RESULTS

    @property
    def full(self) -> bool:
        """Whether the chunk ended because it may hold no more steps."""
        return bool(self.result == diffrax.RESULTS.max_steps_reached)

    @property
    def successful(self) -> bool:
        """Whether the last output time was reached."""
        return bool(self.result == diffrax.RESULTS.successful)


class _ArrowheadRadau(diffrax.AbstractAdaptiveSolver):
    """Radau IIA with the structured Newton of `_newton`, reporting its error in units of the tolerance."""

    rtol: Scalar
    atol: Scalar
    term_structure = diffrax.ODETerm
    interpolation_cls = diffrax.LocalLinearInterpolation  # which nobody asks: every output time is the end of a step

    def order(self, terms):
        return ORDER

    def error_order(self, terms):
        return STAGES + 1

    def init(self, terms, t0, t1, y0, args):
        return None

    def func(self, terms, t0, y0, args):
        return terms.vf(t0, y0, args)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        state, dissipated = y0
        # Newton's error is about the square of its last correction.
        outcome = radau_step(args.arrowhead, state, jnp.asarray(t1 - t0), jnp.sqrt(self.rtol) / 100)
        error = jnp.where(outcome.converged, outcome.error / self.rtol, jnp.inf)
        y1 = (outcome.state, dissipated + outcome.dissipated)
        y_error = ((jnp.zeros_like(state[0]), error), jnp.zeros_like(dissipated))
        return y1, y_error, {"y0": y0, "y1": y1}, None, diffrax.RESULTS.successful


def integrate(system: AbstractSystem, y: PyTree, ts: Array, numbers: Array, method: str, most_steps: int) -> Steps:
    """Integrate a chunk until the last of ``ts``, or until it has made ``most_steps`` steps. Every one of
    ``ts`` that is reached is the end of a step.

    **Arguments:** y: weights, and energy dissipated so far; numbers: t0, the first step's size, rtol, atol and the
    start's timescale.
    """
    return Steps(*_integrate(system, y, ts, numbers, method, most_steps))


@eqx.filter_jit
def _integrate(system, y, ts, numbers, method, most_steps):
    t0, first_step, rtol, atol, timescale = numbers
    smallest_step = 1e-13 * jnp.maximum(t0, timescale)
    controls = {"norm": optimistix.max_norm, "dtmin": smallest_step, "force_dtmin": False}
    if method == "arrowhead":
        solver = _ArrowheadRadau(rtol, atol)
        inner = diffrax.PIDController(0.0, 1.0, **controls)
    else:
        inner = diffrax.PIDController(rtol, atol, **controls)
        if method == "implicit":
            small = sum(leaf.size for leaf in jax.tree.leaves(y)) <= _DENSE_LIMIT
            linear = lineax.AutoLinearSolver(well_posed=True) if small else lineax.GMRES(rtol / 10, atol / 10)
            newton = diffrax.with_stepsize_controller_tols(optimistix.Newton)(linear_solver=linear)
            solver = diffrax.Kvaerno5(root_finder=newton)
        else:
            solver = diffrax.Tsit5()
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(_field),
        solver,
        t0,
        ts[-1],
        first_step,
        y,
        system,
        saveat=diffrax.SaveAt(steps=True),
        stepsize_controller=diffrax.ClipStepSizeController(inner, step_ts=ts),
        adjoint=diffrax.ForwardMode(),
        max_steps=most_steps,
        throw=False,
    )
    assert solution.ts is not None and solution.ys is not None
    states, dissipated = solution.ys
    stats = solution.stats
    return solution.ts, states, dissipated, stats["num_accepted_steps"], stats["num_rejected_steps"], solution.result


def _field(t, y, system):
    slope = system.field(y[0])
    return slope, norm_sq(slope)


def solve_reduced(arrowhead: AbstractArrowhead, start: State, ts: Float[Array, " T"], rtol: float, atol: float):
    """The diagonal of U, u, the clock and the dissipated energy of an arrowhead flow at ``ts``, from its reduction; and
    the numbers of accepted and rejected steps.

    **Raises:** `RuntimeError` where it cannot be integrated.
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
