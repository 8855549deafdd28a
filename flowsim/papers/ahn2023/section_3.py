"""ahn2023's section 3: the in-context loss is not convex, even of a single layer."""

import equinox as eqx
import jax

from flowsim.claims.claim import Comparison, at_least
from flowsim.claims.declaring import Section
from flowsim.losses import MaskedAttentionLoss
from flowsim.models import MaskedAttention
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.problems import EVERY
from flowsim.papers.ahn2023.settings import masked_layer
from flowsim.papers.ahn2023.single_layer import Task, in_context_loss, of_sums

SECTION = Section("ahn2023", MaskedAttention, setting=masked_layer, problems=EVERY, spaces=spaces.MASKED)


@SECTION.claim("sec-3.non-convex", "section 3, (i)")
@eqx.filter_jit
def not_convex(task: Task) -> Comparison:
    """$f$ is not convex in $P$ and $Q$, even for a single layer: halfway between some two of them it is larger than the
    mean at both

    Judged halfway between (8) and (8) with the signs of b and A flipped, where all weights are zero.
    """
    one, other = (MaskedAttentionLoss(task).minimizer(gamma) for gamma in (1.0, -1.0))
    halfway = in_context_loss(task, jax.tree.map(lambda x, y: (x + y) / 2, one, other))
    mean = (in_context_loss(task, one) + in_context_loss(task, other)) / 2
    return of_sums(task, at_least(halfway[None], mean[None], size=halfway[None]))
