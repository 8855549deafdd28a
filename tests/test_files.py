"""Files of results: what is of another problem is refused, what is damaged is named, and what is whole is used."""

import pathlib
import shutil

import pytest

from flowsim import _commands, cli
from flowsim.analysis import ALL_CLAIMS
from flowsim.problem import ProblemSpec
from flowsim.trajectory import Trajectory

PROBLEM = """
[task]
context_length = 10
covariance = [[0.5, 0.1], [0.1, 1]]
[init]
scale = 0.3
[flow]
rtol = 1e-6
times = [0.5, 1.0]
"""
FEW = tuple(claim for claim in ALL_CLAIMS if claim.id == "zhang2023.lemma-5.4.pl")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(_commands, "ALL_CLAIMS", FEW)
    monkeypatch.setattr(_commands, "_draw", lambda *arguments: None)


@pytest.fixture
def file(tmp_path) -> pathlib.Path:
    path = tmp_path / "problem.toml"
    path.write_text(PROBLEM)
    return path


def run(file: pathlib.Path, out: pathlib.Path, *options: str) -> int:
    return cli.main(["run", str(file), "--out", str(out), "--quiet", *options])


def one_line(capsys) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    return line


# Of another problem.


@pytest.mark.parametrize("options", [(), ("--resume",)], ids=["", "resume"])
@pytest.mark.parametrize("saved", ["by a run", "by hand"])
def test_a_trajectory_of_another_problem_is_refused_and_nothing_is_written(saved, options, file, tmp_path, capsys):
    other, out = tmp_path / "other", tmp_path / "out"
    out.mkdir()
    if saved == "by a run":
        assert run(file, other, "--set", "init.scale=0.4") == 0
        shutil.copy(other / "trajectory.npz", out)
    else:
        problem = ProblemSpec.from_toml(PROBLEM).build()
        problem.run().save(out / "trajectory.npz")
    assert run(file, out, *options) == 2
    line = one_line(capsys)
    assert line.startswith("flowsim: --out must be a folder without the flow of another problem")
    assert str(out / "trajectory.npz") in line
    assert [path.name for path in out.iterdir()] == ["trajectory.npz"]
    # Who asks for that very file gets it.
    assert Trajectory.load(out / "trajectory.npz").status.finished


def test_a_trajectory_of_the_same_problem_is_used(file, tmp_path):
    assert run(file, tmp_path / "one") == 0
    (tmp_path / "two").mkdir()
    shutil.copy(tmp_path / "one" / "trajectory.npz", tmp_path / "two")
    # Neither changes the flow.
    changes = ("--set", "test.length=20", "--set", "flow.budget_seconds=100")
    assert run(file, tmp_path / "two", *changes) == 0
    before, after = ((tmp_path / name / "trajectory.npz").read_bytes() for name in ("one", "two"))
    assert before == after


def test_the_identity_of_a_problem_is_that_of_its_flow():
    spec = ProblemSpec.from_toml(PROBLEM)
    same = [("test.length=3",), ("flow.budget_seconds=3",), ("model.architecture=linear-attention",)]
    assert {ProblemSpec.from_toml(PROBLEM, change).identity for change in same} == {spec.identity}
    other = ["init.scale=0.30000000000000004", "flow.rtol=1e-7", "flow.times=[1.0]", "task.context_length=11"]
    assert len({spec.identity, *(ProblemSpec.from_toml(PROBLEM, [change]).identity for change in other)}) == 5


def test_chunks_of_another_problem_are_refused(file, tmp_path, capsys):
    other, out = tmp_path / "other", tmp_path / "out"
    assert run(file, other, "--set", "init.scale=0.4", "--set", "flow.budget_seconds=1e-9") == 3
    shutil.copytree(other / "checkpoint", out / "checkpoint")
    capsys.readouterr()
    for options in ((), ("--resume",)):
        assert run(file, out, *options) == 2
        line = one_line(capsys)
        assert "checkpoint must be empty or of this same run, but" in line and "chunk-00000.npz is of another" in line
        assert [path.name for path in out.iterdir()] == ["checkpoint"]
