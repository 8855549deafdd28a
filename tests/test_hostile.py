"""Hostile files of a user: what is kept is true of them as they were executed, and what they do ends in a line."""

import os
import pathlib
import random
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import flowsim
from flowsim._core.documents import write_json
from flowsim._core.files import DamagedFileError, read_arrays, read_document, write_arrays
from flowsim.cli import main
from flowsim.experiments.sources import claim_digest
from flowsim.problem import spec_of
from flowsim.problem.own.files import digest_of, find_own, module_of, place_of, texts_of

HEAD = """
import sys, jax, jax.numpy as jnp, equinox as eqx, flowsim
class W(eqx.Module):
    x: jax.Array
"""
KEEPS = """before = []
def loss(m):
    value = (m.x**2).sum() + sum(before)
    before.append(value)
    return value
def make(): return flowsim.FunctionLoss(loss, minimum=0.0), W(jnp.ones(2))
"""
MADE = "def make(): return flowsim.FunctionLoss(lambda m: (m.x**2).sum(), minimum=0.0), "
OWN = f"""{HEAD}
from beside import RATE
def make():
    return flowsim.FunctionLoss(lambda m: RATE * m.x**2 / 2, minimum=0.0), W(jnp.asarray(1.0))
claim = flowsim.Claim("mine", "notes", "L <= L(0)", lambda loss, flow: flowsim.at_most(RATE * flow.loss, flow.loss[:1]))
"""


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    """What hostile files change is theirs alone."""
    monkeypatch.delenv("FLOWSIM_TRACEBACK", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in ("jax_debug_nans", "jax_debug_infs", "jax_check_tracer_leaks", "jax_disable_jit"):
        jax.config.update(name, False)


@pytest.fixture
def own(tmp_path) -> Iterator[pathlib.Path]:
    (tmp_path / "beside.py").write_text("from deeper import RATE\n")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "__init__.py").write_text("from .inner import RATE\n")
    (tmp_path / "deeper" / "inner.py").write_text("RATE = 1.0\n")
    (tmp_path / "own.py").write_text(OWN)
    yield tmp_path / "own.py"
    for name in ("beside", "deeper", "deeper.inner"):
        sys.modules.pop(name, None)


def line_of(capsys, status: int, *words: object) -> str:
    capsys.readouterr()
    assert main.main([*map(str, words)]) == status
    (line,) = capsys.readouterr().err.splitlines()
    return line


def imported(path: pathlib.Path, name: str) -> types.ModuleType:
    """The module of a file as Python imports it."""
    sys.path.insert(0, str(path.parent))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(path.parent))


def test_a_run_is_of_the_files_that_its_file_imports_too(own, tmp_path, capsys):
    words = ("run", f"{own}:make", "--out", tmp_path / "out", "--quiet")
    assert main.main([*map(str, words)]) == 0
    assert main.main([*map(str, words), "--resume"]) == 0
    (tmp_path / "deeper" / "inner.py").write_text("RATE = 3.0\n")
    assert "sha256 differs from" in line_of(capsys, 2, *words, "--resume")
    # What is computed next is with what is imported now, in the same process, too.
    assert main.main([*map(str, words[:3]), str(tmp_path / "again"), "--quiet"]) == 0
    assert [read_arrays(tmp_path / name / "trajectory.npz")["loss"][0] for name in ("out", "again")] == [0.5, 1.5]


def test_a_digest_is_of_the_files_as_they_were_executed(own, tmp_path):
    claim = find_own(f"{own}:claim", flowsim.Claim)
    before, module = claim_digest(claim), module_of(str(own))[0]
    for path, text in ((own, OWN.replace("m.x**2 / 2", "m.x**2")), (tmp_path / "beside.py", "RATE = 2.0\n")):
        path.write_text(text)
        assert claim_digest(claim) == before
        problem: Any = spec_of({"make": module.make})
        assert problem.sha256 == digest_of(texts_of(module)) and problem.build().loss(problem.build().start) == 0.5
        assert claim_digest(find_own(f"{own}:claim", flowsim.Claim)) != before


@pytest.mark.parametrize(
    ("name", "old", "new", "word"),
    [
        ("whole", "m.x**2 / 2", "m.x**2", "make"),
        ("whole", "RATE = 1.0", "RATE = 2.0", "RATE"),
        ("beside", "SIZE = -1", "SIZE = -3", "SIZE"),
        ("beside", "return 1", "return 2", "one"),
    ],
)
def test_a_module_that_was_edited_since_python_imported_it_is_refused(name, old, new, word, tmp_path):
    (tmp_path / "beside.py").write_text("SIZE = -1\nCALLS = 0\nCALLS += 1\ndef one():\n    return 1\n")
    (tmp_path / "whole.py").write_text(OWN.replace("from beside import RATE", "import beside\nRATE = 1.0"))
    try:
        module = imported(tmp_path / "whole.py", "whole")
        digests = digest_of(texts_of(module)), claim_digest(module.claim)
        path = tmp_path / f"{name}.py"
        path.write_text(path.read_text() + "# A comment.\n")
        assert digest_of(texts_of(module)) != digests[0] and claim_digest(module.claim) == digests[1]
        path.write_text(path.read_text().replace(old, new))
        for ask in (lambda: place_of(module.make), lambda: claim_digest(module.claim)):
            with pytest.raises(ValueError, match=rf"{name}.py must be as it was when it was imported, but {word} is"):
                ask()
    finally:
        for name in ("whole", "beside"):
            sys.modules.pop(name, None)


def test_a_claim_that_is_in_no_file_is_known_by_what_it_computes_with():
    def claim(bound: float | int, name: str = "zhang2023.mine") -> flowsim.Claim:
        return flowsim.Claim(
            name, "notes", "true", eval(f"lambda loss, run: at_most(run.loss, {bound} * BOUND)", names)
        )

    names = {"at_most": flowsim.at_most, "BOUND": 2.0}
    digests = [claim_digest(claim(1.0))]
    assert claim_digest(claim(1.0)) == digests[0]
    digests.append(claim_digest(claim(3.0)))
    # Whole numbers are told from addresses, which differ from process to process.
    digests += [claim_digest(claim(1)), claim_digest(claim(3))]
    names["BOUND"] = 4.0
    digests.append(claim_digest(claim(1.0)))
    assert len({*digests}) == 5


@pytest.mark.parametrize("name", ["t", "loss", "excess", "metadata", "dissipated", "grad_norm_sq", "origin", "since"])
def test_a_weight_that_has_the_name_of_another_array_is_refused(name, tmp_path, capsys):
    """It took the place of that array in trajectory.npz."""
    text = OWN.replace("from beside import RATE", "RATE = 1.0").replace("x: jax", f"{name}: jax")
    (tmp_path / "own.py").write_text(text.replace("m.x", f"m.{name}"))
    line = line_of(capsys, 2, "run", f"{tmp_path / 'own.py'}:make", "--out", tmp_path / "out")
    assert f"model.{name} must be a weight of another name" in line and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["file", "allow_pickle", "self", "args", "é"])
def test_arrays_are_kept_under_any_name(name, tmp_path):
    arrays = {name: np.arange(6.0).reshape(2, 3).T, "x": np.zeros((0, 2))}
    write_arrays(tmp_path / "a.npz", arrays)
    with np.load(tmp_path / "a.npz") as read:
        for found in (read, read_arrays(tmp_path / "a.npz")):
            assert {*found} == {*arrays} and all(np.array_equal(found[key], arrays[key]) for key in arrays)


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("def make(__a: float = 1.0): pass", 2, "without a leading _, and not"),
        ("def make(build: float = 1.0): pass", 2, "one is build"),
        ("def make(identity: float = 1.0): pass", 2, "one is identity"),
        ("sys.modules.pop(__name__, None); 1/0", 2, "line 6 raises ZeroDivisionError"),
        ("claim = flowsim.Claim('a', 'b', 'c', print, note=3)", 2, "line 6 raises"),
        ("claim = flowsim.Claim('a', 3, 'c', print)", 2, "line 6 raises"),
        ("claim = flowsim.Claim(3, 'b', 'c', print)", 2, "line 6 raises"),
        (f"OBSERVABLES = {{'A' * 101: lambda m: m.x[0]}}\n{MADE}W(jnp.ones(2))", 2, "names that are ASCII words"),
        ("def make(): return 3, W(jnp.ones(2))", 2, "returns (int, W)"),
        (f"{MADE}W(jnp.zeros(0))", 2, "an Equinox module with float64 weights, but it has none"),
        (f"jax.config.update('jax_debug_nans', True)\n{MADE}W(jnp.ones(2))", 2, "jax_debug_nans must be off"),
        (f"{MADE}(jax.config.update('jax_debug_infs', True), W(jnp.ones(2)))[1]", 2, "jax_debug_infs must be off"),
        (f"jax.config.update('jax_check_tracer_leaks', 1)\n{MADE}W(jnp.ones(2))", 2, "jax_check_tracer_leaks must"),
        (f"{MADE}(jax.config.update('jax_disable_jit', True), W(jnp.ones(2)))[1]", 2, "jax_disable_jit must be off"),
        ("claim = flowsim.Claim('a', 'b', 'c', print, problems={'task': {}})", 2, "line 6 raises"),
        ("claim = flowsim.Claim('a', 'b', 'c', print, spaces=(3,))", 2, "line 6 raises"),
        (f"claim = flowsim.Claim('{'é' * 70}', 'b', 'c', print)", 2, "of at most 120 bytes"),
    ],
    ids=range(17),
)
def test_what_a_file_does_is_told_in_a_line(text, status, words, tmp_path, capsys):
    (tmp_path / "own.py").write_text(f"{HEAD}\n{text}\n")
    line = line_of(capsys, status, "run", f"{tmp_path / 'own.py'}:make", "--out", tmp_path / "out")
    assert words in line and not (tmp_path / "out").exists()


def test_a_loss_that_keeps_what_it_was_traced_with_is_refused_in_a_line(tmp_path, capsys):
    (tmp_path / "own.py").write_text(f"{HEAD}\n{KEEPS}")
    line = line_of(capsys, 2, "run", f"{tmp_path / 'own.py'}:make", "--out", tmp_path / "out")
    assert "loss must be one that keeps nothing of its weights from one call to the next" in line
    assert not (tmp_path / "out" / "problem.toml").exists()


def test_truncated_and_changed_files_of_arrays_are_damaged(tmp_path):
    path, rng = tmp_path / "a.npz", random.Random(7)
    arrays = {"x": np.arange(50.0), "name": np.asarray("text")}
    write_arrays(path, arrays)
    whole = path.read_bytes()
    damaged = [whole[: rng.randrange(len(whole))] for _ in range(60)]
    for _ in range(300):
        place, bit = rng.randrange(len(whole)), 1 << rng.randrange(8)
        damaged.append(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
    for content in damaged:
        path.write_bytes(content)
        try:
            found = read_arrays(path)
        except DamagedFileError:
            continue
        # Bits that nothing depends on, such as the time of an entry.
        assert {*found} == {*arrays} and all(np.array_equal(found[key], arrays[key]) for key in arrays)


@pytest.mark.parametrize("command", ["run", "init", "claims"])
def test_memory_in_which_jax_aborts_is_refused(command, tmp_path):
    words = [command, "problem.toml", "--out", str(tmp_path / "out")][: {"run": 4, "init": 2, "claims": 1}[command]]
    line = f"ulimit -v 1700000; exec {sys.executable} -m flowsim {' '.join(words)}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.returncode == 2
    assert "the memory must be at least 2.18 GB, which JAX reserves, but it is limited to 1.74 GB" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_sweep_of_a_loss_that_starts_at_what_is_called_its_minimum_is_made(tmp_path):
    """Its relative stop was no number."""
    make = "def make(rate: float = 1.0): return flowsim.FunctionLoss(lambda m: -rate * jnp.log(m.x), minimum=0.0), "
    (tmp_path / "own.py").write_text(f"{HEAD}\n{make}W(jnp.asarray(1.0))")
    words = ["sweep", f"{tmp_path / 'own.py'}:make", "--over", "rate=1,2", "--out", str(tmp_path / "out"), "--quiet"]
    assert main.main(words) == 0 and (tmp_path / "out" / "map.npz").exists()


def test_a_search_that_is_refused_leaves_nothing_to_go_on_with(tmp_path, capsys):
    """The same folder was refused to the claim once it was mended."""
    space = "{'task': {'covariance': {'dimension': 2}, 'context_length': 3}, 'init': {'kind': 'zeros'}}"
    text = HEAD + (
        "claim = flowsim.Claim('mine', 'n', 'true', lambda loss, run: flowsim.at_most(BOUND, 2.0), along_flow=False,\n"
        f"  spaces=(flowsim.Space({{'task.covariance.condition': flowsim.Real(1.0, 9.0)}}, {space}),))\n"
    )
    words = ("refute", f"{tmp_path / 'own.py'}:claim", "--problems", "4", "--out", tmp_path / "out", "--quiet")
    (tmp_path / "own.py").write_text(text)
    assert "BOUND" in line_of(capsys, 2, *words) and not list((tmp_path / "out").iterdir())
    (tmp_path / "own.py").write_text(text.replace("BOUND", "1.0"))
    assert main.main([*map(str, words)]) == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x,
        lambda x: x.astype("f4"),
        lambda x: x[:2],
        lambda x: np.asfortranarray(x),
        lambda x: x * 1j,
        lambda x: np.asarray("x"),
        lambda x: np.nextafter(x, 9.0),
    ],
    ids=range(7),
)
def test_arrays_that_another_program_wrote_are_not_believed(change, tmp_path):
    """Rounded to single precision, a trajectory was gone on with."""
    arrays = {"t": np.arange(3.0), "x": np.arange(12.0).reshape(3, 2, 2)}
    write_arrays(tmp_path / "a.npz", arrays)
    assert {*read_arrays(tmp_path / "a.npz")} == {"t", "x"}
    np.savez(tmp_path / "a.npz", **arrays | {"x": change(arrays["x"])})
    with pytest.raises(DamagedFileError, match="its checksum does not match its content"):
        read_arrays(tmp_path / "a.npz")


@pytest.mark.parametrize("read", [read_arrays, read_document])
def test_a_pipe_for_a_file_is_not_waited_for(read, tmp_path):
    os.mkfifo(tmp_path / "a.npz")
    with pytest.raises(OSError, match="not a file, but a pipe or a device"):
        read(tmp_path / "a.npz")


OWN_CLAIM = """import flowsim
claim = flowsim.Claim("mine.trace", "notes", "tr L <= 2 d |L|",
    lambda loss, run: flowsim.at_most(loss.eigenvalues.sum()[None], 4 * loss.eigenvalues[-1:]), along_flow=False,
    spaces=(flowsim.Space({"task.covariance.condition": flowsim.Real(1.0, 9.0)},
    {"task": {"covariance": {"dimension": 2}, "context_length": 3}, "init": {"kind": "zeros"}}),),
    problems=({"task": {"covariance": "identity", "dimension": 2, "context_length": 3}, "init": {"kind": "zeros"}},))
"""


@pytest.mark.parametrize(
    ("command", "taken"),
    [
        ("ablate", "ablation.json"),
        ("ablate", "figures/ablation.png"),
        ("sharpen", "figures/sharpening.png"),
        ("refute", "counterexample.toml"),
        ("certify", ""),
    ],
)
def test_a_folder_in_place_of_a_file_is_refused_before_the_work(command, taken, tmp_path, capsys, monkeypatch):
    def work(*_, **__):
        raise AssertionError("the work began")

    for name in ("flowsim.cli.search.ablated", "flowsim.cli.search.sharpened", "flowsim.cli.search.search"):
        monkeypatch.setattr(name, work)
    monkeypatch.setattr("flowsim.cli.claims.certification", work)
    (tmp_path / "own.py").write_text(OWN_CLAIM)
    (tmp_path / "out" / taken).mkdir(parents=True)
    line = line_of(capsys, 2, command, f"{tmp_path}/own.py:claim", "--out", tmp_path / "out")
    assert line.endswith(f"--out must be where files can be written, but {tmp_path / 'out' / taken}: a folder is there")


def test_a_file_in_place_of_the_folder_of_figures_is_refused(tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN_CLAIM)
    (tmp_path / "figures").write_text("")
    line = line_of(capsys, 2, "ablate", f"{tmp_path}/own.py:claim", "--out", tmp_path)
    assert "its folder is a file" in line


def test_a_pipe_is_neither_replaced_nor_waited_for(tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN_CLAIM)
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    with pytest.raises(FileExistsError, match="a device or a pipe is there"):
        write_json(pipe, {})
    line = line_of(capsys, 2, "certify", f"{tmp_path}/own.py:claim", "--out", pipe)
    assert "a device or a pipe is there" in line and pipe.is_fifo()
    assert "not a file, but a pipe" in line_of(capsys, 2, "ablate", f"{pipe}:claim")
    assert "is not a proof" in line_of(capsys, 1, "verify", pipe)


def test_a_certificate_makes_its_folder(tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN_CLAIM)
    out = tmp_path / "made" / "for" / "it.json"
    assert main.main(["certify", f"{tmp_path}/own.py:claim", "--out", str(out)]) == 0
    assert main.main(["verify", str(out)]) == 0


def test_an_ablation_says_in_python_that_a_folder_is_in_its_place(tmp_path):
    (tmp_path / "own.py").write_text(OWN_CLAIM)
    (tmp_path / "ablation.json").mkdir()
    with pytest.raises(ValueError, match=r"out must be where files can be written, but .*: a folder is there"):
        flowsim.ablate(find_own(f"{tmp_path}/own.py:claim", flowsim.Claim), problems=8, out=tmp_path)
