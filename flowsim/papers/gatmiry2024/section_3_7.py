"""gatmiry2024's section 3.7: Theorems 3.2 to 3.4 on the minimum, the flow and dominance; convexity of the loss."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from flowsim._core.types import Scalar, Series
from flowsim.claims.claim import Comparison, at_least, at_most
from flowsim.claims.hypotheses import Hypothesis, agrees, hypothesis
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.models import LoopedAttention
from flowsim.papers.gatmiry2024 import lemmas, problems, setting, spaces


def minimum_constants(loss: setting.Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The constants to report: the minimum of the loss, the bound on it, and its order d (d/n)^L."""
    n, d, L = loss.task.context_length, loss.task.dimension, setting.loops(loss)
    return {"minimum": loss.minimum, "bound": d * 4.0**L * setting.delta_power(loss), "order": d * (d / n) ** L}


SECTION_3_7 = setting.LOOPED()
ON_OPTIMUM = SECTION_3_7.on(problems.OPTIMUM, spaces.OPTIMUM, hypotheses=setting.long_context)
ON_FLOW = SECTION_3_7.on(
    problems.FLOW,
    spaces.ISOTROPIC_FLOWS,
    hypotheses=(setting.identity_covariance, setting.over_determined, setting.several_loops),
)


@ON_OPTIMUM.claim("theorem-3.2.loss", "Theorem 3.2, 1", constants=minimum_constants)
def minimum_bounded(loss: setting.Loss) -> Comparison:
    r"""$8 L d^2/\sqrt{n} \le 2^{-2L}$ implies $\mathcal{L}(A_{\mathrm{opt}}, u_{\mathrm{opt}}) \le 8 L d^2
    2^{2L}/\sqrt{n}$

    The minimum is of the order d (d/n)^L, far below the bound.
    """
    return setting.minimum_below(loss)


@ON_OPTIMUM.claim("theorem-3.2.minimiser", "Theorem 3.2, 2", constants=setting.minimiser_constants)
def minimiser_bounded(loss: setting.Loss) -> Comparison:
    r"""Under that condition $(1 - c) {\Sigma^*}^{-1} \preceq A_{\mathrm{opt}} \preceq (1 + c) {\Sigma^*}^{-1}$, $c = 8
    \delta d^{1/(2L)}$, and $u_{\mathrm{opt}} = 0$

    1 - c > 0 needs sqrt(n) > 8 L d^2 8^{2L}, but the condition allows c up to 4. Both inequalities are compared at
    every finite n, for the A_opt among symmetric matrices. Among all matrices there is a lower loss
    (theorem-3.3.stability). The distance is of the order d/n, so the remark that the estimate is the best one can hope
    for is wrong. u_opt = 0 is judged for L <= 2. At every L the term in u is the mean of a square.
    """
    return joined([setting.within(loss, 8.0), setting.bias_is_zero(loss)])


def exponents(loss: setting.Loss) -> tuple[float, float, float]:
    """The numbers L/(L-1), K = 16 L/(L-1) and L/(2L-1).

    The statements do not apply to L = 1. To avoid a division by zero, L = 1 is replaced by L = 2.
    """
    L = max(setting.loops(loss), 2)
    return L / (L - 1), 16 * L / (L - 1), L / (2 * L - 1)


def _printed_level(loss: setting.Loss, t: Series) -> Series:
    """The level xi that the loss has reached at time t by the printed Theorem 3.3.

    It solves t = (1/xi)^{(L-1)/L} (16 L/(L-1))^{(L-1)/(2L-1)}.
    """
    power, K, exponent = exponents(loss)
    return K**exponent / t**power


def _level(loss: setting.Loss, t: Series) -> Series:
    """The level xi that the loss has reached at time t by the corrected Theorem A.12.

    It solves t = (d/xi)^{(L-1)/L} 16 L/((L-1) lambda_d^2), where lambda_d is the least eigenvalue of Sigma*.
    """
    power, K, _ = exponents(loss)
    return loss.task.dimension * (K / (setting.least_eigenvalue(loss) ** 2 * t)) ** power


def _reached(loss: setting.Loss, t: Series, level) -> Series:
    """The level that a theorem guarantees at each time t: the larger of level(loss, t) and 2 (4 delta)^{2L}.

    At t = 0 it is infinite. ``level`` is `_printed_level` or `_level`.
    """
    known = t > 0
    return jnp.where(
        known, jnp.maximum(level(loss, jnp.where(known, t, 1.0)), setting.appendix_threshold(loss)), jnp.inf
    )


def _in_time(loss: setting.Loss, trajectory: Trajectory, level) -> Comparison:
    """The statement that the loss at time t is at most the xi of `_reached`.

    The statement is made only where xi is below the loss at the start, because the loss never rises along a flow.
    """
    xi = _reached(loss, trajectory.t, level)
    promised = xi < trajectory.loss[0]
    return at_most(trajectory.loss, jnp.where(promised, xi, trajectory.loss[0]), promised=promised)


def time_constants(loss: setting.Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The constants to report for the time t until the loss is at most xi.

    All except the threshold are values of t xi^{(L-1)/L}.

    - printed: the value of the theorem.
    - corrected: the value with d, with the least eigenvalue of Sigma*, and with the exponent that is lost in the
      proof.
    - seen: the largest value along the flow while the loss is at least the threshold.
    - limit: d^{(L-1)/L} / (4 L (L-1)), the limit for small xi at n = inf and Sigma* = I.
    - threshold: 2 (4 delta)^{2L}, the least xi of the theorem.
    """
    power, K, exponent = exponents(loss)
    d, L = loss.task.dimension, max(setting.loops(loss), 2)
    seen = trajectory.t * trajectory.loss ** (1 / power)
    above = trajectory.loss >= setting.appendix_threshold(loss)
    return {
        "printed": jnp.asarray(K ** (exponent / power)),
        "corrected": K * d ** (1 / power) / setting.least_eigenvalue(loss) ** 2,
        "seen": jnp.max(jnp.where(above, seen, 0.0)),
        "limit": jnp.asarray(d ** (1 / power) / (4 * L * (L - 1))),
        "threshold": setting.appendix_threshold(loss),
    }


@ON_FLOW.claim("theorem-3.3.time", "Theorem 3.3, 1", constants=time_constants)
def in_printed_time(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""For $\Sigma^* = I$ and $\xi \ge 2 (4 \delta)^{2L}$, $\mathcal{L}(A(t)) \le \xi$ from $t = (1/\xi)^{(L-1)/L}
    \bigl(\frac{16L}{L-1}\bigr)^{(L-1)/(2L-1)}$ on

    At n = inf the flow from A = 0 reaches xi at t = ((d/xi)^{(L-1)/L} - 1)/(4 L (L-1)). This is later than printed
    where d is large: for two loops and small xi, where d > 645. The proof uses the constant of Theorem 3.4, which lacks
    d^{-(L-1)/L}, and misplaces the exponent of 16L/(L-1).
    """
    return _in_time(loss, flow, _printed_level)


@ON_FLOW.corrected(
    in_printed_time,
    hypotheses=(setting.identity_covariance, setting.several_loops, setting.long_context),
    constants=time_constants,
)
def in_time(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""For $\Sigma^* = I$, $8 L d^2/\sqrt{n} \le 2^{-2L}$ and $\xi \ge 2 (4 \delta)^{2L}$, $\mathcal{L}(A(t)) \le \xi$
    from $t = (d/\xi)^{(L-1)/L} \frac{16L}{L-1}$ on

    The differential inequality of the corrected Theorem 3.4 implies this.
    """
    return _in_time(loss, flow, _level)


def neighbourhood_constants(loss: setting.Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The constants to report for the bound c = 8 (1 + 4 d^{1/(2L)}) xi^{1/(2L)}.

    They are the factor 8 (1 + 4 d^{1/(2L)}), and the context length above which some allowed xi gives c < 1.
    """
    L, factor = setting.loops(loss), 8.0 * (1.0 + 4.0 * setting.dimension_root(loss))
    needed = 16.0 * L * loss.task.dimension * (4.0 * factor) ** (2 * L)
    return {"factor": jnp.asarray(factor), "context_length_needed": jnp.asarray(float(needed) ** 2)}


@ON_FLOW.claim("theorem-3.3.neighbourhood", "Theorem 3.3, 2", constants=neighbourhood_constants)
def neighbourhood(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""From that time on $(1 - c) A_{\mathrm{opt}} \preceq A(t) \preceq (1 + c) A_{\mathrm{opt}}$ with $c = 8 (1 + 4
    d^{1/(2L)}) \xi^{1/(2L)}$

    Holds although the printed time fails, because c is large.
    """
    xi = _reached(loss, flow.t, _printed_level)
    bound = 8.0 * (1.0 + 4.0 * setting.dimension_root(loss)) * xi ** (1 / (2 * setting.loops(loss)))
    promised = jnp.isfinite(bound) & (bound > 0)
    return at_most(setting.deviation(loss, flow.models), jnp.where(promised, bound, 1.0), promised=promised)


def printed_threshold(loss: setting.Loss) -> Scalar:
    """The threshold 16 L d 4^L / sqrt(n). **Source:** gatmiry2024, Theorem 3.4."""
    return 2.0 * 4.0 ** setting.loops(loss) * setting.delta_power(loss)


DOMINANCE_CONSTANTS = setting.sharp_constants(printed_threshold)


@SECTION_3_7.on(problems.DOMINANCE, spaces.ISOTROPIC_FLOWS).claim(
    "theorem-3.4",
    "Theorem 3.4",
    hypotheses=(setting.identity_covariance, setting.over_determined),
    constants=DOMINANCE_CONSTANTS,
    note=setting.REFUTED,
)
def dominance(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""For $\Sigma^* = I$, $\mathcal{L}(A, 0) \ge 16 L d 4^L/\sqrt{n}$ implies $\lVert \nabla \mathcal{L} \rVert^2 \ge
    \mathcal{L}^{(2L-1)/L}/16$
    """
    return setting.dominates(loss, flow, 1.0, printed_threshold(loss))


@SECTION_3_7.on(problems.DOMINANCE_OF_LONG_CONTEXTS, spaces.LONG_FLOWS).corrected(
    dominance,
    hypotheses=(setting.identity_covariance, setting.long_context),
    constants=DOMINANCE_CONSTANTS,
    note=f"{setting.HOELDER} Corrected by it and by Theorem 3.2's condition on n. In the limit the sharp constant is "
    "4 L^2 d^{-(L-1)/L}.",
)
def dominance_with_dimension(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""For $\Sigma^* = I$ and $8 L d^2/\sqrt{n} \le 2^{-2L}$, $\mathcal{L}(A, 0) \ge 16 L d 4^L/\sqrt{n}$ implies
    $\lVert \nabla \mathcal{L} \rVert^2 \ge d^{-(L-1)/L} \mathcal{L}^{(2L-1)/L}/16$
    """
    return setting.dominates(loss, flow, setting.dimension_loss(loss), printed_threshold(loss))


Pairs = Float[Array, "pairs 2 d d"]

_INFINITE = problems.looped("L = 2, d = 3, anisotropic, n = inf", 2, "inf", lemmas.SKEW)
_LONG = problems.looped("L = 3, d = 3, identity, n = 10^20", 3, 10**20, dimension=3)
_INFINITE_DEEP = problems.looped("L = 3, d = 4, n = inf", 3, "inf", dimension=4)
_PAIRS = 12
_MOST_LOOPS = 3  # the most loops for the exact loss over all matrices
_LENGTHS = (0.5, 1.0, 2.0, 4.0)


def _halfway(loss: LoopedLoss, pairs: Pairs) -> tuple[Array, Array]:
    """The loss at (A + B)/2 and the mean of the losses at A and at B, for each pair.

    ``pairs`` has A' = Sigma*^{1/2} A Sigma*^{1/2} and B' = Sigma*^{1/2} B Sigma*^{1/2} in place of A and B.
    """
    inverse_root = jnp.linalg.inv(loss.root)
    energy = lambda A: loss(LoopedAttention(inverse_root @ A @ inverse_root, loops=setting.loops(loss)))
    return jax.lax.map(lambda pair: (energy((pair[0] + pair[1]) / 2), (energy(pair[0]) + energy(pair[1])) / 2), pairs)


def _nilpotent(loss: LoopedLoss) -> Pairs:
    """Pairs of A' = c I + r e_1 e_d^T and its transpose, for r = 0.5, 1, 2 and 4.

    c I is the best multiple of I. At d = 1 the pairs are c + r and c - r.
    """
    d, c = loss.task.dimension, loss.energy.centres[0]
    corner = jnp.zeros((d, d)).at[0, d - 1].set(1.0)
    other = corner.T if d > 1 else -corner
    offsets = jnp.asarray(_LENGTHS)[:, None, None, None] * jnp.stack([corner, other])[None]
    return c * jnp.eye(d)[None, None] + offsets


def _best_pair(loss: LoopedLoss) -> tuple[Array, Array]:
    """The loss at (A + B)/2 and the mean of the losses at A and at B, for the best pair of `_nilpotent`.

    The best pair has the largest 1 - mean/halfway, where halfway is the loss at (A + B)/2.
    """
    middle, mean = _halfway(LoopedLoss(loss.task, setting.loops(loss), symmetric=False), _nilpotent(loss))
    best = jnp.argmax((middle - mean) / middle)
    return middle[best], mean[best]


_few_loops = setting.condition(
    "L small enough for the loss over all matrices", lambda loss: (float(setting.loops(loss)), "<=", float(_MOST_LOOPS))
)


def _decided(loss: LoopedLoss, start: PyTree) -> list[Hypothesis]:
    """The hypotheses under which it is known whether the loss is convex.

    L is small enough for the loss over all matrices. If also L > 1 and d > 1, the best pair of `_nilpotent` has a
    larger loss at (A + B)/2 than the mean of the losses at A and at B. At L = 1 or d = 1 the loss is convex.
    """
    few = _few_loops(loss, start)
    if setting.loops(loss) == 1 or loss.task.dimension == 1 or not few[0].met:
        return few
    middle, mean = _best_pair(loss)
    found = 1.0 if middle > mean else float("nan")
    return [*few, hypothesis("a pair A, B whose loss halfway is above its mean loss is known", found, ">=", 1.0)]


_several_dimensions = setting.condition("d > 1", lambda loss: (float(loss.task.dimension), ">", 1.0))
LONG_AND_SEVERAL = (setting.several_loops, _several_dimensions, _few_loops, setting.long_context)

CONVEXITY = setting.LOOPED(setting=setting.matrices)


@CONVEXITY.on((lemmas.SHORT, lemmas.DEEP, _INFINITE, lemmas.SINGLE, lemmas.ONE_DIMENSION), spaces.LANDSCAPES).claim(
    "sec-3.7.non-convex", "after Theorem 3.3", hypotheses=_decided
)
def not_convex(loss: LoopedLoss) -> Comparison:
    r"""The landscape of the loss in $A$ is highly non-convex: $\mathcal{L}\bigl((A + B)/2, 0\bigr) >
    \bigl(\mathcal{L}(A, 0) + \mathcal{L}(B, 0)\bigr)/2$ for some $A$, $B$

    Judged at B = A^T with Sigma*^{1/2} A Sigma*^{1/2} = c I + r e_1 e_d^T. At L = 1 the loss is quadratic, and at d = 1
    it is a mean of even powers. Both are convex. At short contexts this search can fail to find a pair, as for two
    loops at n = 5, d = 3. The row is then unresolved.
    """
    middle, mean = _best_pair(loss)
    return at_least(middle[None], mean[None], size=middle[None])


CONVEXITY.on((_INFINITE, _LONG), spaces.LANDSCAPES).corrected(
    not_convex,
    hypotheses=LONG_AND_SEVERAL,
    statement=r"For $L > 1$, $d > 1$ and $8 L d^2/\sqrt{n} \le 2^{-2L}$, $\mathcal{L}\bigl((A + A^\top)/2, 0\bigr) > "
    r"\mathcal{L}(A, 0)$ for some $A$",
    note="At n = inf all A with (Sigma*^{1/2} A Sigma*^{1/2} - I)^L = 0 have loss 0, so Sigma*^-1 is not the only "
    "minimiser among matrices that need not be symmetric.",
)(not_convex)


def _symmetric(loss: LoopedLoss) -> Pairs:
    """Random pairs of symmetric matrices A' and B' at many distances from I, which need not be positive."""
    d = loss.task.dimension
    noise = jax.random.normal(jax.random.key(0), (_PAIRS, 2, d, d))
    sizes = jnp.geomspace(0.1, 10.0, _PAIRS)[:, None, None, None]
    return jnp.eye(d)[None, None] + sizes * (noise + jnp.swapaxes(noise, 2, 3)) / 2


def _infinite(loss: LoopedLoss, start: PyTree) -> list[Hypothesis]:
    """The hypothesis n = infinity."""
    return [agrees("n = infinity", float(1.0 / loss.task.context_length), 0.0)]


@CONVEXITY.on((_INFINITE, _INFINITE_DEEP), spaces.LANDSCAPES).claim(
    "sec-3.7.convex-on-symmetric", "after Theorem 3.3", form="corrected", hypotheses=_infinite
)
def convex_on_symmetric(loss: LoopedLoss) -> Comparison:
    r"""At $n = \infty$ the loss is convex on symmetric $A$, to which $A^{1/2}$ and the flow of Theorem 3.3 belong

    The loss is tr (I - Sigma*^{1/2} A Sigma*^{1/2})^{2L}, the trace of a convex function. So convex analysis does apply
    in the limit of Theorem 3.3. Only strong convexity is lost, for L > 1. Judged at random A and B.
    """
    middle, mean = _halfway(loss, _symmetric(loss))
    return rounded(at_most(middle, mean), jnp.asarray(float(loss.task.dimension)))
