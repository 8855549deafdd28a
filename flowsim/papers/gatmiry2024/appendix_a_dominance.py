"""gatmiry2024's appendix A: Lemma A.10 and Theorem A.11 on gradient dominance, and their proofs, (27) and (28)."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from flowsim._core.types import Scalar, Series
from flowsim.claims.claim import Comparison, at_least, at_most
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.papers.gatmiry2024 import problems, setting, spaces

_DRAWN = "Judged at random positive A for which Lemma A.10 allows an epsilon. "


small_delta = setting.condition(
    "4 d delta^(4L-2) <= 1",
    lambda loss: (4.0 * loss.task.dimension * setting.delta(loss) ** (4 * setting.loops(loss) - 2), "<=", 1.0),
)


def epsilons(loss: setting.Loss, losses: Series) -> tuple[Series, Bool[Array, " T"]]:
    """For each loss, the largest epsilon that Lemma A.10 allows, and whether the lemma applies with this epsilon.

    The lemma allows epsilon <= 1 with epsilon^{2L} + d delta^{2L} (epsilon + 2)^{2L} <= loss. It applies if epsilon
    is at least 8 delta d^{3/(4L)}. If epsilon is below 10^-29.3, near the lower end of the range that is searched,
    the lemma is taken not to apply.
    """
    power, noise = 2 * setting.loops(loss), loss.task.dimension * setting.delta_power(loss)
    epsilon, _ = setting.crossing(lambda e: e**power + noise * (e + 2.0) ** power, losses, 0.0)
    smallest = 8.0 * setting.delta(loss) * float(loss.task.dimension) ** (3 / (4 * setting.loops(loss)))
    return epsilon, (epsilon >= smallest) & (epsilon > 10.0 ** (setting.SMALLEST + 1))


def _epsilon_dominance(loss: setting.Loss, trajectory: Trajectory, constant: ArrayLike) -> Comparison:
    """The statement |grad loss|^2 >= constant epsilon^{4L-2} at the points of `setting.everywhere`.

    At each point epsilon is the largest number that Lemma A.10 allows.
    """
    points = setting.everywhere(loss, trajectory)
    epsilon, promised = epsilons(loss, points.loss)
    comparison = at_least(points.grad_norm_sq, constant * epsilon ** (4 * setting.loops(loss) - 2), promised=promised)
    return setting.compared(comparison, points)


def epsilon_constants(loss: setting.Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The constants to report for Lemma A.10.

    These are the printed constant 1/4, the largest constant that is right at all points of `setting.everywhere`,
    and the constant 4 L^2 lambda_d^2 d^{-(L-1)/L} at n = inf, where lambda_d is the least eigenvalue of Sigma*.
    """
    points = setting.everywhere(loss, trajectory)
    epsilon, promised = epsilons(loss, points.loss)
    ratio = points.grad_norm_sq / jnp.where(promised, epsilon, 1.0) ** (4 * setting.loops(loss) - 2)
    return {
        "constant": jnp.asarray(1 / 4),
        "sharp_constant": jnp.min(jnp.where(promised, ratio, jnp.inf)),
        "limit_constant": 4.0 * setting.loops(loss) ** 2 * setting.dominance_factor(loss),
    }


SECTION = setting.LOOPED()
ON_EPSILON = SECTION.on(
    problems.EPSILON,
    spaces.ANY_COVARIANCE,
    hypotheses=(setting.without_bias, setting.over_determined, small_delta),
    constants=epsilon_constants,
)
ON_STEPS = SECTION.on(problems.STEPS, spaces.OPTIMUM)
ON_OPTIMUM = SECTION.on(problems.LONG_CONTEXTS[:2], spaces.OPTIMUM, hypotheses=(setting.over_determined, small_delta))


@ON_EPSILON.claim(
    "lemma-a.10",
    "Lemma A.10",
    note=setting.SMALL_COVARIANCE
    + "It also fails for large d: at A = a I and n = inf, where d^{(L-1)/L} > 16 L^2 (d > 4096 for two loops).",
)
def epsilon_dominance(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""For $8 \delta d^{3/(4L)} \le \epsilon \le 1$, $4 d \delta^{4L-2} \le 1$ and $\mathcal{L}(A, 0) \ge \epsilon^{2L}
    + d \delta^{2L} (\epsilon + 2)^{2L}$: $\lVert \nabla \mathcal{L} \rVert^2 \ge \epsilon^{4L-2}/4$
    """
    return _epsilon_dominance(loss, flow, 1 / 4)


@ON_EPSILON.corrected(epsilon_dominance, note=setting.WITH_COVARIANCE + setting.HOELDER)
def epsilon_dominance_with_dimension(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""Under the same conditions $\lVert \nabla \mathcal{L} \rVert^2 \ge \lambda_d(\Sigma^*)^2 d^{-(L-1)/L}
    \epsilon^{4L-2}/4$
    """
    return _epsilon_dominance(loss, flow, setting.dominance_factor(loss) / 4)


class _Spread(NamedTuple):
    """Quantities computed at each of the T random A of `setting.drawn`.

    Let lambda_i be the eigenvalues of A^{1/2} Sigma* A^{1/2}, with lambda_1 the largest.

    **Fields:**

    - points: the `Points` of the A.
    - offsets: the lambda_i - 1.
    - counts: the multiplicities of the lambda_i.
    - largest: lambda_1.
    - promised: whether A is positive definite and Lemma A.10 applies.
    """

    points: setting.Points
    offsets: Float[Array, "T r"]
    counts: Float[Array, " r"]
    largest: Series
    promised: Array

    def sum_of_powers(self, power: int) -> Series:
        """sum_i |lambda_i - 1|^p for p = ``power``, counting multiplicities."""
        return jnp.abs(self.offsets) ** power @ self.counts


def _spread(loss: setting.Loss) -> _Spread:
    models = setting.drawn(loss)
    points, values = setting.at_points(loss, models), setting.whitened(loss, models)
    counts = jnp.ones(values.shape[1]) if isinstance(loss, LoopedLoss) else loss.task.multiplicities
    _, allowed = epsilons(loss, points.loss)
    promised = allowed & (jnp.min(values, axis=1) > 0)
    return _Spread(points, values - 1.0, counts, jnp.max(values, axis=1), promised)


def _lines(loss: setting.Loss, factor: ArrayLike) -> Comparison:
    """The first two inequalities of (27), and |grad loss|^2 >= sum_i (lambda_i - 1)^{4L-2}/4.

    The lambda_i are those of `_Spread`. The proof applies Hoelder's inequality to the sum in the third inequality.
    ``factor`` multiplies the lower bounds on |grad loss|^2.
    """
    at, L = _spread(loss), setting.loops(loss)
    noise = setting.delta_power(loss) * (at.largest + 1.0) ** (2 * L - 1)
    first = (at.offsets ** (2 * L - 1) - noise[:, None]) ** 2 @ at.counts
    second = at.sum_of_powers(4 * L - 2) / 2 - jnp.sum(at.counts) * noise**2
    gradient = at.points.grad_norm_sq
    steps = [
        at_least(gradient, factor * first, promised=at.promised),
        at_least(first, second, size=first, promised=at.promised),
        at_least(gradient, factor * at.sum_of_powers(4 * L - 2) / 4, promised=at.promised),
    ]
    return joined([setting.compared(step, at.points) for step in steps])


@SECTION.on(problems.LONG_CONTEXTS, spaces.OPTIMUM).claim(
    "lemma-a.10.eq-27",
    "proof of Lemma A.10, (27)",
    hypotheses=(setting.over_determined, small_delta),
    note=_DRAWN
    + "The lambda_i are those of A^{1/2} Sigma* A^{1/2}, but the gradient has that form only at Sigma* = I.",
)
@eqx.filter_jit
def printed_lines(loss: setting.Loss) -> Comparison:
    r"""$\lVert \nabla \mathcal{L} \rVert^2 \ge \sum_i \bigl((\lambda_i - 1)^{2L-1} - \delta^{2L} (\lambda_1 +
    1)^{2L-1}\bigr)^2 \ge \sum_i \bigl((\lambda_i - 1)^{4L-2}/2 - \delta^{4L} (\lambda_1 + 1)^{4L-2}\bigr)$, and $\lVert
    \nabla \mathcal{L} \rVert^2 \ge \sum_i (\lambda_i - 1)^{4L-2}/4$
    """
    return _lines(loss, 1.0)


@ON_STEPS.corrected(
    printed_lines,
    hypotheses=(setting.over_determined, small_delta),
    note=_DRAWN + "Where lambda_i < 1 the noise enters with the opposite sign; the factor 4 L^2 of the gradient, which "
    "the proof leaves out, makes up for it.",
)
@eqx.filter_jit
def lines(loss: setting.Loss) -> Comparison:
    r"""The same with $\lambda_d(\Sigma^*)^2$ on the right of $\lVert \nabla \mathcal{L} \rVert^2$"""
    return _lines(loss, setting.least_eigenvalue(loss) ** 2)


def _noise(loss: setting.Loss, offset) -> Comparison:
    """The statement d delta^{4L} (lambda_1 + 1)^{4L-2} <= x^{4L-2}/4 at random A.

    lambda_1 is the largest eigenvalue of A^{1/2} Sigma* A^{1/2}. ``offset`` maps a `_Spread` to the x of each A.
    """
    at, L = _spread(loss), setting.loops(loss)
    left = loss.task.dimension * setting.delta_power(loss) ** 2 * (at.largest + 1.0) ** (4 * L - 2)
    right = offset(at) ** (4 * L - 2) / 4
    promised = at.promised & jnp.isfinite(loss.task.context_length)
    return at_most(left, right, size=jnp.maximum(left, right), promised=promised)


@ON_OPTIMUM.claim(
    "lemma-a.10.noise",
    "proof of Lemma A.10",
    note=_DRAWN + "Only the largest |lambda_i - 1| is known to be large; lambda_1 may be one.",
)
@eqx.filter_jit
def printed_noise(loss: setting.Loss) -> Comparison:
    r"""$d \delta^{4L} (\lambda_1 + 1)^{4L-2} \le (\lambda_1 - 1)^{4L-2}/4$"""
    return _noise(loss, lambda at: at.largest - 1.0)


@ON_OPTIMUM.corrected(printed_noise, note=_DRAWN)
@eqx.filter_jit
def noise(loss: setting.Loss) -> Comparison:
    r"""$d \delta^{4L} (\lambda_1 + 1)^{4L-2} \le \max_i \lvert \lambda_i - 1 \rvert^{4L-2}/4$"""
    return _noise(loss, lambda at: jnp.max(jnp.abs(at.offsets), axis=1))


def _hoelder(loss: setting.Loss, exponent: float, promised: Array, at: _Spread) -> Comparison:
    L, d = setting.loops(loss), float(loss.task.dimension)
    right = d**-exponent * at.sum_of_powers(2 * L) ** setting.dominance_power(loss)
    return at_least(at.sum_of_powers(4 * L - 2), right, promised=promised)


@ON_STEPS.claim("lemma-a.10.hoelder", "proof of Lemma A.10")
@eqx.filter_jit
def printed_hoelder(loss: setting.Loss) -> Comparison:
    r"""$\sum_i (\lambda_i - 1)^{4L-2} \ge d^{-(L-1)/(2L-1)} \bigl(\sum_i (\lambda_i - 1)^{2L}\bigr)^{(2L-1)/L}$

    It fails for L > 1 where all |lambda_i - 1| are equal: there d^{-(L-1)/L} makes both sides equal. The last line of
    the proof then drops the factor.
    """
    L, at = setting.loops(loss), _spread(loss)
    return _hoelder(loss, (L - 1) / (2 * L - 1), jnp.ones(at.largest.shape, dtype=bool), at)


@ON_STEPS.corrected(printed_hoelder)
@eqx.filter_jit
def hoelder(loss: setting.Loss) -> Comparison:
    r"""$\sum_i (\lambda_i - 1)^{4L-2} \ge d^{-(L-1)/L} \bigl(\sum_i (\lambda_i - 1)^{2L}\bigr)^{(2L-1)/L}$

    Judged for L > 1 where the |lambda_i - 1| differ. Where they are equal, both sides are equal.
    """
    L, at = setting.loops(loss), _spread(loss)
    sizes = jnp.abs(at.offsets)
    apart = jnp.min(sizes, axis=1) < 0.99 * jnp.max(sizes, axis=1)
    return _hoelder(loss, (L - 1) / L, apart & (L > 1), at)


_FACTORS = (1.0 + 1e-6, 1.5, 2.0, 10.0, 100.0)  # times the least epsilon of a step


DOMINANCE_CONSTANTS = setting.sharp_constants(setting.appendix_threshold)
THEOREM_ON_STEPS = SECTION.on(problems.STEPS, spaces.OPTIMUM, hypotheses=setting.over_determined)


@SECTION.on((*problems.DOMINANCE, problems.SMALL_COVARIANCE), spaces.ANY_COVARIANCE).claim(
    "theorem-a.11",
    "Theorem A.11",
    hypotheses=(setting.without_bias, setting.over_determined),
    constants=DOMINANCE_CONSTANTS,
    note=f"{setting.SMALL_COVARIANCE}{setting.REFUTED} The threshold here is 4^L times that of Theorem 3.4.",
)
def appendix_dominance(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""$\mathcal{L}(A, 0) \ge 2 (4 \delta)^{2L}$ implies $\lVert \nabla \mathcal{L} \rVert^2 \ge
    \mathcal{L}^{(2L-1)/L}/16$
    """
    return setting.dominates(loss, flow, 1.0, setting.appendix_threshold(loss))


@SECTION.on(
    (*problems.DOMINANCE_OF_LONG_CONTEXTS, problems.ANISOTROPIC, problems.SMALL_COVARIANCE), spaces.ANY_COVARIANCE
).corrected(
    appendix_dominance,
    hypotheses=(setting.without_bias, setting.long_context),
    constants=DOMINANCE_CONSTANTS,
    note=setting.WITH_COVARIANCE + setting.HOELDER,
)
def appendix_dominance_with_dimension(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""For $8 L d^2/\sqrt{n} \le 2^{-2L}$, $\mathcal{L}(A, 0) \ge 2 (4 \delta)^{2L}$ implies $\lVert \nabla \mathcal{L}
    \rVert^2 \ge \lambda_d(\Sigma^*)^2 d^{-(L-1)/L} \mathcal{L}^{(2L-1)/L}/16$
    """
    return setting.dominates(loss, flow, setting.dominance_factor(loss), setting.appendix_threshold(loss))


def _restated(loss: setting.Loss, factor: ArrayLike) -> Comparison:
    """The statement |grad loss|^2 >= factor epsilon^{4L-2}/4 at random A, where 2 epsilon^{2L} is the loss of A.

    The theorem makes no statement unless epsilon > 4 delta.
    """
    points = setting.at_points(loss, setting.drawn(loss))
    epsilon = (points.loss / 2) ** (1 / (2 * setting.loops(loss)))
    bound = factor * epsilon ** (4 * setting.loops(loss) - 2) / 4
    promised = (epsilon > 4.0 * setting.delta(loss)) & (points.loss > 0)
    return setting.compared(at_least(points.grad_norm_sq, bound, promised=promised), points)


@THEOREM_ON_STEPS.claim("theorem-a.11.eq-28", "proof of Theorem A.11, (28)")
@eqx.filter_jit
def printed_restated(loss: setting.Loss) -> Comparison:
    r"""For $\epsilon > 4 \delta$, $\mathcal{L}(A, 0) \ge 2 \epsilon^{2L}$ implies $\lVert \nabla \mathcal{L} \rVert^2
    \ge \epsilon^{4L-2}/4$

    The proof uses Lemma A.10 without its condition 8 delta d^{3/(4L)} <= epsilon <= 1. It also lacks the condition
    Sigma* = I and the factor d^{-(L-1)/L} in the lemma's proof.
    """
    return _restated(loss, 1.0)


@THEOREM_ON_STEPS.corrected(printed_restated, hypotheses=setting.long_context)
@eqx.filter_jit
def restated(loss: setting.Loss) -> Comparison:
    r"""For $8 L d^2/\sqrt{n} \le 2^{-2L}$ and $\epsilon > 4 \delta$, $\mathcal{L}(A, 0) \ge 2 \epsilon^{2L}$ implies
    $\lVert \nabla \mathcal{L} \rVert^2 \ge \lambda_d(\Sigma^*)^2 d^{-(L-1)/L} \epsilon^{4L-2}/4$

    Judged at random A.
    """
    return _restated(loss, setting.dominance_factor(loss))


# The condition of Theorem A.8.
short_of_half = setting.condition(
    "delta d^(1/(2L)) < 1/2", lambda loss: (setting.delta(loss) * setting.dimension_root(loss), "<", 0.5)
)


def _step(loss: setting.Loss, least: Scalar) -> Comparison:
    """The statement epsilon^{2L}/(d delta^{2L} (epsilon + 2)^{2L}) >= 1 for five numbers epsilon above ``least``.

    No statement is made at n = inf.
    """
    epsilon, power = least * jnp.asarray(_FACTORS), 2 * setting.loops(loss)
    known = jnp.isfinite(loss.task.context_length)
    safe = jnp.where(known, setting.delta_power(loss), 1.0)
    ratio = (epsilon / (epsilon + 2.0)) ** power / (loss.task.dimension * safe)
    return at_least(ratio, 1.0, promised=known)


@THEOREM_ON_STEPS.claim("theorem-a.11.step", "proof of Theorem A.11")
@eqx.filter_jit
def printed_step(loss: setting.Loss) -> Comparison:
    r"""$\epsilon > 4 \delta$ implies $\epsilon^{2L} \ge d \delta^{2L} (\epsilon + 2)^{2L}$

    It needs delta <= d^{-1/(2L)} - 1/2, and so d < 4^L. Theorem A.11 uses this step.
    """
    return _step(loss, 4.0 * setting.delta(loss))


@THEOREM_ON_STEPS.corrected(printed_step, hypotheses=short_of_half)
@eqx.filter_jit
def step(loss: setting.Loss) -> Comparison:
    r"""For $\delta d^{1/(2L)} < 1/2$, $\epsilon > 4 \delta d^{1/(2L)}$ implies $\epsilon^{2L} \ge d \delta^{2L}
    (\epsilon + 2)^{2L}$

    With it the threshold on the loss is d times the threshold of Theorem A.11.
    """
    return _step(loss, 4.0 * setting.delta(loss) * setting.dimension_root(loss))
