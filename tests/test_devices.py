"""Devices and hosts: the same results however many share the samples, and one clear line where that cannot be."""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from flowsim.cli import main
from flowsim.cli.devices import Hosts
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MonteCarloLoss
from flowsim.losses.sampled import blocks
from flowsim.losses.sampled.estimators import PromptEstimator, Prompts
from flowsim.models import LinearAttention
from flowsim.tasks import LinearRegression

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]
PROBLEM = """
[task]
context_length = 6
covariance = [[1.0, 0.3], [0.3, 0.5]]
[init]
scale = 0.3
[loss]
kind = "monte-carlo"
samples = 512
replicates = 4
method = "prompts"
[flow]
t1 = 0.1
rtol = 1e-6
"""
SWEPT = """
[task]
context_length = 10
covariance = [[0.5, 0.1], [0.1, 1]]
"""
STRICT = """
import json, sys, warnings
import jax
warnings.simplefilter("error")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
"""
# Neither claims nor figures, so that the runs are short.
COMMAND = """
import sys
from flowsim import papers
from flowsim.cli import main, run
from flowsim.experiments.sweep import integration
from flowsim.report import drawing
papers.ALL_CLAIMS = ()
run.run_facts = lambda *arguments: {}
drawing.draw_run = lambda *arguments, **options: {}
integration._MOST_LANES = 8
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("devices")
    (folder / "problem.toml").write_text(PROBLEM)
    (folder / "swept.toml").write_text(SWEPT)
    return folder


def started(code: str, *arguments: str) -> subprocess.Popen:
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=environment)


def ended(child: subprocess.Popen) -> tuple[int, str, str]:
    out, err = child.communicate(timeout=240)
    return child.returncode, out, err


def run(folder: pathlib.Path, out: str, *options: str) -> subprocess.Popen:
    return started(COMMAND, "run", str(folder / "problem.toml"), "--out", str(folder / out), "--quiet", *options)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def one_line(err: str) -> str:
    lines = [line for line in err.splitlines() if line]
    assert len(lines) == 1, err
    return lines[0]


@pytest.fixture(scope="module")
def alone(folder) -> Trajectory:
    """The run of one device."""
    code, _, err = ended(run(folder, "alone"))
    assert code == 0, err
    return Trajectory.load(folder / "alone" / "trajectory.npz")


def assert_same(folder: pathlib.Path, out: str, alone: Trajectory) -> None:
    other = Trajectory.load(folder / out / "trajectory.npz")
    np.testing.assert_allclose(other.t, alone.t, rtol=1e-14)
    for ours, theirs in zip(jax.tree.leaves(other.models), jax.tree.leaves(alone.models), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 * np.max(np.abs(theirs)) + 1e-15)
    np.testing.assert_allclose(other.loss, alone.loss, rtol=1e-12)
    # The problem does not know how it was computed.
    assert (folder / out / "problem.toml").read_bytes() == (folder / "alone" / "problem.toml").read_bytes()


TWO = (
    STRICT
    + """
jax.config.update("jax_num_cpu_devices", 2)
import equinox as eqx
import jax.numpy as jnp
import numpy as np
from flowsim.losses import MonteCarloLoss
from flowsim.models import LoopedAttention
from flowsim.tasks import LinearRegression

mesh = jax.make_mesh((2,), ("samples",), axis_types=(jax.sharding.AxisType.Auto,))
task = LinearRegression(np.array([[1.0, 0.3], [0.3, 0.5]]), 6, weights="inverse-covariance")
model = LoopedAttention(np.array([[0.3, 0.1], [0.0, 0.4]]), np.array([0.1, 0.2]), loops=2)
best = LoopedAttention(0.5 * np.eye(2), np.array([0.0, 0.1]), loops=2)


def gap(ours, theirs):
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b))) / np.max(np.abs(np.asarray(b)))) for a, b in pairs)


one, two = (
    MonteCarloLoss(task, samples=512, replicates=4, method="covariances", minimizer=best, block=100, mesh=m)
    for m in (None, mesh)
)
one, two = one.prepared(model), two.prepared(model)


@eqx.filter_jit
def everything(loss, model):
    slope, bend = jax.jvp(loss.gradient, (model,), (best,))
    return loss(model), loss.excess(model), slope, bend


gaps = {"kept": gap(everything(two, model), everything(one, model))}
gaps["replicate"] = gap(*(loss.replicates()[2].squared_errors(model) for loss in (two, one)))
gaps["estimate"] = gap(two.estimate(model)[:3], one.estimate(model)[:3])
reasons = [two.distrust(model), one.distrust(model)]
one, two = one._with(draws=None), two._with(draws=None)
gaps["drawn anew"] = gap(everything(two, model), everything(one, model))
field = eqx.filter_jit(lambda loss, model: loss.gradient(model)).lower(two, model).compile()
messages = field.compiled.as_text().count(" all-reduce(")
try:
    MonteCarloLoss(task, samples=512, replicates=4, mesh=jax.make_mesh((2,), ("samples",)))
except ValueError as error:
    explicit = str(error)
print(json.dumps([gaps, messages, reasons, explicit]))
"""
)


def test_two_devices_compute_what_one_does_with_one_message_a_field():
    code, out, err = ended(started(TWO))
    assert code == 0, err
    gaps, messages, reasons, explicit = json.loads(out)
    assert len(gaps) == 4 and max(gaps.values()) < 1e-12, gaps
    assert messages == 1
    assert reasons[0] == reasons[1]
    assert "of type Auto, but" in explicit


def test_a_run_on_two_devices_is_that_of_one(folder, alone):
    code, _, err = ended(run(folder, "two", "--devices", "2"))
    assert code == 0, err
    assert_same(folder, "two", alone)


def test_a_run_of_two_processes_is_that_of_one_and_the_first_writes(folder, alone):
    where = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2", "--process"]
    children = [run(folder, f"host{index}", *where, str(index)) for index in range(2)]
    ends = [ended(child) for child in children]
    assert [code for code, *_ in ends] == [0, 0], ends
    assert_same(folder, "host0", alone)
    assert not (folder / "host1").exists()


@pytest.mark.parametrize("index", [0, 1])
def test_a_host_that_never_joins_is_status_3_and_one_line(folder, index):
    where = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2", "--process", str(index)]
    code, _, err = ended(run(folder, "never", *where, "--join-timeout", "3"))
    assert code == 3
    assert re.search(r"all 2 processes did not join at 127.0.0.1:\d+ within 3 seconds", one_line(err))
    assert not (folder / "never").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--devices", "2", "--set", 'loss.kind="exact"'], "--devices must be left out with loss.kind"),
        (["--devices", "none"], '--devices must be a whole number of at least 1, or "all", but it is "none"'),
        (["--coordinator", "here", "--processes", "2"], '--coordinator must be HOST:PORT, or "auto", but it is "here"'),
        (["--coordinator", "a:1", "--processes", "2"], "--process must be given with --coordinator a:1, but it is mis"),
        (["--coordinator", "a:1", "--processes", "2", "--process", "2"], "--process must be from 0 to 1, but it is 2"),
        (["--processes", "2"], "--processes must be given with --coordinator HOST:PORT alone, but it is 2"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(folder, tmp_path, capsys, options, expected):
    problem = folder / "problem.toml"
    if "--set" in options:
        problem = tmp_path / "exact.toml"
        problem.write_text(re.sub(r"samples.*\nreplicates.*\nmethod.*\n", "", PROBLEM))
    assert main.main(["run", str(problem), "--out", str(tmp_path / "out"), *options]) == 2
    assert expected in one_line(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_auto_outside_of_slurm_is_refused_in_one_line(folder):
    code, _, err = ended(run(folder, "nowhere", "--coordinator", "auto"))
    assert code == 2
    assert '--coordinator must be HOST:PORT outside of Slurm and Open MPI, but it is "auto"' in one_line(err)


def test_devices_that_do_not_divide_the_samples_are_refused_in_one_line(folder):
    code, _, err = ended(run(folder, "three", "--devices", "3"))
    assert code == 2
    expected = "loss.samples must be a multiple of replicates times devices, 4 x 3, but it is 512"
    assert expected in one_line(err)
    assert not (folder / "three").exists()


def test_a_sweep_on_two_devices_has_the_same_bytes(folder):
    over = ["--over", "init.scale=geom:0.1:1:20", "--quiet", "--devices"]
    for devices in ("1", "2"):
        out = str(folder / f"swept{devices}")
        code, _, err = ended(started(COMMAND, "sweep", str(folder / "swept.toml"), *over, devices, "--out", out))
        assert code == 0, err
    assert (folder / "swept1" / "map.npz").read_bytes() == (folder / "swept2" / "map.npz").read_bytes()


TASK = LinearRegression(np.array([[1.0]]), 300)
MODEL = LinearAttention(np.array([[0.3]]), 0.5, np.array([0.1]), np.array([0.2]))


def test_meshes_with_other_axes_are_refused():
    mesh = jax.make_mesh((1,), ("cells",), axis_types=(AxisType.Auto,))
    with pytest.raises(ValueError, match='mesh must be one with the single axis "samples", of type Auto, but it has'):
        MonteCarloLoss(TASK, samples=256, mesh=mesh)


def test_the_memory_bounds_the_blocks_and_what_is_kept(monkeypatch):
    estimator = PromptEstimator(Prompts(TASK))
    plan = lambda samples, block: blocks.plan(estimator, MODEL, samples, block, None)
    monkeypatch.setattr(blocks, "_free_bytes", lambda device: 2.0**34)
    assert plan(2**12, None).kept
    assert not plan(2**30, None).kept
    monkeypatch.setattr(blocks, "_free_bytes", lambda device: 2.0**21)
    fits = plan(2**12, None).block
    assert 1 <= fits < 64
    assert plan(2**12, fits) == (fits, False)
    with pytest.raises(ValueError, match=f"block must be at most {fits}, which 0.002 GiB of memory hold, but it is 64"):
        plan(2**12, 64)
    monkeypatch.setattr(blocks, "_free_bytes", lambda device: 2.0**17)
    with pytest.raises(ValueError, match="model must be small enough for 0.00012 GiB of memory, but one sample takes"):
        plan(2**12, None)


def test_draws_that_are_not_kept_give_the_same_loss(monkeypatch):
    loss = MonteCarloLoss(TASK, samples=256, method="prompts", block=3)
    kept = loss.prepared(MODEL)
    monkeypatch.setattr(blocks, "_free_bytes", lambda device: 2.0**26)
    monkeypatch.setattr(blocks, "_KEPT", 1e-9)
    drawn = loss.prepared(MODEL)
    assert kept.draws is not None and drawn.draws is None and drawn.fresh(MODEL).draws is None
    assert float(drawn(MODEL)) == pytest.approx(float(kept(MODEL)), rel=1e-13)
    assert drawn.prepared(MODEL) is drawn


MEMORY = (
    STRICT
    + """
import pathlib
import re
import equinox as eqx
import numpy as np
from flowsim.losses import MonteCarloLoss
from flowsim.losses.sampled import blocks
from flowsim.models import LinearAttention
from flowsim.tasks import LinearRegression

# Not getrusage's figure, which begins at that of the process that started this one.
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s*(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
memory = 1.2e9
blocks._free_bytes = lambda device: memory
blocks._KEPT = 0.0
model = LinearAttention(np.array([[0.3]]), 0.5, np.array([0.1]), np.array([0.2]))
jacobian = eqx.filter_jit(lambda loss, model: jax.jacfwd(loss.gradient)(model))
sizes = []
for length in (10, 200_000):
    loss = MonteCarloLoss(LinearRegression(np.array([[1.0]]), length), samples=128, replicates=4, method="prompts")
    loss = loss.prepared(model)
    jax.block_until_ready(jacobian(loss, model))
    sizes.append(peak())
print(json.dumps([loss.block, memory, sizes]))
"""
)


@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="reads the peak of the memory from /proc")
def test_a_planned_block_takes_less_than_the_memory():
    """The Jacobian of the field, which carries a tangent a weight, takes the most."""
    code, out, err = ended(started(MEMORY))
    assert code == 0, err
    block, memory, (before, after) = json.loads(out)
    assert 1 < block < 16
    assert 0.05 * memory < after - before < memory


@pytest.mark.parametrize(("process", "bound"), [(0, "127.0.0.1:4567"), (1, None)])
def test_the_coordinator_listens_at_its_own_address_alone(process, bound, monkeypatch):
    seen = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda *given, **named: seen.update(named))
    Hosts("127.0.0.1:4567", 2, process).join()
    assert seen["coordinator_bind_address"] == bound
