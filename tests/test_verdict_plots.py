"""Pictures of verdicts and of matrices show the numbers that they are of."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from synthetic import TIMES, trajectory

import flowsim
from flowsim.claims import Evidence, Judgement
from flowsim.experiments.search.sharpening import Growth
from flowsim.report import plots
from flowsim.report.plots.maps import _outcomes
from flowsim.report.plots.modes import of_matrices
from flowsim.report.plots.search import _growth
from flowsim.report.plots.verdicts import SIDES, of_judged, sides_of


class Point(eqx.Module):
    x: jax.Array


LOSS = flowsim.FunctionLoss(lambda model: jnp.sum(model.x**2) / 2, minimum=0.0)
START = Point(jnp.array([1.0, 0.5]))


@flowsim.claim("mine.fast", "notes")
def fast(flow):
    """$L$ falls faster than it does until it is a hundredth of what it was"""
    return flowsim.at_most(flow.loss, flow.loss[0] * jnp.exp(-2.5 * flow.t) + 0.01)


@flowsim.claim("mine.slow", "notes")
def slow(flow):
    """$L$ falls at least as fast as it does, by a tenth less"""
    return flowsim.at_most(flow.loss, 1.1 * flow.loss[0] * jnp.exp(-2 * flow.t))


@flowsim.claim("mine.entries", "notes")
def entries(start):
    """The entries are at least 0.6"""
    return flowsim.at_least(start.x, 0.6 * jnp.ones(2))


CLAIMS = [fast, slow, entries]


@functools.cache
def judged():
    flow = flowsim.gradient_flow(LOSS, START)
    evidence = Evidence(LOSS, flow, claims=CLAIMS)
    return flow, evidence, flowsim.judge(CLAIMS, LOSS, flow)


def axes() -> Axes:
    return Figure().add_subplot()


def data(line: Line2D) -> tuple[np.ndarray, np.ndarray]:
    x, y = line.get_data()
    return np.asarray(x), np.asarray(y)


def test_sides_are_those_of_the_claim_on_the_flow():
    flow, evidence, _ = judged()
    t = np.asarray(flow.t)
    both = sides_of(fast, evidence)
    np.testing.assert_array_equal(both.t, t)
    np.testing.assert_allclose(both.value, 0.625 * np.exp(-2 * t), rtol=1e-6)
    np.testing.assert_allclose(both.bound, 0.625 * np.exp(-2.5 * t) + 0.01, rtol=1e-12)
    assert both.relation == "at most"
    at_points = sides_of(entries, evidence)
    assert at_points.t is None and at_points.relation == "at least"
    np.testing.assert_array_equal(at_points.value, [1.0, 0.5])
    np.testing.assert_allclose(at_points.slack, [0.4, -0.1])


def test_what_fails_is_drawn_and_what_holds_only_where_it_is_a_user_s_own():
    _, evidence, verdicts = judged()
    assert [str(one.verdict) for one in verdicts] == ["violated", "holds", "violated"]
    papers = of_judged(verdicts, CLAIMS, evidence, own=[])
    assert list(papers) == ["tightness", f"{SIDES}mine.fast-printed", f"{SIDES}mine.entries-printed"]
    assert [*papers, f"{SIDES}mine.slow-printed"] == list(of_judged(verdicts, CLAIMS, evidence, own=CLAIMS))


def test_the_place_of_least_slack_is_marked_and_the_failure_shaded():
    _, evidence, (verdict, *_) = judged()
    both = sides_of(fast, evidence)
    drawn = plots.sides(verdict, both, ax=axes())
    marks = [data(line)[0] for line in drawn.lines if line.get_marker() == "o" and data(line)[0].size == 1]
    assert both.t is not None and len(marks) == 2
    worst = both.t[np.argmin(both.slack / both.bound)]
    assert all(float(mark[0]) == pytest.approx(worst) for mark in marks)
    (shade,) = drawn.collections
    x = np.asarray(shade.get_paths()[0].vertices)[:, 0]
    fails = both.t[both.slack < 0]
    assert (x.min(), x.max()) == pytest.approx((fails[0], fails[-1]))
    assert drawn.get_title(loc="left") == "fast: violated"


def test_points_that_fail_are_marked_one_by_one():
    _, evidence, (*_, verdict) = judged()
    drawn = plots.sides(verdict, sides_of(entries, evidence), ax=axes())
    rings = [line for line in drawn.lines if line.get_markersize() == 10]
    assert [tuple(np.concatenate(data(ring))) for ring in rings] == [(2.0, 0.5), (2.0, 0.6)]


def test_bars_end_at_the_tightness_with_the_violated_first_and_red():
    _, _, verdicts = judged()
    drawn = plots.tightness(verdicts, ax=axes())
    names = [label.get_text() for label in drawn.get_yticklabels()]
    assert names == ["fast", "entries", "slow"] or names == ["entries", "fast", "slow"]
    *violated, holds = (bar for bar in drawn.patches if isinstance(bar, Rectangle))
    assert all(to_rgb(bar.get_facecolor())[0] > 2 * max(to_rgb(bar.get_facecolor())[1:]) for bar in violated)
    tight = next(one.tightness for one in verdicts if one.id == "mine.slow")
    assert holds.get_x() + holds.get_width() == pytest.approx(tight, rel=1e-6) and tight == pytest.approx(1 / 1.1)
    unresolved = [dataclasses.replace(one, verdict=Judgement.UNRESOLVED) for one in verdicts]
    greys = [to_rgb(bar.get_facecolor()) for bar in plots.tightness(unresolved, ax=axes()).patches]
    assert all(max(grey) == min(grey) for grey in greys)


def test_a_loss_of_unknown_minimum_is_drawn_itself_and_above_its_least_value(tmp_path):
    unknown = trajectory(excess=np.full(TIMES.size, np.nan))
    paths = plots.draw_all(tmp_path, unknown)
    assert list(paths) == ["loss", "conservation"]
    np.testing.assert_allclose(data(plots.loss(unknown, ax=axes()).lines[0])[1], 1 + 2 * np.exp(-TIMES))
    above = data(plots.loss(unknown, above_least=True, ax=axes()).lines[0])[1]
    np.testing.assert_allclose(above[:-1], 2 * (np.exp(-TIMES) - np.exp(-10.0))[:-1])
    assert np.isnan(above[-1])


def test_modes_are_the_eigenvalues_of_what_one_layer_learns():
    drawn = plots.modes(trajectory(), ax=axes())
    u = 3 - 2 * np.exp(-TIMES)
    assert drawn.get_ylabel() == "eigenvalues"
    for line in drawn.lines:
        np.testing.assert_allclose(data(line)[1], u**2 / np.sqrt(2), rtol=1e-12)


def test_modes_of_other_models_are_the_singular_values_of_each_matrix():
    stack = np.array([[[[3.0, 0.0], [0.0, -1.0]], [[0.0, 2.0], [5.0, 0.0]]]] * TIMES.size)
    other = dataclasses.replace(trajectory(), models={"A": jnp.asarray(stack), "b": jnp.asarray(TIMES)})
    drawn = plots.modes(other, ax=axes())
    assert [float(data(line)[1][0]) for line in drawn.lines] == [3.0, 1.0, 5.0, 2.0]
    legend = drawn.get_legend()
    assert legend is not None and [text.get_text() for text in legend.get_texts()] == ["A[0]", "A[1]"]


def test_matrices_have_one_scale_of_colours_and_the_limit_where_it_is_known():
    without = plots.matrices(trajectory(), {}, ax=axes())
    drawn = plots.matrices(trajectory(), {"U11": 3 * np.eye(2) / np.sqrt(2), "other": np.eye(5)}, ax=axes())
    assert len(without.images) == 2 and len(drawn.images) == 3
    assert [text.get_text() for text in drawn.texts] == ["start", "end", "limit", "U11"]
    start, end, limit = (np.asarray(image.get_array())[0, 0, :3] for image in drawn.images)
    # U11 = u I/sqrt(2) grows from 1 to 3 - 2 e^-10: end and limit look equal, the start is paler.
    np.testing.assert_allclose(end, limit, atol=0.02)
    assert start[1] > end[1] + 0.3


def test_a_model_without_matrices_has_no_picture_of_them():
    assert of_matrices(flowsim.gradient_flow(LOSS, START, t1=0.1), {}) == {}


@pytest.mark.parametrize(("factor", "scale"), [(1.5, "linear"), (50.0, "log")])
def test_an_axis_of_a_small_range_has_ticks_that_differ(factor, scale, tmp_path):
    with plots.drawing(tmp_path / "a.png") as figure:
        drawn = figure.add_subplot(yscale="log")
        drawn.plot([1, 2], [0.2, 0.2 * factor])
    figure.draw_without_rendering()
    assert drawn.get_yscale() == scale
    low, high = drawn.get_ylim()
    shown = [label.get_text() for label in drawn.get_yticklabels() if low <= label.get_position()[1] <= high]
    assert len(set(shown)) == len(shown) > 1


def test_whole_numbers_are_ticked_as_such():
    growth = Growth("task.dimension", (1.0, 2.0), (1.5, 3.0))
    drawn = axes()
    _growth(drawn, growth)
    assert [label.get_text() for label in drawn.get_xticklabels()] == ["1", "2"]
    assert drawn.get_xticks(minor=True).size == 0


def test_a_panel_of_one_outcome_says_so():
    drawn, other = axes(), axes()
    _outcomes(drawn, np.full((2, 3), "global-minimum"))
    assert [text.get_text() for text in drawn.texts] == ["all 6 cells:\nglobal minimum"]
    _outcomes(other, np.array([["global-minimum", "saddle"]]))
    assert not other.texts
