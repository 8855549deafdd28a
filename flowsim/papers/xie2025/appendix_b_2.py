"""xie2025, appendix B.2, y_q-LSA as a linear transformer block: Lemma 3, on drawn prompts, and (31)."""

import jax
import jax.numpy as jnp

from flowsim.claims.claim import Comparison
from flowsim.claims.declaring import Section
from flowsim.claims.statements import rounded
from flowsim.losses import MultiHeadLoss
from flowsim.models import FactoredMultiHeadAttention, LinearTransformerBlock
from flowsim.papers.xie2025 import problems, spaces
from flowsim.papers.xie2025.conditions import (
    MODELS,
    drawable,
    few_coordinates,
    finite_context,
    heads_on_isotropic,
)
from flowsim.papers.xie2025.predictions import alike, normals
from flowsim.papers.xie2025.setting import same


def block_of(head: FactoredMultiHeadAttention, *, keys_and_values: bool = False) -> LinearTransformerBlock:
    """The linear transformer block that the proof of Lemma 3 builds from one head with a guess.

    W_3 = [I 0; w^T 0] stands after W^Q, and with ``keys_and_values`` also after W^K and W^V; c = 1 + |w|^2 in (31).
    """
    w = head.w
    d = w.size
    W_K, W_Q, W_V, W_P = (leaf[0] for leaf in (head.W_K, head.W_Q, head.W_V, head.W_P))
    W_3 = jnp.eye(d + 1).at[d, :d].set(w).at[d, d].set(0.0)
    W_1 = jnp.eye(d + 1).at[d, :d].set(w).at[:d, d].set(w).at[d, d].set(1 + w @ w)
    key, value = (W_K @ W_3, W_V @ W_3) if keys_and_values else (W_K, W_V)
    return LinearTransformerBlock(W_1, jnp.eye(d + 1), key, W_Q @ W_3, value, jnp.linalg.solve(W_1, W_P))


def _block(loss: MultiHeadLoss, keys_and_values: bool) -> Comparison:
    """A linear transformer block against y_q-LSA at drawn weights."""
    d = loss.task.dimension
    W_K, W_Q, W_V, W_P = normals(4, 1, d + 1, d + 1)
    head = FactoredMultiHeadAttention(W_K, W_Q, W_V, W_P, normals(d), trainable=True)
    return rounded(alike(loss.task, block_of(head, keys_and_values=keys_and_values), head), jnp.asarray(1e2))


SECTION = Section("xie2025", *MODELS, setting=heads_on_isotropic)
ON_FINITE = SECTION.on(problems.FINITE, spaces.FINITE, hypotheses=finite_context, needs=drawable)


@ON_FINITE.claim("lemma-3", "Lemma 3")
def block(loss: MultiHeadLoss) -> Comparison:
    """$y_q$-LSA is a linear transformer block

    Judged by a block that predicts as y_q-LSA does at drawn weights. It is not that of the proof: see lemma-3.proof.
    """
    return _block(loss, False)


@ON_FINITE.claim("lemma-3.proof", "proof of Lemma 3")
def block_of_the_proof(loss: MultiHeadLoss) -> Comparison:
    """$y_q$-LSA is the linear transformer block with $W_3$ after each of $W^K$, $W^Q$ and $W^V$

    W_3 replaces the labels of the context by X w, where (11) keeps them: the proof holds only if y = X w.
    """
    return _block(loss, True)


@ON_FINITE.corrected(block_of_the_proof, hypotheses=(finite_context, drawable), needs=None)
def block_as_corrected(loss: MultiHeadLoss) -> Comparison:
    """$y_q$-LSA is the linear transformer block with $W_3$ after $W^Q$ alone

    W^K and W^V stay as they are: the printed ones overwrite the labels.
    """
    return _block(loss, False)


@SECTION.claim("eq-31", "(31)", needs=few_coordinates, problems=problems.TASKS, spaces=spaces.TASKS)
def determinant(loss: MultiHeadLoss) -> Comparison:
    r"""$W_1 = \begin{bmatrix} I & w \\ w^\top & c \end{bmatrix}$ is invertible where $c \ne \lVert w \rVert^2$: its
    determinant is $c - \lVert w \rVert^2$
    """
    w = normals(loss.task.dimension)
    d, squares = w.size, jnp.sum(w**2)
    c = jnp.stack([jnp.zeros(()), jnp.ones(()), squares, jnp.asarray(100.0)])
    W_1 = jax.vmap(lambda c: jnp.eye(d + 1).at[d, :d].set(w).at[:d, d].set(w).at[d, d].set(c))(c)
    return same(loss.task, jnp.linalg.det(W_1), c - squares, 1 + c + squares)
