"""ahn2023's appendix C.1: the layers written out, and the loss with the label of the query in the prompt.

Everything is judged on drawn prompts with drawn weights, in the paper's own sign of A. The literal attention layers
compute covariates and labels.
"""

import jax.numpy as jnp
from jaxtyping import Array

from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import finite_context
from flowsim.models import MultiLayerAttention
from flowsim.models.linear_attention import embed
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer_problems import ON_PROMPTS
from flowsim.papers.ahn2023.prompts import Drawn, Row, inputs_of, labelled, layers, masked, on_prompts, states_from
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights

SECTION = Section(
    "ahn2023",
    *LAYERED,
    setting=layers_with_inverse_weights,
    hypotheses=finite_context,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
)


@SECTION.claim("eq-54", "(54), (31)")
@on_prompts
def eq_54(drawn: Drawn) -> tuple[Array, Array]:
    r"""(53) is $X_{i+1} = X_i + \tfrac{1}{n} B_i X_i M X_i^\top A_i X_i$, $Y_{i+1} = Y_i + \tfrac{1}{n} Y_i M X_i^\top
    A_i X_i$

    Judged on 64 drawn prompts with drawn weights, after every layer.
    """
    states, n = states_from(drawn, inputs_of(drawn)), drawn.prompt.inputs.shape[0]
    following = []
    for Z, A, B in zip(states, drawn.A, drawn.B, strict=False):
        X, Y = Z[:-1], Z[-1:]
        seen = A @ X / n
        following.append(jnp.concatenate([X + B @ X @ masked(X).T @ seen, Y + masked(Y) @ X.T @ seen]))
    return states[1:], jnp.stack(following)


@SECTION.claim("lemma-9", "Lemma 9, (55)")
@on_prompts
def lemma_9(drawn: Drawn) -> tuple[Row, Row]:
    r"""$[Z_k] + w_\star^\top x^{(n+1)} = [\bar Z_k]$ at the query's label, where $\bar Z_0$ has the label in it; with
    $B$

    Judged on 64 drawn prompts with drawn weights. It holds for each prompt, hence for every law.
    """
    label = drawn.weight @ drawn.prompt.query
    given = layers(drawn, embed(drawn.prompt))[-1, -1, -1] + label
    predicted = label - MultiLayerAttention(-drawn.A, drawn.B[:-1], symmetric=False)(drawn.prompt)
    reformulated = layers(drawn, labelled(drawn))[-1, -1, -1]
    return jnp.stack([given, predicted]), jnp.stack([reformulated, reformulated])


@SECTION.claim("lemma-10", "Lemma 10")
@on_prompts
def lemma_10(drawn: Drawn) -> tuple[Array, Array]:
    """Adding $c$ to the query's label leaves every $X_i$ and the other labels as they are, and adds $c$ to its label

    Judged on 64 drawn prompts with drawn weights, after every layer.
    """
    Z = embed(drawn.prompt)
    shift = jnp.zeros_like(Z).at[-1, -1].set(drawn.weight @ drawn.prompt.query)
    return layers(drawn, Z + shift), layers(drawn, Z) + shift[None]
