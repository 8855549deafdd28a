"""Every row of gatmiry2024 against an error of one percent in what it speaks of: refused, or why it cannot be."""

import functools
import json
from fractions import Fraction

import jax
import jax.numpy as jnp
import pytest
from anew import anew

from flowsim.claims import Evidence, Judgement, judge_on
from flowsim.flow.gradient_flow import start_alone
from flowsim.papers.gatmiry2024 import (
    CLAIMS,
    appendix_a_convergence,
    appendix_a_gradient,
    appendix_a_layers,
    appendix_a_moments,
    appendix_a_pairings,
    lemmas,
    moments,
    out_of_distribution,
    section_3,
    section_4,
    setting,
)
from flowsim.papers.gatmiry2024 import problems as flows
from flowsim.problem import spec_of, unnamed

pytestmark = [pytest.mark.slow, pytest.mark.long]

BY_KEY = {(claim.id.removeprefix("gatmiry2024."), claim.form): claim for claim in CLAIMS}
CORRECTED = {part for part, form in BY_KEY if form == "corrected"}
PERCENT = Fraction(1, 100)
PROMPTS = flows.looped("d = 2, L = 2, n = 6", 2, 6, covariance=[[1.0, 0.3], [0.3, 2.0]])
FARTHEST = flows.looped("d = 2, L = 2, n = 10^38", 2, 10**38, dimension=2)
SMALL = flows.looped("L = 2, d = 2, n = 5", 2, 5, [[1.0, 0.3], [0.3, 2.0]])
SPREAD = flows.looped("d = 2, L = 2, n = 10^24", 2, 10**24, dimension=2)


def scaled(real):
    return lambda *args, **options: 1.01 * real(*args, **options)


def shifted(real):
    return lambda *args, **options: real(*args, **options) + 0.01


def every(real):
    return lambda *args: [value + PERCENT * value for value in real(*args)]


def first(real):
    def planted(*args):
        value, *rest = real(*args)
        return 1.01 * value, *rest

    return planted


def moment(real):
    """alpha + lambda^k / 100."""
    return lambda values, counts, length, power: tuple(
        error + PERCENT * x**power for error, x in zip(real(values, counts, length, power), values, strict=True)
    )


# (id, form) -> problem, module, the name in it of what is off by one percent, and how
PLANTS = {
    ("proposition-3.1", "printed"): (PROMPTS, section_3, "_descent", scaled),
    ("proposition-3.1.step", "corrected"): (PROMPTS, section_3, "_descent", scaled),
    ("proposition-3.1.eq-6", "printed"): (SMALL, section_3, "_attention", scaled),
    ("proposition-3.1.eq-7", "corrected"): (SMALL, section_3, "_attention", scaled),
    ("proposition-3.1.first-step", "corrected"): (SMALL, section_3, "_descent", scaled),
    ("proposition-3.1.eq-8", "printed"): (SMALL, section_3, "_attention", shifted),
    ("proposition-3.1.eq-9", "corrected"): (SMALL, section_3, "_descent", scaled),
    ("sec-3.2.pseudo-inverse", "printed"): (SMALL, jnp.linalg, "solve", scaled),
    ("sec-3.2.hessian", "corrected"): (SMALL, section_3, "_hessian", scaled),
    ("sec-3.2.step-size", "corrected"): (SMALL, section_3, "_contraction", first),
    ("sec-3.5.delta", "corrected"): (lemmas.ASTRONOMICAL, section_3, "delta", scaled),
    ("theorem-3.3.any-start", "corrected"): (flows.INDEFINITE, setting, "deviation", shifted),
    ("sec-3.6.one-step", "printed"): (SMALL, jnp.linalg, "inv", scaled),
    ("lemma-a.10.eq-26", "corrected"): (lemmas.TWICE_EDGE, appendix_a_gradient, "gamma", every),
    ("lemma-a.10.gamma", "corrected"): (lemmas.ASTRONOMICAL, appendix_a_gradient, "gamma", every),
    ("lemma-a.10.factors", "corrected"): (lemmas.ASTRONOMICAL, appendix_a_gradient, "factor", every),
    ("lemma-a.10.hoelder", "corrected"): (SPREAD, setting, "dominance_power", scaled),
    ("theorem-4.5", "corrected"): (FARTHEST, out_of_distribution, "_largest_error", scaled),
    ("theorem-4.5.norms", "corrected"): (FARTHEST, out_of_distribution, "_largest_error", scaled),
    ("theorem-a.13", "corrected"): (FARTHEST, out_of_distribution, "_largest_error", scaled),
    ("theorem-a.13.optimum", "printed"): (FARTHEST, out_of_distribution, "_through_optimum", scaled),
    ("theorem-a.13.eq-31", "printed"): (FARTHEST, out_of_distribution, "_through_optimum", scaled),
    ("theorem-a.12.ode", "corrected"): (PROMPTS, appendix_a_convergence, "_solution", scaled),
    ("sec-5.2", "corrected"): (flows.FEW, setting, "deviation", shifted),
    ("lemma-4.1", "corrected"): (SMALL, appendix_a_layers, "_literal_loss", scaled),
    ("lemma-4.1.gap", "corrected"): (lemmas.LONG, appendix_a_layers, "both_expectations", first),
    ("corollary-a.4.u-term", "corrected"): (SMALL, appendix_a_layers, "_literal_loss", scaled),
    ("theorem-a.1.eq-12", "corrected"): (SMALL, appendix_a_layers, "product_and_sum", first),
    ("theorem-a.1.eq-13", "corrected"): (SMALL, appendix_a_layers, "product_and_sum", first),
    ("lemma-a.3", "corrected"): (SMALL, appendix_a_layers, "_literal_loss", scaled),
    ("lemma-4.2", "corrected"): (lemmas.ASTRONOMICAL, moments, "moment_errors", moment),
    ("lemma-4.3", "corrected"): (lemmas.ASTRONOMICAL, moments, "moment_errors", moment),
    ("lemma-a.2", "printed"): (lemmas.ASTRONOMICAL, moments, "moment_errors", moment),
    ("lemma-a.5", "corrected"): (lemmas.ASTRONOMICAL, moments, "moment_errors", moment),
    ("lemma-a.7", "corrected"): (lemmas.ASTRONOMICAL, moments, "moment_errors", moment),
    ("lemma-a.2.eq-19", "corrected"): (lemmas.TWICE_EDGE, moments, "moment_errors", moment),
    ("lemma-a.2.pairings", "corrected"): (lemmas.TWICE_EDGE, appendix_a_pairings, "_double_factorial", scaled),
    ("lemma-a.2.eq-20", "corrected"): (lemmas.ASTRONOMICAL, moments, "moment_errors", moment),
    ("lemma-a.5.proof", "corrected"): (lemmas.ASTRONOMICAL, moments, "moment_errors", moment),
    ("lemma-a.5.pairings", "printed"): (SMALL, appendix_a_moments, "paired_moments", every),
    ("lemma-a.6", "printed"): (SMALL, appendix_a_moments, "paired_moments", every),
    ("lemma-a.7.eq-21", "corrected"): (lemmas.TWICE_EDGE, moments, "moment_errors", moment),
}

COMPILED = (appendix_a_layers, section_4)  # where what is compiled outlives a comparison

_FACTOR = "the constant is far from sharp: at least 4 L^2 times, as the constants of the row say"
_BOUND = "the bound is larger than what it bounds by orders of magnitude in n"
_COUNT = "whole numbers, which one percent leaves the same; tests/test_gatmiry_lemmas.py plants others"
_READING = "within 10% is a reading of close, and what is compared is not that near to it"
_ORDER = "an order of numbers that differ by more than one percent"

REASONS = {
    ("theorem-3.2.loss", "printed"): _BOUND,
    ("theorem-3.2.minimiser", "printed"): _BOUND,
    ("theorem-a.8", "printed"): _BOUND,
    ("theorem-3.4", "corrected"): _FACTOR,
    ("lemma-a.10", "corrected"): _FACTOR,
    ("theorem-a.11", "corrected"): _FACTOR,
    ("theorem-a.11.eq-28", "corrected"): _FACTOR,
    ("theorem-3.3.time", "corrected"): _FACTOR,
    ("theorem-a.12", "corrected"): _FACTOR,
    ("theorem-a.12.comparison", "corrected"): _FACTOR,
    ("lemma-a.10.eq-27", "corrected"): _FACTOR,
    ("theorem-4.4", "printed"): "c is 4 + 16 d^{1/(2L)}, the sharp one at most about one",
    ("lemma-a.9", "printed"): "4 epsilon is allowed, and epsilon is the distance",
    ("theorem-3.3.neighbourhood", "printed"): "the factor is 8 + 32 d^{1/(2L)}, the sharp one at most about one",
    ("lemma-a.10.noise", "corrected"): "the noise is below its bound by orders of magnitude for small delta",
    ("theorem-a.11.step", "corrected"): "4/(4 delta d^{1/(2L)} + 2) is 1 at the edge of the condition alone",
    ("sec-3.7.non-convex", "corrected"): "that there is such an A: the loss halfway is several times the mean",
    ("sec-3.7.convex-on-symmetric", "corrected"): _ORDER,
    ("theorem-3.3.stability", "corrected"): _ORDER,
    ("sec-5.2.scale", "corrected"): _ORDER,
    ("lemma-a.2.cycle-count", "printed"): _COUNT,
    ("lemma-a.2.pairings.at-least-r", "printed"): _COUNT,
    ("figure-1", "corrected"): _READING,
    ("figure-2.loops", "printed"): _ORDER,
    ("figure-2", "corrected"): _ORDER,
    ("figure-3.in-distribution", "corrected"): _ORDER,
    ("figure-3.out-of-distribution", "corrected"): _ORDER,
    ("figure-4", "corrected"): _ORDER,
    ("figure-4.slower", "corrected"): _ORDER,
    ("figure-4.one-loop.identity", "printed"): "that the limit is not I; a run that ends there is refused elsewhere",
    ("figure-4.one-loop", "corrected"): "its run is off by one percent in a test of its own",
}


@functools.cache
def evidence_of(text: str, flow: bool) -> Evidence:
    tables = json.loads(text)
    problem = spec_of(unnamed(tables)).build()
    return Evidence(problem.loss, problem.run() if flow else start_alone(problem.loss, problem.start))


def test_every_row_that_is_not_refuted_is_planted_or_explained():
    standing = {(part, form) for part, form in BY_KEY if form == "corrected" or part not in CORRECTED}
    assert set(PLANTS) | set(REASONS) == standing
    assert not set(PLANTS) & set(REASONS)


@pytest.mark.parametrize("key", PLANTS, ids="-".join)
def test_one_percent_is_refused(key, monkeypatch):
    problem, module, name, plant = PLANTS[key]
    evidence = evidence_of(json.dumps(problem), BY_KEY[key].along_flow)
    assert judge_on(anew(BY_KEY[key]), evidence).verdict is Judgement.HOLDS
    if module in COMPILED:
        jax.clear_caches()
    monkeypatch.setattr(module, name, plant(getattr(module, name)))
    assert judge_on(anew(BY_KEY[key]), evidence).verdict is Judgement.VIOLATED
    monkeypatch.undo()
    if module in COMPILED:
        jax.clear_caches()
