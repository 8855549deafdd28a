"""Enumerated pairings of indices, and the cycles of the graphs G_p and G'_p in gatmiry2024's appendix A."""

import collections
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MOST_POWERS = 6  # 11!! = 10395 pairings


class Cycles(NamedTuple):
    """For one pairing p, the numbers of self-loops of G_p, of cycles of G_p and of cycles of G'_p."""

    loops: int
    first: int
    second: int


@functools.cache
def census(power: int) -> dict[Cycles, int]:
    """The number of pairings of {1, .., 2k} with each kind of `Cycles`.

    The nodes of G_p are (1, 2), (3, 4), ..; those of G'_p are (2, 3), (4, 5), .. and (1, 2k). A pair joins the nodes of
    its two indices.
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
    """The number of pairings for each number of cycles of G_p, size of the cycle c* of (1, 2k) in G'_p, and sorted
    sizes of the other cycles of G'_p.
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
    """For each of k nodes, the representative node of its cycle, where each pair joins the nodes of its two indices."""
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
