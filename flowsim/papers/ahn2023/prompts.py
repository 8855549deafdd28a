"""Random prompts and weights for ahn2023's statements about single prompts, and the layers' states on them.

The A_i have the paper's sign. `layers` computes covariates and labels by the attention layers (53), in the paper's
matrix form. `turned` and `turned_slopes` compare functions at X_0 and at U_Sigma X_0, where U_Sigma = Sigma^{1/2} U
Sigma^{-1/2} with an orthogonal U.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Matrix, Scalar, Vector
from flowsim.claims.claim import Comparison, equal
from flowsim.claims.declaring import takes_like
from flowsim.claims.hypotheses import can_be_drawn
from flowsim.claims.statements import rounded
from flowsim.models.linear_attention import embed
from flowsim.models.masked_attention import attend
from flowsim.papers.ahn2023.multi_layer import Loss, basis
from flowsim.tasks import Prompt

Row = Float[Array, " columns"]
Columns = Float[Array, "d columns"]

_PROMPTS = 64
_SIZE = 0.5  # of the drawn weights, relative to the best ones


class Drawn(NamedTuple):
    """A random prompt with random weights of the layers.

    **Fields:**

    - prompt: the prompt.
    - weight: w*, which gives the prompt's labels.
    - A, B: the matrices of the k layers.
    - root: Sigma^{1/2}.
    - turn: a random orthogonal matrix U.
    """

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
    """64 independent draws, stacked."""
    return jax.vmap(lambda key: _draw(loss, n, key))(jax.random.split(jax.random.key(0), _PROMPTS))


def on_prompts(sides: Callable[[Drawn], tuple[Array, Array]]) -> Callable[[Loss], Comparison]:
    """Compares the two arrays that ``sides`` returns on each of 64 random prompts.

    The largest difference on a prompt is judged relative to the sum of the largest entries of both arrays. Where
    the context is too long to draw prompts, the comparison is 0 = 0.
    """

    both = eqx.filter_jit(jax.vmap(sides))

    @takes_like(sides)
    def compare(loss: Loss) -> Comparison:
        if not can_be_drawn(loss.task):
            return equal(jnp.zeros(1), 0.0, 1.0)
        n = int(loss.task.context_length)
        value, expected = both(_draws(loss, n))
        axes = tuple(range(1, value.ndim))
        size = jnp.max(jnp.abs(expected), axis=axes) + jnp.max(jnp.abs(value), axis=axes)
        gap = jnp.max(jnp.abs(value - expected), axis=axes)
        # A layer sums over n tokens, and amplifies the rounding errors before it by at most about d.
        return rounded(equal(gap, 0.0, size), jnp.asarray(float(n) * loss.task.dimension**loss.layers))

    return compare


def layers(drawn: Drawn, Z: Float[Array, "rows columns"]) -> Float[Array, "layers rows columns"]:
    """The states Z_1, .., Z_k of (53) from Z_0 = Z."""
    d, states = drawn.weight.size, []
    for A, B in zip(drawn.A, drawn.B, strict=True):
        P = jnp.zeros((d + 1, d + 1)).at[:d, :d].set(B).at[d, d].set(1.0)
        Q = jnp.zeros((d + 1, d + 1)).at[:d, :d].set(A)
        Z = Z + attend(Z, P, Q) / drawn.prompt.inputs.shape[0]
        states.append(Z)
    return jnp.stack(states)


def without_B(drawn: Drawn) -> Drawn:
    """The prompt and the A_i of a draw, with all B_i = 0. The layers then leave the covariates unchanged."""
    return drawn._replace(B=jnp.zeros_like(drawn.B))


def labelled(drawn: Drawn) -> Float[Array, "rows columns"]:
    """Z-bar_0: the embedded prompt, which here includes the query's label."""
    return embed(drawn.prompt).at[-1, -1].set(drawn.weight @ drawn.prompt.query)


def risk(drawn: Drawn, w: Vector, truth: Vector) -> Scalar:
    """R_truth(w) of (10): the mean over the context of (<x_i, w> - <x_i, truth>)^2/2."""
    return jnp.mean((drawn.prompt.inputs @ (w - truth)) ** 2) / 2


def nearest_on_the_set(drawn: Drawn) -> Drawn:
    """The draw with its weights moved to the nearest point of S = {A_i = a_i Sigma^-1, B_i = b_i I}.

    Distances are Frobenius norms in Sigma^{1/2} A_i Sigma^{1/2} and in B_i.
    """
    d, Sigma = drawn.weight.size, drawn.root @ drawn.root
    a, b = jnp.einsum("kij,ij->k", drawn.A, Sigma) / d, jnp.einsum("kii->k", drawn.B) / d
    return drawn._replace(
        A=a[:, None, None] * jnp.linalg.inv(Sigma)[None], B=b[:, None, None] * jnp.eye(d, dtype=b.dtype)[None]
    )


def inputs_of(drawn: Drawn) -> Columns:
    """X_0: the covariates of context and query, as columns."""
    return labelled(drawn)[:-1]


def states_from(drawn: Drawn, X: Columns) -> Float[Array, "layers rows columns"]:
    """The states Z_0, .., Z_k of the layers (53) from the covariates X.

    The labels in Z_0 are <w*, x_i> for all columns x_i of X, also for the query.
    """
    Z = jnp.concatenate([X, (drawn.weight @ X)[None]])
    return jnp.concatenate([Z[None], layers(drawn, Z)])


def covariates(drawn: Drawn, X: Columns) -> Float[Array, "layers d columns"]:
    """The covariates X_0, .., X_k of the layers, with X_0 = X."""
    return states_from(drawn, X)[:, :-1]


def masked(X: Columns) -> Columns:
    """X M: the query's column is set to zero."""
    return X.at[:, -1].set(0.0)


def product(drawn: Drawn, X: Columns, sign: float = 1.0) -> Columns:
    """G = X prod_i (I + sign M X_i^T A_i X_i), with the X_i of `covariates`. The A_i include the factor 1/n."""
    total, n = X, drawn.prompt.inputs.shape[0]
    for A, X_i in zip(drawn.A, covariates(drawn, X), strict=False):
        total = total @ (jnp.eye(X.shape[1]) + sign * masked(X_i).T @ A @ X_i / n)
    return total


def labels_by_product(drawn: Drawn, sign: float = 1.0) -> tuple[Row, Row]:
    """The row w*^T G with the G of `product`, and the labels Y_k after the attention layers.

    Both start from the labels <w*, x_i> of all columns.
    """
    X = inputs_of(drawn)
    return drawn.weight @ product(drawn, X, sign), states_from(drawn, X)[-1, -1]


def _turns(drawn: Drawn) -> tuple[Matrix, Matrix]:
    """U_Sigma = Sigma^{1/2} U Sigma^{-1/2} and its inverse, Sigma^{1/2} U^T Sigma^{-1/2}."""
    inverse = jnp.linalg.inv(drawn.root)
    return drawn.root @ drawn.turn @ inverse, drawn.root @ drawn.turn.T @ inverse


def turned(drawn: Drawn, function: Callable[[Drawn, Columns], Array]) -> tuple[Array, Array]:
    """The value of ``function`` at U_Sigma X_0, and U_Sigma times the value at X_0."""
    turn, X = _turns(drawn)[0], inputs_of(drawn)
    return function(drawn, turn @ X), turn @ function(drawn, X)


def _slope(drawn: Drawn, function: Callable[[Drawn, Columns], Array], name: str, steps: Array, X: Columns) -> Array:
    """The derivatives of ``function`` at X, stacked over the layers j.

    Derivative j is taken in A_j or B_j, as ``name`` says, along steps[j].
    """
    of = lambda matrices: function(drawn._replace(**{name: matrices}), X)
    matrices = getattr(drawn, name)
    along = [jnp.zeros_like(steps).at[j].set(steps[j]) for j in range(steps.shape[0])]
    return jnp.stack([jax.jvp(of, (matrices,), (step,))[1] for step in along])


def turned_slopes(drawn: Drawn, function: Callable[[Drawn, Columns], Array], name: str) -> tuple[Array, Array]:
    """Both sides of (30), (40), (45), (47) and (50), at the point of S nearest to a draw.

    Both sides are stacked over the layers j. If ``name`` is "A", the left side is U_Sigma^-1 times the derivative
    at U_Sigma X_0 along a random step R_j of A_j. The right side is the derivative at X_0 along U_Sigma^T R_j
    U_Sigma. If ``name`` is "B", the left side uses a random step S_j of B_j, and the right side the step U_Sigma^-1
    S_j U_Sigma.
    """
    (turn, back), X, point = _turns(drawn), inputs_of(drawn), nearest_on_the_set(drawn)
    steps = getattr(drawn, name)
    moved = (turn.T if name == "A" else back) @ steps @ turn
    return back @ _slope(point, function, name, steps, turn @ X), _slope(point, function, name, moved, X)
