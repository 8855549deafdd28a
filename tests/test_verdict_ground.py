"""Verdicts where float64, points or the end of a run mislead: each with what is true of it, in closed form."""

import functools
from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Form

import flowsim
from flowsim import Claim, FunctionLoss, at_least, at_most, equal, gradient_flow, initialization
from flowsim.claims import Evidence, Judgement
from flowsim.flow.gradient_flow import start_alone
from flowsim.flow.trajectory import Status

HOLDS, VIOLATED, UNRESOLVED = Judgement.HOLDS, Judgement.VIOLATED, Judgement.UNRESOLVED
VACUOUS = Judgement.VACUOUS


class Weight(eqx.Module):
    """x."""

    x: jax.Array


class Factors(eqx.Module):
    """a and b."""

    a: jax.Array
    b: jax.Array


def weight(x: float) -> Weight:
    return Weight(jnp.asarray(float(x)))


def factors(a: float, b: float) -> Factors:
    return Factors(jnp.asarray(float(a)), jnp.asarray(float(b)))


def bowl(m: Weight, to: jax.Array, minimum: jax.Array) -> jax.Array:
    return minimum + (m.x - to) ** 2 / 2


@functools.cache
def parabola(to: float = 0.0, minimum: float = 0.0) -> FunctionLoss:
    return FunctionLoss(Form(bowl, to, minimum), minimum=minimum)


QUARTIC = FunctionLoss(lambda m: m.x**4 / 4, minimum=0.0)  # x = 1/sqrt(1 + 2t) from 1
COSINE = FunctionLoss(lambda m: 1 - jnp.cos(m.x), minimum=0.0)
SOFT = FunctionLoss(lambda m: jnp.log(jnp.cosh(m.x)), minimum=0.0)
PRODUCT = FunctionLoss(lambda m: (m.a * m.b - 1) ** 2 / 2, minimum=0.0)
SLOW = FunctionLoss(lambda m: (m.a - 1) ** 2 / 2 + m.b**4 / 4, minimum=0.0)
SPHERE = FunctionLoss(lambda m: jnp.sum((m.x - 1) ** 2) / 2, minimum=0.0)


def judged(compare, loss, start, *, along_flow=True, **how) -> flowsim.Verdict:
    claim = Claim("own.claim", "here", "a statement", compare, along_flow=along_flow)
    return flowsim.check(claim, loss, gradient_flow(loss, start, **how))


# Cancellation.


@pytest.mark.parametrize(("factor", "expected"), [(1.54, HOLDS), (1.5404, VIOLATED)])
def test_a_cancelled_excess_is_computed_in_balls(factor, expected):
    """sin(x)^2 / (1 - cos x) = 1 + cos x >= 1 + cos 1 = 1.540302."""
    found = judged(lambda loss, flow: at_least(flow.grad_norm_sq, factor * flow.excess), COSINE, weight(1))
    assert found.verdict is expected, found


@pytest.mark.slow
@pytest.mark.parametrize("loss", [COSINE, SOFT])
def test_a_bound_by_the_parabola_holds_of_what_lies_below_it(loss):
    """Where x is small, no digit tells 1 - cos x from x^2/2."""
    found = judged(lambda loss, flow: at_most(flow.excess, flow.models.x**2 / 2), loss, weight(1))
    assert found.verdict is not VIOLATED, found
    found = judged(lambda loss, flow: at_most(flow.excess, flow.models.x**2 / 2), loss, weight(1), t1=3.0)
    assert found.verdict is HOLDS, found


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "refused"), [(1.9999, VIOLATED), (2.0001, HOLDS)])
def test_a_minimum_that_hides_the_excess_is_not_taken_for_it(factor, refused):
    """|grad L|^2 = 2 (L - 1000), whose digits are gone below 1e-13."""
    compare = lambda loss, flow: at_least(flow.grad_norm_sq, factor * flow.excess)
    assert judged(compare, parabola(minimum=1e3), weight(1)).verdict is not refused


@pytest.mark.slow
def test_a_bound_between_a_difference_and_its_rounding_is_not_decided():
    a, b = 0.7, 0.3
    exact = difference_of_squares(a, b)
    between = np.nextafter(a * a - b * b, exact)
    found = judged(lambda loss, flow: at_least(flow.models.a**2 - flow.models.b**2, between), PRODUCT, factors(a, b))
    assert found.verdict is not (HOLDS if exact < between else VIOLATED), found


def difference_of_squares(a: float, b: float) -> float:
    return float(Fraction(a) ** 2 - Fraction(b) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize(("shift", "expected"), [(0.0, HOLDS), (1e-3, VIOLATED)])
def test_constants_that_cancel_are_no_violation(shift, expected):
    """x = c + (x(0) - c) e^{-t}, with 2,040 times as large a c as x(0)."""
    to, start = -2039.8, 0.3

    def compare(loss, flow):
        return equal(flow.models.x, to + (start - to) * jnp.exp(-flow.t) + shift, jnp.abs(flow.models.x))

    assert judged(compare, parabola(to), weight(start), t1=3.0).verdict is expected


# Far out.


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "refused"), [(1 - 1e-6, HOLDS), (1 + 1e-6, VIOLATED)])
def test_a_decay_of_many_decades_is_known_to_its_digits(factor, refused):
    """x = e^{-t} at t = 44 and 100."""
    compare = lambda loss, flow: at_most(flow.models.x, factor * jnp.exp(-flow.t), promised=flow.t > 0)
    assert judged(compare, parabola(), weight(1), times=[1.0, 44.0, 100.0]).verdict is not refused


@pytest.mark.slow
def test_the_dense_solver_follows_a_decay_to_its_last_decade():
    flow = gradient_flow(parabola(), weight(1), times=[1.0, 44.0, 100.0], rtol=1e-10)
    np.testing.assert_allclose(flow.models.x, np.exp(-np.asarray(flow.t)), rtol=1e-8)


@pytest.mark.parametrize("bound", [at_least, at_most])
def test_a_bound_of_zero_is_judged_by_the_sign(bound):
    """x = e^{-t} is positive; how far that is so at the end is a matter of rounding."""
    found = judged(lambda loss, flow: bound(flow.models.x, 0.0), parabola(), weight(1))
    assert found.verdict is (HOLDS if bound is at_least else VIOLATED), found


def test_a_negative_size_is_refused():
    with pytest.raises(ValueError, match="size"):
        judged(lambda loss, flow: at_most(flow.models.x, 2.0, size=-1.0), parabola(), weight(1))


# For all t.


@pytest.mark.slow
@pytest.mark.parametrize("begin", [3.0, 25.0, 27.2, 12.34])
@pytest.mark.parametrize(("factor", "expected"), [(1 - 1e-5, VIOLATED), (1 + 1e-5, HOLDS)])
def test_where_a_promise_begins_is_an_event(begin, factor, expected):
    bound = factor / np.sqrt(1 + 2 * begin)
    compare = lambda loss, flow: at_most(flow.models.x, bound, promised=flow.t >= begin)
    assert judged(compare, QUARTIC, weight(1), t1=28.0).verdict is expected


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "expected"), [(1 - 1e-5, VIOLATED), (1 + 1e-5, HOLDS)])
def test_a_promise_that_begins_where_the_loss_does_is_an_event_too(factor, expected):
    compare = lambda loss, flow: at_most(flow.models.x, factor * 1e-2, promised=flow.loss <= 0.5e-4)
    assert judged(compare, parabola(), weight(1)).verdict is expected


@pytest.mark.slow
def test_few_outputs_do_not_hide_a_peak():
    """From (1e-4, 1e-4) the squared gradient peaks at 2 ab (ab - 1)^2 = 8/27 between the outputs."""
    for bound, expected in ((0.29, VIOLATED), (0.2964, HOLDS)):
        compare = lambda loss, flow, bound=bound: at_most(flow.grad_norm_sq, bound)
        found = judged(compare, PRODUCT, factors(1e-4, 1e-4), times=[1.0, 5.0, 30.0], points_per_decade=0)
        assert found.verdict is expected, found


def test_a_run_that_was_cut_says_until_when_it_was_judged():
    cut = judged(lambda loss, flow: at_least(flow.models.x, 0.3), parabola(), weight(1), t1=1.0)
    assert cut.verdict is HOLDS and cut.until == 1.0 and cut.cut and "holds until t = 1" in str(cut)
    assert cut.verdict_text() == "holds until t = 1"
    beyond = judged(lambda loss, flow: at_most(flow.models.x, 1.5), parabola(), weight(1), t1=1.0)
    assert beyond.verdict is HOLDS and beyond.until is None and beyond.verdict_text() == "holds"


@pytest.mark.parametrize("start", [20, 60, 200])
def test_rest_that_is_rounding_is_no_rest(start):
    """The field is of the size of e^{-2x}, of which float64 has nothing, and 128 bits have nothing from 45 on."""
    loss = FunctionLoss(lambda m: (jnp.tanh(m.x) - 0.5) ** 2, minimum=0.0)
    flow = gradient_flow(loss, weight(start), t1=1e3)
    assert flow.status is Status.LOST
    claim = Claim("own.claim", "here", "x stays", lambda loss, flow: at_least(flow.models.x, start - 1.0))
    assert flowsim.check(claim, loss, flow).verdict is UNRESOLVED


@pytest.mark.slow
@pytest.mark.parametrize("jump", [lambda t: jnp.floor(7 * t) % 2, lambda t: jnp.sign(jnp.sin(9 * t)), jnp.round])
def test_what_jumps_with_time_is_not_judged_from_points(jump):
    compare = lambda loss, flow: at_least(flow.models.x, -1e-3 - jnp.abs(jump(flow.t)))
    assert judged(compare, parabola(), weight(1), t1=5.0).verdict is UNRESOLVED


def test_a_window_in_time_between_two_outputs_is_seen():
    compare = lambda loss, flow: at_most(flow.models.x, jnp.where((flow.t > 2.001) & (flow.t < 2.0011), 0.0, 1.1))
    assert judged(compare, parabola(), weight(1), t1=5.0).verdict is UNRESOLVED


@pytest.mark.parametrize(
    ("spike", "verdict"),
    [
        (lambda t: 2 * jnp.exp(-(((t - 2.001) / 1e-4) ** 2)), VIOLATED),
        (lambda t: 2 - jnp.minimum(2.0, jnp.abs(t - 2.001) / 1e-4), VIOLATED),
        (lambda t: 2 / (1 + ((t - 2.001) / 1e-4) ** 2), VIOLATED),
        (lambda t: 2 * jnp.asarray(np.abs(np.asarray(t) - 2.001) < 1e-4, dtype=float), UNRESOLVED),
    ],
    ids=["bell", "hat", "peak", "NumPy"],
)
def test_a_spike_in_time_between_two_outputs_is_seen(spike, verdict):
    found = judged(lambda loss, flow: at_least(flow.models.x, spike(flow.t) - 1.0), parabola(), weight(1), t1=5.0)
    assert found.verdict is verdict, found


@pytest.mark.slow
@pytest.mark.parametrize("allowance", [lambda flow: 1e-5, lambda flow: flow.excess[-1:]])
@pytest.mark.parametrize("y", [1e-3, 1e-2])
def test_an_allowance_of_ones_own_does_not_cover_a_slow_weight(allowance, y):
    """L = (x - 1)^2/2 + y^4/4 stops long before y comes to 0."""
    compare = lambda loss, flow: at_least(flow.end.b[None], y / 2, allowance=allowance(flow))
    assert judged(compare, SLOW, factors(0.0, y)).verdict is UNRESOLVED


@pytest.mark.parametrize("width", [*(pytest.param(one, marks=pytest.mark.slow) for one in (2e-2, 1e-4)), 1e-6])
def test_what_weights_pass_through_between_two_outputs_is_seen(width):
    """e^{-t} steps from .59 to .48."""
    near = lambda flow: jnp.abs(flow.models.x - 0.55) <= width
    bell = lambda flow: jnp.exp(-(((flow.models.x - 0.55) / width) ** 2))
    cases = (
        (lambda flow: at_most(flow.models.x, 0.5, promised=near(flow)), VIOLATED),
        (lambda flow: at_most(flow.models.x, 0.6, promised=near(flow)), HOLDS),
        (lambda flow: at_most(flow.models.x, 0.5, promised=near(flow) & (flow.models.x > 0.6)), VACUOUS),
        (lambda flow: at_most(bell(flow), 0.5), VIOLATED),
        (lambda flow: at_most(bell(flow), 1.01), HOLDS),
    )
    claims = [flowsim.claim("own.claim", "here", statement="x")(compare) for compare, _ in cases]
    found = flowsim.judge(claims, parabola(), gradient_flow(parabola(), weight(1)))
    assert [one.verdict for one in found] == [expected for _, expected in cases]


def test_an_identity_that_fails_between_two_outputs_is_seen():
    bell = lambda flow: jnp.exp(-(((flow.models.x - 0.55) / 1e-3) ** 2))
    compare = lambda loss, flow: equal(flow.models.x + bell(flow), flow.models.x, jnp.ones_like(flow.t))
    assert judged(compare, parabola(), weight(1)).verdict is VIOLATED


@pytest.mark.slow
def test_several_spikes_are_seen():
    middles = jnp.linspace(0.3, 0.9, 5)
    spikes = lambda flow: jnp.exp(-(((flow.models.x[:, None] - middles[None]) / 1e-7) ** 2))
    assert judged(lambda loss, flow: at_most(spikes(flow), 0.5), parabola(), weight(1)).verdict is VIOLATED


def long_way(m: Factors, rate: jax.Array) -> jax.Array:
    return (m.a**2 + rate * m.b**2) / 2


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1e-12, 1e-14])
def test_an_allowance_of_ones_own_does_not_stand_in_for_a_long_way(rate):
    """The way to the limit is known, and is long."""
    loss = FunctionLoss(Form(long_way, rate), minimum=0.0)
    compare = lambda loss, flow: at_least(flow.end.b[None], 0.5, allowance=1e-3)
    assert judged(compare, loss, factors(1.0, 1.0)).verdict is UNRESOLVED


def test_a_function_of_the_limit_is_not_bounded_by_the_way_of_the_weights():
    compare = lambda loss, flow: equal(1e3 * flow.end.x[None], 2e3, 2e3, allowance=flow.way_to_go)
    assert judged(compare, parabola(2.0), weight(5)).verdict is not VIOLATED


@pytest.mark.slow
def test_solves_that_go_round_a_bump_do_not_judge_one_that_goes_onto_it():
    """x = y is kept, and the flow rests on the saddle between both ways round, where L = 5.97."""

    def function(m: Factors):
        u, v = (m.a + m.b) / 2, (m.a - m.b) / 2
        return ((u + 2) ** 2 + v**2) / 2 + 4 * jnp.exp(-(u**2 + v**2))

    compare = lambda loss, flow: at_least(flow.loss, 3.0)
    assert judged(compare, FunctionLoss(function), factors(2.0, 2.0), t1=100.0).verdict is not VIOLATED


@pytest.mark.parametrize(
    "function",
    [
        lambda x: 1 - jnp.cos(x),
        pytest.param(lambda x: 0.05 * (x + 1) ** 2 + jnp.tanh(20 * (x - 0.5)) + 1, marks=pytest.mark.slow),
    ],
)
def test_a_loss_that_cancels_has_no_walls(function):
    loss = FunctionLoss(lambda m: function(m.x))
    assert judged(lambda loss, flow: at_most(flow.models.x, 2.0), loss, weight(1)).verdict is HOLDS


@pytest.mark.slow
def test_a_field_that_is_a_staircase_near_zero_is_no_violation():
    """Near x = -1.6e-6 the rounded field has steps of 4e-15, which an accurate solve may not get across."""
    loss = FunctionLoss(lambda m: 0.05 * m.x**2 + jnp.tanh(20 * (m.x - 0.5)) + 1)
    found = judged(lambda loss, flow: at_most(flow.models.x, 2.0), loss, weight(1))
    assert found.verdict is HOLDS or (found.verdict is UNRESOLVED and "solve" in str(found)), found


def wall(m: Weight, width: jax.Array, height: jax.Array) -> jax.Array:
    return m.x**2 / 2 + height * jnp.exp(-(((m.x - 0.5) / width) ** 2))


@pytest.mark.parametrize(
    ("width", "height"), [(1e-3, 1.0), (1e-4, 0.01), (1e-6, 0.01), (1e-6, 1e-3), (1e-8, 1e-5), (1e-6, -1e-3)]
)
def test_a_wall_that_is_thinner_than_a_step_is_seen(width, height):
    """The flow from 1 to 0 ends at a wall at 1/2, however low it is, or in a pit."""
    loss = FunctionLoss(Form(wall, width, height), minimum=0.0)
    found = judged(lambda loss, flow: at_least(flow.models.x, 0.4), loss, weight(1))
    assert found.verdict is not VIOLATED, found


def valley_across(m: Weight, width: jax.Array) -> jax.Array:
    return jnp.sum(m.x - 1) ** 2 / 4 + 2 * ((m.x[0] - m.x[1]) ** 2 / width - width) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("width", [*(pytest.param(one, marks=pytest.mark.slow) for one in (1e-2, 1e-3)), 1e-5])
def test_a_narrow_valley_that_rounding_chooses_is_none_of_a_symmetric_start(width):
    """x = y for all t, and rounding leads to x - y = +-width."""
    loss = FunctionLoss(Form(valley_across, width))
    compare = lambda loss, flow: at_most(jnp.abs(flow.models.x[:, 0] - flow.models.x[:, 1]), width / 2)
    assert judged(compare, loss, Weight(jnp.asarray([0.5, 0.5])), t1=60.0).verdict is not VIOLATED


@pytest.mark.slow
@pytest.mark.parametrize(
    "slow", [lambda t: t * jnp.exp(-t), lambda t: jnp.sin(t / 9), lambda t: jnp.exp(-0.9 * t) / (1 + t**2), jnp.sqrt]
)
def test_what_depends_on_the_time_slowly_is_judged(slow):
    compare = lambda loss, flow: at_least(flow.models.x + slow(flow.t), 0.9 * jnp.exp(-flow.t) + slow(flow.t))
    assert judged(compare, parabola(), weight(1), t1=5.0).verdict is HOLDS


@pytest.mark.slow
def test_a_choice_that_no_time_of_the_flow_makes_is_none():
    compare = lambda loss, flow: at_most(flow.models.x, jnp.where(flow.t < 7.0, 1.1, 0.0))
    assert judged(compare, parabola(), weight(1), t1=5.0).verdict is HOLDS


@pytest.mark.slow
def test_a_claim_that_says_it_reads_the_start_alone_is_judged_by_what_it_reads():
    found = judged(lambda loss, flow: at_most(flow.end.x, 0.5), parabola(1.0), weight(0), along_flow=False)
    assert found.verdict is not HOLDS, found


@pytest.mark.parametrize("compare", [lambda flow: at_most(flow.end.x, 0.5), lambda flow: at_most(flow.models.x, 0.5)])
def test_a_start_alone_is_no_flow(compare):
    """Of 1 - e^{-t} both are false, and true at the start."""
    claim = Claim("own.claim", "here", "x <= 1/2", lambda loss, flow: compare(flow), along_flow=False)
    found = flowsim.check(claim, parabola(1.0), start_alone(parabola(1.0), weight(0)))
    assert found.verdict is UNRESOLVED and "along_flow=True" in found.note, found
    claim = Claim("own.claim", "here", "x <= 1/2", lambda loss, flow: at_most(flow.start.x, 0.5), along_flow=False)
    assert flowsim.check(claim, parabola(1.0), start_alone(parabola(1.0), weight(0))).verdict is HOLDS


@pytest.mark.slow
@pytest.mark.parametrize(
    "compare",
    [
        lambda flow: at_most(flow.models.x, 0.5, promised=flow.models.x >= 0),
        lambda flow: at_most(flow.models.x, 0.5, promised=flow.excess <= 0.6),
        lambda flow: at_most(jnp.where(flow.models.x > 0.1, flow.models.x, 0.0), 0.5),
        lambda flow: at_most(1 - jnp.exp(-flow.t), 0.5),
    ],
)
def test_what_hides_that_it_reads_more_than_the_start_is_seen_all_the_same(compare):
    """Of 1 - e^{-t}, at most 1/2 at the start alone."""
    claim = Claim("own.claim", "here", "x <= 1/2", lambda loss, flow: compare(flow), along_flow=False)
    for run in (start_alone(parabola(1.0), weight(0)), gradient_flow(parabola(1.0), weight(0))):
        assert flowsim.check(claim, parabola(1.0), run).verdict is not HOLDS


@pytest.mark.slow
def test_a_hinge_at_its_flat_end_is_judged():
    loss = FunctionLoss(lambda m: jnp.maximum(m.x - 0.5, 0.0) ** 2 / 2, minimum=0.0)
    compare = lambda loss, flow: at_most(flow.models.x, 0.5 + 0.5 * (1 + 1e-6) * jnp.exp(-flow.t))
    assert judged(compare, loss, weight(1), t1=8.0).verdict is not VIOLATED


class Vector(eqx.Module):
    """x."""

    x: jax.Array


def costly(flow):
    """Zero, by more operations than balls are asked for at every time."""
    z = flow.models.x
    for _ in range(8):
        z = jnp.tanh(z) + z * 0.5
    return 0.0 * jnp.sum(z, axis=1)


def cancelled(flow):
    """1e-6 (2 - x) - 1.2e-5 x (1 - x), that is -1.5e-6 at x = 1/2, beside numbers of 4e10."""
    x = jnp.mean(flow.models.x, axis=1)
    hump = 4 * x * (1 - x)
    large = 4e10 * (hump / (hump + 0.01))
    return ((large - 3e-6 * hump) - large) + 1e-6 * (2 - x) + costly(flow)


def spread(flow, off: float):
    """The variance of x k/(n - 1) over k, beside a mean that cancels."""
    x = jnp.mean(flow.models.x, axis=1)
    z = flow.models.x * jnp.linspace(0.0, 1e-3, 120)[None] + (off * 4 * x * (1 - x))[:, None]
    return jnp.mean(z**2, axis=1) - jnp.mean(z, axis=1) ** 2 + costly(flow)


VARIANCE = np.var(np.linspace(0, 1e-3, 120))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compare", "wrong"),
    [
        (lambda loss, flow: at_least(cancelled(flow), 0.0, size=1e-6), HOLDS),
        (lambda loss, flow: equal(spread(flow, 1e4) / VARIANCE, (1 - jnp.exp(-flow.t)) ** 2, 1.0), VIOLATED),
        (lambda loss, flow: at_most(spread(flow, 1e6), 1.01 * VARIANCE), VIOLATED),
    ],
)
def test_what_cancels_where_no_ball_is_looked_at_decides_nothing(compare, wrong):
    """x_i = 1 - e^-t."""
    assert judged(compare, SPHERE, Vector(jnp.zeros(120)), t1=10.0).verdict is not wrong


def difference_quotient(flow) -> jax.Array:
    return jnp.asarray(jnp.gradient(flow.models.x, flow.t))


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"t1": 5.0}])
@pytest.mark.parametrize(
    ("compare", "wrong"),
    [
        (lambda flow: at_most(jnp.interp(0.6, flow.t, flow.models.x), np.exp(-0.6) * (1 + 1e-5)), VIOLATED),
        (lambda flow: at_most(jnp.trapezoid(flow.models.x, flow.t), 1.0001), VIOLATED),
        (lambda flow: at_least(jnp.trapezoid(flow.models.x, flow.t), 1.0001), HOLDS),
        (lambda flow: at_most(flow.t[jnp.argmax(flow.models.x <= 0.5)], 0.694), VIOLATED),
        (lambda flow: at_least(difference_quotient(flow), -1.001 * flow.models.x - 1e-6), VIOLATED),
        (lambda flow: at_most(jnp.max(flow.models.x * (1 - flow.models.x)), 0.249999), HOLDS),
        (lambda flow: at_least(jnp.min(flow.models.x * (flow.models.x - 1)), -0.2499), HOLDS),
        (lambda flow: at_most(jnp.stack([flow.start.x, jnp.trapezoid(flow.models.x, flow.t)]), 1.0001), VIOLATED),
    ],
    ids=["interpolated", "integral", "integral above", "first time", "gradient", "largest", "least", "two points"],
)
def test_what_combines_several_times_is_known_as_well_as_they_are_dense(compare, wrong, how):
    found = judged(lambda loss, flow: compare(flow), parabola(), weight(1), **how)
    assert found.verdict is not wrong, found


@pytest.mark.slow
def test_a_field_that_leaves_the_symmetric_matrices_by_itself_is_followed():
    """From so small a start U11 is symmetric to 1e-11 at first; a trajectory from a file has no velocity of its own."""
    loss = flowsim.LinearAttentionLoss(flowsim.LinearRegression(np.diag([0.5, 1, 2]), 10))
    start = initialization.balanced(1e-5, np.array([[1, 0.5, 0], [0, 1, -0.5], [0.3, 0, 1]]))
    run = gradient_flow(loss, start)
    claim = next(claim for claim in flowsim.ALL_CLAIMS if claim.id == "zhang2023.theorem-4.1")
    for flow in (run, eqx.tree_at(lambda run: run.descent, run, None)):
        assert flowsim.check(claim, loss, flow).verdict is HOLDS


# Limits.


@pytest.mark.parametrize("allowance", [0.0, "way"])
def test_the_end_is_no_limit(allowance):
    def compare(loss, flow):
        return equal(flow.end.x, 2.0, 1.0, allowance=flow.way_to_go if allowance == "way" else 0.0)

    found = judged(compare, parabola(2.0), weight(1))
    assert found.verdict is (HOLDS if allowance == "way" else UNRESOLVED), found


@pytest.mark.slow
def test_a_false_limit_far_from_the_end_of_a_short_run_is_not_judged():
    found = judged(lambda loss, flow: at_most(flow.end.x, 0.5), parabola(1.0), weight(0), t1=0.5)
    assert found.verdict is UNRESOLVED, found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "x", "bound"),
    [
        (FunctionLoss(lambda m: jnp.exp(-m.x), minimum=0.0), 0, 1e6),  # x = log(1 + t)
        (FunctionLoss(lambda m: m.x**-0.1, minimum=0.0), 1, 1e300),  # x -> infinity as a power of time
        (FunctionLoss(lambda m: m.x**4, minimum=0.0), -1, -1e-9),  # x -> 0
        (FunctionLoss(lambda m: m.x**12, minimum=0.0), -1, -1e-9),
        (FunctionLoss(lambda m: jnp.log1p(jnp.exp(-m.x)), minimum=0.0), 0, 1e6),
    ],
    ids=["logarithm", "small power", "quartic", "twelfth power", "logistic"],
)
def test_a_flow_that_creeps_has_no_limit_yet(loss, x, bound):
    found = judged(lambda loss, flow: at_most(flow.end.x, bound), loss, weight(x))
    assert found.verdict is not HOLDS, found


@pytest.mark.slow
@pytest.mark.parametrize("slow", [lambda b: 1e-13 * b**2 / 2, lambda b: 1e-13 * b**4 / 4])
def test_a_mode_that_has_not_begun_to_move_when_the_loss_is_at_its_minimum_has_a_limit_all_the_same(slow):
    loss = FunctionLoss(lambda m: m.a**2 / 2 + slow(m.b), minimum=0.0)
    for compare in (lambda loss, flow: at_least(flow.end.b, 0.5), lambda loss, flow: at_most(flow.end.b, 0.5)):
        found = judged(compare, loss, factors(1, 1))
        assert found.verdict is UNRESOLVED, found


@pytest.mark.parametrize(("expected", "verdict"), [(8.0, HOLDS), (8.001, VIOLATED)])
def test_a_function_of_the_limit_comes_with_its_allowance(expected, verdict):
    def compare(loss, flow):
        value, allowance = flowsim.limit(flow, lambda model: model.x**3)
        return equal(value, expected, 8.0, allowance=allowance)

    assert judged(compare, parabola(2.0), weight(1)).verdict is verdict


@pytest.mark.slow
@pytest.mark.parametrize(("off", "verdict"), [(0.0, HOLDS), (1e-3, VIOLATED)])
def test_a_limit_on_a_continuum_of_minima_is_bounded_across_it(off, verdict):
    """a^2 - b^2 is kept, so that a^2 is the root of z^2 - c z = 1."""
    c = 0.25 - 0.01
    a = np.sqrt((c + np.sqrt(c**2 + 4)) / 2)

    def compare(loss, flow):
        value, allowance = flowsim.limit(flow, lambda model: model.a)
        return equal(value, a + off, 1.0, allowance=allowance)

    assert judged(compare, PRODUCT, factors(0.5, 0.1)).verdict is verdict


@pytest.mark.slow
def test_a_start_at_rest_in_a_minimum_is_its_own_limit():
    def compare(loss, flow):
        value, allowance = flowsim.limit(flow, lambda model: model.a)
        return equal(value, 1.0, 1.0, allowance=allowance)

    assert judged(compare, PRODUCT, factors(1, 1)).verdict is HOLDS


@pytest.mark.slow
def test_the_model_at_a_time_is_asked_for_by_the_time():
    for off, expected in ((0.0, HOLDS), (1e-3, VIOLATED)):
        compare = lambda loss, flow, off=off: equal(flow.at(0.5).x, 1 - np.exp(-0.5) + off, 1.0)
        assert judged(compare, parabola(1.0), weight(0)).verdict is expected
    late = judged(lambda loss, flow: equal(flow.at(500.0).x, 1.0, 1.0), parabola(1.0), weight(0))
    assert late.verdict is UNRESOLVED and "500" in late.note


# Small ones.


@pytest.mark.slow
def test_the_velocity_says_what_is_monotone():
    found = judged(lambda loss, flow: at_least(flow.velocity.x, 0.0), parabola(1.0), weight(0))
    assert found.verdict is HOLDS, found
    assert judged(lambda loss, flow: at_most(flow.velocity.x, 0.0), parabola(1.0), weight(0)).verdict is VIOLATED


@pytest.mark.slow
def test_a_minimum_that_the_loss_falls_below_is_none():
    loss = FunctionLoss(lambda m: (m.x - 1) ** 2 / 2, minimum=0.1)
    found = judged(lambda loss, flow: at_most(flow.excess, jnp.exp(-flow.t)), loss, weight(0), t1=5.0)
    assert found.verdict is UNRESOLVED and "minimum 0.1" in found.note, found


@pytest.mark.slow
def test_zero_is_at_least_zero_in_a_minimum():
    assert judged(lambda loss, flow: at_least(flow.excess, 0.0), parabola(1.0), weight(1)).verdict is HOLDS


@pytest.mark.slow
def test_what_is_not_promised_at_the_start_may_be_infinite_there():
    compare = lambda loss, flow: at_most(flow.models.x**2, 0.51 / flow.t, promised=flow.t > 0)
    assert judged(compare, QUARTIC, weight(1)).verdict is HOLDS


@pytest.mark.slow
def test_what_is_equal_at_the_start_holds_there():
    compare = lambda loss, flow: at_most(flow.excess, flow.excess[0] * jnp.exp(-1.9999 * flow.t))
    assert judged(compare, parabola(), weight(1)).verdict is HOLDS


@pytest.mark.slow
def test_numbers_of_the_start_are_numbers():
    assert (
        judged(lambda loss, flow: at_most(flow.models.x, float(flow.t[0]) + 0.9), parabola(), weight(1)).verdict
        is VIOLATED
    )


def test_time_that_is_not_first_is_a_mistake_of_the_claim():
    with pytest.raises(ValueError, match="a row for each output time"):
        judged(lambda loss, flow: at_most(jnp.diff(flow.models.x)[:, None], 0.0), parabola(), weight(1))


def test_a_start_alone_has_no_later_time():
    claim = Claim("own.claim", "here", "x(1) <= 1/2", lambda loss, flow: at_most(flow.at(1.0).x, 0.5), along_flow=False)
    found = flowsim.check(claim, parabola(), start_alone(parabola(), weight(1)))
    assert found.verdict is UNRESOLVED and "nothing was integrated" in found.note


@pytest.mark.filterwarnings("error")
def test_sides_that_are_not_finite_warn_of_nothing():
    """1/t at t = 0, and infinity beside infinity."""
    for compare in (
        lambda loss, flow: at_most(flow.models.x, 1 / flow.t + 1),
        lambda loss, flow: at_most(1 / flow.t, 1 / flow.t),
    ):
        assert judged(compare, parabola(), weight(1)).verdict is not VIOLATED


def test_the_limit_of_a_model_that_refuses_what_is_no_number():
    """A claim with a limit is compared with values, and without an end these are no numbers."""

    def norm(model: Weight):
        if not np.all(np.isfinite(np.asarray(model.x))):
            raise ValueError("x must be finite")
        return jnp.abs(model.x)

    def compare(loss, flow):
        value, allowance = flowsim.limit(flow, lambda model: jnp.abs(model.x))
        return equal(value + 0 * norm(flow.end), 1.0, 1.0, allowance=allowance)

    assert judged(compare, parabola(1.0), weight(3)).verdict is HOLDS


@pytest.mark.slow
def test_an_eigenvalue_of_the_limit_is_not_that_of_the_end():
    """The largest eigenvalue tends to 1 and is 1.1 where the run stops; balls of matrices have no eigenvalues."""
    loss = FunctionLoss(lambda m: jnp.sum((m.x - jnp.eye(2)) ** 2) / 2, minimum=0.0)
    start = Weight(jnp.asarray([[2.0, 0.1], [0.1, 2.0]]))
    compare = lambda loss, flow: at_least(jnp.linalg.eigvalsh(flow.end.x)[-1:], 1.05)
    assert judged(compare, loss, start, stop=flowsim.Stop(excess=1e-2)).verdict is UNRESOLVED


@pytest.mark.slow
def test_fresh_prompts_are_drawn_for_where_the_flow_goes():
    # At the start u12 and u21 are zero, and there alone prompts have an estimator that averages over the weights.
    task = flowsim.LinearRegression([[1.0]], 40)
    loss = flowsim.MonteCarloLoss(task, samples=2**12, key=jax.random.key(5), method="prompts", factor=0.5)
    flow = gradient_flow(loss, flowsim.LinearAttention([[0.5]], 0.7), t1=1.0, rtol=1e-6)
    assert np.any(flow.end.u12 != 0)
    assert Evidence(loss, flow).distrust is None


def test_a_solve_that_stops_early_has_none_of_the_later_times():
    loss, start = parabola(), weight(1.0)
    evidence = Evidence(loss, gradient_flow(loss, start, t1=4.0))
    short = gradient_flow(loss, start, t1=1.0, points_per_decade=0)
    assert list(evidence.with_times(loss, short, np.asarray([0.5, 1.0, 2.0])).t) == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("how", [{}, {"t1": 1.0}, {"times": [1.0], "points_per_decade": 0}], ids=str)
def test_a_start_that_rests_at_zero_is_judged(how):
    verdict = judged(lambda loss, flow: at_most(flow.models.x, 0.0), parabola(), weight(0.0), **how)
    assert verdict.verdict is Judgement.HOLDS
    assert verdict.until is None


@pytest.mark.parametrize(("sign", "expected"), [(1.0, Judgement.HOLDS), (-1.0, Judgement.VIOLATED)])
def test_the_loss_never_rises_as_a_difference(sign, expected):
    # At the start it is zero exactly, and by its own size there no digit of it is known.
    rises = lambda loss, flow: at_most(sign * (flow.loss - flow.loss[0]), 0.0)
    assert judged(rises, COSINE, weight(0.3), t1=2.0).verdict is expected


# A field that is rounding.


class Pair(eqx.Module):
    """w, of two numbers."""

    w: jax.Array


def valley(m: Pair, slope: jax.Array, across: jax.Array) -> jax.Array:
    """The mean of w moves by ``slope`` t where it is flat, their difference comes to rest at once."""
    x, y = m.w
    return (x - y) ** 2 / 2 - slope * (x + y) + across * (x + y - 2.3) ** 2 / 2


def judged_at(t: float, bound: float, slope: float, across: float = 0.0) -> flowsim.Verdict:
    loss = FunctionLoss(Form(valley, slope, across))
    return judged(lambda _, flow: at_most(flow.at(t).w[0], bound), loss, Pair(jnp.asarray([1.0, 1.3])), t1=t)


@pytest.mark.slow
def test_what_a_field_that_is_rounding_moves_in_a_long_time_is_not_decided():
    """At t = 1e17 w is 1.25 by a slope of 1e-18, far below the rounding of its field, and 1.15 without one."""
    found = judged_at(1e17, 1.2, 1e-18)
    assert found.verdict is UNRESOLVED and "ounding error of the weights" in found.note, found


@pytest.mark.slow
@pytest.mark.parametrize(("t", "across", "room"), [(1e17, 1.0, 1e-12), (1e7, 0.0, 1e-6)])
def test_it_moves_nothing_where_the_flow_comes_back_and_little_in_a_short_time(t, across, room):
    assert judged_at(t, 1.15 + room, 0.0, across).verdict is HOLDS
