"""The setting of xie2025, the hypotheses of its statements, models, and two computations of the risk of a model.

One computation is the closed form of the risk that flows use. The other one uses exact moments of prompts. The
normal equations in exact moments give the least risks. The least risks are compared with the closed forms of the
least risks, and with the risks at the weights that should attain them.
"""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import Hypothesis, agrees, hypothesis, unmet
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss, MultiHeadLoss
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.models import FactoredMultiHeadAttention, GradientDescentStep, LinearTransformerBlock, MultiHeadAttention
from flowsim.models.multi_head import AnyHeads
from flowsim.papers.xie2025 import exact
from flowsim.tasks import LinearRegression

MODELS = (MultiHeadAttention, FactoredMultiHeadAttention, LinearTransformerBlock)


def heads_on_isotropic(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """None if the loss is in the paper's setting: heads with a guess, and w-hat ~ N(w*, I).

    Otherwise the unmet hypothesis.
    """
    fits = isinstance(loss, MultiHeadLoss)
    return None if fits else unmet("heads with a guess, on prompts with w-hat ~ N(w*, I)")


HEADS = functools.partial(Section, "xie2025", *MODELS, setting=heads_on_isotropic)


def infinite_context(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """The hypothesis that C is infinite."""
    return [hypothesis("1/C <= 0", 1 / loss.task.context_length, "<=", 0.0)]


def finite_context(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """The hypothesis that C is finite."""
    return [hypothesis("1/C > 0", 1 / loss.task.context_length, ">", 0.0)]


def prior_mean(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """The hypothesis that w* is not zero."""
    return [hypothesis("|w*| > 0", jnp.linalg.norm(loss.risk.prior_mean), ">", 0.0)]


def zero_prior_mean(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """The hypothesis that w* is zero."""
    return [agrees("|w*|", jnp.linalg.norm(loss.risk.prior_mean), 0.0)]


def independent_guess(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """The hypothesis that the guess y_q does not depend on x_q."""
    model = start.reduced()
    size = 1.0 if model.trainable else jnp.linalg.norm(model.w)
    return [agrees("|w| of the guess w^T x_q + bias", size, 0.0)]


def few_coordinates(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """The hypothesis that d is small enough to compute exact moments."""
    name = f"d at most {exact.MOST_COORDINATES}, so that moments can be written out"
    return [hypothesis(name, float(loss.task.dimension), "<=", float(exact.MOST_COORDINATES))]


STEPS = (0.5, 1.0)  # where a statement about every eta is judged; 1 is that of Theorem 4's proof


def zero_heads(
    d: int, H: int, trainable: bool = False, w: ArrayLike | None = None, bias: float = 0.0
) -> MultiHeadAttention:
    """H heads with zero weights, and a guess w^T x_q + bias; w is (d,), default zero."""
    return MultiHeadAttention(np.zeros((H, d + 1)), np.zeros((H, d + 1, d + 1)), w, bias, trainable=trainable)


def descent_heads(
    w: Float[Array, " d"], eta: ArrayLike, guess: ArrayLike | None = None, bias: float = 0.0
) -> FactoredMultiHeadAttention:
    """One head with the weights (7) and W^P = -eta I.

    **Arguments:**

    - w: w* in (7).
    - eta: the step size.
    - guess, bias: a fixed guess guess^T x_q + bias. If ``guess`` is None, the guess is w^T x_q + bias and
      trainable.
    """
    d = w.size
    W_V = jnp.zeros((d + 1, d + 1)).at[d, :d].set(w).at[d, d].set(-1.0)
    W_K = jnp.diag(jnp.append(jnp.ones(d), 0.0))
    W_P = -jnp.asarray(eta) * jnp.eye(d + 1)
    start = w if guess is None else guess
    return FactoredMultiHeadAttention(W_K[None], W_K[None], W_V[None], W_P[None], start, bias, trainable=guess is None)


def drawn_heads(d: int, H: int, seed: int, trainable: bool = False) -> MultiHeadAttention:
    """H heads and a guess w^T x_q with standard normal entries. A guess that is not trainable has the bias 0.7."""
    rng = np.random.default_rng([seed, d, H])
    b, A, w = rng.standard_normal((H, d + 1)), rng.standard_normal((H, d + 1, d + 1)), rng.standard_normal(d)
    return MultiHeadAttention(b, A, w, 0.0 if trainable else 0.7, trainable=trainable)


# The risk in two ways: by the closed form that flows use, and by exact moments


@eqx.filter_jit
def _value(risk: HeadRisk, model: AnyHeads) -> Scalar:
    return risk(model)


def risks(task: LinearRegression, model: AnyHeads) -> Float[Array, "2"]:
    """The risk of a model by the closed form, and by exact moments."""
    return jnp.stack([_value(HeadRisk(task), model), exact.floats(exact.moments(task)(model))])


def reached(task: LinearRegression, like: MultiHeadAttention) -> tuple[MultiHeadAttention, Float[Array, "3"]]:
    """The heads of least risk with the number of heads and the guess of ``like``, and three values of their risk.

    The values come from the closed form at these heads, from exact moments at these heads, and from
    `MultiHeadLoss.minimum`.
    """
    loss = MultiHeadLoss(task, like)
    return loss.minimizer, jnp.append(risks(task, loss.minimizer), loss.minimum)


def slopes(task: LinearRegression, model: AnyHeads) -> Float[Array, "2"]:
    """The norm of the gradient of the risk in all weights of a model, by the closed form and by exact moments."""
    exactly = exact.gradient(exact.moments(task), model)
    return jnp.stack([_size(gradient(HeadRisk(task), model)), _size(exactly)])


def slope_of_parts(task: LinearRegression, model: AnyHeads) -> Scalar:
    """The norm of the gradient of the risk at doubled weights, where its terms cancel less."""
    return _size(gradient(HeadRisk(task), jax.tree.map(lambda leaf: 2 * leaf, model)))


@eqx.filter_jit
def gradient(risk: HeadRisk, model: AnyHeads) -> AnyHeads:
    """The gradient of the closed-form risk in all weights of a model, by JAX."""
    return jax.grad(risk)(model)


def _size(tree: PyTree) -> Scalar:
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return jnp.sqrt(sum((jnp.sum(leaf**2) for leaf in leaves), jnp.zeros(())))


def same(task: LinearRegression, left: ArrayLike, right: ArrayLike, size: ArrayLike) -> Comparison:
    """The statement left = right, where each side is a sum of about (d+1)^2 terms of the given size."""
    return rounded(equal(left, right, size), jnp.asarray((task.dimension + 1.0) ** 2))


def label_energy(task: LinearRegression) -> Scalar:
    """E y^2 = d + |w*|^2, the risk of predicting 0."""
    return task.dimension + jnp.sum(HeadRisk(task).prior_mean ** 2)


def counted(*failures: ArrayLike, unknown: ArrayLike = False) -> Comparison:
    """The statement that no entry of ``failures`` is true. It is undecided if an entry of ``unknown`` is true."""
    count = sum((jnp.sum(jnp.asarray(failure, dtype=float)) for failure in failures), jnp.zeros(()))
    return at_most(jnp.where(jnp.any(jnp.asarray(unknown)), jnp.nan, count)[None], 0.5, size=1.0)


def at_rest(task: LinearRegression, *models: MultiHeadAttention | FactoredMultiHeadAttention) -> Comparison:
    """The statement that the gradient of the risk in all weights is zero at each model.

    Each gradient is computed by the closed form of the risk, and by exact moments.
    """
    return joined([same(task, slopes(task, model), 0.0, slope_of_parts(task, model)) for model in models])


def midpoint(task: LinearRegression, one: FactoredMultiHeadAttention, other: FactoredMultiHeadAttention) -> Comparison:
    """The statement that the risk midway between the weights of two models is at least the mean of their risks."""
    middle = jax.tree.map(lambda a, b: (a + b) / 2, one, other)
    ends = (risks(task, one) + risks(task, other)) / 2
    return at_least(risks(task, middle), ends, size=label_energy(task))


def mirrored(model: MultiHeadAttention) -> tuple[FactoredMultiHeadAttention, FactoredMultiHeadAttention]:
    """Two factored models that predict as ``model`` does, with W^K = W^P = I.

    W^Q and W^V of the second model are minus those of the first. The signs cancel in the products of b and A.
    """
    H, rows, _ = model.A.shape
    identity = jnp.broadcast_to(jnp.eye(rows), (H, rows, rows))
    W_V = jnp.zeros((H, rows, rows)).at[:, -1].set(model.b)
    signed = lambda s: FactoredMultiHeadAttention(
        identity, s * model.A, s * W_V, identity, model.w, trainable=model.trainable
    )
    return signed(1.0), signed(-1.0)


Descent = Callable[[LinearRegression], Float[Array, " n"]]

SAME = 1e-9  # relative difference below which two risks count as equal
ANY_STEP = (
    "The paper does not give the step size of its baseline. Judged at eta = 0.5 and at 1, that of Theorem 4's proof."
)
BEST_STEP = "The paper does not give the step size of its baseline: here it is that of least risk."


def optimum_constants(loss: MultiHeadLoss, trajectory: Trajectory) -> dict[str, Array]:
    """Named numbers: the best step size, the risk of a step of this size, and `HeadRisk.gap`.

    The gap is the least increase of the risk by a guess with |w - w*|^2 + bias^2 = 1.
    """
    risk = loss.risk
    return {"step size": risk.step_size, "risk of gradient descent": risk.descent_risk, "gap": risk.gap}


def least(task: LinearRegression, w: ArrayLike | None = None, bias: float = 0.0) -> Array:
    """The least risk of any number of heads with the guess w^T x_q + bias, by the normal equations; w is (d,)."""
    guess = np.zeros(task.dimension) if w is None else w
    return exact.floats(exact.least(exact.moments(task), guess, bias))


def least_with_trained_guess(task: LinearRegression) -> Array:
    """The least risk of any number of heads and any guess w^T x_q, by the normal equations."""
    return exact.floats(exact.least_with_trained_guess(exact.moments(task)))


def descent_step(task: LinearRegression, eta: float | Array) -> GradientDescentStep:
    """One step of gradient descent from w*."""
    return GradientDescentStep(eta, HeadRisk(task).prior_mean)


def descent_risks(task: LinearRegression) -> Float[Array, " n"]:
    """The risks of one step of gradient descent from w*, by the closed form and by exact moments.

    The step sizes are those in `STEPS`.
    """
    return jnp.concatenate([risks(task, descent_step(task, eta)) for eta in STEPS])


def best_descent_risks(task: LinearRegression) -> Float[Array, "3"]:
    """The risk of one step of gradient descent from w* with eta* = C/(C+d+1).

    The three values come from the closed form for all models, from exact moments, and from `HeadRisk.descent_risk`.
    """
    risk = HeadRisk(task)
    return jnp.append(risks(task, descent_step(task, risk.step_size)), risk.descent_risk)


def same_forms(
    task: LinearRegression, model: MultiHeadAttention, known: exact.Moments, w: np.ndarray
) -> list[Comparison]:
    """The statement that the symmetric forms of a model are those of least risk by the normal equations.

    It is returned in a list. The list is empty if C is infinite, because the forms of least risk are then not
    unique.

    **Arguments:** known: the exact moments; w: (d,) of the guess w^T x_q.
    """
    if np.isinf(float(task.context_length)):
        return []
    found, expected = exact.symmetric_forms(model)[:-1], exact.solution(known, w)[:-1]
    size = jnp.max(jnp.abs(exact.floats(expected)))
    return [same(task, exact.floats(found).reshape(-1), exact.floats(expected).reshape(-1), size)]


def same_gaps(
    task: LinearRegression, like: MultiHeadAttention, bound: Array, expected: Array | float, descent: Float[Array, " n"]
) -> Comparison:
    """The statement that the least risk with the guess of ``like`` is each risk in ``descent`` plus ``expected``.

    This is judged for four values of the least risk: `MultiHeadLoss.minimum`, the risk at the best weights by the
    closed form and by exact moments, and ``bound`` from the normal equations.
    """
    _, found = reached(task, like)
    gaps = jnp.append(found, bound)[None] - descent[:, None]
    missed = jnp.sum((HeadRisk(task).prior_mean - like.w) ** 2) + like.bias**2
    return same(task, gaps.reshape(-1), expected, task.dimension + missed)
