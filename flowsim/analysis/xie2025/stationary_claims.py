"""The claims of xie2025 about stationary points and convexity."""

from flowsim.analysis.base import Claim
from flowsim.analysis.xie2025 import problems, setting, spaces, stationary
from flowsim.analysis.xie2025.making import claim, equation, of_moments

CLAIMS: tuple[Claim, ...] = (
    of_moments(
        claim,
        "theorem-2",
        "Theorem 2",
        "as C -> infinity and for w* != 0, grad R != 0 at all weights but trivial ones",
        compare=stationary.no_stationary_point,
        hypotheses=setting.prior_mean_in_the_limit,
        problems=problems.LIMITS,
        spaces=spaces.LIMITS,
        note="The proof rests on (24), which multiplies means over w-hat. One head reaches R = 0, at a global minimum.",
    ),
    of_moments(
        equation,
        "theorem-2",
        "Theorem 2",
        "as C -> infinity, one head with y_q = 0, b = (0, 1) and A = [I 0; 0 0] is at a global minimum, R = 0",
        compare=stationary.least_in_the_limit,
        form="corrected",
        hypotheses=setting.prior_mean_in_the_limit,
        problems=problems.LIMITS,
        spaces=spaces.LIMITS,
        note="The opposite of the printed statement, whatever w*: as C -> infinity, b^T G = (w-hat, |w-hat|^2) tells "
        "w-hat. (b, A) are products of the weights W^K, W^Q, W^V, W^P, for which the same follows.",
    ),
    of_moments(
        claim,
        "lemma-1",
        "Lemma 1",
        "R is not convex in the weights",
        compare=stationary.not_convex,
        problems=problems.TASKS,
        spaces=spaces.TASKS,
        note="(b, A) and (-b, -A) predict alike, and zero weights between them worse. Heads that contain one are not "
        "convex either.",
    ),
    of_moments(
        claim,
        "lemma-2",
        "Lemma 2",
        "the risk of y_q-LSA is not convex",
        compare=stationary.not_convex_with_guess,
        problems=problems.TASKS,
        spaces=spaces.TASKS,
        note="As for Lemma 1, with the same w. The paper's proof writes X w = y, which does not hold.",
    ),
    of_moments(
        equation,
        "theorem-4",
        "Theorem 4",
        "as C -> infinity, the weights (7) with w = w* and any step size eta are a stationary point of y_q-LSA",
        compare=stationary.any_step_at_rest,
        hypotheses=setting.prior_mean_in_the_limit,
        problems=problems.LIMITS,
        spaces=spaces.LIMITS,
        note="Judged with W^P = -eta I, as (3) divides by C, at eta = 0.5 and 1; the theorem leaves eta open. The "
        "proof puts b = (-w*, 1) and A = [I 0; 0 0], which is eta = 1.",
    ),
    of_moments(
        equation,
        "theorem-4",
        "Theorem 4",
        "as C -> infinity, the weights (7) with w = w* and W^P = -I (eta = 1) are a stationary point of y_q-LSA",
        compare=stationary.unit_step_at_rest,
        form="corrected",
        hypotheses=setting.infinite_context,
        problems=problems.LIMITS,
        spaces=spaces.LIMITS,
        note="The printed statement leaves eta open; dR/d eta = 2 d (eta - 1) in the limit.",
    ),
    of_moments(
        equation,
        "theorem-4.finite-context",
        "appendix A.3",
        "at the weights of Theorem 4 (eta = 1) the gradient is of the order 1/C",
        compare=stationary.residual_gradient,
        hypotheses=setting.finite_context,
        problems=problems.FINITE,
        spaces=spaces.FINITE,
        note="C |grad R| is the same at C and at 100 C.",
    ),
    of_moments(
        equation,
        "theorem-4.finite-context.best-step",
        "appendix A.3",
        "the weights (7) with w = w*, W^P = -eta I and eta = C/(C+d+1) are a stationary point of y_q-LSA at every C",
        compare=stationary.best_step_at_rest,
        form="corrected",
        problems=(*problems.FINITE, problems.LIMIT),
        spaces=spaces.TASKS,
        note="The printed remark has eta = 1, where the gradient vanishes as C -> infinity alone.",
    ),
)
