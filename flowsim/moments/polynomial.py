"""Polynomials in traces of words: exact at one context length and dimension, and about any multiples of I."""

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

    terms: the coefficient of each (power of 1/n, words), where the empty word is d; symmetric: letters of symmetric
    matrices. Its value is differentiable in the matrices; where letters are symmetric, the gradient is right once it is
    symmetrised.
    """

    terms: Terms
    symmetric: str

    @property
    def letters(self) -> str:
        """The letters of the matrices that it needs."""
        return "".join(sorted({letter.upper() for _, words in self.terms for word in words for letter in word}))

    @functools.cached_property
    def _form(self) -> tuple[TraceForm, np.ndarray]:
        """The form in which each term keeps its power of 1/n, and that power."""
        keys = list(self.terms)
        words = [tuple(word for word in monomial if word) for _, monomial in keys]
        degrees = np.asarray([float(power) for power, _ in keys])
        sizes = np.asarray([float(monomial.count("")) for _, monomial in keys])
        coefficients = [float(self.terms[key]) for key in keys]
        # Kept for later calls, so that it must not be part of a transformation that asks for it first.
        with jax.ensure_compile_time_eval():
            return TraceForm(words, coefficients, self.letters), np.stack([degrees, sizes])

    def __call__(self, length: ArrayLike, **matrices: ArrayLike | Iterable) -> Float[Array, ""]:
        """The value at a context length n >= 1, or infinity, and (d, d) matrices by their letters.

        **Raises:** `ValueError` naming a letter that is missing, unknown or of another shape, or a length below 1.
        """
        n = checks.context_length("length", length)
        values = self._matrices(matrices)
        form, (degrees, sizes) = self._form
        d = float(next(iter(values.values())).shape[0])
        weights = (1 / n) ** jnp.asarray(degrees) * d ** jnp.asarray(sizes)
        return form.weighted(weights, values)

    def exact(self, length: int, **matrices: Sequence[Sequence[int | Fraction]]) -> Fraction:
        """The value in rational arithmetic, at a whole n and matrices of whole or rational numbers."""
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
    """E tr(w_1) tr(w_2) ... for words in W = (1/n) sum_{i <= n} z_i z_i^T, z_i ~ N(0, I), and fixed matrices, exactly.

    **Arguments:** words: strings of letters, W the random matrix, each other capital letter a fixed matrix and a
    lower-case letter a transpose: ``wishart_expectation("WAWa")`` is E tr(W A W A^T). Or one mapping from tuples of
    words, each a product of traces, to whole coefficients, for their sum. symmetric: the letters of symmetric
    matrices, which makes the polynomial shorter and is wrong for others.

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
    """The polynomial at one n (None for infinity) and d, exactly, in the traces of words that are not empty."""
    values: Expansion = collections.defaultdict(Fraction)
    for (power, words), coefficient in terms.items():
        if length is None and power:
            continue
        named = tuple(word for word in words if word)
        size = coefficient * dimension ** (len(words) - len(named))
        values[named] += Fraction(size, 1 if length is None else length**power)
    return values


def about(values: Expansion, centres: Mapping[str, Fraction], dimension: int, symmetric: Iterable[str]) -> Expansion:
    """The polynomial in F, where each letter of ``centres`` is c I - F: an exact change of basis.

    About the minimum, the terms of a loss nearly stop to cancel, so that floats keep their digits.
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

    # Factors that monomials share at their beginning are multiplied out once.
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
