"""gatmiry2024's section 5.2: where the flow ends at short contexts."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from flowsim._core.types import Series
from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import Hypothesis, hypothesis
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses.deep.scalar_minima import scalar_shortfall
from flowsim.papers.gatmiry2024 import landscape_problems as problems
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.setting import (
    CLOSE,
    MODELS,
    Loss,
    deviation,
    identity_covariance,
    looped,
    loops,
    whitened,
)

PROBLEMS = (problems.TEN, problems.FEW, problems.FEW_DEEP, problems.FEW_RANDOM)


def at_least_two_examples(loss: Loss, start: PyTree) -> list[Hypothesis]:
    """There are at least two examples: n > 1."""
    return [hypothesis("n > 1", loss.task.context_length, ">", 1.0)]


def _end_from_identity(loss: Loss, trajectory: Trajectory) -> Series:
    return jnp.max(jnp.abs(whitened(loss, trajectory.models)[-1:] - 1.0), axis=1)


def end_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """a of A_opt = a I, |A - I| at the end of the flow, and d/n."""
    return {
        "a": loss.energy.centres[0],
        "distance_from_identity": _end_from_identity(loss, trajectory)[0],
        "d_over_n": loss.task.dimension / loss.task.context_length,
    }


SECTION = Section("gatmiry2024", *MODELS, setting=looped, hypotheses=(identity_covariance, at_least_two_examples))
ON_PROBLEMS = SECTION.on(PROBLEMS, spaces.SHORT_FLOWS)


@ON_PROBLEMS.claim("sec-5.2", "section 5.2, Figure 1", constants=end_constants)
def tends_near_identity(loss: Loss, flow: Trajectory) -> Comparison:
    r"""For $\Sigma^* = I$ and all $n > 1$, even $n < d$, $A$ converges very close to $I$: $\lVert A - I \rVert \le 0.1$
    in the limit

    The text gives no number for close; all rows of this paper read it as 10%. At n < d, A ends nearer to zero than to
    I. That the loss converges is true of every gradient flow of a positive loss.
    """
    return at_most(_end_from_identity(loss, flow), CLOSE, allowance=flow.way_to_go)


@ON_PROBLEMS.corrected(tends_near_identity, constants=end_constants)
def tends_to_minimum(loss: Loss, flow: Trajectory) -> Comparison:
    r"""For $\Sigma^* = I$ and all $n > 1$ the loss converges to its minimum and $A$ to $A_{\mathrm{opt}} = a I$

    a tends to 1 as d/n tends to 0; its value is among the constants.
    """
    to_go = flow.way_to_go / loss.energy.centres[0]
    return equal(deviation(loss, flow.models)[-1:], 0.0, 1.0, allowance=to_go)


@SECTION.on((problems.TEN, problems.FEW, problems.FEW_DEEP, problems.VERY_LONG), spaces.STILL_ISOTROPIC).claim(
    "sec-5.2.scale", "section 5.2, Figure 1", form="corrected"
)
def shrinks(loss: Loss) -> Comparison:
    r"""For $\Sigma^* = I$ and all $n > 1$ the limit is $A_{\mathrm{opt}} = a I$ with $0 < a < 1$

    This much of the printed claim, close to I, is true at every n.
    """
    n = float(loss.task.context_length)
    short = jnp.asarray([scalar_shortfall(loss.task.dimension, n, loops(loss))])
    finite = bool(np.isfinite(n))
    return joined([at_most(short, 1.0, promised=finite), at_least(short, 0.0, size=short, promised=finite)])
