"""gatmiry2024: where the flow ends, at short contexts (section 5.2) and from any A(0) (Theorem 3.3, section 3.7)."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from flowsim._core.types import Series
from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.hypotheses import Hypothesis
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.losses.deep.scalar_minima import scalar_shortfall
from flowsim.models import LoopedAttention
from flowsim.papers.gatmiry2024 import problems, setting, spaces
from flowsim.papers.gatmiry2024.section_3_7 import LONG_AND_SEVERAL, neighbourhood, neighbourhood_constants

at_least_two_examples = setting.condition("n > 1", lambda loss: (loss.task.context_length, ">", 1.0))


def _end_from_identity(loss: setting.Loss, trajectory: Trajectory) -> Series:
    return jnp.max(jnp.abs(setting.whitened(loss, trajectory.models)[-1:] - 1.0), axis=1)


def end_constants(loss: setting.Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The constants to report: the number a with A_opt = a I, |A - I|_2 at the end of the flow, and d/n."""
    return {
        "a": loss.energy.centres[0],
        "distance_from_identity": _end_from_identity(loss, trajectory)[0],
        "d_over_n": loss.task.dimension / loss.task.context_length,
    }


SECTION_5_2 = setting.LOOPED(hypotheses=(setting.identity_covariance, at_least_two_examples))
ON_PROBLEMS = SECTION_5_2.on(problems.SHORT_CONTEXTS, spaces.SHORT_FLOWS, constants=end_constants)


@ON_PROBLEMS.claim("sec-5.2", "section 5.2, Figure 1")
def tends_near_identity(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""For $\Sigma^* = I$ and all $n > 1$, even $n < d$, $A$ converges very close to $I$: $\lVert A - I \rVert \le 0.1$
    in the limit

    The text gives no number for close; all rows of this paper read it as 10%. At n < d, A ends nearer to zero than to
    I. The loss converges along every gradient flow, because it decreases and is positive.
    """
    return at_most(_end_from_identity(loss, flow), setting.CLOSE, allowance=flow.way_to_go)


@ON_PROBLEMS.corrected(tends_near_identity)
def tends_to_minimum(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""For $\Sigma^* = I$ and all $n > 1$ the loss converges to its minimum and $A$ to $A_{\mathrm{opt}} = a I$

    a tends to 1 as d/n tends to 0. Its value is among the constants.
    """
    to_go = flow.way_to_go / loss.energy.centres[0]
    return equal(setting.deviation(loss, flow.models)[-1:], 0.0, 1.0, allowance=to_go)


@SECTION_5_2.on((problems.TEN, problems.FEW, problems.FEW_DEEP, problems.VERY_LONG), spaces.STILL_ISOTROPIC).claim(
    "sec-5.2.scale", "section 5.2, Figure 1", form="corrected"
)
def shrinks(loss: setting.Loss) -> Comparison:
    r"""For $\Sigma^* = I$ and all $n > 1$ the limit is $A_{\mathrm{opt}} = a I$ with $0 < a < 1$

    This part of the printed claim is true at every n.
    """
    n = float(loss.task.context_length)
    short = setting.approximate([scalar_shortfall(loss.task.dimension, n, setting.loops(loss))])
    finite = bool(np.isfinite(n))
    return joined([at_most(short, 1.0, promised=finite), at_least(short, 0.0, size=short, promised=finite)])


def identity_without_bias(loss: setting.Loss, start: PyTree) -> list[Hypothesis]:
    """The hypotheses Sigma* = I and u = 0 at the start. A need not be symmetric."""
    return [part for part in setting.identity_covariance(loss, start) if part.name != "A symmetric"]


STARTS = setting.LOOPED()


@STARTS.on(problems.STARTS, spaces.ANY_START).claim(
    "theorem-3.3.any-start",
    "Theorem 3.3, from any A(0)",
    hypotheses=(identity_without_bias, setting.over_determined, setting.several_loops),
    constants=neighbourhood_constants,
)
def from_any_start(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""For every $A(0)$, symmetric or not, $(1 - c) A_{\mathrm{opt}} \preceq A(t) \preceq (1 + c) A_{\mathrm{opt}}$
    from that time on, $c = 8 (1 + 4 d^{1/(2L)}) \xi^{1/(2L)}$

    The theorem has no condition on A(0), but its proof uses roots of A. The statement fails where A(0) is not
    symmetric: at n = inf every A with (I - A)^L = 0 has loss zero, and flows end at such A far from I. They get there
    late, after rounding alone moves them, and their verdicts cover only earlier times. A <= B means x^T A x <= x^T B x
    for all x.
    """
    return neighbourhood.compare(loss, flow)


@STARTS.on((problems.INDEFINITE, problems.NEGATIVE, problems.RANDOM), spaces.SYMMETRIC_STARTS).corrected(
    from_any_start,
    hypotheses=(setting.identity_covariance, setting.over_determined, setting.several_loops),
    constants=end_constants,
)
def from_symmetric_starts(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""From every symmetric $A(0)$, positive or not, $A(t)$ tends to the $A_{\mathrm{opt}} = a I$ of symmetric matrices

    If A(0) is symmetric, A(t) stays symmetric. A(0) need not be positive.
    """
    return tends_to_minimum.compare(loss, flow)


# At n = inf the least loss is zero.
_finite = setting.condition("1/n > 0", lambda loss: (1 / loss.task.context_length, ">", 0.0))


def _turned(loss: LoopedLoss) -> Float[Array, "d d"]:
    """The matrix A_opt^{1/2} (I + K) A_opt^{1/2}, where K = (e_1 e_2^T - e_2 e_1^T)/sqrt(n).

    A_opt is a multiple of Sigma*^-1.
    """
    d, inverse_root = loss.task.dimension, jnp.linalg.inv(loss.root)
    turn = jnp.zeros((d, d)).at[0, 1].set(1.0).at[1, 0].set(-1.0) / jnp.sqrt(loss.task.context_length)
    return loss.energy.centres[0] * inverse_root @ (jnp.eye(d) + turn) @ inverse_root


@STARTS.on((problems.TURNED, problems.TURNED_DEEP, problems.SKEWED), spaces.LANDSCAPES[:1]).claim(
    "theorem-3.3.stability",
    "Theorem 3.2 with Theorem 3.3",
    form="corrected",
    setting=setting.matrices,
    hypotheses=(*LONG_AND_SEVERAL, _finite),
)
def not_stable(loss: LoopedLoss) -> Comparison:
    r"""Over all $A$ the $A_{\mathrm{opt}}$ of symmetric matrices is not stable: $\mathcal{L}(A_{\mathrm{opt}}^{1/2} (I
    + K) A_{\mathrm{opt}}^{1/2}, 0) < \mathcal{L}(A_{\mathrm{opt}}, 0)$ for the antisymmetric $K = (e_1 e_2^\top - e_2
    e_1^\top)/\sqrt{n}$, given $L > 1$, $d > 1$ and $8 L d^2/\sqrt{n} \le 2^{-2L}$

    Theorem 3.2 is about a global minimiser, but it does not say that A is symmetric. (22) does not say it either,
    although it contains A_opt^{1/2}. At L = 2 the loss changes by -2 |K|_F^2/n + |K^2|_F^2 = -2/n^2, to leading order
    in 1/n.
    """
    whole = LoopedLoss(loss.task, setting.loops(loss), symmetric=False)
    excess = whole(LoopedAttention(_turned(loss), loops=setting.loops(loss))) - loss.minimum
    return at_most(excess[None], 0.0, size=loss.minimum)
