"""The claims of gatmiry2024 about the minimum, gradient dominance, and what a small loss means."""

from flowsim.claims.claim import Claim
from flowsim.papers.gatmiry2024 import landscape, spaces
from flowsim.papers.gatmiry2024 import landscape_problems as problems
from flowsim.papers.gatmiry2024.setting import (
    all_of,
    identity_covariance,
    long_context,
    looped,
    over_determined,
    without_bias,
)

_OPTIMUM = (
    problems.EASY,
    problems.ONE_LOOP,
    problems.ONE_DIMENSION,
    problems.ANISOTROPIC,
    problems.VERY_LONG_ANISOTROPIC,
    problems.WIDE_LONG,
    problems.SHORT,
)
_DOMINANCE = (
    problems.EASY,
    problems.SHORT,
    problems.RANDOM,
    problems.OVERSHOT,
    problems.INFINITE,
    problems.WIDE,
    problems.WIDE_LONG,
    problems.WIDE_DEEP,
    problems.CROWDED,
    problems.ANISOTROPIC,
)
_DOMINANCE_OF_LONG_CONTEXTS = (
    problems.EASY,
    problems.ONE_DIMENSION,
    problems.INFINITE,
    problems.WIDE,
    problems.WIDE_LONG,
    problems.WIDE_DEEP,
    problems.CROWDED,
)
_EPSILON = (
    problems.VERY_LONG,
    problems.INFINITE,
    problems.WIDE,
    problems.WIDE_ENOUGH,
    problems.SHORT,
    problems.SMALL_COVARIANCE,
    problems.VERY_LONG_ANISOTROPIC,
)
_PROXIMITY = (
    problems.VERY_LONG,
    problems.VERY_LONG_ANISOTROPIC,
    problems.INFINITE,
    problems.WIDE_LONG,
    problems.EASY,
)
_HOELDER = (
    "Hoelder's inequality between the sums of powers 4L-2 and 2L of d numbers costs d^{-(L-1)/L}; Lemma A.10 writes "
    "d^{-(L-1)/(2L-1)} and then drops it."
)
_SMALL_COVARIANCE = (
    "Sigma* = I, which Theorem 3.4 asks for, has been dropped, and the statement fails without: a gradient in A "
    "carries Sigma* twice, so that at Sigma* = 0.01 I its square is 10^-4 of that at I, while the loss is the same. "
)
_WITH_COVARIANCE = (
    "For every Sigma*, with its least eigenvalue lambda_d: grad_A L = Sigma*^{1/2} G Sigma*^{1/2}, where G is the "
    "gradient at covariance I. "
)
_REFUTED = (
    "Fails at every n, and in the limit, for large d: at A = a I and n = inf, |grad L|^2 = 4 L^2 d^{-(L-1)/L} "
    "L^{(2L-1)/L}, less than printed where d^{(L-1)/L} > 64 L^2 (d > 65536 for two loops). Without a condition on n it "
    "fails at one loop too: for n > d >> sqrt(n) the minimum itself, where grad L = 0, is above the threshold."
)


def _claim(part: str, source: str, statement: str, compare, **options) -> Claim:
    options.setdefault("setting", looped)
    return Claim(f"gatmiry2024.{part}", f"gatmiry2024, {source}", statement, compare, **options)


CLAIMS: tuple[Claim, ...] = (
    _claim(
        "theorem-3.2.loss",
        "Theorem 3.2, 1",
        "8 L d^2/sqrt(n) <= 2^{-2L} implies L(A_opt, u_opt) <= 8 L d^2 2^{2L}/sqrt(n)",
        landscape.minimum_bounded,
        hypotheses=long_context,
        constants=landscape.minimum_constants,
        along_flow=False,
        problems=_OPTIMUM,
        spaces=spaces.OPTIMUM,
        note="The minimum is of the order d (d/n)^L, far below the bound.",
    ),
    _claim(
        "theorem-3.2.minimiser",
        "Theorem 3.2, 2",
        "Under that condition (1 - c) Sigma*^-1 <= A_opt <= (1 + c) Sigma*^-1, c = 8 delta d^{1/(2L)}, and u_opt = 0",
        landscape.minimiser_bounded,
        hypotheses=long_context,
        constants=landscape.minimiser_constants,
        along_flow=False,
        problems=_OPTIMUM,
        spaces=spaces.OPTIMUM,
        note="1 - c > 0 needs sqrt(n) > 8 L d^2 8^{2L}; the condition allows c up to 4. Both halves are compared at "
        "every finite n. The distance is of the order d/n, so that the remark that the estimate is the "
        "best one can hope for is not so. u_opt = 0 is judged where L <= 2; the term of u is the mean of a square.",
    ),
    _claim(
        "theorem-a.8",
        "Theorem A.8",
        "delta d^{1/(2L)} < 1/2 implies L(A_opt) <= d (2 delta)^{2L}, |A_opt^{1/2} Sigma* A_opt^{1/2} - I| <= "
        "4 delta d^{1/(2L)}, (23) and u_opt = 0",
        landscape.optimum,
        hypotheses=long_context,
        constants=landscape.minimiser_constants,
        along_flow=False,
        problems=_OPTIMUM,
        spaces=spaces.OPTIMUM,
        note="The same bounds as Theorem 3.2, and (22), which is twice as sharp.",
    ),
    _claim(
        "theorem-3.4",
        "Theorem 3.4",
        "For Sigma* = I, L(A, 0) >= 16 L d 4^L/sqrt(n) implies |grad L|^2 >= L^{(2L-1)/L}/16",
        landscape.dominance,
        hypotheses=all_of(identity_covariance, over_determined),
        constants=landscape.dominance_constants,
        problems=_DOMINANCE,
        spaces=spaces.ISOTROPIC_FLOWS,
        note=_REFUTED,
    ),
    _claim(
        "theorem-3.4",
        "Theorem 3.4",
        "For Sigma* = I and 8 L d^2/sqrt(n) <= 2^{-2L}, L(A, 0) >= 16 L d 4^L/sqrt(n) implies |grad L|^2 >= "
        "d^{-(L-1)/L} L^{(2L-1)/L}/16",
        landscape.dominance_with_dimension,
        form="corrected",
        hypotheses=all_of(identity_covariance, long_context),
        constants=landscape.dominance_constants,
        problems=_DOMINANCE_OF_LONG_CONTEXTS,
        spaces=spaces.LONG_FLOWS,
        note=f"{_HOELDER} With it, and Theorem 3.2's condition on n. In the limit the sharp constant is "
        "4 L^2 d^{-(L-1)/L}.",
    ),
    _claim(
        "lemma-a.10",
        "Lemma A.10",
        "For 8 delta d^{3/(4L)} <= epsilon <= 1, 4 d delta^{4L-2} <= 1 and L(A, 0) >= epsilon^{2L} + "
        "d delta^{2L} (epsilon + 2)^{2L}: |grad L|^2 >= epsilon^{4L-2}/4",
        landscape.epsilon_dominance,
        hypotheses=all_of(without_bias, over_determined, landscape.small_delta),
        constants=landscape.epsilon_constants,
        problems=_EPSILON,
        spaces=spaces.ANY_COVARIANCE,
        note=_SMALL_COVARIANCE
        + "It fails for large d too: at A = a I and n = inf, where d^{(L-1)/L} > 16 L^2 (d > 4096 for two loops).",
    ),
    _claim(
        "lemma-a.10",
        "Lemma A.10",
        "Under the same conditions |grad L|^2 >= lambda_d(Sigma*)^2 d^{-(L-1)/L} epsilon^{4L-2}/4",
        landscape.epsilon_dominance_with_dimension,
        form="corrected",
        hypotheses=all_of(without_bias, over_determined, landscape.small_delta),
        constants=landscape.epsilon_constants,
        problems=_EPSILON,
        spaces=spaces.ANY_COVARIANCE,
        note=_WITH_COVARIANCE + _HOELDER,
    ),
    _claim(
        "theorem-a.11",
        "Theorem A.11",
        "L(A, 0) >= 2 (4 delta)^{2L} implies |grad L|^2 >= L^{(2L-1)/L}/16",
        landscape.appendix_dominance,
        hypotheses=all_of(without_bias, over_determined),
        constants=landscape.appendix_dominance_constants,
        problems=(*_DOMINANCE, problems.SMALL_COVARIANCE),
        spaces=spaces.ANY_COVARIANCE,
        note=f"{_SMALL_COVARIANCE}{_REFUTED} The threshold here is 4^L times that of Theorem 3.4.",
    ),
    _claim(
        "theorem-a.11",
        "Theorem A.11",
        "For 8 L d^2/sqrt(n) <= 2^{-2L}, L(A, 0) >= 2 (4 delta)^{2L} implies |grad L|^2 >= "
        "lambda_d(Sigma*)^2 d^{-(L-1)/L} L^{(2L-1)/L}/16",
        landscape.appendix_dominance_with_dimension,
        form="corrected",
        hypotheses=all_of(without_bias, long_context),
        constants=landscape.appendix_dominance_constants,
        problems=(*_DOMINANCE_OF_LONG_CONTEXTS, problems.ANISOTROPIC, problems.SMALL_COVARIANCE),
        spaces=spaces.ANY_COVARIANCE,
        note=_WITH_COVARIANCE + _HOELDER,
    ),
    _claim(
        "theorem-4.4",
        "Theorem 4.4",
        "For epsilon > 4 delta, L(A, 0) <= epsilon^{2L}/2 implies (1 - c epsilon) A_opt <= A <= (1 + c epsilon) A_opt, "
        "c = 4 + 16 d^{1/(2L)}",
        landscape.proximity,
        hypotheses=all_of(without_bias, over_determined),
        constants=landscape.proximity_constants,
        problems=_PROXIMITY,
        spaces=spaces.PROXIMITY,
        note="Both halves, along the flow and at drawn A. That 1 - c epsilon > 0 needs sqrt(n) > 8 L d (4c)^{2L}.",
    ),
    _claim(
        "lemma-a.9",
        "Lemma A.9",
        "For epsilon > 2 delta, L(A, 0) <= epsilon^{2L} - delta^{2L} (epsilon + 2)^{2L} implies "
        "(1 - c) A_opt <= A <= (1 + c) A_opt, c = 4 epsilon + 16 delta d^{1/(2L)}",
        landscape.appendix_proximity,
        hypotheses=all_of(without_bias, over_determined),
        constants=landscape.proximity_constants,
        problems=_PROXIMITY,
        spaces=spaces.PROXIMITY,
        note="Both halves, along the flow and at drawn A, with the least epsilon that the loss allows; nothing is "
        "promised where delta >= 1.",
    ),
)
