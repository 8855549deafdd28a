"""Exact expectations over prompts, computed by cubature without the package's formulas for moments and risks.

With u12 = u21 = 0, the literal model's prediction is the mean of its predictions from each example alone. Let
f(z, x) be the prediction for a query x from the single example z. For each law of prompts, the risk on M
independent examples is

    E_query[(E_z f - y_query)^2 + Var_z(f)/M].
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from flowsim._core.types import Matrix, Scalar
from flowsim.models import LinearAttention
from flowsim.tasks import LinearRegression, Prompt

LARGEST = 4  # dimensions: the literal model makes about d^4 predictions of d^2 operations each
_HERMITE = 5  # nodes, exact to degree 9


def gaussian_sum(terms: Callable[[Float[Array, "K d"], Float[Array, " K"]], PyTree], d: int) -> PyTree:
    """E f(z) for z ~ N(0, I_d), exact for polynomials f of degree at most 5.

    The points are 0, +-sqrt(3) e_i and sqrt(3) (+-e_i +-e_j). Some weights are negative. Memory holds 4 d + 2 points at
    a time.

    **Arguments:** terms: points and weights -> the sum of the weights times f at the points.
    """
    identity = jnp.sqrt(3.0) * jnp.eye(d)

    def add(total, first):
        index, axis = first
        signs = [(s, t) for s in (1.0, -1.0) for t in (1.0, -1.0)]
        points = jnp.concatenate([axis[None], -axis[None], *[s * axis[None] + t * identity for s, t in signs]])
        pair = jnp.where(jnp.arange(d) == index, 0.0, 1 / 72)  # each pair appears twice
        block = terms(points, jnp.concatenate([jnp.full(2, (4 - d) / 18), *[pair] * 4]))
        return jax.tree.map(jnp.add, total, block), None

    middle = terms(jnp.zeros((1, d)), jnp.full(1, 1 + (d**2 - 7 * d) / 18))
    return jax.lax.scan(add, middle, (jnp.arange(d), identity))[0]


def fourth_moment(root: Matrix) -> Matrix:
    """E[|L z|^2 z z^T] for z ~ N(0, I_d), by the cubature of `gaussian_sum`, in O(d^3) operations.

    This is fast because opposite points have equal terms, and z z^T has at most four nonzero entries at each point.

    **Arguments:** root: (d, d) L.
    """
    d = root.shape[0]

    def at_pairs(column):
        return tuple(3 * jnp.sum((column[:, None] + sign * root) ** 2, axis=0) for sign in (1.0, -1.0))

    alike, opposite = jax.lax.map(at_pairs, root.T)
    apart = ~jnp.eye(d, dtype=bool)
    # Sums are divided, since float64 rounds the weights 1/6 and 1/3.
    on_axes = (4 - d) * jnp.sum(root**2, axis=0)
    in_pairs = jnp.sum(jnp.where(apart, alike + opposite, 0.0), axis=1) / 6
    return jnp.diag(on_axes + in_pairs) + jnp.where(apart, alike - opposite, 0.0) / 6


def second_moment(task: LinearRegression) -> Matrix:
    """E[Lambdahat^2] with Lambdahat = (1/N) sum x_i x_i^T, by cubature.

    It is E[x x^T x x^T]/N + (1 - 1/N) E[x x^T]^2.
    """
    root, N = jnp.linalg.cholesky(task.covariance), task.context_length
    second = root @ root.T
    return root @ fourth_moment(root) @ root.T / N + (1 - 1 / N) * second @ second


class Rule(eqx.Module):
    """A cubature rule for a law of examples: inputs (K, d), labels (K,), and weights (K,) that sum to one."""

    inputs: Float[Array, "K d"]
    labels: Float[Array, " K"]
    weights: Float[Array, " K"]

    def noisy(self, noise: Scalar) -> "Rule":
        """The rule of 2K points in which each label y is replaced by y + noise and y - noise, equally likely."""
        twice = lambda x: jnp.concatenate([x, x])
        labels = jnp.concatenate([self.labels + noise, self.labels - noise])
        return Rule(twice(self.inputs), labels, twice(self.weights) / 2)


def literal_risk(model: LinearAttention, examples: Rule, queries: Rule) -> Callable[[Scalar], Scalar]:
    """The risk E(yhat - y_query)^2 of the literal model with u12 = u21 = 0, as a function of the prompt length M.

    It is as exact as the rules for the laws of an example and of a query.

    **Arguments:** examples: the rule for (x_i, y_i); queries: the rule for (x_query, y_query).
    """

    def predictions(query):
        return jax.vmap(lambda x, y: model(Prompt(x[None], y[None], query)))(examples.inputs, examples.labels)

    single = jax.vmap(predictions)(queries.inputs)
    mean = single @ examples.weights
    variance = (single - mean[:, None]) ** 2 @ examples.weights
    miss = (mean - queries.labels) ** 2
    return lambda M: queries.weights @ miss + queries.weights @ variance / M


def linear_risk(model: LinearAttention, task: LinearRegression) -> Callable[[Scalar], Scalar]:
    """The risk of the literal model on prompts of a task, as a function of M.

    The risk is averaged over w unless the task has a fixed w.
    """
    d = task.dimension
    axes = jnp.sqrt(float(d)) * jnp.concatenate([jnp.eye(d), -jnp.eye(d)])
    # Squared errors are of degree 4 in an example, and 2 in the query and in w.
    points, weights = _degree_five(d)
    inputs = points @ jnp.linalg.cholesky(task.covariance).T
    spread = task.covariance if task.query_covariance is None else task.query_covariance
    queries = axes @ jnp.linalg.cholesky(spread).T

    def given(w: Float[Array, " d"]) -> Callable[[Scalar], Scalar]:
        rules = [Rule(inputs, inputs @ w, weights), Rule(queries, queries @ w, jnp.full(2 * d, 1 / (2 * d)))]
        if task.label_noise is not None:
            rules = [rule.noisy(task.label_noise) for rule in rules]
        return literal_risk(model, *rules)

    if task.weight is not None:
        return given(task.weight)
    # A risk is affine in 1/M.
    asymptotic, single = jax.lax.map(lambda w: (given(w)(jnp.asarray(jnp.inf)), given(w)(jnp.ones(()))), axes)
    return lambda M: jnp.mean(asymptotic + (single - asymptotic) / M)


def _degree_five(d: int) -> tuple[Float[Array, "K d"], Float[Array, " K"]]:
    """The points and weights of `gaussian_sum`."""
    axes = np.sqrt(3.0) * np.eye(d)
    first, second = np.triu_indices(d, 1)
    pairs = [s * axes[first] + t * axes[second] for s in (1.0, -1.0) for t in (1.0, -1.0)]
    points = np.concatenate([np.zeros((1, d)), axes, -axes, *pairs])
    weights = [np.full(1, 1 + (d**2 - 7 * d) / 18), np.full(2 * d, (4 - d) / 18), np.full(4 * first.size, 1 / 36)]
    return jnp.asarray(points), jnp.asarray(np.concatenate(weights))


def polynomial_rule(
    covariance: Matrix,
    weight: Float[Array, " d"],
    direction: Float[Array, " d"],
    square: Scalar,
    cube: Scalar,
    label_noise: Scalar,
) -> Rule:
    """A rule for examples with x ~ N(0, Lambda) and y = <w, x> + b <v, x>^2 + c <v, x>^3 + noise.

    It is exact for polynomials of degree 9 in x along w and v, 3 in x along other directions, and 3 in the noise.

    **Arguments:** covariance: (d, d) Lambda; weight: (d,) w; direction: (d,) v; square: b; cube: c; label_noise:
    the standard deviation of the noise.
    """
    d, root = covariance.shape[0], jnp.linalg.cholesky(covariance)
    plane = min(d, 2)
    # The first directions span v and w, in coordinates in which x is standard normal.
    spanning = jnp.concatenate([jnp.stack([root.T @ direction, root.T @ weight], axis=1), jnp.eye(d)], axis=1)
    basis = jnp.linalg.qr(spanning)[0]
    nodes, masses = np.polynomial.hermite_e.hermegauss(_HERMITE)
    masses = masses / np.sum(masses)
    inside = np.stack(np.meshgrid(*[nodes] * plane, indexing="ij"), axis=-1).reshape(-1, plane)
    inside_masses = np.prod(np.stack(np.meshgrid(*[masses] * plane, indexing="ij"), axis=-1).reshape(-1, plane), axis=1)
    rest = d - plane
    outside = np.sqrt(rest) * np.concatenate([np.eye(rest), -np.eye(rest)]) if rest else np.zeros((1, 0))
    z = np.concatenate([np.repeat(inside, len(outside), axis=0), np.tile(outside, (len(inside), 1))], axis=1)
    x = jnp.asarray(z) @ (root @ basis).T
    along = x @ direction
    labels = x @ weight + square * along**2 + cube * along**3
    weights = jnp.asarray(np.repeat(inside_masses, len(outside)) / len(outside))
    return Rule(x, labels, weights).noisy(label_noise)
