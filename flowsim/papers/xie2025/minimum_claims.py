"""The claims of xie2025 about least risks, by the number of heads and against gradient descent."""

from flowsim.claims.claim import Claim
from flowsim.papers.xie2025 import minima, problems, setting, spaces
from flowsim.papers.xie2025.making import claim, equation, of_moments

_ANY_STEP = (
    "The paper does not say which step size its baseline has: judged at eta = 0.5 and at 1, that of Theorem 4's proof."
)

CLAIMS: tuple[Claim, ...] = (
    of_moments(
        equation,
        "theorem-1",
        "Theorem 1",
        "the least risk of d + 1 heads is that of d + 2 heads",
        compare=minima.saturated,
        problems=problems.TASKS,
        spaces=spaces.TASKS,
        constants=minima.optimum_constants,
        note="Both are the least of any number, d (d+1)/(C+d+1) + 2 |w*|^2/(d C + 2) with y_q = 0.",
    ),
    of_moments(
        claim,
        "theorem-1.fewest",
        "Theorem 1",
        "at finite C and for w* != 0, d heads with y_q = 0 reach the least risk of any number, and d - 1 do not",
        compare=minima.fewest_heads,
        form="corrected",
        hypotheses=setting.prior_mean_at_finite_context,
        problems=(problems.EASY, problems.SHORT, problems.LARGE_MEAN, problems.ONE),
        spaces=spaces.FINITE,
        note="The printed number d + 1 is one too many: G sees only the symmetric parts of the M_i, and these can be "
        "had with a last row of zeros. With y_q = w*^T x_q one head is enough. That d - 1 heads stay above is proved; "
        "how far is numerical.",
    ),
    of_moments(
        equation,
        "sec-4.2.conjecture",
        "section 4.2",
        "the stationary point of Theorem 4 (eta = 1) is the global optimum of y_q-LSA",
        compare=minima.unit_step_is_least,
        problems=(problems.LIMIT, *problems.FINITE),
        spaces=spaces.TASKS,
        note="In the limit its risk is 0. At finite C it is d (d+1)/C, above d (d+1)/(C+d+1).",
    ),
    of_moments(
        equation,
        "sec-4.2.conjecture",
        "section 4.2",
        "one step of gradient descent from w* with eta = C/(C+d+1) is the global optimum of y_q-LSA, at every C",
        compare=minima.best_step_is_least,
        form="corrected",
        problems=(problems.LIMIT, *problems.FINITE),
        spaces=spaces.TASKS,
        constants=minima.optimum_constants,
        note="True of the best step size in place of 1. It is the optimum of any number of heads with a trained guess: "
        "R is d (d+1)/(C+d+1) + 2 |w* - w|^2/(d C + 2) plus a sum of squares.",
    ),
    of_moments(
        claim,
        "sec-1.heads",
        "section 1, contribution 1",
        "for w* != 0 and at finite C no number of heads with y_q = 0 predicts as one step of gradient descent from "
        "w* does",
        compare=minima.distance_to_descent,
        hypotheses=setting.prior_mean_at_finite_context,
        problems=problems.FINITE,
        spaces=spaces.FINITE,
        note="The text: cannot in general replicate. Whatever eta, the least mean squared difference is 2 |w*|^2/(d "
        "C + 2), which "
        "vanishes as C -> infinity: there one head predicts as descent does.",
    ),
    of_moments(
        claim,
        "sec-4.2.lower-bound",
        "section 4.2",
        "the risk of one step of gradient descent from w*, of any step size eta, is a lower bound of that of y_q-LSA",
        compare=minima.descent_is_a_lower_bound,
        problems=problems.FINITE,
        spaces=spaces.FINITE,
        note=_ANY_STEP + " At finite C y_q-LSA has a lower risk than both.",
    ),
    of_moments(
        claim,
        "sec-4.2.lower-bound",
        "section 4.2",
        "at finite C the risk of one step of gradient descent from w* with eta* = C/(C+d+1) is a lower bound of that "
        "of "
        "y_q-LSA",
        compare=minima.best_descent_is_a_lower_bound,
        form="corrected",
        hypotheses=setting.finite_context,
        problems=problems.FINITE,
        spaces=spaces.FINITE,
        note="At drawn weights and near the step, where it is reached: see sec-5.2 and sec-4.2.conjecture.",
    ),
    of_moments(
        claim,
        "sec-4.2.newton",
        "section 4.2",
        "the linear transformer block, whose global optimum is a Newton step, stays above the risk of one step of "
        "gradient "
        "descent from w*, of any step size eta",
        compare=minima.block_stays_above,
        problems=problems.FINITE,
        spaces=spaces.FINITE,
        note=_ANY_STEP + " The text: fails to bridge the performance gap between one-step GD and single-head LSA.",
    ),
    of_moments(
        equation,
        "sec-4.2.newton",
        "section 4.2",
        "the global optimum of the linear transformer block is one step of gradient descent from w* with eta* = "
        "C/(C+d+1)",
        compare=minima.block_is_descent,
        form="corrected",
        problems=(problems.EASY, problems.SHORT, problems.ZERO_MEAN, problems.PAPER, problems.LIMIT),
        spaces=spaces.TASKS,
        note="As x ~ N(0, I) its preconditioner is a multiple of I: a Newton step on the mean Hessian is a step of "
        "descent, and the "
        "block has the least risk of y_q-LSA, which it contains.",
    ),
    of_moments(
        claim,
        "sec-5.1.heads",
        "section 5.1.1",
        "the least risk decreases with every head up to d + 1",
        compare=minima.more_heads_help,
        hypotheses=setting.prior_mean,
        problems=(problems.EASY, problems.SHORT, problems.LARGE_MEAN, problems.ONE),
        spaces=spaces.FINITE,
        note="It decreases up to d heads: head d + 1 brings nothing.",
    ),
    of_moments(
        claim,
        "sec-5.1.heads",
        "section 5.1.1",
        "at finite C the least risk decreases with every head up to d, and not from d to d + 1",
        compare=minima.more_heads_help_up_to_d,
        form="corrected",
        hypotheses=setting.prior_mean_at_finite_context,
        problems=(problems.EASY, problems.SHORT, problems.ONE),
        spaces=spaces.FINITE,
        note="The printed saturation at d + 1 heads is at d heads.",
    ),
    of_moments(
        claim,
        "sec-5.1.heads.lower-bound",
        "section 5.1.1",
        "the risk of one step of gradient descent from w*, of any step size eta, is strictly below that of multi-head "
        "LSA with y_q = 0, for w* != 0",
        compare=minima.any_descent_is_better,
        hypotheses=setting.prior_mean,
        problems=problems.FINITE,
        spaces=spaces.FINITE,
        constants=minima.optimum_constants,
        note=_ANY_STEP + " At eta = 1 descent has the risk d (d+1)/C, which heads beat at small |w*|.",
    ),
    of_moments(
        claim,
        "sec-5.1.heads.lower-bound",
        "section 5.1.1",
        "at finite C the risk of one step of gradient descent from w* with eta* = C/(C+d+1) is strictly below that of "
        "multi-head LSA with y_q = 0, for w* != 0",
        compare=minima.best_descent_is_better,
        form="corrected",
        hypotheses=setting.prior_mean_at_finite_context,
        problems=problems.FINITE,
        spaces=spaces.FINITE,
        constants=minima.optimum_constants,
        note="By 2 |w*|^2/(d C + 2), which vanishes as C -> infinity. With other step sizes it need not be.",
    ),
    of_moments(
        equation,
        "sec-5.1.prior-mean",
        "section 5.1.2",
        "the least risk of d + 1 heads with y_q = 0 is above that of one step of gradient descent from w*, of any step "
        "size eta, by a multiple of |w*|^2",
        compare=minima.gap_of_prior_mean,
        problems=problems.TASKS,
        spaces=spaces.TASKS,
        constants=minima.optimum_constants,
        note=_ANY_STEP
        + " At eta = 1 the two differ at w* = 0 already. The text has d + 1 heads or more, Table 1 has 1.",
    ),
    of_moments(
        equation,
        "sec-5.1.prior-mean",
        "section 5.1.2",
        "the least risk of d + 1 heads with y_q = 0 is above that of one step of gradient descent from w* with "
        "eta* = C/(C+d+1) by 2 |w*|^2/(d C + 2)",
        compare=minima.best_gap_of_prior_mean,
        form="corrected",
        problems=problems.TASKS,
        spaces=spaces.TASKS,
        constants=minima.optimum_constants,
        note="True of the best step size, at c w* for c from 0 to 10.",
    ),
    of_moments(
        equation,
        "sec-5.1.initial-guess",
        "section 5.1.3",
        "at w* = 0 the least risk of d + 1 heads exceeds that of one step of gradient descent from w*, of any step "
        "size eta, by multiples of |y_q_guess|^2, y_q_bias^2",
        compare=minima.gap_of_guess,
        problems=problems.TASKS,
        spaces=spaces.TASKS,
        constants=minima.optimum_constants,
        note=_ANY_STEP + " At eta = 1 the two differ without a guess already. The text has d + 1 heads, Table 1 has 1.",
    ),
    of_moments(
        equation,
        "sec-5.1.initial-guess",
        "section 5.1.3",
        "at w* = 0 the least risk of d + 1 heads exceeds that of one step of gradient descent from w* with "
        "eta* = C/(C+d+1) by (|y_q_guess|^2 + y_q_bias^2) 2/(d C + 2)",
        compare=minima.best_gap_of_guess,
        form="corrected",
        problems=problems.TASKS,
        spaces=spaces.TASKS,
        constants=minima.optimum_constants,
        note="True of the best step size; judged for a guess and for a bias, each by itself.",
    ),
    of_moments(
        equation,
        "sec-5.2",
        "section 5.2",
        "y_q-LSA reaches the risk of one step of gradient descent from w*, of any step size eta, whatever w*",
        compare=minima.guess_closes_gap,
        problems=problems.TASKS,
        spaces=spaces.TASKS,
        note=_ANY_STEP + " At finite C the least risk of y_q-LSA is below that of both.",
    ),
    of_moments(
        equation,
        "sec-5.2",
        "section 5.2",
        "the least risk of y_q-LSA is that of one step of gradient descent from w* with eta* = C/(C+d+1), whatever w*",
        compare=minima.guess_closes_best_gap,
        form="corrected",
        problems=problems.TASKS,
        spaces=spaces.TASKS,
        note="True of the best step size.",
    ),
)
