"""Laws of a prompt: the distribution of the covariates, the weights and the labels."""

import functools
from collections.abc import Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from flowsim import _checks
from flowsim.covariance_laws import AbstractCovarianceLaw


class Prompt(eqx.Module):
    """One prompt: labelled context examples and a query without its label.

    inputs: (N, d) rows x_i; labels: (N,) y_i; query: (d,) x_query.
    """

    inputs: Float[Array, "N d"]
    labels: Float[Array, " N"]
    query: Float[Array, " d"]


class LinearRegression(eqx.Module):
    """Noiseless linear regression prompts with a fixed covariance.

    x_i, x_query ~ N(0, Lambda), w ~ N(0, I), y_i = <w, x_i>; all independent.

    **Arguments:** covariance: (d, d) Lambda, symmetric positive definite; context_length: N, a whole
    number of at least 1, or infinity for the exact limit.

    **Raises:** `ValueError` naming the argument.

    **Source:** zhang2023, section 3.3.
    """

    covariance: Float[Array, "d d"]
    context_length: Float[Array, ""]

    def __init__(self, covariance: ArrayLike | Iterable, context_length: ArrayLike):
        self.covariance = _checks.positive_definite("covariance", covariance)
        self.context_length = _checks.context_length("context_length", context_length)

    @property
    def dimension(self) -> int:
        """d."""
        return self.covariance.shape[-1]

    @property
    def mean_covariance(self) -> Float[Array, "d d"]:
        """Lambda."""
        return self.covariance

    def gamma(self) -> Float[Array, "d d"]:
        """Gamma = (1 + 1/N) Lambda + (tr Lambda / N) I, so that E[Lambdahat^2] = Gamma Lambda.

        Lambdahat = (1/N) sum x_i x_i^T is the context's sample covariance. **Source:** zhang2023,
        Theorem 4.1.
        """
        inverse_n = 1 / self.context_length
        identity = jnp.eye(self.dimension)
        return (1 + inverse_n) * self.covariance + inverse_n * jnp.trace(self.covariance) * identity

    def sample(self, key: PRNGKeyArray) -> tuple[Prompt, Float[Array, ""]]:
        """Draw one prompt and the query's label <w, x_query>.

        **Raises:** `ValueError` if the context is infinite or its length is traced.
        """
        return _draw(key, self.covariance, _known_length(self.context_length))


def _known_length(context_length: Float[Array, ""]) -> int:
    """N, where prompts of it can be drawn."""
    if not _checks.is_concrete(context_length) or np.isinf(float(context_length)):
        _checks.fail("context_length", "a known finite number to sample a prompt", f"it is {context_length}")
    return int(float(context_length))


@functools.partial(jax.jit, static_argnums=2)
def _draw(key: PRNGKeyArray, covariance: Float[Array, "d d"], length: int) -> tuple[Prompt, Float[Array, ""]]:
    normals = jax.random.normal(key, (length + 2, covariance.shape[0]))
    weight, inputs = normals[0], normals[1:] @ jnp.linalg.cholesky(covariance).T
    labels = inputs @ weight
    return Prompt(inputs[:-1], labels[:-1], inputs[-1]), labels[-1]


class RandomCovarianceRegression(eqx.Module):
    """Noiseless linear regression prompts, each with a covariance of its own.

    Lambda_tau from a law; given it x_i, x_query ~ N(0, Lambda_tau), w ~ N(0, I), y_i = <w, x_i>.

    **Arguments:** law: of Lambda_tau; context_length: N, a whole number of at least 1, or infinity for the exact limit.

    **Raises:** `ValueError` naming the argument.

    **Source:** zhang2023, section 4.3.
    """

    law: AbstractCovarianceLaw
    context_length: Float[Array, ""]

    def __init__(self, law: AbstractCovarianceLaw, context_length: ArrayLike):
        if not isinstance(law, AbstractCovarianceLaw):
            _checks.fail("law", "a law of covariances, such as DiagonalLaw(Gamma(shape, rate))", f"got {law!r:.60}")
        self.law = law
        self.context_length = _checks.context_length("context_length", context_length)

    @property
    def dimension(self) -> int:
        """d."""
        return self.law.dimension

    @property
    def mean_covariance(self) -> Float[Array, "d d"]:
        """E Lambda_tau."""
        return self.law.expectation(lambda Lambda: Lambda)

    def sample(self, key: PRNGKeyArray) -> tuple[Prompt, Float[Array, ""]]:
        """Draw one covariance and one prompt with it, and the query's label <w, x_query>.

        **Raises:** `ValueError` if the context is infinite or its length is traced, or the law cannot be drawn from.
        """
        law_key, prompt_key = jax.random.split(key)
        return _draw(prompt_key, self.law.sample(law_key), _known_length(self.context_length))
