"""Families of positive random variables, used as the diagonal entries of a random covariance."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammainc, ndtr
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.tasks.covariance_laws.base import AbstractCoordinates


class Gamma(AbstractCoordinates):
    """Gamma laws with density proportional to x^{shape - 1} e^{-rate x}. An exponential law has shape 1.

    **Arguments:** shape, rate: (m,), or a number for all variables.

    **Raises:** `ValueError` on a parameter that is not positive.
    """

    shape: Float[Array, " m"]
    rate: Float[Array, " m"]

    def __init__(self, shape: ArrayLike | Iterable, rate: ArrayLike | Iterable):
        self.shape, self.rate = _parameters({"shape": shape, "rate": rate}, positive=("shape", "rate"))

    def moments(self) -> Float[Array, "3 m"]:
        first = self.shape / self.rate
        second = first * (self.shape + 1) / self.rate
        return jnp.stack([first, second, second * (self.shape + 2) / self.rate])

    def sample(self, key: PRNGKeyArray) -> Float[Array, " m"]:
        return jax.random.gamma(key, self.shape) / self.rate

    def scaled(self, factor: Scalar) -> "Gamma":
        return Gamma(self.shape, self.rate / factor)

    def distribution(self, x: Float[Array, " n"]) -> Float[Array, "n m"]:
        return gammainc(self.shape[None, :], self.rate[None, :] * x[:, None])

    def truncated_square(self, x: Float[Array, " n"]) -> Float[Array, "n m"]:
        below = gammainc(self.shape[None, :] + 2, self.rate[None, :] * x[:, None])
        return self.moments()[1][None, :] * below

    def panels(self) -> np.ndarray:
        # Less than 1e-16 of the third moment lies beyond (k + 40 sqrt(k) + 60)/rate, k being the shape.
        shape, rate = np.asarray(self.shape), np.asarray(self.rate)
        return _graded((shape + 40 * np.sqrt(shape) + 60) / rate)


class Uniform(AbstractCoordinates):
    """Uniform laws on [low, high] with 0 <= low < high.

    **Arguments:** low, high: (m,), or a number for all variables.

    **Raises:** `ValueError` on other bounds.
    """

    low: Float[Array, " m"]
    high: Float[Array, " m"]

    def __init__(self, low: ArrayLike | Iterable, high: ArrayLike | Iterable):
        self.low, self.high = _parameters({"low": low, "high": high}, positive=("high",))
        if checks.is_concrete(self.low):
            if np.any(self.low < 0):
                checks.refuse("low", "at least 0, as a covariance is positive", f"it holds {np.min(self.low):g}")
            if np.any(self.low >= self.high):
                checks.refuse("high", "above low", f"it holds {float(self.high[np.argmax(self.low >= self.high)]):g}")

    def moments(self) -> Float[Array, "3 m"]:
        a, b = self.low, self.high
        return jnp.stack([(a + b) / 2, (a**2 + a * b + b**2) / 3, (a + b) * (a**2 + b**2) / 4])

    def sample(self, key: PRNGKeyArray) -> Float[Array, " m"]:
        # The uniform numbers U are in [0, 1). With 1 - U in (0, 1], a law with low = 0 never draws zero.
        return self.high - (self.high - self.low) * jax.random.uniform(key, self.low.shape)

    def scaled(self, factor: Scalar) -> "Uniform":
        return Uniform(factor * self.low, factor * self.high)

    def distribution(self, x: Float[Array, " n"]) -> Float[Array, "n m"]:
        return jnp.clip((x[:, None] - self.low[None, :]) / (self.high - self.low)[None, :], 0.0, 1.0)

    def truncated_square(self, x: Float[Array, " n"]) -> Float[Array, "n m"]:
        low, high = self.low[None, :], self.high[None, :]
        return (jnp.clip(x[:, None], low, high) ** 3 - low**3) / (3 * (high - low))

    def panels(self) -> np.ndarray:
        return np.unique(np.concatenate([[0.0], np.asarray(self.low), np.asarray(self.high)]))


class LogNormal(AbstractCoordinates):
    """Log-normal laws: log lambda ~ N(location, spread^2).

    **Arguments:** location, spread: (m,), or a number for all variables.

    **Raises:** `ValueError` on a spread that is not positive.
    """

    location: Float[Array, " m"]
    spread: Float[Array, " m"]

    def __init__(self, location: ArrayLike | Iterable, spread: ArrayLike | Iterable):
        self.location, self.spread = _parameters({"location": location, "spread": spread}, positive=("spread",))

    def moments(self) -> Float[Array, "3 m"]:
        orders = jnp.arange(1.0, 4.0)[:, None]
        return jnp.exp(orders * self.location[None, :] + orders**2 * self.spread[None, :] ** 2 / 2)

    def sample(self, key: PRNGKeyArray) -> Float[Array, " m"]:
        return jnp.exp(self.location + self.spread * jax.random.normal(key, self.location.shape))

    def scaled(self, factor: Scalar) -> "LogNormal":
        return LogNormal(self.location + jnp.log(factor), self.spread)

    def _score(self, x: Float[Array, " n"]) -> Float[Array, "n m"]:
        return (jnp.log(x)[:, None] - self.location[None, :]) / self.spread[None, :]

    def distribution(self, x: Float[Array, " n"]) -> Float[Array, "n m"]:
        return ndtr(self._score(x))

    def truncated_square(self, x: Float[Array, " n"]) -> Float[Array, "n m"]:
        return self.moments()[1][None, :] * ndtr(self._score(x) - 2 * self.spread[None, :])

    def panels(self) -> np.ndarray:
        # Under the density weighted with lambda^3, log lambda is normal around location + 3 spread^2.
        location, spread = np.asarray(self.location), np.asarray(self.spread)
        return _graded(np.exp(location + 3 * spread**2 + 10 * spread))


class Discrete(AbstractCoordinates):
    """Laws of k values each. With k = 1 the values are not random.

    **Arguments:** values, probabilities: (m, k), one row for each variable. The probabilities of a row sum to one.

    **Raises:** `ValueError` on values that are not positive and on numbers that are not probabilities.
    """

    values: Float[Array, "m k"]
    probabilities: Float[Array, "m k"]

    def __init__(self, values: ArrayLike | Iterable, probabilities: ArrayLike | Iterable):
        self.values = checks.as_array("values", values, (None, None))
        self.probabilities = checks.as_array("probabilities", probabilities, self.values.shape)
        if not checks.is_concrete(self.values):
            return
        if np.any(self.probabilities < 0) or np.any(np.abs(np.sum(self.probabilities, axis=1) - 1) > 1e-12):
            checks.refuse(
                "probabilities", "nonnegative with rows that sum to 1", f"they are {self.probabilities!s:.60}"
            )
        if np.any(self.values <= 0):
            checks.refuse("values", "positive, as a covariance is", f"they hold {np.min(self.values):g}")

    def moments(self) -> Float[Array, "3 m"]:
        return jnp.stack([jnp.sum(self.probabilities * self.values**order, axis=1) for order in (1, 2, 3)])

    def sample(self, key: PRNGKeyArray) -> Float[Array, " m"]:
        chosen = jax.random.categorical(key, jnp.log(self.probabilities))
        return jnp.take_along_axis(self.values, chosen[:, None], axis=1)[:, 0]

    def scaled(self, factor: Scalar) -> "Discrete":
        return Discrete(factor * self.values, self.probabilities)

    def distribution(self, x: Float[Array, " n"]) -> Float[Array, "n m"]:
        return jnp.sum(jnp.where(self.values[None] <= x[:, None, None], self.probabilities[None], 0.0), axis=2)

    def truncated_square(self, x: Float[Array, " n"]) -> Float[Array, "n m"]:
        mass = (self.probabilities * self.values**2)[None]
        return jnp.sum(jnp.where(self.values[None] <= x[:, None, None], mass, 0.0), axis=2)

    def panels(self) -> np.ndarray:
        return np.unique(np.append(0.0, np.asarray(self.values)))


class Moments(AbstractCoordinates):
    """Laws of which only the first three moments are known. They determine the flow, but samples cannot be drawn.

    **Arguments:** first, second, third: E lambda, E lambda^2 and E lambda^3, (m,), or a number for all variables.

    **Raises:** `ValueError` on moments that are not finite or that no positive random variable has.
    """

    first: Float[Array, " m"]
    second: Float[Array, " m"]
    third: Float[Array, " m"]

    def __init__(self, first: ArrayLike | Iterable, second: ArrayLike | Iterable, third: ArrayLike | Iterable):
        given = {"first": first, "second": second, "third": third}
        self.first, self.second, self.third = _parameters(given, positive=tuple(given))
        if not checks.is_concrete(self.first):
            return
        for name, value, least in (
            ("second", self.second, self.first**2),
            ("third", self.third, self.second**2 / self.first),
        ):
            low = np.asarray(value < (1 - 1e-12) * least)
            if np.any(low):
                expected = f"at least {float(least[np.argmax(low)]):g}, by the Cauchy-Schwarz inequality"
                checks.refuse(name, expected, f"it holds {float(value[np.argmax(low)]):g}")

    def moments(self) -> Float[Array, "3 m"]:
        return jnp.stack([self.first, self.second, self.third])

    def sample(self, key: PRNGKeyArray) -> Float[Array, " m"]:
        checks.refuse("covariance law", "known by more than its moments to be drawn from", "three moments were given")

    def scaled(self, factor: Scalar) -> "Moments":
        return Moments(factor * self.first, factor**2 * self.second, factor**3 * self.third)

    def distribution(self, x: Float[Array, " n"]) -> Float[Array, "n m"]:
        return jnp.full((x.size, self.first.size), jnp.nan)

    def truncated_square(self, x: Float[Array, " n"]) -> Float[Array, "n m"]:
        return jnp.full((x.size, self.first.size), jnp.nan)

    def panels(self) -> np.ndarray:
        return np.array([0.0, 1.0])


def _parameters(given: dict[str, ArrayLike | Iterable], positive: tuple[str, ...]) -> list[Float[Array, " m"]]:
    """The given parameters as arrays of one common length (m,). A single number is repeated.

    **Arguments:** given: the parameters, by name; positive: the names of those that must be positive.

    **Raises:** `ProblemError` naming the parameter.
    """
    arrays = {name: jnp.atleast_1d(jnp.asarray(value, dtype=jnp.float64)) for name, value in given.items()}
    length = max(array.size for array in arrays.values())
    result = []
    for name, array in arrays.items():
        value = jnp.broadcast_to(array, (length,)) if array.size == 1 else array
        value = checks.as_array(name, value, (length,))
        if name in positive and checks.is_concrete(value) and not np.all(value > 0):
            checks.refuse(name, "positive", f"it holds {np.min(value):g}")
        result.append(value)
    return result


def _graded(ends: np.ndarray) -> np.ndarray:
    """Points 0, b 2^-c, .., b/4, b/2, b, where b is the largest end and b 2^-c is far below the smallest end."""
    count = int(np.ceil(np.log2(np.max(ends) / np.min(ends)))) + 24
    return np.append(0.0, np.max(ends) * 2.0 ** np.arange(-count, 1))
