"""Where flows end: at minima or at rest, never at a saddle that they are still to leave, whichever times are shown."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

import flowsim
from flowsim import Claim, FunctionLoss, Judgement, LinearAttention, LinearAttentionLoss, Stop, end_point, gradient_flow
from flowsim.flow.solvers.dense.saddles import leaves_in_krylov
from flowsim.flow.systems import loss_system
from flowsim.flow.trajectory import Status
from flowsim.initialization import balanced
from flowsim.tasks import LinearRegression


class Factors(eqx.Module):
    w: jax.Array


@functools.cache
def product_loss(minimum: float | None = 0.0) -> FunctionLoss:
    """(1/2) sum_i (prod_j w_ij - 1)^2: rows of small factors leave the saddle at zero one after the other."""
    return FunctionLoss(lambda m: 0.5 * jnp.sum((jnp.prod(m.w, axis=1) - 1) ** 2), minimum=minimum)


SMALL = Factors(jnp.asarray(1e-3 * np.asarray([[1, 1, 1], [0.5, 0.5, 0.5]])))
DROP = np.linspace(990.0, 1010.0, 41)  # the first row's, at 1/(1e-3)
REACHES = Claim(
    "a.minimum", "a test", "L -> 0", lambda loss, flow: flowsim.at_most(flow.excess[-1:], 1e-6 * flow.excess[0])
)


@pytest.fixture(scope="module")
def plain():
    return gradient_flow(product_loss(), SMALL, rtol=1e-7, atol=1e-11)


@pytest.mark.slow
def test_a_picture_of_the_drop_does_not_end_a_flow_on_the_plateau_after_it(plain):
    shown = gradient_flow(product_loss(), SMALL, rtol=1e-7, atol=1e-11, times=DROP)
    assert plain.status is shown.status is Status.EXCESS
    assert float(shown.t[-1]) == float(plain.t[-1])
    assert np.isin(DROP, shown.t).all()
    for run in (plain, shown):
        end = end_point(product_loss(), run)
        assert end is not None and end.kind == "minimum" and end.excess < 1e-12
        assert flowsim.check(REACHES, product_loss(), run).verdict is Judgement.HOLDS


def test_a_drop_is_resolved_without_being_asked_for(plain):
    """Between two output times that lie a tenth apart, the first row goes from nothing to one within a fiftieth."""
    excess = np.asarray(plain.excess)
    falls = np.flatnonzero((excess[:-1] > 0.9) & (excess[1:] < 0.6))
    assert falls.size == 0
    assert np.max(-np.diff(excess)) < 0.2


@pytest.mark.slow
def test_an_infimum_at_infinity_is_no_end_point():
    """Newton's method goes on for ever down e^{-w}, and ends in the minimum 0 of w^2."""
    for function, kind in ((lambda m: jnp.sum(jnp.exp(-m.w)), "none"), (lambda m: jnp.sum(m.w**2), "minimum")):
        loss = FunctionLoss(function, minimum=0.0)
        end = end_point(loss, gradient_flow(loss, Factors(jnp.ones((1, 1))), t1=10.0))
        assert end is not None and end.kind == kind


@pytest.mark.slow
def test_at_a_saddle_of_unknown_depth_the_end_is_degenerate_and_nothing_is_said_of_the_limit():
    """Where no minimum is known a plateau ends the flow that nothing leaves, but it is not called a minimum."""
    loss = product_loss(None)
    leaves = gradient_flow(loss, SMALL, rtol=1e-7, stop=Stop(grad_norm=1e-4))
    assert leaves.status is Status.GRAD_NORM and float(leaves.loss[-1]) < 1e-6
    stays = Factors(SMALL.w.at[1].set(0.0))
    run = gradient_flow(loss, stays, rtol=1e-7, stop=Stop(grad_norm=1e-4))
    assert run.status is Status.GRAD_NORM
    assert float(run.loss[-1]) == pytest.approx(0.5, abs=1e-3)
    end = end_point(loss, run)
    assert end is not None and end.kind == "degenerate" and end.negative == 0
    tends = lambda loss, flow: flowsim.equal(flow.loss[-1:], 0.5, 1.0, allowance=flow.way_to_go)
    verdict = flowsim.check(Claim("a.limit", "a test", "L -> 1/2", tends), loss, run)
    assert verdict.verdict is Judgement.UNRESOLVED
    assert "distance from the end of the flow to its limit" in verdict.note


@pytest.mark.slow
def test_the_largest_gradient_counts_where_no_output_shows_it():
    """L = (1/2) x^2 from 1, with two output times at its end: the gradient at the start is what is small beside."""
    loss = FunctionLoss(lambda m: 0.5 * jnp.sum(m.w**2) + jnp.sum(1 - jnp.exp(-1e4 * (m.w - 0.5) ** 2)))
    run = gradient_flow(loss, Factors(jnp.ones((1, 1))), points_per_decade=1, stop=Stop(grad_norm=1e-6))
    fine = gradient_flow(loss, Factors(jnp.ones((1, 1))), points_per_decade=24, stop=Stop(grad_norm=1e-6))
    assert run.status is fine.status is Status.GRAD_NORM
    largest = float(jnp.sqrt(jnp.max(fine.grad_norm_sq)))
    assert float(jnp.sqrt(run.grad_norm_sq[-1])) <= 1e-6 * largest


@pytest.mark.slow
def test_a_flow_that_ends_above_the_minimum_is_at_rest_there():
    """(x^2 - 1)^2 + x/4 has another minimum than the global one, whose excess over that is known."""
    value = lambda x: (x**2 - 1) ** 2 + x / 4
    x = np.linspace(-2, 0, 2_000_001)
    least = float(np.min(value(x)))
    loss = FunctionLoss(lambda m: jnp.sum(value(m.w)), minimum=least)
    run = gradient_flow(loss, Factors(jnp.full((1, 1), 0.5)))
    assert run.status is Status.GRAD_NORM
    end = end_point(loss, run)
    assert end is not None and end.kind == "minimum" and end.excess > 0.4
    assert float(jnp.sqrt(run.grad_norm_sq[-1])) < 1e-12


def test_a_flow_that_has_met_its_stop_is_finished_whatever_follows():
    """L = x^2/2 up to the stop; soon after it, where nobody needs to go, the field is NaN."""
    reached = 3e-7

    def value(m):
        return jnp.sum(jnp.where(m.w > reached, 0.5 * m.w**2, jnp.nan))

    loss = FunctionLoss(value, minimum=0.0)
    run = gradient_flow(loss, Factors(jnp.ones((1, 1))), stop=Stop(excess=1e-12))
    assert run.status is Status.EXCESS
    assert float(run.models.w[-1, 0, 0]) > reached


def plateau_claims():
    names = ("theorem-4.1", "lemma-5.4.limit", "assumption-3.3.scale", "assumption-3.3.balance")
    return [claim for claim in flowsim.ALL_CLAIMS if claim.id.removeprefix("zhang2023.") in names]


@pytest.mark.parametrize(
    ("eigenvalues", "length", "start", "how"),
    [
        ([1.0, 1e-3], 10, balanced(1e-3, np.eye(2)), {"stop": Stop(excess=0.0, grad_norm=1e-4)}),
        ([1.0, 0.05], 100, balanced(1.0, np.diag([1.0, 0.0])), {"t1": 0.1}),
        ([1.0, 0.05], 100, balanced(1.0, np.diag([1.0, 0.0])), {"stop": Stop(excess=1e-2)}),
        ([1.0, 0.05], 100, LinearAttention([[3.0, 0.0], [0.0, 0.1]], 0.01), {"stop": Stop(excess=1e-3)}),
    ],
    ids=["plateau", "short t1", "loose stop", "unbalanced"],
)
@pytest.mark.slow
def test_no_statement_on_a_limit_is_refused_on_the_way_to_it(eigenvalues, length, start, how):
    loss = LinearAttentionLoss(LinearRegression(np.diag(eigenvalues), length))
    run = gradient_flow(loss, start, **how)
    verdicts = flowsim.judge(plateau_claims(), loss, run)
    assert Judgement.HOLDS in {verdict.verdict for verdict in verdicts}
    assert Judgement.VIOLATED not in {verdict.verdict for verdict in verdicts}
    # By an independent integration to the true end, with the clock of the slowest mode.
    lam = np.asarray(eigenvalues)
    gam = lam + (lam + lam.sum()) / length

    def field(t, y):
        U, u = y[:4].reshape(2, 2), y[4]
        dU = -(u**2) * np.outer(gam * lam, lam) * U + u * np.diag(lam**2)
        du = -u * np.sum(np.outer(gam * lam, lam) * U**2) + np.sum(lam**2 * np.diag(U))
        return np.append(dU, du)

    y0 = np.append(np.asarray(start.U11), float(start.u_minus1))
    end = 60 / np.min(gam * lam * lam)
    solved = scipy.integrate.solve_ivp(field, (0, end), y0, method="LSODA", rtol=1e-10, atol=1e-13)
    limit, proved = loss.structure.limit(loss.structure.state(run.start), jax.vmap(loss.structure.state)(run.models))
    model = loss.structure.model(limit)
    assert proved
    np.testing.assert_allclose(np.append(model.U11, model.u_minus1), solved.y[:, -1], rtol=1e-6, atol=1e-7)


def test_a_false_limit_is_refused_and_an_unproved_one_is_not_judged():
    loss = LinearAttentionLoss(LinearRegression(np.diag([1.0, 0.05]), 100))
    start = balanced(1e-3, np.eye(2))
    from flowsim.papers.zhang2023.conditions import limit
    from flowsim.papers.zhang2023.limits import distance_to_limit

    def tends(factor):
        expected = jax.tree.map(lambda x: factor * x, limit(loss.task))
        compare = lambda loss, flow: distance_to_limit(loss, flow, expected)
        return Claim("a.limit", "a test", "U -> ..", compare)

    run = gradient_flow(loss, start)
    true, false, twice = map(tends, (1.0, 1 + 1e-9, 2.0))
    assert [one.verdict for one in flowsim.judge([true, false], loss, run)] == [Judgement.HOLDS, Judgement.VIOLATED]
    early = gradient_flow(loss, balanced(1e-5, np.eye(2)), t1=1e-6)
    assert {one.verdict for one in flowsim.judge([true, twice], loss, early)} == {Judgement.UNRESOLVED}


@pytest.mark.parametrize("apart", [2.0**-52, 1e-13])
def test_times_that_are_equal_to_rounding_are_one(plain, apart):
    """Of pairs of requested times, around output times of the plain run, the later are there; the run can be judged."""
    later = np.asarray(plain.t)[20::15] * (1 + 1e-8)
    run = gradient_flow(
        product_loss(), SMALL, rtol=1e-7, atol=1e-11, times=np.sort(np.concatenate([later * (1 - apart), later]))
    )
    t = np.asarray(run.t)
    assert run.status is Status.EXCESS and np.isin(later, t).all()
    assert np.min(np.diff(t) / t[1:]) > 1e-12
    assert flowsim.check(REACHES, product_loss(), run).verdict is Judgement.HOLDS


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.3, 1e-3])
@pytest.mark.parametrize("places", [(0, 1), pytest.param((0, 2), marks=pytest.mark.long), (0, 3)])
def test_opposite_weights_at_any_places_leave_a_limit_open(places, scale):
    """From the smallest two w_i = -w_j of a product the exact flow keeps them so and ends where both are zero, at a
    saddle, from which rounding takes it.
    """
    weights = scale * np.linspace(1.0, 1.5, max(places) + 2)
    weights[places[1]] = -weights[places[0]]
    flow = gradient_flow(product_loss(), Factors(jnp.asarray(weights)[None]))
    assert flowsim.check(REACHES, product_loss(), flow).verdict is Judgement.UNRESOLVED


def test_where_rounding_decides_at_a_saddle_nothing_is_decided():
    """From u = -U the exact flow goes to the saddle at 0 and stays; rounding sends the computed one to a minimum."""
    loss = LinearAttentionLoss(LinearRegression([[1.0]], 10))
    for scale, sign in ((0.3, 1), (0.3, -1), (1e-6, -1)):
        expected = Judgement.HOLDS if sign > 0 else Judgement.UNRESOLVED
        flow = gradient_flow(loss, LinearAttention([[scale * sign]], scale))
        verdict = flowsim.check(REACHES, loss, flow)
        assert verdict.verdict is expected
        assert ("A change of the last digits of the start" in verdict.note) == (sign < 0)


@pytest.mark.slow
@pytest.mark.parametrize(("apart", "solver"), [(0.0, "explicit"), (1e-12, "auto")])
def test_many_weights_leave_a_saddle_where_no_minimum_is_known(apart, solver):
    """2,200 weights, sum (a_i b_i - s_i)^2/2 from 1e-12: where s = 4 is reached the gradient is as small as at the end,
    while s = 1/4 is still to come, unless those weights are zero.
    """
    s = jnp.where(jnp.arange(1100) < 2, 4.0, 0.25)
    start = jnp.where(s > 1, 1e-12, apart)
    loss = FunctionLoss(lambda m: jnp.sum((m.w[0] * m.w[1] - s) ** 2) / 2)
    stop = Stop(grad_norm=1e-10 if apart else 1e-7)  # which errors of explicit steps keep it from
    run = gradient_flow(loss, Factors(jnp.stack([start, start])), solver=solver, stop=stop)
    assert run.status is Status.GRAD_NORM
    assert float(run.loss[-1]) == pytest.approx(0.0 if apart else float(jnp.sum(s[2:] ** 2)) / 2, abs=1e-12)


THREE_LAYERS = FunctionLoss(lambda m: jnp.sum((m.w[0] * m.w[1] * m.w[2] - 1) ** 2) / 2)


@pytest.mark.parametrize("reached", [0, 1, 350, 699, 700])
def test_many_tiny_weights_leave_a_saddle_of_higher_order(reached):
    """2,100 weights, sum (a_i b_i c_i - 1)^2/2, some products 1 and the rest 1e-60: the curvature along the rest is far
    below the rounding of that along the others. Only where all are 1 is a minimum.
    """
    start = Factors(1e-20 * jnp.abs(jax.random.normal(jax.random.key(5), (3, 700))))
    a, b = jnp.exp(0.3 * jax.random.normal(jax.random.key(6), (2, 700)))
    rests = jnp.where((jnp.arange(700) < reached)[None], jnp.stack([a, b, 1 / (a * b)]), start.w)
    system = loss_system(THREE_LAYERS, start)
    assert bool(leaves_in_krylov(system, Factors(rests), start, jnp.asarray(True))) == (reached < 700)
