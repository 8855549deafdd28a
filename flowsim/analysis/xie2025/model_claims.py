"""The claims of xie2025 that models predict alike."""

from flowsim.analysis.base import Claim
from flowsim.analysis.xie2025 import predictions, problems, setting, spaces
from flowsim.analysis.xie2025.making import equation, of_prompts

CLAIMS: tuple[Claim, ...] = (
    of_prompts(
        equation,
        "eq-8",
        "(8)",
        "(3) at the weights (7) is y_q - (eta/C)(w*^T X^T - y^T) X x_q",
        compare=predictions.eq_8_as_printed,
        problems=problems.FINITE,
        spaces=spaces.FINITE,
        note="(3) and W^P = -(eta/C) I in (7) each divide by C: the step is C times too short.",
    ),
    of_prompts(
        equation,
        "eq-8",
        "(8)",
        "(3) at the weights (7) with W^P = -eta I is y_q - (eta/C)(w*^T X^T - y^T) X x_q",
        compare=predictions.eq_8,
        form="corrected",
        problems=problems.FINITE,
        spaces=spaces.FINITE,
        note="The printed W^P divides by C what (3) has divided already.",
    ),
    of_prompts(
        equation,
        "lemma-3",
        "Lemma 3",
        "y_q-LSA is a linear transformer block, with the weights of the proof",
        compare=predictions.block_as_printed,
        hypotheses=setting.finite_context,
        problems=problems.FINITE,
        spaces=spaces.FINITE,
        note="The proof replaces the labels of the context by X w: it holds where y = X w alone.",
    ),
    of_prompts(
        equation,
        "lemma-3",
        "Lemma 3",
        "y_q-LSA is a linear transformer block, with W_3 after W^Q alone",
        compare=predictions.block,
        form="corrected",
        hypotheses=setting.finite_context,
        problems=problems.FINITE,
        spaces=spaces.FINITE,
        note="The lemma stands: W^K and W^V must stay as they are, as the printed ones overwrite the labels.",
    ),
)
