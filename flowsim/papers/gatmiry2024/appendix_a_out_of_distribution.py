"""gatmiry2024's appendix A: Theorem A.13 on prompts with another covariance, and (31) of its proof."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Matrix
from flowsim.claims.claim import Comparison, Relation, at_most
from flowsim.claims.statements import joined, rounded
from flowsim.losses import LoopedLoss
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.out_of_distribution import PROBLEMS, ZETAS, bounded, covariances, error_constants
from flowsim.papers.gatmiry2024.setting import MODELS, delta, dimension_root, long_context, matrices, of_loss
from flowsim.papers.paper import Section

SECTION = Section("gatmiry2024", *MODELS)


@SECTION.claim(
    "theorem-a.13",
    "Theorem A.13, (30)",
    "The bound of Theorem 4.5 for zeta Sigma* <= Sigma_out <= (2 - zeta) Sigma*, Sigma_out = X X^T",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=matrices,
    constants=error_constants,
    problems=PROBLEMS,
    spaces=spaces.NEW_COVARIANCES,
    note="Fails as Theorem 4.5 does. (10) has no zeta on its left; with it, the bound is claimed for more prompts.",
)
@of_loss
def appendix_error(loss: LoopedLoss) -> Comparison:
    """The bound printed in (30): zeta Sigma* <= X X^T <= (2 - zeta) Sigma*, |x|_{Sigma*} and |w|_{Sigma*^-1}."""
    return bounded(loss, lambda zeta: zeta, mean=False, swapped=False)


@SECTION.claim(
    "theorem-a.13",
    "Theorem A.13, (30)",
    "zeta Sigma* <= (1/n) X X^T <= (2 - zeta) Sigma* implies (prediction - y)^2 <= (1 + x)^2 (1 + x - zeta)^{2L} "
    "|x_q|^2_{Sigma*^-1} |w|^2_{Sigma*}, x = 16 delta d^{1/(2L)}",
    form="corrected",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=matrices,
    constants=error_constants,
    problems=PROBLEMS,
    spaces=spaces.NEW_COVARIANCES,
    note="The corrected Theorem 4.5 for the wider range of (30).",
)
@of_loss
def error_from_below(loss: LoopedLoss) -> Comparison:
    """The corrected bound: zeta Sigma* <= (1/n) X X^T <= (2 - zeta) Sigma*, |w|_{Sigma*} and |x|_{Sigma*^-1}."""
    return bounded(loss, lambda zeta: zeta, mean=True, swapped=True)


def _through_optimum(loss: LoopedLoss, covariance: Matrix) -> Float[Array, " d"]:
    """The eigenvalues of A_opt^{1/2} C A_opt^{1/2}."""
    values, vectors = jnp.linalg.eigh(loss.minimizer.A)
    root = (vectors * jnp.sqrt(values)[None, :]) @ vectors.T
    return jnp.linalg.eigvalsh(root @ covariance @ root)


@SECTION.claim(
    "theorem-a.13.optimum",
    "proof of Theorem A.13",
    "(1 - x) A_opt^-1 <= Sigma* <= (1 + x) A_opt^-1, x = 16 delta d^{1/(2L)}",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=matrices,
    hypotheses=long_context,
    problems=PROBLEMS,
    spaces=spaces.NEW_COVARIANCES,
    note="What Theorem 3.2 says of A_opt^-1, under its condition on n.",
)
@of_loss
def precision_bounded(loss: LoopedLoss) -> Comparison:
    """(1 - x) A_opt^-1 <= Sigma* <= (1 + x) A_opt^-1 with x = 16 delta d^{1/(2L)}, both halves in one number."""
    relative = _through_optimum(loss, loss.task.covariance)
    bound = 16.0 * delta(loss) * dimension_root(loss)
    finite = jnp.isfinite(loss.task.context_length)
    return at_most(jnp.max(jnp.abs(relative - 1))[None], bound[None], promised=finite)


@SECTION.claim(
    "theorem-a.13.eq-31",
    "proof of Theorem A.13, (31)",
    "zeta Sigma* <= Sigma_out <= (2 - zeta) Sigma* implies -(1 + x - zeta) I <= I - A_opt^{1/2} Sigma_out "
    "A_opt^{1/2} <= (1 + x - zeta) I, x = 16 delta d^{1/(2L)}",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=matrices,
    hypotheses=long_context,
    problems=PROBLEMS,
    spaces=spaces.NEW_COVARIANCES,
    note="Judged at drawn and extreme Sigma_out. This is a statement about A_opt, so it does not matter that X X^T "
    "must be divided by n.",
)
@of_loss
def residual_bounded(loss: LoopedLoss) -> Comparison:
    """|I - A_opt^{1/2} Sigma_out A_opt^{1/2}| <= 1 + x - zeta for zeta Sigma* <= Sigma_out <= (2 - zeta) Sigma*."""
    x, parts = 16.0 * delta(loss) * dimension_root(loss), []
    for zeta in ZETAS:
        W = covariances(loss.task.dimension, zeta, 2 - zeta)
        relative = jax.vmap(lambda W: _through_optimum(loss, loss.root @ W @ loss.root))(W)
        parts.append(at_most(jnp.max(jnp.abs(1 - relative), axis=1), jnp.broadcast_to(1 + x - zeta, W.shape[:1])))
    values = jnp.linalg.eigvalsh(loss.task.covariance)
    return rounded(joined(parts), float(loss.task.dimension) * values[-1] / values[0])
