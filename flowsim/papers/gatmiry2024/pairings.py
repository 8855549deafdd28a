"""Pairings of indices, enumerated, and the cycles of the graphs G_p and G'_p of gatmiry2024's appendix A."""

import collections
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MOST_POWERS = 6  # 11!! = 10395 pairings


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


@functools.cache
def shapes(power: int) -> dict[tuple[int, int, tuple[int, ...]], int]:
    """How many pairings have which number of cycles of G_p, which size of the cycle c* of (1, 2k) in G'_p, and which
    sizes of its other cycles.
    """
    first = [i // 2 for i in range(2 * power)]
    second = [((i + 1) // 2) % power for i in range(2 * power)]
    found = collections.Counter()
    for pairs in pairings(tuple(range(2 * power))):
        roots = cycles(power, second, pairs)
        sizes = collections.Counter(roots)
        star = sizes.pop(roots[0])
        found[len(set(cycles(power, first, pairs))), star, tuple(sorted(sizes.values()))] += 1
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
