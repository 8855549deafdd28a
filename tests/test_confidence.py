"""Intervals and tails: Student's law by its integral, Bonferroni's by simulation, the Pareto shape by arviz-stats."""

import numpy as np
import pytest
from arviz_stats.base.array import array_stats
from jax.scipy.special import betainc

from flowsim.losses.sampled.confidence import bonferroni_quantile, half_width, student_quantile, tail


@pytest.mark.parametrize("count", [2, 3, 8, 64])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.99, 1 - 1e-6])
def test_student_s_quantile_has_its_probability(count, level):
    t, freedom = student_quantile(level, count), count - 1.0
    outside = float(betainc(freedom / 2, 0.5, freedom / (freedom + t * t)))
    assert outside == pytest.approx(1 - level, rel=1e-9)


def test_student_s_quantile_is_that_of_the_tables():
    assert student_quantile(0.95, 2) == pytest.approx(12.7062, abs=1e-4)
    assert student_quantile(0.95, 11) == pytest.approx(2.2281, abs=1e-4)


def test_all_intervals_hold_together_with_the_stated_confidence():
    """20 means of 8 normal draws each, many times: all are within their intervals in at least 90% of them."""
    draws = np.random.default_rng(0).standard_normal((8, 4000, 20))
    means, spread = np.mean(draws, axis=0), np.std(draws, axis=0, ddof=1) / np.sqrt(8)
    together = np.mean(np.all(np.abs(means) <= bonferroni_quantile(0.9, 20, 8) * spread, axis=1))
    assert 0.9 <= together <= 0.92
    alone = np.mean(np.abs(means) <= half_width(draws, 0.9))
    assert alone == pytest.approx(0.9, abs=0.01)
    assert bonferroni_quantile(0.9, 0, 8) == student_quantile(0.9, 8)


@pytest.mark.parametrize("shape", [-0.3, 0.0, 0.4, 1.2])
@pytest.mark.parametrize("size", [100, 1000, 20_000])
def test_the_shape_of_a_tail_is_that_of_arviz(shape, size):
    """Draws of a generalised Pareto law; arviz-stats adds a prior, ten draws of shape 1/2, which is taken off."""
    uniform = np.random.default_rng(size).uniform(size=size)
    values = -np.log(uniform) if shape == 0 else (uniform**-shape - 1) / shape
    count = min(size // 5, int(3 * np.sqrt(size)))
    theirs = float(np.asarray(array_stats.pareto_khat(values[None], r_eff=1.0, tail="right")))
    ours = tail(values).shape
    assert (count * ours + 10 * 0.5) / (count + 10) == pytest.approx(theirs, rel=1e-9)
    if size == 20_000:
        assert ours == pytest.approx(shape, abs=0.25)
