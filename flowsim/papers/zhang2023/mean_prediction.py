"""The mean prediction of the layer of zhang2023's section 4.3 over the covariance of a prompt, given its query.

The covariance Lambda_new of a prompt is random and its query x is drawn from N(0, Lambda_new). A query carries
information about its own covariance, so the mean given the query contains E[Lambda_new | x], not E[Lambda_new].
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.models import LinearAttention
from flowsim.tasks import Prompt
from flowsim.tasks.covariance_laws import DiagonalLaw, Gamma

_NODES = 801
_FAR = 7.0


def variances_given(law: DiagonalLaw, query: Float[Array, " d"]) -> Float[Array, " d"]:
    """E[lambda_i | x_i] with x_i ~ N(0, lambda_i) given lambda_i, for Gamma laws; NaN for others.

    The density of log lambda given x is proportional to exp((k - 1/2) s - r e^s - x^2 e^{-s}/2), with the law's shape k
    and rate r. It falls doubly exponentially on both sides, so the trapezoidal rule is exact to rounding. The
    entries of the query must not be zero.
    """
    if not all(isinstance(part, Gamma) for part in law.coordinates):
        return jnp.full(query.shape, jnp.nan)
    shape = jnp.concatenate([part.shape for part in law.coordinates if isinstance(part, Gamma)])
    rate = jnp.concatenate([part.rate for part in law.coordinates if isinstance(part, Gamma)])
    # At the ends x^2/lambda and rate lambda exceed 1000, where a factor below e^-500 remains.
    low, high = jnp.log(query**2) - _FAR, jnp.log1p(shape) - jnp.log(rate) + _FAR
    s = low[None, :] + jnp.linspace(0.0, 1.0, _NODES)[:, None] * (high - low)[None, :]
    exponent = (shape - 0.5)[None, :] * s - rate[None, :] * jnp.exp(s) - (query**2)[None, :] * jnp.exp(-s) / 2
    density = jnp.exp(exponent - jnp.max(exponent, axis=0)[None, :])
    return jnp.sum(density * jnp.exp(s), axis=0) / jnp.sum(density, axis=0)


def mean_prediction(
    model: LinearAttention, law: DiagonalLaw, query: Float[Array, " d"], weight: Float[Array, " d"]
) -> Float[Array, ""]:
    """E[yhat | x_query, w] of the literal model with u12 = u21 = 0, for any number of examples.

    The prediction is a mean over examples of a linear function of x_i x_i^T. Given the query, the equally likely points
    sqrt(d E[lambda_i | x_query]) e_i have the second moments of an example.
    """
    examples = jnp.diag(jnp.sqrt(query.size * variances_given(law, query)))
    return jnp.mean(jax.vmap(lambda x: model(Prompt(x[None], (x @ weight)[None], query)))(examples))
