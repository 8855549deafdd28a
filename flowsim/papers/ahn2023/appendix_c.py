"""ahn2023's appendix C: the layers written out, and the proof of Lemma 2 from the labels after each layer.

Statements are judged on random prompts with random weights, in the paper's sign of A. Covariates and labels come
from the attention layers (53) in the paper's matrix form.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.hypotheses import finite_context
from flowsim.models import MultiLayerAttention
from flowsim.models.linear_attention import embed
from flowsim.papers.ahn2023 import problems, prompts, spaces
from flowsim.papers.ahn2023.settings import LAYERS
from flowsim.tasks import Prompt

SECTION = LAYERS(hypotheses=finite_context, problems=problems.ON_PROMPTS, spaces=spaces.LAYERS)


@SECTION.claim("eq-54", "(54), (31)")
@prompts.on_prompts
def eq_54(drawn: prompts.Drawn) -> tuple[Array, Array]:
    r"""(53) is $X_{i+1} = X_i + \tfrac{1}{n} B_i X_i M X_i^\top A_i X_i$, $Y_{i+1} = Y_i + \tfrac{1}{n} Y_i M X_i^\top
    A_i X_i$

    Judged on 64 random prompts with random weights, after every layer.
    """
    states, n = prompts.states_from(drawn, prompts.inputs_of(drawn)), drawn.prompt.inputs.shape[0]
    following = []
    for Z, A, B in zip(states, drawn.A, drawn.B, strict=False):
        X, Y = Z[:-1], Z[-1:]
        seen = A @ X / n
        following.append(jnp.concatenate([X + B @ X @ prompts.masked(X).T @ seen, Y + prompts.masked(Y) @ X.T @ seen]))
    return states[1:], jnp.stack(following)


@SECTION.claim("lemma-9", "Lemma 9, (55)")
@prompts.on_prompts
def lemma_9(drawn: prompts.Drawn) -> tuple[prompts.Row, prompts.Row]:
    r"""With $B$ too, $[Z_k] + w_\star^\top x^{(n+1)} = [\bar Z_k]$ at the entry of the query's label, where $\bar Z_0$
    includes this label

    Judged on 64 random prompts with random weights. It holds for each prompt, so for every law.
    """
    label = drawn.weight @ drawn.prompt.query
    given = prompts.layers(drawn, embed(drawn.prompt))[-1, -1, -1] + label
    predicted = label - MultiLayerAttention(-drawn.A, drawn.B[:-1], symmetric=False)(drawn.prompt)
    reformulated = prompts.layers(drawn, prompts.labelled(drawn))[-1, -1, -1]
    return jnp.stack([given, predicted]), jnp.stack([reformulated, reformulated])


@SECTION.claim("lemma-10", "Lemma 10")
@prompts.on_prompts
def lemma_10(drawn: prompts.Drawn) -> tuple[Array, Array]:
    """Adding $c$ to the query's label leaves every $X_i$ and the other labels unchanged, and adds $c$ to this label at
    every layer

    Judged on 64 random prompts with random weights, after every layer.
    """
    Z = embed(drawn.prompt)
    shift = jnp.zeros_like(Z).at[-1, -1].set(drawn.weight @ drawn.prompt.query)
    return prompts.layers(drawn, Z + shift), prompts.layers(drawn, Z) + shift[None]


def _thetas(drawn: prompts.Drawn) -> Float[Array, "layers d"]:
    """theta_0, .., theta_k: the derivatives of the query's label with respect to the query, after each layer."""

    def label(query: Float[Array, " d"]) -> Float[Array, " layers"]:
        Z = embed(Prompt(drawn.prompt.inputs, drawn.prompt.labels, query))
        return jnp.concatenate([Z[None], prompts.layers(prompts.without_B(drawn), Z)])[:, -1, -1]

    return jax.jacfwd(label)(drawn.prompt.query)


@SECTION.claim("eq-60", "(59), (60)")
@prompts.on_prompts
def eq_60(drawn: prompts.Drawn) -> tuple[Array, Array]:
    r"""After every layer there is a $\theta_l$ with $y_l^{(i)} = \langle \theta_l, x^{(i)} \rangle + y^{(i)}$ for all
    $i \le n + 1$

    theta_l is computed as the derivative of the query's label with respect to the query.
    """
    Z = embed(drawn.prompt)
    return prompts.layers(prompts.without_B(drawn), Z)[:, -1], _thetas(drawn)[1:] @ Z[:-1] + Z[-1][None]


def _recursion(drawn: prompts.Drawn, attending: Float[Array, "n d"]) -> prompts.Row:
    """The labels y_1, .., y_n of the context after all layers, by a recursion.

    Layer l replaces y_i by y_i + (1/n) sum_j u_i^T A_l x_j y_j, where u_i is row i of ``attending``.
    """
    inputs, labels = drawn.prompt.inputs, drawn.prompt.labels
    for A in drawn.A:
        labels = labels + attending @ A @ inputs.T @ labels / labels.size
    return labels


@SECTION.claim("eq-61", "(61)")
@prompts.on_prompts
def eq_61_printed(drawn: prompts.Drawn) -> tuple[prompts.Row, prompts.Row]:
    r"""$y_i$ at layer $l+1$ is $y_i + \tfrac{1}{n} \sum_j x_{n+1}^\top A_l x_j y_j$, for $i \le n$"""
    attending = jnp.broadcast_to(drawn.prompt.query, drawn.prompt.inputs.shape)
    return _recursion(drawn, attending), prompts.layers(prompts.without_B(drawn), embed(drawn.prompt))[-1, -1, :-1]


@SECTION.corrected(eq_61_printed)
@prompts.on_prompts
def eq_61_corrected(drawn: prompts.Drawn) -> tuple[prompts.Row, prompts.Row]:
    r"""$y_i$ at layer $l+1$ is $y_i + \tfrac{1}{n} \sum_j x_i^\top A_l x_j y_j$, for $i \le n$

    This is (57). The printed form has x_{n+1} in place of x_i. In the line before it, y := <y_i, w*> should be <x_i,
    w*>.
    """
    return _recursion(drawn, drawn.prompt.inputs), prompts.layers(prompts.without_B(drawn), embed(drawn.prompt))[
        -1, -1, :-1
    ]


@SECTION.claim("eq-63", "(63)")
@prompts.on_prompts
def eq_63(drawn: prompts.Drawn) -> tuple[Array, Array]:
    r"""$\theta_{l+1} = \theta_l + \tfrac{1}{n} A_l X X^\top (\theta_l + w_\star)$

    theta_l is computed as the derivative of the query's label with respect to the query.
    """
    thetas, inputs = _thetas(drawn), drawn.prompt.inputs
    gram = inputs.T @ inputs / inputs.shape[0]
    steps = jnp.einsum("kij,jl,kl->ki", drawn.A, gram, thetas[:-1] + drawn.weight[None])
    return thetas[1:], thetas[:-1] + steps
