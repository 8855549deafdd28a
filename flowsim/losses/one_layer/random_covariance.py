"""The exact population loss of one linear attention layer on prompts with random covariances."""

import equinox as eqx
import jax.numpy as jnp

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.losses.arrowhead import AbstractArrowhead, Arrowhead, OperatorArrowhead
from flowsim.losses.base import MinimumKind
from flowsim.losses.one_layer.single_layer import AbstractLinearAttentionLoss, LinearAttentionLoss
from flowsim.models import LinearAttention
from flowsim.tasks import LinearRegression, RandomCovarianceRegression
from flowsim.tasks.covariance_laws import AbstractCovarianceLaw, DiagonalLaw


class RandomCovarianceLoss(AbstractLinearAttentionLoss):
    """The loss of `LinearAttention` if every prompt has its own covariance Lambda_tau, drawn from a law.

    It is the mean over Lambda_tau of `LinearAttentionLoss`, which is a polynomial of degree 3 in Lambda_tau.

    **Arguments:** task: a `RandomCovarianceRegression`.

    **Fields:** operator_energy: ``task.law.operator_energy`` at the context length.

    **Raises:** `ValueError` for another task.
    """

    task: RandomCovarianceRegression
    structure: AbstractArrowhead
    minimum: Scalar
    operator_energy: Scalar
    minimum_kind: MinimumKind = eqx.field(static=True)

    def __init__(self, task: RandomCovarianceRegression):
        if not isinstance(task, RandomCovarianceRegression):
            checks.refuse("task", "a RandomCovarianceRegression", f"got {task!r:.60}")
        law, N = task.law, task.context_length
        self.task = task
        self.structure = independent(law, N) if isinstance(law, DiagonalLaw) else _operator(law, N)
        # The maximum corrects rounding at N = infinity.
        energy = law.expectation(jnp.trace)
        self.minimum = jnp.maximum(energy - jnp.sum(self.structure.drive * self.structure.target), 0.0) / 2
        self.operator_energy = law.operator_energy(N)
        self.minimum_kind = MinimumKind.NUMERICAL if law.replicates() else MinimumKind.EXACT

    def parts(self, model: LinearAttention) -> tuple[Scalar, Scalar]:
        V, N = model.u_minus1 * model.U11 + jnp.outer(model.u12, model.u21), self.task.context_length
        given = lambda Lambda: LinearAttentionLoss(LinearRegression(Lambda, N))
        even = self.task.law.expectation(lambda Lambda: given(Lambda).parts(model)[1])
        return self.structure.excess((self.structure.coordinates(V), jnp.ones(()))), even

    def replicates(self) -> tuple["RandomCovarianceLoss", ...]:
        N = self.task.context_length
        return tuple(RandomCovarianceLoss(RandomCovarianceRegression(law, N)) for law in self.task.law.replicates())


@eqx.filter_jit
def independent(law: DiagonalLaw, context_length: Scalar) -> Arrowhead:
    """The arrowhead of diagonal covariances with independent entries.

    Its coefficients are a_ij = zeta_ij and b_i = xi_i. Let n = 1/N, and let m1_i, m2_i, m3_i be the first three
    moments of the i-th diagonal entry. Then

        zeta_ij = (1 + n) m2_i m1_j + n (m2_i m1_j + m1_i m2_j + m1_i m1_j sum_{k != i, j} m1_k)   for i != j,
        zeta_ii = gamma_i = (1 + n) m3_i + n (m3_i + m2_i sum_{k != i} m1_k),     xi_i = m2_i.
    """
    first, second, third = law.moments()
    n, total = 1 / context_length, jnp.sum(first)
    square_first, first_first = jnp.outer(second, first), jnp.outer(first, first)
    others = total - first[:, None] - first[None, :]
    zeta = (1 + n) * square_first + n * (square_first + square_first.T + first_first * others)
    gamma = (1 + n) * third + n * (third + second * (total - first))
    on_diagonal = jnp.eye(first.size, dtype=bool)
    return Arrowhead(jnp.where(on_diagonal, jnp.diag(gamma), zeta), second, jnp.eye(first.size))


@eqx.filter_jit
def _operator(law: AbstractCovarianceLaw, context_length: Scalar) -> OperatorArrowhead:
    """The arrowhead of any law of covariances, in the eigenbasis of U -> E[Gamma_tau Lambda_tau U Lambda_tau]."""
    d = law.dimension

    def of_one(Lambda):
        gamma = Lambda + (Lambda + jnp.trace(Lambda) * jnp.eye(d)) / context_length
        return jnp.kron(gamma @ Lambda, Lambda), Lambda @ Lambda

    operator, square = law.expectation(of_one)
    values, vectors = jnp.linalg.eigh((operator + operator.T) / 2)
    # U is zero off the diagonal, so the curvature there has no effect.
    curvature = jnp.where(jnp.eye(d * d, dtype=bool), jnp.diag(values), values[-1])
    return OperatorArrowhead(curvature, vectors.T @ square.reshape(-1), vectors)
