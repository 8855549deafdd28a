"""The exact population loss of one linear attention layer with a fixed covariance."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.losses.arrowhead import Arrowhead, balanced_minimum
from flowsim.losses.base import AbstractPopulationLoss, MinimumKind
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.models import LinearAttention, TokenHeads
from flowsim.tasks import LinearRegression


class LinearAttentionLoss(AbstractPopulationLoss):
    """L = (1/2) E (yhat - <w, x_query>)^2 of `LinearAttention`, exact for all weights.

    With V = u_{-1} U11 + u12 u21^T the error splits into a part odd in w and a part even in w:

        odd = w^T (S V - I) x,     even = u12^T (S + x x^T / N) U11 x + u_{-1} (w^T S w) u21^T x,

    and L = (1/2) E odd^2 + (1/2) E even^2, since the two are uncorrelated. On u12 = u21 = 0 the even part is zero,
    and E odd^2 / 2 - min L is a square.

    **Arguments:** task: a `LinearRegression` with isotropic weights and without the options of test prompts.

    **Raises:** `ValueError` for another task.
    """

    task: LinearRegression
    risk: HeadRisk
    eigenvalues: Float[Array, " d"]
    eigenvectors: Float[Array, "d d"]
    minimum_kind: MinimumKind = eqx.field(static=True)

    def __init__(self, task: LinearRegression):
        if task.shifts:
            came = f"it has a {task.shifts[0]}, which is for test prompts"
            checks.refuse("task", "one of training, without label_noise, query_covariance, weight and prior_mean", came)
        if task.weights != "isotropic":
            checks.refuse("task", 'one with weights = "isotropic"', f'its weights are "{task.weights}"')
        self.task, self.risk = task, HeadRisk(task, query_token=True)
        self.eigenvalues, self.eigenvectors = jnp.linalg.eigh(task.covariance)
        self.minimum_kind = MinimumKind.EXACT

    @property
    def gamma_eigenvalues(self) -> Float[Array, " d"]:
        """gamma_i = (1 + 1/N) lambda_i + tr(Lambda)/N, in the order of `eigenvalues`."""
        return self.eigenvalues + (self.eigenvalues + jnp.sum(self.eigenvalues)) / self.task.context_length

    @property
    @eqx.filter_jit
    def minimum(self) -> Scalar:  # pyright: ignore[reportIncompatibleVariableOverride]
        """(tr Lambda - tr(Lambda^2 Gamma^-1))/2 = (1/2) sum lambda_i (lambda_i + tr Lambda)/(N gamma_i)."""
        lam = self.eigenvalues
        return jnp.sum(lam * (lam + jnp.sum(lam)) / (self.task.context_length * self.gamma_eigenvalues)) / 2

    def __call__(self, model: LinearAttention) -> Scalar:
        return self.minimum + self.excess(model)

    def excess(self, model: LinearAttention) -> Scalar:
        V = model.u_minus1 * model.U11 + jnp.outer(model.u12, model.u21)
        return self.odd_excess(V) + self.risk.even_energy(token_head(model)) / 2

    def odd_excess(self, V: Float[Array, "d d"]) -> Scalar:
        """(1/2) E odd^2 - min L = (1/2) |Gamma^{1/2} (Lambda^{1/2} V Lambda^{1/2} - Lambda Gamma^-1)|_F^2."""
        rotated = self.eigenvectors.T @ V @ self.eigenvectors
        lam, gam = self.eigenvalues, self.gamma_eigenvalues
        square = gam[:, None] * (jnp.sqrt(jnp.outer(lam, lam)) * rotated - jnp.diag(lam / gam)) ** 2
        return jnp.sum(square) / 2

    def least_model(self) -> LinearAttention:
        """The balanced global minimum."""
        return balanced_minimum(self.structure)

    def gradient(self, model: LinearAttention) -> LinearAttention:
        return jax.grad(self.excess)(model)

    def conserved(self, model: LinearAttention) -> Scalar:
        return model.balance

    @property
    def structure(self) -> Arrowhead:
        """The arrowhead of the flow on u12 = u21 = 0."""
        return _arrowhead(self)

    def arrowhead(self, model: LinearAttention) -> Arrowhead | None:
        """The arrowhead if u12 = u21 = 0 exactly, which the flow preserves."""
        return self.structure if on_the_arrow(model) else None


def even_energy(model: LinearAttention, covariance: Float[Array, "d d"], length: Scalar) -> Scalar:
    """E even^2 of `LinearAttentionLoss`, zero on u12 = u21 = 0: a cubic polynomial in Lambda."""
    return HeadRisk(LinearRegression(covariance, length), query_token=True).even_energy(token_head(model))


def token_head(model: LinearAttention) -> TokenHeads:
    """The layer as one head on tokens."""
    p = jnp.append(model.u12, model.u_minus1)
    return TokenHeads(p[None], jnp.concatenate([model.U11, model.u21[None]])[None], query_token=True)


def on_the_arrow(model: LinearAttention) -> bool:
    """Whether u12 = u21 = 0 exactly. False for traced weights."""
    return checks.is_concrete(model.u12) and not (np.any(model.u12) or np.any(model.u21))


@eqx.filter_jit
def _arrowhead(loss: LinearAttentionLoss) -> Arrowhead:
    lam = loss.eigenvalues
    return Arrowhead(jnp.outer(loss.gamma_eigenvalues * lam, lam), lam**2, loss.eigenvectors)
