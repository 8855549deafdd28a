"""Both sides of ahn2023's statements on single prompts: Lemmas 2 and 9, (11), (22), (61) and the Hessian of (10).

All are judged on drawn prompts with drawn weights, in the paper's own sign of A. The labels are those of the literal
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
from flowsim.models import MultiLayerAttention
from flowsim.models.linear_attention import embed
from flowsim.models.masked_attention import attend
from flowsim.papers.ahn2023.multi_layer import Loss, basis
from flowsim.tasks import Prompt

Row = Float[Array, " columns"]

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

    compare.__name__, compare.__doc__ = sides.__name__, sides.__doc__
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


def _risk(drawn: Drawn, w: Vector, truth: Vector) -> Scalar:
    """R_truth(w) of (10)."""
    return jnp.mean((drawn.prompt.inputs @ (w - truth)) ** 2) / 2


def _descents(drawn: Drawn, *, own: bool) -> Float[Array, "layers d"]:
    """w_1, .., w_k of (11) from w_0 = 0; own: with R_{w_k} as printed there instead of R_{w*}."""
    w, steps = jnp.zeros_like(drawn.weight), []
    for A in drawn.A:
        w = w + A @ jax.grad(_risk, argnums=1)(drawn, w, w if own else drawn.weight)
        steps.append(w)
    return jnp.stack(steps)


def _predictions(drawn: Drawn) -> Row:
    """-y_i^{(n+1)} after every layer, from the model cut off there."""
    cut = range(1, drawn.A.shape[0] + 1)
    return jnp.stack([MultiLayerAttention(-drawn.A[:i], symmetric=False)(drawn.prompt) for i in cut])


@on_prompts
def lemma_2(drawn: Drawn) -> tuple[Row, Row]:
    """<x^{(n+1)}, w_i> of gradient descent on R_{w*} against the prediction after layer i."""
    return _descents(drawn, own=False) @ drawn.prompt.query, _predictions(drawn)


@on_prompts
def eq_11(drawn: Drawn) -> tuple[Row, Row]:
    """The same with the gradient of R_{w_k} that (11) prints."""
    return _descents(drawn, own=True) @ drawn.prompt.query, _predictions(drawn)


@on_prompts
def hessian_printed(drawn: Drawn) -> tuple[Array, Array]:
    """X X^T/(2n) against the Hessian of (10)."""
    X, n = drawn.prompt.inputs.T, drawn.prompt.inputs.shape[0]
    return X @ X.T / (2 * n), jax.hessian(_risk, argnums=1)(drawn, drawn.weight, drawn.weight)


@on_prompts
def hessian_corrected(drawn: Drawn) -> tuple[Array, Array]:
    """X X^T/n against the Hessian of (10)."""
    X, n = drawn.prompt.inputs.T, drawn.prompt.inputs.shape[0]
    return X @ X.T / n, jax.hessian(_risk, argnums=1)(drawn, drawn.weight, drawn.weight)


def _recursion(drawn: Drawn, attending: Float[Array, "n d"]) -> Row:
    """The labels of the context after all layers, y_i <- y_i + (1/n) sum_j u_i^T A_l x_j y_j."""
    inputs, labels = drawn.prompt.inputs, drawn.prompt.labels
    for A in drawn.A:
        labels = labels + attending @ A @ inputs.T @ labels / labels.size
    return labels


@on_prompts
def eq_61_printed(drawn: Drawn) -> tuple[Row, Row]:
    """(61) with x^{(n+1)} in the place of x^{(i)}, as printed, against the labels of the layers."""
    attending = jnp.broadcast_to(drawn.prompt.query, drawn.prompt.inputs.shape)
    return _recursion(drawn, attending), layers(without_B(drawn), embed(drawn.prompt))[-1, -1, :-1]


@on_prompts
def eq_61_corrected(drawn: Drawn) -> tuple[Row, Row]:
    """(61) with x^{(i)}, which is (57), against the labels of the layers."""
    return _recursion(drawn, drawn.prompt.inputs), layers(without_B(drawn), embed(drawn.prompt))[-1, -1, :-1]


def _product(drawn: Drawn, sign: float) -> Float[Array, "columns columns"]:
    """prod_l (I + sign M X_0^T A_l X_0), with 1/n in the A_l."""
    X, total = labelled(drawn)[:-1], jnp.eye(drawn.prompt.labels.size + 1)
    masked = X.at[:, -1].set(0.0)
    for A in drawn.A:
        total = total @ (jnp.eye(total.shape[0]) + sign * masked.T @ A @ X / drawn.prompt.labels.size)
    return total


@on_prompts
def eq_22(drawn: Drawn) -> tuple[Row, Row]:
    """Y_0 prod_l (I + M X_0^T A_l X_0) against the labels of the layers."""
    Z = labelled(drawn)
    return Z[-1] @ _product(drawn, 1.0), layers(without_B(drawn), Z)[-1, -1]


@on_prompts
def eq_28_printed(drawn: Drawn) -> tuple[Row, Row]:
    """w*^T G with G = X_0 prod_l (I - M X_0^T A_l X_0), as printed, against the labels of the layers."""
    Z = labelled(drawn)
    return drawn.weight @ Z[:-1] @ _product(drawn, -1.0), layers(without_B(drawn), Z)[-1, -1]


@on_prompts
def eq_28_corrected(drawn: Drawn) -> tuple[Row, Row]:
    """w*^T G with G = X_0 prod_l (I + M X_0^T A_l X_0) against the labels of the layers."""
    Z = labelled(drawn)
    return drawn.weight @ Z[:-1] @ _product(drawn, 1.0), layers(without_B(drawn), Z)[-1, -1]


@on_prompts
def lemma_9(drawn: Drawn) -> tuple[Row, Row]:
    """[Z_k]_{d+1,n+1} + w*^T x^{(n+1)} against [Z-bar_k]_{d+1,n+1}, with B, and the model's prediction."""
    label = drawn.weight @ drawn.prompt.query
    given = layers(drawn, embed(drawn.prompt))[-1, -1, -1] + label
    predicted = label - MultiLayerAttention(-drawn.A, drawn.B[:-1], symmetric=False)(drawn.prompt)
    reformulated = layers(drawn, labelled(drawn))[-1, -1, -1]
    return jnp.stack([given, predicted]), jnp.stack([reformulated, reformulated])
