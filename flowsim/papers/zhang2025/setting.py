"""The setting of zhang2025's claims: prompts and layers, the loss by separate moments, and the fixed points.

The paper's loss has no factor 1/2, but its flow is d/dt = -(1/2) grad of this loss. So the paper's time is that of
the flows here.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim._core.types import Matrix, Scalar
from flowsim.claims.claim import Comparison, equal
from flowsim.claims.hypotheses import Hypothesis, agrees, can_be_drawn, hypothesis, longest_drawn, unmet
from flowsim.losses import AbstractPopulationLoss, AttentionLoss
from flowsim.models import MergedHeads, SeparateHeads
from flowsim.models.heads import AbstractHeads, Heads
from flowsim.models.linear_attention import embed
from flowsim.moments import sample_covariance_sandwich
from flowsim.tasks import LinearRegression, Prompt

LabelHeads = MergedHeads | SeparateHeads


def plain(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """None if the loss is in the setting of sections 2 to 5, otherwise the unmet hypothesis.

    In that setting w ~ N(0, I), all contexts have one length, labels have no noise, and the guess that the heads
    are added to is zero and not trained.
    """
    return None if _is_plain(loss, ()) else unmet("w ~ N(0, I), one context length, no label noise and no guess")


def varying_lengths(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """None if the loss is in the setting of the appendix on varying context lengths.

    Otherwise the unmet hypothesis.
    """
    return None if _is_plain(loss, ("length_law",)) else unmet("w ~ N(0, I), a law of context lengths, no guess")


def _is_plain(loss: AbstractPopulationLoss, shifts: tuple[str, ...]) -> bool:
    if not isinstance(loss, AttentionLoss) or loss.task.shifts != shifts or loss.task.weights != "isotropic":
        return False
    heads = loss.minimizer
    return not heads.trainable and not np.any(heads.w) and not np.any(heads.bias)


def drawable(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """None if the loss is in the `plain` setting and random prompts of its task fit into memory.

    Otherwise the unmet hypothesis.
    """
    if isinstance(loss, AttentionLoss) and not can_be_drawn(loss.task):
        return unmet(f"context length at most {longest_drawn(loss.task)}, so that prompts can be drawn")
    return plain(loss)


def several_dimensions(loss: AttentionLoss, start: LabelHeads) -> list[Hypothesis]:
    """The hypothesis that D >= 2.

    In one dimension every matrix equals its transpose, and <U_i, Lambda^2> = 0 only if U_i = 0.
    """
    return [hypothesis("D", float(loss.task.dimension), ">=", 2.0)]


def infinite(loss: AttentionLoss, start: LabelHeads) -> list[Hypothesis]:
    """The hypothesis that N = infinity, which stands for the limit N -> infinity."""
    return [hypothesis("N infinite", loss.task.context_length, ">=", jnp.inf)]


def white(loss: AttentionLoss, start: LabelHeads) -> list[Hypothesis]:
    """The hypothesis that Lambda is a multiple of I."""
    values, _ = spectrum(loss.task)
    return [agrees("lambda_max/lambda_min = 1", values[0] / values[-1], 1.0)]


def spectrum(task: LinearRegression) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """The eigenvalues of Lambda, the largest first, and its eigenvectors as columns."""
    values, vectors = jnp.linalg.eigh(task.covariance)
    return values[::-1], vectors[:, ::-1]


def inflation(values: Float[Array, " d"], inverse_length: Scalar) -> Float[Array, " d"]:
    """The ratio of E[Lambdahat^2] to Lambda^2 along each eigenvector: 1 + (1 + tr(Lambda)/lambda)/N.

    **Arguments:** values: the eigenvalues lambda; inverse_length: 1/N.
    """
    return 1 + (1 + jnp.sum(values) / values) * inverse_length


def learned(task: LinearRegression, chosen: Float[Array, " d"]) -> Matrix:
    """The readout sum_i v_i k_i q_i^T of heads that have learned exactly the eigenvectors with a one in ``chosen``."""
    values, vectors = spectrum(task)
    return (vectors * (chosen / (values * inflation(values, 1 / task.context_length)))[None, :]) @ vectors.T


def level(task: LinearRegression, chosen: Float[Array, " d"]) -> Scalar:
    """The paper's loss at the readout `learned`.

    It is tr(Lambda) minus the sum of lambda (1 + (1 + tr(Lambda)/lambda)/N)^-1 over the chosen eigenvalues lambda.
    """
    values, _ = spectrum(task)
    return jnp.sum(values) - jnp.sum(chosen * values / inflation(values, 1 / task.context_length))


def squared_error(covariance: Matrix, length: Scalar, readout: Matrix) -> Scalar:
    """E (y_q - beta^T Gamma x_q)^2 = tr(Lambda) - 2 tr(Lambda Gamma Lambda) + tr E[S Gamma Lambda Gamma^T S].

    Gamma is the readout and S the sample covariance. This code shares only Isserlis' theorem with the code of the loss.
    """
    linear = jnp.trace(covariance @ readout @ covariance)
    square = jnp.trace(sample_covariance_sandwich(readout @ covariance @ readout.T, covariance, length))
    return jnp.trace(covariance) - 2 * linear + square


def subsets(d: int, most: int) -> Float[np.ndarray, "sets d"]:
    """Sets of at most ``most`` of d eigenvectors. Each set is a row with ones for its members.

    For d <= 6 the rows are all of these sets. Otherwise the rows are those with at most ``most`` members among 64
    random sets and the sets of the first m eigenvectors, m = 0, .., d.
    """
    if d <= 6:
        found = (np.arange(2**d)[:, None] >> np.arange(d)) & 1
    else:
        found = np.random.default_rng(d).integers(0, 2, (64, d))
        found = np.concatenate([found, np.tri(d + 1, d, -1, dtype=int)])
    return found[found.sum(axis=1) <= most].astype(float)


def drawn_like(model: Heads) -> Heads:
    """The heads with standard normal weights except for the guess. These weights depend only on the shapes."""
    leaves, structure = jax.tree.flatten(model)
    rng = np.random.default_rng([7, *np.concatenate([np.shape(leaf) for leaf in leaves]).astype(int)])
    # The guess is zero, and comes last.
    drawn = [jnp.asarray(rng.standard_normal(leaf.shape)) for leaf in leaves[:-2]]
    return jax.tree.unflatten(structure, [*drawn, *leaves[-2:]])


def size(tree: AbstractHeads) -> Scalar:
    """The Euclidean norm of all weights."""
    return jnp.sqrt(sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)), jnp.zeros(())))


_PROMPTS = 16


def attention(model: MergedHeads | SeparateHeads, prompt: Prompt) -> Float[Array, ""]:
    """The prediction of the layer, [X + sum_i (1/N) W^V_i X X^T W^KQ_i X]_{D+1, N+1}.

    W^KQ_i is (W^K_i)^T W^Q_i for separate keys and queries. The last row of W^V_i is (0, v_i). Its other rows are ones;
    the prediction does not depend on them. The key-query blocks are U_i, or k_i and q_i, with zeros for the label.

    **Source:** zhang2025, section 2, with the zero blocks of its initialization.
    """
    X = embed(prompt)
    rows, N = X.shape[0], prompt.inputs.shape[0]
    merged = isinstance(model, MergedHeads)

    def head(v, *keys):
        W_V = jnp.ones((rows, rows)).at[-1].set(jnp.zeros(rows).at[-1].set(v))
        padded = [jnp.pad(key, ((0, 1), (0, 1)) if merged else ((0, 0), (0, 1))) for key in keys]
        W_KQ = padded[0] if merged else padded[0].T @ padded[1]
        return W_V @ X @ X.T @ W_KQ @ X / N

    heads = jax.vmap(head)(model.v, *((model.U,) if merged else (model.k, model.q)))
    return (X + jnp.sum(heads, axis=0))[-1, -1]


def on_prompts(
    task: LinearRegression, model: LabelHeads, expected: Callable[[Float[Array, "n d d"]], Float[Array, " n"]]
) -> Comparison:
    """Compares the layer's predictions on 16 random prompts with expected ones.

    The cubic features of a prompt are the matrix (1/N) sum_n y_n x_n x_q^T. ``expected`` maps the features of all
    prompts, (16, d, d), to predictions, (16,).
    """
    prompts = jax.vmap(lambda key: task.sample(key)[0])(jax.random.split(jax.random.key(3), _PROMPTS))
    found = jax.vmap(lambda prompt: attention(model, prompt))(prompts)
    cubic = lambda prompt: jnp.outer(prompt.labels @ prompt.inputs / prompt.labels.shape[0], prompt.query)
    features = jax.vmap(cubic)(prompts)
    factors = (model.U,) if isinstance(model, MergedHeads) else (model.k, model.q)
    squares = math.prod(jnp.sum(x**2) for x in (*factors, features))
    return equal(found, expected(features), jnp.linalg.norm(model.v) * jnp.sqrt(squares))
