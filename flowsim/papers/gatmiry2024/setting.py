"""What gatmiry2024's statements about the loss of looped transformers share: setting, symbols, points and bounds.

The loss is a function of a symmetric matrix A at u = 0, or of the eigenvalues of A. n is the context length, d the
dimension, L the number of loops and Sigma* the covariance. The minimiser is A_opt = c Sigma*^-1. Theorems 3.2 and A.8
bound its distance from Sigma*^-1. Gradient dominance is the inequality |grad L|^2 >= constant L^{(2L-1)/L} where the
loss is above a threshold.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowsim._core import checks
from flowsim._core.types import Scalar, Series
from flowsim.claims.claim import Comparison, at_least, at_most
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import Conditions, Hypothesis, agrees, hypothesis, unmet
from flowsim.claims.statements import dominance_floor, gradient_dominance, sharp_dominance
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss, DiagonalLayersLoss, LoopedLoss
from flowsim.models import DiagonalLayers, LoopedAttention, ScalarLoop

Loss = LoopedLoss | DiagonalLayersLoss

MODELS = (LoopedAttention, ScalarLoop, DiagonalLayers)
CLOSE = 0.1  # our reading of "close" and "similar", for which the paper gives no number: within 10%

_DISTANCES = np.concatenate([np.geomspace(1e-4, 1e2, 13), -np.geomspace(1e-4, 1e2, 13)])
_FEWEST_DIGITS = 6.0
_EPSILON = float(np.finfo(np.float64).eps)


class Points(NamedTuple):
    """Values at each of T parameters A.

    The fields are the loss, |grad L|^2, |A_opt^{-1/2} A A_opt^{-1/2} - I|_2, and the conditioning: the relative
    rounding error of the loss divided by the machine epsilon.
    """

    loss: Series
    grad_norm_sq: Series
    deviation: Series
    conditioning: Series


def approximate(values: ArrayLike | list[float]) -> Array:
    """The values as an array that no certificate can contain.

    The values come from a quadrature, a search or random numbers of NumPy, which cannot be traced.

    **Raises:** `jax.errors.TracerArrayConversionError` in a trace.
    """
    found: Any = jnp.asarray(values)
    if not checks.is_concrete(found):
        raise jax.errors.TracerArrayConversionError(found)
    return found


def looped(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """The unmet hypothesis, or None in the paper's setting: one matrix for all layers and w ~ N(0, Sigma*^-1)."""
    if not isinstance(loss, LoopedLoss | DiagonalLayersLoss) or (
        isinstance(loss, DiagonalLayersLoss) and not loss.looped
    ):
        return unmet("a looped transformer")
    inverse = loss.task.weights == "inverse-covariance"
    return None if inverse else unmet("w ~ N(0, Sigma*^-1)")


def matrices(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """The unmet hypothesis, or None if the loss is `looped` and a function of matrices, not only of eigenvalues."""
    return looped(loss) or (None if isinstance(loss, LoopedLoss) else unmet("a loss of matrices"))


def loops(loss: Loss) -> int:
    """L, the number of loops."""
    return loss.loops if isinstance(loss, LoopedLoss) else loss.depth


def dominance_power(loss: Loss) -> float:
    """The power (2L - 1)/L of the loss in gradient dominance."""
    return (2 * loops(loss) - 1) / loops(loss)


def dimension_loss(loss: Loss) -> float:
    """The factor d^{-(L-1)/L} in Hoelder's sum_i |x_i|^{4L-2} >= d^{-(L-1)/L} (sum_i |x_i|^{2L})^{(2L-1)/L}."""
    return float(loss.task.dimension) ** (-(loops(loss) - 1) / loops(loss))


def dominance_factor(loss: Loss) -> Scalar:
    """lambda_d^2 d^{-(L-1)/L}, the factor that Sigma* and Hoelder's inequality add to the lower bound on |grad L|^2."""
    return least_eigenvalue(loss) ** 2 * dimension_loss(loss)


def delta_power(loss: Loss) -> Scalar:
    """delta^{2L} = 8 L d / sqrt(n)."""
    return 8.0 * loops(loss) * loss.task.dimension / jnp.sqrt(loss.task.context_length)


def delta(loss: Loss) -> Scalar:
    """delta = (8 L d / sqrt(n))^{1/(2L)}. **Source:** gatmiry2024, section 3.5."""
    return delta_power(loss) ** (1 / (2 * loops(loss)))


def dimension_root(loss: Loss) -> float:
    """d^{1/(2L)}."""
    return float(loss.task.dimension) ** (1 / (2 * loops(loss)))


def covariance_eigenvalues(loss: Loss) -> Float[Array, " r"]:
    """The eigenvalues of Sigma*. A loss of eigenvalues lists each once, whatever its multiplicity."""
    return jnp.linalg.eigvalsh(loss.task.covariance) if isinstance(loss, LoopedLoss) else loss.task.eigenvalues


def least_eigenvalue(loss: Loss) -> Scalar:
    """lambda_d, the smallest eigenvalue of Sigma*."""
    return jnp.min(covariance_eigenvalues(loss))


LOOPED = functools.partial(Section, "gatmiry2024", *MODELS, setting=looped)


def condition(name: str, sides: Callable[[Any], tuple[Scalar | float, str, float]]) -> Conditions:
    """The hypothesis that two numbers of a loss satisfy a relation. ``sides`` gives number, relation and bound."""
    return lambda loss, start: [hypothesis(name, *sides(loss))]


# Section 3.2 assumes n > d throughout, and Theorem 3.2 a long context. At L = 1 the time bound divides by zero.
over_determined = condition("n > d", lambda loss: (float(loss.task.context_length), ">", float(loss.task.dimension)))
long_context = condition(
    "8 L d^2/sqrt(n) <= 2^(-2L)", lambda loss: (delta_power(loss) * loss.task.dimension, "<=", 4.0 ** -loops(loss))
)
several_loops = condition("L > 1", lambda loss: (float(loops(loss)), ">", 1.0))


def identity_covariance(loss: Loss, start: PyTree) -> list[Hypothesis]:
    """The hypotheses Sigma* = I, and u = 0 and A symmetric at the start."""
    gap = float(jnp.max(jnp.abs(covariance_eigenvalues(loss) - 1.0)))
    return [agrees("Sigma* = I", gap, 0.0), *without_bias(loss, start)]


def without_bias(loss: Loss, start: PyTree) -> list[Hypothesis]:
    """The hypotheses u = 0 and A symmetric at the start. A^{1/2} needs a symmetric A."""
    if isinstance(start, DiagonalLayers):
        return []
    asymmetry = jnp.max(jnp.abs(start.A - start.A.T))
    return [
        agrees("u = 0", jnp.max(jnp.abs(start.u)), 0.0),
        agrees("A symmetric", asymmetry, 0.0, jnp.maximum(jnp.max(jnp.abs(start.A)), 1.0)),
    ]


def whitened(loss: Loss, models: PyTree) -> Float[Array, "T r"]:
    """The eigenvalues of Sigma*^{1/2} A Sigma*^{1/2} at each of T stacked models."""
    if isinstance(loss, DiagonalLayersLoss):
        return models.eigenvalues(loss.task)[:, 0] * loss.task.eigenvalues[None, :]
    whole = jnp.einsum("ij,tjk,kl->til", loss.root, models.A, loss.root)
    return jnp.linalg.eigvalsh((whole + jnp.swapaxes(whole, 1, 2)) / 2)


def deviation(loss: Loss, models: PyTree) -> Series:
    """The least e with (1 - e) A_opt <= A <= (1 + e) A_opt at each of T stacked models."""
    return jnp.max(jnp.abs(whitened(loss, models) / loss.energy.centres[0] - 1.0), axis=1)


def drawn(loss: Loss) -> PyTree:
    """Stacked models A = A_opt^{1/2} (I + r D) A_opt^{1/2}, for 26 numbers r and 5 matrices D.

    |r| runs from 1e-4 to 100, with both signs of r. The eigenvalues of the five D are: all 1; 1 for the first and 0 for
    the others; 1 and 0 in turn; and twice random numbers in [-1, 1]. For a loss of matrices the eigenvectors of D are
    random. For a loss of eigenvalues they are the eigenvectors of Sigma*, and D has one eigenvalue for each that Sigma*
    lists.
    """
    r = covariance_eigenvalues(loss).size
    rng = np.random.default_rng(0)
    shapes = np.stack([np.ones(r), np.eye(r)[0], np.arange(r) % 2 == 0, *rng.uniform(-1, 1, (2, r))])
    offsets = (_DISTANCES[:, None, None] * shapes[None]).reshape(-1, r)
    values = loss.energy.centres[0] * (1.0 + jnp.asarray(offsets))
    if isinstance(loss, DiagonalLayersLoss):
        task = loss.task
        scaled = values / task.eigenvalues[None, :] * jnp.sqrt(task.multiplicities)[None, :]
        return eqx.tree_at(lambda model: model.scaled, loss.minimizer, scaled[:, None, :])
    basis = jnp.linalg.solve(loss.root, jnp.asarray(np.linalg.qr(rng.standard_normal((r, r)))[0]))
    A = jnp.einsum("ij,tj,kj->tik", basis, values, basis)
    A = (A + jnp.swapaxes(A, 1, 2)) / 2
    return eqx.tree_at(lambda model: (model.A, model.u), loss.minimizer, (A, jnp.zeros(A.shape[:2])))


def at_points(loss: Loss, models: PyTree) -> Points:
    """The `Points` of T stacked models."""
    arrays, rest = eqx.partition(models, eqx.is_array)

    def one(arrays):
        model = eqx.combine(arrays, rest)
        squares = [jnp.sum(leaf**2) for leaf in jax.tree.leaves(loss.gradient(model))]
        return loss(model), sum(squares[1:], squares[0]), 10.0 ** -loss.digits(model) / _EPSILON

    value, grad_norm_sq, conditioning = jax.lax.map(one, arrays)
    return Points(value, grad_norm_sq, deviation(loss, models), conditioning)


def everywhere(loss: Loss, trajectory: Trajectory) -> Points:
    """The `Points` along a flow, followed by those at the models of `drawn`."""
    # Along a flow the conditioning is 1, because rounding there is measured separately, by moving the weights.
    along = Points(
        trajectory.loss, trajectory.grad_norm_sq, deviation(loss, trajectory.models), jnp.ones_like(trajectory.loss)
    )
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), along, at_points(loss, drawn(loss)))


def compared(comparison: Comparison, points: Points) -> Comparison:
    """The comparison with the rounding errors of the points, promised where the loss has at least 6 digits."""
    known = points.conditioning * _EPSILON < 10.0**-_FEWEST_DIGITS
    moved = comparison.promised & known, comparison.scale * points.conditioning
    return eqx.tree_at(lambda c: (c.promised, c.scale), comparison, moved)


_MOST_LOOPS_WITH_BIAS = 2  # beyond this the exact loss with u is slow to build


def _from_identity(loss: Loss) -> Series:
    """|A_opt^{1/2} Sigma* A_opt^{1/2} - I|_2, as an array of one entry."""
    best = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, loss.minimizer)
    return jnp.max(jnp.abs(whitened(loss, best) - 1.0), axis=1)


@eqx.filter_jit
def minimum_below(loss: Loss) -> Comparison:
    """The statement min L <= d 4^L delta^{2L}. At n = inf both sides are zero and nothing is promised."""
    bound = loss.task.dimension * 4.0 ** loops(loss) * delta_power(loss)
    return at_most(loss.minimum[None], bound[None], promised=jnp.isfinite(loss.task.context_length))


@eqx.filter_jit
def within(loss: Loss, factor: float) -> Comparison:
    """The statement (1 - e) Sigma*^-1 <= A_opt <= (1 + e) Sigma*^-1 with e = factor delta d^{1/(2L)}.

    It is judged as |A_opt^{1/2} Sigma* A_opt^{1/2} - I|_2 <= e. At n = inf both sides are zero and nothing is promised.
    """
    bound = factor * delta(loss) * dimension_root(loss)
    return at_most(_from_identity(loss), bound[None], promised=jnp.isfinite(loss.task.context_length))


def bias_is_zero(loss: Loss) -> Comparison:
    """The statement u_opt = 0, judged as L(A_opt, u) - L(A_opt, 0) > 0 at unit vectors and at random u.

    Nothing is promised for a loss of eigenvalues, nor beyond L = 2, where the exact loss with u is slow to build. At
    every L the difference is the mean of a square.
    """
    d = loss.task.dimension
    if not isinstance(loss, LoopedLoss) or loops(loss) > _MOST_LOOPS_WITH_BIAS:
        return at_least(jnp.zeros(1), 0.0, promised=False)
    whole = LoopedLoss(loss.task, loops(loss), symmetric=False)
    u = jnp.concatenate([jnp.eye(d), jax.random.normal(jax.random.key(0), (8, d))])
    added = jax.vmap(lambda u: whole(LoopedAttention(loss.minimizer.A, u, loops=loops(loss))))(u) - loss.minimum
    return at_least(added, 0.0, size=jnp.sum((u @ loss.root) ** 2, axis=1))


def minimiser_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The distance |A_opt^{1/2} Sigma* A_opt^{1/2} - I|_2, its bound c in Theorem 3.2, and its order d/n."""
    return {
        "distance": _from_identity(loss)[0],
        "c": 8.0 * delta(loss) * dimension_root(loss),
        "order": loss.task.dimension / loss.task.context_length,
    }


_BISECTIONS = 100
# Decimal logarithms of the smallest and the largest epsilon searched. They are not round, so that a round epsilon is
# never the middle of an interval, where its last digit would decide.
SMALLEST, LARGEST = -30.3, 10.1


def crossing(increasing, values: Series, largest: float) -> tuple[Series, Series]:
    """For each value, two adjacent numbers between which an increasing function crosses the value.

    At the first number the function is at most the value, at the second it is above. Bisection of the logarithm finds
    them between 10^-30.3 and 10^largest. If the function never exceeds the value, both are 10^largest. If it always
    does, both are 10^-30.3 up to rounding.
    """

    def halve(_, interval):
        low, high = interval
        middle = (low + high) / 2
        below = increasing(10.0**middle) <= values
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    start = jnp.full_like(values, SMALLEST), jnp.full_like(values, largest)
    low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, start)
    beyond = increasing(jnp.full_like(values, 10.0**largest)) <= values
    return jnp.where(beyond, 10.0**largest, 10.0**low), 10.0**high


PRINTED_CONSTANT = 1 / 16

HOELDER = (
    "Hoelder's inequality between the sums of powers 4L-2 and 2L of d numbers costs d^{-(L-1)/L}; Lemma A.10 writes "
    "d^{-(L-1)/(2L-1)} and then drops the factor."
)
SMALL_COVARIANCE = (
    "The statement drops the condition Sigma* = I of Theorem 3.4 and fails without it: the squared gradient in A "
    "carries Sigma* twice, so at Sigma* = 0.01 I it is 10^-4 of that at I, while the loss is the same. "
)
WITH_COVARIANCE = (
    "Covers every Sigma*, through its least eigenvalue lambda_d: grad_A L = Sigma*^{1/2} G Sigma*^{1/2}, where G is "
    "the gradient at covariance I. "
)
REFUTED = (
    "Fails for large d, at every n and in the limit: at A = a I and n = inf, |grad L|^2 = 4 L^2 d^{-(L-1)/L} "
    "L^{(2L-1)/L}, less than printed where d^{(L-1)/L} > 64 L^2 (d > 65536 for two loops). Without a condition on n it "
    "also fails at one loop: for n > d >> sqrt(n) the minimum itself, where grad L = 0, is above the threshold."
)


def appendix_threshold(loss: Loss) -> Scalar:
    """The threshold 2 (4 delta)^{2L} = 16 L d 16^L / sqrt(n). **Source:** gatmiry2024, Theorems 3.3, A.11 and A.12."""
    return 2.0 * 16.0 ** loops(loss) * delta_power(loss)


def dominates(loss: Loss, trajectory: Trajectory, factor: ArrayLike, threshold: Scalar) -> Comparison:
    """The statement |grad L|^2 >= factor L^{(2L-1)/L}/16 at points where L is at least the threshold."""
    points, constant = everywhere(loss, trajectory), PRINTED_CONSTANT * factor
    comparison = gradient_dominance(points.grad_norm_sq, points.loss, constant, dominance_power(loss), threshold)
    return compared(comparison, points)


def sharp_constants(threshold: Callable[[Loss], Scalar]) -> Callable[[Loss, Trajectory], dict[str, Array]]:
    """The constants to report for gradient dominance above a threshold.

    These are the paper's constant and power, the sharp constant above the threshold along the flow, and the constant at
    n = inf, 4 L^2 lambda_d^2 d^{-(L-1)/L}, which multiples of I attain if Sigma* is a multiple of I. Then the
    threshold, the largest loss along the flow at which the inequality fails, and the minimum of the loss.
    """

    def constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
        sides = trajectory.grad_norm_sq, trajectory.loss
        power = dominance_power(loss)
        return {
            "constant": jnp.asarray(PRINTED_CONSTANT),
            "power": jnp.asarray(power),
            "sharp_constant": sharp_dominance(*sides, power, threshold(loss)),
            "limit_constant": 4.0 * loops(loss) ** 2 * dominance_factor(loss),
            "threshold": threshold(loss),
            "fails_at_and_below": dominance_floor(*sides, PRINTED_CONSTANT, power),
            "minimum": loss.minimum,
        }

    return constants
