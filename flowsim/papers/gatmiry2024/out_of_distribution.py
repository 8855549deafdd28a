"""The error of gatmiry2024's trained transformer on a prompt with another covariance, in Theorems 4.5 and A.13."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim._core.types import Matrix, Scalar
from flowsim.claims.claim import Comparison, at_most
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.papers.gatmiry2024 import landscape_problems as problems
from flowsim.papers.gatmiry2024.setting import delta, dimension_root

_BASES = 8
ZETAS = (0.01, 0.1, 0.5, 0.9, 0.99)
PROBLEMS = (problems.TEN_TO_THE_16, problems.SKEWED, problems.EASY)


def covariances(d: int, low: float, high: float) -> Float[Array, "B d d"]:
    """Matrices W with low I <= W <= high I.

    Their eigenvalues alternate between two of low, 1 and high. The bases are the axes, drawn ones, and the axes with
    the first and the last rotated to lie halfway between them. The last two are W = low I and W = high I.
    """
    rng = np.random.default_rng(0)
    bases = [np.eye(d), *(np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(_BASES))]
    if d > 1:
        halfway = np.eye(d)
        halfway[np.ix_([0, d - 1], [0, d - 1])] = np.array([[1.0, 1.0], [1.0, -1.0]]) / np.sqrt(2)
        bases.append(halfway)
    spectra = [np.resize(values, d) for values in ((low, 1.0), (1.0, low), (1.0, high), (low, high))]
    found = [(V * s) @ V.T for V in bases for s in spectra]
    return jnp.asarray(np.stack([*found, low * np.eye(d), high * np.eye(d)]))


def _largest_error(loss: LoopedLoss, W: Matrix, left: Matrix, right: Matrix) -> Scalar:
    """The largest (prediction - w^T x)^2 over |left^-1 w| = |right^-1 x| = 1, where the prompt's (1/n) X X^T is
    Sigma*^{1/2} W Sigma*^{1/2}: the error is w^T (I - (1/n) X X^T A_opt)^L x.
    """
    step = jnp.eye(W.shape[0]) - loss.root @ W @ loss.root @ loss.minimizer.A
    return jnp.linalg.norm(left.T @ jnp.linalg.matrix_power(step, loss.loops) @ right, ord=2) ** 2


def bounded(loss: LoopedLoss, low: Callable[[float], float], *, mean: bool, swapped: bool) -> Comparison:
    """The largest error over prompts with low(zeta) Sigma* <= Sigma_out <= (2 - zeta) Sigma* against the bound.

    mean: whether Sigma_out is (1/n) X X^T instead of X X^T; swapped: whether the norms of the bound are |w|_{Sigma*}
    and |x|_{Sigma*^-1} instead of |w|_{Sigma*^-1} and |x|_{Sigma*}.
    """
    inverse_root = jnp.linalg.inv(loss.root)
    left, right = (inverse_root, loss.root) if swapped else (loss.root, inverse_root)
    x = 16.0 * delta(loss) * dimension_root(loss)
    shrink = 1.0 if mean else 1 / loss.task.context_length
    parts = []
    for zeta in ZETAS:
        W = shrink * covariances(loss.task.dimension, low(zeta), 2 - zeta)
        errors = jax.lax.map(lambda W: _largest_error(loss, W, left, right), W)
        parts.append(at_most(errors, (1 + x) ** 2 * (1 + x - zeta) ** (2 * loss.loops)))
    values = jnp.linalg.eigvalsh(loss.task.covariance)
    return rounded(joined(parts), float(loss.task.dimension) * values[-1] / values[0])


@eqx.filter_jit
def _ratios(loss: LoopedLoss) -> dict[str, Array]:
    readings = {
        "printed": (False, False),
        "mean_alone": (True, False),
        "norms_alone": (False, True),
        "both": (True, True),
    }
    ratios = {}
    for name, (mean, swapped) in readings.items():
        sides = bounded(loss, lambda zeta: zeta, mean=mean, swapped=swapped)
        ratios[f"error_over_bound_{name}"] = jnp.max(1.0 - sides.slack / sides.size)
    return ratios


def error_constants(loss: LoopedLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The largest ratio of error to bound: as printed in (30), with each of the two corrections, and with both."""
    return _ratios(loss)
