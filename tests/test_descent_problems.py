"""Gradient descent that a problem file asks for: runs, checks, and what is refused."""

import json

import numpy as np
import pytest

import flowsim
from flowsim.cli.main import main
from flowsim.problem import ProblemError, ProblemSpec, spec_of, toml

MINE = """
import flowsim
import jax.numpy as jnp

RATES = jnp.asarray([1.0, 0.25])
DESCENT = {"step_size": 0.5, "steps": 300}


def make():
    return flowsim.FunctionLoss(lambda w: jnp.sum(RATES * w**2) / 2, minimum=0.0), jnp.asarray([0.0, 1.0])


PROBLEM = {"make": make, "flow": {"descent": DESCENT}}


def rate(name, q):
    @flowsim.claim(f"mine.{name}", "my notes", statement="the rate", problems=(PROBLEM,))
    def claim(descent):
        return flowsim.at_most(descent.excess, q**descent.t * descent.excess[0])

    return claim


# The slow weight is multiplied by 7/8 in a step, so that its loss is by 49/64.
slower, faster = rate("slower", 0.7656251), rate("faster", 0.7656249)


@flowsim.claim("mine.along-a-flow", "my notes", statement="the loss falls")
def falls(flow):
    return flowsim.at_most(flow.excess, flow.excess[0])
"""
ASKED = ("--set", "flow.descent.step_size=0.5", "--set", "flow.descent.steps=300", "--quiet")


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("mine") / "mine.py"
    file.write_text(MINE)
    return f"{file}:make"


def test_a_run_descends_judges_claims_about_descents_and_is_resumed(mine, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["run", mine, "--out", str(out), *ASKED]) == 0
    verdicts = {one["id"]: one for one in json.loads((out / "verdicts.json").read_text())["claims"]}
    assert set(verdicts) == {"mine.slower", "mine.faster"}
    assert verdicts["mine.slower"]["verdict"] == "holds"
    assert verdicts["mine.faster"]["verdict"] == "violated"
    with np.load(out / "trajectory.npz") as kept:
        expected = np.asarray([0.0, 1.0]) * 0.875 ** np.arange(301)[:, None]
        np.testing.assert_allclose(kept["w"] if "w" in kept else kept[_weight_in(kept)], expected, rtol=1e-12)
    page = (out / "report.html").read_text()
    assert "Gradient descent of a population loss" in page
    assert "relative tolerance" not in page
    assert "conservation" not in {figure.stem for figure in (out / "figures").iterdir()}
    before = (out / "verdicts.json").read_bytes()
    assert main(["run", mine, "--out", str(out), "--resume", *ASKED]) == 0
    assert (out / "verdicts.json").read_bytes() == before


def _weight_in(kept) -> str:
    (name,) = [name for name in kept.files if kept[name].shape == (301, 2)]
    return name


def test_a_claim_is_checked_on_the_descents_that_it_lists(mine, capsys):
    file = mine.rpartition(":")[0]
    assert main(["check", f"{file}:slower", "--strict"]) == 0
    assert main(["check", f"{file}:faster", "--strict"]) == 1
    assert "violated" in capsys.readouterr().out


def test_a_problem_with_a_descent_reads_back_and_is_the_descent_of_python():
    tables = {
        "task": {"covariance": {"eigenvalues": [0.5, 1.0]}, "context_length": 8},
        "init": {"kind": "balanced", "scale": 0.3},
        "flow": {"descent": {"step_size": [0.05, 0.1, 0.2], "steps": 3, "momentum": 0.5, "direction": "normalized"}},
    }
    spec = spec_of(tables)
    assert isinstance(spec, ProblemSpec)
    assert ProblemSpec.from_toml(spec.to_toml()) == spec
    problem = spec.build()
    theirs = flowsim.gradient_descent(
        problem.loss, problem.start, [0.05, 0.1, 0.2], 3, momentum=0.5, direction="normalized"
    )
    ours = problem.run()
    np.testing.assert_array_equal(np.asarray(ours.loss), np.asarray(theirs.loss))
    tables["flow"] = {"descent": {"step_size": 0.05, "steps": 3}}
    assert spec_of(tables).identity != spec.identity


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        (
            {"descent": {"step_size": 0.1, "steps": 3}, "t1": 2.0},
            "flow.t1 must be left out where flow.descent is given",
        ),
        ({"descent": {"step_size": 0.1, "steps": 3}, "rtol": 1e-6}, "flow.rtol must be left out"),
        ({"descent": {"step_size": 0.1}}, "flow.descent.steps must be a whole number"),
        ({"descent": {"step_size": -0.1, "steps": 3}}, "flow.descent.step_size must be positive"),
        ({"descent": {"step_size": [0.1], "steps": 3}}, "flow.descent.step_size must be one number or 3 of them"),
        ({"descent": {"step_size": 0.1, "steps": 3, "momentum": 1.0}}, "flow.descent.momentum must be at least 0"),
        ({"descent": {"step_size": 0.1, "steps": 3, "direction": "sgn"}}, "flow.descent.direction must be"),
    ],
)
def test_a_descent_that_cannot_be_is_refused_by_field(flow, message):
    tables = {
        "task": {"covariance": {"eigenvalues": [1.0]}, "context_length": 8},
        "init": {"kind": "balanced", "scale": 0.3},
    }
    with pytest.raises(ProblemError, match=message):
        spec_of(tables | {"flow": flow}).build().run()


def test_sweeps_families_and_certificates_of_descents_are_refused(mine, tmp_path, capsys):
    assert main(["sweep", mine, "--out", str(tmp_path / "map"), "--over", "flow.rtol=1e-8,1e-9", *ASKED[:4]]) == 2
    assert "flow.descent must be left out of a sweep" in capsys.readouterr().err
    assert main(["run", mine, "--out", str(tmp_path / "out"), "--certify", *ASKED]) == 2
    assert "certify must be left out for gradient descent" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    spec = spec_of(toml.parse(f'make = "{mine}"\n[flow.descent]\nstep_size = 0.5\nsteps = 3\n'))
    family = flowsim.Family(spec, {"flow.descent.step_size": [0.1, 0.2]})
    with pytest.raises(ProblemError, match="flow.descent must be left out of a family"):
        family.evidence(0)
