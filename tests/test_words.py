"""Expectations of words in a Wishart matrix: against cubature over its Gaussian entries, and in rational arithmetic."""

import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st

from flowsim.moments import TracePolynomial, wishart_expectation
from flowsim.moments.polynomial import about, at_size
from flowsim.moments.words import expected_traces, residual_words

_LETTERS = "ABCD"


def by_cubature(words: tuple[str, ...], n: int, matrices: dict[str, np.ndarray]) -> float:
    """The expectation by a product of Gauss-Hermite rules over all n d entries: exact, and another route altogether."""
    d = next(iter(matrices.values())).shape[0]
    degree = 2 * sum(word.count("W") for word in words)
    points, weights = np.polynomial.hermite_e.hermegauss(degree // 2 + 1)
    weights = weights / weights.sum()
    z = np.asarray(list(itertools.product(points, repeat=n * d))).reshape(-1, n, d)
    weight = np.prod(list(itertools.product(weights, repeat=n * d)), axis=1)
    known = matrices | {name.lower(): matrix.T for name, matrix in matrices.items()}
    known["W"] = np.einsum("kni,knj->kij", z, z) / n
    value = weight
    for word in words:
        product = np.eye(d)
        for letter in word:
            product = product @ known[letter]
        value = value * np.trace(product, axis1=-2, axis2=-1)
    return float(np.sum(value))


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    "words", [("WA",), ("WAWB",), ("WAWa",), ("WAW", "W"), ("WAWBWA",), ("WAWb", "WB"), ("WA", "WA", "WB")]
)
def test_words_agree_with_cubature(words, n):
    rng = np.random.default_rng(len(words) + n)
    matrices = {name: rng.standard_normal((2, 2)) for name in "AB"}
    polynomial = wishart_expectation(*words)
    value = polynomial(n, **{name: matrices[name] for name in polynomial.letters})
    assert_close(value, jnp.asarray(by_cubature(words, n, matrices)), rtol=1e-11)


def test_textbook_moments():
    assert str(wishart_expectation("WA")) == "tr(A)"
    assert str(wishart_expectation("WAWB", symmetric="AB")) == "tr(AB) + tr(A) tr(B) / n + tr(AB) / n"
    assert wishart_expectation("WW").terms == {(0, ("",)): 1, (1, ("", "")): 1, (1, ("",)): 1}


@pytest.mark.parametrize(("loops", "terms"), [(1, 5), (2, 34), (3, 143), (4, 461), (5, 1272)])
def test_looped_polynomials_have_as_many_terms_as_theory_says(loops, terms):
    assert len(expected_traces(residual_words("A" * loops, "A"), "A")) == terms


@pytest.mark.parametrize(
    ("layers", "symmetric", "terms", "traces"),
    [(1, True, 5, 3), (2, True, 49, 9), (3, True, 700, 37), (2, False, 61, None), (3, False, 1892, None)],
)
def test_untied_polynomials_have_as_many_terms_as_theory_says(layers, symmetric, terms, traces):
    letters = _LETTERS[:layers]
    found = expected_traces(residual_words(letters, letters if symmetric else ""), letters if symmetric else "")
    assert len(found) == terms
    if traces:
        assert len({word for _, words in found for word in words} | {""}) == traces


def rational(rng: np.random.Generator, d: int, symmetric: bool) -> list[list[Fraction]]:
    entries = [[Fraction(int(x), 8) for x in row] for row in rng.integers(-8, 9, (d, d))]
    return [[(entries[i][j] + entries[j][i]) / 2 for j in range(d)] for i in range(d)] if symmetric else entries


@given(st.integers(1, 3), st.integers(1, 50), st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_symmetric_letters_change_the_polynomial_and_not_its_value(d, n, seed):
    matrix = rational(np.random.default_rng(seed), d, symmetric=True)
    words = residual_words("AA", "")
    free = TracePolynomial(expected_traces(words, ""), "")
    symmetric = TracePolynomial(expected_traces(residual_words("AA", "A"), "A"), "A")
    assert len(symmetric.terms) < len(free.terms)
    assert symmetric.exact(n, A=matrix) == free.exact(n, A=matrix)


@given(st.integers(1, 3), st.integers(1, 50), st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_a_change_of_centre_is_exact(d, n, seed):
    rng = np.random.default_rng(seed)
    layers = {name: rational(rng, d, symmetric=False) for name in "AB"}
    centres = {"A": Fraction(1, 3), "B": Fraction(2, 7)}
    terms = expected_traces(residual_words("AB", ""), "")
    moved = about(at_size(terms, n, d), centres, d, "")
    offsets = {
        name: [[centres[name] * (i == j) - matrix[i][j] for j in range(d)] for i in range(d)]
        for name, matrix in layers.items()
    }
    value = sum(c * TracePolynomial({(0, words): 1}, "").exact(1, **offsets) for words, c in moved.items())
    assert value == TracePolynomial(terms, "").exact(n, **layers)


def test_values_and_gradients_in_floats_agree_with_rationals():
    rng = np.random.default_rng(0)
    A, B, step = (rational(rng, 3, symmetric=False) for _ in range(3))
    polynomial = wishart_expectation("WAWbWA", "WB")
    floats = {name: np.asarray(matrix, dtype=float) for name, matrix in {"A": A, "B": B}.items()}
    value = jax.jit(lambda n, A, B: polynomial(n, A=A, B=B))(7.0, floats["A"], floats["B"])
    assert_close(value, jnp.asarray(float(polynomial.exact(7, A=A, B=B))), rtol=1e-13)

    slope = jnp.sum(jax.grad(lambda A: polynomial(7, A=A, B=floats["B"]))(floats["A"]) * np.asarray(step, dtype=float))
    h = Fraction(1, 10**20)
    ahead, behind = (
        [[a + s * h * b for a, b in zip(*rows, strict=True)] for rows in zip(A, step, strict=True)] for s in (1, -1)
    )
    exact = (polynomial.exact(7, A=ahead, B=B) - polynomial.exact(7, A=behind, B=B)) / (2 * h)
    assert_close(slope, jnp.asarray(float(exact)), rtol=1e-12)


def test_sums_of_words_and_the_limit():
    A = np.asarray([[0.5, 0.1], [0.1, 0.3]])
    residual = wishart_expectation({(): 2, ("WA",): -2, ("WAWA",): 1}, symmetric="A")
    assert_close(residual(np.inf, A=A), jnp.asarray(2 - 2 * np.trace(A) + np.trace(A @ A)), rtol=1e-15)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wishart_expectation("WA1"), "words must be of ASCII letters"),
        (lambda: wishart_expectation("wA"), "words must be of ASCII letters"),
        (lambda: wishart_expectation("WA", symmetric="W"), "symmetric must be capital letters other than W"),
        (lambda: wishart_expectation("WA")(0, A=np.eye(2)), "length must be a whole number of at least 1"),
        (lambda: wishart_expectation("WA")(2, B=np.eye(2)), "matrices must be one for each of the letters A"),
        (lambda: wishart_expectation("WW")(2), "words must be with a fixed matrix"),
        (lambda: wishart_expectation("WAWB")(2, A=np.eye(2), B=np.eye(3)), "matrices must be square and of one size"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
