"""Exact expectations of products of traces of words in a Wishart matrix and fixed matrices.

Throughout W = (1/n) sum_{i <= n} z_i z_i^T with z_i ~ N(0, I_d), for any n >= 1. A word is a string of letters. The
letter W is the random matrix, any other capital letter a fixed (d, d) matrix and a lower-case letter its transpose.
"""

import collections
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from flowsim._core import checks

Block = str  # the fixed letters between one W and the next
Trace = tuple[Block, ...]  # tr(W b_1 W b_2 ... W b_m)
Monomial = tuple[str, ...]  # a product of traces of words without W, in order; the empty word is tr I = d
Terms = Mapping[tuple[int, Monomial], int]

_EXPONENT_BITS = 6
_EXPONENT = (1 << _EXPONENT_BITS) - 1


def expected_traces(words: Mapping[Monomial, int], symmetric: Iterable[str] = ()) -> Terms:
    """E sum c tr(w_1) tr(w_2) ... as a polynomial in 1/n and traces of fixed words, with integer coefficients.

    By Gaussian integration by parts, one factor z of a W in a trace tr(W M) is paired with every other factor:

    - the other z of the same W leaves tr M;
    - another W of the same trace, M = P W Q, leaves (tr P tr W Q + tr W P^T Q)/n;
    - a W of another trace tr(W N) leaves (tr W N M + tr W N^T M)/n.

    Each step removes one W.

    **Arguments:**

    - words: the coefficient c of each product of traces, by the tuple of its words.
    - symmetric: the letters of symmetric matrices, for which many words are equal.

    **Returns:** the coefficient of each (power of 1/n, words without W whose traces are multiplied).
    """
    recursion = _Recursion(frozenset(symmetric))
    total: dict[int, int] = collections.defaultdict(int)
    for product, coefficient in words.items():
        random = tuple(sorted(recursion.split(word) for word in product if "W" in word))
        fixed = sum(recursion.unit(word) for word in product if "W" not in word)
        for key, value in recursion.expectation(random).items():
            total[key + fixed] += coefficient * value
    return recursion.decoded(total)


class _Recursion:
    """The recursion of `expected_traces`, which remembers its results.

    A monomial is one integer with a field of bits for each exponent, so that a product of monomials is a sum of
    integers. The lowest field is the power of 1/n.
    """

    def __init__(self, symmetric: frozenset[str]):
        self._symmetric = symmetric
        self._fixed: list[str] = []
        self._units: dict[str, int] = {}
        self._known: dict[tuple[Trace, ...], dict[int, int]] = {(): {0: 1}}
        self._transposed = functools.cache(functools.partial(transposed, symmetric=symmetric))
        self._canonical = functools.cache(functools.partial(_canonical_trace, transposed=self._transposed))

    def split(self, word: str) -> Trace:
        """The trace of a word with W, as the words between one W and the next."""
        first = word.index("W")
        return self._canonical(tuple((word[first + 1 :] + word[:first]).split("W")))

    def unit(self, word: str) -> int:
        """The integer that encodes the trace of a word without W, as a monomial."""
        if (known := self._units.get(word)) is not None:
            return known
        name = canonical(word, self._symmetric)
        if name not in self._units:
            self._fixed.append(name)
            self._units[name] = 1 << _EXPONENT_BITS * len(self._fixed)
        self._units[word] = self._units[name]
        return self._units[word]

    def expectation(self, traces: tuple[Trace, ...]) -> dict[int, int]:
        """The expectation of a product of sorted traces with W: the coefficient of each encoded monomial."""
        if (known := self._known.get(traces)) is not None:
            return known
        follow: dict[tuple[Trace, ...], dict[int, int]] = collections.defaultdict(lambda: collections.defaultdict(int))
        for key, random in self._paired(traces):
            follow[tuple(sorted(map(self._canonical, random)))][key] += 1
        total: dict[int, int] = collections.defaultdict(int)
        for following, weights in follow.items():
            expectation = self.expectation(following)
            for weight, count in weights.items():
                for key, value in expectation.items():
                    total[weight + key] += count * value
        self._known[traces] = dict(total)
        return self._known[traces]

    def _paired(self, traces: tuple[Trace, ...]) -> Iterable[tuple[int, list[Trace]]]:
        """What remains when one z of the last trace is paired with each other factor in turn.

        **Returns:** for each pairing a monomial, that is, a power of 1/n with traces without W, and the traces with
        W.
        """
        *others, blocks = traces
        first, turned = blocks[0], self._transposed
        if len(blocks) == 1:
            yield self.unit(first), others
        else:
            yield 0, [*others, (*blocks[1:-1], blocks[-1] + first)]
        for j in range(1, len(blocks)):
            if j == 1:
                yield 1 + self.unit(first), [*others, blocks[1:]]
            else:
                yield 1, [*others, blocks[j:], (*blocks[1 : j - 1], blocks[j - 1] + first)]
            back = [turned(block) for block in reversed(blocks[1:j])]
            yield 1, [*others, (*back, turned(first) + blocks[j], *blocks[j + 1 :])]
        for index, other in enumerate(others):
            rest = others[:index] + others[index + 1 :]
            for start in range(len(other)):
                ahead = other[start:] + other[:start]
                back = tuple(turned(block) for block in reversed(ahead))
                for turn in (ahead, back):
                    yield 1, [*rest, (*turn[:-1], turn[-1] + first, *blocks[1:])]

    def decoded(self, total: Mapping[int, int]) -> Terms:
        """A polynomial in encoded monomials as `Terms`: the coefficient of each (power of 1/n, words)."""
        terms = {}
        for key, value in total.items():
            if value:
                power, exponents, words = key & _EXPONENT, key >> _EXPONENT_BITS, []
                for word in self._fixed:
                    words += [word] * (exponents & _EXPONENT)
                    exponents >>= _EXPONENT_BITS
                terms[power, tuple(sorted(words))] = value
        return terms


def _canonical_trace(blocks: Trace, transposed: Callable[[str], str]) -> Trace:
    """The alphabetically first form of a trace. Equal forms start at another W of the trace or are transposed."""
    back = tuple(transposed(block) for block in reversed(blocks))
    return min(turn[i:] + turn[:i] for turn in (blocks, back) for i in range(len(blocks)))


def transposed(word: str, symmetric: Iterable[str]) -> str:
    """The word of the transposed product: the letters in reverse order, each of them transposed."""
    return "".join(letter if letter in symmetric else letter.swapcase() for letter in reversed(word))


def canonical(word: str, symmetric: Iterable[str]) -> str:
    """The alphabetically first of the words with the same trace: the rotations of a word and their transposes."""
    turns = (word, transposed(word, symmetric))
    return min((turn[i:] + turn[:i] for turn in turns for i in range(len(turn))), default="")


def check_words(words: Iterable[str], symmetric: str) -> None:
    """Refuse words and letters that `expected_traces` cannot read.

    **Raises:** `ProblemError` if a word has "w" or a character that is not an ASCII letter, or if ``symmetric`` has
    "W" or a character that is not an ASCII capital letter.
    """
    for word in words:
        if not (word.isascii() and (word.isalpha() or not word)) or "w" in word:
            checks.refuse(
                "words", "of ASCII letters, with W for the Wishart matrix and lower case for a transpose", word
            )
    if not (symmetric.isascii() and symmetric.isupper() or not symmetric) or "W" in symmetric:
        checks.refuse("symmetric", "capital letters other than W", f"it is {symmetric!r}")


def residual_words(layers: Sequence[str], symmetric: Iterable[str], weight: str = "") -> dict[Monomial, int]:
    """tr(S R R^T) with R = (I - W A_1) ... (I - W A_k), as a sum of traces of words.

    **Arguments:** layers: the words A_1, .., A_k; symmetric: the letters of symmetric matrices; weight: the word S,
    empty for the identity.

    **Returns:** the coefficient of each word, as an argument of `expected_traces`.
    """
    factors = ["W" + layer for layer in layers]
    factors += [transposed(factor, {*symmetric, "W"}) for factor in reversed(factors)]
    words: dict[Monomial, int] = collections.defaultdict(int)
    for kept in itertools.product((False, True), repeat=len(factors)):
        words["".join([weight, *itertools.compress(factors, kept)]),] += (-1) ** sum(kept)
    return words


def power_words(letter: str, power: int) -> dict[Monomial, int]:
    """tr (I - W A)^m as a sum of traces of words: the coefficient of each, as an argument of `expected_traces`.

    **Arguments:** letter: the word A; power: m.
    """
    return {(("W" + letter) * m,): (-1) ** m * math.comb(power, m) for m in range(power + 1)}
