"""The least margin in continuous time: found between output times, and bounded where it is not."""

import equinox as eqx
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim
from flowsim import FunctionLoss, Judgement
from flowsim.claims.deciding.between import dips, follow, switches

TIMES = np.concatenate([[0.0], np.geomspace(1e-2, 1e2, 97)])


def margins_of(function, promised=lambda t: t >= 0):
    def margins(further):
        t = np.union1d(TIMES, further)
        return t, function(t)[:, None], promised(t)[:, None]

    return margins


@hypothesis.given(
    place=st.floats(0.02, 90.0), depth=st.floats(-2.0, 2.0), width=st.floats(0.3, 3.0), power=st.sampled_from([2, 4])
)
def test_the_least_value_of_a_smooth_margin_is_found_or_bounded(place, depth, width, power):
    function = lambda t: depth + np.abs(np.log((t + 1e-6) / place) / width) ** power
    margins = margins_of(function)
    further, lower = follow(margins)
    t, margin, _ = margins(further)
    # A minimum flatter than a parabola is not found to the last digit, and says so.
    assert depth - 1e-12 <= margin.min() <= depth + lower + 1e-9 * (1 + abs(depth))
    assert lower <= 1e-6


def test_a_margin_that_is_least_at_an_end_needs_no_further_times():
    for function in (lambda t: 1 + t, lambda t: 1 / (1 + t), lambda t: np.ones_like(t)):
        further, lower = follow(margins_of(function))
        assert lower == 0
        assert further.size == 0


def test_a_minimum_within_the_first_interval_is_found():
    further, lower = follow(margins_of(lambda t: (t - 0.004) ** 2))
    _, margin, _ = margins_of(lambda t: (t - 0.004) ** 2)(further)
    assert margin.min() <= 1e-15
    assert lower <= 1e-9


def test_where_a_statement_ceases_to_promise_anything_is_followed_or_bounded():
    edge = 1.2345678
    margins = margins_of(lambda t: 3 - t, lambda t: t < edge)
    further, lower = follow(margins)
    t, margin, promised = margins(further)
    assert 3 - edge <= margin[promised].min() <= 3 - edge + lower
    assert lower < 1e-6


@pytest.mark.parametrize("edge", [1.2345678, 97.0, 98.9])
def test_where_a_statement_begins_to_promise_something_is_found(edge):
    """Before it the margin is negative; at it, it is just above or below zero; then it rises."""
    for room in (1e-6, -1e-6):
        margins = margins_of(lambda t, room=room: (t - edge) + room, lambda t: t >= edge)
        t, margin, promised = margins(follow(margins)[0])
        assert margin[promised].min() == pytest.approx(room, abs=1e-9 * edge)


def test_one_entry_among_many_that_begins_between_two_times_is_found():
    def margins(further):
        t = np.union1d(TIMES, further)
        others = np.ones((t.size, 3))
        mine = (t - 5.4321)[:, None] - 1e-7
        return t, np.concatenate([others, mine], axis=1), np.append(others > 0, mine >= -1e-7, axis=1)

    t, margin, promised = margins(follow(margins)[0])
    assert margin[promised].min() == pytest.approx(-1e-7, abs=1e-8)


def test_what_is_equal_at_the_start_and_promised_after_it_needs_no_further_times():
    further, lower = follow(margins_of(lambda t: t / (1 + t), lambda t: t > 0))
    assert further.size == 0 and lower == 0


def test_two_minima_at_almost_one_height_are_both_followed():
    function = lambda t: np.minimum((t - 1.03) ** 2, (t - 31.7) ** 2 / 900 - 1e-5)
    margins = margins_of(function)
    further, lower = follow(margins)
    assert margins(further)[1].min() == pytest.approx(-1e-5, abs=1e-9)


def test_what_is_known_no_better_than_to_rounding_has_no_brackets_worth_a_look():
    noise = 1e-15 * np.random.default_rng(0).standard_normal(TIMES.size)
    further, _ = follow(margins_of(lambda t: 0.5 + noise[: t.size]))
    assert further.size == 0


def test_brackets_come_lowest_first():
    wave = np.cos(TIMES)[:, None]
    for found in (dips(TIMES, wave, np.ones_like(wave, dtype=bool)), switches(TIMES, wave, wave < 0.5)):
        assert len(found) > 3
        assert [one.bottom for one in found] == sorted(one.bottom for one in found)


class Weight(eqx.Module):
    x: jax.Array


@pytest.mark.slow
def test_a_constant_between_the_least_ratio_at_output_times_and_in_between_is_refused():
    """L = x^2 (1 + sin(7 log x)/50)/2, whose least |grad L|^2/L a fine search gives."""
    weight = lambda m: jnp.log(m.x)
    loss = FunctionLoss(lambda m: m.x**2 * (1 + 0.02 * jnp.sin(7 * weight(m))) / 2, minimum=0.0)
    run = flowsim.gradient_flow(loss, Weight(jnp.asarray(1.0)), stop=flowsim.Stop(excess=0.1))
    x = np.geomspace(float(run.end.x), 1.0, 2_000_001)
    phase = 7 * np.log(x)
    slope = x * (1 + 0.02 * np.sin(phase)) + x * 0.02 * 7 * np.cos(phase) / 2
    sharp = np.min(slope**2 / (x**2 * (1 + 0.02 * np.sin(phase)) / 2))
    seen = float(jnp.min(run.grad_norm_sq / run.excess))
    assert seen > sharp * (1 + 1e-6)

    def verdict(constant):
        statement = lambda loss, flow: flowsim.at_least(flow.grad_norm_sq, constant * flow.excess)
        return flowsim.check(flowsim.Claim("a.pl", "a test", "|grad L|^2 >= c L", statement), loss, run)

    assert verdict(sharp * (1 - 1e-7)).verdict is Judgement.HOLDS
    assert verdict(sharp * (1 + 1e-7)).verdict is Judgement.VIOLATED
    assert verdict((sharp + seen) / 2).verdict is Judgement.VIOLATED
