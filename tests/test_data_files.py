"""Data files that a user's file reads: what is kept is of them as they were."""

import json
import sys

import pytest

import flowsim
from flowsim.cli import main
from flowsim.experiments.sources import claim_digest
from flowsim.problem import spec_of
from flowsim.problem.own.files import find_own, module_of, texts_of

READS = "json.loads((pathlib.Path(__file__).parent / 'limit.json').read_text())['bound']"
HEAD = "import json, pathlib, flowsim, jax, jax.numpy as jnp, equinox as eqx\n"
CLAIM = """
claim = flowsim.Claim('mine.trace', 'notes', 'tr L <= 2 d |L|',
    lambda loss, run: flowsim.at_most(loss.eigenvalues.sum()[None], LIMIT * 2 * loss.eigenvalues[-1:]),
    along_flow=False, spaces=(flowsim.Space({'task.covariance.condition': flowsim.Real(1.0, 9.0)},
    {'task': {'covariance': {'dimension': 2}, 'context_length': 3}, 'init': {'kind': 'zeros'}}),))
"""
MADE = """
class W(eqx.Module):
    x: jax.Array
def make(scale: float = 1.0):
    return flowsim.FunctionLoss(lambda m: (m.x - LIMIT) ** 2 / 2, minimum=0.0), W(jnp.asarray(scale))
claim = flowsim.Claim("mine", "notes", "x <= 2", lambda loss, flow: flowsim.at_most(flow.models.x, 2.0))
"""


@pytest.fixture(autouse=True)
def _places(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "limit.json"
    path.write_text('{"bound": 1.5}')
    return path


def digest(path) -> str:
    return claim_digest(find_own(f"{path}:claim", flowsim.Claim))


@pytest.mark.parametrize(
    ("name", "texts"),
    {
        "own": (HEAD + f"LIMIT = {READS}\n" + CLAIM, ""),
        "an import": (HEAD + "from beside import LIMIT\n" + CLAIM, HEAD + f"LIMIT = {READS}\n"),
        "a call of an import": (
            HEAD + "import beside\nLIMIT = beside.limit()\n" + CLAIM,
            HEAD + f"def limit():\n    return {READS}\n",
        ),
        "an import by a text": (
            HEAD + "import importlib\nLIMIT = importlib.import_module('beside').LIMIT\n" + CLAIM,
            HEAD + f"LIMIT = {READS}\n",
        ),
    }.items(),
)
def test_the_digest_of_a_claim_is_of_the_data_that_its_file_reads(name, texts, data, tmp_path):
    own, beside = tmp_path / "own.py", tmp_path / "beside.py"
    own.write_text(texts[0])
    beside.write_text(texts[1])
    try:
        before = digest(own)
        assert digest(own) == before and data in texts_of(module_of(str(own))[0]), name
        data.write_text('{"bound": 0.4}')
        assert digest(own) != before, name
        assert find_own(f"{own}:claim", flowsim.Claim).compare.__globals__["LIMIT"] == 0.4, name
        data.write_text('{"bound": 1.5}')
        assert digest(own) == before, name
    finally:
        sys.modules.pop("beside", None)


def test_a_file_is_known_by_the_data_of_what_it_imports_though_another_imported_it_first(data, tmp_path):
    (tmp_path / "beside.py").write_text(HEAD + f"LIMIT = {READS}\n")
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(HEAD + "from beside import LIMIT\n" + CLAIM)
    try:
        assert all(data in texts_of(module_of(str(tmp_path / f"{name}.py"))[0]) for name in ("one", "two"))
    finally:
        sys.modules.pop("beside", None)


def test_what_a_file_writes_and_what_libraries_read_is_not_its_data(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        HEAD + "import zoneinfo\n(pathlib.Path(__file__).parent / 'log.txt').write_text('now')\n"
        "open('/etc/hostname').close()\nLIMIT = 2.0\n" + CLAIM
    )
    assert [*texts_of(module_of(str(own))[0])] == [own]


def test_a_claim_is_known_by_the_numbers_that_its_file_has_from_elsewhere(tmp_path, monkeypatch):
    own = tmp_path / "own.py"
    own.write_text(HEAD + "import os\nLIMIT = float(os.environ['LIMIT'])\n" + CLAIM)
    found = []
    for name, limit in (("one", "2.0"), ("two", "2.0"), ("three", "0.4")):
        monkeypatch.setenv("LIMIT", limit)
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.py").write_text(own.read_text())
        found.append(digest(tmp_path / name / "own.py"))
    assert found[0] == found[1] != found[2]


def test_a_search_over_other_data_is_refused(data, tmp_path, capsys):
    own = tmp_path / "own.py"
    own.write_text(HEAD + f"LIMIT = {READS}\n" + CLAIM)
    words = ["refute", f"{own}:claim", "--problems", "20", "--out", str(tmp_path / "out")]
    assert main.main(words) == 0
    data.write_text('{"bound": 0.4}')
    capsys.readouterr()
    assert main.main(words) == 2
    assert "search.json belongs to another search" in capsys.readouterr().err
    assert main.main([*words[:-1], str(tmp_path / "anew")]) == 0
    assert "counterexample found" in capsys.readouterr().out


@pytest.mark.parametrize(("place", "reads"), {"file": f"LIMIT = {READS}\n", "function": ""}.items())
def test_a_flow_of_other_data_is_not_believed(place, reads, data, tmp_path, capsys):
    own, out = tmp_path / "own.py", tmp_path / "out"
    own.write_text(HEAD + reads + (MADE if reads else MADE.replace("    return", f"    LIMIT = {READS}\n    return")))
    words = ["run", f"{own}:make", "--out", str(out)]
    assert main.main(words) == 0 and main.main([*words, "--resume"]) == 0
    before = (out / "trajectory.npz").read_bytes()
    data.write_text('{"bound": 3.0}')
    capsys.readouterr()
    assert main.main([*words, "--resume"]) == 2
    said = "trajectory.npz belongs to another problem" if place == "function" else "sha256 differs"
    assert said in capsys.readouterr().err
    assert (out / "trajectory.npz").read_bytes() == before
    assert json.loads((out / "verdicts.json").read_text())["claims"][0]["verdict"] == "holds"


def test_a_flow_of_a_function_that_gives_the_same_has_one_identity(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(HEAD + "LIMIT = 1.0\n" + MADE)
    identity = lambda **fields: spec_of({"make": f"{own}:make", **fields}).build().identity
    assert identity() == identity() != identity(scale=2.0)


def test_a_sweep_of_other_data_is_refused(data, tmp_path, capsys):
    own, out = tmp_path / "own.py", tmp_path / "out"
    own.write_text(HEAD + MADE.replace("    return", f"    LIMIT = {READS} if scale > 1.5 else 0.0\n    return"))
    words = ["sweep", f"{own}:make", "--over", "scale=1,2", "--out", str(out), "--quiet"]
    assert main.main(words) == 0
    before = (out / "map.npz").read_bytes()
    assert main.main([*words, "--resume"]) == 0
    # No file of Python differs, and only the second cell reads the data.
    data.write_text('{"bound": 3.0}')
    capsys.readouterr()
    assert main.main([*words, "--resume"]) == 2
    assert "what the function makes differs" in capsys.readouterr().err
    (out / "sweep.json").unlink()
    assert main.main([*words, "--resume"]) == 2
    assert (out / "map.npz").read_bytes() == before


def test_an_audit_and_a_certificate_of_other_data_are_not_believed(data, tmp_path, capsys):
    own, out = tmp_path / "own.py", tmp_path / "out"
    problems = ", problems=({'make': __file__ + ':make'},))\n"
    made = MADE.replace("    return", f"    LIMIT = {READS}\n    return").removesuffix(")\n") + problems
    own.write_text(HEAD + made)
    words = ["audit", "--paper", str(own), "--out", str(out), "--certify", "--certify-budget", "20s"]

    def judged():
        assert main.main(words) == 0
        (claim,) = json.loads((out / "verdicts.json").read_text())["claims"]
        return claim["verdict"], claim["certified"]

    assert judged() == ("holds", "proved")
    before = {path: path.read_bytes() for path in (out / "units").iterdir()}
    assert judged() == ("holds", "proved") and before == {path: path.read_bytes() for path in (out / "units").iterdir()}
    data.write_text('{"bound": 3.0}')
    assert judged() == ("violated", "refuted")


OPAQUE = """
class Power(eqx.Module):
    n: int = eqx.field(static=True)
    def __call__(self, m):
        return m.x**self.n
class Plain:
    def __init__(self, value):
        self.value = value
    def __call__(self, m):
        return (m.x - self.value) ** 2
    def method(self, m):
        return self(m)
class W(eqx.Module):
    x: jax.Array
    c: object = None
    def __call__(self, prompt):
        return prompt.query @ self.x * self.c(W(jnp.ones(())))
def ruled(value):
    square = jax.custom_jvp(lambda x: x**2)
    square.defjvp(lambda at, to: (square(*at), value * at[0] * to[0]))
    return lambda m: square(m.x)
def drawn(value):
    return flowsim.MonteCarloLoss(flowsim.LinearRegression(jnp.eye(2), 3), 256, 4)
"""
MAKERS = {
    "a number that is static": "Power(int(value))",
    "an object of the user": "Plain(value)",
    "its method": "Plain(value).method",
    "what holds it": "lambda m: thing(m)",
    "a compiled function": "jax.jit(lambda m: value * m.x**2)",
    "a mapped function": "lambda m: mapped(m.x[None])[0]",
    "a derivative by hand": "ruled(value)",
    "an array of a compiled function": "jax.jit(lambda m: jnp.sum(array * m.x))",
}


@pytest.mark.parametrize("name", [*MAKERS, "a model of a sampled loss"])
def test_a_flow_is_known_by_all_that_its_loss_computes_with(name, data, tmp_path):
    own = tmp_path / "own.py"
    made = f"flowsim.FunctionLoss({MAKERS.get(name, '')}, minimum=0.0), W(jnp.asarray(1.0))"
    if name not in MAKERS:
        made = "drawn(value), W(jnp.ones(2), Plain(value))"
    own.write_text(
        HEAD + OPAQUE + f"def make():\n    value = {READS}\n    thing, array = Plain(value), jnp.full(3, value)\n"
        f"    mapped = jax.vmap(lambda x: value * x**2)\n    return {made}\n"
    )
    found = []
    for bound in (2.0, 4.0, 2.0):
        data.write_text(json.dumps({"bound": bound}))
        found.append(spec_of({"make": f"{own}:make"}).build().identity)
    assert found[0] == found[2] != found[1]
