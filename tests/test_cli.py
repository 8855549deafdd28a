"""The command line: bad input writes nothing, a run that was stopped anywhere goes on, every file is whole."""

import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim
from flowsim import papers
from flowsim._core import VERSION
from flowsim._core.files import held
from flowsim.claims import Claim, find_claims
from flowsim.claims.statements import polyak_lojasiewicz
from flowsim.cli import main
from flowsim.cli import run as run_module
from flowsim.flow.trajectory import Trajectory
from flowsim.losses.prompt_risk import risk
from flowsim.papers import ALL_CLAIMS
from flowsim.papers.zhang2023 import CLAIMS
from flowsim.problem import Problem, ProblemError, ProblemSpec

ROOT = pathlib.Path(__file__).parents[1]
# Many output times make many chunks.
TIMES = np.geomspace(0.01, 10, 150).round(6).tolist()
PROBLEM = f"""
[task]
context_length = 10
covariance = [[0.5, 0.1], [0.1, 1]]
[init]
scale = 0.3
[flow]
rtol = 1e-6
times = {TIMES}
"""
FEW = tuple(claim for claim in CLAIMS if claim.id.endswith(("lemma-5.4.pl", "lemma-a.3", "lemma-5.1")))
RESULTS = ["figures", "problem.toml", "report.html", "trajectory.npz", "verdicts.json"]


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Few claims, and the suite's compile cache after a test that has another."""
    monkeypatch.setattr(papers, "ALL_CLAIMS", FEW)
    names = [name for name in jax.config.values if "compilation_cache" in name or "persistent_cache" in name]
    before = {name: jax.config.values[name] for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture
def file(tmp_path) -> pathlib.Path:
    path = tmp_path / "problem.toml"
    path.write_text(PROBLEM)
    return path


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> pathlib.Path:
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "problem.toml").write_text(PROBLEM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(papers, "ALL_CLAIMS", FEW)
        assert run(folder / "problem.toml", folder / "out") == 0
    return folder / "out"


def run(file: pathlib.Path, out: pathlib.Path, *options: str) -> int:
    return main.main(["run", str(file), "--out", str(out), *options])


def one_line(capsys) -> str:
    """The only line on standard error; nothing is on standard output."""
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1
    return lines[0]


def listing(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def unchanged(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
    """What would tell that a file was written again."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}


@pytest.mark.slow
def test_two_runs_are_not_at_work_in_one_folder(file, finished, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    with held(out) as alone:
        assert alone
        before = unchanged(out)
        for options in ((), ("--resume",)):
            assert run(file, out, *options) == 2
            assert one_line(capsys) == (
                f"flowsim: --out must be a folder in which no other run is at work, but one is in {out}"
            )
        assert unchanged(out) == before
    # The lock of a process that was killed is no lock.
    (out / ".lock").touch()
    assert run(file, out, "--resume", "--quiet") == 0
    assert listing(out) == RESULTS


def test_a_run_in_python_is_that_of_the_command_line(finished, tmp_path):
    problem, out = ProblemSpec.from_toml(PROBLEM).build(), tmp_path / "out"
    found = flowsim.run(problem, out)
    assert listing(out) == ["problem.toml", "trajectory.npz", "verdicts.json"]
    for name in listing(out):
        assert (out / name).read_bytes() == (finished / name).read_bytes(), name
    rows = json.loads((out / "verdicts.json").read_text())["claims"]
    assert [row["id"] for row in rows] == [verdict.id for verdict in found.verdicts] and rows
    before = unchanged(out)
    with pytest.raises(ProblemError, match="--out must be a folder without a run"):
        flowsim.run(problem, out)
    assert unchanged(out) == before
    again = flowsim.run(problem, out, claims="*.lemma-5.4.*", resume=True)
    assert [verdict.id for verdict in again.verdicts] == ["zhang2023.lemma-5.4.pl"]
    assert again.trajectory.t.tolist() == found.trajectory.t.tolist()


# Bad input.


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "task.covariance=[[1,2],[2,1]]",
            "task.covariance must be positive definite, but its smallest eigenvalue is -1",
        ),
        ("task.context_length=0", "task.context_length must be a whole number of at least 1"),
        ("init.scale=-1", "init.scale must be a positive number, but it is -1"),
        ("init.theta=[[0],[0]]", "init.theta must be not zero"),
        ("flow.times=[1,-1]", "flow.times must be positive"),
        ("model.architecture=linear-atention", 'did you mean "linear-attention"?'),
        ("test={length=0}", "test.length must be a whole number of at least 1"),
        ("test={length=5,scale=0}", "test.scale must be a positive number, but it is 0"),
        ("task.covarience=3", 'did you mean "covariance"?'),
        ("init.scale", "--set must be FIELD=VALUE"),
    ],
)
@pytest.mark.parametrize("command", ["run", "init"])
def test_bad_input_is_one_line_and_writes_nothing(command, override, message, file, tmp_path, capsys):
    options = ["--out", str(tmp_path / "out")] if command == "run" else []
    assert main.main([command, str(file), *options, "--set", override]) == 2
    assert message in one_line(capsys)
    assert listing(tmp_path) == ["problem.toml"]


@pytest.mark.parametrize(("content", "message"), [(None, "No such file"), (b"\xff\xfe", "UTF-8"), (b"[task", "TOML")])
def test_an_unreadable_problem(content, message, tmp_path, capsys):
    path = tmp_path / "p.toml"
    if content is not None:
        path.write_bytes(content)
    assert run(path, tmp_path / "out") == 2
    assert message in one_line(capsys)
    assert not (tmp_path / "out").exists()


def test_an_output_folder_that_cannot_be(file, tmp_path, capsys):
    (tmp_path / "occupied").write_text("a file")
    for out in (tmp_path / "occupied", tmp_path / "occupied" / "out"):
        assert run(file, out) == 2
        line = one_line(capsys)
        assert line.startswith("flowsim: --out must be a folder that can be written")
        assert str(out) in line
    assert (tmp_path / "occupied").read_text() == "a file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_folder_without_permission(file, tmp_path, capsys):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    for out in (locked, locked / "out"):
        assert run(file, out) == 2
        assert "Permission denied" in one_line(capsys)
    assert listing(locked) == []


@pytest.mark.slow
def test_a_folder_with_another_run(finished, file, capsys):
    before = unchanged(finished)
    assert run(file, finished) == 2
    line = one_line(capsys)
    assert "--resume" in line
    assert "another" in line
    assert run(file, finished, "--resume", "--set", "init.scale=0.31") == 2
    assert "init.scale differs" in one_line(capsys)
    assert unchanged(finished) == before


def test_float64_switched_off_by_the_environment(monkeypatch, file, tmp_path, capsys):
    monkeypatch.setenv("JAX_ENABLE_X64", "0")
    with pytest.raises(SystemExit) as stop:
        run(file, tmp_path / "out")
    assert stop.value.code == 2
    assert "float64 must be switched on, but JAX_ENABLE_X64" in one_line(capsys)
    assert listing(tmp_path) == ["problem.toml"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "zhang2023.lemma-5.4.pk"], 'did you mean "zhang2023.lemma-5.4.pl"?'),
        (["audit", "--paper", "zhang2024"], 'did you mean "zhang202'),
        (["check", "zhang2023.lemma-5.4.pl", "--set", "task.covarience=1"], 'did you mean "covariance"?'),
    ],
)
def test_an_unknown_claim_or_paper(arguments, message, capsys):
    assert main.main(arguments) == 2
    assert message in one_line(capsys)


def test_an_epsilon_that_is_none(file, capsys):
    assert main.main(["init", str(file), "--epsilon", "0"]) == 2
    assert "--epsilon must be positive" in one_line(capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["init.scal=0.1,0.2"], 'init.scal is not a known field; did you mean "init.scale"?'),
        (["init.scale=geom:0:1:3"], "init.scale"),
        (["init.scale=0.1", "--claims", "zhang2023.lemma-9.*"], "zhang2023.lemma-9.*"),
        (["init.scale=0.1", "--coordinator", "localhost:1"], "--explore must be left out with --coordinator"),
    ],
)
def test_sliders_that_cannot_be_are_refused_before_a_run(arguments, message, file, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_module, "run_in", lambda *_, **__: pytest.fail("it was integrated"))
    assert run(file, tmp_path / "out", "--explore", *arguments) == 2
    assert message in one_line(capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments", [[], ["--rum"], ["run", "p.toml"], ["run", "p.toml", "--out", "x", "--format", "gif"]]
)
def test_unknown_arguments_end_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main.main(arguments)
    assert stop.value.code == 2
    assert not pathlib.Path("x").exists()


# Speed of what needs no mathematics.


def test_help_imports_nothing_heavy():
    script = """
import sys
from flowsim.cli.main import main
for command in ([], ["run"], ["init"], ["claims"], ["check"], ["audit"], ["sweep"]):
    try:
        main([*command, "--help"])
    except SystemExit as stop:
        assert stop.code == 0
heavy = {"jax", "numpy", "matplotlib", "equinox", "diffrax", "jinja2"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert child.returncode == 0, child.stderr
    for word in (
        "PROBLEM.toml",
        "--out",
        "--set",
        "--resume",
        "--strict",
        "--format",
        "CLAIM_ID",
        "--paper",
        "--over",
        "--disk-budget",
    ):
        assert word in child.stdout


# What a run leaves.


def test_a_finished_run(finished):
    assert listing(finished) == RESULTS
    spec = ProblemSpec.from_toml((finished / "problem.toml").read_text())
    assert spec == ProblemSpec.from_toml(PROBLEM)
    trajectory = Trajectory.load(finished / "trajectory.npz")
    assert set(TIMES) <= set(np.asarray(trajectory.t).tolist())
    document = json.loads((finished / "verdicts.json").read_text())
    assert list(document) == ["problem", "status", "certificates", "versions", "constants", "limits", "claims"]
    assert document["status"] == "stopped-excess"
    assert document["problem"]["init"]["scale"] == 0.3
    assert document["constants"]["mu"] > 0
    assert np.shape(document["limits"]["U11"]) == (2, 2)
    assert {(claim["id"], claim["form"]): claim["verdict"] for claim in document["claims"]} == {
        (claim.id, claim.form): "holds" for claim in FEW if claim.along_flow
    }
    assert all(path.suffix == ".png" for path in (finished / "figures").iterdir())
    assert "<html" in (finished / "report.html").read_text()


@pytest.mark.slow
def test_claims_that_read_no_flow_are_judged_where_they_are_asked_for(finished, file, tmp_path):
    folder = pathlib.Path(shutil.copytree(finished, tmp_path / "copy"))

    def judged(*options):
        assert run(file, folder, "--resume", "--quiet", *options) == 0
        return [claim["id"] for claim in json.loads((folder / "verdicts.json").read_text())["claims"]]

    alone = [claim.id for claim in FEW if not claim.along_flow]
    assert alone
    assert not set(alone) & set(judged())
    assert judged("--all-claims") == [claim.id for claim in FEW]
    assert judged("--claims", alone[0]) == alone[:1]


def test_the_version_by_either_way_to_call_the_command(capsys):
    line = f"flowsim {VERSION}\n"
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == line
    command = [sys.executable, "-m", "flowsim", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == line


@pytest.mark.slow
def test_what_a_run_prints(finished, file, capsys):
    assert run(file, finished, "--resume", "--quiet") == 0
    assert capsys.readouterr().out == f"report: {finished / 'report.html'}\n"
    assert run(file, finished, "--resume") == 0
    out = capsys.readouterr().out
    for words in ("stopped: excess", "lemma-5.4.pl", "2 claims: 2 hold", "sharp mu", "end point", "Hessian"):
        assert words in out
    assert run(file, finished, "--resume", "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads((finished / "verdicts.json").read_text())


def test_a_resumed_run_that_was_complete_is_not_integrated_again(finished, file, monkeypatch):
    def fail(self, **how):
        raise AssertionError("integrated again")

    before = unchanged(finished)["trajectory.npz"]
    verdicts = (finished / "verdicts.json").read_text()
    monkeypatch.setattr(Problem, "run", fail)
    assert run(file, finished, "--resume", "--quiet") == 0
    assert unchanged(finished)["trajectory.npz"] == before
    assert (finished / "verdicts.json").read_text() == verdicts
    assert listing(finished) == RESULTS


@pytest.mark.slow
def test_a_run_with_a_test(file, finished, tmp_path, capsys):
    """The risk on other prompts is written, drawn, printed and reported, and is the one that Theorem 4.2 ends at."""
    out = tmp_path / "out"
    options = ("--set", "test.length=20", "--set", "test.label_noise=0.3")
    assert run(file, out, *options) == 0
    assert listing(out) == sorted([*RESULTS, "test_risk.npz"])
    assert (out / "trajectory.npz").read_bytes() == (finished / "trajectory.npz").read_bytes()
    problem = ProblemSpec.from_toml((out / "problem.toml").read_text()).build()
    assert problem.test is not None
    trajectory = Trajectory.load(out / "trajectory.npz")
    with np.load(out / "test_risk.npz", allow_pickle=False) as tested:
        np.testing.assert_array_equal(tested["t"], trajectory.t)
        for index in (0, 40, -1):
            expected = risk(trajectory.row(index), problem.test, 20)
            np.testing.assert_allclose(tested["risk"][index], expected, rtol=1e-13)
        assert tested["best_linear_error"] == pytest.approx(0.09, rel=1e-14)
        end = float(tested["risk"][-1])
        np.testing.assert_allclose(tested["limit"], end, rtol=1e-5)
    assert f"risk at the end on prompts of length 20: {end:.6g}; " in capsys.readouterr().out
    page = (out / "report.html").read_text()
    assert "risk at the end on prompts of length 20" in page and "label_noise = 0.3" in page
    assert "Theorem 4.2, (4.6)" in page
    assert (out / "figures" / "test_risk.png").stat().st_size > 1000
    assert run(file, out, "--resume", "--quiet", "--set", "test.length=21") == 2
    assert "test.l" in capsys.readouterr().err


@pytest.mark.slow
def test_a_budget_that_runs_out(file, tmp_path, capsys):
    out, long = tmp_path / "out", ("--set", "flow.solver=explicit", "--set", "flow.rtol=1e-12")
    assert run(file, out, *long, "--set", "flow.budget_seconds=1e-9") == 3
    assert "continue with --resume" in capsys.readouterr().out
    assert listing(out) == sorted([*RESULTS, "checkpoint"])
    document = json.loads((out / "verdicts.json").read_text())
    assert document["status"] == "budget-spent"
    verdicts = {claim["id"]: claim["verdict"] for claim in document["claims"]}
    assert verdicts["zhang2023.lemma-5.4.pl"] == "unresolved"
    assert not Trajectory.load(out / "trajectory.npz").status.finished
    assert run(file, out, "--resume", "--quiet", *long) == 0
    assert run(file, tmp_path / "whole", "--quiet", *long) == 0
    assert (out / "trajectory.npz").read_bytes() == (tmp_path / "whole" / "trajectory.npz").read_bytes()
    assert listing(out) == RESULTS


def test_strict_tells_a_violation_by_the_status(file, finished, monkeypatch, capsys):
    false = Claim(
        "planted.false",
        "nowhere",
        "|grad l|^2 >= 1000 (l - min l)",
        lambda loss, trajectory: polyak_lojasiewicz(trajectory, jnp.asarray(1e3)),
        problems=({"task": {"covariance": [[1.0]], "context_length": 5}, "init": {"scale": 0.3}},),
    )
    monkeypatch.setattr(papers, "ALL_CLAIMS", (false,))
    for command in (["check", "planted.false"], ["audit"]):
        assert main.main(command) == 0
        assert "violated" in capsys.readouterr().out
        assert main.main([*command, "--strict"]) == 1


@pytest.mark.slow
def test_figures_in_another_format(file, tmp_path):
    assert run(file, tmp_path / "out", "--quiet", "--format", "svg") == 0
    assert {path.suffix for path in (tmp_path / "out" / "figures").iterdir()} == {".svg"}


# A run that is stopped.


@pytest.mark.parametrize("failing", ["trajectory.npz", "verdicts.json", "report.html", "excess.png"])
@pytest.mark.slow
def test_a_full_disk_leaves_whole_files(failing, finished, file, tmp_path, monkeypatch, capsys):
    def replace(source, target):
        if pathlib.Path(target).name == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.rename(source, target)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("flowsim.flow.trajectory.os.replace", replace)
        assert run(file, out, "--quiet") == 3
    line = one_line(capsys)
    assert "No space left on device" in line
    assert "--resume" in line
    assert not list(out.rglob(f"*{failing}*"))
    assert run(file, out, "--resume", "--quiet") == 0
    assert listing(out) == RESULTS
    for name in ("trajectory.npz", "verdicts.json", "problem.toml"):
        assert (out / name).read_bytes() == (finished / name).read_bytes()


# Runs the command line and gets a signal just before a file of that name gets its name: the new file is complete
# under a temporary name, the old one, if there was one, is still there.
CHILD = """
import os, signal, sys
rename = os.replace
def replace(source, target):
    if sys.argv[1] and str(target).endswith(sys.argv[1]):
        os.kill(os.getpid(), int(sys.argv[2]))
    rename(source, target)
os.replace = replace
import flowsim.papers
flowsim.papers.ALL_CLAIMS = tuple(c for c in flowsim.papers.ALL_CLAIMS if c.id in sys.argv[3].split(","))
from flowsim.cli.main import main
sys.exit(main(sys.argv[4:]))
"""


def child(
    file: pathlib.Path, out: pathlib.Path, at: str = "", number: int = signal.SIGKILL, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    ids = ",".join(claim.id for claim in FEW)
    arguments = [at, str(int(number)), ids, "run", str(file), "--out", str(out), "--resume", "--quiet"]
    command = [sys.executable, "-c", CHILD, *arguments]
    # What the command line sets before it imports JAX, which the child has imported by then.
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


@pytest.mark.slow
def test_a_killed_run_goes_on_bit_for_bit(finished, file, tmp_path):
    out = tmp_path / "out"
    for at in ("problem.toml", "checkpoint/flow/chunk-00000.npz", "trajectory.npz"):
        assert child(file, out, at).returncode == -signal.SIGKILL
        assert not (out / at).exists()
    # And at a moment that nothing chose: a child that takes too long is killed.
    with contextlib.suppress(subprocess.TimeoutExpired):
        child(file, out, timeout=random.Random(0).uniform(2, 8))
    last = child(file, out)
    assert last.returncode == 0, last.stderr
    assert listing(out) == RESULTS
    for name in ("trajectory.npz", "verdicts.json"):
        assert (out / name).read_bytes() == (finished / name).read_bytes()


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(file, tmp_path):
    out = tmp_path / "out"
    interrupted = child(file, out, "checkpoint/flow/chunk-00000.npz", signal.SIGINT)
    assert interrupted.returncode == 130
    assert interrupted.stdout == ""
    words = "interrupted; a run continues with --resume, a search with the same command"
    assert interrupted.stderr == f"\nflowsim: {words}\n"
    # The lock of a process that has ended keeps nobody out.
    assert listing(out) == [".lock", "checkpoint", "problem.toml"]


# The other commands.


def test_init_in_words_and_in_json(file, tmp_path, capsys):
    assert main.main(["init", str(file)]) == 0
    words = capsys.readouterr().out
    for name in ("Theta Theta^T|_F = 1", "sigma^2 |Gamma|_op sqrt(d) < 2", "mu (5.7)", "(A.14)", "(5.9)", "local rate"):
        assert name in words
    assert main.main(["init", str(file), "--json", "--epsilon", "1e-3", "--set", "init.scale=5"]) == 0
    document = json.loads(capsys.readouterr().out)
    conditions = {condition["name"]: condition for condition in document["hypotheses"]}
    assert len(conditions) == 8
    scale = conditions["sigma^2 |Gamma|_op sqrt(d) < 2"]
    assert (scale["relation"], scale["bound"], scale["met"]) == ("<", 2.0, False)
    assert document["guaranteed_time"] == {"epsilon": 1e-3, "t": None}
    assert document["constants"]["u_lower_bound"] is None
    np.testing.assert_allclose(document["gamma"], 1.1 * np.array([[0.5, 0.1], [0.1, 1]]) + 0.15 * np.eye(2))
    # The formula of mu is positive at a start that is not balanced, of which the theorem says nothing.
    random = ["--set", 'init={kind = "random", scale = 0.3, seed = 2}']
    assert main.main(["init", str(file), "--json", *random]) == 0
    document = json.loads(capsys.readouterr().out)
    assert not all(condition["met"] for condition in document["hypotheses"])
    assert document["constants"]["mu"] > 0
    assert document["guaranteed_time"]["t"] is None
    assert listing(tmp_path) == ["problem.toml"]


@pytest.mark.parametrize(
    "law",
    [
        "family = 'exponential', rate = [1.0, 2.0]",
        "family = 'wishart', mean = [[1.0, 0.3], [0.3, 0.5]], degrees = 4, samples = 64",
    ],
    ids=["exponential", "wishart"],
)
@pytest.mark.slow
def test_a_run_on_random_covariances(law, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(papers, "ALL_CLAIMS", tuple(find_claims(ALL_CLAIMS, "zhang2023.lemma-c.5")))
    path, out = tmp_path / "problem.toml", tmp_path / "out"
    path.write_text(f"[task]\ncontext_length = 10\ncovariance_law = {{{law}}}\n[init]\nscale = 0.2\n[test]\nlength = 5")
    assert main.main(["run", str(path), "--out", str(out), "--quiet"]) == 0
    document = json.loads((out / "verdicts.json").read_text())
    assert [claim["verdict"] for claim in document["claims"]] == ["holds"]
    assert (document["constants"]["mu"] is None) == ("exponential" not in law)
    assert {figure.stem for figure in (out / "figures").iterdir()} >= {
        "excess",
        "distance",
        "scale-condition",
        "test_risk",
    }
    with np.load(out / "test_risk.npz") as file:
        np.testing.assert_allclose(file["risk"][-1], file["limit"], rtol=1e-5)


def test_init_says_how_long_prompts_must_be(file, capsys):
    identity = ["--set", "task.covariance=identity", "--set", "task.dimension=2"]
    assert main.main(["init", str(file), "--json", "--risk", "0.01", *identity]) == 0
    lengths = json.loads(capsys.readouterr().out)["prompt_lengths"]
    assert (lengths["sufficient_test_length"], lengths["sufficient_context_length"]) == (1200, 60)
    assert (lengths["test_length"], lengths["smallest_context_length"]) == (996, 40)
    assert main.main(["init", str(file), "--risk", "0.01", *identity]) == 0
    assert "smallest M at N = 60" in capsys.readouterr().out
    assert main.main(["init", str(file), "--risk", "-1"]) == 2
    assert "--risk: epsilon must be positive" in one_line(capsys)


def test_init_with_random_covariances(tmp_path, capsys):
    path = tmp_path / "problem.toml"
    law = '{family = "exponential", rate = 1.0, dimension = 2}'
    path.write_text(f"[task]\ncontext_length = 10\ncovariance_law = {law}\n[init]\nscale = 0.1\n")
    assert main.main(["init", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(document["xi"], [2.0, 2.0])
    np.testing.assert_allclose(document["gamma"], [6 + 1.4, 6 + 1.4])  # (1 + 1/N) 6 + (6 + 2)/N
    assert any("E[|Gamma|_op |Lambda|_F^2]" in condition["name"] for condition in document["hypotheses"])
    assert main.main(["init", str(path)]) == 0
    assert "nu (C.13)" in capsys.readouterr().out
    assert main.main(["init", str(path), "--risk", "0.1"]) == 2
    assert "--risk must be left out where no paper says how long prompts must be" in one_line(capsys)


def test_claims_in_words_and_in_json(monkeypatch, capsys):
    monkeypatch.setattr(papers, "ALL_CLAIMS", ALL_CLAIMS)
    assert main.main(["claims", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(entry["id"], entry["form"]) for entry in listed] == [(claim.id, claim.form) for claim in ALL_CLAIMS]
    assert all(set(entry) == {"id", "source", "form", "statement", "latex"} for entry in listed)
    assert main.main(["claims"]) == 0
    words = capsys.readouterr().out
    assert all(entry["id"] in words and entry["statement"] in words for entry in listed)


def test_check_takes_a_claim_or_all_its_parts(monkeypatch, capsys):
    problems = ({"name": "easy", "task": {"covariance": [[1.0]], "context_length": 5}, "init": {"scale": 0.3}},)
    monkeypatch.setattr(papers, "ALL_CLAIMS", tuple(dataclasses.replace(claim, problems=problems) for claim in FEW))
    assert main.main(["check", "zhang2023.lemma-5.4", "--json", "--set", "flow.rtol=1e-5"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [claim["id"] for claim in document["claims"]] == ["zhang2023.lemma-5.4.pl"]
    claim = document["claims"][0]
    assert claim["verdict"] == "holds"
    assert claim["problem"]["flow"]["rtol"] == 1e-5
    assert claim["status"] == "stopped-excess"
    assert main.main(["check", "zhang2023.lemma-5.1"]) == 0
    words = capsys.readouterr().out
    assert "[task] covariance = [[1.0]], context_length = 5" in words
    assert "zhang2023.lemma-5.1" in words


@pytest.mark.slow
def test_audit_writes_an_entry_for_every_claim_and_problem(monkeypatch, tmp_path, capsys):
    problems = tuple(
        {"task": {"covariance": [[1.0]], "context_length": 5}, "init": {"scale": scale}} for scale in (0.1, 0.3)
    )
    monkeypatch.setattr(papers, "ALL_CLAIMS", tuple(dataclasses.replace(claim, problems=problems) for claim in FEW))
    assert main.main(["audit", "--paper", "zhang2023", "--out", str(tmp_path / "a" / "b"), "--json"]) == 0
    document = json.loads((tmp_path / "a" / "b" / "verdicts.json").read_text())
    assert json.loads(capsys.readouterr().out) == document
    assert len(document["claims"]) == 2 * len(FEW)
    page = (tmp_path / "a" / "b" / "claims" / "zhang2023.md").read_text()
    assert all(f"## {claim.id} ({claim.form})" in page for claim in FEW)
    statuses = {claim["id"]: claim["status"] for claim in document["claims"]}
    assert statuses["zhang2023.lemma-5.1"] == "not-integrated"
    assert statuses["zhang2023.lemma-a.3"] == "stopped-excess"
    assert {claim["problem"]["init"]["scale"] for claim in document["claims"]} == {0.1, 0.3}
    (tmp_path / "occupied").write_text("a file")
    capsys.readouterr()
    assert main.main(["audit", "--out", str(tmp_path / "occupied")]) == 2
    assert "--out must be a folder" in one_line(capsys)


@pytest.mark.slow
def test_audit_skips_problems_to_which_an_override_does_not_apply_and_counts_them(monkeypatch, tmp_path, capsys):
    problems = tuple(
        {"name": str(n), "task": {"covariance": [[1.0]], "context_length": n}, "init": {"scale": 0.3}}
        for n in (5, 7, "inf", 10**6)
    )
    chosen = [claim for claim in FEW if claim.id == "zhang2023.lemma-5.1"]
    monkeypatch.setattr(papers, "ALL_CLAIMS", tuple(dataclasses.replace(claim, problems=problems) for claim in chosen))
    sampled = ["--set", "loss.kind=monte-carlo", "--set", "loss.samples=512", "--set", "loss.method=covariances"]
    assert main.main(["audit", "--out", str(tmp_path), *sampled]) == 0
    words = capsys.readouterr().out
    assert "do not apply to the problem: 2\n" in words
    assert "1: task.context_length must be finite with" in words
    assert "1: task.context_length must be at most 100000 with" in words
    document = json.loads((tmp_path / "verdicts.json").read_text())
    found = [
        (claim["problem"]["task"]["context_length"], claim["problem"]["loss"]["samples"])
        for claim in document["claims"]
    ]
    assert found == [(5, 512), (7, 512)]
    # An override that applies to no problem is a slip.
    assert main.main(["audit", "--set", "loss.knd=monte-carlo"]) == 2
    assert "loss.knd is not a known field" in one_line(capsys)


# The compile cache.


def test_a_cache_that_cannot_be_written_is_done_without(file, tmp_path, monkeypatch, capsys):
    (tmp_path / "occupied").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "occupied"))
    assert main.main(["init", str(file)]) == 0
    assert capsys.readouterr().err == ""
