"""An architecture of somebody else's: one registration, and every command knows it."""

import json

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import flowsim
from flowsim import papers
from flowsim._core.checks import ProblemError
from flowsim.cli import main
from flowsim.losses.sampled.monte_carlo import stated
from flowsim.problem.architecture import Architecture, Curve, Start, scale_of
from flowsim.problem.architectures import architecture_of, register
from flowsim.tasks import Prompt


class OneStep(eqx.Module):
    """yhat = eta ((1/N) sum y_n x_n)^T x_query: one step of gradient descent with a trained step size."""

    eta: Float[Array, ""]

    def __call__(self, prompt: Prompt) -> Float[Array, ""]:
        return self.eta * jnp.mean(prompt.labels[:, None] * prompt.inputs, axis=0) @ prompt.query


def exact_loss(model, task, kind) -> flowsim.FunctionLoss:
    """E (yhat - y)^2 = tr Lambda - 2 eta tr Lambda^2 + eta^2 tr(Gamma Lambda^2), w ~ N(0, I)."""
    Lambda = task.covariance
    bend, slope = jnp.trace(task.gamma() @ Lambda @ Lambda), jnp.trace(Lambda @ Lambda)
    least = jnp.trace(Lambda) - slope**2 / bend
    excess = lambda step: bend * (step.eta - slope / bend) ** 2
    return flowsim.FunctionLoss(lambda step: least + excess(step), excess=excess, minimum=least)


TOY = Architecture(
    "one-step",
    loss=exact_loss,
    starts=lambda model: {
        "scaled-identity": Start(lambda table, d, model: OneStep(jnp.asarray(scale_of(table))), ("scale",)),
        "zeros": Start(lambda table, d, model: OneStep(jnp.zeros(()))),
    },
    start="zeros",
)
PROBLEM = """
[task]
context_length = 5
covariance = [[0.5, 0.0], [0.0, 2.0]]
[model]
architecture = "one-step"
[init]
kind = "scaled-identity"
scale = 0.1
"""


@pytest.fixture(scope="module", autouse=True)
def registered():
    register(TOY)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "problem.toml"
    path.write_text(PROBLEM)
    return path


def test_its_exact_loss_is_the_mean_over_prompts():
    """The closed form above against the package's own sampling of the literal model."""
    spec = flowsim.ProblemSpec.from_toml(PROBLEM)
    problem = spec.build()
    sampled = flowsim.MonteCarloLoss(problem.task, samples=2**14, method="inputs").estimate(problem.start)
    assert sampled.low < float(problem.loss(problem.start)) < sampled.high


def test_run_judges_and_draws_it(file, tmp_path, monkeypatch):
    constant = float(2 * jnp.trace(jnp.diag(jnp.array([0.5, 2.0])) ** 2))

    def dominance(name, factor):
        def compare(loss, run):
            return flowsim.at_least(run.grad_norm_sq, factor * constant * run.excess, promised=run.excess > 0)

        return flowsim.Claim(f"toy.{name}", "nowhere", "a statement", compare, models=(OneStep,))

    claims = (dominance("right", 1.0), dominance("wrong", 100.0))
    monkeypatch.setattr(papers, "ALL_CLAIMS", (*papers.ALL_CLAIMS, *claims))
    out = tmp_path / "out"
    assert main.main(["run", str(file), "--out", str(out)]) == 0
    document = json.loads((out / "verdicts.json").read_text())
    assert {row["id"]: row["verdict"] for row in document["claims"]} == {"toy.right": "holds", "toy.wrong": "violated"}
    assert "toy.right" in (out / "report.html").read_text()
    with np.load(out / "trajectory.npz") as arrays:
        assert arrays["eta"].ndim == 1 and arrays["excess"][-1] <= 1e-12 * arrays["excess"][0]


@pytest.mark.slow
def test_sweep_maps_it(file, tmp_path):
    out = tmp_path / "map"
    assert main.main(["sweep", str(file), "--over", "init.scale=0.01,0.1,1", "--out", str(out)]) == 0
    assert (out / "figures" / "map.png").exists()


def test_init_and_monte_carlo_know_it(file, tmp_path, capsys):
    assert main.main(["init", str(file)]) == 0
    assert "least known loss (exact)" in capsys.readouterr().out
    spec = flowsim.ProblemSpec.from_toml(PROBLEM, ["loss.kind=monte-carlo", "loss.samples=4096"])
    sampled = spec.build().loss
    assert isinstance(sampled, flowsim.MonteCarloLoss) and sampled.minimum == stated(spec.build().loss).minimum


def test_its_own_figure_is_drawn(file, tmp_path, monkeypatch):
    curve = Curve("the step size", "What is trained.", lambda run, best: np.abs(np.asarray(run.models.eta)))
    own = Architecture("with-a-figure", loss=exact_loss, starts=TOY.starts, start="zeros", curves={"step-size": curve})
    register(own)
    monkeypatch.setattr(flowsim.FunctionLoss, "least_model", lambda self: OneStep(jnp.zeros(())))
    out = tmp_path / "out"
    assert main.main(["run", str(file), "--out", str(out), "--set", "model.architecture=with-a-figure"]) == 0
    assert (out / "figures" / "step-size.png").exists() and "What is trained." in (out / "report.html").read_text()


def test_what_it_does_not_have_is_refused():
    for override, words in {
        "init.kind=random": 'one of "scaled-identity", "zeros" with architecture = "one-step"',
        "model.layers=2": 'model.layers must be left out with architecture = "one-step"',
        "flow.restrict=eigenbasis": "flow.restrict must be left out",
        "task.prior_mean=[1,1]": "task.prior_mean must be left out",
        "loss.kind=printed": 'loss.kind must be "exact" or "monte-carlo"',
    }.items():
        with pytest.raises(ProblemError, match=words):
            flowsim.ProblemSpec.from_toml(PROBLEM, [override])


def test_a_name_is_taken_once():
    register(TOY)
    assert architecture_of("one-step") is TOY
    with pytest.raises(ValueError, match="one that is not taken"):
        register(Architecture("one-step", loss=exact_loss, starts=TOY.starts))
    with pytest.raises(ProblemError, match='did you mean "one-step"'):
        architecture_of("one-stp")
