"""Flows in lockstep: each is the flow that it is by itself, whatever goes beside it, and its derivatives are right."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim
import flowsim.initialization
from flowsim.experiments.sweep import any_loss, integration
from flowsim.experiments.sweep.axes import GridAxis
from flowsim.experiments.sweep.judged import chosen
from flowsim.experiments.sweep.maps import specs
from flowsim.flow.gradient_flow import gradient_flow
from flowsim.flow.solvers.dense.curvature import Curvature, renewed
from flowsim.flow.solvers.rows import traced_flow
from flowsim.flow.solvers.summary import scales_of
from flowsim.flow.systems import loss_system
from flowsim.losses import FunctionLoss
from flowsim.problem import spec_of

# Scalar networks w_1 ... w_L x of target 1, whose saddle w = 0 has the excess 1/2. Every call makes the function of the
# loss anew, as theorists write it.
OWN = """
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import flowsim


class Net(eqx.Module):
    w: jax.Array


def make(scale: float = 0.1, seed: int = 0, layers: int = 3, sign: float = 1.0, traced: bool = True):
    target = 1.0
    excess = lambda net: 0.5 * (jnp.prod(net.w) - target) ** 2
    w = scale * np.abs(np.random.default_rng(seed).normal(size=layers))
    w[0] *= sign
    return flowsim.FunctionLoss(excess, excess=excess, minimum=0.0), Net(jnp.asarray(w))


OBSERVABLES = {"product": lambda net: jnp.prod(net.w)}
"""
TIMES = ("t_end", "escape_time", "convergence_time")
SIZES = ("excess_start", "excess_saddle", "weights_norm_end", "closest_to_saddle")
LEAST = ("sharp_mu_pl", "sharp_mu_rate")  # over the ends of steps, which need not be the same
WORDS = ("status", "outcome", "condition_met", "assumption_met")


@pytest.fixture
def own(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return f"{file}:make"


def cells_of(tables, *axes):
    return list(specs(tables, tuple(GridAxis.parse(axis) for axis in axes)))


def both(cells):
    """What is found of cells in the batches of a sweep, and one by one, in the order of the cells."""
    batches = integration.plan(cells, None)
    records = [integration.run([batch], cells, None)[0] for batch in batches]
    order = np.concatenate([np.asarray(batch.cells) for batch in batches])
    together = {}
    for name in records[0]:
        together[name] = np.concatenate([record[name] for record in records])[np.argsort(order)]
    alone = [any_loss.alone(cell.build(), chosen(None, [])) for cell in cells]
    return together, {name: np.concatenate([row[name] for row in alone]) for name in alone[0]}


def agree(together, alone, least=LEAST):
    for name in WORDS:
        assert list(together[name]) == list(alone[name]), name
    for name in TIMES:
        np.testing.assert_allclose(together[name], alone[name], rtol=1e-6, err_msg=name)
    for name in SIZES:
        np.testing.assert_allclose(together[name], alone[name], rtol=1e-6, atol=1e-12, err_msg=name)
    for name in least:
        np.testing.assert_allclose(together[name], alone[name], rtol=2e-3, err_msg=name)
    assert np.all(together["energy_defect"] < 1e-7)


def counted(monkeypatch):
    """The numbers of cells that go together, and those of cells that go alone, as they come."""
    numbers = []
    for name in ("_together", "alone"):
        plain = getattr(any_loss, name)

        def noted(problems, *rest, plain=plain):
            numbers.append(len(problems) if isinstance(problems, list) else 1)
            return plain(problems, *rest)

        monkeypatch.setattr(any_loss, name, noted)
    return numbers


def test_a_sweep_of_ones_own_problem_is_that_of_its_runs(own):
    cells = cells_of({"make": own}, "scale=geom:1e-8:0.3:5", "seed=0,1")
    together, alone = both(cells)
    agree(together, alone)
    assert set(together["outcome"]) == {"global-minimum"}
    np.testing.assert_allclose(together["product"], 1.0, atol=1e-5)
    # At the same time the escape of a run by itself, asked for more exactly.
    row = 3
    problem = cells[row].build()
    closely = gradient_flow(problem.loss, problem.start, rtol=1e-12, times=[together["escape_time"][row]])
    at = int(np.argmin(np.abs(np.asarray(closely.t) - together["escape_time"][row])))
    assert float(closely.excess[at]) == pytest.approx(0.99 * 0.5, rel=1e-4)


@pytest.mark.slow
def test_cells_of_several_shapes_are_each_as_by_themselves(own, monkeypatch):
    cells = cells_of({"make": own}, "layers=2,3,4", "scale=0.05,0.1,0.2,0.4,0.5")
    numbers = counted(monkeypatch)
    together, alone = both(cells)
    assert numbers[:3] == [5, 5, 5]
    agree(together, alone)


def test_a_flow_that_rests_at_the_saddle_is_integrated_by_itself(own, monkeypatch):
    # With an odd number of negative weights and even sizes the flow ends at zero, which it never leaves.
    cells = [spec_of({"make": own, "layers": 2, "scale": 0.3, "seed": seed, "sign": -1.0}) for seed in range(4)]
    equal = dataclasses.replace(cells[0].build(), start=None)
    start = jax.tree.map(lambda w: jnp.asarray([-0.2, 0.2]), cells[0].build().start)
    run = gradient_flow(equal.loss, start)
    assert run.status.finished and float(run.excess[-1]) == pytest.approx(0.5)
    together, alone = both(cells)
    agree(together, alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flow", [{"t1": 2.0}, {"t1": 1e25}, {"times": [1e22]}, {"stop": {"excess": 0.0, "grad_norm": 1e-9}}], ids=str
)
def test_ends_that_are_asked_for_are_those_of_runs(own, flow):
    # The last start is the minimum, the one before it the saddle.
    starts = [(0.1, 0), (0.3, 1), (0.0, 0)]
    cells = [spec_of({"make": own, "layers": 2, "scale": scale, "seed": seed, "flow": flow}) for scale, seed in starts]
    cells.append(spec_of({"make": own, "layers": 1, "scale": 1.0, "flow": flow}))
    together, alone = both([cell for cell in cells for _ in range(4)])
    # A rate so late is that of the last digits of the excess.
    agree(together, alone, least=("sharp_mu_pl",))


def test_the_scales_of_a_loss_are_those_of_its_arrowhead_from_any_start():
    problem = spec_of(
        {
            "task": {"context_length": 20, "covariance": {"eigenvalues": [2.0, 1.0]}},
            "init": {"kind": "random", "scale": 0.1, "seed": 1},
        }
    ).build()
    structure = problem.loss.arrowhead(flowsim.initialization.zeros(2))
    assert structure is not None and problem.loss.arrowhead(problem.start) is None
    found = eqx.filter_jit(any_loss.natural_scales)(problem.loss, problem.start)
    np.testing.assert_allclose(found, scales_of(structure), rtol=1e-12)
    assert np.isfinite(found.gradient)


def test_a_lane_does_not_depend_on_its_neighbours(own):
    problems = [spec_of({"make": own, "seed": seed}).build() for seed in range(6)]
    ends = jax.tree.map(np.asarray, integration._ends([problem.spec for problem in problems]))
    few = any_loss._together(problems[:4], any_loss._at(ends, slice(4)), 4, chosen(None, []))
    many = any_loss._together(problems, ends, 8, chosen(None, []))
    for one, other in zip(few, many, strict=False):
        assert one is not None and other is not None
        for name in (*TIMES, *SIZES):
            np.testing.assert_allclose(one[name], other[name], rtol=1e-9, err_msg=name)


def test_a_group_goes_in_float64_wherever_that_was_switched_on():
    # Not everywhere, but in this thread: the tests' own setting is one for all threads.
    jax.config.update("jax_enable_x64", False)
    try:
        with jax.enable_x64(True):
            found = any_loss.at_once(lambda number: jnp.asarray(number).dtype, [0.1, 0.2])
    finally:
        jax.config.update("jax_enable_x64", True)
    assert found == [jnp.float64] * 2


def test_spare_cells_are_integrated_as_the_others_are_and_a_lost_loss_is_a_failure(tmp_path):
    file = tmp_path / "lost.py"
    file.write_text(
        "import equinox as eqx, jax, jax.numpy as jnp, flowsim\n"
        "class Weight(eqx.Module):\n    w: jax.Array\n"
        "def make(start: float = 1.0):\n"
        "    loss = lambda model: jnp.where(model.w > 0.5, (model.w + 1.0) ** 2 / 2, jnp.nan)\n"
        "    return flowsim.FunctionLoss(loss, minimum=0.0), Weight(jnp.asarray(start))\n"
    )
    found = flowsim.sweep({"make": f"{file}:make"}, {"start": "lin:1:2:9"}, out=tmp_path / "map")
    assert list(found["outcome"]) == ["failed"] * 9
    lanes = any_loss.most_lanes()
    assert any_loss._groups(list(range(lanes + 1))) == [(list(range(lanes)), lanes), ([lanes], lanes)]
    assert any_loss._groups([0, 1, 2]) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "tables",
    [
        {"model": {"architecture": "looped", "loops": 3}, "init": {"kind": "random", "scale": 0.1, "seed": 1}},
        pytest.param(
            {
                "model": {"architecture": "multi-layer", "layers": 2},
                "init": {"kind": "random", "scale": 0.3, "seed": 1},
            },
            marks=pytest.mark.long,
        ),
        pytest.param({"init": {"kind": "random", "scale": 0.1, "seed": 1}}, marks=pytest.mark.long),
    ],
    ids=["looped", "multi-layer", "all-weights"],
)
def test_a_sweep_of_any_architecture_is_that_of_its_runs(tables):
    task = {"context_length": 20, "covariance": {"eigenvalues": [2.0, 1.0]}}
    together, alone = both(cells_of({"task": task} | tables, "init.seed=0:3", "task.context_length=10,20"))
    agree(together, alone)


def test_functions_that_compute_the_same_are_one(own):
    first, second = (spec_of({"make": own, "scale": scale}).build() for scale in (0.1, 0.2))
    assert jax.tree.leaves(first.loss)[0].function is not jax.tree.leaves(second.loss)[0].function
    assert eqx.tree_equal(first.loss, second.loss)


@pytest.mark.long
@pytest.mark.slow
def test_functions_that_close_over_other_numbers_are_others(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN.replace("target = 1.0", "target = 1.0 + scale"))
    first, second = (spec_of({"make": f"{file}:make", "scale": scale}).build() for scale in (0.1, 0.2))
    assert not eqx.tree_equal(first.loss, second.loss)
    cells = [spec_of({"make": f"{file}:make", "scale": scale}) for scale in (0.1, 0.2, 0.3, 0.4)]
    (batch,) = integration.plan(cells, None)
    (found,) = integration.run([batch], cells, None)
    np.testing.assert_allclose(found["product"], [1.1, 1.2, 1.3, 1.4], rtol=1e-5)


CHANGING = """
import functools
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import flowsim


class Net(eqx.Module):
    w: jax.Array


class Config:
    level = 0.0


class Opaque:
    level = 0.0


LEVEL = 0.0
HELD = {"level": 0.0}
OPAQUE = Opaque()


def of_global():
    return LEVEL


def shifted(level, net):
    return 0.5 * (net.w - level) ** 2


def of_masked(array):
    return lambda net: 0.5 * (net.w - array.filled()[0]) ** 2


def of_attribute(level):
    def held():
        pass

    held.level = level
    return lambda net: 0.5 * (net.w - held.level) ** 2


def make(way: str = "constant", level: float = 1.0):
    global LEVEL
    LEVEL = Config.level = HELD["level"] = OPAQUE.level = level
    values = [level]
    ways = {
        "constant": lambda net: 0.5 * (net.w - 2.0) ** 2,
        "closure": lambda net: 0.5 * (net.w - level) ** 2,
        "list": lambda net: 0.5 * (net.w - values[0]) ** 2,
        "default": lambda net, level=level: 0.5 * (net.w - level) ** 2,
        "keyword": lambda net, *, level=level: 0.5 * (net.w - level) ** 2,
        "global": lambda net: 0.5 * (net.w - LEVEL) ** 2,
        "global in a function": lambda net: 0.5 * (net.w - of_global()) ** 2,
        "global within": lambda net: (lambda w: 0.5 * (w - LEVEL) ** 2)(net.w),
        "class": lambda net: 0.5 * (net.w - Config.level) ** 2,
        "dict": lambda net: 0.5 * (net.w - HELD["level"]) ** 2,
        "object": lambda net: 0.5 * (net.w - OPAQUE.level) ** 2,
        "partial": functools.partial(shifted, level),
        "method": types.MethodType(lambda self, net: 0.5 * (net.w - self["level"]) ** 2, dict(HELD)),
        "attribute": of_attribute(level),
        "mask": of_masked(np.ma.array([level], mask=[True], fill_value=level)),
        "array": (lambda array: lambda net: 0.5 * (net.w - array[0]) ** 2)(jnp.asarray([level])),
    }
    return flowsim.FunctionLoss(ways[way], minimum=0.0), Net(jnp.asarray(0.1))


OBSERVABLES = {"end": lambda net: net.w}
"""
WAYS = ["closure", "list", "default", "keyword", "global", "global in a function", "global within", "class", "dict",
        "object", "partial", "method", "attribute", "mask", "array"]  # fmt: skip


def test_functions_of_different_values_are_never_taken_for_one(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(CHANGING)
    place = f"{file}:make"
    built = [spec_of({"make": place, "level": level}).build().loss for level in (1.0, 2.0)]
    assert eqx.tree_equal(*built)
    for way in WAYS:
        one, other, again = (spec_of({"make": place, "way": way, "level": level}).build().loss for level in (1, 2, 1))
        assert not eqx.tree_equal(one, other), way
        assert way in ("object", "method", "mask") or eqx.tree_equal(one, again), way


@pytest.mark.slow
def test_no_cell_gets_the_loss_of_another(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(CHANGING)
    for way in ("closure", "global", "class", "object"):
        levels = np.asarray([1.0, 2.0, 3.0, 4.0])
        cells = [spec_of({"make": f"{file}:make", "way": way, "level": level}) for level in levels.tolist()]
        for batch in integration.plan(cells, None):
            (found,) = integration.run([batch], cells, None)
            np.testing.assert_allclose(found["end"], levels[list(batch.cells)], rtol=1e-5)


# A flow as a function of its start.

TARGET = 1.5


class Pair(eqx.Module):
    a: jax.Array
    b: jax.Array


@functools.cache
def pair_loss():
    excess = lambda net: 0.5 * (net.a * net.b - TARGET) ** 2
    return FunctionLoss(excess, excess=excess, minimum=0.0)


def make_pair(scale=1.0):
    return pair_loss(), Pair(jnp.asarray(0.3) * scale, jnp.asarray(0.1) * scale)


def traced(scale):
    loss = pair_loss()
    start = Pair(0.3 * scale, 0.1 * jnp.sqrt(scale))
    return traced_flow(loss_system(loss, start), start, loss.minimum, 1e-10)


def test_a_traced_flow_is_the_flow_at_the_ends_of_its_steps():
    run, finished = jax.jit(traced)(jnp.asarray(1.0))
    assert finished
    t, where = np.unique(np.asarray(run.t), return_index=True)
    again = gradient_flow(pair_loss(), Pair(jnp.asarray(0.3), jnp.asarray(0.1)), times=t[1:], rtol=1e-12)
    rows = np.searchsorted(np.asarray(again.t), t)
    np.testing.assert_allclose(run.models.a[where], np.asarray(again.models.a)[rows], atol=1e-8)
    np.testing.assert_allclose(run.dissipated[where], np.asarray(again.dissipated)[rows], rtol=1e-7, atol=1e-15)
    assert float(run.excess[-1]) <= 1e-12 * float(run.excess[0])


def test_a_traced_flow_is_differentiated_through_every_step():
    """c = a^2 - b^2 is conserved, and so is its derivative; at a given time, a has the derivative that differences of
    finer flows show. The ends of steps move, too.
    """

    def watched(scale):
        run, _ = traced(scale)
        a, b = run.models.a, run.models.b
        return (a**2 - b**2, a, run.t), (run.t, b * (TARGET - a * b))

    scales = jnp.asarray([0.01, 1.0, 4.0])
    derivatives, (t, speed) = jax.jit(jax.vmap(jax.jacfwd(watched, has_aux=True)))(scales)
    of_conserved, of_a, of_t = (np.asarray(derivative) for derivative in derivatives)
    exact = np.asarray(0.18 * scales - 0.01)
    np.testing.assert_allclose(of_conserved, np.broadcast_to(exact[:, None], of_conserved.shape), rtol=1e-7)
    for lane, scale in enumerate(scales):
        times, where = np.unique(np.asarray(t[lane]), return_index=True)
        ends = [
            gradient_flow(
                pair_loss(), Pair(0.3 * near, 0.1 * jnp.sqrt(near)), times=times[1:], rtol=1e-13, points_per_decade=0
            )
            for near in (scale * (1 + 1e-5), scale * (1 - 1e-5))
        ]
        differences = np.asarray(ends[0].models.a - ends[1].models.a) / (2e-5 * float(scale))
        there = (of_a - np.asarray(speed) * of_t)[lane, where]
        np.testing.assert_allclose(there[1:], differences[-times.size + 1 :], rtol=1e-5, atol=1e-6)


def test_lanes_renew_their_curvature_each_for_itself():
    """Under vmap the curvature of those that ask for it, at their own points, and the kept one of the others."""
    field = lambda matrix, y: -matrix @ (y**3)
    matrices = jnp.stack([jnp.diag(jnp.asarray([k, 2.0 * k])) for k in (1.0, 2.0, 3.0)])
    points = jnp.asarray([[1.0, 1.0], [2.0, 1.0], [1.0, 3.0]])
    kept = Curvature(
        jnp.full((3, 2), 7.0), jnp.stack([jnp.eye(2)] * 3), jnp.zeros(3), jnp.zeros((3, 2)), jnp.zeros((3, 2))
    )
    renew = jnp.asarray([True, False, True])

    @jax.jit
    @jax.vmap
    def found_again(matrix, renew, y, kept):
        return renewed(lambda y: field(matrix, y), renew, y, kept, 1)

    found = found_again(matrices, renew, points, kept)
    np.testing.assert_allclose(np.sort(found.eigenvalues), [[-6.0, -3.0], [7.0, 7.0], [-162.0, -9.0]])
    np.testing.assert_allclose(found.basis[1], np.eye(2))


@pytest.mark.slow
def test_what_a_search_sees_of_several_flows_is_what_each_shows_alone():
    from flowsim.experiments.search.points import Sampler
    from flowsim.experiments.search.screening import Screen

    def compare(loss, flow):
        return flowsim.at_least(flow.grad_norm_sq, 3 * (flow.start.a**2 - flow.start.b**2) * flow.excess)

    space = flowsim.Space({"scale": flowsim.Real(0.3, 3.0)}, {"make": make_pair})
    claim = flowsim.Claim(
        "mine", "notes", "|grad L|^2 >= 3 (a(0)^2 - b(0)^2) L", compare, models=(Pair,), spaces=(space,)
    )
    screen = Screen(claim, [space])
    points = Sampler(space, 0, 1).draw(0, 6)
    assert screen.lanes(points[0]) == 32
    for seen, point in zip(screen.margins(points), points, strict=True):
        assert seen.margin == pytest.approx(screen.alone(point).margin, rel=1e-4)
    found = screen.gradient(points[0])
    assert found is not None
    slope = float(found[1]["scale"])
    near = [type(points[0])(0, {"scale": points[0].values["scale"] * (1 + step)}) for step in (1e-4, -1e-4)]
    above, below = (screen.alone(point).margin for point in near)
    assert slope == pytest.approx((above - below) / (2e-4 * points[0].values["scale"]), rel=0.05)
