"""The prompts that ahn2023's statements on single ones are judged on, and what the layers make of them.

They are drawn, as the weights are, in the paper's own sign of A. Covariates and labels are those of the literal
attention layers.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Scalar, Vector
from flowsim.claims.claim import Comparison, equal
from flowsim.claims.hypotheses import can_be_drawn
from flowsim.claims.statements import rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.models.linear_attention import embed
from flowsim.models.masked_attention import attend
from flowsim.papers.ahn2023.multi_layer import Loss, basis
from flowsim.tasks import Prompt

Row = Float[Array, " columns"]
Columns = Float[Array, "d columns"]

_PROMPTS = 64
_SIZE = 0.5  # of the drawn weights, in the units of the best ones


class Drawn(NamedTuple):
    """A prompt, the weight behind its labels, the weights of a transformer, Sigma^{1/2} and an orthogonal matrix."""

    prompt: Prompt
    weight: Vector
    A: Float[Array, "k d d"]
    B: Float[Array, "k d d"]
    root: Float[Array, "d d"]
    turn: Float[Array, "d d"]


def _draw(loss: Loss, n: int, key: Array) -> Drawn:
    keys = jax.random.split(key, 6)
    d, units = loss.task.dimension, basis(loss)
    inverse = jnp.linalg.inv(loss.root)
    inputs = jax.random.normal(keys[0], (n, d)) @ loss.root
    query, weight = loss.root @ jax.random.normal(keys[1], (d,)), inverse @ jax.random.normal(keys[2], (d,))
    offsets = jnp.einsum("km,mij->kij", jax.random.normal(keys[3], (loss.layers, units.shape[0])), units)
    primed = -_SIZE * loss.energy.centres[:, None, None] * (jnp.eye(d)[None] + offsets / d**0.5)
    B = _SIZE * jax.random.normal(keys[4], (loss.layers, d, d)) / d**0.5
    prompt, turn = Prompt(inputs, inputs @ weight, query), jnp.linalg.qr(jax.random.normal(keys[5], (d, d)))[0]
    return Drawn(prompt, weight, inverse @ primed @ inverse, loss.root @ B @ inverse, loss.root, turn)


@eqx.filter_jit
def _draws(loss: Loss, n: int) -> Drawn:
    """What 64 keys draw."""
    return jax.vmap(lambda key: _draw(loss, n, key))(jax.random.split(jax.random.key(0), _PROMPTS))


def on_prompts(sides):
    """The comparison of two sides, each an array a drawn prompt, relative to their largest entry."""

    both = eqx.filter_jit(jax.vmap(sides))

    def compare(loss: Loss, trajectory: Trajectory) -> Comparison:
        if not can_be_drawn(loss.task):
            return equal(jnp.zeros(1), 0.0, 1.0)
        n = int(loss.task.context_length)
        value, expected = both(_draws(loss, n))
        axes = tuple(range(1, value.ndim))
        size = jnp.max(jnp.abs(expected), axis=axes) + jnp.max(jnp.abs(value), axis=axes)
        gap = jnp.max(jnp.abs(value - expected), axis=axes)
        # A layer sums over n tokens, and multiplies what rounding has left by about d at most.
        return rounded(equal(gap, 0.0, size), jnp.asarray(float(n) * loss.task.dimension**loss.layers))

    compare.__module__, compare.__name__, compare.__doc__ = sides.__module__, sides.__name__, sides.__doc__
    return compare


def layers(drawn: Drawn, Z: Float[Array, "rows columns"]) -> Float[Array, "layers rows columns"]:
    """Z_1, .., Z_k of (53)."""
    d, states = drawn.weight.size, []
    for A, B in zip(drawn.A, drawn.B, strict=True):
        P = jnp.zeros((d + 1, d + 1)).at[:d, :d].set(B).at[d, d].set(1.0)
        Q = jnp.zeros((d + 1, d + 1)).at[:d, :d].set(A)
        Z = Z + attend(Z, P, Q) / drawn.prompt.inputs.shape[0]
        states.append(Z)
    return jnp.stack(states)


def without_B(drawn: Drawn) -> Drawn:
    """The same with covariates that stay."""
    return drawn._replace(B=jnp.zeros_like(drawn.B))


def labelled(drawn: Drawn) -> Float[Array, "rows columns"]:
    """Z-bar_0: the prompt with the label of the query."""
    return embed(drawn.prompt).at[-1, -1].set(drawn.weight @ drawn.prompt.query)


def risk(drawn: Drawn, w: Vector, truth: Vector) -> Scalar:
    """R_truth(w) of (10)."""
    return jnp.mean((drawn.prompt.inputs @ (w - truth)) ** 2) / 2


def nearest_on_the_set(drawn: Drawn) -> Drawn:
    """The point of S that is nearest: A_i = a_i Sigma^-1, B_i = b_i I."""
    d, Sigma = drawn.weight.size, drawn.root @ drawn.root
    a, b = jnp.einsum("kij,ij->k", drawn.A, Sigma) / d, jnp.einsum("kii->k", drawn.B) / d
    return drawn._replace(
        A=a[:, None, None] * jnp.linalg.inv(Sigma)[None], B=b[:, None, None] * jnp.eye(d, dtype=b.dtype)[None]
    )


def inputs_of(drawn: Drawn) -> Columns:
    """X_0."""
    return labelled(drawn)[:-1]


def states_from(drawn: Drawn, X: Columns) -> Float[Array, "layers rows columns"]:
    """Z_0, .., Z_k of the literal layers from these covariates."""
    Z = jnp.concatenate([X, (drawn.weight @ X)[None]])
    return jnp.concatenate([Z[None], layers(drawn, Z)])


def covariates(drawn: Drawn, X: Columns) -> Float[Array, "layers d columns"]:
    """X_0, .., X_k."""
    return states_from(drawn, X)[:, :-1]


def masked(X: Columns) -> Columns:
    """X M."""
    return X.at[:, -1].set(0.0)


def product(drawn: Drawn, X: Columns, sign: float = 1.0) -> Columns:
    """G = X prod_i (I + sign M X_i^T A_i X_i), with 1/n in the A_i."""
    total, n = X, drawn.prompt.inputs.shape[0]
    for A, X_i in zip(drawn.A, covariates(drawn, X), strict=False):
        total = total @ (jnp.eye(X.shape[1]) + sign * masked(X_i).T @ A @ X_i / n)
    return total
