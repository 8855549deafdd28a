"""Audits keep what is finished, judge again what has changed, and find the same wherever they are computed."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from helpers import Lazy

import flowsim
from flowsim._core.documents import software, versions
from flowsim._core.files import DamagedFileWarning, held
from flowsim.claims import Claim, Judgement
from flowsim.cli import main
from flowsim.experiments import executors, sources
from flowsim.experiments.audit import Kept, judge_all, judging
from flowsim.experiments.executors import Processes, gathered
from flowsim.problem.own.files import own_objects

OWN = """
import equinox as eqx
import jax
import jax.numpy as jnp

import flowsim
from rates_beside import RATES


class Point(eqx.Module):
    x: jax.Array


LOSS = flowsim.FunctionLoss(lambda model: jnp.sum(jnp.asarray(RATES) * model.x**2) / 2, minimum=0.0)


def make(scale: float = 1.0):
    return LOSS, Point(scale * jnp.asarray([1.0, 2.0]))


def claim(name, rate, along_flow=True):
    def compare(loss, flow):
        if not along_flow:
            return flowsim.at_least(loss(flow.start), rate)
        return flowsim.at_most(flow.excess, flow.excess[0] * jnp.exp(-rate * flow.t), promised=flow.t > 0.1)

    problems = tuple({"make": make, "scale": scale, "flow": {"t1": 3.0}} for scale in (0.5, 1.0))
    return flowsim.Claim(f"mine.{name}", "", name, compare, along_flow=along_flow, problems=problems)


slow, fast, start = claim("slow", 1.9), claim("fast", 7.0), claim("start", 0.1, along_flow=False)
"""
VERDICTS = [Judgement.HOLDS, Judgement.HOLDS, Judgement.VIOLATED, Judgement.VIOLATED, Judgement.HOLDS, Judgement.HOLDS]


@pytest.fixture
def file(tmp_path) -> Iterator[str]:
    (tmp_path / "rates_beside.py").write_text("RATES = [1.0, 3.0]\n")
    path = tmp_path / "own.py"
    path.write_text(OWN)
    yield str(path)
    sys.modules.pop("rates_beside", None)


@pytest.fixture
def judged(monkeypatch) -> list[str]:
    """The claims that are judged, as they are."""
    found = []
    judge = judging.judge_or_note
    monkeypatch.setattr(
        judging, "judge_or_note", lambda claim, evidence: found.append(claim.id) or judge(claim, evidence)
    )
    return found


def audited(file, folder, **options):
    return judge_all(own_objects(file, Claim), kept=Kept(folder), own=file, **options)


def units(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_what_is_finished_is_not_judged_again(file, tmp_path, judged):
    first = audited(file, tmp_path / "units")
    assert [entry.verdict.verdict for entry in first] == VERDICTS
    assert len(judged) == len(units(tmp_path / "units")) == 6
    assert audited(file, tmp_path / "units") == first
    assert len(judged) == 6
    assert judge_all(own_objects(file, Claim), kept=Kept(tmp_path / "units", fresh=True)) == first
    assert len(judged) == 12


@pytest.mark.slow
def test_a_claim_whose_file_or_what_it_imports_changes_is_judged_again(file, tmp_path, judged):
    audited(file, tmp_path / "units")
    for path, old, new in ((file, "7.0", "1.5"), (tmp_path / "rates_beside.py", "3.0", "2.0")):
        pathlib.Path(path).write_text(pathlib.Path(path).read_text().replace(old, new))
        judged.clear()
        found = audited(file, tmp_path / "units")
        assert len(judged) == 6
        assert [entry.verdict.verdict for entry in found] == [Judgement.HOLDS] * 6


@pytest.mark.slow
def test_other_versions_and_another_core_are_judged_again(file, tmp_path, judged, monkeypatch):
    from flowsim.experiments.audit import kept

    audited(file, tmp_path / "units")
    monkeypatch.setattr(kept, "versions", lambda: versions() | {"jax": "0.0.1"})
    audited(file, tmp_path / "units")
    assert len(judged) == 12
    monkeypatch.setattr(kept, "core_digest", lambda: "another")
    audited(file, tmp_path / "units")
    assert len(judged) == 18


@pytest.mark.slow
def test_an_audit_that_is_interrupted_loses_nothing_finished(file, tmp_path, judged, monkeypatch):
    whole = audited(file, tmp_path / "whole")
    evidence_of, calls = judging.evidence_of, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return evidence_of(*arguments)

    monkeypatch.setattr(judging, "evidence_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        audited(file, tmp_path / "units")
    assert len(units(tmp_path / "units")) == 3
    judged.clear()
    assert audited(file, tmp_path / "units") == whole
    assert sorted(judged) == ["mine.fast", "mine.slow", "mine.start"]
    assert units(tmp_path / "units") == units(tmp_path / "whole")


@pytest.mark.slow
def test_claims_along_one_flow_are_judged_again_together(file, tmp_path, judged):
    """They are compared by one program, so that the last digits of one may depend on the others."""
    audited(file, tmp_path / "units")
    before = units(tmp_path / "units")
    for name in before:
        if name.startswith(("mine.slow", "mine.start")):
            (tmp_path / "units" / name).unlink()
    judged.clear()
    audited(file, tmp_path / "units")
    assert sorted(set(judged)) == ["mine.fast", "mine.slow", "mine.start"]
    assert units(tmp_path / "units") == before


@pytest.mark.slow
def test_a_damaged_verdict_is_named_and_judged_again(file, tmp_path, judged):
    whole = audited(file, tmp_path / "units")
    path = min((tmp_path / "units").glob("mine.start*"))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.warns(DamagedFileWarning, match=f"{path.name} is damaged .*: the claim is judged again"):
        assert audited(file, tmp_path / "units") == whole


@pytest.mark.slow
def test_parts_of_an_audit_make_the_whole(file, tmp_path, capsys):
    whole = audited(file, tmp_path / "whole")
    halves = [audited(file, tmp_path / "units", shard=(part, 2)) for part in (1, 2)]
    assert [len(half) for half in halves] == [3, 6]
    assert halves[1] == whole
    out = tmp_path / "out"
    run = lambda *options: main.main(["audit", "--paper", file, "--out", str(out), *options])
    assert run("--shard", "1/2") == 0
    assert "3 of 6 verdicts are finished" in capsys.readouterr().out
    assert not (out / "claims.md").exists()
    assert run("--shard", "2/2") == 0
    assert (out / "claims.md").exists()
    assert len(json.loads((out / "verdicts.json").read_text())["claims"]) == 6


@pytest.mark.slow
def test_any_executor_finds_the_same(file, tmp_path):
    whole = audited(file, tmp_path / "whole")
    assert audited(file, tmp_path / "units", executor=Lazy()) == whole
    assert units(tmp_path / "units") == units(tmp_path / "whole")


@pytest.mark.slow
def test_processes_find_the_same(file, tmp_path):
    whole = audited(file, tmp_path / "whole")
    with Processes(2) as processes:
        assert audited(file, tmp_path / "units", executor=processes) == whole
    assert units(tmp_path / "units") == units(tmp_path / "whole")


def dies_at_first(folder: str, number: int) -> int:
    """Kill the process that computes it, but for the second time."""
    marker = pathlib.Path(folder) / str(number)
    if number == 1 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2


@pytest.mark.slow
def test_what_a_dead_process_was_at_is_done_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parent))
    with Processes(2) as processes:
        found = dict(gathered(processes, dies_at_first, [(str(tmp_path), number) for number in range(4)]))
    assert found == {0: 0, 1: 1, 2: 4, 3: 9}
    assert (tmp_path / "1").exists()


ASKER = """
import os, time
from flowsim.experiments.executors import Processes
if __name__ == "__main__":
    with Processes(1) as processes:
        print(processes.submit(os.getpid).result(), flush=True)
        processes.submit(time.sleep, 600)
        time.sleep(600)
"""


@pytest.mark.slow
def test_processes_end_with_the_one_that_asked(tmp_path):
    (tmp_path / "asker.py").write_text(ASKER)
    with subprocess.Popen([sys.executable, tmp_path / "asker.py"], stdout=subprocess.PIPE, text=True) as asker:
        assert asker.stdout is not None
        worker = int(asker.stdout.readline())
        asker.kill()
    deadline = time.monotonic() + 20
    while pathlib.Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not pathlib.Path(f"/proc/{worker}").exists()


def test_digits_of_other_versions_are_not_mixed(monkeypatch):
    monkeypatch.setattr(executors, "software", lambda: software() | {"jax": "0.0.1"})
    results = gathered(Lazy(), pow, [(2, 3), (3, 2)])
    assert next(results) == (0, 8)
    # The process that computes the second has another version than the one that asked.
    monkeypatch.setattr(executors, "software", software)
    with pytest.raises(ValueError, match=r"a worker must be one with jax 0\.0\.1, as in the process that started it"):
        next(results)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--jobs", "0"], "--jobs must be a whole number of at least 1, but it is 0"),
        (["--shard", "3/2", "--out", "x"], '--shard must be I/N, the I-th of N parts, but it is "3/2"'),
        (["--shard", "1/2"], "--out must be a folder, which all parts share, with --shard, but it is missing"),
    ],
)
def test_bad_options_are_refused_in_one_line(options, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main.main(["audit", "--paper", "zhang2025", *options]) == 2
    assert capsys.readouterr().err.strip() == f"flowsim: {words}"
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_a_paper_s_digest_is_of_its_own_modules(tmp_path, monkeypatch):
    package = shutil.copytree(pathlib.Path(flowsim.__file__).parent, tmp_path / "flowsim")
    monkeypatch.setattr(sources, "_PACKAGE", package)

    def digests():
        for cached in (sources._reached_digest, sources.core_digest):
            cached.cache_clear()
        return {
            name: sources.paper_digest(name) for name in ("zhang2023", "zhang2025", "xie2025")
        }, sources.core_digest()

    def touched(place, more="MORE = 1\n"):
        with (package / place).open("a") as file:
            file.write(more)
        return digests()

    before, core = digests()
    after, same = touched("papers/zhang2025/setting.py")
    assert same == core
    assert {name for name in before if before[name] != after[name]} == {"zhang2025"}
    last, same = touched("papers/paper.py")
    assert same == core
    assert not any(last[name] == after[name] for name in before)
    assert touched("report/page.py")[1] == core
    assert touched("papers/paper.py", "# More.\n") == (last, core)
    assert touched("losses/one_layer/head_risk.py")[1] != core
    monkeypatch.undo()
    for cached in (sources._reached_digest, sources.core_digest):
        cached.cache_clear()


MODULE = '''"""A module."""  # whose docstring is no code

import math

def f(x):
    """Twice x.

    Of any number.
    """
    y = "# no comment"  # a comment
    z = """Two

    lines."""
    return f"{x:.3f} # {2 * x}"  # another
'''


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("A module.", "Another.", False),
        ("    Of any number.\n", "", False),
        ("a comment", "why", False),
        ("  # another", "", False),
        ("import math\n\n", "import math\n\n\n# below\n", False),
        ("# no comment", "# a comment", True),
        ("{x:.3f} # ", "{x:.3f} ", True),
        ("2 * x}", "3 * x}", True),
        ("def f(x)", "def f(x, y)", True),
        ("    return", "return", True),
        ("Two\n\n", "Two\n", True),
        ('    y = "', '    """A statement, and no code either."""\n    y = "', False),
        ('"""A module."""', 'NAME = """A module."""', True),
    ],
)
def test_a_digest_is_of_code_and_not_of_comments_or_docstrings(old, new, counts, tmp_path):
    file = tmp_path / "module.py"
    digests = []
    for text in (MODULE, MODULE.replace(old, new, 1)):
        assert old in MODULE
        digests.append(sources._digest({file: text.encode()}))
    assert (digests[0] != digests[1]) is counts


HOLDER = """
import sys, time
from flowsim._core.files import held
with held(sys.argv[1]) as alone:
    print(alone, flush=True)
    time.sleep(60)
"""


def test_one_process_alone_is_at_work_in_a_folder(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "True\n"
        with held(tmp_path) as alone:
            assert not alone
        other.kill()
    # A lock goes with its process, however that ends.
    with held(tmp_path) as alone:
        assert alone
    assert not list(tmp_path.iterdir())
