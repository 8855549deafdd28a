"""Layers that also move the covariates, over all matrices: problem files, the residual, the loss by prompts."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flowsim import Trajectory
from flowsim.losses import MonteCarloLoss, ScalarLayersLoss
from flowsim.losses.sampled.estimators import InputEstimator, Prompts
from flowsim.models import MultiLayerAttention, ScalarLayers
from flowsim.problem import Problem, ProblemError, ProblemSpec, spec_of
from flowsim.tasks import LinearRegression
from tests.helpers import covariance, symmetrise

pytestmark = pytest.mark.slow

D, N, K = 3, 12, 3
TABLES = {
    "task": {"covariance": {"eigenvalues": [0.25, 1, 1], "rotation_seed": 0}, "context_length": N},
    "model": {"architecture": "multi-layer", "layers": K, "residual_stream": True},
    "init": {"kind": "random", "scale": 0.3, "seed": 1},
    "loss": {"kind": "monte-carlo", "samples": 512, "method": "covariances"},
    "flow": {"times": [0.5], "t1": 1.0, "rtol": 1e-6},
}


def built(**tables: dict) -> Problem:
    return spec_of({**TABLES, **tables}).build()


def drawn(seed: int, *, symmetric: bool, k: int = K) -> MultiLayerAttention:
    rng = np.random.default_rng(seed)
    A = 0.5 * rng.standard_normal((k, D, D))
    return MultiLayerAttention(
        symmetrise(A) if symmetric else A, 0.5 * rng.standard_normal((k - 1, D, D)), symmetric=symmetric
    )


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_residual_is_what_the_literal_layers_miss(symmetric: bool, k: int):
    task, model = (
        LinearRegression(covariance(D, 0), N, weights="inverse-covariance"),
        drawn(k, symmetric=symmetric, k=k),
    )
    for key in jax.random.split(jax.random.key(k), 4):
        prompt, _ = task.sample(key)
        weight = jnp.linalg.lstsq(prompt.inputs, prompt.labels)[0]
        residual = model.residual(prompt.inputs.T @ prompt.inputs / N)
        missed = jnp.append(weight, 1.0) @ residual @ prompt.query
        assert missed == pytest.approx(float(weight @ prompt.query - model(prompt)), rel=1e-11, abs=1e-12)
        if k > 2:
            assert model.B is not None
            wrong = MultiLayerAttention(model.A, jnp.swapaxes(model.B, 1, 2), symmetric=symmetric)
            assert abs(missed - float(weight @ prompt.query - wrong(prompt))) > 1e-3


@pytest.mark.parametrize(("k", "n"), [(3, 40)])
def test_on_scalars_the_sampled_loss_is_the_exact_one(k: int, n: int):
    exact, S = ScalarLayersLoss(D, n, k, residual_stream=True), jnp.asarray(covariance(D, 3))
    task = LinearRegression(S, n, weights="inverse-covariance")
    rng = np.random.default_rng(k)
    # Away from the best scalars, where the tail is light.
    points = [ScalarLayers(rng.uniform(0.1, 0.6, k), rng.uniform(0.1, 0.5, k - 1)) for _ in range(3)]
    for method in ("covariances", "radial"):
        loss = MonteCarloLoss(task, samples=8192, key=jax.random.key(k), method=method)
        loss = loss.prepared(points[0].attention(S))
        for point in points:
            estimate = loss.estimate(point.attention(S))
            assert estimate.low <= float(exact(point)) <= estimate.high
            assert estimate.high - estimate.low < 0.05 * estimate.value


@pytest.mark.parametrize(
    ("init", "A", "B"),
    [
        ({"kind": "zeros"}, np.zeros((D, D)), np.zeros((D, D))),
        ({"kind": "scaled-identity", "scale": 0.2}, 0.2 * np.eye(D), 0.2 * np.eye(D)),
    ],
)
def test_starts_that_are_the_same_in_every_layer(init: dict, A: np.ndarray, B: np.ndarray):
    start = built(init=init).start
    np.testing.assert_array_equal(start.A, np.stack([A] * K))
    np.testing.assert_array_equal(start.B, np.stack([B] * (K - 1)))


def test_a_random_start_has_the_preconditioners_that_it_has_without_B():
    start = built().start
    model = {"architecture": "multi-layer", "layers": K}
    np.testing.assert_array_equal(start.A, built(model=model).start.A)
    assert start.B.shape == (K - 1, D, D)
    assert np.std(start.B) == pytest.approx(0.3, rel=0.4)
    assert not np.allclose(start.B, np.swapaxes(start.B, 1, 2))
    matrices = np.concatenate([start.A, start.B]).reshape(2 * K - 1, -1)
    assert np.linalg.matrix_rank(matrices) == 2 * K - 1  # every matrix has draws of its own
    diagonal = built(init={"kind": "random-diagonal", "scale": 0.3}).start
    assert np.count_nonzero(diagonal.B) == (K - 1) * D
    free = built(model=TABLES["model"] | {"symmetric": False}).start
    assert not np.allclose(free.A, np.swapaxes(free.A, 1, 2))


def test_an_explicit_start_needs_both():
    A, B = 0.1 * np.arange(K * D * D, dtype=float).reshape(K, D, D), np.ones((K - 1, D, D))
    A = symmetrise(A)
    start = built(init={"kind": "explicit", "A": A.tolist(), "B": B.tolist()}).start
    np.testing.assert_array_equal(start.A, A)
    np.testing.assert_array_equal(start.B, B)
    one = {"architecture": "multi-layer", "layers": 1, "residual_stream": True}
    assert built(model=one, init={"kind": "explicit", "A": A[:1].tolist(), "B": []}).start.B.shape == (0, D, D)
    missing = r"init.B must be a list of matrices with model.residual_stream = true, but it is missing"
    with pytest.raises(ProblemError, match=missing):
        built(init={"kind": "explicit", "A": A.tolist()})
    given = r"init.B must be left out with model.residual_stream = false, but it is given"
    with pytest.raises(ProblemError, match=given):
        built(
            model={"architecture": "multi-layer", "layers": K},
            init={"kind": "explicit", "A": A.tolist(), "B": B.tolist()},
        )
    with pytest.raises(ProblemError, match=r"init.B must be .*\(2, 3, 3\)"):
        built(init={"kind": "explicit", "A": A.tolist(), "B": B[:1].tolist()})


@pytest.mark.parametrize("restrict", ["eigenbasis", "inverse-covariance"])
def test_flows_on_sets_have_exact_losses(restrict: str):
    with pytest.raises(ProblemError, match=f'loss.kind must be "exact" or .* with flow.restrict = "{restrict}"'):
        built(init={"kind": "zeros"}, flow={"restrict": restrict})


@pytest.mark.long
def test_a_flow_saves_both_and_reads_back(tmp_path: pathlib.Path):
    spec = ProblemSpec.from_toml(spec_of(TABLES).to_toml())
    assert spec == spec_of(TABLES)
    problem = spec.build()
    trajectory = problem.run()
    assert trajectory.status.finished
    trajectory.save(tmp_path / "trajectory.npz", problem.matrices(trajectory.models))
    with np.load(tmp_path / "trajectory.npz") as file:
        T = file["t"].size
        assert 0.5 in file["t"]
        assert file["A"].shape == (T, K, D, D)
        assert file["B"].shape == (T, K - 1, D, D)
        # Both flow, each down its own gradient.
        assert np.linalg.norm(file["A"][-1] - file["A"][0]) > 0.05
        assert np.linalg.norm(file["B"][-1] - file["B"][0]) > 0.005
        np.testing.assert_allclose(file["A"], np.swapaxes(file["A"], 2, 3), atol=1e-14)
    np.testing.assert_array_equal(Trajectory.load(tmp_path / "trajectory.npz").models.B, trajectory.models.B)


def test_a_method_can_be_checked_on_symmetric_layers():
    """The candidates look at a model whose weights have moved, off the symmetric ones."""
    task = LinearRegression(covariance(2, 0), 3, weights="inverse-covariance")
    estimator, model = InputEstimator(Prompts(task)), MultiLayerAttention(jnp.eye(2)[None])
    assert estimator.applies(model, jax.random.key(0))
