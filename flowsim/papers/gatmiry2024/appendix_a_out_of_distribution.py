"""gatmiry2024's appendix A: Theorem A.13 on prompts with another covariance, and (31) of its proof."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Matrix
from flowsim.claims.claim import Comparison, at_most
from flowsim.claims.declaring import Section
from flowsim.claims.statements import joined, rounded
from flowsim.losses import LoopedLoss
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.out_of_distribution import PROBLEMS, ZETAS, bounded, covariances, error_constants
from flowsim.papers.gatmiry2024.setting import MODELS, delta, dimension_root, long_context, matrices

SECTION = Section("gatmiry2024", *MODELS, setting=matrices, problems=PROBLEMS, spaces=spaces.NEW_COVARIANCES)


@SECTION.claim("theorem-a.13", "Theorem A.13, (30)", constants=error_constants)
@eqx.filter_jit
def appendix_error(loss: LoopedLoss) -> Comparison:
    r"""The bound of Theorem 4.5 for $\zeta \Sigma^* \preceq \Sigma_{\mathrm{out}} \preceq (2 - \zeta) \Sigma^*$,
    $\Sigma_{\mathrm{out}} = X X^\top$

    Fails as Theorem 4.5 does. (10) has no zeta on its left; with it, the bound is claimed for more prompts.
    """
    return bounded(loss, lambda zeta: zeta, mean=False, swapped=False)


@SECTION.corrected(appendix_error, constants=error_constants)
@eqx.filter_jit
def error_from_below(loss: LoopedLoss) -> Comparison:
    r"""$\zeta \Sigma^* \preceq \tfrac{1}{n} X X^\top \preceq (2 - \zeta) \Sigma^*$ implies $(\text{prediction} - y)^2
    \le (1 + x)^2 (1 + x - \zeta)^{2L} \lVert x_q \rVert^2_{{\Sigma^*}^{-1}} \lVert w \rVert^2_{\Sigma^*}$, $x = 16
    \delta d^{1/(2L)}$

    The corrected Theorem 4.5 for the wider range of (30).
    """
    return bounded(loss, lambda zeta: zeta, mean=True, swapped=True)


def _through_optimum(loss: LoopedLoss, covariance: Matrix) -> Float[Array, " d"]:
    """The eigenvalues of A_opt^{1/2} C A_opt^{1/2}."""
    values, vectors = jnp.linalg.eigh(loss.minimizer.A)
    root = (vectors * jnp.sqrt(values)[None, :]) @ vectors.T
    return jnp.linalg.eigvalsh(root @ covariance @ root)


@SECTION.claim("theorem-a.13.optimum", "proof of Theorem A.13", hypotheses=long_context)
@eqx.filter_jit
def precision_bounded(loss: LoopedLoss) -> Comparison:
    r"""$(1 - x) A_{\mathrm{opt}}^{-1} \preceq \Sigma^* \preceq (1 + x) A_{\mathrm{opt}}^{-1}$, $x = 16 \delta
    d^{1/(2L)}$

    What Theorem 3.2 says of A_opt^-1, under its condition on n.
    """
    relative = _through_optimum(loss, loss.task.covariance)
    bound = 16.0 * delta(loss) * dimension_root(loss)
    finite = jnp.isfinite(loss.task.context_length)
    return at_most(jnp.max(jnp.abs(relative - 1))[None], bound[None], promised=finite)


@SECTION.claim("theorem-a.13.eq-31", "proof of Theorem A.13, (31)", hypotheses=long_context)
@eqx.filter_jit
def residual_bounded(loss: LoopedLoss) -> Comparison:
    r"""$\zeta \Sigma^* \preceq \Sigma_{\mathrm{out}} \preceq (2 - \zeta) \Sigma^*$ implies $-(1 + x - \zeta) I \preceq
    I - A_{\mathrm{opt}}^{1/2} \Sigma_{\mathrm{out}} A_{\mathrm{opt}}^{1/2} \preceq (1 + x - \zeta) I$, $x = 16 \delta
    d^{1/(2L)}$

    Judged at drawn and extreme Sigma_out. This is a statement about A_opt, so it does not matter that X X^T must be
    divided by n.
    """
    x, parts = 16.0 * delta(loss) * dimension_root(loss), []
    for zeta in ZETAS:
        W = covariances(loss.task.dimension, zeta, 2 - zeta)
        relative = jax.vmap(lambda W: _through_optimum(loss, loss.root @ W @ loss.root))(W)
        parts.append(at_most(jnp.max(jnp.abs(1 - relative), axis=1), jnp.broadcast_to(1 + x - zeta, W.shape[:1])))
    values = jnp.linalg.eigvalsh(loss.task.covariance)
    return rounded(joined(parts), float(loss.task.dimension) * values[-1] / values[0])
