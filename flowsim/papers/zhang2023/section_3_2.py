"""zhang2023's section 3.2: which weights reach the prediction, (3.6), and what the query's own column adds to it."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Vector
from flowsim.claims.claim import Comparison, equal
from flowsim.claims.declaring import Section
from flowsim.claims.statements import joined, rounded
from flowsim.models import LinearAttention, MaskedAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.problems import STILL
from flowsim.papers.zhang2023.prompts import DRAWN_LENGTHS, drawn_prompts
from flowsim.papers.zhang2023.setting import one_covariance
from flowsim.tasks import LinearRegression, Prompt

Task = LinearRegression
Tokens = Float[Array, "rows columns"]
Weights = Float[Array, "rows rows"]


def _embedded(inputs: Float[Array, "N d"], labels: Float[Array, " N"], query: Vector) -> Tokens:
    """E of (3.4)."""
    return jnp.block([[inputs.T, query[:, None]], [labels[None], jnp.zeros((1, 1))]])


def _matrix_output(E: Tokens, W_PV: Weights, W_KQ: Weights) -> Array:
    """The bottom-right entry of (3.3), rho = N."""
    return (E + W_PV @ E @ (E.T @ W_KQ @ E) / (E.shape[1] - 1))[-1, -1]


def _last_row(E: Tokens, W_PV: Weights, W_KQ: Weights) -> Array:
    """(3.6): the last row of W^PV and the first d columns of W^KQ alone."""
    return W_PV[-1] @ (E @ E.T / (E.shape[1] - 1)) @ W_KQ[:, :-1] @ E[:-1, -1]


def _on_prompts(task: Task, sides) -> Comparison:
    """An identity on drawn prompts of 1 and 7 examples with drawn weights, relative to the size of the terms.

    **Arguments:** sides: (inputs, labels, query, W^PV, W^KQ) -> both sides, of any one shape.
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


SECTION = Section("zhang2023", LinearAttention, setting=one_covariance, problems=STILL, spaces=spaces.STILL)


@SECTION.claim("eq-3.6", "(3.6)")
@eqx.filter_jit
def last_row_and_first_columns(task: Task) -> Comparison:
    r"""(3.3) predicts $\hat y = (u_{12}^\top, u_{-1}) (E E^\top/N) \begin{bmatrix} U_{11} \\ u_{21}^\top \end{bmatrix}
    x_{\mathrm{query}}$, with the last row of $W^{PV}$ and the first $d$ columns of $W^{KQ}$ alone

    Judged on drawn prompts with all entries of W^PV and W^KQ drawn, for (3.6) and for the model that flows.
    """

    def sides(inputs, labels, query, W_PV, W_KQ):
        E = _embedded(inputs, labels, query)
        model = LinearAttention(W_KQ[:-1, :-1], W_PV[-1, -1], W_PV[-1, :-1], W_KQ[-1, :-1])
        whole = _matrix_output(E, W_PV, W_KQ)
        return jnp.stack([_last_row(E, W_PV, W_KQ), model(Prompt(inputs, labels, query))]), jnp.stack([whole, whole])

    return _on_prompts(task, sides)


@SECTION.claim("eq-3.6.query-column", "(3.4) with (3.6)", form="corrected")
@eqx.filter_jit
def query_column(task: Task) -> Comparison:
    r"""The query's column adds $u_{12}^\top x_{\mathrm{query}} x_{\mathrm{query}}^\top U_{11} x_{\mathrm{query}}/N$ to
    the prediction: where $u_{12} = 0$, as along every flow from Assumption 3.3, it may be masked out

    The paper keeps the column, and (4.2) drops its term x_query x_query^T/M in a step; ahn2023 masks it out. Judged on
    drawn prompts, at drawn weights and at these with u12 = 0.
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
