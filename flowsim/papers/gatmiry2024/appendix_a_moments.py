"""gatmiry2024's appendix A: Lemmas A.5 to A.7 on the moments of a sample covariance.

Each step of their proofs is computed in two of three ways: by pairings, by integration by parts, and by Gauss
quadrature of the spectrum.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.statements import joined, rounded
from flowsim.losses import LoopedLoss
from flowsim.losses.deep.residual_energy import power_terms
from flowsim.moments.spectrum import spectral_quadrature
from flowsim.papers.gatmiry2024 import lemmas, moments, spaces
from flowsim.papers.gatmiry2024.setting import LOOPED, Loss, approximate, looped, over_determined

_MATRICES = 4

_NO_DELTA = "The lemma does not define delta; its proof and the remark on Theorem 3.2 have 4kd/sqrt(n)."
_SUM_21 = (
    "Judged for k <= 2L at A = I, 100 I, S^-1 and 2 S^-1. The sum of (21) lacks its first term, i = 0, and (-1)^i "
    "should read (-1)^{k-i}."
)

SECTION = LOOPED(setting=moments.looped_with_finite_context)
ON_LENGTHS = SECTION.on(lemmas.LENGTHS, spaces.MOMENTS, setting=looped, hypotheses=over_determined)
ON_LONG_LENGTHS = SECTION.on(
    lemmas.LONG_LENGTHS, spaces.MOMENTS, setting=looped, hypotheses=moments.long_for_moments(4)
)
ON_LEMMAS = SECTION.on((lemmas.SHORT, lemmas.DEEP, lemmas.ONE_DIMENSION, lemmas.LONG), spaces.LEMMAS)
ON_LEMMAS_2 = SECTION.on((lemmas.PAPER, lemmas.ONE_LOOP, lemmas.ONE_DIMENSION), spaces.LEMMAS)


@ON_LENGTHS.claim("lemma-a.5", "Lemma A.5", note=moments.CONDITION_LOST + _NO_DELTA)
@moments.of_moments
def moment_controls_first_order(known: moments.Shape, power: int) -> float:
    r"""$\lvert \alpha^{(j)}_{n,d,k} - \lambda_j^k \rvert \le \delta \lambda_1^k$ for all $j$, with $\delta =
    4kd/\sqrt{n}$
    """
    return known.first_order(power)


moments.given_long_contexts(moment_controls_first_order, ON_LONG_LENGTHS, _NO_DELTA)


def _over_pairings(length: int, power: int, trace: Callable, weight: Callable) -> Fraction:
    """The sum over all pairings p of n^{C(G_p) - k} weight(|c*|) prod_{c != c*} trace(|c|).

    Here c runs over the cycles of G'_p, c* is the cycle that contains the node (1, 2k), and |c| is the size of c.
    C(G_p) is the number of cycles of G_p. `shapes` defines both graphs.

    **Arguments:** length: n; power: k; trace, weight: functions of the size of a cycle.
    """
    terms = (
        number * Fraction(length) ** (kind.first - power) * math.prod(map(trace, others)) * weight(star)
        for (kind, star, others), number in moments.shapes(power).items()
    )
    return sum(terms, start=Fraction(0))


def paired_moments(
    eigenvalues: moments.Spectrum, multiplicities: Sequence[int], length: int, power: int
) -> moments.Spectrum:
    """The eigenvalues of E[((1/n) sum_i x_i x_i^T)^k] by pairings, for x_i ~ N(0, S).

    They are sum_p n^{C(G_p) - k} lambda^{|c*|} prod_{c != c*} tr S^{|c|}, one for each eigenvalue lambda of S.

    **Arguments:** eigenvalues, multiplicities: of S; length: n; power: k.
    """
    sums = [sum(m * x**i for x, m in zip(eigenvalues, multiplicities, strict=True)) for i in range(power + 1)]
    return tuple(_over_pairings(length, power, lambda size: sums[size], functools.partial(pow, x)) for x in eigenvalues)


@ON_LEMMAS.claim("lemma-a.5.pairings", "proof of Lemma A.5")
def pairing_formula(loss: Loss) -> Comparison:
    r"""$\mathbb{E}\bigl[\bigl(\sum x_i x_i^\top\bigr)^k\bigr] = \sum_p n^{C(G_p)} \Bigl(\prod_{c \not\ni (1, 2k)}
    \sum_i \lambda_i^{\lvert c \rvert}\Bigr) {\Sigma^*}^{\lvert c^* \rvert}$

    The sum over all pairings is compared with integration by parts in rationals, for k <= 2L and k <= 6. The display
    before this one has lambda^{|c*|} v v^T with v = sqrt(lambda) u. This is one power of lambda too many.
    """
    known, ratios = moments.shape(loss), []
    for k in moments.enumerated(known):
        errors = moments.moment_errors(known.eigenvalues, known.multiplicities, known.finite_length, k)
        paired = paired_moments(known.eigenvalues, known.multiplicities, known.finite_length, k)
        ratios += [
            float(value / (x**k + error)) for value, x, error in zip(paired, known.eigenvalues, errors, strict=True)
        ]
    return equal(jnp.asarray(ratios), 1.0, 1.0)


def _proof_of_moments(loss: Loss, printed: bool) -> Comparison:
    """The chain of inequalities in the proof of Lemma A.5, in rationals, for all j and all k <= min(2L, 6).

    Each side is divided by n^k, and lambda_j^k is subtracted from it. No statement is made about two adjacent sides
    that are equal. With ``printed`` the chain contains the printed sum in which lambda_1 is replaced by lambda_j.
    """
    known, links = moments.shape(loss), []
    first = known.eigenvalues[0]
    for k in moments.enumerated(known):
        alphas = moments.moment_errors(known.eigenvalues, known.multiplicities, known.finite_length, k)
        allowed = Fraction(known.first_order(k))
        over_pairings = functools.partial(_over_pairings, known.finite_length, k, lambda _: known.dimension)
        for x, alpha in zip(known.eigenvalues, alphas, strict=True):
            bounds = [over_pairings(lambda star, x=x, k=k: first ** (k - star) * x**star)]
            if printed:
                bounds.append(over_pairings(lambda _, x=x, k=k: x**k))
            upper = [bound - x**k for bound in bounds]
            links += itertools.pairwise([-allowed * x**k, alpha, *upper, allowed * first**k])
    below, above = (jnp.asarray([float(side) for side in sides]) for sides in zip(*links, strict=True))
    return at_most(below, above, promised=np.asarray([a != b for a, b in links]))


@ON_LONG_LENGTHS.claim(
    "lemma-a.5.proof", "proof of Lemma A.5, last two displays", setting=moments.looped_with_finite_context
)
def moments_proved(loss: Loss) -> Comparison:
    r"""$n^k \lambda_j^k (1 - 4kd/\sqrt{n}) \le n^k \alpha^{(j)} \le \sum_p n^{C(G_p)} \bigl(\prod_{c \ne c^*} d
    \lambda_1^{\lvert c \rvert}\bigr) \lambda_j^{\lvert c^* \rvert} \le \sum_p n^{C(G_p)} d^{C(G'_p) - 1} \lambda_j^k
    \le n^k \lambda_j^k + n^k \lambda_1^k 4kd/\sqrt{n}$

    Judged in rationals for k <= 2L and k <= 6, with n >= 4 k^2 d^2 as in Lemma A.2. The third inequality replaces
    lambda_1 by lambda_j, which is smaller.
    """
    return _proof_of_moments(loss, printed=True)


@ON_LONG_LENGTHS.corrected(moments_proved, setting=moments.looped_with_finite_context)
def moments_bounded(loss: Loss) -> Comparison:
    r"""$n^k \lambda_j^k (1 - 4kd/\sqrt{n}) \le n^k \alpha^{(j)} \le \sum_p n^{C(G_p)} \bigl(\prod_{c \ne c^*} d
    \lambda_1^{\lvert c \rvert}\bigr) \lambda_j^{\lvert c^* \rvert} \le n^k \lambda_j^k + n^k \lambda_1^k 4kd/\sqrt{n}$

    Judged in rationals for k <= 2L and k <= 6, with n >= 4 k^2 d^2 as in Lemma A.2. The sum with lambda_j^k is omitted.
    """
    return _proof_of_moments(loss, printed=False)


@ON_LEMMAS.claim("lemma-a.6", "Lemma A.6", setting=moments.looped_by_matrices)
def changed_covariance(loss: LoopedLoss) -> Comparison:
    r"""$\mathbb{E} \operatorname{tr} (I - A^{1/2} \Sigma A^{1/2})^{2L} = \operatorname{tr} \mathbb{E} (I -
    \tilde\Sigma)^{2L}$, $\tilde\Sigma$ of $\tilde x_i \sim \mathcal{N}(0, A^{1/2} \Sigma^* A^{1/2})$

    Judged at random A. Integration by parts gives the left side from matrices, and pairings give the right side from
    eigenvalues. The printed statement has an extra Sigma^{1/2} in its first trace, which it then drops.
    """
    task, power = loss.task, min(2 * loss.loops, moments.MOST_POWERS)
    noise = jax.random.normal(jax.random.key(0), (_MATRICES, task.dimension, task.dimension))
    A = noise @ jnp.swapaxes(noise, 1, 2) / task.dimension
    left = jax.vmap(lambda A: power_terms(power)(task.context_length, A=A))(A)
    right, sizes = [], []
    for values in np.asarray(jnp.linalg.eigvalsh(A)):
        exact, ones = tuple(map(Fraction, values.tolist())), (1,) * values.size
        traces = [sum(paired_moments(exact, ones, moments.shape(loss).finite_length, k)) for k in range(1, power + 1)]
        terms = [Fraction(values.size), *((-1) ** k * math.comb(power, k) * x for k, x in enumerate(traces, 1))]
        right.append(float(sum(terms)))
        sizes.append(float(sum(map(abs, terms))))
    return rounded(equal(left, jnp.asarray(right), jnp.asarray(sizes)), jnp.asarray(8.0 * task.dimension))


@ON_LENGTHS.claim("lemma-a.7", "Lemma A.7", note=moments.CONDITION_LOST + _SUM_21)
@moments.of_residuals
def eigenvalue_approximation_first_order(known: moments.Shape, power: int) -> float:
    r"""$\lvert \beta_i^{(k)} - (\lambda_i - 1)^k \rvert \le \delta^k (\lambda_1 + 1)^k$, with $\delta^k =
    4kd/\sqrt{n}$
    """
    return known.first_order(power)


moments.given_long_contexts(eigenvalue_approximation_first_order, ON_LONG_LENGTHS, _SUM_21)


def _powers_about_one(loss: Loss, first: int, sign) -> Comparison:
    """The statement E tr (W - I)^k / d = sum_{i >= first} sign(k, i) binom(k, i) E tr W^i / d, for all k <= 2L.

    W is the sample covariance of n vectors from N(0, I). Gauss quadrature over the mean spectrum of W gives the
    left side. The right side is a rational number.
    """
    known, parts = moments.shape(loss), []
    alphas = [Fraction(1), *(1 + error for error in moments.isotropic_errors(known))]
    for k in moments.powers(known):
        rule = spectral_quadrature(known.dimension, known.finite_length, k)
        left = float(np.sum(rule.weights * np.asarray(rule.offsets) ** k) / known.dimension)
        right = sum((sign(k, i) * math.comb(k, i) * alphas[i] for i in range(first, k + 1)), Fraction(0))
        size = sum(float(weight * abs(offset) ** k) for weight, offset in zip(rule.weights, rule.offsets, strict=True))
        larger = max(size / known.dimension, abs(float(right)), 1e-300)
        parts.append(rounded(equal(approximate([left]), float(right), larger), jnp.asarray(64.0 * k)))
    return joined(parts)


@ON_LEMMAS_2.claim("lemma-a.7.eq-21", "proof of Lemma A.7, (21)")
def printed_expansion(loss: Loss) -> Comparison:
    r"""$\mathbb{E}\bigl[A^{-1/2} (A^{1/2} \Sigma A^{1/2} - I)^k A^{1/2}\bigr] = \sum_{i=1}^k (-1)^i \binom{k}{i}
    \mathbb{E}\bigl[A^{-1/2} (A^{1/2} \Sigma A^{1/2})^i A^{1/2}\bigr]$

    Judged at A = Sigma*^-1 for k <= 2L. Gauss quadrature gives the left side, and rationals give the right side. The
    term i = 0 is missing, and the sign should be (-1)^{k-i}.
    """
    return _powers_about_one(loss, 1, lambda k, i: (-1) ** i)


@ON_LEMMAS_2.corrected(printed_expansion)
def expansion(loss: Loss) -> Comparison:
    """The same with $i$ from $0$ on and $(-1)^{k-i}$

    Judged at A = Sigma*^-1 for k <= 2L. Gauss quadrature gives the left side, and rationals give the right side.
    """
    return _powers_about_one(loss, 0, lambda k, i: (-1) ** (k - i))
