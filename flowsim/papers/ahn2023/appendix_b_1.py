"""ahn2023's appendix B.1: the proof of Theorem 3.

The matrices carry the sign of `MultiLayerLoss`, A_i = -(the paper's), which changes no statement here.
"""

import jax.numpy as jnp

from flowsim.claims.claim import Comparison, Relation, at_least, at_most
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer import Loss, cancellation, drawn_matrices, losses_at
from flowsim.papers.ahn2023.multi_layer_problems import ISOTROPIC
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights, two_isotropic_layers
from flowsim.papers.paper import Section

SECTION = Section("ahn2023", *LAYERED)


@SECTION.claim(
    "theorem-3.proof",
    "proof of Theorem 3",
    "f(D_0, diag(A_1)) <= f(D_0, A_1) for diagonal D_0, and the same with the layers exchanged",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ISOTROPIC,
    spaces=spaces.ISOTROPIC_LAYERS,
    hypotheses=two_isotropic_layers,
    note="At drawn matrices.",
)
def theorem_3_proof(loss: Loss, trajectory: Trajectory) -> Comparison:
    """f(D_0, diag(A_1)) <= f(D_0, A_1) and f(diag(A_0), D_1) <= f(A_0, D_1), at drawn matrices."""
    kept = jnp.eye(loss.task.dimension)[None, None]
    matrices, comparisons = drawn_matrices(loss, 1), []
    for fixed in (0, 1):
        general = matrices.at[:, fixed].multiply(kept[0])
        values = [losses_at(loss, primed) for primed in (matrices * kept, general)]
        comparisons.append(at_most(*values))
    return rounded(joined(comparisons), cancellation(loss))


@SECTION.claim(
    "theorem-3.convex",
    "proof of Theorem 3",
    "f is convex in A_1, and in A_0, the other one fixed",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ISOTROPIC,
    spaces=spaces.ISOTROPIC_LAYERS,
    hypotheses=two_isotropic_layers,
    note="Along drawn directions at drawn matrices.",
)
def theorem_3_convex(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The second derivative of f in one matrix along a drawn direction, the other one held, against 0."""
    matrices, directions, comparisons = drawn_matrices(loss, 1), drawn_matrices(loss, 2), []
    for moved in range(loss.layers):
        step = jnp.zeros_like(directions).at[:, moved].set(directions[:, moved])
        ahead, here, behind = (losses_at(loss, matrices + sign * step) for sign in (1.0, 0.0, -1.0))
        # f is quadratic in each matrix, so that the second difference is the second derivative.
        comparisons.append(at_least(ahead - 2 * here + behind, 0.0, size=ahead + 2 * here + behind))
    return rounded(joined(comparisons), cancellation(loss))
