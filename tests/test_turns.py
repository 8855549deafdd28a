"""A flow takes the solver that gets on, says which, and decides alike when it goes on."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim
from flowsim.flow import course
from flowsim.flow.trajectory import Settings

pytestmark = pytest.mark.slow


class Kinked(eqx.Module):
    """A user's own network with kinks, on what the examples say of the weights and on the query."""

    inner: jax.Array
    outer: jax.Array

    def __call__(self, prompt):
        moment = prompt.inputs.T @ prompt.labels / prompt.labels.size
        return self.outer @ jax.nn.relu(self.inner @ jnp.concatenate([moment, prompt.query, moment * prompt.query]))


def sampled(eigenvalues, samples=256):
    task = flowsim.LinearRegression(np.diag(eigenvalues), 10)
    return flowsim.MonteCarloLoss(task, samples=samples, factor=0.5, method="prompts")


def attention(scale=0.3):
    return flowsim.LinearAttention(scale * np.asarray([[1.0, 0.2], [-0.3, 0.7]]), scale)


def network(width):
    rng = np.random.default_rng(0)
    return Kinked(jnp.asarray(rng.standard_normal((width, 6)) / 2), jnp.asarray(rng.standard_normal(width) / 3))


def stiff(**how: Any):
    return flowsim.gradient_flow(sampled([0.03, 1.0]), attention(), rtol=1e-6, **how)


@pytest.fixture(scope="module")
def whole():
    return stiff()


def test_a_stiff_flow_goes_on_implicitly_and_ends_where_the_implicit_one_does(whole):
    assert whole.settings.solver == "in-turns"
    (when,) = whole.settings.changes
    assert f"explicit, implicit from t = {when:.4g}, rtol" in str(whole)
    # A tenth of the way already costs it more: the whole would be 30,000 steps.
    alone = stiff(solver="explicit", t1=0.1 * float(whole.t[-1]))
    assert alone.certificates.steps > 2 * whole.certificates.steps
    implicit = stiff(solver="implicit", t1=float(whole.t[-1]))
    for one, other in zip(jax.tree.leaves(whole.end), jax.tree.leaves(implicit.end), strict=True):
        assert float(jnp.max(jnp.abs(one - other))) < 1e-4


def test_a_flow_that_is_not_stiff_stays_explicit_step_by_step():
    auto, explicit = (
        flowsim.gradient_flow(sampled([0.8, 1.0]), attention(), t1=2.0, rtol=1e-6, solver=solver)
        for solver in ("auto", "explicit")
    )
    assert auto.settings.changes == () and auto.settings.method == "explicit"
    assert np.array_equal(auto.t, explicit.t) and np.array_equal(auto.models.U11, explicit.models.U11)


def test_a_flow_that_goes_on_across_the_change_is_the_same_bit_for_bit(whole, tmp_path):
    cut = stiff(checkpoint=tmp_path, budget_seconds=1e-9)
    calls = 1
    while cut.status is flowsim.Status.BUDGET:
        cut = stiff(checkpoint=tmp_path, budget_seconds=1e-9)
        calls += 1
    assert calls > 3
    assert (cut.settings, cut.status, cut.certificates) == (whole.settings, whole.status, whole.certificates)
    for one, other in zip(jax.tree.leaves(cut.models), jax.tree.leaves(whole.models), strict=True):
        assert np.array_equal(one, other)
    for name in ("t", "loss", "excess", "grad_norm_sq", "dissipated"):
        assert np.array_equal(getattr(cut, name), getattr(whole, name), equal_nan=True)


def test_on_a_model_with_kinks_the_way_back_is_taken():
    loss, start = sampled([1.0, 1.0]), network(8)
    auto, explicit = (
        flowsim.gradient_flow(loss, start, t1=30.0, rtol=1e-4, solver=solver) for solver in ("auto", "explicit")
    )
    assert len(auto.settings.changes) >= 2 and len(auto.settings.changes) % 2 == 0
    assert auto.status is flowsim.Status.TIME
    assert auto.certificates.steps < 2 * explicit.certificates.steps


def test_where_newton_fails_the_explicit_solver_goes_on_from_there(whole, monkeypatch):
    advance = course.Course.advance

    def failing(self, *arguments):
        chunk = advance(self, *arguments)
        return dataclasses.replace(chunk, failure=flowsim.Status.NEWTON) if self.solver == "implicit" else chunk

    monkeypatch.setattr(course.Course, "advance", failing)
    run = stiff(t1=2 * whole.settings.changes[0])
    assert run.status is flowsim.Status.TIME
    assert run.settings.changes[:2] == (whole.settings.changes[0],) * 2


class Squares(eqx.Module):
    """The squares of weights."""

    x: jax.Array


def squares(targets, start):
    """The loss sum (x^2 - s)^2/4 from one number, in which x^2 = s/(1 + (s/x(0)^2 - 1) e^{-2st}), and that x(t)."""
    loss = flowsim.FunctionLoss(lambda model: jnp.sum((model.x**2 - targets) ** 2) / 4, minimum=0.0)
    exact = lambda t: np.sqrt(targets / (1 + (targets / start**2 - 1) * np.exp(-2 * targets * t)))
    return loss, Squares(jnp.full(targets.size, start)), exact


def test_many_weights_are_implicit_where_the_flow_is_stiff(tmp_path):
    """At the end all rates are large over a step, and the eigenvectors of the first attempt are too few."""
    loss, start, exact = squares(np.geomspace(1e-5, 1.0, 300), 1e-3)
    run = flowsim.gradient_flow(loss, start, checkpoint=tmp_path)
    assert run.status is flowsim.Status.EXCESS and len(run.settings.changes) % 2 == 1
    np.testing.assert_allclose(run.models.x, [exact(t) for t in np.asarray(run.t)], rtol=1e-6)
    # By steps that stability limits it would be 300,000 of them.
    assert run.certificates.steps < 0.02 * float(run.t[-1])
    kept = [int(np.load(file)["directions"]) for file in sorted(tmp_path.glob("chunk-*.npz"))]
    assert set(kept) == {0, 300} and sorted(kept) == kept


def test_many_weights_stay_explicit_where_the_flow_is_not_stiff():
    loss, start, exact = squares(np.linspace(0.5, 1.0, 300), 1e-3)
    run = flowsim.gradient_flow(loss, start)
    assert run.settings.method == "explicit"
    np.testing.assert_allclose(run.end.x, exact(float(run.t[-1])), rtol=1e-7)


def test_many_weights_of_a_sampled_loss_are_in_turns_too():
    run = flowsim.gradient_flow(sampled([1.0, 1.0]), network(40), t1=1e-3, rtol=1e-3)
    assert run.settings.solver == "in-turns" and run.settings.changes == ()


def test_the_settings_outlive_a_file_and_the_flow_is_solved_again(whole, tmp_path):
    whole.save(tmp_path / "run.npz")
    assert flowsim.Trajectory.load(tmp_path / "run.npz").settings == whole.settings
    again = flowsim.Evidence(sampled([0.03, 1.0]), whole).reference
    assert again.settings.solver == "in-turns" and again.status.finished


def test_settings_in_words():
    assert Settings("in-turns", 1e-6, 1e-6, (1.0, 2.5)).method == "explicit, implicit from t = 1, explicit from t = 2.5"
    assert Settings("arrowhead", 1e-6, 1e-6).method == "arrowhead"
