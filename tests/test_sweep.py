"""Sweeps: batches agree with flows one by one, a killed sweep ends with the same bits, errors write nothing."""

import json
import pathlib
import shlex
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Lazy, regression
from systems import balanced_scalar

from flowsim import Map, papers, sweep
from flowsim._core.checks import ProblemError
from flowsim._core.files import held
from flowsim.cli import main
from flowsim.experiments.executors import Processes
from flowsim.experiments.sweep import integration, maps
from flowsim.experiments.sweep.arrowheads import Flows, integrate
from flowsim.experiments.sweep.axes import GridAxis
from flowsim.flow.gradient_flow import gradient_flow, reduced_flow
from flowsim.flow.solvers.arrowhead.kernel import STEPS_PER_DECADE
from flowsim.flow.solvers.arrowhead.reduced import Point
from flowsim.flow.solvers.summary import CONVERGED, ESCAPED, STATUSES, Ends, Summary, crossing
from flowsim.flow.trajectory import Status, Trajectory
from flowsim.initialization import balanced, balanced_indefinite, random_theta, unbalanced
from flowsim.losses import LinearAttentionLoss
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023.predictions import predictions

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]
TABLES = {
    "task": {"context_length": 10, "covariance": {"condition": 20.0, "dimension": 3, "rotation_seed": 1}},
    "init": {"scale": 0.2},
}
PROBLEM = """
[task]
context_length = 10
covariance = {condition = 20.0, dimension = 3, rotation_seed = 1}
[init]
scale = 0.2
"""
LANES = 8  # as in the sweeps below, whose program these tests share


def together(
    loss: LinearAttentionLoss, starts: list[LinearAttention], t1: float = np.inf, rtol: float = 1e-9
) -> tuple[Summary, Point]:
    """The starts as one batch."""
    lanes = [*starts, *[starts[-1]] * (LANES - len(starts))]
    flows = []
    for start in lanes:
        arrowhead = loss.arrowhead(start)
        assert arrowhead is not None
        flows.append(Flows(arrowhead.curvature, arrowhead.drive, *arrowhead.state(start)))
    ends = Ends(*(jnp.full(LANES, value, dtype=float) for value in (t1, 0.0, 1e-12, 1e-10, rtol)))
    summary, _, record = integrate(jax.tree.map(lambda *leaves: jnp.stack(leaves), *flows), ends)
    end = jax.tree.map(lambda leaf: leaf[:, -1], record.rows.point)
    return jax.tree.map(np.asarray, (summary, end))


def end_model(loss: LinearAttentionLoss, start: LinearAttention, end: Point, lane: int) -> LinearAttention:
    arrowhead = loss.arrowhead(start)
    assert arrowhead is not None
    U, _ = arrowhead.state(start)
    U = np.asarray(U) * np.exp(-np.asarray(arrowhead.curvature) * end.clock[lane])
    np.fill_diagonal(U, end.shaft[lane])
    return arrowhead.model((jnp.asarray(U), jnp.asarray(end.u[lane])))


def distance(one: LinearAttention, other: LinearAttention) -> float:
    """The largest difference of the weights over the largest weight."""
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    size = max(float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(other))
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in leaves) / size


# The integration.


@pytest.mark.parametrize("t1", [0.3, 20.0])
def test_a_batch_ends_where_its_flows_do_one_by_one(t1):
    loss = LinearAttentionLoss(regression(4, 8.0))
    kinds = {balanced: (1e-6, 0.1, 10.0), balanced_indefinite: (1e-3, 1.0, 10.0), unbalanced: (1e-6, 3.0)}
    starts = [kind(scale, random_theta(4, 4, 0)) for kind, scales in kinds.items() for scale in scales]
    rtol = 1e-9
    summary, end = together(loss, starts, t1, rtol)
    assert {STATUSES[code] for code in summary.status} == {Status.TIME}
    for lane, start in enumerate(starts):
        found = end_model(loss, start, end, lane)
        one = gradient_flow(loss, start, t1=t1, rtol=rtol)
        exact = reduced_flow(loss, start, [t1], 1e-13)
        assert distance(found, one.end) < 10 * rtol
        assert distance(found, exact.end) < 10 * rtol
        assert summary.excess[lane] == pytest.approx(float(exact.excess[-1]), rel=1e-5)
        assert summary.grad_norm_sq[lane] == pytest.approx(float(exact.grad_norm_sq[-1]), rel=1e-5)
        assert summary.dissipated[lane] == pytest.approx(float(exact.dissipated[-1]), rel=1e-7)
        rounding = 4e-16 * summary.excess_start[lane]
        assert summary.energy_defect[lane] < 1e-8 * summary.dissipated[lane] + rounding


def test_events_happen_when_the_exact_solution_says(tmp_path):
    system = balanced_scalar(scale=1e-5, variance=0.7, context_length=10.0)
    tables = {"task": {"covariance": [[0.7]], "context_length": 10}, "init": {"theta": [[1.0]]}}
    table = sweep(tables, {"init.scale": [1e-5]}, out=tmp_path)

    def first_time(level: float) -> float:
        low, high = 0.0, 1e3
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (low, middle) if float(system.loss.excess(system.state(middle))) <= level else (middle, high)
        return high

    saddle = float(system.loss.excess(LinearAttention(jnp.zeros((1, 1)), 0.0)))
    start = float(system.loss.excess(system.start))
    assert table["excess_saddle"][0] == pytest.approx(saddle)
    assert table["escape_time"][0] == pytest.approx(first_time(ESCAPED * saddle), rel=1e-4)
    assert table["convergence_time"][0] == pytest.approx(first_time(CONVERGED * start), rel=1e-4)


def test_least_values_are_those_of_a_dense_trajectory():
    loss = LinearAttentionLoss(regression(4, 6.0, seed=3))
    starts = [balanced(scale, random_theta(4, rank, 0)) for scale, rank in ((1e-3, 1), (0.1, 4), (0.4, 2))]
    summary, _ = together(loss, starts)
    for lane, start in enumerate(starts):
        dense = gradient_flow(loss, start, points_per_decade=120)
        ratio = np.asarray(dense.grad_norm_sq / dense.excess)
        assert summary.pl.value[lane] == pytest.approx(ratio.min(), rel=0.01)
        at = np.interp(summary.pl.t[lane], np.asarray(dense.t), ratio)
        assert summary.pl.value[lane] == pytest.approx(at, rel=0.01)
        t = np.asarray(dense.t)[1:]
        rate = np.log(float(dense.excess[0]) / np.asarray(dense.excess)[1:])[t > 1e-3] / t[t > 1e-3]
        assert summary.rate.value[lane] == pytest.approx(rate.min(), rel=0.01)
        assert summary.steps[lane] >= STEPS_PER_DECADE * np.log10(summary.t[lane])


def test_a_cell_does_not_depend_on_padding_or_on_its_neighbours():
    spec = maps.specs({**TABLES, "task": {**TABLES["task"], "covariance": {"condition": 5.0, "dimension": 4}}}, ())
    (one,) = spec
    other = next(iter(maps.specs(TABLES, ())))
    (alone,) = integration.run([integration.CellBatch((0,), 4, LANES)], [one], None)
    (padded,) = integration.run([integration.CellBatch((0, 1), 6, LANES)], [other, one], None)
    for name, values in alone.items():
        if name == "margin_u_positive_time":
            continue  # u = |U|_F all along
        if values.dtype == float:
            np.testing.assert_allclose(padded[name][1], values[0], rtol=1e-5, atol=1e-12)
        elif name not in ("steps", "rejected_steps"):
            assert padded[name][1] == values[0]


def test_a_start_that_cannot_be_integrated_says_so():
    loss = LinearAttentionLoss(regression(4, 6.0))
    huge = LinearAttention(1e160 * np.eye(4), 1e160)
    summary, _ = together(loss, [huge, LinearAttention(np.zeros((4, 4)), 0.0)])
    assert [STATUSES[code] for code in summary.status[:2]] == [Status.NONFINITE, Status.STATIONARY]
    assert crossing(jnp.arange(3.0), jnp.ones(3), jnp.ones(3), jnp.asarray(0.5)) == np.inf


# What becomes of a flow.


def found(tmp_path: pathlib.Path, tables: dict, **axes) -> Map:
    return sweep(tables, {name.replace("__", "."): values for name, values in axes.items()}, out=tmp_path / "map")


def test_where_flows_end(tmp_path):
    one = {"context_length": 10, "covariance": "identity", "dimension": 1}
    # With d = 1 the flow conserves u^2 - U^2, and u = -U runs into the saddle.
    table = found(
        tmp_path, {"task": one, "init": {"kind": "explicit", "U11": [[0.3]]}}, init__u_minus1=[-0.3, -0.2, 0.3]
    )
    assert table["outcome"][1:].tolist() == ["global-minimum", "global-minimum"]
    assert table["outcome"][0] in ("saddle", "undecided")
    assert table["closest_to_saddle"][0] < 3e-5 < table["closest_to_saddle"][1]


OWN = """
import equinox as eqx, flowsim, jax.numpy as jnp
class Pair(eqx.Module):
    a: object
    b: object
def bowl(a=1.0, known=False):
    of = lambda m: 0.5 * (m.a**2 + m.b**2)
    return flowsim.FunctionLoss(of, minimum=0.0 if known else None), Pair(jnp.asarray(a), jnp.asarray(0.5))
def product(a=1.0):
    return flowsim.FunctionLoss(lambda m: 0.5 * (m.a * m.b - 1) ** 2), Pair(jnp.asarray(a), jnp.asarray(-1.0))
"""


@pytest.mark.parametrize("values", [[0.5, 1.0, 2.0, 3.0], [1.0]], ids=["in lockstep", "alone"])
def test_zero_weights_that_are_a_minimum_are_no_saddle(values, tmp_path):
    (tmp_path / "own.py").write_text(OWN)

    def of(made, **more):
        tables = {"make": f"{tmp_path / 'own.py'}:{made}", **more}
        return sweep(tables, {"a": values}, out=tmp_path / f"{made} {more}")

    for known, outcome in ((False, "other-critical-point"), (True, "global-minimum")):
        table = of("bowl", known=known)
        assert set(table["outcome"]) == {outcome}
        assert np.all(np.isinf(table["closest_to_saddle"]))
    # a = -b goes into the saddle.
    table = of("product")
    assert table["outcome"][values.index(1.0)] in ("saddle", "undecided")
    assert np.all(np.isfinite(table["closest_to_saddle"]))


def test_critical_points_are_told_apart(tmp_path):
    two = {"context_length": 10, "covariance": "identity", "dimension": 2}
    flat = {"kind": "explicit", "U11": [[0.3, 0.0], [0.0, -0.3]], "u_minus1": 0.0}
    table = found(tmp_path, {"task": two, "init": flat}, task__context_length=[5, "inf"])
    assert set(table["outcome"]) == {"other-critical-point"}
    assert set(table["status"]) == {"stationary"}
    table = sweep({"task": two, "init": {"kind": "zeros"}}, {"flow.rtol": [1e-9]}, out=tmp_path / "zeros")
    assert table["outcome"].tolist() == ["saddle"]
    table = sweep({"task": two, "init": {"scale": 1e-3}}, {"flow.t1": [0.1, 1e3]}, out=tmp_path / "early")
    assert table["outcome"].tolist() == ["unfinished", "global-minimum"]
    table = sweep({"task": two}, {"init.scale": [1e-3, 1e170]}, out=tmp_path / "huge")
    assert table["outcome"].tolist() == ["global-minimum", "failed"]
    # From a huge start the excess has fallen by 12 digits long before the minimum.
    table = sweep({"task": two}, {"init.scale": [1e5]}, out=tmp_path / "large")
    assert table["outcome"].tolist() == ["global-minimum"]
    assert table["excess_end"] < 1e-11 * table["excess_saddle"]


def test_a_map_says_what_the_theorem_does(tmp_path):
    table = found(tmp_path, TABLES, init__scale=[0.01, 0.3, 3.0], init__kind=["balanced", "unbalanced"])
    for index in np.ndindex(3, 2):
        problem = table.problem(index).build()
        promised = predictions(problem.task, problem.start).constants
        assert table["mu"][index] == pytest.approx(promised["mu"], rel=1e-12)
        balanced_start = index[1] == 0
        assert table["assumption_met"][index] == balanced_start
        if not (balanced_start and index[0] < 2):
            assert table["guaranteed_time"][index] == np.inf
            continue
        assert table["condition_met"][index]
        assert table["guaranteed_time"][index] == pytest.approx(np.log(1e6) / promised["mu"])
        assert table["convergence_time"][index] < table["guaranteed_time"][index]
        assert table["margin_pl"][index] == pytest.approx(table["sharp_mu_pl"][index] / promised["mu"] - 1)
        assert table["margin_u_lower_bound"][index] == pytest.approx(
            table["smallest_u"][index] / promised["u_lower_bound"] - 1
        )
        names = ("margin_pl", "margin_rate", "margin_u_lower_bound")
        assert table["smallest_margin"][index] == min(table[name][index] for name in names) > 0
    assert not table["condition_met"][2, 0]
    assert np.isnan(table["margin_pl"][2]).all()


def test_cells_without_arrowhead_are_summed_up_like_the_others(tmp_path):
    """The same flow by the batch and by `gradient_flow`, whose solver and output times are other ones."""
    one, two = (
        sweep(TABLES | {"flow": {"solver": solver}}, {"init.scale": [0.01, 0.3]}, out=tmp_path / solver)
        for solver in ("auto", "implicit")
    )
    for name, tolerance in {
        "escape_time": 1e-3,
        "convergence_time": 1e-3,
        "sharp_mu_pl": 0.02,
        "smallest_u": 1e-5,
    }.items():
        np.testing.assert_allclose(two[name], one[name], rtol=tolerance)
    assert one["outcome"].tolist() == two["outcome"].tolist()


@pytest.mark.parametrize("kind", ["balanced", "random"])
def test_a_cell_is_reproduced_by_its_command(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(papers, "ALL_CLAIMS", ())
    table = found(tmp_path / "a b", TABLES | {"flow": {"t1": 3.0}}, init__seed=[4, 5], init__kind=[kind])
    assert Map.load(tmp_path / "a b" / "map").command((1, 0)) == table.command((1, 0)) == table.command((-1, -1))
    program, *arguments = shlex.split(table.command((1, 0)))
    assert program == "flowsim"
    assert main.main(arguments) == 0
    out = pathlib.Path(arguments[arguments.index("--out") + 1])
    trajectory = Trajectory.load(out / "trajectory.npz")
    assert table["excess_end"][1, 0] == pytest.approx(float(trajectory.excess[-1]), rel=1e-6)
    assert table["excess_start"][1, 0] == pytest.approx(float(trajectory.excess[0]), rel=1e-12)


def test_no_cell_beyond_the_grid(tmp_path):
    table = Map({}, (GridAxis("init.scale", (0.1, 0.2)), GridAxis("init.seed", (1, 2, 3))), {}, tmp_path)
    assert "init.scale=0.2 --set init.seed=1" in table.command((1, 0))
    for index in ((2, 0), (0, 3), (0,), (0, 0, 0), 1):
        with pytest.raises(ValueError, match="index must be that of a cell of the grid"):
            table.command(index)
    with pytest.raises(KeyError, match='did you mean "outcome"'):
        Map({}, (), {"outcome": np.zeros(0)}, tmp_path)["outcom"]


# Axes.


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("init.scale=geom:1e-2:1:3", (0.01, 0.1, 1)),
        ("init.scale=lin:0.5:1:3", (0.5, 0.75, 1)),
        ("init.rank=lin:1:3:3", (1, 2, 3)),
        ("task.context_length=5, 10,inf", (5, 10, "inf")),
        ("init.seed=2:5", (2, 3, 4, 5)),
        ("init.kind=balanced,balanced-indefinite", ("balanced", "balanced-indefinite")),
    ],
)
def test_axes(text, values):
    assert GridAxis.parse(text).values == pytest.approx(values) if isinstance(values[0], float) else values
    assert GridAxis.parse(text).field == text.partition("=")[0]


BAD = [
    (["init.scal=0.1"], 'init.scal is not a known field; did you mean "init.scale"?'),
    (["scales=0.1,0.2"], "scales is not a known field; did you mean "),
    (["init.scale=geom:0:1:3"], "init.scale must be swept geometrically between positive numbers"),
    (["init.scale=geom:1:2"], "init.scale must be swept over geom:FROM:TO:COUNT"),
    (["init.scale=geom:1:2:x"], "init.scale must be swept over geom:FROM:TO:COUNT"),
    (["init.scale=lin:1:2:0"], "init.scale must be swept over 1 to"),
    (["init.seed=5:2"], "init.seed must be swept over FIRST:LAST"),
    (["init.seed=1:2:3"], "init.seed must be swept over"),
    (["init.scale=0.1,0.1"], "init.scale must be swept over different values"),
    (["init.scale=-1,1"], "init.scale must be a positive number, but it is -1"),
    (["init.scale"], "--over must be FIELD=VALUES"),
    (["init.theta=1,2"], "init.theta must be a matrix"),
    (["init.kind=balanced,balanced-indefinit"], 'did you mean "balanced-indefinite"?'),
    (["init.kind=zeros"], "init.scale must be left out"),
    (["init.rank=1:5"], "init.rank must be at most the dimension, 3"),
    (["init.scale=1,2", "init.scale=3"], "init.scale is there twice"),
    (["flow.budget_seconds=1,2"], "a sweep must be over fields that change results"),
    (["task.covariance.eigenvalues=1"], "task.covariance.eigenvalues must be"),
    (["init.seed=0:9999", "init.scale=geom:1e-3:1:1000"], "the map must be within the disk budget of 256 MB"),
    (["task.covariance.condition=1e17"], "task.covariance must be positive definite"),
]


@pytest.mark.parametrize(("over", "message"), BAD, ids=[" ".join(over) for over, _ in BAD])
def test_bad_axes_are_one_line_and_write_nothing(over, message, tmp_path, capsys):
    (tmp_path / "problem.toml").write_text(PROBLEM)
    options = [word for axis in over for word in ("--over", axis)]
    assert main.main(["sweep", str(tmp_path / "problem.toml"), *options, "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert message in line
    assert not (tmp_path / "out").exists()


def test_bad_arguments_of_the_function(tmp_path):
    for tables, axes, message in (
        (TABLES, {}, "over at least one axis"),
        (TABLES, {"init.scale": []}, "at least one value"),
        (TABLES, {"init.scale": [[0.1]]}, "init.scale must be a positive number"),
        (TABLES | {"flow": {"budget_seconds": 1.0}}, {"init.scale": [1]}, "flow.budget_seconds must be left out"),
        (TABLES | {"init": {"theta": [[1.0]]}}, {"init.scale": [1]}, "theta"),
    ):
        with pytest.raises(ProblemError, match=message):
            sweep(tables, axes, out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


# What a sweep leaves, and how it goes on.

AXES = ["--over", "init.scale=geom:1e-5:1:20", "--over", "init.seed=0:3", "--over", "init.kind=balanced,unbalanced"]
SCRIPT = """
import sys
from flowsim.cli.main import main
from flowsim.experiments.sweep import integration
integration._MOST_LANES = 32
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> pathlib.Path:
    """The folder of a sweep that nothing disturbed, in the same process environment as the killed ones."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "problem.toml").write_text(PROBLEM)
    child = started(folder, folder / "out")
    assert child.wait() == 0
    return folder


def started(folder: pathlib.Path, out: pathlib.Path, *options: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *command(folder, out, *options)], cwd=ROOT)


def command(folder: pathlib.Path, out: pathlib.Path, *options: str) -> list[str]:
    return ["sweep", str(folder / "problem.toml"), *AXES, "--out", str(out), "--quiet", *options]


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_finished_sweep(finished, capsys):
    assert sorted(contents(finished / "out")) == ["figures/map.png", "map.npz", "problem.toml", "sweep.json"]
    table = Map.load(finished / "out")
    assert table.shape == (20, 4, 2)
    assert set(table["outcome"].flat) == {"global-minimum"}
    document = json.loads((finished / "out" / "sweep.json").read_text())
    assert [axis["field"] for axis in document["axes"]] == ["init.scale", "init.seed", "init.kind"]
    before = contents(finished / "out")
    assert main.main(command(finished, finished / "out", "--resume")) == 0
    assert contents(finished / "out") == before
    assert main.main(command(finished, finished / "out")) == 2
    assert main.main(["sweep", str(finished / "problem.toml"), "--over", "init.scale=1", "--out",
                     str(finished / "out"), "--resume"]) == 2  # fmt: skip
    assert "the axis init.scale differs" in capsys.readouterr().err
    assert contents(finished / "out") == before


@pytest.mark.parametrize("kind", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_killed_sweep_goes_on_to_the_same_bits(kind, finished, tmp_path):
    out = tmp_path / "out"
    child = started(finished, out)
    while not list(out.glob("cells/batch-*.npz")):
        assert child.poll() is None
        time.sleep(0.002)
    child.send_signal(kind)
    child.wait()
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("cells/batch-*.npz")}
    assert kept
    assert not (out / "map.npz").exists()
    assert started(finished, out, "--resume").wait() == 0
    assert contents(out) == contents(finished / "out")


def test_finished_batches_are_not_integrated_again(tmp_path, monkeypatch):
    plan = integration.plan(list(maps.specs(TABLES, (GridAxis("init.seed", tuple(range(5))),))), None)
    assert [batch.cells for batch in plan] == [(0, 1, 2, 3, 4)]
    monkeypatch.setattr(integration, "_MOST_LANES", 2)
    asked = []
    run = integration.run

    def counted(batches, cells, mesh, pattern):
        asked.append([batch.cells for batch in batches])
        if len(asked) == 3:
            raise KeyboardInterrupt
        return run(batches, cells, mesh, pattern)

    monkeypatch.setattr(integration, "run", counted)
    with pytest.raises(KeyboardInterrupt):
        sweep(TABLES, {"init.seed": "0:4"}, out=tmp_path)
    done = len(list((tmp_path / "cells").glob("batch-*.npz")))
    assert done == 2
    sweep(TABLES, {"init.seed": "0:4"}, out=tmp_path, resume=True)
    assert len(asked) == 4
    with pytest.raises(ProblemError, match="--resume"):
        sweep(TABLES, {"init.seed": "0:4"}, out=tmp_path)


def test_a_failed_cell_is_status_3_with_its_command(tmp_path, capsys):
    (tmp_path / "problem.toml").write_text(PROBLEM)
    axes = ["--over", "init.scale=0.1,1e170"]
    assert main.main(["sweep", str(tmp_path / "problem.toml"), *axes, "--out", str(tmp_path / "out")]) == 3
    *_, command = capsys.readouterr().out.splitlines()
    assert command == Map.load(tmp_path / "out").command(1)


def test_a_folder_with_a_run_is_refused(tmp_path):
    (tmp_path / "problem.toml").write_text(PROBLEM)
    with pytest.raises(ProblemError, match="a folder without a run"):
        sweep(TABLES, {"init.scale": [0.1]}, out=tmp_path, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["problem.toml"]


# Arrowheads, and flows in lockstep.
EVERY_WAY = {"init.kind": ["balanced", "random"], "task.covariance.dimension": [2], "init.scale": [0.1, 0.3]}


@pytest.mark.parametrize("kind", ["lazy", "processes"])
def test_a_sweep_by_an_executor_is_the_same_map_byte_for_byte(kind, tmp_path):
    alone = sweep(TABLES, EVERY_WAY, out=tmp_path / "alone")
    if kind == "lazy":
        elsewhere = sweep(TABLES, EVERY_WAY, out=tmp_path / "elsewhere", executor=Lazy())
    else:
        with Processes(2) as processes:
            elsewhere = sweep(TABLES, EVERY_WAY, out=tmp_path / "elsewhere", executor=processes)
    assert elsewhere.quantities.keys() == alone.quantities.keys()
    for name, values in alone.quantities.items():
        assert values.tobytes() == elsewhere[name].tobytes(), name


@pytest.mark.slow
def test_parts_of_a_sweep_make_the_same_map_byte_for_byte(finished, tmp_path):
    parts = [started(finished, tmp_path / "out", "--shard", f"{number}/2") for number in (1, 2)]
    assert [part.wait() for part in parts] == [0, 0]
    assert not (tmp_path / "out" / "map.npz").exists()
    assert started(finished, tmp_path / "out", "--resume").wait() == 0
    assert contents(tmp_path / "out") == contents(finished / "out")


def test_a_part_of_a_sweep_says_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(integration, "_MOST_LANES", 2)
    monkeypatch.setattr("flowsim.report.plots.maps.draw", lambda *arguments, **named: None)
    (tmp_path / "problem.toml").write_text(PROBLEM)
    out = tmp_path / "out"
    command = ["sweep", str(tmp_path / "problem.toml"), "--over", "init.seed=0:4", "--out", str(out), "--quiet"]
    assert main.main([*command, "--shard", "4/3"]) == 2
    assert "--shard must be I/N, the I-th of N parts" in capsys.readouterr().err
    assert not out.exists()
    assert main.main([*command, "--shard", "2/3"]) == 0
    line = "the map is drawn by the same command with --resume in place of --shard 2/3"
    assert capsys.readouterr().out == (
        f"1 of 3 batches are there, those of 1/3 (1), 3/3 (1) are missing: when all are, {line}.\n"
    )
    with held(out, shared=True) as beside:
        assert beside
        assert main.main([*command, "--resume"]) == 2
        assert "in which no other sweep is at work" in capsys.readouterr().err
        assert main.main([*command, "--shard", "1/3"]) == main.main([*command, "--shard", "3/3"]) == 0
    assert "All 3 batches are there: the map" in capsys.readouterr().out
    assert main.main(command) == 2
    assert "add --resume" in capsys.readouterr().err
    assert main.main([*command, "--resume"]) == 0
    assert sorted(contents(out)) == ["map.npz", "problem.toml", "sweep.json"]
    assert main.main([*command, "--shard", "2/3"]) == 0
    assert "All 3 batches are there" in capsys.readouterr().out


def test_two_sweeps_are_not_at_work_in_one_folder(tmp_path):
    axes = {"init.scale": [0.1, 0.2]}
    (tmp_path / "map").mkdir()
    with held(tmp_path / "map") as alone, pytest.raises(ProblemError, match="in which no other sweep is at work"):
        assert alone
        sweep(TABLES, axes, out=tmp_path / "map")
    assert not list((tmp_path / "map").iterdir())
    assert sweep(TABLES, axes, out=tmp_path / "map").shape == (2,)
