"""The claims of zhang2023's sections 4.1 and 4.2: the trained model on new prompts."""

from flowsim.claims.claim import Claim, Relation
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.comparisons import one_covariance
from flowsim.papers.zhang2023.learning import (
    a_model_for_each,
    lengths_at_one_percent,
    long_enough_in_test,
    long_enough_in_training,
    one_model_for_all,
    printed_length_in_training,
)
from flowsim.papers.zhang2023.new_prompts import (
    averaged_bounded,
    covariate_shift,
    finite_training,
    noiseless,
    noiseless_bounded,
    noisy_rates,
    nonlinear,
    orthogonal_query,
    prediction,
    query_orthogonal_after_gamma,
    query_rates,
    query_shift,
    task_shift,
)
from flowsim.papers.zhang2023.problems import (
    INFINITE,
    ISOTROPIC,
    LONG,
    NEAR_SINGULAR,
    STILL_EASY,
    STILL_HARD,
    STILL_ONE,
)

_FINITE = (STILL_EASY, STILL_HARD, NEAR_SINGULAR, STILL_ONE, LONG)
_EVERY = (*_FINITE, INFINITE)
# Statements at N = M = inf, or at an N of their own: only the covariance matters.
_COVARIANCES = (STILL_EASY, STILL_HARD, NEAR_SINGULAR, STILL_ONE)
_AT_LIMIT = (
    "Judged exactly at N = M = infinity, up to d = 4 on the literal model; how the rest falls off with M and N is "
    "among the constants."
)


def _claim(part: str, source: str, statement: str, compare, **options) -> Claim:
    options = {"spaces": spaces.STILL, "setting": one_covariance, "along_flow": False, **options}
    return Claim(f"zhang2023.{part}", f"zhang2023, {source}", statement, compare, **options)


CLAIMS: tuple[Claim, ...] = (
    _claim(
        "eq-4.2",
        "(4.2)",
        "At (4.1) the prediction is yhat = x_query^T Gamma^-1 ((1/M) sum x_i x_i^T) w, for every prompt and M",
        prediction,
        relation=Relation.IDENTITY,
        problems=_EVERY,
        spaces=spaces.STILL + spaces.STILL_INFINITE,
        note="Judged on the literal model with 12 prompts each of M = 1 and 7 examples, w from 1e-2 to 1e2.",
    ),
    _claim(
        "theorem-4.2",
        "Theorem 4.2, (4.6)",
        "E(yhat - y_query)^2 = error of the best linear predictor + tr(Sigma Gamma^-2 Lambda)/M + (1/N^2) "
        "(|a|^2_{Gamma^-2 Lambda^3} + 2 tr(Lambda) |a|^2_{Gamma^-2 Lambda^2} + tr(Lambda)^2 |a|^2_{Gamma^-2 Lambda})",
        nonlinear,
        relation=Relation.IDENTITY,
        problems=_EVERY,
        spaces=spaces.STILL + spaces.STILL_INFINITE,
        note="Judged against the exact risk, and up to d = 4 that of the literal model by cubature, on linear, noisy, "
        "quadratic (E[y] != 0) and cubic labels at M = 1, 2, 7, 50, 1e4 and infinity. E[y^2] must be finite too, "
        "which the printed hypotheses do not imply: y may be large where x is small.",
    ),
    _claim(
        "theorem-4.2.noiseless",
        "display after Theorem 4.2, first line",
        "For y = <w, x> the risk is (|w|^2_{Gamma^-2 Lambda^3} + tr(Gamma^-2 Lambda^2) |w|^2_Lambda)/M + (1/N^2) "
        "(|w|^2_{Gamma^-2 Lambda^3} + 2 tr(Lambda) |w|^2_{Gamma^-2 Lambda^2} + tr(Lambda)^2 |w|^2_{Gamma^-2 Lambda})",
        noiseless,
        relation=Relation.IDENTITY,
        problems=_EVERY,
        spaces=spaces.STILL + spaces.STILL_INFINITE,
    ),
    _claim(
        "theorem-4.2.noiseless-bound",
        "display after Theorem 4.2, second line",
        "For y = <w, x> the risk is at most (d+1) |w|^2_Lambda/M + "
        "(|w|^2_Lambda + 2 |w|^2 tr(Lambda) + |w|^2_{Lambda^-1} tr(Lambda)^2)/N^2",
        noiseless_bounded,
        hypotheses=finite_training,
        problems=_FINITE,
    ),
    _claim(
        "theorem-4.2.averaged-bound",
        "display before Corollary 4.3",
        "Averaged over w ~ N(0, I) the risk is at most (d+1) tr(Lambda)/M + (tr(Lambda) + 2d tr(Lambda) + "
        "tr(Lambda^-1) tr(Lambda)^2)/N^2 <= (d+1) tr(Lambda)/M + (1 + 2d + d^2 kappa) tr(Lambda)/N^2",
        averaged_bounded,
        hypotheses=finite_training,
        problems=_FINITE,
        note="The two bounds are equal at kappa = 1, where the second inequality is left out.",
    ),
    _claim(
        "corollary-4.3.test-length",
        "Corollary 4.3",
        "M >= 2(d+1) tr(Lambda)/epsilon is enough for a risk of epsilon, at every N that is long enough",
        long_enough_in_test,
        constants=lengths_at_one_percent,
        problems=_COVARIANCES,
        note="Judged at epsilon from 0.5 to 1e-8 and at the N of the derivation, ten times it, and infinity. The "
        "constants are at epsilon = tr(Lambda)/100.",
    ),
    _claim(
        "corollary-4.3.train-length",
        "Corollary 4.3",
        "N >= sqrt(2(1 + 2d + d^2 kappa) tr(Lambda) epsilon^{-1/2}) is enough for a risk of epsilon, at every M "
        "that is long enough",
        printed_length_in_training,
        constants=lengths_at_one_percent,
        problems=(STILL_EASY, STILL_HARD, ISOTROPIC, STILL_ONE),
        note="As extracted, the root spans epsilon^{-1/2}: N then grows as epsilon^{-1/4} only, but a risk of epsilon "
        "needs N of the order epsilon^{-1/2} even at M = infinity. Whether the paper or its extraction sets the root "
        "so cannot be told apart.",
    ),
    _claim(
        "corollary-4.3.train-length",
        "Corollary 4.3",
        "N >= sqrt(2(1 + 2d + d^2 kappa) tr(Lambda)) epsilon^{-1/2} is enough for a risk of epsilon, at every M "
        "that is long enough",
        long_enough_in_training,
        form="corrected",
        constants=lengths_at_one_percent,
        problems=_COVARIANCES,
        note="The root ends before epsilon^{-1/2}, as the averaged bound before the corollary gives it; in the printed "
        "form, as extracted, it does not.",
    ),
    _claim(
        "corollary-4.3.definition-3.2",
        "Corollary 4.3 with Definition 3.2",
        "The model trained at N in-context learns linear models: for every epsilon in (0, 1) its risk is at most "
        "epsilon on all prompts that are long enough",
        one_model_for_all,
        constants=lengths_at_one_percent,
        problems=_COVARIANCES,
        note="Definition 3.2 asks one model for every epsilon. At a finite N the risk stays above the last term of "
        "(4.6) however long the prompts: the N of the corollary depends on epsilon, and so does the model.",
    ),
    _claim(
        "corollary-4.3.definition-3.2",
        "Corollary 4.3 with Definition 3.2",
        "For every epsilon in (0, 1) a model trained at the N of the corollary, or longer, has a risk of at most "
        "epsilon on all prompts from its M on",
        a_model_for_each,
        form="corrected",
        constants=lengths_at_one_percent,
        problems=_COVARIANCES,
        note="With the N of the corrected corollary. Judged at epsilon from 0.5 to 1e-8, N and 10 N, and M, M + 1, "
        "100 M and infinity. At N = infinity one model does for every epsilon.",
    ),
    _claim(
        "sec-4.2.task-shift",
        "section 4.2, task shifts",
        "For every w and label noise, and for nonlinear labels, the risk tends to the best linear predictor's",
        task_shift,
        relation=Relation.IDENTITY,
        constants=noisy_rates,
        problems=_COVARIANCES,
        note=f"{_AT_LIMIT} The constants are for a label noise of 1/2.",
    ),
    _claim(
        "sec-4.2.query-shift",
        "section 4.2, query shifts, (4.8)",
        "For every law of the query that is independent of the context, yhat tends to <w, x_query>: the risk to 0",
        query_shift,
        relation=Relation.IDENTITY,
        constants=query_rates,
        problems=_COVARIANCES,
        note=f"{_AT_LIMIT} Judged on Gaussian queries: the risk depends on the query's covariance alone.",
    ),
    _claim(
        "sec-4.2.orthogonal-query",
        "section 4.2, query shifts",
        "If the query is orthogonal to the span of the x_i, the prediction is zero",
        orthogonal_query,
        relation=Relation.IDENTITY,
        problems=(STILL_EASY, STILL_HARD, ISOTROPIC, STILL_ONE, INFINITE),
        spaces=spaces.STILL + spaces.STILL_INFINITE,
        note="yhat = x_query^T Gamma^-1 S w, and Gamma^-1 turns S w out of the span of the x_i unless Lambda is a "
        "multiple of the identity. With (4.7), which has Lambda in place of Gamma, it is the same.",
    ),
    _claim(
        "sec-4.2.orthogonal-query",
        "section 4.2, query shifts",
        "If the query is orthogonal to the span of the Gamma^-1 x_i, the prediction is zero",
        query_orthogonal_after_gamma,
        form="corrected",
        relation=Relation.IDENTITY,
        problems=(STILL_EASY, STILL_HARD, ISOTROPIC, STILL_ONE, INFINITE),
        spaces=spaces.STILL + spaces.STILL_INFINITE,
        note="The printed form, without Gamma^-1, is the special case of Lambda a multiple of the identity.",
    ),
    _claim(
        "sec-4.2.covariate-shift",
        "section 4.2, covariate shifts",
        "For covariates c times as large yhat tends to c^2 <w, x_query>: the risk to (c^2 - 1)^2 E<w, x_query>^2, "
        "which is positive unless c = 1",
        covariate_shift,
        relation=Relation.IDENTITY,
        problems=_COVARIANCES,
        note="Judged exactly at N = M = infinity and at c = 0.1, 0.5, 0.9, 1.1, 2 and 10. The middle expression of the "
        "display lacks its factor w.",
    ),
)
