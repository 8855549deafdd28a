"""The page with sliders: its numbers are those of other routes, it is one small file, and it promises nothing false."""

import json
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest

import flowsim
from flowsim import explore, gradient_flow, predictions, sweep
from flowsim.cli import main
from flowsim.experiments.sweep import integration
from flowsim.problem import ProblemError, spec_of, toml
from flowsim.report.explore import page as module

pytestmark = pytest.mark.slow

TABLES = {
    "task": {"context_length": 10, "covariance": {"eigenvalues": [0.5, 1.0, 2.0]}},
    "init": {"kind": "balanced", "scale": 0.3},
}
OVER = {"init.scale": [0.05, 0.3], "task.context_length": [5, 20], "init.kind": ["balanced", "unbalanced"]}
# L = (w1 w2 - 1)^2 / 2 + 1, whose minimum is not given.
OWN = """
import equinox as eqx
import jax
import jax.numpy as jnp

import flowsim


class Net(eqx.Module):
    w: jax.Array


def make(scale: float = 0.5):
    start = Net(scale * jnp.asarray([1.0, 2.0]))
    return flowsim.FunctionLoss(lambda net: 0.5 * (jnp.prod(net.w) - 1.0) ** 2 + 1.0), start


grows = flowsim.Claim(
    "own.grows", "here", "L <= L(0)", compare=lambda loss, run: flowsim.at_most(run.loss, run.loss[0])
)
"""
CHROMIUM = shutil.which("chromium")


def data_of(page: pathlib.Path) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(text)


def spec_at(tables: dict, data: dict, cell: int):
    """The problem of a cell, by the overrides that the page names."""
    shape = [len(axis["sets"]) for axis in data["axes"]]
    places = np.unravel_index(cell, shape)
    return spec_of(tables, [axis["sets"][place] for axis, place in zip(data["axes"], places, strict=True)])


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> pathlib.Path:
    return explore(TABLES, OVER, out=tmp_path_factory.mktemp("explore") / "page.html")


@pytest.mark.parametrize("cell", [0, 3, 6])
def test_the_curves_are_those_of_gradient_flow(page, cell):
    data = data_of(page)
    shown, problem = data["cells"][cell], spec_at(TABLES, data, cell).build()
    t = np.asarray(shown["t"])
    run = gradient_flow(problem.loss, problem.start, times=t[1:])
    rows = np.searchsorted(np.asarray(run.t), t)
    # Times of five digits move what decays by thirty e-foldings by 3e-4.
    np.testing.assert_allclose(shown["y"], np.asarray(run.excess)[rows], rtol=2e-3)
    V = np.asarray(run.models.u_minus1)[rows, None, None] * np.asarray(run.models.U11)[rows]
    expected = np.linalg.svd(V, compute_uv=False).T
    np.testing.assert_allclose(np.sort(np.abs(shown["m"]), axis=0)[::-1], expected, rtol=2e-3, atol=1e-6)
    assert data["names"][shown["names"]][0][2:] == [3, 3]
    assert data["view"]["y"][0] < min(shown["y"]) < max(shown["y"]) < data["view"]["y"][1]


def test_the_margins_are_those_of_a_sweep_and_are_called_no_verdict(page, tmp_path):
    data, found = data_of(page), sweep(TABLES, OVER, out=tmp_path / "map")
    assert data["claims"]
    for place, name in enumerate(data["claims"]):
        margins = [np.nan if cell["margins"][place] is None else cell["margins"][place] for cell in data["cells"]]
        np.testing.assert_allclose(margins, found[f"margin_{name}"].ravel(), rtol=1e-3)
        assert [bool(cell["met"][place]) for cell in data["cells"]] == found[f"met_{name}"].ravel().tolist()
    assert not any(name.startswith("curve_") for name in found.quantities)
    assert "an estimate and no verdict" in page.read_text()
    assert not re.search(r"holds|violated|unresolved", json.dumps(data))


def test_an_envelope_is_drawn_only_where_a_paper_promises_it(page):
    data = data_of(page)
    seen = set()
    for place, cell in enumerate(data["cells"]):
        problem, kind = spec_at(TABLES, data, place).build(), data["axes"][2]["texts"][place % 2]
        met = all(condition[-1] for condition in cell["conditions"])
        assert met == all(one.met for one in predictions(problem.task, problem.start).conditions)
        seen.add((kind, bool(cell["rate"])))
        if cell["rate"]:
            expected = predictions(problem.task, problem.start).rate.value
            np.testing.assert_allclose(cell["rate"], expected, rtol=1e-6)
            t, y = np.asarray(cell["t"]), np.asarray(cell["y"])
            assert np.all(y <= 1.001 * y[0] * np.exp(-cell["rate"] * t))
    # The formula of the rate has a positive value for unbalanced starts, of which the theorem does not speak.
    assert ("balanced", True) in seen
    assert ("unbalanced", True) not in seen


def test_the_page_is_one_file_without_a_network(page):
    text = page.read_text()
    assert "http" not in text
    assert not re.search(r'\b(src|href)="(?!data:|#)', text)
    assert [path.name for path in page.parent.iterdir()] == [page.name]
    assert f"flowsim {flowsim.__version__}" in text
    assert toml.write(TABLES).splitlines()[0] in text
    assert text.count('type="range"') == len(OVER)


def test_a_page_with_less_room_has_fewer_rows_of_each_flow(tmp_path, monkeypatch, page):
    size = page.stat().st_size
    monkeypatch.setattr(module, "MOST_BYTES", size - 1)
    less = explore(TABLES, OVER, out=tmp_path / "less.html")
    assert less.stat().st_size < size
    for few, many in zip(data_of(less)["cells"], data_of(page)["cells"], strict=True):
        assert len(few["t"]) <= 48
        assert set(few["t"]) <= set(many["t"])
        assert (few["t"][0], few["t"][-1]) == (many["t"][0], many["t"][-1])
        assert few["margins"] == many["margins"]


@pytest.mark.parametrize(
    ("over", "more", "says"),
    [
        ({"init.scal": [0.1]}, {}, "init.scale"),
        ({}, {}, "at least one axis"),
        ({"init.scale": "geom:1e-3:1:9000"}, {}, r"9000 cells take about [\d.]+ MB: take fewer values"),
        ({"init.scale": [0.1]}, {"claims": "nothing.*"}, "nothing"),
        ({"init.scale": [0.1]}, {"out": "page.txt"}, r"ends with \.html"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_written(over, more, says, tmp_path):
    arguments = {"out": "page.html"} | more
    with pytest.raises(ProblemError, match=says) as error:
        explore(TABLES, over, **(arguments | {"out": tmp_path / arguments["out"]}))
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_problem_of_a_user_without_a_minimum_shows_its_loss_and_claims(tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN)
    make, out = f"{tmp_path / 'own.py'}:make", tmp_path / "page.html"
    # Four flows and more go in lockstep, fewer one by one.
    for scales in [(0.2, 0.5), (0.2, 0.3, 0.5, 0.6, 0.9)]:
        over = "scale=" + ",".join(map(str, scales))
        words = ["explore", make, "--over", over, "--claims", "own.*", "--set", "flow.t1=3.0", "--quiet"]
        assert main.main([*words, "--out", str(out)]) == 0
        assert capsys.readouterr().out == f"page: {out}\n"
        data = data_of(out)
        assert data["claims"] == ["own.grows"]
        for place, cell in enumerate(data["cells"]):
            problem = spec_of({"make": make, "scale": scales[place]}).build()
            run = gradient_flow(problem.loss, problem.start, times=np.asarray(cell["t"][1:]))
            np.testing.assert_allclose(cell["y"], np.asarray(run.loss)[np.searchsorted(run.t, cell["t"])], rtol=1e-3)
            assert (cell["excess"], cell["rate"], cell["met"], cell["margins"]) == (False, 0, [1], [0])
        assert data["view"]["m"] is None
    assert main.main([*words[:3], "depth=1,2", "--out", str(out)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("architecture", "kind", "more"),
    [
        ("looped", "scaled-identity", ["model.loops=2"]),
        pytest.param("multi-head", "random", ["model.heads=2"], marks=pytest.mark.long),
        ("softmax-attention", "random", ["loss.kind=monte-carlo", "loss.samples=128", "loss.replicates=4"]),
        pytest.param("linear-block", "random", [], marks=pytest.mark.long),
    ],
)
def test_other_architectures(architecture, kind, more, tmp_path):
    tables = {
        "task": {"context_length": 3, "covariance": "identity", "dimension": 2},
        "model": {"architecture": architecture},
        "init": {"kind": kind, "scale": 0.2},
        "flow": {"t1": 0.5},
    }
    for override in more:
        toml.override(tables, override)
    data = data_of(explore(tables, {"init.scale": [0.2, 0.3]}, out=tmp_path / "page.html"))
    assert len(data["cells"]) == 2
    for place, cell in enumerate(data["cells"]):
        problem = spec_at(tables, data, place).build()
        run = gradient_flow(problem.loss, problem.start, t1=0.5)
        value = run.excess if cell["excess"] else run.loss
        np.testing.assert_allclose([cell["y"][0], cell["y"][-1]], [value[0], value[-1]], rtol=1e-3)
        assert cell["t"][-1] == 0.5
        assert sum(shown for _, _, shown, _ in data["names"][cell["names"]]) == len(cell["m"]) > 0
        assert np.all(np.isfinite(np.asarray(cell["m"])))


def test_cells_of_different_dimensions_have_their_own_modes(tmp_path):
    task = {"context_length": 5, "covariance": {"condition": 4.0, "dimension": 2, "rotation_seed": 0}}
    tables = {"task": task, "init": {"kind": "balanced", "scale": 0.3}}
    data = data_of(explore(tables, {"task.covariance.dimension": [2, 3, 20]}, out=tmp_path / "page.html"))
    assert [len(cell["m"]) for cell in data["cells"]] == [2, 3, 16]
    assert data["names"][data["cells"][2]["names"]][0][2:] == [16, 20]


def test_what_was_integrated_before_an_interruption_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(integration, "_MOST_LANES", 2)
    run, asked = integration.run, []

    def counted(batches, *rest):
        asked.append([batch.cells for batch in batches])
        if len(asked) == 3:
            raise KeyboardInterrupt
        return run(batches, *rest)

    monkeypatch.setattr(integration, "run", counted)
    over = {"init.scale": [0.1, 0.2, 0.3, 0.4, 0.5]}
    out = tmp_path / "page.html"
    with pytest.raises(KeyboardInterrupt):
        explore(TABLES, over, out=out)
    assert not out.exists()
    (parts,) = tmp_path.iterdir()
    assert len(list(parts.glob("cells/batch-*.npz"))) == 2
    # Another grid is not in the way, and takes nothing from this one.
    explore(TABLES, {"init.scale": [0.7]}, out=out)
    asked.clear()
    explore(TABLES, over, out=out)
    assert len(asked) == 1
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_a_run_writes_the_page_beside_its_report_with_its_claims_and_links_to_it(tmp_path):
    file, out, alone = tmp_path / "problem.toml", tmp_path / "out", tmp_path / "alone.html"
    file.write_text(toml.write(TABLES))
    grid, pattern = "init.scale=0.1,0.3", "zhang2023.lemma-5.4.*"
    assert main.main(["run", str(file), "--out", str(out), "--claims", pattern, "--explore", grid]) == 0
    assert main.main(["explore", str(file), "--out", str(alone), "--claims", pattern, "--over", grid]) == 0
    assert data_of(out / "explore.html") == data_of(alone)
    assert len(data_of(alone)["claims"]) > 1
    assert (out / "report.html").read_text().count('href="explore.html"') == 1
    expected = ["explore.html", "figures", "problem.toml", "report.html", "trajectory.npz", "verdicts.json"]
    assert sorted(path.name for path in out.iterdir()) == expected


@pytest.mark.skipif(CHROMIUM is None, reason="there is no browser")
def test_a_browser_shows_the_chosen_cell(page, tmp_path):
    moved = tmp_path / "moved.html"
    script = """<script>
      const range = document.getElementById("axis2"); range.value = 1; range.dispatchEvent(new Event("input"));
    </script>"""
    moved.write_text(page.read_text() + script)
    assert CHROMIUM
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'chromium'}", "--dump-dom"]
    shown = subprocess.run([CHROMIUM, *options, f"file://{moved}"], capture_output=True, text=True, timeout=300).stdout
    data = data_of(page)
    assert '<output for="axis2">unbalanced</output>' in shown
    assert "init.kind=unbalanced --out DIR" in shown
    assert shown.count(">✗ not met<") == len(data["claims"])
    svg = re.findall(r'<svg id="(loss|modes)".*?</svg>', shown, re.DOTALL)
    assert svg == ["loss", "modes"]
    curves = re.findall(r'<path d="(M[^"]*)" stroke="var\(--k\d\)"', shown)
    assert len(curves) == 1 + 3
    assert all(curve.count("L") > 20 for curve in curves)
    assert "NaN" not in shown
