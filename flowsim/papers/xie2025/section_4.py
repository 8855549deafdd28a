"""xie2025, section 4, y_q-LSA: its predictions, stationary point and least risk, and the linear transformer block."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, at_least
from flowsim.claims.hypotheses import finite_context as drawable
from flowsim.claims.statements import joined, rounded
from flowsim.losses import MultiHeadLoss
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.models import GradientDescentStep
from flowsim.papers.xie2025 import exact, problems, setting, spaces
from flowsim.papers.xie2025.appendix_b import block_of
from flowsim.papers.xie2025.prompts import alike, normals
from flowsim.tasks import LinearRegression, Prompt

_ETA = 0.7
_BIAS = 0.3


def _eq_8(loss: MultiHeadLoss, factor: float | Array) -> Comparison:
    """The statement that (3) at the weights (7) with W^P = -factor eta I equals the right side of (8).

    The right side is y_q - (eta/C) (w*^T X^T - y^T) X x_q. It is judged at eta = 0.7, for y_q = 0, for y_q a bias,
    and for y_q linear in x_q with a bias.
    """
    w, d = loss.risk.prior_mean, loss.task.dimension

    def comparison(guess: Array, bias: float) -> Comparison:
        def stated(prompt: Prompt) -> Array:
            X, y = prompt.inputs, prompt.labels
            return guess @ prompt.query + bias - _ETA / y.size * ((w @ X.T - y) @ X @ prompt.query)

        return alike(loss.task, setting.descent_heads(w, factor * _ETA, guess, bias), stated)

    return joined([comparison(jnp.zeros(d), 0.0), comparison(jnp.zeros(d), _BIAS), comparison(normals(d), _BIAS)])


SECTION = setting.HEADS(needs=setting.few_coordinates)
ON_DRAWN = SECTION.on(problems.FINITE, spaces.FINITE, needs=drawable)


@ON_DRAWN.claim("eq-8", "(8)")
def eq_8_as_printed(loss: MultiHeadLoss) -> Comparison:
    r"""(3) at the weights (7) is $y_q - \tfrac{\eta}{C} (w_\star^\top X^\top - y^\top) X x_q$

    Both (3) and W^P = -(eta/C) I in (7) divide by C, so the step is C times too short.
    """
    return _eq_8(loss, 1 / loss.task.context_length)


@ON_DRAWN.corrected(eq_8_as_printed)
def eq_8(loss: MultiHeadLoss) -> Comparison:
    r"""(3) at the weights (7) with $W^P = -\eta I$ is $y_q - \tfrac{\eta}{C} (w_\star^\top X^\top - y^\top) X x_q$

    The printed W^P divides by C again, although (3) has already done so.
    """
    return _eq_8(loss, 1.0)


@ON_DRAWN.claim("eq-9", "(9)")
def eq_9(loss: MultiHeadLoss) -> Comparison:
    r"""(8) with $y_q = w_\star^\top x_q$ is $\bigl(w_\star - \tfrac{\eta}{C} X^\top (X w_\star - y)\bigr)^\top x_q$, a
    step down the gradient of $\frac{\lVert X w - y \rVert^2}{2 C}$

    Judged for all w*; the surrounding text has w* = 0.
    """
    w = loss.risk.prior_mean

    def rewritten(prompt: Prompt) -> Array:
        X, y = prompt.inputs, prompt.labels
        return w @ prompt.query - _ETA / y.size * ((w @ X.T - y) @ X @ prompt.query)

    def step(prompt: Prompt) -> Array:
        X, y = prompt.inputs, prompt.labels
        down = jax.grad(lambda w: jnp.sum((X @ w - y) ** 2) / (2 * y.size))(w)
        return (w - _ETA * down) @ prompt.query

    return joined([alike(loss.task, rewritten, step), alike(loss.task, GradientDescentStep(_ETA, w), step)])


@ON_DRAWN.claim("eq-10", "(10)")
def eq_10_as_printed(loss: MultiHeadLoss) -> Comparison:
    r"""(3) at the weights (7) with $y_q = w_\star^\top x_q$ is $\bigl(w_\star - \tfrac{\eta}{C} X^\top (X w_\star -
    y)\bigr)^\top x_q$

    Both (3) and W^P = -(eta/C) I in (7) divide by C, so the step is C times too short.
    """
    w = loss.risk.prior_mean
    return alike(loss.task, setting.descent_heads(w, _ETA / loss.task.context_length), GradientDescentStep(_ETA, w))


@ON_DRAWN.corrected(eq_10_as_printed)
def eq_10(loss: MultiHeadLoss) -> Comparison:
    r"""(3) at the weights (7) with $W^P = -\eta I$ and $y_q = w_\star^\top x_q$ is $\bigl(w_\star - \tfrac{\eta}{C}
    X^\top (X w_\star - y)\bigr)^\top x_q$

    The printed W^P divides by C again, although (3) has already done so.
    """
    w = loss.risk.prior_mean
    return alike(loss.task, setting.descent_heads(w, _ETA), GradientDescentStep(_ETA, w))


ON_LIMITS = SECTION.on(problems.LIMITS, spaces.LIMITS, hypotheses=(setting.prior_mean, setting.infinite_context))
ON_TASKS = SECTION.on((problems.LIMIT, *problems.FINITE), spaces.TASKS)
ON_FINITE = SECTION.on(problems.FINITE, spaces.FINITE)


@ON_LIMITS.claim("theorem-4", "Theorem 4")
def any_step_at_rest(loss: MultiHeadLoss) -> Comparison:
    r"""as $C \to \infty$, the weights (7) with $w = w_\star$ and any step size $\eta$ are a stationary point of
    $y_q$-LSA

    Judged at eta = 0.5 and 1, with W^P = -eta I because (3) divides by C. The theorem leaves eta open, but its proof
    sets b = (-w*, 1) and A = [I 0; 0 0]. This is eta = 1.
    """
    return setting.at_rest(loss.task, *(setting.descent_heads(loss.risk.prior_mean, eta) for eta in setting.STEPS))


@ON_LIMITS.corrected(any_step_at_rest, hypotheses=setting.infinite_context)
def unit_step_at_rest(loss: MultiHeadLoss) -> Comparison:
    r"""as $C \to \infty$, the weights (7) with $w = w_\star$ and $W^P = -I$ ($\eta = 1$) are a stationary point of
    $y_q$-LSA

    The printed statement leaves eta open, but dR/d eta = 2 d (eta - 1) in the limit.
    """
    return setting.at_rest(loss.task, setting.descent_heads(loss.risk.prior_mean, 1.0))


@SECTION.on(problems.TASKS, spaces.TASKS).claim("lemma-2", "Lemma 2")
def not_convex_with_guess(loss: MultiHeadLoss) -> Comparison:
    """the risk of $y_q$-LSA is not convex

    Judged as Lemma 1, at two points with the same w. The paper's proof uses X w = y, which does not hold.
    """
    step = GradientDescentStep(loss.risk.step_size, loss.risk.prior_mean).reduced()
    return setting.midpoint(loss.task, *setting.mirrored(step))


def _is_least(task: LinearRegression, found: Array) -> Comparison:
    """The statement that each risk in ``found`` is the least risk with a trained guess."""
    return setting.same(task, found, setting.least_with_trained_guess(task), float(task.dimension))


@ON_TASKS.claim("sec-4.2.conjecture", "section 4.2")
def unit_step_is_least(loss: MultiHeadLoss) -> Comparison:
    r"""the stationary point of Theorem 4 $(\eta = 1)$ is the global optimum of $y_q$-LSA

    In the limit its risk is 0. At finite C it is d (d+1)/C, which is above the least risk d (d+1)/(C+d+1).
    """
    return _is_least(loss.task, setting.risks(loss.task, setting.descent_step(loss.task, 1.0)))


@ON_TASKS.corrected(unit_step_is_least, constants=setting.optimum_constants)
def best_step_is_least(loss: MultiHeadLoss) -> Comparison:
    r"""one step of gradient descent from $w_\star$ with $\eta = C/(C+d+1)$ is the global optimum of $y_q$-LSA, at every
    $C$

    The step size is the best one instead of 1. With any number of heads and a trained guess, R is a sum of squares plus
    d (d+1)/(C+d+1) + 2 |w* - w|^2/(d C + 2), so this step is their optimum too.
    """
    task = loss.task
    step = setting.descent_step(task, HeadRisk(task).step_size).reduced()
    forms = setting.same_forms(task, step, exact.moments(task).centred, np.zeros(task.dimension))
    return joined([_is_least(task, setting.best_descent_risks(task)), *forms])


@ON_FINITE.claim(
    "sec-4.2.lower-bound", "section 4.2", note=setting.ANY_STEP + " At finite C y_q-LSA has a lower risk than both."
)
def descent_is_a_lower_bound(loss: MultiHeadLoss) -> Comparison:
    r"""the risk of one step of gradient descent from $w_\star$, of any step size $\eta$, is a lower bound of that of
    $y_q$-LSA
    """
    return at_least(setting.least_with_trained_guess(loss.task)[None], setting.descent_risks(loss.task))


@ON_FINITE.corrected(descent_is_a_lower_bound, hypotheses=setting.finite_context)
def best_descent_is_a_lower_bound(loss: MultiHeadLoss) -> Comparison:
    r"""at finite $C$ the risk of one step of gradient descent from $w_\star$ with $\eta^* = C/(C+d+1)$ is a lower bound
    of that of $y_q$-LSA

    Judged at weights near and far from those of the step, in a random direction. The step reaches the bound: see
    sec-5.2 and sec-4.2.conjecture.
    """
    task, step = loss.task, setting.descent_step(loss.task, loss.risk.step_size).reduced()
    known, drawn = exact.moments(task), setting.drawn_heads(task.dimension, 1, 10, trainable=True)
    models = [jax.tree.map(lambda a, b, s=s: a + s * b, step, drawn) for s in (-1.0, -1e-3, 1e-3, 1.0)]
    above = exact.floats(np.asarray([known(model) for model in models], dtype=object))
    return at_least(jnp.tile(above, 3), jnp.repeat(setting.best_descent_risks(task), above.size))


def _risks_of_block(loss: MultiHeadLoss) -> Float[Array, "3"]:
    """The risk of the block that takes the best gradient step from w*, and the least risk of any block.

    The first risk is computed by the closed form and by exact moments. No block has a lower risk than the best
    heads with a trained guess, and this block reaches their risk. So the least risk of any block is the least risk
    of heads with a trained guess.
    """
    model = block_of(setting.descent_heads(loss.risk.prior_mean, loss.risk.step_size))
    return jnp.append(setting.risks(loss.task, model), setting.least_with_trained_guess(loss.task))


@ON_FINITE.claim(
    "sec-4.2.newton",
    "section 4.2",
    note=setting.ANY_STEP
    + " The text says that the block fails to bridge the performance gap between one-step GD and single-head LSA.",
)
def block_stays_above(loss: MultiHeadLoss) -> Comparison:
    r"""the linear transformer block, whose global optimum is a Newton step, stays above the risk of one step of
    gradient descent from $w_\star$, of any step size $\eta$
    """
    return at_least(_risks_of_block(loss)[-1:], setting.descent_risks(loss.task))


@SECTION.on(
    (problems.EASY, problems.SHORT, problems.ZERO_MEAN, problems.PAPER, problems.LIMIT), spaces.TASKS
).corrected(block_stays_above)
def block_is_descent(loss: MultiHeadLoss) -> Comparison:
    r"""the global optimum of the linear transformer block is one step of gradient descent from $w_\star$ with $\eta^* =
    C/(C+d+1)$

    The block's preconditioner is a multiple of I because x ~ N(0, I). So a Newton step with the mean Hessian is a step
    of gradient descent. The block can predict as y_q-LSA does, and both have the same least risk.
    """
    task = loss.task
    gaps = _risks_of_block(loss)[None] - setting.best_descent_risks(task)[:, None]
    # The weights of the block are products of its W_1, whose entries reach 1 + |w*|^2 and magnify rounding errors.
    return rounded(setting.same(task, gaps.reshape(-1), 0.0, float(task.dimension)), setting.label_energy(task) ** 2)
