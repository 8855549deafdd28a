"""Moments of a sample covariance by two routes each: pairings, integration by parts, Gauss quadrature of the spectrum.

What gatmiry2024 states in the proofs of Lemmas A.5 and A.7, and Lemma A.6.
"""

import collections
import functools
import math
from collections.abc import Sequence
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from flowsim.claims.claim import Claim, Comparison, Relation, equal
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.losses.deep.residual_energy import power_terms
from flowsim.moments.spectrum import spectral_quadrature
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.lemma_settings import (
    DEEP,
    LONG,
    ONE_DIMENSION,
    ONE_LOOP,
    PAPER,
    SHORT,
    Loss,
    looped_by_matrices,
    looped_with_finite_context,
    shape,
)
from flowsim.papers.gatmiry2024.moments import Spectrum, moment_errors
from flowsim.papers.gatmiry2024.pairings import cycles, pairings

_MOST_POWERS = 6  # 11!! = 10395 pairings
_MATRICES = 4


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


def paired_moments(eigenvalues: Spectrum, multiplicities: Sequence[int], length: int, power: int) -> Spectrum:
    """The eigenvalues of E[((1/n) sum x_i x_i^T)^k]: sum_p n^{C(G_p) - k} lambda^{|c*|} prod_c tr S^{|c|}."""
    sums = [sum(m * x**i for x, m in zip(eigenvalues, multiplicities, strict=True)) for i in range(power + 1)]
    totals = [Fraction(0)] * len(eigenvalues)
    for (count, star, others), number in shapes(power).items():
        weight = number * Fraction(length) ** (count - power) * math.prod((sums[size] for size in others), start=1)
        totals = [total + weight * x**star for total, x in zip(totals, eigenvalues, strict=True)]
    return tuple(totals)


def _powers(loss: Loss) -> range:
    return range(1, min(2 * shape(loss).loops, _MOST_POWERS) + 1)


def _length(loss: Loss) -> int:
    length = shape(loss).length
    assert length is not None, "the setting of the claim"
    return length


def pairing_formula(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The sum over pairings over alpha^{(j)} by integration by parts, against 1, for all j and k <= 2L, 6."""
    known, ratios = shape(loss), []
    for k in _powers(loss):
        errors = moment_errors(known.eigenvalues, known.multiplicities, _length(loss), k)
        paired = paired_moments(known.eigenvalues, known.multiplicities, _length(loss), k)
        ratios += [
            float(value / (x**k + error)) for value, x, error in zip(paired, known.eigenvalues, errors, strict=True)
        ]
    return equal(jnp.asarray(ratios), 1.0, 1.0)


def changed_covariance(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """E tr (I - W A')^{2L}, A' = S^{1/2} A S^{1/2}, as a polynomial in traces at drawn positive A', against
    tr E (I - Sigma~)^{2L} with the eigenvalues of A' as covariance, by pairings.
    """
    task, power = loss.task, min(2 * loss.loops, _MOST_POWERS)
    noise = jax.random.normal(jax.random.key(0), (_MATRICES, task.dimension, task.dimension))
    A = noise @ jnp.swapaxes(noise, 1, 2) / task.dimension
    left = jax.vmap(lambda A: power_terms(power)(task.context_length, A=A))(A)
    right, sizes = [], []
    for values in np.asarray(jnp.linalg.eigvalsh(A)):
        exact, ones = tuple(map(Fraction, values.tolist())), (1,) * values.size
        traces = [sum(paired_moments(exact, ones, _length(loss), k)) for k in range(1, power + 1)]
        terms = [Fraction(values.size), *((-1) ** k * math.comb(power, k) * x for k, x in enumerate(traces, 1))]
        right.append(float(sum(terms)))
        sizes.append(float(sum(map(abs, terms))))
    return rounded(equal(left, jnp.asarray(right), jnp.asarray(sizes)), jnp.asarray(8.0 * task.dimension))


def _powers_about_one(loss: Loss, first: int, sign) -> Comparison:
    """E tr (W - I)^k / d by Gauss quadrature of the mean spectrum of W against the sum over i from ``first`` on of
    sign(k, i) binom(k, i) E tr W^i / d, in rationals, for k <= 2L.
    """
    known, parts = shape(loss), []
    for k in range(1, 2 * known.loops + 1):
        rule = spectral_quadrature(known.dimension, _length(loss), k)
        left = float(np.sum(rule.weights * np.asarray(rule.offsets) ** k) / known.dimension)
        one, counts = (Fraction(1),), (known.dimension,)
        alphas = [Fraction(1)] + [1 + moment_errors(one, counts, _length(loss), i)[0] for i in range(1, k + 1)]
        right = sum((sign(k, i) * math.comb(k, i) * alphas[i] for i in range(first, k + 1)), Fraction(0))
        size = sum(float(rule.weights[j] * abs(rule.offsets[j]) ** k) for j in range(len(rule.weights)))
        larger = max(size / known.dimension, abs(float(right)), 1e-300)
        parts.append(rounded(equal(jnp.asarray([left]), float(right), larger), jnp.asarray(64.0 * k)))
    return joined(parts)


def printed_expansion(loss: Loss, trajectory: Trajectory) -> Comparison:
    """(21): sum_{i=1}^k (-1)^i binom(k, i)."""
    return _powers_about_one(loss, 1, lambda k, i: (-1) ** i)


def expansion(loss: Loss, trajectory: Trajectory) -> Comparison:
    """(21) with i from 0 on and (-1)^{k-i}."""
    return _powers_about_one(loss, 0, lambda k, i: (-1) ** (k - i))


def _claim(part: str, source: str, statement: str, compare, **options) -> Claim:
    options.setdefault("setting", looped_with_finite_context)
    return Claim(
        f"gatmiry2024.{part}",
        f"gatmiry2024, {source}",
        statement,
        compare,
        relation=Relation.IDENTITY,
        along_flow=False,
        spaces=spaces.LEMMAS,
        **options,
    )


CLAIMS: tuple[Claim, ...] = (
    _claim(
        "lemma-a.5.pairings",
        "proof of Lemma A.5",
        "E[(sum x_i x_i^T)^k] = sum_p n^{C(G_p)} (prod_{c without (1, 2k)} sum_i lambda_i^{|c|}) Sigma*^{|c*|}",
        pairing_formula,
        problems=(SHORT, DEEP, ONE_DIMENSION, LONG),
        note="Every pairing for k <= 2L and k <= 6, against integration by parts, in rationals. The display before "
        "this one has lambda^{|c*|} v v^T with v = sqrt(lambda) u, one power too many.",
    ),
    _claim(
        "lemma-a.6",
        "Lemma A.6",
        "E tr (I - A^{1/2} Sigma A^{1/2})^{2L} = tr E (I - Sigma~)^{2L}, Sigma~ of x~_i ~ N(0, A^{1/2} Sigma* A^{1/2})",
        changed_covariance,
        setting=looped_by_matrices,
        problems=(SHORT, DEEP, ONE_DIMENSION, LONG),
        note="At drawn A, by matrices and integration by parts at the left, by eigenvalues and pairings at the right. "
        "The statement has one more Sigma^{1/2} in its first trace, which it then drops.",
    ),
    _claim(
        "lemma-a.7.eq-21",
        "proof of Lemma A.7, (21)",
        "E[A^{-1/2} (A^{1/2} Sigma A^{1/2} - I)^k A^{1/2}] = sum_{i=1}^k (-1)^i binom(k, i) E[A^{-1/2} "
        "(A^{1/2} Sigma A^{1/2})^i A^{1/2}]",
        printed_expansion,
        problems=(PAPER, ONE_LOOP, ONE_DIMENSION),
        note="At A = Sigma*^-1, for k <= 2L, by Gauss quadrature against rationals. The term i = 0 is missing, and the "
        "sign should be (-1)^{k-i}.",
    ),
    _claim(
        "lemma-a.7.eq-21",
        "proof of Lemma A.7, (21)",
        "The same with i from 0 on and (-1)^{k-i}",
        expansion,
        form="corrected",
        problems=(PAPER, ONE_LOOP, ONE_DIMENSION),
        note="At A = Sigma*^-1, for k <= 2L, by Gauss quadrature against rationals.",
    ),
)
