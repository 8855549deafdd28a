"""The explicit method beyond the stability of Tsit5: its order, where it is stable, what a stiff flow costs."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flowsim import FunctionLoss, Status, gradient_flow
from flowsim.flow.solvers.dense.stabilized import Stabilized, formulas


def one_step(slope, x, length, rate):
    """A step from x, and its error, where the fastest rate is as given."""
    term = diffrax.ODETerm(lambda t, y, args: (slope(y[0]), jnp.sum(slope(y[0]) ** 2)))
    solver, y = Stabilized(), (x, jnp.zeros(()))
    kept = solver.init(term, 0.0, length, y, None)
    direction = jnp.zeros_like(x).at[-1].set(1.0)  # in which the rate is that of the last weight
    kept = kept._replace(direction=direction, rate=jnp.asarray(rate))
    (end, _), (error, _), _, after, _ = solver.step(term, 0.0, length, y, None, kept, False)
    return end, error, int(after.fields - kept.fields)


FORMULAS = [
    pytest.param(formula, marks=pytest.mark.slow if number % 3 else ()) for number, formula in enumerate(formulas())
]


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: f"{formula.stable:.0f}")
def test_each_number_of_stages_is_stable_to_the_end_of_its_interval_and_of_order_four(formula):
    longest = 0.999 * formula.stable / 1.1  # by the caution that a step takes, its stages are those of the formula
    rates = jnp.asarray(np.append(np.linspace(1e-3, 1.1, 500), 1.0)) * longest
    end, error, _ = one_step(lambda x: -rates * x, jnp.ones(501), 1.0, longest)
    assert np.max(np.abs(end)) < 1 and np.max(np.abs(end[rates > 3])) < 0.95
    assert np.max(np.abs(error)) < 1.1

    def off(length):
        """Of x' = -x^2 beside a rate that is as fast for each length."""
        slope = lambda x: jnp.stack([-(x[0] ** 2), -longest / length * x[1]])
        found = one_step(slope, jnp.asarray([1.0, 0.0]), length, longest / length)[0]
        return abs(float(found[0]) - 1 / (1 + length))

    # The error of a step is of order 5.
    assert off(0.1) / off(0.05) == pytest.approx(32, rel=0.3)


class Vector(eqx.Module):
    x: jax.Array


@pytest.mark.slow
def test_a_flow_that_is_stiff_costs_a_tenth_of_what_stability_asks_of_tsit5():
    """x_i' = -r_i x_i, rates from 1e-2 to 1e3 until t = 100: by Tsit5 100 x 1000/3.5 steps of six fields."""
    rates = jnp.asarray(np.geomspace(1e-2, 1e3, 300))
    loss = FunctionLoss(lambda model: jnp.sum(rates * model.x**2) / 2, minimum=0.0)
    run = gradient_flow(loss, Vector(jnp.ones(300)), t1=100.0, rtol=1e-8, solver="explicit", points_per_decade=0)
    assert run.status is Status.TIME
    np.testing.assert_allclose(run.end.x, np.exp(-100.0 * np.asarray(rates)), atol=1e-7)
    assert run.certificates.steps + run.certificates.rejected_steps < 100 * 1000 / 3.5 / 4


def test_times_between_the_steps_of_a_stiff_flow_are_as_accurate():
    rates = jnp.asarray(np.geomspace(1e-2, 1e3, 300))
    loss = FunctionLoss(lambda model: jnp.sum(rates * model.x**2) / 2, minimum=0.0)
    times = np.linspace(1.0, 10.0, 20)
    run = gradient_flow(loss, Vector(jnp.ones(300)), times=times, t1=10.0, rtol=1e-8, solver="explicit")
    exact = np.exp(-np.outer(run.t, rates))
    assert np.isin(times, run.t).all()
    np.testing.assert_allclose(run.models.x, exact, atol=1e-7)
