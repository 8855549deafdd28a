"""gatmiry2024's section 3.4: Proposition 3.1, and (6) to (9) of its proof.

One side is the literal attention, the other gradient descent with gradients by JAX.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, Relation, equal
from flowsim.claims.hypotheses import can_be_drawn, finite_context
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.models import LoopedAttention
from flowsim.models.linear_attention import embed
from flowsim.models.masked_attention import attend
from flowsim.papers.gatmiry2024 import landscape_problems as problems
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.lemma_settings import looped_by_matrices
from flowsim.papers.gatmiry2024.prompts import JUDGED, PROBLEMS, Drawn, of_prompts
from flowsim.papers.gatmiry2024.setting import MODELS, matrices
from flowsim.papers.paper import Section
from flowsim.tasks import Prompt

SECTION = Section("gatmiry2024", *MODELS)

_LITERAL = 32  # prompts for the literal transformer
_FACTORS = (
    JUDGED
    + "grad l(0) is -2 X y, not X y, and the 1/n is in (3), not in (2). So the printed form is off by the sign, the 2 "
    "and the n, for symmetric A too. "
)


@jax.jit
def _steps(prompts: Prompt, A: Float[Array, "P d d"], steps: Array, size: Scalar) -> Float[Array, " P"]:
    """w_L^T x_q with w <- w - (s/n) A^T grad |X^T w - y|^2 from w = 0, the gradient by JAX."""

    def one(prompt, A):
        def step(_, w):
            slope = jax.grad(lambda w: jnp.sum((prompt.inputs @ w - prompt.labels) ** 2))(w)
            return w - size / prompt.inputs.shape[0] * A.T @ slope

        return jax.lax.fori_loop(0, steps, step, jnp.zeros_like(prompt.query)) @ prompt.query

    return jax.vmap(one)(prompts, A)


def _descends(loss: LoopedLoss, size: float) -> Comparison:
    """The literal transformer of (2)-(5) against gradient descent, at drawn A that are not symmetric."""
    if not can_be_drawn(loss.task):
        return equal(jnp.zeros(1), 0.0, 1.0)
    keys = jax.random.split(jax.random.key(0), _LITERAL)
    prompts = jax.vmap(lambda key: loss.task.sample(key)[0])(keys)
    A = jax.random.normal(jax.random.key(1), (_LITERAL, loss.task.dimension, loss.task.dimension)) / 4
    model = lambda A, prompt: LoopedAttention(A, loops=loss.loops)(prompt)
    predicted = jax.jit(jax.vmap(model))(A, prompts)
    descended = _steps(prompts, A, jnp.asarray(loss.loops), jnp.asarray(size))
    return equal(predicted, descended, jnp.abs(predicted) + jnp.max(jnp.abs(predicted)))


@SECTION.claim(
    "proposition-3.1",
    "Proposition 3.1, (5)",
    "L loops with Q = [A 0; 0 0], P = [0 0; 0 1] predict w_L^T x_q of L steps of preconditioned gradient descent",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=matrices,
    hypotheses=finite_context,
    problems=(problems.RANDOM, problems.SHORT, problems.OVERSHOT),
    spaces=spaces.PROMPTS,
    note="Judged on 32 drawn prompts and A that are not symmetric. The preconditioner is A^T, and the steps have size "
    "1/(2n) on |X^T w - y|^2.",
)
def implements_descent(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """The prediction against L steps of size 1/(2n) on |X^T w - y|^2, that is, 1/n on half of it."""
    return _descends(loss, 0.5)


@SECTION.claim(
    "proposition-3.1.step",
    "proof of Proposition 3.1",
    "The steps are w_t = w_{t-1} - (1/n) A grad |X^T w - y|^2",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=matrices,
    hypotheses=finite_context,
    problems=(problems.RANDOM, problems.SHORT),
    spaces=spaces.PROMPTS,
    note="The proof takes the gradient of |X^T w - y|^2 at zero to be X y; it is -2 X y. The transformer's steps "
    "are half as long. Judged with A^T in place of A, which is the same for symmetric A.",
)
def implements_printed_steps(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """The prediction against L steps of the printed size 1/n on |X^T w - y|^2."""
    return _descends(loss, 1.0)


implemented_steps = SECTION.claim(
    "proposition-3.1.step",
    "proof of Proposition 3.1",
    "The steps are w_t = w_{t-1} - (1/(2n)) A^T grad |X^T w - y|^2",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=matrices,
    hypotheses=finite_context,
    problems=(problems.RANDOM, problems.SHORT),
    spaces=spaces.PROMPTS,
    note="Half the printed step on the printed function, that is, 1/n on half of it.",
)(implements_descent)


def _attention(one: Drawn) -> Float[Array, "rows columns"]:
    """Attn(Z^(0); Q, P) of (2), with the P and Q of (5)."""
    return attend(embed(one.prompt), *_blocks(one.A))


def _blocks(A: Float[Array, "d d"]) -> tuple[Float[Array, "rows rows"], Float[Array, "rows rows"]]:
    """P = [0 0; 0 1] and Q = [A 0; 0 0]."""
    d = A.shape[0]
    return jnp.zeros((d + 1, d + 1)).at[d, d].set(1.0), jnp.zeros((d + 1, d + 1)).at[:d, :d].set(A)


def _descent(one: Drawn, step: float, transposed: bool, count: int) -> Float[Array, "count d"]:
    """w_1, w_2, .. of w <- w - (step/n) A grad |X^T w - y|^2 from 0, with A^T for A where ``transposed``."""
    A, w, found = one.A.T if transposed else one.A, jnp.zeros_like(one.w), []
    for _ in range(count):
        w = w - step / one.X.shape[1] * A @ one.slope(w)
        found.append(w)
    return jnp.stack(found)


@SECTION.claim(
    "proposition-3.1.eq-6",
    "proof of Proposition 3.1, (6)",
    "The last row of Attn(Z; Q, P) is y^T X^T A [X x_q]",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=looped_by_matrices,
    problems=PROBLEMS,
    spaces=spaces.LEMMAS,
    note=JUDGED,
)
@of_prompts(symmetric=False)
def labels_row(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """The last row of the attention against y^T X^T A [X x_q]."""
    return _attention(one)[-1], (one.X.T @ one.w) @ one.X.T @ one.A @ one.columns


@SECTION.claim(
    "proposition-3.1.eq-7",
    "proof of Proposition 3.1, (7)",
    "The first n entries of that row are -(0 - (1/n) A grad l(0))^T X, l(w) = |X^T w - y|^2",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=looped_by_matrices,
    problems=PROBLEMS,
    spaces=spaces.LEMMAS,
    note=_FACTORS,
)
@of_prompts(symmetric=True)
def printed_slope_row(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """The first n entries of the last row against -(0 - (1/n) A grad l(0))^T X."""
    n = one.X.shape[1]
    return _attention(one)[-1, :-1], (one.A @ one.slope(jnp.zeros_like(one.w)) / n) @ one.X


@SECTION.claim(
    "proposition-3.1.eq-7",
    "proof of Proposition 3.1, (7)",
    "That row is -(1/2) (A^T grad l(0))^T [X x_q]",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=looped_by_matrices,
    problems=PROBLEMS,
    spaces=spaces.LEMMAS,
    note=_FACTORS + "A need not be symmetric here.",
)
@of_prompts(symmetric=False)
def slope_row(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """The last row against -(1/2) (A^T grad l(0))^T [X x_q]."""
    return _attention(one)[-1], -(one.A.T @ one.slope(jnp.zeros_like(one.w)) / 2) @ one.columns


@SECTION.claim(
    "proposition-3.1.eq-8",
    "proof of Proposition 3.1, (8)",
    "The first d rows of Attn(Z; Q, P) are zero",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=looped_by_matrices,
    problems=PROBLEMS,
    spaces=spaces.LEMMAS,
    note=JUDGED + "Compares [X x_q] plus these rows with [X x_q].",
)
@of_prompts(symmetric=False)
def other_rows(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """The first d rows of Z plus the attention against [X x_q]: the attention adds nothing to them."""
    Z, added = embed(one.prompt), _attention(one)
    return Z[:-1] + added[:-1], one.columns


@SECTION.claim(
    "proposition-3.1.first-step",
    "proof of Proposition 3.1",
    "That row is -w_1^T [X x_q] with w_1 = -(1/n) A grad l(0)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=looped_by_matrices,
    problems=PROBLEMS,
    spaces=spaces.LEMMAS,
    note=_FACTORS,
)
@of_prompts(symmetric=True)
def printed_step_row(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """The last row against -w_1^T [X x_q] with w_1 = -(1/n) A grad l(0)."""
    return _attention(one)[-1], -_descent(one, 1.0, False, 1)[0] @ one.columns


@SECTION.claim(
    "proposition-3.1.first-step",
    "proof of Proposition 3.1",
    "That row is n w_1^T [X x_q] with w_1 = -(1/(2n)) A^T grad l(0)",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=looped_by_matrices,
    problems=PROBLEMS,
    spaces=spaces.LEMMAS,
    note=JUDGED,
)
@of_prompts(symmetric=False)
def step_row(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """The last row against n w_1^T [X x_q] with w_1 = -(1/(2n)) A^T grad l(0)."""
    return _attention(one)[-1], one.X.shape[1] * _descent(one, 0.5, True, 1)[0] @ one.columns


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


@SECTION.claim(
    "proposition-3.1.eq-9",
    "proof of Proposition 3.1, (9)",
    "Z^(t) = [X x_q; (y - X^T w_t)^T, -w_t^T x_q] for all t <= L, w_t = w_{t-1} - (1/n) A grad l(w_{t-1})",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=looped_by_matrices,
    problems=PROBLEMS,
    spaces=spaces.LEMMAS,
    note=JUDGED + "The steps are twice those of the transformer, for symmetric A too.",
)
@of_prompts(symmetric=True)
def printed_layers(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """(9) for every t, with steps -(1/n) A grad l."""
    return _after_steps(loss, one, 1.0, False)


@SECTION.claim(
    "proposition-3.1.eq-9",
    "proof of Proposition 3.1, (9)",
    "Z^(t) = [X x_q; (y - X^T w_t)^T, -w_t^T x_q] for all t <= L, w_t = w_{t-1} - (1/(2n)) A^T grad l(w_{t-1})",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=looped_by_matrices,
    problems=PROBLEMS,
    spaces=spaces.LEMMAS,
    note=JUDGED + "A need not be symmetric.",
)
@of_prompts(symmetric=False)
def layers(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """(9) for every t, with steps -(1/(2n)) A^T grad l."""
    return _after_steps(loss, one, 0.5, True)
