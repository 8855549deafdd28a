"""Weights many decades apart in one flow: each leaves its saddle at its own time."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flowsim import (
    Claim,
    FunctionLoss,
    LinearAttentionLoss,
    LinearRegression,
    at_least,
    at_most,
    equal,
    gradient_flow,
)
from flowsim.claims import Evidence, Judgement, judge_on
from flowsim.flow.solvers.dense.kernel import DenseKernel
from flowsim.flow.solvers.lockstep import AbstractObserver, follow
from flowsim.flow.solvers.summary import STATUSES, Ends, Scales, Summarizing
from flowsim.flow.systems import loss_system
from flowsim.flow.trajectory import Status
from flowsim.initialization import balanced

SCALES = [1e-1, 1e-12, 1e-20, 1e-40, 1e-100]


class One(eqx.Module):
    w: jax.Array


class Two(eqx.Module):
    a: jax.Array
    b: jax.Array


def well(x):
    return (x**2 - 1) ** 2 / 4


# One object each, so that all starts share what is compiled.
STRENGTHS = np.asarray([4.0, 1.0, 0.25])
BESIDE = FunctionLoss(lambda m: (m.w[0] - 1) ** 2 / 2 + well(m.w[1]), minimum=0.0)
LADDER = FunctionLoss(lambda m: jnp.sum((m.a * m.b - jnp.asarray(STRENGTHS)) ** 2) / 2, minimum=0.0)
PRODUCT = FunctionLoss(lambda m: (m.a * m.b - 1) ** 2 / 2, minimum=0.0)


def beside(scale):
    """A weight near a saddle beside one that is not small: w' = w (1 - w^2), so that ln(w^2/(1 - w^2)) grows by 2t."""
    t = -np.log(scale) - np.log(3) / 2 + np.log1p(-(scale**2)) / 2
    lateness = lambda m: jnp.log(m.w[1] ** 2 / (1 - m.w[1] ** 2)) / 2 + np.log(3) / 2
    return BESIDE, One(jnp.asarray([0.0, scale])), [t], lambda m, i: lateness(m)


def ladder(scale):
    """Three modes that leave one after the other: x = a b has x' = 2 x (s - x) from a = b."""
    s = jnp.asarray(STRENGTHS)
    times = [float(np.log(s / scale**2 - 1) / (2 * s)) for s in STRENGTHS]

    def lateness(m, i):
        x = m.a[i] * m.b[i]
        return jnp.log(x / (s[i] - x)) / (2 * s[i])

    return LADDER, Two(jnp.full(3, scale), jnp.full(3, scale)), times, lateness


def product(scale):
    """(ab - 1)^2/2 from a = b, the ladder with one mode."""
    t = -np.log(scale) + np.log1p(-(scale**2)) / 2
    lateness = lambda m, i: jnp.log(m.a * m.b / (1 - m.a * m.b)) / 2
    return PRODUCT, Two(jnp.asarray(scale), jnp.asarray(scale)), [t], lateness


class Counting(AbstractObserver):
    """Counts steps, up to a number of them."""

    def begin(self, view):
        return jnp.asarray(0), view.t

    def continues(self, kept):
        return (kept[0] < 4000) & (kept[1] < self.end)

    def accept(self, kept, view):
        return kept[0] + 1, view.t

    def reject(self, kept, stuck):
        return kept[0] + jnp.where(stuck, 4000, 1), kept[1]

    end: jax.Array


@pytest.mark.parametrize("problem", [pytest.param(beside, marks=pytest.mark.slow), ladder, product])
@pytest.mark.parametrize("scale", [*SCALES, pytest.param(1e-150, marks=pytest.mark.slow)])
def test_each_weight_leaves_at_its_own_time(problem, scale):
    loss, start, times, lateness = problem(scale)
    run = gradient_flow(loss, start, times=times)
    assert run.status is Status.EXCESS
    for i, t in enumerate(times):
        late = float(lateness(run.at(t), i))
        assert abs(late) < 1e-9 * t


@pytest.mark.parametrize("problem", [*(pytest.param(one, marks=pytest.mark.slow) for one in (beside, ladder)), product])
def test_so_does_a_flow_in_lockstep(problem):
    _, _, times, _ = problem(0.1)

    @jax.jit
    def late(scale, t, which):
        loss, start, _, lateness = problem(0.1)
        start = jax.tree.map(lambda leaf: jnp.where(leaf == 0, 0.0, scale), start)
        system = loss_system(loss, start)
        kernel = DenseKernel.of(system, start, jnp.asarray(1e-9))
        (steps, _), view, _ = follow(kernel, Counting(end=t), t)
        return steps, lateness(view.point, which)

    for scale in SCALES:
        for i, t in enumerate(problem(scale)[2]):
            steps, found = jax.vmap(late, in_axes=(0, 0, None))(jnp.full(2, scale), jnp.asarray([t / 2, t]), i)
            assert np.all(np.asarray(steps) < 4000)
            assert abs(float(found[1])) < 1e-9 * t


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-12, 1e-60])
def test_one_array_or_two_do_not_differ(scale):
    """A large weight and a tiny one that both move, as one array and as two."""
    value = lambda x, y: (x - 3) ** 2 / 8 + well(y) + x * y**2 / 10
    one = gradient_flow(FunctionLoss(lambda m: value(*m.w), minimum=None), One(jnp.asarray([1.0, scale])), t1=300.0)
    two = gradient_flow(
        FunctionLoss(lambda m: value(m.a, m.b), minimum=None), Two(jnp.asarray(1.0), jnp.asarray(scale)), t1=300.0
    )
    assert one.certificates.steps == two.certificates.steps
    np.testing.assert_allclose(one.models.w, np.stack([two.models.a, two.models.b], axis=1), rtol=1e-9)


def test_a_tiny_weight_is_as_accurate_where_large_ones_rest():
    """Beside a weight that has come to its minimum, where rounding of it is all that is left, one grows from 1e-200."""
    loss = FunctionLoss(lambda m: (m.w[0] ** 2 - 2) ** 2 + well(m.w[1]))
    t = 200 * np.log(10)
    run = gradient_flow(loss, One(jnp.asarray([1.0, 1e-200])), t1=t)
    assert float(run.end.w[1]) == pytest.approx(np.sqrt(0.5), rel=1e-7)


@pytest.mark.parametrize("scale", [1e-12, 1e-100])
def test_a_saddle_that_a_tiny_weight_can_still_leave_is_no_stop(scale):
    """Where no minimum is known the gradient alone ends a flow, and at the saddle it is as small as at the end."""
    loss, start, (t,), _ = beside(scale)
    run = gradient_flow(FunctionLoss(loss.function), start)
    assert run.status is Status.GRAD_NORM and float(run.t[-1]) > t
    np.testing.assert_allclose(run.end.w, 1.0, atol=1e-8)
    stays = gradient_flow(FunctionLoss(loss.function), One(jnp.asarray([0.0, 0.0])))
    assert stays.status is Status.GRAD_NORM and float(stays.end.w[1]) == 0.0


@pytest.mark.slow
def test_a_gradient_whose_square_is_zero_is_a_gradient():
    """From 1e-160 the flow of (ab - 1)^2/2 with no known minimum leaves, alone and in lockstep."""
    loss, start, (t,), lateness = product(1e-160)
    run = gradient_flow(FunctionLoss(loss.function), start, times=[t])
    assert run.status is Status.GRAD_NORM and float(run.grad_norm_sq[0]) == 0.0
    assert abs(float(lateness(run.at(t), 0))) < 1e-9 * t
    np.testing.assert_allclose(run.end.a * run.end.b, 1.0, rtol=1e-8)
    at = jnp.asarray
    ends = Ends(at(jnp.inf), at(0.0), at(1e-12), at(1e-10), at(1e-9))
    kernel = DenseKernel.of(loss_system(loss, start), start, at(1e-9))
    observer = Summarizing(ends, Scales(at(jnp.inf), at(jnp.inf), at(jnp.inf)), kernel.timescale, at(0.0), False)
    summary, _, _ = eqx.filter_jit(follow)(kernel, observer, observer.last)
    assert STATUSES[int(summary.status)] is Status.EXCESS


@pytest.mark.parametrize("d", [3, pytest.param(64, marks=pytest.mark.slow)])
def test_an_arrowhead_at_rest_stays_for_any_time(d):
    """Rounding of the field would lead it along the valley of its minima, and take a step for each of its errors."""
    loss = LinearAttentionLoss(LinearRegression(np.diag(np.geomspace(2.0, 0.5, d)), 10))
    start = balanced(0.3, np.random.default_rng(0).standard_normal((d, d)))
    run = gradient_flow(loss, start, t1=1e290)
    assert run.status is Status.TIME and run.certificates.rejected_steps < 20
    drift = run.certificates.balance_drift
    assert drift is not None and drift < 1e-11 and run.certificates.energy_defect < 1e-11
    assert float(run.excess[-1]) < 1e-26


@pytest.mark.parametrize("problem", [product, ladder])
def test_so_does_any_flow(problem):
    loss, start, _, _ = problem(0.1)
    run = gradient_flow(loss, start, t1=1e290)
    assert run.status is Status.TIME and run.certificates.rejected_steps < 20
    assert run.certificates.energy_defect < 1e-9 and float(run.excess[-1]) < 1e-26


@pytest.mark.slow
def test_four_factors_leave_where_the_change_of_the_gradient_is_below_the_least_number():
    """From s = 1e-80 of (w_1 .. w_4 - 1)^2/2, w' = w^3 until then: at 1/(2 s^2). There |H g| = 3 s^5 is zero."""
    scale = 1e-80
    run = gradient_flow(FunctionLoss(lambda m: (jnp.prod(m.w) - 1) ** 2 / 2, minimum=0.0), One(jnp.full(4, scale)))
    assert run.status is Status.EXCESS
    assert float(run.t[-1]) == pytest.approx(1 / (2 * scale**2), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, pytest.param(200, marks=pytest.mark.long)])
def test_weights_that_are_held_fixed_decide_nothing_by_staying(count):
    """Along the valley u + w = 1, tilted by less than the rounding of the field, w falls by 1.5e-5 until t = 1e11, and
    the solver holds it. The start is where one pattern of rounding cancels.
    """
    tilt, t1, u = 3e-16, 1e11, np.cos(2.0) / (np.cos(2.0) - np.cos(1.0))
    loss = FunctionLoss(lambda m: jnp.sum((m.a + m.b - 1) ** 2) / 2 + tilt * jnp.sum(m.b))
    run = gradient_flow(loss, Two(jnp.full(count, u + 0.05), jnp.full(count, 1.05 - u)), t1=t1)
    half = 1 - u - tilt * t1 / 4
    assert np.all(np.abs(np.asarray(run.end.b) - (1 - u)) < 5e-6)
    false = Claim("held.false", "-", "-", lambda _, run: at_least(run.models.b[-1], half))
    true = Claim("held.true", "-", "-", lambda _, run: at_most(run.models.b[-1], half))
    evidence = Evidence(loss, run, claims=[false, true])
    assert judge_on(false, evidence).verdict is not Judgement.HOLDS
    assert judge_on(true, evidence).verdict is not Judgement.VIOLATED


@pytest.mark.slow
@pytest.mark.parametrize(
    "scale",
    [
        1e-1,
        1e-40,
        pytest.param(1e-100, marks=pytest.mark.long),
    ],
)
def test_statements_on_each_drop_are_decided_by_a_thousandth_of_its_time(scale):
    loss, start, times, _ = ladder(scale)
    run = gradient_flow(loss, start)

    def mode(t, i, later):
        return STRENGTHS[i] * jax.nn.sigmoid(2 * STRENGTHS[i] * (t / later - times[i]))

    def on_drop(i):
        x, s = lambda model: model.a[..., i] * model.b[..., i], STRENGTHS[i]
        before, after = (by * times[i] for by in (0.9995, 1.0005))
        return {
            lambda _, run: at_most(x(run.at(before)), s / 2): Judgement.HOLDS,
            lambda _, run: at_least(x(run.at(after)), s / 2): Judgement.HOLDS,
            lambda _, run: at_least(x(run.at(before)), s / 2): Judgement.VIOLATED,
            lambda _, run: at_most(x(run.at(after)), s / 2): Judgement.VIOLATED,
            lambda _, run: equal(x(run.models), mode(run.t, i, 1.0), s): Judgement.HOLDS,
            lambda _, run: equal(x(run.models), mode(run.t, i, 1.001), s): Judgement.VIOLATED,
        }

    expected = {_claim(compare): judgement for i in range(3) for compare, judgement in on_drop(i).items()}
    evidence = Evidence(loss, run, claims=[*expected])
    assert [judge_on(claim, evidence).verdict for claim in expected] == [*expected.values()]


def _claim(compare):
    return Claim("scales.drop", "-", "-", compare)
