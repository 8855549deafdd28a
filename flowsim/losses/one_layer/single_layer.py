"""The exact population loss of one linear attention layer with a fixed covariance."""

import abc

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar
from jaxtyping import Array, Float

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.losses.arrowhead import AbstractArrowhead, Arrowhead, balanced_minimum
from flowsim.losses.base import AbstractPopulationLoss, MinimumKind
from flowsim.models import LinearAttention
from flowsim.tasks import LinearRegression, RandomCovarianceRegression
from flowsim.tasks.regression import check_regression


class AbstractLinearAttentionLoss(AbstractPopulationLoss):
    """The loss L = (1/2) E (yhat - <w, x_query>)^2 of `LinearAttention`, exact for all weights.

    Let x be the query, S the sample covariance of the context and V = u_{-1} U11 + u12 u21^T. The error is the sum
    of a part that is odd in w and a part that is even in w,

        odd = w^T (S V - I) x,     even = u12^T (S + x x^T / N) U11 x + u_{-1} (w^T S w) u21^T x.

    These parts are uncorrelated, so L = (1/2) E odd^2 + (1/2) E even^2. The flow preserves u12 = u21 = 0, where the
    even part is zero. For all weights (1/2) E odd^2 - min L is a sum of squares: the excess at U11 = V, u_{-1} = 1
    and u12 = u21 = 0.

    **Fields:**

    - task: the law of the prompts.
    - structure: the arrowhead of the flow with u12 = u21 = 0. Its method ``excess`` computes this sum of squares.
    """

    task: AbstractVar[LinearRegression | RandomCovarianceRegression]
    structure: AbstractVar[AbstractArrowhead]

    @abc.abstractmethod
    def parts(self, model: LinearAttention) -> tuple[Scalar, Scalar]:
        """The numbers (1/2) E odd^2 - min L and E even^2 for the odd and the even part of a model's error."""

    def __call__(self, model: LinearAttention) -> Scalar:
        return self.minimum + self.excess(model)

    @eqx.filter_jit
    def excess(self, model: LinearAttention) -> Scalar:
        self._check(model)
        odd, even = self.parts(model)
        return odd + even / 2

    def conserved(self, model: LinearAttention) -> Scalar:
        return model.balance

    def least_model(self) -> LinearAttention:
        """The global minimum with u_{-1} = |U11|_F; see `balanced_minimum`."""
        return balanced_minimum(self.structure)

    def arrowhead(self, model: LinearAttention) -> AbstractArrowhead | None:
        """The arrowhead of the flow if u12 = u21 = 0 exactly, else None. It is None for traced weights."""
        self._check(model)
        on_it = checks.is_concrete(model.u12) and not (np.any(np.asarray(model.u12)) or np.any(np.asarray(model.u21)))
        return self.structure if on_it else None

    def _check(self, model: LinearAttention) -> None:
        d = self.task.dimension
        if model.U11.shape != (d, d):
            checks.refuse("model", f"of dimension {d}, as the prompts of the task", f"U11 is {model.U11.shape}")


class LinearAttentionLoss(AbstractLinearAttentionLoss):
    """The loss of `LinearAttention` for prompts with one covariance Lambda.

    Let Gamma = (1 + 1/N) Lambda + (tr Lambda/N) I. The odd part of `AbstractLinearAttentionLoss` is
    (1/2) E odd^2 - min L = (1/2) |Gamma^{1/2} (Lambda^{1/2} V Lambda^{1/2} - Lambda Gamma^-1)|_F^2.

    **Arguments:** task: a `LinearRegression` with isotropic weights, whose ``shifts`` are empty.

    **Fields:** eigenvalues, eigenvectors: of Lambda, (d,) and (d, d) with eigenvectors as columns.

    **Raises:** `ValueError` for another task.
    """

    task: LinearRegression
    eigenvalues: Float[Array, " d"]
    eigenvectors: Float[Array, "d d"]
    minimum_kind: MinimumKind = eqx.field(static=True)

    def __init__(self, task: LinearRegression):
        check_regression(task, isotropic=True)
        self.task = task
        self.eigenvalues, self.eigenvectors = jnp.linalg.eigh(task.covariance)
        self.minimum_kind = MinimumKind.EXACT

    @property
    def gamma_eigenvalues(self) -> Float[Array, " d"]:
        """The eigenvalues gamma_i of Gamma, in the order of `eigenvalues`."""
        return gamma_eigenvalues(self.eigenvalues, self.task.context_length)

    @property
    @eqx.filter_jit
    def minimum(self) -> Scalar:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The minimum (tr Lambda - tr(Lambda^2 Gamma^-1))/2."""
        return least_loss(self.eigenvalues, self.task.context_length)

    @property
    @eqx.filter_jit
    def structure(self) -> Arrowhead:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The arrowhead in the eigenbasis of Lambda, with a_ij = gamma_i lambda_i lambda_j and b_i = lambda_i^2."""
        lam = self.eigenvalues
        return Arrowhead(jnp.outer(self.gamma_eigenvalues * lam, lam), lam**2, self.eigenvectors)

    def parts(self, model: LinearAttention, query_token: bool = True) -> tuple[Scalar, Scalar]:
        """The numbers (1/2) E odd^2 - min L and E even^2 for the odd and the even part of a model's error.

        **Arguments:** model: the weights; query_token: whether the layer attends to the query's token.
        """
        turn = self.eigenvectors.T
        inside = LinearAttention(turn @ model.U11 @ turn.T, model.u_minus1, turn @ model.u12, turn @ model.u21)
        V = inside.u_minus1 * inside.U11 + jnp.outer(inside.u12, inside.u21)
        even = _even_energy(self.task, self.eigenvalues, inside, query_token)
        return self.structure.excess((V, jnp.ones(()))), even


def gamma_eigenvalues(eigenvalues: Float[Array, " d"], length: Scalar) -> Float[Array, " d"]:
    """The eigenvalues gamma_i = (1 + 1/N) lambda_i + tr(Lambda)/N of Gamma, for a context of N examples."""
    return eigenvalues + (eigenvalues + jnp.sum(eigenvalues)) / length


def least_loss(lam: Float[Array, " d"], length: Scalar) -> Scalar:
    """The minimum (1/2) sum_i lambda_i (lambda_i + tr Lambda)/(N gamma_i) of `LinearAttentionLoss`."""
    return jnp.sum(lam * (lam + jnp.sum(lam)) / (length * gamma_eigenvalues(lam, length))) / 2


def _even_energy(task: LinearRegression, lam: Float[Array, " d"], model: LinearAttention, query_token: bool) -> Scalar:
    """The mean square E even^2 of the even part of the error for Lambda = diag(lam), in O(d^2) operations by the
    formulas of `HeadRisk`.

    Let b = (p, u_{-1}) with p = Lambda^{1/2} u12, and let B = Lambda^{1/2} U11 Lambda^{1/2}. Let a_i be the columns
    of the matrix B with the row (Lambda^{1/2} u21)^T below it. The d quadratic forms of `HeadRisk` are the
    symmetric parts of b a_i^T. Its cubic form is the symmetric part of the tensor product of p and (B + B^T)/2.

    **Arguments:** query_token: whether the layer attends to the query's token, so that there is a cubic form.
    """
    root, n, trace, square = jnp.sqrt(lam), 1 / task.context_length, jnp.sum(lam), jnp.sum(lam**2)
    p, A, pi = root * model.u12, root[:, None] * model.U11 * root[None, :], model.u_minus1 * root * model.u21
    along, length = p @ A, p @ p
    mean = along + trace * pi
    forms = (length * jnp.sum(A**2) + jnp.sum(along**2)) / 2 + 2 * pi @ ((lam * p) @ A) + square * jnp.sum(pi**2)
    weight = 2 * square + 2 * n * (trace**2 + square)
    energy = jnp.sum(mean**2) + 2 * n * forms + weight * jnp.sum(pi**2)
    if not query_token:
        return energy
    R = (A + A.T) / 2
    turned = R @ p
    traces = (jnp.trace(A) * p + 2 * turned) / 3
    cubic = 2 * (length * jnp.sum(R**2) + 2 * jnp.sum(turned**2)) + 9 * jnp.sum(traces**2)
    return energy + 6 * n * mean @ traces + task.inverse_square_length * cubic
