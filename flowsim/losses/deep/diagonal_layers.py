"""Exact losses of deep linear transformers whose matrices are diagonal in the eigenbasis of the covariance."""

import equinox as eqx
from jaxtyping import Array, Float

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.losses.base import MinimumKind
from flowsim.losses.deep.multi_layer import AbstractLayersLoss, best_eigenvalues, check_depth, residual_energy
from flowsim.losses.deep.residual_energy import WEIGHT, ResidualEnergy
from flowsim.models import DiagonalLayers
from flowsim.tasks import SpectralRegression


class DiagonalLayersLoss(AbstractLayersLoss):
    """The exact loss of `DiagonalLayers`, which equals `LoopedLoss` or `MultiLayerLoss` at the same matrices.

    Let lambda_j be the distinct eigenvalues of the covariance, m_j their multiplicities and a_ij the eigenvalues of
    A_i. The trace of a product of matrices A'_i is then the sum over j of m_j times the product of the
    a'_ij = lambda_j a_ij. The cost grows with the number of distinct eigenvalues and not with the dimension.

    **Arguments:**

    - task: a `SpectralRegression`.
    - depth: the number of loops or layers.
    - looped: whether all layers have the same matrix.
    - form: "exact" or "printed", as in `LoopedLoss`.

    **Raises:** `ValueError` naming the argument.
    """

    task: SpectralRegression
    energy: ResidualEnergy
    minimizer: DiagonalLayers
    minimum: Scalar
    depth: int = eqx.field(static=True)
    looped: bool = eqx.field(static=True)
    minimum_kind: MinimumKind = eqx.field(static=True)

    def __init__(self, task: SpectralRegression, depth: int, *, looped: bool = True, form: str = "exact"):
        if not isinstance(task, SpectralRegression):
            checks.refuse("task", "a SpectralRegression", f"got {task!r:.60}")
        check_depth("depth", depth, looped, symmetric=True)
        self.task, self.depth, self.looped = task, depth, looped
        self.energy = residual_energy(task, depth, looped=looped, form=form)
        values = best_eigenvalues(self.energy, task.eigenvalues, task.multiplicities, task.weights)
        self.minimizer = DiagonalLayers(values / task.eigenvalues[None, :], task)
        self.minimum = self(self.minimizer) if task.weights == "isotropic" else self.energy.constant
        self.minimum_kind = MinimumKind.NUMERICAL

    def degree(self) -> int:
        return 2 * self.depth

    def terms(self, model: DiagonalLayers) -> Float[Array, " terms"]:
        lam = self.task.eigenvalues
        weight = {WEIGHT: lam} if self.task.weights == "isotropic" else {}
        layers = lam[None, :] * model.eigenvalues(self.task)
        return self.energy.terms_on_diagonals(layers, self.task.multiplicities, weight)

    def directions_outside(self, model: DiagonalLayers) -> int:
        return 0
