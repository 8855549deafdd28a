"""Both sides of every statement of ahn2023's section 4, the single layer.

The loss is known by two routes: `MaskedAttentionLoss` splits the error by its parity in w, and `in_context_loss` here
is the appendix's, a quadratic form in each X_j = b a_j^T. The paper's symbols are used throughout.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from flowsim._core.types import Scalar, Vector
from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.hypotheses import Hypothesis, agrees, can_be_drawn, hypothesis
from flowsim.claims.landscape import hessian
from flowsim.claims.statements import joined, of_task, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss, MaskedAttentionLoss
from flowsim.models import MaskedAttention
from flowsim.models.linear_attention import embed
from flowsim.models.masked_attention import attend
from flowsim.moments import token_covariance_times_form
from flowsim.tasks import LinearRegression, Prompt

Square = Float[Array, "rows rows"]
Task = LinearRegression
Loss = MaskedAttentionLoss

_RESCALINGS = (1e-3, 0.1, -1.0, 7.0, 1e3)
_DRAWN = 8
_PROMPTS = 16
_SURELY_FLAT, _POSSIBLY_FLAT = 1e-12, 1e-6  # of the largest eigenvalue of a Hessian with a unit diagonal
_AT_MINIMUM = 1e-12  # of the loss at zero weights
_AT_EQUALITY = 1e-6


# Hypotheses


def masked_layer(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """The setting of section 4: one layer under the parametrisation (7)."""
    fits = isinstance(loss, MaskedAttentionLoss)
    return None if fits else agrees("one masked linear attention layer", 0.0, 1.0)


def isotropic(loss: Loss, start: PyTree) -> list[Hypothesis]:
    """Sigma = I."""
    return [agrees("Sigma = I", jnp.linalg.norm(loss.task.covariance - jnp.eye(loss.task.dimension)), 0.0)]


def diagonal(loss: Loss, start: PyTree) -> list[Hypothesis]:
    """Sigma = Lambda."""
    Sigma = loss.task.covariance
    off = jnp.linalg.norm(Sigma - jnp.diag(jnp.diagonal(Sigma)))
    return [agrees("Sigma diagonal", off, 0.0, jnp.linalg.norm(Sigma))]


def two_dimensions(loss: Loss, start: PyTree) -> list[Hypothesis]:
    """d >= 2."""
    return [hypothesis("d >= 2", float(loss.task.dimension), ">=", 2.0)]


# The loss as the appendix writes it


def weight_times_token_covariance(task: Task, s: Vector) -> Square:
    """E[<w, s> C], by Stein's lemma the derivative along s of E[C | w], which is affine in w, at E[w] = 0."""

    def given(w):
        tokens = jnp.concatenate([jnp.eye(task.dimension), w[None, :]])
        return tokens @ task.covariance @ tokens.T

    return jax.jvp(given, (jnp.zeros_like(s),), (s,))[1]


def form_times_token_covariance(task: Task, X: Square) -> Square:
    """E[<C, X> C]."""
    return token_covariance_times_form(X, task.covariance, task.context_length)


def component(task: Task, X: Square, s: Vector) -> Scalar:
    """E(<C, X> + <w, s>)^2, which is f_j(X) of Lemmas 6 and 7 at s = e_j."""
    linear = weight_times_token_covariance(task, s)
    return jnp.sum(X * (form_times_token_covariance(task, X) + 2 * linear)) + s @ s


def in_context_loss(task: Task, model: MaskedAttention) -> Scalar:
    """f(b, A) of (15): the sum of `component` at X = b (A s)^T over the columns s of a root of Sigma."""
    columns = jnp.linalg.cholesky(task.covariance).T
    return jnp.sum(jax.vmap(lambda s: component(task, jnp.outer(model.b, model.A @ s), s))(columns))


def _drawn(d: int) -> MaskedAttention:
    """Many weights with independent standard normal entries."""
    entries = jnp.asarray(np.random.default_rng(0).standard_normal((_DRAWN, d + 1, d + 1)))
    return jax.vmap(lambda one: MaskedAttention(one[0], one[:, 1:]))(entries)


def on_drawn(task: Task, left: Callable, right: Callable) -> Comparison:
    """left(model) = right(model) > 0 at drawn weights."""
    models = _drawn(task.dimension)
    sides = jax.vmap(left)(models), jax.vmap(right)(models)
    return of_sums(task, equal(*sides, sides[1]))


def of_sums(task: Task, comparison: Comparison) -> Comparison:
    """The comparison with rounding errors of sums of (d + 1)^2 terms."""
    return rounded(comparison, jnp.asarray((task.dimension + 1.0) ** 2))


# Section 4


@of_task
def without_square(task: Task) -> Comparison:
    """(6) as printed, E[b^T C A + w^T] E[x_query], against the loss (5)."""
    d, Sigma = task.dimension, task.covariance
    mean = jnp.zeros((d + 1, d + 1)).at[:d, :d].set(Sigma).at[d, d].set(jnp.trace(Sigma))
    mean_query = jnp.zeros(d)
    return on_drawn(task, lambda model: model.b @ mean @ model.A @ mean_query, MaskedAttentionLoss(task))


@of_task
def with_square(task: Task) -> Comparison:
    """(15) by the appendix's route against the loss (5) by the parity of the error."""
    return on_drawn(task, lambda model: in_context_loss(task, model), MaskedAttentionLoss(task))


def prompts_of(task: Task) -> Prompt:
    """Prompts of the task, many."""
    return jax.vmap(lambda key: task.sample(key)[0])(jax.random.split(jax.random.key(1), _PROMPTS))


def _reaches(task: Task, count: int) -> Comparison:
    """The predictions with all of P and Q against those with the last row of P and the first ``count`` columns of Q
    alone, and against those without the first ``count`` rows of P and the last column of Q.
    """
    d, prompts = task.dimension, prompts_of(task)
    P, Q = np.random.default_rng(1).standard_normal((2, d + 1, d + 1))
    row, column = np.indices((d + 1, d + 1))
    only = P * (row == d), Q * (column < count)
    without = P * (row >= count), Q * (column < d)
    full, *others = (_read_off(prompts, jnp.asarray(a), jnp.asarray(b)) for a, b in ((P, Q), only, without))
    return joined([equal(other, full, jnp.max(jnp.abs(full))) for other in others])


@eqx.filter_jit
def _read_off(prompts: Prompt, P: Square, Q: Square) -> Float[Array, " n"]:
    """[Attn(Z_0)/n]_{d+1,n+1} on every prompt."""
    return jax.vmap(lambda prompt: attend(embed(prompt), P, Q)[-1, -1] / prompt.inputs.shape[0])(prompts)


def nothing_drawn() -> Comparison:
    """Where prompts cannot be drawn."""
    return equal(jnp.zeros(1), 0.0, 1.0)


def parameters_as_printed(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The rows and columns that reach the prediction, counted by n."""
    n = loss.task.context_length
    return nothing_drawn() if jnp.isinf(n) else _reaches(loss.task, int(n))


def parameters(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The rows and columns that reach the prediction, counted by d."""
    return nothing_drawn() if not can_be_drawn(loss.task) else _reaches(loss.task, loss.task.dimension)


def _minimum_at(task: Task, gammas: Float[Array, " n"]) -> Comparison:
    """At (8), re-scaled by each gamma: f against its minimum, and the gradients in b and in A, of the size of their
    parts, against zero.
    """
    loss = MaskedAttentionLoss(task)
    f = lambda model: in_context_loss(task, model)

    def sides(gamma):
        model = loss.minimizer(gamma)
        value, gradient = jax.value_and_grad(f)(model)
        part_b = jax.grad(f)(MaskedAttention(jnp.zeros_like(model.b), model.A)).b
        part_A = jax.grad(f)(MaskedAttention(model.b, jnp.zeros_like(model.A))).A
        slope_b, slope_A, size_b, size_A = (jnp.linalg.norm(x) for x in (gradient.b, gradient.A, part_b, part_A))
        sizes = jnp.stack([jnp.trace(task.covariance), size_b, size_A])
        return jnp.stack([value, slope_b, slope_A]), jnp.stack([loss.minimum, 0.0, 0.0]), sizes

    values, expected, sizes = (side.reshape(-1) for side in jax.vmap(sides)(gammas))
    return of_sums(task, equal(values, expected, sizes))


@of_task
def minimum_at_8(task: Task) -> Comparison:
    """(8)."""
    return _minimum_at(task, jnp.ones(1))


@of_task
def minimum_at_rescalings(task: Task) -> Comparison:
    """(8) with b <- gamma b and A <- A/gamma, gamma = 1e-3, 0.1, -1, 7 and 1e3."""
    return _minimum_at(task, jnp.asarray(_RESCALINGS))


@of_task
def isotropic_form(task: Task) -> Comparison:
    """A of the display after Theorem 1 against (8)."""
    d, n = task.dimension, task.context_length
    printed = -jnp.eye(d + 1, d) / ((1 - 1 / n) + (d + 2) / n)
    A = MaskedAttentionLoss(task).minimizer().A
    return equal(jnp.linalg.norm(A - printed)[None], 0.0, jnp.linalg.norm(A))


def swapped(task: Task) -> MaskedAttention:
    """b = (u_1, 0)/gamma_1^{1/2}, A = -e_{d+1} u_1^T/gamma_1^{1/2}: labels and covariates change places in the first
    eigendirection, of the largest lambda, and nothing is predicted in the others.
    """
    loss = MaskedAttentionLoss(task).unmasked
    u, d = loss.eigenvectors[:, -1], task.dimension
    root = jnp.sqrt(loss.gamma_eigenvalues[-1])
    return MaskedAttention(jnp.append(u, 0.0) / root, -jnp.zeros((d + 1, d)).at[d].set(u) / root)


@of_task
def unique_minimum(task: Task) -> Comparison:
    """How many directions at (8) are flat, of which the re-scaling is one, and whether `swapped` is a minimum too.

    Nothing is promised where rounding leaves it open whether a direction is flat.
    """
    loss = MaskedAttentionLoss(_in_eigenbasis(task))
    best = loss.minimizer(jnp.linalg.norm(loss.minimizer().A) ** 0.5)
    values = _inertia(loss, best)
    flat, possibly = (jnp.sum(values <= ratio * values[-1]) for ratio in (_SURELY_FLAT, _POSSIBLY_FLAT))
    other = (loss.excess(swapped(loss.task)) <= _AT_MINIMUM * jnp.trace(task.covariance)).astype(float)
    count = at_most(flat.astype(float)[None], 1.5, size=1.0, promised=flat == possibly)
    return joined([count, at_most(other[None], 0.5, size=1.0)])


def _in_eigenbasis(task: Task) -> Task:
    """The task in the basis of its covariance, where its Hessians are scaled best."""
    return eqx.tree_at(lambda task: task.covariance, task, jnp.diag(jnp.linalg.eigvalsh(task.covariance)))


def _inertia(loss: MaskedAttentionLoss, model: MaskedAttention) -> Float[Array, " n"]:
    """Numbers with the signs of the Hessian's eigenvalues: those of the Hessian with a unit diagonal (Sylvester)."""
    H = hessian(loss, model)
    diagonal = jnp.abs(jnp.diagonal(H))
    scale = 1 / jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1.0))
    return jnp.linalg.eigvalsh(scale[:, None] * H * scale[None, :])


def _swapped_sides(task: Task) -> tuple[Scalar, Scalar]:
    """(lambda_1/gamma_1)^2 [(1 + 2/n) (t^2 + 2 tr Sigma^2) - (t + 2 lambda_1/n)^2/(1 + 2/n)] with t = tr Sigma, and
    n sum_{j > 1} lambda_j^2.
    """
    loss, n = MaskedAttentionLoss(task).unmasked, task.context_length
    lam, first, t = loss.eigenvalues, loss.eigenvalues[-1], jnp.trace(task.covariance)
    factor = 1 + 2 / n
    bracket = factor * (t**2 + 2 * jnp.sum(lam**2)) - (t + 2 * first / n) ** 2 / factor
    return (first / loss.gamma_eigenvalues[-1]) ** 2 * bracket, n * jnp.sum(lam[:-1] ** 2)


@of_task
def swapped_minimum(task: Task) -> Comparison:
    """At `swapped`: the gradient against zero, the excess against sum_{j > 1} lambda_j^2/gamma_j, and whether the
    Hessian is semidefinite against the inequality, as numbers, with a doubt of 1 where its sides all but agree.
    """
    task = _in_eigenbasis(task)
    loss, model = MaskedAttentionLoss(task), swapped(task)
    lam, gam = loss.unmasked.eigenvalues, loss.unmasked.gamma_eigenvalues
    gradient = loss.gradient(model)
    slope = jnp.linalg.norm(gradient.b) + jnp.linalg.norm(gradient.A)
    size = jnp.linalg.norm(loss.gradient(MaskedAttention(model.b, jnp.zeros_like(model.A))).A)
    values = _inertia(loss, model)
    surely, possibly = (values[0] < -ratio * values[-1] for ratio in (_POSSIBLY_FLAT, _SURELY_FLAT))
    semidefinite = ~surely
    left, right = _swapped_sides(task)
    doubt = (jnp.abs(left - right) <= _AT_EQUALITY * left) | (possibly & ~surely)
    above, expected = loss.excess(model), jnp.sum(lam[:-1] ** 2 / gam[:-1])
    return joined(
        [
            of_sums(task, equal(slope[None], 0.0, size)),
            of_sums(task, equal(above[None], expected, jnp.trace(task.covariance))),
            equal(semidefinite.astype(float)[None], (left >= right).astype(float), 1.0, allowance=doubt.astype(float)),
        ]
    )


def swapped_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """Both sides of the inequality."""
    left, right = _swapped_sides(loss.task)
    return {"left": left, "right": right}
