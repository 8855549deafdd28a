"""The claims of ahn2023's proofs of Lemma 2 and Theorems 4 and 5 on single prompts, and of sections 5.2 and 6.1."""

from typing import Any

from flowsim.claims.claim import Claim, Relation
from flowsim.claims.hypotheses import Hypothesis, finite_context, hypothesis
from flowsim.papers.ahn2023 import multi_layer, spaces, turned_prompts
from flowsim.papers.ahn2023.multi_layer_problems import ISOTROPIC, PAPER, PAPER_B, SHORT


def _claim(part: str, source: str, statement: str, compare: Any, **options: Any) -> Claim:
    defaults: dict[str, Any] = {
        "problems": (PAPER, SHORT),
        "spaces": spaces.LAYERS,
        "along_flow": False,
        "setting": multi_layer.layers_with_inverse_weights,
        "hypotheses": finite_context,
        "relation": Relation.IDENTITY,
    }
    return Claim(f"ahn2023.{part}", f"ahn2023, {source}", statement, compare, **(defaults | options))


def _invertible(loss: Any, start: Any) -> list[Hypothesis]:
    """X X^T has an inverse."""
    enough = hypothesis("n >= d", loss.task.context_length, ">=", float(loss.task.dimension))
    return [enough, *finite_context(loss, start)]


_ON_S = "For (A, B) in S and orthogonal U, with U_Sigma = Sigma^{1/2} U Sigma^{-1/2}, "
_PROMPTS = "Judged on 64 drawn prompts with drawn weights"

CLAIMS: tuple[Claim, ...] = (
    _claim(
        "sec-5.2.distorted",
        "section 5.2",
        "With x = W xbar, Sigma = W W^T and w* = Sigma^{-1/2} wbar, y = <xbar, wbar> is <x, w*>",
        turned_prompts.distorted_printed,
        note="For W = Sigma^{1/2} alone: x^T Sigma^{-1/2} wbar = xbar^T W^T Sigma^{-1/2} wbar. Judged at W = "
        "Sigma^{1/2} U with drawn orthogonal U.",
    ),
    _claim(
        "sec-5.2.distorted",
        "section 5.2",
        "With x = W xbar, Sigma = W W^T and w* = W^{-T} wbar, y = <xbar, wbar> is <x, w*>",
        turned_prompts.distorted_corrected,
        form="corrected",
        note="W^{-T} wbar has the law N(0, Sigma^-1) too, which is all that Theorem 4 takes from it.",
    ),
    _claim(
        "sec-5.2.newton",
        "section 5.2",
        "For any fixed prompt one layer with A_0 = -n (X X^T)^-1, Newton's method, predicts the query's label",
        turned_prompts.newton,
        hypotheses=_invertible,
        problems=(PAPER, PAPER_B),
        note="Proportional to (X X^T)^-1 is what the text says; the factor is that of the Hessian X X^T/n.",
    ),
    _claim(
        "eq-29",
        "(29)",
        "For A in S and orthogonal U, with U_Sigma = Sigma^{1/2} U Sigma^{-1/2}, G(U_Sigma X_0) = U_Sigma G(X_0)",
        turned_prompts.eq_29,
        note=_PROMPTS + " and U.",
    ),
    _claim(
        "eq-30",
        "(30)",
        "For A in S and every R_j, d/dt G(U_Sigma X_0, A_j + t R_j) = U_Sigma d/dt G(X_0, A_j + t U_Sigma^T R_j "
        "U_Sigma)",
        turned_prompts.eq_30,
        note=_PROMPTS + ", U and R_j, for every j.",
    ),
    _claim(
        "eq-54",
        "(54), (31)",
        "(53) is X_{i+1} = X_i + (1/n) B_i X_i M X_i^T A_i X_i, Y_{i+1} = Y_i + (1/n) Y_i M X_i^T A_i X_i",
        turned_prompts.eq_54,
        note=_PROMPTS + ", after every layer.",
    ),
    _claim(
        "lemma-10",
        "Lemma 10",
        "Adding c to the query's label leaves every X_i and the other labels as they are, and adds c to its label",
        turned_prompts.lemma_10,
        note=_PROMPTS + ", after every layer.",
    ),
    _claim(
        "eq-38",
        "G before (38)",
        "Y_{k+1} = w*^T G with G = X_0 prod_i (I - M X_i^T A_i X_i)",
        turned_prompts.eq_38_printed,
        note="The sign is not that of (31), (44) and (45), as before (28).",
    ),
    _claim(
        "eq-38",
        "G before (38)",
        "Y_{k+1} = w*^T G with G = X_0 prod_i (I + M X_i^T A_i X_i)",
        turned_prompts.eq_38_corrected,
        form="corrected",
        note="With the sign of (31).",
    ),
    _claim(
        "eq-39", "(39), (46)", _ON_S + "X_i(U_Sigma X_0) = U_Sigma X_i(X_0)", turned_prompts.eq_39, note=_PROMPTS + "."
    ),
    _claim(
        "eq-40",
        "(40)",
        _ON_S + "U_Sigma^-1 d/dt X_i(U_Sigma X_0, B_j + t S_j) = d/dt X_i(X_0, B_j + t U_Sigma^-1 S_j U_Sigma)",
        turned_prompts.eq_40,
        note=_PROMPTS + " and S_j, for all i and j. (42) lacks a factor X_j at its end.",
    ),
    _claim("eq-44", "(44), (46)", _ON_S + "G(U_Sigma X_0) = U_Sigma G(X_0)", turned_prompts.eq_44, note=_PROMPTS + "."),
    _claim(
        "eq-45",
        "(45)",
        _ON_S + "U_Sigma^-1 d/dt G(U_Sigma X_0, B_j + t S_j) = d/dt G(X_0, B_j + t U_Sigma^-1 S_j U_Sigma)",
        turned_prompts.eq_45,
        note=_PROMPTS + " and S_j, for every j.",
    ),
    _claim(
        "eq-47",
        "(47)",
        _ON_S + "U_Sigma^-1 d/dt X_i(U_Sigma X_0, A_j + t R_j) = d/dt X_i(X_0, A_j + t U_Sigma^T R_j U_Sigma)",
        turned_prompts.eq_47,
        note=_PROMPTS + " and R_j, for all i and j.",
    ),
    _claim(
        "eq-50",
        "(50)",
        _ON_S + "U_Sigma^-1 d/dt G(U_Sigma X_0, A_j + t R_j) = d/dt G(X_0, A_j + t U_Sigma^T R_j U_Sigma)",
        turned_prompts.eq_50,
        note=_PROMPTS + " and R_j, for every j.",
    ),
    _claim(
        "eq-60",
        "(59), (60)",
        "After every layer there is a theta_l with y_l^{(i)} = <theta_l, x^{(i)}> + y^{(i)} for all i <= n + 1",
        turned_prompts.eq_60,
        note="theta_l is read off the query's label, by its derivative in the query.",
    ),
    _claim(
        "eq-63",
        "(63)",
        "theta_{l+1} = theta_l + (1/n) A_l X X^T (theta_l + w*)",
        turned_prompts.eq_63,
        note="theta_l is read off the query's label, by its derivative in the query.",
    ),
    _claim(
        "sec-6.1.curvature",
        "section 6.1, 1.",
        "On S with a_i < 0 < b_i, X_{i+1} = X_i (I - |a_i b_i| M X_i^T X_i), with 1/n in the a_i",
        turned_prompts.curvature_printed,
        problems=(PAPER_B, SHORT, ISOTROPIC[0]),
        note="At learned weights, which are near S, the text has an approximate sign for it. It is so for Sigma = I.",
    ),
    _claim(
        "sec-6.1.curvature",
        "section 6.1, 1.",
        "On S with a_i < 0 < b_i, X_{i+1} = X_i (I - |a_i b_i| M X_i^T Sigma^-1 X_i), with 1/n in the a_i",
        turned_prompts.curvature_corrected,
        form="corrected",
        problems=(PAPER_B, SHORT, ISOTROPIC[0]),
        note="With the Sigma^-1 of A_i = a_i Sigma^-1.",
    ),
)
