"""The claims of zhang2023, sections 3-5 and appendix A, each with problems chosen so that it may break."""

from collections.abc import Mapping
from typing import Any

from flowsim.claims.claim import Claim, Relation
from flowsim.claims.hypotheses import finite_context
from flowsim.claims.landscape import end_constants, ends_above_the_minimum
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.comparisons import (
    all_but,
    assumption,
    assumption_and_scale,
    blocks_not_zero,
    dynamics,
    limit_constants,
    limit_without_balance,
    minimum_and_excess,
    one_covariance,
    pl,
    pl_constants,
    random_thetas_meet_it,
    rate,
    rate_constants,
    same_loss,
    stays_balanced,
    tends_to_limit,
    theta_lambda_follows,
    u_bounded_below,
    u_constants,
    u_positive,
)
from flowsim.papers.zhang2023.minima import every_minimum, tends_to_global_minimum, tends_to_global_minimum_of_matrices
from flowsim.papers.zhang2023.quadratic_form import at_least_d_plus_one, counts, exactly_rank, quadratic_form

EASY = {
    "name": "d = 3, diagonal covariance",
    "task": {"covariance": [[0.5, 0, 0], [0, 1, 0], [0, 0, 2]], "context_length": 10},
    "init": {"kind": "balanced", "scale": 0.3, "theta": [[1, 0.5, 0], [0, 1, -0.5], [0.3, 0, 1]]},
}
HARD = {
    "name": "d = 8, condition 100, N = 3, rank one, sigma = 1e-4",
    "task": {
        "covariance": {"eigenvalues": [0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0], "rotation_seed": 1},
        "context_length": 3,
    },
    "init": {"kind": "balanced", "scale": 1e-4, "rank": 1, "seed": 1},
}
EDGE = {
    "name": "d = 4, just under the scale condition, N = 2",
    "task": {"covariance": {"eigenvalues": [0.1, 0.3, 1.0, 3.0], "rotation_seed": 2}, "context_length": 2},
    "init": {"kind": "balanced", "scale": 0.385, "seed": 3},
}
ONE_DIMENSION = {
    "name": "d = 1, exactly solvable",
    "task": {"covariance": [[2.0]], "context_length": 5},
    "init": {"kind": "balanced", "scale": 0.05, "theta": [[1.0]]},
}
PROBLEMS = (EASY, HARD, EDGE, ONE_DIMENSION)


def _with_init(problem: Mapping[str, Any], name: str, **init: Any) -> dict[str, Any]:
    return {"name": name, "task": problem["task"], "init": init}


BEYOND = _with_init(EASY, "d = 3, ten times the scale condition", kind="balanced", scale=6.7, seed=0)
UNBALANCED = _with_init(EASY, "d = 3, unbalanced", kind="unbalanced", scale=0.5, seed=0)
ALL_WEIGHTS = _with_init(
    EASY,
    "d = 3, u12 and u21 not zero",
    kind="explicit",
    U11=[[0.01 / 3**0.5 * (i == j) for j in range(3)] for i in range(3)],
    u_minus1=0.01,
    u12=[0.0, 0.0, 0.1],
    u21=[0.0, 0.0, 0.1],
)
INDEFINITE = _with_init(EASY, "d = 3, balanced but indefinite", kind="balanced-indefinite", scale=0.2, seed=4)


def _claim(part: str, source: str, statement: str, compare, **options) -> Claim:
    options.setdefault("problems", PROBLEMS)
    options.setdefault("spaces", spaces.BALANCED)
    options.setdefault("setting", one_covariance)
    return Claim(f"zhang2023.{part}", f"zhang2023, {source}", statement, compare, **options)


CLAIMS: tuple[Claim, ...] = (
    _claim(
        "assumption-3.3",
        "remark after Assumption 3.3",
        "If M has i.i.d. entries from a continuous law, Theta Theta^T = M M^T/|M M^T|_F meets the assumption a.s.",
        random_thetas_meet_it,
        along_flow=False,
        problems=(EASY, HARD),
        note="Judged on 32 random M; that Theta is what was drawn is by construction.",
    ),
    _claim(
        "assumption-3.3.nonzero",
        "Assumption 3.3",
        "Theta Lambda != 0 follows from |Theta Theta^T|_F = 1 and Lambda > 0: |Theta Lambda|_F >= lambda_min",
        theta_lambda_follows,
        form="corrected",
        hypotheses=all_but("Theta Lambda != 0"),
        along_flow=False,
        note="The part Theta Lambda != 0 of the assumption is implied by the others and needed for nothing more.",
    ),
    _claim(
        "assumption-3.3.balance",
        "Assumption 3.3 with (5.9)",
        "Without |Theta Theta^T|_F = 1: u_{-1}^2 -> (c + sqrt(c^2 + 4 |Gamma^-1|_F^2))/2, u_{-1} U11 -> Gamma^-1",
        limit_without_balance,
        form="corrected",
        relation=Relation.IDENTITY,
        hypotheses=all_but("|Theta Theta^T|_F = 1"),
        problems=(UNBALANCED, *PROBLEMS),
        spaces=spaces.UNBALANCED + spaces.BALANCED,
        note="Balance is needed for the limit (5.9) itself, not for global convergence: with the conserved "
        "c = u_{-1}(0)^2 - |U11(0)|_F^2 the flow ends elsewhere on the same set of minima; c = 0 gives (5.9).",
    ),
    _claim(
        "assumption-3.3.semidefinite",
        "Assumption 3.3 with (5.9)",
        "Without Theta Theta^T >= 0, from a symmetric balanced start with u_{-1}(0) > 0, the flow tends to (5.9)",
        tends_to_limit,
        form="corrected",
        relation=Relation.IDENTITY,
        hypotheses=all_but("Theta Theta^T semidefinite", "Theta Lambda != 0"),
        problems=(INDEFINITE,),
        spaces=spaces.INDEFINITE,
        note="Semidefiniteness makes the loss negative at the start, hence keeps the flow off the saddle at 0. An "
        "indefinite start reaches (5.9) as well unless it lies on the saddle's stable set, as "
        "U11(0) = -u_{-1}(0) I/sqrt(d) does when Lambda is a multiple of I.",
    ),
    _claim(
        "assumption-3.3.zero-blocks",
        "Assumption 3.3 with Theorem 4.1",
        "Without u12(0) = u21(0) = 0 the flow can end at another local minimum, above the global one",
        ends_above_the_minimum,
        form="corrected",
        hypotheses=blocks_not_zero,
        constants=end_constants,
        problems=(ALL_WEIGHTS,),
        spaces=spaces.ALL_WEIGHTS,
        note="What the zero blocks are needed for, by an example that meets all else; a flow that reaches the global "
        "minimum says nothing of it. Where this one ends no eigenvalue of the Hessian is negative, and one is zero, of "
        "the rescaling.",
    ),
    _claim(
        "assumption-3.3.scale",
        "Theorem 4.1 without its scale condition",
        "From Assumption 3.3 alone, at any sigma > 0, the flow tends to (5.9)",
        tends_to_limit,
        form="corrected",
        relation=Relation.IDENTITY,
        hypotheses=assumption,
        constants=limit_constants,
        problems=(BEYOND, *PROBLEMS),
        note="The condition on sigma is sufficient, not necessary: for a semidefinite start the diagonal of U11 in the "
        "eigenbasis stays nonnegative and u_{-1} positive whatever sigma is.",
    ),
    _claim(
        "theorem-4.1",
        "Theorem 4.1",
        "Under Assumption 3.3 and sigma^2 |Gamma|_op sqrt(d) < 2, W^PV and W^KQ tend to (4.1), a global minimum",
        tends_to_global_minimum_of_matrices,
        relation=Relation.IDENTITY,
        hypotheses=assumption_and_scale,
        constants=limit_constants,
        note="That the limit is a global minimum is judged by the loss there, against the minimum by normal equations, "
        "with E[Lambdahat^2] by cubature.",
    ),
    _claim(
        "lemma-5.1",
        "Lemma 5.1",
        "yhat = u^T H u with H = (1/2) X (x) (E E^T/N), u = Vec(U)",
        quadratic_form,
        relation=Relation.IDENTITY,
        hypotheses=finite_context,
        along_flow=False,
        note="Judged on 64 random prompts with random u12, u21 and entries of W^PV and W^KQ that reach no prediction.",
    ),
    _claim(
        "sec-5.1.negative-eigenvalues",
        "section 5.1",
        "H has at least d + 1 negative eigenvalues almost surely",
        at_least_d_plus_one,
        constants=counts,
        hypotheses=finite_context,
        along_flow=False,
        note="X has one negative eigenvalue, so that H has one for each positive one of E E^T. Its rank is min(N, d) + "
        "1 almost surely: labels are linear in the covariates, so that a context spans at most d dimensions, or N when "
        "N < d.",
    ),
    _claim(
        "sec-5.1.negative-eigenvalues",
        "section 5.1",
        "H has exactly min(N, d) + 1 negative eigenvalues almost surely",
        exactly_rank,
        constants=counts,
        form="corrected",
        relation=Relation.IDENTITY,
        hypotheses=finite_context,
        along_flow=False,
        note="The printed count d + 1 needs N >= d. The form is non-convex either way.",
    ),
    _claim(
        "lemma-5.2",
        "Lemma 5.2",
        "dU11/dt and du_{-1}/dt are (5.4), and u12 = u21 = 0 for all t",
        dynamics,
        relation=Relation.IDENTITY,
        hypotheses=assumption,
        note="Compared with the gradient of the exact loss over all weights, u12 and u21 included.",
    ),
    _claim(
        "lemma-5.3",
        "Lemma 5.3",
        "u_{-1} U11 = Gamma^-1 at every global minimum of (5.5)",
        every_minimum,
        relation=Relation.IDENTITY,
        along_flow=False,
        note="For each u_{-1} != 0 the loss is a strictly convex quadratic form in U11, and at u_{-1} = 0 above its "
        "minimum. Judged at the solutions of the normal equations for u_{-1} of both signs from 1e-3 to 1e3, with "
        "E[Lambdahat^2] by cubature.",
    ),
    _claim(
        "lemma-5.4.pl",
        "Lemma 5.4, (5.8)",
        "|grad l|^2 >= mu (l - min l) for all t, with mu of (5.7)",
        pl,
        hypotheses=assumption_and_scale,
        constants=pl_constants,
    ),
    _claim(
        "lemma-5.4.rate",
        "proof of Lemma 5.4",
        "l(t) - min l <= e^{-mu t} (l(0) - min l), with mu of (5.7)",
        rate,
        hypotheses=assumption_and_scale,
        constants=rate_constants,
    ),
    _claim(
        "lemma-5.4.limit",
        "Lemma 5.4, (5.9)",
        "The flow tends to the global minimum: u_{-1} -> |Gamma^-1|_F^{1/2}, U11 -> |Gamma^-1|_F^{-1/2} Gamma^-1",
        tends_to_global_minimum,
        relation=Relation.IDENTITY,
        hypotheses=assumption_and_scale,
        constants=limit_constants,
    ),
    _claim(
        "lemma-a.1",
        "Lemma A.1",
        "The flow of L is that of (A.11), and L - l is constant (it is tr(Lambda)/2)",
        same_loss,
        relation=Relation.IDENTITY,
        hypotheses=assumption,
    ),
    _claim(
        "corollary-a.2",
        "Corollary A.2",
        "min l = -tr(Lambda^2 Gamma^-1)/2 and l - min l = |Gamma^{1/2}(u Lambda^{1/2} U11 Lambda^{1/2} - "
        "Lambda Gamma^-1)|_F^2/2",
        minimum_and_excess,
        relation=Relation.IDENTITY,
        note="Judged by subtraction, along the trajectory and at the limit (5.9), where the minimum is attained.",
    ),
    _claim(
        "lemma-a.3",
        "Lemma A.3, (A.12)",
        "u_{-1}^2 = tr(U11 U11^T) for all t",
        stays_balanced,
        relation=Relation.IDENTITY,
        hypotheses=assumption,
    ),
    _claim("lemma-a.4", "Lemma A.4", "u_{-1} > 0 for all t", u_positive, hypotheses=assumption_and_scale),
    _claim(
        "lemma-a.5",
        "Lemma A.5, (A.14)",
        "u_{-1}^2 >= sigma^2 |Lambda Theta|_F^2 (2 - sqrt(d) sigma^2 |Gamma|_op)/(2 sqrt(d) |Lambda|_op^2) for all t",
        u_bounded_below,
        hypotheses=assumption_and_scale,
        constants=u_constants,
        note="The extracted text leaves open how far the root of (A.14) reaches; (A.15) squares the whole product.",
    ),
)
