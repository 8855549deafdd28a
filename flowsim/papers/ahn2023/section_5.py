"""ahn2023's section 5: layers of attention take steps of preconditioned gradient descent.

Everything is judged on drawn prompts with drawn weights, in the paper's own sign of A. The literal attention layers
compute the labels.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import finite_context
from flowsim.models import MultiLayerAttention
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer_problems import ON_PROMPTS
from flowsim.papers.ahn2023.prompts import Drawn, Row, on_prompts, risk
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights


def _descents(drawn: Drawn, *, own: bool) -> Float[Array, "layers d"]:
    """The steps w_1, .., w_k of (11) from w_0 = 0, with R_{w*}; own: with R_{w_k}, as printed there."""
    w, steps = jnp.zeros_like(drawn.weight), []
    for A in drawn.A:
        w = w + A @ jax.grad(risk, argnums=1)(drawn, w, w if own else drawn.weight)
        steps.append(w)
    return jnp.stack(steps)


def _predictions(drawn: Drawn) -> Row:
    """The predictions -y_i^{(n+1)} after each layer, from the model cut off there."""
    cut = range(1, drawn.A.shape[0] + 1)
    return jnp.stack([MultiLayerAttention(-drawn.A[:i], symmetric=False)(drawn.prompt) for i in cut])


SECTION = Section(
    "ahn2023",
    *LAYERED,
    setting=layers_with_inverse_weights,
    hypotheses=finite_context,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
)


@SECTION.claim("lemma-2", "Lemma 2, (64)")
@on_prompts
def lemma_2(drawn: Drawn) -> tuple[Row, Row]:
    r"""After layer $i$ the model predicts $\langle x^{(n+1)}, w_i \rangle$, with $w_0 = 0$ and $w_{i+1} = w_i + A_i
    \nabla R_{w_\star}(w_i)$

    Judged on 64 drawn prompts with drawn weights, after every layer. A_0, .., A_k are k + 1 layers, which the paper
    counts as k; "(64) is equivalent to" should name (63), and w^gd := -theta_k is meant for every layer.
    """
    return _descents(drawn, own=False) @ drawn.prompt.query, _predictions(drawn)


@SECTION.claim("eq-11", "(11)")
@on_prompts
def eq_11(drawn: Drawn) -> tuple[Row, Row]:
    r"""Lemma 2 with $w_{k+1} = w_k + A_k \nabla R_{w_k}(w_k)$

    R_{w_k} is minimal at w_k itself, so the iteration as printed never moves; R_{w*} is meant, as in Lemma 2. The
    misprint may be the paper's or that of its extracted text.
    """
    return _descents(drawn, own=True) @ drawn.prompt.query, _predictions(drawn)
