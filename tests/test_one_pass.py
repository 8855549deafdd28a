"""One-pass SGD by exact moments: against quadrature over all that is random, sampled descents and gradient descent."""

import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim
from flowsim.moments.one_pass import OnePassSGD
from flowsim.tasks import LinearRegression


def close(actual, expected, rtol):
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=1e-14)


def prompts_by_quadrature(task, N, nodes=5):
    """All prompts of a Gauss rule over the covariates, the weight and the noise, exact to degree 2 nodes - 1 in each:
    z, w, the query, its label and their probabilities.
    """
    d, noise = task.dimension, float(task.label_noise or 0.0)
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    count = N * d + d + d + (N + 1 if noise else 0)
    normals = np.array(list(itertools.product(points, repeat=count)))
    mass = np.prod(list(itertools.product(weights / weights.sum(), repeat=count)), axis=1)
    X = normals[:, : N * d].reshape(-1, N, d) @ np.linalg.cholesky(task.covariance).T
    w = normals[:, N * d : N * d + d] @ np.linalg.cholesky(task.weight_covariance).T
    covariance = task.covariance if task.query_covariance is None else task.query_covariance
    x = normals[:, N * d + d : N * d + 2 * d] @ np.linalg.cholesky(covariance).T
    e = noise * normals[:, N * d + 2 * d :] if noise else np.zeros((len(X), N + 1))
    y = np.einsum("pnd,pd->pn", X, w) + e[:, :N]
    return np.einsum("pn,pnd->pd", y, X) / N, x, np.einsum("pd,pd->p", x, w) + e[:, N], mass


def gradients(Gamma, z, x, y):
    """Those of each prompt, at one Gamma or at one for each prompt."""
    x, z = x[:, :, None], z[:, :, None]
    missed = x.swapaxes(1, 2) @ Gamma @ z - y[:, None, None]
    return missed * x * z.swapaxes(1, 2)


TASKS = {
    "one coordinate, two examples": (2, LinearRegression([[0.7]], 2, label_noise=0.5, prior_covariance=[[1.3]])),
    "two coordinates, one example": (1, LinearRegression([[1.0, 0.4], [0.4, 0.6]], 1)),
    "shifted query": (
        1,
        LinearRegression(
            [[1.0, 0.2], [0.2, 0.5]],
            1,
            query_covariance=[[0.8, -0.3], [-0.3, 1.5]],
            prior_covariance=[[1.0, 0.5], [0.5, 2.0]],
        ),
    ),
}


@pytest.mark.parametrize("name", TASKS)
def test_one_step_has_the_moments_of_quadrature_over_all_that_is_random(name):
    N, task = TASKS[name]
    sgd, d = OnePassSGD(task), task.dimension
    z, x, y, mass = prompts_by_quadrature(task, N)
    risk = lambda Gamma: mass @ (np.einsum("pi,ij,pj->p", x, Gamma, z) - y) ** 2 / 2
    close(sgd.minimum, risk(np.asarray(sgd.least)), 1e-12)
    start, eta = np.random.default_rng(5).standard_normal((d, d)), 0.13
    close(sgd.excess(jnp.asarray(start)), risk(start) - risk(np.asarray(sgd.least)), 1e-11)
    steps = gradients(start, z, x, y)
    mean = np.einsum("p,pij->ij", mass, steps)
    close(jax.grad(sgd.excess)(jnp.asarray(start)), mean, 1e-11)
    # The excess is quadratic, so that the mean over all next iterates takes one sum over prompts.
    for batch in (1, 3):
        found = sgd.moments(start, [eta], batch=batch)
        close(found.mean[1], start - eta * mean, 1e-11)
        form = lambda one, other: np.einsum("ij,pq,...ip,...jq->...", sgd.query, sgd.energy, one, other) / 2
        spread = mass @ form(steps, steps) / batch + (1 - 1 / batch) * form(mean, mean)
        off = start - np.asarray(sgd.least)
        close(found.excess[1], form(off, off) - 2 * eta * form(off, mean) + eta**2 * spread, 1e-11)
        close(found.bias[1], sgd.excess(found.mean[1]), 1e-12)


@pytest.mark.parametrize("name", TASKS)
def test_further_steps_have_the_moments_of_quadrature_too(name):
    """Sums over all prompts of what a step does to a mean and a second moment, with no moment of theirs known."""
    N, task = TASKS[name]
    sgd, d = OnePassSGD(task), task.dimension
    z, x, y, mass = prompts_by_quadrature(task, N)
    features = (x[:, :, None] * z[:, None, :]).reshape(-1, d * d)
    form = np.kron(sgd.query, sgd.energy) / 2
    sizes, batch, start = [0.2, 0.1, 0.15], 2, np.random.default_rng(6).standard_normal((d, d))
    mean, second = start.ravel(), np.outer(start, start)
    least = np.asarray(sgd.least).ravel()
    found = sgd.moments(start, sizes, batch=batch)
    for k, eta in enumerate(sizes, start=1):
        seen = features @ mean
        square = np.einsum("pa,ab,pb->p", features, second, features) - 2 * y * seen + y**2
        once = (mass * (seen - y)) @ features
        across = features.T @ (mass[:, None] * (features @ second - np.outer(y, mean)))
        both = features.T @ ((mass * square)[:, None] * features)
        A, b = features.T @ (mass[:, None] * features), (mass * y) @ features
        of_mean = A @ second @ A - np.outer(A @ mean, b) - np.outer(b, A @ mean) + np.outer(b, b)
        mean = mean - eta * once
        second = second - eta * (across + across.T) + eta**2 * (both / batch + (1 - 1 / batch) * of_mean)
        off = second - np.outer(mean, least) - np.outer(least, mean) + np.outer(least, least)
        close(found.excess[k], np.sum(form * off), 1e-11)


def test_many_steps_are_what_sampled_descents_do_in_the_mean():
    task = LinearRegression(np.diag([1.0, 0.5]), 4, label_noise=0.3)
    sgd, sizes, copies = OnePassSGD(task), np.full(100, 0.01), 20_000
    rng = np.random.default_rng(11)
    Gamma = np.zeros((copies, 2, 2))
    for eta in sizes:
        X = rng.standard_normal((copies, 5, 2)) * np.sqrt([1.0, 0.5])
        w = rng.standard_normal((copies, 2))
        y = np.einsum("pnd,pd->pn", X, w) + 0.3 * rng.standard_normal((copies, 5))
        z = np.einsum("pn,pnd->pd", y[:, :4], X[:, :4]) / 4
        Gamma -= eta * gradients(Gamma, z, X[:, 4], y[:, 4])
    excess = np.array(jax.vmap(sgd.excess)(jnp.asarray(Gamma)))
    found = sgd.moments(np.zeros((2, 2)), sizes)
    assert abs(np.mean(excess) - found.excess[-1]) <= 4.5 * np.std(excess) / np.sqrt(copies)
    spread = np.std(Gamma, axis=0) / np.sqrt(copies)
    assert np.all(np.abs(np.mean(Gamma, axis=0) - found.mean[-1]) <= 4.5 * spread)
    # The noise of the steps is seen: without it the mean would be far off.
    assert found.excess[-1] - found.bias[-1] > 10 * np.std(excess) / np.sqrt(copies)


def test_the_mean_is_gradient_descent_and_so_are_ever_larger_batches():
    task = LinearRegression(np.diag([1.0, 0.5, 0.3]), 10, label_noise=0.2)
    sgd, start = OnePassSGD(task), jnp.zeros((3, 3))
    loss = flowsim.FunctionLoss(sgd.excess, excess=sgd.excess, minimum=0.0)
    descent = flowsim.gradient_descent(loss, start, 0.4, 50)
    found = sgd.moments(start, np.full(50, 0.4))
    close(found.mean, descent.models, 1e-12)
    close(found.bias, descent.excess, 1e-12)
    apart = [sgd.moments(start, np.full(50, 0.4), batch=B).excess[-1] - found.bias[-1] for B in (10**4, 10**5, 10**6)]
    np.testing.assert_allclose(np.diff(np.log10(apart)), -1.0, atol=1e-3)


def test_an_endless_context_without_noise_learns_without_an_error_that_stays():
    """Then w = Gamma* z exactly, so that steps of one size end at the minimum."""
    task = LinearRegression(np.diag([1.0, 0.5]), np.inf)
    sgd = OnePassSGD(task)
    close(sgd.least, np.diag([1.0, 2.0]), 1e-14)
    found = sgd.moments(np.zeros((2, 2)), np.full(4000, 0.05))
    assert found.excess[-1] <= 1e-14 * found.excess[0]
    noisy = OnePassSGD(LinearRegression(np.diag([1.0, 0.5]), np.inf, label_noise=0.1))
    assert noisy.moments(np.zeros((2, 2)), np.full(4000, 0.05)).excess[-1] > 1e-5


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (LinearRegression([[1.0]], 3, prior_mean=[1.0]), "task must be one without prior_mean"),
        (LinearRegression([[1.0]], 3, weight=[1.0]), "task must be one without weight"),
        ("task", "task must be a LinearRegression"),
    ],
)
def test_other_tasks_are_refused(task, words):
    with pytest.raises(ValueError, match=words):
        OnePassSGD(task)


def test_bad_arguments_are_refused_by_name():
    sgd = OnePassSGD(LinearRegression(np.eye(2), 3))
    with pytest.raises(ValueError, match="start must be an array of shape"):
        sgd.moments(np.zeros((3, 3)), [0.1])
    with pytest.raises(ValueError, match="step_sizes must be at least 0"):
        sgd.moments(np.zeros((2, 2)), [0.1, -0.1])
    with pytest.raises(
        ValueError, match="step_sizes must be such that float64 holds the moments, .* iterate 1 overflow"
    ):
        sgd.moments(np.zeros((2, 2)), [1e200, 0.1])
    with pytest.raises(ValueError, match="batch must be a whole number"):
        sgd.moments(np.zeros((2, 2)), [0.1], batch=0)


@pytest.mark.parametrize("N", [3, 10**6, 10**12])
def test_nothing_cancels_as_the_context_grows(N):
    """In one coordinate, by fractions: the least loss, and the loss after a step from the minimum."""
    h, noise, q, eta = Fraction(1, 2), Fraction(1, 2**20) ** 2, Fraction(1, N), Fraction(1, 8)
    sgd = OnePassSGD(LinearRegression([[0.5]], N, label_noise=2.0**-20))
    # E w^2j s^k for w ~ N(0, 1) and s = h w^2 + noise, and the moments of z given w.
    normal = [1, 0, 1, 0, 3, 0, 15, 0, 105]
    mean = lambda w, s: sum(math.comb(s, k) * h**k * noise ** (s - k) * normal[w + 2 * k] for k in range(s + 1))
    a = [1, 1, 1 + q, (1 + q) * (1 + 2 * q), (1 + q) * (1 + 2 * q) * (1 + 3 * q)]
    b = [0, 0, q, q * (1 + 2 * q), q * (1 + 2 * q) * (1 + 3 * q)]

    def moment(m, n):
        """E z^m w^n."""
        pairs = math.comb(m, 2) * b[m] * h ** (m - 1) * (mean(m + n - 2, 1) if m >= 2 else 0)
        return a[m] * h**m * mean(m + n, 0) + pairs + (3 * q**2 * (1 + 2 * q) * h**2 * mean(0, 2) if m == 4 else 0)

    least = moment(1, 1) / moment(2, 0)
    missed = moment(0, 2) - least * moment(1, 1)
    close(sgd.minimum / float((h * missed + noise) / 2), 1.0, 1e-14)
    # The gradient at the minimum is -x (x (w - least z) + e) z.
    spread = sum(math.comb(2, k) * (-least) ** k * moment(2 + k, 2 - k) for k in range(3))
    squares = 3 * h**2 * spread + h * noise * moment(2, 0)
    found = sgd.moments(np.array([[float(least)]]), [float(eta)])
    close(found.excess[1] / float(h * moment(2, 0) / 2 * eta**2 * squares), 1.0, 1e-13)


def test_known_steps_are_known_while_a_function_is_traced():
    sgd = OnePassSGD(LinearRegression(np.eye(2), 5))
    excess = lambda start: sgd.moments(start, [0.1, 0.2]).excess
    close(jax.jit(excess)(jnp.ones((2, 2))), excess(jnp.ones((2, 2))), 1e-14)
    with pytest.raises(ValueError, match="step_sizes must be at least 0, but the least is -0.1"):
        jax.jit(lambda start: sgd.moments(start, [0.1, -0.1]).excess)(jnp.ones((2, 2)))


def test_a_task_whose_energy_has_no_inverse_is_refused():
    with pytest.raises(ValueError, match="task must be one whose E z z"):
        OnePassSGD(LinearRegression(np.eye(2), 5, prior_covariance=np.zeros((2, 2))))
    OnePassSGD(LinearRegression(np.eye(2), 5, prior_covariance=np.zeros((2, 2)), label_noise=0.1))
