"""Losses of layers that are multiples of S^-1 and I: exact at any size, with their minima and their flows."""

import math
from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from helpers import assert_close, covariance, largest_z, sample_means

from flowsim.flow.descent import gradient_descent
from flowsim.flow.gradient_flow import gradient_flow
from flowsim.losses import LoopedLoss, MinimumKind, MultiLayerLoss, ScalarLayersLoss, ScalarLoopLoss
from flowsim.losses.deep.scalar_layers import Speeds, restricted_speeds
from flowsim.losses.deep.scalar_minima import layer_minimum, scalar_minimum, scalar_shortfall
from flowsim.losses.deep.stream_minimum import stream_minimum
from flowsim.models import ScalarLayers, ScalarLoop
from flowsim.moments import mean_trace_power, spectral_quadrature
from flowsim.tasks import LinearRegression

pytestmark = pytest.mark.slow

# Exact rational arithmetic: polynomials in x by their coefficients.


def times(p: list[Fraction], q: list[Fraction]) -> list[Fraction]:
    product = [Fraction(0)] * (len(p) + len(q) - 1)
    for i, a in enumerate(p):
        for j, b in enumerate(q):
            product[i + j] += a * b
    return product


def one_less(c: Fraction, p: list[Fraction]) -> list[Fraction]:
    """1 - c p."""
    return [(i == 0) - c * a for i, a in enumerate(p)]


def rational_loss(a, b, d: int, n: int) -> Fraction:
    """E tr q(W)^2 at the floats a and b (empty for none), by the recursion of theory in exact polynomials."""
    p, q = [Fraction(1)], [Fraction(1)]
    for i, scalar in enumerate(map(Fraction, np.asarray(a).tolist())):
        t = times([Fraction(0), Fraction(1)], times(p, p))
        q = times(q, one_less(scalar, t))
        if i < len(b):
            p = times(p, one_less(scalar * Fraction(float(b[i])), t))
    return sum((c * mean_trace_power(d, n, m) for m, c in enumerate(times(q, q))), Fraction(0))


@eqx.filter_jit
def evaluated(loss, model):
    """The loss, its excess, and its gradient in two ways."""
    return loss(model), loss.excess(model), loss.gradient(model), jax.grad(loss.__call__)(model)


def error(value: jax.Array, exact: Fraction) -> float:
    return abs(float(Fraction(float(value)) / exact - 1))


@pytest.mark.parametrize(
    ("d", "n", "k"), [(5, 20, 3), (7, 2, 3), (1, 1, 2), (4, 10**12, 4), (4, 10**9, 5), (10**5, 10**15, 3)]
)
def test_layers_keep_all_digits_at_the_minimum_and_near_it(d, n, k):
    loss = ScalarLayersLoss(d, n, k)
    a = np.asarray(loss.minimizer.a)
    at_minimum = rational_loss(a, [], d, n)
    assert error(evaluated(loss, loss.minimizer)[0], at_minimum) < 1e-14
    assert error(loss.minimum, at_minimum) < 1e-14
    # In another order, and off by 1e-7. That the minimizer is rounded to floats costs the rest.
    near = a[::-1] * (1 + 1e-7 * np.arange(1, k + 1))
    rise = rational_loss(near, [], d, n) - at_minimum
    assert error(evaluated(loss, ScalarLayers(near))[1], rise) < 1e-12


def test_the_smallest_of_them_is_of_the_size_that_was_promised():
    assert float(ScalarLayersLoss(4, 10**9, 5).minimum) < 1e-39


@pytest.mark.parametrize(("d", "n", "loops"), [(5, 20, 4), (7, 2, 3), (4, 10**12, 3), (10**6, 10**30, 2)])
def test_loops_keep_all_digits_at_the_minimum_and_near_it(d, n, loops):
    loss = ScalarLoopLoss(d, n, loops)
    best = [float(loss.minimizer.a)] * loops
    at_minimum = rational_loss(best, [], d, n)
    assert error(evaluated(loss, loss.minimizer)[0], at_minimum) < 1e-14
    assert error(loss.minimum, at_minimum) < 1e-14
    near = np.float64(best[0] * (1 + 1e-5))
    _, excess, gradient, plain = evaluated(loss, ScalarLoop(near, loops=loops))
    assert error(excess, rational_loss([near] * loops, [], d, n) - at_minimum) < 1e-12
    assert_close(gradient, plain, rtol=1e-9)


@pytest.mark.parametrize(("n", "k"), [(10, 2), (20, 3), (1000, 3), (10**6, 2)])
def test_layers_that_move_the_covariates_keep_their_digits(n, k):
    loss = ScalarLayersLoss(5, n, k, residual_stream=True)
    best = loss.minimizer
    at_minimum = rational_loss(best.a, best.b, 5, n)
    assert error(evaluated(loss, best)[0], at_minimum) < 1e-14
    assert error(loss.minimum, at_minimum) < 1e-14
    for size, tolerance in ((0.1, 1e-13), (1e-3, 1e-11)):
        near = ScalarLayers(best.a * (1 + size), jnp.asarray(best.b) * (1 - size / 2))
        exact = rational_loss(near.a, near.b, 5, n)
        value, excess, _, _ = evaluated(loss, near)
        assert error(value, exact) < tolerance
        assert error(excess, exact - at_minimum) < tolerance
    anywhere = ScalarLayers(np.linspace(-0.3, 0.8, k), np.linspace(0.9, -0.4, k - 1))
    exact = rational_loss(anywhere.a, anywhere.b, 5, n)
    value, excess, _, _ = evaluated(loss, anywhere)
    assert error(value, exact) < 1e-13
    assert error(excess, exact - at_minimum) < 1e-13


# Against the transformers


@pytest.mark.parametrize("k", [2, 3])
def test_the_loss_is_the_mean_squared_error_of_the_literal_transformer(k):
    d, n = 2, 16
    law = LinearRegression(covariance(d, 1, condition=4.0), n, weights="inverse-covariance")
    scalars = ScalarLayers([0.4, 0.6, 0.5][:k], [0.4, 0.3][: k - 1])
    model = scalars.attention(law.covariance)

    def squared(key):
        prompt, label = law.sample(key)
        return (model(prompt) - label) ** 2

    mean, spread = sample_means(squared, 100_000, seed=k)
    loss = ScalarLayersLoss(d, n, k, residual_stream=True)(scalars)
    assert largest_z(mean, spread, loss) < 3
    assert spread < 0.01 * mean
    # The same without b is another number, so that the test can tell.
    assert abs(ScalarLayersLoss(d, n, k)(ScalarLayers(scalars.a)) - loss) > 10 * spread


def test_the_scalars_predict_on_prompts_of_covariance_one():
    law = LinearRegression(covariance(3, 2), 7, weights="inverse-covariance")
    prompt, _ = law.sample(jax.random.key(0))
    inverse_root = np.linalg.inv(np.linalg.cholesky(np.asarray(law.covariance)))
    whitened = type(prompt)(prompt.inputs @ inverse_root.T, prompt.labels, jnp.asarray(inverse_root @ prompt.query))
    for scalars in (ScalarLayers([0.5, 0.8], [0.4]), ScalarLoop(0.7, loops=3)):
        expected = eqx.filter_jit(scalars.attention(law.covariance))(prompt)
        np.testing.assert_allclose(eqx.filter_jit(scalars)(whitened), expected, rtol=1e-12)


@pytest.mark.parametrize("k", [1, 3])
def test_losses_and_gradients_are_those_of_the_matrices(k):
    d, n = 3, 5
    law = LinearRegression(covariance(d, 3), n, weights="inverse-covariance")
    S = law.covariance
    of_matrices = eqx.filter_jit(lambda loss, model: (loss(model), loss.excess(model), loss.gradient(model).A))
    matrices, scalars = MultiLayerLoss(law, k), ScalarLayersLoss(d, n, k)
    model = ScalarLayers(np.linspace(0.1, 0.7, k))
    value, excess, gradient, plain = evaluated(scalars, model)
    assert_close(gradient, plain, rtol=1e-12)
    # grad_{A_i} f = (df/da_i) S/d, which ahn2023's flow is made of.
    expected = value, excess, gradient.a[:, None, None] / d * S[None]
    found = of_matrices(matrices, model.attention(S))
    assert_close(found[:2], expected[:2], rtol=1e-12)
    assert_close(found[2], expected[2], rtol=1e-10, atol=1e-13)

    looped, scalar = LoopedLoss(law, k), ScalarLoopLoss(d, n, k)
    loop = ScalarLoop(0.4, loops=k)
    value, excess, gradient, plain = evaluated(scalar, loop)
    assert_close(gradient, plain, rtol=1e-12)
    expected = value, excess, gradient.a / d * S
    found = of_matrices(looped, loop.attention(S))
    assert_close(found[:2], expected[:2], rtol=1e-12)
    assert_close(found[2], expected[2], rtol=1e-10, atol=1e-13)


def test_the_gradient_of_what_moves_the_covariates_is_a_multiple_of_one():
    """grad_B f = (df/db) I/d at (a_i S^-1, b I), so that s_i = df/db, with B' = S^{1/2} B S^{-1/2} for B."""
    d, n, a0, a1, b = 2, 8, 0.5, 0.7, 0.3
    identity = jnp.eye(d)

    def left(A, B, W):
        """Two layers leave w^T (I - W A_0)(I - W P^T A_1 P) of the label, P = I - B W A_0 moves the covariates."""
        P = identity - B @ W @ A[0]
        R = (identity - W @ A[0]) @ (identity - W @ P.T @ A[1] @ P)
        return jnp.sum(R**2)

    def gradients(key):
        z = jax.random.normal(key, (n, d))
        A = jnp.stack([a0 * identity, a1 * identity])
        return left(A, b * identity, z.T @ z / n), jax.grad(left, argnums=(0, 1))(A, b * identity, z.T @ z / n)

    mean, spread = sample_means(gradients, 200_000, seed=0)
    loss, model = ScalarLayersLoss(d, n, 2, residual_stream=True), ScalarLayers([a0, a1], [b])
    value, _, slopes, _ = evaluated(loss, model)
    expected = value, (slopes.a[:, None, None] / d * identity[None], slopes.b[0] / d * identity)
    assert largest_z(mean, spread, expected) < 3.5


# Minima


def test_one_layer_has_its_known_minimum():
    for d, n in ((5, 20), (3, 1), (10**6, 10**30)):
        a, shortfall = 1 / (1 + (d + 1) / n), (d + 1) / (n + d + 1)
        (scalar,), value = layer_minimum(d, n, 1)
        np.testing.assert_allclose((scalar, value), (a, d * shortfall), rtol=1e-15)
        np.testing.assert_allclose(scalar_minimum(d, n, 1), (a, d * shortfall), rtol=1e-15)
        np.testing.assert_allclose(scalar_shortfall(d, n, 1), shortfall, rtol=1e-15)


@pytest.mark.parametrize(("d", "n", "k"), [(5, 20, 2), (5, 20, 4), (6, 2, 3), (3, 10**12, 3)])
def test_layers_reach_the_best_of_all_polynomials(d, n, k):
    """The minimum of E tr q(W)^2 with q = 1 - x r solves rational normal equations for r."""
    moments = [mean_trace_power(d, n, m) for m in range(2 * k + 1)]
    matrix = [[moments[i + j + 2] for j in range(k)] + [moments[i + 1]] for i in range(k)]
    for i in range(k):
        for row in range(k):
            if row != i:
                ratio = matrix[row][i] / matrix[i][i]
                matrix[row] = [x - ratio * y for x, y in zip(matrix[row], matrix[i], strict=True)]
    r = [matrix[i][k] / matrix[i][i] for i in range(k)]
    value = moments[0] - sum(c * moment for c, moment in zip(r, moments[1:], strict=False))
    scalars, minimum = layer_minimum(d, n, k)
    assert error(jnp.asarray(minimum), value) < 1e-15
    assert list(scalars) == sorted(scalars)
    # sum a_i and prod a_i are coefficients of q.
    assert error(jnp.asarray(math.fsum(scalars)), r[0]) < 1e-15
    assert error(jnp.asarray(math.prod(scalars)), r[-1] * (-1) ** (k - 1)) < 1e-14


@pytest.mark.parametrize(("d", "n", "loops"), [(5, 20, 3), (6, 2, 2), (3, 10**12, 2), (10**4, 10**30, 3)])
def test_the_best_loop_is_known_to_full_precision(d, n, loops):
    """The slope of the convex loss changes its sign within 1e-14 of 1 - a."""
    shortfall = Fraction(scalar_shortfall(d, n, loops))

    def slope(shortfall):
        factor = one_less(1 - shortfall, [Fraction(0), Fraction(1)])
        q = [Fraction(0), Fraction(1)]
        for _ in range(2 * loops - 1):
            q = times(q, factor)
        return -sum(c * mean_trace_power(d, n, m) for m, c in enumerate(q))

    assert slope(shortfall * (1 - Fraction(1e-14))) > 0 > slope(shortfall * (1 + Fraction(1e-14)))
    a, value = scalar_minimum(d, n, loops)
    np.testing.assert_allclose(a, float(1 - shortfall), rtol=3e-16)
    assert error(jnp.asarray(value), rational_loss([a] * loops, [], d, n)) < 1e-14


def test_more_examples_and_more_layers_are_better():
    sizes = [1, 2, 5, 20, 1000, 10**12, 10**30, math.inf]
    for minimum in (scalar_minimum, layer_minimum):
        for depth in (1, 2, 4):
            values = [minimum(5, n, depth)[1] for n in sizes]
            assert values == sorted(values, reverse=True) and values[-1] == 0.0
            assert all(value >= 5 - n for value, n in zip(values, sizes, strict=True))
    for n in sizes[:-1]:
        scalars = [scalar_minimum(5, n, loops) for loops in (1, 2, 3, 5)]
        layers = [layer_minimum(5, n, k)[1] for k in (1, 2, 3, 5)]
        assert [value for _, value in scalars] == sorted([value for _, value in scalars], reverse=True)
        assert layers == sorted(layers, reverse=True)
        assert all(one <= (1 + 1e-15) * other for one, (_, other) in zip(layers, scalars, strict=True))


@pytest.mark.parametrize(("n", "k"), [(10, 2), (3, 2), (10, 3)])
def test_no_local_search_beats_the_best_that_moves_the_covariates(n, k):
    a, b, minimum = stream_minimum(5, n, k)
    offsets, weights = spectral_quadrature(5, n, 3**k - 1)

    def left(scalars):
        q, p = np.sqrt(weights), np.ones_like(weights)
        for i in range(k):
            t = (1 + offsets) * p**2
            q = q * (1 - scalars[i] * t)
            p = p * (1 - (scalars[i] * scalars[k + i] if i < k - 1 else 0) * t)
        return q

    # From the best itself nothing is found, and from elsewhere nothing better.
    starts = np.random.default_rng(0).uniform(0.1, 1.5, (40, 2 * k - 1))
    ends = [scipy.optimize.least_squares(left, start, method="lm", max_nfev=2000) for start in starts]
    values = [2 * end.cost for end in ends]
    assert min(values) > minimum * (1 - 1e-12)
    at_best = scipy.optimize.least_squares(left, np.append(a, b), method="lm", xtol=1e-15, ftol=1e-15, gtol=1e-15)
    np.testing.assert_allclose(at_best.x, np.append(a, b), rtol=1e-6)
    np.testing.assert_allclose(2 * at_best.cost, minimum, rtol=1e-12)
    if k == 2:
        assert min(values) < minimum * (1 + 1e-9)


def test_moving_the_covariates_helps_and_does_what_the_limit_says():
    for n in (1, 3, 20, 1000):
        for k in (1, 2):
            assert stream_minimum(5, n, k)[2] <= layer_minimum(5, n, k)[1] * (1 + 1e-14)
    a, b, value = stream_minimum(5, 10**20, 2)
    np.testing.assert_allclose((*a, *b), (1, 9 / 4, 1 / 3), rtol=1e-8)
    assert 0 < value < 1e-55
    a, b, value = stream_minimum(5, math.inf, 2)
    assert (*a, *b, value) == (1, 9 / 4, 1 / 3, 0)
    assert float(ScalarLayersLoss(5, math.inf, 2, True)(ScalarLayers(a, b))) < 1e-30


def test_the_gradient_is_zero_at_the_minima():
    for loss in (ScalarLayersLoss(5, 20, 3), ScalarLayersLoss(6, 2, 2), ScalarLoopLoss(5, 20, 3)):
        assert loss.minimum_kind is MinimumKind.EXACT
        _, excess, gradient, plain = evaluated(loss, loss.minimizer)
        assert np.max(np.abs(plain.a)) < 1e-14 and np.max(np.abs(gradient.a)) < 1e-15
        assert float(excess) < 1e-30
    loss = ScalarLayersLoss(5, 20, 3, residual_stream=True)
    assert loss.minimum_kind is MinimumKind.NUMERICAL
    bend = eqx.filter_jit(jax.hessian(loss.__call__))(loss.minimizer)
    gradient = evaluated(loss, loss.minimizer)[3]
    step = np.linalg.solve(
        np.block([[bend.a.a, bend.a.b], [bend.b.a, bend.b.b]]), np.append(gradient.a, gradient.b)
    )  # Newton's
    np.testing.assert_array_less(np.abs(step), 1e-12 * np.append(loss.minimizer.a, np.asarray(loss.minimizer.b)))


def test_without_sampling_noise_the_loss_is_a_product():
    loss = ScalarLayersLoss(4, math.inf, 3)
    model = ScalarLayers([0.2, 0.7, 1.4])
    np.testing.assert_allclose(evaluated(loss, model)[:2], 4 * (0.8 * 0.3 * 0.4) ** 2, rtol=1e-14)
    assert float(loss.minimum) == 0.0


# Flows


def test_a_step_is_that_of_the_matrices_where_the_covariance_is_one():
    """A = a I stays a multiple of I, and |grad|^2 is the matrices' too."""
    d, n, eta = 2, 4, 0.1
    start = ScalarLoop(0.1, loops=2)
    loss = LoopedLoss(LinearRegression(np.eye(d), n, weights="inverse-covariance"), 2)
    gradient = eqx.filter_jit(loss.gradient)(start.attention(np.eye(d))).A
    run = gradient_descent(ScalarLoopLoss(d, n, 2), start, eta, 1)
    np.testing.assert_allclose(run.end.a * np.eye(d), start.a * np.eye(d) - eta * gradient, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(run.grad_norm_sq[0], np.sum(gradient**2), rtol=1e-13)


@pytest.mark.parametrize(("n", "solver"), [(1e30, "explicit"), (math.inf, "auto")])
def test_a_million_dimensions_flow_as_one_number(n, solver):
    """With W = I da/dt = 2L (1 - a)^{2L-1}, and n = 1e30 is next to it."""
    trajectory = gradient_flow(ScalarLoopLoss(10**6, n, 3), ScalarLoop(0.0, loops=3), t1=1e4, solver=solver)
    t = np.asarray(trajectory.t)
    np.testing.assert_allclose(1 - trajectory.models.a, (1 + 24 * t) ** -0.25, rtol=1e-7)
    np.testing.assert_allclose(trajectory.excess, 1e6 * (1 + 24 * t) ** -1.5, rtol=1e-6)
    assert trajectory.certificates.energy_defect < 1e-7


def test_the_restricted_flow_decreases_the_loss_as_it_is_said_to():
    """-df/dt is sum_i |grad_{A_i} f|^2 with the corrected speeds, and d times that as printed: (26) is not tight."""
    d, n, k = 3, 5, 2
    law = LinearRegression(covariance(d, 4), n, weights="inverse-covariance")
    slope, start = eqx.filter_jit(MultiLayerLoss(law, k).gradient), ScalarLayers([0.1, 0.4])
    runs = {}
    for form, stretch in (("corrected", 1.0), ("printed", float(d))):
        loss = ScalarLayersLoss(d, n, k, speeds=restricted_speeds(law.covariance, form=form))
        times_ = np.asarray([0.5, 2.0, 20.0]) / stretch
        run = runs[form] = gradient_flow(loss, start, times=times_, points_per_decade=0, solver="explicit")
        assert run.certificates.energy_defect < 1e-7
        for index, fall in enumerate(run.grad_norm_sq):
            gradient = slope(run.row(index).attention(law.covariance)).A
            np.testing.assert_allclose(fall, stretch * np.sum(gradient**2), rtol=1e-9)
    assert_close(runs["printed"].models, runs["corrected"].models, rtol=1e-7)
    # Both run for long enough to tell.
    assert runs["corrected"].excess[-1] < 1e-2 * runs["corrected"].excess[0]


def test_restricted_speeds_are_those_of_the_paper_on_matrices():
    S = np.asarray(covariance(3, 5))
    gradient_a, gradient_b = 0.7 * S, -0.4 * np.eye(3)  # (df/da) S/d, (df/db) I/d
    slopes = np.array([3 * 0.7, -3 * 0.4])
    root, inverse_root = np.linalg.cholesky(S), np.linalg.inv(np.linalg.cholesky(S))
    r = np.trace(root.T @ gradient_a @ root)
    s = np.trace(inverse_root @ gradient_b @ root)
    np.testing.assert_allclose(restricted_speeds(S, form="printed").a, r / slopes[0], rtol=1e-12)
    speeds = restricted_speeds(S, residual_stream=True)
    np.testing.assert_allclose(np.asarray(speeds), [r / 3 / slopes[0], s / 3 / slopes[1]], rtol=1e-12)
    # -s_i S^-1 = -db/dt I at S = 4 I.
    np.testing.assert_allclose(restricted_speeds(4 * np.eye(3), form="printed", residual_stream=True).b, 1 / 4)
    with pytest.raises(ValueError, match="a multiple of I, since otherwise the printed flow of the B_i leaves"):
        restricted_speeds(S, form="printed", residual_stream=True)
    with pytest.raises(ValueError, match='form must be "corrected" or "printed"'):
        restricted_speeds(S, form="true")


def test_layers_that_move_the_covariates_flow_down():
    speeds = Speeds(0.3, 0.05)
    loss = ScalarLayersLoss(5, 10, 2, residual_stream=True, speeds=speeds)
    run = gradient_flow(loss, ScalarLayers([0.1, 0.2], [0.1]), t1=30.0, points_per_decade=3, solver="explicit")
    assert run.certificates.energy_defect < 1e-7
    assert np.all(np.diff(run.loss) < 1e-15)
    np.testing.assert_allclose(run.loss - loss.minimum, run.excess, rtol=1e-9, atol=1e-12)
    gradient = evaluated(loss, run.end)[2]
    expected = speeds.a * jnp.sum(gradient.a**2) + speeds.b * jnp.sum(gradient.b**2)
    np.testing.assert_allclose(run.grad_norm_sq[-1], expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ScalarLayersLoss(5, 20, 0), "layers must be a whole number of at least 1"),
        (lambda: ScalarLayersLoss(0, 20, 2), "dimension must be a whole number of at least 1"),
        (lambda: ScalarLayersLoss(5, 2.5, 2), "context_length must be a whole number of at least 1, or inf"),
        (lambda: ScalarLayersLoss(5, 20, 5, True), "layers must be at most 4 with a residual stream, but it is 5"),
        (lambda: ScalarLayersLoss(5, 20, 2, speeds=Speeds(1.0, 0.0)), "speeds.b must be positive"),
        (lambda: ScalarLoopLoss(5, 20, 2, speed=-1.0), "speed must be positive"),
        (lambda: jax.jit(lambda n: ScalarLoopLoss(5, n, 2).minimum)(3.0), "a number that is known, but it is traced"),
        (lambda: ScalarLoopLoss(5, 20, 2)(ScalarLoop(0.1, loops=3)), "model must be of 2 loops, but it has 3"),
        (lambda: ScalarLayersLoss(5, 20, 2)(ScalarLayers([0.1])), "model.a must be of 2 layers"),
        (lambda: ScalarLayersLoss(5, 20, 2)(ScalarLayers([0.1, 0.2], [0.1])), "model.b must be left out"),
        (lambda: ScalarLayersLoss(5, 20, 1, True).excess(ScalarLayers([0.1])), "model.b must be given"),
        (lambda: ScalarLayers([]), "a must be of at least one layer"),
        (lambda: ScalarLayers([0.1, 0.2], [0.1, 0.2]), "b must be an array of shape"),
        (lambda: ScalarLoop(0.1, loops=0), "loops must be a whole number of at least 1"),
        (lambda: ScalarLoop(math.nan, loops=1), "a must be finite"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
