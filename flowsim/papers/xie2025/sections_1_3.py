"""xie2025, sections 1 and 3, multi-head self-attention: what heads cannot do, how many are enough, and convexity."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, at_least
from flowsim.claims.statements import joined
from flowsim.losses import MultiHeadLoss
from flowsim.models import GradientDescentStep, MultiHeadAttention
from flowsim.papers.xie2025 import exact, problems, setting, spaces
from flowsim.papers.xie2025.appendix_a_1_2 import Moment, derivative, product_of_means, product_with_spread
from flowsim.tasks import LinearRegression

SECTION = setting.HEADS(needs=setting.few_coordinates)


@SECTION.on(problems.FINITE, spaces.FINITE).claim(
    "sec-1.heads", "section 1, contribution 1", hypotheses=(setting.prior_mean, setting.finite_context)
)
def distance_to_descent(loss: MultiHeadLoss) -> Comparison:
    r"""for $w_\star \ne 0$ and at finite $C$ no number of heads with $y_q = 0$ predicts as one step of gradient descent
    from $w_\star$ does

    The text says that heads cannot in general replicate the step. For every eta the least mean squared difference is
    2 |w*|^2/(d C + 2). It vanishes as C -> infinity. In this limit one head predicts as gradient descent does.
    """
    known, missed = exact.moments(loss.task), jnp.sum(loss.risk.prior_mean**2)
    (N,) = exact.solved(known, known.first[None])
    found = jnp.stack([exact.floats(1 - (N * known.first).sum()), loss.risk.gap])
    return at_least(missed * found, 0.0, size=missed)


_AT_REST = 1e-10

ON_TASKS = SECTION.on(problems.TASKS, spaces.TASKS)
ON_LIMITS = SECTION.on(problems.LIMITS, spaces.LIMITS, hypotheses=(setting.prior_mean, setting.infinite_context))
ON_ZERO_MEAN_LIMITS = SECTION.on(
    problems.ZERO_MEAN_LIMITS, spaces.ZERO_MEAN_LIMITS, hypotheses=(setting.zero_prior_mean, setting.infinite_context)
)


@ON_TASKS.claim("theorem-1", "Theorem 1", constants=setting.optimum_constants)
def saturated(loss: MultiHeadLoss) -> Comparison:
    """the least risk of $d + 1$ heads is that of $d + 2$ heads

    Both are the least risk of any number of heads, d (d+1)/(C+d+1) + 2 |w*|^2/(d C + 2) with y_q = 0.
    """
    task, d = loss.task, loss.task.dimension
    pairs = []
    for H in (d + 1, d + 2):
        model, found = setting.reached(task, setting.zero_heads(d, H))
        pairs.append(setting.same(task, found, setting.least(task), setting.label_energy(task)))
        pairs += setting.same_forms(task, model, exact.moments(task), np.zeros(d))
    return joined(pairs)


def cost_of_a_head(task: LinearRegression) -> Array:
    """A lower bound on the excess risk of d - 1 heads with y_q = 0 over the least risk of any number of heads.

    It holds at finite C and w* != 0. The quadratic forms M_i(v, v) = sum_h (b_h^T v) (a_i^h)^T v of d - 1 heads
    vanish where all b_h^T v = 0. These d - 1 equations for v in R^{d+1} hold on a plane at least. The plane
    contains some v = (x, w*^T x) with |x| = 1. Let N_i be the symmetric matrices of least risk, and let F solve
    E[<G, F> G] = v v^T. Among all N with N(v, v) = 0 the least E <G, N - N_i>^2 is N_i(v, v)^2/E <G, F>^2. The
    bound is the sum of these minima over i. Neither sum_i N_i(v, v)^2 nor E <G, F>^2 depends on the direction of x,
    because the law of the covariates is rotation invariant.
    """
    known, d = exact.moments(task), task.dimension
    v = np.append(np.eye(d, dtype=int)[0], known.prior_mean[0])
    (F,) = exact.solved(known, np.outer(v, v)[None])
    off = sum((v @ N @ v) ** 2 for N in exact.solution(known, np.zeros(d))[:-1])
    return exact.floats(off / (v @ F @ v))


@SECTION.on((problems.EASY, problems.SHORT, problems.LARGE_MEAN, problems.ONE), spaces.FINITE).claim(
    "theorem-1.fewest", "Theorem 1", form="corrected", hypotheses=(setting.prior_mean, setting.finite_context)
)
def fewest_heads(loss: MultiHeadLoss) -> Comparison:
    r"""at finite $C$ and for $w_\star \ne 0$, $d$ heads with $y_q = 0$ reach the least risk of any number, and $d - 1$
    do not

    The printed number d + 1 is one too many. Only the symmetric parts of the M_i matter, and M_i with a zero last row
    can have the optimal ones. With y_q = w*^T x_q one head is enough. `cost_of_a_head` proves that d - 1 heads stay
    above the least risk. How far above is found numerically.
    """
    task, d = loss.task, loss.task.dimension
    bound = setting.least(task)
    _, found = setting.reached(task, setting.zero_heads(d, d))
    failures = [jnp.abs(found - bound) > setting.SAME * bound]
    if d > 1:
        _, fewer = setting.reached(task, setting.zero_heads(d, d - 1))
        cost = cost_of_a_head(task)
        failures += [cost <= setting.SAME * bound, fewer < (1 - setting.SAME) * (bound + cost)]
        failures += [jnp.abs(fewer - fewer[-1]) > setting.SAME * fewer]
    return setting.counted(*failures)


def _step_from_zero(d: int) -> MultiHeadAttention:
    """One head with y_q = 0, b = (0, 1) and A = [I 0; 0 0]: a step of gradient descent from 0, of size 1."""
    step = GradientDescentStep(1.0, jnp.zeros(d)).reduced()
    return MultiHeadAttention(step.b, step.A)


@ON_LIMITS.claim("theorem-2", "Theorem 2")
def no_stationary_point(loss: MultiHeadLoss) -> Comparison:
    r"""as $C \to \infty$ and for $w_\star \ne 0$, $\nabla R \ne 0$ at all weights but trivial ones

    The proof uses (24), which multiplies means over w-hat. One head reaches R = 0, which is a global minimum.
    """
    task, best = loss.task, _step_from_zero(loss.task.dimension)
    return setting.counted(jnp.all(setting.slopes(task, best) <= _AT_REST * setting.slope_of_parts(task, best)))


@ON_LIMITS.corrected(no_stationary_point)
def least_in_the_limit(loss: MultiHeadLoss) -> Comparison:
    r"""as $C \to \infty$, one head with $y_q = 0$, $b = (0, 1)$ and $A = \begin{bmatrix} I & 0 \\ 0 & 0 \end{bmatrix}$
    is at a global minimum, $R = 0$

    This is the opposite of the printed statement, for every w*. As C -> infinity, b^T G = (w-hat, |w-hat|^2) gives
    w-hat exactly. b and A are products of the weights W^K, W^Q, W^V, W^P, so the same holds for these weights.
    """
    task, best = loss.task, _step_from_zero(loss.task.dimension)
    pairs = [setting.same(task, setting.risks(task, best), 0.0, setting.label_energy(task))]
    return joined([*pairs, setting.at_rest(task, best)])


ON_ZERO_MEAN_LIMITS.claim(
    "theorem-2.exception",
    "Theorem 2, its exception",
    statement=r"as $C \to \infty$ and for $w_\star = 0$, $\nabla R = 0$ at weights that are not trivial",
    note="Judged at one head with b = (0, 1) and A = [I 0; 0 0]. The risk and its gradient are zero there for every "
    "w*, so w* = 0 is not an exception.",
)(least_in_the_limit)


def _least_slopes(loss: MultiHeadLoss, moment: Moment) -> Comparison:
    """The statement that, for each i, the least |grad L_i| over all M_i is zero.

    |grad L_i| is judged relative to its value at M_i = 0. ``moment`` gives E[<G, M_i> G].
    """
    risk, zero = loss.risk, jnp.zeros((loss.task.dimension + 1,) * 2)
    at_zero = derivative(risk, zero, moment).reshape(loss.task.dimension, -1)

    def least(i: int) -> Float[Array, ""]:
        moved = jax.jacobian(lambda N: derivative(risk, N, moment)[i].reshape(-1))(zero).reshape(zero.size, -1)
        best = jnp.linalg.lstsq(moved, -at_zero[i])[0]
        return jnp.linalg.norm(at_zero[i] + moved @ best) / jnp.linalg.norm(at_zero[i])

    return setting.same(loss.task, jnp.stack([least(i) for i in range(loss.task.dimension)]), 0.0, 1.0)


@ON_ZERO_MEAN_LIMITS.claim("theorem-2.exception.eq-25", "Theorem 2, its exception, with (25)")
def exception_by_the_proof(loss: MultiHeadLoss) -> Comparison:
    r"""(25), from which Theorem 2 follows, is zero at some $M_i$ where $w_\star = 0$

    At w* = 0 the gradient (25) is 2 <M, M_i> M - 2 N_i. It is not zero, because <M, N_i> = 0 and N_i != 0. So the
    proof, which nowhere uses w* != 0, also excludes a stationary point at w* = 0. This contradicts the theorem's
    exception.
    """
    return _least_slopes(loss, product_of_means)


@ON_ZERO_MEAN_LIMITS.corrected(exception_by_the_proof)
def exception_by_the_corrected_proof(loss: MultiHeadLoss) -> Comparison:
    r"""The corrected (25) is zero at some $M_i$ where $w_\star = 0$

    This is true for every w*. The corrected form of eq-25.nonzero names the M_i.
    """
    return _least_slopes(loss, product_with_spread)


@ON_TASKS.claim("lemma-1", "Lemma 1")
def not_convex(loss: MultiHeadLoss) -> Comparison:
    """$R$ is not convex in the weights

    (b, A) and (-b, -A) give the same predictions. Midway between them b and A are zero, and the risk is larger. More
    heads can predict as one head does, so their risk is not convex either.
    """
    task, d = loss.task, loss.task.dimension
    best = [setting.reached(task, setting.zero_heads(d, H))[0] for H in (1, d + 1)]
    return joined([setting.midpoint(task, *setting.mirrored(model)) for model in best])
