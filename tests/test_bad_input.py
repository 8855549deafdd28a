"""Input of every kind is taken, or ends in one line and status 2: no traceback, and never the status of a violation."""

import random
import sys

import jax.numpy as jnp
import pytest

from flowsim import papers
from flowsim._core import checks
from flowsim._core.text import LONGEST, one_line
from flowsim.claims import Claim
from flowsim.claims.deciding.verdict import Judgement
from flowsim.claims.statements import polyak_lojasiewicz
from flowsim.cli import common, main
from flowsim.experiments.audit import judge_all
from flowsim.problem import ProblemError, ProblemSpec, toml
from flowsim.tasks import LinearRegression
from flowsim.tasks.sampling import draw_prompts

PLAIN = "[task]\ncontext_length = 10\ncovariance = [[1.0]]\n[init]\nscale = 0.3\n"
IDENTITY = '[task]\ncontext_length = 10\ncovariance = "identity"\ndimension = 2\n'
SIZED = IDENTITY + "[init]\nscale = 0.3\n"
LAYERS = IDENTITY + '[model]\narchitecture = "multi-layer"\nlayers = '
HEADS = IDENTITY + '[model]\narchitecture = "multi-head"\nheads = '
WISHART = '[task]\ncontext_length = 10\n[task.covariance_law]\nfamily = "wishart"\nmean = [[1.0]]\n'


@pytest.fixture
def refused(tmp_path, capsys):
    """Runs a command on a problem, which it refuses, and gives its line."""

    def call(text: str | bytes, *arguments: str, command: str = "init") -> str:
        path = tmp_path / "p.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        assert main.main([command, str(path), *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        assert len(line) <= LONGEST + len("flowsim: ")
        return line

    return call


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PLAIN.replace("10", "9" * 4300), "task.context_length must be"),
        (PLAIN.replace("10", "9" * 5000), "the problem must be TOML"),
        (PLAIN + "theta = " + "[" * 5000 + "]" * 5000, "the problem must be TOML"),
        (PLAIN + "theta = " + "[" * 300 + "]" * 300, "nested at most 9 deep"),
        (PLAIN + "theta = " + "{a=" * 100 + "1" + "}" * 100, "nested at most 9 deep"),
        (PLAIN + "a." * 3000 + "a = 1", "nested at most 9 deep"),
        (PLAIN + "[" + "a." * 3000 + "a]", "nested at most 9 deep"),
        (PLAIN + '"\\u202e\\u001b[31m" = 3', "\\u202e\\x1b[31m"),
        (PLAIN.replace("1.0", "1e-150"), "task.covariance must be of a size between 1e-100 and 1e+100"),
        (PLAIN.replace("1.0", "1e200"), "task.covariance must be of a size between"),
        (SIZED.replace("= 2", "= 1000000"), "task.dimension must be small enough for"),
        (SIZED.replace("= 2", "= " + "9" * 4000), "task.dimension must be small enough for"),
        (PLAIN.replace("[[1.0]]", "{condition = 3, dimension = 1000000000000}"), "task.covariance.dimension must be"),
        (LAYERS + "100000000000", "model.layers must be small enough"),
        (HEADS + "100000000000", "model.heads must be small enough"),
        (WISHART + "degrees = 4\nsamples = 1000000000000", "task.covariance_law.samples must be small enough"),
        (WISHART + "degrees = 1000000000000", "task.covariance_law.degrees must be small enough"),
    ],
    ids=range(17),
)  # fmt: skip
def test_a_file_that_is_refused(text, message, refused):
    assert message in refused(text)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("init.scale=0.3\nx=1", "--set must be FIELD=VALUE in one line"),
        ("init.scale=0.3\n", "--set must be FIELD=VALUE in one line"),
        ("init.scale\u2028=0.3", "--set must be FIELD=VALUE in one line"),
        ("init.scale=" + "9" * 5000, "init.scale must be set to a TOML value"),
        ("init.theta=" + "[" * 3000 + "]" * 3000, "init.theta must be set to a TOML value"),
        ("a." * 5000 + "a=1", "must be a known field, but it has 5000 dots"),
        ("init.\x1b[31mscale=3", "init.\\x1b[31mscale is not a known field"),
        ('init.kind="\u202ebalanced"', "\\u202ebalanced"),
    ],
    ids=range(8),
)
def test_an_override_that_is_refused(assignment, message, refused):
    assert message in refused(PLAIN, "--set", assignment)


def test_what_a_sweep_and_a_search_refuse(refused, tmp_path, capsys):
    for axes in ("init.scale=1:" + "9" * 5000, "init.scale=geom:1:2:" + "9" * 5000, "a." * 5000 + "a=1,2"):
        refused(PLAIN, "--over", axes, "--out", str(tmp_path / "out"), command="sweep")
    for options in (["--seed", "-1"], ["--seed", str(2**32)], ["--budget", "9" * 400], ["--budget", "1e999"]):
        for command in ("refute", "sharpen"):
            assert main.main([command, "zhang2023.lemma-5.4.pl", *options]) == 2
            assert f"{options[0]} must be a" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def", "raises SyntaxError"),
        ("raise KeyError('x\\ny')", "raises KeyError"),
        ("import sys; sys.exit(1)", "raises SystemExit: 1"),
        ("claim = 3", "must be the name of a Claim there"),
    ],
)
def test_a_claim_s_file_that_raises(text, message, tmp_path, capsys):
    (tmp_path / "own.py").write_text(text)
    assert main.main(["refute", f"{tmp_path / 'own.py'}:claim"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line and "own.py" in line


def test_imaginary_parts_are_not_dropped():
    for given in ([1j, 2.0], jnp.full(2, 1j)):
        with pytest.raises(ValueError, match="x must be an array of numbers of shape"):
            checks.as_array("x", given, (2,))


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 0.5])
def test_a_seed_that_no_key_has_is_refused(seed):
    with pytest.raises(ValueError, match="seed must be a whole number of 64 bits"):
        draw_prompts(LinearRegression([[1.0]], 2), 1, 1, seed=seed)


def test_the_environment(monkeypatch, tmp_path, capsys):
    (tmp_path / "p.toml").write_text(PLAIN)
    for value in ("banana", "", "0", "\u202e1"):
        monkeypatch.setenv("JAX_ENABLE_X64", value)
        with pytest.raises(SystemExit) as stop:
            main.main(["init", str(tmp_path / "p.toml")])
        assert stop.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "JAX_ENABLE_X64" in line and line.isprintable()


def test_an_unknown_platform_is_bad_input(monkeypatch, tmp_path, capsys):
    def fail(*arguments, **named):
        raise RuntimeError("Unable to initialize backend 'foo': it is not in the list\nof known ones")

    monkeypatch.setenv("JAX_PLATFORMS", "foo")
    monkeypatch.setattr("flowsim.cli.init.init", fail)
    assert main.main(["init", str(tmp_path / "p.toml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert 'JAX_PLATFORMS must be platforms that JAX finds here, but it is "foo"' in line


@pytest.mark.parametrize(("error", "words"), [(KeyError("x"), "KeyError: 'x'"), (MemoryError(), "not enough memory")])
def test_what_nothing_foresaw_is_one_line_and_status_3(error, words, monkeypatch, tmp_path, capsys):
    def fail(*arguments, **named):
        raise error

    monkeypatch.setattr("flowsim.cli.init.init", fail)
    monkeypatch.delenv("FLOWSIM_TRACEBACK")
    assert main.main(["init", str(tmp_path / "p.toml"), "--set", "a=1"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    monkeypatch.setenv("FLOWSIM_TRACEBACK", "1")
    with pytest.raises(type(error)):
        main.main(["init", str(tmp_path / "p.toml"), "--set", "a=1"])


def test_a_claim_that_raises_is_unresolved_and_the_others_stand(monkeypatch, capsys):
    problems = ({"task": {"covariance": [[1.0]], "context_length": 5}, "init": {"scale": 0.3}},)

    def fails(error):
        def compare(loss, flow):
            raise error

        return compare

    dominates = lambda loss, flow: polyak_lojasiewicz(flow, jnp.asarray(1e-9))
    claims = (
        Claim("planted.memory", "", "", fails(MemoryError("4 TiB")), along_flow=False, problems=problems),
        Claim("planted.slip", "", "", fails(TypeError("bad\nshapes")), along_flow=False, problems=problems),
        Claim("planted.true", "", "", dominates, problems=problems),
    )
    monkeypatch.setattr(papers, "ALL_CLAIMS", claims)
    monkeypatch.delenv("FLOWSIM_TRACEBACK")
    entries = list(judge_all(claims))
    verdicts = {entry.verdict.id: entry.verdict for entry in entries}
    assert verdicts["planted.true"].verdict is Judgement.HOLDS
    for name, words in {"planted.memory": "MemoryError: 4 TiB", "planted.slip": "TypeError: bad."}.items():
        assert verdicts[name].verdict is Judgement.UNRESOLVED
        assert words in verdicts[name].note
    # Whoever works on a claim sees where it fails; that memory does not suffice is no slip.
    monkeypatch.setenv("FLOWSIM_TRACEBACK", "1")
    with pytest.raises(TypeError, match="bad"):
        list(judge_all(claims[1:2]))
    (entry,) = judge_all(claims[:1])
    assert entry.verdict.verdict is Judgement.UNRESOLVED


def test_memory_is_estimated_without_being_taken():
    checks.within_memory("x", 10**6)
    with pytest.raises(
        ProblemError, match="x must be small enough for .* GiB of memory, but a flow of that size takes"
    ):
        checks.within_memory("x", 10**13)


def test_lines():
    assert one_line("a\nb\x1b[0m\u202e\ud800\u2028é ∞") == "a\\nb\\x1b[0m\\u202e\\ud800\\u2028é ∞"
    assert len(one_line("x" * 5000)) == LONGEST


# Random input.

BASES = (
    PLAIN,
    SIZED + "[test]\nlength = 5\n",
    IDENTITY + '[model]\narchitecture = "looped"\nloops = 2\n[init]\nkind = "zeros"\n',
    LAYERS + '2\n[flow]\nrestrict = "eigenbasis"\n[init]\nkind = "zeros"\n',
    HEADS + '2\n[init]\nkind = "random"\nscale = 1\n',
    WISHART.replace("wishart", "exponential").replace("mean = [[1.0]]", "rate = [1.0, 2.0]") + "[init]\nscale = 1\n",
    PLAIN + '[loss]\nkind = "monte-carlo"\nsamples = 512\n',
)
VALUES = (
    *("0", "1", "-1", "2", "3", "7", "0.5", "1e-9", "1e-150", "1e-320", "1e150", "1.7e308", "-1e308", "inf", "-inf"),
    *("nan", "true", "false", "1979-05-27", "07:32:00"),
    *(str(10**18), str(2**63), str(2**64), str(10**400), '""', '"inf"', '"ten"', '"identity"', '"\\u202e"', '"random"'),
    *("[]", "[[]]", "[1]", "[1, 2]", "[2, 1]", "[[1]]", "[[1, 2], [2, 5]]", "[[1, 2], [2]]", "[[nan]]", '["a"]'),
    *("{}", "[{}]", "{a = 1}", "{eigenvalues = [1, 2]}", "{eigenvalues = []}", "[[[1, 2]]]", "[[1e200]]"),
    *("{condition = 1e12, dimension = 2}", "{condition = 2, dimension = 1000000000000}", "[1e-300, 1e300]"),
    *('"explicit"', '"printed"', '"limit"', '"wishart"', '"factored"', '"inverse-covariance"', '"eigenbasis"'),
)


LIKELY = {
    "task.context_length": ("1", "3", "inf", str(10**18), "1e300"),
    "task.covariance": ("[[1e-90]]", "[[1e90]]", "identity", "{eigenvalues = [1e-9, 1], rotation_seed = 3}"),
    "task.weights": ("isotropic", "inverse-covariance"),
    "task.prior_mean": ("[0.0, 1e9]", "[1.0]"),
    "init.kind": ("balanced", "unbalanced", "zeros", "random", "scaled-identity", "balanced-indefinite"),
    "init.scale": ("1e-300", "1e-9", "1e9", "1e300"),
    "init.rank": ("1", "2"),
    "model.symmetric": ("true", "false"),
    "model.loops": ("1", "8"),
    "model.layers": ("1", "5"),
    "model.guess": ("zero", "trainable", "{bias = 1e150}"),
    "loss.kind": ("exact", "printed", "limit", "monte-carlo"),
    "flow.restrict": ("inverse-covariance", "eigenbasis"),
    "flow.t1": ("1e-300", "1e300"),
    "flow.times": ("[1e-300, 1e300]",),
    "flow.rtol": ("1e-14", "0.5"),
    "test.length": ("1", "inf", str(10**17)),
    "test.scale": ("1e-90", "1e90"),
    "test.label_noise": ("0", "1e-200", "1e150"),
}


def random_problem(seed: int) -> list[str]:
    """Overrides of one of the problems above, some of which fit."""
    rng = random.Random(seed)
    fits = rng.random() < 0.7
    names = list(LIKELY if fits else toml.fields(ProblemSpec))
    chosen = rng.sample(names, rng.randint(1, 2))
    return [f"{name}={rng.choice(LIKELY[name] if fits else VALUES)}" for name in chosen]


def random_bytes(seed: int) -> bytes:
    """One of the problems above, with bytes that are other ones, left out or there twice."""
    rng = random.Random(seed)
    content = bytearray(rng.choice(BASES).encode())
    for _ in range(rng.randint(1, 12)):
        place, kind = rng.randrange(len(content)), rng.randrange(4)
        if kind == 0:
            content[place] = rng.randrange(256)
        elif kind == 1:
            del content[place : place + rng.randint(1, 20)]
        elif kind == 2:
            content[place:place] = content[rng.randrange(len(content)) :][: rng.randint(1, 40)]
        else:
            content[place:place] = rng.choice(["\x00", "\u202e", "[[", "{", '"""', "= ", "9" * 30, "\r", "#"]).encode()
        content = content or bytearray(b"x")
    return bytes(content)


def taken(text: str, overrides: list[str]) -> bool:
    """Whether input makes a problem; else it must be refused in one line."""
    try:
        ProblemSpec.from_toml(text, overrides).build()
        return True
    except ProblemError as error:
        assert str(error).isprintable() and len(str(error)) <= LONGEST
        return False


@pytest.mark.parametrize("seeds", [range(0, 60), range(60, 120)], ids=["1", "2"])
def test_random_problems_are_taken_or_refused(seeds):
    found = [taken(BASES[seed % len(BASES)], random_problem(seed)) for seed in seeds]
    assert not all(found)


def test_random_bytes_are_refused_by_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("flowsim.cli.init.init", lambda path, **rest: common.read(path, ()) and 0)
    for seed in range(60):
        (tmp_path / "p.toml").write_bytes(random_bytes(seed))
        code = main.main(["init", str(tmp_path / "p.toml")])
        lines = capsys.readouterr().err.splitlines()
        assert (code, len(lines)) in ((0, 0), (2, 1))


if __name__ == "__main__":
    # The long version: how many seeds.
    for seed in range(int(sys.argv[1])):
        taken(BASES[seed % len(BASES)], random_problem(seed))
        try:
            text = random_bytes(seed).decode()
        except UnicodeDecodeError:
            continue
        taken(text, [])
