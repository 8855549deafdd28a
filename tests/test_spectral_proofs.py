"""Certificates with eigenvalues, with numbers that were rounded, and with comparisons of known numbers."""

import copy
import itertools
import json
from fractions import Fraction

import flint
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flint import arb

import flowsim
from flowsim.claims.proofs import OpenError, checker
from flowsim.claims.proofs.program import program

TASK = flowsim.LinearRegression(jnp.eye(2), 5)
LOSS, START = flowsim.LinearAttentionLoss(TASK), flowsim.LinearAttention(jnp.eye(2), jnp.asarray(0.5))
BAND = np.asarray([[2.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 2.0]])
SQUARE = np.asarray([[1.0, 2.0], [3.0, 4.0]])
SINGLE = np.asarray([[0.0, 3.0], [1.0, 0.0], [0.0, 4.0]])

# Of each number its value by hand.
NUMBERS = {
    "largest eigenvalue": (lambda: jnp.linalg.eigvalsh(jnp.asarray(BAND))[-1], 2 + 2**0.5),
    "least eigenvalue": (lambda: jnp.linalg.eigvalsh(jnp.asarray(BAND))[0], 2 - 2**0.5),
    "eigenvalue in the middle": (lambda: jnp.linalg.eigvalsh(jnp.asarray(BAND))[1], 2.0),
    "eigenvalue that is not simple": (lambda: jnp.linalg.eigvalsh(jnp.eye(3) + jnp.ones((3, 3)))[1], 1.0),
    "largest singular value": (lambda: jnp.linalg.norm(jnp.asarray(SQUARE), ord=2), (15 + 221**0.5) ** 0.5),
    "least singular value": (lambda: jnp.linalg.norm(jnp.asarray(SQUARE), ord=-2), (15 - 221**0.5) ** 0.5),
    "nuclear norm": (lambda: jnp.linalg.norm(jnp.asarray(SINGLE), ord="nuc"), 6.0),
    "entry of an eigenvector": (lambda: jnp.abs(jnp.linalg.eigh(jnp.asarray(BAND))[1][1, 2]), 2**-0.5),
    "entry of Q": (lambda: jnp.abs(jnp.linalg.qr(jnp.asarray(SQUARE))[0][1, 0]), 0.9**0.5),
    "diagonal of R": (lambda: jnp.abs(jnp.diag(jnp.linalg.qr(jnp.asarray(SQUARE))[1])[1]), 0.4**0.5),
}

QUICK = ("least eigenvalue", "largest singular value", "entry of Q")


def claimed(compare):
    return flowsim.claim("mine.number", "a test", statement="a number")(lambda loss: compare())


def is_shown(claim, refutes):
    """Whether there is a certificate, which its checker accepts."""
    try:
        certificate = flowsim.certify(claim, LOSS, START, refutes=refutes)
    except OpenError:
        return False
    return checker.check(json.loads(json.dumps(certificate))) == ("refuted" if refutes else "proved")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in NUMBERS]
)
def test_a_billionth_on_either_side_is_told_apart(name):
    number, value = NUMBERS[name]
    assert float(number()) == pytest.approx(value, rel=1e-14)
    for statement, sign in ((flowsim.at_most, 1), (flowsim.at_least, -1)):
        true = claimed(lambda statement=statement, sign=sign: statement(number(), value * (1 + sign * 1e-9)))
        false = claimed(lambda statement=statement, sign=sign: statement(number(), value * (1 - sign * 1e-9)))
        assert (is_shown(true, False), is_shown(true, True)) == (True, False)
        assert (is_shown(false, False), is_shown(false, True)) == (False, True)


def above(matrix, number):
    """How many eigenvalues of a symmetric matrix are larger than a number, in fractions.

    All roots of the characteristic polynomial of A - c are real, so that as many are positive as its coefficients
    change their sign (Descartes).
    """
    n = len(matrix)
    A = [[x - (number if i == j else 0) for j, x in enumerate(row)] for i, row in enumerate(matrix)]
    coefficients, power = [Fraction(1)], [[Fraction(0)] * n for _ in range(n)]
    for k in range(1, n + 1):  # Faddeev and LeVerrier
        moved = [[x + (coefficients[-1] if i == j else 0) for j, x in enumerate(row)] for i, row in enumerate(power)]
        power = [[sum(a * m[j] for a, m in zip(row, moved, strict=True)) for j in range(n)] for row in A]
        coefficients.append(sum((power[i][i] for i in range(n)), Fraction(0)) / Fraction(-k))
    signs = [c > 0 for c in coefficients if c]
    return sum(one != other for one, other in itertools.pairwise(signs))


def test_the_oracle_counts_eigenvalues():
    values, matrix = [1, 1, 4], [[Fraction(2 if i == j else 1) for j in range(3)] for i in range(3)]
    for number in map(Fraction, (0, 1, 2, 4, 5)):
        assert above(matrix, number) == sum(value > number for value in values)


@pytest.mark.parametrize("seed", range(16))
def test_random_eigenvalues_and_singular_values_are_where_fractions_say(seed):
    rng = np.random.default_rng(seed)
    m, n = rng.integers(1, 6, size=2)
    A = rng.integers(-4, 5, size=(m, n)) * 2.0 ** rng.integers(-20, 3, size=(m, 1))
    A = A[:, rng.integers(0, n, size=n)] if seed % 2 else A  # of low rank, with eigenvalues that are equal
    both = np.block([[np.zeros((m, m)), A], [A.T, np.zeros((n, n))]])
    for function, given, matrix in (
        (lambda x: jnp.linalg.eigvalsh(x), A.T @ A, A.T @ A),
        (lambda x: jnp.linalg.svd(x, compute_uv=False)[::-1], A, both),
    ):
        listed = program(function, x=jax.ShapeDtypeStruct(given.shape, float))
        with flint.ctx.workprec(128):
            balls = checker.Program(listed)(x=[arb(x) for x in given.ravel().tolist()])
        exact = [list(map(Fraction, row)) for row in matrix.tolist()]
        opposite = [[-x for x in row] for row in exact]
        for larger, ball in enumerate(balls[::-1]):
            low, high = (_fraction(end) for end in (ball.lower(), ball.upper()))
            # At most as many are above it as there should be, and it is one of at least so many.
            assert above(exact, high) <= larger < len(exact) - above(opposite, -low)
            assert high - low < Fraction(1, 10**15) * (1 + abs(high))


def _fraction(x):
    mantissa, exponent = map(int, x.man_exp())
    return Fraction(mantissa) * Fraction(2) ** exponent


def test_all_matrices_of_a_ball_have_their_eigenvalues_in_the_balls():
    entries, wide = [1.0, 0.3, 0.3, 2.0], 0.01
    with flint.ctx.workprec(128):
        balls = checker.eigenvalues([arb(x, wide) for x in entries], 2)
    rng = np.random.default_rng(0)
    for a, b, c in rng.uniform(-wide, wide, size=(50, 3)):
        values = np.linalg.eigvalsh([[1 + a, 0.3 + b], [0.3 + b, 2 + c]])
        assert all(ball.contains(arb(x)) for ball, x in zip(balls, values, strict=True))


def test_an_eigenvector_of_an_eigenvalue_that_is_not_simple_is_not_known():
    matrix = jnp.eye(3) + jnp.ones((3, 3))
    first = lambda: jnp.abs(jnp.linalg.eigh(matrix)[1][0, 0])
    value = float(first())
    for bound in (0.5 * value, 2 * value + 0.1):
        assert not is_shown(claimed(lambda bound=bound: flowsim.at_most(first(), bound)), False)
        assert not is_shown(claimed(lambda bound=bound: flowsim.at_most(first(), bound)), True)


# --- Along a flow ---------------------------------------------------------------------------------------------------


def test_eigenvalues_along_a_flow_are_refuted_at_a_time_and_not_proved():
    loss = flowsim.FunctionLoss(lambda w: jnp.sum(w**2) / 2, minimum=0.0)

    def largest(bound):
        @flowsim.claim("mine.eigenvalue", "a test", statement="an eigenvalue along the flow")
        def claim(flow):
            matrices = flow.models[:, :, None] * flow.models[:, None, :]  # of rank one: |w|^2 = 2 exp(-2 t)
            return flowsim.at_least(jnp.linalg.eigvalsh(matrices)[:, -1], bound)

        return claim

    level = 2 * np.exp(-2.0)
    certificate = flowsim.certify(largest(level * (1 + 1e-9)), loss, jnp.ones(2), t1=1.0, refutes=True)
    assert checker.check(certificate) == "refuted at t = 1"
    with pytest.raises(OpenError):
        flowsim.certify(largest(level * (1 - 1e-9)), loss, jnp.ones(2), t1=1.0, refutes=True)
    with pytest.raises(OpenError, match="eigenvalues are those of a square matrix, and have no expansion"):
        flowsim.certify(largest(level / 2), loss, jnp.ones(2), t1=1.0)


# --- Certificates that are forged -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate():
    number, value = NUMBERS["largest singular value"]
    return flowsim.certify(claimed(lambda: flowsim.at_most(number(), value * (1 - 1e-9))), LOSS, START, refutes=True)


def _operation(certificate, name):
    return next(each for each in certificate["sides"]["operations"] if each[0] == name)


FORGERIES = {
    "fewer rows": lambda c: _operation(c, "eigenvalues").__setitem__(2, 3),
    "more rows": lambda c: _operation(c, "eigenvalues").__setitem__(2, 5),
    "no whole number of rows": lambda c: _operation(c, "eigenvalues").__setitem__(2, "4"),
    "a negative number of rows": lambda c: _operation(c, "eigenvalues").__setitem__(2, -4),
    "two matrices": lambda c: _operation(c, "eigenvalues")[1].append(0),
    "proved instead of refuted": lambda c: c.__setitem__("verdict", "proved"),
    "a number that is no number": lambda c: _operation(c, "near")[2].__setitem__(1, "nan"),
    "another matrix": lambda c: _operation(c, "number").__setitem__(2, ["1/2"] * len(_operation(c, "number")[2])),
}


def test_the_certificate_is_a_refutation(certificate):
    assert checker.check(certificate) == "refuted"


@pytest.mark.parametrize("name", FORGERIES)
def test_what_is_forged_is_no_proof(certificate, name):
    forged = copy.deepcopy(certificate)
    FORGERIES[name](forged)
    assert forged != certificate
    forged["digest"] = checker.digest(forged)
    with pytest.raises((checker.RefusedError, TypeError, ValueError)):
        checker.check(forged)


# --- Numbers that were rounded ---------------------------------------------------------------------------------------


def test_a_number_of_many_digits_is_any_number_near_it():
    third = claimed(lambda: flowsim.equal(jnp.asarray(1.0) / 3.0, 1 / 3, 1.0))
    assert not is_shown(third, True) and not is_shown(third, False)
    off = claimed(lambda: flowsim.equal(jnp.asarray(1.0) / 3.0, (1 + 3e-12) / 3, 1.0))
    assert is_shown(off, True)
    within = claimed(lambda: flowsim.equal(jnp.asarray(1.0) / 3.0, (1 + 7e-13) / 3, 1.0))
    assert not is_shown(within, True)
    written = claimed(lambda: flowsim.equal(jnp.asarray(1.0) / 4.0, 0.25, 1.0))
    assert is_shown(written, False)


def test_two_numbers_that_were_rounded_to_the_same_float64_may_differ():
    one, other = np.asarray([2 / 3]), np.asarray([2 / 3])
    listed = program(lambda x: jnp.stack([x * one - x * other, x * one - x * one]), given=frozenset(), x=jnp.ones(1))
    apart, same = checker.Program(listed)(x=[arb(1)])
    assert apart.rad() > 1e-13 and apart.contains(arb(0))
    assert same.is_zero()


def test_the_numbers_of_a_problem_are_the_decimals_that_stand_there():
    variance = 0.123456789012345
    loss = flowsim.LinearAttentionLoss(flowsim.LinearRegression(jnp.diag(jnp.asarray([variance])), 5))
    start = flowsim.LinearAttention(jnp.eye(1), jnp.asarray(0.5))

    @flowsim.claim("mine.trace", "a test", statement="a number of the problem and one of the statement")
    def claim(loss):
        return flowsim.at_most(jnp.trace(loss.task.covariance), 1 / 3)

    operations = flowsim.certify(claim, loss, start)["sides"]["operations"]
    assert ["number", [], ["24691357802469/200000000000000"]] in operations
    assert [float(Fraction(text)) for name, _, given in operations if name == "near" for text in given[1:]] == [1 / 3]


# --- Comparisons of known numbers ------------------------------------------------------------------------------------

# Each is 1 in float64, and 0 or unknown in truth.
ROUNDED = {
    "the square of a root": lambda: jnp.sqrt(jnp.asarray(2.0)) ** 2 > 2.0,
    "a sum of tenths": lambda: jnp.asarray(0.1) + jnp.asarray(0.2) > 0.3,
    "a number above its root's square": lambda: jnp.ceil(jnp.sqrt(jnp.asarray(2.0)) ** 2) > 2.5,
    "a tenth, seven times": lambda: jnp.asarray(0.1) * 3.0 != 0.3,
    "a place": lambda: jnp.argmax(jnp.stack([jnp.asarray(2.0), jnp.sqrt(jnp.asarray(2.0)) ** 2])) == 1,
    "a sign": lambda: jnp.sign(jnp.sqrt(jnp.asarray(2.0)) ** 2 - 2.0) > 0.5,
    "a number near a third": lambda: jnp.asarray(1.0) / 3.0 >= 1 / 3,
}


@pytest.mark.parametrize("name", ROUNDED)
def test_what_float64_decides_by_rounding_is_not_believed(name):
    assert bool(ROUNDED[name]())
    for decided in (
        lambda: jnp.where(ROUNDED[name](), 1.0, 0.0),
        lambda: jnp.sum(jnp.asarray(ROUNDED[name](), dtype=float)),
    ):
        for statement in (flowsim.at_least, flowsim.at_most):
            claim = claimed(lambda statement=statement, decided=decided: statement(decided(), 0.5))
            assert not is_shown(claim, True)
            assert not is_shown(claim, False)


def test_what_is_decided_is_decided_in_certificates_too():
    more = lambda x, y: jnp.sum(jnp.asarray(jnp.sqrt(jnp.asarray(x)) ** 2 > y, dtype=float))
    assert is_shown(claimed(lambda: flowsim.at_least(more(2.0, 2 - 1e-11), 0.5)), False)
    assert is_shown(claimed(lambda: flowsim.at_least(more(2.0, 2 + 1e-11), 0.5)), True)
    claim = claimed(lambda: flowsim.at_least(more(2.0, 2 - 1e-11), 0.5))
    operations = flowsim.certify(claim, LOSS, START)["sides"]["operations"]
    assert "above" in [name for name, _, _ in operations]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["minimum", "minimizer"])
def test_what_a_search_found_is_in_no_certificate(name):
    task = flowsim.LinearRegression(jnp.eye(1), 4, weights="inverse-covariance")
    loss = flowsim.LoopedLoss(task, 2)
    start = flowsim.LoopedAttention(jnp.eye(1), loops=2)
    number = {"minimum": lambda loss: loss.minimum, "minimizer": lambda loss: loss.minimizer.A[0, 0]}[name]
    value = float(number(loss))
    for bound in (0.5 * value, 2.0 * value):
        claim = flowsim.claim("mine.least", "a test", statement="the least loss")(
            lambda loss, bound=bound: flowsim.at_most(number(loss), bound)
        )
        for refutes in (True, False):
            with pytest.raises(OpenError):
                flowsim.certify(claim, loss, start, refutes=refutes)

    # Its value at weights is a polynomial with exact coefficients: E (1 - W)^4 = 12/n^2 + 48/n^3 at d = 1 and A = 1.
    at_start = flowsim.claim("mine.value", "a test", statement="a loss")
    exactly = 12 / 16 + 48 / 64
    assert float(loss(start)) == pytest.approx(exactly, rel=1e-12)
    for bound, refutes in ((1.5 * (1 + 1e-9), False), (1.5 * (1 - 1e-9), True)):
        claim = at_start(lambda loss, bound=bound: flowsim.at_most(loss(start), bound))
        assert checker.check(flowsim.certify(claim, loss, start, refutes=refutes)) in ("proved", "refuted")
        with pytest.raises(OpenError):
            flowsim.certify(claim, loss, start, refutes=not refutes)
