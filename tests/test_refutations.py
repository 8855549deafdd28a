"""Refutations: in the limit, beside a flow, beyond an allowance, and what certificates read of a comparison."""

import copy
import math

import flint
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flint import arb

import flowsim
from flowsim._core.balls.operations import UndecidedError
from flowsim.claims import Evidence
from flowsim.claims.proofs import FollowedFlow, OpenError, check, checker, ending, identities
from flowsim.claims.proofs.domain import Domain
from flowsim.claims.proofs.program import program
from flowsim.experiments.certification import attempts
from tests.helpers import quadratic

OFF = 1e-9  # on either side of what is sharp
LIMIT = "refuted in the limit"


def claimed(compare, **options):
    return flowsim.claim("mine.statement", "a test", statement="a statement", **options)(compare)


def ends_below(bound, read=lambda flow: flow.models[-1:, 0]):
    return claimed(lambda flow: flowsim.at_most(read(flow), bound, allowance=flow.way_to_go))


def is_refuted(claim, loss, start, t1=2.0):
    """Whether there is a refutation, which its checker accepts."""
    try:
        return "refuted" in check(flowsim.certify(claim, loss, start, t1=t1, refutes=True))
    except OpenError:
        return False


# --- In the limit -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [ends_below, lambda bound: claimed(lambda flow: _below_its_limit(flow, bound))],
    ids=["way to go", "flowsim.limit"],
)
def test_a_limit_is_told_apart_from_what_is_a_billionth_off(make):
    loss, start = quadratic(1.0), jnp.zeros(1)
    found = flowsim.certify(make(1 - OFF), loss, start, t1=2.0, refutes=True)
    assert check(found) == LIMIT and found["version"] == ending.VERSION
    with pytest.raises(OpenError, match="the statement holds in the ball at the end"):
        flowsim.certify(make(1 + OFF), loss, start, t1=2.0, refutes=True)
    with pytest.raises(OpenError, match="not shown in the limit"):
        flowsim.certify(make(1 - OFF), loss, start, t1=2.0)
    assert check(flowsim.certify(make(1 + OFF), loss, start, t1=2.0)) == "proved in the limit"


def _below_its_limit(flow, bound):
    value, allowance = flowsim.limit(flow, lambda w: w[0])
    return flowsim.at_most(value, bound, allowance=allowance)


def test_what_fails_on_the_way_alone_is_not_refuted_in_the_limit():
    # w falls from 2 to 1: it is above 3/2 at first, and not at the end.
    assert not is_refuted(ends_below(1.5), quadratic(1.0), jnp.full(1, 2.0))


READ_MORE = {
    "the largest on the way": lambda flow: jnp.max(flow.models[:, 0])[None],
    "the least on the way": lambda flow: 3 - jnp.min(flow.models[:, 0])[None],
    "a time in the middle": lambda flow: flow.models[flow.t.size // 2, 0][None],
    "the mean": lambda flow: jnp.mean(flow.models[:, 0])[None],
    "the last time": lambda flow: flow.t[-1:],
}


@pytest.mark.parametrize("name", READ_MORE)
def test_what_reads_more_than_the_end_is_not_refuted_by_the_end(name):
    for bound in (-5.0, 0.5, 1.5):
        assert not is_refuted(ends_below(bound, READ_MORE[name]), quadratic(1.0), jnp.zeros(1))


def test_the_end_of_a_flow_that_allows_nothing_is_not_taken_for_its_limit():
    claim = claimed(lambda flow: flowsim.at_most(flow.models[-1:, 0], 0.5))  # true at t = 1/2
    with pytest.raises(OpenError, match="not return its sides at each time"):
        flowsim.certify(claim, quadratic(1.0), jnp.zeros(1), t1=0.5, refutes=True)


def test_a_flow_without_an_end_has_no_limit_to_be_refuted(monkeypatch):
    monkeypatch.setattr("flowsim.claims.proofs.ball._TIMES", np.asarray([1.0, 8.0]))
    loss = flowsim.FunctionLoss(lambda w: jnp.exp(-w[0]), minimum=0.0)
    assert not is_refuted(ends_below(-1.0), loss, jnp.ones(1))


@pytest.fixture(scope="module")
def in_the_limit():
    return flowsim.certify(ends_below(0.9), quadratic(1.0), jnp.zeros(1), t1=2.0, refutes=True)


FORGED = {
    "proved": lambda c: c.__setitem__("verdict", "proved"),
    "no verdict": lambda c: c.__setitem__("verdict", "open"),
    "no pieces": lambda c: c.__setitem__("pieces", []),
    "a piece less": lambda c: c["pieces"].pop(),
    "a small ball": lambda c: c["end"].__setitem__("radius", "1p-60"),
    "another centre": lambda c: c["end"].__setitem__("centre", ["3/2"]),
    "more curvature": lambda c: c["end"].__setitem__("curvature", "2"),
    "a weaker statement": lambda c: _operation(c, "number").__setitem__(2, ["11/10"]),
    "a field along which the loss falls": lambda c: c["end"].__setitem__("fields", [[[0, 1, "1"]]]),
    "a field of what is not there": lambda c: c["end"].__setitem__("fields", [[[0, 2, "1"]]]),
}


def _operation(certificate, name):
    return next(each for each in certificate["sides"]["operations"] if each[0] == name)


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_limit_is_no_proof(in_the_limit, name):
    assert check(in_the_limit) == LIMIT
    forged = copy.deepcopy(in_the_limit)
    FORGED[name](forged)
    forged["digest"] = ending.digest(forged)
    with pytest.raises((checker.RefusedError, identities.RefusedError, KeyError, IndexError)):
        check(forged)


# --- Losses that are defined at some weights alone -----------------------------------------------------------------


def looped(n):
    """One loop at d = 1, defined at u = 0 alone: A(t) tends to n/(n + 2)."""
    task = flowsim.LinearRegression(jnp.eye(1), n, weights="inverse-covariance")
    return flowsim.LoopedLoss(task, 1), flowsim.LoopedAttention(jnp.zeros((1, 1)), loops=1)


@pytest.mark.slow
def test_weights_that_cannot_move_are_directions_in_which_nothing_changes():
    claim = lambda bound: ends_below(bound, lambda flow: flow.models.A[-1:, 0, 0])
    limit = 5 / 7
    found = flowsim.certify(claim(limit * (1 - OFF)), *looped(5), t1=2.0, refutes=True)
    assert check(found) == LIMIT
    assert [[1, 2, "1"]] in found["end"]["fields"]
    assert not is_refuted(claim(limit * (1 + OFF)), *looped(5))


def test_a_domain_is_what_a_loss_allows():
    def symmetric(w):
        return jnp.where(jnp.all(w[0] == w[0].T) & jnp.all(w[1] == 2.0), jnp.sum(w[0] ** 2) + jnp.sum(w[2]), jnp.nan)

    start = (jnp.eye(2), jnp.full(2, 2.0), jnp.ones(1))
    domain = Domain(flowsim.FunctionLoss(symmetric), start)
    moved = domain.near(np.random.default_rng(1), 0.1)
    assert moved[1] == moved[2] != 0 and np.all(moved[4:6] == 2) and moved[6] != 1
    assert domain.outside == [[(1, 1), (2, -1)], [(4, 1)], [(5, 1)]]


def test_weights_that_the_gradient_holds_fixed_do_not_move():
    """w(t) = e^{-4t} beside a 2 that the loss reads and holds fixed, and the same with a 2 that it moves."""
    held = lambda hold: flowsim.FunctionLoss(lambda w: (w[0][0] * hold(w[1][0])) ** 2 / 2, minimum=0.0)
    start = (jnp.ones(1), jnp.full(1, 2.0))
    loss = held(jax.lax.stop_gradient)
    weights, radius = flowsim.enclose(loss, start, t1=1.0).at(1.0)
    assert radius < 1e-15 and abs(float(weights[0][0]) - np.exp(-4)) < 1e-15 and weights[1][0] == 2.0
    moved, radius = flowsim.enclose(held(lambda x: x), start, t1=1.0).at(1.0)
    assert radius < 1e-15 and moved[1][0] < 2.0 - 1e-2
    rate = lambda c: claimed(lambda flow: flowsim.at_most(flow.models[0][:, 0], jnp.exp(-c * flow.t)))
    assert "proved" in check(flowsim.certify(rate(4 * (1 - OFF)), loss, start, t1=1.0))
    assert is_refuted(rate(4 * (1 + OFF)), loss, start)


def test_weights_that_do_move_are_not_held_fixed():
    # Its value is defined at w_2 = 1 alone, but its gradient moves w_2 away.
    def value(w):
        return jnp.where(jax.lax.stop_gradient(w[1][0]) == 1.0, w[0][0] ** 2 + w[1][0], jnp.nan)

    with pytest.raises(ValueError, match="whose gradient is the derivative of its value"):
        flowsim.enclose(flowsim.FunctionLoss(value), (jnp.ones(1), jnp.ones(1)), t1=1.0)


def test_a_velocity_is_minus_the_gradient():
    # |w'| = e^{-t} for w_1 = e^{-t}, w_2 = 0.
    speed = lambda bound: claimed(
        lambda flow: flowsim.at_most(jnp.linalg.norm(flow.velocity, axis=1), bound * jnp.exp(-flow.t))
    )
    loss, start = quadratic(0.0, 0.3), jnp.asarray([1.0, 0.3])
    assert is_refuted(speed(1 - OFF), loss, start) and not is_refuted(speed(1 + OFF), loss, start)
    assert "proved" in check(flowsim.certify(speed(1 + 1e-6), loss, jnp.asarray([1.0, 0.2999]), t1=1e-4))


# --- Beside a flow, and beyond an allowance -----------------------------------------------------------------------


def beside(bound, first=False):
    """|w|^2 along the flow and at two given weights, of which the second has 5."""

    def compare(flow):
        given = jnp.asarray([[1.0, 1.0], [1.0, 2.0]])
        parts = [flow.models, given]
        return flowsim.at_most(jnp.sum(jnp.concatenate(parts[::-1] if first else parts) ** 2, axis=1), bound)

    return claimed(compare)


def test_what_is_compared_beside_a_flow_is_refuted_there():
    loss, start = quadratic(0.0, 0.0), jnp.asarray([0.1, 0.2])
    assert is_refuted(beside(5 * (1 - OFF)), loss, start)
    assert not is_refuted(beside(5 * (1 + OFF)), loss, start)
    assert "proved" in check(flowsim.certify(beside(5 * (1 + OFF)), loss, start, t1=1.0))
    with pytest.raises(OpenError):
        flowsim.certify(beside(5 * (1 - OFF)), loss, start, t1=1.0)


def test_rows_in_another_order_are_not_taken_for_times():
    with pytest.raises(OpenError, match="not functions of the time"):
        flowsim.certify(beside(1.0, first=True), quadratic(0.0, 0.0), jnp.asarray([0.1, 0.2]), t1=1.0, refutes=True)


def test_an_allowance_is_allowed():
    # e^{-t} is above (1 - 1/10) e^{-t} by a tenth of it.
    level = lambda share: claimed(
        lambda flow: flowsim.at_most(flow.models[:, 0], 0.9 * flow.models[:, 0], allowance=share * flow.models[:, 0])
    )
    loss, start = quadratic(0.0), jnp.ones(1)
    assert is_refuted(level(0.1 * (1 - 1e-7)), loss, start)
    assert not is_refuted(level(0.1 * (1 + 1e-7)), loss, start)
    with pytest.raises(OpenError, match="it has an allowance"):
        flowsim.certify(level(0.2), loss, start, t1=1.0)


def test_an_allowance_of_an_equality_is_allowed_on_both_sides():
    level = lambda share: claimed(
        lambda flow: flowsim.equal(flow.models[:, 0], 2 * flow.models[:, 0], 1.0, allowance=share * flow.models[:, 0])
    )
    assert is_refuted(level(1 - 1e-7), quadratic(0.0), jnp.ones(1))
    assert not is_refuted(level(1 + 1e-7), quadratic(0.0), jnp.ones(1))


# --- Operations -----------------------------------------------------------------------------------------------------


def _value(function, *weights):
    listed = program(lambda weights: function(weights), weights=jax.ShapeDtypeStruct((len(weights),), float))
    with flint.ctx.workprec(100):
        return checker.Program(listed)(weights=[w if isinstance(w, arb) else arb(w) for w in weights])[0]


def test_equality_of_numbers_that_move_is_decided_where_it_is_known():
    same, other = (lambda w: jnp.where(w[0] == w[1], 5.0, 7.0)), (lambda w: jnp.where(w[0] != w[1], 7.0, 5.0))
    for function in (same, other):
        assert _value(function, 2.0, 2.0) == 5 and _value(function, 2.0, 2.0 + 2.0**-40) == 7
        open_ball = _value(function, arb(2, 0.1), arb(2.0))
        assert open_ball.contains(5) and open_ball.contains(7)


def test_what_is_infinite_where_it_is_not_chosen_does_no_harm_and_elsewhere_shows_nothing():
    chosen = lambda w: jnp.where(w[0] > 1.0, w[0], jnp.inf)
    assert _value(chosen, 2.0) == 2
    assert not _value(chosen, 0.5).is_finite() and not _value(chosen, arb(1, 0.1)).is_finite()
    claim = lambda bound: claimed(
        lambda flow: flowsim.at_most(flow.models[:, 0], jnp.where(flow.t > 0, bound * jnp.exp(-flow.t), jnp.inf))
    )
    assert is_refuted(claim(1 - OFF), quadratic(0.0), jnp.ones(1))
    assert not is_refuted(claim(1 + OFF), quadratic(0.0), jnp.ones(1))
    assert not is_refuted(claim(1 - OFF), quadratic(0.0), jnp.ones(1), t1=0.0)


@pytest.mark.slow
def test_a_softmax_of_two_weights_is_enclosed():
    prompts = jnp.asarray([[1.0, 0.5, -0.25], [0.3, -1.0, 0.7]])

    def risk(w):
        seen = jax.nn.softmax(w[0] * w[1] * prompts[:, :, None] * prompts[:, None, :], axis=-1)
        return jnp.mean((w[1] * jnp.einsum("nij,nj->n", seen, prompts) - jnp.asarray([0.5, -0.2])) ** 2) / 2

    loss, start = flowsim.FunctionLoss(risk), jnp.asarray([0.5, 0.3])
    weights, radius = flowsim.enclose(loss, start, t1=0.5).at(0.5)
    run = flowsim.gradient_flow(loss, start, times=[0.5], rtol=1e-11)
    assert radius < 1e-15 and jnp.max(jnp.abs(weights - run.at(0.5))) < 1e-9
    for least in (lambda w: jnp.min(w, initial=jnp.inf), lambda w: -jnp.max(-w, initial=-jnp.inf)):
        assert _value(least, 2.0, 3.0) == 2


def test_the_root_of_a_ball_around_zero_is_a_number_if_what_is_in_it_is_never_negative():
    near_zero = arb(0, 1e-20)
    with flint.ctx.workprec(100):
        root, root_of_squares = (checker.ENTRIES[name] for name in checker.ROOTS)
        found = root_of_squares[0](near_zero)
        assert found.contains(0) and found.contains(arb(1e-20).sqrt()) and found < 1.1e-10
        assert not root[0](near_zero).is_finite()
        for function, slope in (root, root_of_squares):
            assert function(arb(4, 1)).contains(2) and function(arb(4, 1)) > 1
            assert not function(arb(-1)).is_finite() and not function(arb(-1, 0.5)).is_finite()
            assert not slope(near_zero)[0].is_finite()


ROOTS = {
    "a square": (lambda w: w[0] ** 2, True),
    "a product with itself": (lambda w: w[0] * w[0], True),
    "a square of a difference": (lambda w: jnp.square(w[0] - w[1]), True),
    "a sum of squares": (lambda w: jnp.sum(w**2) + 0.5, True),
    "a scalar product with itself": (lambda w: jnp.vdot(w, w), True),
    "a mean of weighted squares": (lambda w: jnp.mean(jnp.array([1.0, 3.0]) * w**2) / 2, True),
    "a positive part": (lambda w: jnp.maximum(w[0], 0.0), True),
    "an exponential": (lambda w: jnp.exp(w[0]) * w[1] ** 4, True),
    "a weight": (lambda w: w[0], False),
    "a product": (lambda w: w[0] * w[1], False),
    "a cube": (lambda w: w[0] ** 3, False),
    "a difference of squares": (lambda w: w[0] ** 2 - w[1] ** 2, False),
    "minus a square": (lambda w: -w[0] * w[0], False),
    "a square and a negative number": (lambda w: w[0] ** 2 - 0.5, False),
    "a square with a negative factor": (lambda w: -0.5 * w[0] ** 2, False),
    "a mean of squares of which one is subtracted": (lambda w: jnp.array([1.0, -3.0]) @ (w * w), False),
    "a scalar product": (lambda w: jnp.vdot(w, w[::-1]), False),
    "a negative part": (lambda w: jnp.minimum(w[0], 0.0), False),
    "a maximum": (lambda w: jnp.maximum(w[0], w[1]), False),
    "what another condition chooses": (lambda w: jnp.where(w[1] > 0, w[0], 0.0), False),
    "what a condition does not choose": (lambda w: jnp.where(w[0] > 0, 0.0, w[0]), False),
    "a sine": (lambda w: jnp.sin(w[0]), False),
    "a logarithm": (lambda w: jnp.log(w[0] ** 2 + 1), False),
}


@pytest.mark.parametrize("name", ROOTS)
def test_what_is_never_negative_is_read_off_from_how_it_is_computed(name):
    inside, expected = ROOTS[name]
    written = program(lambda weights: jnp.sqrt(inside(weights)), weights=jax.ShapeDtypeStruct((2,), float))
    found = checker.Program(written)
    assert checker.ROOTS[expected] in [operation for operation, *_ in found.operations]
    # What the certificate itself says of it counts for nothing.
    for said in checker.ROOTS:
        changed = [[said if name in checker.ROOTS else name, *rest] for name, *rest in written["operations"]]
        assert checker.Program(written | {"operations": changed}).operations == found.operations


def test_loops_are_unrolled_where_no_input_moves_their_condition():
    power = lambda w: jax.lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] * w[0]), (0, 1.0))[1]
    assert _value(power, 3.0) == 243
    halved = lambda w: jax.lax.while_loop(lambda c: c > 1.0, lambda c: c / 2, w[0])
    with pytest.raises(UndecidedError, match="loops that end when"):
        program(lambda weights: halved(weights), weights=jax.ShapeDtypeStruct((1,), float))


def test_a_number_that_was_rounded_is_an_unknown_constant_of_identities():
    ring = identities.Polynomials(1)
    near = {"operations": [["near", [], ["0", "1/3", "1/3"]], ["near", [], ["1", "1/3"]]], "result": 0}
    one, other = ring.values(near)
    (third,) = ring.values(near | {"result": 1})
    # Of another list of operations the numbers are others, even where these look the same.
    assert len({str(x) for x in (one, other, third, *ring.values(near))}) == 5
    (same,) = ring.values({"operations": [*near["operations"], ["sub", [1, 1], None]], "result": 2})
    assert same == 0
    # A number has one inverse, and a weight none that is a polynomial.
    inverse = ring.entry("div", ring.constant(1), one)
    assert ring.plain(ring.entry("div", ring.weights[0], one)) == inverse * ring.weights[0] != 0
    with pytest.raises(identities.RefusedError):
        ring.plain(ring.entry("div", one, ring.weights[0]))


def test_two_numbers_that_were_rounded_to_the_same_float64_are_not_proved_equal():
    near = ["near", [], ["0", "1/3"]]
    loss = {"operations": [near, ["input", [], "weights"], ["mul", [0, 1], None]], "result": 2}
    # w(t) = w(0) - a t for the number a of the loss, and not for another one near 1/3.
    operations = [near, ["input", [], "t"], ["mul", [0, 1], None], ["input", [], "weights"], ["input", [], "start"]]
    operations += [["add", [2, 3], None], ["sub", [5, 4], None]]
    document = {"version": identities.VERSION, "verdict": "proved", "loss": loss}
    document |= {"start": {"operations": [["number", [], ["1"]]], "result": 0}}
    document |= {"sides": {"operations": operations, "result": 6}}
    with pytest.raises(identities.RefusedError, match="may part"):
        check(document | {"digest": identities.digest(document)})


def test_a_wide_hessian_is_bounded_as_the_checker_does():
    # Balls whose radii are not symmetric: the largest sum of a column is above that of a row.
    from flowsim.claims.proofs.path import _largest_eigenvalue

    with flint.ctx.workprec(100):
        rows = [[arb(2, 0.1), arb(0, 1.0), arb(0, 1.0)], [arb(0), arb(2, 0.1), arb(0)], [arb(0), arb(0), arb(2, 0.1)]]
        for matrix in (rows, [list(column) for column in zip(*rows, strict=True)]):
            mu = _largest_eigenvalue(matrix)
            assert mu is not None and checker.is_positive(matrix, mu) and mu < 0


def test_a_violation_is_refuted_where_it_is_first_clear():
    loss, start = quadratic(0.0), jnp.ones(1)
    run = flowsim.gradient_flow(loss, start, t1=8.0)
    claim = claimed(lambda flow: flowsim.at_most(flow.models[:, 0], jnp.exp(-2 * flow.t)))
    (verdict,) = flowsim.judge([claim], loss, run)
    evidence = Evidence(loss, run)
    tried, found = attempts.certified(claim, verdict, evidence, lambda: FollowedFlow(loss, start), seconds=60.0)
    assert found is not None and isinstance(verdict.where, float)
    assert tried.certified == "refuted" and check(found).startswith("refuted at t = ")
    with flint.ctx.workprec(60):
        assert 0 < checker.number(found["until"]) < verdict.where / 4


@pytest.mark.parametrize("until", [1.0, math.inf])
@pytest.mark.parametrize("width", [1e-1, 1e-3, 1e-6])
def test_a_statement_that_fails_for_a_moment_alone_is_not_proved(width, until):
    """The middle of a piece tells nothing of the branch elsewhere on it: w = e^{-t} is near 1/2 at t = log 2 alone."""
    dip = lambda flow: flowsim.at_least(jnp.where(jnp.abs(flow.models[:, 0] - 0.5) > width, 1.0, -1.0), 0.0)
    claim = flowsim.claim("mine.dip", "my notes", statement="w is not near 1/2")(dip)
    loss = flowsim.FunctionLoss(lambda w: w[0] ** 2 / 2, minimum=0.0)
    with pytest.raises(OpenError, match=r"not shown at t = 0\.(5|6|7)"):
        flowsim.certify(claim, loss, jnp.ones(1), t1=until)
    assert flowsim.certify(claim, loss, jnp.ones(1), t1=0.5)["verdict"] == "proved"


@pytest.mark.parametrize("until", [0.9, math.inf])
@pytest.mark.parametrize("function", [jnp.log, lambda x: 1 / x], ids=["logarithm", "inverse"])
def test_what_is_not_defined_does_not_cancel(function, until):
    """Of w - 1/2 the logarithm is not a number from t = log 2 on, and the inverse at that time: the condition fails."""

    def compare(flow):
        undefined = function(flow.models[:, 0] - 0.5)
        return flowsim.at_least(jnp.where(undefined - undefined > -1, 1.0, -1.0), 0.0)

    _refuse_from_log_2_on(compare, until)


def _refuse_from_log_2_on(compare, until):
    claim = flowsim.claim("mine.undefined", "my notes", statement="it is defined")(compare)
    loss = flowsim.FunctionLoss(lambda w: w[0] ** 2 / 2, minimum=0.0)
    with pytest.raises(OpenError):
        flowsim.certify(claim, loss, jnp.ones(1), t1=until)
    assert flowsim.certify(claim, loss, jnp.ones(1), t1=0.5)["verdict"] == "proved"


UNDEFINED = {
    "a root": lambda x: jnp.sqrt(x),
    "a fourth root": lambda x: x**0.25,
    "what a root of it chooses": lambda x: jnp.where(jnp.sqrt(x) > -1, 1.0, -1.0),
    "zero times a logarithm": lambda x: 1 + 0.0 * jnp.log(x),
    "a logarithm times zero": lambda x: 1 + jnp.log(x) * (x - x),
    "a product of matrices": lambda x: 1 + jnp.log(x)[:, None] * jnp.ones((1, 2)) @ jnp.zeros(2),
    "zero by it": lambda x: 1 + 0.0 / x,
}


@pytest.mark.parametrize("until", [0.9, math.inf])
@pytest.mark.parametrize("name", UNDEFINED)
def test_what_is_not_defined_proves_nothing(name, until):
    """Of x = w - 1/2, which is zero at t = log 2."""
    _refuse_from_log_2_on(lambda flow: flowsim.at_least(UNDEFINED[name](flow.models[:, 0] - 0.5), 0.0), until)
