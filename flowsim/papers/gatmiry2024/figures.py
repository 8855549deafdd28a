"""What the figures and section 5 of gatmiry2024 assert, on covariance I: both sides, exactly but for medians."""

import functools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.losses.deep.residual_energy import loop_terms
from flowsim.losses.deep.scalar_minima import layer_minimum, scalar_minimum, scalar_shortfall
from flowsim.moments.spectrum import spectral_quadrature
from flowsim.papers.gatmiry2024.lemma_settings import Loss, shape
from flowsim.papers.gatmiry2024.setting import CLOSE

Curve = Float[np.ndarray, " loops"]

MOST_TEST_LOOPS = 50
OUT_OF_DISTRIBUTION = (0.5, 1.5)  # smallest and largest eigenvalue of the covariance of other prompts
_EXACT_LOOPS = 6  # beyond which the mean of another covariance is not had in closed form
_PROMPTS = 2000
_LOOPS = range(1, 7)


def _size(loss: Loss) -> tuple[int, int]:
    known = shape(loss)
    assert known.length is not None, "the setting of the claim"
    return known.dimension, known.length


def minima(loss: Loss) -> tuple[Curve, Curve]:
    """The least loss of one layer looped L times and of L layers, for L = 1, .., 6."""
    d, n = _size(loss)
    looped = [scalar_minimum(d, n, L)[1] for L in _LOOPS]
    return np.array(looped), np.array([layer_minimum(d, n, L)[1] for L in _LOOPS])


def _falls(curve: np.ndarray) -> Comparison:
    """Each value is at most the one before."""
    return at_most(jnp.asarray(curve[1:]), jnp.asarray(curve[:-1]))


def _rises(curve: np.ndarray) -> Comparison:
    return at_least(jnp.asarray(curve[1:]), jnp.asarray(curve[:-1]))


# Figure 1


def close_to_identity(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """|A - I|_2 <= 0.1 in the limit of the flow."""
    gap = trajectory.models.A[-1] - jnp.eye(loss.task.dimension)
    distance = jnp.linalg.norm(gap, ord=2)
    return at_most(distance[None], CLOSE, allowance=trajectory.way_to_go)


def close_up_to_scale(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """min_c |A - c I|_F <= 0.1 |A|_F in the limit of the flow. **Source:** ahn2023, section 5.3."""
    A, d = trajectory.models.A[-1], loss.task.dimension
    gap = jnp.linalg.norm(A - jnp.trace(A) / d * jnp.eye(d))
    # Either side moves at most as far as A, the right one a tenth of that.
    to_go = (1 + CLOSE) * trajectory.way_to_go
    return at_most(gap[None], CLOSE * jnp.linalg.norm(A), allowance=to_go)


def scale_constants(loss: LoopedLoss, trajectory: Trajectory) -> dict[str, Array]:
    """c of A_opt = c I, and the mean eigenvalue of A where the flow ends."""
    end = jnp.trace(trajectory.models.A[-1]) / loss.task.dimension
    return {"c": loss.energy.centres[0], "mean_eigenvalue_at_the_end": end}


# Figure 2


def more_loops_lower_loss(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The least loss with one loop more is lower, up to 6 loops."""
    return _falls(minima(loss)[0])


def loops_like_layers(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The least loss of L loops is at most 10% above that of L layers, for L = 2, .., 6."""
    looped, layers = minima(loss)
    return at_most(jnp.asarray(looped[1:]), (1 + CLOSE) * jnp.asarray(layers[1:]))


def loops_fall_behind(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The least loss of L loops over that of L layers grows with L."""
    looped, layers = minima(loss)
    return _rises(looped / layers)


def ratio_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The ratio at each L from 2 on."""
    looped, layers = minima(loss)
    return {f"ratio_at_{L}": jnp.asarray(looped[L - 1] / layers[L - 1]) for L in _LOOPS if L > 1}


# Figure 3


def mean_risks(d: int, n: int, a: float, loops: range) -> Curve:
    """E tr (I - a W)^{2l} at each number l of loops."""
    rules = [(2 * count, spectral_quadrature(d, n, 2 * count)) for count in loops]
    return np.array([np.sum(rule.weights * (1 - a * (1 + rule.offsets)) ** power) for power, rule in rules])


@functools.lru_cache(maxsize=16)
def prompt_risks(
    d: int, n: int, a: float, eigenvalues: tuple[float, ...], most: int = MOST_TEST_LOOPS, prompts: int = _PROMPTS
) -> Float[np.ndarray, "prompts loops"]:
    """|T^{-1/2} (I - a T^{1/2} W T^{1/2})^l T^{1/2}|_F^2, exact over w and x_query, on drawn contexts.

    **Arguments:** eigenvalues: of the covariance T of the prompts; most: l goes from 1 to it.
    """
    factor = np.eye(d) - a * _drawn_wishart(d, n, prompts) * np.asarray(eigenvalues)[None, None, :]
    power, risks = np.broadcast_to(np.eye(d), factor.shape), []
    for _ in range(most):
        power = power @ factor
        risks.append(np.sum(power**2, axis=(1, 2)))
    return np.stack(risks, axis=1)


def _drawn_wishart(d: int, n: int, count: int) -> Float[np.ndarray, "count d d"]:
    """Draws of W, by Bartlett's decomposition where n >= d, so that a long context takes no space."""
    rng = np.random.default_rng(0)
    if n < d:
        z = rng.standard_normal((count, n, d))
        return np.swapaxes(z, 1, 2) @ z / n
    factor = np.tril(rng.standard_normal((count, d, d)), -1)
    factor[:, range(d), range(d)] = np.sqrt(rng.chisquare(n - np.arange(d), (count, d)))
    return factor @ np.swapaxes(factor, 1, 2) / n


def _trained(loss: Loss) -> tuple[int, int, int, float]:
    d, n = _size(loss)
    L = shape(loss).loops
    return d, n, L, scalar_minimum(d, n, L)[0]


def other_covariance(d: int) -> tuple[float, ...]:
    """Eigenvalues of a covariance other than I."""
    return tuple(np.linspace(*OUT_OF_DISTRIBUTION, d).tolist())


def mean_keeps_falling(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The mean risk of A_opt on prompts as in training falls with every loop more at test, from L to 50."""
    d, n, L, a = _trained(loss)
    return _falls(mean_risks(d, n, a, range(L, MOST_TEST_LOOPS + 1)))


def median_keeps_falling(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The median over drawn contexts of the risk of A_opt falls with every loop more, from L to 50."""
    d, n, L, a = _trained(loss)
    return _falls(np.median(prompt_risks(d, n, a, (1.0,) * d), axis=0)[L - 1 :])


def other_mean_keeps_falling(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The mean risk of A_opt on prompts of another covariance falls with every loop more, from L to 6."""
    d, n, L, a = _trained(loss)
    A = jnp.diag(a * jnp.asarray(other_covariance(d)))
    means = [float(loop_terms(count, True, False)(n, A=A)) for count in range(L, _EXACT_LOOPS + 1)]
    return _falls(np.array(means))


def other_median_keeps_falling(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The median over drawn contexts of another covariance falls with every loop more, from L to 50."""
    d, n, L, a = _trained(loss)
    return _falls(np.median(prompt_risks(d, n, a, other_covariance(d)), axis=0)[L - 1 :])


def test_loop_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The number of loops at which the mean is least, that mean, and the mean at 50 loops."""
    d, n, L, a = _trained(loss)
    curve = mean_risks(d, n, a, range(1, MOST_TEST_LOOPS + 1))
    best = int(np.argmin(curve))
    named = {"best_loops": float(best + 1), "best_mean": curve[best], "mean_at_50": curve[-1]}
    return {name: jnp.asarray(value) for name, value in named.items()}


# Figure 4


def all_loops_reach_identity(loss: Loss, trajectory: Trajectory) -> Comparison:
    """1 - c <= 0.1 for A_opt = c I with 1 to 6 loops."""
    d, n = _size(loss)
    return at_most(jnp.asarray([scalar_shortfall(d, n, L) for L in _LOOPS]), CLOSE)


def loops_shrink(loss: Loss, trajectory: Trajectory) -> Comparison:
    """1 - c grows with the number of loops."""
    d, n = _size(loss)
    return _rises(np.array([scalar_shortfall(d, n, L) for L in _LOOPS]))


def shrinkage_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """c at each L."""
    d, n = _size(loss)
    return {f"c_at_{L}": jnp.asarray(scalar_minimum(d, n, L)[0]) for L in _LOOPS}


def time_until_close(d: int, n: int, loops: int) -> float:
    """When the flow from A = 0 is within 10% of A_opt = c I: the integral of d da / |dL/da| from 0 to 0.9 c."""
    c, _ = scalar_minimum(d, n, loops)
    rule = spectral_quadrature(d, n, 2 * loops)
    nodes, weights = np.polynomial.legendre.leggauss(120)
    s, weights = -np.log(CLOSE) * (nodes + 1) / 2, -weights * np.log(CLOSE) / 2
    x, a = 1 + rule.offsets, c * (1 - np.exp(-s))
    slopes = (1 - a[:, None] * x[None, :]) ** (2 * loops - 1) @ (2 * loops * rule.weights * x)
    return float(np.sum(weights * c * np.exp(-s) * d / slopes))


def _times(loss: Loss) -> Curve:
    d, n = _size(loss)
    return np.array([time_until_close(d, n, L) for L in _LOOPS])


def more_loops_slower(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The time to within 10% of A_opt grows with the number of loops, from 1 to 6."""
    return _rises(_times(loss))


def time_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """That time at each L."""
    return {f"time_at_{L}": jnp.asarray(value) for L, value in zip(_LOOPS, _times(loss), strict=True)}


def stays_away(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """|A - A_opt|_F in the limit of the flow is at least 10% of what it was at the start."""
    ends = jnp.stack([trajectory.models.A[0], trajectory.models.A[-1]])
    gaps = ends - loss.energy.centres[0] * jnp.eye(loss.task.dimension)[None]
    start, end = jnp.linalg.norm(gaps, axis=(1, 2))
    return at_least(end[None], CLOSE * start, allowance=trajectory.way_to_go)


def one_loop_flow(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """A(t) - A_opt = e^{-rt} (A(0) - A_opt), with r = 2 (n + d + 1)/n and A_opt = n/(n + d + 1) I."""
    n, d = loss.task.context_length, float(loss.task.dimension)
    rate = 2 * (n + d + 1) / n
    gaps = trajectory.models.A - (2 / rate) * jnp.eye(loss.task.dimension)[None]
    exact = jnp.exp(-rate * trajectory.t)[:, None, None] * gaps[:1]
    sizes = jnp.full(trajectory.t.shape, jnp.linalg.norm(trajectory.models.A[-1]))
    return equal(jnp.linalg.norm(gaps - exact, axis=(1, 2)), 0.0, sizes)
