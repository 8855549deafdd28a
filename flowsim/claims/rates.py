"""Rates of convergence: a guaranteed envelope, and a fit."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, at_least
from flowsim.flow.solvers.clock import counted
from flowsim.flow.trajectory import Trajectory
from flowsim.losses.sampled.confidence import student_quantile

_WINDOW = 1e5  # the factor by which the excess decreases over the window of the fit
_FEWEST = 4


def decayed(trajectory: Trajectory) -> Float[Array, " T"]:
    """log(excess(0)/excess(t)) at each output time.

    As long as less than half of the excess is lost, it is computed from the dissipated energy, to avoid
    cancellation.
    """
    lost = trajectory.dissipated / trajectory.excess[0]
    first_half = -jnp.log1p(-jnp.minimum(lost, 0.5))
    halves = -jnp.log(jnp.where(trajectory.excess > 0, trajectory.excess, jnp.nan) / trajectory.excess[0])
    # A choice between the two would be a jump, which ball arithmetic cannot bound.
    return first_half + jnp.maximum(halves - math.log(2), 0.0)


def exponential_envelope(trajectory: Trajectory, mu: Float[Array, ""]) -> Comparison:
    """The statement excess(t) <= e^{-mu t} excess(0) for t > 0, compared as log(excess(0)/excess(t)) >= mu t."""
    above = trajectory.excess > 0
    value = jnp.where(above, decayed(trajectory), 0.0)
    return at_least(value, jnp.where(above, mu * trajectory.t, 0.0), promised=above & (trajectory.t > 0))


@dataclasses.dataclass(frozen=True)
class RateFit:
    """A fit of the decay of the excess at the end of a run.

    **Fields:**

    - kind: "exponential" for excess ~ e^{-rate t} or "power" for excess ~ t^{-rate}, whichever fits better.
    - rate: the fitted rate.
    - low, high: the 95% confidence interval of the rate, from the residuals of the fit.
    - t_from, t_to: the window of the fit. For a flow that leaves a saddle late, t counts from its steepest point.
    """

    kind: str
    rate: float
    low: float
    high: float
    t_from: float
    t_to: float


def fit_rate(trajectory: Trajectory) -> RateFit | None:
    """Fit the rate at which the excess decays over its last factor of 100,000.

    None if the excess decreases by less than a factor of 10 there, or for fewer than four output times.
    """
    t, excess = counted(trajectory)[0], np.asarray(trajectory.excess)
    usable = (t > 0) & np.isfinite(excess) & (excess > 0)
    t, excess = t[usable], excess[usable]
    if not t.size:
        return None
    window = excess <= _WINDOW * excess[-1]
    t, log_excess = t[window], np.log(excess[window])
    if t.size < _FEWEST or log_excess[0] - log_excess[-1] < np.log(10):
        return None
    fits = {"exponential": _line(t, log_excess), "power": _line(np.log(t), log_excess)}
    kind = min(fits, key=lambda name: fits[name][2])
    slope, half_width, _ = fits[kind]
    return RateFit(kind, -slope, -slope - half_width, -slope + half_width, float(t[0]), float(t[-1]))


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """The slope of a least-squares line, half its 95% confidence interval, and the residual sum of squares."""
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    squares = float(np.sum((y - y.mean() - slope * centred) ** 2))
    freedom = x.size - 2
    return slope, student_quantile(0.95, freedom + 1) * float(np.sqrt(squares / freedom / (centred @ centred))), squares
