"""zhang2023's one third: the mean over covariances given the query, and what the paper and its figure say of it."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import flowsim
import flowsim.tasks
from flowsim.claims import Evidence, Judgement, judge_on
from flowsim.initialization import scaled_identity
from flowsim.losses import RandomCovarianceLoss
from flowsim.losses.arrowhead import balanced_minimum
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import CLAIMS, section_4_3
from flowsim.tasks import RandomCovarianceRegression
from flowsim.tasks.covariance_laws import DiagonalLaw, Gamma, Moments

pytestmark = pytest.mark.slow

BY_FORM = {claim.form: claim for claim in CLAIMS if claim.id == "zhang2023.sec-4.3.one-third"}
QUERY = jnp.asarray([0.1, -1.0, 3.0])


def exponential_loss(length: float = np.inf) -> RandomCovarianceLoss:
    return RandomCovarianceLoss(RandomCovarianceRegression(DiagonalLaw(Gamma(1.0, np.ones(2))), length))


def evidence(loss: RandomCovarianceLoss, **flow) -> Evidence:
    return Evidence(loss, flowsim.gradient_flow(loss, scaled_identity(0.1, 2), points_per_decade=4, **flow))


@functools.cache
def trained() -> Evidence:
    return evidence(exponential_loss())


@pytest.mark.parametrize("shape", [0.3, 1.0, 4.0])
def test_the_variance_given_a_query_is_a_ratio_of_bessel_functions(shape):
    rate = np.array([0.5, 1.0, 7.0])
    found = section_4_3.variances_given(DiagonalLaw(Gamma(np.full(3, shape), rate)), QUERY)
    x, z = np.abs(QUERY), np.sqrt(2 * rate) * np.abs(QUERY)
    bessel = scipy.special.kv(shape + 0.5, z) / scipy.special.kv(shape - 0.5, z)
    np.testing.assert_allclose(found, x / np.sqrt(2 * rate) * bessel, rtol=1e-12)


def test_the_mean_prediction_is_that_of_drawn_prompts_of_any_length():
    law, rng = DiagonalLaw(Gamma(1.0, np.ones(3))), np.random.default_rng(0)
    model, weight = LinearAttention(rng.standard_normal((3, 3)), 0.7), jnp.asarray(rng.standard_normal(3))
    expected = section_4_3.mean_prediction(model, law, QUERY, weight)
    variances = section_4_3.variances_given(law, QUERY)

    def drawn(key):
        inputs = jnp.sqrt(variances)[None, :] * jax.random.normal(key, (5, 3))
        return model(flowsim.tasks.Prompt(inputs, inputs @ weight, QUERY))

    values = jax.jit(jax.vmap(drawn))(jax.random.split(jax.random.key(0), 40_000))
    assert abs(np.mean(values) - expected) < 4 * np.std(values) / 200


@pytest.mark.parametrize(("form", "judgement"), [("printed", Judgement.VIOLATED), ("corrected", Judgement.HOLDS)])
def test_the_third_is_for_a_foreign_query(form, judgement):
    verdict = judge_on(BY_FORM[form], trained())
    assert verdict.verdict is judgement, verdict
    found = [verdict.constants[f"factor_at_{size}"] for size in ("0.1", "1", "3")]
    np.testing.assert_allclose(found, (np.array([0.1, 1, 3]) / np.sqrt(2) + 0.5) / 3, rtol=1e-5)
    assert verdict.constants["factor_of_a_foreign_query"] == pytest.approx(1 / 3, rel=1e-5)


def test_it_agrees_with_the_line_of_figure_1():
    """The line has -2c E[yhat y]/E y^2 = -4c/3: x is Laplace of scale 1/sqrt 2, E x^2 = 1 and E|x|^3 = 3/sqrt 2."""
    constants = judge_on(BY_FORM["corrected"], trained()).constants
    assert constants["factor_over_queries"] == pytest.approx((1.5 + 0.5) / 3, rel=1e-5)


def test_hypotheses_are_on_the_law_and_the_length():
    finite = judge_on(BY_FORM["printed"], evidence(exponential_loss(10.0)))
    assert finite.verdict is Judgement.NOT_APPLICABLE
    moments = RandomCovarianceLoss(RandomCovarianceRegression(DiagonalLaw(Moments([1.0] * 2, 2.0, 6.0)), np.inf))
    assert judge_on(BY_FORM["corrected"], evidence(moments)).verdict is Judgement.UNRESOLVED


@pytest.mark.parametrize("t1", [0.1, 30.0])
def test_before_its_limit_a_flow_is_no_evidence_against_it(t1):
    short = evidence(exponential_loss(), t1=t1)
    assert judge_on(BY_FORM["corrected"], short).verdict is not Judgement.VIOLATED
    assert judge_on(BY_FORM["printed"], short).verdict is not Judgement.HOLDS


def off(real):
    return lambda *args: 1.01 * real(*args)


@pytest.mark.parametrize("name", ["variances_given", "mean_prediction"])
def test_one_percent_is_refused(name, monkeypatch):
    monkeypatch.setattr(section_4_3, name, off(getattr(section_4_3, name)))
    claim = dataclasses.replace(
        BY_FORM["corrected"],
        compare=lambda loss, run: section_4_3.by_the_query.compare(loss, run),
        constants=lambda *_: {},
    )
    assert judge_on(claim, trained()).verdict is Judgement.VIOLATED


@pytest.mark.parametrize("part", ["curvature", "drive"])
def test_one_percent_of_the_loss_is_refused(part):
    loss = exponential_loss()
    wrong = eqx.tree_at(lambda l: getattr(l.structure, part), loss, 1.01 * getattr(loss.structure, part))
    assert balanced_minimum(wrong.structure).u_minus1 != balanced_minimum(loss.structure).u_minus1
    assert judge_on(BY_FORM["corrected"], evidence(wrong)).verdict is Judgement.VIOLATED
