"""ahn2023's Figures 3 and 4, section 6.1, on the set S alone: layers with B at their best scalars.

`figures_3_4_training` judges them along a flow over all matrices, on sampled prompts.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import Hypothesis, unmet
from flowsim.claims.statements import rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer import Loss
from flowsim.papers.ahn2023.multi_layer_problems import PAPER_B
from flowsim.papers.ahn2023.scalars import Point, Points, local_minima, lowest, minima_constants, on_the_set
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights

_ON_S = "On S alone: for general B the loss of three layers has no exact form here and is left to Monte Carlo."
_CONDITIONING = 1e3  # of sums of positive terms, with cancellation in their factors
_PROMPTS = 1024
_OF_SHARE = 4 * 0.5 / _PROMPTS**0.5  # four standard errors of a share of the prompts
_CONDITIONED = (
    _ON_S + " Judged by the condition number of Sigma^{-1/2} X_i M X_i^T Sigma^{-1/2} on the majority of 1,024 "
    "drawn prompts, to four standard errors. "
)


SECTION = Section(
    "ahn2023", *LAYERED, setting=layers_with_inverse_weights, problems=(PAPER_B,), spaces=spaces.SECTION_6
)


@SECTION.claim(
    "figure-3.loss",
    "Figure 3 (c)",
    constants=minima_constants,
    note=_ON_S + " The least loss found on S is 0.0393 for d = 5, n = 10, k = 3, against 0.5794 without B.",
)
def loss_tends_to_zero(loss: Loss) -> Comparison:
    """The loss converges to $0$"""
    return equal(on_the_set(loss).minimum[None], 0.0, float(loss.task.dimension))


@SECTION.claim("figure-4", "Figure 4", constants=minima_constants, note=_ON_S + " Judged at the best scalars.")
def increasing(loss: Loss) -> Comparison:
    """$A_0$, $A_1$, $A_2$ have increasing magnitude"""
    a = lowest(loss)[: loss.layers]
    return rounded(at_least(a[1:], a[:-1]), jnp.asarray(_CONDITIONING))


@SECTION.claim(
    "figure-4.elsewhere",
    "Figure 4",
    form="corrected",
    constants=minima_constants,
    note=_ON_S + " Whether they increase depends on where training ends.",
)
def not_increasing_elsewhere(loss: Loss) -> Comparison:
    r"""At some local minimum on $\mathcal{S}$ $A_0$, $A_1$, $A_2$ do not have increasing magnitude"""
    found = local_minima(loss)
    a = found.points[:, : loss.layers]
    falls = jnp.where(found.proper, jnp.max(a[:, :-1] - a[:, 1:], axis=1), -jnp.inf)
    return rounded(at_least(jnp.max(falls)[None], 0.0, size=jnp.max(a)), jnp.asarray(_CONDITIONING))


def _sizes_of_the_paper(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """The setting of the experiment: layers of section 6 with d = 5, n = 10 and k = 3."""
    if (foreign := layers_with_inverse_weights(loss)) is not None or not isinstance(loss, Loss):
        return foreign
    same = (loss.task.dimension, float(loss.task.context_length), loss.layers) == (5, 10.0, 3)
    return None if same else unmet("d = 5, n = 10, k = 3, as in section 6.1")


def _shares(loss: Loss, points: Points) -> Float[Array, "n moves"]:
    """The share of drawn prompts for which X_{i+1} is better conditioned than X_i, for i + 1 < k, at points of S.

    X_{i+1} = (1 - a_i b_i W_i) X_i, with W_i the sample covariance of X_i; its eigenvalues w become
    w (1 - a_i b_i w)^2.
    """
    k, n, d = loss.layers, int(loss.task.context_length), loss.task.dimension
    inputs = jax.random.normal(jax.random.key(0), (_PROMPTS, n, d))
    drawn = jnp.linalg.eigvalsh(jnp.swapaxes(inputs, 1, 2) @ inputs / n)

    def at(point: Point) -> Float[Array, " moves"]:
        w, conditions = drawn, [jnp.max(drawn, axis=1) / jnp.min(drawn, axis=1)]
        for step in point[: k - 1] * point[k:]:
            w = w * (1 - step * w) ** 2
            conditions.append(jnp.max(w, axis=1) / jnp.min(w, axis=1))
        return jnp.mean(jnp.diff(jnp.stack(conditions), axis=0) < 0, axis=1)

    return jax.vmap(at)(points)


def conditioning_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The shares of better conditioned X_1 and X_2 at the lowest minimum."""
    first, second = _shares(loss, lowest(loss)[None])[0]
    return {"share_1": first, "share_2": second}


@SECTION.claim(
    "figure-4.conditioning",
    "section 6.1, 2., on Figure 4",
    setting=_sizes_of_the_paper,
    constants=conditioning_constants,
    note=_CONDITIONED + "The text says so of the end of its training.",
)
def better_conditioned(loss: Loss) -> Comparison:
    r"""At some local minimum on $\mathcal{S}$ with $A_0$, $A_1$, $A_2$ of increasing magnitude, $X_2$ is better
    conditioned than $X_1$
    """
    found = local_minima(loss)
    increasing = jnp.all(jnp.diff(found.points[:, : loss.layers], axis=1) > 0, axis=1) & found.proper
    share = jnp.max(jnp.where(increasing, _shares(loss, found.points)[:, -1], 0.0))
    return at_least(share[None], 0.5, allowance=_OF_SHARE)


@SECTION.corrected(
    better_conditioned,
    setting=_sizes_of_the_paper,
    constants=conditioning_constants,
    note=_CONDITIONED + "What the B_i do to X_2 depends on where training ends: here the second step nearly "
    "annihilates some eigenvalues, which makes X_2 worse conditioned for four prompts in five.",
)
def worse_conditioned(loss: Loss) -> Comparison:
    r"""At the lowest minimum that is known on $\mathcal{S}$, $X_2$ is worse conditioned than $X_1$"""
    return at_most(_shares(loss, lowest(loss)[None])[:, -1], 0.5, allowance=_OF_SHARE)
