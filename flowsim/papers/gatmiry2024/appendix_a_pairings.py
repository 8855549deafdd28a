"""gatmiry2024's appendix A: Lemma A.2 on moments of a Gaussian covariance, and its proof by pairings, (16) to (20)."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.gatmiry2024 import lemmas, moments, spaces
from flowsim.papers.gatmiry2024.setting import LOOPED, Loss, looped

PROBLEMS = (lemmas.PAPER, lemmas.TWICE_EDGE, lemmas.ONE_DIMENSION, lemmas.ONE_LOOP)
_ENUMERATED = "Judged on every pairing for k <= 2L and k <= 6. "


def isotropic_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The constants to report for Lemma A.2, where E W^k = alpha I.

    **Returns:**

    - constant: the 4 in the bound 4kd/sqrt(n) on alpha - 1.
    - sharp_constant: the least number that can replace this 4 for all k <= 2L.
    - over_leading_term: at k = 2L, alpha - 1 divided by its leading term k (k - 1)(d + 1)/(2n).
    """
    known = moments.shape(loss)
    errors, n = moments.isotropic_errors(known), math.inf if known.length is None else known.length
    sharp = max(
        4 * float(error) / max(known.first_order(k), 1e-300)
        for k, error in zip(moments.powers(known), errors, strict=True)
    )
    k, d = 2 * known.loops, known.dimension
    leading = k * (k - 1) * (d + 1) / (2 * n)
    return {
        "constant": jnp.asarray(4.0),
        "sharp_constant": jnp.asarray(sharp),
        "over_leading_term": jnp.asarray(float(errors[-1]) / leading if leading else 1.0),
    }


SECTION = LOOPED(setting=moments.looped_with_finite_context)
ON_PROBLEMS = SECTION.on(PROBLEMS, spaces.PAIRINGS)


@SECTION.on(
    (lemmas.EDGE, lemmas.TWICE_EDGE, lemmas.ONE_DIMENSION, lemmas.ASTRONOMICAL, lemmas.PAPER), spaces.MOMENTS
).claim("lemma-a.2", "Lemma A.2", setting=looped, hypotheses=moments.long_for_moments(4), constants=isotropic_constants)
def isotropic_moments(loss: Loss) -> Comparison:
    r"""$1 \le \alpha_{n,d,k} \le 1 + 4kd/\sqrt{n}$ for $\mathbb{E}\bigl[\bigl(\sum x_i x_i^\top / n\bigr)^k\bigr] =
    \alpha I$, given $n \ge 4 k^2 d^2$

    The display lacks the power k of the sum. The bound is far from sharp: alpha - 1 is k(k-1)(d+1)/(2n) to leading
    order, while the printed bound on it falls only as 1/sqrt(n).
    """
    known = moments.shape(loss)
    errors = jnp.asarray([float(error) for error in moments.isotropic_errors(known)])
    bounds = jnp.asarray([known.first_order(k) for k in moments.powers(known)])
    finite = known.length is not None
    upper = at_most(errors, bounds, promised=finite)
    lower = at_least(errors, 0.0, size=1.0, promised=finite & (np.arange(errors.size) > 0))
    return joined([upper, lower])


def _counts_at_most(pairs: Sequence[tuple[int, int]]) -> Comparison:
    """The statement value <= bound for pairs (value, bound) of whole numbers, judged as value <= bound + 1/2."""
    values, bounds = jnp.asarray(pairs, dtype=float).T
    return at_most(values, bounds + 0.5)


def _moment_from_cycles(loss: Loss, second: int, less: int) -> Comparison:
    known = moments.shape(loss)
    n, ratios = known.finite_length, []
    base = n if second else known.dimension
    for k, error in zip(moments.enumerated(known), moments.isotropic_errors(known), strict=False):
        total = sum(c * n**p.first * Fraction(base) ** (p.second - less) for p, c in moments.census(k).items())
        ratios.append(float(total / ((1 + error) * n**k)))
    return equal(jnp.asarray(ratios), 1.0, jnp.maximum(jnp.asarray(ratios), 1.0))


@ON_PROBLEMS.claim(
    "lemma-a.2.eq-19",
    "proof of Lemma A.2",
    note=_ENUMERATED + "(18) sums over n basis vectors instead of d, and (19) also counts the cycle that is not free.",
)
def moment_with_n(loss: Loss) -> Comparison:
    r"""$\mathbb{E}\bigl[\bigl(\sum x_i x_i^\top\bigr)^k\bigr] = \sum_p n^{C(G_p)} n^{C(G'_p)} I$, by (16) and (19)"""
    return _moment_from_cycles(loss, second=1, less=0)


@ON_PROBLEMS.corrected(
    moment_with_n,
    note=_ENUMERATED + "The expectation of (19) is d^{C(G'_p) - 1} I, as in the display after it; integration by "
    "parts gives the moment as the same rational number.",
)
def moment_with_d(loss: Loss) -> Comparison:
    r"""$\mathbb{E}\bigl[\bigl(\sum x_i x_i^\top\bigr)^k\bigr] = \sum_p n^{C(G_p)} d^{C(G'_p) - 1} I$"""
    return _moment_from_cycles(loss, second=0, less=1)


@ON_PROBLEMS.claim(
    "lemma-a.2.cycle-count",
    "proof of Lemma A.2",
    note=_ENUMERATED + "Whole numbers are compared with their bounds plus 1/2. That a pair is a self-loop in at most "
    "one of the graphs fails at k = 1, where both have only the node (1, 2).",
)
def cycle_counts(loss: Loss) -> Comparison:
    r"""$C(G_p) \le r + \lfloor (k - r)/2 \rfloor$, $C(G'_p) \le k - r + 1$ and $C(G_p) + C(G'_p) \le k + 1$, $r$
    self-loops in $G_p$
    """
    pairs = []
    for k in moments.enumerated(moments.shape(loss)):
        for r, first, second in moments.census(k):
            pairs += [(first, r + (k - r) // 2), (second, k - r + 1), (first + second, k + 1)]
    return _counts_at_most(pairs)


def _double_factorial(m: int) -> int:
    return math.prod(range(m, 0, -2))


def _count_against(loss: Loss, less: int) -> Comparison:
    orders = moments.enumerated(moments.shape(loss))
    counts = jnp.asarray([float(sum(moments.census(m).values())) for m in orders])
    expected = jnp.asarray([float(_double_factorial(2 * m - less)) for m in orders])
    return equal(counts, expected, expected)


@ON_PROBLEMS.claim("lemma-a.2.pairings", "proof of Lemma A.2", note=_ENUMERATED)
def pairing_counts(loss: Loss) -> Comparison:
    """$2m$ indices can be allocated into pairs in $C_m = (2m)!!$ ways"""
    return _count_against(loss, 0)


@ON_PROBLEMS.corrected(
    pairing_counts, note=_ENUMERATED + "The printed (2m)!! is too large by a factor of about sqrt(pi m)."
)
def odd_pairing_counts(loss: Loss) -> Comparison:
    """$2m$ indices can be allocated into pairs in $C_m = (2m - 1)!!$ ways"""
    return _count_against(loss, 1)


@ON_PROBLEMS.claim(
    "lemma-a.2.pairings.at-least-r",
    "proof of Lemma A.2",
    note=_ENUMERATED + "True because the printed C_m is too large; binom(k, r) (2k - 2r - 1)!! would suffice.",
)
def self_loop_counts(loss: Loss) -> Comparison:
    r"""At most $\binom{k}{r} (2k - 2r)!!$ pairings have a $G_p$ with at least $r$ self-loops"""
    pairs = []
    for k in moments.enumerated(moments.shape(loss)):
        for r in range(k + 1):
            count = sum(number for cycles, number in moments.census(k).items() if cycles.loops >= r)
            pairs.append((count, math.comb(k, r) * _double_factorial(2 * k - 2 * r)))
    return _counts_at_most(pairs)


def _without_self_loops(nodes: int) -> int:
    """The number of pairings of 2m indices for which G_p has no self-loop, where m is ``nodes``.

    The number is computed by inclusion and exclusion.
    """
    terms = (math.comb(nodes, j) * (-1) ** j * _double_factorial(2 * (nodes - j) - 1) for j in range(nodes + 1))
    return sum(terms)


def _chains(loss: Loss, terms: Callable[[int, int, float], Sequence[float]]) -> Comparison:
    """The chain alpha <= first line of (20) <= .. <= 1 + 4kd/sqrt(n) for all k <= 2L.

    Here E W^k = alpha I, and 1 is subtracted from each side. terms(k, s, d/sqrt(n)) returns one number for each
    line after the first. Each of these lines is the sum of its numbers over s = 1, .., k. If alpha equals the first
    line, no statement is made about these two.
    """
    known, parts = moments.shape(loss), []
    d, n = known.dimension, known.finite_length
    for k, exact in zip(moments.powers(known), moments.isotropic_errors(known), strict=True):
        first = sum(
            math.comb(k, s) * _without_self_loops(s) * Fraction(d**s, n ** (s - s // 2)) for s in range(1, k + 1)
        )
        sums = map(math.fsum, zip(*(terms(k, s, d / known.root_length) for s in range(1, k + 1)), strict=True))
        lines = [float(exact), float(first), *sums, known.first_order(k)]
        strict = [exact != first, *[True] * (len(lines) - 2)]
        parts.append(at_most(jnp.asarray(lines[:-1]), jnp.asarray(lines[1:]), promised=jnp.asarray(strict)))
    return joined(parts)


@SECTION.on((lemmas.EDGE, lemmas.TWICE_EDGE, lemmas.ONE_DIMENSION, lemmas.ASTRONOMICAL), spaces.PAIRINGS).claim(
    "lemma-a.2.eq-20", "proof of Lemma A.2", hypotheses=moments.long_for_moments(4)
)
def printed_chain(loss: Loss) -> Comparison:
    r"""$\alpha_{n,d,k}$ is at most each line of (20) in turn, and $1 + 4kd/\sqrt{n}$, given $n \ge 4 k^2 d^2$

    The fourth line is below the third, because (2s)!! is about sqrt(2 pi s)(2s/e)^s and not sqrt(2s)(2s/e)^s. The fifth
    line still follows from the third. At n = 4 k^2 d^2 the fifth line is k + 1, but the bound is 3. In the second line
    d^s is read as d^{k-r}.
    """

    def terms(k: int, s: int, x: float) -> tuple[float, float, float]:
        fifth = (2 * k * x) ** s
        fourth = fifth * math.sqrt(2 * s) / math.sqrt(2 * math.pi * s)
        return math.comb(k, s) * _double_factorial(2 * s) * x**s, fourth, fifth

    return _chains(loss, terms)


@SECTION.on((lemmas.TWICE_EDGE, lemmas.ASTRONOMICAL, lemmas.EDGE), spaces.PAIRINGS).corrected(
    printed_chain, hypotheses=moments.long_for_moments(16)
)
def mended_chain(loss: Loss) -> Comparison:
    r"""$\alpha \le \sum_p n^{r + \lfloor (k-r)/2 \rfloor - k} d^{k-r} \le \sum_s \binom{k}{s}(2s - 1)!! (d/\sqrt{n})^s
    \le \sum_s (2kd/\sqrt{n})^s \le 1 + 4kd/\sqrt{n}$, given $n \ge 16 k^2 d^2$

    The printed chain lacks the factor sqrt(pi) of Stirling's formula. Its last step needs sum_{s >= 1} y^s <= 2y with y
    = 2kd/sqrt(n). This is true for y <= 1/2, that is, n >= 16 k^2 d^2, but n >= 4 k^2 d^2 allows y up to 1.
    """
    second = lambda k, s, x: math.comb(k, s) * _double_factorial(2 * s - 1) * x**s
    return _chains(loss, lambda k, s, x: (second(k, s, x), (2 * k * x) ** s))
