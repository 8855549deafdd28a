"""New prompts for the limit (4.1): the laws, weights and draws on which zhang2023's section 4 is judged.

The claims about risks are about a task alone: there is no flow. A claim about all w, laws, lengths or prompts is
judged on those in this file. They include hard cases: weights along the smallest eigenvector, a single example, and
labels whose mean is not zero.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Matrix, Scalar
from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.statements import rounded
from flowsim.losses.prompt_risk import risk
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023.conditions import limit
from flowsim.papers.zhang2023.literal import LARGEST, linear_risk, literal_risk, polynomial_rule
from flowsim.tasks import LinearRegression, Prompt
from flowsim.tasks.joint_law import JointLaw

Task = LinearRegression
Route = Callable[[Scalar], Float[Array, " routes"]]

DEGREE = 8  # of squared errors in an example with a cubic label; each factor is rounded
DRAWN_LENGTHS = (1, 7)
_LENGTHS = (1.0, 2.0, 7.0, 50.0, 1e4, float("inf"))
_PROMPTS = 12
_ROUNDING = float(jnp.finfo(jnp.float64).eps)


def extreme_weights(covariance: Matrix) -> Float[Array, "K d"]:
    """Four weights w, as the rows of an array (4, d).

    One is along the largest eigenvector, a huge and a tiny one are along the smallest, and one is random.
    """
    vectors = jnp.linalg.eigh(covariance)[1]
    random = jax.random.normal(jax.random.key(0), vectors[0].shape)
    return jnp.stack([vectors[:, -1], 1e3 * vectors[:, 0], 1e-3 * vectors[:, 0], random])


def polynomials(covariance: Matrix) -> dict[str, Array]:
    """The arguments of `JointLaw.of_polynomial` for five laws, one row for each.

    The labels are linear; linear with noise; a square, for which E[xy] = 0; linear with a square and noise; and
    linear with a square, a cube and noise. The vectors w and v of a law are along eigenvectors or random.
    """
    large, _, small, random = extreme_weights(covariance)
    v, thin = (w / jnp.sqrt(w @ covariance @ w) for w in (random, small))
    return {
        "weight": jnp.stack([thin, random, 0 * v, large, random]),
        "direction": jnp.stack([v, v, v, thin, v]),
        "square": jnp.asarray([0.0, 0.0, 1.0, -2.0, 0.3]),
        "cube": jnp.asarray([0.0, 0.0, 0.0, 0.0, -0.7]),
        "label_noise": jnp.asarray([0.0, 0.5, 0.0, 0.1, 0.2]),
    }


def drawn_prompts(task: Task, length: int) -> tuple[Array, Array, Array]:
    """Random covariates (P, M, d), queries (P, d), and weights w (P, d) with standard deviations from 1e-2 to 1e2.

    **Arguments:** length: M, at most max(d, 7).
    """
    longest = max(task.dimension, *DRAWN_LENGTHS)
    normals = jax.random.normal(jax.random.key(0), (_PROMPTS, longest + 2, task.dimension))
    inputs = normals[:, 1:] @ jnp.linalg.cholesky(task.covariance).T
    return inputs[:, 1 : length + 1], inputs[:, 0], jnp.geomspace(1e-2, 1e2, _PROMPTS)[:, None] * normals[:, 0]


def predicted(task: Task, inputs: Array, queries: Array, weights: Array, expected: Callable) -> Comparison:
    """Compares predictions of the literal model at the limit (4.1) with expected ones, on prompts y_i = <w, x_i>.

    **Arguments:** inputs, queries, weights: as returned by `drawn_prompts`; expected: (x_query, S w, Gamma^-1) ->
    predictions (P,), with S = (1/M) sum x_i x_i^T.
    """
    labels = jnp.einsum("pmd,pd->pm", inputs, weights)
    model = limit(task)
    predictions = jax.vmap(lambda x, y, query: model(Prompt(x, y, query)))(inputs, labels, queries)
    inverse, gammas = jnp.linalg.inv(task.gamma()), jnp.linalg.eigvalsh(task.gamma())
    means = jnp.einsum("pmd,pm->pd", inputs, labels) / inputs.shape[1]
    terms = jnp.mean(jnp.linalg.norm(inputs, axis=2) * jnp.abs(labels), axis=1)
    size = jnp.linalg.norm(queries, axis=1) * terms / gammas[0]
    return rounded(equal(expected(queries, means, inverse), predictions, size), task.dimension * gammas[-1] / gammas[0])


def two_routes(model: LinearAttention, task: Task) -> Route:
    """A function of M that returns one or two values of the risk on prompts of a task, (routes,).

    The first value comes from the package's formula. The second value, which exists for d <= 4, is the risk of the
    literal model by cubature.
    """
    return _beside(model, task, lambda: linear_risk(model, task))


def polynomial_routes(model: LinearAttention, law: JointLaw, terms: dict[str, Array]) -> Route:
    """A function of M that returns one or two values of the risk for polynomial labels, (routes,).

    The first value comes from the package's formula. The second value, which exists for d <= 4, is the risk of the
    literal model by cubature.

    **Arguments:** law: the law of an example; terms: the arguments of `JointLaw.of_polynomial` that give this law.
    """

    def literal() -> Callable[[Scalar], Scalar]:
        rule = polynomial_rule(law.covariance, **terms)
        return literal_risk(model, rule, rule)

    return _beside(model, law, literal)


def _beside(model: LinearAttention, prompts: Task | JointLaw, literal: Callable[[], Callable]) -> Route:
    exact = lambda M: risk(model, prompts, M)
    if prompts.dimension > LARGEST:
        return lambda M: exact(M)[None]
    of_length = literal()
    return lambda M: jnp.stack([exact(M), of_length(M)])


def asymptotic(found: Route) -> Array:
    """The values at M = infinity of a function that `two_routes` or `polynomial_routes` returned."""
    return found(jnp.asarray(jnp.inf))


def each(function: Callable[[Any], tuple[Array, ...]], rows: Any) -> tuple[Array, ...]:
    """The values of a function at every row of some arrays, as one flat array for each value.

    At each row, the values that the function returns are broadcast to one shape.
    """
    values = jax.lax.map(lambda row: jnp.broadcast_arrays(*function(row)), rows)
    return tuple(leaf.reshape(-1) for leaf in values)


def at_every_length(function: Callable[[Scalar], tuple[Array, ...]]) -> tuple[Array, ...]:
    """The values of a function of M at M = 1, 2, 7, 50, 1e4 and infinity, as one flat array for each value."""
    return each(function, jnp.asarray(_LENGTHS))


def bounded(value: Array, bound: Array, energy: Array, amplified: Scalar) -> Comparison:
    """The statement risk <= bound, up to the rounding error of a risk.

    A risk contains E y^2 times the square of Lambda Gamma^-1 - I. Floats give this difference up to a few machine
    epsilon.

    **Arguments:** value: the risk; energy: E y^2; amplified: the factor by which rounding errors grow, as from
    `conditioning`.
    """
    doubt = bound + 2 * jnp.sqrt(bound * energy) + amplified * _ROUNDING * energy
    return eqx.tree_at(lambda c: c.scale, at_most(value, bound), amplified * doubt)


def conditioning(task: Task) -> Scalar:
    """The factor by which Gamma^-2 Lambda, Gamma^-2 Sigma and Lambda^-1 E[xy] magnify rounding errors.

    It is d (kappa(Gamma) (|Lambda| |Gamma^-1|)^2 + kappa(Lambda)), with kappa the condition number.
    """
    values, gammas = jnp.linalg.eigvalsh(task.covariance), jnp.linalg.eigvalsh(task.gamma())
    amplified = gammas[-1] / gammas[0] * (values[-1] / gammas[0]) ** 2
    return task.dimension * (amplified + values[-1] / values[0])
