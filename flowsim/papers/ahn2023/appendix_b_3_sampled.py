"""ahn2023's appendix B.3, the proof of Theorem 5, on sampled prompts: gradients over all matrices at a start on S.

On S, where A_i = a_i Sigma^-1 and B_i = b_i I, the loss is F(a, b) of `ScalarLayersLoss`. Sampling errors never vanish,
so equations are stated as bounds on the difference of their sides.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, at_most
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import Hypothesis, agrees
from flowsim.claims.statements import joined
from flowsim.losses import MonteCarloLoss
from flowsim.models import MultiLayerAttention, ScalarLayers
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer_problems import ON_SCALARS, WITHOUT_B
from flowsim.papers.ahn2023.sampled_layers import moving, sampled_layers
from flowsim.papers.ahn2023.scalars import scalar_loss

Layers = Float[Array, "... d d"]

_APART = 0.05  # the allowed relative difference of the sides of an equation
_PER_CENT = f"{100 * _APART:.0f} per cent"


def _scalars(loss: MonteCarloLoss, model: MultiLayerAttention) -> ScalarLayers:
    """The a_i and b_i of a model on S."""
    d = float(loss.task.dimension)
    return ScalarLayers(jnp.einsum("kij,ij->k", model.A, loss.task.covariance) / d, jnp.einsum("kii->k", model.B) / d)


def at_scalars(loss: MonteCarloLoss, start: MultiLayerAttention) -> list[Hypothesis]:
    """The layers start on S."""
    if start.B is None:
        return []
    on_S = _scalars(loss, start).attention(loss.task.covariance)
    assert on_S.B is not None, "scalars with b_i stand for matrices B_i"
    gap = sum(jnp.sum((a - b) ** 2) for a, b in ((start.A, on_S.A), (start.B, on_S.B)))
    return [agrees("distance from S = 0", jnp.sqrt(gap), 0.0, jnp.linalg.norm(start.A))]


SECTION = Section("ahn2023", MultiLayerAttention, setting=sampled_layers, hypotheses=at_scalars, needs=moving)
ON_S = SECTION.on(ON_SCALARS, spaces.ON_SCALARS)


@ON_S.claim("theorem-5.all-matrices", "proof of Theorem 5", form="corrected")
def theorem_5(loss: MonteCarloLoss, start: MultiLayerAttention) -> Comparison:
    r"""On $\mathcal{S}$, where $f(A, B) = F(a, b)$, $\nabla_{A_i} f = \tfrac{\partial F}{\partial a_i} \Sigma/d$ and
    $\nabla_{B_i} f = \tfrac{\partial F}{\partial b_i} I/d$, to $5$ per cent

    The left sides come from sampled prompts, F from quadrature. (36), and (37) with S~_j = s_j I, say this.
    """
    d, S = loss.task.dimension, loss.task.covariance
    exact = scalar_loss(d, float(loss.task.context_length), start.A.shape[0])
    slopes, found = jax.grad(exact)(_scalars(loss, start)), loss.gradient(start)
    assert slopes.b is not None, "the loss is one with B"
    off = lambda matrices, slope, shape: jnp.linalg.norm(matrices - slope[:, None, None] * shape[None] / d, axis=(1, 2))
    size = lambda slope, shape: jnp.max(jnp.abs(slope)) * jnp.linalg.norm(shape) / d
    return joined(
        [
            at_most(off(found.A, slopes.a, S), _APART * size(slopes.a, S)),
            at_most(off(found.B, slopes.b, jnp.eye(d)), _APART * size(slopes.b, jnp.eye(d))),
        ]
    )


def _decrease(loss: MonteCarloLoss, start: MultiLayerAttention, direction: Layers, d: float) -> tuple[Array, Array]:
    """d/dt f along dA_i/dt = -(r_i/d) Sigma^-1 and dB_i/dt = -(s_i/d) direction, and sum |grad|_F^2, from samples."""
    slopes, S = loss.gradient(start), loss.task.covariance
    r = jnp.einsum("kij,ij->k", slopes.A, S) / d
    s = jnp.einsum("kii->k", slopes.B) / d
    rate = -jnp.sum(r * jnp.einsum("kij,ij->k", slopes.A, jnp.linalg.inv(S)))
    rate = rate - jnp.sum(s * jnp.einsum("kij,ij->k", slopes.B, direction))
    return rate[None], (jnp.sum(slopes.A**2) + jnp.sum(slopes.B**2))[None]


@SECTION.claim(
    "eq-35.all-matrices", "(35)", problems=(ON_SCALARS[0], ON_SCALARS[2], WITHOUT_B), spaces=spaces.ON_SCALARS
)
def eq_35(loss: MonteCarloLoss, start: MultiLayerAttention) -> Comparison:
    r"""Along $dA_i/dt = -r_i \Sigma^{-1}$, $dB_i/dt = -s_i \Sigma^{-1}$, $\frac{d}{dt} f \le -\sum \lVert \nabla_{A_i}
    f \rVert_F^2 + \lVert \nabla_{B_i} f \rVert_F^2$ at points of $\mathcal{S}$

    On sampled prompts, at the start alone: the same statement as eq-35, false for the same reason. The decrease due to
    A has a factor d to spare, as the 1/d of the text above is left out. That due to B is too small by the factor tr
    Sigma^-1 where that is below 1, which decides where grad_A f vanishes, as in the last problem.
    """
    rate, squares = _decrease(loss, start, jnp.linalg.inv(loss.task.covariance), 1.0)
    return at_most(rate, -squares)


@ON_S.corrected(eq_35)
def eq_35_corrected(loss: MonteCarloLoss, start: MultiLayerAttention) -> Comparison:
    r"""Along $dA_i/dt = -r_i \Sigma^{-1}$, $dB_i/dt = -s_i I$, with $1/d$ in $r_i$ and $s_i$, $\frac{d}{dt} f = -\sum
    \lVert \nabla_{A_i} f \rVert_F^2 + \lVert \nabla_{B_i} f \rVert_F^2$, to $5$ per cent

    On sampled prompts, at the start alone.
    """
    d = float(loss.task.dimension)
    rate, squares = _decrease(loss, start, jnp.eye(loss.task.dimension), d)
    return at_most(jnp.abs(rate + squares), _APART * squares)
