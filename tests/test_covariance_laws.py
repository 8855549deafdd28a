"""Laws of random covariances: moments, draws, expectations of cubics and of the largest eigenvalue, refusals."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from helpers import largest_z, sample_means

from flowsim.moments import sample_covariance_sandwich
from flowsim.tasks.covariance_laws import (
    DiagonalLaw,
    Discrete,
    Gamma,
    LogNormal,
    Moments,
    SampledLaw,
    Uniform,
    WishartDraw,
)

FAMILIES = {
    "exponential": (Gamma(1.0, [0.5, 2.0]), [scipy.stats.expon(scale=2.0), scipy.stats.expon(scale=0.5)]),
    "gamma": (Gamma([0.3, 4.0], [1.0, 3.0]), [scipy.stats.gamma(0.3), scipy.stats.gamma(4.0, scale=1 / 3)]),
    "uniform": (Uniform([0.0, 1.0], [1.0, 1.5]), [scipy.stats.uniform(0, 1), scipy.stats.uniform(1, 0.5)]),
    "log-normal": (
        LogNormal([0.0, -1.0], [0.5, 0.2]),
        [scipy.stats.lognorm(0.5), scipy.stats.lognorm(0.2, scale=np.exp(-1.0))],
    ),
}
DISCRETE = Discrete([[0.5, 1.5], [1.0, 3.0], [0.2, 2.0]], [[0.5, 0.5], [0.9, 0.1], [0.3, 0.7]])


def mixed_law() -> DiagonalLaw:
    return DiagonalLaw(*[family for family, _ in FAMILIES.values()], DISCRETE)


def enumerated(function):
    """The expectation over all eight covariances of `DISCRETE`, one after the other."""
    total = 0.0
    for choice in itertools.product((0, 1), repeat=3):
        values = jnp.asarray([DISCRETE.values[i, k] for i, k in enumerate(choice)])
        probability = float(np.prod([DISCRETE.probabilities[i, k] for i, k in enumerate(choice)]))
        total = total + probability * function(jnp.diag(values))
    return total


@pytest.mark.parametrize("name", FAMILIES)
def test_moments_distribution_and_truncated_squares_are_those_of_scipy(name):
    family, oracles = FAMILIES[name]
    expected = [[oracle.moment(order) for oracle in oracles] for order in (1, 2, 3)]
    np.testing.assert_allclose(family.moments(), expected, rtol=1e-12)
    x = jnp.asarray([0.1, 0.7, 1.2, 3.0])
    np.testing.assert_allclose(family.distribution(x), np.stack([o.cdf(x) for o in oracles], axis=1), rtol=1e-12)
    squares = [[o.expect(lambda y: y**2, lb=o.support()[0], ub=float(end)) for o in oracles] for end in x]
    np.testing.assert_allclose(family.truncated_square(x), squares, rtol=1e-7, atol=1e-12)


@pytest.mark.slow
def test_draws_have_the_moments_of_their_law():
    law = mixed_law()

    def powers(key):
        drawn = law.sample(key)
        lam = jnp.diagonal(drawn)
        return lam, lam**2, jnp.sum(jnp.abs(drawn)) - jnp.sum(lam)

    mean, error = sample_means(lambda key: powers(key)[:2], samples=200_000, seed=1)
    assert largest_z(mean, error, tuple(law.moments()[:2])) < 4
    assert float(powers(jax.random.key(0))[2]) == 0


def test_expectations_of_cubics_are_exact():
    law = DiagonalLaw(DISCRETE)
    A, B, C = np.random.default_rng(0).standard_normal((3, 3, 3))

    def cubic(Lambda):
        return jnp.trace(Lambda @ A @ Lambda @ B @ Lambda @ C) + jnp.trace(A @ Lambda) ** 2 + Lambda[0, 0] - 2.0

    np.testing.assert_allclose(law.expectation(cubic), enumerated(cubic), rtol=1e-13)
    quartic = lambda Lambda: jnp.trace(Lambda) ** 4
    assert abs(float(law.expectation(quartic)) / float(enumerated(quartic)) - 1) > 1e-3


def test_a_law_without_variance_is_evaluated_once_without_error():
    values = np.array([[0.3], [1.7]])
    law = DiagonalLaw(Discrete(values, np.ones((2, 1))))
    cubic = lambda Lambda: jnp.trace(Lambda @ Lambda @ Lambda)
    assert float(law.expectation(cubic)) == float(cubic(jnp.diag(jnp.asarray(values[:, 0]))))


def energy_of(Lambda, length):
    lam = jnp.diagonal(Lambda)
    return (jnp.max(lam) * (1 + 1 / length) + jnp.sum(lam) / length) * jnp.sum(lam**2)


def test_the_operator_energy_of_a_discrete_law_is_that_of_all_its_covariances():
    energy = DiagonalLaw(DISCRETE).operator_energy(jnp.asarray(7.0))
    np.testing.assert_allclose(energy, enumerated(lambda Lambda: energy_of(Lambda, 7.0)), rtol=1e-13)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_operator_energy_in_one_dimension_is_a_third_moment(name):
    family, _ = FAMILIES[name]
    first = jax.tree.map(lambda leaf: leaf[:1], family)
    third = float(family.moments()[2, 0])
    np.testing.assert_allclose(DiagonalLaw(first).operator_energy(jnp.asarray(4.0)), 1.5 * third, rtol=1e-13)


def test_the_operator_energy_of_two_exponentials():
    # E[max(a, b)(a^2 + b^2)] = 2 (E[a^3; a > b] + E[a^2 b; a < b]) = 2 ((6 - 3/8) + 5/8).
    law = DiagonalLaw(Gamma(1.0, [1.0, 1.0]))
    np.testing.assert_allclose(law.operator_energy(jnp.asarray(jnp.inf)), 12.5, rtol=1e-12)


@pytest.mark.slow
def test_the_operator_energy_against_draws():
    law = mixed_law()
    mean, error = sample_means(lambda key: energy_of(law.sample(key), 3.0), samples=400_000, seed=2)
    assert largest_z(mean, error, law.operator_energy(jnp.asarray(3.0))) < 4


def test_scaling_scales_moments_and_energy():
    law = mixed_law()
    scaled = law.scaled(4.0)
    np.testing.assert_allclose(scaled.moments(), law.moments() * np.array([[4.0], [16.0], [64.0]]), rtol=1e-12)
    N = jnp.asarray(5.0)
    np.testing.assert_allclose(scaled.operator_energy(N), 64 * law.operator_energy(N), rtol=1e-9)


def test_moments_alone_give_expectations_but_neither_draws_nor_the_energy():
    exact = DiagonalLaw(DISCRETE)
    law = DiagonalLaw(Moments(*exact.moments()))
    cubic = lambda Lambda: jnp.trace(Lambda) ** 3
    np.testing.assert_allclose(law.expectation(cubic), exact.expectation(cubic), rtol=1e-14)
    assert np.isnan(law.operator_energy(jnp.asarray(3.0)))
    with pytest.raises(ValueError, match="known by more than its moments"):
        law.sample(jax.random.key(0))


def test_a_wishart_law_by_its_draws():
    mean = np.array([[1.0, 0.3], [0.3, 0.5]])
    law = SampledLaw(WishartDraw(mean, 5), 4096)
    exact = sample_covariance_sandwich(jnp.eye(2), jnp.asarray(mean), jnp.asarray(5.0))
    groups = jnp.stack([group.expectation(lambda Lambda: Lambda @ Lambda) for group in law.replicates()])
    error = np.std(groups, axis=0, ddof=1) / np.sqrt(len(groups))
    assert np.max(np.abs(np.mean(groups, axis=0) - exact) / error) < 4
    np.testing.assert_allclose(np.mean(groups, axis=0), law.expectation(lambda Lambda: Lambda @ Lambda), rtol=1e-12)
    again = SampledLaw(WishartDraw(mean, 5), 4096)
    np.testing.assert_array_equal(law.matrices, again.matrices)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Gamma(0.0, [1.0]), "shape must be positive, but it holds 0"),
        (lambda: Gamma(1.0, [1.0, -2.0]), "rate must be positive, but it holds -2"),
        (
            lambda: Gamma([1.0, 2.0], [1.0, 2.0, 3.0]),
            r"shape must be an array of shape \(3,\), but its",
        ),
        (lambda: Uniform(-0.1, 1.0), "low must be at least 0"),
        (lambda: Uniform(2.0, 1.0), "high must be above low, but it holds 1"),
        (lambda: LogNormal(0.0, 0.0), "spread must be positive"),
        (lambda: Discrete([[0.0, 1.0]], [[0.5, 0.5]]), "values must be positive, as a covariance is, but they hold 0"),
        (lambda: Discrete([[1.0, 2.0]], [[0.5, 0.6]]), "probabilities must be nonnegative with rows that sum to 1"),
        (
            lambda: Moments(1.0, 0.9, 1.0),
            "second must be at least 1, by the Cauchy-Schwarz inequality",
        ),
        (lambda: Moments(1.0, 2.0, 3.0), "third must be at least 4"),
        (lambda: Moments(1.0, 2.0, np.inf), "third must be finite"),
        (lambda: DiagonalLaw(LogNormal(0.0, 20.0)), "moments must be finite up to the third, but one is not"),
        (lambda: DiagonalLaw(), "coordinates must be at least one family"),
        (lambda: DiagonalLaw(Gamma(1.0, 1.0)).scaled(0.0), "factor must be positive"),
        (lambda: WishartDraw(np.eye(3), 2), "degrees must be at least the dimension 3, but it is 2"),
        (lambda: SampledLaw(WishartDraw(np.eye(2), 2), 20), "samples must be a multiple of 8 and at least 32"),
        (lambda: SampledLaw(lambda key: jnp.zeros((2, 2)), 32), "draw must be a function to positive definite"),
        (lambda: SampledLaw(lambda key: jnp.zeros(2), 32), r"draw must be a function to \(d, d\) matrices"),
    ],
)
def test_laws_that_are_none_are_refused_in_one_line(make, line):
    with pytest.raises(ValueError, match=line) as error:
        make()
    assert "\n" not in str(error.value)
