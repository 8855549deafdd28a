"""Statements that were once proved although they are false, or not defined."""

import math

import flint
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim
from flowsim.claims.proofs import FollowedFlow, OpenError, check, checker, identities
from flowsim.claims.proofs.program import program
from flowsim.problem import spec_of
from tests.helpers import quadratic


def proof(compare, *targets, start, t1=math.inf, **how):
    claim = flowsim.claim("mine.statement", "a test", statement="a statement")(compare)
    return flowsim.certify(claim, quadratic(*targets), jnp.asarray(start), t1=t1, **how)


def is_proved(*given, **more):
    try:
        return "proved" in check(proof(*given, **more))
    except OpenError:
        return False


# --- A function that jumps at the limit ---------------------------------------------------------------------------

JUMPS = {  # at w = 1, with the value there
    "a step": (lambda w: jnp.where(w[0] > 1, 1.0, 0.0), 0.0),
    "a step that is closed": (lambda w: jnp.where(w[0] >= 1, 0.0, 1.0), 0.0),
    "a count": (lambda w: jnp.sum(jnp.where(w > 1, 1.0, 0.0)), 0.0),
    "an equality": (lambda w: jnp.where(w[0] == 1, 0.0, 1.0), 0.0),
}
CONTINUOUS = {
    "a size": (lambda w: jnp.abs(w[0] - 1), 0.0),
    "a maximum": (lambda w: jnp.maximum(w[0], 2 - w[0]), 1.0),
    "a branch that meets the other": (lambda w: jnp.where(w[0] > 1, w[0] ** 2, w[0]), 1.0),
    "a root of a square": (lambda w: jnp.sqrt((w[0] - 1) ** 2), 0.0),
}


def tends_to(f, value):
    def compare(flow):
        found, allowance = flowsim.limit(flow, f)
        return flowsim.equal(found, value, 1.0, allowance=allowance)

    return compare


@pytest.mark.parametrize("name", JUMPS)
def test_the_value_at_the_limit_is_not_taken_for_the_limit_of_the_values(name):
    assert not is_proved(tends_to(*JUMPS[name]), 1.0, start=[1.5])


def test_a_root_of_what_is_negative_on_the_way_has_no_limit():
    assert not is_proved(tends_to(lambda w: jnp.sqrt(w[0] - 1), 0.0), 1.0, start=[0.5])


@pytest.mark.parametrize("name", CONTINUOUS)
def test_branches_that_agree_in_the_limit_have_a_limit(name):
    assert is_proved(tends_to(*CONTINUOUS[name]), 1.0, start=[1.5])


def test_a_jump_at_the_limit_bounds_nothing():
    def below(bound):
        def compare(flow):
            found, allowance = flowsim.limit(flow, lambda w: jnp.where(w[0] > 1, 1.0, 0.0))
            return flowsim.at_most(found, bound, allowance=allowance)

        return compare

    assert not is_proved(below(0.5), 1.0, start=[1.5])
    assert is_proved(below(1.1), 1.0, start=[1.5])


# --- Statements that read how many times a flow has, or how late it ends --------------------------------------------

OF_ALL_TIMES = {
    "a tenth of the times": lambda flow: flow.models[flow.t.size // 10, 0],
    "a bound for few times": lambda flow: 3.0 if flow.t.size < 10 else 0.0,
    "a bound for late ends": lambda flow: jnp.where(flow.t[-1] > 50, 0.0, 3.0),
}


@pytest.mark.parametrize("until", [1.0, math.inf])
@pytest.mark.parametrize("name", OF_ALL_TIMES)
def test_what_reads_the_number_of_times_is_not_proved_at_each(name, until):
    # w falls from 2 to 1, so that it is above what it is later.
    assert not is_proved(lambda flow: flowsim.at_most(flow.models[:, 0], OF_ALL_TIMES[name](flow)), 1.0, start=[2.0])


def test_what_reads_a_tenth_of_the_times_has_no_limit():
    tenth = lambda flow: flowsim.at_most(flow.models[flow.t.size // 10, :1], 2.5, allowance=flow.way_to_go)
    assert not is_proved(tenth, 3.0, start=[2.0])


NEAR_HALFWAY = lambda flow: jnp.any(jnp.abs(flow.models[:, 0] - 1.5) < 0.01)


def test_what_reads_other_rows_in_a_narrow_window_is_not_proved():
    """w falls from 2 to 1 and is near 3/2 at t = log 2. No random weights are."""
    at_rest = lambda flow: flowsim.at_most(jnp.where(NEAR_HALFWAY(flow), 1.0, 0.0)[None], 0.5, allowance=flow.way_to_go)
    assert not is_proved(at_rest, 1.0, start=[2.0])
    bound = lambda flow: jnp.where(NEAR_HALFWAY(flow), 1.6, 3.0)
    for until in (1.0, math.inf):
        assert not is_proved(lambda flow: flowsim.at_most(flow.models[:, 0], bound(flow)), 1.0, start=[2.0], t1=until)


# --- What float64 would decide ---------------------------------------------------------------------------------------

FIRST = lambda flow: flow.models[0, 0]
ROUNDED = {  # with w(0): numbers that float64 rounds to the other side of where something jumps
    "7.99.. as a whole number": (0.7, lambda flow: 7.5 - _whole(10 * (FIRST(flow) + 0.1))),
    "zero as a truth value": (0.1, lambda flow: jnp.where((FIRST(flow) + 0.2 - 0.3).astype(bool), 1.0, -1.0)),
    "the first of two equal numbers": (
        0.1,
        lambda flow: jnp.argmax(jnp.stack([0.3 * FIRST(flow) / FIRST(flow), FIRST(flow) + 0.2])).astype(float) - 0.5,
    ),
    "a matrix that is nearly diagonal": (
        0.1,
        lambda flow: 3 - jnp.linalg.eigvalsh(jnp.diag(jnp.asarray([1.0, 2.0])) + _tiny(flow) * (1 - jnp.eye(2)))[1],
    ),
    "an exponent that is nearly whole": (0.1, lambda flow: 1e17 * (2.0 ** (3 + 1e-17 * _tiny(flow)) - 8)),
}


def _whole(x):
    return x.astype(int).astype(float)


def _tiny(flow):
    """-4, which is zero in float64."""
    return (FIRST(flow) + 0.2 - 0.30000000000000004) * 1e17


@pytest.mark.parametrize("name", ROUNDED)
def test_numbers_that_no_weight_moves_are_not_decided_in_float64(name):
    start, value = ROUNDED[name]
    assert not is_proved(lambda flow: flowsim.at_least(value(flow) + 0 * flow.t, 0.0), start, start=[start], t1=1.0)


def test_whole_numbers_and_their_largest_are_decided_where_they_are_clear():
    whole = lambda flow: flowsim.at_least(_whole(10 * FIRST(flow)) + 0 * flow.t, 7.0)
    assert is_proved(whole, 0.75, start=[0.75], t1=1.0)
    assert not is_proved(whole, -7.99, start=[-7.99], t1=1.0)
    largest = lambda flow: flowsim.at_least(jnp.argmax(flow.models[0]).astype(float) + 0 * flow.t, 1.0)
    assert is_proved(largest, 0.5, 1.5, start=[0.5, 1.5], t1=1.0)


def test_a_start_that_is_computed_is_not_compared_as_the_float64_next_to_it():
    """|U|^2 = u^2 at the start of this table, and not in float64."""
    task = {"covariance": {"eigenvalues": [1.0, 2.0, 3.0]}, "context_length": 10}
    spec = spec_of({"task": task, "init": {"scale": 0.21}})
    problem = spec.build()
    followed = FollowedFlow(problem.loss, problem.start, spec.start_from_tables)
    differs = lambda flow: flowsim.at_least(
        jnp.where(flow.models.u_minus1[0] ** 2 == jnp.sum(flow.models.U11[0] ** 2), -1.0, 1.0) + 0 * flow.t, 0.0
    )
    claim = flowsim.claim("mine.statement", "a test", statement="a statement")(differs)
    with pytest.raises(OpenError, match="too near to each other"):
        flowsim.certify(claim, problem.loss, problem.start, t1=0.01, followed=followed)


# --- What is not defined ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("promised", [lambda t: (t > 0.4) & (t < 0.5), lambda t: t > 1.4], ids=["a window", "late"])
def test_zero_times_a_number_that_does_not_exist_is_not_zero(promised):
    """2t - t - t is exactly zero at the middle of a piece, and has no derivatives anywhere else."""
    value = lambda t: 1 + (2 * t - t - t) * jnp.log(-1.0)
    compare = lambda flow: flowsim.at_least(value(flow.t), 0.0, promised=promised(flow.t))
    assert not is_proved(compare, 1.0, start=[2.0], t1=1.0)


def test_a_certificate_of_what_does_not_exist_is_refused():
    found = proof(lambda flow: flowsim.at_least(1 + (2 * flow.t - flow.t - flow.t), 0.0), 1.0, start=[2.0], t1=1.0)
    operations = found["sides"]["operations"]
    assert "proved" in check(found)
    count = len(operations)
    operations += [["number", [], ["-1"]], ["log", [count], None], ["mul", [found["sides"]["result"], count + 1], None]]
    found["sides"]["result"] = count + 2
    found["digest"] = checker.digest(found)
    with pytest.raises(checker.RefusedError):
        check(found)


@pytest.mark.parametrize("function", [jnp.log, jnp.sqrt, lambda x: 1 / x], ids=["logarithm", "root", "inverse"])
def test_an_equality_of_what_is_not_defined_is_not_proved(function):
    """Of w - 1/4, where w = e^{-t}."""
    alike = lambda read: lambda flow: flowsim.equal(function(read(flow)) + 0 * flow.t, function(read(flow)), 1.0)
    assert not is_proved(alike(lambda flow: flow.models[:, 0] - 0.25), 0.0, start=[1.0])
    assert is_proved(alike(lambda flow: jnp.sum(flow.models**2, axis=1) + 0.25), 0.0, start=[1.0])
    assert is_proved(alike(lambda flow: jnp.maximum(flow.models[:, 0] - 0.25, 0.125)), 0.0, start=[1.0])
    assert is_proved(alike(lambda flow: jnp.abs(flow.models[:, 0] - 0.25) + 0.5), 0.0, start=[1.0])
    assert not is_proved(alike(lambda flow: jnp.maximum(flow.models[:, 0] - 0.25, -0.125)), 0.0, start=[1.0])
    assert not is_proved(alike(lambda flow: jnp.minimum(flow.models[:, 0] - 0.25, 0.5)), 0.0, start=[1.0])


NOWHERE = {"1/0": ["div", [0, 1]], "log(-1)": ["log", [2]], "the root of -1": ["sqrt", [2]]}


@pytest.mark.parametrize("name", NOWHERE)
def test_numbers_that_are_not_defined_do_not_cancel_in_an_equality(name):
    found = proof(lambda flow: flowsim.equal(flow.models[:, 0], flow.models[:, 0], 1.0), 0.0, start=[1.0])
    numbers = [["number", [], [text]] for text in ("1", "0", "-1")]
    found["sides"] = {"operations": [*numbers, [*NOWHERE[name], None], ["sub", [3, 3], None]], "result": 4}
    found["digest"] = identities.digest(found)
    with pytest.raises(identities.RefusedError):
        check(found)


def test_a_number_of_a_claim_that_was_rounded_is_not_told_apart_from_the_limit():
    """The float64 next to 1/3 is below it. That of a loss is the same number in a claim."""
    third = flowsim.FunctionLoss(lambda w: (3 * w[0] - 1) ** 2 / 2, minimum=0.0)
    rounded = flowsim.FunctionLoss(lambda w: (w[0] - 1 / 3) ** 2 / 2, minimum=0.0)

    def shown(loss, bound, **how):
        claim = flowsim.claim("mine.statement", "a test", statement="a statement")
        compare = claim(lambda flow: flowsim.at_most(flow.models[:, 0], bound))
        try:
            return check(flowsim.certify(compare, loss, jnp.zeros(1), t1=6.0, **how))
        except OpenError:
            return "open"

    assert shown(third, 1 / 3, refutes=True) == shown(third, 1 / 3 + 1e-15, refutes=True) == "open"
    assert "refuted" in shown(third, 1 / 3 - 1e-9, refutes=True)
    assert "proved" in shown(rounded, 1 / 3)


def test_a_matrix_that_is_not_positive_definite_has_no_factor_at_all():
    """[1 1; 1 w] with w = 3 e^{-t}/2, below 1 from t = log(3/2) on. The first entry of its factor depends on no w."""
    matrix = lambda w: jnp.asarray([[1.0, 1.0], [1.0, 0.0]]) + w[0] * jnp.diag(jnp.asarray([0.0, 1.0]))
    first = lambda flow: jax.vmap(lambda w: jnp.linalg.cholesky(matrix(w))[0, 0])(flow.models)
    # Where it promises nothing it is not compared in float64.
    compare = lambda flow: flowsim.at_least(first(flow), 0.5, promised=flow.t > 0.3)
    assert not is_proved(compare, 0.0, start=[1.5], t1=1.0)
    assert is_proved(compare, 1.2, start=[1.5], t1=1.0)


# --- Weights that move at some weights alone --------------------------------------------------------------------------


def test_a_weight_that_moves_for_a_moment_is_not_held_fixed():
    """Far from 1 the exponential is exactly zero in float64, and nowhere else."""
    bump = lambda w: jnp.exp(-((200 * (w - 1)) ** 2))
    loss = flowsim.FunctionLoss(lambda w: (w[0][0] - 2) ** 2 / 2 + 1e-10 * bump(w[0][0]) * w[1][0])
    with pytest.raises(ValueError, match="moves a weight everywhere or nowhere"):
        flowsim.enclose(loss, (jnp.zeros(1), jnp.ones(1)), t1=3.0)


# --- Operations of JAX ------------------------------------------------------------------------------------------------


def test_the_eigenvalues_of_an_upper_triangle_are_those_of_that_triangle():
    upper = lambda w: jax.lax.linalg.eigh(w.reshape(2, 2), lower=False, symmetrize_input=False)[1]
    listed = program(lambda weights: upper(weights), weights=jax.ShapeDtypeStruct((4,), float))
    weights = [1.0, 2.0, 5.0, -1.0]
    with flint.ctx.workprec(100):
        found = [float(x) for x in checker.Program(listed)(weights=[flint.arb(w) for w in weights])]
    assert found == pytest.approx(np.linalg.eigvalsh([[1.0, 2.0], [2.0, -1.0]]))
