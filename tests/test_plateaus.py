"""The plateaus of a flow: saddles of known levels, known times of escape, and nothing where there is none."""

import math
import pathlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from matplotlib.figure import Figure
from scipy.optimize import brentq
from synthetic import trajectory
from systems import QuadraticForm, Vector, quadratic, quartic, two_layers

from flowsim import FunctionLoss, Plateau, ScalarLayers, ScalarLayersLoss, Trajectory, gradient_flow, plateaus
from flowsim.report.plots import draw_all, staircase
from flowsim.report.plots.plateaus import of_plateaus

SPECTRUM = np.array([4.0, 2.0, 1.0, 0.5])
LENGTH = 31
GAMMA = (1 + 1 / LENGTH) * SPECTRUM + np.sum(SPECTRUM) / LENGTH
# After the directions of the largest eigenvalues are learned, one after the other.
LEVELS = (np.sum(SPECTRUM) - np.concatenate([[0.0], np.cumsum(SPECTRUM**2 / GAMMA)])) / 2


class RankOneHeads(eqx.Module):
    """yhat = (1/N sum y_n x_n)^T (sum_h v_h k_h q_h^T) x_q."""

    v: Float[Array, " H"]
    k: Float[Array, "H d"]
    q: Float[Array, "H d"]


class HeadsLoss(eqx.Module):
    """(tr Lambda - 2 tr(Lambda^2 M) + tr(M^T Gamma Lambda M Lambda))/2."""

    def __call__(self, model: RankOneHeads) -> Float[Array, ""]:
        M = jnp.einsum("h,hi,hj->ij", model.v, model.k, model.q)
        weights = jnp.asarray(np.outer(GAMMA * SPECTRUM, SPECTRUM))
        return (np.sum(SPECTRUM) - 2 * jnp.diagonal(M) @ jnp.asarray(SPECTRUM**2) + jnp.sum(weights * M**2)) / 2


def heads_flow(seed: int, **options) -> tuple[FunctionLoss, Trajectory]:
    loss = FunctionLoss(HeadsLoss(), **options)
    shapes = (4,), (4, 4), (4, 4)
    keys = jax.random.split(jax.random.key(seed), 3)
    start = RankOneHeads(*(1e-6 * jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)))
    return loss, gradient_flow(loss, start)


def curvature(plateau: Plateau) -> tuple[tuple[int, int, int], Any, np.ndarray]:
    """Its inertia, the directions that leave it, and their rates."""
    assert plateau.inertia is not None and plateau.leaving is not None and plateau.rates is not None
    return plateau.inertia, plateau.leaving, plateau.rates


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_heads_learn_one_eigenvalue_after_the_other(seed: int):
    loss, flow = heads_flow(seed, minimum=LEVELS[-1])
    found = plateaus(flow, loss)
    np.testing.assert_allclose([plateau.level for plateau in found], LEVELS, rtol=0, atol=1e-11)
    assert found[0].enter == 0
    assert found[-1].leave == math.inf
    edges = [time for plateau in found for time in (plateau.enter, plateau.slowest, plateau.leave)]
    assert edges == sorted(edges)
    for plateau, following in zip(found[:-1], found[1:], strict=True):
        # It takes more than ten times as long to leave as to fall.
        assert following.enter - plateau.leave < 0.1 * (plateau.leave - plateau.enter)
        drop = plateau.level - following.level
        for time, level in (
            (plateau.leave, plateau.level - 0.01 * drop),
            (following.enter, following.level + 0.01 * drop),
        ):
            row = int(np.searchsorted(np.asarray(flow.t), time))
            assert flow.loss[row] <= level + 1e-9 <= flow.loss[row - 1] + 2e-9
    # As many learned directions as eigenvalues; in four heads M is any matrix, on orbits of 36 - 16 dimensions.
    assert found[-1].inertia == (0, 20, 16)
    assert all(plateau.index for plateau in found[:-1])


def test_directions_that_leave_are_orthonormal_eigenvectors():
    loss, flow = heads_flow(1, minimum=LEVELS[-1])
    plateau = plateaus(flow, loss)[1]
    (count, _, _), leaving, rates = curvature(plateau)
    assert isinstance(leaving, RankOneHeads)
    assert plateau.index == count and leaving.k.shape == (count, 4, 4)
    flat = np.concatenate([np.asarray(leaf).reshape(count, -1) for leaf in jax.tree.leaves(leaving)], axis=1)
    np.testing.assert_allclose(flat @ flat.T, np.eye(count), atol=1e-12)
    assert np.all(np.diff(rates) <= 0) and np.all(rates > 0)
    model = flow.row(int(np.searchsorted(np.asarray(flow.t), plateau.slowest)))
    fastest = jax.tree.map(lambda leaf: leaf[0], leaving)
    bent = jax.jvp(loss.gradient, (model,), (fastest,))[1]
    for ours, theirs in zip(jax.tree.leaves(fastest), jax.tree.leaves(bent), strict=True):
        np.testing.assert_allclose(-rates[0] * ours, theirs, atol=1e-12)


@pytest.mark.slow
def test_a_minimum_need_not_be_known():
    # Without one the flow ends where its gradient is small against the largest.
    _, flow = heads_flow(1)
    assert np.all(np.isnan(flow.excess))
    levels = [plateau.level for plateau in plateaus(flow)]
    np.testing.assert_allclose(levels, LEVELS[: len(levels)], rtol=0, atol=1e-10)
    assert len(levels) > 1


@pytest.mark.parametrize("scale", [1e-2, 1e-3, 1e-6])
def test_two_layers_escape_when_their_solution_does(scale: float):
    system = two_layers(a=scale, b=scale / 5)
    flow = gradient_flow(system.loss, system.start)
    start, end = plateaus(flow, system.loss)
    drop = float(system.loss(system.start)) - end.level
    lost = lambda t: float(system.loss(system.start)) - float(system.loss(system.state(t)))
    assert start.leave == pytest.approx(brentq(lambda t: lost(t) - 0.01 * drop, 0.0, 100.0), rel=1e-5)
    assert end.enter == pytest.approx(brentq(lambda t: lost(t) - 0.99 * drop, 0.0, 100.0), rel=1e-5)
    # At zero weights the Hessian is [[0, -s], [-s, 0]] with s = 2: one direction leaves, a = b.
    inertia, leaving, rates = curvature(start)
    assert inertia == (1, 0, 1)
    assert rates == pytest.approx([2.0], rel=1e-3)
    assert float(leaving.a[0]) == pytest.approx(float(leaving.b[0]), rel=1e-3)
    assert end.inertia == (0, 1, 1)
    assert end.leave == math.inf


def test_where_the_flow_is_slowest():
    # Off a = b the flow comes to the saddle along a = -b before it leaves: |grad|^2 is least where cosh(4 t) is.
    system = two_layers(a=1e-4, b=-0.9e-4)
    start = plateaus(gradient_flow(system.loss, system.start))[0]
    assert start.enter == 0
    assert start.slowest == pytest.approx(np.log(19.0) / 4, rel=0.2)  # an output time


@pytest.mark.slow
def test_a_convergence_that_never_hesitates_is_one_plateau():
    system = quadratic()
    (end,) = plateaus(gradient_flow(system.loss, system.start), system.loss)
    assert end.leave == math.inf and end.inertia == (0, 0, 5)
    system = quartic()
    (end,) = plateaus(gradient_flow(system.loss, system.start, t1=1e6))
    # lost = 0.99 where x = 0.01^{1/4} x(0).
    assert end.enter == pytest.approx((10.0 - 1) / (2 * 1.5**2), rel=1e-3)


def test_one_exponential_enters_when_a_hundredth_is_left():
    loss = FunctionLoss(QuadraticForm(jnp.eye(1)), minimum=0.0)
    (end,) = plateaus(gradient_flow(loss, Vector(jnp.ones(1))), loss)
    assert end.enter == pytest.approx(np.log(100) / 2, rel=1e-6)
    inertia, leaving, rates = curvature(end)
    assert (inertia, rates.size, leaving.x.shape) == ((0, 0, 1), 0, (0, 1))


def test_a_flow_that_rests_is_on_one_plateau_and_one_that_has_not_turned_on_none():
    system = two_layers()
    origin = type(system.start)(jnp.zeros(()), jnp.zeros(()))
    (rest,) = plateaus(gradient_flow(system.loss, origin), system.loss)
    assert (rest.level, rest.enter, rest.leave, rest.inertia) == (2.0, 0.0, math.inf, (1, 0, 1))
    assert plateaus(gradient_flow(system.loss, system.start, t1=1e-3)) == ()


def test_a_flow_that_is_cut_ends_on_the_saddle_it_reached():
    loss, whole = heads_flow(1, minimum=LEVELS[-1])
    saddle = plateaus(whole)[2]
    cut = gradient_flow(loss, whole.start, t1=0.5 * (saddle.slowest + saddle.leave))
    found = plateaus(cut)
    np.testing.assert_allclose([plateau.level for plateau in found], LEVELS[:3], rtol=0, atol=1e-10)
    assert found[-1].leave == math.inf
    # Once it falls again, what it has lost so far says when it left.
    falling = gradient_flow(loss, whole.start, t1=saddle.leave)
    assert 0.9 * saddle.leave < plateaus(falling)[-1].leave < saddle.leave


def test_noise_in_the_gradient_makes_no_plateau():
    loss, flow = heads_flow(0, minimum=LEVELS[-1])
    rest = np.asarray(flow.grad_norm_sq) < 1e-20
    assert np.sum(rest) > 50
    factors = 10.0 ** np.random.default_rng(0).uniform(-3, 3, flow.t.size)
    noisy = eqx.tree_at(lambda flow: flow.grad_norm_sq, flow, flow.grad_norm_sq * jnp.where(rest, factors, 1.0))
    found, plain = plateaus(noisy), plateaus(flow)
    assert len(found) == 5
    np.testing.assert_allclose([p.enter for p in found], [p.enter for p in plain], rtol=1e-3)
    np.testing.assert_allclose([p.level for p in found], LEVELS, rtol=0, atol=1e-11)
    # At the minimum nothing but rounding is left of the gradient.
    system = two_layers(a=1e-3, b=1e-4)
    assert len(plateaus(gradient_flow(system.loss, system.start, t1=1e4))) == 2


def test_a_drop_between_two_output_times_counts():
    t, lost = jnp.arange(4.0), jnp.asarray([0.0, 1e-6, 1.0, 1.0 + 1e-6])
    places = lambda flow: (flow.t, flow.loss, flow.grad_norm_sq, flow.dissipated)
    flow = eqx.tree_at(places, trajectory(np.arange(4.0)), (t, 2.0 - lost, jnp.full(4, 1e-6), lost))
    start, end = plateaus(flow)
    assert 1 <= start.leave < end.enter <= 2


@pytest.mark.slow
def test_layers_leave_the_minimum_of_loops_at_the_rate_of_their_own_flow():
    # From equal layers the flow is that of loops; a difference of 1e-9 grows as e^{rate t}. Their speeds are not one.
    loss = ScalarLayersLoss(5, 10, 2)
    start = ScalarLayers(jnp.asarray([1e-9, 0.0]))
    flow = gradient_flow(loss, start)
    saddle, end = plateaus(flow, loss)[-2:]
    assert float(loss.speeds(start).a) != 1
    assert (saddle.index, end.index) == (1, 0)
    apart = np.log(np.abs(np.asarray(flow.models.a[:, 0] - flow.models.a[:, 1])))
    rows = np.flatnonzero((flow.t > saddle.enter) & (apart < np.log(1e-4)) & (apart > np.log(1e-7)))
    rate = np.polyfit(np.asarray(flow.t)[rows], apart[rows], 1)[0]
    assert saddle.rates == pytest.approx([rate], rel=1e-4)


def test_the_picture_shows_every_plateau_and_there_is_none_of_one(tmp_path: pathlib.Path):
    _, flow = heads_flow(1, minimum=LEVELS[-1])
    found = plateaus(flow)
    axes = staircase(flow, found, ax=Figure().add_subplot())
    low, high = axes.get_xlim()
    assert axes.get_xscale() == "log"  # the plateaus grow from 5e4 to 2e6
    assert low < found[0].leave < found[-1].enter < high
    assert [text.get_text() for text in axes.texts] == ["3.75", "1.92", "1.05", "0.66", "0.495"]
    corners = [patch.get_extents().transformed(axes.transData.inverted()).intervalx for patch in axes.patches]
    np.testing.assert_allclose(corners[1:4], [(plateau.enter, plateau.leave) for plateau in found[1:4]])
    paths = draw_all(tmp_path, flow, more=of_plateaus(flow))
    assert paths["plateaus"].stat().st_size > 10_000
    system = two_layers(a=1e-3, b=1e-4)
    flow = gradient_flow(system.loss, system.start)
    assert staircase(flow, plateaus(flow), ax=Figure().add_subplot()).get_xscale() == "linear"
    system = quadratic()
    assert of_plateaus(gradient_flow(system.loss, system.start)) == {}


@pytest.mark.parametrize("fraction", [0.0, 0.5, -1.0, math.nan])
def test_a_fraction_is_between_zero_and_one_half(fraction: float):
    system = quadratic()
    flow = gradient_flow(system.loss, system.start, t1=0.1)
    with pytest.raises(ValueError, match="fraction must be above 0 and below 0.5"):
        plateaus(flow, fraction=fraction)
