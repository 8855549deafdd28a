"""gatmiry2024 on minimum, gradient dominance, flow and other prompts: what holds, what fails, and by how much."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from anew import anew
from matplotlib.figure import Figure

from flowsim import LinearRegression, gradient_flow
from flowsim.claims import Claim, Evidence, Judgement, judge_on
from flowsim.claims.statements import dominance_floor, gradient_dominance, sharp_dominance
from flowsim.flow.trajectory import Certificates, Settings, Status, Trajectory
from flowsim.losses import DiagonalLayersLoss, LinearAttentionLoss, LoopedLoss
from flowsim.models import DiagonalLayers, LoopedAttention
from flowsim.papers.gatmiry2024 import (
    CLAIMS,
    appendix_a_convergence,
    flow_ends,
    out_of_distribution,
    problems,
    section_3_7,
    section_4,
    setting,
)
from flowsim.papers.gatmiry2024.setting import looped
from flowsim.problem import spec_of, unnamed
from flowsim.report.plots import dominance
from flowsim.tasks import Prompt, SpectralRegression

pytestmark = pytest.mark.slow

# Lemmas, figures and steps of proofs, which tests/test_gatmiry_lemmas.py and tests/test_gatmiry_proofs.py try.
ELSEWHERE = (
    "corollary-",
    "figure-",
    "lemma-4.",
    "lemma-a.10.",
    "lemma-a.2",
    "lemma-a.3",
    "lemma-a.5",
    "lemma-a.6",
    "lemma-a.7",
    "proposition-3.1.eq-",
    "proposition-3.1.first-step",
    "sec-3.",
    "theorem-a.1.",
    "theorem-a.11.",
)
BY_KEY = {
    (part, claim.form): claim
    for claim in CLAIMS
    if not (part := claim.id.removeprefix("gatmiry2024.")).startswith(ELSEWHERE)
}
HOLDS, VIOLATED = Judgement.HOLDS, Judgement.VIOLATED
AWAY = Judgement.NOT_APPLICABLE
LIMIT = 10**5  # the dimension of the wide flow


def diagonal(loops, n, multiplicities, start, scale=1.0, **how) -> Evidence:
    task = SpectralRegression(scale * np.ones(len(multiplicities)), n, multiplicities=multiplicities)
    loss = DiagonalLayersLoss(task, loops)
    return Evidence(loss, gradient_flow(loss, DiagonalLayers([start], task), **how))


def still(loss, start) -> Evidence:
    """A start alone, for statements that read nothing else."""
    one = jnp.zeros(1)
    models = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, start)
    certificates = Certificates(energy_defect=0.0, balance_drift=None, steps=0, rejected_steps=0)
    run = Trajectory(
        one, models, loss(start)[None], one, one, one, certificates, Settings("implicit", 1e-9, 1e-9), Status.STATIONARY
    )
    return Evidence(loss, run)


def at_minimum(loops, n, multiplicities) -> Evidence:
    task = SpectralRegression(np.ones(len(multiplicities)), n, multiplicities=multiplicities)
    loss = DiagonalLayersLoss(task, loops)
    return still(loss, loss.minimizer)


def matrices(loops, n, eigenvalues) -> Evidence:
    d = len(eigenvalues)
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((d, d)))[0]
    covariance = (basis * np.asarray(eigenvalues)) @ basis.T
    task = LinearRegression((covariance + covariance.T) / 2, n, weights="inverse-covariance")
    return still(LoopedLoss(task, loops), LoopedAttention(np.zeros((d, d)), loops=loops))


def of(problem) -> Evidence:
    built = spec_of(unnamed(problem)).build()
    return Evidence(built.loss, built.run())


CASES = {
    "wide": lambda: diagonal(2, np.inf, [LIMIT], [0.0], rtol=1e-6),
    "crowded": lambda: at_minimum(1, 1e6, [500_000]),
    "long": lambda: diagonal(2, 1e24, [1, 1], [0.0, 2.5], rtol=1e-7),
    "small": lambda: diagonal(2, np.inf, [1, 2], [0.0, 0.0], scale=0.01, rtol=1e-6),
    "few": lambda: diagonal(2, 2, [5], [0.0], rtol=1e-6),
    "prompts": lambda: matrices(2, 6, [0.3, 2.0]),
    "skewed": lambda: matrices(2, 1e18, [0.01, 100.0]),
    "longer": lambda: matrices(2, 1e16, [1.0, 1.0]),
    "one loop": lambda: matrices(1, 1e7, [1.0, 1.0]),
    "two loops": lambda: matrices(2, 1e7, [1.0, 1.0]),
    "indefinite": lambda: of(problems.INDEFINITE),
    "not symmetric": lambda: of(problems.NOT_SYMMETRIC),
}


@functools.cache
def evidence_of(name) -> Evidence:
    return CASES[name]()


VERDICTS = [
    ("theorem-3.4", "printed", "wide", VIOLATED),
    ("theorem-3.4", "corrected", "wide", HOLDS),
    ("theorem-3.4", "printed", "crowded", VIOLATED),
    ("theorem-3.4", "corrected", "crowded", AWAY),
    ("theorem-3.4", "printed", "long", HOLDS),
    ("lemma-a.10", "printed", "wide", VIOLATED),
    ("lemma-a.10", "corrected", "wide", HOLDS),
    ("theorem-a.11", "printed", "wide", VIOLATED),
    ("theorem-a.11", "corrected", "long", HOLDS),
    # Without Sigma* = I, which Theorem 3.4 asks for.
    ("lemma-a.10", "printed", "small", VIOLATED),
    ("lemma-a.10", "corrected", "small", HOLDS),
    ("theorem-a.11", "printed", "small", VIOLATED),
    ("theorem-a.11", "corrected", "small", HOLDS),
    ("theorem-a.12", "printed", "small", VIOLATED),
    ("theorem-a.12", "corrected", "small", HOLDS),
    ("theorem-3.4", "printed", "small", AWAY),
    ("theorem-3.3.time", "printed", "small", AWAY),
    ("theorem-3.3.time", "printed", "wide", VIOLATED),
    ("theorem-3.3.time", "corrected", "wide", HOLDS),
    ("theorem-3.3.time", "printed", "long", HOLDS),
    ("theorem-3.3.time", "printed", "one loop", AWAY),
    ("theorem-3.3.neighbourhood", "printed", "long", HOLDS),
    ("theorem-3.3.neighbourhood", "printed", "wide", HOLDS),
    ("theorem-3.3.any-start", "printed", "long", HOLDS),
    # Until rounding alone moves the flow; where it fails, much later, the weights are not known for certain.
    ("theorem-3.3.any-start", "printed", "not symmetric", HOLDS),
    ("theorem-3.3.any-start", "corrected", "not symmetric", AWAY),
    ("theorem-3.3.any-start", "corrected", "indefinite", HOLDS),
    ("theorem-3.3.stability", "corrected", "two loops", HOLDS),
    ("theorem-3.3.stability", "corrected", "one loop", AWAY),
    ("theorem-4.4", "printed", "long", HOLDS),
    ("lemma-a.9", "printed", "long", HOLDS),
    ("theorem-3.2.loss", "printed", "long", HOLDS),
    ("theorem-3.2.loss", "printed", "few", AWAY),
    ("theorem-3.2.minimiser", "printed", "one loop", HOLDS),
    ("theorem-3.2.minimiser", "printed", "long", HOLDS),
    ("theorem-a.8", "printed", "one loop", HOLDS),
    ("proposition-3.1", "printed", "prompts", HOLDS),
    ("proposition-3.1.step", "printed", "prompts", VIOLATED),
    ("proposition-3.1.step", "corrected", "prompts", HOLDS),
    ("proposition-3.1", "printed", "wide", AWAY),
    ("theorem-4.5", "printed", "longer", VIOLATED),
    ("theorem-4.5", "corrected", "longer", HOLDS),
    ("theorem-4.5.norms", "printed", "skewed", VIOLATED),
    ("theorem-4.5.norms", "printed", "longer", HOLDS),
    ("theorem-4.5.norms", "corrected", "skewed", HOLDS),
    ("theorem-a.13", "printed", "longer", VIOLATED),
    ("theorem-a.13", "corrected", "skewed", HOLDS),
    ("theorem-a.13.optimum", "printed", "longer", HOLDS),
    ("theorem-a.13.eq-31", "printed", "skewed", HOLDS),
    ("theorem-a.12.comparison", "printed", "small", VIOLATED),
    ("theorem-a.12.comparison", "printed", "wide", VIOLATED),
    ("theorem-a.12.comparison", "corrected", "small", HOLDS),
    ("theorem-a.12.comparison", "corrected", "wide", HOLDS),
    ("theorem-a.12.ode", "printed", "prompts", VIOLATED),
    ("theorem-a.12.ode", "corrected", "prompts", HOLDS),
    ("theorem-a.12.ode", "printed", "one loop", AWAY),
    ("sec-5.2", "printed", "few", VIOLATED),
    ("sec-5.2", "corrected", "few", HOLDS),
    ("sec-5.2.scale", "corrected", "few", HOLDS),
    ("sec-5.2.scale", "corrected", "long", HOLDS),
]


@pytest.mark.parametrize(("part", "form", "case", "expected"), VERDICTS, ids=lambda value: str(value))
def test_every_statement_comes_out_as_its_note_says(part, form, case, expected):
    verdict = judge_on(BY_KEY[part, form], evidence_of(case))
    assert verdict.verdict is expected, verdict


def test_every_claim_is_tried_and_every_refuted_one_corrected():
    assert {(part, form) for part, form, *_ in VERDICTS} == set(BY_KEY)
    assert all((part, "corrected") in BY_KEY for part, _, _, expected in VERDICTS if expected is VIOLATED)


def test_along_multiples_of_the_identity_the_constants_of_long_contexts_are_attained():
    """|grad L|^2 = 4 L^2 d^{-(L-1)/L} L^{(2L-1)/L}, and t xi^{(L-1)/L} = (d^{(L-1)/L} - xi^{(L-1)/L}) / (4 L (L-1))."""
    constants = judge_on(BY_KEY["theorem-3.4", "printed"], evidence_of("wide")).constants
    assert constants["sharp_constant"] == pytest.approx(16 / LIMIT**0.5, rel=1e-9)
    assert constants["sharp_constant"] == pytest.approx(constants["limit_constant"], rel=1e-9)
    assert constants["sharp_constant"] < constants["constant"] == 1 / 16
    run = evidence_of("wide").reference
    np.testing.assert_allclose(run.loss, LIMIT / (1 + 8 * run.t) ** 2, rtol=1e-4)
    times = judge_on(BY_KEY["theorem-3.3.time", "printed"], evidence_of("wide")).constants
    assert times["printed"] < 0.99 * times["limit"] < times["seen"] < times["limit"] < times["corrected"]


def test_where_prompts_are_not_much_longer_than_the_dimension_the_minimum_is_above_the_threshold():
    constants = judge_on(BY_KEY["theorem-3.4", "printed"], evidence_of("crowded")).constants
    n, d = 1e6, 5e5
    assert constants["minimum"] == pytest.approx(d * (d + 1) / (n + d + 1), rel=1e-9)
    assert constants["threshold"] == pytest.approx(64 * d / n**0.5) and constants["threshold"] < constants["minimum"]
    assert constants["fails_at_and_below"] == pytest.approx(constants["minimum"], rel=1e-12)


def test_short_contexts_end_nearer_to_zero_than_to_the_identity():
    constants = judge_on(BY_KEY["sec-5.2", "printed"], evidence_of("few")).constants
    assert constants["a"] == pytest.approx(0.218029, rel=1e-5)
    assert constants["distance_from_identity"] == pytest.approx(1 - constants["a"], rel=1e-3)


def test_each_error_in_the_bound_on_other_prompts_fails_by_itself():
    ratios = judge_on(BY_KEY["theorem-a.13", "printed"], evidence_of("skewed")).constants
    assert ratios["error_over_bound_both"] < 1 < ratios["error_over_bound_mean_alone"]
    ratios = judge_on(BY_KEY["theorem-a.13", "printed"], evidence_of("longer")).constants
    assert ratios["error_over_bound_both"] < 1 < ratios["error_over_bound_norms_alone"]


def test_the_largest_error_is_that_of_the_literal_transformer():
    """X X^T/n of the prompt is Sigma*^{1/2} W Sigma*^{1/2}, w and x the extreme ones."""
    loss, n = evidence_of("prompts").loss, 6
    assert isinstance(loss, LoopedLoss)
    W = jnp.asarray([[0.7, 0.2], [0.2, 1.3]])
    S = loss.root @ W @ loss.root
    inputs = np.zeros((n, 2))
    inputs[:2] = np.sqrt(n) * np.linalg.cholesky(np.asarray(S)).T
    left, right = np.asarray(jnp.linalg.inv(loss.root)), np.asarray(loss.root)
    largest = float(out_of_distribution._largest_error(loss, W, jnp.asarray(left), jnp.asarray(right)))
    product = np.linalg.matrix_power(np.eye(2) - np.asarray(S) @ np.asarray(loss.minimizer.A), 2)
    U, _, V = np.linalg.svd(left.T @ product @ right)
    w, x = left @ U[:, 0], right @ V[0]
    prompt = Prompt(jnp.asarray(inputs), jnp.asarray(inputs @ w), jnp.asarray(x))
    assert float((loss.minimizer(prompt) - w @ x) ** 2) == pytest.approx(largest, rel=1e-10)


def test_the_turned_minimum_has_a_lower_loss_on_drawn_prompts():
    """Three loops, n = 100: A_opt (I + K) against A_opt, the mean of |(I - W A)^3|_F^2 on the same draws of W."""
    n, d = 100, 2
    loss = LoopedLoss(LinearRegression(np.eye(d), n, weights="inverse-covariance"), 3)
    z = np.random.default_rng(0).standard_normal((40_000, n, d))
    W = np.swapaxes(z, 1, 2) @ z / n
    matrices = (flow_ends._turned(loss), loss.minimizer.A)
    turned, best = (
        np.sum(np.linalg.matrix_power(np.eye(d) - W @ np.asarray(A), 3) ** 2, axis=(1, 2)) for A in matrices
    )
    gain = best - turned
    assert np.mean(gain) > 5 * np.std(gain) / len(z) ** 0.5
    whole = LoopedLoss(loss.task, 3, symmetric=False)
    exact = -float(whole.excess(LoopedAttention(matrices[0], loops=3)))
    assert abs(np.mean(gain) - exact) < 4 * np.std(gain) / len(z) ** 0.5


def scaled(factor):
    return lambda real: lambda *args: factor * real(*args)


# (claim, form) -> case, module, name in it, and what to put in its place
PLANTS = {
    ("theorem-3.2.loss", "printed"): ("one loop", setting, "minimum_below", lambda real: minus(real)),
    ("theorem-3.2.minimiser", "printed"): ("one loop", setting, "bias_is_zero", lambda real: minus(real)),
    ("theorem-a.8", "printed"): ("one loop", setting, "minimum_below", lambda real: minus(real)),
    ("theorem-3.4", "corrected"): ("wide", setting, "dimension_loss", scaled(257.0)),
    ("lemma-a.10", "corrected"): ("wide", setting, "dominance_factor", scaled(65.0)),
    ("theorem-a.11", "corrected"): ("wide", setting, "dominance_factor", scaled(257.0)),
    ("theorem-3.3.time", "corrected"): ("wide", section_3_7, "_level", scaled(1e-6)),
    ("theorem-3.3.neighbourhood", "printed"): ("long", setting, "deviation", scaled(1e3)),
    ("theorem-4.4", "printed"): ("long", section_4, "proximity_factor", lambda real: lambda loss: 0.5),
    ("lemma-a.9", "printed"): ("long", setting, "everywhere", lambda real: far(real)),
    ("theorem-a.12", "corrected"): ("wide", section_3_7, "_level", scaled(1e-6)),
    ("theorem-a.12.comparison", "corrected"): ("wide", setting, "dominance_factor", scaled(257.0)),
    ("theorem-a.12.ode", "corrected"): ("prompts", appendix_a_convergence, "_solution", scaled(1.001)),
    ("theorem-a.13", "corrected"): ("longer", out_of_distribution, "covariances", lambda real: wider(real)),
    ("theorem-3.3.any-start", "corrected"): ("indefinite", setting, "deviation", lambda real: near(real)),
    ("theorem-3.3.stability", "corrected"): (
        "two loops",
        flow_ends,
        "_turned",
        lambda real: lambda loss: (real(loss) + real(loss).T) / 2 * 1.0001,
    ),
    ("sec-5.2", "corrected"): ("few", setting, "deviation", lambda real: near(real)),
}


def minus(real):
    return lambda *args: eqx.tree_at(lambda c: c.slack, real(*args), replace_fn=lambda slack: -slack)


def near(real):
    return lambda *args: real(*args) + 0.01


def far(real):
    return lambda *args: real(*args)._replace(deviation=1e3 * real(*args).deviation)


def wider(real):
    return lambda d, low, high: real(d, low, high + 1.0)


@pytest.mark.long
@pytest.mark.parametrize("key", PLANTS, ids="-".join)
def test_planted_errors_are_refused(key, monkeypatch):
    case, module, name, plant = PLANTS[key]
    monkeypatch.setattr(module, name, plant(getattr(module, name)))
    assert judge_on(anew(BY_KEY[key]), evidence_of(case)).verdict is VIOLATED


@pytest.mark.parametrize("offset", [1e-15, -1e-15])
def test_dominance_with_the_sharp_constant_is_unresolved(offset):
    def compare(loss, run):
        sharp = sharp_dominance(run.grad_norm_sq, run.loss, 1.5, 1.0)
        return gradient_dominance(run.grad_norm_sq, run.loss, (1 + offset) * sharp, 1.5, 1.0)

    claim = Claim("test.sharp", "test", "the sharp constant of dominance", compare)
    assert judge_on(claim, evidence_of("wide")).verdict is Judgement.UNRESOLVED


def test_dominance_says_where_it_fails():
    loss, squared = jnp.asarray([8.0, 4.0, 2.0, 1.0]), jnp.asarray([64.0, 8.0, 5.0, 0.1])
    assert float(sharp_dominance(squared, loss, 2.0, 2.0)) == 0.5
    assert float(sharp_dominance(squared, loss, 2.0, 9.0)) == np.inf
    assert float(dominance_floor(squared, loss, 0.6, 2.0)) == 4.0
    assert float(dominance_floor(squared, loss, 0.05, 2.0)) == 0.0
    np.testing.assert_array_equal(
        gradient_dominance(squared, loss, 0.6, 2.0, 2.0).slack > 0, [True, False, True, False]
    )


def test_other_losses_are_not_spoken_of():
    assert looped(LinearAttentionLoss(LinearRegression(np.eye(2), 5))) is not None
    assert looped(evidence_of("crowded").loss) is None


def test_the_picture_shows_the_promise_the_sharp_line_and_where_it_fails():
    axes = Figure().add_subplot()
    run = evidence_of("wide").trajectory
    dominance.gradient_dominance(run, constant=1 / 16, power=1.5, threshold=1.0, ax=axes)
    assert axes.legend_ is not None
    labels = [text.get_text() for text in axes.legend_.get_texts()]
    assert labels[0] == "computed" and any("fails" in label for label in labels)
    curve = axes.lines[0]
    np.testing.assert_array_equal(curve.get_xdata(), run.loss)
    promised = next(line for line in axes.lines if line.get_linestyle() == "--")
    np.testing.assert_allclose(np.asarray(promised.get_ydata()), np.asarray(promised.get_xdata()) ** 1.5 / 16)
