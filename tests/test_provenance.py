"""What is kept says what computed it, and nothing else goes on with it: neither an edited claim nor other software; and
what hostile files and folders do.
"""

import json
import os
import platform
import shutil
import subprocess
import sys

import numpy as np
import pytest
from helpers import weight

import flowsim
from flowsim._core import documents
from flowsim._core.files import DamagedFileError, held, read_arrays, remove_parts_of_the_dead
from flowsim.claims import Evidence, Judgement
from flowsim.claims.deciding.judging import judge_or_note
from flowsim.cli import main
from flowsim.experiments.sources import claim_digest
from flowsim.problem.own.files import find_own

PROBLEM = """
[task]
context_length = 10
covariance = {eigenvalues = [0.5, 1.0]}
[model]
architecture = "linear-attention"
[init]
kind = "balanced"
scale = 0.3
"""

CLAIM = """
import flowsim
from beside import BOUND
claim = flowsim.Claim('mine.trace', 'notes', 'tr L <= 2 d |L|',
    lambda loss, run: flowsim.at_most(loss.eigenvalues.sum()[None], BOUND * 2 * loss.eigenvalues[-1:]),
    along_flow=False, spaces=(flowsim.Space({'task.covariance.condition': flowsim.Real(1.0, 9.0)},
    {'task': {'covariance': {'dimension': 2}, 'context_length': 3}, 'init': {'kind': 'zeros'}}),))
"""


@pytest.fixture(autouse=True)
def _places(monkeypatch):
    """The files here change where Python looks for modules."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "problem.toml"
    path.write_text(PROBLEM)
    return path


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(CLAIM)
    (tmp_path / "beside.py").write_text("BOUND = 2.0\n")
    return path


@pytest.fixture
def elsewhere(monkeypatch):
    """Afterwards the software is another one."""
    ours = documents.software()
    return lambda name="jax": monkeypatch.setattr(documents, "software", lambda: ours | {name: "0.0.1"})


def full(*_):
    raise OSError(28, "No space left on device")


def flowsim_says(capsys, *words: str) -> str:
    assert main.main(list(map(str, words))) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_what_computed_a_result_is_known_to_the_last_digit_of_a_module(monkeypatch, tmp_path):
    ours = documents.software()
    package = tmp_path / "flowsim"
    shutil.copytree(documents._PACKAGE, package)
    monkeypatch.setattr(documents, "_PACKAGE", package)
    again = documents.software.__wrapped__
    assert again() == ours
    (package / "cli" / "more.py").write_text("MORE = 1\n")
    assert again() == ours
    file = package / "moments" / "words.py"
    file.write_text(file.read_text().replace("2", "3", 1))
    assert {name for name, value in again().items() if value != ours[name]} == {"flowsim's modules"}


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["trajectory.npz", "checkpoint"])
def test_a_run_of_other_software_is_not_gone_on_with(kept, file, tmp_path, elsewhere, capsys, monkeypatch):
    out = tmp_path / "out"
    if kept == "checkpoint":
        with monkeypatch.context() as patch:
            patch.setattr(
                "flowsim.flow.trajectory.Trajectory.save", lambda *_: (_ for _ in ()).throw(OSError(28, "full"))
            )
            assert main.main(["run", str(file), "--out", str(out), "--quiet"]) == 3
    else:
        assert main.main(["run", str(file), "--out", str(out), "--quiet"]) == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    capsys.readouterr()
    elsewhere()
    line = flowsim_says(capsys, "run", file, "--out", out, "--resume")
    assert kept in line and "was computed with jax" in line and "here it is 0.0.1: take another folder" in line
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["map.npz", "batch-00000.npz"])
def test_a_sweep_of_other_software_is_not_mixed_with(kept, file, tmp_path, elsewhere, capsys):
    out = tmp_path / "out"
    words = ("sweep", file, "--over", "init.scale=geom:1e-2:1:4", "--out", out)
    more = ("--resume",) if kept == "map.npz" else ("--shard", "1/1")
    assert main.main([*map(str, words), *more[:2] * (kept != "map.npz")]) == 0
    capsys.readouterr()
    elsewhere()
    assert f"{kept} was computed with jax" in flowsim_says(capsys, *words, "--resume")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["refute", "sharpen"])
def test_a_search_goes_on_with_the_same_claim_alone(command, own, tmp_path, elsewhere, capsys):
    out = tmp_path / "out"
    words = (command, f"{own}:claim", "--problems", "40", "--out", out, "--quiet")
    assert main.main(list(map(str, words))) == 0
    first, found = (out / "search.json").read_bytes(), capsys.readouterr().out
    assert main.main(list(map(str, words))) == 0
    assert (out / "search.json").read_bytes() == first
    # All but the seconds.
    assert capsys.readouterr().out.partition(" in ")[0] == found.partition(" in ")[0]
    own.write_text(CLAIM.replace("2 d |L|", "d |L|").replace("BOUND *", "0.7 *"))
    assert "search.json belongs to another" in flowsim_says(capsys, *words)
    own.write_text(CLAIM)
    elsewhere("diffrax")
    assert "search.json was computed with diffrax" in flowsim_says(capsys, *words)


@pytest.mark.slow
def test_a_search_is_alone_in_its_folder(own, tmp_path, capsys):
    for command in ("refute", "sharpen"):
        with held(tmp_path):
            line = flowsim_says(capsys, command, f"{own}:claim", "--problems", "4", "--out", tmp_path)
        assert "a folder in which no other search is at work" in line


@pytest.mark.slow
def test_a_sharpening_goes_on_to_what_it_finds_at_once(own, tmp_path):
    claim = find_own(f"{own}:claim", flowsim.Claim)
    # The number of problems is no part of what a search is.
    flowsim.sharpen(claim, problems=60, out=tmp_path / "parts")
    parts = flowsim.sharpen(claim, problems=200, out=tmp_path / "parts")
    whole = flowsim.sharpen(claim, problems=200, out=tmp_path / "whole")
    assert (parts.factor, parts.values, parts.growth, parts.problems) == (
        whole.factor,
        whole.values,
        whole.growth,
        whole.problems,
    )
    for name in ("search.json", "sharpening.json"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert len(json.loads((tmp_path / "parts" / "search.json").read_text())["units"]) > 1


def test_the_digest_of_a_claim_is_of_all_files_that_state_it(own, tmp_path):
    digests = [claim_digest(find_own(f"{own}:claim", flowsim.Claim))]
    own.write_text(f"# A comment.\n{CLAIM}")
    assert claim_digest(find_own(f"{own}:claim", flowsim.Claim)) == digests[0]
    own.write_text(CLAIM.replace("'own'", "'notes'").replace("1.0, 9.0", "1.0, 8.0"))
    digests.append(claim_digest(find_own(f"{own}:claim", flowsim.Claim)))
    # One whose sides come from elsewhere is of that file, too.
    (tmp_path / "sides.py").write_text("compare = lambda loss, run: None\n")
    own.write_text(
        "import flowsim\nfrom sides import compare\nclaim = flowsim.Claim('mine', 'notes', '0 <= 1', compare)\n"
    )
    digests.append(claim_digest(find_own(f"{own}:claim", flowsim.Claim)))
    own.write_text(own.read_text().replace("0 <= 1", "1 <= 2"))
    digests.append(claim_digest(find_own(f"{own}:claim", flowsim.Claim)))
    assert len({*digests}) == 4


@pytest.mark.parametrize("name", ["../../pwn", "a/b", "a\\b", ".hidden", "", "a\nb", "x" * 121])
def test_a_claim_s_id_is_the_name_of_a_file(name):
    with pytest.raises(ValueError, match="id must be a name without slashes"):
        flowsim.Claim(name, "notes", "true", lambda loss, run: flowsim.at_most(run.loss, run.loss))


@pytest.mark.slow
def test_a_chunk_of_another_run_in_a_repetition_is_refused(tmp_path):
    """It made a violated claim unresolved."""
    false = flowsim.Claim("mine", "notes", "x >= 1/2", lambda loss, flow: flowsim.at_least(flow.models.x, 0.5))

    def evidence(rate: float, folder: str) -> Evidence:
        loss = flowsim.FunctionLoss(lambda m: rate * m.x**2 / 2, minimum=0.0)
        return Evidence(loss, flowsim.gradient_flow(loss, weight(1.0)), checkpoint=tmp_path / folder)

    assert judge_or_note(false, evidence(1.0, "one")).verdict is Judgement.VIOLATED
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with pytest.raises(ValueError, match="chunk-00000.npz belongs to another"):
        judge_or_note(false, evidence(2.0, "two"))


@pytest.mark.slow
def test_a_changed_digit_in_a_unit_of_an_audit_is_not_believed(own, tmp_path, capsys):
    own.write_text(
        "import flowsim\nclaim = flowsim.Claim('mine', 'notes', 'L <= L(0)', "
        "lambda loss, run: flowsim.at_most(run.loss, run.loss[:1]), problems=({'task': {'covariance': "
        "{'eigenvalues': [0.5, 1.0]}, 'context_length': 3}, 'init': {'kind': 'balanced', 'scale': 0.3}},))\n"
    )
    words = ["audit", "--paper", str(own), "--out", str(tmp_path / "out")]
    assert main.main(words) == 0
    (unit,) = (tmp_path / "out" / "units").iterdir()
    whole = unit.read_text()
    unit.write_text(whole.replace('"holds"', '"violated"'))
    capsys.readouterr()
    assert main.main(words) == 0
    assert "its checksum does not match its content): the claim is judged again" in capsys.readouterr().err
    assert unit.read_text() == whole


HOSTILE = """
import sys, equinox, jax, jax.numpy as jnp, flowsim

class W(equinox.Module):
    x: jax.Array

class Mine(BaseException):
    pass

class Mute(Exception):
    def __str__(self):
        raise Mine("it cannot say so")

def raised(kind):
    if kind == "exit":
        sys.exit(1)
    raise {"mine": Mine("mine"), "mute": Mute(), "interrupt": KeyboardInterrupt()}[kind]

def bad(kind: str = "exit"):
    return flowsim.FunctionLoss(lambda m: raised(kind), minimum=0.0), W(jnp.asarray(1.0))

def make():
    sys.path = sys.path[1:]
    return flowsim.FunctionLoss(lambda m: m.x**2 / 2, minimum=0.0), W(jnp.asarray(1.0))

def claimed(kind):
    def compare(loss, flow):
        return raised(kind)
    return flowsim.Claim(f"mine.{kind}", "notes", "true", compare)

mute, broken = claimed("mute"), claimed("broken")
sys.path = sys.path[1:]
"""


@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [
        ("exit", 2, "raises SystemExit: 1"),
        ("mine", 2, "raises Mine: mine"),
        ("mute", 2, "raises Mute"),
        ("interrupt", 3, "KeyboardInterrupt"),
    ],
)
def test_what_a_user_s_loss_raises_is_told_in_a_line(kind, status, words, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("FLOWSIM_TRACEBACK", raising=False)
    (tmp_path / "own.py").write_text(HOSTILE)
    run = ["run", f"{tmp_path / 'own.py'}:bad", "--set", f"kind={kind}", "--out", str(tmp_path / "out"), "--strict"]
    assert main.main(run) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


@pytest.mark.slow
def test_what_a_user_s_claim_raises_leaves_it_unresolved(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("FLOWSIM_TRACEBACK", raising=False)
    (tmp_path / "own.py").write_text(HOSTILE)
    assert main.main(["run", f"{tmp_path / 'own.py'}:make", "--out", str(tmp_path / "out"), "--quiet", "--strict"]) == 0
    found = json.loads((tmp_path / "out" / "verdicts.json").read_text())["claims"]
    own = {row["id"]: row for row in found if row["id"].startswith("mine.")}
    assert {row["verdict"] for row in own.values()} == {"unresolved"} and len(own) == 2
    assert "Mute" in own["mine.mute"]["note"] and "KeyError" in own["mine.broken"]["note"]
    with (tmp_path / "own.py").open("a") as file:
        file.write('exits = claimed("exit")\n')
    capsys.readouterr()
    assert main.main(["run", f"{tmp_path / 'own.py'}:make", "--out", str(tmp_path / "again"), "--quiet"]) == 3
    assert "SystemExit: 1" in capsys.readouterr().err


def test_a_pipe_for_a_lock_does_not_block(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    with held(tmp_path) as alone, held(tmp_path) as second:
        assert alone and not second


def test_arrays_that_would_inflate_are_not_read(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", t=np.zeros(10**6))
    with pytest.raises(DamagedFileError, match="its arrays are compressed"):
        read_arrays(tmp_path / "a.npz")


@pytest.mark.parametrize("field", ["flow.t1=5e-324", "flow.t1=1e300", "flow.times=[1e-300]"])
def test_times_that_leave_no_room_are_refused(field, file, tmp_path, capsys):
    line = flowsim_says(capsys, "run", file, "--set", field, "--out", tmp_path / "out")
    assert "must be from 1e-290 to 1e+290" in line and not (tmp_path / "out").exists()


def test_what_the_dead_were_writing_is_removed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pass
    ours, theirs = (tmp_path / f".unit.json.{platform.node()}.{pid}.part" for pid in (os.getpid(), dead.pid))
    other = tmp_path / ".unit.json.another-host.7.part"
    for path in (ours, theirs, other):
        path.write_text("")
    remove_parts_of_the_dead(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([ours, other])


def test_the_command_can_be_interrupted_before_it_imports_what_takes_long():
    line = "import sys, flowsim.__main__; print(*{'jax', 'numpy', 'tyro'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", line], capture_output=True, check=True).stdout.split() == []
