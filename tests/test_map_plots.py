"""The picture of a map: every cell in its place, its edges between the right ones, nothing by colour alone."""

import itertools
import pathlib

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.figure import Figure

from flowsim.experiments.sweep.axes import GridAxis
from flowsim.experiments.sweep.judged import chosen, dtypes
from flowsim.experiments.sweep.maps import Map
from flowsim.experiments.sweep.records import DTYPES, OUTCOMES
from flowsim.report.plots import maps

SCALES = tuple(np.geomspace(1e-3, 10, 12).tolist())
KINDS = ("balanced", "balanced-indefinite", "random")
KINDS_OF_ARRAYS = DTYPES | dtypes(chosen(None, []))


def table(*axes: GridAxis) -> Map:
    """A map in which the hypotheses of one claim are met for the first seven values of the first axis; outcomes take
    turns.
    """
    shape = tuple(len(axis.values) for axis in axes)
    place = np.indices(shape)[0]
    quantities = {name: np.ones(shape, dtype) for name, dtype in KINDS_OF_ARRAYS.items()}
    quantities["met_pl"] = place < 7
    quantities["outcome"] = np.resize(np.asarray(OUTCOMES), shape)
    quantities["convergence_time"] = 10.0 ** (place - 2)
    quantities["escape_time"] = np.where(place == 0, np.inf, 10.0 ** (place - 3))
    quantities["smallest_margin"] = np.where(place < 7, place - 1.0, np.nan)
    return Map({}, axes, quantities, pathlib.Path())


def panels(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def mesh(axes: Axes) -> np.ma.MaskedArray:
    (found,) = [artist for artist in axes.collections if isinstance(artist, QuadMesh)]
    return np.ma.asarray(found.get_array())


def test_one_axis_gives_lines_and_the_edge_between_its_cells():
    drawn = maps.figure(table(GridAxis("init.scale", SCALES)))
    outcome, times, margins = panels(drawn)
    assert [text.get_text() for text in outcome.get_yticklabels()] == [name.replace("-", " ") for name in OUTCOMES]
    for panel in (outcome, times, margins):
        (edge,) = [line for line in panel.lines if set(np.asarray(line.get_xdata()).tolist()) == {6.5}]
        assert edge.get_linestyle() == "--"
    curves = {str(line.get_label()): np.asarray(line.get_ydata()) for line in times.lines}
    np.testing.assert_allclose(curves[r"excess below $10^{-6}$ of the start's"], 10.0 ** (np.arange(12) - 2))
    assert np.isnan(curves["left the saddle"][0])
    assert margins.get_xlabel() == r"scale of the start  $\sigma$"


def test_two_axes_give_images_with_every_cell_in_its_place():
    found = table(GridAxis("init.scale", SCALES), GridAxis("init.kind", KINDS))
    outcome, times, margins = panels(maps.figure(found))
    np.testing.assert_array_equal(np.asarray(OUTCOMES)[mesh(outcome).astype(int)], found["outcome"].T)
    np.testing.assert_array_equal(mesh(times), found["convergence_time"].T)
    np.testing.assert_array_equal(np.ma.getmaskarray(mesh(margins)), ~(found["smallest_margin"] > 0).T)
    crosses = [line for line in margins.lines if line.get_marker() == "x"]
    assert sorted(np.concatenate([np.asarray(line.get_xdata()) for line in crosses])) == [0.5] * 3 + [1.5] * 3
    for panel in (outcome, times, margins):
        (edge,) = [artist for artist in panel.collections if isinstance(artist, LineCollection)]
        points = np.concatenate([np.asarray(segment) for segment in edge.get_segments()])
        assert set(points[:, 0]) == {7.0}
        assert (points[:, 1].min(), points[:, 1].max()) == (0, 3)


def test_outcomes_differ_by_symbol():
    found = table(GridAxis("init.scale", SCALES), GridAxis("init.kind", KINDS))
    outcome, *_ = panels(maps.figure(found))
    markers = {}
    for line in outcome.lines:
        for x, y in zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True):
            markers.setdefault(str(found["outcome"][int(x), int(y)]), set()).add(line.get_marker())
    assert set(markers) == set(OUTCOMES) - {"global-minimum"}
    assert len({marker for (marker,) in markers.values()}) == len(OUTCOMES) - 1


def test_further_axes_give_rows():
    scale, seed, rank = GridAxis("init.scale", SCALES), GridAxis("init.seed", (1, 2)), GridAxis("init.rank", (1, 2))
    found = table(scale, seed, GridAxis("init.kind", KINDS), rank)
    drawn = panels(maps.figure(found))
    assert len(drawn) == 3 * 6
    titles = [axes.get_title(loc="left") for axes in drawn[::3]]
    assert titles == [
        f"kind of start = {kind}\nrank of the start = {rank}" for kind, rank in itertools.product(KINDS, (1, 2))
    ]
    many = table(scale, seed, GridAxis("init.rank", tuple(range(1, 31))))
    assert len(panels(maps.figure(many))) == 3 * 8


def test_ticks_are_round_and_in_place():
    found = table(GridAxis("init.scale", SCALES), GridAxis("task.context_length", (5, 10, "inf")))
    outcome, *_ = panels(maps.figure(found))
    labels = [text.get_text() for text in outcome.get_xticklabels()]
    assert labels == ["$10^{-3}$", "$10^{-2}$", "$10^{-1}$", "$10^{0}$", "$10^{1}$"]
    np.testing.assert_allclose(outcome.get_xticks(), np.linspace(0.5, 11.5, 5))
    assert [text.get_text() for text in outcome.get_yticklabels()] == ["5", "10", "inf"]


@pytest.mark.parametrize(
    "axis",
    [
        GridAxis("task.covariance.scale", (0.00123, 0.0456, 0.789, 12.3, 456.0, 7890.0, 12345.0, 99999.0)),
        GridAxis("init.kind", ("balanced-indefinite", "scaled-identity", "unbalanced", "random", "zeros", "explicit")),
        GridAxis("task.covariance", ([[1, 0], [0, 2]], [[1.25, 0.5], [0.5, 2.75]])),
        GridAxis("own", tuple(range(100))),
    ],
    ids=lambda axis: axis.field,
)
def test_labels_of_ticks_do_not_collide(axis):
    drawn = maps.figure(table(axis, GridAxis("init.seed", (0, 1))))
    FigureCanvasAgg(drawn).draw()
    for panel in panels(drawn):
        # Slanted words begin where they end, so that only their right ends tell whether they collide.
        boxes = [text.get_window_extent() for text in panel.get_xticklabels()]
        slanted = any(text.get_rotation() for text in panel.get_xticklabels())
        pairs = itertools.pairwise(boxes)
        assert all(right.x1 - left.x1 > 10 if slanted else right.x0 > left.x1 for left, right in pairs)


@pytest.mark.parametrize("shape", [(1,), (12,), (1, 1), (3, 1), (2, 2, 1)])
@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_nothing_to_draw_is_drawn(shape, value, tmp_path):
    names = ("init.scale", "init.seed", "init.rank")
    found = table(*(GridAxis(name, tuple(range(1, n + 1))) for name, n in zip(names, shape, strict=False)))
    for name, dtype in KINDS_OF_ARRAYS.items():
        if dtype.kind == "f":
            found.quantities[name][...] = value
    maps.draw(found, tmp_path / "map.png")
    first = (tmp_path / "map.png").read_bytes()
    maps.draw(found, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes() == first
    assert len(first) > 5_000
