"""Both sides of what gatmiry2024 says of one prompt: gradient descent by a looped transformer, and the error of the
trained one on a prompt of another covariance.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim._core.types import Matrix
from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.hypotheses import can_be_drawn
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.models import LoopedAttention
from flowsim.papers.gatmiry2024.setting import Scalar, delta, dimension_root, of_loss
from flowsim.tasks import Prompt

_PROMPTS = 32
_BASES = 8
_ZETAS = (0.01, 0.1, 0.5, 0.9, 0.99)


# Proposition 3.1


@jax.jit
def _steps(prompts: Prompt, A: Float[Array, "P d d"], steps: Array, size: Scalar) -> Float[Array, " P"]:
    """w_L^T x_q with w <- w - (s/n) A^T grad |X^T w - y|^2 from w = 0, the gradient by JAX."""

    def one(prompt, A):
        def step(_, w):
            slope = jax.grad(lambda w: jnp.sum((prompt.inputs @ w - prompt.labels) ** 2))(w)
            return w - size / prompt.inputs.shape[0] * A.T @ slope

        return jax.lax.fori_loop(0, steps, step, jnp.zeros_like(prompt.query)) @ prompt.query

    return jax.vmap(one)(prompts, A)


def _descends(loss: LoopedLoss, size: float) -> Comparison:
    """The literal transformer of (2)-(5) against gradient descent, at drawn A without symmetry."""
    if not can_be_drawn(loss.task):
        return equal(jnp.zeros(1), 0.0, 1.0)
    keys = jax.random.split(jax.random.key(0), _PROMPTS)
    prompts = jax.vmap(lambda key: loss.task.sample(key)[0])(keys)
    A = jax.random.normal(jax.random.key(1), (_PROMPTS, loss.task.dimension, loss.task.dimension)) / 4
    model = lambda A, prompt: LoopedAttention(A, loops=loss.loops)(prompt)
    predicted = jax.jit(jax.vmap(model))(A, prompts)
    descended = _steps(prompts, A, jnp.asarray(loss.loops), jnp.asarray(size))
    return equal(predicted, descended, jnp.abs(predicted) + jnp.max(jnp.abs(predicted)))


def implements_descent(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """The prediction against L steps of size 1/(2n) on |X^T w - y|^2, that is 1/n on its half."""
    return _descends(loss, 0.5)


def implements_printed_steps(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """The prediction against L steps of the printed size 1/n on |X^T w - y|^2."""
    return _descends(loss, 1.0)


# Theorems 4.5 and A.13


def _covariances(d: int, low: float, high: float) -> Float[Array, "B d d"]:
    """W with low I <= W <= high I: both ends and 1 as eigenvalues in turn, along the axes, halfway between the first
    and the last, and in drawn bases; then W = low I and W = high I.
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


def _bounded(loss: LoopedLoss, low: Callable[[float], float], *, mean: bool, swapped: bool) -> Comparison:
    """The largest error of prompts with low(zeta) Sigma* <= Sigma_out <= (2 - zeta) Sigma* against the bound.

    mean: whether Sigma_out is (1/n) X X^T and not X X^T; swapped: whether the norms of the bound are |w|_{Sigma*} and
    |x|_{Sigma*^-1}, and not |w|_{Sigma*^-1} and |x|_{Sigma*}.
    """
    inverse_root = jnp.linalg.inv(loss.root)
    left, right = (inverse_root, loss.root) if swapped else (loss.root, inverse_root)
    x = 16.0 * delta(loss) * dimension_root(loss)
    shrink = 1.0 if mean else 1 / loss.task.context_length
    parts = []
    for zeta in _ZETAS:
        W = shrink * _covariances(loss.task.dimension, low(zeta), 2 - zeta)
        errors = jax.lax.map(lambda W: _largest_error(loss, W, left, right), W)
        parts.append(at_most(errors, (1 + x) ** 2 * (1 + x - zeta) ** (2 * loss.loops)))
    values = jnp.linalg.eigvalsh(loss.task.covariance)
    return rounded(joined(parts), float(loss.task.dimension) * values[-1] / values[0])


@of_loss
def printed_error(loss: LoopedLoss) -> Comparison:
    """As printed in (10): Sigma* <= X X^T <= (2 - zeta) Sigma*, |x|_{Sigma*} and |w|_{Sigma*^-1}."""
    return _bounded(loss, lambda zeta: 1.0, mean=False, swapped=False)


@of_loss
def appendix_error(loss: LoopedLoss) -> Comparison:
    """As printed in (30): zeta Sigma* <= X X^T <= (2 - zeta) Sigma*, |x|_{Sigma*} and |w|_{Sigma*^-1}."""
    return _bounded(loss, lambda zeta: zeta, mean=False, swapped=False)


@of_loss
def error(loss: LoopedLoss) -> Comparison:
    """With Sigma* <= (1/n) X X^T <= (2 - zeta) Sigma*, |w|_{Sigma*} and |x|_{Sigma*^-1}."""
    return _bounded(loss, lambda zeta: 1.0, mean=True, swapped=True)


@of_loss
def error_in_printed_norms(loss: LoopedLoss) -> Comparison:
    """With Sigma* <= (1/n) X X^T <= (2 - zeta) Sigma*, |x|_{Sigma*} and |w|_{Sigma*^-1}."""
    return _bounded(loss, lambda zeta: 1.0, mean=True, swapped=False)


@of_loss
def error_from_below(loss: LoopedLoss) -> Comparison:
    """With zeta Sigma* <= (1/n) X X^T <= (2 - zeta) Sigma*, |w|_{Sigma*} and |x|_{Sigma*^-1}."""
    return _bounded(loss, lambda zeta: zeta, mean=True, swapped=True)


# (31) and what it follows from


def _through_optimum(loss: LoopedLoss, covariance: Matrix) -> Float[Array, " d"]:
    """The eigenvalues of A_opt^{1/2} C A_opt^{1/2}."""
    values, vectors = jnp.linalg.eigh(loss.minimizer.A)
    root = (vectors * jnp.sqrt(values)[None, :]) @ vectors.T
    return jnp.linalg.eigvalsh(root @ covariance @ root)


@of_loss
def precision_bounded(loss: LoopedLoss) -> Comparison:
    """(1 - x) A_opt^-1 <= Sigma* <= (1 + x) A_opt^-1 with x = 16 delta d^{1/(2L)}, both halves in one number."""
    relative = _through_optimum(loss, loss.task.covariance)
    bound = 16.0 * delta(loss) * dimension_root(loss)
    finite = jnp.isfinite(loss.task.context_length)
    return at_most(jnp.max(jnp.abs(relative - 1))[None], bound[None], promised=finite)


@of_loss
def residual_bounded(loss: LoopedLoss) -> Comparison:
    """|I - A_opt^{1/2} Sigma_out A_opt^{1/2}| <= 1 + x - zeta for zeta Sigma* <= Sigma_out <= (2 - zeta) Sigma*."""
    x, parts = 16.0 * delta(loss) * dimension_root(loss), []
    for zeta in _ZETAS:
        W = _covariances(loss.task.dimension, zeta, 2 - zeta)
        relative = jax.vmap(lambda W: _through_optimum(loss, loss.root @ W @ loss.root))(W)
        parts.append(at_most(jnp.max(jnp.abs(1 - relative), axis=1), jnp.broadcast_to(1 + x - zeta, W.shape[:1])))
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
        sides = _bounded(loss, lambda zeta: zeta, mean=mean, swapped=swapped)
        ratios[f"error_over_bound_{name}"] = jnp.max(1.0 - sides.slack / sides.size)
    return ratios


def error_constants(loss: LoopedLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The largest ratio of error and bound with each of the two corrections to (30) alone, and with both."""
    return _ratios(loss)
