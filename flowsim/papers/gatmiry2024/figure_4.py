"""gatmiry2024's Figure 4: the limit of the flow and the time to it, at each number of loops."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.declaring import Section
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

_ONE = flow("L = 1, d = 10, n = 20", 1, 20, 10, kind="random", scale=0.1, seed=0)
_ONE_LONG = flow("L = 1, d = 10, n = 1000", 1, 1000, 10, kind="random", scale=0.1, seed=0)


def shrinkage_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The c of A_opt = c I at each L."""
    d, n = size(loss)
    return {f"c_at_{L}": jnp.asarray(scalar_minimum(d, n, L)[0]) for L in LOOPS}


def _one_loop(loss: Loss, start: Any) -> list[Hypothesis]:
    return [*identity(loss, start), agrees("L = 1", float(shape(loss).loops), 1.0)]


SECTION = Section("gatmiry2024", *MODELS, setting=looped_with_few_dimensions)
ON_LENGTHS = SECTION.on(LENGTHS, spaces.FIGURES, hypotheses=identity)
ON_ONE_LOOP = SECTION.on((_ONE,), spaces.ONE_LOOP, setting=looped_by_matrices, hypotheses=_one_loop)


@ON_LENGTHS.claim("figure-4", "Figure 4", constants=shrinkage_constants, note=READING + "Judged for 1 to 6 loops.")
def all_loops_reach_identity(loss: Loss) -> Comparison:
    r"""$A$ converges to $I$ for every number of loops: $1 - c \le 0.1$ for $A_{\mathrm{opt}} = c I$"""
    d, n = size(loss)
    return at_most(jnp.asarray([scalar_shortfall(d, n, L) for L in LOOPS]), CLOSE)


@ON_LENGTHS.corrected(all_loops_reach_identity, constants=shrinkage_constants)
def loops_shrink(loss: Loss) -> Comparison:
    r"""$A_{\mathrm{opt}} = c I$ is further from $I$ the more loops there are

    More loops are hurt more by the large eigenvalues of W, and take smaller steps.
    """
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


@ON_LENGTHS.claim("figure-4.slower", "Figure 4", constants=time_constants)
def more_loops_slower(loss: Loss) -> Comparison:
    r"""Convergence is slower for more loops: the time from $A = 0$ to within $10\%$ of $A_{\mathrm{opt}}$ grows with
    $L$

    Judged for 1 to 6 loops. True at long contexts, where the minimum is flatter the more loops there are; at n = 2d, d
    = 10, one loop is the slowest.
    """
    return rises(_times(loss))


@SECTION.corrected(
    more_loops_slower,
    hypotheses=_five_times,
    problems=(LONGER, LONGEST),
    spaces=spaces.FIGURES,
    constants=time_constants,
)
def more_loops_slower_at_long_contexts(loss: Loss) -> Comparison:
    r"""Convergence is slower for more loops: the time from $A = 0$ to within $10\%$ of $A_{\mathrm{opt}}$ grows with
    $L$, given $n \ge 5d$

    Judged for 1 to 6 loops; at short contexts the times hardly differ, and one loop may be the slowest.
    """
    return rises(_times(loss))


@SECTION.claim(
    "figure-4.one-loop.identity",
    "Figure 4",
    setting=looped_by_matrices,
    hypotheses=_one_loop,
    problems=(_ONE, _ONE_LONG),
    spaces=spaces.ONE_LOOP,
)
def ends_off_identity(loss: LoopedLoss, flow: Trajectory) -> Comparison:
    """Training with $1$ loop does not converge to $I$ in this setup

    One reading of the caption, which has just said that A converges to I for all numbers of loops; the other is
    figure-4.one-loop. The limit is n/(n + d + 1) I, which is (d + 1)/(n + d + 1) off.
    """
    d = loss.task.dimension
    distance = jnp.linalg.norm(flow.models.A[-1] - jnp.eye(d))
    return at_least(distance[None], 0.0, size=jnp.sqrt(float(d)), allowance=flow.way_to_go)


@ON_ONE_LOOP.claim("figure-4.one-loop", "Figure 4")
def stays_away(loss: LoopedLoss, flow: Trajectory) -> Comparison:
    r"""Training with $1$ loop does not converge at all in this setup: $\lVert A - A_{\mathrm{opt}} \rVert_F$ stays
    above $10\%$ of the start's

    Judges the gradient flow, not the optimiser of the experiment, which the text does not describe. The other reading
    of the caption, that A does not converge to I, is figure-4.one-loop.identity.
    """
    ends = jnp.stack([flow.models.A[0], flow.models.A[-1]])
    gaps = ends - loss.energy.centres[0] * jnp.eye(loss.task.dimension)[None]
    start, end = jnp.linalg.norm(gaps, axis=(1, 2))
    return at_least(end[None], CLOSE * start, allowance=flow.way_to_go)


@ON_ONE_LOOP.corrected(stays_away)
def one_loop_flow(loss: LoopedLoss, flow: Trajectory) -> Comparison:
    r"""The flow of $1$ loop converges: $A(t) - A_{\mathrm{opt}} = e^{-rt} \bigl(A(0) - A_{\mathrm{opt}}\bigr)$ with $r
    = 2(n + d + 1)/n$, $A_{\mathrm{opt}} = \tfrac{2}{r} I$

    If training with 1 loop did not converge in the experiment, the cause was the optimiser and not the loss, which is
    quadratic.
    """
    n, d = loss.task.context_length, float(loss.task.dimension)
    rate = 2 * (n + d + 1) / n
    gaps = flow.models.A - (2 / rate) * jnp.eye(loss.task.dimension)[None]
    exact = jnp.exp(-rate * flow.t)[:, None, None] * gaps[:1]
    sizes = jnp.full(flow.t.shape, jnp.linalg.norm(flow.models.A[-1]))
    return equal(jnp.linalg.norm(gaps - exact, axis=(1, 2)), 0.0, sizes)
