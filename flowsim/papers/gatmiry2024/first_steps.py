"""What gatmiry2024 says of one prompt in sections 3.2 to 3.6: (6) to (9), least squares, and gradient descent on it.

One side is the literal attention, the other the printed formula, whose gradients and Hessians are taken by JAX.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.claim import Claim, Comparison, Relation, at_most, equal
from flowsim.claims.statements import rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.models import LoopedAttention
from flowsim.models.linear_attention import embed
from flowsim.models.masked_attention import attend
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.lemma_settings import DEEP, LONG, SHORT, SINGLE, looped_by_matrices
from flowsim.papers.gatmiry2024.setting import Scalar, over_determined
from flowsim.tasks import Prompt

_PROMPTS = 6


class Drawn(NamedTuple):
    """One prompt with its w, and a preconditioner."""

    X: Float[Array, "d n"]
    w: Float[Array, " d"]
    query: Float[Array, " d"]
    A: Float[Array, "d d"]

    @property
    def prompt(self) -> Prompt:
        """The prompt as models read it."""
        return Prompt(self.X.T, self.X.T @ self.w, self.query)

    @property
    def columns(self) -> Float[Array, "d columns"]:
        """[X x_q]."""
        return jnp.concatenate([self.X, self.query[:, None]], axis=1)

    def slope(self, w: Float[Array, " d"]) -> Float[Array, " d"]:
        """grad |X^T w - y|^2."""
        return jax.grad(self.squares)(w)

    def squares(self, w: Float[Array, " d"]) -> Scalar:
        """|X^T w - y|^2. **Source:** gatmiry2024, section 3.2."""
        return jnp.sum((self.X.T @ w - self.X.T @ self.w) ** 2)


def drawn(loss: LoopedLoss, symmetric: bool) -> Drawn:
    """Prompts of the task, each with an A of norm about one over the covariance's."""
    d, n = loss.task.dimension, int(float(loss.task.context_length))
    keys = jax.random.split(jax.random.key(0), 4)
    inverse_root = jnp.linalg.inv(loss.root)
    A = jax.random.normal(keys[3], (_PROMPTS, d, d)) / 4 + jnp.eye(d)[None]
    return Drawn(
        jnp.swapaxes(jax.random.normal(keys[0], (_PROMPTS, n, d)) @ loss.root, 1, 2),
        jax.random.normal(keys[1], (_PROMPTS, d)) @ inverse_root,
        jax.random.normal(keys[2], (_PROMPTS, d)) @ loss.root,
        inverse_root @ ((A + jnp.swapaxes(A, 1, 2)) / 2 if symmetric else A) @ inverse_root,
    )


def _attention(one: Drawn) -> Float[Array, "rows columns"]:
    """Attn(Z^(0); Q, P) of (2), with the P and Q of (5)."""
    return attend(embed(one.prompt), *_blocks(one.A))


def _blocks(A: Float[Array, "d d"]) -> tuple[Float[Array, "rows rows"], Float[Array, "rows rows"]]:
    """P = [0 0; 0 1] and Q = [A 0; 0 0]."""
    d = A.shape[0]
    return jnp.zeros((d + 1, d + 1)).at[d, d].set(1.0), jnp.zeros((d + 1, d + 1)).at[:d, :d].set(A)


def _descent(one: Drawn, step: float, transposed: bool, count: int) -> Float[Array, "count d"]:
    """w_1, w_2, .. of w <- w - (step/n) A grad |X^T w - y|^2 from 0, or with A^T."""
    A, w, found = one.A.T if transposed else one.A, jnp.zeros_like(one.w), []
    for _ in range(count):
        w = w - step / one.X.shape[1] * A @ one.slope(w)
        found.append(w)
    return jnp.stack(found)


def _sides(*, symmetric: bool):
    """The comparison of a function of one prompt that gives both sides, at every drawn prompt."""

    def decorate(both: Callable[[LoopedLoss, Drawn], tuple[Array, Array]]):
        @functools.wraps(both)
        def compare(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
            left, right = jax.vmap(lambda one: both(loss, one))(drawn(loss, symmetric))
            left, right = left.reshape(_PROMPTS, -1), right.reshape(_PROMPTS, -1)
            size = jnp.linalg.norm(left, axis=1, keepdims=True) + jnp.linalg.norm(right, axis=1, keepdims=True)
            d, n = loss.task.dimension, float(loss.task.context_length)
            flat = equal(left.reshape(-1), right.reshape(-1), jnp.broadcast_to(size, left.shape).reshape(-1))
            return rounded(flat, jnp.asarray(n + d))

        return compare

    return decorate


@_sides(symmetric=False)
def labels_row(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """The last row of the attention against y^T X^T A [X x_q]."""
    return _attention(one)[-1], (one.X.T @ one.w) @ one.X.T @ one.A @ one.columns


@_sides(symmetric=True)
def printed_slope_row(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """Its first n entries against -(0 - (1/n) A grad l(0))^T X."""
    n = one.X.shape[1]
    return _attention(one)[-1, :-1], (one.A @ one.slope(jnp.zeros_like(one.w)) / n) @ one.X


@_sides(symmetric=False)
def slope_row(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """The last row against -(1/2) (A^T grad l(0))^T [X x_q]."""
    return _attention(one)[-1], -(one.A.T @ one.slope(jnp.zeros_like(one.w)) / 2) @ one.columns


@_sides(symmetric=True)
def printed_step_row(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """The last row against -w_1^T [X x_q] with w_1 = -(1/n) A grad l(0)."""
    return _attention(one)[-1], -_descent(one, 1.0, False, 1)[0] @ one.columns


@_sides(symmetric=False)
def step_row(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """The last row against n w_1^T [X x_q] with w_1 = -(1/(2n)) A^T grad l(0)."""
    return _attention(one)[-1], one.X.shape[1] * _descent(one, 0.5, True, 1)[0] @ one.columns


@_sides(symmetric=False)
def other_rows(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """The first d rows of the attention over those of Z against 1 of Z: nothing is added to them."""
    Z, added = embed(one.prompt), _attention(one)
    return Z[:-1] + added[:-1], one.columns


def _after_steps(loss: LoopedLoss, one: Drawn, step: float, transposed: bool) -> tuple[Array, Array]:
    """Z^(1), .., Z^(L) of (3) against [X x_q; (y - X^T w_t)^T, -w_t^T x_q]."""
    Z, found = embed(one.prompt), []
    for _ in range(loss.loops):
        Z = Z - attend(Z, *_blocks(one.A)) / one.X.shape[1]
        found.append(Z)
    labels = jnp.concatenate([one.X.T @ one.w, jnp.zeros(1)])
    weights = _descent(one, step, transposed, loss.loops)
    expected = [jnp.concatenate([one.columns, (labels - w @ one.columns)[None]]) for w in weights]
    return jnp.stack(found), jnp.stack(expected)


@_sides(symmetric=True)
def printed_layers(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """(9) for every t, with steps -(1/n) A grad l."""
    return _after_steps(loss, one, 1.0, False)


@_sides(symmetric=False)
def layers(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """(9) for every t, with steps -(1/(2n)) A^T grad l."""
    return _after_steps(loss, one, 0.5, True)


def _hessian(one: Drawn) -> Float[Array, "d d"]:
    """That of |X^T w - y|^2, by JAX."""
    return jax.hessian(one.squares)(one.w)


@_sides(symmetric=True)
def printed_hessian(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """The Hessian against X X^T."""
    return _hessian(one), one.X @ one.X.T


@_sides(symmetric=True)
def hessian(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """The Hessian against 2 X X^T."""
    return _hessian(one), 2 * one.X @ one.X.T


def _conditioned(comparison: Comparison, loss: LoopedLoss) -> Comparison:
    """The comparison with what solving with the sample covariances of the drawn prompts costs."""
    X = drawn(loss, True).X
    values = jnp.linalg.eigvalsh(X @ jnp.swapaxes(X, 1, 2))
    return rounded(comparison, jnp.max(values[:, -1] / values[:, 0]))


def pseudo_inverse(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """(X X^T)^-1 X y against w*."""

    @_sides(symmetric=True)
    def both(loss, one):
        return jnp.linalg.solve(one.X @ one.X.T, one.X @ (one.X.T @ one.w)), one.w

    return _conditioned(both(loss, trajectory), loss)


def one_step(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """The prediction of one loop with the A = ((1/n) X X^T)^-1 of its own prompt against w*^T x_q."""

    @_sides(symmetric=True)
    def both(loss, one):
        A = jnp.linalg.inv(one.X @ one.X.T / one.X.shape[1])
        return LoopedAttention(A, loops=1)(one.prompt)[None], (one.w @ one.query)[None]

    return _conditioned(both(loss, trajectory), loss)


def _contraction(loss: LoopedLoss, step: Callable[[Array], Array]) -> tuple[Array, Array]:
    """|I - s H|_2 of the drawn prompts, s the step size for the eigenvalues of the Hessian H, and H's condition."""
    values = jax.vmap(lambda one: jnp.linalg.eigvalsh(_hessian(one)))(drawn(loss, True))
    return jnp.max(jnp.abs(1 - step(values)[:, None] * values), axis=1), values[:, -1] / values[:, 0]


def printed_step_size(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """|I - (1/kappa) H|_2 < 1."""
    return at_most(_contraction(loss, lambda values: values[:, 0] / values[:, -1])[0], 1.0)


def step_size(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """|I - H/|H|_2|_2 <= e^{-1/kappa}."""
    norms, condition = _contraction(loss, lambda values: 1 / values[:, -1])
    return at_most(norms, jnp.exp(-1 / condition))


def _claim(part: str, source: str, statement: str, compare, **options) -> Claim:
    options.setdefault("relation", Relation.IDENTITY)
    return Claim(
        f"gatmiry2024.{part}",
        f"gatmiry2024, {source}",
        statement,
        compare,
        setting=looped_by_matrices,
        along_flow=False,
        problems=(SHORT, SINGLE, DEEP, LONG),
        spaces=spaces.LEMMAS,
        **options,
    )


_DRAWN = "Judged on 6 drawn prompts. "
_FACTORS = (
    _DRAWN
    + "grad l(0) = -2 X y, not X y, and (2) has no 1/n, which (3) brings: printed, the sign, the 2 and the n are off, "
    "for symmetric A too. "
)

CLAIMS: tuple[Claim, ...] = (
    _claim(
        "proposition-3.1.eq-6",
        "proof of Proposition 3.1, (6)",
        "The last row of Attn(Z; Q, P) is y^T X^T A [X x_q]",
        labels_row,
        note=_DRAWN,
    ),
    _claim(
        "proposition-3.1.eq-7",
        "proof of Proposition 3.1, (7)",
        "The first n entries of that row are -(0 - (1/n) A grad l(0))^T X, l(w) = |X^T w - y|^2",
        printed_slope_row,
        note=_FACTORS,
    ),
    _claim(
        "proposition-3.1.eq-7",
        "proof of Proposition 3.1, (7)",
        "That row is -(1/2) (A^T grad l(0))^T [X x_q]",
        slope_row,
        form="corrected",
        note=_FACTORS + "A may be without symmetry here.",
    ),
    _claim(
        "proposition-3.1.first-step",
        "proof of Proposition 3.1",
        "That row is -w_1^T [X x_q] with w_1 = -(1/n) A grad l(0)",
        printed_step_row,
        note=_FACTORS,
    ),
    _claim(
        "proposition-3.1.first-step",
        "proof of Proposition 3.1",
        "That row is n w_1^T [X x_q] with w_1 = -(1/(2n)) A^T grad l(0)",
        step_row,
        form="corrected",
        note=_DRAWN,
    ),
    _claim(
        "proposition-3.1.eq-8",
        "proof of Proposition 3.1, (8)",
        "The first d rows of Attn(Z; Q, P) are zero",
        other_rows,
        note=_DRAWN + "Compared as [X x_q] plus them with [X x_q].",
    ),
    _claim(
        "proposition-3.1.eq-9",
        "proof of Proposition 3.1, (9)",
        "Z^(t) = [X x_q; (y - X^T w_t)^T, -w_t^T x_q] for all t <= L, w_t = w_{t-1} - (1/n) A grad l(w_{t-1})",
        printed_layers,
        note=_DRAWN + "The steps are twice those of the transformer, for symmetric A too.",
    ),
    _claim(
        "proposition-3.1.eq-9",
        "proof of Proposition 3.1, (9)",
        "Z^(t) = [X x_q; (y - X^T w_t)^T, -w_t^T x_q] for all t <= L, w_t = w_{t-1} - (1/(2n)) A^T grad l(w_{t-1})",
        layers,
        form="corrected",
        note=_DRAWN + "A may be without symmetry.",
    ),
    _claim(
        "sec-3.2.pseudo-inverse",
        "section 3.2",
        "w* = (X X^T)^-1 X y, given n > d",
        pseudo_inverse,
        hypotheses=over_determined,
        note=_DRAWN,
    ),
    _claim(
        "sec-3.2.hessian",
        "section 3.2",
        "The Hessian of |X^T w - y|^2 is X X^T",
        printed_hessian,
        note=_DRAWN + "A factor of two is missing, the one that the gradient of Proposition 3.1 misses.",
    ),
    _claim(
        "sec-3.2.hessian",
        "section 3.2",
        "The Hessian of |X^T w - y|^2 is 2 X X^T",
        hessian,
        form="corrected",
        note=_DRAWN,
    ),
    _claim(
        "sec-3.2.step-size",
        "section 3.2",
        "Gradient descent on |X^T w - y|^2 with step size 1/kappa, kappa the Hessian's condition number, converges",
        printed_step_size,
        relation=Relation.INEQUALITY,
        hypotheses=over_determined,
        note=_DRAWN + "It is meant for a Hessian of norm one. Without it converges only where 2 kappa > |H|_2, that is "
        "where the least eigenvalue of the Hessian, of the order n, is below 2.",
    ),
    _claim(
        "sec-3.2.step-size",
        "section 3.2",
        "With step size 1/|H|_2 each step of it contracts by e^{-1/kappa}, so that O(kappa) steps do",
        step_size,
        form="corrected",
        relation=Relation.INEQUALITY,
        hypotheses=over_determined,
        note=_DRAWN,
    ),
    _claim(
        "sec-3.6.one-step",
        "section 3.6",
        "One step with the inverse of the data covariance as preconditioner gives w* = (X X^T)^-1 X y, given n > d",
        one_step,
        hypotheses=over_determined,
        note=_DRAWN + "Judged on the transformer of one loop, A the inverse of the sample covariance of its prompt.",
    ),
)
