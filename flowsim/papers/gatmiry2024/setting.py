"""The setting, symbols, sample points and bounds that gatmiry2024's statements about the loss share.

The loss of a looped transformer is a function of a symmetric matrix A at u = 0, or of the eigenvalues of A. n is
the context length, d the dimension, L the number of loops and Sigma* the population covariance. The minimiser A_opt
is a multiple of Sigma*^-1. Theorems 3.2 and A.8 bound the distance of A_opt from Sigma*^-1. Gradient dominance is
the inequality |grad loss|^2 >= constant loss^{(2L-1)/L} wherever the loss is above a threshold.
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
    """Quantities computed at each of T matrices A.

    **Fields:**

    - loss: the loss at u = 0.
    - grad_norm_sq: |grad loss|^2.
    - deviation: |A_opt^{-1/2} A A_opt^{-1/2} - I|_2.
    - conditioning: the relative rounding error of the loss, divided by the machine epsilon.
    """

    loss: Series
    grad_norm_sq: Series
    deviation: Series
    conditioning: Series


def approximate(values: ArrayLike | list[float]) -> Array:
    """Convert numbers to an array, but refuse to do so while JAX traces.

    A certificate is made from a trace. It cannot contain these numbers, because they come from a quadrature, a
    search or random numbers of NumPy.

    **Raises:** `jax.errors.TracerArrayConversionError` in a trace.
    """
    found: Any = jnp.asarray(values)
    if not checks.is_concrete(found):
        raise jax.errors.TracerArrayConversionError(found)
    return found


def looped(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """Return None if a loss is in the paper's setting, otherwise the hypothesis that fails.

    In this setting all layers have the same matrix, and w ~ N(0, Sigma*^-1).
    """
    if not isinstance(loss, LoopedLoss | DiagonalLayersLoss) or (
        isinstance(loss, DiagonalLayersLoss) and not loss.looped
    ):
        return unmet("a looped transformer")
    inverse = loss.task.weights == "inverse-covariance"
    return None if inverse else unmet("w ~ N(0, Sigma*^-1)")


def matrices(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """Return None if a `looped` loss is a function of the matrix A, otherwise the hypothesis that fails.

    A loss that is a function of the eigenvalues of A alone is not accepted.
    """
    return looped(loss) or (None if isinstance(loss, LoopedLoss) else unmet("a loss of matrices"))


def loops(loss: Loss) -> int:
    """L, the number of loops."""
    return loss.loops if isinstance(loss, LoopedLoss) else loss.depth


def dominance_power(loss: Loss) -> float:
    """The power (2L - 1)/L of the loss in gradient dominance."""
    return (2 * loops(loss) - 1) / loops(loss)


def dimension_loss(loss: Loss) -> float:
    """The factor d^{-(L-1)/L} in Hoelder's inequality for x in R^d.

    The inequality is sum_i |x_i|^{4L-2} >= d^{-(L-1)/L} (sum_i |x_i|^{2L})^{(2L-1)/L}.
    """
    return float(loss.task.dimension) ** (-(loops(loss) - 1) / loops(loss))


def dominance_factor(loss: Loss) -> Scalar:
    """The factor lambda_d^2 d^{-(L-1)/L} that the paper's lower bounds on |grad loss|^2 lack.

    lambda_d is the least eigenvalue of Sigma*, and d^{-(L-1)/L} comes from Hoelder's inequality.
    """
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
    """A function (loss, start) -> [hypothesis], for a hypothesis that depends on the loss alone.

    **Arguments:** name: of the hypothesis; sides: maps a loss to a number, a relation such as "<=", and the bound.
    """
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
    """The hypotheses u = 0 and A symmetric at the start, because A^{1/2} needs a symmetric A.

    `DiagonalLayers` satisfies both by construction, so the list is then empty.
    """
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
    """130 stacked models A = A_opt^{1/2} (I + r D) A_opt^{1/2}: 26 numbers r for each of 5 matrices D.

    Half of the r are positive and half negative; |r| runs from 1e-4 to 100. The eigenvalues of the first D are all
    1. The second D has one eigenvalue 1 and otherwise 0, the third alternates between 1 and 0, and the last two
    have random eigenvalues in [-1, 1]. For a loss of matrices the eigenvectors of D are random. For a loss of
    eigenvalues they are the eigenvectors of Sigma*, and D has one eigenvalue for each entry of
    `covariance_eigenvalues`.
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
    """Adapt a comparison to the rounding errors of the loss at the points.

    The scale of the comparison is multiplied by the conditioning at each point. No statement is made at points
    where the relative rounding error of the loss is 10^-6 or more.
    """
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
    """The statement that the minimum of the loss is at most d 4^L delta^{2L}.

    At n = inf both sides are zero, and no statement is made.
    """
    bound = loss.task.dimension * 4.0 ** loops(loss) * delta_power(loss)
    return at_most(loss.minimum[None], bound[None], promised=jnp.isfinite(loss.task.context_length))


@eqx.filter_jit
def within(loss: Loss, factor: float) -> Comparison:
    """The statement (1 - e) Sigma*^-1 <= A_opt <= (1 + e) Sigma*^-1 with e = factor delta d^{1/(2L)}.

    It is judged as |A_opt^{1/2} Sigma* A_opt^{1/2} - I|_2 <= e. At n = inf both sides are zero, and no statement is
    made.
    """
    bound = factor * delta(loss) * dimension_root(loss)
    return at_most(_from_identity(loss), bound[None], promised=jnp.isfinite(loss.task.context_length))


def bias_is_zero(loss: Loss) -> Comparison:
    """The statement u_opt = 0, judged as loss(A_opt, u) - loss(A_opt, 0) > 0 for unit vectors u and for random u.

    No statement is made for a loss of eigenvalues, nor for L > 2, where the exact loss with u is slow to build. At
    every L the difference of the losses is the mean of a square.
    """
    d = loss.task.dimension
    if not isinstance(loss, LoopedLoss) or loops(loss) > _MOST_LOOPS_WITH_BIAS:
        return at_least(jnp.zeros(1), 0.0, promised=False)
    whole = LoopedLoss(loss.task, loops(loss), symmetric=False)
    u = jnp.concatenate([jnp.eye(d), jax.random.normal(jax.random.key(0), (8, d))])
    added = jax.vmap(lambda u: whole(LoopedAttention(loss.minimizer.A, u, loops=loops(loss))))(u) - loss.minimum
    return at_least(added, 0.0, size=jnp.sum((u @ loss.root) ** 2, axis=1))


def minimiser_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The constants to report for the minimiser.

    These are the distance |A_opt^{1/2} Sigma* A_opt^{1/2} - I|_2, the bound c of Theorem 3.2 on this distance, and
    d/n, the order of the distance.
    """
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

    The function is at most the value at the first number, and above the value at the second. Bisection of the
    logarithm finds both numbers between 10^-30.3 and 10^largest. If the function never exceeds the value in this
    range, both numbers are 10^largest. If the function always exceeds the value, both are 10^-30.3 up to rounding.
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
    """The statement |grad loss|^2 >= factor loss^{(2L-1)/L}/16 wherever the loss is at least the threshold.

    It is judged at the points of `everywhere`.
    """
    points, constant = everywhere(loss, trajectory), PRINTED_CONSTANT * factor
    comparison = gradient_dominance(points.grad_norm_sq, points.loss, constant, dominance_power(loss), threshold)
    return compared(comparison, points)


def sharp_constants(threshold: Callable[[Loss], Scalar]) -> Callable[[Loss, Trajectory], dict[str, Array]]:
    """Make the function that computes the constants to report for gradient dominance above a threshold.

    **Returns:** a function (loss, trajectory) -> the constants by name:

    - constant, power: the constant 1/16 and the power (2L-1)/L of the paper.
    - sharp_constant: the largest constant for which the inequality is true along the flow above the threshold.
    - limit_constant: 4 L^2 lambda_d^2 d^{-(L-1)/L}, the constant at n = inf, where lambda_d is the least eigenvalue
      of Sigma*. Multiples of I attain it if Sigma* is a multiple of I.
    - threshold: the threshold.
    - fails_at_and_below: the largest loss along the flow at which the inequality with 1/16 fails.
    - minimum: the minimum of the loss.
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
