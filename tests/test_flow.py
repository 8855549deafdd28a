"""The flow is the true one: against exact solutions, independent integrators and its own certificates."""

import subprocess
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import systems
from helpers import random_model, regression, relative_error
from systems import Factorisation, Scalar, TwoLayers, Vector

from benchmarks.fixed_covariance import distance, problem
from flowsim.flow.descent import gradient_descent
from flowsim.flow.gradient_flow import Stop, gradient_flow, reduced_flow
from flowsim.flow.trajectory import Status
from flowsim.initialization import balanced, random_theta, zeros
from flowsim.losses import FunctionLoss, LinearAttentionLoss
from flowsim.models import LinearAttention

ROUTES = [(systems.balanced_scalar, solver) for solver in ("auto", "implicit")]
ROUTES += [(systems.quartic, "implicit"), (systems.quadratic, "explicit")]
DEAR = [(systems.balanced_scalar, "explicit"), (systems.quartic, "explicit"), (systems.quadratic, "implicit")]
DEAR += [(systems.two_layers, solver) for solver in ("implicit", "explicit")]
ROUTES += [pytest.param(*route, marks=pytest.mark.slow) for route in DEAR]


def small_problem(d=3, scale=0.3, context_length=10.0):
    """A loss and a balanced start."""
    return LinearAttentionLoss(regression(d, context_length)), balanced(scale, random_theta(d, d, seed=0))


def at_time(trajectory, t):
    """The model at an output time that was asked for, which must be there exactly."""
    (index,) = np.flatnonzero(np.asarray(trajectory.t) == t)
    return trajectory.row(int(index))


def largest_error(actual, expected, scale):
    """The largest difference of two models in units of the largest of their weights and another model's."""
    leaves = jax.tree.leaves
    size = max(float(jnp.max(jnp.abs(leaf))) for leaf in [*leaves(expected), *leaves(scale)])
    pairs = zip(leaves(actual), leaves(expected), strict=True)
    return max(float(jnp.max(jnp.abs(a - b))) for a, b in pairs) / size


def bits(trajectory):
    """Every array of a trajectory, as bytes."""
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(trajectory)]


# Accuracy


@pytest.mark.parametrize(("system", "solver"), ROUTES, ids=lambda value: getattr(value, "__name__", value))
def test_exact_solutions(system, solver):
    exact = system()
    trajectory = gradient_flow(
        exact.loss, exact.start, times=exact.times, t1=exact.times[-1], rtol=1e-10, solver=solver
    )
    assert trajectory.status is Status.TIME
    assert trajectory.t[-1] == exact.times[-1]
    for t in exact.times:
        assert largest_error(at_time(trajectory, t), exact.state(t), exact.start) < 1e-9
    assert trajectory.certificates.energy_defect < 1e-8


@pytest.mark.parametrize(("system", "solver"), ROUTES, ids=lambda value: getattr(value, "__name__", value))
def test_the_error_follows_the_tolerance(system, solver):
    """A ladder of tolerances: errors fall with them, and stay within 100 times what was asked."""
    exact = system()
    tolerances = np.array([1e-5, 1e-7, 1e-9, 1e-11])
    errors = []
    for rtol in tolerances:
        trajectory = gradient_flow(
            exact.loss,
            exact.start,
            times=exact.times,
            t1=exact.times[-1],
            rtol=rtol,
            solver=solver,
            points_per_decade=0,
        )
        errors.append(max(largest_error(at_time(trajectory, t), exact.state(t), exact.start) for t in exact.times))
    assert np.all(np.array(errors) < 100 * tolerances), errors
    assert np.polyfit(np.log(tolerances), np.log(np.maximum(errors, 1e-15)), 1)[0] > 0.5, errors


def zhang_field(task):
    """The right-hand side (5.4) on a raveled (U, u), in NumPy."""
    Lambda, Gamma = np.asarray(task.covariance), np.asarray(task.gamma())
    d = len(Lambda)

    def field(t, y):
        U, u = y[:-1].reshape(d, d), y[-1]
        dU = -(u**2) * Gamma @ Lambda @ U @ Lambda + u * Lambda @ Lambda
        return np.append(dU.ravel(), -np.trace(u * Gamma @ Lambda @ U @ Lambda @ U.T - Lambda @ Lambda @ U.T))

    return field


@pytest.mark.parametrize("method", ["DOP853", "Radau"])
@pytest.mark.slow
def test_scipy_agrees_on_every_route(method):
    loss, start = small_problem()
    times = [1.0, 10.0, 100.0, 1000.0]
    y = np.append(np.asarray(start.U11).ravel(), float(start.u_minus1))
    solution = scipy.integrate.solve_ivp(
        zhang_field(loss.task), (0, times[-1]), y, method=method, t_eval=times, rtol=1e-12, atol=1e-13
    )
    assert solution.success
    routes = {
        solver: gradient_flow(loss, start, times=times, t1=times[-1], rtol=1e-11, solver=solver)
        for solver in ("auto", "implicit", "explicit")
    }
    routes["reduced"] = reduced_flow(loss, start, times)
    for name, trajectory in routes.items():
        for t, expected in zip(times, solution.y.T, strict=True):
            model = at_time(trajectory, t)
            actual = np.append(np.asarray(model.U11).ravel(), float(model.u_minus1))
            assert np.max(np.abs(actual - expected)) < 2e-9, (name, t)


@pytest.mark.slow
def test_scipy_agrees_over_all_weights():
    """u12 and u21 nonzero: no arrowhead, and the flow of the full population loss."""
    loss, start = LinearAttentionLoss(regression(3, 5.0)), random_model(3, seed=0, scale=0.3)
    leaves, structure = jax.tree.flatten(start)
    splits = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def unravel(y):
        pieces = zip(np.split(y, splits), leaves, strict=True)
        return jax.tree.unflatten(structure, [jnp.asarray(piece.reshape(leaf.shape)) for piece, leaf in pieces])

    def ravel(model):
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(model)])

    gradient = eqx.filter_jit(loss.gradient)
    solution = scipy.integrate.solve_ivp(
        lambda t, y: -ravel(gradient(unravel(y))), (0, 50.0), ravel(start), method="DOP853", rtol=1e-12, atol=1e-13
    )
    trajectory = gradient_flow(loss, start, t1=50.0, rtol=1e-11)
    assert trajectory.settings.solver == "implicit"
    np.testing.assert_allclose(ravel(trajectory.end), solution.y[:, -1], atol=1e-9)


@pytest.mark.slow
def test_the_structured_route_the_generic_route_and_the_reduction_agree():
    loss, start = small_problem()
    times = np.geomspace(0.1, 1e4, 11)
    structured = gradient_flow(loss, start, times=times, t1=times[-1], rtol=1e-10)
    generic = gradient_flow(loss, start, times=times, t1=times[-1], rtol=1e-10, solver="implicit")
    reduced = reduced_flow(loss, start, times)
    assert (structured.settings.solver, generic.settings.solver) == ("arrowhead", "implicit")
    for t in times:
        exact = at_time(reduced, float(t))
        assert largest_error(at_time(structured, float(t)), exact, start) < 1e-9
        assert largest_error(at_time(generic, float(t)), exact, start) < 1e-8


@pytest.mark.parametrize("d", [4, pytest.param(32, marks=pytest.mark.long)])
@pytest.mark.slow
def test_stiff_problem_in_few_steps_with_an_error_independent_of_dimension(d):
    """At most 300 steps at condition 100 and rtol 1e-8, and 1e-8 in u and in u U11 against the reduction.

    The reduction is explicit and the problem stiff: later times are left to the benchmark.
    """
    loss, start, t1 = problem(d)
    times = t1 * np.geomspace(1e-4, 0.02, 5)
    trajectory = gradient_flow(loss, start, times=times, t1=t1, rtol=1e-8, points_per_decade=0)
    assert trajectory.certificates.steps + trajectory.certificates.rejected_steps <= 300
    reduced = reduced_flow(loss, start, times)
    assert max(distance(at_time(trajectory, t), at_time(reduced, t)) for t in times) < 1e-8


@pytest.mark.slow
def test_the_generic_route_takes_few_steps_on_a_stiff_problem():
    """A guard on the root finder: the stock one rejects good steps, and takes nine times as many."""
    loss, start, t1 = problem(3)
    trajectory = gradient_flow(loss, start, t1=t1, rtol=1e-8, points_per_decade=0, solver="implicit")
    assert trajectory.certificates.steps + trajectory.certificates.rejected_steps <= 300


@pytest.mark.parametrize("d", [3, 4])
@pytest.mark.slow
def test_the_error_follows_the_tolerance_where_the_problem_is_stiff(d):
    """Stiffness lowers the order of a collocation method; the error estimate has to know it."""
    loss, start, t1 = problem(d)
    times = t1 * np.geomspace(1e-5, 0.02, 11)
    reduced = reduced_flow(loss, start, times)
    for rtol in (1e-8, 1e-10, 1e-12):
        trajectory = gradient_flow(loss, start, times=times, t1=times[-1], rtol=rtol, points_per_decade=0)
        for t in times:
            model, exact = at_time(trajectory, t), at_time(reduced, t)
            assert largest_error(model, exact, start) < 10 * rtol, (t, rtol)


def crossing_time(trajectory, level):
    """When u_minus1 first reaches a level, by interpolation of its logarithm."""
    log_u = np.log(np.asarray(trajectory.models.u_minus1))
    after = int(np.argmax(log_u >= np.log(level)))
    assert after > 0
    return np.interp(np.log(level), log_u[after - 1 : after + 1], np.asarray(trajectory.t)[after - 1 : after + 1])


@pytest.mark.parametrize("solver", ["auto", "implicit", "explicit"])
@pytest.mark.parametrize("scale", [1e-3, 1e-6, 1e-10, 1e-14])
def test_escape_time_in_one_dimension(scale, solver):
    """When u is halfway, from e^{2 Lambda^2 t} = (sigma^-2 - Gamma) / (4/u*^2 - Gamma) with u*^2 = 1/Gamma."""
    exact = systems.balanced_scalar(scale=scale)
    variance = float(exact.loss.task.covariance[0, 0])
    gamma = float(exact.loss.task.gamma()[0, 0])
    escape = np.log((scale**-2 - gamma) / (3 * gamma)) / (2 * variance**2)
    times = escape * np.linspace(0.98, 1.02, 41)
    trajectory = gradient_flow(exact.loss, exact.start, times=times, t1=times[-1], solver=solver)
    assert abs(crossing_time(trajectory, gamma**-0.5 / 2) / escape - 1) < 1e-4
    assert largest_error(trajectory.end, exact.state(times[-1]), exact.start) < 1e-6


@pytest.mark.parametrize("scale", [*(pytest.param(one, marks=pytest.mark.long) for one in (1e-3, 1e-10)), 1e-6, 1e-14])
@pytest.mark.slow
def test_escape_time_in_four_dimensions(scale):
    loss, start = small_problem(d=4, scale=scale)
    coarse = gradient_flow(loss, start)
    level = float(coarse.end.u_minus1) / 2
    times = crossing_time(coarse, level) * np.linspace(0.5, 1.5, 2001)
    flow = gradient_flow(loss, start, times=times, t1=times[-1], points_per_decade=0)
    assert abs(crossing_time(flow, level) / crossing_time(reduced_flow(loss, start, times), level) - 1) < 1e-4


# Certificates


@pytest.mark.parametrize("solver", ["auto", "implicit", "explicit"])
@pytest.mark.slow
def test_energy_identity_balance_and_monotone_loss(solver):
    loss, start = small_problem()
    trajectory = gradient_flow(loss, start, solver=solver)
    certificates = trajectory.certificates
    assert certificates.energy_defect < 1e-7
    assert certificates.balance_drift is not None and certificates.balance_drift < 1e-7
    lost = np.asarray(trajectory.excess[0] - trajectory.excess)
    np.testing.assert_allclose(trajectory.dissipated, lost, atol=1e-7 * lost[-1])
    assert np.all(np.diff(trajectory.excess) < 0)
    gradient = loss.gradient(trajectory.row(5))
    norm_sq = sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(gradient))
    np.testing.assert_allclose(trajectory.grad_norm_sq[5], norm_sq, rtol=1e-10)
    np.testing.assert_allclose(trajectory.loss, loss.minimum + trajectory.excess, rtol=1e-12)
    balance = trajectory.models.u_minus1**2 - jnp.sum(trajectory.models.U11**2, axis=(1, 2))
    size = jnp.max(trajectory.models.u_minus1**2 + jnp.sum(trajectory.models.U11**2, axis=(1, 2)))
    np.testing.assert_allclose(certificates.balance_drift, jnp.max(jnp.abs(balance - balance[0])) / size, atol=1e-15)


@pytest.mark.slow
def test_a_looser_tolerance_is_certified_as_looser():
    loss, start = small_problem()
    tight, loose = (gradient_flow(loss, start, t1=100.0, rtol=rtol, solver="implicit") for rtol in (1e-11, 1e-4))
    assert loose.certificates.energy_defect > 100 * tight.certificates.energy_defect


def test_unbalanced_starts_keep_their_balance():
    loss, _ = small_problem()
    start = LinearAttention(np.diag([2.0, 0.5, 0.1]), 0.2)
    trajectory = gradient_flow(loss, start)
    assert trajectory.status is Status.EXCESS
    drift = trajectory.certificates.balance_drift
    assert drift is not None and drift < 1e-8


@pytest.mark.slow
def test_invariance_of_the_zero_weights_is_computed_by_the_generic_route():
    loss, start = small_problem()
    trajectory = gradient_flow(loss, start, t1=1e3, solver="implicit")
    assert not np.any(trajectory.models.u12) and not np.any(trajectory.models.u21)


# Where runs end


def test_stop_on_excess():
    loss, start = small_problem()
    trajectory = gradient_flow(loss, start)
    assert trajectory.status is Status.EXCESS and trajectory.status.finished
    threshold = 1e-12 * trajectory.excess[0]
    assert trajectory.excess[-1] <= threshold < trajectory.excess[-2]
    assert np.all(np.diff(trajectory.t) > 0) and trajectory.t[0] == 0


def test_stop_on_gradient_norm():
    loss, start = small_problem()
    trajectory = gradient_flow(loss, start, stop=Stop(excess=0.0, grad_norm=1e-6))
    assert trajectory.status is Status.GRAD_NORM
    threshold = 1e-12 * jnp.max(trajectory.grad_norm_sq)
    ends = (trajectory.grad_norm_sq <= threshold) & (trajectory.excess <= 1e-12 * trajectory.excess[0])
    assert ends[-1] and not np.any(ends[:-1])


def test_a_saddle_is_not_taken_for_an_end():
    """Near the saddle the gradient norm starts below the threshold relative to its later peak."""
    loss, start = small_problem(scale=1e-12)
    trajectory = gradient_flow(loss, start, stop=Stop(excess=0.0, grad_norm=1e-6))
    assert trajectory.status is Status.GRAD_NORM
    assert trajectory.excess[-1] < 1e-9 * trajectory.excess[0]


def test_requested_times_are_outputs_and_come_before_any_stop():
    loss, start = small_problem()
    free = gradient_flow(loss, start)
    late = float(2 * free.t[-1])
    times = [0.123, 4.56, late]
    trajectory = gradient_flow(loss, start, times=times)
    assert set(times) <= set(np.asarray(trajectory.t).tolist())
    assert trajectory.t[-1] == late
    assert trajectory.status is Status.EXCESS


def test_t1_alone_ends_a_run_even_when_converged():
    loss, start = small_problem()
    trajectory = gradient_flow(loss, start, t1=1e6)
    assert trajectory.status is Status.TIME and trajectory.t[-1] == 1e6


def test_times_alone_without_a_grid():
    loss, start = small_problem()
    trajectory = gradient_flow(loss, start, times=[1.0, 2.0], points_per_decade=0)
    assert trajectory.status is Status.TIME
    assert np.asarray(trajectory.t).tolist() == [0.0, 1.0, 2.0]


def test_zeros_are_stationary_for_ever():
    loss, _ = small_problem()
    trajectory = gradient_flow(loss, zeros(3), times=[1.0, 2.0])
    assert trajectory.status is Status.STATIONARY
    assert np.asarray(trajectory.t).tolist() == [0.0, 1.0, 2.0]
    assert not np.any(trajectory.models.U11) and np.all(trajectory.excess == trajectory.excess[0])
    assert trajectory.certificates.energy_defect == 0


def test_a_flow_without_an_end_goes_to_its_horizon():
    """The quartic's excess falls like t^-2 and never meets a threshold of zero."""
    exact = systems.quartic()
    trajectory = gradient_flow(exact.loss, exact.start, stop=Stop(excess=0.0, grad_norm=0.0), points_per_decade=1)
    assert trajectory.status is Status.HORIZON
    assert (
        largest_error(trajectory.end, exact.state(float(trajectory.t[-1])), exact.state(float(trajectory.t[-1]))) < 1e-3
    )


@pytest.mark.slow
def test_a_loss_without_a_known_minimum_stops_on_the_gradient():
    exact = systems.quadratic(n=3, condition=10.0)
    trajectory = gradient_flow(FunctionLoss(exact.loss.function), exact.start)
    assert trajectory.status is Status.GRAD_NORM
    assert np.all(np.isnan(trajectory.excess))
    assert trajectory.certificates.energy_defect < 1e-7


MANY_STEPS = 240  # a decade, more than a chunk has


def test_budget_is_spent_after_a_chunk_and_says_so():
    loss, start = small_problem()
    trajectory = gradient_flow(loss, start, points_per_decade=MANY_STEPS, budget_seconds=1e-9)
    assert trajectory.status is Status.BUDGET and not trajectory.status.finished
    complete = gradient_flow(loss, start, points_per_decade=MANY_STEPS)
    assert 1 < trajectory.t.size < complete.t.size
    np.testing.assert_array_equal(trajectory.loss, complete.loss[: trajectory.t.size])


# What goes wrong is said


class Cliff(eqx.Module):
    """x^2/2, and NaN below a level, as is its gradient."""

    level: jax.Array

    def __call__(self, model):
        return model.x**2 / 2 + 0 * jnp.sqrt(model.x - self.level)


class Gap(eqx.Module):
    """x^2/2, and NaN below a level, where its gradient is zero."""

    level: jax.Array

    def __call__(self, model):
        return jnp.where(model.x > self.level, model.x**2 / 2, jnp.nan)


class BlowUp(eqx.Module):
    """-x^3/3: from x = 1 the flow is infinite at t = 1."""

    def __call__(self, model):
        return -(model.x**3) / 3


@pytest.mark.parametrize("cliff", [Cliff, Gap])
@pytest.mark.parametrize("solver", [pytest.param("implicit", marks=pytest.mark.slow), "explicit"])
def test_a_field_or_a_loss_that_turns_nan_is_never_finished(solver, cliff):
    trajectory = gradient_flow(FunctionLoss(cliff(jnp.asarray(0.5))), Scalar(jnp.asarray(1.0)), solver=solver)
    assert trajectory.status in (Status.NONFINITE, Status.NEWTON)
    assert not trajectory.status.finished
    assert trajectory.t[-1] <= np.log(2) * (1 + 1e-9)
    assert np.all(np.isfinite(trajectory.loss)) and np.all(np.isfinite(trajectory.models.x))
    np.testing.assert_allclose(trajectory.models.x, np.exp(-trajectory.t), rtol=1e-7)


@pytest.mark.parametrize("solver", ["implicit", "explicit"])
def test_a_field_that_is_nan_from_the_start_is_nonfinite(solver):
    trajectory = gradient_flow(FunctionLoss(Cliff(jnp.asarray(2.0))), Scalar(jnp.asarray(1.0)), solver=solver)
    assert trajectory.status is Status.NONFINITE
    assert np.asarray(trajectory.t).tolist() == [0.0]


@pytest.mark.parametrize("solver", ["implicit", "explicit"])
def test_a_flow_that_is_infinite_in_finite_time_is_never_finished(solver):
    trajectory = gradient_flow(FunctionLoss(BlowUp()), Scalar(jnp.asarray(1.0)), solver=solver)
    assert not trajectory.status.finished
    assert trajectory.t[-1] <= 1 + trajectory.settings.rtol
    assert np.all(np.isfinite(trajectory.loss))


def test_gradient_descent_that_diverges_is_nonfinite():
    exact = systems.quartic()
    trajectory = gradient_descent(exact.loss, exact.start, step_size=10.0, steps=50)
    assert trajectory.status is Status.NONFINITE and not trajectory.status.finished
    assert np.all(np.isfinite(trajectory.loss))


def test_gradient_descent_approaches_the_flow_to_first_order():
    exact = systems.two_layers()
    errors = []
    for step_size in (1e-3, 1e-4):
        trajectory = gradient_descent(exact.loss, exact.start, step_size, round(1.0 / step_size))
        assert trajectory.status is Status.DESCENT
        np.testing.assert_allclose(step_size * trajectory.t[-1], 1.0)
        errors.append(largest_error(trajectory.end, exact.state(1.0), exact.start))
    assert 8 < errors[0] / errors[1] < 12


def test_gradient_descent_takes_the_steps_it_says():
    exact = systems.quadratic(n=3, condition=10.0)
    trajectory = gradient_descent(exact.loss, exact.start, 0.1, 5)
    step = np.eye(3) - 0.1 * np.asarray(exact.loss.function.hessian)
    expected = [np.linalg.matrix_power(step, k) @ np.asarray(exact.start.x) for k in range(6)]
    np.testing.assert_allclose(trajectory.models.x, expected, rtol=1e-12)
    np.testing.assert_array_equal(trajectory.t, np.arange(6))


def test_single_precision_weights_are_refused():
    model = Scalar(jnp.asarray(1.0, dtype=jnp.float32))
    with pytest.raises(ValueError, match="model.x must be float64, but it is float32"):
        gradient_flow(systems.quartic().loss, model)


def test_without_float64_nothing_runs():
    exact = systems.quartic()
    with jax.enable_x64(False), pytest.raises(ValueError, match="float64 must be switched on"):
        gradient_flow(exact.loss, exact.start)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"times": [1.0, 1.0]}, "times must be strictly increasing"),
        ({"times": [-1.0]}, "times must be positive"),
        ({"times": [0.0, 1.0]}, "times must be positive"),
        ({"times": [np.nan]}, "times must be finite"),
        ({"times": [2.0], "t1": 1.0}, "times must be no later than t1"),
        ({"t1": -1.0}, "t1 must be positive"),
        ({"t1": np.inf}, "t1 must be finite"),
        ({"rtol": 0.0}, "rtol must be"),
        ({"rtol": 1e-20}, "rtol must be"),
        ({"rtol": np.nan}, "rtol must be"),
        ({"atol": 0.0}, "atol must be positive"),
        ({"solver": "explicitt"}, 'solver must be one of .*did you mean "explicit"'),
        ({"points_per_decade": -1}, "points_per_decade must be at least 0"),
        ({"points_per_decade": 0}, "points_per_decade must be positive where"),
        ({"budget_seconds": 0.0}, "budget_seconds must be positive"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    loss, start = small_problem()
    with pytest.raises(ValueError, match=message):
        gradient_flow(loss, start, **arguments)


@pytest.mark.parametrize("field", ["excess", "grad_norm"])
@pytest.mark.parametrize("value", [-1e-3, 1.0, np.nan])
def test_bad_stops_are_refused(field, value):
    with pytest.raises(ValueError, match=f"stop.{field} must be at least 0 and below 1"):
        Stop(**{field: value})


def test_models_without_weights_or_with_nan_are_refused():
    exact = systems.quartic()
    with pytest.raises(ValueError, match="model must be an Equinox module with float64 weights"):
        gradient_flow(exact.loss, Scalar(None))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="model.x must be finite"):
        gradient_flow(exact.loss, Scalar(jnp.asarray(jnp.nan)))


def test_the_reduction_needs_the_invariant_set():
    loss, _ = small_problem()
    with pytest.raises(ValueError, match="u12 = u21 = 0"):
        reduced_flow(loss, random_model(3, seed=0), [1.0])


# Checkpoints


def runs_to_resume():
    loss, start = small_problem(d=4, scale=1e-3)
    exact = systems.two_layers()
    return {
        "structured": (loss, start, {"points_per_decade": MANY_STEPS}),
        "generic": (exact.loss, exact.start, {"points_per_decade": MANY_STEPS}),
        "requested times": (loss, start, {"points_per_decade": MANY_STEPS, "times": [0.5, 7.0, 1e5]}),
    }


@pytest.mark.parametrize("name", runs_to_resume())
def test_a_resumed_run_ends_bit_for_bit_as_the_uninterrupted_one(name, tmp_path):
    loss, start, arguments = runs_to_resume()[name]
    uninterrupted = gradient_flow(loss, start, **arguments)
    interrupted = gradient_flow(loss, start, checkpoint=tmp_path, budget_seconds=1e-9, **arguments)
    assert interrupted.status is Status.BUDGET
    trajectory = gradient_flow(loss, start, checkpoint=tmp_path, **arguments)
    assert trajectory.status is uninterrupted.status
    assert bits(trajectory) == bits(uninterrupted)
    assert trajectory.certificates == uninterrupted.certificates


def test_every_resumed_run_gets_on_however_small_its_budget(tmp_path):
    """Chunks that are only loaded cost nothing of the budget, so that a chain of short runs comes to its end."""
    loss, start = small_problem(d=4, scale=1e-3)
    sizes = []
    while not sizes or trajectory.status is Status.BUDGET:
        trajectory = gradient_flow(loss, start, points_per_decade=MANY_STEPS, checkpoint=tmp_path, budget_seconds=1e-9)
        assert not sizes or trajectory.t.size > sizes[-1]
        sizes.append(trajectory.t.size)
    assert trajectory.status is Status.EXCESS and len(sizes) > 2


@pytest.mark.slow
def test_a_run_killed_at_any_moment_resumes_bit_for_bit(tmp_path):
    code = f"""
import jax
jax.config.update("jax_enable_x64", True)
import sys
sys.path.insert(0, "tests")
from test_flow import runs_to_resume
from flowsim.flow.gradient_flow import gradient_flow
loss, start, arguments = runs_to_resume()["structured"]
gradient_flow(loss, start, checkpoint={str(tmp_path)!r}, **arguments)
"""
    child = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("chunk-*.npz")) and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    child.kill()
    child.wait()
    assert list(tmp_path.glob("chunk-*.npz"))
    loss, start, arguments = runs_to_resume()["structured"]
    assert bits(gradient_flow(loss, start, checkpoint=tmp_path, **arguments)) == bits(
        gradient_flow(loss, start, **arguments)
    )


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    loss, start = small_problem()
    gradient_flow(loss, start, t1=1.0, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="checkpoint must be empty or of this same run"):
        gradient_flow(loss, start, t1=1.0, rtol=1e-8, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="checkpoint must be empty or of this same run"):
        gradient_flow(loss, balanced(0.31, random_theta(3, 3, seed=0)), t1=1.0, checkpoint=tmp_path)


# Compilation


@pytest.fixture
def compilations():
    """Names of everything that JAX compiles during the test, as a list that grows."""
    names = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(kwargs.get("fun_name", "?"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("solver", ["auto", pytest.param("implicit", marks=pytest.mark.slow)])
def test_values_of_one_shape_share_one_compilation(compilations, solver):
    def run(scale, context_length, rtol, t1):
        loss, start = small_problem(3, scale, context_length)
        gradient_flow(loss, start, times=[t1 / 2, t1], t1=t1, rtol=rtol, solver=solver, points_per_decade=0)

    run(0.1, 10.0, 1e-8, 3.0)
    compilations.clear()
    run(0.2, 20.0, 1e-9, 5.0)
    assert compilations == []


def test_a_user_s_loss_is_compiled_once(compilations):
    def run(target, a):
        loss = FunctionLoss(Factorisation(jnp.asarray(target)))
        gradient_flow(loss, TwoLayers(jnp.asarray(a), jnp.asarray(0.1)), times=[1.0], t1=1.0, points_per_decade=0)

    run(1.0, 0.5)
    compilations.clear()
    run(2.0, 0.6)
    assert compilations == []


def test_gradient_of_the_end_points_is_where_the_field_says():
    """The last check on the generic route: minus the gradient is the slope between close outputs."""
    exact = systems.two_layers()
    step = 1e-4
    trajectory = gradient_flow(exact.loss, exact.start, times=[1 - step, 1.0, 1 + step], t1=1 + step)
    before, now, after = (at_time(trajectory, t) for t in (1 - step, 1.0, 1 + step))
    slope = jax.tree.map(lambda a, b: (a - b) / (2 * step), after, before)
    assert relative_error(slope, jax.tree.map(jnp.negative, exact.loss.gradient(now))) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "fastest", "steps"), [("auto", 1e2, 400), pytest.param("implicit", 1e4, 300, marks=pytest.mark.long)]
)
def test_large_models_are_solved_without_a_matrix(solver, fastest, steps):
    """2,100 weights, above what Newton's matrix is formed for, with rates over four decades and over six, for which an
    explicit method takes 30,000 steps.
    """
    rates = jnp.asarray(np.geomspace(1e-2, fastest, 2100))
    loss = FunctionLoss(lambda model: jnp.sum(rates * model.x**2) / 2, minimum=0.0)
    trajectory = gradient_flow(
        loss, Vector(jnp.ones(2100)), times=[0.01, 0.1, 1.0, 10.0], rtol=1e-7, points_per_decade=0, solver=solver
    )
    assert trajectory.certificates.steps < steps
    exact = np.exp(-np.outer(trajectory.t, rates))
    np.testing.assert_allclose(trajectory.models.x, exact, rtol=0, atol=3e-7)
