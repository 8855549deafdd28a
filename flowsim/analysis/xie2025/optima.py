"""Both sides of xie2025's statements about minima, stationary points, convexity, and the models' equality."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from flowsim.analysis.base import Comparison, at_least, at_most, equal
from flowsim.analysis.statements import joined, of_task, rounded
from flowsim.initialization import Hypothesis, agrees, hypothesis
from flowsim.losses import AbstractPopulationLoss, MultiHeadLoss
from flowsim.losses.head_risk import HeadRisk
from flowsim.models import (
    FactoredMultiHeadAttention,
    GradientDescentStep,
    LinearTransformerBlock,
    MultiHeadAttention,
)
from flowsim.tasks import LinearRegression
from flowsim.trajectory import Trajectory

Task = LinearRegression
Scalar = Float[Array, ""]

_PROMPTS = 16
_AT_REST = 1e-10
_SAME = 1e-9  # relative, of risks that cannot be told apart
_SCALES = (0.0, 0.5, 1.0, 2.0, 10.0)


# Hypotheses


def heads_on_isotropic(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """The setting of the paper: heads with a guess, w-hat ~ N(w*, I)."""
    fits = isinstance(loss, MultiHeadLoss)
    return None if fits else agrees("heads with a guess, on prompts with w-hat ~ N(w*, I)", 0.0, 1.0)


def infinite_context(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """C -> infinity."""
    return [hypothesis("1/C <= 0", 1 / loss.task.context_length, "<=", 0.0)]


def prior_mean(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """w* is not zero."""
    return [hypothesis("|w*| > 0", jnp.linalg.norm(loss.risk.prior_mean), ">", 0.0)]


def prior_mean_in_the_limit(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """w* is not zero and C -> infinity."""
    return prior_mean(loss, start) + infinite_context(loss, start)


def independent_guess(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """y_q does not depend on x_q."""
    model = start.reduced()
    size = 1.0 if model.trainable else jnp.linalg.norm(model.w)
    return [agrees("|w| of the guess w^T x_q + bias", size, 0.0)]


def finite_context(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """C is finite."""
    return [hypothesis("1/C > 0", 1 / loss.task.context_length, ">", 0.0)]


# Models


def zero_heads(
    d: int, H: int, trainable: bool = False, w: Array | None = None, bias: float = 0.0
) -> MultiHeadAttention:
    """Heads with weights of zero."""
    return MultiHeadAttention(jnp.zeros((H, d + 1)), jnp.zeros((H, d + 1, d + 1)), w, bias, trainable=trainable)


def descent_heads(
    w: Float[Array, " d"], eta: Scalar | float, factor: Scalar | float = 1.0
) -> FactoredMultiHeadAttention:
    """The weights (7), with W^P = -eta factor I and the guess w^T x_q as a weight; factor = 1/C as printed."""
    d = w.size
    W_V = jnp.zeros((d + 1, d + 1)).at[d, :d].set(w).at[d, d].set(-1.0)
    W_K = jnp.diag(jnp.append(jnp.ones(d), 0.0))
    W_P = -eta * factor * jnp.eye(d + 1)
    return FactoredMultiHeadAttention(W_K[None], W_K[None], W_V[None], W_P[None], w, trainable=True)


def _size(gradient: PyTree) -> Scalar:
    leaves = jax.tree.leaves(eqx.filter(gradient, eqx.is_inexact_array))
    return jnp.sqrt(sum((jnp.sum(leaf**2) for leaf in leaves), jnp.zeros(())))


def _slope(risk: HeadRisk, model: PyTree) -> tuple[Scalar, Scalar]:
    """|grad R| at a model, and at weights twice as large, which says how large its parts are."""
    return _size(jax.grad(risk)(model)), _size(jax.grad(risk)(jax.tree.map(lambda leaf: 2 * leaf, model)))


def _counted(*failures: Array) -> Comparison:
    """That none of these conditions fails."""
    count = sum((jnp.sum(failure.astype(float)) for failure in failures), jnp.zeros(()))
    return at_most(count[None], 0.5, size=1.0)


# Section 3


@of_task
def saturated(task: Task) -> Comparison:
    """The least risk of d + 1 and of d + 2 heads, by their weights."""
    d, risk = task.dimension, HeadRisk(task)
    fewer, more = (risk(MultiHeadLoss(task, zero_heads(d, H)).minimizer) for H in (d + 1, d + 2))
    return rounded(equal(fewer[None], more, more), jnp.asarray((d + 1.0) ** 2))


@of_task
def fewest_heads(task: Task) -> Comparison:
    """Whether d heads miss the least risk of any number, and d - 1 reach it (for d = 1 there is no such number)."""
    d, risk = task.dimension, HeadRisk(task)
    bound = risk.bound(zero_heads(d, 1))
    missed = risk(MultiHeadLoss(task, zero_heads(d, d)).minimizer) > (1 + _SAME) * bound
    reached = [MultiHeadLoss(task, zero_heads(d, H)).minimum <= (1 + _SAME) * bound for H in range(max(d - 1, 1), d)]
    return _counted(missed, *reached)


def _step_from_zero(d: int) -> MultiHeadAttention:
    """b = (0, 1) and A = [I 0; 0 0] with y_q = 0: a step of gradient descent from 0, of size 1."""
    step = GradientDescentStep(1.0, jnp.zeros(d)).reduced()
    return MultiHeadAttention(step.b, step.A)


@of_task
def no_stationary_point(task: Task) -> Comparison:
    """Whether the gradient at one step from 0 is zero."""
    slope, size = _slope(HeadRisk(task), _step_from_zero(task.dimension))
    return _counted(slope <= _AT_REST * size)


@of_task
def least_in_the_limit(task: Task) -> Comparison:
    """The risk of one step from 0, and its gradient, against zero."""
    risk, best = HeadRisk(task), _step_from_zero(task.dimension)
    slope, size = _slope(risk, best)
    whole = risk(zero_heads(task.dimension, 1))
    pair = [equal(risk(best)[None], 0.0, whole), equal(slope[None], 0.0, size)]
    return rounded(joined(pair), jnp.asarray((task.dimension + 1.0) ** 2))


def _midpoint(risk: HeadRisk, model: MultiHeadAttention) -> Comparison:
    """R at the middle of (b, A) and (-b, -A), which is zero, above the mean of R at both."""
    zero = zero_heads(risk.task.dimension, 1, model.trainable, model.w)
    return at_least(risk(zero)[None], risk(model))


@of_task
def not_convex(task: Task) -> Comparison:
    """`_midpoint` for the best head with y_q = 0."""
    return _midpoint(HeadRisk(task), MultiHeadLoss(task, zero_heads(task.dimension, 1)).minimizer)


@of_task
def not_convex_with_guess(task: Task) -> Comparison:
    """`_midpoint` for one step of gradient descent from w*."""
    risk = HeadRisk(task)
    return _midpoint(risk, GradientDescentStep(risk.step_size, risk.prior_mean).reduced())


# Section 4


def _predictions(task: Task, *models: Callable) -> list[Float[Array, " n"]]:
    """What models predict on prompts of a task, many."""
    prompts = jax.vmap(lambda key: task.sample(key)[0])(jax.random.split(jax.random.key(1), _PROMPTS))
    return [jax.vmap(model)(prompts) for model in models]


def _same_predictions(task: Task, one: Callable, other: Callable) -> Comparison:
    if bool(jnp.isinf(task.context_length)):
        return equal(jnp.zeros(1), 0.0, 1.0)
    left, right = _predictions(task, one, other)
    return rounded(equal(left, right, jnp.max(jnp.abs(right))), jnp.asarray((task.dimension + 1.0) ** 2))


def eq_8_as_printed(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(3) at the weights (7), with W^P = -(eta/C) I, against y_q - (eta/C)(w*^T X^T - y^T) X x_q; eta = 0.7."""
    w, C = loss.risk.prior_mean, loss.task.context_length
    return _same_predictions(loss.task, descent_heads(w, 0.7, 1 / C), GradientDescentStep(0.7, w))


def eq_8(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(3) at the weights (7) with W^P = -eta I against one step of gradient descent."""
    w = loss.risk.prior_mean
    return _same_predictions(loss.task, descent_heads(w, 0.7), GradientDescentStep(0.7, w))


def _at_rest(task: Task, etas: tuple[Scalar | float, ...]) -> Comparison:
    """The gradient at one step of gradient descent from w*, in W^K, W^Q, W^V, W^P and w, against zero."""
    risk = HeadRisk(task)
    slopes = [_slope(risk, descent_heads(risk.prior_mean, eta)) for eta in etas]
    pairs = [equal(slope[None], 0.0, size) for slope, size in slopes]
    return rounded(joined(pairs), jnp.asarray((task.dimension + 1.0) ** 2))


@of_task
def any_step_at_rest(task: Task) -> Comparison:
    """eta = 0.5 and 1."""
    return _at_rest(task, (0.5, 1.0))


@of_task
def unit_step_at_rest(task: Task) -> Comparison:
    """eta = 1."""
    return _at_rest(task, (1.0,))


@of_task
def best_step_at_rest(task: Task) -> Comparison:
    """eta = C/(C+d+1)."""
    return _at_rest(task, (HeadRisk(task).step_size,))


@of_task
def residual_gradient(task: Task) -> Comparison:
    """C |grad R| at the unit step, at C and at 100 C."""
    sizes = []
    for factor in (1.0, 100.0):
        C = factor * task.context_length
        risk = HeadRisk(LinearRegression(task.covariance, C, prior_mean=task.prior_mean))
        sizes.append(C * _slope(risk, descent_heads(risk.prior_mean, 1.0))[0])
    return rounded(equal(sizes[0][None], sizes[1], sizes[1]), 100 * jnp.asarray((task.dimension + 1.0) ** 2))


@of_task
def unit_step_is_least(task: Task) -> Comparison:
    """The risk of one step with eta = 1 from w* against the least of a trained guess."""
    risk = HeadRisk(task)
    return _risk_of_step(risk, jnp.ones(()))


@of_task
def best_step_is_least(task: Task) -> Comparison:
    """The risk of the best step from w* against the least of a trained guess."""
    risk = HeadRisk(task)
    return _risk_of_step(risk, risk.step_size)


def _risk_of_step(risk: HeadRisk, eta: Scalar) -> Comparison:
    d = risk.task.dimension
    value, least = risk(GradientDescentStep(eta, risk.prior_mean)), risk.bound(zero_heads(d, 1, True, risk.prior_mean))
    return rounded(equal(value[None], least, jnp.asarray(float(d))), jnp.asarray((d + 1.0) ** 2))


def _drawn_guess(d: int) -> tuple[Float[Array, "4 rows rows"], Float[Array, " d"]]:
    rng = np.random.default_rng(2)
    return jnp.asarray(rng.standard_normal((4, d + 1, d + 1))), jnp.asarray(rng.standard_normal(d))


def _block(loss: MultiHeadLoss, keys_and_values: bool) -> Comparison:
    """A linear transformer block against y_q-LSA at drawn weights: with W_3 = [I 0; w^T 0] after W^Q alone, or also
    after W^K and W^V.
    """
    d = loss.task.dimension
    (W_K, W_Q, W_V, W_P), w = _drawn_guess(d)
    W_3 = jnp.eye(d + 1).at[d, :d].set(w).at[d, d].set(0.0)
    W_1 = jnp.eye(d + 1).at[d, :d].set(w).at[:d, d].set(w).at[d, d].set(1 + w @ w)
    key, value = (W_K @ W_3, W_V @ W_3) if keys_and_values else (W_K, W_V)
    block = LinearTransformerBlock(W_1, jnp.eye(d + 1), key, W_Q @ W_3, value, jnp.linalg.solve(W_1, W_P))
    head = FactoredMultiHeadAttention(W_K[None], W_Q[None], W_V[None], W_P[None], w, trainable=True)
    return rounded(_same_predictions(loss.task, block, head), jnp.asarray(1e3))


def block_as_printed(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The weights of the proof of Lemma 3."""
    return _block(loss, True)


def block(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The weights of the proof of Lemma 3 with W^K and W^V as they are."""
    return _block(loss, False)


# Section 5


def _risks_by_heads(task: Task, last: int) -> Float[Array, " H"]:
    d = task.dimension
    return jnp.stack([MultiHeadLoss(task, zero_heads(d, H)).minimum for H in range(1, last + 1)])


@of_task
def more_heads_help(task: Task) -> Comparison:
    """How often H + 1 heads have no lower least risk than H, for H = 1, .., d."""
    risks = _risks_by_heads(task, task.dimension + 1)
    return _counted(risks[1:] >= (1 - _SAME) * risks[:-1])


@of_task
def more_heads_help_up_to_d(task: Task) -> Comparison:
    """How often H + 1 heads have no lower least risk than H, for H = 1, .., d - 1, or d + 1 heads have than d."""
    risks = _risks_by_heads(task, task.dimension + 1)
    return _counted(risks[1:-1] >= (1 - _SAME) * risks[:-2], risks[-1] < (1 - _SAME) * risks[-2])


@of_task
def descent_is_better(task: Task) -> Comparison:
    """The least risk of d + 1 heads above that of one step of gradient descent from w*."""
    risk = HeadRisk(task)
    best = MultiHeadLoss(task, zero_heads(task.dimension, task.dimension + 1)).minimizer
    return at_least(risk(best)[None], risk(GradientDescentStep(risk.step_size, risk.prior_mean)))


def _gap(task: Task, w: Array | None = None, bias: float = 0.0) -> Scalar:
    """The least risk of d + 1 heads, by their weights, less that of gradient descent from w*."""
    d, risk = task.dimension, HeadRisk(task)
    best = MultiHeadLoss(task, zero_heads(d, d + 1, False, w, bias)).minimizer
    return risk(best) - risk(GradientDescentStep(risk.step_size, risk.prior_mean))


@of_task
def gap_of_prior_mean(task: Task) -> Comparison:
    """The gap at c w* against 2 c^2 |w*|^2/(d C + 2), c = 0, 0.5, 1, 2 and 10."""
    risk = HeadRisk(task)
    moved = lambda c: LinearRegression(task.covariance, task.context_length, prior_mean=c * risk.prior_mean)
    gaps = jnp.stack([_gap(moved(c)) for c in _SCALES])
    expected = risk.gap * jnp.asarray(_SCALES) ** 2 * jnp.sum(risk.prior_mean**2)
    sizes = task.dimension + expected
    return rounded(equal(gaps, expected, sizes), jnp.asarray((task.dimension + 1.0) ** 2))


@of_task
def gap_of_guess(task: Task) -> Comparison:
    """At w* = 0, the gap at a guess c (1, .., 1)^T x_q, and at a bias of c, against 2 c^2 d/(d C + 2) and without d."""
    d = task.dimension
    centred = LinearRegression(task.covariance, task.context_length)
    risk, squares = HeadRisk(centred), jnp.asarray(_SCALES) ** 2
    linear = jnp.stack([_gap(centred, c * jnp.ones(d)) for c in _SCALES])
    biased = jnp.stack([_gap(centred, bias=c) for c in _SCALES])
    pairs = [
        equal(gaps, expected, d + expected)
        for gaps, expected in ((linear, risk.gap * d * squares), (biased, risk.gap * squares))
    ]
    return rounded(joined(pairs), jnp.asarray((d + 1.0) ** 2))


@of_task
def guess_closes_gap(task: Task) -> Comparison:
    """The least risk of one head with a trained guess against that of one step of gradient descent from w*."""
    risk = HeadRisk(task)
    loss = MultiHeadLoss(task, zero_heads(task.dimension, 1, True))
    least, descent = risk(loss.minimizer), risk(GradientDescentStep(risk.step_size, risk.prior_mean))
    return rounded(equal(least[None], descent, jnp.asarray(float(task.dimension))), jnp.asarray(1e2))


def optimum_constants(loss: MultiHeadLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The best step, its risk, and what a guess that is off by one costs."""
    risk = loss.risk
    return {"step size": risk.step_size, "risk of gradient descent": risk.descent_risk, "gap": risk.gap}
