"""What gatmiry2024's lemmas on moments share: L, n and the spectrum, exact moments as rationals, and pairings.

W is the sample covariance of n vectors from N(0, I).
"""

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
    """The numbers of a problem on which the lemmas depend.

    **Fields:**

    - loops, dimension: L and d.
    - length: n, or None if n is infinite.
    - eigenvalues: of the population covariance, largest first.
    - multiplicities: of the eigenvalues.
    """

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
        """n as a whole number. Only claims whose setting requires a finite n may use this property."""
        assert self.length is not None, "the setting of the claim"
        return self.length

    def first_order(self, power: int) -> float:
        """The bound 4 k d / sqrt(n), where k is ``power``. **Source:** gatmiry2024, Lemma A.2."""
        return 4 * power * self.dimension / self.root_length


def shape(loss: Loss) -> Shape:
    """The `Shape` of the problem of a loss. Each rational eigenvalue is exactly equal to the computed float."""
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
    """Return None if a loss is in the setting `looped` and n is finite, otherwise the hypothesis that fails."""
    if foreign := looped(loss):
        return foreign
    finite = hypothesis("n < infinity", float(loss.task.context_length), "<", np.inf)
    return None if finite.met else finite


def looped_with_few_dimensions(loss: Any) -> Hypothesis | None:
    """Return None if a loss is in the setting of the figures, otherwise the hypothesis that fails.

    The setting is `looped_with_finite_context` with d <= 100, so that random prompts can be drawn.
    """
    if foreign := looped_with_finite_context(loss):
        return foreign
    few = hypothesis("d small enough for draws", float(loss.task.dimension), "<=", _FEW_DIMENSIONS)
    return None if few.met else few


def looped_by_matrices(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """Return None if a loss of the setting `looped` is a function of the matrix A and its prompts can be sampled.

    Otherwise return a hypothesis that fails and names all three conditions.
    """
    if isinstance(loss, LoopedLoss) and looped(loss) is None and can_be_drawn(loss.task):
        return None
    return unmet("a looped transformer on matrices, w drawn from N(0, covariance^-1), n for prompts to draw")


def long_for_moments(multiple: int) -> Conditions:
    """The hypothesis n >= ``multiple`` k^2 d^2 for every k <= 2L. Lemma A.2 has 4 as ``multiple``."""
    bound = lambda loss: float(multiple * (2 * loops_of(loss) * loss.task.dimension) ** 2)
    sides = lambda loss: (float(loss.task.context_length), ">=", bound(loss))
    return condition(f"n >= {multiple} k^2 d^2 for k = 2L", sides)


MOST_POWERS = 6  # 11!! = 10395 pairings


class Cycles(NamedTuple):
    """The numbers of cycles in the two graphs G_p and G'_p of a pairing p, which `shapes` defines.

    **Fields:** loops: the number of self-loops of G_p; first, second: the numbers of cycles of G_p and of G'_p.
    """

    loops: int
    first: int
    second: int


@functools.cache
def shapes(power: int) -> dict[tuple[Cycles, int, tuple[int, ...]], int]:
    """Classify the pairings p of {1, .., 2k} by the cycles of two graphs, and count them. k is ``power``.

    The nodes of G_p are (1, 2), (3, 4), ..; the nodes of G'_p are (2, 3), (4, 5), .. and (1, 2k). In both graphs
    each pair of p joins the nodes that contain its two indices. c* is the cycle of G'_p that contains the node (1,
    2k).

    **Returns:** the number of pairings for each (`Cycles`, size of c*, sorted sizes of the other cycles of G'_p).
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
    """The number of pairings of {1, .., 2k} for each value of `Cycles`. k is ``power``."""
    found = collections.Counter()
    for (kind, *_), number in shapes(power).items():
        found[kind] += number
    return dict(found)


def cycles(power: int, nodes: Sequence[int], pairs: Sequence[tuple[int, int]]) -> list[int]:
    """The cycle of each of k nodes, named by one node of the cycle.

    **Arguments:** power: k; nodes: the node that contains each index; pairs: the pairs of indices.
    """
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
    """The polynomial E tr (W A)^k, where k is ``power``."""
    return expected_traces({("WA" * power,): 1}, "A")


@functools.lru_cache(maxsize=512)
def moment_errors(eigenvalues: Spectrum, multiplicities: tuple[int, ...], length: int | None, power: int) -> Spectrum:
    """The exact difference alpha^{(j)} - lambda_j^k for each eigenvalue lambda_j of a covariance M.

    The alpha^{(j)} are the eigenvalues of E[(M^{1/2} W M^{1/2})^k]. Since d tr (W M)^k = k tr((W M)^{k-1} W dM),
    alpha^{(j)} is (lambda_j / k) d/d lambda_j E tr (W M)^k. Every term of E tr (W M)^k except tr M^k has a power of
    1/n.

    **Arguments:** eigenvalues, multiplicities: of M; length: n, or None if n is infinite; power: k.
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
    """The exact difference beta^{(i)} - (1 - lambda_i)^k for each eigenvalue lambda_i of a covariance M.

    The beta^{(i)} are the eigenvalues of E[(I - M^{1/2} W M^{1/2})^k]. The arguments are those of `moment_errors`.
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
    """Make the function that judges |error| <= bound(shape, k) (lambda_1 + shift)^k for a loss.

    The inequality is judged for all k <= 2L, at all eigenvalues of several spectra. lambda_1 is the largest
    eigenvalue of a spectrum. At n = infinity both sides are zero, and no statement is made.

    **Arguments:** errors: `moment_errors` or `residual_errors`; spectra: maps a `Shape` to (eigenvalues,
    multiplicities) of each spectrum.
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
    """A decorator that turns a bound into the statement |alpha^{(j)} - lambda_j^k| <= bound(shape, k) lambda_1^k.

    The statement is judged for all j and all k <= 2L. `moment_errors` defines alpha^{(j)} and lambda_j.
    """
    errors = lambda *of: moment_errors(*of)  # looked up at each call
    return _bounded(bound, errors, lambda known: [(known.eigenvalues, known.multiplicities)], 0)


def _spectra(known: Shape) -> list[tuple[Spectrum, tuple[int, ...]]]:
    """The spectra of A^{1/2} S A^{1/2} for A = I, 100 I, S^-1 and 2 S^-1, where S is the population covariance.

    The errors depend on A only through this spectrum.
    """
    values, same, d = known.eigenvalues, known.multiplicities, known.dimension
    return [(values, same), (tuple(100 * x for x in values), same), ((Fraction(1),), (d,)), ((Fraction(2),), (d,))]


def of_residuals(bound: Bound) -> Compare:
    """A decorator that turns a bound into |beta^{(i)} - (1 - lambda_i)^k| <= bound(shape, k) (lambda_1 + 1)^k.

    This statement is judged for all i, all k <= 2L and several A. `residual_errors` defines beta^{(i)} and
    lambda_i.
    """
    return _bounded(bound, residual_errors, _spectra, 1)


def given_long_contexts(printed: Claim, section: Section, note: str) -> Claim:
    """Declare the corrected form of a bound on moments, which is the printed form given n >= 4 k^2 d^2."""
    statement = rf"{printed.statement}, given $n \ge 4 k^2 d^2$"
    return section.corrected(printed, statement=statement, note=CONDITION_KEPT + note, constants=printed.constants)(
        printed
    )


def isotropic_errors(known: Shape) -> list[Fraction]:
    """alpha_{n,d,k} - 1 for k = 1, .., 2L, where E W^k = alpha_{n,d,k} I."""
    one, counts = (Fraction(1),), (known.dimension,)
    return [moment_errors(one, counts, known.length, k)[0] for k in powers(known)]
