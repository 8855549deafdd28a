"""Sweeps look at claims: of any paper or one's own, traced or not, together as one by one, and by a pattern of ids."""

import json

import numpy as np
import pytest
from helpers import Lazy

from flowsim import ALL_CLAIMS, find_claims, judge, sweep
from flowsim.cli import main
from flowsim.experiments.sweep.judged import chosen
from flowsim.papers import MAPPED
from flowsim.problem import spec_of

pytestmark = pytest.mark.slow

TABLES = {
    "task": {"context_length": 10, "covariance": {"eigenvalues": [0.5, 1.0, 2.0]}},
    "init": {"scale": 0.3, "theta": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]},
}
LOOPED = {
    "task": {"context_length": 10, "covariance": "identity", "dimension": 2},
    "model": {"architecture": "looped", "loops": 2},
    "init": {"kind": "random", "scale": 0.1},
}
# Scalar networks a b x of target 1, along which |grad L|^2 / L = 2 (a^2 + b^2) >= 4 a b.
OWN = """
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import flowsim
from flowsim.claims.hypotheses import hypothesis


class Net(eqx.Module):
    w: jax.Array


def make(scale: float = 0.1):
    excess = lambda net: 0.5 * (jnp.prod(net.w) - 1.0) ** 2
    return flowsim.FunctionLoss(excess, excess=excess, minimum=0.0), Net(scale * jnp.ones(2))


small = lambda loss, start: [hypothesis("w < 1/4", start.w[0], "<", 0.25)]
statement = dict(source="here", statement="|grad L|^2 >= L/50", hypotheses=small)
traced = flowsim.Claim(
    "own.traced", compare=lambda loss, run: flowsim.at_least(run.grad_norm_sq, run.excess / 50), **statement
)
untraced = flowsim.Claim(
    "own.untraced",
    compare=lambda loss, run: flowsim.at_least(np.asarray(run.grad_norm_sq), np.asarray(run.excess) / 50),
    **statement,
)
raising = flowsim.Claim("own.raising", "here", "nothing", lambda loss, run: flowsim.at_least(run.nothing, 0.0))
"""


@pytest.fixture
def own(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return {"make": f"{file}:make"}


def test_without_a_pattern_the_claims_are_those_that_papers_name(tmp_path):
    named = sweep(TABLES, {"init.scale": [0.01, 0.3, 3.0]}, out=tmp_path / "named")
    asked = sweep(TABLES, {"init.scale": [0.01, 0.3, 3.0]}, claims="zhang2023.lemma-[5a]*", out=tmp_path / "asked")
    assert {name for name in named.quantities if name.startswith("met_")} == {f"met_{name}" for name in MAPPED}
    for name, claims in MAPPED.items():
        for part in ("margin_{}", "margin_{}_time", "met_{}"):
            np.testing.assert_array_equal(named[part.format(name)], asked[part.format(claims[0].id)])
    assert named["met_pl"].tolist() == [True, True, False]
    assert named["smallest_margin_name"].tolist() == ["zhang2023.lemma-a.5"] * 2 + [""]
    # Beyond the condition the bound is negative, and its sign alone tells.
    assert np.isfinite(named["margin_pl"]).tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("tables", "axis", "identifier", "form"),
    [
        pytest.param(TABLES, {"init.scale": [0.1, 0.3]}, "zhang2023.lemma-5.4.rate", "printed", marks=pytest.mark.long),
        (LOOPED, {"init.scale": [0.1, 0.2, 0.3, 0.4]}, "gatmiry2024.theorem-3.4", "corrected"),
    ],
)
def test_the_margin_of_a_cell_is_about_that_of_its_verdict(tables, axis, identifier, form, tmp_path):
    """A run has other output times than a sweep has steps, and looks between them, too."""
    found = sweep(tables, axis, claims=identifier, out=tmp_path)
    (claim,) = [one for one in find_claims(ALL_CLAIMS, identifier) if (one.id, one.form) == (identifier, form)]
    name = identifier if form == "printed" else f"{identifier}.{form}"
    for cell in range(found.shape[0]):
        problem = found.problem(cell).build()
        (verdict,) = judge([claim], problem.loss, problem.run())
        assert found[f"met_{name}"][cell] == all(condition.met for condition in verdict.hypotheses)
        assert verdict.margin is not None
        assert found[f"margin_{name}"][cell] == pytest.approx(verdict.margin, rel=0.05)


def test_a_claim_of_ones_own_is_looked_at_whether_it_can_be_traced_or_not(own, tmp_path):
    found = sweep(own, {"scale": "geom:0.01:0.5:6"}, claims="own.*ed", out=tmp_path / "map")
    # The ratio is least at the start, where it is 4 scale^2.
    expected = 50 * 4 * np.geomspace(0.01, 0.5, 6) ** 2 - 1
    for name in ("own.traced", "own.untraced"):
        np.testing.assert_allclose(found[f"margin_{name}"], expected, rtol=1e-9)
        assert np.all(found[f"margin_{name}_time"] == 0)
        assert found[f"met_{name}"].tolist() == [True] * 5 + [False]
    np.testing.assert_allclose(found["smallest_margin"], expected, rtol=1e-9)


def test_a_mistake_in_a_claim_is_told(own, tmp_path):
    with pytest.raises(AttributeError, match="nothing"):
        sweep(own, {"scale": "geom:0.01:0.5:6"}, claims="own.raising", out=tmp_path / "map")


def test_claims_go_with_cells_to_other_processes(own, tmp_path):
    alone = sweep(own, {"scale": "geom:0.01:0.5:6"}, claims="own.traced", out=tmp_path / "alone")
    elsewhere = sweep(own, {"scale": "geom:0.01:0.5:6"}, claims="own.traced", out=tmp_path / "else", executor=Lazy())
    for name, values in alone.quantities.items():
        assert values.tobytes() == elsewhere[name].tobytes(), name


def test_cells_of_another_model_have_no_margin(tmp_path):
    tables = {name: table for name, table in LOOPED.items() if name != "model"}
    axes = {"model.architecture": ["linear-attention", "masked-attention"]}
    found = sweep(tables, axes, claims="*.lemma-a.4", out=tmp_path)
    assert np.isfinite(found["margin_zhang2023.lemma-a.4"]).tolist() == [True, False]
    assert found["smallest_margin_name"][1] == "" and not found["met_zhang2023.lemma-a.4"][1]


def test_a_pattern_that_matches_nothing_is_refused_and_another_is_another_sweep(tmp_path, capsys):
    (tmp_path / "problem.toml").write_text("[task]\ncontext_length = 10\ncovariance = [[1.0]]\n[init]\nscale = 0.2\n")
    command = ["sweep", str(tmp_path / "problem.toml"), "--over", "init.scale=0.1,0.2", "--out", str(tmp_path / "out")]
    assert main.main([*command, "--claims", "gatmiry2024.*"]) == 2
    assert "--claims must be a pattern of the id of some claim about these models" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main.main([*command, "--claims", "zhang2023.lemma-a.4", "--quiet"]) == 0
    assert json.loads((tmp_path / "out" / "sweep.json").read_text())["claims"] == "zhang2023.lemma-a.4"
    capsys.readouterr()
    assert main.main([*command, "--resume"]) == 2
    assert "--claims differs" in capsys.readouterr().err


def test_every_form_has_a_name_of_its_own():
    problem = spec_of({"task": {"context_length": 10, "covariance": [[1.0]]}, "init": {"scale": 0.2}}).build()
    assert not chosen("zhang2023.nothing", [problem]).claims
    names = chosen("zhang2023.eq-a.15.bound", [problem]).claims
    assert list(names) == ["zhang2023.eq-a.15.bound", "zhang2023.eq-a.15.bound.corrected"]
