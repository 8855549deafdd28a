"""What several test files share: comparisons that look at shapes, and random problems that are repeatable."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from flowsim.losses import FunctionLoss
from flowsim.models import LinearAttention
from flowsim.tasks import LinearRegression


class Weight(eqx.Module):
    """x, of any shape."""

    x: jax.Array


class Pair(eqx.Module):
    """a and b."""

    a: jax.Array
    b: jax.Array


class Form(eqx.Module):
    """A function with parameters, compiled once for all of them."""

    function: Callable[..., jax.Array] = eqx.field(static=True)
    parameters: tuple[jax.Array, ...]

    def __init__(self, function: Callable[..., jax.Array], *parameters: Any):
        self.function, self.parameters = function, tuple(map(jnp.asarray, parameters))

    def __call__(self, model: PyTree) -> jax.Array:
        return self.function(model, *self.parameters)


def quadratic(*targets: float) -> FunctionLoss:
    """w -> sum k (w_k - target_k)^2 / 2, whose flow is w_k(t) = target_k + e^{-kt} (w_k(0) - target_k)."""
    rates, minimizer = jnp.arange(1.0, len(targets) + 1), jnp.asarray(targets)
    return FunctionLoss(lambda w: jnp.sum(rates * (w - minimizer) ** 2) / 2, minimum=0.0)


def weight(x: Any) -> Weight:
    return Weight(jnp.asarray(x, dtype=float))


def pair(a: float, b: float) -> Pair:
    return Pair(jnp.asarray(a), jnp.asarray(b))


def assert_close(actual: PyTree, expected: PyTree, *, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Equal structure, shapes and, within the tolerances, values; float64 throughout."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert np.shape(a) == np.shape(b)
        assert np.asarray(a).dtype == np.float64
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def relative_error(actual: PyTree, expected: PyTree) -> float:
    """The largest difference of two pytrees over the second's largest entry, array by array."""
    errors = [
        np.max(np.abs(np.asarray(a) - np.asarray(b))) / np.max(np.abs(np.asarray(b)))
        for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    ]
    return float(max(errors))


def covariance(d: int, seed: int, condition: float = 10.0) -> np.ndarray:
    """(d, d), eigenvalues geometric from 1 to 1/condition, in a random basis."""
    rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]
    matrix = (rotation * np.geomspace(1.0, 1.0 / condition, d)) @ rotation.T
    return (matrix + matrix.T) / 2


def regression(d: int, context_length: float, seed: int = 0, condition: float = 10.0) -> LinearRegression:
    """A regression task with the covariance above."""
    return LinearRegression(covariance(d, seed, condition), context_length)


def random_model(d: int, seed: int, scale: float = 1.0) -> LinearAttention:
    """All weights standard normal times the scale, u12 and u21 included."""
    rng = np.random.default_rng(seed)
    U11, u12, u21 = (scale * rng.standard_normal(shape) for shape in ((d, d), d, d))
    return LinearAttention(U11, scale * rng.standard_normal(), u12, u21)


def sample_means(
    value: Callable[[Array], PyTree], samples: int, seed: int, batch: int = 10_000
) -> tuple[PyTree, PyTree]:
    """Means of ``value(key)`` over many keys, and the standard errors of these means."""

    def sums(keys: Array) -> tuple[PyTree, PyTree]:
        values = jax.vmap(value)(keys)
        return jax.tree.map(lambda x: x.sum(0), values), jax.tree.map(lambda x: (x**2).sum(0), values)

    keys = jax.random.split(jax.random.key(seed), (samples // batch, batch))
    first, second = jax.jit(lambda keys: jax.tree.map(lambda x: x.sum(0), jax.lax.map(sums, keys)))(keys)
    mean = jax.tree.map(lambda x: np.asarray(x) / samples, first)
    error = jax.tree.map(lambda x, m: np.sqrt((np.asarray(x) / samples - m**2) / samples), second, mean)
    return mean, error


def largest_z(mean: PyTree, error: PyTree, expected: PyTree) -> float:
    """The largest deviation from the expected mean in units of its standard error."""
    scores = jax.tree.map(lambda m, e, x: np.max(np.abs(m - np.asarray(x)) / e), mean, error, expected)
    return float(max(jax.tree.leaves(scores)))


def symmetrise(matrix: Any) -> Any:
    """(A + A^T) / 2."""
    return (matrix + jnp.swapaxes(matrix, -1, -2)) / 2


class Lazy:
    """An executor that computes everything in this process, when it is asked for."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> "_Later":
        return _Later(function, arguments)


class _Later:
    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]):
        self.result = lambda: function(*arguments)
