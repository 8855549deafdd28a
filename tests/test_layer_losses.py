"""The losses of deep linear transformers: against literal models, rationals, closed forms, and each other."""

from fractions import Fraction
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_close, covariance, largest_z, relative_error, sample_means, symmetrise
from hypothesis import given, settings
from hypothesis import strategies as st

from flowsim.flow.descent import gradient_descent
from flowsim.flow.gradient_flow import gradient_flow
from flowsim.losses import DiagonalLayersLoss, LoopedLoss, MultiLayerLoss
from flowsim.losses.deep.residual_energy import ResidualEnergy, loop_terms
from flowsim.models import DiagonalLayers, LoopedAttention, MultiLayerAttention
from flowsim.tasks import LinearRegression, SpectralRegression

pytestmark = pytest.mark.slow

_SAMPLES = 100_000


def task(d: int, n: float, seed: int = 0, weights: str = "inverse-covariance") -> LinearRegression:
    return LinearRegression(covariance(d, seed, condition=4.0), n, weights=weights)


def identity(d: int, n: float) -> LinearRegression:
    return LinearRegression(np.eye(d), n, weights="inverse-covariance")


def near(d: int, seed: int, size: float = 0.1, count: int = 1) -> np.ndarray:
    """(count, d, d) about half the identity, not symmetric."""
    return 0.4 * np.eye(d) + size * np.random.default_rng(seed).standard_normal((count, d, d))


# Against the literal transformers, on drawn prompts


@pytest.mark.parametrize(
    ("kind", "depth", "n", "weights"),
    [
        ("looped", 2, 3, "isotropic"),
        ("free looped", 2, 2, "inverse-covariance"),
        ("layers", 3, 6, "inverse-covariance"),
        ("free layers", 2, 2, "isotropic"),
    ],
)
def test_losses_are_the_literal_models_mean_squared_error(kind, depth, n, weights):
    law = task(2, n, weights=weights)
    symmetric = not kind.startswith("free")
    model: Any
    loss: Any
    matrices = near(2, depth, count=depth)
    matrices = symmetrise(matrices) if symmetric else matrices
    if kind.endswith("looped"):
        u = np.zeros(2) if symmetric else np.asarray([0.4, -0.8])
        model, loss = LoopedAttention(matrices[0], u, loops=depth), LoopedLoss(law, depth, symmetric=symmetric)
    else:
        model = MultiLayerAttention(matrices, symmetric=symmetric)
        loss = MultiLayerLoss(law, depth, symmetric=symmetric)

    def error(key):
        prompt, label = law.sample(key)
        return (model(prompt) - label) ** 2

    mean, spread = sample_means(error, _SAMPLES, seed=depth)
    assert largest_z(mean, spread, loss(model)) < 3


# Digits


@pytest.mark.parametrize("n", [2, 20, 1000, 10**6, 10**12])
@pytest.mark.parametrize("loops", [1, 3, 5])
def test_nine_digits_against_rationals_at_every_length(loops, n):
    d = 4
    loss = LoopedLoss(identity(d, n), loops)
    best, rng = float(loss.energy.centres[0]), np.random.default_rng(loops)
    around = symmetrise(rng.standard_normal((d, d)))
    values = jax.jit(lambda model: (loss(model), loss.digits(model)))
    for matrix in (0 * around, 0.4 * np.eye(d), best * np.eye(d), best * np.eye(d) + 1e-3 * around, around, -around):
        matrix = np.asarray(matrix)
        exact = loop_terms(loops, True, False).exact(n, A=[[Fraction(x) for x in row] for row in matrix.tolist()])
        value, digits = map(float, values(LoopedAttention(matrix, loops=loops)))
        error = float(abs(Fraction(value) - exact) / exact)
        assert error < 1e-9
        assert error < 100 * 10**-digits


def test_few_digits_are_said_to_be_few():
    """The same polynomial about 0 at n = 10^6, where the loss is 1e-16: nothing is left, and it says so."""
    loss = LoopedLoss(identity(4, 10**6), 3)
    about_zero = ResidualEnergy(loop_terms(3, True, False), 1e6, 4, [0.0])
    bare = eqx.tree_at(lambda loss: loss.energy, loss, about_zero, is_leaf=lambda x: isinstance(x, ResidualEnergy))
    best = loss.minimizer
    assert float(loss.digits(best)) > 12
    assert float(bare.digits(best)) < 4
    assert float(bare.digits(LoopedAttention(0 * best.A, loops=3))) > 12


# Closed forms


@pytest.mark.parametrize("loops", [1, 2, 5])
def test_the_limit_of_long_contexts_is_a_matrix_power(loops):
    law = task(3, np.inf)
    A = symmetrise(near(3, 1))[0]
    loss = LoopedLoss(law, loops)
    residual = np.linalg.matrix_power(np.eye(3) - np.asarray(loss.root @ A @ loss.root), loops)
    assert_close(loss(LoopedAttention(A, loops=loops)), jnp.asarray(np.sum(residual**2)), rtol=1e-12)


def test_the_flow_of_the_limit_has_a_closed_form():
    """da/dt = 2 L s (1 - s a)^{2L - 1} for each eigenvalue: (1 - s a)^{2 - 2L} grows linearly."""
    s, loops, times = np.asarray([0.5, 1.0, 2.0]), 2, np.asarray([0.1, 1.0, 10.0])
    law = LinearRegression(np.diag(s), np.inf, weights="inverse-covariance")
    start = LoopedAttention(np.zeros((3, 3)), loops=loops)
    flow = gradient_flow(LoopedLoss(law, loops), start, times=times, t1=10.0, rtol=1e-11)
    kept = np.isin(np.asarray(flow.t), times)
    slope = 2 * loops * (2 * loops - 2) * s**2
    left = (1 + slope[None, :] * times[:, None]) ** (-1 / (2 * loops - 2))
    found = np.diagonal(np.asarray(flow.models.A)[kept], axis1=1, axis2=2)
    np.testing.assert_allclose(found, (1 - left) / s, rtol=1e-8)


def test_one_layer_has_the_known_optimum():
    """A = Gamma^-1 for w ~ N(0, I); for w ~ N(0, S^-1) with Gamma = (1 + (d + 1)/n) S."""
    law = task(3, 7, weights="isotropic")
    inverse = jnp.linalg.inv(law.gamma())
    assert_close(LoopedLoss(law, 1).minimizer.A, inverse, rtol=1e-10, atol=1e-11)
    assert_close(MultiLayerLoss(law, 1).minimizer.A[0], inverse, rtol=1e-10, atol=1e-11)
    law = task(3, 7)
    assert_close(LoopedLoss(law, 1).minimizer.A, jnp.linalg.inv(law.covariance) / (1 + 4 / 7), rtol=1e-12, atol=1e-13)


# Optima and excess


@pytest.mark.parametrize(
    ("kind", "depth", "n", "weights"),
    [
        ("looped", 5, 1000, "inverse-covariance"),
        ("looped", 2, 2, "isotropic"),
        ("layers", 3, 20, "inverse-covariance"),
        ("layers", 2, 3, "isotropic"),
    ],
)
def test_the_gradient_vanishes_at_the_minimizer_and_the_excess_is_quadratic_there(kind, depth, n, weights):
    law = task(3, n, weights=weights)
    loss: Any = LoopedLoss(law, depth) if kind == "looped" else MultiLayerLoss(law, depth)
    best = loss.minimizer
    size = float(jnp.max(jnp.abs(loss.gradient(jax.tree.map(jnp.zeros_like, best)).A)))
    assert float(jnp.max(jnp.abs(loss.gradient(best).A))) < 1e-12 * size
    step = symmetrise(np.random.default_rng(0).standard_normal(best.A.shape))
    excess = jax.jit(lambda h: loss.excess(eqx.tree_at(lambda m: m.A, best, best.A + h * step)) / h**2)
    assert float(excess(1e-4)) > 0
    assert_close(excess(1e-5), excess(1e-4), rtol=1e-3)
    assert_close(
        loss.minimum + excess(0.1) * 0.01, loss(eqx.tree_at(lambda m: m.A, best, best.A + 0.1 * step)), rtol=1e-10
    )


# Relations between the losses


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 30), st.integers(0, 100))
@settings(max_examples=10, deadline=None)
def test_the_printed_loss_is_never_above_and_equal_on_multiples(d, loops, n, seed):
    law = identity(d, n)
    exact, printed = LoopedLoss(law, loops), LoopedLoss(law, loops, form="printed")
    model = LoopedAttention(symmetrise(near(d, seed, 0.3))[0], loops=loops)
    assert float(printed(model)) <= float(exact(model)) * (1 + 1e-12)
    multiple = LoopedAttention(0.37 * np.eye(d), loops=loops)
    assert_close(printed(multiple), exact(multiple), rtol=1e-12)


def test_equal_layers_are_loops_and_layers_on_multiples_of_the_inverse_may_be_permuted():
    law = task(3, 5)
    A = symmetrise(near(3, 2))[0]
    looped, untied = LoopedLoss(law, 3), MultiLayerLoss(law, 3)
    assert_close(untied(MultiLayerAttention(jnp.stack([A] * 3))), looped(LoopedAttention(A, loops=3)), rtol=1e-12)
    inverse = jnp.linalg.inv(law.covariance)
    scalars = jnp.asarray([0.2, 0.5, 0.9])
    layers = MultiLayerAttention(scalars[:, None, None] * symmetrise(inverse)[None])
    assert_close(untied(layers), untied(MultiLayerAttention(layers.A[jnp.asarray([2, 0, 1])])), rtol=1e-12)


def test_gradients_live_in_the_space_that_flows():
    law, matrices = task(3, 4), symmetrise(near(3, 3, count=2))
    inside, everywhere = MultiLayerLoss(law, 2), MultiLayerLoss(law, 2, symmetric=False)
    slope = inside.gradient(MultiLayerAttention(matrices)).A
    plain = everywhere.gradient(MultiLayerAttention(matrices, symmetric=False)).A
    assert_close(slope, symmetrise(plain), rtol=1e-10, atol=1e-12)
    assert relative_error(plain, symmetrise(plain)) > 1e-3  # the free flow is another one
    A = matrices[0]
    looped = LoopedLoss(law, 3, symmetric=False).gradient(LoopedAttention(A, loops=3))
    assert_close(looped.A, LoopedLoss(law, 3).gradient(LoopedAttention(A, loops=3)).A, rtol=1e-9, atol=1e-10)
    assert_close(looped.u, jnp.zeros(3))


def test_over_all_A_the_minimum_of_a_looped_loss_is_not_known():
    """The best symmetric A is a saddle there."""
    task = LinearRegression(np.eye(2), 1e6, weights="inverse-covariance")
    whole, symmetric = LoopedLoss(task, 2, symmetric=False), LoopedLoss(task, 2)
    turned = symmetric.minimizer.A @ (jnp.eye(2) + jnp.asarray([[0.0, 1e-3], [-1e-3, 0.0]]))
    assert float(whole(LoopedAttention(turned, loops=2))) < float(symmetric.minimum)
    assert np.isnan(whole.minimum) and whole.minimum_kind == "unknown"
    assert (
        float(LoopedLoss(LinearRegression(np.eye(2), np.inf, weights="inverse-covariance"), 2, symmetric=False).minimum)
        == 0.0
    )


def test_models_in_the_eigenbasis_have_the_loss_and_the_flow_of_their_matrices():
    law = LinearRegression(np.diag([0.5, 0.5, 2.0]), 6, weights="inverse-covariance")
    spectral = SpectralRegression([0.5, 2.0], 6, multiplicities=[2, 1])
    full, reduced = LoopedLoss(law, 2), DiagonalLayersLoss(spectral, 2)
    values = jnp.asarray([[0.3, 0.1]])
    matrix = LoopedAttention(np.diag([0.3, 0.3, 0.1]), loops=2)
    assert_close(reduced(DiagonalLayers(values, spectral)), full(matrix), rtol=1e-13)
    times = np.asarray([0.05, 0.5])
    short = gradient_flow(reduced, DiagonalLayers(values, spectral), times=times, t1=0.5, rtol=1e-10)
    long = gradient_flow(full, matrix, times=times, t1=0.5, rtol=1e-10)
    assert_close(short.end.eigenvalues(spectral)[0], jnp.diagonal(long.end.A)[1:], rtol=1e-7)
    assert_close(short.grad_norm_sq[0], long.grad_norm_sq[0], rtol=1e-12)


def test_a_million_dimensions_on_a_scalar_path():
    spectral = SpectralRegression([1.0], 1e30, multiplicities=[10**6])
    loss = DiagonalLayersLoss(spectral, 3)
    model = DiagonalLayers([[0.5]], spectral)
    assert_close(loss(model), jnp.asarray(10**6 * 0.5**6), rtol=1e-12)
    assert float(loss.minimum) < 1e-60


def test_a_large_step_of_gradient_descent_diverges_where_the_flow_converges():
    loss, start = LoopedLoss(identity(2, 20), 3), LoopedAttention(np.zeros((2, 2)), loops=3)
    assert gradient_descent(loss, start, 1e-2, 100).status.finished
    assert not gradient_descent(loss, start, 2.0, 100).status.finished


# Bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LoopedLoss(identity(2, 3), 8), "loops must be between 1 and 7, where .*Monte Carlo.* but it is 8"),
        (lambda: LoopedLoss(identity(2, 3), 5, symmetric=False), "loops must be between 1 and 4, .* all matrices"),
        (lambda: MultiLayerLoss(identity(2, 3), 5), "layers must be between 1 and 4"),
        (lambda: MultiLayerLoss(identity(2, 3), 0), "layers must be a whole number of at least 1"),
        (lambda: LoopedLoss(identity(2, 3), 2, form="copied"), 'form must be "exact" or "printed"'),
        (lambda: LoopedLoss(task(2, 3, weights="isotropic"), 2, form="printed"), 'form must be "exact" unless'),
        (lambda: LoopedLoss(identity(2, 3), 2)(LoopedAttention([[1, 2], [0, 1]], loops=2)), "A must be symmetric"),
        (lambda: LoopedLoss(identity(2, 3), 2)(LoopedAttention(np.eye(2), [1, 0], loops=2)), "u must be zero, unless"),
        (lambda: LoopedLoss(identity(2, 3), 2)(LoopedAttention(np.eye(2), loops=3)), "loops must be 2"),
        (lambda: MultiLayerLoss(identity(2, 3), 2)(MultiLayerAttention(np.zeros((3, 2, 2)))), "layers must be 2"),
        (
            lambda: MultiLayerLoss(identity(2, 3), 2)(MultiLayerAttention(np.zeros((2, 2, 2)), np.zeros((1, 2, 2)))),
            "B must be left out",
        ),
        (lambda: SpectralRegression([1.0, -1.0], 3), "eigenvalues must be positive"),
        (lambda: SpectralRegression([1.0], 0), "context_length must be a whole number of at least 1"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_weights_that_the_loss_does_not_cover_are_no_number():
    loss = LoopedLoss(identity(2, 3), 2)
    assert np.isnan(float(eqx.filter_jit(loss)(LoopedAttention(np.eye(2), [1.0, 0.0], loops=2))))


@pytest.mark.parametrize("kind", [LoopedLoss, MultiLayerLoss])
@pytest.mark.parametrize(("symmetric", "depth"), [(True, 2), (True, 3), (False, 2)])
def test_directions_out_of_the_symmetric_matrices_are_the_flat_ones_at_the_minimum(kind, symmetric, depth):
    loss = kind(task(3, 10), depth, symmetric=symmetric)
    flat, unravel = jax.flatten_util.ravel_pytree(loss.minimizer)
    slope = lambda x: jax.flatten_util.ravel_pytree(loss.gradient(unravel(x)))[0]
    values = np.linalg.svd(jax.jacfwd(slope)(flat), compute_uv=False)
    assert np.sum(values < 1e-9 * values[0]) == loss.directions_outside(loss.minimizer)
