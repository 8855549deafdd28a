"""The mean spectrum of W: exact moments by three other routes, and a quadrature that leaves nothing to be desired."""

import math
from decimal import Decimal
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from flowsim.moments import mean_central_trace_power, mean_trace_power, spectral_quadrature
from flowsim.moments.spectrum import precise_quadrature

SIZES = [(1, 1), (5, 20), (4, 3), (6, 1), (7, 10**12), (10**6, 10**30)]


def by_pairings(d: int, n: int, m: int) -> Fraction:
    """E tr W^m = n^-m sum over pairings of the 2m factors of z_{a_1 i_1} z_{a_1 i_2} z_{a_2 i_2} z_{a_2 i_3} ..."""

    def pairings(factors):
        if not factors:
            yield []
        for j in range(1, len(factors)):
            for rest in pairings(factors[1:j] + factors[j + 1 :]):
                yield [(factors[0], factors[j]), *rest]

    def classes(names, joined):
        groups = [{name} for name in names]
        for x, y in joined:
            merged = set().union(*(group for group in groups if x in group or y in group))
            groups = [group for group in groups if not group & merged] + [merged]
        return len(groups)

    total = 0
    for pairing in pairings(list(range(2 * m))):
        samples = classes(range(m), [(p // 2, q // 2) for p, q in pairing])
        indices = classes(range(m), [((p + 1) // 2 % m, (q + 1) // 2 % m) for p, q in pairing])
        total += n**samples * d**indices
    return Fraction(total, n**m)


def by_parts(d: int, n: int, highest: int) -> list[Fraction]:
    """Gaussian integration by parts on a z of tr S^m times a product of other traces, S = n W."""

    @cache
    def expectation(powers: tuple[int, ...]) -> int:
        if not powers:
            return 1
        m, *rest = powers
        if m == 0:
            return d * expectation(tuple(rest))
        ordered = lambda *parts: expectation(tuple(sorted(parts, reverse=True)))
        total = (n + m - 1) * ordered(m - 1, *rest)
        total += sum(ordered(j, m - 1 - j, *rest) for j in range(m - 1))
        return total + sum(2 * l * ordered(m + l - 1, *rest[:i], *rest[i + 1 :]) for i, l in enumerate(rest) if l)

    return [Fraction(expectation((m,)), n**m) for m in range(highest + 1)]


@pytest.mark.parametrize(("d", "n"), [(3, 5), (2, 1), (4, 2)])
def test_moments_are_the_sum_over_all_pairings(d, n):
    for m in range(1, 5):
        assert mean_trace_power(d, n, m) == by_pairings(d, n, m)


@pytest.mark.parametrize(("d", "n"), SIZES)
def test_moments_are_those_of_integration_by_parts(d, n):
    for m, value in enumerate(by_parts(d, n, 14)):
        assert mean_trace_power(d, n, m) == value


@pytest.mark.parametrize(("d", "n"), [(5, 20), (3, 2)])
def test_the_first_moments_have_their_known_forms(d, n):
    known = [
        d,
        d * n,
        d * n * (d + n + 1),
        d * n * (n**2 + d**2 + 3 * n * d + 3 * n + 3 * d + 4),
        d * n * (n**3 + d**3 + 6 * n * d * (n + d) + 6 * n**2 + 6 * d**2 + 17 * n * d + 21 * n + 21 * d + 20),
    ]
    for m, value in enumerate(known):
        assert mean_trace_power(d, n, m) == Fraction(value, n**m)


def test_one_example_is_a_chi_squared_variable():
    for m in range(1, 9):
        assert mean_trace_power(7, 1, m) == math.prod(7 + 2 * j for j in range(m))


def test_drawn_matrices_have_these_central_moments():
    d, n, samples = 3, 6, 100_000
    z = np.random.default_rng(0).standard_normal((samples, n, d))
    offsets = np.linalg.eigvalsh(np.swapaxes(z, 1, 2) @ z / n) - 1
    for m in range(1, 6):
        drawn = np.sum(offsets**m, axis=1)
        expected = float(mean_central_trace_power(d, n, m))
        assert abs(drawn.mean() - expected) < 3 * drawn.std() / samples**0.5


def test_central_moments_expand_the_power():
    for m in range(8):
        terms = [math.comb(m, j) * (-1) ** (m - j) * mean_trace_power(4, 9, j) for j in range(m + 1)]
        assert mean_central_trace_power(4, 9, m) == sum(terms)
    assert mean_central_trace_power(4, 9, 2) == Fraction(4 * 5, 9)


@pytest.mark.parametrize("degree", [0, 1, 8, 26, 30])
@pytest.mark.parametrize(("d", "n"), SIZES)
def test_the_quadrature_is_exact_up_to_its_degree_and_not_beyond(d, n, degree):
    offsets, weights = spectral_quadrature(d, n, degree)
    assert offsets.size == weights.size == degree // 2 + 1
    assert np.all(np.diff(offsets) > 0) and np.all(weights > 0) and np.all(offsets > -1 - 1e-15)
    np.testing.assert_allclose(weights.sum(), d, rtol=1e-15)
    scale = ((d + 1) / n) ** 0.5  # so that no power vanishes in floats
    error = lambda m: (
        sum(weights * (offsets / scale) ** m) - float(mean_central_trace_power(d, n, m) / Fraction(scale) ** m)
    )
    size = lambda m: sum(weights * abs(offsets / scale) ** m)
    for m in range(degree + 1):
        assert abs(error(m)) <= 1e-13 * size(m)
    if degree <= 8:
        beyond = 2 * offsets.size
        assert error(beyond) < -1e-4 * size(beyond)


@pytest.mark.parametrize(("d", "n"), [(5, 20), (3, 10**12), (10**6, 1), (4, 1e300)])
def test_offsets_and_weights_are_the_nearest_floats(d, n):
    rule = spectral_quadrature(d, n, 18)
    # Far more digits than are asked for, so that both cannot be wrong in the same way.
    for floats, precise in zip(rule, precise_quadrature(d, n, 18, 1500), strict=True):
        assert all(abs(Decimal(x) - y) <= Decimal(2.0**-53) * abs(y) for x, y in zip(floats, precise, strict=True))


def test_one_coordinate_has_the_rules_of_hermite():
    """d = 1: at n = 1 W is the square of a normal variable, at large n sqrt(n/2) (W - 1) becomes one."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(16)
    weights = weights / weights.sum()
    squared = spectral_quadrature(1, 1, 14)
    # Eigenvalues of Hermite's matrix are good to rounding of the largest.
    np.testing.assert_allclose(1 + squared.offsets, nodes[8:] ** 2, rtol=1e-11)
    np.testing.assert_allclose(squared.weights, 2 * weights[8:], rtol=1e-10)
    normal = spectral_quadrature(1, 10**34, 30)
    np.testing.assert_allclose(normal.offsets * (1e34 / 2) ** 0.5, nodes, rtol=1e-12)
    np.testing.assert_allclose(normal.weights, weights, rtol=1e-10)


def test_fewer_examples_than_dimensions_leave_zeros():
    """The other eigenvalues are those of (d/n) W with d and n exchanged."""
    d, n = 6, 2
    offsets, weights = spectral_quadrature(n, d, 12)
    for m in range(1, 13):
        others = float(sum(weights * (d / n * (1 + offsets)) ** m))
        np.testing.assert_allclose(others, float(mean_trace_power(d, n, m)), rtol=1e-13)


def test_infinitely_many_examples_leave_one_eigenvalue():
    offsets, weights = spectral_quadrature(5, math.inf, 30)
    assert offsets.tolist() == [0.0] and weights.tolist() == [5.0]
    assert mean_trace_power(5, math.inf, 7) == 5
    assert mean_central_trace_power(5, math.inf, 0) == 5 and mean_central_trace_power(5, math.inf, 3) == 0


def test_rules_are_kept_and_cannot_be_changed():
    rule = spectral_quadrature(5, 20, 6)
    assert spectral_quadrature(5, 20.0, 6) is rule
    with pytest.raises(ValueError, match="read-only"):
        rule.weights[0] = 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5, 2), "dimension must be a whole number of at least 1, but it is 0"),
        ((2, 0, 2), "context_length must be a whole number of at least 1, or inf, but it is 0"),
        ((2, 2.5, 2), "context_length must be a whole number of at least 1, or inf, but it is 2.5"),
        ((2, math.nan, 2), "context_length must be a whole number of at least 1, or inf, but it is nan"),
        ((2, 5, -1), "must be a whole number of at least 0, but it is -1"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    for function in (mean_trace_power, mean_central_trace_power, spectral_quadrature):
        with pytest.raises(ValueError, match=message):
            function(*arguments)
