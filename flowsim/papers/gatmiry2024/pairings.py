"""The pairings in gatmiry2024's proof of Lemma A.2, enumerated: cycles of G_p and G'_p, and the chain (20)."""

import collections
import functools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp

from flowsim.claims.claim import Claim, Comparison, Relation, at_most, equal
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.lemma_settings import (
    ASTRONOMICAL,
    EDGE,
    ONE_DIMENSION,
    ONE_LOOP,
    PAPER,
    TWICE_EDGE,
    Loss,
    Shape,
    long_context,
    looped_with_finite_context,
    shape,
)
from flowsim.papers.gatmiry2024.moments import isotropic_errors

_MOST_POWERS = 6  # 11!! = 10395 pairings


class Cycles(NamedTuple):
    """Of one pairing p: self-loops of G_p, cycles of G_p and of G'_p."""

    loops: int
    first: int
    second: int


@functools.cache
def census(power: int) -> dict[Cycles, int]:
    """How many of the pairings of {1, .., 2k} have which cycles. Nodes of G_p are (1, 2), (3, 4), ..; those of G'_p are
    (2, 3), (4, 5), .. and (1, 2k); a pair joins the nodes of its two indices.
    """
    first = [i // 2 for i in range(2 * power)]
    second = [((i + 1) // 2) % power for i in range(2 * power)]

    found = collections.Counter()
    for pairs in pairings(tuple(range(2 * power))):
        loops = sum(first[i] == first[j] for i, j in pairs)
        counts = (len(set(cycles(power, nodes, pairs))) for nodes in (first, second))
        found[Cycles(loops, *counts)] += 1
    return dict(found)


def cycles(power: int, nodes: Sequence[int], pairs: Sequence[tuple[int, int]]) -> list[int]:
    """For each of k nodes one node of its cycle, the same for all of that, where pairs of indices join nodes."""
    root = list(range(power))
    for i, j in pairs:
        a, b = root[nodes[i]], root[nodes[j]]
        root = [a if r == b else r for r in root]
    return root


def pairings(indices: tuple[int, ...]) -> Iterator[list[tuple[int, int]]]:
    """All ways to pair indices."""
    if not indices:
        yield []
        return
    head, *rest = indices
    for place, partner in enumerate(rest):
        for others in pairings(tuple(rest[:place] + rest[place + 1 :])):
            yield [(head, partner), *others]


def _enumerated(known: Shape) -> range:
    return range(1, min(2 * known.loops, _MOST_POWERS) + 1)


def _joined(*comparisons: Comparison) -> Comparison:
    return jax.tree.map(lambda *series: jnp.concatenate([jnp.atleast_1d(x) for x in series]), *comparisons)


def _counts_at_most(pairs: Sequence[tuple[int, int]]) -> Comparison:
    """value <= bound for whole numbers, which is value < bound + 1/2."""
    values, bounds = jnp.asarray(pairs, dtype=float).T
    return at_most(values, bounds + 0.5)


def cycle_counts(loss: Loss, trajectory: Trajectory) -> Comparison:
    """C(G_p) <= r + floor((k - r)/2), C(G'_p) <= k - r + 1 and C(G_p) + C(G'_p) <= k + 1 for every p and k <= 2L, 6."""
    pairs = []
    for k in _enumerated(shape(loss)):
        for r, first, second in census(k):
            pairs += [(first, r + (k - r) // 2), (second, k - r + 1), (first + second, k + 1)]
    return _counts_at_most(pairs)


def _double_factorial(m: int) -> int:
    return math.prod(range(m, 0, -2))


def pairing_counts(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The number of ways to pair 2m indices against (2m)!!, for m <= 2L, 6."""
    return _count_against(loss, 0)


def odd_pairing_counts(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The number of ways to pair 2m indices against (2m - 1)!!."""
    return _count_against(loss, 1)


def _count_against(loss: Loss, less: int) -> Comparison:
    orders = _enumerated(shape(loss))
    counts = jnp.asarray([float(sum(census(m).values())) for m in orders])
    expected = jnp.asarray([float(_double_factorial(2 * m - less)) for m in orders])
    return equal(counts, expected, expected)


def self_loop_counts(loss: Loss, trajectory: Trajectory) -> Comparison:
    """#{p: G_p has at least r self-loops} <= binom(k, r) (2k - 2r)!! for all r <= k <= 2L, 6."""
    pairs = []
    for k in _enumerated(shape(loss)):
        for r in range(k + 1):
            count = sum(number for cycles, number in census(k).items() if cycles.loops >= r)
            pairs.append((count, math.comb(k, r) * _double_factorial(2 * k - 2 * r)))
    return _counts_at_most(pairs)


def _moment_from_cycles(loss: Loss, second: int, less: int) -> Comparison:
    known = shape(loss)
    n, ratios = known.length, []
    assert n is not None, "the setting of the claim"
    base = n if second else known.dimension
    for k, error in zip(_enumerated(known), isotropic_errors(known), strict=False):
        total = sum(c * n**p.first * Fraction(base) ** (p.second - less) for p, c in census(k).items())
        ratios.append(float(total / ((1 + error) * n**k)))
    return equal(jnp.asarray(ratios), 1.0, jnp.maximum(jnp.asarray(ratios), 1.0))


def moment_with_n(loss: Loss, trajectory: Trajectory) -> Comparison:
    """sum_p n^{C(G_p)} n^{C(G'_p)} over n^k alpha_{n,d,k}, as (16) with (19) has it, against 1, for k <= 2L, 6."""
    return _moment_from_cycles(loss, second=1, less=0)


def moment_with_d(loss: Loss, trajectory: Trajectory) -> Comparison:
    """sum_p n^{C(G_p)} d^{C(G'_p) - 1} over n^k alpha_{n,d,k} against 1."""
    return _moment_from_cycles(loss, second=0, less=1)


def _without_self_loops(nodes: int) -> int:
    """Pairings of 2m indices that leave no node of G_p to itself, by inclusion and exclusion."""
    terms = (math.comb(nodes, j) * (-1) ** j * _double_factorial(2 * (nodes - j) - 1) for j in range(nodes + 1))
    return sum(terms)


def _first_lines(known: Shape, k: int) -> tuple[Fraction, Fraction]:
    """alpha - 1, and the first line of (20) over n^k, minus 1: the pairing with r = k gives the 1."""
    assert known.length is not None, "the setting of the claim"
    error = isotropic_errors(known)[k - 1]
    line = sum(
        math.comb(k, s) * _without_self_loops(s) * Fraction(known.dimension**s, known.length ** (s - s // 2))
        for s in range(1, k + 1)
    )
    return error, Fraction(line)


def _chain(known: Shape, k: int, terms: Sequence[Sequence[float]]) -> Comparison:
    """alpha <= first line <= .. <= 1 + 4kd/sqrt(n), minus 1 throughout, where the sides differ."""
    exact, first = _first_lines(known, k)
    lines = [float(exact), float(first), *map(math.fsum, terms), known.first_order(k)]
    strict = [exact != first, *[True] * (len(lines) - 2)]
    return at_most(jnp.asarray(lines[:-1]), jnp.asarray(lines[1:]), promised=jnp.asarray(strict))


def printed_chain(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The lines of (20) over n^k, for k <= 2L; with s = k - r the second and third are one, and what the fourth leaves
    undefined at s = 0 is read as 1.
    """
    known, parts = shape(loss), []
    for k in range(1, 2 * known.loops + 1):
        x, orders = known.dimension / known.root_length, range(1, k + 1)
        second = [math.comb(k, s) * _double_factorial(2 * s) * x**s for s in orders]
        fourth = [(2 * k * x) ** s * math.sqrt(2 * s) / math.sqrt(2 * math.pi * s) for s in orders]
        parts.append(_chain(known, k, [second, fourth, [(2 * k * x) ** s for s in orders]]))
    return _joined(*parts)


def mended_chain(loss: Loss, trajectory: Trajectory) -> Comparison:
    """alpha <= first line <= sum_s binom(k, s) (2s - 1)!! (d/sqrt(n))^s <= sum_s (2kd/sqrt(n))^s <= 1 + 4kd/sqrt(n)."""
    known, parts = shape(loss), []
    for k in range(1, 2 * known.loops + 1):
        x, orders = known.dimension / known.root_length, range(1, k + 1)
        second = [math.comb(k, s) * _double_factorial(2 * s - 1) * x**s for s in orders]
        parts.append(_chain(known, k, [second, [(2 * k * x) ** s for s in orders]]))
    return _joined(*parts)


def _claim(part: str, statement: str, compare, **options) -> Claim:
    options.setdefault("problems", (PAPER, TWICE_EDGE, ONE_DIMENSION, ONE_LOOP))
    return Claim(
        f"gatmiry2024.lemma-a.2.{part}",
        "gatmiry2024, proof of Lemma A.2",
        statement,
        compare,
        setting=looped_with_finite_context,
        along_flow=False,
        spaces=spaces.PAIRINGS,
        **options,
    )


_ENUMERATED = "Judged on every pairing for k <= 2L and k <= 6. "

CLAIMS: tuple[Claim, ...] = (
    _claim(
        "cycle-count",
        "C(G_p) <= r + floor((k - r)/2), C(G'_p) <= k - r + 1 and C(G_p) + C(G'_p) <= k + 1, r self-loops in G_p",
        cycle_counts,
        note=_ENUMERATED
        + "Whole numbers, compared with 1/2 more. That a pair is a self-loop in at most one of the graphs "
        "fails at k = 1, where both have the one node (1, 2).",
    ),
    _claim(
        "eq-19",
        "E[(sum x_i x_i^T)^k] = sum_p n^{C(G_p)} n^{C(G'_p)} I, by (16) and (19)",
        moment_with_n,
        relation=Relation.IDENTITY,
        note=_ENUMERATED
        + "(18) sums basis vectors over [n] where there are d, and (19) counts the one that is not free.",
    ),
    _claim(
        "eq-19",
        "E[(sum x_i x_i^T)^k] = sum_p n^{C(G_p)} d^{C(G'_p) - 1} I",
        moment_with_d,
        form="corrected",
        relation=Relation.IDENTITY,
        note=_ENUMERATED
        + "The exponential sum of (19) is d^{C(G'_p) - 1} I, as the display after it has it; the moment by "
        "integration by parts is the same rational number.",
    ),
    _claim(
        "pairings",
        "2m indices can be allocated into pairs in C_m = (2m)!! ways",
        pairing_counts,
        relation=Relation.IDENTITY,
        note=_ENUMERATED,
    ),
    _claim(
        "pairings",
        "2m indices can be allocated into pairs in C_m = (2m - 1)!! ways",
        odd_pairing_counts,
        form="corrected",
        relation=Relation.IDENTITY,
        note=_ENUMERATED + "The printed (2m)!! is too large by a factor of about sqrt(pi m).",
    ),
    _claim(
        "pairings.at-least-r",
        "At most binom(k, r) (2k - 2r)!! pairings have a G_p with at least r self-loops",
        self_loop_counts,
        note=_ENUMERATED + "True because the printed C_m is too large; binom(k, r) (2k - 2r - 1)!! would do.",
    ),
    _claim(
        "eq-20",
        "alpha_{n,d,k} is at most each line of (20) in turn, and 1 + 4kd/sqrt(n), given n >= 4 k^2 d^2",
        printed_chain,
        hypotheses=long_context(4),
        problems=(EDGE, TWICE_EDGE, ONE_DIMENSION, ASTRONOMICAL),
        note="The fourth line is below the third, since (2s)!! is about sqrt(2 pi s)(2s/e)^s and not sqrt(2s)(2s/e)^s; "
        "the fifth follows from the third all the same. At n = 4 k^2 d^2 the fifth line is k + 1 and the bound 3. "
        "d^s in the second line is read as d^{k-r}.",
    ),
    _claim(
        "eq-20",
        "alpha <= sum_p n^{r + floor((k-r)/2) - k} d^{k-r} <= sum_s binom(k, s)(2s - 1)!! (d/sqrt(n))^s <= "
        "sum_s (2kd/sqrt(n))^s <= 1 + 4kd/sqrt(n), given n >= 16 k^2 d^2",
        mended_chain,
        form="corrected",
        hypotheses=long_context(16),
        problems=(TWICE_EDGE, ASTRONOMICAL, EDGE),
        note="The printed chain skips Stirling's sqrt(pi), and its last step needs sum_{s >= 1} y^s <= 2y with "
        "y = 2kd/sqrt(n), that is y <= 1/2 or n >= 16 k^2 d^2, and not n >= 4 k^2 d^2.",
    ),
)
