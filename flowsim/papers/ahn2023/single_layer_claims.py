"""The claims of ahn2023's section 4 and appendix A, each with problems chosen so that it may break."""

from flowsim.claims.claim import Claim, Relation
from flowsim.claims.hypotheses import finite_context
from flowsim.claims.landscape import end_constants, ends_above_the_minimum
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.appendix_a import (
    eq_17,
    eq_18,
    eq_19,
    eq_20,
    eq_21,
    inner_product,
    inner_product_as_printed,
    lemma_6,
    lemma_7,
    rotated,
    sum_of_components,
    unique_component_minimum,
    unique_symmetric_component_minimum,
    weighted_sum_of_components,
)
from flowsim.papers.ahn2023.problems import (
    DIAGONAL,
    DIAGONAL_LARGE,
    DOMINANT,
    EASY,
    ELSEWHERE,
    HARD,
    INFINITE,
    ISOTROPIC,
    ISOTROPIC_INFINITE,
    ISOTROPIC_LARGE,
    ISOTROPIC_PAIR,
    ISOTROPIC_SHORT,
    ONE,
)
from flowsim.papers.ahn2023.single_layer import (
    diagonal,
    isotropic,
    isotropic_form,
    masked_layer,
    minimum_at_8,
    minimum_at_rescalings,
    parameters,
    parameters_as_printed,
    swapped_constants,
    swapped_minimum,
    two_dimensions,
    unique_minimum,
    with_square,
    without_square,
)

_EVERY = (EASY, HARD, DIAGONAL_LARGE, ISOTROPIC, DOMINANT, INFINITE, ONE)
_DRAWN = (EASY, HARD, DIAGONAL, ONE)
_ISOTROPIC = (ISOTROPIC, ISOTROPIC_SHORT, ISOTROPIC_LARGE, ISOTROPIC_INFINITE)
_DIAGONAL = (EASY, DIAGONAL, DIAGONAL_LARGE, ISOTROPIC_INFINITE)


def _claim(part: str, source: str, statement: str, compare, **options) -> Claim:
    defaults = {"relation": Relation.IDENTITY, "along_flow": False, "setting": masked_layer, "spaces": spaces.MASKED}
    options = {**defaults, **options}
    return Claim(f"ahn2023.{part}", f"ahn2023, {source}", statement, compare, **options)


def _of_finite_context(hypotheses):
    return lambda loss, start: [*hypotheses(loss, start), *finite_context(loss, start)]


CLAIMS: tuple[Claim, ...] = (
    _claim(
        "eq-6",
        "section 4, (6)",
        "The in-context loss (5) of one layer is E[[Z_0 + Attn(Z_0)/n]_{d+1,n+1} + w^T x^(n+1)]",
        without_square,
        problems=_EVERY,
        note="As printed the expectation is of an odd function of x^(n+1), hence zero whatever the weights are.",
    ),
    _claim(
        "eq-6",
        "section 4, (6) with (15)",
        "The in-context loss (5) of one layer is E[(b^T C A x^(n+1) + w^T x^(n+1))^2]",
        with_square,
        form="corrected",
        problems=_EVERY,
        note="The square that (6) lacks stands in (5), in (15) and where appendix A.1 repeats (6). Judged at drawn "
        "weights, as a sum of quadratic forms in b (A s)^T against the error's parts odd and even in w.",
    ),
    _claim(
        "sec-4.parameters",
        "section 4, after (6)",
        "The loss depends only on the last row of P and the first n columns of Q; the first n rows of P and the last "
        "column of Q do not affect it",
        parameters_as_printed,
        hypotheses=finite_context,
        problems=_DRAWN,
        note="Judged by the predictions on 16 drawn prompts. For n < d columns of Q that matter are left out; for "
        "n > d the last row of P is among its first n rows. At n = d, as in the last problem, the count is right.",
    ),
    _claim(
        "sec-4.parameters",
        "section 4, after (6), with (7)",
        "The loss depends only on the last row of P and the first d columns of Q; the first d rows of P and the last "
        "column of Q do not affect it",
        parameters,
        form="corrected",
        hypotheses=finite_context,
        problems=_DRAWN,
        note="It is d and not n, as in (7) and appendix A.1. Judged by the predictions on 16 drawn prompts.",
    ),
    _claim(
        "theorem-1",
        "Theorem 1, (8)",
        "b = e_{d+1}, A = -[U diag(1/(((n+1)/n) lambda_i + (1/n) sum_k lambda_k)) U^T; 0] is a global minimum of f",
        minimum_at_8,
        problems=_EVERY,
        note="Value and gradient by the quadratic forms of appendix A, against the least value of a sum of two "
        "squares, of the error's parts odd and even in w.",
    ),
    _claim(
        "theorem-1.rescaling",
        "Theorem 1",
        "b <- gamma b and A <- A/gamma makes of (8) a global minimum again",
        minimum_at_rescalings,
        problems=_EVERY,
        note="Judged at gamma = 1e-3, 0.1, -1, 7 and 1e3.",
    ),
    _claim(
        "theorem-1.isotropic",
        "display after Theorem 1",
        "For Sigma = I (8) is A = -[I; 0]/((n-1)/n + (d+2)/n)",
        isotropic_form,
        hypotheses=isotropic,
        problems=_ISOTROPIC,
        spaces=spaces.MASKED_ISOTROPIC,
    ),
    _claim(
        "theorem-1.unique",
        "section 1, main contributions",
        "The global optimum of one layer is unique, up to the re-scaling of Theorem 1",
        unique_minimum,
        relation=Relation.INEQUALITY,
        problems=(EASY, HARD, ISOTROPIC, ISOTROPIC_PAIR, INFINITE, ONE),
        note="Judged by the flat directions at (8) and by whether b = (u_1, 0), A = -e_{d+1} u_1^T/gamma_1 is a global "
        "minimum too. At d = 1 it is, as C is symmetric. That the re-scaling is left out is not held against the text.",
    ),
    _claim(
        "theorem-1.unique",
        "section 1, main contributions",
        "For d >= 2 the global optimum of one layer is unique, up to the re-scaling of Theorem 1",
        unique_minimum,
        form="corrected",
        relation=Relation.INEQUALITY,
        hypotheses=two_dimensions,
        problems=(EASY, HARD, ISOTROPIC, ISOTROPIC_PAIR, INFINITE),
        note="Proof: at a minimum V = beta A_x + b_x alpha^T is -Gamma^-1, of rank d, and the error's part even in w "
        "vanishes, so that beta alpha = 0. Were beta zero, V would have rank one; so alpha = 0, A_x is invertible, and "
        "b_x^T S A_x = 0 for every sample covariance S gives b_x = 0.",
    ),
    _claim(
        "theorem-1.local-minimum",
        "Theorem 1 with section 7",
        "b = (u_1, 0), A = -e_{d+1} u_1^T/gamma_1 is critical, sum_{j>1} lambda_j^2/gamma_j above the minimum, and its "
        "Hessian is semidefinite iff (lambda_1/gamma_1)^2 [(1 + 2/n) ((tr Sigma)^2 + 2 tr Sigma^2) - "
        "(tr Sigma + 2 lambda_1/n)^2/(1 + 2/n)] >= n sum_{j>1} lambda_j^2",
        swapped_minimum,
        form="corrected",
        hypotheses=two_dimensions,
        constants=swapped_constants,
        problems=(EASY, HARD, DOMINANT, ISOTROPIC_PAIR, ISOTROPIC, INFINITE),
        note="Section 7 leaves open whether training ends at another stationary point than (8). Here lambda_1 is the "
        "largest eigenvalue, u_1 its eigenvector, gamma_i = ((n+1)/n) lambda_i + (1/n) tr Sigma; the loss is constant "
        "along the Hessian's null directions, the re-scaling and, where lambda_1 is not simple, rotations, so that it "
        "is a local minimum where the inequality is strict. Where it fails others can take its place (theorem-1.flow).",
    ),
    _claim(
        "theorem-1.flow",
        "Theorem 1 with section 7",
        "The gradient flow of f(b, A) can end at a local minimum above the global one",
        ends_above_the_minimum,
        form="corrected",
        relation=Relation.INEQUALITY,
        along_flow=True,
        constants=end_constants,
        problems=ELSEWHERE,
        spaces=spaces.MASKED_FLOWS,
        note="By examples: what section 7 calls possible does happen. "
        "A flow that reaches the global minimum says nothing of it. Where these end no eigenvalue of the Hessian is "
        "negative; those that are zero are of the re-scaling and, for equal eigenvalues of Sigma, of rotations.",
    ),
    _claim(
        "lemma-6",
        "Lemma 6",
        "For Sigma = I, X_j = -E_{d+1,j}/((n-1)/n + (d+2)/n) is a global minimum of f_j(X) = E[(<C, X> + w[j])^2]",
        lemma_6,
        hypotheses=isotropic,
        problems=_ISOTROPIC,
        spaces=spaces.MASKED_ISOTROPIC,
        note="f_j is convex, its quadratic part being E<C, X>^2, so that a zero of its gradient is a global minimum. "
        "The proof prints y^T for y^2 in the corner of C.",
    ),
    _claim(
        "lemma-6.unique",
        "appendix A.2, step 3",
        "X_j is the unique global minimum of f_j",
        unique_component_minimum,
        relation=Relation.INEQUALITY,
        hypotheses=isotropic,
        problems=_ISOTROPIC[:2],
        spaces=spaces.MASKED_ISOTROPIC,
        note="Only the symmetric part of X enters f_j, as C is symmetric: any antisymmetric matrix may be added to "
        "X_j. Theorem 1 needs no uniqueness.",
    ),
    _claim(
        "lemma-6.unique",
        "appendix A.2, step 3",
        "At finite n the global minima of f_j are X_j plus any antisymmetric matrix",
        unique_symmetric_component_minimum,
        form="corrected",
        hypotheses=_of_finite_context(isotropic),
        problems=_ISOTROPIC[:2],
        spaces=spaces.MASKED_ISOTROPIC,
        note="The printed uniqueness holds among symmetric matrices. At n = inf, where C depends on w alone, it does "
        "not even there.",
    ),
    _claim(
        "lemma-6.sum",
        "appendix A.2, step 1",
        "For Sigma = I, f(b, A) = sum_j f_j(b, A)",
        sum_of_components,
        hypotheses=isotropic,
        problems=_ISOTROPIC,
        spaces=spaces.MASKED_ISOTROPIC,
    ),
    _claim(
        "lemma-6.inner-product",
        "proof of Lemma 6",
        "<C, E_{d+1,j}> = sum_i <w, x_i> x_i[j]",
        inner_product_as_printed,
        hypotheses=finite_context,
        problems=_ISOTROPIC[:3],
        spaces=spaces.MASKED_ISOTROPIC,
        note="The factor 1/n of C is left out, here and in the next displays; (19) has it again.",
    ),
    _claim(
        "lemma-6.inner-product",
        "proof of Lemma 6",
        "<C, E_{d+1,j}> = (1/n) sum_i <w, x_i> x_i[j]",
        inner_product,
        form="corrected",
        hypotheses=finite_context,
        problems=_ISOTROPIC[:3],
        spaces=spaces.MASKED_ISOTROPIC,
        note="With the factor 1/n of C.",
    ),
    _claim(
        "eq-17",
        "(16), (17)",
        "For Sigma = I, E[w[j] C] = E_{d+1,j} + E_{j,d+1}",
        eq_17,
        hypotheses=isotropic,
        problems=_ISOTROPIC,
        spaces=spaces.MASKED_ISOTROPIC,
    ),
    _claim(
        "eq-18",
        "(18) and the display before it",
        "For Sigma = I, E[<w, x_i> x_i[j] <w, x_i'> x_i'[j']] is 0 for j != j'; for j = j' it is 1 where i != i' "
        "and d + 2 where i = i'",
        eq_18,
        hypotheses=isotropic,
        problems=_ISOTROPIC,
        spaces=spaces.MASKED_ISOTROPIC,
        note="Judged as E[<C, E_{d+1,j}> C] at n = 1, where i = i', and at n = inf, where only pairs i != i' are left.",
    ),
    _claim(
        "eq-19",
        "(19)",
        "For Sigma = I, E[<C, E_{d+1,j}> C] = ((n-1)/n + (d+2)/n) (E_{d+1,j} + E_{j,d+1})",
        eq_19,
        hypotheses=isotropic,
        problems=_ISOTROPIC,
        spaces=spaces.MASKED_ISOTROPIC,
    ),
    _claim(
        "lemma-7",
        "Lemma 7",
        "For Sigma = diag(lambda), X_j = -E_{d+1,j}/(((n+1)/n) lambda_j + (1/n) sum_k lambda_k) is a global minimum of "
        "f_j(X) = E[(<C, X> + w[j])^2]",
        lemma_7,
        hypotheses=diagonal,
        problems=_DIAGONAL,
        spaces=spaces.MASKED_DIAGONAL,
        note="What follows from it is said to follow from Lemma 6. The display of A at the end of step 1 lacks a "
        "denominator, in the paper or by its extraction; (8) is meant.",
    ),
    _claim(
        "lemma-7.unique",
        "appendix A.3, step 1",
        "X_j is the unique global minimum of f_j",
        unique_component_minimum,
        relation=Relation.INEQUALITY,
        hypotheses=diagonal,
        problems=_DIAGONAL[:2],
        spaces=spaces.MASKED_DIAGONAL,
        note="As for lemma-6.unique: any antisymmetric matrix may be added to X_j.",
    ),
    _claim(
        "lemma-7.unique",
        "appendix A.3, step 1",
        "At finite n the global minima of f_j are X_j plus any antisymmetric matrix",
        unique_symmetric_component_minimum,
        form="corrected",
        hypotheses=_of_finite_context(diagonal),
        problems=_DIAGONAL[:2],
        spaces=spaces.MASKED_DIAGONAL,
        note="The printed uniqueness holds among symmetric matrices.",
    ),
    _claim(
        "lemma-7.sum",
        "appendix A.3, step 1",
        "For Sigma = diag(lambda), f(b, A) = sum_j f_j(b, A_j)",
        sum_of_components,
        hypotheses=diagonal,
        problems=_DIAGONAL,
        spaces=spaces.MASKED_DIAGONAL,
        note="The display is that of the isotropic case. The weights E[x_query[j]^2] = lambda_j are missing, as the "
        "first display of step 2 shows; the minimum is at the same place with any positive weights.",
    ),
    _claim(
        "lemma-7.sum",
        "appendix A.3, step 1, with the first display of step 2",
        "For Sigma = diag(lambda), f(b, A) = sum_j lambda_j f_j(b, A_j)",
        weighted_sum_of_components,
        form="corrected",
        hypotheses=diagonal,
        problems=_DIAGONAL,
        spaces=spaces.MASKED_DIAGONAL,
        note="With the weights lambda_j, which are all 1 for Sigma = I alone.",
    ),
    _claim(
        "eq-20",
        "(20)",
        "For Sigma = diag(lambda), E[w[j] C] = lambda_j (E_{d+1,j} + E_{j,d+1})",
        eq_20,
        hypotheses=diagonal,
        problems=_DIAGONAL,
        spaces=spaces.MASKED_DIAGONAL,
    ),
    _claim(
        "eq-21",
        "(21)",
        "For Sigma = diag(lambda), E[<C, E_{d+1,j}> C] = (((n+1)/n) lambda_j^2 + (1/n) lambda_j sum_k lambda_k) "
        "(E_{d+1,j} + E_{j,d+1})",
        eq_21,
        hypotheses=diagonal,
        problems=_DIAGONAL,
        spaces=spaces.MASKED_DIAGONAL,
    ),
    _claim(
        "sec-a.3.rotation",
        "appendix A.3, step 2",
        "With Sigma = U Lambda U^T, f(b, A) is the loss of covariance Lambda at [U^T 0; 0 1] b and [U^T 0; 0 1] A U",
        rotated,
        problems=_EVERY,
        note="Judged at drawn weights. In the labels the displays keep x where its rotation U^T x is meant.",
    ),
)
