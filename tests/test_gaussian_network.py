"""The loss of two-layer networks is the Gaussian mean that it says, also near the teacher, and so is its flow."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from jax.flatten_util import ravel_pytree

import flowsim
from flowsim import GaussianNetworkLoss, Judgement, TwoLayerNetwork
from flowsim._core.balls.enclosure import Traced
from flowsim.losses import MinimumKind
from flowsim.losses.closed_form import is_closed_form
from flowsim.losses.deep import gaussian_network
from flowsim.moments.activations import products

BOTH = pytest.mark.parametrize("activation", ["erf", "relu"])
S = np.array([[1.3, 0.4], [0.4, 0.7]])
A, W = np.array([1.0, -0.7]), np.array([[1.0, 0.3, -0.2], [0.4, -1.1, 0.5]])


def network(activation, seed, units, d):
    rng = np.random.default_rng(seed)
    return TwoLayerNetwork(rng.standard_normal(units), rng.standard_normal((units, d)), activation)


def directions(model):
    """The unit vectors in the plane, for covariance S, at which a unit of relu has its kink."""
    normals = np.asarray(model.W) @ np.linalg.cholesky(S)
    turned = np.arctan2(normals[:, 0], -normals[:, 1])
    return [*turned, *turned + np.pi]


def mean(function, activation, networks):
    """E of a function of x ~ N(0, S) in the plane. For erf by Gauss-Hermite, for relu in polar coordinates, where it
    is of degree 2 in the radius and smooth between the kinks of the networks.
    """
    root = np.linalg.cholesky(S)
    if activation == "erf":
        nodes, weights = np.polynomial.hermite_e.hermegauss(90)
        z, chances = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2), np.outer(weights, weights).ravel()
        return np.tensordot(chances / np.sum(chances), jax.vmap(function)(z @ root.T), axes=1)
    kinks = np.unique(np.mod(np.concatenate([directions(one) for one in networks]), 2 * np.pi))
    edges = np.append(kinks, kinks[0] + 2 * np.pi)
    nodes, weights = np.polynomial.legendre.leggauss(24)
    angles = ((edges[1:] + edges[:-1])[:, None] + np.diff(edges)[:, None] * nodes) / 2
    measure = (np.diff(edges)[:, None] * weights).ravel() / (2 * np.pi)
    z = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(-1, 2)
    return np.tensordot(measure, jax.vmap(function)(z @ root.T), axes=1)


@functools.cache
def in_the_plane(activation, units=3):
    """A loss and a model, and by quadrature the loss and its gradient."""
    teacher, model = network(activation, 0, 2, 2), network(activation, 1, units, 2)
    error = lambda x: (model(x) - teacher(x)) ** 2 / 2
    slope = lambda x: (model(x) - teacher(x)) * ravel_pytree(jax.grad(lambda one: one(x))(model))[0]
    value, gradient = (mean(of, activation, [teacher, model]) for of in (error, slope))
    return GaussianNetworkLoss(teacher, units, covariance=S), model, value, gradient


def agrees(loss, model, value):
    return abs(float(loss(model)) - value) < 1e-12


@pytest.mark.parametrize("units", [1, 3])
@BOTH
def test_loss_and_gradient_are_those_of_quadrature_in_the_plane(activation, units):
    loss, model, value, slope = in_the_plane(activation, units)
    assert agrees(loss, model, value)
    np.testing.assert_allclose(ravel_pytree(loss.gradient(model))[0], slope, rtol=0, atol=1e-12)


# The first is that of fewer units than the teacher's.
@pytest.mark.parametrize(("formula", "units"), [("products", 1), ("mixed_differences", 3)])
@BOTH
def test_a_wrong_constant_is_seen(activation, formula, units, monkeypatch):
    loss, model, value, _ = in_the_plane(activation, units)
    true = getattr(gaussian_network, formula)
    monkeypatch.setattr(gaussian_network, formula, lambda *given: (1 + 1e-8) * true(*given))
    assert not agrees(loss, model, value)


@BOTH
def test_on_the_line_it_is_an_integral(activation):
    teacher, model = network(activation, 2, 1, 1), network(activation, 3, 2, 1)
    weight = lambda x: np.exp(-(x**2) / (2 * 0.6)) / np.sqrt(2 * np.pi * 0.6)
    error = jax.jit(lambda x: (model(x[None]) - teacher(x[None])) ** 2 / 2)
    halves = [scipy.integrate.quad(lambda x: float(error(x)) * weight(x), *ends) for ends in ((-9, 0), (0, 9))]
    loss = GaussianNetworkLoss(teacher, 2, covariance=[[0.6]])
    np.testing.assert_allclose(loss(model), sum(part for part, _ in halves), rtol=1e-9)


@BOTH
def test_in_five_dimensions_it_is_the_mean_of_drawn_inputs(activation):
    teacher, model = network(activation, 4, 3, 5), network(activation, 5, 4, 5)
    root = np.random.default_rng(6).standard_normal((5, 5)) / 2
    x = jnp.asarray(np.random.default_rng(7).standard_normal((60_000, 5)) @ root.T)
    errors = np.asarray(jax.vmap(model)(x) - jax.vmap(teacher)(x)) ** 2 / 2
    spread, loss = np.std(errors) / np.sqrt(len(x)), GaussianNetworkLoss(teacher, 4, covariance=root @ root.T)
    assert abs(np.mean(errors) - float(loss(model))) < 4 * spread < 0.05 * float(loss(model))


def near(activation, units, distance):
    """A loss and a network near its teacher, up to the symmetries of the units."""
    rng = np.random.default_rng(8)
    a, rows = (A, W) if units == 2 else (np.array([0.6, -0.3, 0.4, -0.4]), np.concatenate([W, W]))
    factor = np.array([-1.0 if activation == "erf" else 2.0, *np.ones(units - 1)]) if units == 4 else np.ones(2)
    model = TwoLayerNetwork(
        a / factor + distance * rng.standard_normal(units),
        factor[:, None] * (rows + distance * rng.standard_normal(rows.shape)),
        activation,
    )
    return GaussianNetworkLoss(TwoLayerNetwork(A, W, activation), units), model


def sum_of_kernels(loss, model):
    b, V = jnp.concatenate([model.a, -loss.teacher.a]), jnp.concatenate([model.W, loss.teacher.W])
    return b @ products(model.activation, V, V) @ b / 2


@functools.cache
def traced(function, activation, units):
    return Traced(function, *near(activation, units, 0.1))


@eqx.filter_jit
def numbers(loss, model):
    return loss.excess(model), sum_of_kernels(loss, model), loss.gradient(model)


@pytest.mark.parametrize("units", [2, pytest.param(4, marks=pytest.mark.slow)])
@BOTH
def test_near_the_teacher_the_loss_keeps_the_digits_that_the_sum_of_kernels_loses(activation, units):
    by_differences, by_kernels, field = (
        traced(function, activation, units)
        for function in (GaussianNetworkLoss.__call__, sum_of_kernels, GaussianNetworkLoss.gradient)
    )
    for distance in (0.3, 1e-2, 1e-6, 1e-10):
        given = near(activation, units, distance)
        # In 128 bits both are the same number.
        same, true = (program.on(*given, open_branches=True)[()] for program in (by_differences, by_kernels))
        assert abs(same - true) < 1e-12 * true and (same - true).contains(0)
        found, lossy, gradient = numbers(*given)
        np.testing.assert_allclose(found, float(true), rtol=2e-15 / distance)
        slope = [np.ravel(leaf).astype(float) for leaf in jax.tree.leaves(field.on(*given, open_branches=True))]
        np.testing.assert_allclose(ravel_pytree(gradient)[0], np.concatenate(slope), rtol=0, atol=1e-15)
    assert abs(lossy - float(true)) > 1e-3 * float(true)
    if (activation, units) == ("erf", 2):
        np.testing.assert_allclose(found, float(true), rtol=1e-14)


@pytest.mark.slow
def test_second_derivatives_of_the_differences_are_those_of_the_kernels_and_finite_at_a_unit_zero():
    loss, model = near("relu", 2, 1e-3)
    model = TwoLayerNetwork(model.a, model.W.at[1].set(0.0), "relu")
    flat, unravel = ravel_pytree(model)
    found = jax.jit(jax.hessian(lambda x: loss(unravel(x))))(flat)
    expected = jax.jit(jax.jacfwd(lambda x: ravel_pytree(loss.gradient(unravel(x)))[0]))(flat)
    # The last three weights are those of the unit.
    np.testing.assert_allclose(found[:-3, :-3], expected[:-3, :-3], atol=1e-12)
    assert np.all(np.isfinite(found)) and np.all(np.isfinite(expected))


@BOTH
def test_at_the_teacher_the_loss_is_zero_and_the_hessian_that_of_quadrature(activation):
    teacher = network(activation, 0, 2, 2)
    slope = lambda x: ravel_pytree(jax.grad(lambda one: one(x))(teacher))[0]
    square = mean(lambda x: slope(x)[:, None] * slope(x)[None], activation, [teacher])
    loss, (flat, unravel) = GaussianNetworkLoss(teacher, covariance=S), ravel_pytree(teacher)
    assert float(loss(teacher)) == 0.0
    np.testing.assert_allclose(ravel_pytree(loss.gradient(teacher))[0], 0.0, atol=1e-15)
    hessian = jax.jit(jax.jacfwd(lambda x: ravel_pytree(loss.gradient(unravel(x)))[0]))(flat)
    np.testing.assert_allclose(hessian, square, atol=1e-12)


def test_where_relu_has_no_derivative_the_gradient_is_the_mean_of_both_sides():
    teacher = TwoLayerNetwork(A[:1], W[:1, :2], "relu")
    gradient = eqx.filter_jit(GaussianNetworkLoss(teacher).gradient)
    at = lambda w: np.asarray(gradient(TwoLayerNetwork([0.5], [w], "relu")).W)
    sides = [at([sign * 1e-9 * x for x in (0.6, 0.8)]) for sign in (1, -1)]
    np.testing.assert_allclose(at([0.0, 0.0]), (sides[0] + sides[1]) / 2, atol=1e-8)
    assert np.max(np.abs(sides[0] - sides[1])) > 0.01


def test_one_unit_of_erf_rests_at_the_teacher_and_at_its_mirror_image_alone():
    teacher = TwoLayerNetwork([0.8], [[0.5, -1.0]], "erf")
    loss = GaussianNetworkLoss(teacher)
    gradient = eqx.filter_jit(loss.gradient)
    for a, w, rests in ((0.8, 1.0, True), (-0.8, -1.0, True), (0.8, -1.0, False), (0.8, 1.001, False)):
        model = TwoLayerNetwork([a], w * teacher.W, "erf")
        assert (np.max(np.abs(ravel_pytree(gradient(model))[0])) < 1e-15) == rests
        assert (float(loss.excess(model)) == 0.0) == rests


def test_what_is_known_of_the_minimum_depends_on_the_units():
    teacher = TwoLayerNetwork(A, W, "erf")
    fewer, enough, more = (GaussianNetworkLoss(teacher, units) for units in (1, None, 3))
    assert [one.minimum_kind for one in (fewer, enough, more)] == [MinimumKind.UNKNOWN, *[MinimumKind.EXACT] * 2]
    one = TwoLayerNetwork(A[:1], W[:1], "erf")
    assert np.isnan(fewer.minimum) and np.isnan(fewer.excess(one)) and fewer(one) > 0
    assert fewer.least_model() is None and float(enough.minimum) == 0.0
    least = more.least_model()
    assert least is not None and float(more.excess(least)) == 0.0 and least.W.shape == (3, 3)
    assert enough.speeds(teacher) is None
    assert is_closed_form(enough) and not is_closed_form(GaussianNetworkLoss(TwoLayerNetwork(A, W, "relu")))


RELU = TwoLayerNetwork(A, W, "relu")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((A, W, "tanh"), 'activation must be one of erf, relu, but it is "tanh"$'),
        ((A, W.T, "erf"), r"W must be an array of shape \(2, any\), but its shape is \(3, 2\)$"),
        (([], np.zeros((0, 2)), "erf"), "a must be of at least one unit, but it is empty$"),
        ((A, np.zeros((2, 0)), "erf"), "W must be of at least one coordinate, but its shape"),
    ],
)
def test_what_is_no_network_is_refused_in_one_line(arguments, line):
    with pytest.raises(ValueError, match=f"^{line}"):
        TwoLayerNetwork(*arguments)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"teacher": 1}, "teacher must be a TwoLayerNetwork, but got 1$"),
        ({"units": 0}, "units must be a whole number of at least 1, but it is 0$"),
        ({"covariance": S}, r"covariance must be of shape \(3, 3\), .* inputs, but its shape is \(2, 2\)$"),
        ({"covariance": np.diag([1.0, 1.0, 0.0])}, "covariance must be positive definite"),
        ({"speeds": (1.0, 1.0, 1.0)}, "speeds must be two numbers, of a and of W, but there are 3$"),
        ({"speeds": 1.0}, "speeds must be two numbers, of a and of W, but there are 1$"),
        ({"speeds": (1.0, 0.0)}, "speeds must be positive, but it is 0$"),
    ],
)
def test_bad_arguments_of_the_loss_are_refused_in_one_line(changes, line):
    with pytest.raises(ValueError, match=f"^{line}"):
        GaussianNetworkLoss(**{"teacher": RELU, **changes})


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (TwoLayerNetwork(A, W, "erf"), "model must be a .* activation relu, but its activation is erf$"),
        (A, "model must be a TwoLayerNetwork with the activation relu, but it is a ndarray$"),
        (network("relu", 0, 3, 3), r"model.W must be of shape \(2, 3\), but its shape is \(3, 3\)$"),
    ],
)
def test_another_model_is_refused_in_one_line(model, line):
    for function in (GaussianNetworkLoss(RELU), GaussianNetworkLoss(RELU).excess):
        with pytest.raises(ValueError, match=f"^{line}"):
            function(model)


def balanced(factor):
    @flowsim.claim(f"balance.{factor}", "a test", statement="|w_i|^2/c_W - a_i^2/c_a is conserved")
    def sides(flow):
        kept = jnp.sum(flow.models.W**2, axis=2) / 0.5 - factor * flow.models.a**2 / 2.0
        return flowsim.equal(kept, kept[:1], 1.0)

    return sides


@pytest.mark.slow
def test_along_a_flow_of_relu_each_unit_keeps_its_balance_for_these_speeds_and_no_others():
    loss = GaussianNetworkLoss(TwoLayerNetwork(A, W, "relu"), covariance=np.diag([1.0, 2.0, 0.5]), speeds=(2.0, 0.5))
    flow = flowsim.gradient_flow(loss, network("relu", 9, 2, 3), t1=1.0, solver="explicit")
    kept = np.asarray(jax.vmap(loss.conserved)(flow.models))
    np.testing.assert_allclose(kept, np.broadcast_to(kept[0], (flow.t.size, 2)), atol=1e-8)
    true, false = flowsim.judge([balanced(1.0), balanced(1.0 + 1e-6)], loss, flow)
    assert true.verdict is Judgement.HOLDS, true
    assert false.verdict is Judgement.VIOLATED, false


def tends(factor):
    @flowsim.claim(f"teacher.{factor}", "a test", statement="W -> W*")
    def sides(loss, flow):
        value, allowance = flowsim.limit(flow, lambda model: model.W)
        return flowsim.equal(value, factor * loss.teacher.W[None], 1.0, allowance=allowance)

    return sides


@pytest.mark.slow
def test_a_flow_of_erf_is_that_of_lsoda_and_tends_to_the_teacher_and_to_no_other():
    loss = GaussianNetworkLoss(TwoLayerNetwork(A, W, "erf"))
    start = TwoLayerNetwork([0.4, -0.3], W[:, ::-1] / 2 + W / 2, "erf")
    flow = flowsim.gradient_flow(loss, start, times=[5.0], rtol=1e-11, stop=flowsim.Stop(excess=1e-20))
    flat, unravel = ravel_pytree(start)
    field = jax.jit(lambda t, x: -ravel_pytree(loss.gradient(unravel(x)))[0])
    other = scipy.integrate.solve_ivp(field, (0, 5), flat, "LSODA", rtol=1e-12, atol=1e-13).y[:, -1]
    np.testing.assert_allclose(ravel_pytree(flow.at(5.0))[0], other, rtol=0, atol=1e-11)
    true, false = flowsim.judge([tends(1), tends(1 + 1e-6)], loss, flow)
    assert true.verdict is Judgement.HOLDS, true
    assert false.verdict is Judgement.VIOLATED, false


def test_a_certificate_has_no_operation_for_the_angle_and_says_so():
    loss = GaussianNetworkLoss(TwoLayerNetwork(A, W, "erf"))
    with pytest.raises(ValueError, match="^loss must be one of operations that certificates have, but .*atan2"):
        flowsim.enclose(loss, loss.teacher, t1=1.0)
