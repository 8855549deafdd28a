"""The claims of gatmiry2024 about gradient descent by loops, the flow, and prompts of another covariance."""

from flowsim.analysis.base import Claim, Relation
from flowsim.analysis.gatmiry2024 import convergence, out_of_distribution, spaces
from flowsim.analysis.gatmiry2024 import landscape_problems as problems
from flowsim.analysis.gatmiry2024.setting import all_of, identity_covariance, long_context, looped, matrices
from flowsim.analysis.statements import finite_context

_FLOW = (
    problems.EASY,
    problems.RANDOM,
    problems.OVERSHOT,
    problems.VERY_LONG,
    problems.INFINITE,
    problems.WIDE,
    problems.WIDE_LONG,
    problems.ONE_LOOP,
)
_PROMPTS = (problems.TEN_TO_THE_16, problems.SKEWED, problems.EASY)


def _claim(part: str, source: str, statement: str, compare, **options) -> Claim:
    options.setdefault("setting", looped)
    return Claim(f"gatmiry2024.{part}", f"gatmiry2024, {source}", statement, compare, **options)


CLAIMS: tuple[Claim, ...] = (
    _claim(
        "proposition-3.1",
        "Proposition 3.1, (5)",
        "L loops with Q = [A 0; 0 0], P = [0 0; 0 1] predict w_L^T x_q of L steps of preconditioned gradient descent",
        out_of_distribution.implements_descent,
        relation=Relation.IDENTITY,
        hypotheses=finite_context,
        setting=matrices,
        along_flow=False,
        problems=(problems.RANDOM, problems.SHORT, problems.OVERSHOT),
        spaces=spaces.PROMPTS,
        note="Judged on 32 drawn prompts and matrices A without symmetry; the preconditioner is A^T and the steps are "
        "of size 1/(2n) on |X^T w - y|^2.",
    ),
    _claim(
        "proposition-3.1.step",
        "proof of Proposition 3.1",
        "The steps are w_t = w_{t-1} - (1/n) A grad |X^T w - y|^2",
        out_of_distribution.implements_printed_steps,
        relation=Relation.IDENTITY,
        hypotheses=finite_context,
        setting=matrices,
        along_flow=False,
        problems=(problems.RANDOM, problems.SHORT),
        spaces=spaces.PROMPTS,
        note="The proof takes the gradient of |X^T w - y|^2 at zero to be X y; it is -2 X y. The transformer's steps "
        "are half as long. Judged with A^T in place of A, which is the same for symmetric A.",
    ),
    _claim(
        "proposition-3.1.step",
        "proof of Proposition 3.1",
        "The steps are w_t = w_{t-1} - (1/(2n)) A^T grad |X^T w - y|^2",
        out_of_distribution.implements_descent,
        form="corrected",
        relation=Relation.IDENTITY,
        hypotheses=finite_context,
        setting=matrices,
        along_flow=False,
        problems=(problems.RANDOM, problems.SHORT),
        spaces=spaces.PROMPTS,
        note="Half the printed step on the printed function, which is 1/n on half of it.",
    ),
    _claim(
        "theorem-3.3.time",
        "Theorem 3.3, 1, and Theorem A.12",
        "For Sigma* = I and xi >= 2 (4 delta)^{2L}, L(A(t)) <= xi from "
        "t = (1/xi)^{(L-1)/L} (16L/(L-1))^{(L-1)/(2L-1)} on",
        convergence.in_printed_time,
        hypotheses=all_of(identity_covariance, convergence.several_loops),
        constants=convergence.time_constants,
        problems=_FLOW,
        spaces=spaces.ISOTROPIC_FLOWS,
        note="At n = inf, from A = 0, xi is reached at ((d/xi)^{(L-1)/L} - 1)/(4 L (L-1)), later than printed where d "
        "is large (d > 645 for two loops and small xi). The proof takes the constant of Theorem 3.4, which lacks "
        "d^{-(L-1)/L}, and misplaces the exponent of 16L/(L-1).",
    ),
    _claim(
        "theorem-3.3.time",
        "Theorem 3.3, 1, and Theorem A.12",
        "For Sigma* = I, 8 L d^2/sqrt(n) <= 2^{-2L} and xi >= 2 (4 delta)^{2L}, L(A(t)) <= xi from "
        "t = (d/xi)^{(L-1)/L} 16L/(L-1) on",
        convergence.in_time,
        form="corrected",
        hypotheses=all_of(identity_covariance, convergence.several_loops, long_context),
        constants=convergence.time_constants,
        problems=_FLOW,
        spaces=spaces.ISOTROPIC_FLOWS,
        note="What the corrected Theorem 3.4 gives when its differential inequality is solved.",
    ),
    _claim(
        "theorem-3.3.neighbourhood",
        "Theorem 3.3, 2",
        "From that time on (1 - c) A_opt <= A(t) <= (1 + c) A_opt with c = 8 (1 + 4 d^{1/(2L)}) xi^{1/(2L)}",
        convergence.neighbourhood,
        hypotheses=all_of(identity_covariance, convergence.several_loops),
        constants=convergence.neighbourhood_constants,
        problems=_FLOW,
        spaces=spaces.ISOTROPIC_FLOWS,
        note="Survives the failure of the printed time, since c is large: at c >= 1 the lower half is nothing new.",
    ),
    _claim(
        "theorem-4.5",
        "Theorem 4.5, (10)",
        "Sigma* <= Sigma_out <= (2 - zeta) Sigma*, Sigma_out = X X^T, implies (prediction - y)^2 <= (1 + x)^2 "
        "(1 + x - zeta)^{2L} |x_q|^2_{Sigma*} |w|^2_{Sigma*^-1}, x = 16 delta d^{1/(2L)}",
        out_of_distribution.printed_error,
        setting=matrices,
        constants=out_of_distribution.error_constants,
        along_flow=False,
        problems=_PROMPTS,
        spaces=spaces.NEW_COVARIANCES,
        note="The transformer divides by n and Sigma_out does not: at X X^T = Sigma* it hardly moves from zero. And by "
        "the proof, with A_opt close to Sigma*^-1, the norms are |x_q|_{Sigma*^-1} and |w|_{Sigma*}; its last step "
        "swaps them.",
    ),
    _claim(
        "theorem-4.5",
        "Theorem 4.5, (10)",
        "Sigma* <= (1/n) X X^T <= (2 - zeta) Sigma* implies (prediction - y)^2 <= (1 + x)^2 (1 + x - zeta)^{2L} "
        "|x_q|^2_{Sigma*^-1} |w|^2_{Sigma*}, x = 16 delta d^{1/(2L)}",
        out_of_distribution.error,
        form="corrected",
        setting=matrices,
        constants=out_of_distribution.error_constants,
        along_flow=False,
        problems=_PROMPTS,
        spaces=spaces.NEW_COVARIANCES,
        note="Sigma_out is the sample covariance, and the norms are those in which w and x_q are isotropic. Judged by "
        "the norm of the matrix between w and x_q, so for every w and x_q, at drawn and extreme (1/n) X X^T.",
    ),
    _claim(
        "theorem-4.5.norms",
        "Theorem 4.5, (10), and its proof",
        "The printed bound, with the sample covariance (1/n) X X^T as Sigma_out",
        out_of_distribution.error_in_printed_norms,
        setting=matrices,
        constants=out_of_distribution.error_constants,
        along_flow=False,
        problems=_PROMPTS,
        spaces=spaces.NEW_COVARIANCES,
        note="The printed norms fail even then, unless Sigma* is a multiple of I.",
    ),
    _claim(
        "theorem-4.5.norms",
        "Theorem 4.5, (10), and its proof",
        "The same with |x_q|^2_{Sigma*^-1} |w|^2_{Sigma*}, which is w^T A_opt^-1 w x_q^T A_opt x_q of the proof",
        out_of_distribution.error,
        form="corrected",
        setting=matrices,
        constants=out_of_distribution.error_constants,
        along_flow=False,
        problems=_PROMPTS,
        spaces=spaces.NEW_COVARIANCES,
        note="As the corrected Theorem 4.5.",
    ),
    _claim(
        "theorem-a.13",
        "Theorem A.13, (30)",
        "The bound of Theorem 4.5 for zeta Sigma* <= Sigma_out <= (2 - zeta) Sigma*, Sigma_out = X X^T",
        out_of_distribution.appendix_error,
        setting=matrices,
        constants=out_of_distribution.error_constants,
        along_flow=False,
        problems=_PROMPTS,
        spaces=spaces.NEW_COVARIANCES,
        note="Fails as Theorem 4.5 does. (10) has no zeta on its left; here, with it, the bound is claimed of more.",
    ),
    _claim(
        "theorem-a.13",
        "Theorem A.13, (30)",
        "zeta Sigma* <= (1/n) X X^T <= (2 - zeta) Sigma* implies (prediction - y)^2 <= (1 + x)^2 (1 + x - zeta)^{2L} "
        "|x_q|^2_{Sigma*^-1} |w|^2_{Sigma*}, x = 16 delta d^{1/(2L)}",
        out_of_distribution.error_from_below,
        form="corrected",
        setting=matrices,
        constants=out_of_distribution.error_constants,
        along_flow=False,
        problems=_PROMPTS,
        spaces=spaces.NEW_COVARIANCES,
        note="As the corrected Theorem 4.5, for the wider range of (30).",
    ),
    _claim(
        "theorem-a.12.ode",
        "proof of Theorem A.12, (29)",
        "g(t) = K^{L/(2L-1)} (t + c)^{-L/(L-1)}, c = K^{(L-1)/(2L-1)}/f(0)^{(L-1)/L}, K = 16L/(L-1), solves "
        "g' = g^{(2L-1)/L}/16, g(0) = f(0)",
        convergence.printed_solution_solves,
        relation=Relation.IDENTITY,
        hypotheses=convergence.several_loops,
        constants=convergence.equation_constants,
        along_flow=False,
        problems=(problems.EASY, problems.OVERSHOT, problems.ONE_LOOP),
        spaces=spaces.STILL_ISOTROPIC,
        note="The equation lacks its minus sign, and with it g is no solution either: the exponents of K are wrong, so "
        "that g falls faster than the equation says, by the factor 16 (L/(L-1)) K^{-(L-1)/(2L-1)}, 10.1 for two loops.",
    ),
    _claim(
        "theorem-a.12.ode",
        "proof of Theorem A.12, (29)",
        "g(t) = (K/(t + c))^{L/(L-1)}, c = K/f(0)^{(L-1)/L}, K = 16L/(L-1), solves g' = -g^{(2L-1)/L}/16, g(0) = f(0)",
        convergence.solution_solves,
        form="corrected",
        relation=Relation.IDENTITY,
        hypotheses=convergence.several_loops,
        constants=convergence.equation_constants,
        along_flow=False,
        problems=(problems.EASY, problems.OVERSHOT, problems.ONE_LOOP),
        spaces=spaces.STILL_ISOTROPIC,
        note="With the sign that is meant and the exponents that solve it; the time is (1/xi)^{(L-1)/L} 16L/(L-1).",
    ),
    _claim(
        "sec-5.2",
        "section 5.2, Figure 1",
        "For Sigma* = I and all n > 1, even n < d, the loss converges and A converges to a value very close to I",
        convergence.ends_near_identity,
        hypotheses=all_of(identity_covariance, convergence.at_least_two_examples),
        constants=convergence.end_constants,
        problems=(problems.TEN, problems.FEW, problems.FEW_DEEP, problems.FEW_RANDOM),
        spaces=spaces.SHORT_FLOWS,
        note="Close is read as |A - I| <= 1/2, nearer to I than to zero, the weakest reading there is. At n < d even "
        "that fails.",
    ),
    _claim(
        "sec-5.2",
        "section 5.2, Figure 1",
        "For Sigma* = I and all n > 1 the loss converges to its minimum and A to A_opt = a I with 0 < a < 1",
        convergence.ends_at_minimum,
        form="corrected",
        hypotheses=all_of(identity_covariance, convergence.at_least_two_examples),
        constants=convergence.end_constants,
        problems=(problems.TEN, problems.FEW, problems.FEW_DEEP, problems.FEW_RANDOM),
        spaces=spaces.SHORT_FLOWS,
        note="a tends to 1 as d/n tends to 0; the constants give it.",
    ),
)
