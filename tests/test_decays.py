"""Sums of many decays: compressed, they are the sums."""

import jax.numpy as jnp
import numpy as np
import pytest

from flowsim.moments.decays import MOMENTS, DecaySums


def exact(rates, weights, s):
    """All moments at s, largest terms last, in extended precision."""
    order = np.argsort(weights)
    a, w = rates[order].astype(np.longdouble), weights[order].astype(np.longdouble)
    return np.asarray([np.sum(w * a**k * np.exp(-2 * a * np.longdouble(s))) for k in range(MOMENTS)], dtype=float)


def measures():
    rng = np.random.default_rng(5)
    spread = np.exp2(rng.uniform(-30, 3, 4000))
    yield "spread", spread, rng.random(4000)
    yield "steep weights", spread, spread**3
    yield "slow ones are light", spread, np.where(spread < 1e-3, 1e-20, 1.0)
    yield "one rate", np.full(7, 0.3), rng.random(7)
    yield "edges of the bins", np.exp2(np.arange(-64, 65) / 32), rng.random(129)
    yield "some without weight", spread, np.where(rng.random(4000) < 0.9, 0.0, 1.0)


@pytest.mark.parametrize(("rates", "weights"), [pytest.param(a, w, id=name) for name, a, w in measures()])
def test_compressed_sums_are_the_sums_until_nothing_is_left(rates, weights):
    blocks = zip(np.split(rates, [3]), np.split(weights, [3]), strict=True)
    sums = DecaySums.compressed(blocks, float(rates.min()), float(rates.max()))
    s = np.append(0.0, np.geomspace(1e-3, 1e12, 46))
    found = np.asarray(sums(jnp.asarray(s)))
    for column, clock in enumerate(s):
        expected = exact(rates, weights, clock)
        told = expected > np.exp(-60) * exact(rates, weights, 0.0)
        np.testing.assert_allclose(found[told, column], expected[told], rtol=2e-14, atol=0)
        assert np.all(found[:, column] >= 0) and np.isfinite(found[:, column]).all()


def test_exact_sums_are_the_sums():
    rng = np.random.default_rng(6)
    for d in (5, 70):
        a, w = rng.random((d, d)) + 0.1, rng.random((d, d))
        found = DecaySums.exact(jnp.asarray(a), jnp.asarray(w))(jnp.asarray([0.0, 0.7, 9.0]))
        expected = np.stack([exact(a.ravel(), w.ravel(), s) for s in (0.0, 0.7, 9.0)], axis=1)
        np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_sums_that_decay_differently_have_one_shape():
    rng = np.random.default_rng(7)
    shapes = set()
    for least in (1e-4, 2e-4):
        a = rng.uniform(least, 1.0, 5000)
        shapes.add(DecaySums.compressed([(a, np.ones(5000))], least, 1.0).centres.shape)
    assert len(shapes) == 1
