"""gatmiry2024's appendix A: Theorem A.1, (12) and (13) on each layer, against the literal transformer."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from flowsim.claims.claim import Comparison
from flowsim.claims.declaring import Section
from flowsim.losses import LoopedLoss
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.layers import (
    JUDGED,
    PROBLEMS,
    DrawnLayers,
    drawn_layers,
    last_rows,
    product_and_sum,
    with_sums,
)
from flowsim.papers.gatmiry2024.lemma_settings import looped_by_matrices
from flowsim.papers.gatmiry2024.setting import MODELS
from flowsim.tasks import Prompt

_SIGN = (
    JUDGED
    + "Each layer adds u^T to the row of labels before it subtracts, y <- y - (u + v)^T Sigma A X, so the sum over "
    "u enters with the opposite sign. Where all u are zero the two forms agree; the loss does not depend on the sign. "
)


@eqx.filter_jit
def _recursion(drawn: DrawnLayers) -> dict[str, Array]:
    """For each context and t: the literal row of labels and y_q minus the first terms of (12) and (13), the second sums
    of (12) and (13), and the sizes of the terms.
    """

    def one(context: Array) -> dict[str, Array]:
        w, x = jnp.sin(1.0 + jnp.arange(2.0 * context.shape[1])).reshape(2, -1)
        w, x, X = w @ drawn.inverse_root, x @ drawn.root, context @ drawn.root
        A, u, Sigma = drawn.layers, drawn.vectors, X.T @ X / context.shape[0]
        rows, found = last_rows(Prompt(X, X @ w, x), A, u), []
        for t, literal in enumerate(rows):
            product, total = product_and_sum(Sigma, A[:t], u[:t])
            size = sum(jnp.linalg.norm(part) for part in (w, w @ product, total))
            labels = {"labels": literal[:-1] - X @ (w @ product), "labels_sum": X @ total, "labels_size": size}
            query = {"query": -literal[-1] - (w - w @ product) @ x, "query_sum": -total @ x}
            sizes = {"labels_size": size * jnp.linalg.norm(X), "query_size": size * jnp.linalg.norm(x)}
            found.append(labels | query | sizes)
        return jax.tree.map(lambda *values: jnp.stack(values), *found)

    return jax.vmap(one)(drawn.contexts)


def _against(loss: LoopedLoss, sign: float, part: str) -> Comparison:
    """The literal rows against (12) or (13) with this sign of the second sum."""
    drawn = drawn_layers(loss.task, loss.loops)
    found = _recursion(drawn)
    gaps = found[part] - sign * found[f"{part}_sum"]
    gaps = jnp.sqrt(jnp.sum(gaps.reshape(*gaps.shape[:2], -1) ** 2, axis=2))
    return with_sums(gaps, found[f"{part}_size"], drawn)


SECTION = Section("gatmiry2024", *MODELS, setting=looped_by_matrices, problems=PROBLEMS, spaces=spaces.LEMMAS)


@SECTION.claim("theorem-a.1.eq-12", "Theorem A.1, (12)", note=_SIGN)
def labels_plus(loss: LoopedLoss) -> Comparison:
    r"""$y^{(t)\top} = w^\top \prod_{i<t} (I - \Sigma A_i) X + \sum_{i<t} u_i^\top \Sigma A_i \prod_{i<j<t} (I - \Sigma
    A_j) X$
    """
    return _against(loss, 1.0, "labels")


@SECTION.corrected(labels_plus, note=_SIGN + "The proof writes X X^T = Sigma; Sigma is X X^T / n.")
def labels_minus(loss: LoopedLoss) -> Comparison:
    r"""$y^{(t)\top} = w^\top \prod_{i<t} (I - \Sigma A_i) X - \sum_{i<t} u_i^\top \Sigma A_i \prod_{i<j<t} (I - \Sigma
    A_j) X$
    """
    return _against(loss, -1.0, "labels")


@SECTION.claim("theorem-a.1.eq-13", "Theorem A.1, (13)", note=_SIGN)
def query_plus(loss: LoopedLoss) -> Comparison:
    r"""$y_q^{(t)} = y_q - w^\top \prod_{i<t} (I - \Sigma A_i) x_q - \sum_{i<t} u_i^\top \Sigma A_i \prod_{i<j<t} (I -
    \Sigma A_j) x_q$
    """
    return _against(loss, 1.0, "query")


@SECTION.corrected(query_plus, note=_SIGN)
def query_minus(loss: LoopedLoss) -> Comparison:
    r"""$y_q^{(t)} = y_q - w^\top \prod_{i<t} (I - \Sigma A_i) x_q + \sum_{i<t} u_i^\top \Sigma A_i \prod_{i<j<t} (I -
    \Sigma A_j) x_q$
    """
    return _against(loss, -1.0, "query")
