"""The first minute of a user: what is shown is one problem, what is typed works, and what goes wrong is one line."""

import io
import os
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

import flowsim
from flowsim.cli import main

ROOT = pathlib.Path(__file__).parents[1]
TASK = flowsim.LinearRegression(np.diag([0.5, 1, 2]), context_length=10)
LOSS = flowsim.LinearAttentionLoss(TASK)
THETA = [[1, 0.5, 0], [0, 1, -0.5], [0.3, 0, 1]]

# As isort sorts imports: flowsim's own modules, and JAX with them, are imported before setup.
LATE = """
import io
import os
import jax
from flowsim.initialization import balanced
import flowsim

flowsim.setup()
import logging
import jax.numpy as jnp
print(jax.jit(lambda x: jnp.cumsum(x) @ x)(jnp.arange(float(os.environ["SIZE"]))))
assert jnp.zeros(()).dtype == jnp.float64
assert jax.config.values["jax_logging_level"] == "NOTSET" and not logging.getLogger("jax").handlers
"""


def toml_of(page: str, start: str) -> flowsim.Problem:
    (block,) = [block for block in re.findall(r"```toml\n(.*?)```", (ROOT / page).read_text(), re.S) if start in block]
    return flowsim.ProblemSpec.from_toml(block).build()


def python_of(page: str, fence: str, blocks: int) -> dict:
    """The names after the code up to the start of the flow, which is not integrated."""
    text = "".join(re.findall(rf"```{re.escape(fence)}\n(.*?)```", (ROOT / page).read_text(), re.S)[:blocks])
    namespace: dict = {}
    exec(text[: text.index("trajectory =")], namespace)
    return namespace


def test_readme_tutorial_and_scenario_are_one_problem():
    scenario = flowsim.ProblemSpec.from_toml(
        (ROOT / "scenarios/zhang2023_fixed_covariance.py").read_text().split('"""')[3]
    )
    expected = scenario.build()
    for page in ("README.md", "docs/tutorials/first-flow.md"):
        problem = toml_of(page, "[task]")
        assert problem.spec.to_toml() == scenario.to_toml(), page
        fence, blocks = ("python", 1) if page == "README.md" else ("{code-cell}", 2)
        typed = python_of(page, fence, blocks)
        np.testing.assert_array_equal(typed["task"].covariance, expected.task.covariance)
        assert typed["task"].context_length == expected.task.context_length
        np.testing.assert_array_equal(typed["start"].U11, expected.start.U11)
        assert typed["start"].u_minus1 == expected.start.u_minus1


def test_the_readme_s_problem_file_is_the_one_that_its_table_is_of():
    table = re.search(
        r"zhang2023\.lemma-5\.4\.pl +printed +holds +\+(\d+) +t = ([\d.]+)", (ROOT / "README.md").read_text()
    )
    assert table is not None
    problem = toml_of("README.md", "[task]")
    flow = problem.run()
    t = float(table[2])
    mu = flowsim.predictions(problem.task, problem.start).rate.value
    ratio = np.asarray(flow.grad_norm_sq / flow.excess)
    # The margin is (|grad|^2 - mu excess)/(mu excess), least between the output times near t.
    near = np.abs(np.log(np.asarray(flow.t[1:]) / t)) < 0.3
    assert ratio[1:][near].min() / mu - 1 == pytest.approx(float(table[1]), rel=0.01)


@pytest.mark.slow
def test_a_claim_is_judged_by_its_id():
    flow = flowsim.gradient_flow(LOSS, flowsim.balanced(0.3, THETA))
    by_id = flowsim.judge("zhang2023.lemma-5.4", LOSS, flow)
    assert [verdict.id.rpartition(".")[2] for verdict in by_id] == ["pl", "rate", "limit"]
    assert (
        repr(by_id)
        == str(by_id)
        == str(flowsim.judge(flowsim.find_claims(flowsim.ALL_CLAIMS, "zhang2023.lemma-5.4"), LOSS, flow))
    )


def test_a_mistyped_id_has_the_nearest():
    flow = flowsim.gradient_flow(LOSS, flowsim.balanced(0.3, THETA), t1=1e-3)
    with pytest.raises(ValueError, match=r'"zhang2023.lemma-5.44"; did you mean "zhang2023.lemma-5.4"\?'):
        flowsim.judge("zhang2023.lemma-5.44", LOSS, flow)


@pytest.mark.parametrize("call", [LOSS, lambda start: flowsim.gradient_flow(LOSS, start)], ids=["loss", "flow"])
def test_a_start_of_another_dimension_is_refused_in_one_line(call):
    with pytest.raises(ValueError, match=r"^model must be of dimension 3, .*, but U11 is \(2, 2\)"):
        call(flowsim.balanced(0.3, np.eye(2)))


def test_what_is_missing_without_setup_is_named():
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"flowsim\.setup\(\)"):
        flowsim.balanced(0.3, THETA)


def test_what_a_prompt_shows_is_short():
    flow = flowsim.gradient_flow(LOSS, flowsim.balanced(0.3, THETA), t1=1e-3)
    claim = flowsim.find_claims(flowsim.ALL_CLAIMS, "zhang2023.lemma-5.4.pl")[0]
    assert repr(claim) == f"<Claim {claim.id} [printed]: {claim.text}>"
    assert max(len(repr(other)) for other in flowsim.ALL_CLAIMS) < 200
    assert f"<{len(flowsim.ALL_CLAIMS)} claims: " in repr(flowsim.ALL_CLAIMS) and len(repr(flowsim.ALL_CLAIMS)) < 200
    assert repr(LOSS) == "<LinearAttentionLoss, d = 3, N = 10; minimum exact>"
    assert repr(flow) == str(flow) and "ended: t1" in repr(flow)
    several = jax.tree.map(lambda leaf: np.stack([leaf, leaf]) if isinstance(leaf, jax.Array) else leaf, flow)
    assert "f64[2," in repr(several)


def test_starts_are_where_users_are_told():
    start = flowsim.scaled_identity(0.3, 3)
    np.testing.assert_allclose(start.U11, flowsim.initialization.balanced(0.3, np.eye(3)).U11)


@pytest.mark.slow
def test_setup_after_other_imports_is_as_quiet_as_before(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "SIZE": "7"}
    first, second = (
        subprocess.run([sys.executable, "-c", LATE], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert list((tmp_path / "flowsim" / "jax").iterdir())
    assert (first.stdout, first.stderr) == (second.stdout, second.stderr) == ("266.0\n", "")


def test_a_mistyped_command_is_answered_by_the_nearest(capsys):
    assert main.main(["clams"]) == 2
    assert capsys.readouterr().err.endswith('it is "clams"; did you mean "claims"?\n')


@pytest.mark.parametrize(
    "command", ["run", "init", "claims", "check", "certify", "audit", "sweep", "explore", "refute", "sharpen"]
)
def test_no_help_shows_python_s_none(command, capsys):
    with pytest.raises(SystemExit):
        main.main([command, "--help"])
    assert "None" not in capsys.readouterr().out


def test_claims_are_listed_by_a_pattern(capsys):
    assert main.main(["claims", "zhang2023.lemma-5.4.*"]) == 0
    printed = capsys.readouterr().out
    assert re.findall(r"^zhang2023\S+", printed, re.M) == [
        f"zhang2023.lemma-5.4.{part}" for part in ("pl", "rate", "limit")
    ]
    assert main.main(["claims", "zhang2023.lemma-5.4"]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.py")), ids=lambda path: path.stem)
def test_a_scenario_does_as_users_are_told_and_says_at_once_what_it_does(path):
    text = path.read_text()
    begin = text[text.index("def main(") :]
    assert re.search(r'"""\n    flowsim\.setup\(\)\n    print\("[^"]{10,72} \.\.", flush=True\)\n', begin)
    assert "jax_enable_x64" not in text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "shown"), [(Terminal, True), (io.StringIO, False)])
def test_a_terminal_shows_at_once_that_a_command_starts(stream, shown, monkeypatch):
    written = stream()
    monkeypatch.setattr(sys, "stderr", written)
    assert main.main(["claims", "zhang2023.lemma-5.4"]) == 0
    assert written.getvalue().startswith("\rstarting:") is shown
    assert not written.getvalue().split("\r")[-2:-1] or not written.getvalue().split("\r")[-2].strip()  # wiped out


def test_a_bar_needs_nothing_that_takes_long_to_import():
    script = "import sys, flowsim._core.progress; sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
