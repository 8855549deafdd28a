"""The plane of two weights on the page: its paths are flows, its sets are basins, its curve is one that flows keep."""

import json
import pathlib
import re
import shutil
import subprocess

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flowsim import FunctionLoss, explore, gradient_flow
from flowsim.cli import main
from flowsim.experiments.sweep.portrait import basins, flat, kept, portrait_of
from flowsim.problem import Problem, ProblemError, spec_of

CHROMIUM = shutil.which("chromium")
# L = (a b - 1)^2 / 2 keeps a^2 - b^2; the line a = -b flows to the saddle at 0, and c is not looked at.
OWN = """
import equinox as eqx
import jax
import jax.numpy as jnp

import flowsim


class Net(eqx.Module):
    a: jax.Array
    b: jax.Array
    w: jax.Array


def make(a: float = 0.5, b: float = 0.2, target: float = 1.0):
    net = Net(jnp.array(a), jnp.array(b), jnp.zeros((2, 3)))
    loss = lambda net: 0.5 * (net.a * net.b - 1.0) ** 2
    return flowsim.FunctionLoss(loss, minimum=0.0), net


OBSERVABLES = {"gap": lambda net: net.a**2 - net.b**2, "product": lambda net: net.a * net.b}
"""
AXES = {"a": [-2.0, -1.0, 0.5, 1.0], "b": [-1.5, -0.5, 1.0, 2.0]}
SLOW = pytest.mark.slow


class Net(eqx.Module):
    a: jax.Array
    b: jax.Array
    w: jax.Array


def net(a: float, b: float, w: float = 0.0) -> Net:
    return Net(jnp.asarray(a, float), jnp.asarray(b, float), jnp.full((2, 3), w))


def problem(loss, start: Net, file: pathlib.Path) -> Problem:
    return Problem(spec_of({"make": f"{file}:make"}), None, loss, start)


def data_of(page: pathlib.Path) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(text)


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> pathlib.Path:
    file = tmp_path_factory.mktemp("own") / "own.py"
    file.write_text(OWN)
    return file


@pytest.fixture(scope="module")
def page(own) -> pathlib.Path:
    return explore({"make": f"{own}:make"}, AXES, portrait=("a", "b"), out=own.parent / "page.html")


def test_a_plane_has_two_weights_or_observables_by_name(own):
    found = problem(FunctionLoss(lambda net: net.a**2), net(2.0, 3.0, 0.5), own)
    plane = portrait_of(("w[1][2]", "product"), found)
    assert (float(plane.x.of(found.start)), float(plane.y.of(found.start)), plane.size) == (0.5, 6.0, 8)
    assert plane.x.put is not None and plane.y.put is None
    moved = plane.x.put(found.start, jnp.asarray(7.0))
    np.testing.assert_array_equal(flat(moved), [2.0, 3.0, *[0.5] * 5, 7.0])


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("a", 'two different names X,Y, but it is "a"'),
        ("a,a", 'two different names X,Y, but it is "a,a"'),
        ("a,b,w[0][0]", "two different names"),
        ((), "two different names"),
        ("a,product_", r'\(a, b, w, gap, product\), but "product_" is not; did you mean "product"\?'),
        ("a,w", r'single numbers, but "w" is not: w has w\[0\]\[0\] to w\[1\]\[2\]'),
        ("a,w[0][3]", r'but "w\[0\]\[3\]" is not'),
        ("a,w[0,1]", r'"w\[0,1\]" is not'),
        ("a[0],b", "a is a number itself"),
    ],
)
def test_what_is_no_plane_is_refused_in_one_line_before_anything_is_written(own, names, says, tmp_path):
    with pytest.raises(ProblemError, match=says) as error:
        explore({"make": f"{own}:make"}, AXES, portrait=names, out=tmp_path / "page.html")
    assert str(error.value).startswith("--portrait must be ")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@SLOW
def test_each_path_is_a_flow_and_keeps_what_the_flow_keeps(page, own):
    data = data_of(page)
    assert data["portrait"]["names"] == ["a", "b"]
    assert data["portrait"]["moves"] == [True, True]
    assert data["portrait"]["kept"]["c"] == [1, -1, 0, 0, 0]
    assert data["portrait"]["kept"]["name"] == "a² − b²"
    assert data["portrait"]["kept"]["drift"] < 1e-8
    starts = [(a, b) for a in AXES["a"] for b in AXES["b"]]
    for (a0, b0), cell in zip(starts, data["cells"], strict=True):
        a, b = np.asarray(cell["p"])
        assert (a[0], b[0]) == (a0, b0)
        # The numbers of the page have five digits: 5e-5 off, where they are between 1 and 10.
        assert np.all(np.abs(a**2 - b**2 - (a0**2 - b0**2)) <= 1e-4 * (np.abs(a) + np.abs(b)) + 1e-8)
        # Along its branch of a^2 - b^2 = c the loss falls, so that the path goes one way to its end.
        assert np.all(np.diff((a * b - 1) ** 2) <= 1e-4)
    place = starts.index((-2.0, 1.0))
    found = spec_of({"make": f"{own}:make", "a": -2.0, "b": 1.0}).build()
    run = gradient_flow(found.loss, found.start, times=np.linspace(0.002, 6.0, 3000))
    along = np.stack([run.models.a, run.models.b], axis=1)
    for point in np.asarray(data["cells"][place]["p"]).T:
        assert np.min(np.linalg.norm(along - point, axis=1)) < 2e-3


@SLOW
def test_starts_are_told_apart_by_where_they_end(page):
    data = data_of(page)
    sets = data["portrait"]["sets"]
    seen = {}
    for cell in data["cells"]:
        a, b = np.asarray(cell["p"])
        side = int(np.sign(a[0] + b[0]))  # the line a = -b is the border
        seen.setdefault(side, set()).add(cell["k"])
        if side:
            np.testing.assert_allclose(a[-1] * b[-1], 1.0, rtol=1e-3)
            assert np.sign(a[-1]) == side
        else:
            np.testing.assert_allclose([a[-1], b[-1]], 0.0, atol=1e-5)
    (left,), (border,), (right,) = seen[-1], seen[0], seen[1]
    assert len({left, border, right}) == len(sets) == 3
    assert sets[border]["text"] == "end in the saddle at zero weights, a = 0 and b = 0"
    assert sets[right]["text"].startswith("reach the least loss, a from 0.")
    assert sum(one["count"] for one in sets) == len(data["cells"])
    assert {one["rank"] for one in sets} == {0, 1, 2}


@SLOW
def test_a_page_with_a_portrait_is_one_small_file_and_one_without_has_none(page, own, tmp_path):
    text = page.read_text()
    assert page.stat().st_size < 2e6
    assert "http" not in text
    assert not re.search(r'\b(src|href)="(?!data:|#)', text)
    plain = explore({"make": f"{own}:make"}, AXES, out=tmp_path / "plain.html")
    assert data_of(plain)["portrait"] is None
    assert 'id="plane"' in text and 'id="plane"' not in plain.read_text()
    without = [{name: cell[name] for name in cell if name not in "pk"} for cell in data_of(page)["cells"]]
    assert data_of(plain)["cells"] == without


@SLOW
def test_the_command_line_draws_a_problem_file_with_an_axis_that_moves_no_start(tmp_path, capsys):
    file, out = tmp_path / "problem.toml", tmp_path / "page.html"
    file.write_text('[task]\ncovariance = "identity"\ndimension = 1\ncontext_length = 5\n[init]\nkind = "unbalanced"\n')
    grid = ["--over", "init.scale=0.1,0.5,2", "--over", "task.context_length=5,50"]
    words = ["explore", str(file), *grid, "--portrait", "u_minus1,U11[0][0]", "--quiet", "--out", str(out)]
    assert main.main(words) == 0
    data = data_of(out)
    assert data["portrait"]["moves"] == [True, False]
    assert data["portrait"]["kept"]["name"] == "u_minus1² − U11[0][0]²"
    # Each length of the prompts has its own minima.
    assert [one["count"] for one in data["portrait"]["sets"]] == [3, 3]
    assert [cell["k"] for cell in data["cells"]] == [0, 1] * 3
    capsys.readouterr()
    assert main.main([*words[:-2], "--set", "init.scale=1", "--portrait", "u,U11[0][0]", "--out", str(out)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@SLOW
def test_flows_that_do_not_come_to_rest_are_said_to_be_under_way(own, tmp_path):
    tables = {"make": f"{own}:make", "flow": {"t1": 0.1}}
    data = data_of(explore(tables, {"a": [0.5, 1.0]}, portrait=("gap", "product"), out=tmp_path / "page.html"))
    assert [(one["rank"], one["text"]) for one in data["portrait"]["sets"]] == [(-2, "are not at rest where they end")]
    assert data["portrait"]["kept"] is None  # a curve needs two weights
    for a0, cell in zip([0.5, 1.0], data["cells"], strict=True):
        np.testing.assert_allclose(cell["p"][0], a0**2 - 0.04, atol=1e-4)


def ends_of(loss, points, own) -> list[int]:
    found = [problem(FunctionLoss(loss), net(2 * a, 2 * b), own) for a, b in points]
    return basins(found, [flat(net(a, b)) for a, b in points]).tolist()


RING = [(np.cos(t), np.sin(t)) for t in np.linspace(0, 6, 12)]


@pytest.mark.parametrize(
    ("loss", "points", "sets"),
    [
        # A ring of minima is one set, as long as it is sampled all around.
        (lambda m: (m.a**2 + m.b**2 - 1) ** 2, RING, [0] * 12),
        # Two wells: near the ridge between them the slope is zero. So are those of a landscape that is far higher.
        (lambda m: (m.a**2 - 1) ** 2 + m.b**2, [(1, 0), (-1, 0), (1, 1e-9)], [0, 1, 0]),
        (lambda m: 1e-8 * (m.a**2 - 1) ** 2 + (m.a**2 - 1) ** 2 * m.b**4, [(1, 5), (-1, 5), (-1, 4)], [0, 1, 1]),
        # A plateau between two wells climbs little, and does not join them.
        (lambda m: 1 - jnp.exp(-((m.a - 5) ** 2)) - jnp.exp(-((m.a + 5) ** 2)) + m.b**2, [(5, 0), (-5, 0)], [0, 1]),
        # Points of rest at different heights.
        (lambda m: m.a**2 * (m.a - 2) ** 2 + 0.1 * m.a**2 * (3 - m.a), [(0, 0), (1.87, 0)], [0, 1]),
        # Along a valley the loss and its slope are rounding, and ends are near it, as flows stop before they reach it.
        (lambda m: 700 * (jnp.cosh(m.a) ** 2 - jnp.sinh(m.a) ** 2) + m.b**2, [(0, 0), (1, 0), (2, 0)], [0, 0, 0]),
        (lambda m: (m.a**2 + m.b**2 - 1) ** 4, [(1.006, 0), (np.cos(0.012), np.sin(0.012))], [0, 0]),
        (lambda m: 1e3 + 1e-3 * (m.a * m.b - 1) ** 2, [(1, 1), (1.2, 1 / 1.2), (-1, -1)], [0, 0, 1]),
    ],
)
def test_ends_are_one_set_where_a_valley_joins_them(loss, points, sets, own):
    assert ends_of(loss, points, own) == sets


@SLOW
@pytest.mark.parametrize(
    ("loss", "conic"),
    [
        (lambda m: (m.a * m.b - 1) ** 2, (1, -1, 0, 0, 0)),
        (lambda m: jnp.sin(m.a**2 * m.b), (1, -2, 0, 0, 0)),
        (lambda m: jnp.arctan2(m.a, m.b) ** 2, (1, 1, 0, 0, 0)),
        (lambda m: (m.a + 3 * m.b) ** 4, (0, 0, 0, 3, -1)),
        (lambda m: (m.a * m.b - 1) ** 2 + 1e-6 * m.a**2, None),
        (lambda m: (m.a - 1) ** 2 + (m.b - 2) ** 4, None),
        (lambda m: jnp.sum(m.w**2), None),
        # Where all starts are, a^2 - b^2 is kept; w takes part later.
        (lambda m: (m.a * m.b - 1) ** 2 + (m.w[0, 0] - 1) ** 2 * (1 + (m.a * m.w[0, 0]) ** 2), None),
    ],
)
def test_a_conic_is_drawn_only_where_all_flows_keep_it(loss, conic, own):
    starts = [(0.5, 0.9), (-0.7, 1.2), (1.5, 0.3)]
    found = [problem(FunctionLoss(loss), net(a, b), own) for a, b in starts]
    plane = portrait_of(("a", "b"), found[0])
    runs = [gradient_flow(one.loss, one.start, t1=1.0) for one in found]
    seen = kept(plane, found, [np.stack([run.models.a, run.models.b], axis=1) for run in runs])
    if conic is None:
        assert seen is None
    else:
        assert seen is not None
        np.testing.assert_allclose(
            np.asarray(seen.coefficients) / np.max(np.abs(seen.coefficients)) * max(map(abs, conic)), conic, atol=1e-8
        )
        assert seen.drift < 1e-7


@SLOW
@pytest.mark.skipif(CHROMIUM is None, reason="there is no browser")
def test_a_browser_moves_the_start_with_the_sliders_and_the_arrow_keys(page, tmp_path):
    moved = tmp_path / "moved.html"
    script = """<script>
      for (const [id, value] of [["axis0", 0], ["axis1", 1]]) {
        const range = document.getElementById(id); range.value = value; range.dispatchEvent(new Event("input"));
      }
      const get = id => document.getElementById(id), knob = get("start"), say = text => document.body.append(text);
      const press = key => knob.dispatchEvent(new KeyboardEvent("keydown", {key, cancelable: true}));
      say("[at " + knob.getAttribute("aria-valuetext") + "]");
      for (const key of ["ArrowRight", "ArrowUp", "ArrowUp", "ArrowUp"]) press(key);
      say("[now " + knob.getAttribute("aria-valuetext") + "; sliders " + get("axis0").value + get("axis1").value + "]");
      const {right, bottom} = get("portrait").getBoundingClientRect();
      get("portrait").dispatchEvent(new MouseEvent("click", {clientX: right, clientY: bottom}));
      say("[then " + knob.getAttribute("aria-valuetext") + "]");
    </script>"""
    moved.write_text(page.read_text() + script)
    assert CHROMIUM
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'chromium'}", "--dump-dom"]
    shown = subprocess.run([CHROMIUM, *options, f"file://{moved}"], capture_output=True, text=True, timeout=300).stdout
    assert "[at a = −2, b = −0.5: one of 7 that reach the least loss, a from −2 to" in shown
    assert re.search(r"\[now a = −1, b = 2: one of 6 that reach[^]]*; sliders 13\]", shown)
    assert "[then a = 1, b = −1.5: one of 7 that" in shown
    assert len(re.findall('<li[^>]* class="now"', shown)) == 1
    shown = re.sub(r"<script.*?</script>", "", shown, flags=re.DOTALL)
    assert shown.count('class="faint"') == 16
    (curve,) = re.findall(r'<path class="kept" d="([^"]*)"', shown)
    assert curve.count("M") > 100
    assert not re.search("NaN|Infinity|undefined", shown)
