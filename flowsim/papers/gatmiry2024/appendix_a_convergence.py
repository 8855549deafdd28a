"""gatmiry2024's appendix A: Theorem A.8 on the optimum, Lemma A.9 on small losses, and Theorem A.12 on the flow."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, PyTree

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.gatmiry2024 import problems, setting, spaces
from flowsim.papers.gatmiry2024.section_3_7 import exponents, in_printed_time, in_time, time_constants
from flowsim.papers.gatmiry2024.section_4 import proximity_constants

SECTION = setting.LOOPED()


@SECTION.on(problems.OPTIMUM, spaces.OPTIMUM).claim(
    "theorem-a.8", "Theorem A.8", hypotheses=setting.long_context, constants=setting.minimiser_constants
)
def optimum(loss: setting.Loss) -> Comparison:
    r"""$\delta d^{1/(2L)} < 1/2$ implies $\mathcal{L}(A_{\mathrm{opt}}) \le d (2 \delta)^{2L}$, $\lVert
    A_{\mathrm{opt}}^{1/2} \Sigma^* A_{\mathrm{opt}}^{1/2} - I \rVert \le 4 \delta d^{1/(2L)}$, (23) and
    $u_{\mathrm{opt}} = 0$

    These are the bounds of Theorem 3.2 and (22), which is twice as sharp.
    """
    return joined(
        [setting.minimum_below(loss), setting.within(loss, 4.0), setting.within(loss, 8.0), setting.bias_is_zero(loss)]
    )


@SECTION.on(problems.PROXIMITY, spaces.PROXIMITY).claim(
    "lemma-a.9", "Lemma A.9", hypotheses=(setting.without_bias, setting.over_determined), constants=proximity_constants
)
def appendix_proximity(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""For $\epsilon > 2 \delta$, $\mathcal{L}(A, 0) \le \epsilon^{2L} - \delta^{2L} (\epsilon + 2)^{2L}$ implies $(1 -
    c) A_{\mathrm{opt}} \preceq A \preceq (1 + c) A_{\mathrm{opt}}$, $c = 4 \epsilon + 16 \delta d^{1/(2L)}$

    Both halves are judged, along the flow and at random A, with the least epsilon that the loss allows. Nothing is
    promised where delta >= 1.
    """
    points, power = setting.everywhere(loss, flow), 2 * setting.loops(loss)
    # The bound is epsilon^{2L} times an increasing function, positive from some epsilon > 2 delta on if delta < 1.
    room = lambda e: e**power * (1.0 - setting.delta_power(loss) * (1.0 + 2.0 / e) ** power)
    _, epsilon = setting.crossing(room, points.loss, setting.LARGEST)
    bound = 4.0 * epsilon + 16.0 * setting.delta(loss) * setting.dimension_root(loss)
    promised = (room(epsilon) >= points.loss) & (points.loss > 0) & (epsilon > 10.0 ** (setting.SMALLEST + 1))
    return setting.compared(at_most(points.deviation, bound, promised=promised), points)


_ROUNDING = 8 * float(jnp.finfo(jnp.float64).eps)  # relative error of a power of the loss

_ANISOTROPIC = (*problems.FLOW, problems.SMALL_COVARIANCE)
ON_ANY_COVARIANCE = SECTION.on(
    _ANISOTROPIC,
    spaces.ANY_COVARIANCE,
    hypotheses=(setting.without_bias, setting.over_determined, setting.several_loops),
    constants=time_constants,
)
ON_LONG_CONTEXTS = ON_ANY_COVARIANCE.on(
    (*_ANISOTROPIC, problems.VERY_LONG_ANISOTROPIC),
    spaces.ANY_COVARIANCE,
    hypotheses=(setting.without_bias, setting.long_context, setting.several_loops),
)


@ON_ANY_COVARIANCE.claim("theorem-a.12", "Theorem A.12")
def time_as_printed(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""For $\xi \ge 2 (4 \delta)^{2L}$, $\mathcal{L}(A(t)) \le \xi$ from $t = (1/\xi)^{(L-1)/L}
    \bigl(\frac{16L}{L-1}\bigr)^{(L-1)/(2L-1)}$ on

    The statement drops the condition Sigma* = I of Theorem 3.3 and fails without it: at Sigma* = s I the flow is s^2
    times as fast as at I. It also fails at I, as Theorem 3.3 does.
    """
    return in_printed_time.compare(loss, flow)


@ON_LONG_CONTEXTS.corrected(time_as_printed)
def time_as_corrected(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""For $8 L d^2/\sqrt{n} \le 2^{-2L}$ and $\xi \ge 2 (4 \delta)^{2L}$, $\mathcal{L}(A(t)) \le \xi$ from $t =
    (d/\xi)^{(L-1)/L} \frac{16L}{(L-1) \lambda_d(\Sigma^*)^2}$ on

    The differential inequality of the corrected Theorem A.11 implies this.
    """
    return in_time.compare(loss, flow)


def _solves(loss: setting.Loss, start: PyTree, solution, sign: float) -> Comparison:
    """The statement that a function g of time solves g' = sign g^{(2L-1)/L}/16 with the loss at the start as g(0).

    The equation is judged at 32 times.

    **Arguments:** solution: maps (loss, g(0), t) to g(t); sign: 1 or -1.
    """
    initial = loss(start)
    times = jnp.geomspace(1e-3, 1e6, 32) / initial ** (1 / exponents(loss)[0])
    g, slope = jax.vmap(jax.value_and_grad(lambda t: solution(loss, initial, t)))(times)
    field = sign * setting.PRINTED_CONSTANT * g ** setting.dominance_power(loss)
    first = equal(solution(loss, initial, jnp.zeros(()))[None], initial[None], initial[None])
    sides = joined([first, equal(slope, field, jnp.maximum(jnp.abs(slope), jnp.abs(field)))])
    # Powers of powers amplify rounding.
    return rounded(sides, jnp.asarray(64.0))


def equation_constants(loss: setting.Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The ratio g'/g^{(2L-1)/L} of the printed solution g, and the ratio -1/16 that the intended equation has."""
    power, K, exponent = exponents(loss)
    return {
        "printed_solution": jnp.asarray(-power * K ** (exponent - 1)),
        "equation": jnp.asarray(-setting.PRINTED_CONSTANT),
    }


ON_EQUATION = SECTION.on(
    (problems.EASY, problems.OVERSHOT, problems.ONE_LOOP),
    spaces.STILL_ISOTROPIC,
    hypotheses=setting.several_loops,
    constants=equation_constants,
)


def _printed_solution(loss: setting.Loss, start: Scalar, t: Scalar) -> Scalar:
    """The printed solution g(t) = K^{L/(2L-1)} (t + c)^{-L/(L-1)}.

    Here K = 16 L/(L-1) and c = K^{(L-1)/(2L-1)} / f(0)^{(L-1)/L}, where f(0) is ``start``.
    """
    power, K, exponent = exponents(loss)
    c = K ** (exponent / power) / start ** (1 / power)
    return K**exponent / (t + c) ** power


@ON_EQUATION.claim("theorem-a.12.ode", "proof of Theorem A.12, (29)")
def printed_solution_solves(loss: setting.Loss, start: PyTree) -> Comparison:
    r"""$g(t) = K^{L/(2L-1)} (t + c)^{-L/(L-1)}$, $c = K^{(L-1)/(2L-1)}/f(0)^{(L-1)/L}$, $K = \frac{16L}{L-1}$, solves
    $g' = g^{(2L-1)/L}/16$, $g(0) = f(0)$

    The equation lacks its minus sign. With the minus sign g does not solve it either, because the exponents of K are
    wrong: g falls faster than the equation says, by the factor 16 (L/(L-1)) K^{-(L-1)/(2L-1)}. For two loops this is
    10.1.
    """
    return _solves(loss, start, _printed_solution, 1.0)


def _solution(loss: setting.Loss, start: Scalar, t: Scalar) -> Scalar:
    """The correct solution g(t) = (K / (t + c))^{L/(L-1)}.

    Here K = 16 L/(L-1) and c = K / f(0)^{(L-1)/L}, where f(0) is ``start``.
    """
    power, K, _ = exponents(loss)
    return (K / (t + K / start ** (1 / power))) ** power


@ON_EQUATION.corrected(printed_solution_solves)
def solution_solves(loss: setting.Loss, start: PyTree) -> Comparison:
    r"""$g(t) = \bigl(\frac{K}{t + c}\bigr)^{L/(L-1)}$, $c = K/f(0)^{(L-1)/L}$, $K = \frac{16L}{L-1}$, solves $g' =
    -g^{(2L-1)/L}/16$, $g(0) = f(0)$

    This equation has the intended sign, and g has the exponents that solve it. The time is then (1/xi)^{(L-1)/L}
    16L/(L-1).
    """
    return _solves(loss, start, _solution, -1.0)


def _below(loss: setting.Loss, trajectory: Trajectory, time: ArrayLike) -> Comparison:
    """The statement f(t)^{-(L-1)/L} - f(0)^{-(L-1)/L} >= t/``time`` while f(t) >= 2 (4 delta)^{2L}.

    f(t) is the loss along the flow. Let g be the multiple of (t + c)^{-L/(L-1)} with g(0) = f(0), where c =
    ``time`` f(0)^{-(L-1)/L}. Then the statement is equivalent to f(t) <= g(t).
    """
    f, t, power = trajectory.loss, trajectory.t, exponents(loss)[0]
    powers = f ** (-1 / power)
    promised = (t > 0) & (f >= setting.appendix_threshold(loss))
    return at_least(powers - powers[0], t / time, promised=promised, allowance=_ROUNDING * powers)


@ON_ANY_COVARIANCE.claim("theorem-a.12.comparison", "proof of Theorem A.12, after (29)")
def below_printed_solution(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""$f(t) = \mathcal{L}(A(t), 0) \le g(t) = K^{L/(2L-1)} (t + c)^{-L/(L-1)}$, $c = K^{(L-1)/(2L-1)}/f(0)^{(L-1)/L}$,
    $K = \frac{16L}{L-1}$, while $f(t) \ge 2 (4 \delta)^{2L}$

    The proof claims this for all t >= 0. Judged as f^{-(L-1)/L} - f(0)^{-(L-1)/L} >= K^{-(L-1)/(2L-1)} t. The printed g
    falls faster than its equation says (theorem-a.12.ode). The solution of the equation falls faster than gradient
    dominance allows, because the constant lacks d^{-(L-1)/L} and the least eigenvalue of Sigma* (theorem-a.11).
    """
    power, K, exponent = exponents(loss)
    return _below(loss, flow, K ** (exponent / power))


@ON_LONG_CONTEXTS.corrected(below_printed_solution)
def below_solution(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""For $8 L d^2/\sqrt{n} \le 2^{-2L}$, $f(t) \le g(t) = \Bigl(f(0)^{-(L-1)/L} + \frac{\lambda_d(\Sigma^*)^2 t}{K
    d^{(L-1)/L}}\Bigr)^{-L/(L-1)}$, $K = \frac{16L}{L-1}$, while $f(t) \ge 2 (4 \delta)^{2L}$

    g solves the equation that the corrected Theorem A.11 gives. Judged as f^{-(L-1)/L} - f(0)^{-(L-1)/L} >= lambda_d^2
    t/(K d^{(L-1)/L}).
    """
    return _below(loss, flow, exponents(loss)[1] / setting.dominance_factor(loss))
