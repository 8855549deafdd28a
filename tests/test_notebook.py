"""What notebooks show, and results as tables and arrays of other packages."""

import inspect
import re
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from synthetic import TIMES, predictions, trajectory
from test_map_plots import KINDS, SCALES, table

import flowsim
from flowsim.claims.hypotheses import Hypothesis
from flowsim.experiments.sweep.axes import GridAxis
from flowsim.flow.trajectory import weights

UNMET = Hypothesis("a < b", 2.0, "<", 1.0, False)
HOLDS = flowsim.Verdict(
    "mine.a", "notes", "printed", "a < b", flowsim.Judgement.HOLDS, 0.5, 2.0, 1e-9, 0.5, (), {}, "of interest"
)
VERDICTS = flowsim.Verdicts(
    [
        HOLDS,
        flowsim.Verdict(
            "mine.b", "notes", "corrected", "c", flowsim.Judgement.VACUOUS, None, None, None, None, (UNMET,), {}, ""
        ),
    ]
)
MAP = table(GridAxis("init.scale", SCALES), GridAxis("init.kind", KINDS))


def cells(html: str) -> list[list[str]]:
    return [re.findall(r"<t[dh]>(.*?)</t[dh]>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]


def test_verdicts_are_shown_as_tables():
    head, first, second = cells(VERDICTS._repr_html_())
    assert dict(zip(head, first, strict=True))["where"] == "t = 2" and second[2:4] == ["vacuous", "-"]
    assert ["statement", "a &lt; b"] in cells(HOLDS._repr_html_()) and "of interest" in HOLDS._repr_html_()
    assert str(VERDICTS).splitlines() == [str(verdict) for verdict in VERDICTS]


def test_flows_and_maps_are_shown_as_tables():
    assert ["excess", "2", "9.08e-05"] in cells(trajectory()._repr_html_())
    assert "50 steps" in trajectory()._repr_html_()
    assert ["init.scale", "0.001 to 10 (12)"] in cells(MAP._repr_html_())


def test_a_table_of_verdicts():
    pytest.importorskip("pandas")
    frame = VERDICTS.to_dataframe()
    assert frame["verdict"].tolist() == ["holds", "vacuous"] and frame["unmet"].tolist() == ["", "a < b"]
    assert frame.loc[0, "margin"] == 0.5 and list(flowsim.Verdicts().to_dataframe().columns) == list(frame.columns)


def test_arrays_of_a_flow_and_of_a_map():
    pytest.importorskip("xarray")
    flow = trajectory().to_xarray()
    np.testing.assert_array_equal(flow["t"], TIMES)
    for name, leaf in weights(trajectory().models).items():
        np.testing.assert_array_equal(flow[name], leaf)
    assert flow["U11"].dims == ("t", "U11_1", "U11_2") and flow.attrs["status"] == "stopped-excess"
    found = MAP.to_xarray()
    chosen = found["convergence_time"].sel({"init.kind": "random", "init.scale": SCALES[3]})
    assert float(chosen) == MAP["convergence_time"][3, KINDS.index("random")]


@pytest.mark.parametrize(
    ("package", "ask"),
    [("pandas", VERDICTS.to_dataframe), ("xarray", lambda: trajectory().to_xarray()), ("xarray", MAP.to_xarray)],
)
def test_a_missing_package_is_named(package, ask, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"{package} must be installed \(pip install 'flowsim\[notebook\]'\)"):
        ask()


def test_a_picture_needs_no_axes():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    before = dict(pyplot.rcParams)
    drawn = flowsim.plots.excess(trajectory(), predictions())
    assert drawn.get_yscale() == "log" and drawn.lines[0].get_color() == "#000000"
    assert dict(pyplot.rcParams) == before
    assert list(inspect.signature(flowsim.plots.excess).parameters) == ["trajectory", "predictions", "time", "ax"]
    pyplot.close(drawn.figure)


def test_predictions_name_what_they_are_of():
    task = flowsim.LinearRegression(np.eye(2), 5)
    with pytest.raises(ValueError, match="start must be a LinearAttention, but it is a LoopedAttention"):
        flowsim.predictions(task, flowsim.LoopedAttention(jnp.eye(2), loops=2))
    with pytest.raises(ValueError, match="task must be a LinearRegression or a RandomCovarianceRegression"):
        flowsim.predictions(3, flowsim.LinearAttention(jnp.eye(2), 1.0))


def test_only_public_names_are_listed():
    assert dir(flowsim) == sorted(vars(flowsim)["__all__"])
    assert {"Trajectory", "plots", "__version__"} <= set(dir(flowsim))
    assert not {"importlib", "TYPE_CHECKING", "VERSION"} & set(dir(flowsim))
