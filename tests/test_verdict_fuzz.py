"""What the families of random problems say is true is so, by SciPy's integrators and asymptotics; nothing is judged."""

import dataclasses
import decimal
import functools
from fractions import Fraction
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from jax.flatten_util import ravel_pytree

import flowsim
from benchmarks import verdict_fuzz
from benchmarks.verdict_families import FAMILIES, OTHERS, SHARES, base
from benchmarks.verdict_families.descents import Exact
from benchmarks.verdict_families.limits import solved
from benchmarks.verdict_families.resting import LOST, passage
from benchmarks.verdict_families.saddles import Saddle
from benchmarks.verdict_families.theorems import beyond, theorems, true_theorems
from flowsim.claims import Evidence, judge_on

# What cancels in double precision, or rests in it, has tests of its own.
_ON_A_GRID = sorted(set(FAMILIES) - {"cancelling-claim", "rounding-rest", "one-layer", "walls"})
_PROBLEMS = 2
_LENGTH = 512  # of all lists of times


@dataclasses.dataclass(frozen=True)
class Path:
    """What a statement reads of a flow, at times at which it is known by other means."""

    t: Any
    models: Any
    loss: Any
    excess: Any
    grad_norm_sq: Any
    velocity: Any = None
    at: Any = None  # time -> model
    way_to_go: float = 0.0

    @property
    def start(self) -> Any:
        return jax.tree.map(lambda leaf: leaf[0], self.models)

    @property
    def end(self) -> Any:
        return jax.tree.map(lambda leaf: leaf[-1], self.models)


@functools.lru_cache(maxsize=1)
def _programs():
    """The gradient, and the records at many models, each compiled once a kind of loss."""
    gradient = eqx.filter_jit(lambda loss, model: ravel_pytree(loss.gradient(model))[0])

    @eqx.filter_jit
    def records(loss, models):
        arrays, rest = eqx.partition(models, eqx.is_array)

        def one(arrays):
            model = eqx.combine(arrays, rest)
            velocity = jax.tree.map(lambda leaf: -leaf, loss.gradient(model))
            squares = [jnp.sum(leaf**2) for leaf in jax.tree.leaves(velocity)]
            return loss(model), loss.excess(model), sum(squares, jnp.zeros(())), velocity

        return jax.lax.map(one, arrays)

    return gradient, records


def timescale(problem: base.Problem) -> float:
    """The time in which the start changes; 1 where it rests."""
    slope = np.linalg.norm(_programs()[0](problem.loss, problem.start))
    size = np.linalg.norm(ravel_pytree(problem.start)[0])
    return float(size / slope) if slope > 0 and size > 0 else 1.0


def end_of(problem: base.Problem) -> float:
    how = problem.how or {}
    return float(how.get("t1") or max(how.get("times", [0.0])) or 30 * timescale(problem))


def integrated(problem: base.Problem, times: np.ndarray) -> np.ndarray:
    """The weights, (T, ..), by SciPy."""
    gradient, _ = _programs()
    start, unravel = ravel_pytree(problem.start)
    size = float(np.linalg.norm(start))
    field = lambda t, y: -np.asarray(gradient(problem.loss, unravel(jnp.asarray(y * size)))) / size
    y0 = np.asarray(start) / size
    once, places = np.unique(times, return_inverse=True)
    # On the way out of a saddle what is tiny grows, and nothing there is stiff.
    method, atol = ("DOP853", 1e-20) if _passes_a_saddle(problem) else ("LSODA", 1e-14)
    found = scipy.integrate.solve_ivp(field, (0, once[-1]), y0, method, once, rtol=1e-12, atol=atol)
    assert found.success
    return found.y.T[places] * size


def _passes_a_saddle(problem: base.Problem) -> bool:
    return isinstance(getattr(problem.loss, "function", None), Saddle)


def path_at(problem: base.Problem, times: np.ndarray) -> Path:
    """The flow at times from 0 on, in its closed form where it has one."""
    # Of one length, so that no more programs are compiled than that needs.
    times = np.append(times, np.repeat(times[-1], _LENGTH - times.size))
    if problem.exact is not None:
        exact = problem.exact(times)
        models, excess, slope = exact.models, exact.excess, exact.grad_norm_sq
    else:
        unravel = ravel_pytree(problem.start)[1]
        models = jax.vmap(unravel)(jnp.asarray(integrated(problem, times)))
        excess = slope = None
    loss, subtracted, computed, velocity = _programs()[1](problem.loss, models)
    known = bool(jnp.isfinite(problem.loss.minimum))
    function = getattr(problem.loss, "function", None)
    return Path(
        t=jnp.asarray(times),
        models=models,
        loss=loss if excess is None else jnp.asarray(excess) + getattr(function, "offset", 0.0),
        excess=subtracted if excess is None or not known else jnp.asarray(excess),
        grad_norm_sq=computed if slope is None else jnp.asarray(slope),
        # What is left at the end of a fall is rounding, on either side of zero.
        velocity=jax.tree.map(lambda v: jnp.where(jnp.abs(v) < 1e-12 * jnp.max(jnp.abs(v)), 0.0, v), velocity),
        at=functools.partial(model_at, problem),
    )


def model_at(problem: base.Problem, time: float) -> Any:
    """The model at a time."""
    if problem.exact is not None:
        return jax.tree.map(lambda leaf: leaf[0], problem.exact(np.array([time])).models)
    return ravel_pytree(problem.start)[1](jnp.asarray(integrated(problem, np.array([0.0, time]))[-1]))


def path_to_the_limit(problem: base.Problem) -> Path:
    """The start and the limit."""
    models = jax.tree.map(lambda *leaves: jnp.stack(leaves), problem.start, problem.limit)
    loss, excess, slope, velocity = _programs()[1](problem.loss, models)
    return Path(jnp.arange(2.0), models, loss, excess, slope, velocity, functools.partial(model_at, problem))


def vectors(models: Any) -> np.ndarray:
    return np.asarray(jax.vmap(lambda model: ravel_pytree(model)[0])(models))


def slack_of(stated: base.Stated, path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Slack, what it is relative to, and where anything is promised; one row a time."""
    found = stated.claim.compare(None, path)
    rows = found.slack.shape[0]
    size = np.maximum(np.abs(found.scale), np.abs(found.size)).reshape(rows, -1)
    return np.asarray(found.slack).reshape(rows, -1), size, np.asarray(found.promised).reshape(rows, -1)


def worst(stated: base.Stated, path: Path, among: np.ndarray) -> float:
    """The least slack at some of the times, over its size; infinite where nothing is promised."""
    slack, size, promised = slack_of(stated, path)
    if slack.shape[0] == path.t.shape[0]:
        promised = promised & among[:, None]
    relative = slack / np.where(size > 0, size, 1.0)
    assert np.all(np.isfinite(slack[promised]))
    return float(np.min(relative[promised], initial=np.inf))


def problems(family: str, count: int = _PROBLEMS):
    for index in range(count):
        yield verdict_fuzz.problem_of(family, 1, index)[0]


@pytest.mark.slow
@pytest.mark.parametrize("family", _ON_A_GRID)
def test_true_statements_are_true_and_false_ones_are_false(family, monkeypatch):
    # The end of a path here is the limit where a statement is about that.
    monkeypatch.setattr(flowsim, "limit", lambda flow, quantity: (quantity(flow.end)[None], 0.0), raising=False)
    for problem in problems(family):
        check_statements(problem)


def check_statements(problem: base.Problem) -> None:
    """Every statement about a problem is looked at on a grid, and one about the limit there."""
    end = end_of(problem)
    if problem.exact is None:
        end = min(end, 100 * timescale(problem))
    inside = np.append(0.0, end * np.geomspace(1e-10, 1.0, 300))
    run = path_at(problem, inside)
    last = None if problem.limit is None else path_to_the_limit(problem)
    for stated in problem.statements(run):
        identity, fails = stated.identity, stated.fails
        true, wrong = (-2e-8, -base.RESOLVED) if identity else (-1e-9, 0.0)
        if slack_of(stated, run)[0].shape[0] == 1:  # of the limit, or of the start
            assert last is not None
            found = worst(stated, last, np.ones(2, dtype=bool))
            assert found >= true if fails is None else found < min(wrong / 2, -1e-10), (stated, found)
        elif fails is None:
            # Where a closed form is at its limit to all digits, an excess of it has none.
            excess = np.asarray(run.excess)
            found = worst(stated, run, ~(excess <= 1e-24 * excess[0]) | (problem.exact is None) | (excess[0] <= 0))
            assert found >= true, (stated, found)
        elif problem.exact is not None or fails < end:
            path = run
            if fails > 0:
                after = fails * (1 + np.append(0.0, np.geomspace(1e-9, 0.3, 80)))
                path = path_at(problem, np.concatenate([inside[inside < 0.9 * fails], after]))
            times = np.asarray(path.t)
            # What nobody expects to be told may be false by less than double precision shows.
            below = worst(stated, path, times >= fails * (1 - 1e-12))
            assert below < (0.9 * wrong or (-1e-14 if stated.expected else 1e-14)), (stated, below)
            before = worst(stated, path, times < 0.9 * fails)
            assert before > 1.1 * wrong + true or not stated.expected, (stated, before)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"rounding-rest"}))
def test_closed_forms_are_those_of_the_flow(family):
    for problem in problems(family):
        if problem.exact is not None:
            check_closed_form(problem, problem.exact)


def check_closed_form(problem: base.Problem, closed: Any) -> None:
    """The closed form is what SciPy finds, and so are the loss and the gradient in it."""
    end = min(end_of(problem), 3 * timescale(problem))
    times = np.append(0.0, end * np.linspace(0.05, 1.0, 12))
    if problem.limit is not None:
        # At a kink a flow rests in finite time, and an integrator does not.
        there = np.asarray(ravel_pytree(problem.limit)[0])
        ours = vectors(closed(times).models)
        moving = np.any(np.abs(ours - there) > 1e-3 * np.max(np.abs(ours)), axis=1)
        times = times[: max(2, int(np.sum(moving)))]
    exact = closed(times)
    ours = vectors(exact.models)
    theirs = integrated(problem, times) if np.any(ours[0] != ours[-1]) else ours[:1]
    largest = np.max(np.abs(ours))
    # How far apart two weights are on their way out of a saddle, SciPy knows to fewer digits than they have.
    atol = (1e-6 if _passes_a_saddle(problem) else 1e-8) * largest
    np.testing.assert_allclose(ours, np.broadcast_to(theirs, ours.shape), atol=atol, rtol=0)
    loss, _, slope = (np.asarray(series) for series in _programs()[1](problem.loss, exact.models)[:3])
    if exact.excess is not None and exact.grad_norm_sq is not None:
        rounding = 1e-9 * exact.excess.max() + 1e-15 * (np.abs(loss).max() + largest * np.sqrt(slope.max()))
        np.testing.assert_allclose(exact.excess[0] - exact.excess, loss[0] - loss, atol=rounding, rtol=0)
        np.testing.assert_allclose(exact.grad_norm_sq, slope, rtol=1e-5, atol=1e-9 * np.max(slope))


@pytest.mark.parametrize("family", ["factors", "peaks", "saddles", "limits"])
def test_flows_go_to_their_limits(family):
    seen = 0
    for problem in problems(family, 20):
        if problem.limit is None or seen == 2:
            continue
        there = np.asarray(ravel_pytree(problem.limit)[0])
        last = integrated(problem, np.array([0.0, 30 * timescale(problem)]))[-1]
        seen += bool(np.linalg.norm(last - there) < 1e-6 * np.linalg.norm(last))
    assert seen == 2


@pytest.mark.parametrize("family", ["one-weight", "one-layer"])
def test_layers_go_where_their_balance_is_that_of_the_start(family):
    gradient, _ = _programs()
    for problem in problems(family, 4):
        start, end = problem.start, problem.limit
        assert end is not None
        balance = lambda model: float(model.u_minus1**2 - jnp.sum(model.U11**2))
        size = float(jnp.sum(end.U11**2) + end.u_minus1**2)
        assert balance(start) == pytest.approx(balance(end), abs=1e-9 * size)
        ahead = jax.tree.map(lambda leaf: 1.001 * leaf, end)
        still, near = (float(jnp.linalg.norm(gradient(problem.loss, model))) for model in (end, ahead))
        assert still < 1e-7 * near


def test_least_squares_in_rationals_solve_their_equations():
    matrix = 1 / (1.0 + np.add.outer(np.arange(6), np.arange(6)))
    target = matrix @ np.arange(6.0)
    found = solved(matrix, target)
    exact = [
        sum((Fraction(a) * Fraction(float(x)) for a, x in zip(row, found, strict=True)), Fraction(0))
        for row in matrix.tolist()
    ]
    np.testing.assert_allclose([float(value) for value in exact], target, rtol=1e-14)


def test_squares_apart_are_compared_in_rationals():
    """In decimals of 60 digits here; what is conserved is so along SciPy's flow."""
    seen = set()
    conserved = 0
    for problem in problems("cancelling-claim", 40):
        if not hasattr(problem.start, "a"):
            continue
        decimal.getcontext().prec = 60
        a, b = ([decimal.Decimal(float(x)) for x in np.asarray(side)] for side in (problem.start.a, problem.start.b))
        squares = sum(x**2 for x in a) - sum(x**2 for x in b)
        products = a[0] * a[-1] - b[0] * b[-1]
        one = jnp.ones(1)
        run = Path(one, jax.tree.map(lambda leaf: leaf[None], problem.start), one, one, one)
        for stated in problem.statements(run):
            number = decimal.Decimal(float(stated.claim.compare.number[0]))
            name = stated.claim.compare.compare.__name__
            gap = products if name == "_products_apart" else squares
            if name == "_is_conserved":
                true = abs(gap - number) < decimal.Decimal(1e-10) * sum(x**2 for x in a)
            else:
                true = gap <= number if name == "_squares_no_further_apart" else gap >= number
            assert true == (stated.fails is None)
            seen.add((name, true))
        if conserved < 2:
            conserved += 1
            last = integrated(problem, np.array([0.0, timescale(problem)]))[-1]
            half = last.size // 2
            gap = last[0] * last[half - 1] - last[half] * last[-1]
            assert gap == pytest.approx(float(products), abs=1e-9 * float(a[0] ** 2))
    assert len(seen) == 12


@pytest.mark.parametrize(
    ("name", "asymptotic"),
    [
        # tanh x - 1/2 -> 1/2 and sech^2 x -> 4 e^(-2x)
        ("tanh", lambda x, c: (np.exp(2 * x) - np.exp(2 * c)) / 4),
        ("sigmoid", lambda x, c: (np.exp(x) - np.exp(c)) / 0.75),
        ("lost beside a large number", lambda x, c: np.log(x / c)),
        ("logarithm", lambda x, c: np.log(x / c)),
        ("root", lambda x, c: 4 * np.log(x / c)),
        ("square of a cosine", lambda x, c: c**-2.0 - x**-2.0),
    ],
)
def test_what_rests_in_rounding_takes_its_time(name, asymptotic):
    lost = LOST[name]
    for begin in lost.starts:
        end = begin - 0.5 * (begin - lost.lowest(begin))
        assert passage(lost, begin, end) == pytest.approx(asymptotic(begin, end), rel=1e-4)
        slope = abs(jax.grad(lost.f)(jnp.asarray(begin + 0.0)))
        assert slope <= 1.1 * lost.speed(begin)


def test_walls_push_back_and_ridges_push_to_no_side():
    seen = set()
    for problem in problems("walls", 12):
        slope = jax.jit(jax.vmap(jax.grad(lambda model, loss=problem.loss: loss(model))))
        if problem.start.x.size == 1:
            foot = next(float(one.claim.compare.number[0]) for one in problem.statements(None))
            near = foot + jnp.linspace(-1.0, 1.0, 200_001)[:, None] * abs(float(problem.start.x[0]) - foot) * 1e-2
            away = jnp.sign(problem.start.x[0] - foot)
            assert jnp.any(slope(base.Point(near)).x * away < 0)
        else:
            both = slope(base.Point(problem.start.x[None] * jnp.linspace(0.0, 2.0, 9)[:, None])).x
            assert jnp.all(both[:, 0] == both[:, 1])
        seen.add(problem.start.x.size)
    assert seen == {1, 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "seed", "index", "statement"),
    [
        # By an excess that float64 does not have: of a loss too costly for balls at every time, and in a promise.
        ("cancelling-loss", 21, 29, "decay"),
        ("cancelling-loss", 21, 68, "bounded gradient"),
        ("promises", 21, 53, "once the loss is"),
        # By weights of 1e-277, which the solver knows to 1e-280.
        ("far-decay", 71, 2, "decay"),
        ("far-decay", 71, 2, "logarithm"),
    ],
)
def test_what_was_once_judged_wrongly_is_not(family, seed, index, statement):
    problem, _ = verdict_fuzz.problem_of(family, seed, index)
    flow = flowsim.gradient_flow(problem.loss, problem.start, **(problem.how or {}))
    evidence = Evidence(problem.loss, flow)
    of_its = [one for one in problem.statements(flow) if one.claim.id == f"fuzz.{statement}"]
    assert of_its
    for one in of_its:
        verdict = judge_on(one.claim, evidence)
        assert not base.is_false(str(verdict.verdict), one.fails, verdict.until), one.claim.compare.number


def test_a_verdict_is_false_of_what_it_speaks_of():
    assert base.is_false("violated", None, None)
    assert not base.is_false("violated", 3.0, None)
    assert base.is_false("holds", 3.0, None)
    assert not base.is_false("holds", 3.0, 2.0)
    assert not base.is_false("holds", 3.0, 3.0)
    assert base.is_false("holds", 3.0, 4.0)
    assert base.is_false("holds", 0.0, 1.0)
    assert not base.is_false("holds", None, None)
    assert not any(base.is_false(verdict, 0.0, None) for verdict in ("unresolved", "vacuous", "not-applicable"))


def test_first_times_are_found_at_any_scale():
    for time in (1e-9, 0.3, 7e12):
        assert base.first_time(lambda t, time=time: t >= time, 1.0) == pytest.approx(time, rel=1e-12)
    assert base.first_time(lambda t: False, 1.0) is None
    assert base.first_time(lambda t: True, 1.0) == 0.0


def test_the_summary_counts_by_family_and_tells_what_is_false():
    row = {
        "problem": 0,
        "statement": "s",
        "form": "printed",
        "expected": True,
        "until": None,
        "margin": 0.0,
        "floor": 0.0,
    }
    rows = [
        row | {"fails": None, "verdict": "holds", "note": ""},
        row | {"fails": 1.0, "verdict": "holds", "note": ""},
        row | {"fails": 1.0, "verdict": "unresolved", "note": "No bound is known on the distance to the limit."},
        row | {"fails": 1.0, "verdict": "raised", "note": "ValueError: no"},
    ]
    text = verdict_fuzz.summary({"one": rows})
    assert "| one | 1 | 4 | 1 | 1 | 0 | 1 | 1 | 4 | 25% |" in text
    assert "| one | no bound is known on the distance to the limit | 1 | 1 |" in text
    assert "1 false verdicts." in text
    assert "| one | s | holds | 1 |" in text


def test_every_family_has_a_share_and_half_of_all_are_of_own_losses():
    assert set(SHARES) == {*FAMILIES, *OTHERS, "theorems", "theorems-extreme"}
    assert sum(SHARES.values()) == pytest.approx(1.0)
    papers = {"one-weight", "one-layer", "theorems", "theorems-extreme"}
    assert sum(share for family, share in SHARES.items() if family not in papers) > 0.5


@pytest.mark.slow
def test_theorems_are_also_taken_beyond_their_spaces():
    drawn = list(theorems(1, 0, 1.0))
    assert all(one.judge(one.claim) for one in drawn)
    claim = next(claim for claim in true_theorems() if "init.scale" in claim.spaces[0].axes)
    further = beyond(np.random.default_rng(0), claim.spaces[0])
    assert further["init.scale"] in (1e-8, 1e-4, 30.0, 1e3)


@pytest.mark.slow
@pytest.mark.parametrize("family", [*OTHERS])
def test_statements_on_families_and_descents_are_not_judged_wrongly(family):
    rows = [verdict_fuzz.judged(drawn) for drawn in verdict_fuzz.constructed(family, 4, 3)]
    assert {row["fails"] is None for row in rows} == {True, False}
    assert not [row for row in rows if base.is_false(row["verdict"], row["fails"], row["until"])]
    assert not [row for row in rows if row["verdict"] == "raised"]
    assert any(row["verdict"] == "violated" for row in rows) and any(row["verdict"] == "holds" for row in rows)


def test_exact_iterates_are_those_of_momentum_and_of_a_schedule():
    two = Exact([Fraction(1)], [Fraction(1)], [Fraction(1, 2), Fraction(1, 4)], Fraction(1, 2), "gradient")
    # 1, 1 - 1/2, 1/2 - 1/8 - 1/4, 1/8 - 1/32 - 3/16
    assert [one[0] for one, _ in zip(two, range(4), strict=False)] == [
        1,
        Fraction(1, 2),
        Fraction(1, 8),
        Fraction(-3, 32),
    ]
