"""Parts shared by gatmiry2024's figures, at covariance I: problems, monotonicity, and risks at any number of loops.

The figures do not state n. What they assert is computed exactly, except for medians.
"""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from flowsim.claims.claim import Comparison, at_least, at_most
from flowsim.claims.hypotheses import Hypothesis, agrees
from flowsim.moments.spectrum import spectral_quadrature
from flowsim.papers.gatmiry2024.lemma_settings import problem, shape
from flowsim.papers.gatmiry2024.setting import Loss, over_determined

Curve = Float[np.ndarray, " loops"]

MOST_TEST_LOOPS = 50
OUT_OF_DISTRIBUTION = (0.5, 1.5)  # smallest and largest eigenvalue of the covariance of the other prompts
LOOPS = range(1, 7)
_PROMPTS = 2000
READING = "The text gives no number for close; all rows of this paper read it as 10%. "

LONGER = problem("L = 2, d = 10, n = 50", 2, 50, "identity", dimension=10)
LONGEST = problem("L = 2, d = 10, n = 1000", 2, 1000, "identity", dimension=10)
LENGTHS = (problem("L = 2, d = 10, n = 20", 2, 20, "identity", dimension=10), LONGER, LONGEST)


def identity(loss: Loss, start: Any) -> list[Hypothesis]:
    """The covariance S is I."""
    known = shape(loss)
    return [agrees("covariance = I", float(max(abs(x - 1) for x in known.eigenvalues)), 0.0)]


def more_examples(loss: Loss, start: Any) -> list[Hypothesis]:
    """S = I and n > d."""
    return [*identity(loss, start), *over_determined(loss, start)]


def flow(name: str, loops: int, length: int, dimension: int, **init: Any) -> dict[str, Any]:
    """A problem about a flow at covariance I; ``init`` is its start."""
    return problem(name, loops, length, "identity", dimension=dimension) | {"init": init}


def size(loss: Loss) -> tuple[int, int]:
    """d and n, which must be finite."""
    known = shape(loss)
    assert known.length is not None, "the setting of the claim"
    return known.dimension, known.length


def falls(curve: np.ndarray) -> Comparison:
    """Each value is at most the one before."""
    return at_most(jnp.asarray(curve[1:]), jnp.asarray(curve[:-1]))


def rises(curve: np.ndarray) -> Comparison:
    """Each value is at least the one before."""
    return at_least(jnp.asarray(curve[1:]), jnp.asarray(curve[:-1]))


def mean_risks(d: int, n: int, a: float, loops: range) -> Curve:
    """The mean risk E tr (I - a W)^{2l} at each number l of loops."""
    rules = [(2 * count, spectral_quadrature(d, n, 2 * count)) for count in loops]
    return np.array([np.sum(rule.weights * (1 - a * (1 + rule.offsets)) ** power) for power, rule in rules])


@functools.lru_cache(maxsize=16)
def prompt_risks(
    d: int, n: int, a: float, eigenvalues: tuple[float, ...], most: int = MOST_TEST_LOOPS, prompts: int = _PROMPTS
) -> Float[np.ndarray, "prompts loops"]:
    """The risk |T^{-1/2} (I - a T^{1/2} W T^{1/2})^l T^{1/2}|_F^2 on drawn contexts, exact over w and x_query.

    **Arguments:** eigenvalues: of the covariance T of the prompts; most: the largest l, from 1 on.
    """
    factor = np.eye(d) - a * _drawn_wishart(d, n, prompts) * np.asarray(eigenvalues)[None, None, :]
    power, risks = np.broadcast_to(np.eye(d), factor.shape), []
    for _ in range(most):
        power = power @ factor
        risks.append(np.sum(power**2, axis=(1, 2)))
    return np.stack(risks, axis=1)


def _drawn_wishart(d: int, n: int, count: int) -> Float[np.ndarray, "count d d"]:
    """Draws of W, by Bartlett's decomposition where n >= d, so that a long context takes no memory."""
    rng = np.random.default_rng(0)
    if n < d:
        z = rng.standard_normal((count, n, d))
        return np.swapaxes(z, 1, 2) @ z / n
    factor = np.tril(rng.standard_normal((count, d, d)), -1)
    factor[:, range(d), range(d)] = np.sqrt(rng.chisquare(n - np.arange(d), (count, d)))
    return factor @ np.swapaxes(factor, 1, 2) / n


def other_covariance(d: int) -> tuple[float, ...]:
    """Eigenvalues of a covariance other than I."""
    return tuple(np.linspace(*OUT_OF_DISTRIBUTION, d).tolist())
