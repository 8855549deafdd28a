"""A function of the user's own in place of a problem file: runs, verdicts, resuming, sweeps, and errors in one line."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

import flowsim
from flowsim import papers
from flowsim.claims import Claim, Judgement
from flowsim.cli import main
from flowsim.experiments.audit import judge_all
from flowsim.problem import ProblemError, spec_of, toml
from flowsim.problem.own import files
from flowsim.problem.own.files import find_own

ROOT = pathlib.Path(__file__).parents[1]
# Along the flow of (ab - 1)^2/2 the squared gradient is (a^2 + b^2) (ab - 1)^2, which is 2 (a^2 + b^2) L, and a^2 - b^2
# is conserved: the true bound has the factor 2, the planted one 3 fails at the start, where b is small.
OWN = """
import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp

import flowsim
import own_beside


@dataclasses.dataclass
class Note:
    text: "str"


class TwoLayers(eqx.Module):
    a: jax.Array
    b: jax.Array
    activation: object


LOSS = flowsim.FunctionLoss(lambda net: 0.5 * (net.a * net.b - own_beside.TARGET) ** 2, minimum=0.0)


def make(scale: float = 0.5, ratio=0.2, depth=2, weights=[1, 2.5], word="a \\"b\\" c", even: bool = True):
    assert isinstance(weights, list)
    return LOSS, TwoLayers(jnp.array(scale), jnp.array(scale * ratio), jnp.tanh)


def dominance(factor):
    def compare(loss, flow):
        return flowsim.at_least(flow.grad_norm_sq, factor * (flow.start.a**2 - flow.start.b**2) * flow.excess)

    problems = ({"make": make, "name": "default"}, {"make": make, "scale": 0.3, "flow": {"rtol": 1e-8}})
    space = flowsim.Space({"scale": flowsim.Real(0.3, 1.0)}, {"make": make})
    statement = f"|grad L|^2 >= {factor} |a(0)^2 - b(0)^2| L"
    return flowsim.Claim(
        f"mine.pl-{factor}", "my notes", statement, compare, models=(TwoLayers,), problems=problems, spaces=(space,)
    )


true, planted = dominance(2), dominance(3)
again = true
OBSERVABLES = {"gap": lambda net: net.a**2 - net.b**2, "shift": lambda net: net.a * net.b - 2.0}
"""
BAD = """
import jax.numpy as jnp

import flowsim


def required(scale: float, other=1.0):
    return 1


def raises(scale=1.0):
    raise RuntimeError("too large")


def swapped(scale=1.0):
    return {"a": jnp.array(1.0)}, flowsim.FunctionLoss(lambda net: net["a"] ** 2)


def unsuited(scale=1.0):
    return flowsim.FunctionLoss(
        lambda net: net["b"] ** 2), {"a": jnp.array(scale)}


def weightless(scale=1.0):
    return flowsim.FunctionLoss(lambda net: net["a"] ** 2), {"a": 1.0}


def untyped(scale=None):
    return 1


def stars(*scales):
    return 1


def taken(flow=1.0):
    return 1


def fine(scale=1.0):
    return flowsim.FunctionLoss(lambda net: net["a"] ** 2), {"a": jnp.array(scale)}


OBSERVABLES = {"a": lambda net: net["a"]}
"""


@pytest.fixture(scope="module", autouse=True)
def _settings():
    """The settings of JAX that the commands change."""
    names = [name for name in jax.config.values if "compilation_cache" in name or "persistent_cache" in name]
    before = {name: jax.config.values[name] for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "own.py").write_text(OWN)
    (folder / "own_beside.py").write_text("TARGET = 1.0\n")
    (folder / "bad.py").write_text(BAD)
    (folder / "syntax.py").write_text("x = (\n")
    (folder / "division.py").write_text("a = 1\nb = a / 0\n")
    return folder


def run(*words: object) -> int:
    return main.main([str(word) for word in words])


@pytest.fixture(scope="module")
def finished(folder):
    options = ("--set", "scale=0.4", "flow.rtol=1e-8", "--set", "flow.stop.excess=1e-8", "--quiet")
    assert run("run", folder / "own.py:make", *options, "--out", folder / "out") == 0
    return folder / "out"


def verdicts(out: pathlib.Path) -> dict[str, str]:
    return {claim["id"]: claim["verdict"] for claim in json.loads((out / "verdicts.json").read_text())["claims"]}


def test_a_run_judges_the_claims_of_the_file_each_once(finished):
    document = json.loads((finished / "verdicts.json").read_text())
    assert [claim["id"] for claim in document["claims"]] == ["mine.pl-2", "mine.pl-3"]
    assert verdicts(finished) == {"mine.pl-2": "holds", "mine.pl-3": "violated"}
    assert document["problem"]["scale"] == 0.4
    assert document["status"] == "stopped-excess"


OWN_SIDES = {f"sides-mine.pl-{number}-printed" for number in (2, 3)}  # a user's own are always drawn


def test_a_run_leaves_what_that_of_a_problem_file_does(finished):
    names = {path.name for path in finished.iterdir()}
    assert names == {"problem.toml", "trajectory.npz", "verdicts.json", "report.html", "figures"}
    pictures = {path.stem for path in (finished / "figures").iterdir()}
    assert pictures == {"excess", "conservation", "observable-gap", "observable-shift", "tightness", *OWN_SIDES}
    report = (finished / "report.html").read_text()
    assert "own.py:make, scale = 0.4, ratio = 0.2" in report
    assert "gap along the flow" in report
    with np.load(finished / "trajectory.npz") as arrays:
        np.testing.assert_allclose(arrays["gap"], arrays["a"] ** 2 - arrays["b"] ** 2, rtol=1e-12)
        assert arrays["shift"][0] < 0
        gap = arrays["gap"]
    np.testing.assert_allclose(gap, gap[0], rtol=1e-6)


def test_the_resolved_problem_reads_back_as_itself(folder, finished):
    tables = toml.parse((finished / "problem.toml").read_text())
    assert tables["make"] == f"{folder / 'own.py'}:make"
    assert tables["weights"] == [1.0, 2.5]
    assert tables["word"] == 'a "b" c'
    spec = spec_of(tables)
    assert spec.to_toml() == (finished / "problem.toml").read_text()
    assert spec.flow.rtol == 1e-8
    assert spec == spec_of({"make": f"{folder / 'own.py'}:make", "scale": 0.4, "flow": tables["flow"]})


def test_the_identity_is_of_the_text_and_the_fields_not_of_the_folder(folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "moved")
    one, moved = (spec_of({"make": f"{place / 'own.py'}:make"}) for place in (folder, tmp_path / "moved"))
    assert one.identity == moved.identity
    assert spec_of({"make": f"{folder / 'own.py'}:make", "scale": 0.6}).identity != one.identity
    with (tmp_path / "moved" / "own.py").open("a") as file:
        file.write("# another\n")
    assert spec_of({"make": f"{tmp_path / 'moved' / 'own.py'}:make"}).identity != one.identity
    # The file as it was is known here still, and in no other process.
    assert spec_of(toml.parse(moved.to_toml())) == moved
    monkeypatch.setattr(files, "_MODULES", {})
    with pytest.raises(ProblemError, match="the file has changed"):
        spec_of(toml.parse(moved.to_toml()))


def test_a_finished_run_is_judged_again_and_another_is_refused(folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path / "own")
    own, out = tmp_path / "own" / "own.py", tmp_path / "out"
    options = ("--set", "flow.t1=0.5", "--out", out, "--quiet")
    assert run("run", f"{own}:make", *options) == 0
    before = (out / "trajectory.npz").read_bytes()
    assert run("run", f"{own}:make", *options, "--resume", "--claims", "*-3") == 0
    assert (out / "trajectory.npz").read_bytes() == before
    assert set(verdicts(out)) == {"mine.pl-3"}
    capsys.readouterr()
    assert run("run", f"{own}:make", *options, "--resume", "--set", "scale=0.6") == 2
    assert "scale differs from" in capsys.readouterr().err
    own.write_text(OWN + "# another\n")
    assert run("run", f"{own}:make", *options, "--resume") == 2
    assert "sha256 differs from" in capsys.readouterr().err


def test_chunks_of_a_stopped_run_are_taken_up_by_another_process(folder, tmp_path):
    """A function among the leaves of a model is told by its name, as its place in memory is never the same."""
    place = f"{folder / 'own.py'}:make"
    spec_of({"make": place, "flow": {"t1": 0.5}}).build().run(checkpoint=tmp_path / "flow")
    (chunk,) = (tmp_path / "flow").glob("chunk-*.npz")
    written = chunk.stat().st_mtime_ns
    again = (
        "import sys, jax; jax.config.update('jax_enable_x64', True); from flowsim.problem import spec_of;"
        "spec_of({'make': sys.argv[1], 'flow': {'t1': 0.5}}).build().run(checkpoint=sys.argv[2])"
    )
    command = [sys.executable, "-c", again, place, str(tmp_path / "flow")]
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert chunk.stat().st_mtime_ns == written


@pytest.mark.slow
def test_claims_of_a_problem_file_can_be_chosen_by_a_pattern(tmp_path, capsys):
    (tmp_path / "problem.toml").write_text(
        "[task]\ncontext_length = 10\ncovariance = [[0.5, 0.1], [0.1, 1]]\n[init]\nscale = 0.3\n[flow]\nt1 = 1.0\n"
    )
    words = ("run", tmp_path / "problem.toml", "--quiet", "--out", tmp_path / "out")
    assert run(*words, "--claims", "zhang2023.lemma-a.3") == 0
    assert set(verdicts(tmp_path / "out")) == {"zhang2023.lemma-a.3"}
    assert run(*words[:-1], tmp_path / "other", "--claims", "zhang2024.*") == 2
    assert "--claims must be a pattern" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_a_claim_of_the_wrong_shape_is_a_mistake_of_its_file(tmp_path, capsys):
    """It is said before anything is integrated, by the command that judges it as by the one that runs its problem."""
    (tmp_path / "wrong.py").write_text(
        """
import equinox as eqx
import jax
import jax.numpy as jnp
import flowsim

class Point(eqx.Module):
    x: jax.Array

def make(scale=1.0):
    return flowsim.FunctionLoss(lambda m: jnp.sum(m.x**2), minimum=0.0), Point(jnp.full(3, scale))

SHORT = flowsim.Claim(
    "own.short", "here", "x falls", lambda loss, flow: flowsim.at_most(jnp.diff(flow.models.x, axis=0), 0.0),
    problems=({"make": make},),
)
"""
    )
    place = tmp_path / "wrong.py"
    for words in (("check", f"{place}:SHORT"), ("run", f"{place}:make", "--out", tmp_path / "out")):
        assert run(*words) == 2
        assert "own.short must be a comparison of arrays with a row for each output time" in capsys.readouterr().err


def test_arguments_of_a_function_may_be_infinite(folder, tmp_path):
    place = f"{folder / 'own.py'}:make"
    spec = spec_of({"make": place}, ["ratio=inf"])
    assert spec.to_toml().splitlines()[3] == "ratio = inf"
    assert spec_of(toml.parse(spec.to_toml())) == spec


ERRORS = [
    ("own.py:make", ("--set", "scal=1"), 'scal is not a known field; did you mean "scale"?'),
    ("own.py:make", ("--set", "scale=word"), 'scale must be a number, but it is "word"'),
    ("own.py:make", ("--set", "depth=1.5"), "depth must be a whole number, but it is 1.5"),
    ("own.py:make", ("--set", "even=1"), "even must be true or false, but it is 1"),
    ("own.py:make", ("--set", "weights=3"), "weights must be a list of numbers"),
    ("own.py:make", ("--set", "ratio=nan"), "ratio must be finite"),
    ("own.py:make", ("--set", "flow.rtoll=1"), 'flow.rtoll is not a known field; did you mean "rtol"?'),
    ("own.py:make", ("--set", "flow.restrict=eigenbasis"), "flow.restrict must be left out"),
    ("own.py:make", ("--claims", "zhang2023.*"), "--claims must be a pattern"),
    ("own.py:make", ("--devices", "2"), "--devices must be left out with a loss of own.py:make"),
    ("own.py:nothing", (), "own.py:nothing must be the name of a function"),
    ("own.py", (), "FILE.py:NAME for a function of your own"),
    ("nowhere.py:make", (), "nowhere.py must be a Python file that can be read"),
    ("syntax.py:make", (), "syntax.py must be a Python file that can be executed, but line 1 raises SyntaxError"),
    ("division.py:make", (), "but line 2 raises ZeroDivisionError: division by zero"),
    ("bad.py:required", (), "scale must be a number, but it is missing"),
    ("bad.py:raises", (), "but line 12 raises RuntimeError: too large"),
    ("bad.py:swapped", (), "but the function at line 15 returns (dict, FunctionLoss)"),
    ("bad.py:required", ("--set", "scale=1"), "but the function at line 7 returns (int)"),
    ("bad.py:unsuited", (), "but line 21 raises KeyError: 'b'"),
    ("bad.py:weightless", (), "model must be an Equinox module with float64 weights"),
    ("bad.py:untyped", (), "scale of line 28 is <class 'NoneType'>"),
    ("bad.py:stars", (), "but line 32 has *scales"),
    ("bad.py:taken", (), "one is flow"),
    ("bad.py:fine", (), "OBSERVABLES of"),
]


@pytest.mark.parametrize(("place", "options", "line"), ERRORS, ids=lambda value: str(value)[:40])
def test_bad_input_is_one_line_and_nothing_is_written(folder, tmp_path, capsys, place, options, line):
    assert run("run", folder / place, *options, "--out", tmp_path / "out") == 2
    printed = capsys.readouterr().err
    assert line in printed
    assert len(printed.splitlines()) == 1
    assert not (tmp_path / "out").exists()


MISSHAPEN = """
import equinox as eqx
import jax
import jax.numpy as jnp

import flowsim


class Vector(eqx.Module):
    w: jax.Array


def make(scale=1.0):
    return flowsim.FunctionLoss(lambda m: jnp.sum(m.w**2), minimum=0.0), Vector(jnp.full(3, scale))


wrong = flowsim.Claim("mine.wrong", "my notes", "", lambda loss, flow: COMPARED)
"""


@pytest.mark.parametrize(
    ("compared", "line"),
    [
        ("flowsim.at_most(flow.models.w, jnp.ones(4))", "arrays whose shapes broadcast together"),
        ("flowsim.at_most(jnp.diff(flow.models.w, axis=0), 0.0)", "a row for each output time"),
    ],
)
def test_wrong_shapes_are_a_mistake_of_the_file(tmp_path, capsys, compared, line):
    (tmp_path / "own.py").write_text(MISSHAPEN.replace("COMPARED", compared))
    assert run("run", tmp_path / "own.py:make", "--out", tmp_path / "out") == 2
    printed = capsys.readouterr().err
    assert "mine.wrong must be" in printed and line in printed and len(printed.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_claim_of_a_file_is_judged_on_its_own_problems(folder, capsys):
    assert run("check", f"{folder / 'own.py'}:planted", "--json") == 0
    entries = json.loads(capsys.readouterr().out)["claims"]
    assert [entry["verdict"] for entry in entries] == ["violated", "violated"]
    assert [entry["problem"]["scale"] for entry in entries] == [0.5, 0.3]
    assert run("check", f"{folder / 'own.py'}:nothing") == 2
    assert "the name of a Claim there (true, planted, again)" in capsys.readouterr().err


def test_problems_of_a_claim_share_the_classes_of_its_file(folder):
    """A file is executed once: what a claim says of its models is true of those that its problems make."""
    claim = find_own(f"{folder / 'own.py'}:true", Claim)
    entries = list(judge_all([claim]))
    assert [entry.name for entry in entries] == ["default", entries[1].problem.start_in_short]
    assert {entry.verdict.verdict for entry in entries} == {Judgement.HOLDS}


@pytest.mark.slow
def test_an_audit_of_a_file_writes_its_ledger(folder, tmp_path):
    assert run("audit", "--paper", folder / "own.py", "--out", tmp_path) == 0
    ledger = (tmp_path / "claims.md").read_text()
    assert ledger.startswith(f"# Every claim of {folder / 'own.py'}\n") and "mine.pl-2" in ledger
    # Nothing of flowsim's own, and no link to what its repository has on the papers' claims.
    assert not any(word in ledger for word in ("zhang2023", "xie2025", "counterexamples/", "../"))


def test_a_model_of_flowsim_under_a_loss_of_ones_own_is_promised_nothing(tmp_path):
    """What a paper says of its loss it does not say of another one of the same model."""
    (tmp_path / "ridge.py").write_text(
        """
import jax.numpy as jnp
import flowsim
from flowsim.initialization import balanced

def make(scale=0.3, ridge=0.1):
    plain = flowsim.LinearAttentionLoss(flowsim.LinearRegression(jnp.diag(jnp.array([0.5, 1.0])), context_length=10))
    loss = flowsim.FunctionLoss(lambda net: plain(net) + ridge * jnp.sum(net.U11**2)) if ridge else plain
    return loss, balanced(scale=scale, theta=jnp.eye(2))
"""
    )
    regularised = spec_of({"make": f"{tmp_path / 'ridge.py'}:make"}).build()
    assert papers.predictions_of(regularised) is None
    assert papers.limits_of(regularised) == {}
    plain = spec_of({"make": f"{tmp_path / 'ridge.py'}:make", "ridge": 0}).build()
    assert papers.predictions_of(plain) is not None
    for claim in papers.ALL_CLAIMS:
        assert claim.foreign(regularised.loss, regularised.start) is not None


@pytest.mark.slow
def test_a_sweep_has_a_column_for_each_observable_and_goes_on(folder, tmp_path, capsys):
    out, axes = tmp_path / "map", ("--over", "scale=geom:0.01:1:3", "--over", "ratio=0.1,0.3")
    assert run("sweep", folder / "own.py:make", *axes, "--out", out, "--quiet") == 0
    found = flowsim.Map.load(out)
    assert found.shape == (3, 2)
    scale, ratio = np.meshgrid([0.01, 0.1, 1.0], [0.1, 0.3], indexing="ij")
    np.testing.assert_allclose(found["gap"], scale**2 * (1 - ratio**2), rtol=1e-5)
    np.testing.assert_allclose(found["shift"], -1, atol=1e-3)
    assert np.all(found["outcome"] == "global-minimum")
    assert (out / "figures" / "map.png").exists()
    # A cell by itself, from the problem file that the sweep leaves.
    words = found.command((1, 1)).split()[1:]
    assert main.main([*words, "--quiet"]) == 0
    with np.load(out / "runs" / "1-1" / "trajectory.npz") as arrays:
        assert arrays["gap"][-1] == pytest.approx(found["gap"][1, 1], rel=1e-6)
    whole = (out / "map.npz").read_bytes()
    assert run("sweep", folder / "own.py:make", *axes, "--out", out, "--quiet", "--resume") == 0
    assert (out / "map.npz").read_bytes() == whole
    capsys.readouterr()
    assert run("sweep", folder / "own.py:make", "--over", "scal=1,2", "--out", tmp_path / "other") == 2
    assert 'scal is not a known field; did you mean "scale"?' in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_a_planted_claim_is_refuted_over_a_space_of_ones_own_problems(folder, tmp_path, capsys):
    words = ("refute", f"{folder / 'own.py'}:planted", "--budget", "60s", "--out", tmp_path / "found", "--quiet")
    assert run(*words) == 0
    assert "counterexample found" in capsys.readouterr().out
    assert run("run", tmp_path / "found" / "counterexample.toml", "--out", tmp_path / "out", "--quiet") == 0
    assert verdicts(tmp_path / "out")["mine.pl-3"] == "violated"
