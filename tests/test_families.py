"""Verdicts on families: at every member, limits, powers of the parameter, and probabilities."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowsim
from flowsim.claims.hypotheses import hypothesis
from flowsim.claims.limits import extrapolated
from flowsim.cli.main import main

NUMBER = st.floats(-5, 5)


class Net(eqx.Module):
    a: jax.Array
    b: jax.Array


LOSS = flowsim.FunctionLoss(lambda net: 0.5 * (net.a * net.b - 1.0) ** 2, minimum=0.0)


def starts_at(scale):
    return LOSS, Net(jnp.asarray(scale), jnp.asarray(2 * scale))


@pytest.fixture(scope="module")
def shrinking():
    """b^2 - a^2 = 3 s^2 is conserved and a b -> 1, so that 1 - a(infinity)^2 = 1.5 s^2 + O(s^4)."""
    return flowsim.Family(starts_at, {"scale": np.geomspace(1e-1, 1e-4, 7)}, stop=flowsim.Stop(excess=1e-26))


def numbers(form, *others, id="mine.numbers", of=lambda net: 1 - net.a**2, **options):
    @flowsim.claim(id, "notes", statement=f"{form.__name__}{others}")
    def claim(flow):
        value, allowance = flowsim.limit(flow, of)
        return form(value, *others, allowance=allowance, **options)

    return claim


def of_start(form, function, *others, **options):
    """A trend of a function of the parameter alone."""

    @flowsim.claim("mine.start", "notes", statement="a trend")
    def claim(start):
        return form(function(start.a), *others, **options)

    return claim


def ladder(values):
    return flowsim.Family(starts_at, {"scale": values}, t1=1e-3)


def only(family, claim):
    (verdict,) = family.judge(claim)
    return verdict


@pytest.mark.parametrize(
    ("power", "bounds", "verdict"),
    [
        (2.0, "both", "holds"),
        (2.01, "both", "violated"),
        pytest.param(1.99, "both", "violated", marks=pytest.mark.slow),
        pytest.param(2.0, "above", "holds", marks=pytest.mark.slow),
        pytest.param(1.9, "above", "holds", marks=pytest.mark.slow),
        (2.1, "above", "violated"),
        pytest.param(2.1, "below", "holds", marks=pytest.mark.slow),
        (1.9, "below", "violated"),
    ],
)
def test_a_power_of_the_scale_is_found_and_a_wrong_one_refused(shrinking, power, bounds, verdict):
    found = only(shrinking, numbers(flowsim.power_law, power, 0.005, bounds=bounds))
    assert found.verdict == verdict
    assert abs(found.constants["extrapolated"] - 2) < found.constants["radius"] < 1e-3
    assert "By extrapolation" in found.note
    assert (found.margin < -found.floor) == (verdict == "violated")


def test_the_numbers_of_the_members_are_those_of_the_exact_solution(shrinking):
    found = shrinking.measured(numbers(flowsim.power_law, 2.0, 0.01))
    gap = 3 * np.asarray(shrinking.values) ** 2
    exact = 1 + gap / 2 - np.sqrt(1 + gap**2 / 4)
    assert np.all(np.abs(found.values - exact) <= found.errors)
    assert np.all(found.errors < 1e-10)


@pytest.mark.parametrize(
    ("limit", "within", "verdict"),
    [
        (1.0, 5e-7, "holds"),
        (1 + 1e-6, 5e-7, "violated"),
        pytest.param(1 - 1e-6, 5e-7, "violated", marks=pytest.mark.slow),
        (1 + 1e-6, 1e-4, "unresolved"),
    ],
)
def test_a_limit_along_the_family(shrinking, limit, within, verdict):
    found = only(shrinking, numbers(flowsim.tends_to, limit, within, of=lambda net: net.a))
    assert found.verdict == verdict
    assert found.where == "scale -> 0.0001"


def test_a_limit_that_is_not_known_well_enough_is_unresolved(shrinking):
    found = only(shrinking, numbers(flowsim.tends_to, 1.0, 1e-12, of=lambda net: net.a))
    assert found.verdict == "unresolved"


@pytest.mark.slow
def test_numbers_whose_flow_ends_too_early_say_so():
    early = flowsim.Family(starts_at, {"scale": np.geomspace(1e-1, 1e-6, 6)})
    found = only(early, numbers(flowsim.power_law, 2.0, 0.01))
    assert found.verdict == "unresolved"
    assert "At scale = 1e-06" in found.note
    assert "stricter stop" in found.note


@pytest.mark.slow
def test_numbers_far_below_the_distance_of_the_end_to_the_limit_are_known():
    """A default stop is 1e-7 from the limit, and the last number is 1.5e-8."""
    scales = np.geomspace(1e-1, 1e-4, 7)
    family = flowsim.Family(starts_at, {"scale": scales})
    claims = [numbers(flowsim.power_law, power, 0.01) for power in (2.0, 2.02, 1.98)]
    assert [one.verdict for one in family.judge(claims)] == ["holds", "violated", "violated"]
    found, gap = family.measured(claims[0]), 3 * scales**2
    assert np.all(np.abs(found.values - (1 + gap / 2 - np.sqrt(1 + gap**2 / 4))) <= found.errors)
    assert np.all(found.errors < 1e-10)


@pytest.mark.slow
def test_a_logarithm_is_not_of_the_order_of_its_power():
    squared = ladder([10.0**-power for power in (1, 2, 4, 8, 16, 32, 64)])
    times_log = lambda a: a * jnp.log(1 / a)
    theta = only(squared, of_start(flowsim.power_law, times_log, 1.0, 0.1))
    assert theta.verdict == "unresolved"
    assert "a logarithm may be missing" in theta.note
    assert theta.constants["largest_factor"] > 50 * theta.constants["least_factor"]
    assert only(squared, of_start(flowsim.power_law, times_log, 0.9, 0.05, bounds="above")).verdict == "holds"
    assert only(squared, of_start(flowsim.power_law, times_log, 1.1, 0.05, bounds="above")).verdict == "violated"


@pytest.mark.slow
def test_powers_of_a_parameter_that_grows():
    growing = ladder([10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0])
    of = lambda a: 1 / (a + 3)
    assert only(growing, of_start(flowsim.power_law, of, -1.0, 0.05)).verdict == "holds"
    assert only(growing, of_start(flowsim.power_law, of, -1.1, 0.05)).verdict == "violated"
    assert only(growing, of_start(flowsim.power_law, of, -0.9, 0.05, bounds="above")).verdict == "holds"
    assert only(growing, of_start(flowsim.power_law, of, -1.1, 0.05, bounds="above")).verdict == "violated"


def test_a_power_needs_positive_numbers_in_order():
    of = lambda a: a - 0.4
    assert "positive" in only(ladder([1.0, 0.5, 0.25, 0.1, 0.05, 0.01]), of_start(flowsim.power_law, of, 1, 0.1)).note
    mixed = ladder([1.0, 0.25, 0.5, 0.1, 0.05, 0.01])
    assert "increase or decrease" in only(mixed, of_start(flowsim.power_law, lambda a: a, 1, 0.1)).note


@pytest.mark.slow
def test_a_comparison_is_judged_at_every_member(shrinking):
    @flowsim.claim("mine.order", "notes")
    def ordered(flow):
        """$b > a$"""
        return flowsim.at_least(flow.models.b, flow.models.a)

    @flowsim.claim("mine.below", "notes")
    def below(flow):
        """$a <= 0.95 + s$, which fails for small s"""
        return flowsim.at_most(flow.models.a, 0.95 + flow.start.a)

    holds, fails = shrinking.judge([ordered, below])
    assert holds.verdict == "holds"
    assert "each of 7 members" in holds.note
    assert fails.verdict == "violated"
    assert "scale = 0.0001, t = " in str(fails.where)


def test_members_that_do_not_meet_the_hypotheses_do_not_count(shrinking):
    small = lambda loss, start: [hypothesis("a small start", start.a, "<", 1e-2)]

    @flowsim.claim("mine.above", "notes", hypotheses=small)
    def tends_to_one(flow):
        """the end is near 1"""
        value, allowance = flowsim.limit(flow, lambda net: net.a)
        return flowsim.at_least(value, 0.999, allowance=allowance)

    found = only(shrinking, tends_to_one)
    assert found.verdict == "holds"
    assert "each of 4 members" in found.note


@pytest.fixture(scope="module")
def seeds():
    def drawn(seed):
        a, b = np.random.default_rng(seed).standard_normal(2)
        return LOSS, Net(jnp.asarray(a), jnp.asarray(b))

    return flowsim.Family(drawn, {"seed": range(80)}, t1=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("probability", "verdict"), [(0.3, "holds"), (0.7, "violated"), (0.5, "unresolved")])
def test_a_probability_over_independent_starts(seeds, probability, verdict):
    @flowsim.claim("mine.likely", "notes")
    def positive(start):
        """$a(0) > 0$ with some probability; it is one half"""
        return flowsim.with_probability(probability, flowsim.at_least(start.a, 0.0, size=1.0))

    found = only(seeds, positive)
    assert found.verdict == verdict
    assert found.constants["probability_low"] < 0.5 < found.constants["probability_high"]


def test_a_family_of_a_problem_file_and_a_claim_of_a_paper():
    text = "[task]\ncontext_length = 10\ncovariance = {eigenvalues = [0.5, 1, 2]}\n"
    spec = flowsim.ProblemSpec.from_toml(text + "[init]\nkind = 'balanced'\nscale = 0.3\n")
    family = flowsim.Family(spec, {"init.scale": [0.3, 0.1]})
    (claim,) = (one for one in flowsim.ALL_CLAIMS if (one.id, one.form) == ("zhang2023.lemma-5.4.pl", "printed"))
    found = only(family, claim)
    assert found.verdict == "holds"
    assert "init.scale = " in str(found.where)
    assert float(family.evidence(1).trajectory.start.u_minus1) != float(family.evidence(0).trajectory.start.u_minus1)


@given(limit=NUMBER, size=NUMBER, factor=st.floats(0.01, 0.8), count=st.integers(5, 12), seed=st.integers(0, 99))
@settings(max_examples=300, deadline=None)
def test_the_limit_of_a_geometric_sequence_is_never_far_outside(limit, size, factor, count, seed):
    errors = np.full(count, 1e-10)
    noise = np.random.default_rng(seed).uniform(-1, 1, count)
    found = extrapolated(limit + size * factor ** np.arange(count) + errors * noise, errors)
    assert isinstance(found, str) or abs(found.centre - limit) <= found.radius


@pytest.mark.parametrize("power", [0.3, 0.5, 1.0, 2.0])
def test_a_slow_sequence_is_not_taken_for_a_fast_one(power):
    for count in range(5, 30):
        found = extrapolated(np.arange(1.0, count + 1) ** -power, np.full(count, 1e-12))
        assert isinstance(found, str) or abs(found.centre) <= found.radius


@pytest.mark.parametrize(
    "values",
    [
        [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1.0],  # jumps at the end
        [1, 0, 1, 0.5, 0.5001, 0.5],  # settles by accident
        [1, 2, 4, 8, 16, 32],
        [0, 1, 0, 1, 0, 1],
    ],
)
def test_what_does_not_settle_has_no_limit(values):
    assert isinstance(extrapolated(np.asarray(values, dtype=float), np.full(len(values), 1e-9)), str)


def test_four_members_are_too_few():
    assert "5 numbers or more" in extrapolated(np.zeros(4), np.zeros(4))


def test_a_trend_along_one_flow_says_what_to_do(shrinking):
    claim = numbers(flowsim.tends_to, 1.0, 1e-3)
    evidence = shrinking.evidence(0)
    with pytest.raises(ValueError, match="judged over a family"):
        flowsim.check(claim, evidence.loss, evidence.trajectory)


def test_bad_families_are_refused_in_one_line(shrinking):
    with pytest.raises(ValueError, match="one parameter"):
        flowsim.Family(starts_at, {"scale": [1.0, 2.0], "size": [1, 2]})
    with pytest.raises(ValueError, match="at least two values, all different"):
        flowsim.Family(starts_at, {"scale": [1.0, 1.0]})
    with pytest.raises(ValueError, match="above"):
        flowsim.power_law(1.0, 2.0, 0.1, bounds="upper")
    with pytest.raises(ValueError, match="one number for each member"):
        flowsim.tends_to(jnp.ones(3), 2.0, 0.1)
    with pytest.raises(ValueError, match="between 0 and 1"):
        flowsim.with_probability(1.5, flowsim.at_least(1.0, 0.0))
    with pytest.raises(ValueError, match="comparison must be one for each draw"):
        flowsim.with_probability(0.5, flowsim.tends_to(1.0, 2.0, 0.1))
    others: list[Any] = [3, starts_at(1.0)[::-1]]
    for made in others:
        with pytest.raises(ValueError, match=r"make must be a function that returns \(loss, start\)"):
            flowsim.Family(lambda scale, made=made: made, {"scale": [1.0, 2.0]}).evidence(0)
    with pytest.raises(ValueError, match="a trend, as"):
        shrinking.measured(flowsim.claim("mine.a", "notes", statement="a")(lambda flow: flowsim.at_least(flow.t, 0.0)))


@pytest.mark.slow
def test_a_limit_that_is_no_number_or_differs_among_the_members_is_refused():
    loss = flowsim.FunctionLoss(lambda net: jnp.sum((net.a * net.b - 1.0) ** 2), minimum=0.0)
    of_size = lambda size: (loss, Net(jnp.full(size, 0.1), jnp.full(size, 0.2)))
    sizes = flowsim.Family(of_size, {"size": range(1, 6)}, t1=1e-3)
    scales = ladder([1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
    for within in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match=r"within of mine\.start must be positive and finite"):
            scales.judge(of_start(flowsim.tends_to, lambda a: a, 0.0, within))
    for limit in (np.nan, np.inf):
        with pytest.raises(ValueError, match=r"the limit or power of mine\.start must be finite"):
            scales.judge(of_start(flowsim.tends_to, lambda a: a, limit, 0.1))
    for form in (lambda a: flowsim.tends_to(a, a, 0.1), lambda a: flowsim.power_law(a, jnp.where(a > 0.05, 1, 2), 0.1)):
        with pytest.raises(ValueError, match="the same for all members, but it is .* at scale = 0.01"):
            scales.judge(of_start(form, lambda a: a))
    with pytest.raises(ValueError, match="the same statement at all members, but it is another one at size = 2"):
        wide = lambda size: flowsim.power_law(1.0, 1.0, 0.1, bounds="above" if size == 1 else "below")
        sizes.judge(of_start(wide, lambda a: a.size))


def test_a_statement_for_all_times_says_until_when_it_was_judged():
    """a tends to 1/sqrt 2 or more: it is below 1/2 for a while."""
    cut = flowsim.Family(starts_at, {"scale": [0.1, 0.12, 0.14, 0.16, 0.18]}, t1=0.5)
    small = lambda flow: flowsim.at_most(flow.models.a, 0.5)
    of = lambda compare: flowsim.claim("mine.small", "notes", statement="a is small")(compare)
    for claim in (of(small), of(lambda flow: flowsim.with_probability(0.1, small(flow)))):
        found = only(cut, claim)
        assert found.in_words() == "holds until t = 0.5" and found.cut


def test_the_error_of_a_logarithm_is_that_of_the_least_number():
    """A number known within 90% may be a tenth of itself: a power that explains this is not refused."""
    scales = ladder([10.0**-k for k in range(1, 8)])
    known = of_start(lambda a: flowsim.power_law(a, 1.5, 0.1, allowance=0.9 * a), lambda a: a)
    assert only(scales, known).verdict == "unresolved"


def test_parameters_may_be_numbers_of_jax_and_text_has_no_power():
    of = lambda a: a
    assert only(ladder(jnp.geomspace(1e-1, 1e-6, 6)), of_start(flowsim.power_law, of, 1.0, 0.1)).verdict == "holds"
    sizes = dict(zip("uvwxyz", np.geomspace(1e-1, 1e-6, 6), strict=True))
    named = flowsim.Family(lambda scale: starts_at(sizes[scale]), {"scale": sizes}, t1=1e-3)
    assert only(named, of_start(flowsim.tends_to, of, 0.0, 0.1)).verdict == "holds"
    assert "must be numbers" in only(named, of_start(flowsim.power_law, of, 1.0, 0.1)).note


def test_claims_about_other_models_and_about_descents_do_not_read_the_members():
    family = ladder([1.0, 0.1])
    (claim,) = (one for one in flowsim.ALL_CLAIMS if (one.id, one.form) == ("zhang2023.lemma-5.4.pl", "printed"))
    assert only(family, claim).verdict == "not-applicable"

    @flowsim.claim("mine.steps", "notes")
    def steps(descent):
        """$eta <= 1$"""
        return flowsim.at_most(descent.step_size, 1.0)

    with pytest.raises(ValueError, match=r"mine\.steps must be a claim about the flow"):
        family.judge(steps)


OWN = """
import equinox as eqx, jax, jax.numpy as jnp, flowsim
class Net(eqx.Module):
    a: jax.Array
    b: jax.Array
def make(scale=0.1):
    loss = flowsim.FunctionLoss(lambda net: 0.5 * (net.a * net.b - 1.0) ** 2, minimum=0.0)
    return loss, Net(jnp.asarray(scale), jnp.asarray(2 * scale))
@flowsim.claim("mine.small", "notes")
def small(start):
    "a(0) = O(s^2), which is false"
    return flowsim.power_law(start.a, POWER, 0.01, bounds="above")
"""


@pytest.mark.parametrize(("power", "status"), [("1", 0), ("2", 1)])
def test_the_command_judges_over_a_family(tmp_path, capsys, power, status):
    file = tmp_path / "own.py"
    file.write_text(OWN.replace("POWER", power))
    over = ["--over", "scale=geom:1e-1:1e-5:6", "--set", "flow.t1=1e-3", "--strict"]
    assert main(["check", f"{file}:small", f"{file}:make", *over]) == status
    said = capsys.readouterr().out
    assert "By extrapolation from scale = 0.1 to 1e-05: 1 +- " in said
    assert ("violated" in said) == (status == 1)


def test_the_command_refuses_a_trend_on_one_problem_and_two_axes(tmp_path, capsys):
    file = tmp_path / "own.py"
    file.write_text(OWN.replace("POWER", "1"))
    assert main(["check", f"{file}:small", f"{file}:make", "--set", "flow.t1=1e-3"]) == 2
    assert "judged over a family" in capsys.readouterr().err
    assert main(["check", f"{file}:small", f"{file}:make", "--over", "scale=1,2", "--over", "flow.t1=1,2"]) == 2
    assert "one field that varies" in capsys.readouterr().err


@pytest.mark.parametrize(("power", "verdict"), [(0.9633, "unresolved"), (0.9, "violated"), (1.03, "violated")])
def test_an_oscillation_with_the_period_of_the_ladder_violates_nothing_within_the_accuracy(power, verdict):
    """The phase 2 log s moves by 2 pi less .04 from one member to the next, so that the slopes seem to converge: to
    .96214, with an interval of 2e-4, where the power is .9633.
    """

    def value(a):
        return (86.8 * a**0.9633 + 29.1 * a**1.445) * (1 + 0.5 * jnp.sin(2 * jnp.log(a)))

    found = ladder(np.geomspace(0.0749746, 1.24152e-8, 6)).judge(of_start(flowsim.power_law, value, power, 0.05))[0]
    assert found.verdict == verdict, found
    assert found.constants["radius"] < abs(found.constants["extrapolated"] - 0.9633) < 3e-3
