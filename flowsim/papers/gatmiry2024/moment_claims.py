"""gatmiry2024's claims about the moments of a sample covariance, judged in exact arithmetic."""

from flowsim.claims.claim import Claim
from flowsim.papers.gatmiry2024 import moments, spaces
from flowsim.papers.gatmiry2024.lemma_settings import (
    ASTRONOMICAL,
    EDGE,
    ONE_DIMENSION,
    ONE_LOOP,
    PAPER,
    SHORTEST,
    TWICE_EDGE,
    long_context,
    looped,
)
from flowsim.papers.gatmiry2024.setting import over_determined

_PROBLEMS = (SHORTEST, PAPER, ONE_LOOP, EDGE, ASTRONOMICAL)
_LONG = (EDGE, TWICE_EDGE, ONE_DIMENSION, ASTRONOMICAL)
_CONDITION = (
    "Lemma A.2, on which this rests, asks for n >= 4 k^2 d^2; the statement has lost that and fails without: "
    "section 3.2 leaves n > d, and at n = d + 1, L = 3, d = 10 the sixth moment is too large. "
)


def _claim(part: str, source: str, statement: str, compare, **options) -> Claim:
    return Claim(
        f"gatmiry2024.{part}",
        f"gatmiry2024, {source}",
        statement,
        compare,
        setting=looped,
        along_flow=False,
        spaces=spaces.MOMENTS,
        **options,
    )


def _both(part: str, source: str, statement: str, compare, note: str, **options) -> tuple[Claim, Claim]:
    """The statement as printed, for every n > d, and with the condition of Lemma A.2."""
    return (
        _claim(
            part,
            source,
            statement,
            compare,
            hypotheses=over_determined,
            problems=_PROBLEMS,
            note=_CONDITION + note,
            **options,
        ),
        _claim(
            part,
            source,
            f"{statement}, given n >= 4 k^2 d^2",
            compare,
            form="corrected",
            hypotheses=long_context(4),
            problems=_LONG,
            note="The printed statement without the condition n >= 4 k^2 d^2 of Lemma A.2 fails at small n. " + note,
            **options,
        ),
    )


_DELTA = "with delta = (8Ld/sqrt(n))^{1/(2L)}"

CLAIMS: tuple[Claim, ...] = (
    *_both(
        "lemma-4.2",
        "Lemma 4.2",
        "|alpha^{(j)}_{n,d,k} - lambda_j^k| <= delta^k lambda_1^k for all k <= 2L and j, " + _DELTA,
        moments.moment_controls,
        "The lower half holds at every n by Jensen's inequality.",
        constants=moments.moment_constants,
    ),
    *_both(
        "lemma-4.3",
        "Lemma 4.3",
        "|beta_i^{(k)} - (1 - lambda_i)^k| <= delta^k (lambda_1 + 1)^k for all k <= 2L and i, " + _DELTA,
        moments.eigenvalue_approximation,
        "Judged at A = I, 100 I, S^-1 and 2 S^-1; beta depends on the spectrum of A^{1/2} S A^{1/2} alone.",
    ),
    _claim(
        "lemma-a.2",
        "Lemma A.2",
        "1 <= alpha_{n,d,k} <= 1 + 4kd/sqrt(n) for E[(sum x_i x_i^T / n)^k] = alpha I, given n >= 4 k^2 d^2",
        moments.isotropic_moments,
        hypotheses=long_context(4),
        constants=moments.isotropic_constants,
        problems=(EDGE, TWICE_EDGE, ONE_DIMENSION, ASTRONOMICAL, PAPER),
        note="The display lacks the power k of the sum. The bound is far from sharp: alpha - 1 is k(k-1)(d+1)/(2n) to "
        "leading order, of the square of the order that is granted.",
    ),
    *_both(
        "lemma-a.5",
        "Lemma A.5",
        "|alpha^{(j)}_{n,d,k} - lambda_j^k| <= delta lambda_1^k for all j, with delta = 4kd/sqrt(n)",
        moments.moment_controls_first_order,
        "The lemma does not say what delta is: 4kd/sqrt(n) is that of its proof and of the remark on Theorem 3.2.",
    ),
    *_both(
        "lemma-a.7",
        "Lemma A.7",
        "|beta_i^{(k)} - (lambda_i - 1)^k| <= delta^k (lambda_1 + 1)^k, with delta^k = 4kd/sqrt(n)",
        moments.eigenvalue_approximation_first_order,
        "Judged for k <= 2L at A = I, 100 I, S^-1 and 2 S^-1. The sum of (21) lacks its first term, i = 0, and (-1)^i "
        "should read (-1)^{k-i}.",
    ),
)
