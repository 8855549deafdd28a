"""The loss of one layer of linear attention along one flow, in d + 2 numbers, for large dimensions d."""

from collections.abc import Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.losses.base import AbstractPopulationLoss, MinimumKind
from flowsim.losses.one_layer.single_layer import gamma_eigenvalues, least_loss
from flowsim.losses.reduction import BLOCK, AbstractReducedLayer, Point, Reduction
from flowsim.models import SpectralAttention
from flowsim.moments.decays import DecaySums
from flowsim.tasks import SpectralRegression


class _Spectrum(AbstractReducedLayer):
    reduction: Reduction
    start: Point

    def point(self, model: SpectralAttention) -> Point:
        return Point(model.diagonal, model.u_minus1, model.clock)

    def model(self, point: Point) -> SpectralAttention:
        return SpectralAttention(point.shaft, point.u, point.clock)


class SpectralAttentionLoss(AbstractPopulationLoss):
    """The loss of `LinearAttention` along its flow from one balanced start, without any matrix of size d x d.

    The flow starts at U11 = sigma Theta Theta^T and u_{-1} = sigma. In the eigenbasis of Lambda the entries of U11
    off the diagonal are U_ij(t) = U_ij(0) exp(-gamma_i lambda_i lambda_j s(t)), with the clock s = int u_{-1}^2 dt.
    They affect the diagonal and u_{-1} only through sums over all of them. A step of the flow costs O(d)
    operations. The setup costs O(d^2 r) operations and little memory.

    `gradient_flow` accepts only the model ``start``. Use ``weights(model, rows)`` for rows of U11 at any point of
    the flow.

    **Arguments:**

    - task: a `SpectralRegression` with isotropic weights. Every eigenvalue of Lambda must have multiplicity 1.
    - scale: sigma > 0.
    - theta: a (d, r) matrix M in the eigenbasis of Lambda. Theta Theta^T is M M^T/|M M^T|_F, as in
      `initialization.balanced`.

    **Raises:** `ValueError` naming the argument.
    """

    task: SpectralRegression
    factor: Float[Array, "d r"]
    layer: _Spectrum
    minimum_kind: MinimumKind = eqx.field(static=True)

    def __init__(self, task: SpectralRegression, scale: ArrayLike, theta: ArrayLike | Iterable):
        if task.weights != "isotropic":
            checks.refuse("task", 'one with weights = "isotropic"', f'its weights are "{task.weights}"')
        d = task.eigenvalues.size
        if task.dimension != d:
            came = f"it has {d} eigenvalues in dimension {task.dimension}"
            checks.refuse("task", "one with every eigenvalue once", came)
        sigma = float(checks.positive("scale", scale))
        M = np.asarray(checks.as_array("theta", theta, (d, None)))
        M = M / (np.max(np.abs(M), initial=0.0) or 1.0)
        # |M M^T|_F = |M^T M|_F, and M^T M is small.
        size = np.linalg.norm(M.T @ M)
        if size == 0:
            checks.refuse("theta", "not zero", "every entry is")
        self.task, self.factor = task, jax.device_put(np.sqrt(sigma / size) * M)
        self.minimum_kind = MinimumKind.EXACT
        lam, factor = np.asarray(task.eigenvalues), np.asarray(self.factor)
        stiffness = np.asarray(self.gamma_eigenvalues) * lam
        least, largest = float(stiffness.min() * lam.min()), float(stiffness.max() * lam.max())
        sums = DecaySums.compressed(_blocks(stiffness, lam, factor), least, largest)
        of_diagonal = (jax.device_put(stiffness * lam), jax.device_put(lam**2))
        reduction = Reduction(sums, *of_diagonal, jnp.asarray(largest), jnp.asarray(least))
        start = Point(jax.device_put(np.sum(factor**2, axis=1)), jnp.asarray(sigma), jnp.zeros(()))
        self.layer = _Spectrum(reduction=reduction, start=start)

    @property
    def gamma_eigenvalues(self) -> Float[Array, " d"]:
        """The eigenvalues gamma_i of Gamma = (1 + 1/N) Lambda + (tr Lambda/N) I, in the order of the eigenvalues of
        the task.
        """
        return gamma_eigenvalues(self.task.eigenvalues, self.task.context_length)

    @property
    def minimum(self) -> Scalar:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The minimum over all weights, as for `LinearAttentionLoss`."""
        return least_loss(self.task.eigenvalues, self.task.context_length)

    @property
    def start(self) -> SpectralAttention:
        """The model at which the flow begins."""
        return self.layer.model(self.layer.start)

    def __call__(self, model: SpectralAttention) -> Scalar:
        return self.minimum + self.excess(model)

    def excess(self, model: SpectralAttention) -> Scalar:
        return self.layer.reduction.seen(self.layer.point(model)).excess

    def gradient(self, model: SpectralAttention) -> SpectralAttention:
        """Not available: the clock of a model is not a weight and has no gradient.

        **Raises:** `ValueError`, always.
        """
        checks.refuse("loss", "one of all weights, such as LinearAttentionLoss", "it has no gradient")

    def conserved(self, model: SpectralAttention) -> Scalar:
        """The conserved quantity u_{-1}^2 - |U11|_F^2."""
        squares = self.layer.reduction.sums(model.clock[None])[0, 0]
        return model.u_minus1**2 - jnp.sum(model.diagonal**2) - squares

    def least_model(self) -> None:
        return None

    def reduced(self, model: SpectralAttention) -> AbstractReducedLayer:
        return self.layer

    def weights(self, model: SpectralAttention, rows: slice = slice(None)) -> Float[Array, "rows d"]:
        """The selected rows of U11 in the eigenbasis of Lambda, at a model on the flow. By default all rows."""
        lam, place = self.task.eigenvalues, jnp.arange(self.task.dimension)
        decay = jnp.exp(-jnp.outer((self.gamma_eigenvalues * lam)[rows], lam) * model.clock)
        on_diagonal = place[rows, None] == place[None, :]
        return jnp.where(on_diagonal, model.diagonal[None, :], self.factor[rows] @ self.factor.T * decay)


def _blocks(stiffness: np.ndarray, lam: np.ndarray, factor: np.ndarray):
    """Yield pairs (a_ij, U_ij(0)^2), flattened, for successive blocks of rows i. U_ii(0)^2 is replaced by zero.

    **Arguments:** stiffness: gamma_i lambda_i; lam: lambda_j; factor: F with U(0) = F F^T. All are in the
    eigenbasis.
    """
    d = lam.size
    count = max(1, BLOCK // d)
    for first in range(0, d, count):
        rows = slice(first, first + count)
        squares = (factor[rows] @ factor.T) ** 2
        np.fill_diagonal(squares[:, first:], 0.0)
        yield np.multiply.outer(stiffness[rows], lam).ravel(), squares.ravel()
