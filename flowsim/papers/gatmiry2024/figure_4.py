"""gatmiry2024's Figure 4: the limit of the flow and the time to it, at each number of loops."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flowsim.claims.claim import Comparison, Relation, at_least, at_most, equal
from flowsim.claims.hypotheses import Hypothesis, agrees, hypothesis
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.losses.deep.scalar_minima import scalar_minimum, scalar_shortfall
from flowsim.moments.spectrum import spectral_quadrature
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.figures import (
    LENGTHS,
    LONGER,
    LONGEST,
    LOOPS,
    READING,
    Curve,
    flow,
    identity,
    rises,
    size,
)
from flowsim.papers.gatmiry2024.lemma_settings import looped_by_matrices, looped_with_few_dimensions, shape
from flowsim.papers.gatmiry2024.setting import CLOSE, MODELS, Loss
from flowsim.papers.paper import Section

SECTION = Section("gatmiry2024", *MODELS)

_ONE = flow("L = 1, d = 10, n = 20", 1, 20, 10, kind="random", scale=0.1, seed=0)
_ONE_LONG = flow("L = 1, d = 10, n = 1000", 1, 1000, 10, kind="random", scale=0.1, seed=0)


def shrinkage_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The c of A_opt = c I at each L."""
    d, n = size(loss)
    return {f"c_at_{L}": jnp.asarray(scalar_minimum(d, n, L)[0]) for L in LOOPS}


@SECTION.claim(
    "figure-4",
    "Figure 4",
    "A converges to I for every number of loops: 1 - c <= 0.1 for A_opt = c I",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=looped_with_few_dimensions,
    hypotheses=identity,
    constants=shrinkage_constants,
    problems=LENGTHS,
    spaces=spaces.FIGURES,
    note=READING + "Judged for 1 to 6 loops.",
)
def all_loops_reach_identity(loss: Loss, trajectory: Trajectory) -> Comparison:
    """1 - c <= 0.1 for A_opt = c I with 1 to 6 loops."""
    d, n = size(loss)
    return at_most(jnp.asarray([scalar_shortfall(d, n, L) for L in LOOPS]), CLOSE)


@SECTION.claim(
    "figure-4",
    "Figure 4",
    "A_opt = c I is further from I the more loops there are",
    form="corrected",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=looped_with_few_dimensions,
    hypotheses=identity,
    constants=shrinkage_constants,
    problems=LENGTHS,
    spaces=spaces.FIGURES,
    note="More loops are hurt more by the large eigenvalues of W, and take smaller steps.",
)
def loops_shrink(loss: Loss, trajectory: Trajectory) -> Comparison:
    """1 - c grows with the number of loops."""
    d, n = size(loss)
    return rises(np.array([scalar_shortfall(d, n, L) for L in LOOPS]))


def time_until_close(d: int, n: int, loops: int) -> float:
    """The time from A = 0 to within 10% of A_opt = c I: the integral of d da / |dL/da| from 0 to 0.9 c."""
    c, _ = scalar_minimum(d, n, loops)
    rule = spectral_quadrature(d, n, 2 * loops)
    nodes, weights = np.polynomial.legendre.leggauss(120)
    s, weights = -np.log(CLOSE) * (nodes + 1) / 2, -weights * np.log(CLOSE) / 2
    x, a = 1 + rule.offsets, c * (1 - np.exp(-s))
    slopes = (1 - a[:, None] * x[None, :]) ** (2 * loops - 1) @ (2 * loops * rule.weights * x)
    return float(np.sum(weights * c * np.exp(-s) * d / slopes))


def _times(loss: Loss) -> Curve:
    d, n = size(loss)
    return np.array([time_until_close(d, n, L) for L in LOOPS])


def time_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The time to within 10% of A_opt at each L."""
    return {f"time_at_{L}": jnp.asarray(value) for L, value in zip(LOOPS, _times(loss), strict=True)}


def _five_times(loss: Loss, start: Any) -> list[Hypothesis]:
    n, d = float(loss.task.context_length), loss.task.dimension
    return [*identity(loss, start), hypothesis("n >= 5 d", n, ">=", 5.0 * d)]


@SECTION.claim(
    "figure-4.slower",
    "Figure 4",
    "Convergence is slower for more loops: the time from A = 0 to within 10% of A_opt grows with L, given n >= 5d",
    form="corrected",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=looped_with_few_dimensions,
    hypotheses=_five_times,
    constants=time_constants,
    problems=(LONGER, LONGEST),
    spaces=spaces.FIGURES,
    note="Judged for 1 to 6 loops; at short contexts the times hardly differ, and one loop may be the slowest.",
)
@SECTION.claim(
    "figure-4.slower",
    "Figure 4",
    "Convergence is slower for more loops: the time from A = 0 to within 10% of A_opt grows with L",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=looped_with_few_dimensions,
    hypotheses=identity,
    constants=time_constants,
    problems=LENGTHS,
    spaces=spaces.FIGURES,
    note="Judged for 1 to 6 loops. True at long contexts, where the minimum is flatter the more loops there are; "
    "at n = 2d, d = 10, one loop is the slowest.",
)
def more_loops_slower(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The time to within 10% of A_opt grows with the number of loops, from 1 to 6."""
    return rises(_times(loss))


def _one_loop(loss: Loss, start: Any) -> list[Hypothesis]:
    return [*identity(loss, start), agrees("L = 1", float(shape(loss).loops), 1.0)]


@SECTION.claim(
    "figure-4.one-loop.identity",
    "Figure 4",
    "Training with 1 loop does not converge to I in this setup",
    relation=Relation.INEQUALITY,
    along_flow=True,
    setting=looped_by_matrices,
    hypotheses=_one_loop,
    problems=(_ONE, _ONE_LONG),
    spaces=spaces.ONE_LOOP,
    note="One reading of the caption, which has just said that A converges to I for all numbers of loops; the other is "
    "figure-4.one-loop. The limit is n/(n + d + 1) I, which is (d + 1)/(n + d + 1) off.",
)
def ends_off_identity(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """|A - I|_F in the limit of the flow is positive, relative to |I|_F."""
    d = loss.task.dimension
    distance = jnp.linalg.norm(trajectory.models.A[-1] - jnp.eye(d))
    return at_least(distance[None], 0.0, size=jnp.sqrt(float(d)), allowance=trajectory.way_to_go)


@SECTION.claim(
    "figure-4.one-loop",
    "Figure 4",
    "Training with 1 loop does not converge at all in this setup: |A - A_opt|_F stays above 10% of the start's",
    relation=Relation.INEQUALITY,
    along_flow=True,
    setting=looped_by_matrices,
    hypotheses=_one_loop,
    problems=(_ONE,),
    spaces=spaces.ONE_LOOP,
    note="Judges the gradient flow, not the optimiser of the experiment, which the text does not describe. The other "
    "reading of the caption, that A does not converge to I, is figure-4.one-loop.identity.",
)
def stays_away(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """|A - A_opt|_F in the limit of the flow is at least 10% of what it was at the start."""
    ends = jnp.stack([trajectory.models.A[0], trajectory.models.A[-1]])
    gaps = ends - loss.energy.centres[0] * jnp.eye(loss.task.dimension)[None]
    start, end = jnp.linalg.norm(gaps, axis=(1, 2))
    return at_least(end[None], CLOSE * start, allowance=trajectory.way_to_go)


@SECTION.claim(
    "figure-4.one-loop",
    "Figure 4",
    "The flow of 1 loop converges: A(t) - A_opt = e^{-rt} (A(0) - A_opt) with r = 2(n + d + 1)/n, A_opt = (2/r) I",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=True,
    setting=looped_by_matrices,
    hypotheses=_one_loop,
    problems=(_ONE,),
    spaces=spaces.ONE_LOOP,
    note="If training with 1 loop did not converge in the experiment, the cause was the optimiser and not the loss, "
    "which is quadratic.",
)
def one_loop_flow(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """A(t) - A_opt = e^{-rt} (A(0) - A_opt), with r = 2 (n + d + 1)/n and A_opt = n/(n + d + 1) I."""
    n, d = loss.task.context_length, float(loss.task.dimension)
    rate = 2 * (n + d + 1) / n
    gaps = trajectory.models.A - (2 / rate) * jnp.eye(loss.task.dimension)[None]
    exact = jnp.exp(-rate * trajectory.t)[:, None, None] * gaps[:1]
    sizes = jnp.full(trajectory.t.shape, jnp.linalg.norm(trajectory.models.A[-1]))
    return equal(jnp.linalg.norm(gaps - exact, axis=(1, 2)), 0.0, sizes)
