"""Statements about t to infinity: continua of minima, losses of many weights, infima at infinity, least norms."""

import functools
import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

import flowsim
from flowsim import FunctionLoss, Judgement, Stop
from flowsim._core.balls import floats
from flowsim._core.balls.enclosure import Traced, lower, upper
from flowsim._core.balls.operations import UndecidedError
from flowsim.flow.basin import Landscape, curvature, way_to_go

STRICT = Stop(excess=1e-24, grad_norm=1e-13)
RNG = np.random.default_rng(11)
MATRIX = RNG.standard_normal((3, 4))


class Layers(eqx.Module):
    W1: jax.Array
    W2: jax.Array
    W3: jax.Array

    @property
    def product(self):
        return self.W3 @ self.W2 @ self.W1


class Diagonal(eqx.Module):
    u: jax.Array
    v: jax.Array

    @property
    def beta(self):
        return self.u * self.u - self.v * self.v


class Weights(eqx.Module):
    w: jax.Array


def orthogonal(d, rng):
    return np.linalg.qr(rng.standard_normal((d, d)))[0]


def layers(d, *, balanced, scale=0.3, seed=1):
    """Three layers; balanced ones have W_{k+1}^T W_{k+1} = W_k W_k^T, and the product has a positive determinant."""
    rng = np.random.default_rng(seed)
    if not balanced:
        return Layers(*(jnp.asarray(scale * np.eye(d) + 0.3 * scale * rng.standard_normal((d, d))) for _ in range(3)))
    turns = [orthogonal(d, rng) for _ in range(4)]
    turns[3][:, 0] *= np.sign(np.linalg.det(turns[3]) * np.linalg.det(turns[0]))
    sizes = scale * np.exp(0.3 * rng.standard_normal(d))
    return Layers(*(jnp.asarray(turns[k + 1] * sizes @ turns[k].T) for k in range(3)))


def target(d, seed=1):
    return np.eye(d) + np.random.default_rng(seed).standard_normal((d, d)) / (2 * np.sqrt(d))


def deep(balanced, form, d=5):
    """A linear network of three layers with the limit of its product."""
    M = target(d)
    S = np.diag(np.linspace(0.5, 2.0, d))
    rng = np.random.default_rng(2)
    X = rng.standard_normal((d, 40))
    Y = M @ X + 0.1 * rng.standard_normal((d, 40))
    losses = {
        "plain": lambda net: jnp.sum((net.product - M) ** 2) / 2,
        "covariance": lambda net: jnp.trace((net.product - M) @ S @ (net.product - M).T) / 2,
        "noisy data": lambda net: jnp.mean((net.product @ X - Y) ** 2),
    }
    limit = Y @ X.T @ np.linalg.inv(X @ X.T) if form == "noisy data" else M
    # A minimum that is not zero would end the flow where the excess is rounding.
    return (
        FunctionLoss(losses[form], minimum=None if form == "noisy data" else 0.0),
        layers(d, balanced=balanced),
        lambda net: net.product,
        limit,
    )


def diagonal(d=30, m=8, scale=1e-6):
    """u u - v v from u = v = scale: u v is conserved, so that beta = 2 scale^2 sinh(X^T z) for some z."""
    rng = np.random.default_rng(0)
    X, true = rng.standard_normal((m, d)), np.zeros(d)
    true[:3] = 1.0, -1.5, 0.7
    y = X @ true
    loss = FunctionLoss(lambda net: jnp.sum((X @ net.beta - y) ** 2) / (2 * m), minimum=0.0)
    return loss, Diagonal(jnp.full(d, scale), jnp.full(d, scale)), lambda net: net.beta, entropic(X, y, scale)


def entropic(X, y, scale):
    """The solution of X beta = y with asinh(beta/(2 scale^2)) in the row space of X, by damped Newton steps on z."""
    z, size = np.zeros(y.size), 2 * scale**2
    for _ in range(5000):
        beta = size * np.sinh(X.T @ z)
        step = np.linalg.solve(X * (size * np.cosh(X.T @ z)) @ X.T, y - X @ beta)
        z = z + step * min(1.0, 1.0 / np.max(np.abs(step)))
        if np.max(np.abs(step)) < 1e-13 * np.max(np.abs(z)):
            break
    beta = size * np.sinh(X.T @ z)
    np.testing.assert_allclose(X @ beta, y, atol=1e-12)
    return beta


def ridge(d=20, penalty=0.1, m=40):
    rng = np.random.default_rng(3)
    X, Y = rng.standard_normal((m, d)), rng.standard_normal((m, d))
    loss = FunctionLoss(lambda net: jnp.sum((X @ net.w - Y) ** 2) / (2 * m) + penalty / 2 * jnp.sum(net.w**2))
    exact = np.linalg.solve(X.T @ X / m + penalty * np.eye(d), X.T @ Y / m)
    return loss, Weights(jnp.zeros((d, d))), lambda net: net.w, exact


def tends(f, expected, size):
    def compare(loss, flow):
        value, allowance = flowsim.limit(flow, f)
        return flowsim.equal(value, jnp.asarray(expected)[None], size, allowance=allowance)

    return flowsim.Claim("a.limit", "a test", "f -> ..", compare)


@pytest.mark.parametrize(
    "problem",
    [
        functools.partial(deep, True, "plain"),
        functools.partial(deep, False, "plain"),
        functools.partial(deep, False, "covariance"),
        functools.partial(deep, True, "noisy data"),
        diagonal,
        ridge,
    ],
    ids=["balanced", "unbalanced", "covariance", "noisy data", "diagonal", "ridge"],
)
def test_the_limit_in_a_continuum_or_of_many_weights_is_known_to_ten_digits(problem):
    loss, start, f, exact = problem()
    run = flowsim.gradient_flow(loss, start, rtol=1e-10, stop=STRICT)
    value, bound = flowsim.limit(run, f)
    assert np.max(bound) < 1e-10
    size = float(np.max(np.abs(exact)))
    claims = [tends(f, exact, size), tends(f, exact * (1 + 1e-6), size)]
    true, false = flowsim.judge(claims, loss, run)
    assert true.verdict is Judgement.HOLDS, true
    assert false.verdict is Judgement.VIOLATED, false
    assert all(verdict.floor is not None and verdict.floor < 1e-8 for verdict in (true, false))


def rest_of_the_way(loss, model):
    field = lambda model: jax.tree.map(jnp.negative, eqx.filter(jax.grad(loss)(model), eqx.is_inexact_array))
    return way_to_go(Landscape(field, lambda model: None, loss), model, model)


@pytest.mark.parametrize("seed", range(12))
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
    solved = scipy.integrate.solve_ivp(field, (0, 1e4), [*np.ravel(net), 0.0], method="LSODA", rtol=1e-9, atol=1e-14)
    length = solved.y[-1, -1]
    ending = solved.y[:-1, -1].reshape(3, d, d)
    assert np.linalg.norm(ending - np.asarray(net)) <= length * 1.001
    assert length * 0.999 <= found <= 1e4 * length


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


def logistic():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 3))
    signed = X * np.sign(X @ [1.0, 2.0, -1.0])[:, None]
    return FunctionLoss(lambda net: jnp.mean(jax.nn.softplus(-(signed @ net.w))), minimum=0.0), Weights(jnp.zeros(3))


def attention():
    """One query: the attended value tends to the largest of three, 1, while the weights grow."""
    keys, values = np.random.default_rng(1).standard_normal((3, 3)), np.asarray([1.0, 0.3, -0.5])
    loss = FunctionLoss(lambda net: (jax.nn.softmax(keys @ net.w) @ values - 1.0) ** 2 / 2, minimum=0.0)
    return loss, Weights(jnp.zeros(3)), lambda net: jax.nn.softmax(keys @ net.w)[0]


def test_where_weights_diverge_the_reason_says_so_and_the_loss_has_a_limit():
    loss, start = logistic()
    run = flowsim.gradient_flow(loss, start, t1=1e8)
    end = flowsim.end_point(loss, run)
    assert end is not None and end.kind == "none"
    of_loss = lambda expected: (
        lambda loss, flow: flowsim.equal(flow.loss[-1:], expected, 1.0, allowance=flow.excess[-1:])
    )
    claims = [
        tends(lambda net: net.w, np.ones(3), 1.0),
        tends(lambda net: net.w / jnp.linalg.norm(net.w), np.ones(3), 1.0),
        flowsim.Claim("a.zero", "a test", "L -> 0", of_loss(0.0)),
        flowsim.Claim("a.more", "a test", "L -> 1e-6", of_loss(1e-6)),
    ]
    *unknown, zero, more = flowsim.judge(claims, loss, run)
    for verdict in unknown:
        assert verdict.verdict is Judgement.UNRESOLVED and "The weights seem to diverge" in verdict.note
    assert zero.verdict is Judgement.HOLDS and more.verdict is Judgement.VIOLATED


def test_attention_that_converges_while_the_weights_grow_is_bounded_by_the_excess():
    """1 - L's root bounds the attended value, and 1 - a <= (1 - value)/(1 - 0.3) the attention to the best key."""
    loss, start, attended = attention()
    run = flowsim.gradient_flow(loss, start, t1=1e10)

    def to(expected):
        def compare(loss, flow):
            allowance = jnp.sqrt(2 * flow.excess[-1:]) / 0.7
            return flowsim.equal(attended(flow.end)[None], expected, 1.0, allowance=allowance)

        return flowsim.Claim("a.limit", "a test", "a -> ..", compare)

    true, false = flowsim.judge([to(1.0), to(0.99)], loss, run)
    assert true.verdict is Judgement.HOLDS and false.verdict is Judgement.VIOLATED


def test_a_flow_that_converges_slowly_is_not_said_to_diverge():
    loss = FunctionLoss(lambda net: jnp.sum((net.w - 1) ** 4), minimum=0.0)
    run = flowsim.gradient_flow(loss, Weights(jnp.zeros(1)), t1=1e6)
    verdict = flowsim.check(tends(lambda net: net.w, np.ones(1), 1.0), loss, run)
    assert verdict.verdict is Judgement.UNRESOLVED and "diverge" not in verdict.note


def least_of_vertices(X, y):
    """The least sum of sizes among the basic solutions."""
    m, n = X.shape
    bases = itertools.combinations(range(n), m)
    return min(np.sum(np.abs(np.linalg.solve(X[:, list(one)], y))) for one in bases)


@pytest.mark.parametrize("seed", range(10))
def test_the_least_norm_agrees_with_the_vertices_and_with_the_pseudoinverse(seed):
    rng = np.random.default_rng(400 + seed)
    m = int(rng.integers(1, 4))
    X, y = rng.standard_normal((m, m + 3)), rng.standard_normal(m)
    for order, expected in ((1, least_of_vertices(X, y)), (2, np.linalg.norm(np.linalg.pinv(X) @ y))):
        value, bound = flowsim.least_norm(X, y, order=order)
        assert abs(value - expected) <= bound + 1e-14 * value and bound <= 1e-11 * value
        # The bound does not follow the expectation: any other norm is refused.
        assert abs(value - 1.000001 * expected) > bound


def test_a_least_norm_is_an_expected_side():
    """From a small start, |beta|_1 of a diagonal net tends to little more than the least one."""
    X, y = np.asarray([[1.0, 2.0, 0.5], [0.0, 1.0, -1.0]]), np.asarray([1.0, 0.4])
    least, bound = flowsim.least_norm(X, y)
    loss = FunctionLoss(lambda net: jnp.sum((X @ net.beta - y) ** 2), minimum=0.0)
    run = flowsim.gradient_flow(loss, Diagonal(jnp.full(3, 1e-8), jnp.full(3, 1e-8)), rtol=1e-10, stop=STRICT)

    def within(factor):
        def compare(loss, flow):
            value, allowance = flowsim.limit(flow, lambda net: jnp.sum(jnp.abs(net.beta)))
            return flowsim.at_most(value, factor * least, size=1.0, allowance=allowance + factor * bound)

        return flowsim.Claim("a.bias", "a test", "|beta|_1 <= ..", compare)

    true, false = flowsim.judge([within(1.1), within(1 - 1e-6)], loss, run)
    assert true.verdict is Judgement.HOLDS and false.verdict is Judgement.VIOLATED
    exact = flowsim.Claim(
        "a.norm",
        "a test",
        "y -> ..",
        lambda loss, flow: flowsim.equal(jnp.ones(1) * least, least, 1.0, allowance=bound),
    )
    assert flowsim.check(exact, loss, run).verdict is Judgement.HOLDS


def test_a_least_norm_that_is_not_known_has_no_bound_and_bad_input_is_refused():
    assert flowsim.least_norm(np.ones((2, 3)), np.ones(2)) == (0.0, math.inf)
    value, bound = flowsim.least_norm(np.eye(2, 3), np.zeros(2))
    assert 0 <= value <= bound < 1e-290
    for arguments, message in (
        ((np.ones((3, 2)), np.ones(3)), "at most as many rows as columns"),
        ((np.ones((2, 3)), np.ones(3)), "y must be"),
    ):
        with pytest.raises(ValueError, match=message):
            flowsim.least_norm(*arguments)
    with pytest.raises(ValueError, match="order must be 1 or 2"):
        flowsim.least_norm(np.ones((1, 3)), np.ones(1), order=3)
