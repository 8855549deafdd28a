"""One layer in many dimensions: its flow in d + 2 numbers is the flow of all weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import regression, relative_error

import flowsim
import flowsim.flow.gradient_flow as gradient_flow_module
from flowsim import gradient_flow
from flowsim.flow import systems
from flowsim.flow.trajectory import Status
from flowsim.initialization import balanced, random_theta, scaled_identity, unbalanced
from flowsim.losses import LinearAttentionLoss, SpectralAttentionLoss
from flowsim.models import LinearAttention, SpectralAttention
from flowsim.tasks import LinearRegression, SpectralRegression

SPECTRUM, N, SCALE = np.array([2.0, 1.0, 0.3, 0.05, 0.01]), 12.0, 0.2
THETA = np.random.default_rng(3).standard_normal((5, 2))
TASK = SpectralRegression(SPECTRUM, N, weights="isotropic")


def same_flow(one, other, rtol):
    for name in ("t", "loss", "excess", "grad_norm_sq", "dissipated"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=rtol, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("length", [N, np.inf])
def test_the_flow_of_a_spectrum_is_that_of_the_layer(length):
    spectral = SpectralAttentionLoss(SpectralRegression(SPECTRUM, length, weights="isotropic"), SCALE, THETA)
    layer = LinearAttentionLoss(LinearRegression(np.diag(SPECTRUM), length))
    times = [0.5, 3.0, 20.0, 200.0]
    found = gradient_flow(spectral, spectral.start, times=times, t1=200.0, rtol=1e-11, points_per_decade=0)
    expected = gradient_flow(layer, balanced(SCALE, THETA), times=times, t1=200.0, rtol=1e-11, points_per_decade=0)
    same_flow(found, expected, 1e-8)
    assert found.settings.method == "arrowhead"
    for row in range(5):
        model = jax.tree.map(lambda leaf, row=row: leaf[row], found.models)
        U = spectral.weights(model)
        np.testing.assert_allclose(U, expected.models.U11[row], atol=1e-10)
        np.testing.assert_array_equal(spectral.weights(model, slice(1, 4)), U[1:4])
        assert float(spectral(model)) == pytest.approx(float(expected.loss[row]), rel=1e-9)
        assert float(spectral.conserved(model)) == pytest.approx(0.0, abs=1e-10)


STARTS = {
    "balanced": balanced(0.3, random_theta(4, 4, 1)),
    "small": unbalanced(1e-6, random_theta(4, 2, 2)),
    "u = 0": LinearAttention(balanced(0.3, random_theta(4, 4, 1)).U11, 0.0),
    "diagonal": scaled_identity(0.3, 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_the_coordinates_of_a_flow_do_not_change_it(start, monkeypatch):
    loss = LinearAttentionLoss(regression(4, 10.0))
    run = lambda: gradient_flow(loss, start, times=[1.0, 30.0], rtol=1e-11)
    full = run()
    monkeypatch.setattr(systems, "_REDUCED_FROM", 1)
    reduced = run()
    assert reduced.status == full.status
    common = np.intersect1d(reduced.t, [0.0, 1.0, 30.0])
    assert common.size == 3
    for name in ("loss", "excess", "grad_norm_sq", "dissipated"):
        at = lambda flow, name=name: np.asarray(getattr(flow, name))[np.searchsorted(flow.t, common)]
        np.testing.assert_allclose(at(reduced), at(full), rtol=1e-7, atol=1e-24, err_msg=name)
    assert relative_error(reduced.end.U11, full.end.U11) < 1e-6
    drift = reduced.certificates.balance_drift
    assert reduced.certificates.energy_defect < 1e-9 and drift is not None and drift < 1e-9


def test_both_coordinates_have_one_pace():
    layer, start = LinearAttentionLoss(regression(4, 10.0)), balanced(0.3, random_theta(4, 4, 1))
    full = systems.ArrowheadSystem(layer.structure, layer.minimum)
    U, u = full.encode(start)
    reduced = systems.ReducedSystem(systems.ReducedArrowhead.of(layer.structure, (U, u)), layer.minimum, 17)
    assert relative_error(systems.pace(reduced, reduced.encode(start)), systems.pace(full, (U, u))) < 1e-13
    point = reduced.encode(start)
    assert reduced.way_to_go(point, point) == pytest.approx(full.way_to_go((U, u), (U, u)), rel=1e-12)
    record, again = reduced.record(reduced.encode(start)), full.record((U, u))
    assert relative_error(record._replace(state=1.0, conserved=1.0), again._replace(state=1.0, conserved=1.0)) < 1e-13


@pytest.mark.slow
def test_a_reduced_flow_goes_on_from_its_chunks_bit_for_bit(monkeypatch, tmp_path):
    monkeypatch.setattr(systems, "_REDUCED_FROM", 1)
    monkeypatch.setitem(gradient_flow_module._CHUNK_STEPS, "arrowhead", (8, 8))
    loss, start = LinearAttentionLoss(regression(3, 10.0)), balanced(0.3, random_theta(3, 3, 0))
    run = lambda folder, **options: gradient_flow(loss, start, checkpoint=folder, **options)
    whole = run(tmp_path / "whole")
    cut = run(tmp_path / "cut", budget_seconds=1e-9)
    assert cut.status is Status.BUDGET
    while cut.status is Status.BUDGET:
        cut = run(tmp_path / "cut", budget_seconds=1e-9)
    for one, other in zip(jax.tree.leaves(cut.models), jax.tree.leaves(whole.models), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_claim_is_judged_on_a_spectrum(tmp_path):
    loss = SpectralAttentionLoss(TASK, SCALE, THETA)
    flow = gradient_flow(loss, loss.start)

    def dominance(factor):
        compare = lambda loss, flow: flowsim.at_least(flow.grad_norm_sq, factor * flow.excess)
        return flowsim.Claim(f"mine.pl-{factor}", "my notes", f"|grad L|^2 >= {factor} (L - min L)", compare)

    sharp = float(np.min(flow.grad_norm_sq / flow.excess))
    verdicts = [flowsim.check(dominance(factor * sharp), loss, flow).verdict for factor in (0.5, 1.5)]
    assert verdicts == ["holds", "violated"]
    flow.save(tmp_path / "flow.npz")
    again = flowsim.Trajectory.load(tmp_path / "flow.npz")
    np.testing.assert_array_equal(again.models.diagonal, flow.models.diagonal)


def test_what_a_spectrum_cannot_be():
    for name, make in {
        "task": lambda: SpectralAttentionLoss(SpectralRegression(SPECTRUM, N), SCALE, THETA),
        "eigenvalue once": lambda: SpectralAttentionLoss(
            SpectralRegression([1.0, 2.0], N, multiplicities=[1, 2], weights="isotropic"), SCALE, THETA[:2]
        ),
        "scale": lambda: SpectralAttentionLoss(TASK, 0.0, THETA),
        "theta must be an array of shape": lambda: SpectralAttentionLoss(TASK, SCALE, THETA[:4]),
        "theta must be not zero": lambda: SpectralAttentionLoss(TASK, SCALE, 0 * THETA),
        "no gradient": lambda: SpectralAttentionLoss(TASK, SCALE, THETA).gradient(
            SpectralAttention(jnp.zeros(5), jnp.ones(()), jnp.zeros(()))
        ),
    }.items():
        with pytest.raises(ValueError, match=name):
            make()
