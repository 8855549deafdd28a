"""Every scenario runs as a user would run it, and its verdicts are what its first lines state."""

import importlib
import pathlib
import re

import jax.numpy as jnp
import numpy as np
import pytest

import flowsim
from flowsim import Judgement

pytestmark = pytest.mark.slow

FOLDER = pathlib.Path(__file__).parent.parent / "scenarios"
SCENARIOS = sorted(path.stem for path in FOLDER.glob("*.py"))
BOUND = 0.6729  # sqrt(2 / (sqrt(3) |Gamma|_op)) with |Gamma|_op = 2.55


def run(name: str, out: pathlib.Path):
    return importlib.import_module(f"scenarios.{name}").main(quick=True, out=out)


def test_fixed_covariance(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    verdicts = run("zhang2023_fixed_covariance", tmp_path)
    assert {verdict.verdict for verdict in verdicts} == {Judgement.HOLDS}
    by_id = {verdict.id: verdict for verdict in verdicts}
    constants = by_id["zhang2023.lemma-5.4.pl"].constants
    assert constants["sharp_mu"] / constants["mu"] == pytest.approx(110, rel=0.01)
    printed = capsys.readouterr().out
    assert all(identifier.partition(".")[2] in printed for identifier in by_id)
    assert max(map(len, printed.splitlines()[:-1])) <= 80  # the last line has a path
    assert pathlib.Path(re.findall(r"^report: (.*)$", printed, re.MULTILINE)[0]).stat().st_size > 10_000


def test_scale_condition(tmp_path: pathlib.Path):
    verdicts = run("zhang2023_scale_condition", tmp_path)
    assert min(verdicts) == pytest.approx(1e-6)
    assert max(verdicts) == pytest.approx(1e2)
    for sigma, (theorem, without) in verdicts.items():
        assert theorem.verdict is (Judgement.HOLDS if sigma < BOUND else Judgement.NOT_APPLICABLE)
        assert without.verdict is Judgement.HOLDS
    assert (tmp_path / "zhang2023_scale_condition.png").stat().st_size > 10_000


def test_random_covariance(tmp_path: pathlib.Path):
    verdicts = {(verdict.id, verdict.form): verdict.verdict for verdict in run("zhang2023_random_covariance", tmp_path)}
    assert verdicts == {
        ("zhang2023.lemma-c.8.pl", "printed"): Judgement.HOLDS,
        ("zhang2023.lemma-c.8.limit", "printed"): Judgement.VIOLATED,
        ("zhang2023.lemma-c.8.limit", "corrected"): Judgement.HOLDS,
        ("zhang2023.lemma-c.8.rate", "printed"): Judgement.HOLDS,
    }
    assert (tmp_path / "zhang2023_random_covariance.png").stat().st_size > 10_000


def test_one_third(tmp_path: pathlib.Path):
    found = run("zhang2023_one_third", tmp_path)
    np.testing.assert_allclose(found[1.0][0], (np.array([0.1, 1, 3]) / np.sqrt(2) + 0.5) / 3, rtol=1e-5)
    assert [verdict.verdict for verdict in found[1.0][1]] == [Judgement.VIOLATED, Judgement.HOLDS]
    assert {verdict.verdict for verdict in found[4.0][1]} == {Judgement.NOT_APPLICABLE}
    assert (tmp_path / "zhang2023_one_third.png").stat().st_size > 10_000


def test_figure_1(tmp_path: pathlib.Path):
    for title, (low, high, exact) in run("zhang2023_figure_1", tmp_path).items():
        assert np.all((low < exact) & (exact < high)), title
        assert np.all(high < 4 * low), title
    assert (tmp_path / "zhang2023_figure_1.png").stat().st_size > 10_000


def test_figure_1_transformers(tmp_path: pathlib.Path):
    found = run("zhang2023_figure_1_transformers", tmp_path)
    M, mean, low, high = found["fixed covariance", "fixed", 4]
    assert np.all((low < mean) & (mean < high))
    assert mean[M == 4] < 0.5
    assert mean[M == 6] > 1.3 * mean[M == 4]  # the spike
    assert found["c = 4", "least squares", 1][1][-1] < 1e-20
    assert (tmp_path / "zhang2023_figure_1_transformers.png").stat().st_size > 10_000


def test_softmax_attention(tmp_path: pathlib.Path):
    ends = run("softmax_attention", tmp_path)
    (linear,) = ends["linear"]
    assert linear == pytest.approx(6 / 35, rel=1e-8)
    attentive, averse = ends["softmax, U11 > 0"], ends["softmax, U11 < 0"]
    assert linear < averse[0] - averse[1] < averse[0] + averse[1] < attentive[0] - attentive[1]
    for value, _, low, high in (attentive, averse):
        assert low < value < high  # on fresh prompts
    assert (tmp_path / "softmax_attention.png").stat().st_size > 10_000


def test_softmax_finite_features(tmp_path: pathlib.Path):
    verdicts = run("softmax_finite_features", tmp_path)
    holds, violated = Judgement.HOLDS, Judgement.VIOLATED
    found = {name: [verdict.verdict for verdict in of_law] for name, of_law in verdicts.items()}
    assert found == {
        "equal features": [holds, holds, holds, violated, holds],
        "unequal features": [holds, violated, holds, violated, holds],
    }
    assert (tmp_path / "softmax_finite_features.png").stat().st_size > 10_000


def test_covariate_shift(tmp_path: pathlib.Path):
    risks, verdicts = run("zhang2023_covariate_shift", tmp_path)
    # The limit of covariates doubled: (c^2 - 1)^2 c^2 tr Lambda = 9 tr(4 Lambda) as M, N -> infinity.
    assert 5 < risks["covariates doubled"][-1] < 9
    assert np.min(risks["covariates doubled"]) < 0.5 < risks["covariates halved"][-1] < 1
    assert all(risks[name][-1] < 0.11 for name in ("as in training", "label noise 0.5", "isotropic query"))
    refuted = [(verdict.id, verdict.form) for verdict in verdicts if verdict.verdict is not Judgement.HOLDS]
    assert refuted == [("zhang2023.sec-4.2.orthogonal-query", "printed")]
    assert (tmp_path / "zhang2023_covariate_shift.png").stat().st_size > 10_000


def test_initialization_map(tmp_path: pathlib.Path):
    found, end = run("zhang2023_initialization_map", tmp_path)
    assert set(found["outcome"][:, :, 0].flat) == {"global-minimum"}
    assert set(found["outcome"][:, :, 1].flat) == {"global-minimum", "other-critical-point"}
    assert (end.kind, end.positive, end.negative, end.flat) == ("minimum", 15, 0, 1)
    assert end.excess == pytest.approx(0.483069, rel=1e-5)
    assert (tmp_path / "zhang2023_initialization_map.png").stat().st_size > 10_000


def test_gatmiry2024_figure_1(tmp_path: pathlib.Path):
    for gap, scaled, c in run("gatmiry2024_figure_1", tmp_path).values():
        assert gap == pytest.approx(1 - c, rel=1e-4)
        assert scaled < 1e-5 < 0.2 < gap
    assert (tmp_path / "gatmiry2024_figure_1.png").stat().st_size > 10_000


def test_gatmiry2024_figure_2_4(tmp_path: pathlib.Path):
    found = run("gatmiry2024_figure_2_4", tmp_path)
    # One layer is one loop, with A = n/(n + d + 1) I and the loss d (d + 1)/(n + d + 1).
    assert found[1] == pytest.approx((110 / 31, 110 / 31, 20 / 31), rel=1e-6)
    looped, layers, a = found[2]
    assert 1.2 < looped / layers < 1.3
    assert a < 20 / 31
    assert (tmp_path / "gatmiry2024_figure_2_4.png").stat().st_size > 10_000


def test_gatmiry2024_figure_3(tmp_path: pathlib.Path):
    for (title, _), curves in run("gatmiry2024_figure_3", tmp_path).items():
        assert np.all(np.diff(curves["median"]) < 0)
        if title == "covariance as in training":
            assert curves["mean"][-1] > 2 * np.min(curves["mean"])
    assert (tmp_path / "gatmiry2024_figure_3.png").stat().st_size > 10_000


def test_gatmiry2024_step_size(tmp_path: pathlib.Path):
    (loops, step, bound), deep = run("gatmiry2024_step_size", tmp_path)
    assert loops == 1
    # One layer: L'' = 2 (1 + (d + 1)/n) in every direction, and ten rounds of bisection.
    assert bound == pytest.approx(1 / (1 + 6 / 20), rel=1e-12)
    assert 0.98 * bound < step <= bound
    assert deep[1] < 0.5 * deep[2]
    assert (tmp_path / "gatmiry2024_step_size.png").stat().st_size > 10_000


def test_ahn2023_figure_1(tmp_path: pathlib.Path):
    ((loss, flow, by_lbfgs),) = run("ahn2023_figure_1", tmp_path)
    assert abs(flow.excess[-1]) < 1e-8 * loss.minimum
    assert abs(by_lbfgs) < 1e-8 * loss.minimum
    assert (tmp_path / "ahn2023_figure_1.png").stat().st_size > 10_000


def test_gd_plus_plus(tmp_path: pathlib.Path):
    loss, flows, verdicts = run("ahn2023_gd_plus_plus", tmp_path)
    assert float(loss.minimum) == pytest.approx(0.38412069579805, rel=1e-10)  # two layers
    assert all(flow.loss[-1] > (1 - 1e-12) * loss.minimum for flow in flows)
    found = {verdict.id.removeprefix("ahn2023."): verdict.verdict.value for verdict in verdicts}
    holds = dict.fromkeys(["theorem-5.local-minima", "figure-4", "figure-4.elsewhere"], "holds")
    assert found == {**holds, "figure-3.loss": "violated"}
    assert (tmp_path / "ahn2023_gd_plus_plus.png").stat().st_size > 10_000


def test_xie2025_figure_1(tmp_path: pathlib.Path):
    loss, flows, trained = run("xie2025_figure_1", tmp_path)
    assert all(flow.loss[-1] == pytest.approx(float(loss.minimum), rel=1e-6) for flow in flows)
    assert float(loss.minimum) > 2 * float(loss.risk.descent_risk)
    assert loss.minimum < trained < 3 * loss.minimum
    assert (tmp_path / "xie2025_figure_1.png").stat().st_size > 10_000


def test_xie2025_figures_2_to_4(tmp_path: pathlib.Path):
    panels = run("xie2025_figures_2_to_4", tmp_path)
    for rows in panels.values():
        np.testing.assert_allclose(rows[:, 2], rows[:, 1], rtol=1e-5)
    heads, mean, guess, bias = panels.values()
    assert heads[0, 1] > 1.1 * heads[1, 1]
    for rows in (mean, guess, bias):
        slope = (rows[1, 1] - rows[0, 1]) / (rows[1, 0] - rows[0, 0])
        assert slope == pytest.approx(2 / (2 * 5 + 2), rel=1e-12)
        assert rows[0, 1] == pytest.approx(2 * 3 / 8, rel=1e-12)
    assert (tmp_path / "xie2025_figures_2_to_4.png").stat().st_size > 10_000


def test_xie2025_figure_5(tmp_path: pathlib.Path):
    loss, flow, cosines = run("xie2025_figure_5", tmp_path)
    assert float(flow.loss[-1]) == pytest.approx(float(loss.risk.descent_risk), rel=1e-6)
    np.testing.assert_allclose(cosines[:, 1], cosines[:, 0], atol=0.02)
    assert np.all(cosines[0] < 0.5) and np.all(cosines[-1] > 1 - 1e-6)
    assert (tmp_path / "xie2025_figure_5.png").stat().st_size > 10_000


def test_monte_carlo_error_bars(tmp_path: pathlib.Path):
    widths, band, truth = run("monte_carlo_error_bars", tmp_path)
    for half, error in widths.values():
        # Four times as many samples halve the interval, give or take what 8 replicates tell of it.
        assert 0.2 < half[1] / half[0] < 1.1
        assert np.all(error < 3 * half)
    assert widths["prompts"][0][-1] > 10 * widths["covariances"][0][-1]
    low, high = band["loss"]
    assert np.mean((low <= truth.loss) & (truth.loss <= high)) > 0.8
    assert (tmp_path / "monte_carlo_error_bars.png").stat().st_size > 10_000


def test_sampled_tails(tmp_path: pathlib.Path):
    found, least, reason = run("ahn2023_sampled_tails", tmp_path)
    own, fresh, exact = found.T
    assert own[0] == pytest.approx(fresh[0], rel=0.05)
    assert own[-1] < 2 * least
    assert fresh[-1] > 1000 * own[-1]
    assert exact[-1] > 1000 * own[-1]
    assert reason is not None
    assert "fresh prompts" in reason
    assert (tmp_path / "ahn2023_sampled_tails.png").stat().st_size > 10_000


def test_saddle_to_saddle(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    found = run("saddle_to_saddle", tmp_path)
    gamma = [32 / 31 * value + 7.5 / 31 for value in (4.0, 2.0, 1.0, 0.5)]
    drops = [value**2 / scale / 2 for value, scale in zip((4.0, 2.0, 1.0, 0.5), gamma, strict=True)]
    np.testing.assert_allclose([plateau.level for plateau in found], 3.75 - np.cumsum([0.0, *drops]), atol=1e-10)
    indices = [plateau.index for plateau in found]
    assert indices == sorted(indices, reverse=True) and indices[-2:] == [1, 0]
    assert "0.6602037669930" in capsys.readouterr().out
    assert (tmp_path / "saddle_to_saddle.png").stat().st_size > 10_000


def test_double_descent(tmp_path: pathlib.Path):
    found = run("double_descent", tmp_path)
    scenario = importlib.import_module("scenarios.double_descent")
    prompts = np.array(scenario.PROMPTS)
    for verdicts, _ in found.values():
        assert [verdict.verdict for verdict in verdicts] == [Judgement.HOLDS]
    (_, plain), (_, ridged) = found.values()
    assert prompts[np.argmax(plain)] == 72
    assert plain[prompts == 72] > 10 * plain[prompts == 54]
    assert np.all(np.diff(plain[prompts <= 36]) < 0)
    assert np.all(np.diff(plain[prompts >= 72]) < 0)
    assert np.all(ridged[1:] < 1.02 * ridged[:-1])  # no peak
    task = flowsim.LinearRegression(np.eye(scenario.D), scenario.N, label_noise=scenario.NOISE)
    loss = flowsim.EmpiricalLoss(task, 63, 1)
    flow = flowsim.gradient_flow(loss, jnp.zeros((scenario.D + 1, scenario.D)), stop=scenario.STRICT)
    assert flowsim.check(scenario.claim(1 + 1e-6), loss, flow).verdict is Judgement.VIOLATED
    assert (tmp_path / "double_descent.png").stat().st_size > 10_000


def test_one_pass_sgd(tmp_path: pathlib.Path):
    verdicts, ends = run("one_pass_sgd", tmp_path)
    assert [verdict.verdict for verdict in verdicts] == [Judgement.HOLDS, Judgement.VIOLATED]
    np.testing.assert_allclose(*ends[0.01], rtol=0.1)
    assert ends[0.1][0] > 1e6 and ends[0.1][1] < 10
    assert (tmp_path / "one_pass_sgd.png").stat().st_size > 10_000


def test_linear_transformer_block(tmp_path: pathlib.Path):
    verdicts, least = run("linear_transformer_block", tmp_path)
    for found in verdicts:
        assert [one.verdict for one in found] == [Judgement.HOLDS, Judgement.HOLDS, Judgement.VIOLATED]
    attention, block = least.T
    # Without a mean attention needs no start.
    np.testing.assert_allclose(attention[0], block[0], rtol=1e-12)
    np.testing.assert_allclose(block, block[0], rtol=1e-14)
    assert np.all(np.diff(attention) > 0.05)
    assert (tmp_path / "linear_transformer_block.png").stat().st_size > 10_000


def test_markov_chain(tmp_path: pathlib.Path):
    conserved, learns = zip(*(tuple(verdicts) for verdicts in run("markov_chain", tmp_path)), strict=True)
    assert {one.verdict for one in conserved} == {Judgement.HOLDS}
    assert [one.verdict is Judgement.HOLDS for one in learns] == [True, False, False, True]
    assert {one.verdict for one in learns} == {Judgement.HOLDS, Judgement.VIOLATED}
    assert (tmp_path / "markov_chain.png").stat().st_size > 10_000


def test_large_steps(tmp_path: pathlib.Path):
    verdicts, (holds, violated, closed_form) = run("large_steps", tmp_path)
    inside, falls, learns = zip(*map(tuple, verdicts), strict=True)
    assert {one.verdict for one in inside} == {Judgement.HOLDS}
    assert [one.verdict for one in falls] == [Judgement.HOLDS] + 3 * [Judgement.VIOLATED]
    assert [one.verdict for one in learns] == 2 * [Judgement.HOLDS] + 2 * [Judgement.VIOLATED]
    assert holds <= closed_form <= violated <= holds * (1 + 2e-6)
    assert (tmp_path / "large_steps.png").stat().st_size > 10_000


def test_central_flow(tmp_path: pathlib.Path):
    verdicts = [one.verdict for one in run("central_flow", tmp_path)]
    assert verdicts == [Judgement.HOLDS, Judgement.VIOLATED, Judgement.HOLDS]
    assert (tmp_path / "central_flow.png").stat().st_size > 10_000


def test_implicit_bias(tmp_path: pathlib.Path):
    right, *wrong = run("implicit_bias", tmp_path)
    assert right.verdict == "holds"
    assert abs(right.constants["extrapolated"] - 0.5759) < right.constants["radius"] < 0.01
    assert [verdict.verdict for verdict in wrong] == ["violated", "violated"]
    assert (tmp_path / "implicit_bias.png").stat().st_size > 10_000


def test_zhang2025_figures(tmp_path: pathlib.Path):
    found = run("zhang2025_figures", tmp_path)
    assert len(found) == 3
    for trained, flow in found.values():
        assert trained == pytest.approx(flow, rel=0.1)
    assert (tmp_path / "zhang2025_figures.png").stat().st_size > 10_000


def test_scaling_law(tmp_path: pathlib.Path):
    found = run("scaling_law", tmp_path)
    assert found[np.inf][-1] == pytest.approx(0.2, rel=0.3) and found[100][-1] == pytest.approx(0.8, rel=0.1)
    for slopes in found.values():
        assert np.all(np.diff(slopes) < 0)
    assert (tmp_path / "scaling_law.png").stat().st_size > 10_000


def test_search_for_counterexamples(tmp_path: pathlib.Path):
    (printed, corrected), sharp = run("search_for_counterexamples", tmp_path)
    assert printed.counterexample is not None and printed.counterexample.values["task.dimension"] == 1
    assert printed.counterexample.values["task.context_length"] == 2
    assert corrected.counterexample is None and abs(corrected.least[0]) < 1e-12
    # As N grows the bound is the risk; at N = 1000, the longest in the space, the ratio is some 1 + 4/N.
    assert 1.0 < sharp.factor < 2.0 and sharp.verdict.verdict is Judgement.HOLDS
    assert (tmp_path / "counterexample.png").stat().st_size > 10_000
    assert (tmp_path / "sharpening.png").stat().st_size > 10_000
