"""Enclosures and certificates: against exact solutions, planted falsehoods, and certificates that were changed."""

import ast
import contextlib
import functools
import itertools
import json
import operator
import pathlib
import subprocess
import sys
from typing import Any

import flint
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from helpers import Form

import flowsim
from flowsim.claims.hypotheses import hypothesis
from flowsim.claims.proofs import FollowedFlow, OpenError, check, checker, identities
from flowsim.claims.proofs import path as path_module
from flowsim.claims.proofs.program import program

CHECKER = pathlib.Path(checker.__file__)


def quadratic(curvatures):
    """w -> sum c_i w_i^2 / 2, whose flow is w_i(t) = e^{-c_i t} w_i(0)."""
    return flowsim.FunctionLoss(lambda w: jnp.sum(jnp.asarray(curvatures) * w**2) / 2, minimum=0.0)


def product(count):
    """w -> (w_1 .. w_n - 1)^2 / 2."""
    factors = lambda w: functools.reduce(lambda x, y: x * y, [w[i] for i in range(count)])
    return flowsim.FunctionLoss(lambda w: (factors(w) - 1) ** 2 / 2, minimum=0.0)


def rate(mu, text="the rate"):
    @flowsim.claim("mine.rate", "a test", statement=text)
    def claim(flow):
        return flowsim.at_most(flow.excess, jnp.exp(-mu * flow.t) * flow.excess[0])

    return claim


def pl(mu):
    @flowsim.claim("mine.pl", "a test", statement="a gradient inequality")
    def claim(flow):
        return flowsim.at_least(flow.grad_norm_sq, mu * flow.excess)

    return claim


@pytest.fixture(scope="module")
def certificate():
    return flowsim.certify(rate(0.9), quadratic([0.5, 2.0]), jnp.asarray([1.0, -0.25]), t1=1.5)


# --- The enclosure ------------------------------------------------------------------------------------------------


def test_exact_solutions_are_within_the_proved_radius():
    start, curvatures = np.asarray([1.0, -0.3, 2.0]), np.asarray([0.02, 1.0, 7.0])
    path = flowsim.enclose(quadratic(curvatures), jnp.asarray(start), t1=10.0)
    assert np.all(path.errors < 1e-17)
    for t in (0.0, 0.3, 1.7, 9.99):
        weights, radius = path.at(t)
        assert radius < 1e-14, t
        assert np.linalg.norm(np.asarray(weights) - np.exp(-curvatures * t) * start) <= radius + 1e-15, t


def test_a_flow_through_a_plateau_is_enclosed():
    # a = b = c = s with s' = s^2 (1 - s^3); this is the integral of 1/(s^2 (1 - s^3)) = 1/s^2 + s/(1 - s^3).
    def passed(s):
        rational = -1 / s - np.log(1 - s) / 3 + np.log(1 + s + s * s) / 6
        return rational - np.arctan((2 * s + 1) / 3**0.5) / 3**0.5

    path = flowsim.enclose(product(3), jnp.full(3, 0.05), t1=30.0)
    weights, radius = path.at(25.0)
    assert passed(float(weights[0])) - passed(0.05) == pytest.approx(25.0, abs=1e-8)
    assert radius < 1e-12


@pytest.mark.slow
def test_the_numerical_flow_is_within_the_enclosure_and_its_own_error():
    loss = flowsim.LinearAttentionLoss(flowsim.LinearRegression(jnp.diag(jnp.asarray([0.5, 2.0])), 10))
    start = flowsim.LinearAttention(0.3 * jnp.eye(2), jnp.asarray(0.5))
    path = flowsim.enclose(loss, start, t1=0.5)
    run = flowsim.gradient_flow(loss, start, times=[0.1, 0.5], rtol=1e-11)
    for t in (0.1, 0.5):
        weights, radius = path.at(t)
        measured = run.at(t)
        off = jax.tree.map(lambda one, other: float(jnp.max(jnp.abs(one - other))), weights, measured)
        assert max(jax.tree.leaves(off)) < 1e-9 + radius


def test_a_time_outside_is_refused():
    path = flowsim.enclose(quadratic([1.0]), jnp.ones(1), t1=1.0)
    with pytest.raises(ValueError, match="t must be a time from 0 to 1, but it is 2"):
        path.at(2.0)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda w: jnp.sum(w * jax.lax.stop_gradient(w)), "whose gradient is the derivative of its value"),
        (lambda w: jnp.sum(jax.scipy.special.gammaln(w + 4)), "of operations that certificates have.*lgamma"),
    ],
)
def test_losses_that_cannot_be_proved_are_refused_by_name(function, message):
    with pytest.raises(ValueError, match=f"loss must be one {message}"):
        flowsim.enclose(flowsim.FunctionLoss(function), jnp.ones(2), t1=1.0)


def test_a_sampled_loss_is_refused():
    task = flowsim.LinearRegression(jnp.eye(2), 5)
    loss, start = flowsim.MonteCarloLoss(task, samples=256), flowsim.LinearAttention(jnp.eye(2), jnp.asarray(0.5))
    (claim,) = flowsim.find_claims(flowsim.ALL_CLAIMS, "zhang2023.lemma-5.4.pl")
    for prove in (flowsim.enclose, lambda *given, t1: flowsim.certify(claim, *given, t1=t1)):
        with pytest.raises(ValueError, match="loss must be an exact loss"):
            prove(loss, start, t1=1.0)


def test_the_radius_holds_at_and_between_the_ends_of_the_pieces():
    path = flowsim.enclose(quadratic([1.0, 3.0]), jnp.asarray([0.7, -1.3]), t1=4.0)
    assert path.ends[-1] >= 4.0
    for t in (*path.ends, *(path.ends * 0.7), 0.0):
        weights, radius = path.at(t)
        with flint.ctx.workprec(200):
            exact = [flint.fmpq(w, 10) * (-c * flint.arb(t)).exp() for w, c in ((7, 1), (-13, 3))]
            off = checker.length([x - float(w) for x, w in zip(exact, weights, strict=True)])
        assert off < radius < 1e-15


def test_flints_precision_is_left_alone():
    with flint.ctx.workprec(77):
        checker.check(flowsim.certify(rate(1.9), quadratic([1.0]), jnp.ones(1), t1=0.5))
        assert flint.ctx.prec == 77


# --- Programs -----------------------------------------------------------------------------------------------------


def _power_of(matrix, exponent):
    values, vectors = jnp.linalg.eigh(matrix)
    return vectors @ jnp.diag(values**exponent) @ vectors.T


FUNCTIONS = {
    "arithmetic": lambda w: (w[0] * w[1] - w[2] / w[0] + 3.0) ** 3 - w[1] ** -2,
    "functions": lambda w: jnp.exp(w[0]) + jnp.log(w[1]) * jnp.sqrt(w[2]) - jnp.tanh(w[0]) + jnp.sin(w[1] * w[2]),
    "matrices": lambda w: jnp.trace(jnp.outer(w, w) @ jnp.diag(w) @ jnp.arange(9.0).reshape(3, 3).T),
    "solve": lambda w: w @ jnp.linalg.solve(jnp.asarray([[2.0, 1, 0], [1, 3, 1], [0, 1, 5]]), w),
    "moves": lambda w: jnp.sum(jnp.concatenate([w[::-1], jnp.roll(w, 1)])[jnp.asarray([0, 5, 2])] ** 2),
    "loop": lambda w: jax.lax.fori_loop(0, 4, lambda i, x: x * w[0] + w[1], w[2]),
    "logistic": lambda w: jax.nn.sigmoid(w[0]) + jax.nn.softplus(w[1]) - jnp.log1p(w[2]) + jnp.expm1(w[1]),
    "choice": lambda w: jnp.maximum(w[0], w[1]) + jnp.where(w[2] > w[0], w[1], 2 * w[1]) - jnp.abs(w[0] - w[2]),
    "folds": lambda w: (
        jnp.max(w) * jnp.min(w[:2]) + jnp.prod(w) + jnp.where(jnp.all(w > 0) & jnp.any(w > 0.9), w[0], 2 * w[0])
    ),
    "eigenvalues": lambda w: w[:2] @ _power_of(jnp.asarray([[2.0, -1], [-1, 3]]), 0.5) @ w[1:],
    "several": lambda w: jnp.sum(
        jnp.linalg.solve(
            jnp.stack([jnp.eye(3), jnp.asarray([[2.0, 1, 0], [1, 3, 1], [0, 1, 5]])]), jnp.stack([w[:, None]] * 2)
        )
        ** 2
    ),
    "sums of entries": lambda w: jnp.sum(w.at[jnp.asarray([0, 2, 2])].add(w**2) ** 3),
    "draws": lambda w: w @ jax.random.normal(jax.random.key(3), (3, 3)) @ w,
    "constants": lambda w: jnp.sum(jnp.linalg.cholesky(jnp.asarray([[2.0, 1, 0], [1, 3, 1], [0, 1, 5]])) @ w),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_program_is_the_function_that_it_was_traced_from(name):
    function, rng = FUNCTIONS[name], np.random.default_rng(11)
    written = program(lambda weights: function(weights), weights=jax.ShapeDtypeStruct((3,), float))
    for _ in range(3):
        weights = rng.uniform(0.5, 2.0, 3)
        with flint.ctx.workprec(100):
            given = [flint.arb(float(x)) for x in weights]
            (value,) = checker.Program(written)(weights=given)
            assert float(value) == pytest.approx(float(function(jnp.asarray(weights))), rel=1e-13)
            if name not in ("choice", "folds"):
                slopes = -np.asarray([float(x) for x in checker.Program(written).field(given)])
                expected = np.asarray(jax.jacrev(function)(jnp.asarray(weights)))  # fori_loop has no grad, but jacfwd
                assert slopes == pytest.approx(expected, rel=1e-12, abs=1e-13)


def test_hessians_are_those_of_jax():
    function, weights = FUNCTIONS["functions"], np.asarray([0.4, 1.2, 0.7])
    written = program(lambda weights: function(weights), weights=jax.ShapeDtypeStruct((3,), float))
    with flint.ctx.workprec(100):
        found = checker.hessian(checker.Program(written), [flint.arb(float(x)) for x in weights])
    expected = np.asarray(jax.hessian(function)(jnp.asarray(weights)))
    assert np.asarray([[float(x) for x in row] for row in found]) == pytest.approx(expected, rel=1e-12)


# --- Statements ---------------------------------------------------------------------------------------------------


def test_a_billionth_within_the_sharp_rate_is_proved_and_beyond_it_refuted():
    loss, start = quadratic([1.0]), jnp.asarray([0.7])
    within = flowsim.certify(rate(2 * (1 - 1e-9)), loss, start, t1=3.0)
    assert checker.check(within) == "proved for all t from 0 to 3"
    beyond = flowsim.certify(rate(2 * (1 + 1e-9)), loss, start, t1=3.0, refutes=True)
    assert checker.check(beyond) == "refuted at t = 3"
    with pytest.raises(OpenError, match="not shown"):
        flowsim.certify(rate(2 * (1 + 1e-9)), loss, start, t1=3.0)
    with pytest.raises(OpenError, match="not refuted"):
        flowsim.certify(rate(2 * (1 - 1e-9)), loss, start, t1=3.0, refutes=True)


def test_what_fails_between_two_times_alone_is_not_proved():
    @flowsim.claim("mine.dip", "a test", statement="a dip of the margin that is 1e-6 wide")
    def dip(flow):
        return flowsim.at_least(((flow.t - 0.7310585) / 1e-6) ** 2, 0.25, size=1.0)

    with pytest.raises(OpenError, match=r"not shown at t = 0.73105"):
        flowsim.certify(dip, quadratic([1.0]), jnp.ones(1), t1=1.0)


def test_equalities_of_the_problem_are_decided_in_rational_numbers():
    task = flowsim.LinearRegression(jnp.diag(jnp.asarray([0.1, 0.3])), 7)
    loss, start = flowsim.LinearAttentionLoss(task), flowsim.LinearAttention(jnp.eye(2), jnp.asarray(1.0))

    def minimum(value):
        @flowsim.claim("mine.minimum", "a test", statement="the value of the minimum")
        def claim(loss):
            return flowsim.equal(loss.minimum, value, 1.0)

        return claim

    # (1/2) sum lambda_i (lambda_i + tr)/(N gamma_i), gamma_i = lambda_i + (lambda_i + tr)/N with tr = 2/5.
    exactly = (0.1 * 0.5 / (7 * (0.1 + 0.5 / 7)) + 0.3 * 0.7 / (7 * (0.3 + 0.7 / 7))) / 2
    assert exactly == pytest.approx(float(loss.minimum), rel=1e-14)
    assert checker.check(flowsim.certify(minimum(0.0583333333), loss, start, refutes=True)) == "refuted"
    # The statement is true, although no float64 is 7/120.
    for refutes in (True, False):
        with pytest.raises(OpenError):
            flowsim.certify(minimum(7 / 120), loss, start, refutes=refutes)

    @flowsim.claim("mine.exact", "a test", statement="the same in fractions")
    def fractions(loss):
        tenth, ratio = jnp.asarray(0.1), jnp.asarray(7.0)
        first = tenth * 0.5 / (ratio * (tenth + 0.5 / ratio))
        second = 0.3 * 0.7 / (ratio * (0.3 + 0.7 / ratio))
        return flowsim.equal(loss.minimum, (first + second) / 2, 1.0)

    assert checker.check(flowsim.certify(fractions, loss, start)) == "proved"


def test_a_promise_that_is_not_always_made_is_proved_in_full_or_left():
    @flowsim.claim("mine.promise", "a test", statement="|grad|^2 >= 2 excess where there is any")
    def promise(flow):
        return flowsim.at_least(flow.grad_norm_sq, 1.9 * flow.excess, promised=flow.excess > 0)

    assert "proved" in checker.check(flowsim.certify(promise, quadratic([1.0]), jnp.ones(1), t1=1.0))
    with pytest.raises(OpenError):
        flowsim.certify(promise, quadratic([1.0]), jnp.ones(1), t1=1.0, refutes=True)


def products(w, target):
    return jnp.sum((w[:2] * w[2:] - target) ** 2) / 2


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_no_proof_contradicts_the_measured_verdict(seed):
    rng = np.random.default_rng(100 + seed)
    target, start = rng.uniform(0.5, 2.0, 2), jnp.asarray(rng.uniform(0.2, 0.6, 4))
    loss = flowsim.FunctionLoss(Form(products, target), minimum=0.0)
    run = flowsim.gradient_flow(loss, start, t1=1.0)
    sharp = float(jnp.min(run.grad_norm_sq / run.excess))
    claims = [pl(0.9 * sharp), pl(1.1 * sharp)]
    for claim, verdict, judged in zip(claims, flowsim.judge(claims, loss, run), ("holds", "violated"), strict=True):
        assert verdict.verdict == judged
        refutes = judged == "violated"
        t1 = verdict.where or 1e-3 if refutes and isinstance(verdict.where, float) else 1.0
        assert ("refuted" if refutes else "proved") in checker.check(
            flowsim.certify(claim, loss, start, t1=t1, refutes=refutes)
        )
        with pytest.raises(OpenError):
            flowsim.certify(claim, loss, start, t1=1.0, refutes=not refutes)


def _steep_from_3():
    """w^2/2, with a derivative that is false from 3 on, where the flow only comes later."""

    @jax.custom_jvp
    def half_square(w):
        return w**2 / 2

    half_square.defjvp(
        lambda given, along: (half_square(*given), jnp.where(given[0] > 3, 2.0, 1.0) * given[0] * along[0])
    )
    return flowsim.FunctionLoss(lambda w: -half_square(w[0]), minimum=0.0)


def test_a_stiff_flow_takes_pieces_as_long_as_it_changes():
    # The Taylor polynomials of the fastest rate would need 20,000 pieces.
    rates = [1e4, 1.0, 0.1]
    path = flowsim.enclose(quadratic(rates), jnp.ones(3), t1=20.0)
    assert len(path.pieces) < 300
    for t in (1e-4, 3e-3, 0.1, 2.0, 19.0):
        weights, radius = path.at(t)
        assert radius < 1e-15
        exact = np.exp(-np.asarray(rates) * t)
        assert np.linalg.norm(np.asarray(weights) - exact) < 1e-14


@pytest.mark.slow
def test_a_path_whose_error_grows_is_computed_with_more_digits(monkeypatch):
    monkeypatch.setattr(path_module, "_FAR", 1e-13)
    loss = flowsim.FunctionLoss(lambda w: (w[0] * w[1] * w[2] - 1) ** 2 / 2, minimum=0.0)
    start, t = 1e-8, 0.999e8
    followed = FollowedFlow(loss, jnp.full(3, start))
    path = followed.until(1e8 + 10)
    assert followed.digits.bits == 256
    assert path.errors[-1] < 1e-20
    # Equal factors stay equal, and t is the integral of 1/((1 - w^3) w^2).
    w = float(path.at(t)[0][0])
    passed, error = scipy.integrate.quad(lambda u: np.exp(-u) / (1 - np.exp(3 * u)), np.log(start), np.log(w))
    assert abs(passed - t) < 1e-9 * t + error
    np.testing.assert_allclose(np.asarray(path.at(1e8 + 10)[0]), 1.0, atol=1e-8)


def test_a_gradient_that_is_false_later_on_is_seen():
    assert flowsim.enclose(_steep_from_3(), jnp.ones(1), t1=1.0).errors[-1] < 1e-10
    with pytest.raises(ValueError, match="whose gradient is the derivative of its value"):
        flowsim.enclose(_steep_from_3(), jnp.ones(1), t1=2.0)


def test_a_time_whose_decimal_is_above_its_float64_is_reached():
    assert "proved" in checker.check(flowsim.certify(rate(0.9), quadratic([1.0]), jnp.ones(1), t1=0.3))


def test_a_branch_that_changes_along_the_flow_is_certified():
    loss = flowsim.FunctionLoss(lambda w: w[0], minimum=0.0)
    claim = _along(lambda flow: jnp.maximum(flow.models[:, 0], 0.5) - 0.4)
    assert "proved" in checker.check(flowsim.certify(claim, loss, jnp.ones(1), t1=1.0))


def _along(slack, **options):
    """A claim that something is never negative."""
    declare = flowsim.claim("mine.slack", "a test", statement="it is not negative", **options)
    return declare(lambda flow: flowsim.at_least(slack(flow), 0.0, size=1.0))


# Each is negative somewhere for w = e^{-t}, but was read as if it were not.
MISREAD = {
    "the second time": (lambda flow: flow.excess[1] - flow.excess, "not functions of the time"),
    "the last time": (lambda flow: flow.excess[-1] - flow.excess, "not functions of the time"),
    "from the end": (lambda flow: 1e-7 * (flow.excess - 0.9 * flow.excess[::-1]), "not functions of the time"),
    "the mean": (lambda flow: 1e-9 * (flow.excess - 0.9 * jnp.mean(flow.excess)), "not functions of the time"),
    "the largest": (lambda flow: 1e-9 * (flow.excess - 0.9 * jnp.max(flow.excess)), "not functions of the time"),
    "half of the last time": (lambda flow: jnp.where(flow.t > flow.t[-1] / 2, 1.0, -1.0), "not functions of the time"),
    "two weights at the end": (
        lambda flow: jnp.asarray([-1.0, 1.0]) * flow.models[-1],
        "not return its sides at each time",
    ),
    "a whole number": (lambda flow: flow.t.astype(int).astype(float) - flow.t, "of the type int64"),
    "a truth value": (lambda flow: 0.5 - flow.models[:, 0].astype(bool).astype(float), "of the type bool"),
    "a number of less digits": (
        lambda flow: (flow.t / 3).astype(jnp.float32).astype(float) - flow.t / 3,
        "of the type float32",
    ),
    "an index": (
        lambda flow: jnp.asarray([-1.0, 1.0, 1.0])[jnp.where(flow.models[:, 0] > 2, 1, 0)],
        "of the type int64",
    ),
    "a division of whole numbers": (
        lambda flow: jax.lax.div(jnp.where(flow.models[:, 0] > 2, 2, 1), 2) - 0.25,
        "of the type int64",
    ),
    "no number": (
        lambda flow: jnp.where(jnp.isnan(jnp.log(-flow.models[:, 0])), -1.0, 1.0),
        "not functions of the time",
    ),
    "zero times no number": (lambda flow: 0.0 * jnp.log(-flow.models[:, 0]), "not functions of the time"),
    "a jump after the start": (lambda flow: flow.t / 1000 - (flow.t > 0).astype(float), "not shown at t"),
}


@pytest.mark.parametrize("name", MISREAD)
def test_a_claim_that_is_false_is_not_misread(name):
    slack, message = MISREAD[name]
    with pytest.raises(OpenError, match=message):
        flowsim.certify(_along(slack), quadratic([1.0]), jnp.ones(1), t1=1.5)


def test_a_division_by_zero_on_the_way_is_no_proof():
    claim = _along(lambda flow: 1 / (flow.models[:, 0] - 0.5) + 10)
    with pytest.raises(OpenError, match="not shown at t"):
        flowsim.certify(claim, quadratic([1.0]), jnp.ones(1), t1=1.0)


def test_nothing_is_proved_until_the_start_and_a_refutation_there_is_one():
    with pytest.raises(ValueError, match="t1 must be"):
        flowsim.certify(rate(50.0), quadratic([1.0]), jnp.ones(1), t1=0.0)
    claim = _along(lambda flow: flow.models[:, 0] - 2)
    assert checker.check(flowsim.certify(claim, quadratic([1.0]), jnp.ones(1), t1=0.0, refutes=True)) == "refuted"


def test_a_claim_that_says_nothing_of_a_problem_is_not_refuted_there():
    large = lambda loss, start: [hypothesis("w(0) > 2", start[0], ">", 2.0)]
    claim = _along(lambda flow: flow.models[:, 0] - 2, hypotheses=large)
    with pytest.raises(OpenError, match=r"says nothing of this problem: not met: w\(0\) > 2"):
        flowsim.certify(claim, quadratic([1.0]), jnp.ones(1), t1=1.0, refutes=True)


# --- Certificates that were changed -------------------------------------------------------------------------------


def _places(document, path=()):
    """Every number and text in a document, by the way to it."""
    if isinstance(document, dict | list):
        parts = document.items() if isinstance(document, dict) else enumerate(document)
        for key, part in parts:
            yield from _places(part, (*path, key))
    else:
        yield path


@contextlib.contextmanager
def _changed(document, path, change):
    """A document with something changed in it, which is as it was afterwards."""
    inner: Any = functools.reduce(operator.getitem, path[:-1], document)
    before, inner[path[-1]] = inner[path[-1]], change(inner[path[-1]])
    yield document
    inner[path[-1]] = before


def _other(value):
    if value is None:
        return 1
    if isinstance(value, str):
        return value[:-1] + chr(ord(value[-1]) ^ 1) if value else "x"
    return value + 1


def test_a_change_anywhere_is_seen(certificate):
    places = list(_places(certificate))
    assert len(places) > 100
    for path in places:
        with (
            _changed(certificate, path, _other) as changed,
            pytest.raises(checker.RefusedError, match="digest|version"),
        ):
            checker.check(changed)


def _sealed(certificate):
    return certificate | {"digest": checker.digest(certificate)}


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        (("pieces", 0, "polynomials", 0, 1), lambda c: "-1/3", "defect of piece 0"),
        (("pieces", 0, "polynomials", 1, 0), lambda c: "1/4", "defect of piece 0"),
        (("pieces", 1, "defect"), lambda c: "0", "defect of piece 1"),
        (("pieces", 0, "growth"), lambda c: "-3/5", "an eigenvalue"),
        (("pieces", 0, "radius"), lambda c: "1p-200", "may leave the tube"),
        (("pieces", 0, "until"), lambda c: "0", "ends before it begins"),
        (("start", "operations", 0, 2, 0), lambda c: "101/100", "may leave the tube"),
        (("loss", "operations", 0, 2), lambda c: ["1/2", "3"], "."),
        (("until",), lambda c: "2", "not proved until t = 2"),
        (("verdict",), lambda c: "refuted", "not refuted"),
    ],
)
def test_a_false_certificate_is_refused_with_a_digest_of_its_own(certificate, path, change, message):
    with _changed(certificate, path, change) as changed, pytest.raises(Exception, match=message):
        checker.check(_sealed(changed))


def test_a_piece_that_is_left_out_is_missed(certificate):
    for place in range(len(certificate["pieces"])):
        pieces = [piece for k, piece in enumerate(certificate["pieces"]) if k != place]
        with pytest.raises(checker.RefusedError):
            checker.check(_sealed(certificate | {"pieces": pieces}))


INPUT = {name: ["input", [], name] for name in ("t", "start", "weights")}
ONCE = {"precision": 128, "order": 21, "verdict": "proved", "version": checker.VERSION}


def _number(*texts):
    return ["number", [], list(texts)]


def _program(*operations):
    return {"operations": list(operations), "result": len(operations) - 1}


def _piece(until, *polynomials, radius="1/20", defect="1", growth="1p-40"):
    bounds = {"radius": radius, "defect": defect, "growth": growth, "until": until}
    return bounds | {"polynomials": list(map(list, polynomials))}


SQUARE = _program(INPUT["weights"], ["power", [0], 2], _number("1/2"), ["mul", [1, 2], None])
FLAT = _program(INPUT["weights"], _number("0"), ["mul", [0, 1], None])
STEP = (INPUT["weights"], _number("0"), ["above", [0, 1], None])
RAMP = _program(*STEP, ["mul", [2, 0], None], ["sub", [1, 3], None])
JUMP = _program(
    INPUT["t"], _number("0"), ["above", [0, 1], None], _number("1/1000"), ["mul", [3, 0], None], ["sub", [4, 2], None]
)
FORGED = {  # the loss, the start, the sides, the pieces and what else is said, all of it false
    "an order of the defect below zero": (
        *(SQUARE, "1", _program(INPUT["weights"], _number("-9/10"), ["add", [0, 1], None])),
        *([_piece("1", ["1"], defect="0")], {"until": "1", "order": -1}),
    ),
    "a time before the start": (
        FLAT,
        "1",
        _program(INPUT["t"]),
        [_piece("1", ["1"])],
        {"until": "-1", "verdict": "refuted"},
    ),
    "a time before the piece": (
        *(FLAT, "1", _program(INPUT["weights"])),
        *([_piece("2", ["1"]), _piece("2049/1024", ["1", *["0"] * 11, "-1p20"])], {"until": "1", "verdict": "refuted"}),
    ),
    "a statement about the flow without a flow": (
        *(SQUARE, "1", _program(_number("1"), INPUT["t"], ["sub", [0, 1], None]), [], {"until": "5"}),
    ),
    "a field that jumps": (
        *(RAMP, "1/100", _program(_number("1/10"), INPUT["weights"], ["sub", [0, 1], None])),
        *([_piece("1/2", ["-99/10000"], defect="0")], {"until": "1/2"}),
    ),
    "a slack that jumps at the start": (
        SQUARE,
        "1",
        JUMP,
        [_piece("1/4", ["1"], radius="1/2")],
        {"until": "1/4", "order": 3},
    ),
    "a power below one": (
        SQUARE,
        "1",
        _program(_number("2"), ["power", [0], -1], _number("-1"), ["add", [1, 2], None]),
        [],
        {},
    ),
    "no sides": (SQUARE, "1", _program(_number()), [], {}),
    "a shape below zero": (
        SQUARE,
        "1",
        _program(_number("1", "1"), _number("1", "1"), ["dot", [0, 1], [-1, 1, -2, 1]]),
        [],
        {},
    ),
    "an operation before the first": (SQUARE, "1", _program(_number("1"), ["add", [-1, -1], None]), [], {}),
    "another verdict": (SQUARE, "1", _program(_number("1")), [], {"verdict": "refutes"}),
    "a loss that is not a number": (
        *(
            _program(INPUT["weights"], ["log", [0], None]),
            "-1",
            _program(_number("1"), INPUT["weights"], ["sub", [0, 1], None]),
        ),
        *([_piece("1/100", ["-1", "1"], growth="3")], {"until": "1/100", "order": 3}),
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_is_forged_is_no_proof(name):
    loss, start, sides, pieces, more = FORGED[name]
    document = ONCE | {"loss": loss, "start": _program(_number(start)), "sides": sides, "pieces": pieces} | more
    with pytest.raises((checker.RefusedError, TypeError, KeyError)):
        checker.check(_sealed(document))


def test_matrices_are_positive_only_where_all_of_a_ball_are():
    ball = flint.arb
    good = [[ball(2), ball(1)], [ball(1), ball(2)]]
    assert checker.is_positive(good, ball(-0.999))
    assert not checker.is_positive(good, ball(-1.001))
    assert checker.is_positive([[ball(2, 0.4), ball(1)], [ball(1), ball(2)]], ball(-0.5))
    assert not checker.is_positive([[ball(2, 0.6), ball(1)], [ball(1), ball(2)]], ball(-0.5))
    assert not checker.is_positive([[ball(2), flint.arb.nan()], [ball(1), ball(2)]], ball(0))


# --- Equalities for all t ------------------------------------------------------------------------------------------


def _equality(left, right=lambda flow: 0.0):
    declare = flowsim.claim("mine.equality", "a test", statement="two things are equal")
    return declare(lambda flow: flowsim.equal(left(flow), right(flow), 1.0))


def _balance(ratio=1.0):
    """w_1^2 - ratio w_2^2 is what it is at the start, which for the product of weights is true of ratio 1 alone."""
    square = lambda w: w[..., 0] ** 2 - ratio * w[..., 1] ** 2
    return _equality(lambda flow: square(flow.models), lambda flow: square(flow.models[0]))


@pytest.fixture(scope="module")
def equality():
    return flowsim.certify(_balance(), product(2), jnp.asarray([0.5, 1.3]), t1=np.inf)


def test_what_the_flow_conserves_is_proved_for_all_t(equality):
    assert check(equality) == "proved for all t from 0"
    assert check(flowsim.certify(_balance(), product(3), jnp.asarray([0.1, 0.7, 0.3]), t1=2.0)) == check(equality)


@pytest.mark.parametrize("ratio", [1 + 1e-9, 1 - 1e-9, -1.0, 0.0])
def test_what_it_nearly_conserves_is_not(ratio):
    with pytest.raises(OpenError, match="its sides may part along the flow"):
        flowsim.certify(_balance(ratio), product(2), jnp.asarray([0.5, 1.3]), t1=np.inf)


def test_an_equality_that_fails_at_the_start_is_not_proved():
    claim = _equality(lambda flow: flow.models[:, 0] ** 2 - flow.models[:, 1] ** 2, lambda flow: 1e-15)
    with pytest.raises(OpenError, match="not equal at the start"):
        flowsim.certify(claim, product(2), jnp.ones(2), t1=np.inf)


def test_a_rate_is_said_to_hold_for_all_t_if_it_does():
    assert "for all t" in check(flowsim.certify(rate(0.9), quadratic([1.0]), jnp.ones(1), t1=np.inf))
    with pytest.raises(OpenError, match="no proof for all t was found"):
        flowsim.certify(rate(2.1), quadratic([1.0]), jnp.ones(1), t1=np.inf)
    with pytest.raises(ValueError, match="t1 must be"):
        flowsim.certify(rate(0.9), quadratic([1.0]), jnp.ones(1), t1=np.inf, refutes=True)


def test_weights_that_stay_zero_are_used_and_those_that_do_not_are_not():
    claim = _equality(lambda flow: flow.models[:, 1])
    stays = flowsim.FunctionLoss(lambda w: (w[0] * w[1]) ** 2 + w[0] ** 2, minimum=0.0)
    assert check(flowsim.certify(claim, stays, jnp.asarray([1.0, 0.0]), t1=np.inf)) == "proved for all t from 0"
    leaves = flowsim.FunctionLoss(lambda w: (w[0] * w[1]) ** 2 + w[0] ** 2 + 1e-12 * w[1], minimum=0.0)
    with pytest.raises(OpenError, match="may part"):
        flowsim.certify(claim, leaves, jnp.asarray([1.0, 0.0]), t1=np.inf)


def test_square_roots_of_numbers_are_known_by_their_squares():
    root = lambda flow: jnp.sqrt(jnp.asarray(2.0)) * flow.models[:, 0]
    square = _equality(lambda flow: root(flow) ** 2, lambda flow: 2 * flow.models[:, 0] ** 2)
    assert "for all t" in check(flowsim.certify(square, quadratic([1.0]), jnp.ones(1), t1=np.inf))
    false = _equality(lambda flow: root(flow) ** 2, lambda flow: (2 + 1e-14) * flow.models[:, 0] ** 2)
    with pytest.raises(OpenError):
        flowsim.certify(false, quadratic([1.0]), jnp.ones(1), t1=np.inf)


NOT_POLYNOMIAL = {
    "a root of a square": (lambda flow: jnp.sqrt(flow.models[:, 0] ** 2), lambda flow: flow.models[:, 0]),
    "a size": (lambda flow: jnp.abs(flow.models[:, 0]), lambda flow: flow.models[:, 0]),
    "a choice": (lambda flow: jnp.where(flow.models[:, 0] > -5, 1.0, flow.models[:, 0]), lambda flow: 1.0),
    "a quotient": (lambda flow: flow.models[:, 0] / flow.models[:, 1], lambda flow: flow.models[0, 0]),
}


@pytest.mark.parametrize("name", NOT_POLYNOMIAL)
def test_what_is_no_polynomial_is_left_open(name):
    with pytest.raises(OpenError, match="no proof for all t was found"):
        flowsim.certify(_equality(*NOT_POLYNOMIAL[name]), quadratic([1.0, 1.0]), jnp.ones(2), t1=np.inf)


# Up to their sign, which neither a proof nor a solver sees.
FORMS = [form for form in itertools.product((-1.0, 0.0, 1.0), repeat=3) if form >= (0.0, 0.0, 0.0)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_equality_is_proved_that_an_independent_solver_denies(seed):
    rng = np.random.default_rng(seed)
    a, b, c = (float(x) for x in rng.integers(-3, 4, 3))
    start = jnp.asarray(rng.integers(-8, 9, 3) / 8)
    loss = flowsim.FunctionLoss(lambda w: (w[0] * w[1] - a) ** 2 + (w[1] * w[2] - b) ** 2 + c * w[0] * w[2] * w[1] ** 2)
    slopes = jax.jit(jax.grad(lambda w: loss(w)))
    w = scipy.integrate.solve_ivp(lambda t, w: -np.asarray(slopes(w)), (0, 0.3), start, rtol=1e-11, atol=1e-12).y.T
    proved = 0
    for p, q, r in FORMS:
        form = lambda w, p=p, q=q, r=r: p * w[..., 0] ** 2 + q * w[..., 1] ** 2 + r * w[..., 2] ** 2
        claim = _equality(lambda flow, form=form: form(flow.models), lambda flow, form=form: form(flow.models[0]))
        with contextlib.suppress(OpenError):
            flowsim.certify(claim, loss, start, t1=np.inf)
            proved += 1
            assert np.max(np.abs(form(w) - form(w[0]))) < 1e-8
    assert proved >= 2  # zero, and |w_1|^2 + |w_3|^2 - |w_2|^2


def test_a_change_anywhere_of_an_equality_is_seen(equality):
    for path in _places(equality):
        refused = checker.RefusedError if path == ("version",) else identities.RefusedError
        with _changed(equality, path, _other) as changed, pytest.raises(refused):
            check(changed)


def _resealed(certificate):
    return certificate | {"digest": identities.digest(certificate)}


ALWAYS = {"version": identities.VERSION, "verdict": "proved", "start": _program(_number("1")), "loss": SQUARE}
FALSE = {  # sides of which a certificate says that they are zero for all t
    "what moves": {"sides": _program(INPUT["weights"], _number("1"), ["sub", [0, 1], None])},
    "what moves with t": {"sides": _program(INPUT["t"])},
    "what is constant and not zero": {"sides": _program(_number("1p0"))},
    "one": {"sides": _program(_number("1"))},
    "no sides": {"sides": _program(_number())},
    "the first of two": {"sides": _program(INPUT["weights"], _number("0"), ["take", [1, 0], [0, 1]])},
    "a result after the last operation": {"sides": {"operations": [_number("0")], "result": 1}},
    "an operation before the first": {"sides": _program(_number("0"), ["add", [-1, -1], None])},
    "an entry before the first": {"sides": _program(_number("0", "1"), ["take", [0], [-2]])},
    "a power below one": {"sides": _program(_number("0"), ["power", [0], 0], _number("1"), ["sub", [1, 2], None])},
    "another verdict": {"sides": _program(_number("0")), "verdict": "refuted"},
    "a loss that is no number": {
        "sides": _program(_number("0")),
        "loss": _program(INPUT["weights"], ["log", [0], None]),
    },
    "a start of another length": {
        "sides": _program(INPUT["weights"], ["take", [0], [0]]),
        "start": _program(_number("0"), ["take", [0], [0, 0]]),
    },
    "a weight that leaves zero": {
        "sides": _program(INPUT["weights"]),
        "start": _program(_number("0")),
        "loss": _program(INPUT["weights"], _number("1"), ["add", [0, 1], None], ["power", [2], 2]),
    },
    "a root of a number below zero": {
        "sides": _program(_number("-1"), ["sqrt", [0], None], ["mul", [1, 1], None], ["sub", [2, 0], None])
    },
}


@pytest.mark.parametrize("name", FALSE)
def test_an_equality_that_is_forged_is_no_proof(name):
    with pytest.raises((identities.RefusedError, TypeError, ValueError, IndexError, KeyError)):
        check(_resealed(ALWAYS | FALSE[name]))


def test_an_equality_that_is_forged_in_its_numbers_is_no_proof(equality):
    for part in ("start", "loss", "sides"):
        for place, (name, _, numbers) in enumerate(equality[part]["operations"]):
            for k in range(len(numbers)) if name == "number" else ():
                path = (part, "operations", place, 2, k)
                with _changed(equality, path, lambda text: f"{text}1") as changed:
                    # A start or a target of another size conserves the same.
                    if part == "sides":
                        with pytest.raises(identities.RefusedError):
                            check(_resealed(changed))
                    else:
                        assert check(_resealed(changed)) == "proved for all t from 0"


# --- The checker alone, and the commands --------------------------------------------------------------------------


@pytest.mark.parametrize("module", [checker, identities])
def test_checkers_import_flint_alone(module):
    text = pathlib.Path(module.__file__).read_text()
    tree = ast.parse(text)
    imported = {
        name.name.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    imported |= {str(node.module).partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported - set(sys.stdlib_module_names) == {"flint"}
    assert len(text.splitlines()) <= 400


def test_the_checkers_stand_alone(certificate, equality, tmp_path):
    def run(document, path=CHECKER):
        (tmp_path / "certificate.json").write_text(json.dumps(document))
        command = [sys.executable, "-I", str(path), str(tmp_path / "certificate.json")]
        return subprocess.run(command, capture_output=True, text=True)

    found = run(certificate)
    assert (found.returncode, found.stdout) == (0, "proved for all t from 0 to 3/2\n")
    found = run(equality, pathlib.Path(identities.__file__))
    assert (found.returncode, found.stdout) == (0, "proved for all t from 0\n")
    assert run(equality).returncode == run(certificate, pathlib.Path(identities.__file__)).returncode == 1
    found = run(certificate | {"until": "2"})
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == "not a proof: its digest is not that of its contents: something was changed\n"


PROBLEM = """
import flowsim
import jax
import jax.numpy as jnp


def make():
    return flowsim.FunctionLoss(lambda w: jnp.sum(w**2) / 2, minimum=0.0), jnp.asarray([1.0, 0.5])


@flowsim.claim("mine.rate", "my notes")
def rate(flow):
    r"$L(t) \\le e^{-2t} L(0)$"
    return flowsim.at_most(flow.excess, 1.0000001 * jnp.exp(-2.0 * flow.t) * flow.excess[0])


@flowsim.claim("mine.angle", "my notes")
def angle(flow):
    r"$w_1 = 2 w_2$"
    return flowsim.equal(flow.models[:, 0], 2 * flow.models[:, 1], 1.0)


@flowsim.claim("mine.gamma", "my notes")
def gamma(flow):
    r"$\\Gamma(L) \\ge 0$"
    return flowsim.at_least(jnp.exp(jax.scipy.special.gammaln(flow.excess + 1)), 0.0)
"""


def test_the_commands_write_and_check_a_certificate(tmp_path, capfd):
    from flowsim.cli.main import main

    (tmp_path / "mine.py").write_text(PROBLEM)
    mine, out = str(tmp_path / "mine.py"), tmp_path / "certificate.json"
    assert main(["certify", f"{mine}:rate", f"{mine}:make", "--until", "2", "--out", str(out)]) == 0
    assert main(["verify", str(out)]) == 0
    assert "mine.rate [printed]: proved for all t from 0 to 2" in capfd.readouterr().out
    out.write_text(out.read_text().replace('"proved"', '"refuted"'))
    assert main(["verify", str(out)]) == 1
    assert "is not a proof" in capfd.readouterr().err
    out.unlink()
    assert main(["certify", f"{mine}:angle", f"{mine}:make", "--until", "inf", "--out", str(out)]) == 3
    # The derivative of w_1 - 2 w_2 is zero only where this is.
    assert "its sides may part along the flow" in capfd.readouterr().err
    assert main(["certify", f"{mine}:gamma", f"{mine}:make", "--until", "2", "--out", str(out)]) == 3
    assert "no certificate" in capfd.readouterr().err
    assert main(["certify", "zhang2023.lemma-5.4.pl", "--form", "corrected", "--out", str(out)]) == 2
    assert '--form must be "printed" for zhang2023.lemma-5.4.pl, but it is "corrected"' in capfd.readouterr().err
    assert not out.exists()
