"""The claims of xie2025, each with problems chosen so that it may break."""

from collections.abc import Callable
from typing import Any

from flowsim.analysis.base import Claim, Relation
from flowsim.analysis.xie2025 import figures, moments, optima, problems

_TASKS = (problems.EASY, problems.SHORT, problems.ZERO_MEAN, problems.LARGE_MEAN, problems.PAPER, problems.LIMIT)
_FINITE = (
    problems.EASY,
    problems.SHORT,
    problems.ZERO_MEAN,
    problems.LARGE_MEAN,
    problems.PAPER,
    problems.ONE,
)
_LIMITS = (problems.LIMIT, problems.PAPER_LIMIT, problems.EASY)
_GUESSES = (problems.BIASED, problems.LINEAR, problems.EASY, problems.PAPER_GUESS)
_TRAINED = (
    problems.ONE_HEAD,
    problems.TWO_HEADS,
    problems.FOUR_HEADS,
    problems.PAPER_ONE_HEAD,
    problems.FACTORED,
)
_SHARED = (
    "All tokens of a prompt share one w-hat: given it, the moments of different tokens multiply, but their means over "
    "w-hat do not. The paper multiplies the means, which is wrong at every C > 1 and in the limit."
)


def _claim(part: str, source: str, statement: str, compare: Callable[..., Any], **options: Any) -> Claim:
    options.setdefault("along_flow", False)
    return Claim(
        f"xie2025.{part}", f"xie2025, {source}", statement, compare, setting=optima.heads_on_isotropic, **options
    )


def _equation(part: str, source: str, statement: str, compare: Callable[..., Any], **options: Any) -> Claim:
    return _claim(part, source, statement, compare, relation=Relation.IDENTITY, **options)


_MOMENTS = (
    _equation(
        "eq-21",
        "(21)",
        "E[w-hat_i G] = [w*_i I, w*_i w* + e_i; (w*_i w* + e_i)^T, w*_i (|w*|^2 + d + 2)]",
        moments.eq_21,
        problems=_TASKS,
    ),
    _equation(
        "eq-24",
        "(24)",
        "E[<G, M_i> G] = <M, M_i> M as C -> infinity, with M = E G",
        moments.eq_24,
        hypotheses=optima.infinite_context,
        problems=_LIMITS,
        note=_SHARED,
    ),
    _equation(
        "eq-24",
        "(24)",
        "E[<G, N> G] = <M, N> M + 2 S [0 p; p^T d pi] S^T as C -> infinity, for N = S^-T [P p; p^T pi] S^-1 and "
        "S = [I 0; w*^T 1]",
        moments.eq_24_shared,
        form="corrected",
        hypotheses=optima.infinite_context,
        problems=_LIMITS,
        note="The printed product of means lacks the covariance of G over w-hat, which stays as C -> infinity.",
    ),
    _equation(
        "eq-27",
        "(27)",
        "E[G_mn G_pq] = (1 - 1/C) M_mn M_pq + (1/C) E[z_m z_n z_p z_q]",
        moments.eq_27,
        problems=_FINITE,
        note=_SHARED,
    ),
    _equation(
        "eq-27",
        "(27)",
        "E[G_mn G_pq] = (1 - 1/C) E_w[(M_w)_mn (M_w)_pq] + (1/C) E[z_m z_n z_p z_q], M_w = [I w; w^T |w|^2]",
        moments.eq_27_shared,
        form="corrected",
        problems=_FINITE,
        note="The printed form has the product of the means over w-hat in place of the mean of the product.",
    ),
    _equation(
        "eq-29",
        "(29)",
        "grad L_i = 2 E[<G, M_i> G] - 2 (w*_i M + N_i), the first by (27)",
        moments.eq_29,
        hypotheses=optima.finite_context,
        problems=_FINITE,
        note=_SHARED + " Judged for i = 1.",
    ),
    _equation(
        "eq-29",
        "(29)",
        "grad L_i = 2 E[<G, M_i> G] - 2 (w*_i M + N_i), the first by the corrected (27)",
        moments.eq_29_shared,
        form="corrected",
        hypotheses=optima.finite_context,
        problems=_FINITE,
        note="Holds with the corrected (27) in place of the printed one. Judged for i = 1.",
    ),
    _equation(
        "eq-18",
        "(18)",
        "R = sum_{i <= d} E(<G, M_i> - w-hat_i)^2 + E(1 + <G, M_{d+1}>)^2 y_q^2",
        moments.separated,
        problems=_GUESSES,
        note="Cross terms of y_q with x_q vanish only where y_q is independent of x_q; not for y_q = w^T x_q, the "
        "guess of section 5.1.3 and of y_q-LSA.",
    ),
    _equation(
        "eq-18",
        "(18)",
        "R = sum_{i <= d} E(<G, M_i> - w-hat_i)^2 + E(1 + <G, M_{d+1}>)^2 y_q^2, given y_q independent of x_q",
        moments.separated,
        form="corrected",
        hypotheses=optima.independent_guess,
        problems=_GUESSES,
        note="The printed statement has no condition on y_q, and fails for a guess that is linear in x_q.",
    ),
)

_OPTIMA = (
    _equation(
        "theorem-1",
        "Theorem 1",
        "the least risk of d + 1 heads is that of d + 2 heads",
        optima.saturated,
        problems=_TASKS,
        constants=optima.optimum_constants,
        note="Both are the least of any number, d (d+1)/(C+d+1) + 2 |w*|^2/(d C + 2) with y_q = 0.",
    ),
    _claim(
        "theorem-1.fewest",
        "Theorem 1",
        "d heads reach the least risk of any number, and d - 1 do not",
        optima.fewest_heads,
        form="corrected",
        hypotheses=lambda loss, start: optima.prior_mean(loss, start) + optima.finite_context(loss, start),
        problems=(problems.EASY, problems.SHORT, problems.LARGE_MEAN, problems.ONE),
        note="The printed number d + 1 is one too many: G sees only the symmetric parts of the M_i, and these can be "
        "had with a last row of zeros. With y_q = w*^T x_q one head is enough. The risk of d - 1 heads is numerical.",
    ),
    _claim(
        "theorem-2",
        "Theorem 2",
        "as C -> infinity and for w* != 0, grad R != 0 at all weights but trivial ones",
        optima.no_stationary_point,
        hypotheses=optima.prior_mean_in_the_limit,
        problems=_LIMITS,
        note="The proof rests on (24), which multiplies means over w-hat. One head reaches R = 0, at a global minimum.",
    ),
    _equation(
        "theorem-2",
        "Theorem 2",
        "as C -> infinity, one head with y_q = 0, b = (0, 1) and A = [I 0; 0 0] is at a global minimum, R = 0",
        optima.least_in_the_limit,
        form="corrected",
        hypotheses=optima.prior_mean_in_the_limit,
        problems=_LIMITS,
        note="The opposite of the printed statement, whatever w*: as C -> infinity, b^T G = (w-hat, |w-hat|^2) tells "
        "w-hat. (b, A) are products of the weights W^K, W^Q, W^V, W^P, for which the same follows.",
    ),
    _claim(
        "lemma-1",
        "Lemma 1",
        "R is not convex in the weights",
        optima.not_convex,
        problems=_TASKS,
        note="(b, A) and (-b, -A) predict alike, and zero weights between them worse. Heads that contain one are not "
        "convex either.",
    ),
    _claim(
        "lemma-2",
        "Lemma 2",
        "the risk of y_q-LSA is not convex",
        optima.not_convex_with_guess,
        problems=_TASKS,
        note="As for Lemma 1, with the same w. The paper's proof writes X w = y, which does not hold.",
    ),
    _equation(
        "eq-8",
        "(8)",
        "(3) at the weights (7) is y_q - (eta/C)(w*^T X^T - y^T) X x_q",
        optima.eq_8_as_printed,
        problems=_FINITE,
        note="(3) and W^P = -(eta/C) I in (7) each divide by C: the step is C times too short.",
    ),
    _equation(
        "eq-8",
        "(8)",
        "(3) at the weights (7) with W^P = -eta I is y_q - (eta/C)(w*^T X^T - y^T) X x_q",
        optima.eq_8,
        form="corrected",
        problems=_FINITE,
        note="The printed W^P divides by C what (3) has divided already.",
    ),
    _equation(
        "theorem-4",
        "Theorem 4",
        "as C -> infinity, the weights (7) with w = w* and any step size eta are a stationary point of y_q-LSA",
        optima.any_step_at_rest,
        hypotheses=optima.prior_mean_in_the_limit,
        problems=_LIMITS,
        note="Judged with W^P = -eta I, as (3) divides by C, at eta = 0.5 and 1; the theorem leaves eta open. The "
        "proof puts b = (-w*, 1) and A = [I 0; 0 0], which is eta = 1.",
    ),
    _equation(
        "theorem-4",
        "Theorem 4",
        "as C -> infinity, the weights (7) with w = w* and W^P = -I (eta = 1) are a stationary point of y_q-LSA",
        optima.unit_step_at_rest,
        form="corrected",
        hypotheses=optima.infinite_context,
        problems=_LIMITS,
        note="The printed statement leaves eta open; dR/d eta = 2 d (eta - 1) in the limit.",
    ),
    _equation(
        "theorem-4.finite-context",
        "appendix A.3",
        "at the weights of Theorem 4 (eta = 1) the gradient is of the order 1/C",
        optima.residual_gradient,
        hypotheses=optima.finite_context,
        problems=_FINITE,
        note="C |grad R| is the same at C and at 100 C.",
    ),
    _equation(
        "theorem-4.finite-context.best-step",
        "appendix A.3",
        "the weights (7) with w = w*, W^P = -eta I and eta = C/(C+d+1) are a stationary point of y_q-LSA at every C",
        optima.best_step_at_rest,
        form="corrected",
        problems=(*_FINITE, problems.LIMIT),
        note="The printed remark has eta = 1, where the gradient vanishes as C -> infinity alone.",
    ),
    _equation(
        "lemma-3",
        "Lemma 3",
        "y_q-LSA is a linear transformer block, with the weights of the proof",
        optima.block_as_printed,
        hypotheses=optima.finite_context,
        problems=_FINITE,
        note="The proof replaces the labels of the context by X w: it holds where y = X w alone.",
    ),
    _equation(
        "lemma-3",
        "Lemma 3",
        "y_q-LSA is a linear transformer block, with W_3 after W^Q alone",
        optima.block,
        form="corrected",
        hypotheses=optima.finite_context,
        problems=_FINITE,
        note="The lemma stands: W^K and W^V must stay as they are, as the printed ones overwrite the labels.",
    ),
    _equation(
        "sec-4.2.conjecture",
        "section 4.2",
        "the stationary point of Theorem 4 (eta = 1) is the global optimum of y_q-LSA",
        optima.unit_step_is_least,
        problems=(problems.LIMIT, *_FINITE),
        note="In the limit its risk is 0. At finite C it is d (d+1)/C, above d (d+1)/(C+d+1).",
    ),
    _equation(
        "sec-4.2.conjecture",
        "section 4.2",
        "one step of gradient descent from w* with eta = C/(C+d+1) is the global optimum of y_q-LSA, at every C",
        optima.best_step_is_least,
        form="corrected",
        problems=(problems.LIMIT, *_FINITE),
        constants=optima.optimum_constants,
        note="True of the best step size in place of 1. It is the optimum of any number of heads with a trained guess: "
        "R is d (d+1)/(C+d+1) + 2 |w* - w|^2/(d C + 2) plus a sum of squares.",
    ),
    _claim(
        "sec-5.1.heads",
        "section 5.1.1",
        "the least risk decreases with every head up to d + 1",
        optima.more_heads_help,
        hypotheses=optima.prior_mean,
        problems=(problems.EASY, problems.SHORT, problems.LARGE_MEAN, problems.ONE),
        note="It decreases up to d heads: head d + 1 brings nothing.",
    ),
    _claim(
        "sec-5.1.heads",
        "section 5.1.1",
        "the least risk decreases with every head up to d, and not from d to d + 1",
        optima.more_heads_help_up_to_d,
        form="corrected",
        hypotheses=lambda loss, start: optima.prior_mean(loss, start) + optima.finite_context(loss, start),
        problems=(problems.EASY, problems.SHORT, problems.ONE),
        note="The printed saturation at d + 1 heads is at d heads.",
    ),
    _claim(
        "sec-5.1.heads.lower-bound",
        "section 5.1.1",
        "the risk of gradient descent from w* is strictly below that of multi-head LSA, for w* != 0 and y_q = 0",
        optima.descent_is_better,
        hypotheses=lambda loss, start: optima.prior_mean(loss, start) + optima.finite_context(loss, start),
        problems=_FINITE,
        constants=optima.optimum_constants,
        note="By 2 |w*|^2/(d C + 2), which vanishes as C -> infinity.",
    ),
    _equation(
        "sec-5.1.prior-mean",
        "section 5.1.2",
        "the least risk of d + 1 heads with y_q = 0 is above gradient descent's by a multiple of |w*|^2",
        optima.gap_of_prior_mean,
        problems=_TASKS,
        constants=optima.optimum_constants,
        note="The gap is 2 |w*|^2/(d C + 2), exactly, at c w* for c from 0 to 10.",
    ),
    _equation(
        "sec-5.1.initial-guess",
        "section 5.1.3",
        "at w* = 0 the least risk of d + 1 heads exceeds gradient descent's by multiples of |y_q_guess|^2, y_q_bias^2",
        optima.gap_of_guess,
        problems=_TASKS,
        constants=optima.optimum_constants,
        note="Both factors are 2/(d C + 2).",
    ),
    _equation(
        "sec-5.2",
        "section 5.2",
        "y_q-LSA reaches the risk of one step of gradient descent from w*, whatever w*",
        optima.guess_closes_gap,
        problems=_TASKS,
        note="With the best step size.",
    ),
)

_FIGURES = (
    _claim(
        "figure-1",
        "Figure 1",
        "with w* != 0 the risk of LSA stays above that of one step of gradient descent along training",
        figures.above_descent,
        along_flow=True,
        hypotheses=figures.fixed_guess,
        problems=(
            problems.ONE_HEAD,
            problems.TWO_HEADS,
            problems.FOUR_HEADS,
            problems.PAPER_ONE_HEAD,
            problems.FACTORED,
        ),
    ),
    _claim(
        "figure-2",
        "Figure 2",
        "training ends at the least risk of as many heads",
        figures.ends_least,
        along_flow=True,
        hypotheses=figures.fixed_guess,
        problems=(
            problems.ONE_HEAD,
            problems.TWO_HEADS,
            problems.FOUR_HEADS,
            problems.PAPER_ONE_HEAD,
            problems.FACTORED,
        ),
        note="From the drawn starts; what the figure shows of fewer than d + 1 heads depends on it.",
    ),
    _equation(
        "figure-3",
        "Figure 3",
        "with d + 1 heads and y_q = 0 training ends above gradient descent by 2 |w*|^2/(d C + 2)",
        figures.ends_at_gap,
        along_flow=True,
        hypotheses=figures.all_heads,
        problems=(problems.FOUR_HEADS, problems.FACTORED, problems.ONE_HEAD),
        note="The caption says that the gap grows approximately linearly with |w*|^2.",
    ),
    _equation(
        "figure-4",
        "Figure 4",
        "with d + 1 heads training ends above gradient descent by (|w* - y_q_guess|^2 + y_q_bias^2) 2/(d C + 2)",
        figures.ends_at_gap,
        along_flow=True,
        hypotheses=figures.all_heads,
        problems=(problems.GUESSED, problems.FOUR_HEADS),
        note="The caption: the loss of gradient descent is reached only where the guess is w*^T x_q without a bias.",
    ),
    _claim(
        "figure-5",
        "Figure 5",
        "training y_q-LSA ends at gradient descent: in predictions, in derivatives by x_q, and in their cosine",
        figures.matches_descent,
        along_flow=True,
        hypotheses=figures.trained_guess,
        problems=(
            problems.TRAINED_GUESS,
            problems.TRAINED_GUESS_LIMIT,
            problems.TRAINED_GUESS_FACTORED,
            problems.TRAINED_GUESS_PAPER,
            problems.BLOCK,
        ),
        note="To 1e-3, in mean squares over prompts, against the best step size.",
    ),
)

CLAIMS: tuple[Claim, ...] = (*_MOMENTS, *_OPTIMA, *_FIGURES)
