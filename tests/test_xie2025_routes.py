"""The risk of heads by three routes: its closed form, exact moments in rationals, and prompts through the model."""

import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_close

from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.models import FactoredMultiHeadAttention, GradientDescentStep
from flowsim.papers.xie2025 import exact, prompts
from flowsim.papers.xie2025.appendix_b import block_of
from flowsim.papers.xie2025.setting import descent_heads, drawn_heads
from flowsim.tasks import LinearRegression

D, C = 2, 3
MEAN = [1.0, -2.0]
TASK = LinearRegression(np.eye(D), C, prior_mean=MEAN)


def normals(*shape):
    return 0.5 * np.random.default_rng(shape).standard_normal(shape)


def fraction(value):
    return Fraction(int(value.p), int(value.q))


FACTORS, FACTORS_OF_ONE = normals(4, 2, D + 1, D + 1), normals(4, 1, D + 1, D + 1)
MODELS = {
    "heads with a guess and a bias": drawn_heads(D, 2, 0),
    "trained guess": drawn_heads(D, 1, 1, trainable=True),
    "factored": FactoredMultiHeadAttention(*FACTORS, w=normals(D), bias=0.7),
    "block": block_of(FactoredMultiHeadAttention(*FACTORS_OF_ONE, w=normals(D), trainable=True)),
    "gradient descent": GradientDescentStep(0.4, normals(D)),
}


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_the_rule_has_every_mean_of_degree_five(n):
    points, weights = prompts.normal_rule(n)
    assert len(points) == 2 * n**2 + 1
    moments = [1.0, 0.0, 1.0, 0.0, 3.0, 0.0]
    for powers in itertools.product(range(6), repeat=n):
        if sum(powers) <= 5:
            found = weights @ np.prod(points ** np.asarray(powers), axis=1)
            assert found == pytest.approx(np.prod([moments[power] for power in powers]), abs=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_three_routes_to_the_risk_agree(name):
    model = MODELS[name]
    known = exact.moments(TASK)
    closed = float(HeadRisk(TASK)(model))
    assert float(fraction(known(model))) == pytest.approx(closed, rel=1e-14)
    assert float(known.rounded(model)) == pytest.approx(closed, rel=1e-13)
    assert float(prompts.mean_squared_error(TASK, model)) == pytest.approx(closed, rel=1e-13)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "gradient descent"])
def test_exact_derivatives_are_those_of_the_closed_form(name):
    model = MODELS[name]
    found, expected = exact.gradient(exact.moments(TASK), model), jax.grad(HeadRisk(TASK))(model)
    if not getattr(model, "trainable", True):
        assert not np.any(found.reduced().w) and not float(found.reduced().bias)
    assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 2, 7, np.inf])
def test_the_least_risk_is_the_closed_form_as_a_fraction(d, length):
    mean = [2.0, -1.0, 0.5][:d]
    w, bias = np.asarray([0.25, 1.0, 0.0][:d]), 1.5
    known = exact.moments(LinearRegression(np.eye(d), length, prior_mean=mean))
    inverse = Fraction(0) if np.isinf(length) else Fraction(1, int(length))
    descent = d * (d + 1) * inverse / (1 + (d + 1) * inverse)
    missed = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(mean, w.tolist(), strict=True)) + Fraction(bias) ** 2
    assert fraction(exact.least(known, w, bias)) == descent + missed * 2 * inverse / (d + 2 * inverse)
    assert fraction(exact.least_with_trained_guess(known)) == descent


def test_the_forms_of_least_risk_are_the_stated_ones():
    """N_i = S^-T [(delta_i/(d + 2/C)) I, e_i/(2 (1 + (d+1)/C)); ., 0] S^-1, as fractions."""
    w = np.asarray([0.5, 0.0])
    inverse = np.eye(D + 1)
    inverse[D, :D] = -np.asarray(MEAN)
    for i, found in enumerate(exact.solution(exact.moments(TASK), w)[:-1]):
        form = np.zeros((D + 1, D + 1))
        form[:D, :D] = (MEAN[i] - w[i]) / (D + 2 / C) * np.eye(D)
        form[i, D] = form[D, i] = 0.5 / (1 + (D + 1) / C)
        np.testing.assert_allclose(np.asarray(exact.floats(found)), inverse.T @ form @ inverse, rtol=0, atol=1e-15)


def test_moments_in_the_limit_are_those_of_long_contexts():
    long, limit = exact.moments(TASK, 1e9), exact.moments(TASK, np.inf)
    assert_close(long.rounded.second, limit.rounded.second, rtol=1e-6, atol=1e-7)
    assert np.all(long.mixed == limit.mixed) and np.all(long.first == limit.first)


def test_gradient_descent_is_at_rest_exactly_at_its_best_step():
    """C/(C+d+1) = 1/2 is a number of float64 here."""
    model = descent_heads(jnp.asarray(MEAN), 0.5)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(exact.gradient(exact.moments(TASK), model)))
