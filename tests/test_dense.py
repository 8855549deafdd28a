"""Steps of any flow: the order of the method, its tolerances, its Newton method, and small starts."""

import functools

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import systems
from jax.flatten_util import ravel_pytree
from systems import Vector

from flowsim import FunctionLoss, Stop, gradient_flow
from flowsim.flow import course
from flowsim.flow.solvers.collocation import ORDER
from flowsim.flow.solvers.dense.curvature import Curvature
from flowsim.flow.solvers.dense.radau import DenseRadau
from flowsim.flow.solvers.step_size import begin, next_length
from flowsim.flow.systems import loss_system, norm_sq
from flowsim.flow.trajectory import Status


def solver(rtol=1e-14, atol=1e-14):
    sizes = (jnp.zeros(1), jnp.zeros(1))
    return DenseRadau(jnp.asarray(rtol), jnp.asarray(atol), sizes, jnp.asarray(2), columns=2, directions=2)


def stepped(system, start, time, count, method):
    """The weights and the dissipated energy after equal steps."""
    terms = diffrax.ODETerm(lambda t, y, args: (args.field(y[0]), norm_sq(args.field(y[0]))))
    ends = np.linspace(0, time, count + 1)
    y = (system.encode(start), jnp.zeros(()))
    kept = method.init(terms, jnp.asarray(0.0), jnp.asarray(ends[1]), y, system)

    @jax.jit
    def step(t0, t1, y, kept):
        y, error, _, kept, _ = method.step(terms, t0, t1, y, system, kept, jnp.asarray(False))
        return y, error, kept

    for t0, t1 in zip(ends[:-1], ends[1:], strict=True):
        y, error, kept = step(jnp.asarray(t0), jnp.asarray(t1), y, kept)
        assert np.isfinite(error)
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(y)])


@pytest.mark.slow
def test_order_nine():
    """log error over log step size, of the weights and of the energy."""
    exact = systems.two_layers()
    system = loss_system(exact.loss, exact.start)
    time = exact.times[len(exact.times) // 2]
    best = stepped(system, exact.start, time, 128, solver())
    counts = np.array([4, 6, 8, 12])
    errors = np.array([np.abs(stepped(system, exact.start, time, count, solver()) - best) for count in counts])
    largest = np.max(errors, axis=1)
    assert largest[-1] > 1e-14, "the errors are rounding, not the method's"
    assert -np.polyfit(np.log(counts), np.log(largest), 1)[0] > ORDER - 0.7, errors


@pytest.mark.slow
def test_a_step_by_few_eigenvectors_is_one_by_all():
    """What is beside the eigenvectors has one rate in Newton's method, and its own in the step that this finds."""
    rates = np.append(np.geomspace(1e3, 10.0, 8), np.geomspace(0.5, 1e-3, 12))
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((20, 20)))[0]
    loss = FunctionLoss(lambda model: jnp.sum(rates * (model.x @ basis) ** 2) / 2 + jnp.sum(model.x**4) / 400)
    start = Vector(jnp.asarray(basis[:, 8:] @ np.random.default_rng(1).standard_normal(12)))
    system = loss_system(loss, start)
    tolerances = jnp.asarray(1e-11), jnp.asarray(1e-11), (jnp.zeros(20),)
    found = [
        stepped(system, start, 2.0, 16, DenseRadau(*tolerances, jnp.asarray(0), 20, directions))
        for directions in (20, 10)
    ]
    np.testing.assert_allclose(*found, rtol=1e-10, atol=1e-11)


def test_the_parts_of_a_vector_make_it_up():
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((7, 7)))[0]
    vectors = jnp.asarray(np.random.default_rng(1).standard_normal((3, 7)))
    for count in (3, 7):
        zero = jnp.zeros(7)
        curvature = Curvature(
            jnp.linspace(2.0, count + 1.0, count), jnp.asarray(basis[:, :count]), jnp.asarray(-1.0), zero, zero
        )
        np.testing.assert_allclose(curvature.join(curvature.split(vectors)), vectors, atol=1e-14)
        # The matrix with these eigenvalues, and one more for all that is beside.
        rates = np.append(np.arange(count) + 2.0, np.full(7 - count, -1.0))
        product = curvature.join(curvature.split(vectors) * curvature.rates[None])
        np.testing.assert_allclose(product, vectors @ (basis * rates) @ basis.T, atol=1e-13)


def test_a_step_that_is_far_too_long_is_not_accepted():
    exact = systems.two_layers()
    system = loss_system(exact.loss, exact.start)
    terms = diffrax.ODETerm(lambda t, y, args: (args.field(y[0]), norm_sq(args.field(y[0]))))
    y = (system.encode(exact.start), jnp.zeros(()))
    method, zero = solver(1e-9, 1e-10), jnp.asarray(0.0)
    for length in (1e2, 1e5, 1e9):
        kept = method.init(terms, zero, jnp.asarray(length), y, system)
        _, error, *_ = method.step(terms, zero, jnp.asarray(length), y, system, kept, jnp.asarray(False))
        assert error > 1


def test_step_sizes_follow_the_errors():
    """An error of one shrinks the next step by the safety factor alone; a rejected or failed one shrinks more."""
    first = begin()
    length, past = next_length(jnp.asarray(1.0), jnp.asarray(1.0), 6, first)
    assert float(length) == pytest.approx(0.9) and not past.rejected
    rejected, after = next_length(jnp.asarray(1.0), jnp.asarray(64.0), 6, past)
    assert float(rejected) == pytest.approx(0.45) and after.rejected and float(after.length) == 1.0
    failed, _ = next_length(jnp.asarray(1.0), jnp.asarray(jnp.inf), 6, past)
    assert 0 < failed < 0.5
    # After a rejection the next step is no longer than the one that was accepted.
    held, _ = next_length(jnp.asarray(0.5), jnp.asarray(1e-6), 6, after)
    assert float(held) == pytest.approx(0.5)
    # Two errors that fall alike let the step grow by more than their last alone, bounded by it.
    once, _ = next_length(jnp.asarray(1.0), jnp.asarray(0.01), 6, begin())
    falling, _ = next_length(jnp.asarray(1.0), jnp.asarray(0.01), 6, past._replace(error=jnp.asarray(1.0)))
    rising, _ = next_length(jnp.asarray(1.0), jnp.asarray(0.01), 6, past._replace(error=jnp.asarray(1e-4)))
    assert rising < falling == once


def test_requested_times_change_neither_the_steps_nor_the_end():
    exact = systems.two_layers()
    plain = gradient_flow(exact.loss, exact.start)
    times = np.geomspace(0.02, float(plain.t[-1]) * 0.9, 57)
    asked = gradient_flow(exact.loss, exact.start, times=times)
    assert asked.status is plain.status and asked.t[-1] == plain.t[-1]
    assert set(np.asarray(plain.t).tolist()) | set(times.tolist()) == set(np.asarray(asked.t).tolist())
    same = np.isin(asked.t, plain.t)
    np.testing.assert_array_equal(asked.models.a[same], plain.models.a)
    worst = max(abs(float(asked.models.a[i] - exact.state(float(t)).a)) for i, t in enumerate(asked.t))
    assert worst < 1e-8


def test_an_array_that_decays_keeps_its_digits():
    """Two arrays, one of which falls by 1e6 while the other stays: each is as accurate as it is large."""

    class Two(eqx.Module):
        x: jax.Array
        y: jax.Array

    loss = FunctionLoss(lambda model: model.x**2 / 2 + (model.y - 2) ** 2 / 200, minimum=0.0)
    run = gradient_flow(loss, Two(jnp.asarray(1.0), jnp.asarray(1.0)), times=[14.0], t1=14.0)
    assert float(run.end.x) == pytest.approx(np.exp(-14.0), rel=1e-6)
    assert float(run.end.y) == pytest.approx(2 - np.exp(-0.14), rel=1e-9)


# Small starts


class Factors(eqx.Module):
    """A scalar linear network x -> w_1 ... w_L x."""

    w: jax.Array


class Heads(eqx.Module):
    """Heads v_h k_h q_h^T of linear attention."""

    v: jax.Array
    k: jax.Array
    q: jax.Array


NETWORK = FunctionLoss(lambda model: (jnp.prod(model.w) - 1) ** 2 / 2, minimum=0.0)


@functools.cache
def heads_loss(count):
    """The loss of separate heads in the eigenbasis of the covariance 4, 2, 1, .5 at N = 31."""
    lam = 4 * 0.5 ** np.arange(count)
    gamma = (1 + 1 / 31) * lam + lam.sum() / 31
    first, second = jnp.asarray(np.outer(gamma * lam, lam)), jnp.asarray(np.diag(lam**2))

    def loss(model):
        M = jnp.einsum("h,hi,hj->ij", model.v, model.k, model.q)
        return jnp.sum(first * M**2) / 2 - jnp.sum(second * M) + lam.sum() / 2

    return FunctionLoss(loss, minimum=float(lam.sum() - (lam**2 / gamma).sum()) / 2)


def heads(scale, seed, count=4):
    """The loss of separate heads, and a random start."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(scale * rng.standard_normal(shape))
    return heads_loss(count), Heads(draw(count), draw(count, count), draw(count, count))


@pytest.mark.parametrize("scale", [1e-2, 1e-5, 1e-8])
@pytest.mark.parametrize("layers", [2, 3])
def test_small_starts_of_scalar_networks_reach_the_minimum(layers, scale):
    start = Factors(jnp.asarray(scale * np.array([1.0, -0.7, -1.3])[:layers] * (1 if layers == 3 else -1)))
    run = gradient_flow(NETWORK, start)
    assert run.status is Status.EXCESS
    assert np.prod(run.end.w) == pytest.approx(1.0, rel=1e-5)
    squares = np.asarray(run.models.w) ** 2
    np.testing.assert_allclose(squares[:, 0] - squares[:, 1], squares[0, 0] - squares[0, 1], atol=1e-9)


def test_the_escape_of_two_layers_is_at_its_time():
    """From a = b = s: ab = s^2 e^{2t}/(1 + s^2 (e^{2t} - 1)), half of 1 at e^{2t} = 1/s^2 - 1."""
    loss = FunctionLoss(lambda model: (model.w[0] * model.w[1] - 1) ** 2 / 2, minimum=0.0)
    for scale in (1e-2, 1e-5, 1e-8):
        t = np.log(1 / scale**2 - 1) / 2
        run = gradient_flow(loss, Factors(jnp.full(2, scale)), times=[t], t1=t)
        assert float(jnp.prod(run.end.w)) == pytest.approx(0.5, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "seed"), [(1e-8, 1), (1e-8, 2), (1e-6, 0), (1e-3, 3)])
def test_no_plateau_of_tiny_heads_is_taken_for_the_end(scale, seed):
    """At 1e-8 what will grow has a gradient of 1e-16, and part of it shrinks at first."""
    loss, start = heads(scale, seed)
    run = gradient_flow(loss, start)
    assert run.status is Status.EXCESS and run.excess[-1] <= 1e-12 * run.excess[0]


@pytest.mark.slow
def test_tiny_heads_escape_when_they_do_by_lsoda():
    """Rounding of the loss at the start is larger than what the weights are worth there."""
    loss, start = heads(1e-6, 0)
    y, unravel = ravel_pytree(start)
    slope = lambda y: -ravel_pytree(loss.gradient(unravel(y)))[0]
    field, jacobian = jax.jit(slope), jax.jit(jax.jacfwd(slope))
    run = gradient_flow(loss, start)
    levels = np.array([0.9, 0.5, 0.1]) * run.excess[0]
    guesses = np.array([float(run.t[np.argmax(run.excess <= level)]) for level in levels])
    times = np.unique(np.concatenate([t * np.linspace(0.8, 1.01, 400) for t in guesses]))
    ours = gradient_flow(loss, start, times=times, points_per_decade=0)
    theirs = scipy.integrate.solve_ivp(
        lambda t, y: np.asarray(field(jnp.asarray(y))),
        (0, times[-1]),
        np.asarray(y),
        "LSODA",
        times,
        jac=lambda t, y: np.asarray(jacobian(jnp.asarray(y))),
        rtol=1e-10,
        atol=1e-16,
    )
    excess = jax.lax.map(lambda y: loss.excess(unravel(y)), jnp.asarray(theirs.y.T))
    crossings = [[np.interp(-level, -np.asarray(e), times) for level in levels] for e in (ours.excess[1:], excess)]
    np.testing.assert_allclose(*crossings, rtol=1e-5)  # between times that are 5e-4 apart


def test_a_flow_at_rest_above_the_minimum_ends_there():
    """On the stable manifold of a saddle, where what would leave it is exactly zero, a flow stays for ever."""
    loss = FunctionLoss(lambda model: (model.x[0] - 1) ** 2 / 2 + (model.x[1] ** 2 - 1) ** 2 / 4, minimum=0.0)
    run = gradient_flow(loss, Vector(jnp.asarray([3.0, 0.0])))
    assert run.status is Status.GRAD_NORM and float(run.excess[-1]) == pytest.approx(0.25)
    moved = gradient_flow(loss, Vector(jnp.asarray([3.0, 1e-9])), stop=Stop(excess=1e-10))
    assert moved.status is Status.EXCESS


def test_what_one_step_does_not_find_is_found_in_several(monkeypatch):
    exact = systems.two_layers()
    times = np.geomspace(0.5, 20.0, 5)
    in_one = gradient_flow(exact.loss, exact.start, times=times)
    between = course.between

    def lost(*arguments):
        (states, dissipated), found = between(*arguments)
        return (jax.tree.map(lambda leaf: leaf * jnp.nan, states), dissipated), found & False

    monkeypatch.setattr(course, "between", lost)
    in_several = gradient_flow(exact.loss, exact.start, times=times)
    assert in_several.status is in_one.status
    np.testing.assert_allclose(in_several.models.a, in_one.models.a, rtol=1e-9)
    np.testing.assert_allclose(in_several.dissipated, in_one.dissipated, rtol=1e-9)
