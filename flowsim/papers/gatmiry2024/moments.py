"""What gatmiry2024's lemmas on moments share: L, n and the spectrum, moments E W^k in exact rationals, and pairings."""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from flowsim.claims.claim import Claim, Comparison, at_most
from flowsim.claims.declaring import Section, takes_like
from flowsim.claims.hypotheses import Conditions, Hypothesis, can_be_drawn, hypothesis, unmet
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss, LoopedLoss
from flowsim.moments.words import Terms, expected_traces
from flowsim.papers.gatmiry2024.setting import Loss, condition, looped
from flowsim.papers.gatmiry2024.setting import loops as loops_of
from flowsim.tasks import LinearRegression

_FEW_DIMENSIONS = 100.0


@dataclasses.dataclass(frozen=True)
class Shape:
    """L, d, n (None for infinity) and the eigenvalues of the covariance, largest first, with their multiplicities."""

    loops: int
    dimension: int
    length: int | None
    eigenvalues: tuple[Fraction, ...]
    multiplicities: tuple[int, ...]

    @property
    def root_length(self) -> float:
        """sqrt(n); infinite if n is infinite."""
        return np.inf if self.length is None else float(self.length) ** 0.5

    @property
    def accuracy(self) -> float:
        """delta = (8 L d / sqrt(n))^{1/(2L)}. **Source:** gatmiry2024, section 3.5."""
        return (8 * self.loops * self.dimension / self.root_length) ** (1 / (2 * self.loops))

    @property
    def finite_length(self) -> int:
        """n, which the setting of the claim requires to be finite."""
        assert self.length is not None, "the setting of the claim"
        return self.length

    def first_order(self, power: int) -> float:
        """4 k d / sqrt(n). **Source:** gatmiry2024, Lemma A.2."""
        return 4 * power * self.dimension / self.root_length


def shape(loss: Loss) -> Shape:
    """The `Shape` of the problem of a loss. Its eigenvalues are floats, written as exact rationals."""
    task = loss.task
    if isinstance(task, LinearRegression):
        covariance = np.asarray(task.covariance)
        values, counts = np.diagonal(covariance), np.ones(task.dimension)
        if np.any(covariance != np.diag(values)):
            values = jnp.linalg.eigvalsh(covariance)
    else:
        values, counts = task.eigenvalues, task.multiplicities
    n = float(task.context_length)
    pairs = sorted(zip(np.asarray(values).tolist(), np.asarray(counts, dtype=int).tolist(), strict=True), reverse=True)
    eigenvalues, multiplicities = zip(*pairs, strict=True)
    length = None if np.isinf(n) else int(n)
    return Shape(loops_of(loss), task.dimension, length, tuple(map(Fraction, eigenvalues)), multiplicities)


def looped_with_finite_context(loss: Any) -> Hypothesis | None:
    """The unmet hypothesis, or None if the loss is `looped` and n is finite."""
    if foreign := looped(loss):
        return foreign
    finite = hypothesis("n < infinity", float(loss.task.context_length), "<", np.inf)
    return None if finite.met else finite


def looped_with_few_dimensions(loss: Any) -> Hypothesis | None:
    """The unmet hypothesis, or None in the setting of the figures: finite n, and d small enough for random prompts."""
    if foreign := looped_with_finite_context(loss):
        return foreign
    few = hypothesis("d small enough for draws", float(loss.task.dimension), "<=", _FEW_DIMENSIONS)
    return None if few.met else few


def looped_by_matrices(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """The unmet hypothesis, or None if the loss is `looped`, a function of matrices, and prompts can be sampled."""
    if isinstance(loss, LoopedLoss) and looped(loss) is None and can_be_drawn(loss.task):
        return None
    return unmet("a looped transformer on matrices, w drawn from N(0, covariance^-1), n for prompts to draw")


def long_for_moments(multiple: int) -> Conditions:
    """The hypothesis n >= multiple k^2 d^2 for every k <= 2L. Lemma A.2 has the multiple 4."""
    bound = lambda loss: float(multiple * (2 * loops_of(loss) * loss.task.dimension) ** 2)
    sides = lambda loss: (float(loss.task.context_length), ">=", bound(loss))
    return condition(f"n >= {multiple} k^2 d^2 for k = 2L", sides)


MOST_POWERS = 6  # 11!! = 10395 pairings


class Cycles(NamedTuple):
    """For one pairing p, the numbers of self-loops of G_p, of cycles of G_p and of cycles of G'_p."""

    loops: int
    first: int
    second: int


@functools.cache
def shapes(power: int) -> dict[tuple[Cycles, int, tuple[int, ...]], int]:
    """How many pairings of {1, .., 2k} have each (`Cycles`, |c*|, sizes of the other cycles of G'_p).

    The nodes of G_p are (1, 2), (3, 4), ..; the nodes of G'_p are (2, 3), (4, 5), .. and (1, 2k). A pair joins the
    nodes of its two indices. |c*| is the size of the cycle of G'_p that contains the node (1, 2k). The sizes of the
    other cycles are sorted.
    """
    first = [i // 2 for i in range(2 * power)]
    second = [((i + 1) // 2) % power for i in range(2 * power)]
    found = collections.Counter()
    for pairs in pairings(tuple(range(2 * power))):
        loops = sum(first[i] == first[j] for i, j in pairs)
        roots = cycles(power, second, pairs)
        sizes = collections.Counter(roots)
        kind = Cycles(loops, len(set(cycles(power, first, pairs))), len(sizes))
        star = sizes.pop(roots[0])
        found[kind, star, tuple(sorted(sizes.values()))] += 1
    return dict(found)


def census(power: int) -> dict[Cycles, int]:
    """How many pairings of {1, .., 2k} have each value of `Cycles`."""
    found = collections.Counter()
    for (kind, *_), number in shapes(power).items():
        found[kind] += number
    return dict(found)


def cycles(power: int, nodes: Sequence[int], pairs: Sequence[tuple[int, int]]) -> list[int]:
    """For each of k nodes, a node that represents its cycle. ``nodes`` has the node of each index of the pairs."""
    root = list(range(power))
    for i, j in pairs:
        a, b = root[nodes[i]], root[nodes[j]]
        root = [a if r == b else r for r in root]
    return root


def pairings(indices: tuple[int, ...]) -> Iterator[list[tuple[int, int]]]:
    """All ways to divide the indices into pairs."""
    if not indices:
        yield []
        return
    head, *rest = indices
    for place, partner in enumerate(rest):
        for others in pairings(tuple(rest[:place] + rest[place + 1 :])):
            yield [(head, partner), *others]


Spectrum = tuple[Fraction, ...]
Bound = Callable[[Shape, int], float]
Compare = Callable[[Loss, Trajectory], Comparison]

CONDITION_LOST = (
    "Lemma A.2, on which this rests, requires n >= 4 k^2 d^2. The statement drops that condition and fails without it: "
    "section 3.2 assumes only n > d, and at n = d + 1, L = 3, d = 10 the sixth moment is too large. "
)
CONDITION_KEPT = "The printed statement without the condition n >= 4 k^2 d^2 of Lemma A.2 fails at small n. "


@functools.cache
def _trace_power(power: int) -> Terms:
    """E tr (W A)^k."""
    return expected_traces({("WA" * power,): 1}, "A")


@functools.lru_cache(maxsize=512)
def moment_errors(eigenvalues: Spectrum, multiplicities: tuple[int, ...], length: int | None, power: int) -> Spectrum:
    """alpha^{(j)} - lambda_j^k, exact, for each eigenvalue lambda_j of M.

    The alpha^{(j)} are the eigenvalues of E[(M^{1/2} W M^{1/2})^k]. Since d tr (W M)^k = k tr((W M)^{k-1} W dM),
    alpha^{(j)} is (lambda_j / k) d/d lambda_j E tr (W M)^k. In this mean every term except the first has a power of
    1/n. ``length`` None means n = infinity.
    """
    sums = [sum(m * x**i for x, m in zip(eigenvalues, multiplicities, strict=True)) for i in range(power + 1)]
    totals = [Fraction(0)] * len(eigenvalues)
    for (order, words), coefficient in _trace_power(power).items():
        if order == 0 or length is None:
            continue
        lengths = collections.Counter(map(len, words))
        weight = Fraction(coefficient, length**order)
        for size, count in lengths.items():
            rest = math.prod((sums[i] ** (c - (i == size)) for i, c in lengths.items()), start=weight * count * size)
            for j, x in enumerate(eigenvalues):
                totals[j] += rest * x**size
    return tuple(total / power for total in totals)


def residual_errors(eigenvalues: Spectrum, multiplicities: tuple[int, ...], length: int | None, power: int) -> Spectrum:
    """beta^{(i)} - (1 - lambda_i)^k, exact, for each eigenvalue lambda_i of M.

    The beta^{(i)} are the eigenvalues of E[(I - M^{1/2} W M^{1/2})^k].
    """
    totals = [Fraction(0)] * len(eigenvalues)
    for j in range(1, power + 1):
        errors = moment_errors(eigenvalues, multiplicities, length, j)
        totals = [total + math.comb(power, j) * (-1) ** j * error for total, error in zip(totals, errors, strict=True)]
    return tuple(totals)


def powers(known: Shape) -> range:
    """The powers k = 1, .., 2L."""
    return range(1, 2 * known.loops + 1)


def enumerated(known: Shape) -> range:
    """The powers k = 1, .., min(2L, 6), for which all pairings are counted."""
    return range(1, min(2 * known.loops, MOST_POWERS) + 1)


def _bounded(bound: Bound, errors: Callable[..., Spectrum], spectra: Callable, shift: int) -> Compare:
    """The statement |error| <= bound(shape, k) (lambda_1 + shift)^k for k <= 2L and all eigenvalues of some spectra.

    At n = infinity both sides are zero and nothing is promised.
    """

    @takes_like(bound)
    def compare(loss: Loss) -> Comparison:
        known, parts = shape(loss), []
        for values, counts in spectra(known):
            sizes = [abs(float(e)) for k in powers(known) for e in errors(values, counts, known.length, k)]
            bounds = [bound(known, k) * (float(values[0]) + shift) ** k for k in powers(known)]
            limits = jnp.repeat(jnp.asarray(bounds), len(values))
            parts.append(at_most(jnp.asarray(sizes), limits, promised=known.length is not None))
        return joined(parts)

    return compare


def of_moments(bound: Bound) -> Compare:
    """A decorator: compares |alpha^{(j)} - lambda_j^k| with bound(shape, k) lambda_1^k, for all j and k <= 2L."""
    errors = lambda *of: moment_errors(*of)  # looked up at each call
    return _bounded(bound, errors, lambda known: [(known.eigenvalues, known.multiplicities)], 0)


def _spectra(known: Shape) -> list[tuple[Spectrum, tuple[int, ...]]]:
    """The spectra of A^{1/2} S A^{1/2} for A = I, 100 I, S^-1 and 2 S^-1. The errors depend only on this spectrum."""
    values, same, d = known.eigenvalues, known.multiplicities, known.dimension
    return [(values, same), (tuple(100 * x for x in values), same), ((Fraction(1),), (d,)), ((Fraction(2),), (d,))]


def of_residuals(bound: Bound) -> Compare:
    """A decorator: compares |beta^{(i)} - (1 - lambda_i)^k| with bound(shape, k) (lambda_1 + 1)^k.

    The comparison is made for all i and k <= 2L, at the spectra of several A.
    """
    return _bounded(bound, residual_errors, _spectra, 1)


def given_long_contexts(printed: Claim, section: Section, note: str) -> Claim:
    """Declares the corrected form of a bound on moments: the printed form, given n >= 4 k^2 d^2."""
    statement = rf"{printed.statement}, given $n \ge 4 k^2 d^2$"
    return section.corrected(printed, statement=statement, note=CONDITION_KEPT + note, constants=printed.constants)(
        printed
    )


def isotropic_errors(known: Shape) -> list[Fraction]:
    """alpha_{n,d,k} - 1 for k = 1, .., 2L, where E W^k = alpha_{n,d,k} I."""
    one, counts = (Fraction(1),), (known.dimension,)
    return [moment_errors(one, counts, known.length, k)[0] for k in powers(known)]
