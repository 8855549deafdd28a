"""ahn2023's appendix C.2: the proof of Lemma 2, from the labels after each layer.

Everything is judged on drawn prompts with drawn weights, in the paper's own sign of A. The literal attention layers
compute the labels.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import finite_context
from flowsim.models.linear_attention import embed
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer_problems import ON_PROMPTS
from flowsim.papers.ahn2023.prompts import Drawn, Row, layers, on_prompts, without_B
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights
from flowsim.tasks import Prompt


def _thetas(drawn: Drawn) -> Float[Array, "layers d"]:
    """theta_0, .., theta_k: the derivatives of the query's label with respect to the query, after each layer."""

    def label(query: Float[Array, " d"]) -> Float[Array, " layers"]:
        Z = embed(Prompt(drawn.prompt.inputs, drawn.prompt.labels, query))
        return jnp.concatenate([Z[None], layers(without_B(drawn), Z)])[:, -1, -1]

    return jax.jacfwd(label)(drawn.prompt.query)


SECTION = Section(
    "ahn2023",
    *LAYERED,
    setting=layers_with_inverse_weights,
    hypotheses=finite_context,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
)


@SECTION.claim("eq-60", "(59), (60)")
@on_prompts
def eq_60(drawn: Drawn) -> tuple[Array, Array]:
    r"""After every layer there is a $\theta_l$ with $y_l^{(i)} = \langle \theta_l, x^{(i)} \rangle + y^{(i)}$ for all
    $i \le n + 1$

    theta_l is computed as the derivative of the query's label with respect to the query.
    """
    Z = embed(drawn.prompt)
    return layers(without_B(drawn), Z)[:, -1], _thetas(drawn)[1:] @ Z[:-1] + Z[-1][None]


def _recursion(drawn: Drawn, attending: Float[Array, "n d"]) -> Row:
    """The labels of the context after all layers, y_i <- y_i + (1/n) sum_j u_i^T A_l x_j y_j; attending: the u_i."""
    inputs, labels = drawn.prompt.inputs, drawn.prompt.labels
    for A in drawn.A:
        labels = labels + attending @ A @ inputs.T @ labels / labels.size
    return labels


@SECTION.claim("eq-61", "(61)")
@on_prompts
def eq_61_printed(drawn: Drawn) -> tuple[Row, Row]:
    r"""$y_i$ at layer $l+1$ is $y_i + \tfrac{1}{n} \sum_j x_{n+1}^\top A_l x_j y_j$, for $i \le n$"""
    attending = jnp.broadcast_to(drawn.prompt.query, drawn.prompt.inputs.shape)
    return _recursion(drawn, attending), layers(without_B(drawn), embed(drawn.prompt))[-1, -1, :-1]


@SECTION.corrected(eq_61_printed)
@on_prompts
def eq_61_corrected(drawn: Drawn) -> tuple[Row, Row]:
    r"""$y_i$ at layer $l+1$ is $y_i + \tfrac{1}{n} \sum_j x_i^\top A_l x_j y_j$, for $i \le n$

    With x_i instead of x_{n+1}, which is (57). In the line before it, y := <y_i, w*> should be <x_i, w*>.
    """
    return _recursion(drawn, drawn.prompt.inputs), layers(without_B(drawn), embed(drawn.prompt))[-1, -1, :-1]


@SECTION.claim("eq-63", "(63)")
@on_prompts
def eq_63(drawn: Drawn) -> tuple[Array, Array]:
    r"""$\theta_{l+1} = \theta_l + \tfrac{1}{n} A_l X X^\top (\theta_l + w_\star)$

    theta_l is computed as the derivative of the query's label with respect to the query.
    """
    thetas, inputs = _thetas(drawn), drawn.prompt.inputs
    gram = inputs.T @ inputs / inputs.shape[0]
    steps = jnp.einsum("kij,jl,kl->ki", drawn.A, gram, thetas[:-1] + drawn.weight[None])
    return thetas[1:], thetas[:-1] + steps
