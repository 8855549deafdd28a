"""Proved bounds on the rest of the way of a flow: in continua of minima, of many weights, by float64 enclosures."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from linear_nets import Layers, Weights, layers, target

from flowsim._core.balls import floats
from flowsim._core.balls.enclosure import Traced, lower, upper
from flowsim._core.balls.operations import UndecidedError
from flowsim.flow.basin import Landscape, curvature, way_to_go

RNG = np.random.default_rng(11)
MATRIX = RNG.standard_normal((3, 4))


def rest_of_the_way(loss, model):
    field = lambda model: jax.tree.map(jnp.negative, eqx.filter(jax.grad(loss)(model), eqx.is_inexact_array))
    return way_to_go(Landscape(field, lambda model: None, loss), model, model)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))])
def test_the_way_of_a_quadratic_is_at_least_its_length(seed):
    """x(t) - x is known in the eigenbasis of X^T X: its length by quadrature, also along flat directions."""
    rng = np.random.default_rng(100 + seed)
    n = int(rng.integers(2, 200))
    m = int(rng.integers(1, 2 * n))
    X, y = rng.standard_normal((m, n)), rng.standard_normal(m)
    flat = np.linalg.svd(X)[2][m:].T
    there = np.linalg.lstsq(X, y, rcond=None)[0] + (flat @ rng.standard_normal(flat.shape[1]) if m < n else 0.0)
    start = there + 10.0 ** rng.uniform(-9, 0) * rng.standard_normal(n)
    found = rest_of_the_way(lambda net: jnp.sum((X @ net.w - y) ** 2), Weights(jnp.asarray(start)))
    _, sizes, basis = np.linalg.svd(X, full_matrices=False)
    ahead, rates = basis @ (start - there), 2 * sizes**2
    times = np.append(0.0, np.geomspace(1e-5 / rates[0], 40 / rates[-1], 4000))
    speeds = np.linalg.norm(rates * ahead * np.exp(-np.outer(times, rates)), axis=1)
    length = np.trapezoid(speeds, times)
    assert np.linalg.norm(ahead) <= 1.001 * length
    assert 0.999 * length <= found <= (sizes[0] / sizes[-1]) ** 2 * 1.1 * length + 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_the_way_of_a_deep_net_is_at_least_its_length(seed):
    rng = np.random.default_rng(200 + seed)
    d = int(rng.integers(2, 8))
    M = target(d, 200 + seed)
    roots = layers(d, balanced=False, scale=1.0, seed=seed)
    last = np.linalg.solve((roots.W2 @ roots.W1).T, M.T).T  # W3 W2 W1 = M
    off = 10.0 ** rng.uniform(-8, -4)
    net = [np.asarray(W) + off * rng.standard_normal((d, d)) for W in (roots.W1, roots.W2, last)]
    loss = lambda net: jnp.sum((net.product - M) ** 2) / 2
    found = rest_of_the_way(loss, Layers(*map(jnp.asarray, net)))

    def field(t, x):
        W1, W2, W3 = x[:-1].reshape(3, d, d)
        E = W3 @ W2 @ W1 - M
        slope = np.concatenate([np.ravel(g) for g in (W2.T @ W3.T @ E, W3.T @ E @ W1.T, E @ (W2 @ W1).T)])
        return np.append(-slope, np.linalg.norm(slope))

    # The weights and the length of their path.
    solved = scipy.integrate.solve_ivp(field, (0, 1e3), [*np.ravel(net), 0.0], method="LSODA", rtol=1e-8, atol=1e-13)
    length = solved.y[-1, -1]
    ending = solved.y[:-1, -1].reshape(3, d, d)
    assert np.linalg.norm(ending - np.asarray(net)) <= length * 1.001
    assert length * 0.999 <= found <= 1e4 * length


def test_the_way_of_equations_that_repeat_each_other_is_known_by_their_rank():
    """Differences along the edges of a graph, and a column for each level of two factors: no full rank either way."""
    edges = [(i, j) for i in range(8) for j in range(i)]
    graph = np.zeros((28, 8))
    for row, (i, j) in zip(graph, edges, strict=True):
        row[[i, j]] = 1.0, -1.0
    rng = np.random.default_rng(5)
    levels = np.hstack([np.eye(3)[rng.integers(3, size=30)], np.eye(4)[rng.integers(4, size=30)]])
    for X in (graph, levels):
        y, start = rng.standard_normal(len(X)), rng.standard_normal(X.shape[1])
        distance = np.linalg.norm(np.linalg.pinv(X) @ (X @ start - y))
        rates = np.linalg.svd(X)[1] ** 2
        rates = rates[rates > 1e-9]
        found = rest_of_the_way(lambda net, X=X, y=y: jnp.sum((X @ net.w - y) ** 2), Weights(jnp.asarray(start)))
        assert distance <= found <= 1.001 * rates[0] / rates[-1] * distance
        # An equation that nearly repeats others may have moved the flow for as long as its digits.
        near = X + 1e-13 * rng.standard_normal(X.shape)
        assert (
            rest_of_the_way(lambda net, X=near, y=y: jnp.sum((X @ net.w - y) ** 2), Weights(jnp.asarray(start))) > 1e9
        )


def test_nothing_is_known_at_saddles_and_degenerate_minima_or_of_losses_that_are_no_such_quadratic():
    near = lambda W: jnp.asarray(W + 1e-9 * RNG.standard_normal(np.shape(W)))
    M = target(12)
    plain = lambda net: jnp.sum((net.product - M) ** 2) / 2
    zero = Layers(*(near(np.zeros((12, 12))) for _ in range(3)))
    assert rest_of_the_way(plain, zero) == math.inf
    # One singular value of the product is still zero.
    left, sizes, right = np.linalg.svd(M)
    roots = np.diag(np.append(sizes[:-1], 0.0) ** (1 / 3))
    assert rest_of_the_way(plain, Layers(near(roots @ right), near(roots), near(left @ roots))) == math.inf
    # The limit has a rank below that of the layers' width.
    low = left * np.append(sizes[:-1], 0.0) @ right
    there = Layers(near(roots @ right), near(roots), near(left @ roots))
    assert rest_of_the_way(lambda net: jnp.sum((net.product - low) ** 2) / 2, there) == math.inf
    w = Weights(jnp.asarray(1e-9 * RNG.standard_normal(200)))
    signs = np.where(np.arange(200) < 199, 1.0, -1.0)
    assert rest_of_the_way(lambda net: jnp.sum(signs * net.w**2), w) == math.inf
    assert rest_of_the_way(lambda net: jnp.sum(net.w[1:] ** 2) - 1e-9 * net.w[0] ** 2, w) == math.inf
    assert rest_of_the_way(lambda net: jnp.sum(net.w[1:] ** 2) + net.w[0] ** 4, w) == math.inf
    assert rest_of_the_way(lambda net: jnp.sum(jnp.where(net.w > 0, net.w, 2 * net.w) ** 2), w) == math.inf
    stopped = lambda net: jnp.sum(jax.lax.stop_gradient(net.w) * net.w)
    assert rest_of_the_way(stopped, w) == math.inf
    assert rest_of_the_way(lambda net: jnp.sum(net.w**2), w) < 1e-7


def test_a_jacobian_that_loses_its_rank_within_the_ball_proves_nothing():
    """L = |w^2 - 1|^2 of 200 weights, all near 1 but one at 0.3: the way is too long for a steep ball."""
    loss = lambda net: jnp.sum((net.w**2 - 1) ** 2)
    near = np.ones(200) + 1e-6 * RNG.standard_normal(200)
    distance = np.linalg.norm(near - 1)
    assert distance <= rest_of_the_way(loss, Weights(jnp.asarray(near))) <= 1.1 * distance
    assert rest_of_the_way(loss, Weights(jnp.asarray(np.append(near[1:], 0.3)))) == math.inf


PROGRAMS = {
    "products": lambda x: jnp.einsum("ij,kj->ik", x, x) @ x,
    "batches": lambda x: jnp.einsum("bij,bjk->bik", jnp.stack([x, 2 * x]), jnp.stack([x.T, x.T])),
    "sums": lambda x: jnp.sum(x * 1e8, axis=0) - jnp.sum(1e8 * x[::-1], axis=0) + x[0],
    "moves": lambda x: jnp.concatenate([x[1:].T, jnp.pad(x, ((0, 1), (2, 0)))[:, :2]], axis=1),
    "places": lambda x: x[jnp.asarray([2, 0])] ** 3,
    "functions": lambda x: jnp.tanh(x) / (2 + jnp.sin(x)) - jnp.exp(-x) * jnp.sqrt(1 + x**2),
    "slopes": jax.grad(lambda x: jnp.sum(jnp.tanh(x @ x.T) ** 2)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("radius", [0.0, 1e-12, 1e-3])
def test_float64_enclosures_hold_the_balls_of_128_digits(name, radius):
    traced = Traced(PROGRAMS[name], MATRIX)
    (found,) = floats.enclosed(traced, floats.wide(MATRIX, radius))
    for _ in range(5):
        value = traced.on(MATRIX + radius * 0.999 * RNG.uniform(-1, 1, MATRIX.shape))
        # The differences are computed in float64, with an error of their last digit.
        slack = 1e-300 + 3e-16 * np.abs(found.middle)
        assert np.all(found.middle - found.radius <= lower(value) + slack)
        assert np.all(upper(value) <= found.middle + found.radius + slack)
    assert np.max(found.radius) <= 1e-6 + 1e3 * radius * (1e8 if name == "sums" else 1.0)


def test_float64_enclosures_refuse_what_they_do_not_know():
    for program in (lambda x: jnp.where(x > 0, x, -x), jnp.abs, lambda x: jnp.linalg.inv(x @ x.T), jnp.max):
        with pytest.raises(UndecidedError):
            floats.enclosed(Traced(program, MATRIX), floats.wide(MATRIX, 1e-3))


@pytest.mark.parametrize("seed", range(8))
def test_bounds_on_curvatures_and_singular_values_hold_for_every_matrix_within(seed):
    rng = np.random.default_rng(300 + seed)
    m = int(rng.integers(1, 30))
    n = m + int(rng.integers(0, 30))
    A, size = rng.standard_normal((m, n)), 10.0 ** rng.uniform(-12, -2)
    rest = size * rng.uniform(size=A.shape)
    bound = curvature.least_singular_value(floats.Wide(A, rest))
    within = [np.linalg.svd(A + rest * rng.uniform(-1, 1, A.shape))[1][-1] for _ in range(20)]
    assert 0 <= bound <= min(within) + 1e-14 and bound >= np.linalg.svd(A)[1][-1] - 2 * np.linalg.norm(rest) - 1e-11
    gram, of_gram = A @ A.T + np.eye(m), size * np.ones((m, m))
    bound = curvature.least_eigenvalue(floats.Wide(gram, of_gram))
    assert 0.9 * np.linalg.eigvalsh(gram)[0] - size * m <= bound <= np.linalg.eigvalsh(gram)[0] + 1e-12
    assert curvature.least_eigenvalue(floats.Wide(gram - 1e4 * np.eye(m), of_gram)) <= 0
    assert curvature.least_singular_value(floats.Wide(A.T, rest.T)) == 0 or m == n
    repeated = np.concatenate([A, A[:1]])
    assert (
        curvature.least_singular_value(floats.Wide(np.hstack([repeated, 0 * repeated]), 0 * np.hstack([repeated] * 2)))
        <= 0
    )


def test_what_float64_enclosures_do_not_know_is_left_to_balls(monkeypatch):
    rng = np.random.default_rng(6)
    X, start = rng.standard_normal((40, 20)), 1e-8 * rng.standard_normal(20)
    of_rows = lambda net: jnp.sum(jax.lax.map(lambda row: jnp.tanh(row @ net.w) ** 2, X))
    with pytest.raises(UndecidedError, match="scan is not known"):
        floats.enclosed(Traced(lambda w: of_rows(Weights(w)), start), floats.wide(start))
    monkeypatch.setattr(curvature, "MOST_IN_BALLS", 0)
    found = rest_of_the_way(of_rows, Weights(jnp.asarray(start)))
    assert np.linalg.norm(start) <= found <= 100 * np.linalg.norm(start)
