"""One structured step is the collocation step it claims to be: its tableau, its order, its linear algebra."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers import regression

from flowsim.flow.solvers import collocation
from flowsim.flow.solvers.arrowhead import newton
from flowsim.initialization import balanced, random_theta
from flowsim.losses import LinearAttentionLoss

STAGES = collocation.STAGES
radau_step = jax.jit(newton.radau_step)


def test_tableau_is_radau():
    """Collocation at the stages, C(s), and weights of order 2s - 1, B(2s - 1), which make Radau IIA what it is."""
    nodes, matrix, _ = collocation.radau_tableau()
    assert nodes[-1] == 1.0
    for k in range(1, STAGES + 1):
        np.testing.assert_allclose(matrix @ nodes ** (k - 1), nodes**k / k, atol=1e-14)
    for k in range(1, 2 * STAGES):
        np.testing.assert_allclose(matrix[-1] @ nodes ** (k - 1), 1 / k, rtol=1e-12)
    assert collocation.ORDER == 2 * STAGES - 1


def test_error_weights_annihilate_polynomials_of_lower_degree():
    nodes, _, differences = collocation.radau_tableau()
    points = np.append(0.0, nodes)
    for degree in range(STAGES):
        assert abs(differences @ points**degree) < 1e-10 * np.max(np.abs(differences))
    assert abs(differences @ points**STAGES) > 1e-3


def steps_to(time, count):
    """The state and the dissipated energy at a time after ``count`` equal steps."""
    loss = LinearAttentionLoss(regression(3, 10.0))
    start = balanced(0.3, random_theta(3, 3, seed=0))
    arrowhead = loss.arrowhead(start)
    assert arrowhead is not None
    state, dissipated = arrowhead.state(start), 0.0
    for _ in range(count):
        outcome = radau_step(arrowhead, state, jnp.asarray(time / count), jnp.asarray(1e-14))
        assert outcome.converged
        state, dissipated = outcome.state, dissipated + outcome.dissipated
    lost = float(loss.excess(start) - arrowhead.excess(state))
    return np.append(state[0].ravel(), state[1]), dissipated, lost


def test_order_nine():
    """log error over log step size, from steps that are not yet at rounding; the energy's too."""
    exact, _, _ = steps_to(12.0, 96)
    counts = np.array([3, 4, 6, 8])
    runs = [steps_to(12.0, count) for count in counts]
    errors = np.array([np.max(np.abs(state - exact)) for state, _, _ in runs])
    defects = np.array([abs(dissipated - lost) for _, dissipated, lost in runs])
    assert errors[-1] > 1e-14, "the errors are rounding, not the method's"
    assert -np.polyfit(np.log(counts), np.log(errors), 1)[0] > collocation.ORDER - 0.5, errors
    assert -np.polyfit(np.log(counts), np.log(defects), 1)[0] > collocation.ORDER - 0.5, defects


def test_a_step_that_is_far_too_long_is_not_reported_as_converged_to_nonsense():
    """Newton either converges to the solution of the stage equations or says that it did not."""
    loss = LinearAttentionLoss(regression(3, 10.0))
    start = balanced(0.3, random_theta(3, 3, seed=0))
    arrowhead = loss.arrowhead(start)
    assert arrowhead is not None
    for length in (1.0, 1e2, 1e4, 1e8):
        outcome = radau_step(arrowhead, arrowhead.state(start), jnp.asarray(length), jnp.asarray(1e-13))
        if outcome.converged:
            assert np.all(np.isfinite(outcome.state[0])) and np.isfinite(outcome.state[1])
    assert not outcome.converged or outcome.error > 1e-3


def test_small_systems_are_solved_element_by_element():
    rng = np.random.default_rng(0)
    matrices, right = rng.standard_normal((7, STAGES, STAGES)) + 5 * np.eye(STAGES), rng.standard_normal((7, STAGES))
    rows = [[jnp.asarray(matrices[:, i, j]) for j in range(STAGES)] for i in range(STAGES)]
    solution = collocation.solve_small(rows, [jnp.asarray(right[:, i]) for i in range(STAGES)])
    np.testing.assert_allclose(jnp.stack(solution, 1), np.linalg.solve(matrices, right[..., None])[..., 0], rtol=1e-12)
