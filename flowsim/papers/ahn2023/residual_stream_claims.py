"""The claims of ahn2023, section 6, and of Figures 1 to 4, each with problems chosen so that it may break."""

from typing import Any

from flowsim.claims.claim import Claim, Relation
from flowsim.papers.ahn2023 import figures, multi_layer, multi_layer_scalars, residual_stream, spaces
from flowsim.papers.ahn2023.multi_layer_problems import LARGE, PAPER, PAPER_B, TRAINED, WITH_B


def _claim(part: str, source: str, statement: str, compare, **options) -> Claim:
    options.setdefault("along_flow", False)
    options.setdefault("spaces", spaces.SEVERAL_LAYERS)
    options.setdefault("setting", multi_layer.layers_with_inverse_weights)
    return Claim(f"ahn2023.{part}", f"ahn2023, {source}", statement, compare, **options)


_EXACT: dict[str, Any] = {
    "problems": WITH_B,
    "hypotheses": residual_stream.within_reach,
    "spaces": spaces.RESIDUAL_STREAM,
}
_EXACT_NOTE = (
    "The literal layers differentiated in all matrices, exactly by a cubature, which is within reach for d = 2 and for "
    "two layers of d = 3, n = 2; at d = 5 see {} by prompts."
)
_BY_ALL = _EXACT_NOTE.format("theorem-5.all-matrices")
_THEOREM_5 = (
    _claim(
        "theorem-5",
        "Theorem 5, (14)",
        "inf over S of sum_i |grad_{A_i} f|_F^2 + |grad_{B_i} f|_F^2 is 0",
        residual_stream.theorem_5,
        relation=Relation.IDENTITY,
        constants=multi_layer_scalars.minima_constants,
        **_EXACT,
        note="Exhibited at the best scalars that a search finds. " + _BY_ALL,
    ),
    _claim(
        "theorem-5.gradient",
        "proof of Theorem 5",
        "At points of S, where f(A, B) = F(a, b), grad_{A_i} f = (dF/da_i) Sigma/d and grad_{B_i} f = (dF/db_i) I/d",
        residual_stream.gradient_on_the_set,
        form="corrected",
        relation=Relation.IDENTITY,
        **_EXACT,
        note="What (36), and (37) with S~_j = s_j I, say in one line; F is known by quadrature of one eigenvalue. "
        + _BY_ALL,
    ),
    _claim(
        "theorem-5.local-minima",
        "Theorem 5",
        "With B the loss on S has local minima above the lowest",
        multi_layer_scalars.other_minima,
        form="corrected",
        constants=multi_layer_scalars.minima_constants,
        problems=(PAPER_B, PAPER, LARGE),
        hypotheses=multi_layer.several_layers,
        note="Unlike without B, so that not all critical points on S are optimal; descent can also run off to "
        "infinity, with a_i -> 0 at a fixed a_i b_i: a layer that moves the covariates and not the labels.",
    ),
    _claim(
        "eq-34",
        "(34) with R~_i = r_i I, S~_i = s_i I",
        "For (A, B) in S and every (R, S), d/dt f(A + t R~, B + t S~) <= d/dt f(A + t R, B + t S) with R~_i = r_i I, "
        "S~_i = s_i I, r_i = tr(Sigma^{1/2} R_i Sigma^{1/2})/d, s_i = tr(Sigma^{-1/2} S_i Sigma^{1/2})/d",
        residual_stream.eq_34,
        **_EXACT,
        note="At drawn (R, S). r_i I is not in S unless Sigma is a multiple of I. " + _BY_ALL,
    ),
    _claim(
        "eq-34",
        "(34) with R~_i = r_i Sigma^-1, S~_i = s_i I",
        "For (A, B) in S and every (R, S), d/dt f(A + t R~, B + t S~) = d/dt f(A + t R, B + t S) with R~_i = "
        "r_i Sigma^-1, S~_i = s_i I, and r_i, s_i as printed",
        residual_stream.eq_34_corrected,
        form="corrected",
        relation=Relation.IDENTITY,
        **_EXACT,
        note="At drawn (R, S). " + _BY_ALL,
    ),
    _claim(
        "eq-35",
        "(35)",
        "Along dA_i/dt = -r_i Sigma^-1, dB_i/dt = -s_i Sigma^-1 d/dt f <= -sum |grad_{A_i} f|_F^2 + "
        "|grad_{B_i} f|_F^2 at points of S",
        residual_stream.eq_35,
        **_EXACT,
        note="The part of B falls short by the factor tr Sigma^-1, which matters where that is below 1 and A is at "
        "rest, as at the best scalars without B; elsewhere the part of A has a factor d to spare. "
        + _EXACT_NOTE.format("eq-35.all-matrices"),
    ),
    _claim(
        "eq-35",
        "(35)",
        "Along dA_i/dt = -r_i Sigma^-1, dB_i/dt = -s_i I, with 1/d in r_i and s_i, d/dt f = -sum |grad_{A_i} f|_F^2 + "
        "|grad_{B_i} f|_F^2",
        residual_stream.eq_35_corrected,
        form="corrected",
        relation=Relation.IDENTITY,
        **_EXACT,
        note=_EXACT_NOTE.format("eq-35.all-matrices"),
    ),
    _claim(
        "eq-35.constrained",
        "the S-constrained flow before (35)",
        "dB_i/dt = -s_i Sigma^-1 keeps B_i a multiple of I",
        residual_stream.eq_35_in_the_set,
        relation=Relation.IDENTITY,
        **_EXACT,
        note="It leaves S at once unless Sigma is a multiple of I, so that (35) says no more of it; -s_i I is meant.",
    ),
    _claim(
        "eq-36",
        "(36)",
        "For (A, B) in S and every R_j, d/dt f(A + t R~_j) <= d/dt f(A + t R_j) with R~_j = r_j Sigma^-1",
        residual_stream.eq_36,
        relation=Relation.IDENTITY,
        **_EXACT,
        note="Both sides are linear in R_j, and -R_j is a direction too, so that the inequality for every R_j says "
        "that they are equal: judged so, at drawn R_j. After (34) R~_i = r_i I is printed instead (see eq-34). "
        + _BY_ALL,
    ),
    _claim(
        "eq-37",
        "(37) with S~_j = s_j Sigma^-1",
        "For (A, B) in S and every S_j, d/dt f(B + t S~_j) <= d/dt f(B + t S_j) with S~_j = s_j Sigma^-1",
        residual_stream.eq_37,
        **_EXACT,
        note="At drawn S_j. " + _BY_ALL,
    ),
    _claim(
        "eq-37",
        "(37) with S~_j = s_j I",
        "For (A, B) in S and every S_j, d/dt f(B + t S~_j) <= d/dt f(B + t S_j) with S~_j = s_j I, s_j = "
        "tr(Sigma^{-1/2} S_j Sigma^{1/2})/d",
        residual_stream.eq_37_corrected,
        form="corrected",
        relation=Relation.IDENTITY,
        **_EXACT,
        note="S~_j = s_j I, as after (34), is in S; s_j Sigma^-1 is not, and fails unless tr Sigma^-1 = d. As for (36) "
        "the inequality for every S_j is an equality. " + _BY_ALL,
    ),
)
_ON_S = "On S alone: with general B the loss of three layers has no exact form here, and is left to Monte Carlo."
_FIGURES: dict[str, Any] = {
    "along_flow": True,
    "relation": Relation.IDENTITY,
    "constants": figures.flow_constants,
    "problems": TRAINED,
    "spaces": spaces.SECTION_5,
}
_FIGURE_CLAIMS = (
    _claim(
        "figure-1.preconditioner",
        "Figure 1 (a)-(c), blue",
        "Dist(Sigma^{1/2} A_i Sigma^{1/2}, I) -> 0 from Gaussian starts",
        figures.preconditioner,
        **_FIGURES,
        note="Along gradient flow in symmetric matrices; the paper uses L-BFGS.",
    ),
    _claim(
        "figure-1.plain",
        "Figure 1 (a)-(c), red",
        "Dist(A_i, I) remains constant",
        figures.stays_constant,
        **_FIGURES,
    ),
    _claim(
        "figure-1.plain",
        "Figure 1 (a)-(c), red",
        "Dist(A_i, I) -> Dist(Sigma^-1, I), which is not zero",
        figures.tends_to_inverse,
        form="corrected",
        **_FIGURES,
        note="It changes on the way; that it does not vanish is what tells the end from plain gradient descent.",
    ),
    _claim(
        "figure-1.loss",
        "Figure 1 (d)",
        "The loss converges to 0",
        figures.loss_tends_to_zero,
        **_FIGURES,
        note='"An almost 0 value" in the text: the minimum over S is 0.1336 for d = 5, n = 20, k = 3, which is 2.7 per '
        "cent of the loss 5 of predicting 0.",
    ),
    _claim(
        "figure-1.loss",
        "Figure 1 (d)",
        "The loss converges to its minimum over S, which is positive",
        figures.loss_tends_to_minimum,
        form="corrected",
        **_FIGURES,
    ),
    _claim(
        "figure-2",
        "Figure 2",
        "Sigma^{1/2} A_i Sigma^{1/2} -> a_i I at the stationary point of Theorem 4, in an order that the start decides",
        figures.learned_matrices,
        **_FIGURES,
    ),
    _claim(
        "figure-3.loss",
        "Figure 3 (c)",
        "The loss converges to 0",
        multi_layer_scalars.loss_tends_to_zero,
        relation=Relation.IDENTITY,
        constants=multi_layer_scalars.minima_constants,
        problems=(PAPER_B,),
        spaces=spaces.SECTION_6,
        note=_ON_S + " The least loss found on S is 0.0393 for d = 5, n = 10, k = 3, against 0.5794 without B.",
    ),
    _claim(
        "figure-4",
        "Figure 4",
        "A_0, A_1, A_2 have increasing magnitude",
        multi_layer_scalars.increasing,
        constants=multi_layer_scalars.minima_constants,
        problems=(PAPER_B,),
        spaces=spaces.SECTION_6,
        note=_ON_S + " Judged at the best scalars.",
    ),
    _claim(
        "figure-4.elsewhere",
        "Figure 4",
        "At some local minimum on S A_0, A_1, A_2 do not have increasing magnitude",
        multi_layer_scalars.not_increasing_elsewhere,
        form="corrected",
        constants=multi_layer_scalars.minima_constants,
        problems=(PAPER_B,),
        spaces=spaces.SECTION_6,
        note=_ON_S + " Whether they increase depends on where training ends.",
    ),
)

CLAIMS: tuple[Claim, ...] = (*_THEOREM_5, *_FIGURE_CLAIMS)
