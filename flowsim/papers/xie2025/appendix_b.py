"""xie2025, appendix B: y_q-LSA as a linear transformer block, and the proof of Theorem 4 by derivatives of the risk."""

import jax
import jax.numpy as jnp
import numpy as np

from flowsim.claims.claim import Comparison
from flowsim.claims.hypotheses import finite_context as drawable
from flowsim.claims.statements import joined, rounded
from flowsim.losses import MultiHeadLoss
from flowsim.models import FactoredMultiHeadAttention, LinearTransformerBlock
from flowsim.papers.xie2025 import exact, problems, spaces
from flowsim.papers.xie2025.prompts import alike, normals
from flowsim.papers.xie2025.setting import HEADS, drawn_heads, few_coordinates, finite_context, gradient, risks, same


def block_of(head: FactoredMultiHeadAttention, *, keys_and_values: bool = False) -> LinearTransformerBlock:
    """A linear transformer block built from one head with a guess w^T x_q, as in the proof of Lemma 3.

    The block has W^Q W_3 in place of W^Q, with W_3 = [I 0; w^T 0]. With ``keys_and_values`` it also has W^K W_3 and
    W^V W_3, as in the printed proof. W_1 is that of (31) with c = 1 + |w|^2.
    """
    w = head.w
    d = w.size
    W_K, W_Q, W_V, W_P = (leaf[0] for leaf in (head.W_K, head.W_Q, head.W_V, head.W_P))
    W_3 = jnp.eye(d + 1).at[d, :d].set(w).at[d, d].set(0.0)
    W_1 = jnp.eye(d + 1).at[d, :d].set(w).at[:d, d].set(w).at[d, d].set(1 + w @ w)
    key, value = (W_K @ W_3, W_V @ W_3) if keys_and_values else (W_K, W_V)
    return LinearTransformerBlock(W_1, jnp.eye(d + 1), key, W_Q @ W_3, value, jnp.linalg.solve(W_1, W_P))


def _block(loss: MultiHeadLoss, keys_and_values: bool) -> Comparison:
    """The statement that the block of `block_of` predicts as y_q-LSA does, at random weights."""
    d = loss.task.dimension
    W_K, W_Q, W_V, W_P = normals(4, 1, d + 1, d + 1)
    head = FactoredMultiHeadAttention(W_K, W_Q, W_V, W_P, normals(d), trainable=True)
    return rounded(alike(loss.task, block_of(head, keys_and_values=keys_and_values), head), jnp.asarray(1e2))


SECTION = HEADS(needs=few_coordinates)
ON_TASKS = SECTION.on(problems.TASKS, spaces.TASKS)
ON_DRAWN = SECTION.on(problems.FINITE, spaces.FINITE, hypotheses=finite_context, needs=drawable)


@ON_DRAWN.claim("lemma-3", "Lemma 3")
def block(loss: MultiHeadLoss) -> Comparison:
    """$y_q$-LSA is a linear transformer block

    Judged by a block that predicts as y_q-LSA does at random weights. It is not the block of the proof: see
    lemma-3.proof.
    """
    return _block(loss, False)


@ON_DRAWN.claim("lemma-3.proof", "proof of Lemma 3")
def block_of_the_proof(loss: MultiHeadLoss) -> Comparison:
    """$y_q$-LSA is the linear transformer block with $W_3$ after each of $W^K$, $W^Q$ and $W^V$

    W_3 replaces the labels of the context by X w, but (11) keeps them. So the proof holds only if y = X w.
    """
    return _block(loss, True)


@ON_DRAWN.corrected(block_of_the_proof)
def block_as_corrected(loss: MultiHeadLoss) -> Comparison:
    """$y_q$-LSA is the linear transformer block with $W_3$ after $W^Q$ alone

    W^K and W^V stand without W_3, which would overwrite the labels of the context.
    """
    return _block(loss, False)


@ON_TASKS.claim("eq-31", "(31)")
def determinant(loss: MultiHeadLoss) -> Comparison:
    r"""$W_1 = \begin{bmatrix} I & w \\ w^\top & c \end{bmatrix}$ is invertible where $c \ne \lVert w \rVert^2$: its
    determinant is $c - \lVert w \rVert^2$
    """
    w = normals(loss.task.dimension)
    d, squares = w.size, jnp.sum(w**2)
    c = jnp.stack([jnp.zeros(()), jnp.ones(()), squares, jnp.asarray(100.0)])
    W_1 = jax.vmap(lambda c: jnp.eye(d + 1).at[d, :d].set(w).at[:d, d].set(w).at[d, d].set(c))(c)
    return same(loss.task, jnp.linalg.det(W_1), c - squares, 1 + c + squares)


ON_FINITE = SECTION.on(problems.FINITE, spaces.FINITE, hypotheses=finite_context)


@ON_TASKS.claim("appendix-b.3.risk", "appendix B.3")
def sum_of_parts(loss: MultiHeadLoss) -> Comparison:
    r"""$R = \sum_j \mathbb{E} t_j^2$, $t_j = \langle G, b a_j^\top \rangle + \langle G, b a_{d+1}^\top \rangle v_j +
    v_j - \hat w_j$

    The preceding display lacks a square, and the first one counts v^T x_q in addition to y_q.
    """
    task = loss.task
    found = jnp.stack([risks(task, drawn_heads(task.dimension, 1, seed, trainable=True)) for seed in (6, 7)])
    return same(task, found[:, 0], found[:, 1], found[:, 1])


@ON_TASKS.claim("appendix-b.3.gradient", "appendix B.3, step 1")
def listed_derivatives(loss: MultiHeadLoss) -> Comparison:
    r"""$\partial R/\partial b = 2 \sum_j \mathbb{E}\bigl[t_j (G a_j + v_j G a_{d+1})\bigr]$, $\partial R/\partial a_j =
    2 \mathbb{E}[t_j G b]$, $\partial R/\partial a_{d+1} = 2 \sum_j \mathbb{E}[t_j v_j G b]$, $\partial R/\partial v_j =
    2 \mathbb{E}\bigl[t_j (1 + b^\top G a_{d+1})\bigr]$

    In dR/dv_j step 2 has b^T G a_j in place of b^T G a_{d+1}. The correct term is 0 there.
    """
    task = loss.task
    model = drawn_heads(task.dimension, 1, 8, trainable=True)
    found = exact.gradient(exact.moments(task), model).reduced()
    expected = gradient(loss.risk, model).reduced()
    pairs = []
    for one, other in ((found.b, expected.b), (found.A, expected.A), (found.w, expected.w)):
        pairs.append(same(task, one.reshape(-1), other.reshape(-1), jnp.max(jnp.abs(other))))
    return joined(pairs)


@ON_FINITE.claim("appendix-b.3.squares", "appendix B.3, step 2")
def squared_row(loss: MultiHeadLoss) -> Comparison:
    r"""$\mathbb{E}\bigl[\bigl(\sum_i x_i[j] x_i^\top\bigr)\bigl(\sum_k x_k[j] x_k\bigr)\bigr] = C (C - 1) + C
    (d + 2)$
    """
    task, d = loss.task, loss.task.dimension
    C, second = float(task.context_length), exact.moments(task).second
    found = exact.floats(np.asarray([sum(second[j, m, j, m] for m in range(d)) for j in range(d)], dtype=object))
    return same(task, C**2 * found, C * (C - 1) + C * (d + 2), C**2 * (d + 2.0))


@ON_FINITE.claim("appendix-b.3.map", "appendix B.3, step 2")
def squared_map(loss: MultiHeadLoss) -> Comparison:
    r"""$\mathbb{E}\bigl[w^\top \bigl(\sum_i x_i x_i[j]\bigr) \bigl(\sum_k x_k x_k^\top\bigr) w\bigr] = C (C + 1) w_j w
    + C \lVert w \rVert^2 e_j$

    The preceding line has the number C (C - 1) w_j |w|^2 in place of the vector C (C - 1) w_j w.
    """
    task, d = loss.task, loss.task.dimension
    C, second = float(task.context_length), exact.moments(task).second[:d, :d, :d, :d]
    w = np.random.default_rng(9).integers(1, 5, size=d)
    found = exact.floats(np.einsum("jabc,a,c->jb", second, w, w))
    stated = C * (C + 1) * np.multiply.outer(w, w) + C * float(w @ w) * np.eye(d)
    return same(task, C**2 * found.reshape(-1), stated.reshape(-1), float(np.max(stated)))
