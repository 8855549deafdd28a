"""xie2025, appendix B.2, y_q-LSA as a linear transformer block: Lemma 3, on drawn prompts, and (31)."""

import jax
import jax.numpy as jnp

from flowsim.claims.claim import Comparison, Relation
from flowsim.claims.statements import rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiHeadLoss
from flowsim.models import FactoredMultiHeadAttention, LinearTransformerBlock
from flowsim.papers.paper import Section
from flowsim.papers.xie2025 import problems, spaces
from flowsim.papers.xie2025.conditions import (
    MODELS,
    all_of,
    drawable,
    few_coordinates,
    finite_context,
    heads_on_isotropic,
    promised_where,
)
from flowsim.papers.xie2025.predictions import alike, normals
from flowsim.papers.xie2025.setting import same

SECTION = Section("xie2025", *MODELS)


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


@SECTION.claim(
    "lemma-3",
    "Lemma 3",
    "y_q-LSA is a linear transformer block",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(finite_context, drawable),
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    note="Judged by a block that predicts as y_q-LSA does at drawn weights. It is not that of the proof: see "
    "lemma-3.proof.",
)
@promised_where(drawable)
def block(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The block with W_3 after W^Q alone, so that W^K and W^V stay as they are, against y_q-LSA."""
    return _block(loss, False)


@SECTION.claim(
    "lemma-3.proof",
    "proof of Lemma 3",
    "y_q-LSA is the linear transformer block with W_3 after each of W^K, W^Q and W^V",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(finite_context, drawable),
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    note="W_3 replaces the labels of the context by X w, where (11) keeps them: the proof holds only if y = X w.",
)
@promised_where(drawable)
def block_of_the_proof(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The block with the weights of the proof of Lemma 3 against y_q-LSA."""
    return _block(loss, True)


block_as_corrected = SECTION.claim(
    "lemma-3.proof",
    "proof of Lemma 3",
    "y_q-LSA is the linear transformer block with W_3 after W^Q alone",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(finite_context, drawable),
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    note="W^K and W^V stay as they are: the printed ones overwrite the labels.",
)(block)


@SECTION.claim(
    "eq-31",
    "(31)",
    "W_1 = [I w; w^T c] is invertible where c != |w|^2: its determinant is c - |w|^2",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=few_coordinates,
    problems=problems.TASKS,
    spaces=spaces.TASKS,
)
@promised_where(few_coordinates)
def determinant(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """det W_1 of (31) against c - |w|^2, at a drawn w and c = 0, 1, |w|^2 and 100."""
    w = normals(loss.task.dimension)
    d, squares = w.size, jnp.sum(w**2)
    c = jnp.stack([jnp.zeros(()), jnp.ones(()), squares, jnp.asarray(100.0)])
    W_1 = jax.vmap(lambda c: jnp.eye(d + 1).at[d, :d].set(w).at[:d, d].set(w).at[d, d].set(c))(c)
    return same(loss.task, jnp.linalg.det(W_1), c - squares, 1 + c + squares)
