"""Statements that seem to be proved by what is not so: a formula that is not one everywhere, a function of time at the
end of a run, a row that is no time. None may hold for longer than it is true, nor be violated where it is true.
"""

import functools

import flint
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Pair, pair, weight
from jax.scipy.special import erf

import flowsim
from flowsim import Claim, FunctionLoss, at_least, at_most, equal, gradient_flow
from flowsim._core.balls.centred import is_analytic, is_smooth
from flowsim._core.balls.enclosure import Traced, enclose, lower, upper
from flowsim._core.balls.operations import UndecidedError, balls
from flowsim._core.balls.squares import residuals_of
from flowsim.claims import Evidence, Judgement, judge_on

pytestmark = pytest.mark.slow


@jax.custom_jvp
def straight(x):
    """x, whose slope is said to be zero."""
    return x


straight.defjvp(lambda x, slope: (straight(x[0]), 0.0 * slope[0]))


def relu(z):
    return (z + jnp.sqrt(z**2)) / 2


def follows(level, of=lambda a: a) -> FunctionLoss:
    """a goes to 2, and b to what a level makes of a."""
    return FunctionLoss(lambda m: 0.5 * (m.a - 2) ** 2 + 0.5 * (m.b - level(of(m.a))) ** 2)


def kinked(x):
    """Continuous, with the slope floor(x)."""
    return jnp.floor(x) * x - jnp.floor(x) * (jnp.floor(x) + 1) / 2


PROBLEMS = {
    "bowl": (FunctionLoss(lambda m: jnp.sum(m.x**2) / 2, minimum=0.0), weight(1.0)),  # x = e^-t
    "rest": (FunctionLoss(lambda m: jnp.sum(m.x**2) / 2, minimum=0.0), weight(0.0)),
    "wide bowl": (FunctionLoss(lambda m: (m.x + 1.05) ** 2 / 2, minimum=0.0), weight(1.0)),  # x goes to -1.05
    "root": (follows(lambda a: relu(a - 1)), pair(0.0, 0.0)),
    "power": (follows(lambda a: (a - 1 + ((a - 1) ** 2) ** 0.5) / 2), pair(0.0, 0.0)),
    "gate": (follows(lambda a: 5 * (1 + erf(15 * (a - 1)))), pair(0.0, 0.0)),
    "floor": (follows(lambda a: 10 * jnp.floor(a)), pair(0.1, 0.0)),
    "angle": (follows(lambda a: 5 * jnp.arctan2(1e-3 * (a - 1), -1.0) + 15.7), pair(0.1, 0.0)),
    "staircase": (FunctionLoss(lambda m: (m.x - 0.9) ** 2 / 2 - 5 * (kinked(m.x) - m.x)), weight(1.6)),
    "trace": (FunctionLoss(lambda m: jnp.einsum("ij,ji->", m.x, m.x)), weight([[1.0, 1e-3], [-1e-3, 1.0]])),
    "stopped": (
        FunctionLoss(lambda m: 0.5 * (m.a - 1) ** 2 + 0.5e-4 * (m.b - jax.lax.stop_gradient(2 * m.b)) ** 2),
        pair(0.0, 1.0),  # b would grow as e^(1e-4 t)
    ),
    "straight": (
        FunctionLoss(lambda m: 0.5 * (m.a - 1) ** 2 + 0.5 * (m.b - straight(m.a)) ** 2 + straight(m.b)),
        pair(0.0, 0.0),
    ),
    "tiny": (FunctionLoss(lambda m: -(m.x**2) / 2 + m.x**4 / 4), weight(1e-170)),  # x goes to 1
    "unread": (
        FunctionLoss(
            lambda m: -((1 + m.a) ** 2 / 2 - (1 + m.a)) + (jnp.sort(jnp.stack([m.b, m.b + 1]))[0] - 1) ** 2 / 2
        ),
        pair(1e-17, 1.0),  # a = 1e-17 e^t, and the rounded gradient is zero
    ),
    "down and up": (
        FunctionLoss(lambda m: 0.5 * (m.a**2 + m.b**2) + 0.9 * m.a * m.b, minimum=0.0),
        pair(0.7, 1.3),  # a = e^(-1.9 t) - .3 e^(-.1 t)
    ),
    "slow": (FunctionLoss(lambda m: 0.05 * m.x**2, minimum=0.0), weight(1e-13)),
    "growing": (FunctionLoss(lambda m: -(m.x**2) / 2), weight(1.0)),
    "bump": (
        FunctionLoss(lambda m: -m.a + 2 * m.b * jnp.exp(-(((m.a - 3.3123) / 3e-3) ** 2))),
        pair(0.0, 0.0),  # b is pushed to -.0106 at t = 3.3
    ),
    "trap": (
        FunctionLoss(lambda m: m.x - 4.5e-3 * jnp.sqrt(jnp.pi) / 2 * erf((m.x - 3.3123) / 3e-3)),
        weight(10.0),  # x rests at 3.3142
    ),
}


@functools.cache
def evidence(name: str, t1: float | None) -> Evidence:
    loss, start = PROBLEMS[name]
    return Evidence(loss, gradient_flow(loss, start, t1=t1))


def judged(name: str, t1: float | None, compare, *, along_flow: bool = True):
    claim = Claim("own.claim", "here", "s", lambda loss, flow: compare(flow), along_flow=along_flow)
    return judge_on(claim, evidence(name, t1))


def integral(flow, values):
    steps = jnp.diff(flow.t) * (values[1:] + values[:-1]) / 2
    return jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)])


def ordered(x):
    """x, by a way that balls do not know."""
    return jnp.sort(jnp.stack([x, x + 1], 1), axis=1)[:, 0]


def mixed(flow):
    """A spike narrower than a step, and a point."""
    spike = at_least(1 - 2 * jnp.exp(-(((flow.models.x - 0.77555) / 1e-4) ** 2)), 0.0, size=1.0)
    point = at_least(jnp.ones(1) * flow.start.x, 0.5, size=1.0)
    return jax.tree.map(lambda series, one: jnp.concatenate([series, one]), spike, point)


def fine(flow):
    """(sum x^2 w - .6)^2 of a thousand terms."""
    return (jnp.sum(flow.models.x[:, None] ** 2 * jnp.full((1, 1000), 1e-3), axis=1) - 0.6) ** 2


def found_limit(flow):
    value, allowance = flowsim.limit(flow, lambda m: m.x)
    return equal(value + 0.5, 0.0, 0.0, allowance=allowance)


# Statements that are false from some time on, and no identities.
FALSE = [
    ("wide bowl", 1.3, lambda f: at_most(f.models.x**66.0, 1.5, size=1.0), 2.0),
    ("trace", 0.01, lambda f: at_most(f.models.x[:, 0, 1], 5.0), 5.0),
    ("root", 0.6, lambda f: at_most(f.models.b, 0.5, size=1.0), 0.69),
    ("power", 0.6, lambda f: at_most(f.models.b, 0.5, size=1.0), 0.69),
    ("gate", 0.6, lambda f: at_most(f.models.b, 5.0, size=1.0), 0.69),
    ("floor", 0.4, lambda f: at_most(f.models.b, 5.0, size=1.0), 0.64),
    ("angle", 0.4, lambda f: at_most(f.models.b, 5.0, size=1.0), 0.64),
    ("staircase", 0.5, lambda f: at_least(f.models.x, 0.85), 2.0),
    ("stopped", 20.0, lambda f: at_most(f.models.b, 2.5), 20.0),
    ("straight", 5e-4, lambda f: at_most(f.models.b, 0.5, size=1.0), 5e-4),
    ("tiny", 1.0, lambda f: at_most(f.models.x, 0.5), 390.0),
    ("tiny", None, lambda f: at_most(f.models.x, 0.5), 390.0),
    ("unread", 60.0, lambda f: at_most(f.models.a, 0.5, size=1.0), 39.0),
    ("rest", None, lambda f: at_least(jnp.abs(f.t - 0.5), 0.1, size=1.0), 0.4),
    ("rest", 10.0, lambda f: at_least((f.t - 0.5) ** 2, 0.1, size=1.0), 0.2),
    ("bowl", 0.6, lambda f: at_most(integral(f, jax.nn.relu(0.5 - f.models.x)), 1.5, promised=f.t < 5.9), 4.6),
    ("bowl", 5.0, mixed, 0.26),
    ("bowl", 5.0, lambda f: at_least(fine(f) / f.t, 1e-7, size=1.0), 0.26),
    (
        "bowl",
        5.0,
        lambda f: at_least(1 - 2.0 * ((2000 * f.models.x).astype(int) == 1551).astype(float), 0.0, size=1.0),
        0.26,
    ),
    (
        "bowl",
        5.0,
        lambda f: at_most(jnp.argmax(jnp.stack([0 * f.t, 1e-8 - (f.models.x - 0.77555) ** 2], 1), axis=1), 0.5),
        0.26,
    ),
    (
        "bowl",
        5.0,
        lambda f: at_most(jnp.maximum(0.0, 2 - 4e6 * jnp.abs(jnp.fmod(1.0, f.models.x) - 0.3)), 1.0),
        0.36,
    ),
    ("bowl", 5.0, lambda f: at_least(ordered(f.models.x), 0.5, promised=f.at(1.0).x > 0.3), 0.7),
    ("bowl", 5.0, lambda f: at_most((f.models.x * f.t)[::-1], np.exp(-1) * (1 - 1e-5)), 1.0),
    ("bowl", 1.0, lambda f: at_most(jnp.nan_to_num(jnp.sqrt(f.models.x - 0.1), nan=5.0), 3.0), 2.4),
    ("bowl", 0.3, lambda f: at_most(jnp.trapezoid(f.models.x, f.t), 0.95), 0.0),
    ("bowl", 0.3, lambda f: at_most(jnp.max(f.models.x * f.t), 0.3), 0.0),
    ("bowl", 0.3, lambda f: at_most(f.t[-1], 5.0), 0.0),
    ("down and up", 0.5, lambda f: at_most(jnp.any(f.models.a < -0.1), 0.5), 0.0),
    ("bowl", 1e-6, lambda f: at_most(jnp.any(f.models.x < 1e-3).astype(float)[None], 0.5), 0.0),
    ("growing", 1e-6, lambda f: at_most(jnp.any(f.models.x > 1e9).astype(float)[None], 0.5), 0.0),
    ("down and up", 0.5, lambda f: at_least(jnp.nanmin(f.models.a), -0.1, size=1.0), 0.0),
    ("down and up", 0.5, lambda f: at_least(jnp.min(f.models.a[:-1]), -0.1, size=1.0), 0.0),
    ("bump", 10.0, lambda f: at_least(f.models.b, -1e-3, size=1.0), 3.33),
    ("trap", 14.0, lambda f: at_most(f.models.x, 3.0, promised=f.t >= 8.0), 8.0),
]


@pytest.mark.parametrize(("name", "t1", "compare", "fails"), FALSE)
def test_what_is_false_later_does_not_hold_for_longer(name, t1, compare, fails):
    verdict = judged(name, t1, compare)
    assert verdict.verdict not in (Judgement.VACUOUS, Judgement.NOT_APPLICABLE)
    if verdict.verdict is Judgement.HOLDS:
        assert verdict.until is not None and verdict.until <= fails


@pytest.mark.parametrize(
    ("name", "t1", "compare"),
    [
        ("root", 0.6, lambda f: equal(f.models.b, 0.0, 1.0)),
        ("bowl", 5.0, lambda f: equal(6e-7 * jnp.clip(f.t - 5, 0, 1) + 0 * f.models.x, 0.0, f.models.x)),
        ("slow", 3.0, lambda f: equal(f.models.x, 0.0, jnp.exp(-f.t))),
    ],
)
def test_an_identity_that_fails_later_holds_until_the_end(name, t1, compare):
    verdict = judged(name, t1, compare)
    assert verdict.verdict is Judgement.HOLDS and verdict.until == t1


def test_no_size_makes_any_allowance_small():
    assert judged("bowl", 3.0, found_limit).verdict is not Judgement.HOLDS  # it is 1/2


def test_what_reads_more_than_the_start_on_the_flow_alone_is_seen():
    compare = lambda f: at_most(f.start.x + jax.nn.relu(jnp.max(f.models.x) - 100), 50.0)
    assert judged("growing", 6.0, compare, along_flow=False).verdict is not Judgement.HOLDS


@pytest.mark.parametrize(
    ("name", "t1", "compare"),
    [
        ("bump", 10.0, lambda f: at_most(f.at(9.0).b, -5e-3, size=1.0)),
        ("trap", 14.0, lambda f: at_least(f.models.x, 3.2)),
        ("straight", 5e-4, lambda f: at_least(f.models.a, -1.0)),
    ],
)
def test_what_is_true_is_not_violated(name, t1, compare):
    assert judged(name, t1, compare).verdict is not Judgement.VIOLATED


def test_eigenvalues_hold_those_of_all_matrices_in_the_balls():
    x = np.asarray([0.1, 1.0, 0.3])
    values = enclose(lambda x: jnp.linalg.eigvalsh(jnp.outer(x, x)), x, proved=False)
    assert np.all(lower(values)[:2] <= 0) and np.all(upper(values)[:2] >= 0)
    assert upper(values)[2] >= x @ x >= lower(values)[2] and np.all((upper(values) - lower(values))[:2] < 1e-30)
    rng = np.random.default_rng(5)
    matrix = rng.normal(size=(4, 4))
    matrix = matrix + matrix.T
    found = enclose(jnp.linalg.eigvalsh, balls(matrix, 1e-3), proved=False)
    for _ in range(50):
        near = matrix + np.tril(rng.uniform(-1e-3, 1e-3, (4, 4)))
        near = np.tril(near) + np.tril(near, -1).T
        exact = np.linalg.eigvalsh(near)
        assert np.all(lower(found) <= exact) and np.all(exact <= upper(found))


def ball(low: float, high: float) -> np.ndarray:
    return balls((low + high) / 2, (high - low) / 2)


@pytest.mark.parametrize(
    ("function", "around", "inside"),
    [
        (lambda x: x**66.0, (-1.05, 0.05), -1.05),
        (lambda x: x**65.0, (-1.05, 0.05), -1.05),
        (lambda x: x * x, (-2.0, 1.0), 0.5),
        (jnp.sqrt, (0.0, 4.0), 0.0),
    ],
)
def test_powers_of_balls_around_zero_hold_those_of_their_numbers(function, around, inside):
    found = enclose(function, ball(*around))
    exact = float(function(jnp.asarray(inside)))
    assert lower(found) - 1e-12 <= exact <= upper(found) + 1e-12


@pytest.mark.parametrize("function", [jnp.sqrt, lambda x: x**0.5, lambda x: x**1.5])
def test_a_root_of_what_may_be_negative_is_not_known(function):
    (found,) = np.ravel(enclose(function, ball(-0.5, 1.0)))
    assert not found.is_finite()


@pytest.mark.parametrize(
    ("function", "around"),
    [
        (jnp.floor, (0.9, 1.1)),
        (jnp.ceil, (0.9, 1.1)),
        (lambda x: jnp.arctan2(x, -1.0), (-0.1, 0.1)),
        (lambda x: jnp.asarray(x.astype(int), dtype=float), (1.95, 2.05)),
        (lambda x: jnp.asarray(x.astype(bool), dtype=float), (-1e-300, 1e-300)),
    ],
)
def test_what_jumps_within_a_ball_is_open(function, around):
    with pytest.raises(UndecidedError):
        enclose(function, ball(*around))


def test_whole_numbers_are_cut_off_and_not_rounded():
    whole = lambda x: jnp.asarray(x.astype(int), dtype=float)
    for value in (1.6, -1.6, 0.4, 2.0, -0.7):
        assert float(
            np.ravel(enclose(whole, balls(np.asarray([value]), 0.01 if value != 2.0 else 0.0)))[0].mid()
        ) == int(value)


def test_no_number_is_not_itself_and_what_is_not_known_is_open():
    same = lambda x: jnp.where(jnp.isnan(x), 1.0, 0.0)
    assert float(np.ravel(enclose(same, balls(np.asarray([np.nan]))))[0].mid()) == 1.0
    assert float(np.ravel(enclose(same, balls(np.asarray([2.0]))))[0].mid()) == 0.0
    unknown = np.asarray([flint.arb(0, np.inf)], dtype=object)
    (found,) = np.ravel(enclose(same, unknown, open_branches=True))
    assert found.contains(0) and found.contains(1)


@pytest.mark.parametrize(
    ("function", "analytic"),
    [
        (lambda x: jnp.tanh(x[0]) * x[1] ** 3 + jnp.exp(x[0]) / 3, True),
        (lambda x: jnp.sqrt(x[0] ** 2) * x[1], False),
        (lambda x: jnp.exp(jnp.log(x[0] ** 2) / 2), False),
        (lambda x: jnp.arctan(1 / x[0]), False),
        (lambda x: (x[0] ** 2) ** 0.5, False),
        (lambda x: jnp.linalg.norm(x), False),
    ],
)
def test_a_root_is_smooth_and_not_one_formula(function, analytic):
    traced = Traced(function, np.asarray([0.3, -0.7]))
    assert is_analytic(traced) is analytic and is_smooth(traced)


def test_the_trace_of_a_square_is_no_sum_of_squares():
    matrix = np.arange(4.0)
    of = lambda subscripts, m: jnp.einsum(subscripts, m, m)
    square = lambda subscripts: lambda x: of(subscripts, x.reshape(2, 2))
    assert residuals_of(square("ij,ji->"), matrix) is None
    assert residuals_of(square("ij,ij->"), matrix) is not None


@pytest.mark.parametrize(
    ("loss", "start", "compare", "expected"),
    [
        (
            FunctionLoss(lambda m: jnp.sum(m.x**2) * jnp.prod(m.x[:0]) / 2, minimum=0.0),
            weight([1.0, 1.0]),
            lambda f: at_most(f.models.x, 1.5),
            Judgement.HOLDS,
        ),
        (
            FunctionLoss(lambda m: jnp.sum(m.a**2) / 2 + jnp.sum(jnp.sum(m.b**2, axis=1)), minimum=0.0),
            Pair(jnp.ones(2), jnp.zeros((0, 3))),
            lambda f: at_most(f.models.a, 1.5),
            Judgement.HOLDS,
        ),
        (*PROBLEMS["bowl"], lambda f: at_least(jnp.zeros((f.t.size, 0)), 0.0, size=1.0), Judgement.VACUOUS),
    ],
    ids=["empty product", "empty weights", "no entries"],
)
def test_empty_arrays_are_judged(loss, start, compare, expected):
    claim = Claim("own.claim", "here", "s", lambda loss, flow: compare(flow))
    assert flowsim.check(claim, loss, gradient_flow(loss, start, t1=1.0)).verdict is expected


@pytest.mark.parametrize(
    ("compare", "message"),
    [
        (lambda f: at_most(f.models.x, 1.5, allowance=-0.6), "allowances of at least 0"),
        (lambda f: equal(f.models.x, 2.0, jnp.inf), "finite sizes"),
    ],
)
def test_sizes_and_allowances_that_mean_nothing_are_refused(compare, message):
    with pytest.raises(ValueError, match=message):
        judged("bowl", 5.0, compare)
