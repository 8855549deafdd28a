"""Statements that are decided by what no time of a run shows: what comes after it, another branch of the loss, a point
that is no time, an entry beside a lower one. None may be judged wrongly, and what can be decided is.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Weight, pair

import flowsim
from flowsim import Claim, FunctionLoss, at_least, at_most, equal, gradient_flow
from flowsim._core.balls.centred import is_smooth
from flowsim._core.balls.enclosure import Traced, enclose
from flowsim._core.balls.operations import UndecidedError
from flowsim.claims import Judgement
from flowsim.claims.statements import sharp_constant
from flowsim.flow.basin import descends
from flowsim.flow.systems import loss_system
from flowsim.losses.deep.scalar_layers import ScalarLoopLoss
from flowsim.models import ScalarLoop

pytestmark = pytest.mark.slow


class Neuron(eqx.Module):
    """v relu(w) + b."""

    v: jax.Array
    w: jax.Array
    b: jax.Array


BOWL = FunctionLoss(lambda m: jnp.sum(m.x**2) / 2, minimum=0.0), Weight(jnp.asarray(1.0))  # x = e^-t
DEAD = FunctionLoss(lambda m: 0.5 * (m.v * jax.nn.relu(m.w) + m.b - 1) ** 2 + 0.5 * m.b**2, minimum=0.0)
NEURON = DEAD, Neuron(jnp.asarray(1e-3), jnp.asarray(1e-3), jnp.asarray(0.0))  # v goes to 1
GATE = FunctionLoss(lambda m: 0.5 * (m.a - 2) ** 2 + 0.5 * (m.b - jax.nn.relu(m.a - 1)) ** 2, minimum=0.0)
PRODUCT = FunctionLoss(lambda m: 0.5e-3 * (m.a * m.b - 1) ** 2 + 0.5 * (m.a - 2) ** 2)  # b goes to 1/2
SLOW = FunctionLoss(lambda m: 0.5 * (m.a - 1) ** 2 + 0.5e-26 * (m.b - 1) ** 2, minimum=0.0)
RIDGE = FunctionLoss(lambda m: 0.05 * (m.x - 1) ** 2 - 5 * jax.nn.relu(1.5 - m.x))  # x turns down at 1.5
# Balls have no Bessel function. It falls from 3.09 to 2.
BESSEL = FunctionLoss(lambda m: 3 - jax.scipy.special.i0e(m.x - 1) + 0.1 * (m.x - 1) ** 2), Weight(jnp.asarray(3.0))
QUARTIC = FunctionLoss(lambda m: m.x**4 / 4, minimum=0.0)
GRID = jnp.linspace(0.0, 1.0, 500)


class Slope(eqx.Module):
    u: jax.Array

    def __call__(self, prompt):
        return self.u * (prompt.query @ (prompt.labels @ prompt.inputs)) / prompt.labels.size


def prompts():
    """A sampled loss that falls from .8 to .1."""
    return flowsim.MonteCarloLoss(flowsim.LinearRegression([[1.0]], 20), 4096, 16)


def integral(flow, values):
    steps = jnp.diff(flow.t) * (values[1:] + values[:-1]) / 2
    return jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)])


def judged(problem, compare, **how):
    claim = Claim("own.claim", "here", "a statement", lambda loss, flow: compare(flow))
    return flowsim.check(claim, problem[0], gradient_flow(*problem, **how))


@pytest.mark.parametrize(
    ("problem", "compare", "t1"),
    [
        (NEURON, lambda f: at_most(f.models.v, 0.5), 6.0),
        ((GATE, pair(0.0, 0.0)), lambda f: at_most(f.models.b, 0.5, size=1.0), 0.6),
        ((PRODUCT, pair(0.0, 1e-3)), lambda f: at_most(f.models.b, 0.2), 20.0),
        ((SLOW, pair(0.5, 0.0)), lambda f: at_most(f.models.b, 0.5), 100.0),
        ((RIDGE, Weight(jnp.asarray(3.0))), lambda f: at_least(f.models.x, 0.9), 5.0),
        (BOWL, lambda f: at_most(jnp.nan_to_num(1 / f.models.x), 1e6), 5.0),
        (BOWL, lambda f: at_most(jax.lax.cummax(1 - f.models.x), 0.993 * (1 + 5 / (1000 + f.t))), 5.0),
        (BESSEL, lambda f: at_least(f.loss, 3.06), 0.1),
        (BESSEL, lambda f: at_most(f.dissipated, 0.03), 0.1),
        ((prompts(), Slope(jnp.asarray(0.1))), lambda f: at_least(f.loss, 0.3), 0.1),
    ],
    ids=[
        *["dead neuron", "gate", "factor of zero", "slow weight", "ridge", "no number", "largest so far"],
        *["loss without balls", "energy without balls", "sampled loss"],
    ],
)
def test_what_fails_after_the_end_is_not_said_for_all_t(problem, compare, t1):
    verdict = judged(problem, compare, t1=t1)
    assert verdict.verdict is Judgement.HOLDS
    assert verdict.until == pytest.approx(t1)


def test_weights_that_are_zero_so_far_are_not_zero_for_ever():
    same = judged((GATE, pair(0.0, 0.0)), lambda f: equal(f.models.b, 0.0, 1.0), t1=0.6)
    assert same.until == pytest.approx(0.6)
    # Where the field keeps them, they are.
    kept = FunctionLoss(lambda m: 0.5 * (m.a - 1) ** 2 + 0.5 * m.b**2 * m.a**2, minimum=0.0)
    stays = judged((kept, pair(0.5, 0.0)), lambda f: equal(f.models.b, 0.0, 1.0), t1=0.6)
    assert stays.verdict is Judgement.HOLDS
    assert stays.until is None


def way_to_go(flow) -> float:
    assert flow.descent is not None
    return flow.descent.way_to_go(flow.end, flow.start)


class Faster(FunctionLoss):
    """A loss whose weights all flow four times as fast."""

    def speeds(self, model):
        return jax.tree.map(lambda leaf: jnp.asarray(4.0), model)


@pytest.mark.parametrize("kind", [FunctionLoss, Faster])
def test_the_way_to_go_of_a_dead_neuron_is_not_known(kind):
    assert np.isinf(way_to_go(gradient_flow(kind(DEAD.function, minimum=0.0), NEURON[1], t1=1.5)))


@pytest.mark.parametrize("kind", [FunctionLoss, Faster])
def test_a_field_that_is_not_the_gradient_does_not_descend(kind):
    stopped = lambda m: 0.5 * (m.a - 1) ** 2 + 0.5 * (m.b - jax.lax.stop_gradient(2 * m.b)) ** 2
    straight = lambda m: 0.5 * (m.a - 1) ** 2 + 0.5 * (m.b - jax.lax.stop_gradient(jnp.asarray(2.0))) ** 2
    for loss, expected in ((stopped, False), (straight, True)):
        system = loss_system(kind(loss), pair(0.0, 1.0))
        assert system.descends(system.encode(pair(0.5, 0.3))) is expected


@pytest.mark.parametrize(
    ("problem", "compare", "t1"),
    [
        ((QUARTIC, Weight(jnp.asarray(1.0))), lambda f: at_least(sharp_constant(f), 0.1), 10.0),
        (BOWL, lambda f: at_most(jnp.any(f.models.x < 0.005), 0.5), 5.0),
        (BOWL, lambda f: at_least(jnp.nanmin(f.models.x), 0.005), 5.0),
    ],
    ids=["sharp constant", "any", "least number"],
)
def test_a_least_value_reads_the_end_as_if_it_were_the_limit(problem, compare, t1):
    assert judged(problem, compare, t1=t1).verdict is Judgement.UNRESOLVED


def test_an_integral_is_not_compared_at_some_of_the_times():
    apart = FunctionLoss(lambda m: (m.x - 1) ** 2 / 2, minimum=0.0), Weight(jnp.asarray(2.0))
    below = lambda bound: lambda f: at_most(integral(f, jnp.abs(f.models.x - 1)), bound, size=1.0)
    assert judged(apart, below(1.05), t1=100.0).verdict is not Judgement.VIOLATED
    assert judged(apart, below(1.5), t1=100.0).verdict is Judgement.HOLDS
    assert judged(apart, below(0.5), t1=100.0).verdict is Judgement.VIOLATED


@pytest.mark.parametrize(("height", "expected"), [(2.0, Judgement.VIOLATED), (0.9, Judgement.HOLDS)])
def test_points_that_are_as_many_as_times_are_points(height, expected):
    bump = lambda f: at_most(height * jnp.exp(-(((GRID - GRID[40]) / 0.003) ** 2)) * f.start.x, 1.0)
    assert judged(BOWL, bump, t1=5.0).verdict is expected


def test_the_dip_of_an_entry_is_not_hidden_by_a_lower_one():
    def two(f):
        z = jnp.einsum("ti,ij,tj->t", f.models.x, jnp.eye(30), f.models.x)
        return jnp.stack([2e-5 + 0 * z, (z - 0.0476) ** 2], 1)

    many = BOWL[0], Weight(jnp.ones(30) / jnp.sqrt(30.0))
    assert judged(many, lambda f: at_least(two(f), 1e-6, size=1.0), t1=5.0).verdict is Judgement.VIOLATED


def test_a_jump_in_a_loop_through_the_times_is_a_jump():
    step = lambda x: jnp.where(jnp.round(200 * x) == 155, -1.0, 1.0)
    verdict = judged(BOWL, lambda f: at_least(jax.lax.map(step, f.models.x), 0.0, size=1.0), t1=5.0)
    assert verdict.verdict is Judgement.UNRESOLVED


def test_the_limit_has_no_time():
    with pytest.raises(ValueError, match="t must be a finite time"):
        judged(BOWL, lambda f: at_least(f.at(float("inf")).x, 0.4), t1=5.0)


def test_the_way_of_a_faster_flow_is_that_of_its_weights():
    loss, model = (
        ScalarLoopLoss(dimension=2, context_length=10, loops=1, speed=100.0),
        ScalarLoop(jnp.asarray(0.0), loops=1),
    )
    limit = float(loss.least_model().a)
    flow = gradient_flow(loss, model)
    near = int(np.argmin(np.abs(np.asarray(flow.models.a) - 0.9 * limit)))
    early = gradient_flow(loss, model, t1=float(flow.t[near]))
    assert limit - float(early.end.a) <= way_to_go(early) < np.inf


@pytest.mark.parametrize(
    ("compare", "expected"),
    [
        (lambda f: at_least(1, 0), Judgement.HOLDS),
        (lambda f: at_least(f.start.x > 0, 0.5), Judgement.HOLDS),
        (lambda f: at_least(f.models.x[:, None], (~jnp.arange(3)).astype(float)[None]), Judgement.HOLDS),
        (lambda f: at_most(f.models.x, 1.1, promised=(f.t > 1).astype(float)), Judgement.HOLDS),
        (lambda f: at_most(1e150 * f.models.x, (1e200 * f.models.x) ** 2 / 1e300), Judgement.UNRESOLVED),
    ],
    ids=["whole", "truth", "not", "promised", "overflow"],
)
def test_sides_of_any_kind_are_compared(compare, expected):
    assert judged(BOWL, compare, t1=5.0).verdict is expected


def test_a_batch_of_loops_is_not_carried_out():
    double = jax.vmap(lambda x: jax.lax.while_loop(lambda s: s < 1, lambda s: s * 2, x))
    with pytest.raises(UndecidedError, match="number of turns of a loop"):
        enclose(double, np.asarray([0.1, 0.5]))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: jnp.sum(jnp.tril(jnp.outer(x, x)) @ x), True),
        (lambda x: jnp.log(jnp.cosh(x[0])), True),
        (lambda x: jnp.maximum(x[0], 0.0), False),
        (lambda x: jnp.where(x[0] > 0, x[0], 2 * x[0]), False),
        (lambda x: (x[0] > 0).astype(float), False),
        (lambda x: jax.nn.relu(x[0]), False),
        (lambda x: jax.lax.stop_gradient(x[0]) * x[1], False),
        (lambda x: jax.lax.while_loop(lambda s: s < 10, lambda s: 2 * s, 1 + x[0] ** 2), False),
    ],
)
def test_a_program_that_branches_is_not_smooth(function, expected):
    assert is_smooth(Traced(function, np.asarray([0.3, -0.7]))) is expected


@pytest.mark.parametrize("loop", [jax.lax.map, lambda side, models: jax.vmap(side)(models)])
def test_a_choice_in_a_loop_through_the_times_may_switch(loop):
    # Between two rows, and too narrow to be looked for where sides are equated.
    narrow = lambda m: jnp.where(jnp.abs(m.x - 0.7654321) < 1e-9, 0.5, m.x)
    stated = judged(BOWL, lambda flow: equal(loop(narrow, flow.models), flow.models.x, 1.0))
    assert stated.verdict is Judgement.UNRESOLVED
    wide = judged(BOWL, lambda flow: at_most(loop(lambda m: jax.nn.relu(m.x), flow.models), 1.1))
    assert wide.verdict is Judgement.HOLDS


@pytest.mark.parametrize("loop", [lambda side, models: side(models), jax.lax.map])
def test_an_integer_that_is_the_same_at_all_times_between_is_no_jump(loop):
    signed = lambda m: jnp.sign(m.x + 0.1) * m.x + jnp.floor(m.x / 2) + jnp.ceil(m.x / 2)
    assert judged(BOWL, lambda flow: at_most(loop(signed, flow.models), 2.1)).verdict is Judgement.HOLDS
    # It is 2, not 0, between two rows.
    narrow = lambda m: jnp.sign(m.x - 0.7654321) + jnp.sign(0.765432100001 - m.x)
    assert judged(BOWL, lambda flow: at_most(loop(narrow, flow.models), 1.0)).verdict is Judgement.UNRESOLVED
    spread = lambda m: jnp.floor(m.x - 0.7654321) + jnp.ceil(m.x - 0.765432100001)
    assert judged(BOWL, lambda flow: equal(loop(spread, flow.models) ** 2, 0.0, 1.0)).verdict is not Judgement.HOLDS


def test_rounding_that_leads_away_from_symmetric_matrices_decides_nothing():
    rng = np.random.default_rng(0)
    A, T = rng.standard_normal((2, 3, 3))
    A, T = A @ A.T / 3 + np.eye(3), T + T.T

    def loss(W):
        # Symmetric matrices stay symmetric, but only in exact arithmetic.
        bend = jnp.sum((W - W.T) ** 2)
        return jnp.sum((A @ W @ A - T) ** 2) / 20 - 2 * bend + bend**2

    @flowsim.claim("falls", "here")
    def falls(flow):
        """L >= -1"""
        return flowsim.at_least(flow.loss, -1.0)

    known = flowsim.FunctionLoss(loss)
    verdict = flowsim.check(falls, known, flowsim.gradient_flow(known, jnp.asarray(T / 3), t1=20.0))
    assert verdict.verdict is Judgement.UNRESOLVED
    assert "away from the symmetric matrices" in verdict.note


def test_a_matrix_that_is_symmetric_at_both_ends_alone_is_judged():
    """G leaves zero with a symmetric velocity, since B has to grow first, and ends at a multiple of B."""
    h, z, B = np.array([1.0, 0.5]), np.array([2.0, 0.5]), np.array([[1.0, 0.4], [0.4, 2.0]])

    def excess(model):
        size, G = model
        return size**2 / 2 + jnp.sum(h[:, None] * z * (G - B * (1 - size)) ** 2) / 2

    loss = flowsim.FunctionLoss(excess, excess=excess, minimum=0.0)
    flow = flowsim.gradient_flow(loss, (jnp.asarray(1.0), jnp.zeros((2, 2))), t1=300.0)
    bend = np.abs(np.asarray(flow.models[1]) - np.swapaxes(flow.models[1], 1, 2)).max(axis=(1, 2))
    assert bend[0] == 0 and 0 < bend[-1] < 1e-12 and bend.max() > 1e-2

    def sides(factor):
        @flowsim.claim(f"falls.{factor}", "here", statement="the excess falls")
        def falls(flow):
            return flowsim.at_most(flow.excess, factor * flow.excess[0])

        return falls

    judged = [flowsim.check(sides(factor), loss, flow).verdict for factor in (1.01, 0.99)]
    assert judged == [Judgement.HOLDS, Judgement.VIOLATED]


def test_a_derivative_by_hand_is_checked_where_the_slope_is_smaller_than_its_differences():
    """d/dx log(cosh(x - 1)) = tanh(x - 1), by hand; at x = 1 + 1e-15 a difference is off by more than the slope."""

    def made(factor):
        bowl = jax.custom_jvp(lambda x: jnp.log(jnp.cosh(x - 1.0)) + (x - 1.0) ** 3 / 3)
        bowl.defjvp(lambda at, to: (bowl(*at), factor * (jnp.tanh(at[0] - 1.0) + (at[0] - 1.0) ** 2) * to[0]))
        return FunctionLoss(lambda m: bowl(m.x), minimum=0.0)

    for factor, expected in ((1.0, True), (1.0 + 1e-4, False), (0.0, False)):
        landscape = loss_system(made(factor), Weight(jnp.asarray(1.5))).landscape()
        assert landscape is not None
        assert all(descends(landscape, Weight(jnp.asarray(x))) is expected for x in (1.5, 1.0 + 1e-15))


def test_a_time_at_which_a_flow_rests_by_rounding_is_reached():
    loss = flowsim.FiniteLoss(
        np.arange(2.0), [[0.8, 0.2], [0.3, 0.7]], residual="cross-entropy", predict=curved, realizable=True
    )
    flow = gradient_flow(loss, jnp.asarray([0.5, 0.3]), t1=1e3)

    def sides(side, bound):
        return flowsim.claim("late", "here", statement="the excess at t = 700")(
            lambda loss, flow: side(loss.excess(flow.at(700.0)), bound)
        )

    judged = [flowsim.check(sides(side, 1e-6), loss, flow).verdict for side in (at_most, at_least)]
    assert judged == [Judgement.HOLDS, Judgement.VIOLATED]


def curved(weights, x):
    return jnp.stack([0.0, weights[1] + 2 * weights[0] ** 3 * (x - 0.5)])


FACTOR = 2.0


def test_a_number_that_a_claim_looks_up_is_looked_up_again(monkeypatch):
    loss = FunctionLoss(lambda m: jnp.sum(jnp.asarray([1.0, 3.0]) * m.x**2) / 2, minimum=0.0)
    flow = flowsim.gradient_flow(loss, Weight(jnp.asarray([1.0, 0.5])), t1=1.0)

    @flowsim.claim("mine.dominance", "notes")
    def dominance(flow):
        r"""$\lVert \nabla L \rVert^2 \ge c L$ for all $t$"""
        return at_least(flow.grad_norm_sq, FACTOR * flow.excess)

    assert flowsim.check(dominance, loss, flow).verdict is Judgement.HOLDS
    monkeypatch.setitem(globals(), "FACTOR", 9.0)
    assert flowsim.check(dominance, loss, flow).verdict is Judgement.VIOLATED
