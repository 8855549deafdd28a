"""Polynomials in traces of words: their values in floats or exactly, and their expansion about multiples of I."""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks
from flowsim.moments.trace_form import TraceForm
from flowsim.moments.words import Monomial, Terms, canonical, check_words, expected_traces

Expansion = dict[Monomial, Fraction]


@dataclasses.dataclass(frozen=True)
class TracePolynomial:
    """A polynomial in 1/n and traces of words in fixed matrices, with integer coefficients.

    Its value is differentiable in the matrices. The gradient in a symmetric matrix must be symmetrised.

    **Fields:**

    - terms: the coefficient of each (power of 1/n, words), where the empty word stands for d.
    - symmetric: the letters of symmetric matrices.
    """

    terms: Terms
    symmetric: str

    @property
    def letters(self) -> str:
        """The capital letters of the matrices in the polynomial, in alphabetical order."""
        return "".join(sorted({letter.upper() for _, words in self.terms for word in words for letter in word}))

    @functools.cached_property
    def _form(self) -> tuple[TraceForm, np.ndarray]:
        """The products of traces as a `TraceForm`, and the powers of 1/n and of d in each term, (2, terms)."""
        keys = list(self.terms)
        words = [tuple(word for word in monomial if word) for _, monomial in keys]
        degrees = np.asarray([float(power) for power, _ in keys])
        sizes = np.asarray([float(monomial.count("")) for _, monomial in keys])
        coefficients = [float(self.terms[key]) for key in keys]
        # The result is cached, so it must not hold tracers of the transformation that first asks for it.
        with jax.ensure_compile_time_eval():
            return TraceForm(words, coefficients, self.letters), np.stack([degrees, sizes])

    def __call__(self, length: ArrayLike, **matrices: ArrayLike | Iterable) -> Float[Array, ""]:
        """The value of the polynomial.

        **Arguments:** length: the context length n >= 1, or infinity; matrices: (d, d), by letter.

        **Raises:** `ValueError` naming a letter that is missing, unknown or of another shape, or a length below 1.
        """
        n = checks.context_length("length", length)
        values = self._matrices(matrices)
        form, (degrees, sizes) = self._form
        d = float(next(iter(values.values())).shape[0])
        weights = (1 / n) ** jnp.asarray(degrees) * d ** jnp.asarray(sizes)
        return form.weighted(weights, values)

    def exact(self, length: int, **matrices: Sequence[Sequence[int | Fraction]]) -> Fraction:
        """The value of the polynomial in rational arithmetic.

        **Arguments:** length: n, a whole number; matrices: the rows of (d, d) matrices of rational numbers, by
        letter.
        """
        dimension = len(next(iter(matrices.values())))
        arrays = {name: np.asarray(rows, dtype=object) for name, rows in matrices.items()}
        arrays |= {name.swapcase(): array.T for name, array in arrays.items()}

        @functools.cache
        def trace(word: str) -> Fraction:
            if not word:
                return Fraction(dimension)
            return Fraction(np.trace(functools.reduce(np.dot, [arrays[letter] for letter in word])))

        total = Fraction(0)
        for (power, words), coefficient in self.terms.items():
            value = Fraction(coefficient, length**power)
            for word in words:
                value *= trace(word)
            total += value
        return total

    def _matrices(self, given: Mapping[str, ArrayLike | Iterable]) -> dict[str, Float[Array, "d d"]]:
        if not self.letters:
            checks.refuse(
                "words", "with a fixed matrix, which gives the dimension (an identity will do)", "there is none"
            )
        if sorted(given) != list(self.letters):
            checks.refuse("matrices", f"one for each of the letters {', '.join(self.letters)}", f"got {sorted(given)}")
        values = {name: checks.as_array(name, matrix, (None, None)) for name, matrix in given.items()}
        shapes = {matrix.shape for matrix in values.values()}
        if len(shapes) > 1 or any(rows != columns for rows, columns in shapes):
            checks.refuse("matrices", "square and of one size", f"their shapes are {sorted(shapes)}")
        return values

    def __str__(self) -> str:
        def text(power: int, words: Monomial, coefficient: int) -> str:
            factors = [str(coefficient)] if coefficient != 1 or not words else []
            factors += ["d" if not word else f"tr({word})" for word in words]
            return " ".join(factors) + (f" / n^{power}" if power > 1 else " / n" if power else "")

        return " + ".join(text(*key, value) for key, value in sorted(self.terms.items())) or "0"


def wishart_expectation(*words: str | Mapping[tuple[str, ...], int], symmetric: str = "") -> TracePolynomial:
    """The exact expectation E tr(w_1) tr(w_2) ... of words w_i in a random matrix W and fixed matrices.

    W = (1/n) sum_{i <= n} z_i z_i^T with z_i ~ N(0, I).

    **Arguments:**

    - words: strings of letters. W is the random matrix, every other capital letter is a fixed matrix and a
      lower-case letter is a transpose: ``wishart_expectation("WAWa")`` is E tr(W A W A^T). Instead of words, one
      mapping from tuples of words to whole coefficients gives the expectation of a sum of products of traces.
    - symmetric: the letters of symmetric matrices, for a shorter polynomial. The result is wrong for other
      matrices.

    **Returns:** a `TracePolynomial`, called as ``polynomial(n, A=A)``.

    **Raises:** `ValueError` on other characters.

    **Source:** Isserlis' theorem by Gaussian integration by parts; see `flowsim.moments.words`.
    """
    if len(words) == 1 and isinstance(words[0], Mapping):
        combination = {tuple(product): coefficient for product, coefficient in words[0].items()}
    else:
        combination = {tuple(map(str, words)): 1}
    check_words(itertools.chain.from_iterable(combination), symmetric)
    return TracePolynomial(expected_traces(combination, symmetric), symmetric)


def at_size(terms: Terms, length: int | None, dimension: int) -> Expansion:
    """The polynomial at one n and d: the exact coefficient of each product of traces of words that are not empty.

    **Arguments:** terms: as in `TracePolynomial`; length: n, None for infinity; dimension: d.
    """
    values: Expansion = collections.defaultdict(Fraction)
    for (power, words), coefficient in terms.items():
        if length is None and power:
            continue
        named = tuple(word for word in words if word)
        size = coefficient * dimension ** (len(words) - len(named))
        values[named] += Fraction(size, 1 if length is None else length**power)
    return values


def about(values: Expansion, centres: Mapping[str, Fraction], dimension: int, symmetric: Iterable[str]) -> Expansion:
    """Rewrite a polynomial exactly in matrices F_A = c_A I - A, one for each letter A of ``centres``.

    In the result the letter A stands for F_A. About the minimum of a loss the terms of the result hardly cancel, so
    floats keep their digits.

    **Arguments:**

    - values: the coefficient of each product of traces, as `at_size` returns them.
    - centres: c_A, by letter.
    - dimension: d.
    - symmetric: the letters of symmetric matrices.
    """
    symmetric = frozenset(symmetric)

    @functools.cache
    def expanded(word: str) -> tuple[Fraction, Expansion]:
        parts: Expansion = collections.defaultdict(Fraction)
        for kept in itertools.product((False, True), repeat=len(word)):
            weight = Fraction(1)
            for letter, keep in zip(word, kept, strict=True):
                centre = centres.get(letter.upper())
                weight *= (1 if keep else 0) if centre is None else (-1 if keep else centre)
            if weight:
                parts[canonical("".join(itertools.compress(word, kept)), symmetric),] += weight
        return parts.pop(("",), Fraction(0)) * dimension, parts

    # Monomials that begin with the same factors share their product.
    tree: dict = {}
    for words, value in values.items():
        node = tree
        for word in words:
            node = node.setdefault(word, {})
        node[None] = value

    def multiplied(node: dict) -> Expansion:
        total: Expansion = collections.defaultdict(Fraction)
        for word, child in node.items():
            if word is None:
                total[()] += child
                continue
            constant, parts = expanded(word)
            for monomial, value in multiplied(child).items():
                total[monomial] += value * constant
                for part, weight in parts.items():
                    total[tuple(sorted(monomial + part))] += value * weight
        return total

    return {monomial: value for monomial, value in multiplied(tree).items() if value}
