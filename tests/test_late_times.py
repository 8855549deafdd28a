"""Flows that leave a saddle so late that rounding of the time is more than the time in which they then move."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

from flowsim import Claim, FunctionLoss, Trajectory, at_least, at_most, equal, gradient_flow
from flowsim.claims import Evidence, Judgement, judge_on
from flowsim.claims.critical_points.plateaus import plateaus
from flowsim.flow.solvers.clock import Clock, counted, lengths, origin_moves
from flowsim.flow.solvers.dense.kernel import DenseKernel
from flowsim.flow.solvers.lockstep import follow
from flowsim.flow.solvers.summary import STATUSES, UNDECIDED, Ends, Scales, Summarizing, crossing
from flowsim.flow.systems import loss_system
from flowsim.flow.trajectory import Status
from flowsim.report.plots import flows

LATE = [1e-12, 1e-15, 1e-30, 1e-60]
WEIGHTS = (1.0, 2.0, 3.0)


class Three(eqx.Module):
    a: jax.Array
    b: jax.Array
    c: jax.Array


LOSS = FunctionLoss(lambda m: (m.a * m.b * m.c - 1) ** 2 / 2, minimum=0.0)


def three(scale, weights=(1.0, 1.0, 1.0)):
    return Three(*[jnp.asarray(scale * weight) for weight in weights])


def clock(x):
    """The time of x' = x^2 (1 - x^3), from any origin."""
    return -1 / x - np.log1p(-x) / 3 + np.log(x**2 + x + 1) / 6 - np.arctan((2 * x + 1) / np.sqrt(3)) / np.sqrt(3)


def half_time(run):
    """When half of the excess is lost."""
    return float(crossing(run.t, run.excess, run.grad_norm_sq, run.excess[0] / 2))


def half(scale):
    """x where half of the excess is lost."""
    return (1 - np.sqrt(0.5) * (1 - scale**3)) ** (1 / 3)


@pytest.mark.parametrize("solver", ["implicit", "explicit"])
@pytest.mark.parametrize("scale", [1e-1, 1e-6, *LATE])
def test_three_equal_factors_drop_as_they_do_exactly(solver, scale):
    run = gradient_flow(LOSS, three(scale), solver=solver)
    assert run.status is Status.EXCESS and float(run.excess[-1]) <= 1e-12 * float(run.excess[0])
    assert run.certificates.energy_defect < 1e-8
    assert half_time(run) == pytest.approx(clock(half(scale)) - clock(scale), rel=1e-6)
    assert (run.counted is not None) == (scale in LATE)
    # The drop, in time since where it is steepest.
    x, t = np.asarray(run.models.a), counted(run)[0]
    drop = (x > 0.1) & (x < 0.999)
    assert np.sum(drop) > 10
    np.testing.assert_allclose(t[drop] - t[drop][0], clock(x[drop]) - clock(x[drop][0]), atol=1e-6)
    assert np.all(np.diff(np.asarray(run.t)) >= 0) and np.all(lengths(run) > 0)
    np.testing.assert_allclose(run.origin + run.since, run.t)


@pytest.mark.parametrize("scale", LATE)
def test_unequal_factors_keep_what_they_conserve(scale):
    """From (1, 2, 3) scale, u = a^2 has u' = 2 p (1 - p) with p^2 = u (u + 3 scale^2) (u + 8 scale^2)."""
    run = gradient_flow(LOSS, three(scale, WEIGHTS))
    assert run.status is Status.EXCESS and run.certificates.energy_defect < 1e-8
    a, b, c = (np.asarray(leaf) / scale for leaf in (run.models.a, run.models.b, run.models.c))
    np.testing.assert_allclose(b**2 - a**2, 3.0, atol=1e-9 * np.max(a) ** 2 + 1e-8)
    early = a < 100
    np.testing.assert_allclose((b**2 - a**2)[early], 3.0, rtol=1e-4)
    np.testing.assert_allclose((c**2 - a**2)[early], 8.0, rtol=1e-4)
    # At infinity of u / scale^2 the flow leaves, but for a time of order 1.
    inverse, _ = quad(lambda w: 2 / np.sqrt((1 + 3 * w**2) * (1 + 8 * w**2)), 0, 1, epsabs=1e-13)
    assert half_time(run) == pytest.approx(inverse / (2 * scale), rel=1e-6)


@pytest.mark.slow
def test_so_does_a_flow_in_lockstep():
    @jax.jit
    @jax.vmap
    def summary(scale):
        start = three(scale)
        at = jnp.asarray
        kernel = DenseKernel.of(loss_system(LOSS, start), start, at(1e-9))
        ends = Ends(at(jnp.inf), at(0.0), at(1e-12), at(1e-10), at(1e-9))
        # Half of the excess at the saddle, where an escape is at .99 of it.
        scales = Scales(at(0.25 / 0.99), at(jnp.inf), at(jnp.inf))
        observer = Summarizing(ends, scales, kernel.timescale, at(0.0), False)
        return follow(kernel, observer, observer.last)[0]

    scales = np.asarray([1e-1, 1e-6, *LATE])
    found = summary(jnp.asarray(scales))
    assert [STATUSES[int(code)] for code in found.status] == [Status.EXCESS] * scales.size
    np.testing.assert_allclose(found.escape_time[1:], clock(half(0.0)) - clock(scales[1:]), rtol=1e-6)
    assert np.all(np.asarray(found.energy_defect) < 1e-9)


HEADS = jnp.asarray([4.0, 2.0, 1.0])


@functools.cache
def three_heads(minimum=0.0):
    return FunctionLoss(lambda m: jnp.sum((m.a * m.b * m.c - HEADS) ** 2) / 2, minimum=minimum)


@pytest.mark.parametrize(
    "scale",
    [
        pytest.param(1e-8, marks=pytest.mark.slow),
        1e-20,
        pytest.param(1e-80, marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
@pytest.mark.parametrize("minimum", [pytest.param(0.0, marks=pytest.mark.slow), None])
def test_three_heads_leave_one_after_the_other_however_small(scale, minimum):
    """Tiny heads creep beside those that have come to rest, where neither Hessian nor gradient tells."""
    run = gradient_flow(three_heads(minimum), Three(*[jnp.full(3, scale)] * 3))
    assert run.status is (Status.GRAD_NORM if minimum is None else Status.EXCESS)
    assert float(run.loss[-1]) < 1e-10 and run.certificates.energy_defect < 1e-8
    assert np.all(np.diff(np.asarray(run.loss)) <= 1e-12)
    for i, strength in enumerate(HEADS):
        x = np.asarray(run.models.a[:, i])
        row = int(np.argmax(x > float(strength) ** (1 / 3) / 2))
        assert float(run.t[row]) == pytest.approx(1 / (float(strength) * scale), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("minimum", [0.0, None])
def test_in_lockstep_nothing_is_said_of_a_saddle_that_tiny_heads_leave(minimum):
    """Such a flow is one to be integrated by itself."""
    at, start = jnp.asarray, Three(*[jnp.full(3, 1e-20)] * 3)
    kernel = DenseKernel.of(loss_system(three_heads(minimum), start), start, at(1e-9))
    ends = Ends(at(jnp.inf), at(0.0), at(1e-12), at(1e-10), at(1e-9))
    observer = Summarizing(ends, Scales(*[at(jnp.inf)] * 3), kernel.timescale, at(0.0), False)
    summary, view, _ = eqx.filter_jit(follow)(kernel, observer, observer.last)
    assert int(summary.status) == UNDECIDED and float(three_heads()(view.point)) > 0.4


def _squares(run):
    """c^2 - a^2, which is 8 scale^2 at all times from (1, 2, 3) scale."""
    return run.models.c**2 - run.models.a**2


def _during(run, head):
    """1 halfway through the drop of a head, and 0 before and after it."""
    x = (run.models.a * run.models.b * run.models.c)[:, head] / HEADS[head]
    return 4 * x * (1 - x)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-15, pytest.param(1e-20, marks=pytest.mark.long)])
def test_three_late_drops_are_judged_each_from_its_own_origin(scale):
    """What is false by 1e-6 in one of the drops alone is refused."""
    run = gradient_flow(three_heads(), three(scale * np.ones(3), WEIGHTS))
    assert np.sum(origin_moves(np.asarray(run.origin), np.asarray(run.since))) >= 3
    kept = 8 * scale**2
    true = [
        lambda _, run: at_most(run.loss[-1], 1e-6),
        lambda _, run: at_most(run.excess, 1.000001 * run.excess[0]),
        lambda _, run: equal(_squares(run), kept, run.models.c**2),
        lambda _, run: equal(run.dissipated, run.excess[0] - run.excess, run.excess[0]),
    ]
    false = [lambda _, run: at_least(run.loss[-1], 1e-6)]
    for head in range(3):
        off = lambda run, head=head: 1e-6 * _during(run, head)
        mine = lambda run, head=head: (_squares(run)[:, head], run.models.c[:, head] ** 2)
        false += [
            lambda _, run, off=off, mine=mine: equal(mine(run)[0], kept + off(run), mine(run)[1]),
            lambda _, run, off=off: equal(run.dissipated, run.excess[0] * (1 + off(run)) - run.excess, run.excess[0]),
            lambda _, run, off=off, mine=mine: at_least(mine(run)[0] + 5e-7, off(run)),
        ]
    timed = [
        lambda _, run: at_most(run.excess, run.excess[0] * jnp.exp(-0.1 * scale * run.t)),
        lambda _, run: at_most(jnp.trapezoid(run.loss, run.t) / run.t[-1], 0.4),
        lambda _, run: at_most(run.at(1 / scale).a, 0.5),
    ]
    claims = [_claim(compare) for compare in (*true, *false, *timed)]
    evidence = Evidence(three_heads(), run, claims=claims)
    verdicts = [judge_on(claim, evidence) for claim in claims]
    # From 1e-20 rounding of the heads that have dropped is more than the weights of the last one until then.
    tiny, other = verdicts[2].verdict, [verdicts[place].verdict for place in (0, 1, 3)]
    assert other == [Judgement.HOLDS] * 3 and tiny in (Judgement.HOLDS, Judgement.UNRESOLVED)
    assert tiny is Judgement.HOLDS or scale < 1e-15
    refused = [verdict.verdict for verdict in verdicts[len(true) : len(true) + len(false)]]
    assert Judgement.HOLDS not in refused and refused.count(Judgement.VIOLATED) >= len(false) - 3
    for verdict in verdicts[-len(timed) :]:
        assert verdict.verdict is Judgement.UNRESOLVED and "so late" in verdict.note


@pytest.mark.slow
def test_how_far_the_next_head_is_tells_when_a_drop_is():
    """Heads of strengths s > z drop at 1/(s scale), where the weights of the latter are scale/(1 - z/s)."""
    scale, strong, weak = 1e-14, HEADS[0], HEADS[1]
    loss = FunctionLoss(lambda m: jnp.sum((m.a * m.b * m.c - HEADS[:2]) ** 2) / 2, minimum=0.0)
    run = gradient_flow(loss, Three(*[jnp.full(2, scale)] * 3))
    x, next_ = (
        lambda run: run.models.a[:, 0] ** 3 / strong,
        lambda run: run.models.a[:, 1] * (1 - weak / strong) / scale,
    )
    drops = lambda run: (x(run) > 0.1) & (x(run) < 0.9)
    expected = {
        _claim(lambda _, run: at_most(next_(run), 1.001, promised=drops(run))): Judgement.HOLDS,
        _claim(lambda _, run: at_least(next_(run), 0.999, promised=drops(run))): Judgement.HOLDS,
        _claim(lambda _, run: at_most(next_(run), 0.999, promised=drops(run))): Judgement.VIOLATED,
        _claim(lambda _, run: at_least(next_(run), 1.001, promised=drops(run))): Judgement.VIOLATED,
    }
    evidence = Evidence(loss, run, claims=[*expected])
    assert [judge_on(claim, evidence).verdict for claim in expected] == [*expected.values()]


@pytest.mark.parametrize("scale", [1e-14, 1e-20])
def test_the_clock_of_late_drops_increases_and_knows_what_passes(scale):
    run = gradient_flow(three_heads(), Three(*[jnp.full(3, scale)] * 3))
    clock = Clock.of(run)
    assert np.all(np.diff(clock.times) > 0)
    np.testing.assert_allclose(clock.lengths(clock.times), lengths(run), rtol=1e-9)
    halves = np.sort(np.append(clock.times, (clock.times[1:] + clock.times[:-1]) / 2))
    np.testing.assert_allclose(clock.lengths(halves).reshape(-1, 2).sum(axis=1), lengths(run), rtol=1e-9)
    np.testing.assert_array_equal(clock.since_start(clock.times), run.origin + run.since)
    assert clock.since_start(clock.times[-1] + 1e20) == pytest.approx(float(run.t[-1]) + 1e20)


@pytest.mark.slow
def test_a_valley_above_the_known_minimum_is_an_end_for_tiny_weights_beside_it():
    """Of (abc - 1)^2/2 + 1 from heads of which all but one stay tiny; the minimum that was said is lower."""
    loss = FunctionLoss(lambda m: (jnp.sum(m.a * m.b * m.c) - 1) ** 2 / 2 + 1, minimum=0.0)
    start = Three(*[1e-12 * jnp.asarray([1.0, 0.3, 0.1])] * 3)
    run = gradient_flow(loss, start)
    assert run.status is Status.GRAD_NORM and float(run.loss[-1]) == pytest.approx(1.0)
    assert np.max(np.asarray(run.end.a)[1:]) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("minimum", [0.0, None])
def test_matrices_and_vectors_from_1e_20_reach_the_minimum(minimum):
    """Two heads v k q^T in a rotated basis, of which one is left tiny in the entries of no weight alone."""
    rng = np.random.default_rng(0)
    rotation = jnp.asarray(np.linalg.qr(rng.standard_normal((2, 2)))[0])
    target = rotation @ jnp.diag(jnp.asarray([1.0, 0.4])) @ rotation.T

    def value(m):
        return jnp.sum((jnp.einsum("h,hi,hj->ij", m.a, m.b, m.c) - target) ** 2) / 2

    start = Three(*[jnp.asarray(1e-20 * rng.standard_normal(shape)) for shape in ((2,), (2, 2), (2, 2))])
    run = gradient_flow(FunctionLoss(value, minimum=minimum), start)
    assert run.status is (Status.GRAD_NORM if minimum is None else Status.EXCESS)
    assert float(run.loss[-1]) < 1e-11


@pytest.mark.slow
def test_one_that_becomes_infinite_is_never_finished():
    loss = FunctionLoss(lambda m: -(m.a**3) / 3)
    start = three(1.0)
    assert gradient_flow(loss, start).status is Status.NONFINITE
    at = jnp.asarray
    kernel = DenseKernel.of(loss_system(loss, start), start, at(1e-9))
    ends = Ends(at(jnp.inf), at(0.0), at(1e-12), at(1e-10), at(1e-9))
    observer = Summarizing(ends, Scales(*[at(jnp.inf)] * 3), kernel.timescale, at(0.0), False)
    code = int(eqx.filter_jit(follow)(kernel, observer, observer.last)[0].status)
    assert code < 0 or not STATUSES[code].finished


def test_requested_times_are_among_the_outputs():
    times = [1e14, 1e15, 1.0000000000001e15, 3e15]
    run = gradient_flow(LOSS, three(1e-15), times=times)
    assert np.all(np.isin(times, np.asarray(run.t)))
    assert run.t.size == gradient_flow(LOSS, three(1e-15), t1=3e15).t.size + 2 + 1
    alone = gradient_flow(LOSS, three(1e-15), t1=2e15, points_per_decade=0)
    np.testing.assert_array_equal(alone.t, [0.0, 2e15])
    assert float(alone.excess[-1]) < 1e-20
    x = float(gradient_flow(LOSS, three(1e-15), t1=9e14, points_per_decade=0).end.a)
    assert clock(x) - clock(1e-15) == pytest.approx(9e14, rel=1e-9)


@pytest.mark.slow
def test_a_known_minimum_is_not_needed():
    run = gradient_flow(FunctionLoss(LOSS.function), three(1e-20))
    assert run.status is Status.GRAD_NORM and float(run.t[-1]) < 1.01e20
    assert float(run.loss[-1]) < 1e-18


@pytest.mark.slow
def test_a_kink_in_a_late_drop_is_one():
    kinked = FunctionLoss(lambda m: LOSS.function(m) + jnp.maximum(m.a - 0.5, 0.0) / 2)
    run = gradient_flow(kinked, three(1e-15))
    assert run.status is Status.KINK
    assert float(run.end.a) == pytest.approx(0.5, abs=1e-2)


def test_one_that_goes_on_from_a_checkpoint_is_the_same(tmp_path):
    whole = gradient_flow(LOSS, three(1e-30, WEIGHTS), times=[1e29], checkpoint=tmp_path)
    chunks = sorted(tmp_path.glob("chunk-*.npz"))
    assert len(chunks) > 3 and np.sum(origin_moves(np.asarray(whole.origin), np.asarray(whole.since))) > 1
    for kept in range(len(chunks)):
        for chunk in chunks[kept:]:
            chunk.unlink(missing_ok=True)
        again = gradient_flow(LOSS, three(1e-30, WEIGHTS), times=[1e29], checkpoint=tmp_path)
        assert eqx.tree_equal(again.models, whole.models) and eqx.tree_equal(again.counted, whole.counted)
        assert eqx.tree_equal(again.t, whole.t) and eqx.tree_equal(again.dissipated, whole.dissipated)


def test_it_is_saved_with_its_origins(tmp_path):
    run = gradient_flow(LOSS, three(1e-15))
    run.save(tmp_path / "run.npz")
    read = Trajectory.load(tmp_path / "run.npz", like=run.start)
    np.testing.assert_array_equal(read.origin, run.origin)
    np.testing.assert_array_equal(read.since, run.since)
    early = gradient_flow(LOSS, three(0.1))
    early.save(tmp_path / "early.npz")
    assert not {"origin", "since"} & set(np.load(tmp_path / "early.npz"))
    np.testing.assert_array_equal(early.since, early.t)


def test_its_plateaus_are_told():
    first, last = plateaus(gradient_flow(LOSS, three(1e-15)), LOSS)
    assert first.leave == pytest.approx(1e15, rel=1e-3) and first.level == pytest.approx(0.5)
    assert last.level < 1e-12


def test_its_picture_shows_the_drop():
    run = gradient_flow(LOSS, three(1e-15))
    axes = flows.excess(run)
    (line,) = axes.lines
    pixels = axes.transData.transform(np.stack([line.get_xdata(), np.clip(line.get_ydata(), 1e-16, 1)], axis=1))
    left, right = axes.get_window_extent().intervalx
    drop = (np.asarray(run.excess) < 0.4) & (np.asarray(run.excess) > 1e-9)
    assert np.ptp(pixels[drop, 0]) > 0.05 * (right - left)


def _two(run):
    return run.models.b * run.models.c


def _claim(compare):
    return Claim(id="late", source="-", statement="-", compare=compare)


DECIDED = {
    "|grad L|^2 / excess >= 2 (b c)^2": (
        lambda _, run: at_least(run.grad_norm_sq, 1.5 * _two(run) ** 2 * run.excess),
        Judgement.HOLDS,
    ),
    "it is at least .001": (lambda _, run: at_least(run.grad_norm_sq, 1e-3 * run.excess), Judgement.VIOLATED),
    "the end": (lambda _, run: at_most(run.loss[-1], 1e-6), Judgement.HOLDS),
    "another end": (lambda _, run: at_least(run.loss[-1], 1e-6), Judgement.VIOLATED),
}
BALANCE = lambda _, run: equal(
    run.models.a**2 - run.models.b**2, (run.models.a**2 - run.models.b**2)[0], run.models.b**2
)
OPEN = {
    "a rate": lambda _, run: at_most(run.excess, run.excess[0] * jnp.exp(-0.1 * run.t)),
    "no rate": lambda _, run: at_least(run.excess, run.excess[0] * jnp.exp(-0.1 * run.t)),
    "only after the start": lambda _, run: at_most(run.excess, 0.4, promised=run.t > 0),
    "at a time": lambda _, run: at_most(run.at(1e15).a, 0.5),
    "a mean": lambda _, run: at_most(jnp.trapezoid(run.loss, run.t) / run.t[-1], 0.4),
}


@pytest.mark.slow
@pytest.mark.parametrize("weights", [pytest.param((1.0, 1.0, 1.0), marks=pytest.mark.long), WEIGHTS])
def test_what_reads_no_times_is_judged_and_what_reads_them_is_not(weights):
    run = gradient_flow(LOSS, three(1e-15, weights))
    claims = [_claim(compare) for compare, _ in DECIDED.values()]
    claims += [_claim(BALANCE), *map(_claim, OPEN.values())]
    evidence = Evidence(LOSS, run, claims=claims)
    verdicts = [judge_on(claim, evidence) for claim in claims]
    expected = [judgement for _, judgement in DECIDED.values()] + [Judgement.HOLDS]
    assert [verdict.verdict for verdict in verdicts[: len(expected)]] == expected
    for verdict in verdicts[len(expected) :]:
        assert verdict.verdict is Judgement.UNRESOLVED and "so late" in verdict.note
    # The repetitions are where the trajectory is, but not by being it.
    for again in (evidence.reference, evidence.confirmation):
        off = np.asarray(again.models.a) / np.asarray(run.models.a) - 1
        assert 0 < np.max(np.abs(off)) < 1e-7


@pytest.mark.slow
def test_a_false_identity_is_refused_by_a_little():
    run = gradient_flow(LOSS, three(1e-15, WEIGHTS))
    off = lambda by: lambda _, run: equal(run.models.c**2 - run.models.a**2, (8 + by) * 1e-30, run.models.c**2)
    evidence = Evidence(LOSS, run)
    judged = lambda by: judge_on(_claim(off(by)), evidence).verdict
    assert judged(0.0) is Judgement.HOLDS and judged(1e-6) is Judgement.VIOLATED


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-6, 1e-11, 1e-20])
def test_a_drop_at_the_end_is_no_kink(scale):
    """All of the drop may be within a hundred-thousandth of the time, as little as a kink has before it."""
    run = gradient_flow(LOSS, three(scale))
    evidence = Evidence(LOSS, run)
    assert evidence.trajectory.t.size == run.t.size
    claim = Claim("late.above", "notes", "L >= 1/4", lambda loss, flow: at_least(flow.loss, 0.25), models=(Three,))
    assert judge_on(claim, evidence).verdict is Judgement.VIOLATED
