"""Files of results: what is of another problem is refused, what is damaged is named, and what is whole is used."""

import pathlib
import shutil

import numpy as np
import pytest

from flowsim import papers
from flowsim._core.files import DamagedFileError, read_arrays, read_sealed, write_arrays, write_sealed
from flowsim.cli import main
from flowsim.experiments.sweep import maps
from flowsim.flow.trajectory import Trajectory
from flowsim.papers import ALL_CLAIMS
from flowsim.problem import ProblemSpec
from flowsim.report import drawing

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
LONG = PROBLEM.replace("rtol = 1e-6", 'rtol = 1e-13\nsolver = "explicit"')  # several chunks of steps
FEW = tuple(claim for claim in ALL_CLAIMS if claim.id == "zhang2023.lemma-5.4.pl")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(papers, "ALL_CLAIMS", FEW)
    monkeypatch.setattr(drawing, "draw_run", lambda *arguments, **options: {})


@pytest.fixture
def file(tmp_path) -> pathlib.Path:
    path = tmp_path / "problem.toml"
    path.write_text(PROBLEM)
    return path


def run(file: pathlib.Path, out: pathlib.Path, *options: str) -> int:
    return main.main(["run", str(file), "--out", str(out), "--quiet", *options])


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
    assert line.startswith("flowsim: --out must be empty or of this same problem")
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


@pytest.mark.slow
def test_chunks_of_another_problem_are_refused(file, tmp_path, capsys):
    other, out = tmp_path / "other", tmp_path / "out"
    file.write_text(LONG)
    assert run(file, other, "--set", "init.scale=0.4", "--set", "flow.budget_seconds=1e-9") == 3
    shutil.copytree(other / "checkpoint", out / "checkpoint")
    capsys.readouterr()
    for options in ((), ("--resume",)):
        assert run(file, out, *options) == 2
        line = one_line(capsys)
        assert "checkpoint must be empty or of this same run, but" in line
        assert "chunk-00000.npz belongs to another run" in line
        assert [path.name for path in out.iterdir()] == ["checkpoint"]


# Damaged.


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]


def test_a_wrong_byte_anywhere_in_an_archive_is_seen_or_changes_nothing(tmp_path):
    path, arrays = tmp_path / "a.npz", {"t": np.arange(5.0), "word": np.asarray("three"), "none": np.zeros((0, 2))}
    write_arrays(path, arrays)
    content, seen = path.read_bytes(), 0
    for place in range(len(content)):
        path.write_bytes(flipped(content, place))
        try:
            found = read_arrays(path)
        except DamagedFileError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            seen += 1
        else:
            # A date, say.
            assert set(found) == set(arrays)
            assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
    assert seen > len(content) / 2
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedFileError):
            read_arrays(path)


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory) -> tuple[pathlib.Path, pathlib.Path, bytes]:
    """The problem, the folder of a run of it that ended early, and the trajectory that it should come to."""
    folder = tmp_path_factory.mktemp("unfinished")
    file, out = folder / "problem.toml", folder / "out"
    file.write_text(LONG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(papers, "ALL_CLAIMS", FEW)
        patch.setattr(drawing, "draw_run", lambda *arguments, **options: {})
        for _ in range(2):
            assert run(file, out, "--resume", "--set", "flow.budget_seconds=1e-9") == 3
        assert run(file, folder / "whole") == 0
    return file, out, (folder / "whole" / "trajectory.npz").read_bytes()


DAMAGES = {
    # In an array, where there is one: some bytes of an archive mean nothing.
    "flipped": lambda content: flipped(content, content.find(b"NUMPY") + 40),
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "other": lambda content: b'{"other": [1, 2]}',
    "no text": lambda content: b"\xff\xfe\x00",
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name", ["problem.toml", "trajectory.npz", "checkpoint/flow/chunk-00000.npz", "checkpoint/flow/chunk-00001.npz"]
)
def test_a_run_goes_on_from_what_is_whole(name, damage, unfinished, tmp_path, capsys):
    file, before, whole = unfinished
    out = tmp_path / "out"
    shutil.copytree(before, out)
    (out / name).write_bytes(DAMAGES[damage]((out / name).read_bytes()))
    capsys.readouterr()
    code = run(file, out, "--resume")
    line = one_line(capsys)
    assert str(out / name) in line
    # A problem that can be read but is another one is no damage.
    assert code == 0 or (code == 2 and name == "problem.toml" and "differs" in line)
    if code == 0:
        assert "is damaged" in line
        assert (out / "trajectory.npz").read_bytes() == whole


def test_a_finished_trajectory_that_is_damaged_is_integrated_again(unfinished, tmp_path, capsys):
    file, _, whole = unfinished
    assert run(file, tmp_path) == 0
    (tmp_path / "trajectory.npz").write_bytes(flipped(whole, 1000))
    capsys.readouterr()
    assert run(file, tmp_path, "--resume") == 0
    assert str(tmp_path / "trajectory.npz") in one_line(capsys)
    assert (tmp_path / "trajectory.npz").read_bytes() == whole


# Sweeps and searches.


def sweep(file: pathlib.Path, out: pathlib.Path, *options: str) -> int:
    return main.main(["sweep", str(file), "--over", "init.scale=0.1,0.3", "--out", str(out), "--quiet", *options])


@pytest.fixture
def swept(file, tmp_path, monkeypatch, capsys) -> pathlib.Path:
    """A sweep with its batches, that could not write its map."""

    def full(self):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(maps.Map, "save", full)
        assert sweep(file, tmp_path / "map") == 3
    capsys.readouterr()
    monkeypatch.setattr("flowsim.report.plots.maps.draw", lambda *arguments, **named: None)
    return tmp_path / "map"


@pytest.mark.slow
def test_a_sweep_goes_on_from_what_is_whole(swept, file, capsys):
    for name in ("sweep.json", "cells/batch-00000.npz"):
        (swept / name).write_bytes(DAMAGES["cut"]((swept / name).read_bytes()))
    assert sweep(file, swept, "--resume") == 0
    lines = capsys.readouterr().err.splitlines()
    assert [name for line in lines for name in ("sweep.json", "batch-00000.npz") if name in line] == [
        "sweep.json",
        "batch-00000.npz",
    ]
    whole = (swept / "map.npz").read_bytes()
    (swept / "map.npz").write_bytes(flipped(whole, 1000))
    assert sweep(file, swept, "--resume") == 0
    assert str(swept / "map.npz") in one_line(capsys)
    assert (swept / "map.npz").read_bytes() == whole


@pytest.mark.slow
def test_other_contents_of_a_sweep_are_refused(swept, file, tmp_path, capsys):
    other = ("--resume", "--set", "init.kind=unbalanced")
    for content in ("[]", "{}", '{"axes": 3, "problem": 4}', '{"axes": [], "problem": {}}', "3"):
        (swept / "sweep.json").write_text(content)
        assert sweep(file, swept, *other) == 2
        assert str(swept) in one_line(capsys)
        assert (swept / "sweep.json").read_text() == content


@pytest.mark.slow
def test_the_map_of_another_sweep_is_refused(swept, file, tmp_path, capsys):
    assert sweep(file, swept, "--resume") == 0
    (tmp_path / "stray").mkdir()
    shutil.copy(swept / "map.npz", tmp_path / "stray")
    for options in ((), ("--resume",)):
        assert sweep(file, tmp_path / "stray", "--set", "task.context_length=11", *options) == 2
        assert "map.npz belongs to another" in one_line(capsys)
    assert [path.name for path in (tmp_path / "stray").iterdir()] == ["map.npz"]


OTHERS = ["", "[]", "{}", '{"search": 3}', "3", "[" * 100_000, '{"seconds": 1e999}', "\udcff"]


@pytest.mark.parametrize("content", OTHERS, ids=range(len(OTHERS)))
def test_other_contents_of_a_search_are_refused(content, tmp_path, capsys):
    (tmp_path / "search.json").write_text(content, errors="surrogateescape")
    assert main.main(["refute", "zhang2023.lemma-5.4.pl", "--out", str(tmp_path), "--quiet"]) == 2
    assert str(tmp_path / "search.json") in one_line(capsys)


def test_a_search_with_a_changed_digit_is_refused(tmp_path):
    file = tmp_path / "search.json"
    document = {"origin": None, "seconds": 1.5, "units": [{"margins": [[0.25, None, np.inf]]}]}
    write_sealed(file, document)
    assert read_sealed(file) == document
    file.write_text(file.read_text().replace("0.25", "0.35"))
    with pytest.raises(DamagedFileError, match="its checksum does not match its content"):
        read_sealed(file)
