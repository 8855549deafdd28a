"""gatmiry2024's section 3.7: Theorem 3.3 from any A(0), on which it sets no condition, and what A_opt is over all A."""

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from flowsim.claims.claim import Comparison, Relation, at_most
from flowsim.claims.hypotheses import Hypothesis, hypothesis
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.models import LoopedAttention
from flowsim.papers.gatmiry2024 import landscape_problems as problems
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.section_3_7 import neighbourhood, neighbourhood_constants
from flowsim.papers.gatmiry2024.section_3_7_convexity import long_and_several
from flowsim.papers.gatmiry2024.section_5_2 import end_constants, tends_to_minimum
from flowsim.papers.gatmiry2024.setting import (
    MODELS,
    Loss,
    all_of,
    identity_covariance,
    looped,
    loops,
    matrices,
    over_determined,
    several_loops,
)
from flowsim.papers.paper import Section

SECTION = Section("gatmiry2024", *MODELS)


def identity_without_bias(loss: Loss, start: PyTree) -> list[Hypothesis]:
    """Sigma* = I and u = 0; A need not be symmetric."""
    return [part for part in identity_covariance(loss, start) if part.name != "A symmetric"]


from_any_start = SECTION.claim(
    "theorem-3.3.any-start",
    "Theorem 3.3, from any A(0)",
    "For every A(0), symmetric or not, (1 - c) A_opt <= A(t) <= (1 + c) A_opt from that time on, "
    "c = 8 (1 + 4 d^{1/(2L)}) xi^{1/(2L)}",
    relation=Relation.INEQUALITY,
    along_flow=True,
    setting=looped,
    hypotheses=all_of(identity_without_bias, over_determined, several_loops),
    constants=neighbourhood_constants,
    problems=problems.STARTS,
    spaces=spaces.ANY_START,
    note="The theorem sets no condition on A(0), but its proof takes roots of A. It fails where A(0) is not symmetric: "
    "at n = inf every A with (I - A)^L = 0 has loss zero, and flows end there. A <= B is read as x^T A x <= x^T B x.",
)(neighbourhood)


from_symmetric_starts = SECTION.claim(
    "theorem-3.3.any-start",
    "Theorem 3.3, from any A(0)",
    "From every symmetric A(0), positive or not, A(t) tends to the A_opt = a I of symmetric matrices",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=True,
    setting=looped,
    hypotheses=all_of(identity_covariance, over_determined, several_loops),
    constants=end_constants,
    problems=(problems.INDEFINITE, problems.NEGATIVE, problems.RANDOM),
    spaces=spaces.SYMMETRIC_STARTS,
    note="A symmetric A(0) stays symmetric, and positivity is not needed.",
)(tends_to_minimum)


def finite_and_long(loss: LoopedLoss, start: PyTree) -> list[Hypothesis]:
    """L > 1, d > 1, the condition of Theorem 3.2, and n finite: at n = inf the least loss is zero."""
    return [*long_and_several(loss, start), hypothesis("1/n > 0", 1 / loss.task.context_length, ">", 0.0)]


def _turned(loss: LoopedLoss) -> Float[Array, "d d"]:
    """A_opt^{1/2} (I + K) A_opt^{1/2} with K = (e_1 e_2^T - e_2 e_1^T)/sqrt(n), for A_opt = a Sigma*^-1."""
    d, inverse_root = loss.task.dimension, jnp.linalg.inv(loss.root)
    turn = jnp.zeros((d, d)).at[0, 1].set(1.0).at[1, 0].set(-1.0) / jnp.sqrt(loss.task.context_length)
    return loss.energy.centres[0] * inverse_root @ (jnp.eye(d) + turn) @ inverse_root


@SECTION.claim(
    "theorem-3.3.stability",
    "Theorem 3.2 with Theorem 3.3",
    "Over all A the A_opt of symmetric matrices is not stable: L(A_opt^{1/2} (I + K) A_opt^{1/2}, 0) < L(A_opt, 0) for "
    "the antisymmetric K = (e_1 e_2^T - e_2 e_1^T)/sqrt(n), given L > 1, d > 1 and 8 L d^2/sqrt(n) <= 2^{-2L}",
    form="corrected",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=matrices,
    hypotheses=finite_and_long,
    problems=(problems.TURNED, problems.TURNED_DEEP, problems.SKEWED),
    spaces=spaces.LANDSCAPES[:1],
    note="Theorem 3.2 speaks of a global minimiser, and (22) of its root: that A is symmetric is left out there, too. "
    "At L = 2 the loss changes by -2 |K|^2/n + |K^2|^2 to leading order in 1/n.",
)
def not_stable(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """The exact loss at A_opt^{1/2} (I + K) A_opt^{1/2} minus the least loss of symmetric A, against zero."""
    whole = LoopedLoss(loss.task, loops(loss), symmetric=False)
    excess = whole(LoopedAttention(_turned(loss), loops=loops(loss))) - loss.minimum
    return at_most(excess[None], 0.0, size=loss.minimum)
