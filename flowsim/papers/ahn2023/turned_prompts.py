"""Both sides of what ahn2023's proofs of Lemma 2 and Theorems 4 and 5, and sections 5.2 and 6.1, say of single prompts.

All are judged on the drawn prompts of `multi_layer_prompts`, in the paper's own sign of A. Covariates and labels are
those of the literal attention layers, and derivatives are taken of these. With U orthogonal, U_Sigma = Sigma^{1/2} U
Sigma^{-1/2} turns the covariates.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Matrix
from flowsim.models.linear_attention import embed
from flowsim.papers.ahn2023.multi_layer_prompts import Drawn, labelled, layers, on_prompts, without_B
from flowsim.tasks import Prompt

Columns = Float[Array, "d columns"]


def _on_the_set(drawn: Drawn) -> Drawn:
    """The point of S that is nearest: A_i = a_i Sigma^-1, B_i = b_i I."""
    d, Sigma = drawn.weight.size, drawn.root @ drawn.root
    a, b = jnp.einsum("kij,ij->k", drawn.A, Sigma) / d, jnp.einsum("kii->k", drawn.B) / d
    return drawn._replace(
        A=a[:, None, None] * jnp.linalg.inv(Sigma)[None], B=b[:, None, None] * jnp.eye(d, dtype=b.dtype)[None]
    )


def _turns(drawn: Drawn) -> tuple[Matrix, Matrix]:
    """U_Sigma and its inverse as the paper writes it, Sigma^{1/2} U^T Sigma^{-1/2}."""
    inverse = jnp.linalg.inv(drawn.root)
    return drawn.root @ drawn.turn @ inverse, drawn.root @ drawn.turn.T @ inverse


def _states(drawn: Drawn, X: Columns) -> Float[Array, "layers rows columns"]:
    """Z_0, .., Z_k of the literal layers from these covariates."""
    Z = jnp.concatenate([X, (drawn.weight @ X)[None]])
    return jnp.concatenate([Z[None], layers(drawn, Z)])


def _covariates(drawn: Drawn, X: Columns) -> Float[Array, "layers d columns"]:
    """X_0, .., X_k."""
    return _states(drawn, X)[:, :-1]


def _masked(X: Columns) -> Columns:
    return X.at[:, -1].set(0.0)


def _product(drawn: Drawn, X: Columns, sign: float = 1.0) -> Columns:
    """G = X prod_i (I + sign M X_i^T A_i X_i), with 1/n in the A_i."""
    total, n = X, drawn.prompt.inputs.shape[0]
    for A, X_i in zip(drawn.A, _covariates(drawn, X), strict=False):
        total = total @ (jnp.eye(X.shape[1]) + sign * _masked(X_i).T @ A @ X_i / n)
    return total


def _given(drawn: Drawn) -> Columns:
    return labelled(drawn)[:-1]


# (31), (54), Lemma 10 and the G before (38)


@on_prompts
def eq_54(drawn: Drawn) -> tuple[Array, Array]:
    """X_{i+1} and Y_{i+1} of (53) against the right sides of (54)."""
    states, n = _states(drawn, _given(drawn)), drawn.prompt.inputs.shape[0]
    following = []
    for Z, A, B in zip(states, drawn.A, drawn.B, strict=False):
        X, Y = Z[:-1], Z[-1:]
        seen = A @ X / n
        following.append(jnp.concatenate([X + B @ X @ _masked(X).T @ seen, Y + _masked(Y) @ X.T @ seen]))
    return states[1:], jnp.stack(following)


@on_prompts
def lemma_10(drawn: Drawn) -> tuple[Array, Array]:
    """The states with another label of the query against those without it, with C added to the last entry of Y."""
    Z = embed(drawn.prompt)
    shift = jnp.zeros_like(Z).at[-1, -1].set(drawn.weight @ drawn.prompt.query)
    return layers(drawn, Z + shift), layers(drawn, Z) + shift[None]


@on_prompts
def eq_38_printed(drawn: Drawn) -> tuple[Array, Array]:
    """w*^T G with G = X prod_i (I - M X_i^T A_i X_i), as printed, against the labels of the layers."""
    return drawn.weight @ _product(drawn, _given(drawn), -1.0), _states(drawn, _given(drawn))[-1, -1]


@on_prompts
def eq_38_corrected(drawn: Drawn) -> tuple[Array, Array]:
    """w*^T G with G = X prod_i (I + M X_i^T A_i X_i) against the labels of the layers."""
    return drawn.weight @ _product(drawn, _given(drawn)), _states(drawn, _given(drawn))[-1, -1]


# (29), (30), (39) to (50): what turns with the prompt, at points of S


def _turned(drawn: Drawn, function: Callable[[Drawn, Columns], Array]) -> tuple[Array, Array]:
    """A function at U_Sigma X_0 against U_Sigma times it at X_0."""
    turn, X = _turns(drawn)[0], _given(drawn)
    return function(drawn, turn @ X), turn @ function(drawn, X)


def _slope(drawn: Drawn, function: Callable[[Drawn, Columns], Array], name: str, steps: Array, X: Columns) -> Array:
    """The derivatives of a function in each A_j, or in each B_j, along a step."""
    of = lambda matrices: function(drawn._replace(**{name: matrices}), X)
    matrices = getattr(drawn, name)
    along = [jnp.zeros_like(steps).at[j].set(steps[j]) for j in range(steps.shape[0])]
    return jnp.stack([jax.jvp(of, (matrices,), (step,))[1] for step in along])


def _turned_slopes(drawn: Drawn, function: Callable[[Drawn, Columns], Array], name: str) -> tuple[Array, Array]:
    """U_Sigma^-1 d/dt of a function at U_Sigma X_0 along drawn R_j or S_j against d/dt at X_0 along the turned step,
    U_Sigma^T R_j U_Sigma or U_Sigma^-1 S_j U_Sigma.
    """
    (turn, back), X, point = _turns(drawn), _given(drawn), _on_the_set(drawn)
    steps = getattr(drawn, name)
    moved = (turn.T if name == "A" else back) @ steps @ turn
    return back @ _slope(point, function, name, steps, turn @ X), _slope(point, function, name, moved, X)


@on_prompts
def eq_29(drawn: Drawn) -> tuple[Array, Array]:
    """G(U_Sigma X_0) against U_Sigma G(X_0), without B."""
    return _turned(without_B(_on_the_set(drawn)), _product)


@on_prompts
def eq_30(drawn: Drawn) -> tuple[Array, Array]:
    """U_Sigma^-1 d/dt G(U_Sigma X_0) along R_j against d/dt G(X_0) along U_Sigma^T R_j U_Sigma, without B."""
    return _turned_slopes(without_B(drawn), _product, "A")


@on_prompts
def eq_39(drawn: Drawn) -> tuple[Array, Array]:
    """X_i(U_Sigma X_0) against U_Sigma X_i(X_0)."""
    return _turned(_on_the_set(drawn), _covariates)


@on_prompts
def eq_40(drawn: Drawn) -> tuple[Array, Array]:
    """U_Sigma^-1 d/dt X_i(U_Sigma X_0) along S_j against d/dt X_i(X_0) along U_Sigma^-1 S_j U_Sigma."""
    return _turned_slopes(drawn, _covariates, "B")


@on_prompts
def eq_44(drawn: Drawn) -> tuple[Array, Array]:
    """G(U_Sigma X_0) against U_Sigma G(X_0)."""
    return _turned(_on_the_set(drawn), _product)


@on_prompts
def eq_45(drawn: Drawn) -> tuple[Array, Array]:
    """U_Sigma^-1 d/dt G(U_Sigma X_0) along S_j against d/dt G(X_0) along U_Sigma^-1 S_j U_Sigma."""
    return _turned_slopes(drawn, _product, "B")


@on_prompts
def eq_47(drawn: Drawn) -> tuple[Array, Array]:
    """U_Sigma^-1 d/dt X_i(U_Sigma X_0) along R_j against d/dt X_i(X_0) along U_Sigma^T R_j U_Sigma."""
    return _turned_slopes(drawn, _covariates, "A")


@on_prompts
def eq_50(drawn: Drawn) -> tuple[Array, Array]:
    """U_Sigma^-1 d/dt G(U_Sigma X_0) along R_j against d/dt G(X_0) along U_Sigma^T R_j U_Sigma."""
    return _turned_slopes(drawn, _product, "A")


# (59) to (63)


def _thetas(drawn: Drawn) -> Float[Array, "layers d"]:
    """theta_0, .., theta_k: the derivatives of the query's label in the query."""

    def label(query: Float[Array, " d"]) -> Float[Array, " layers"]:
        Z = embed(Prompt(drawn.prompt.inputs, drawn.prompt.labels, query))
        return jnp.concatenate([Z[None], layers(without_B(drawn), Z)])[:, -1, -1]

    return jax.jacfwd(label)(drawn.prompt.query)


@on_prompts
def eq_60(drawn: Drawn) -> tuple[Array, Array]:
    """Every label after every layer against <theta_l, x_i> + y_i."""
    Z = embed(drawn.prompt)
    return layers(without_B(drawn), Z)[:, -1], _thetas(drawn)[1:] @ Z[:-1] + Z[-1][None]


@on_prompts
def eq_63(drawn: Drawn) -> tuple[Array, Array]:
    """theta_{l+1} against theta_l + (1/n) A_l X X^T (theta_l + w*)."""
    thetas, inputs = _thetas(drawn), drawn.prompt.inputs
    gram = inputs.T @ inputs / inputs.shape[0]
    steps = jnp.einsum("kij,jl,kl->ki", drawn.A, gram, thetas[:-1] + drawn.weight[None])
    return thetas[1:], thetas[:-1] + steps


# Sections 5.2 and 6.1


def _distorted(drawn: Drawn) -> tuple[Matrix, Array, Array, Array]:
    """W with W W^T = Sigma, w-bar ~ N(0, I), x_i = W x-bar_i and y_i = <x-bar_i, w-bar> of covariates N(0, I)."""
    W, latent = drawn.root @ drawn.turn, drawn.root @ drawn.weight
    hidden = drawn.prompt.inputs @ jnp.linalg.inv(drawn.root)
    return W, latent, hidden @ W.T, hidden @ latent


@on_prompts
def distorted_printed(drawn: Drawn) -> tuple[Array, Array]:
    """<x_i, w*> with w* = Sigma^{-1/2} w-bar, as printed, against y_i."""
    _, latent, observed, labels = _distorted(drawn)
    return observed @ jnp.linalg.inv(drawn.root) @ latent, labels


@on_prompts
def distorted_corrected(drawn: Drawn) -> tuple[Array, Array]:
    """<x_i, w*> with w* = W^-T w-bar against y_i."""
    W, latent, observed, labels = _distorted(drawn)
    return observed @ jnp.linalg.solve(W.T, latent), labels


@on_prompts
def newton(drawn: Drawn) -> tuple[Array, Array]:
    """The prediction of one layer with A_0 = -n (X X^T)^-1 against the query's label."""
    inputs = drawn.prompt.inputs
    A = -jnp.linalg.inv(inputs.T @ inputs / inputs.shape[0])
    one = drawn._replace(A=A[None], B=jnp.zeros_like(A)[None])
    label = drawn.weight @ drawn.prompt.query
    return -layers(one, embed(drawn.prompt))[-1:, -1, -1], label[None]


def _curved(drawn: Drawn, metric: Matrix) -> tuple[Array, Array]:
    """X_{i+1} against X_i (I - |a_i b_i| M X_i^T metric X_i), on S with a_i < 0 < b_i."""
    point, n = _on_the_set(drawn), drawn.prompt.inputs.shape[0]
    d, Sigma = drawn.weight.size, drawn.root @ drawn.root
    a, b = jnp.einsum("kij,ij->k", point.A, Sigma) / d, jnp.einsum("kii->k", point.B) / d
    point = point._replace(A=-jnp.sign(a)[:, None, None] * point.A, B=jnp.sign(b)[:, None, None] * point.B)
    X = _covariates(point, _given(drawn))
    steps = [jnp.abs(c) * X_i @ _masked(X_i).T @ metric @ X_i / n for c, X_i in zip(a * b, X, strict=False)]
    return X[1:], X[:-1] - jnp.stack(steps)


@on_prompts
def curvature_printed(drawn: Drawn) -> tuple[Array, Array]:
    """With M X_i^T X_i, as printed."""
    return _curved(drawn, jnp.eye(drawn.weight.size))


@on_prompts
def curvature_corrected(drawn: Drawn) -> tuple[Array, Array]:
    """With M X_i^T Sigma^-1 X_i."""
    return _curved(drawn, jnp.linalg.inv(drawn.root @ drawn.root))
