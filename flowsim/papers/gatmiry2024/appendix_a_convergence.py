"""gatmiry2024's appendix A: Theorem A.12 on the flow, and the equation (29) that its loss is compared with."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, Relation, at_least, equal
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.gatmiry2024 import landscape_problems as problems
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.dominance import PRINTED_CONSTANT, appendix_threshold
from flowsim.papers.gatmiry2024.section_3_7 import FLOW, exponents, in_printed_time, in_time, time_constants
from flowsim.papers.gatmiry2024.setting import (
    MODELS,
    Loss,
    all_of,
    dominance_factor,
    dominance_power,
    long_context,
    looped,
    over_determined,
    several_loops,
    without_bias,
)
from flowsim.papers.paper import Section

SECTION = Section("gatmiry2024", *MODELS)

_ROUNDING = 8 * float(jnp.finfo(jnp.float64).eps)  # relative error of a power of the loss

EQUATION = (problems.EASY, problems.OVERSHOT, problems.ONE_LOOP)


time_as_printed = SECTION.claim(
    "theorem-a.12",
    "Theorem A.12",
    "For xi >= 2 (4 delta)^{2L}, L(A(t)) <= xi from t = (1/xi)^{(L-1)/L} (16L/(L-1))^{(L-1)/(2L-1)} on",
    relation=Relation.INEQUALITY,
    along_flow=True,
    setting=looped,
    hypotheses=all_of(without_bias, over_determined, several_loops),
    constants=time_constants,
    problems=(*FLOW, problems.SMALL_COVARIANCE),
    spaces=spaces.ANY_COVARIANCE,
    note="The statement drops the condition Sigma* = I of Theorem 3.3 and fails without it: the flow at Sigma* = s I "
    "is that at I with its speed multiplied by s^2. It also fails at I, as Theorem 3.3 does.",
)(in_printed_time)


time_as_corrected = SECTION.claim(
    "theorem-a.12",
    "Theorem A.12",
    "For 8 L d^2/sqrt(n) <= 2^{-2L} and xi >= 2 (4 delta)^{2L}, L(A(t)) <= xi from "
    "t = (d/xi)^{(L-1)/L} 16L/((L-1) lambda_d(Sigma*)^2) on",
    form="corrected",
    relation=Relation.INEQUALITY,
    along_flow=True,
    setting=looped,
    hypotheses=all_of(without_bias, long_context, several_loops),
    constants=time_constants,
    problems=(*FLOW, problems.SMALL_COVARIANCE, problems.VERY_LONG_ANISOTROPIC),
    spaces=spaces.ANY_COVARIANCE,
    note="Follows from solving the differential inequality of the corrected Theorem A.11.",
)(in_time)


def _solves(loss: Loss, trajectory: Trajectory, solution, sign: float) -> Comparison:
    """g(0) against f(0) = L(A(0)), then g' against sign g^{(2L-1)/L}/16 at 32 times."""
    start = trajectory.loss[0]
    times = jnp.geomspace(1e-3, 1e6, 32) / start ** (1 / exponents(loss)[0])
    g, slope = jax.vmap(jax.value_and_grad(lambda t: solution(loss, start, t)))(times)
    field = sign * PRINTED_CONSTANT * g ** dominance_power(loss)
    first = equal(solution(loss, start, jnp.zeros(()))[None], start[None], start[None])
    sides = joined([first, equal(slope, field, jnp.maximum(jnp.abs(slope), jnp.abs(field)))])
    # Powers of powers amplify rounding.
    return rounded(sides, jnp.asarray(64.0))


def equation_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """g' / g^{(2L-1)/L} of the printed solution, and its value in the equation with the intended sign."""
    power, K, exponent = exponents(loss)
    return {"printed_solution": jnp.asarray(-power * K ** (exponent - 1)), "equation": jnp.asarray(-PRINTED_CONSTANT)}


def _printed_solution(loss: Loss, start: Scalar, t: Scalar) -> Scalar:
    """g(t) = K^{L/(2L-1)} (t + c)^{-L/(L-1)}, c = K^{(L-1)/(2L-1)} / f(0)^{(L-1)/L}, K = 16 L/(L-1)."""
    power, K, exponent = exponents(loss)
    c = K ** (exponent / power) / start ** (1 / power)
    return K**exponent / (t + c) ** power


@SECTION.claim(
    "theorem-a.12.ode",
    "proof of Theorem A.12, (29)",
    "g(t) = K^{L/(2L-1)} (t + c)^{-L/(L-1)}, c = K^{(L-1)/(2L-1)}/f(0)^{(L-1)/L}, K = 16L/(L-1), solves "
    "g' = g^{(2L-1)/L}/16, g(0) = f(0)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=looped,
    hypotheses=several_loops,
    constants=equation_constants,
    problems=EQUATION,
    spaces=spaces.STILL_ISOTROPIC,
    note="The equation lacks its minus sign. With it g is still no solution: the exponents of K are wrong, so g falls "
    "faster than the equation says, by the factor 16 (L/(L-1)) K^{-(L-1)/(2L-1)}, 10.1 for two loops.",
)
def printed_solution_solves(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The printed g in the printed equation, g' = +g^{(2L-1)/L}/16."""
    return _solves(loss, trajectory, _printed_solution, 1.0)


def _solution(loss: Loss, start: Scalar, t: Scalar) -> Scalar:
    """g(t) = (K / (t + c))^{L/(L-1)}, c = K / f(0)^{(L-1)/L}, K = 16 L/(L-1)."""
    power, K, _ = exponents(loss)
    return (K / (t + K / start ** (1 / power))) ** power


@SECTION.claim(
    "theorem-a.12.ode",
    "proof of Theorem A.12, (29)",
    "g(t) = (K/(t + c))^{L/(L-1)}, c = K/f(0)^{(L-1)/L}, K = 16L/(L-1), solves g' = -g^{(2L-1)/L}/16, g(0) = f(0)",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=looped,
    hypotheses=several_loops,
    constants=equation_constants,
    problems=EQUATION,
    spaces=spaces.STILL_ISOTROPIC,
    note="With the intended sign and the exponents that solve the equation, the time is (1/xi)^{(L-1)/L} 16L/(L-1).",
)
def solution_solves(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The corrected g in g' = -g^{(2L-1)/L}/16."""
    return _solves(loss, trajectory, _solution, -1.0)


def _below(loss: Loss, trajectory: Trajectory, time: ArrayLike) -> Comparison:
    """f(t)^{-(L-1)/L} - f(0)^{-(L-1)/L} against t/T, wherever f(t) >= 2 (4 delta)^{2L}.

    This is f(t) <= g(t) for the g with g(0) = f(0) that falls as (t + c)^{-L/(L-1)}.
    """
    f, t, power = trajectory.loss, trajectory.t, exponents(loss)[0]
    powers = f ** (-1 / power)
    promised = (t > 0) & (f >= appendix_threshold(loss))
    return at_least(powers - powers[0], t / time, promised=promised, allowance=_ROUNDING * powers)


@SECTION.claim(
    "theorem-a.12.comparison",
    "proof of Theorem A.12, after (29)",
    "f(t) = L(A(t), 0) <= g(t) = K^{L/(2L-1)} (t + c)^{-L/(L-1)}, c = K^{(L-1)/(2L-1)}/f(0)^{(L-1)/L}, K = 16L/(L-1), "
    "while f(t) >= 2 (4 delta)^{2L}",
    relation=Relation.INEQUALITY,
    along_flow=True,
    setting=looped,
    hypotheses=all_of(without_bias, over_determined, several_loops),
    constants=time_constants,
    problems=(*FLOW, problems.SMALL_COVARIANCE),
    spaces=spaces.ANY_COVARIANCE,
    note="The proof claims this for all t >= 0. Judged as f^{-(L-1)/L} - f(0)^{-(L-1)/L} >= K^{-(L-1)/(2L-1)} t. The "
    "printed g falls faster than its equation says (theorem-a.12.ode), and the equation faster than gradient dominance "
    "allows: its constant lacks d^{-(L-1)/L} and the least eigenvalue of Sigma* (theorem-a.11).",
)
def below_printed_solution(loss: Loss, trajectory: Trajectory) -> Comparison:
    """f against the printed g, with T = K^{(L-1)/(2L-1)}."""
    power, K, exponent = exponents(loss)
    return _below(loss, trajectory, K ** (exponent / power))


@SECTION.claim(
    "theorem-a.12.comparison",
    "proof of Theorem A.12, after (29)",
    "For 8 L d^2/sqrt(n) <= 2^{-2L}, f(t) <= g(t) = (f(0)^{-(L-1)/L} + lambda_d(Sigma*)^2 t/(K d^{(L-1)/L}))^"
    "{-L/(L-1)}, K = 16L/(L-1), while f(t) >= 2 (4 delta)^{2L}",
    form="corrected",
    relation=Relation.INEQUALITY,
    along_flow=True,
    setting=looped,
    hypotheses=all_of(without_bias, long_context, several_loops),
    constants=time_constants,
    problems=(*FLOW, problems.SMALL_COVARIANCE, problems.VERY_LONG_ANISOTROPIC),
    spaces=spaces.ANY_COVARIANCE,
    note="g solves the equation that the corrected Theorem A.11 gives. Judged as f^{-(L-1)/L} - f(0)^{-(L-1)/L} "
    ">= lambda_d^2 t/(K d^{(L-1)/L}).",
)
def below_solution(loss: Loss, trajectory: Trajectory) -> Comparison:
    """f against the g of the corrected gradient dominance, with T = K d^{(L-1)/L}/lambda_d^2."""
    return _below(loss, trajectory, exponents(loss)[1] / dominance_factor(loss))
