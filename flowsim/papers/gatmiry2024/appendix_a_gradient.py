"""gatmiry2024's appendix A: the terms of the gradient in (25) and (26), and bounds on gamma_j, in rationals.

Sigma* = I here, so every expectation has the eigenvectors of A. Only the eigenvalues of the expectations are
computed. W is the sample covariance of n examples.
"""

import collections
import functools
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import jax.numpy as jnp

from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.statements import joined
from flowsim.moments.words import Terms, expected_traces
from flowsim.papers.gatmiry2024 import lemmas, spaces
from flowsim.papers.gatmiry2024.moments import Shape, long_for_moments, looped_with_finite_context, shape
from flowsim.papers.gatmiry2024.setting import LOOPED, Loss, over_determined

_MOST_FACTORS = 6  # of W in one expectation
_SHORT = (lemmas.PAPER, lemmas.TWICE_EDGE, lemmas.ONE_DIMENSION, lemmas.ONE_LOOP)
_LONG = (lemmas.EDGE, lemmas.TWICE_EDGE, lemmas.ONE_DIMENSION, lemmas.ASTRONOMICAL)
_EXACT = "Judged in rationals at Sigma* = I, which the text assumes here, for A with three spectra. "


class Spectrum:
    """The distinct eigenvalues of A with their multiplicities, as (eigenvalue, multiplicity), largest first.

    Pairs with multiplicity zero are left out.
    """

    def __init__(self, *pairs: tuple[Fraction, int]):
        self.eigenvalues = [value for value, count in pairs if count]
        self.multiplicities = [count for _, count in pairs if count]

    def sum_of_powers(self, power: int) -> Fraction:
        """tr A^k, where k is ``power``."""
        pairs = zip(self.eigenvalues, self.multiplicities, strict=True)
        return sum((count * value**power for value, count in pairs), Fraction(0))


def _spectra(dimension: int) -> list[Spectrum]:
    """The spectra of three matrices A: I, one with eigenvalues 3/2 and 1/2, and one with eigenvalues 4 and 1/10.

    The smaller eigenvalue has multiplicity d/2, rounded down.
    """
    half = dimension // 2
    pairs = [(Fraction(3, 2), Fraction(1, 2)), (Fraction(4), Fraction(1, 10))]
    return [Spectrum((Fraction(1), dimension)), *(Spectrum((a, dimension - half), (b, half)) for a, b in pairs)]


@functools.cache
def _term(before: int, after: int) -> Terms:
    """The polynomial E tr((W A)^a W (W A)^b M) for a = ``before`` and b = ``after``. M stands for any matrix."""
    return expected_traces({("WA" * before + "W" + "WA" * after + "M",): 1}, "AM")


def _at(terms: Terms, spectrum: Spectrum, length: int) -> list[Fraction]:
    """The eigenvalues of a matrix B, one for each distinct eigenvalue of A.

    **Arguments:** terms: the polynomial tr(B M), linear in M; spectrum: of A; length: n.
    """
    totals = [Fraction(0)] * len(spectrum.eigenvalues)
    for (order, words), coefficient in terms.items():
        rest, power = Fraction(coefficient, length**order), 0
        for word in words:
            if "M" in word:
                power = word.count("A")
            else:
                rest *= spectrum.sum_of_powers(len(word))
        totals = [total + rest * value**power for total, value in zip(totals, spectrum.eigenvalues, strict=True)]
    return totals


def gamma(spectrum: Spectrum, length: int, before: int, after: int) -> list[Fraction]:
    """The eigenvalues of E[(W A)^a W (W A)^b] for n = ``length``, a = ``before`` and b = ``after``."""
    return _at(_term(before, after), spectrum, length)


def factor(spectrum: Spectrum, length: int, before: int, after: int) -> list[Fraction]:
    """The eigenvalues of E[(I - W A)^a W (I - W A)^b], computed by multiplying out all factors.

    **Arguments:** spectrum: of A; length: n; before: a; after: b.
    """
    words: dict[tuple[str, ...], int] = collections.defaultdict(int)
    for kept in itertools.product((0, 1), repeat=before + after):
        word = "WA" * sum(kept[:before]) + "W" + "WA" * sum(kept[before:]) + "M"
        words[word,] += (-1) ** sum(kept)
    return _at(expected_traces(words, "AM"), spectrum, length)


def _loops(known: Shape) -> int:
    return min(known.loops, _MOST_FACTORS // 2)


def _all_factors(known: Shape) -> list[tuple[Spectrum, list[Fraction]]]:
    """The eigenvalues of E[(I - W A)^i W (I - W A)^{m - i}] for each spectrum of A and each i from 0 to m.

    Here m = 2L - 1, where L is at most 3: more loops are replaced by 3.

    **Returns:** for each spectrum and i, the spectrum and the eigenvalues.
    """
    m, n = 2 * _loops(known) - 1, known.finite_length
    return [(one, factor(one, n, i, m - i)) for one in _spectra(known.dimension) for i in range(m + 1)]


def _floats(values: Sequence[Fraction | float]) -> Any:
    return jnp.asarray([float(value) for value in values])


def _expanded(loss: Loss, swapped: bool) -> Comparison:
    """The statement that E[(I - W A)^i W (I - W A)^{m - i}] equals its binomial expansion, for i from 0 to m.

    Here m = 2L - 1, where L is at most 3: more loops are replaced by 3. With ``swapped`` the two binomial
    coefficients are exchanged, as in the printed (26).
    """
    known, parts = shape(loss), []
    m, n = 2 * _loops(known) - 1, known.finite_length
    for spectrum, i in itertools.product(_spectra(known.dimension), range(m + 1)):
        upper = (m - i, i) if swapped else (i, m - i)
        rows = []
        for a, b in itertools.product(range(i + 1), range(m - i + 1)):
            weight = math.comb(upper[0], a) * math.comb(upper[1], b) * (-1) ** (a + b)
            rows.append([weight * value for value in gamma(spectrum, n, a, b)])
        columns, left = list(zip(*rows, strict=True)), factor(spectrum, n, i, m - i)
        # Both sides are exact; they are subtracted before rounding, since large numbers may nearly cancel.
        gaps = [value - sum(column) for value, column in zip(left, columns, strict=True)]
        scale = [max(sum(map(abs, column)), abs(value)) for value, column in zip(left, columns, strict=True)]
        parts.append(equal(_floats(gaps), 0.0, _floats(scale)))
    return joined(parts)


SECTION = LOOPED(setting=looped_with_finite_context)
ON_SHORT = SECTION.on(_SHORT, spaces.PAIRINGS)
ON_PAIRINGS = SECTION.on((lemmas.PAPER, *_LONG), spaces.PAIRINGS, hypotheses=over_determined)
ON_LONG = SECTION.on(_LONG, spaces.PAIRINGS, hypotheses=long_for_moments(4))


@ON_SHORT.claim("lemma-a.10.eq-26", "(25), (26)", note=_EXACT + "The two binomials are swapped.")
def printed_expansion(loss: Loss) -> Comparison:
    r"""$\mathbb{E}\bigl[(I - \Sigma A)^i \Sigma (I - \Sigma A)^{2L-1-i}\bigr] = \sum \binom{2L-1-i}{l_1} \binom{i}{l_2}
    (-1)^{l_1+l_2} \mathbb{E}[A^{-1/2} B^{l_1+1} A^{-1} B^{l_2} A^{1/2}]$, $B = A^{1/2} \Sigma A^{1/2}$, $l_1 \le i$,
    $l_2 \le 2L-1-i$
    """
    return _expanded(loss, swapped=True)


@ON_SHORT.corrected(printed_expansion, note=_EXACT + "Compared with all factors multiplied out.")
def expansion(loss: Loss) -> Comparison:
    r"""The same with $\binom{i}{l_1} \binom{2L-1-i}{l_2}$"""
    return _expanded(loss, swapped=False)


def _gammas(loss: Loss, extra: int) -> Comparison:
    """The statement |gamma_j - lambda_j^{k-1}| <= 4kd/sqrt(n) lambda_1^{k-1} with k = l_1 + l_2 + ``extra``.

    The gamma_j are the eigenvalues of E[(W A)^{l_1 - 1} W (W A)^{l_2}], and the lambda_j those of A, largest first.
    Judged for all l_1 >= 1 and l_2 >= 0 with l_1 + l_2 <= 2L. L is at most 3: more loops are replaced by 3.
    """
    known = shape(loss)
    most, errors, bounds = 2 * _loops(known), [], []
    for spectrum, first, second in itertools.product(_spectra(known.dimension), range(1, most + 1), range(most)):
        if first + second > most:
            continue
        k = first + second + extra
        found = gamma(spectrum, known.finite_length, first - 1, second)
        errors += [abs(a - x ** (k - 1)) for a, x in zip(found, spectrum.eigenvalues, strict=True)]
        bounds += [known.first_order(k) * float(spectrum.eigenvalues[0]) ** (k - 1)] * len(found)
    return at_most(_floats(errors), _floats(bounds))


@ON_PAIRINGS.claim(
    "lemma-a.10.gamma",
    "the bounds after (26)",
    note=_EXACT + "This k belongs to the B^{l_1+1} of (26); with B^{l_1} there are l_1 + l_2 - 1 powers of lambda_j.",
)
def printed_gammas(loss: Loss) -> Comparison:
    r"""$\mathbb{E}[A^{-1/2} B^{l_1} A^{-1} B^{l_2} A^{1/2}] = \sum_j \gamma_j u_j u_j^\top$ with $\lvert \gamma_j -
    \lambda_j^{k-1} \rvert \le \tfrac{4kd}{\sqrt{n}} \lambda_1^{k-1}$, $k = l_1 + l_2 + 1$
    """
    return _gammas(loss, 1)


@ON_LONG.corrected(printed_gammas, note=_EXACT + "With the condition of Lemma A.2, whose proof is used.")
def gammas(loss: Loss) -> Comparison:
    r"""The same with $k = l_1 + l_2$, given $n \ge 4 k^2 d^2$"""
    return _gammas(loss, 0)


@ON_PAIRINGS.claim(
    "lemma-a.10.factors",
    "the displays before Lemma A.10",
    note=_EXACT + "The power 2L - 1 is odd: (lambda_j - 1)^{2L-1} has the wrong sign. The upper bound, printed with "
    "a sign that reads as an approximation, has lambda_j in place of lambda_1.",
)
def printed_factors(loss: Loss) -> Comparison:
    r"""$\sum_j \bigl((\lambda_j - 1)^{2L-1} - \delta^{2L} (\lambda_1 + 1)^{2L-1}\bigr) u_j u_j^\top \preceq
    \mathbb{E}\bigl[(I - \Sigma A)^i \Sigma (I - \Sigma A)^{2L-1-i}\bigr] \preceq \sum_j \bigl((\lambda_j - 1)^{2L-1} +
    \delta^{2L} (\lambda_j + 1)^{2L-1}\bigr) u_j u_j^\top$
    """
    known, parts = shape(loss), []
    m, noise = 2 * _loops(known) - 1, known.first_order(2 * _loops(known))
    for spectrum, found in _all_factors(known):
        values, x = _floats(found), _floats(spectrum.eigenvalues)
        middle, size = (x - 1) ** m, (x[0] + 1) ** m
        parts.append(at_most(values, middle + noise * (x + 1) ** m, size=size))
        parts.append(at_least(values, middle - noise * size, size=size))
    return joined(parts)


@ON_LONG.corrected(printed_factors, note=_EXACT + "With the condition of Lemma A.2, whose proof is used.")
def factors(loss: Loss) -> Comparison:
    r"""$\bigl\lVert \mathbb{E}\bigl[(I - \Sigma A)^i \Sigma (I - \Sigma A)^{2L-1-i}\bigr] - (I - A)^{2L-1} \bigr\rVert
    \le \delta^{2L} (\lambda_1 + 1)^{2L-1}$, given $n \ge 4 k^2 d^2$
    """
    known, errors, bounds = shape(loss), [], []
    m, noise = 2 * _loops(known) - 1, known.first_order(2 * _loops(known))
    for spectrum, found in _all_factors(known):
        errors += [abs(a - (1 - x) ** m) for a, x in zip(found, spectrum.eigenvalues, strict=True)]
        bounds += [noise * float(spectrum.eigenvalues[0] + 1) ** m] * len(found)
    return at_most(_floats(errors), _floats(bounds))
