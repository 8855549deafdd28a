"""Statements about t to infinity: continua of minima, losses of many weights, infima at infinity, least norms."""

import dataclasses
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
from flowsim.claims.limits import tail_of

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


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(functools.partial(deep, True, "plain"), id="balanced"),
        pytest.param(functools.partial(deep, False, "plain"), id="unbalanced"),
        pytest.param(functools.partial(deep, False, "covariance"), id="covariance"),
        pytest.param(functools.partial(deep, True, "noisy data"), id="noisy data"),
        pytest.param(diagonal, id="diagonal"),
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(functools.partial(deep, True, "plain"), id="balanced"),
        pytest.param(functools.partial(deep, False, "covariance"), id="covariance"),
        pytest.param(diagonal, id="diagonal"),
        pytest.param(ridge, id="ridge"),
    ],
)
def test_a_limit_is_known_far_beyond_a_default_stop(problem):
    loss, start, f, exact = problem()
    run, size = flowsim.gradient_flow(loss, start), float(np.max(np.abs(exact)))
    one_entry = np.array(exact)
    one_entry[np.unravel_index(np.argmax(np.abs(exact)), exact.shape)] *= 1 - 1e-6
    claims = [tends(f, expected, size) for expected in (exact, exact * (1 + 1e-6), one_entry)]
    true, *false = flowsim.judge(claims, loss, run)
    assert true.verdict is Judgement.HOLDS and true.floor is not None and true.floor < 2e-9, true
    assert all(verdict.verdict is Judgement.VIOLATED for verdict in false), false


def two(t1=None):
    """a b -> 1 with a^2 - b^2 = 0.24, so that a^2 + b^2 -> sqrt(0.24^2 + 4)."""
    loss = FunctionLoss(lambda net: (net.w[0] * net.w[1] - 1) ** 2 / 2, minimum=0.0)
    return loss, flowsim.gradient_flow(loss, Weights(jnp.asarray([0.5, 0.1])), t1=t1), math.sqrt(0.24**2 + 4)


def size_of(net):
    return jnp.sum(net.w**2)


def compared(relation, expected, f=size_of, take=lambda value, flow: value):
    """The statement that a limit, or what ``take`` makes of it, relates to a number."""

    def compare(loss, flow):
        value, allowance = flowsim.limit(flow, f)
        return relation(take(value, flow), expected, size=2.0, allowance=allowance)

    return flowsim.Claim("a.limit", "a test", "f -> ..", compare)


@pytest.mark.parametrize("t1", [pytest.param(None, marks=pytest.mark.slow), 6.0])
def test_a_flow_is_continued_from_where_it_ends(t1):
    """Also from an end 1e-2 away. An integral is longer where the flow goes on, and a limit is not."""
    loss, run, exact = two(t1)
    assert abs(float(size_of(run.end)) - exact) > (1e-8 if t1 is None else 1e-4)
    close, far = 1 + 1e-7, 1 - 1e-7
    claims = [
        compared(flowsim.equal, exact),
        compared(flowsim.at_most, exact * close),
        compared(flowsim.at_least, exact * far),
        compared(flowsim.equal, exact * close),
        compared(flowsim.equal, exact * far),
        compared(flowsim.at_most, exact * far),
        compared(flowsim.at_least, exact * close),
    ]
    verdicts = flowsim.judge(claims, loss, run)
    assert [one.verdict for one in verdicts] == [Judgement.HOLDS] * 3 + [Judgement.VIOLATED] * 4
    assert all(one.floor is not None and one.floor < 1e-9 for one in verdicts)


def test_an_end_beside_the_bound_of_a_limit_is_judged_as_an_end():
    """The bound of a claim that leaves the value of the limit aside is that of the end."""
    loss, run, exact = two()
    at_the_end = lambda value, flow: size_of(flow.end)[None]
    both = lambda value, flow: value - size_of(flow.end)[None]
    true, false, mixed = flowsim.judge(
        [
            compared(flowsim.equal, exact, take=at_the_end),
            compared(flowsim.equal, 1.001 * exact, take=at_the_end),
            compared(flowsim.equal, 0.0, take=both),
        ],
        loss,
        run,
    )
    assert (true.verdict, false.verdict) == (Judgement.HOLDS, Judgement.VIOLATED)
    # That the end is the limit is not a statement about the flow.
    assert mixed.verdict is Judgement.UNRESOLVED


@pytest.mark.slow
@pytest.mark.parametrize("problem", [functools.partial(deep, True, "plain"), diagonal], ids=["balanced", "diagonal"])
def test_what_is_allowed_for_a_limit_does_not_make_sides_equal(problem, monkeypatch):
    """Where a flow cannot be continued the truth and what is false by 1e-6 look alike."""
    monkeypatch.setattr("flowsim.claims.evidence.repetitions.tail_of", lambda *arguments: None)
    loss, start, f, exact = problem()
    run, size = flowsim.gradient_flow(loss, start), float(np.max(np.abs(exact)))
    true, false, clear = flowsim.judge([tends(f, exact * by, size) for by in (1, 1 + 1e-6, 1.01)], loss, run)
    for verdict in (true, false):
        assert verdict.verdict is Judgement.UNRESOLVED and "stop=flowsim.Stop(" in verdict.note, verdict
    assert clear.verdict is Judgement.VIOLATED


@pytest.mark.slow
def test_a_flow_that_leaves_later_or_decays_slowly_is_not_continued():
    """From y = 1e-30 the flow rests beside the saddle at 0 until t = 70, and then goes to y = 1."""
    saddle = FunctionLoss(lambda net: (net.w[0] - 1) ** 2 / 2 + (net.w[1] ** 2 - 1) ** 2 / 4, minimum=0.0)
    places = [np.asarray([1.0, y]) for y in (0.0, 1.0, 1 + 1e-6)]
    claims = [tends(lambda net: net.w, place, 1.0) for place in places]
    start = Weights(jnp.asarray([0.0, 1e-30]))
    early = flowsim.judge(claims, saddle, flowsim.gradient_flow(saddle, start, t1=20.0))
    assert all(one.verdict is Judgement.UNRESOLVED for one in early)
    late = flowsim.judge(claims, saddle, flowsim.gradient_flow(saddle, start))
    assert [one.verdict for one in late] == [Judgement.VIOLATED, Judgement.HOLDS, Judgement.VIOLATED]
    quartic = FunctionLoss(lambda net: jnp.sum((net.w - 1) ** 4), minimum=0.0)
    run = flowsim.gradient_flow(quartic, Weights(jnp.zeros(1)))
    claims = [tends(lambda net: net.w, np.asarray([place]), 1.0) for place in (1.0, 1 + 1e-6)]
    assert all(one.verdict is Judgement.UNRESOLVED for one in flowsim.judge(claims, quartic, run))


def test_a_continuation_that_fails_is_not_used():
    loss, run, _ = two()
    go_on = functools.partial(flowsim.gradient_flow, loss)
    descent = run.descent
    assert descent is not None
    bound = lambda model: descent.way_to_go(model, run.start)
    remaining = bound(run.end)
    tail = tail_of(run, remaining, 1e-9, go_on, bound)
    assert tail is not None and tail.way_to_go < 1e-10 < remaining
    along = 10 * remaining * jnp.asarray([1.0, -1.0])
    elsewhere = lambda model, **how: go_on(Weights(model.w + along), **how)
    unfinished = lambda model, **how: dataclasses.replace(go_on(model, **how), status=flowsim.Status.NEWTON)
    for way_to_go, further, within in (
        (math.inf, go_on, bound),
        (1e-12, go_on, bound),
        (remaining, elsewhere, bound),
        (remaining, unfinished, bound),
        (remaining, go_on, lambda model: math.inf),
        (remaining, go_on, lambda model: remaining),
    ):
        assert tail_of(run, way_to_go, 1e-9, further, within) is None


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
