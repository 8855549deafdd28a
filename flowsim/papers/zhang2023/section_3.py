"""zhang2023's section 3: which weights reach the prediction, and why each part of Assumption 3.3 is needed."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from flowsim._core.types import Document, Vector
from flowsim.claims.claim import Comparison, at_least, equal
from flowsim.claims.critical_points.end_points import end_constants, ends_above_the_minimum
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import Hypothesis, hypothesis
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.initialization import balanced
from flowsim.losses import LinearAttentionLoss
from flowsim.models import LinearAttention, MaskedAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.conditions import assumption, assumption_3_3, one_covariance
from flowsim.papers.zhang2023.limits import distance_to_limit
from flowsim.papers.zhang2023.problems import EASY, FLOWS, HARD, STILL
from flowsim.papers.zhang2023.prompts import DRAWN_LENGTHS, drawn_prompts
from flowsim.papers.zhang2023.section_5 import limit_constants, tends_to_limit
from flowsim.tasks import LinearRegression, Prompt

Task = LinearRegression
Tokens = Float[Array, "rows columns"]
Weights = Float[Array, "rows rows"]


def _embedded(inputs: Float[Array, "N d"], labels: Float[Array, " N"], query: Vector) -> Tokens:
    """The embedding E of (3.4)."""
    return jnp.block([[inputs.T, query[:, None]], [labels[None], jnp.zeros((1, 1))]])


def _matrix_output(E: Tokens, W_PV: Weights, W_KQ: Weights) -> Array:
    """The bottom-right entry of (3.3) with rho = N."""
    return (E + W_PV @ E @ (E.T @ W_KQ @ E) / (E.shape[1] - 1))[-1, -1]


def _last_row(E: Tokens, W_PV: Weights, W_KQ: Weights) -> Array:
    """The prediction by (3.6), which uses only the last row of W^PV and the first d columns of W^KQ."""
    return W_PV[-1] @ (E @ E.T / (E.shape[1] - 1)) @ W_KQ[:, :-1] @ E[:-1, -1]


def _on_prompts(task: Task, sides) -> Comparison:
    """Compares both sides of an identity on random prompts of 1 and 7 examples, with random weights.

    Errors are relative to the size of the terms.

    **Arguments:** sides: (inputs, labels, query, W^PV, W^KQ) -> both sides, of the same shape.
    """
    rows, comparisons = task.dimension + 1, []
    for length in DRAWN_LENGTHS:
        inputs, queries, weights = drawn_prompts(task, length)
        labels = jnp.einsum("pmd,pd->pm", inputs, weights)
        drawn = jax.random.normal(jax.random.key(3), (2, len(inputs), rows, rows))

        def one(case):
            E, W_PV, W_KQ = _embedded(*case[:3]), *case[3:]
            size = jnp.linalg.norm(W_PV) * jnp.linalg.norm(W_KQ) * jnp.sum(E**2) * jnp.linalg.norm(case[2])
            left, right = sides(*case)
            return left, right, jnp.full(left.shape, size / (E.shape[1] - 1))

        found = jax.lax.map(one, (inputs, labels, queries, *drawn))
        comparisons.append(equal(*(side.reshape(-1) for side in found)))
    return rounded(joined(comparisons), jnp.asarray(float(rows)))


SECTION = Section("zhang2023", LinearAttention, setting=one_covariance)
ON_STILL = SECTION.on(STILL, spaces.STILL)


@ON_STILL.claim("eq-3.6", "(3.6)")
@eqx.filter_jit
def last_row_and_first_columns(task: Task) -> Comparison:
    r"""(3.3) predicts $\hat y = (u_{12}^\top, u_{-1}) (E E^\top/N) \begin{bmatrix} U_{11} \\ u_{21}^\top \end{bmatrix}
    x_{\mathrm{query}}$, with the last row of $W^{PV}$ and the first $d$ columns of $W^{KQ}$ alone

    Judged on random prompts and random W^PV and W^KQ, for (3.6) and for the model whose weights flow.
    """

    def sides(inputs, labels, query, W_PV, W_KQ):
        E = _embedded(inputs, labels, query)
        model = LinearAttention(W_KQ[:-1, :-1], W_PV[-1, -1], W_PV[-1, :-1], W_KQ[-1, :-1])
        whole = _matrix_output(E, W_PV, W_KQ)
        return jnp.stack([_last_row(E, W_PV, W_KQ), model(Prompt(inputs, labels, query))]), jnp.stack([whole, whole])

    return _on_prompts(task, sides)


@ON_STILL.claim("eq-3.6.query-column", "(3.4) with (3.6)", form="corrected")
@eqx.filter_jit
def query_column(task: Task) -> Comparison:
    r"""The query's column adds $u_{12}^\top x_{\mathrm{query}} x_{\mathrm{query}}^\top U_{11} x_{\mathrm{query}}/N$ to
    the prediction: where $u_{12} = 0$, as along every flow from Assumption 3.3, it may be masked out

    The paper keeps the column, but (4.2) drops its term x_query x_query^T/M in a step. Judged on random prompts, at
    random weights and at the same weights with u12 = 0.
    """

    def sides(inputs, labels, query, W_PV, W_KQ):
        prompt, U11, u21 = Prompt(inputs, labels, query), W_KQ[:-1, :-1], W_KQ[-1, :-1]

        def added(u12):
            masked = MaskedAttention(-jnp.append(u12, W_PV[-1, -1]), W_KQ[:, :-1])
            return LinearAttention(U11, W_PV[-1, -1], u12, u21)(prompt) - masked(prompt)

        u12 = W_PV[-1, :-1]
        term = (u12 @ query) * (query @ U11 @ query) / labels.size
        return jnp.stack([added(u12), added(0 * u12)]), jnp.stack([term, 0 * term])

    return _on_prompts(task, sides)


Loss = LinearAttentionLoss

_RANDOM_STARTS = 32


def _easy_from(name: str, **init: Any) -> Document:
    return {"name": name, "task": EASY["task"], "init": init}


BEYOND = _easy_from("d = 3, ten times the scale condition", kind="balanced", scale=6.7, seed=0)
UNBALANCED = _easy_from("d = 3, unbalanced", kind="unbalanced", scale=0.5, seed=0)
ALL_WEIGHTS = _easy_from(
    "d = 3, u12 and u21 not zero",
    kind="explicit",
    U11=[[0.01 / 3**0.5 * (i == j) for j in range(3)] for i in range(3)],
    u_minus1=0.01,
    u12=[0.0, 0.0, 0.1],
    u21=[0.0, 0.0, 0.1],
)
INDEFINITE = _easy_from("d = 3, balanced but indefinite", kind="balanced-indefinite", scale=0.2, seed=4)


def all_but(*left_out: str) -> Callable[[Loss, LinearAttention], list[Hypothesis]]:
    """A function that returns the parts of Assumption 3.3 except those with the given names."""

    def hypotheses(loss: Loss, start: LinearAttention) -> list[Hypothesis]:
        return [condition for condition in assumption_3_3(loss.task, start) if condition.name not in left_out]

    return hypotheses


def blocks_not_zero(loss: Loss, start: LinearAttention) -> list[Hypothesis]:
    """The hypotheses of Assumption 3.3, with u12(0) = u21(0) = 0 replaced by |u12(0)| + |u21(0)| > 0."""
    *kept, u12, u21 = assumption_3_3(loss.task, start)
    return [*kept, hypothesis("|u12(0)| + |u21(0)| > 0", u12.value + u21.value, ">", 0.0)]


@SECTION.on((EASY, HARD), spaces.BALANCED).claim("assumption-3.3", "remark after Assumption 3.3")
@eqx.filter_jit
def random_thetas_meet_it(loss: Loss) -> Comparison:
    r"""If $M$ has i.i.d. entries from a continuous law, $\Theta \Theta^\top = M M^\top/\lVert M M^\top \rVert_F$ meets
    the assumption a.s.

    Judged on 32 random M; Theta Theta^T is built from M as stated.
    """
    Lambda, d = loss.task.covariance, loss.task.dimension

    def theta_lambda(key):
        shape = balanced(1.0, jax.random.normal(key, (d, d))).U11
        return jnp.sqrt(jnp.trace(Lambda @ shape @ Lambda)), jnp.linalg.norm(shape)

    values, norms = jax.vmap(theta_lambda)(jax.random.split(jax.random.key(2), _RANDOM_STARTS))
    comparison = at_least(values, 0.0, size=jnp.linalg.norm(Lambda))
    # A norm other than 1 breaks the assumption just as Theta Lambda = 0 does.
    broken = jnp.abs(norms - 1) > 1e-12
    return eqx.tree_at(lambda c: c.slack, comparison, jnp.where(broken, -comparison.size, comparison.slack))


@SECTION.on(FLOWS, spaces.BALANCED).claim(
    "assumption-3.3.nonzero", "Assumption 3.3", form="corrected", hypotheses=all_but("Theta Lambda != 0")
)
@eqx.filter_jit
def theta_lambda_follows(loss: Loss, start: PyTree) -> Comparison:
    r"""$\Theta \Lambda \ne 0$ follows from $\lVert \Theta \Theta^\top \rVert_F = 1$ and $\Lambda \succ 0$: $\lVert
    \Theta \Lambda \rVert_F \ge \lambda_{\min}$

    So the assumption need not require Theta Lambda != 0.
    """
    Lambda = loss.task.covariance
    value, least = jnp.sqrt(jnp.trace(Lambda @ Lambda @ start.U11) / start.u_minus1), jnp.linalg.eigvalsh(Lambda)[:1]
    positive = at_least(value[None], 0.0, size=least)
    return joined([positive, at_least(value[None], least, promised=loss.task.dimension > 1)])


@SECTION.on((UNBALANCED, *FLOWS), spaces.UNBALANCED + spaces.BALANCED).claim(
    "assumption-3.3.balance", "Assumption 3.3 with (5.9)", form="corrected", hypotheses=all_but("|Theta Theta^T|_F = 1")
)
def limit_without_balance(loss: Loss, flow: Trajectory) -> Comparison:
    r"""Without $\lVert \Theta \Theta^\top \rVert_F = 1$: $u_{-1}^2 \to \bigl(c + \sqrt{c^2 + 4 \lVert \Gamma^{-1}
    \rVert_F^2}\bigr)/2$, $u_{-1} U_{11} \to \Gamma^{-1}$

    Here c = u_{-1}(0)^2 - |U11(0)|_F^2, which the flow conserves. The limit is a global minimum for every c. It is
    (5.9) where c = 0.
    """
    c = loss.conserved(flow.start)
    inverse = jnp.linalg.inv(loss.task.gamma())
    u = jnp.sqrt((c + jnp.sqrt(c**2 + 4 * jnp.sum(inverse**2))) / 2)
    return distance_to_limit(loss, flow, LinearAttention(inverse / u, u))


@SECTION.on((INDEFINITE,), spaces.INDEFINITE).claim(
    "assumption-3.3.semidefinite",
    "Assumption 3.3 with (5.9)",
    form="corrected",
    hypotheses=all_but("Theta Theta^T semidefinite", "Theta Lambda != 0"),
)
def without_semidefiniteness(loss: Loss, flow: Trajectory) -> Comparison:
    r"""Without $\Theta \Theta^\top \succeq 0$, from a symmetric balanced start with $u_{-1}(0) > 0$, the flow tends to
    (5.9)

    Semidefiniteness makes the loss negative at the start, which keeps the flow away from the saddle at 0. From an
    indefinite start the flow also tends to (5.9), unless the start lies on the saddle's stable set. U11(0) = -u_{-1}(0)
    I/sqrt(d) does when Lambda is a multiple of I.
    """
    return tends_to_limit(loss, flow)


@SECTION.on((ALL_WEIGHTS,), spaces.ALL_WEIGHTS).claim(
    "assumption-3.3.zero-blocks",
    "Assumption 3.3 with Theorem 4.1",
    form="corrected",
    hypotheses=blocks_not_zero,
    constants=end_constants,
)
def without_zero_blocks(loss: Loss, flow: Trajectory) -> Comparison:
    """Without $u_{12}(0) = u_{21}(0) = 0$ the flow can end at another local minimum, above the global one

    One example shows this; it meets the rest of the assumption. A flow that reaches the global minimum neither shows
    nor refutes it. At the end of the example no eigenvalue of the Hessian is negative. One is zero: its direction
    rescales the weights without changing the predictions.
    """
    return ends_above_the_minimum(loss, flow)


@SECTION.on((BEYOND, *FLOWS), spaces.BALANCED).claim(
    "assumption-3.3.scale",
    "Theorem 4.1 without its scale condition",
    form="corrected",
    hypotheses=assumption,
    constants=limit_constants,
)
def without_the_scale_condition(loss: Loss, flow: Trajectory) -> Comparison:
    r"""From Assumption 3.3 alone, at any $\sigma > 0$, the flow tends to (5.9)

    So the condition on sigma is sufficient but not necessary. From a semidefinite start, u_{-1} stays positive and the
    diagonal of U11 in the eigenbasis stays nonnegative, for every sigma.
    """
    return tends_to_limit(loss, flow)
