"""ahn2023's appendix C.1: the layers written out, and the loss with the label of the query in the prompt.

Everything is judged on drawn prompts with drawn weights, in the paper's own sign of A. The literal attention layers
compute covariates and labels.
"""

import jax.numpy as jnp
from jaxtyping import Array

from flowsim.claims.claim import Relation
from flowsim.claims.hypotheses import finite_context
from flowsim.models import MultiLayerAttention
from flowsim.models.linear_attention import embed
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer_problems import ON_PROMPTS
from flowsim.papers.ahn2023.prompts import Drawn, Row, inputs_of, labelled, layers, masked, on_prompts, states_from
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights
from flowsim.papers.paper import Section

SECTION = Section("ahn2023", *LAYERED)


@SECTION.claim(
    "eq-54",
    "(54), (31)",
    "(53) is X_{i+1} = X_i + (1/n) B_i X_i M X_i^T A_i X_i, Y_{i+1} = Y_i + (1/n) Y_i M X_i^T A_i X_i",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    hypotheses=finite_context,
    note="Judged on 64 drawn prompts with drawn weights, after every layer.",
)
@on_prompts
def eq_54(drawn: Drawn) -> tuple[Array, Array]:
    """X_{i+1} and Y_{i+1} of (53) against the right sides of (54)."""
    states, n = states_from(drawn, inputs_of(drawn)), drawn.prompt.inputs.shape[0]
    following = []
    for Z, A, B in zip(states, drawn.A, drawn.B, strict=False):
        X, Y = Z[:-1], Z[-1:]
        seen = A @ X / n
        following.append(jnp.concatenate([X + B @ X @ masked(X).T @ seen, Y + masked(Y) @ X.T @ seen]))
    return states[1:], jnp.stack(following)


@SECTION.claim(
    "lemma-9",
    "Lemma 9, (55)",
    "[Z_k] + w*^T x^{(n+1)} = [Zbar_k] at the query's label, where Zbar_0 has the label in it; with B",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    hypotheses=finite_context,
    note="Judged on 64 drawn prompts with drawn weights. It holds for each prompt, hence for every law.",
)
@on_prompts
def lemma_9(drawn: Drawn) -> tuple[Row, Row]:
    """[Z_k]_{d+1,n+1} + w*^T x^{(n+1)} against [Z-bar_k]_{d+1,n+1}, with B, and the model's prediction."""
    label = drawn.weight @ drawn.prompt.query
    given = layers(drawn, embed(drawn.prompt))[-1, -1, -1] + label
    predicted = label - MultiLayerAttention(-drawn.A, drawn.B[:-1], symmetric=False)(drawn.prompt)
    reformulated = layers(drawn, labelled(drawn))[-1, -1, -1]
    return jnp.stack([given, predicted]), jnp.stack([reformulated, reformulated])


@SECTION.claim(
    "lemma-10",
    "Lemma 10",
    "Adding c to the query's label leaves every X_i and the other labels as they are, and adds c to its label",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    hypotheses=finite_context,
    note="Judged on 64 drawn prompts with drawn weights, after every layer.",
)
@on_prompts
def lemma_10(drawn: Drawn) -> tuple[Array, Array]:
    """The states from Z_0 with c added to the query's label against those from Z_0, with c added there afterwards."""
    Z = embed(drawn.prompt)
    shift = jnp.zeros_like(Z).at[-1, -1].set(drawn.weight @ drawn.prompt.query)
    return layers(drawn, Z + shift), layers(drawn, Z) + shift[None]
