"""What is drawn: every line is where its formula says, and nothing that can happen to a flow breaks a picture."""

import dataclasses
import itertools
import pathlib
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.colors
import matplotlib.style
import numpy as np
import pytest
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from synthetic import TIMES, predictions, trajectory

from flowsim.cli import main
from flowsim.flow.risk_curve import RiskCurve
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.paper import Predictions
from flowsim.report import plots

pytestmark = pytest.mark.slow

ABOUT_THE_FLOW = (plots.excess, plots.pl_ratio, plots.conservation)


def axes() -> Axes:
    return Figure().add_subplot()


def labelled(drawn: Axes, start: str) -> Line2D:
    (line,) = [line for line in drawn.lines if str(line.get_label()).startswith(start)]
    return line


def data(line: Artist) -> tuple[np.ndarray, np.ndarray]:
    assert isinstance(line, Line2D)
    x, y = line.get_data()
    return np.asarray(x), np.asarray(y)


def texts(drawn: Axes) -> list[str]:
    return [text.get_text() for text in drawn.texts]


def at(line: Artist, height: float) -> bool:
    return bool(np.all(data(line)[1] == height))


def predicted_curve(name: str, predicted: Predictions, ax: Axes) -> Axes:
    return plots.curve(trajectory(), predicted.curves[name], predicted.limit, ax=ax)


def test_every_function_returns_the_axes_it_was_given():
    for draw in ABOUT_THE_FLOW:
        place = axes()
        assert draw(trajectory(), ax=place) is place
    place = axes()
    assert plots.scale_condition(predictions(), ax=place) is place
    assert predicted_curve("distance", predictions(), place) is place


def test_excess_and_its_envelope_follow_their_formulas():
    drawn = plots.excess(trajectory(), predictions(mu=0.25), ax=axes())
    np.testing.assert_allclose(data(labelled(drawn, "computed"))[1], 2 * np.exp(-TIMES))
    envelope = labelled(drawn, r"$e^{-\mu t}$")
    x, y = data(envelope)
    np.testing.assert_allclose(y, 2 * np.exp(-0.25 * x))
    assert "0.25" in str(envelope.get_label())
    assert drawn.get_yscale() == "log"


def test_the_local_rate_passes_through_the_last_point():
    drawn = plots.excess(trajectory(), predictions(), ax=axes())
    x, y = data(labelled(drawn, "rate at the limit"))
    assert (x[-1], y[-1]) == pytest.approx((10.0, 2 * np.exp(-10.0)))
    np.testing.assert_allclose(np.diff(np.log(y)), -np.diff(x))


@pytest.mark.parametrize("mu", [-0.5, 0.0, float("nan")])
def test_no_promise_no_line(mu: float):
    drawn = plots.excess(trajectory(), predictions(mu=mu), ax=axes())
    assert [str(line.get_label()).split()[0] for line in drawn.lines] == ["computed", "rate"]
    assert len(plots.pl_ratio(trajectory(), predictions(mu=mu), ax=axes()).lines) == 2
    assert not any("lower bound" in text for text in texts(predicted_curve("value-weight", predictions(mu=mu), axes())))


def test_the_smallest_ratio_is_marked_where_it_is():
    drawn = plots.pl_ratio(trajectory(), predictions(mu=0.25), ax=axes())
    ratio, smallest, promised = drawn.lines
    np.testing.assert_allclose(data(ratio)[1], 1 + TIMES)
    assert data(smallest) == (0.0, 1.0)
    assert at(promised, 0.25)
    assert any("smallest: 1" in text for text in texts(drawn))


def test_value_weight_lies_between_its_bound_and_its_limit():
    u, bound, limit = predicted_curve("value-weight", predictions(), axes()).lines
    np.testing.assert_allclose(data(u)[1], 3 - 2 * np.exp(-TIMES))
    assert at(bound, 0.5)
    assert at(limit, 3.0)
    assert len({line.get_linestyle() for line in (u, bound, limit)}) == 3


def test_distance_is_relative():
    (line,) = predicted_curve("distance", predictions(), axes()).lines
    u = 3 - 2 * np.exp(-TIMES)
    np.testing.assert_allclose(data(line)[1], np.abs(u**2 - 9) / 9, rtol=1e-10)


def test_conservation_draws_the_relative_defects_beside_the_tolerance():
    drawn = plots.conservation(trajectory(), ax=axes())
    energy = data(labelled(drawn, "energy defect"))[1]
    dissipated = 2 * (1 - np.exp(-TIMES))
    assert np.isnan(energy[0])
    np.testing.assert_allclose(energy[1:], 1e-6 * dissipated[1:] / dissipated[-1], rtol=1e-5)
    assert any(at(line, 1e-9) for line in drawn.lines)


def test_balance_counts_every_weight():
    flow = eqx.tree_at(lambda flow: flow.models.u12, trajectory(), jnp.asarray(1e-3 * TIMES[:, None] * np.ones(2)))
    drift = data(labelled(plots.conservation(flow, ax=axes()), "balance drift"))[1]
    # u_{-1}^2 = |U11|^2 throughout, so that u12 alone drifts.
    size = np.max(2 * (3 - 2 * np.exp(-TIMES)) ** 2 + 2e-6 * TIMES**2)
    np.testing.assert_allclose(drift[1:], 2e-6 * TIMES[1:] ** 2 / size, rtol=1e-6)


def test_another_model_has_no_balance():
    other = dataclasses.replace(trajectory(), models={"a": jnp.asarray(TIMES)})
    assert len(plots.conservation(other, ax=axes()).lines) == 2


def test_conservation_without_a_known_minimum_takes_the_loss():
    unknown = trajectory(excess=np.full(TIMES.size, np.nan), balance_drift=None)
    energy = data(labelled(plots.conservation(unknown, ax=axes()), "energy defect"))[1]
    assert energy[-1] == pytest.approx(1e-6, rel=1e-5)


def test_scale_condition_marks_the_start_on_the_promise():
    drawn = plots.scale_condition(predictions(mu=0.25, scale_bound=4.0), ax=axes())
    bound, promise, start = drawn.lines
    assert list(data(bound)[0]) == [4.0, 4.0]
    assert data(start) == (1.0, 0.25)
    sigma, mu = data(promise)
    assert np.exp(np.interp(0.0, np.log(sigma), np.log(mu))) == pytest.approx(0.25, rel=1e-3)
    assert sigma[np.argmax(mu)] == pytest.approx(4.0 / np.sqrt(2), rel=0.02)
    shaded = drawn.patches[0].get_extents().transformed(drawn.transData.inverted())
    assert shaded.x1 == pytest.approx(4.0)
    assert drawn.get_xscale() == drawn.get_yscale() == "log"


@pytest.mark.parametrize("bound", [0.5, 1.0, 1e-3])
def test_a_start_beyond_the_bound_stands_on_the_axis(bound: float):
    drawn = plots.scale_condition(predictions(mu=0.25 * (bound - 1), scale_bound=bound), ax=axes())
    start = drawn.lines[-1]
    assert data(start)[0] == 1.0
    assert start.get_transform() == drawn.get_xaxis_transform()
    assert any("no promise" in text for text in texts(drawn))


def curve(*, limit: float = 0.5, best_linear_error: float = 0.1, test_length: float = 20.0) -> RiskCurve:
    return RiskCurve(TIMES, limit + np.exp(-TIMES), limit, best_linear_error, 2.0, test_length)


def test_the_risk_on_new_prompts_stands_above_its_limit():
    drawn = plots.test_risk(curve(), ax=axes())
    computed, limit, best = drawn.lines
    np.testing.assert_array_equal(data(computed)[1], 0.5 + np.exp(-TIMES))
    assert at(limit, 0.5) and at(best, 0.1)
    assert texts(drawn) == ["limit: 0.5", "best linear predictor: 0.1"]
    assert drawn.get_ylabel() == "risk on prompts with $M = 20$"
    assert drawn.get_xlabel() == r"flow time  $t$"


def test_a_risk_that_tends_to_zero_has_no_levels():
    drawn = plots.test_risk(curve(limit=0.0, best_linear_error=0.0, test_length=np.inf), ax=axes())
    assert len(drawn.lines) == 1
    assert drawn.get_ylabel() == r"risk on prompts with $M = \infty$"


def test_time_zero_has_a_place_on_the_logarithmic_axis():
    drawn = plots.excess(trajectory(), ax=axes())
    places = drawn.transData.transform([(t, 1.0) for t in TIMES])[:, 0]
    assert np.all(np.isfinite(places))
    assert np.all(np.diff(places) > 0)
    assert drawn.get_xlim() == (0.0, 10.0)


def at_zero(flow: Trajectory) -> Trajectory:
    return eqx.tree_at(lambda flow: flow.models, flow, jax.tree.map(jnp.zeros_like, flow.models))


def degenerate() -> dict[str, Trajectory]:
    nan = np.full(TIMES.size, np.nan)
    return {
        "the minimum is unknown": trajectory(excess=nan, balance_drift=None),
        "the start is the minimum": trajectory(excess=np.zeros(TIMES.size)),
        "the excess falls to zero": trajectory(excess=np.where(TIMES < 1, 2 * np.exp(-TIMES), 0.0)),
        "the field became NaN": trajectory(excess=np.where(TIMES < 1, 2 * np.exp(-TIMES), np.nan)),
        "one output time": trajectory(TIMES[:1]),
        "two output times": trajectory(TIMES[:2]),
        "the start is the saddle": at_zero(trajectory(TIMES[:1])),
    }


@pytest.mark.parametrize("name", degenerate())
def test_nothing_that_happens_to_a_flow_breaks_a_picture(name: str, tmp_path: pathlib.Path):
    for path in plots.draw_all(tmp_path, degenerate()[name], predictions(mu=0.0)).values():
        assert path.stat().st_size > 1000


def test_draw_all_names_what_a_problem_has(tmp_path: pathlib.Path):
    figures = plots.draw_all(tmp_path, trajectory(), predictions())
    assert list(figures) == ["excess", "pl-ratio", "value-weight", "distance", "scale-condition", "conservation"]
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.png" for name in figures}
    assert list(plots.draw_all(tmp_path, trajectory())) == ["excess", "conservation"]
    assert list(plots.draw_all(tmp_path, trajectory(), tested=curve())) == ["excess", "test_risk", "conservation"]


def test_vector_formats(tmp_path: pathlib.Path):
    svg = plots.draw_all(tmp_path, trajectory(), format="svg")
    assert svg["excess"].read_text().lstrip().startswith("<?xml")
    for_papers = plots.draw_all(tmp_path, trajectory(), format="pdf")
    assert for_papers["excess"].suffix == ".png"
    assert for_papers["excess"].with_suffix(".pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_same_flow_gives_the_same_bytes(kind: str, tmp_path: pathlib.Path):
    once, again = tmp_path / "once", tmp_path / "again"
    for folder in (once, again):
        folder.mkdir()
        plots.draw_all(folder, trajectory(), format=kind)
    for path in once.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes()


def test_a_figure_that_cannot_be_drawn_leaves_the_earlier_one(tmp_path: pathlib.Path):
    path = tmp_path / "figure.png"
    path.write_bytes(b"earlier")
    figure = Figure()
    figure.add_subplot().set_title("$no such formula \\notacommand$")
    with pytest.raises(ValueError):
        plots.save(figure, path)
    assert path.read_bytes() == b"earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_the_style_of_the_caller_is_left_alone(tmp_path: pathlib.Path):
    before = dict(matplotlib.rcParams)
    plots.draw_all(tmp_path, trajectory(), predictions())
    assert dict(matplotlib.rcParams) == before


def test_pyplot_is_never_imported():
    code = "import sys, flowsim.report.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_roles_differ_in_grey_and_in_line_style():
    with matplotlib.style.context(["default", str(plots.STYLE)]):
        cycle = list(matplotlib.rcParams["axes.prop_cycle"])
    greys = [float(np.dot(matplotlib.colors.to_rgb(role["color"]), (0.299, 0.587, 0.114))) for role in cycle[:3]]
    assert all(lighter - darker > 0.15 for darker, lighter in itertools.pairwise(sorted(greys)))
    assert len({str(role["linestyle"]) for role in cycle}) == len(cycle) == 6


def test_pgf_is_refused_at_once_where_there_is_no_latex(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert main.main(["run", "no-such.toml", "--out", str(tmp_path / "out"), "--format", "pgf"]) == 2
    assert "--format must be png, svg or pdf where there is no pdflatex" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
