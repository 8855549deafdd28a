"""Steps of the reduced arrowhead flow, and the flow that is traced through them: the same as the full one's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import regression, relative_error

from flowsim import gradient_flow
from flowsim.flow.solvers import collocation
from flowsim.flow.solvers.arrowhead import newton, reduced
from flowsim.flow.solvers.rows import traced_flow
from flowsim.flow.systems import ArrowheadSystem
from flowsim.initialization import balanced, random_theta
from flowsim.losses import LinearAttentionLoss
from flowsim.losses.reduction import Point

pytestmark = pytest.mark.slow

STAGES = collocation.STAGES
LOSS = LinearAttentionLoss(regression(3, 10.0))
START = balanced(0.3, random_theta(3, 3, seed=0))
ARROWHEAD = LOSS.structure
STATE = ARROWHEAD.state(START)
step = jax.jit(reduced.step)
radau_step = jax.jit(newton.radau_step)


def state_of(point: Point):
    """(U, u) of a point that began in `STATE`."""
    off = STATE[0] * (1 - jnp.eye(3)) * jnp.exp(-ARROWHEAD.curvature * point.clock)
    return off + jnp.diag(point.shaft), point.u


@pytest.mark.parametrize("length", [1e-3, 0.3, 3.0])
def test_a_step_is_that_of_the_full_equations(length):
    flow, point = reduced.reduce(ARROWHEAD, STATE)
    seen = flow.seen(point)
    outcome = step(flow, point, seen, jnp.full(STAGES, point.u), jnp.asarray(length), jnp.asarray(1e-12))
    full = radau_step(ARROWHEAD, STATE, jnp.asarray(length), jnp.asarray(1e-14))
    assert outcome.converged and full.converged
    end, there = reduced.end_of(outcome)
    assert relative_error(state_of(end), full.state) < 1e-12
    assert float(outcome.dissipated) == pytest.approx(float(full.dissipated), rel=1e-11)
    assert float(there.excess) == pytest.approx(float(ARROWHEAD.excess(full.state)), rel=1e-10)
    slope = ARROWHEAD.field(full.state)
    assert float(there.grad_norm_sq) == pytest.approx(float(jnp.sum(slope[0] ** 2) + slope[1] ** 2), rel=1e-10)


def test_a_start_is_seen_as_it_is():
    flow, point = reduced.reduce(ARROWHEAD, STATE)
    seen = flow.seen(point)
    slope = ARROWHEAD.field(STATE)
    assert relative_error(state_of(point), STATE) < 1e-15
    assert float(seen.excess) == pytest.approx(float(LOSS.excess(START)), rel=1e-13)
    assert float(seen.grad_norm_sq) == pytest.approx(float(jnp.sum(slope[0] ** 2) + slope[1] ** 2), rel=1e-13)


def test_a_step_says_that_it_did_not_converge_rather_than_give_another_answer():
    flow, point = reduced.reduce(ARROWHEAD, STATE)
    seen = flow.seen(point)
    for length in (1e2, 1e5, 1e9):
        outcome = step(flow, point, seen, jnp.full(STAGES, point.u), jnp.asarray(length), jnp.asarray(1e-9))
        assert not outcome.converged or outcome.error > 1e-9


def traced(scale):
    start = jax.tree.map(lambda x: x * scale, STATE)
    return traced_flow(ArrowheadSystem(ARROWHEAD, LOSS.minimum), ARROWHEAD.model(start), LOSS.minimum, 1e-10)


def test_a_traced_flow_is_the_flow_at_the_ends_of_its_steps():
    run, finished = jax.jit(traced)(jnp.asarray(1.0))
    assert finished
    t, where = np.unique(np.asarray(run.t), return_index=True)
    again = gradient_flow(LOSS, START, times=t[1:], rtol=1e-12, points_per_decade=0)
    np.testing.assert_allclose(run.models.U11[where], again.models.U11, atol=1e-8)
    np.testing.assert_allclose(run.excess[where][:-1], again.excess[:-1], rtol=1e-4)
    np.testing.assert_allclose(run.dissipated[where], again.dissipated, rtol=1e-8)
    assert float(run.excess[-1]) <= 1e-12 * float(run.excess[0])


def test_a_traced_flow_is_differentiated_through_every_step():
    """What is dissipated in all is the excess at the start, whose derivative needs no flow."""
    dissipated = jax.jit(lambda scale: traced(scale)[0].dissipated[-1])
    lost = jax.jit(lambda scale: ARROWHEAD.excess(jax.tree.map(lambda x: x * scale, STATE)))
    for scale in (0.5, 1.0, 3.0):
        point, one = jnp.asarray(scale), jnp.asarray(1.0)
        _, along = jax.jvp(dissipated, (point,), (one,))
        _, exact = jax.jvp(lost, (point,), (one,))
        assert float(along) == pytest.approx(float(exact), rel=1e-7)


def test_a_batch_of_traced_flows_is_each_of_them():
    scales = jnp.asarray([0.1, 1.0, 3.0])
    together, finished = jax.jit(jax.vmap(traced))(scales)
    assert finished.all()
    for i, scale in enumerate(scales):
        alone, _ = jax.jit(traced)(scale)
        # Step sizes may differ by rounding, so that the rows need not be at the same times.
        np.testing.assert_allclose(together.dissipated[i, -1], alone.dissipated[-1], rtol=1e-9)
        np.testing.assert_allclose(together.models.U11[i, -1], alone.models.U11[-1], rtol=1e-6, atol=1e-8)
