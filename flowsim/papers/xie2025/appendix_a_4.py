"""xie2025, appendix A.4: the proof of Lemma 1, that M is positive semi-definite and that the parts L_i are convex."""

import jax.numpy as jnp
import numpy as np

from flowsim.claims.claim import Comparison, at_most
from flowsim.claims.declaring import Section
from flowsim.losses import MultiHeadLoss
from flowsim.papers.xie2025 import exact, problems, spaces
from flowsim.papers.xie2025.conditions import MODELS, few_coordinates, heads_on_isotropic
from flowsim.papers.xie2025.setting import label_energy, same

_DRAWN = 8


SECTION = Section(
    "xie2025", *MODELS, setting=heads_on_isotropic, needs=few_coordinates, problems=problems.TASKS, spaces=spaces.TASKS
)


@SECTION.claim("appendix-a.4.positive", "appendix A.4")
def positive_mean(loss: MultiHeadLoss) -> Comparison:
    r"""$(u, v)^\top M (u, v) = \lVert u + v w_\star \rVert^2 + d v^2$, so that $M$ is positive semi-definite"""
    task, w = loss.task, loss.risk.prior_mean
    d = task.dimension
    z = np.random.default_rng(4).integers(-3, 4, size=(_DRAWN, d + 1)).astype(float)
    M = exact.floats(exact.moments(task).first)
    left = jnp.einsum("km,mn,kn->k", z, M, z)
    right = jnp.sum((z[:, :d] + z[:, d:] * w[None]) ** 2, axis=1) + d * z[:, d] ** 2
    return same(task, left, right, label_energy(task) * jnp.sum(z**2, axis=1))


@SECTION.claim("appendix-a.4.convex", "appendix A.4")
def convex_in_forms(loss: MultiHeadLoss) -> Comparison:
    """$L_i$ is convex in $M_i$

    Judged at drawn matrices, for i = 1. L_i is the mean of the square of an affine function of M_i. The Hessian 2 M of
    the proof has the wrong shape: it is 2 E[G x G], which (23) turns into 2 M x M.
    """
    known = exact.moments(loss.task)
    normals = np.random.default_rng(5).integers(-3, 4, size=(_DRAWN, 2, *known.first.shape))
    sides = []
    for one, other in (tuple(map(exact.rationals, pair)) for pair in normals):
        ends = (known.component(one, 0) + known.component(other, 0)) / 2
        sides.append([known.component((one + other) / 2, 0), ends])
    middle, ends = exact.floats(np.asarray(sides, dtype=object)).T
    return at_most(middle, ends)
