"""Kinks: a flow ends before one that it cannot cross, and what comes before it is judged."""

import functools
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Form, Weight

import flowsim
from flowsim import Claim, FunctionLoss, Status, at_least, at_most, equal, gradient_flow
from flowsim.claims import Evidence, Judgement, judge_on
from flowsim.cli.main import main
from flowsim.flow.solvers.dense.curvature import renewed, unknown
from flowsim.flow.solvers.kinks import BEFORE, meets_kink
from flowsim.flow.systems import system_of
from flowsim.problem import spec_of


def absolute(m: Weight, c: jax.Array, slope: jax.Array) -> jax.Array:
    return jnp.sum((m.x - c) ** 2) / 2 + slope * jnp.sum(jnp.abs(m.x))


@functools.cache
def lasso(scale: float = 1.0, penalty: float = 1.0, minimum: float | None = None) -> tuple[FunctionLoss, Weight]:
    """|x - c|^2 / 2 + penalty |x|_1: with c = (2, .3) and penalty 1 the second weight comes to 0 at t = log(3.7/.7) and
    stays there, while the first one goes on.
    """
    form = Form(absolute, scale * jnp.asarray([2.0, 0.3]), scale * penalty)
    return FunctionLoss(form, minimum=minimum), Weight(scale * jnp.asarray([3.0, 3.0]))


TIME = float(np.log(3.7 / 0.7))


def claim(compare) -> Claim:
    return Claim("mine.kink", "here", "of a kink", lambda loss, flow: compare(flow))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
def test_a_flow_ends_just_before_a_kink_on_which_it_rests(scale):
    flow = gradient_flow(*lasso(scale))
    assert flow.status is Status.KINK and not flow.status.finished
    assert (1 - 10 * BEFORE) * TIME < float(flow.t[-1]) <= (1 - BEFORE) * TIME * (1 + 1e-9)
    decay = np.exp(-np.asarray(flow.t))
    exact = scale * np.stack([1 + 2 * decay, -0.7 + 3.7 * decay], axis=1)
    np.testing.assert_allclose(flow.models.x, exact, atol=1e-7 * scale)


def test_what_comes_before_a_kink_is_judged_and_nothing_after_it():
    loss, start = lasso()
    evidence = Evidence(loss, gradient_flow(loss, start))
    exact = lambda flow: -0.7 + 3.7 * jnp.exp(-flow.t)
    known = judge_on(claim(lambda flow: equal(flow.models.x[:, 1], exact(flow), 3.0)), evidence)
    assert known.verdict is Judgement.HOLDS and known.cut  # after the kink it is false
    assert known.until is not None and TIME * (1 - 10 * BEFORE) < known.until < TIME
    falls = judge_on(claim(lambda flow: at_least(flow.models.x[:, 1], 0.1)), evidence)
    assert falls.verdict is Judgement.VIOLATED
    stays = judge_on(claim(lambda flow: at_least(flow.models.x[:, 0], 1.2, size=1.0)), evidence)
    assert stays.verdict is Judgement.HOLDS and stays.until == known.until  # it falls to 1


@pytest.mark.slow
def test_a_run_of_which_a_repetition_ends_at_a_kink_is_judged_up_to_it():
    # The moved starts come to the kink at other times than the run, which ends there by its excess.
    loss = FunctionLoss(lambda m: jnp.sum(jnp.abs(m.x)), minimum=0.0)
    flow = gradient_flow(loss, Weight(jnp.asarray([2.0])))
    assert flow.status is Status.EXCESS  # at t = 2
    evidence = Evidence(loss, flow)
    value = lambda flow: flow.models.x[:, 0]
    for compare, verdict in (
        (lambda flow: equal(value(flow), 2 - flow.t, 2.0), Judgement.HOLDS),
        (lambda flow: at_most(value(flow), 2.001 - 0.99 * flow.t), Judgement.HOLDS),
        (lambda flow: at_least(value(flow), 1e-3), Judgement.VIOLATED),
    ):
        found = judge_on(claim(compare), evidence)
        assert found.verdict is verdict, found
        assert found.until is None or found.until < 2


@pytest.mark.slow
def test_a_limit_is_not_read_off_before_a_kink_even_with_an_allowance():
    loss = FunctionLoss(lambda m: jnp.sum(jnp.abs(m.x)), minimum=0.0)
    start = Weight(jnp.asarray([2.0]))
    for t1 in (1.0, None):
        flow = gradient_flow(loss, start, t1=t1)
        limit = claim(lambda flow: at_least(flow.end.x[0], 0.5, allowance=1e-3 * flow.excess[-1]))
        assert flowsim.check(limit, loss, flow).verdict is not Judgement.HOLDS  # it is 0


@pytest.mark.slow
def test_a_kink_that_is_crossed_ends_nothing():
    loss = FunctionLoss(lambda m: jnp.sum(jnp.where(m.x > 1, m.x**2 / 2 + 1, 3 * m.x**2 / 2)), minimum=0.0)
    flow = gradient_flow(loss, Weight(jnp.asarray([2.0])))
    assert flow.status is Status.EXCESS
    assert float(flow.t[-1]) > np.log(2) + 1


def steep(m: Weight, rate: jax.Array) -> jax.Array:
    return (m.x[0] ** 2 + rate * m.x[1] ** 2) / 2 + jnp.sum(m.x**4)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1.0, 1e6, 1e11])
def test_a_steep_field_is_no_kink(rate):
    loss = FunctionLoss(Form(steep, rate), minimum=0.0)
    start = Weight(jnp.asarray([1.0, 0.5]))
    flow = gradient_flow(loss, start, t1=1.0)
    system, _ = system_of(loss, start, "implicit")
    for row in range(flow.t.size - 4, flow.t.size):
        before, end = (system.encode(flow.row(row + step)) for step in (-3, 0))
        assert not meets_kink(system, before, end, (float(flow.t[row - 3]), float(flow.t[row])))


OWN = """
import equinox as eqx
import jax
import jax.numpy as jnp

import flowsim


class Weight(eqx.Module):
    x: jax.Array


def make(scale: float = 3.0):
    return flowsim.FunctionLoss(lambda m: (m.x - 0.3) ** 2 / 2 + jnp.abs(m.x)), Weight(jnp.array(scale))


falls = flowsim.Claim("mine.falls", "here", "x falls", lambda loss, flow: flowsim.at_most(flow.models.x, flow.start.x))
"""


@pytest.mark.slow
def test_a_command_says_that_the_run_ended_at_a_kink(tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN)
    assert main(["run", f"{tmp_path / 'own.py'}:make", "--out", str(tmp_path / "out")]) == 3
    told = capsys.readouterr().out
    assert "claims along it are judged up to there" in told and "Smooth the kink" in told
    document = json.loads((tmp_path / "out" / "verdicts.json").read_text())
    assert document["status"] == "stopped-at-kink"
    (verdict,) = document["claims"]
    assert verdict["verdict"] == "holds" and TIME * (1 - 10 * BEFORE) < verdict["until"] < TIME


def test_rest_by_rounding_is_no_kink():
    """The field there is rounding, which jumps everywhere."""
    tables = {
        "task": {"context_length": 10, "covariance": {"eigenvalues": [0.5, 1.0]}},
        "init": {"kind": "balanced", "scale": 0.3},
        "flow": {"t1": 1e12},
    }
    problem = spec_of(tables).build()
    run = problem.run()
    system, _ = system_of(problem.loss, problem.start, "auto")
    state = lambda row: system.encode(jax.tree.map(lambda leaf: leaf[row], run.models))
    for row in (-2, -5, -20):
        assert not meets_kink(system, state(row), state(-1), (float(run.t[row]), float(run.t[-1])))


def test_a_change_of_the_field_across_a_kink_is_not_taken_for_rounding():
    """Weights that were taken for rounding were held still, and the flow went on past the kink."""
    loss = lambda x: jnp.abs(x[0] + x[1]) + (x[0] - x[1] - 2) ** 2 / 2
    field = lambda x: -jax.grad(loss)(x)
    on, off = (jnp.asarray([0.7, y]) for y in (-0.7 * (1 - 2.0**-53), -0.3))
    for at, largest in ((on, 0.0), (off, 1e-14)):
        kept = renewed(field, jnp.asarray(True), at, unknown(field, at, 2), 2)
        assert np.all(kept.noise(at) <= largest), at
    assert np.all(unknown(field, on, 2).noise(on) > 0.5)
    assert np.all(kept.noise(off) > 0)


class Network(eqx.Module):
    """a^T relu(W x + b)."""

    w: jax.Array
    b: jax.Array
    a: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.a @ jax.nn.relu(self.w @ x + self.b)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_a_network_that_learns_xor_ends_where_it_slides_along_a_kink(seed):
    """The output of a unit for one of the points comes to zero, and the gradient drives it back from either side."""
    x, y = jnp.asarray([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), jnp.asarray([-1.0, 1.0, 1.0, -1.0])
    loss = FunctionLoss(lambda m: jnp.mean((jax.vmap(m)(x) - y) ** 2) / 2, minimum=0.0)
    rng = np.random.default_rng(seed)
    w, b, a = rng.normal(size=(8, 2)), 0.3 * rng.normal(size=8), rng.normal(size=8)
    flow = gradient_flow(loss, Network(*map(jnp.asarray, (w, b, a))))
    assert flow.status is Status.KINK and flow.t.size < 500
    models = flow.models
    kept = np.asarray(models.a**2 - jnp.sum(models.w**2, axis=-1) - models.b**2)
    np.testing.assert_allclose(kept, np.broadcast_to(kept[0], kept.shape), atol=1e-9)
    # Just after the end the field of one unit drives it across zero from either side.
    end = jax.tree.map(lambda leaf: leaf[-1], models)
    before, slope = jax.vmap(lambda one: end.w @ one + end.b)(x), jax.grad(loss)(end)
    speed = -jax.vmap(lambda one: slope.w @ one + slope.b)(x)
    time = jnp.where(speed * before < 0, -before / speed, jnp.inf)
    point, unit = np.unravel_index(np.argmin(time), time.shape)
    across = jax.tree.map(lambda one, g: one - 1.001 * time[point, unit] * g, end, slope)
    beyond = jax.grad(loss)(across)
    assert jnp.sign(across.w @ x[point] + across.b)[unit] == -jnp.sign(before[point, unit])
    assert float(-(beyond.w @ x[point] + beyond.b)[unit] * speed[point, unit]) < 0
