"""Proofs for all t, and in the limit, of claims whose sides meet there: the limit is known by exact numbers."""

import copy
import math

import jax.numpy as jnp
import pytest

import flowsim
from flowsim.claims.claim import Claim
from flowsim.claims.proofs import OpenError, check, checker, ending, identities
from flowsim.claims.rates import exponential_envelope

PRODUCT = flowsim.FunctionLoss(lambda w: (w[0] * w[1] * w[2] - 1) ** 2 / 2, minimum=0.0)
FROM_BELOW, FROM_ABOVE = jnp.full(3, 0.5), jnp.full(3, 1.5)
RATE = 6.0  # of the excess at (1, 1, 1), where |grad L|^2 = 6 (L - min L) + ...
BILLIONTH = 1e-9


def stated(compare, **more) -> Claim:
    return flowsim.claim("stated", "a test", statement="a statement", **more)(compare)


def proved(compare, loss=PRODUCT, start=FROM_ABOVE, t1=math.inf, **how):
    return flowsim.certify(stated(compare), loss, start, t1=t1, **how)


def limit_is(value):
    def compare(flow):
        found, allowance = flowsim.limit(flow, lambda w: w[0])
        return flowsim.equal(found, value(), 1.0, allowance=allowance)

    return compare


def nonnegative(value):
    return lambda flow: flowsim.at_least(value(flow), 0.0)


def gradient_inequality(c):
    return lambda flow: flowsim.at_least(flow.grad_norm_sq, c * flow.excess)


def rate(c):
    return lambda flow: flowsim.at_most(flow.excess, jnp.exp(-c * flow.t) * flow.excess[0])


def rate_in_logarithms(c):
    return lambda flow: exponential_envelope(flow, jnp.asarray(c))


def test_a_limit_is_proved_and_a_limit_a_billionth_away_is_refuted():
    assert check(proved(limit_is(lambda: 1.0))) == "proved in the limit"
    assert check(proved(limit_is(lambda: 1.0), start=FROM_BELOW)) == "proved in the limit"
    with pytest.raises(OpenError):
        proved(limit_is(lambda: 1.0 + BILLIONTH))
    assert check(proved(limit_is(lambda: 1.0 + BILLIONTH), refutes=True, t1=1.0)) == "refuted in the limit"


def test_an_irrational_limit_is_its_root_and_not_the_float64_next_to_it():
    loss, start = flowsim.FunctionLoss(lambda w: (w[0] * w[1] - 2) ** 2 / 2, minimum=0.0), jnp.full(2, 0.5)
    assert check(proved(limit_is(lambda: jnp.sqrt(2.0)), loss, start)) == "proved in the limit"
    with pytest.raises(OpenError):
        proved(limit_is(lambda: math.sqrt(2.0)), loss, start)


def test_roots_of_different_numbers_are_told_apart():
    loss = flowsim.FunctionLoss(lambda w: (w[0] ** 2 - 2) ** 2 + (w[1] ** 2 - 3) ** 2, minimum=0.0)
    start = jnp.asarray([1.0, 2.0])

    def claim(value):
        def compare(flow):
            found, allowance = flowsim.limit(flow, lambda w: w[0] * w[1])
            return flowsim.equal(found, value(), 1.0, allowance=allowance)

        return compare

    assert check(proved(claim(lambda: jnp.sqrt(6.0)), loss, start)) == "proved in the limit"
    with pytest.raises(OpenError):
        proved(claim(lambda: jnp.sqrt(6.0 + BILLIONTH)), loss, start)


@pytest.mark.parametrize(
    ("compare", "share"), [(gradient_inequality, 1e-3), (rate, BILLIONTH), (rate_in_logarithms, BILLIONTH)]
)
def test_constants_on_both_sides_of_the_one_in_the_limit_are_told_apart(compare, share):
    """A rate beyond it by a billionth fails only where exp(6e-9 t) is large, at times of about 1e8."""
    assert check(proved(compare(RATE * (1 - share)))) == "proved for all t from 0"
    with pytest.raises(OpenError):
        proved(compare(RATE * (1 + share)))


def test_what_fails_before_the_end_is_not_proved():
    """From 0.5 the inequality with a constant that holds near the limit fails at t = 0."""
    with pytest.raises(OpenError, match="not shown at t"):
        proved(gradient_inequality(RATE / 2), start=FROM_BELOW)


def test_a_minimum_that_is_not_reached_gives_no_gradient_inequality():
    """With a minimum that is a billionth too low the excess does not vanish in the limit."""
    loss = flowsim.FunctionLoss(lambda w: (w[0] * w[1] * w[2] - 1) ** 2 / 2 + BILLIONTH, minimum=0.0)
    with pytest.raises(OpenError):
        proved(gradient_inequality(1.0), loss)


def test_a_slack_that_is_negative_in_one_direction_is_not_shown():
    """It holds along this flow, on which the slow weight is the larger one, but not at all points near the limit."""
    loss = flowsim.FunctionLoss(lambda w: w[0] ** 2 / 2 + w[1] ** 2 / 8, minimum=0.0)
    slow_is_larger = lambda flow: flowsim.at_least(flow.models[:, 1] ** 2, flow.models[:, 0] ** 2)
    with pytest.raises(OpenError):
        proved(slow_is_larger, loss, jnp.asarray([1.0, 2.0]))


def test_limits_that_are_no_roots_are_open():
    with pytest.raises(OpenError):
        proved(limit_is(lambda: 1.0), start=jnp.asarray([0.5, 0.6, 0.7]))


def _programs(certificate):
    """Changed limits: each number, and each operation, of the program of the limit."""
    for place, (name, _, numbers) in enumerate(certificate["limit"]["operations"]):
        if name == "number":
            for k in range(len(numbers)):
                for new in ("-1", "2", "1/3", f"{1 + BILLIONTH}"):
                    changed = copy.deepcopy(certificate)
                    changed["limit"]["operations"][place][2][k] = new
                    if checker.Program(changed["limit"])() != checker.Program(certificate["limit"])():
                        yield changed


@pytest.mark.parametrize("compare", [limit_is(lambda: 1.0), gradient_inequality(5.0)])
def test_another_limit_is_refused(compare):
    certificate, tried = proved(compare), 0
    for changed in _programs(certificate):
        changed["digest"] = ending.digest(changed)
        with pytest.raises(Exception, match="limit|weights|ball"):
            check(changed)
        tried += 1
    assert tried > 5


def test_the_start_of_a_table_is_exact():
    """In float64 no start is balanced, and that of the table is: Theta Theta^T has the norm 1."""
    from flowsim.claims.proofs import FollowedFlow
    from flowsim.problem import spec_of

    spec = spec_of({"task": {"covariance": {"eigenvalues": [1.0, 2.0]}, "context_length": 10}, "init": {"scale": 0.3}})
    problem = spec.build()
    conserved = lambda flow: flowsim.equal(
        flow.models.u_minus1**2, jnp.sum(flow.models.U11**2, axis=(1, 2)), jnp.ones(flow.t.shape)
    )
    exact = FollowedFlow(problem.loss, problem.start, spec.start_from_tables)
    how = {"loss": problem.loss, "start": problem.start}
    assert check(proved(conserved, followed=exact, **how)) == "proved for all t from 0"
    with pytest.raises(OpenError, match="not equal at the start"):
        proved(conserved, **how)


def test_infinite_numbers_that_cancel_are_refused_without_a_warning():
    """Warnings are errors in the tests: infinity less infinity, in a sum and in a product of matrices, made two."""
    infinite = lambda flow: jnp.sum(jnp.asarray([jnp.inf, -jnp.inf]) * jnp.ones(2)) * flow.models[:, 0]
    product = lambda flow: (jnp.asarray([[jnp.inf, -jnp.inf]]) @ jnp.ones((2, 1)))[0] * flow.models[:, 0]
    for value in (infinite, product):
        with pytest.raises(OpenError, match="not finite"):
            proved(nonnegative(value))


@pytest.mark.parametrize("function", [jnp.log, jnp.sqrt])
def test_what_is_not_defined_from_some_time_on_is_not_cancelled(function):
    """It is not a number where w < 1/2, so that the condition is false and the statement fails there."""
    loss, start = flowsim.FunctionLoss(lambda w: w[0] ** 2 / 2, minimum=0.0), jnp.ones(1)

    def compare(flow):
        w = flow.models[:, 0]
        zero = function(w - 0.5) - function(w - 0.5)
        return flowsim.at_least(jnp.where(zero + w > -1, w**2, -1.0), 0.0)

    with pytest.raises(OpenError):
        proved(compare, loss, start)
    assert check(proved(lambda flow: flowsim.at_least(flow.models[:, 0] ** 2, 0.0), loss, start))


def test_a_branch_that_divides_by_zero_is_not_taken_for_zero():
    """Where w <= 0.1 the slack is infinity less infinity, which is nothing, and not zero."""

    def compare(flow):
        w = flow.models[:, 0]
        infinite = 1 / (w - w)
        return flowsim.at_least(jnp.where(w > 0.1, w**2, infinite - infinite), 0.0)

    with pytest.raises(OpenError):
        proved(compare, flowsim.FunctionLoss(lambda w: w[0] ** 2 / 2, minimum=0.0), jnp.ones(1))


def test_nothing_is_computed_with_what_is_divided_by_zero():
    ring = identities.Polynomials(1)
    ring.defined = lambda name, p: None
    nothing = ring.entry("div", ring.weights[0], ring.zero)
    for name in ("add", "sub", "mul", "div"):
        assert ring.entry(name, nothing, nothing) == ring.entry(name, ring.weights[0], nothing) == nothing
    assert ring.entry("select", ring.zero, nothing, ring.weights[0]) == ring.weights[0]
    with pytest.raises(identities.RefusedError):
        ring.plain(nothing)
