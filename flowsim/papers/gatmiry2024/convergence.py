"""Both sides of what gatmiry2024 says of the flow: how fast the loss falls, where the flow is then, where it ends."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.hypotheses import Hypothesis, hypothesis
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses.deep.scalar_minima import scalar_shortfall
from flowsim.papers.gatmiry2024.landscape import appendix_threshold
from flowsim.papers.gatmiry2024.setting import (
    CLOSE,
    Loss,
    Scalar,
    Series,
    deviation,
    dimension_root,
    dominance_power,
    least_eigenvalue,
    loops,
    whitened,
)

_DOMINANCE = 1 / 16


def several_loops(loss: Loss, start: PyTree) -> list[Hypothesis]:
    """L > 1: at L = 1 the time bound divides by zero."""
    return [hypothesis("L > 1", float(loops(loss)), ">", 1.0)]


# Theorem 3.3


def _exponents(loss: Loss) -> tuple[float, float, float]:
    """L/(L-1), 16 L/(L-1) and L/(2L-1), with L = 2 in place of 1, where the statements do not apply."""
    L = max(loops(loss), 2)
    return L / (L - 1), 16 * L / (L - 1), L / (2 * L - 1)


def _printed_level(loss: Loss, t: Series) -> Series:
    """The xi whose time (1/xi)^{(L-1)/L} (16 L/(L-1))^{(L-1)/(2L-1)} is t."""
    power, K, exponent = _exponents(loss)
    return K**exponent / t**power


def _level(loss: Loss, t: Series) -> Series:
    """The xi whose time (d/xi)^{(L-1)/L} 16 L/((L-1) lambda_d^2) is t."""
    power, K, _ = _exponents(loss)
    return loss.task.dimension * (K / (least_eigenvalue(loss) ** 2 * t)) ** power


def _reached(loss: Loss, t: Series, level) -> Series:
    """The least xi >= 2 (4 delta)^{2L} of which a statement speaks at a time."""
    known = t > 0
    return jnp.where(known, jnp.maximum(level(loss, jnp.where(known, t, 1.0)), appendix_threshold(loss)), jnp.inf)


def _in_time(loss: Loss, trajectory: Trajectory, level) -> Comparison:
    """L(A(t)) against xi, promised where xi is below L(A(0)), above which no flow rises."""
    xi = _reached(loss, trajectory.t, level)
    promised = xi < trajectory.loss[0]
    return at_most(trajectory.loss, jnp.where(promised, xi, trajectory.loss[0]), promised=promised)


def in_printed_time(loss: Loss, trajectory: Trajectory) -> Comparison:
    """L(A(t)) against the least xi whose printed time has passed."""
    return _in_time(loss, trajectory, _printed_level)


def in_time(loss: Loss, trajectory: Trajectory) -> Comparison:
    """L(A(t)) against the least xi whose time (d/xi)^{(L-1)/L} 16 L/((L-1) lambda_d^2) has passed."""
    return _in_time(loss, trajectory, _level)


def time_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """t xi^{(L-1)/L}, at the last time that the statement speaks of: as printed, with the d, the exponent and the
    lambda_d of Sigma* that the proof lost, as seen, and d^{(L-1)/L} / (4 L (L-1)) of long contexts at Sigma* = I.
    """
    power, K, exponent = _exponents(loss)
    d, L = loss.task.dimension, max(loops(loss), 2)
    seen = trajectory.t * trajectory.loss ** (1 / power)
    above = trajectory.loss >= appendix_threshold(loss)
    return {
        "printed": jnp.asarray(K ** (exponent / power)),
        "corrected": K * d ** (1 / power) / least_eigenvalue(loss) ** 2,
        "seen": jnp.max(jnp.where(above, seen, 0.0)),
        "limit": jnp.asarray(d ** (1 / power) / (4 * L * (L - 1))),
        "threshold": appendix_threshold(loss),
    }


def neighbourhood(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The distance of A(t) from A_opt, above and below, against 8 (1 + 4 d^{1/(2L)}) xi^{1/(2L)}, with the xi of the
    printed time.
    """
    xi = _reached(loss, trajectory.t, _printed_level)
    bound = 8.0 * (1.0 + 4.0 * dimension_root(loss)) * xi ** (1 / (2 * loops(loss)))
    promised = jnp.isfinite(bound) & (bound > 0)
    return at_most(deviation(loss, trajectory.models), jnp.where(promised, bound, 1.0), promised=promised)


def neighbourhood_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """8 (1 + 4 d^{1/(2L)}), and how long a context must be for the lower half to be more than A >= 0."""
    L, factor = loops(loss), 8.0 * (1.0 + 4.0 * dimension_root(loss))
    needed = 16.0 * L * loss.task.dimension * (4.0 * factor) ** (2 * L)
    return {"factor": jnp.asarray(factor), "context_length_needed": jnp.asarray(float(needed) ** 2)}


# Theorem A.12: the comparison equation


def _printed_solution(loss: Loss, start: Scalar, t: Scalar) -> Scalar:
    """g(t) = K^{L/(2L-1)} (t + c)^{-L/(L-1)}, c = K^{(L-1)/(2L-1)} / f(0)^{(L-1)/L}, K = 16 L/(L-1)."""
    power, K, exponent = _exponents(loss)
    c = K ** (exponent / power) / start ** (1 / power)
    return K**exponent / (t + c) ** power


def _solution(loss: Loss, start: Scalar, t: Scalar) -> Scalar:
    """g(t) = (K / (t + c))^{L/(L-1)}, c = K / f(0)^{(L-1)/L}, K = 16 L/(L-1)."""
    power, K, _ = _exponents(loss)
    return (K / (t + K / start ** (1 / power))) ** power


def _solves(loss: Loss, trajectory: Trajectory, solution, sign: float) -> Comparison:
    """g(0) against f(0) = L(A(0)), then g' against sign g^{(2L-1)/L}/16 at 32 times."""
    start = trajectory.loss[0]
    times = jnp.geomspace(1e-3, 1e6, 32) / start ** (1 / _exponents(loss)[0])
    g, slope = jax.vmap(jax.value_and_grad(lambda t: solution(loss, start, t)))(times)
    field = sign * _DOMINANCE * g ** dominance_power(loss)
    first = equal(solution(loss, start, jnp.zeros(()))[None], start[None], start[None])
    sides = joined([first, equal(slope, field, jnp.maximum(jnp.abs(slope), jnp.abs(field)))])
    # Powers of powers of rounded numbers.
    return rounded(sides, jnp.asarray(64.0))


def printed_solution_solves(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The printed g in the printed equation, g' = +g^{(2L-1)/L}/16."""
    return _solves(loss, trajectory, _printed_solution, 1.0)


def solution_solves(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The right g in g' = -g^{(2L-1)/L}/16."""
    return _solves(loss, trajectory, _solution, -1.0)


def equation_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """g' / g^{(2L-1)/L} of the printed solution, and what the equation asks for with the sign that is meant."""
    power, K, exponent = _exponents(loss)
    return {"printed_solution": jnp.asarray(-power * K ** (exponent - 1)), "equation": jnp.asarray(-_DOMINANCE)}


# Section 5.2: short contexts


def at_least_two_examples(loss: Loss, start: PyTree) -> list[Hypothesis]:
    """n > 1."""
    return [hypothesis("n > 1", loss.task.context_length, ">", 1.0)]


def _end_from_identity(loss: Loss, trajectory: Trajectory) -> Series:
    return jnp.max(jnp.abs(whitened(loss, trajectory.models)[-1:] - 1.0), axis=1)


def tends_near_identity(loss: Loss, trajectory: Trajectory) -> Comparison:
    """|A - I| in the limit of the flow against 0.1."""
    return at_most(_end_from_identity(loss, trajectory), CLOSE, allowance=trajectory.way_to_go)


def tends_to_minimum(loss: Loss, trajectory: Trajectory) -> Comparison:
    """|A - A_opt| in the limit of the flow over A_opt = a I, against zero."""
    to_go = trajectory.way_to_go / loss.energy.centres[0]
    return equal(deviation(loss, trajectory.models)[-1:], 0.0, 1.0, allowance=to_go)


def shrinks(loss: Loss, trajectory: Trajectory) -> Comparison:
    """0 < 1 - a < 1 for A_opt = a I."""
    n = float(loss.task.context_length)
    short = jnp.asarray([scalar_shortfall(loss.task.dimension, n, loops(loss))])
    finite = bool(np.isfinite(n))
    return joined([at_most(short, 1.0, promised=finite), at_least(short, 0.0, size=short, promised=finite)])


def end_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """a of A_opt = a I, |A - I| at the end of the flow, and d/n."""
    return {
        "a": loss.energy.centres[0],
        "distance_from_identity": _end_from_identity(loss, trajectory)[0],
        "d_over_n": loss.task.dimension / loss.task.context_length,
    }
