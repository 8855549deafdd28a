"""Gradient descent and verdicts on it: exact iterates of quadratics, planted falsehoods, limits, what is refused."""

from fractions import Fraction
from typing import Any

import equinox as eqx
import flint
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

import flowsim
from flowsim.claims.hypotheses import hypothesis
from flowsim.flow.descent import true_iterates
from flowsim.flow.gradient_flow import start_alone
from flowsim.flow.systems import LossSystem, loss_system
from flowsim.initialization import balanced


class Vector(eqx.Module):
    x: Float[Array, " n"]


class Quadratic(eqx.Module):
    """sum h x^2 / 2."""

    h: Float[Array, " n"]

    def __call__(self, model):
        return jnp.sum(self.h * model.x**2) / 2


class Quartic(eqx.Module):
    def __call__(self, model):
        return jnp.sum(model.x**4) / 4


def quadratic(values, start):
    form = Quadratic(jnp.asarray(values, dtype=float))
    return flowsim.FunctionLoss(form, excess=form, minimum=0.0), Vector(jnp.asarray(start, dtype=float))


def rate(mu, factor=1.0):
    """Exact for one dimension with curvature mu."""

    @flowsim.claim("test.rate", "test")
    def holds(descent):
        r"""$L_k \\le c (1 - \\mu \\eta)^{2k} L_0$ for all k"""
        q = 1 - mu * descent.step_size
        return flowsim.at_most(descent.excess, factor * q ** (2 * descent.t) * descent.excess[0])

    return holds


def descent_lemma(curvature):
    @flowsim.claim("test.lemma", "test")
    def holds(descent):
        r"""$L_{k+1} \\le L_k - \\eta (1 - \\eta L/2) |g_k|^2$ for all k"""
        loss, slope, eta = descent.loss[:-1], descent.grad_norm_sq[:-1], descent.step_size[:-1]
        return flowsim.at_most(descent.loss[1:], loss - eta * (1 - eta * curvature / 2) * slope, size=loss)

    return holds


def verdict_of(claim, loss, run):
    return flowsim.check(claim, loss, run)


def test_iterates_of_a_quadratic_are_powers_whatever_the_schedule():
    values, start = np.asarray([0.3, 1.0, 2.5]), np.asarray([1.0, -2.0, 0.5])
    loss, model = quadratic(values, start)
    run = flowsim.gradient_descent(loss, model, 0.1, 20)
    np.testing.assert_array_equal(run.t, np.arange(21))
    np.testing.assert_array_equal(run.step_size, np.full(21, 0.1))
    powers = (1 - 0.1 * values) ** np.arange(21)[:, None]
    np.testing.assert_allclose(run.models.x, powers * start, rtol=1e-13)
    decaying = flowsim.gradient_descent(loss, model, lambda k: 0.5 / (k + 1), 20)
    sizes = 0.5 / (np.arange(21) + 1)
    products = np.cumprod(np.vstack([np.ones(3), 1 - sizes[:20, None] * values]), axis=0)
    np.testing.assert_allclose(decaying.models.x, products * start, rtol=1e-13)
    given = flowsim.gradient_descent(loss, model, sizes[:20], 20)
    np.testing.assert_array_equal(given.models.x, decaying.models.x)
    some = flowsim.gradient_descent(loss, model, iter(sizes[:20]), 20, at=iter([3, 20]))
    np.testing.assert_array_equal(some.models.x, np.asarray(given.models.x)[[0, 3, 20]])
    np.testing.assert_allclose(some.t, [0, 3, 20])


def test_heavy_ball_has_its_exact_roots():
    lam, eta, beta, steps = 1.5, 0.2, 0.5, 30
    loss, model = quadratic([lam], [2.0])
    run = flowsim.gradient_descent(loss, model, eta, steps, momentum=beta)
    one, other = np.roots([1, -(1 + beta - eta * lam), beta])
    # x_0 = 2 and x_1 = (1 - eta lam) x_0.
    a, b = np.linalg.solve([[1, 1], [one, other]], [2.0, 2.0 * (1 - eta * lam)])
    k = np.arange(steps + 1)
    np.testing.assert_allclose(np.asarray(run.models.x)[:, 0], (a * one**k + b * other**k).real, atol=1e-13)


def test_signed_steps_end_in_a_band_and_normalized_steps_have_one_length():
    loss, model = quadratic([1.0, 3.0], [1.03, -0.61])
    signed = np.asarray(flowsim.gradient_descent(loss, model, 0.05, 100, direction="sign").models.x)
    np.testing.assert_allclose(np.abs(np.diff(signed, axis=0)), 0.05, rtol=1e-12)
    assert np.all(np.abs(signed[30:]) <= 0.05) and np.max(np.abs(signed[30:])) > 0.02
    normalized = np.asarray(flowsim.gradient_descent(loss, model, 0.05, 50, direction="normalized").models.x)
    np.testing.assert_allclose(np.linalg.norm(np.diff(normalized, axis=0), axis=1), 0.05, rtol=1e-12)


def test_a_descent_is_repeated_bit_for_bit_and_read_back(tmp_path):
    loss, model = quadratic([0.3, 1.0], [1.0, 2.0])
    run, again = (flowsim.gradient_descent(loss, model, 0.3, 50, momentum=0.3) for _ in range(2))
    np.testing.assert_array_equal(run.models.x, again.models.x)
    run.save(tmp_path / "run.npz")
    read = flowsim.Trajectory.load(tmp_path / "run.npz", model)
    np.testing.assert_array_equal(read.step_size, run.step_size)
    assert read.settings == run.settings and str(read).startswith("gradient descent, momentum 0.3 to k = 50")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step_size": 0.0}, "step_size must be positive and finite"),
        ({"step_size": [0.1, 0.2]}, "step_size must be one number or 5 of them"),
        ({"step_size": lambda k: 1.0 - k}, "it is 0 at k = 1"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1"),
        ({"direction": "signs"}, 'did you mean "sign"'),
        ({"steps": 0}, "steps must be"),
        ({"at": [9]}, "at must be numbers from 1 to 5"),
        ({"at": [np.nan]}, "at must be numbers from 1 to 5, but it holds NaN"),
        ({"step_size": lambda k: np.ones(2)}, r"step_size at k = 0 must be one number, but its shape is \(2,\)"),
        ({"steps": 10**14}, "steps must be small enough"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    loss, model = quadratic([1.0], [1.0])
    with pytest.raises(ValueError, match=message):
        flowsim.gradient_descent(loss, model, **{"step_size": 0.1, "steps": 5, **arguments})


def test_true_iterates_are_those_of_rational_arithmetic():
    loss, model = quadratic([0.3, 7.0], [1.0, -0.7])
    run = flowsim.gradient_descent(loss, model, 0.21, 60, momentum=0.4)
    system = loss_system(loss, model)
    assert isinstance(system, LossSystem)
    found = true_iterates(system, run, 1e6)
    assert found is not None
    x = [Fraction(float(v)) for v in model.x]
    h, eta, beta = [Fraction(0.3), Fraction(7.0)], Fraction(0.21), Fraction(0.4)
    v = [Fraction(0), Fraction(0)]
    for _ in range(60):
        v = [beta * a - eta * b * c for a, b, c in zip(v, h, x, strict=True)]
        x = [a + b for a, b in zip(x, v, strict=True)]
    with flint.ctx.workprec(4000):
        for ball, exact in zip(found[0].x[-1], x, strict=True):
            apart = abs(ball - flint.arb(flint.fmpq(exact.numerator, exact.denominator)))
            assert apart.lower() <= 0 and float(ball.rad()) < 1e-18 * abs(float(exact))


def test_the_exact_rate_of_one_dimension_holds_and_is_violated_by_a_billionth():
    loss, model = quadratic([0.3], [1.0])
    run = flowsim.gradient_descent(loss, model, 0.7, 200)
    claims = [rate(0.3, 1 + 1e-9), rate(0.3, 1 - 1e-9), rate(0.3), rate(0.3 * (1 + 1e-9))]
    above, below, equal, faster = flowsim.judge(claims, loss, run)
    assert above.verdict == "holds"
    assert below.verdict == faster.verdict == "violated"
    # Sides that are equal are not told from a violation by rounding.
    assert equal.verdict in ("holds", "unresolved")


def test_the_descent_lemma_is_an_equality_in_one_dimension_and_never_violated():
    claims = [descent_lemma(curvature) for curvature in (1.0, 1.0 - 1e-6, 1.0 + 1e-6)]
    for eta in (0.25, 0.3, 1.7, 2.5):
        loss, model = quadratic([1.0], [0.3])
        equal, less, more = flowsim.judge(claims, loss, flowsim.gradient_descent(loss, model, eta, 40))
        assert equal.verdict in ("holds", "unresolved")
        assert less.verdict == "violated"
        assert more.verdict == "holds"
    loss, model = quadratic([1.0], [0.5])
    # In numbers of few digits the sides are equal exactly.
    exact = flowsim.gradient_descent(loss, model, 0.25, 40)
    found = verdict_of(claims[0], loss, exact)
    assert found.verdict == "holds" and found.until == 40 and found.cut
    assert found.in_words() == "holds until k = 40"


def test_what_a_flow_does_and_a_descent_does_not_is_not_asked_of_the_descent():
    loss, model = quadratic([0.3, 1.0], [1.0, 1.0])
    flow, run = start_alone(loss, model), flowsim.gradient_descent(loss, model, 0.5, 20)

    @flowsim.claim("test.flow", "test")
    def of_flows(flow):
        r"""$L$ falls"""
        return flowsim.at_most(flow.excess, flow.excess[0])

    with pytest.raises(ValueError, match=r"trajectory must be one of gradient_flow, which test\.flow is about"):
        flowsim.check(of_flows, loss, run)
    with pytest.raises(ValueError, match=r"trajectory must be one of gradient_descent, which test\.rate is about"):
        flowsim.check(rate(0.3), loss, flow)
    missing = flowsim.gradient_descent(loss, model, 0.5, 20, at=[5, 20])
    with pytest.raises(ValueError, match="a descent with all of its iterates"):
        flowsim.check(rate(0.3), loss, missing)
    with pytest.raises(ValueError, match='"flow" or "descent", but it takes both'):

        @flowsim.claim("test.both", "test")
        def both(flow, descent):
            """Both."""
            return flowsim.at_most(flow.excess, descent.excess)


def test_the_descent_of_another_loss_is_not_judged():
    loss, model = quadratic([0.3, 1.0], [1.0, 1.0])
    other, _ = quadratic([0.3, 1.0 + 1e-9], [1.0, 1.0])
    found = verdict_of(rate(0.3, 2.0), other, flowsim.gradient_descent(loss, model, 0.5, 20))
    assert found.verdict == "unresolved" and "not those of gradient descent on this loss" in found.note


def bounded(most):
    @flowsim.claim("test.bounded", "test")
    def holds(descent):
        r"""$L_k \\le c$ for all k"""
        return flowsim.at_most(descent.excess, most)

    return holds


def test_for_all_k_goes_on_where_steps_contract_and_is_cut_where_they_do_not():
    loss, model = quadratic([0.5, 2.0], [1.0, 1.0])
    settles = verdict_of(bounded(1.5), loss, flowsim.gradient_descent(loss, model, 0.9, 30))
    assert settles.verdict == "holds" and settles.until is None
    # Beyond 2/L the second weight grows from a billionth, by a fifth in a step: it is bounded for 30 steps only.
    loss, model = quadratic([0.5, 2.0], [1.0, 1e-9])
    cut = verdict_of(bounded(1.5), loss, flowsim.gradient_descent(loss, model, 1.1, 30))
    assert cut.verdict == "holds" and cut.until == 30 and cut.cut
    later = verdict_of(bounded(1.5), loss, flowsim.gradient_descent(loss, model, 1.1, 200))
    assert later.verdict == "violated"


COUNTED = {
    "eta_0 + .. + eta_k": lambda descent: jnp.cumsum(descent.step_size),
    "the number of iterates": lambda descent: jnp.cumsum(jnp.ones_like(descent.t)) / 2,
    "the number of the row": lambda descent: jnp.arange(descent.t.size) / 2,
}


@pytest.mark.parametrize("name", COUNTED)
def test_what_grows_with_the_number_of_steps_is_not_bounded_for_all_k(name):
    @flowsim.claim("test.counted", "test", statement=f"{name} is at most 31")
    def counted(descent):
        return flowsim.at_most(COUNTED[name](descent), 31.0)

    loss, model = quadratic([0.5, 2.0], [1.0, 1.0])
    found = verdict_of(counted, loss, flowsim.gradient_descent(loss, model, 0.5, 60))
    assert found.verdict == "holds" and found.until == 60 and found.cut


def test_a_schedule_is_not_known_beyond_the_steps_that_were_made():
    loss, model = quadratic([0.5, 2.0], [1.0, 1.0])
    later = flowsim.gradient_descent(loss, model, lambda k: 0.9 if k < 40 else 3.0, 30)
    found = verdict_of(bounded(1.5), loss, later)
    assert found.verdict == "holds" and found.until == 30 and found.cut
    assert verdict_of(bounded(1.5), loss, flowsim.gradient_descent(loss, model, 0.9, 30)).until is None


def test_a_claim_reads_the_momentum_and_no_accuracy_that_was_not_measured(tmp_path):
    @flowsim.claim("test.settings", "test")
    def settings(descent):
        """beta = 0.5"""
        return flowsim.equal(descent.settings.momentum * jnp.ones_like(descent.t), 0.5, 1.0)

    @flowsim.claim("test.defect", "test")
    def defect(descent):
        """the energy is dissipated but for a millionth, which is false"""
        return flowsim.at_most(descent.certificates.energy_defect, 1e-6)

    largest: Any = lambda loss, descent: jnp.max(descent.excess)
    nothing = flowsim.Claim("test.nothing", "test", "no statement", largest, of_descent=True)
    loss, model = quadratic([0.5, 2.0], [1.0, 1.0])
    run = flowsim.gradient_descent(loss, model, 0.3, 20, momentum=0.5)
    run.save(tmp_path / "run.npz")
    assert verdict_of(settings, loss, flowsim.Trajectory.load(tmp_path / "run.npz", model)).verdict == "holds"
    assert run.certificates.energy_defect > 1e-3
    assert [str(one.verdict) for one in flowsim.judge([settings, defect], loss, run)] == ["holds", "unresolved"]
    with pytest.raises(ValueError, match=r"test\.nothing must be a function that returns what flowsim\.at_least does"):
        flowsim.check(nothing, loss, run)


@pytest.mark.slow
def test_the_limit_of_a_descent_is_bounded_by_its_own_steps():
    @flowsim.claim("test.limit", "test")
    def limit(descent):
        r"""$x_k \\to 0$"""
        value, allowance = flowsim.limit(descent, lambda model: model.x[0])
        return flowsim.equal(value, 0.0, 1.0, allowance=allowance)

    @flowsim.claim("test.other", "test")
    def other(descent):
        r"""$x_k \\to 10^{-3}$"""
        value, allowance = flowsim.limit(descent, lambda model: model.x[0])
        return flowsim.equal(value, 1e-3, 1.0, allowance=allowance)

    @flowsim.claim("test.end", "test")
    def end(descent):
        r"""$L_k \\to 0.1$ or less"""
        return flowsim.at_most(descent.excess[-1], 0.1, size=1.0)

    loss, model = quadratic([0.5, 2.0], [1.0, 1.0])
    run = flowsim.gradient_descent(loss, model, 0.5, 100)
    assert verdict_of(limit, loss, run).verdict == "holds"
    assert verdict_of(other, loss, run).verdict == "violated"
    # The last iterate is 1e-5 from the limit.
    found = verdict_of(limit, loss, flowsim.gradient_descent(loss, model, 0.5, 40))
    assert found.verdict == "unresolved" and "more steps" in found.note
    loss, model = quadratic([0.5, 2.0], [1.0, 1e-9])
    run = flowsim.gradient_descent(loss, model, 1.1, 30)
    assert verdict_of(limit, loss, run).verdict == "unresolved"
    found = verdict_of(end, loss, run)
    assert found.verdict == "unresolved" and "use flowsim.limit" in found.note
    flat = flowsim.FunctionLoss(Quartic(), excess=Quartic(), minimum=0.0)
    run = flowsim.gradient_descent(flat, Vector(jnp.asarray([0.5])), 0.5, 100)
    assert verdict_of(limit, flat, run).verdict == "unresolved"


def test_a_statement_that_depends_on_the_number_of_steps_is_not_judged():
    @flowsim.claim("test.sum", "test")
    def total(descent):
        r"""$\\sum_k L_k \\le 10$"""
        return flowsim.at_most(jnp.sum(descent.excess), 10.0)

    @flowsim.claim("test.shifted", "test")
    def repeated(descent):
        r"""the last loss is compared with itself"""
        after = jnp.append(descent.excess[1:], descent.excess[-1])
        return flowsim.at_most(after, 0.99 * descent.excess)

    @flowsim.claim("test.at", "test")
    def at(descent):
        r"""$x_{10}$ is known"""
        return flowsim.equal(descent.at(10).x, (1 - 0.5 * loss.function.h) ** 10, 1.0)

    @flowsim.claim("test.late", "test")
    def late(descent):
        r"""$x_{60}$ is known"""
        return flowsim.equal(descent.at(60).x, 0.0, 1.0)

    @flowsim.claim("test.before", "test")
    def before(descent):
        r"""$L_{n-2} \\le 0.3$, for 30 steps only"""
        return flowsim.at_most(descent.excess[-3], 0.3)

    @flowsim.claim("test.others", "test")
    def others(descent):
        r"""$\\max_{k<n} L_k \\le 0.3$"""
        return flowsim.at_most(jnp.max(descent.excess[:-1]), 0.3)

    loss, model = quadratic([0.5, 2.0], [1.0, 1e-9])
    run = flowsim.gradient_descent(loss, model, 1.1, 30)
    for claim in (before, others):
        assert "depends on the number of steps" in verdict_of(claim, loss, run).note
    loss, model = quadratic([0.5, 1.5], [1.0, 1.0])
    run = flowsim.gradient_descent(loss, model, 0.5, 40)
    assert verdict_of(total, loss, run).verdict == "unresolved"
    assert verdict_of(repeated, loss, run).verdict == "unresolved"
    assert verdict_of(at, loss, run).verdict == "holds"
    assert "the descent makes 40 steps" in verdict_of(late, loss, run).note


def test_a_hypothesis_may_read_the_step_size():
    def small(loss, descent):
        return [hypothesis("eta <= 1/L", jnp.max(descent.step_size), "<=", 1 / jnp.max(loss.function.h))]

    @flowsim.claim("test.small", "test", hypotheses=small)
    def falls(descent):
        r"""$L_{k+1} \\le L_k$"""
        return flowsim.at_most(descent.excess[1:], descent.excess[:-1])

    loss, model = quadratic([0.5, 2.0], [1.0, 1.0])
    judged = [verdict_of(falls, loss, flowsim.gradient_descent(loss, model, eta, 30)) for eta in (0.4, 1.2)]
    assert [str(one.verdict) for one in judged] == ["holds", "not-applicable"]


@pytest.mark.slow
def test_a_sampled_loss_is_judged_by_measured_errors():
    task = flowsim.LinearRegression(np.diag([0.5, 1.0]), 8)
    loss = flowsim.MonteCarloLoss(task, samples=2048, replicates=4)
    model = balanced(scale=0.3, theta=np.eye(2))
    run = flowsim.gradient_descent(loss, model, 0.05, 20)

    @flowsim.claim("test.falls", "test")
    def falls(descent):
        r"""$L_k \\le c$"""
        return flowsim.at_most(descent.loss, 1.5 * descent.loss[0])

    assert verdict_of(falls, loss, run).verdict in ("holds", "unresolved")


def closed_form(factor):
    """The loss of a quadratic in closed form, times a factor, as a bound."""

    @flowsim.claim("test.exact", "test")
    def known(loss, descent):
        r"""$L_k$ is at most its value"""
        curvature, start = loss.function.h[None], descent.start.x[None]
        contraction = (1 - descent.step_size[:, None] * curvature) ** 2
        losses = curvature * start**2 / 2 * contraction ** descent.t[:, None]
        return flowsim.at_most(descent.excess, factor * jnp.sum(losses, axis=1))

    return known


TRUE, FALSE = closed_form(1 + 1e-9), closed_form(1 - 1e-9)


@pytest.mark.parametrize(("seed", "draws"), [(0, 10), pytest.param(1, 90, marks=pytest.mark.slow)])
def test_random_quadratics_are_never_judged_falsely(seed, draws):
    """True by one part in a billion, and false by as much, for random curvatures, starts and step sizes."""
    drawn = np.random.default_rng(seed)
    for _ in range(draws):
        values = 10.0 ** drawn.uniform(-2, 1, 2)
        eta = float(drawn.uniform(0.05, 2.3) / values.max())
        loss, model = quadratic(values, drawn.standard_normal(2))
        true, wrong = flowsim.judge([TRUE, FALSE], loss, flowsim.gradient_descent(loss, model, eta, 30))
        assert (true.verdict, wrong.verdict) == ("holds", "violated"), (seed, values, model.x, eta, true, wrong)


@pytest.mark.parametrize(
    ("momentum", "direction", "eta"), [(0.9, "gradient", 0.4), (0.0, "sign", 0.3), (0.5, "normalized", 0.3)]
)
def test_momentum_and_directions_are_judged_by_their_own_iterates(momentum, direction, eta):
    """Against the recursion in float64, whose rounding is far below a billionth."""
    curvature, start = np.asarray([0.5, 1.5]), np.asarray([1.0, -0.7])
    loss, model = quadratic(curvature, start)
    run = flowsim.gradient_descent(loss, model, eta, 12, momentum=momentum, direction=direction)
    ways = {"gradient": lambda g: g, "sign": np.sign, "normalized": lambda g: g / np.linalg.norm(g)}
    x, moved, losses = start, np.zeros(2), []
    for _ in range(13):
        losses.append(float(np.sum(curvature * x**2) / 2))
        moved = momentum * moved - eta * ways[direction](curvature * x)
        x = x + moved

    def below(factor):
        most = factor * np.asarray(losses)

        @flowsim.claim("test.known", "test")
        def known(descent):
            r"""$L_k$ is at most a known number"""
            return flowsim.at_most(descent.excess, jnp.pad(jnp.asarray(most), (0, descent.t.size - 13)), size=1.0)

        return known

    true, wrong = flowsim.judge([below(1 + 1e-9), below(1 - 1e-9)], loss, run)
    assert (true.verdict, wrong.verdict) == ("holds", "violated")


@flowsim.claim("test.falls", "test")
def falls(descent):
    r"""$L_{k+1} \\le L_k$"""
    return flowsim.at_most(descent.excess[1:], descent.excess[:-1])


def test_the_edge_of_a_quadratic_is_two_over_its_curvature():
    loss, model = quadratic([0.5, 2.0], [1.0, 1.0])
    found = flowsim.edge(falls, loss, model, 0.5, 1.5, steps=60)
    assert found.holds <= 1.0 + 1e-9 and found.violated >= 1.0 - 1e-9
    assert found.violated - found.holds < 3e-6
    with pytest.raises(ValueError, match=r"low must be a step size for which test\.falls is holds, but it is violated"):
        flowsim.edge(falls, loss, model, 1.2, 1.5, steps=60)


@pytest.mark.slow
def test_the_edge_at_the_minimum_of_one_layer_is_two_over_the_largest_curvature():
    loss = flowsim.LinearAttentionLoss(flowsim.LinearRegression(np.diag([0.5, 1.0, 2.0]), 10))
    best = loss.least_model()
    weights, rest = eqx.partition(best, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(weights)
    gradient = lambda x: ravel_pytree(loss.gradient(eqx.combine(unravel(x), rest)))[0]
    values, vectors = np.linalg.eigh(np.asarray(jax.jacfwd(gradient)(flat)))
    start = eqx.combine(unravel(flat + 1e-8 * vectors[:, -1]), rest)
    bound = 2 / values[-1]
    found = flowsim.edge(falls, loss, start, 0.9 * bound, 1.1 * bound, steps=8)
    np.testing.assert_allclose([found.holds, found.violated], bound, rtol=2e-6)


def product(model):
    return (model[0] * model[1] - 1) ** 2 / 2


@flowsim.claim("test.inside", "test")
def inside(descent):
    r"""$a_k^2 + b_k^2 - \eta a_k b_k \le 4/\eta - \eta$"""
    (a, b), eta = descent.models, descent.step_size[0]
    return flowsim.at_most(a**2 + b**2 - eta * a * b, 4 / eta - eta)


@pytest.mark.parametrize("beyond", [1e-5, *(pytest.param(one, marks=pytest.mark.slow) for one in (1e-3, 1e-4, 1e-6))])
def test_chaotic_descents_that_leave_after_different_numbers_of_steps_are_judged(beyond):
    """Inside the ellipse a descent on a product stays, outside it leaves. Rounding decides after how many steps."""
    loss = flowsim.FunctionLoss(product, excess=product, minimum=0.0)
    # The ellipse through (1/2, .3): .85 eta^2 + .34 eta - 4 = 0.
    edge = (np.sqrt(0.34**2 + 16 * 0.85) - 0.34) / 1.7
    start = jnp.asarray(0.5), jnp.asarray(0.3)
    lengths = set()
    for eta in edge * (1 + beyond * np.linspace(1, 3, 6)):
        run = flowsim.gradient_descent(loss, start, eta, 60)
        lengths.add(run.t.size)
        assert flowsim.check(inside, loss, run).verdict == "violated"
    assert len(lengths) > 1 or beyond < 1e-5
    run = flowsim.gradient_descent(loss, start, edge * (1 - beyond), 10)
    assert flowsim.check(inside, loss, run).verdict == "holds"


class Bessel(eqx.Module):
    """A function that balls do not know."""

    def __call__(self, model):
        return jnp.sum(jax.scipy.special.i0e(model.x) * model.x**2) / 2


@pytest.mark.slow
def test_without_balls_a_margin_has_to_be_clear():
    loss, model = flowsim.FunctionLoss(Bessel()), Vector(jnp.asarray([0.5, 0.2]))
    run = flowsim.gradient_descent(loss, model, 0.5, 30)
    system = loss_system(loss, model)
    assert isinstance(system, LossSystem) and true_iterates(system, run, 1e6) is None

    def above(factor):
        least = factor * np.asarray(run.loss)

        @flowsim.claim("test.above", "test")
        def known(descent):
            r"""$L_k$ is at least a known number"""
            return flowsim.at_least(descent.loss, jnp.pad(jnp.asarray(least), (0, descent.t.size - 31)))

        return known

    judged = [verdict_of(above(1 + gap), loss, run).verdict for gap in (-1e-9, 0.0, 1e-9)]
    assert [str(one) for one in judged] == ["holds", "unresolved", "violated"]


def test_momentum_and_schedules_have_no_bound_on_the_way_to_go():
    loss, model = quadratic([0.5, 2.0], [1.0, 1.0])
    first = lambda model: model.x[0]
    plain, heavy, varied = (
        flowsim.limit(flowsim.gradient_descent(loss, model, eta, 100, momentum=beta), first)[1]
        for eta, beta in ((0.5, 0.0), (0.5, 0.5), (lambda k: 0.5 + 0.1 * (k % 2), 0.0))
    )
    assert 0 < plain[0] < 1e-12 and np.isinf(heavy[0]) and np.isinf(varied[0])
    # One step more than the curvature allows: it grows, however small it is now.
    loss, model = quadratic([0.5, 2.0], [1e-9, 1e-9])
    assert np.isinf(flowsim.limit(flowsim.gradient_descent(loss, model, 1.01, 5), first)[1][0])


def test_what_is_about_flows_refuses_a_claim_about_descents():
    loss, model = quadratic([0.5, 2.0], [1.0, 1.0])
    with pytest.raises(ValueError, match=r"test\.bounded must be a claim about the flow"):
        flowsim.certify(bounded(1.5), loss, model, t1=1.0)
    with pytest.raises(ValueError, match="it is about gradient descent"):
        flowsim.refute(bounded(1.5))
