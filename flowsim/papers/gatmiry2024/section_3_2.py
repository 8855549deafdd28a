"""gatmiry2024's section 3.2: least squares on one prompt, and gradient descent on it.

One side is computed by JAX or by solving, the other from the printed formula.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, at_most
from flowsim.claims.declaring import Section
from flowsim.losses import LoopedLoss
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.lemma_settings import looped_by_matrices
from flowsim.papers.gatmiry2024.prompts import JUDGED, PROBLEMS, Drawn, conditioned, drawn, of_prompts
from flowsim.papers.gatmiry2024.setting import MODELS, over_determined

SECTION = Section(
    "gatmiry2024",
    *MODELS,
    setting=looped_by_matrices,
    hypotheses=over_determined,
    problems=PROBLEMS,
    spaces=spaces.LEMMAS,
)


@SECTION.claim("sec-3.2.pseudo-inverse", "section 3.2", note=JUDGED)
@conditioned
@of_prompts(symmetric=True)
def pseudo_inverse(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""$w^* = (X X^\top)^{-1} X y$, given $n > d$"""
    return jnp.linalg.solve(one.X @ one.X.T, one.X @ (one.X.T @ one.w)), one.w


def _hessian(one: Drawn) -> Float[Array, "d d"]:
    """The Hessian of |X^T w - y|^2, by JAX."""
    return jax.hessian(one.squares)(one.w)


@SECTION.claim(
    "sec-3.2.hessian",
    "section 3.2",
    hypotheses=(),
    note=JUDGED + "A factor of two is missing, as in the gradient of Proposition 3.1.",
)
@of_prompts(symmetric=True)
def printed_hessian(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""The Hessian of $\lVert X^\top w - y \rVert^2$ is $X X^\top$"""
    return _hessian(one), one.X @ one.X.T


@SECTION.corrected(printed_hessian, hypotheses=(), note=JUDGED)
@of_prompts(symmetric=True)
def hessian(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""The Hessian of $\lVert X^\top w - y \rVert^2$ is $2 X X^\top$"""
    return _hessian(one), 2 * one.X @ one.X.T


def _contraction(loss: LoopedLoss, step: Callable[[Array], Array]) -> tuple[Array, Array]:
    """|I - s H|_2 and the condition number of the Hessian H at each drawn prompt, with s = step(eigenvalues of H)."""
    values = jax.vmap(lambda one: jnp.linalg.eigvalsh(_hessian(one)))(drawn(loss, True))
    return jnp.max(jnp.abs(1 - step(values)[:, None] * values), axis=1), values[:, -1] / values[:, 0]


@SECTION.claim(
    "sec-3.2.step-size",
    "section 3.2",
    note=JUDGED + "The step size is meant for a Hessian of norm one. For other norms it converges only where "
    "2 kappa > |H|_2, that is, where the least eigenvalue of the Hessian, which is of order n, is below 2.",
)
def printed_step_size(loss: LoopedLoss) -> Comparison:
    r"""Gradient descent on $\lVert X^\top w - y \rVert^2$ with step size $1/\kappa$, $\kappa$ the Hessian's condition
    number, converges
    """
    return at_most(_contraction(loss, lambda values: values[:, 0] / values[:, -1])[0], 1.0)


@SECTION.corrected(printed_step_size, note=JUDGED)
def step_size(loss: LoopedLoss) -> Comparison:
    r"""With step size $1/\lVert H \rVert_2$ each step of it contracts by $e^{-1/\kappa}$, so that $O(\kappa)$
    steps do
    """
    norms, condition = _contraction(loss, lambda values: 1 / values[:, -1])
    return at_most(norms, jnp.exp(-1 / condition))
