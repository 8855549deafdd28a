"""zhang2025's appendix on contexts of varying length."""

import equinox as eqx
import jax
import jax.numpy as jnp

from flowsim.claims.claim import Comparison, Relation, equal
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AttentionLoss
from flowsim.models import MergedHeads, SeparateHeads
from flowsim.papers.paper import Section
from flowsim.papers.zhang2025 import problems, spaces
from flowsim.papers.zhang2025.setting import learned, level, squared_error, varying_lengths

SECTION = Section("zhang2025", MergedHeads, SeparateHeads)


@SECTION.claim(
    "appendix.lengths",
    "appendix on varying context lengths",
    "With contexts of varying length the fixed points and their losses are those of one length N with 1/N = E[1/N]",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=varying_lengths,
    problems=problems.LENGTHS,
    spaces=spaces.LENGTHS,
    note="Judged by the mean over the lengths of losses by moments, and by its gradient, where all eigenvectors are "
    "learned; and by the least loss, where as many of the largest are learned as the heads can learn.",
)
@eqx.filter_jit
def lengths(loss: AttentionLoss, trajectory: Trajectory) -> Comparison:
    """The mean of the losses of each length and its gradient at the minimum for E[1/N], and the least loss."""
    task, law = loss.task, loss.task.length_law
    assert law is not None, "the setting of the claim"

    def mean(readout):
        return law.probabilities @ jax.vmap(lambda N: squared_error(task.covariance, N, readout))(law.lengths)

    best = learned(task, jnp.ones(task.dimension))
    value, slope = jax.value_and_grad(mean)(best)
    square = jnp.linalg.norm(task.covariance @ task.covariance)
    reached = (jnp.arange(task.dimension) < trajectory.start.rank).astype(float)
    found = jnp.stack([value, 2 * loss.minimum])
    expected = jnp.stack([level(task, chosen) for chosen in (jnp.ones(task.dimension), reached)])
    return joined(
        [
            equal(found, expected, jnp.trace(task.covariance)),
            equal(jnp.linalg.norm(slope)[None], 0.0, square),
        ]
    )
