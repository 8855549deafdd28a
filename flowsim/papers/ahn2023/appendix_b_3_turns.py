"""ahn2023's appendix B.3, the proof of Theorem 5: what turns with the covariates, (38) to (50), at points of S.

Everything is judged on drawn prompts with drawn weights, in the paper's own sign of A. With U orthogonal, U_Sigma =
Sigma^{1/2} U Sigma^{-1/2} turns the covariates.
"""

from jaxtyping import Array

from flowsim.claims.claim import Relation
from flowsim.claims.hypotheses import finite_context
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer_problems import ON_PROMPTS
from flowsim.papers.ahn2023.prompts import (
    Drawn,
    covariates,
    inputs_of,
    nearest_on_the_set,
    on_prompts,
    product,
    states_from,
)
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights
from flowsim.papers.ahn2023.turned_prompts import turned, turned_slopes
from flowsim.papers.paper import Section

SECTION = Section("ahn2023", *LAYERED)


@SECTION.claim(
    "eq-38",
    "G before (38)",
    "Y_{k+1} = w*^T G with G = X_0 prod_i (I - M X_i^T A_i X_i)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    hypotheses=finite_context,
    note="The sign differs from that of (31), (44) and (45); the same happens before (28).",
)
@on_prompts
def eq_38_printed(drawn: Drawn) -> tuple[Array, Array]:
    """w*^T G with G = X prod_i (I - M X_i^T A_i X_i), as printed, against the labels of the layers."""
    return drawn.weight @ product(drawn, inputs_of(drawn), -1.0), states_from(drawn, inputs_of(drawn))[-1, -1]


@SECTION.claim(
    "eq-38",
    "G before (38)",
    "Y_{k+1} = w*^T G with G = X_0 prod_i (I + M X_i^T A_i X_i)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    form="corrected",
    hypotheses=finite_context,
    note="With the sign of (31).",
)
@on_prompts
def eq_38_corrected(drawn: Drawn) -> tuple[Array, Array]:
    """w*^T G with G = X prod_i (I + M X_i^T A_i X_i) against the labels of the layers."""
    return drawn.weight @ product(drawn, inputs_of(drawn)), states_from(drawn, inputs_of(drawn))[-1, -1]


@SECTION.claim(
    "eq-39",
    "(39), (46)",
    "For (A, B) in S and orthogonal U, with U_Sigma = Sigma^{1/2} U Sigma^{-1/2}, X_i(U_Sigma X_0) = U_Sigma X_i(X_0)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    hypotheses=finite_context,
    note="Judged on 64 drawn prompts with drawn weights.",
)
@on_prompts
def eq_39(drawn: Drawn) -> tuple[Array, Array]:
    """X_i(U_Sigma X_0) against U_Sigma X_i(X_0)."""
    return turned(nearest_on_the_set(drawn), covariates)


@SECTION.claim(
    "eq-40",
    "(40)",
    "For (A, B) in S and orthogonal U, with U_Sigma = Sigma^{1/2} U Sigma^{-1/2}, U_Sigma^-1 d/dt X_i(U_Sigma X_0, B_j "
    "+ t S_j) = d/dt X_i(X_0, B_j + t U_Sigma^-1 S_j U_Sigma)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    hypotheses=finite_context,
    note="Judged on 64 drawn prompts with drawn weights and S_j, for all i and j. (42) lacks a factor X_j at its end.",
)
@on_prompts
def eq_40(drawn: Drawn) -> tuple[Array, Array]:
    """U_Sigma^-1 d/dt X_i(U_Sigma X_0) along S_j against d/dt X_i(X_0) along U_Sigma^-1 S_j U_Sigma."""
    return turned_slopes(drawn, covariates, "B")


@SECTION.claim(
    "eq-44",
    "(44), (46)",
    "For (A, B) in S and orthogonal U, with U_Sigma = Sigma^{1/2} U Sigma^{-1/2}, G(U_Sigma X_0) = U_Sigma G(X_0)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    hypotheses=finite_context,
    note="Judged on 64 drawn prompts with drawn weights.",
)
@on_prompts
def eq_44(drawn: Drawn) -> tuple[Array, Array]:
    """G(U_Sigma X_0) against U_Sigma G(X_0)."""
    return turned(nearest_on_the_set(drawn), product)


@SECTION.claim(
    "eq-45",
    "(45)",
    "For (A, B) in S and orthogonal U, with U_Sigma = Sigma^{1/2} U Sigma^{-1/2}, U_Sigma^-1 d/dt G(U_Sigma X_0, B_j + "
    "t S_j) = d/dt G(X_0, B_j + t U_Sigma^-1 S_j U_Sigma)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    hypotheses=finite_context,
    note="Judged on 64 drawn prompts with drawn weights and S_j, for every j.",
)
@on_prompts
def eq_45(drawn: Drawn) -> tuple[Array, Array]:
    """U_Sigma^-1 d/dt G(U_Sigma X_0) along S_j against d/dt G(X_0) along U_Sigma^-1 S_j U_Sigma."""
    return turned_slopes(drawn, product, "B")


@SECTION.claim(
    "eq-47",
    "(47)",
    "For (A, B) in S and orthogonal U, with U_Sigma = Sigma^{1/2} U Sigma^{-1/2}, U_Sigma^-1 d/dt X_i(U_Sigma X_0, A_j "
    "+ t R_j) = d/dt X_i(X_0, A_j + t U_Sigma^T R_j U_Sigma)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    hypotheses=finite_context,
    note="Judged on 64 drawn prompts with drawn weights and R_j, for all i and j.",
)
@on_prompts
def eq_47(drawn: Drawn) -> tuple[Array, Array]:
    """U_Sigma^-1 d/dt X_i(U_Sigma X_0) along R_j against d/dt X_i(X_0) along U_Sigma^T R_j U_Sigma."""
    return turned_slopes(drawn, covariates, "A")


@SECTION.claim(
    "eq-50",
    "(50)",
    "For (A, B) in S and orthogonal U, with U_Sigma = Sigma^{1/2} U Sigma^{-1/2}, U_Sigma^-1 d/dt G(U_Sigma X_0, A_j + "
    "t R_j) = d/dt G(X_0, A_j + t U_Sigma^T R_j U_Sigma)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    hypotheses=finite_context,
    note="Judged on 64 drawn prompts with drawn weights and R_j, for every j.",
)
@on_prompts
def eq_50(drawn: Drawn) -> tuple[Array, Array]:
    """U_Sigma^-1 d/dt G(U_Sigma X_0) along R_j against d/dt G(X_0) along U_Sigma^T R_j U_Sigma."""
    return turned_slopes(drawn, product, "A")
