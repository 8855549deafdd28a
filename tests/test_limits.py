"""Statements about t to infinity: continua of minima, losses of many weights, infima at infinity, least norms."""

import functools
import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear_nets import Weights, layers, target

import flowsim
from flowsim import FunctionLoss, Judgement, Stop

STRICT = Stop(excess=1e-24, grad_norm=1e-13)


class Diagonal(eqx.Module):
    u: jax.Array
    v: jax.Array

    @property
    def beta(self):
        return self.u * self.u - self.v * self.v


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
        pytest.param(functools.partial(deep, True, "plain"), id="balanced"),
        pytest.param(functools.partial(deep, False, "plain"), id="unbalanced", marks=pytest.mark.slow),
        pytest.param(functools.partial(deep, False, "covariance"), id="covariance", marks=pytest.mark.slow),
        pytest.param(functools.partial(deep, True, "noisy data"), id="noisy data", marks=pytest.mark.slow),
        pytest.param(diagonal, id="diagonal", marks=pytest.mark.slow),
        pytest.param(ridge, id="ridge"),
    ],
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


@pytest.mark.parametrize("factor", [2.0**-700, 2.0**-100, 2.0**60, 2.0**700])
def test_the_least_norm_of_tiny_and_huge_numbers(factor):
    X, y = np.asarray([[1.0, 2.0, 0.5], [0.0, 1.0, -1.0]]), np.asarray([1.0, 0.4])
    for order in (1, 2):
        value, bound = flowsim.least_norm(X, y, order=order)
        assert flowsim.least_norm(factor * X, factor * y, order=order) == (value, bound)
        other, within = flowsim.least_norm(X / factor, y, order=order)
        assert other == factor * value and within == pytest.approx(factor * bound, rel=1e-9)


def test_the_least_norm_of_equations_that_nearly_repeat_each_other():
    """The solution is (1 - 1/gap, 1/gap)."""
    for gap in (2.0**-10, 2.0**-18):
        X, y = np.asarray([[1.0, 1.0, 0.0], [1.0, 1.0 + gap, 0.0]]), np.asarray([1.0, 2.0])
        exact = {1: abs(1 - 1 / gap) + 1 / gap, 2: math.hypot(1 - 1 / gap, 1 / gap)}
        for order in (1, 2):
            value, bound = flowsim.least_norm(X, y, order=order)
            assert abs(value - exact[order]) <= bound <= 1e-5 * value
    for gap in (2.0**-44, 2.0**-52):
        # Solvers that see no solution have to leave it open.
        X = np.asarray([[1.0, 1.0], [1.0, 1.0 + gap]])
        value, bound = flowsim.least_norm(X, np.asarray([1.0, 2.0]))
        assert abs(value - (2 / gap - 1)) <= bound


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
