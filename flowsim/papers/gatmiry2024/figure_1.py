"""gatmiry2024's Figure 1: where the flow ends at short contexts."""

import jax.numpy as jnp
from jaxtyping import Array

from flowsim.claims.claim import Comparison, at_most
from flowsim.claims.declaring import Section
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.figures import READING, flow, identity
from flowsim.papers.gatmiry2024.lemma_settings import looped_by_matrices
from flowsim.papers.gatmiry2024.setting import CLOSE, MODELS

PROBLEMS = (
    flow("L = 2, d = 5, n = 3 < d", 2, 3, 5, kind="random", scale=0.1, seed=0),
    flow("L = 2, d = 5, n = 20", 2, 20, 5, kind="random", scale=0.1, seed=0),
    flow("L = 2, d = 5, n = 400", 2, 400, 5, kind="random", scale=0.1, seed=0),
)


def scale_constants(loss: LoopedLoss, trajectory: Trajectory) -> dict[str, Array]:
    """c of A_opt = c I, and the mean eigenvalue of A where the flow ends."""
    end = jnp.trace(trajectory.models.A[-1]) / loss.task.dimension
    return {"c": loss.energy.centres[0], "mean_eigenvalue_at_the_end": end}


SECTION = Section(
    "gatmiry2024", *MODELS, setting=looped_by_matrices, hypotheses=identity, problems=PROBLEMS, spaces=spaces.FIGURE_1
)


@SECTION.claim(
    "figure-1",
    "Figure 1, section 5.2",
    constants=scale_constants,
    note=READING + "The flow ends at c I with c far below 1 unless n is many times d.",
)
def close_to_identity(loss: LoopedLoss, flow: Trajectory) -> Comparison:
    r"""$A$ converges to something very close to $I$ even for small $n$ and $n < d$: $\lVert A - I \rVert_2 \le 0.1$ in
    the limit
    """
    gap = flow.models.A[-1] - jnp.eye(loss.task.dimension)
    distance = jnp.linalg.norm(gap, ord=2)
    return at_most(distance[None], CLOSE, allowance=flow.way_to_go)


@SECTION.corrected(close_to_identity, constants=scale_constants)
def close_up_to_scale(loss: LoopedLoss, flow: Trajectory) -> Comparison:
    r"""$A$ converges to a multiple of $I$, even for $n < d$: $\min_c \lVert A - c I \rVert_F \le 0.1 \lVert A \rVert_F$
    in the limit

    In ahn2023's distance up to scaling, whose code section 5 uses, the limit is I at every n.
    """
    A, d = flow.models.A[-1], loss.task.dimension
    gap = jnp.linalg.norm(A - jnp.trace(A) / d * jnp.eye(d))
    # The left side moves at most as far as A does, the right side at most a tenth of that.
    to_go = (1 + CLOSE) * flow.way_to_go
    return at_most(gap[None], CLOSE * jnp.linalg.norm(A), allowance=to_go)
