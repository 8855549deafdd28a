"""zhang2025's attention layers, written out with all of their matrices."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.models import MergedHeads, SeparateHeads
from flowsim.models.linear_attention import embed
from flowsim.tasks import LinearRegression, Prompt

_PROMPTS = 16


def attention(model: MergedHeads | SeparateHeads, prompt: Prompt) -> Float[Array, ""]:
    """The prediction of the layer, [X + sum_i (1/N) W^V_i X X^T W^KQ_i X]_{D+1, N+1}.

    W^KQ_i is (W^K_i)^T W^Q_i where keys and queries are separate. The last row of W^V_i is (0, v_i); its other rows are
    ones, because nothing reads their output. The key-query blocks are U_i, or k_i and q_i, with zeros for the label.

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


def drawn_prompts(task: LinearRegression) -> Prompt:
    """Drawn prompts of a task, stacked along a leading axis."""
    return jax.vmap(lambda key: task.sample(key)[0])(jax.random.split(jax.random.key(3), _PROMPTS))


def cubic_features(prompt: Prompt) -> Float[Array, "d d"]:
    """The cubic features z = (1/N) sum_n y_n x_n x_q^T, as a matrix."""
    return jnp.outer(prompt.labels @ prompt.inputs / prompt.labels.shape[0], prompt.query)
