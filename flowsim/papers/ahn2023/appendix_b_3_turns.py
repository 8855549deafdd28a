"""ahn2023's appendix B.3, the proof of Theorem 5: what turns with the covariates, (38) to (50), at points of S.

Everything is judged on drawn prompts with drawn weights, in the paper's own sign of A. With U orthogonal, U_Sigma =
Sigma^{1/2} U Sigma^{-1/2} turns the covariates.
"""

from jaxtyping import Array

from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import finite_context
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.problems import ON_PROMPTS
from flowsim.papers.ahn2023.prompts import (
    Drawn,
    covariates,
    inputs_of,
    nearest_on_the_set,
    on_prompts,
    product,
    states_from,
    turned,
    turned_slopes,
)
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights

SECTION = Section(
    "ahn2023",
    *LAYERED,
    setting=layers_with_inverse_weights,
    hypotheses=finite_context,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
)


@SECTION.claim("eq-38", "G before (38)")
@on_prompts
def eq_38_printed(drawn: Drawn) -> tuple[Array, Array]:
    r"""$Y_{k+1} = w_\star^\top G$ with $G = X_0 \prod_i (I - M X_i^\top A_i X_i)$

    The sign differs from that of (31), (44) and (45); the same happens before (28).
    """
    return drawn.weight @ product(drawn, inputs_of(drawn), -1.0), states_from(drawn, inputs_of(drawn))[-1, -1]


@SECTION.corrected(eq_38_printed)
@on_prompts
def eq_38_corrected(drawn: Drawn) -> tuple[Array, Array]:
    r"""$Y_{k+1} = w_\star^\top G$ with $G = X_0 \prod_i (I + M X_i^\top A_i X_i)$

    With the sign of (31).
    """
    return drawn.weight @ product(drawn, inputs_of(drawn)), states_from(drawn, inputs_of(drawn))[-1, -1]


@SECTION.claim("eq-39", "(39), (46)")
@on_prompts
def eq_39(drawn: Drawn) -> tuple[Array, Array]:
    r"""For $(A, B) \in \mathcal{S}$ and orthogonal $U$, with $U_\Sigma = \Sigma^{1/2} U \Sigma^{-1/2}$, $X_i(U_\Sigma
    X_0) = U_\Sigma X_i(X_0)$

    Judged on 64 drawn prompts with drawn weights.
    """
    return turned(nearest_on_the_set(drawn), covariates)


@SECTION.claim("eq-40", "(40)")
@on_prompts
def eq_40(drawn: Drawn) -> tuple[Array, Array]:
    r"""For $(A, B) \in \mathcal{S}$ and orthogonal $U$, with $U_\Sigma = \Sigma^{1/2} U \Sigma^{-1/2}$, $U_\Sigma^{-1}
    \frac{d}{dt} X_i(U_\Sigma X_0, B_j + t S_j) = \frac{d}{dt} X_i(X_0, B_j + t U_\Sigma^{-1} S_j U_\Sigma)$

    Judged on 64 drawn prompts with drawn weights and S_j, for all i and j. (42) lacks a factor X_j at its end.
    """
    return turned_slopes(drawn, covariates, "B")


@SECTION.claim("eq-44", "(44), (46)")
@on_prompts
def eq_44(drawn: Drawn) -> tuple[Array, Array]:
    r"""For $(A, B) \in \mathcal{S}$ and orthogonal $U$, with $U_\Sigma = \Sigma^{1/2} U \Sigma^{-1/2}$, $G(U_\Sigma
    X_0) = U_\Sigma G(X_0)$

    Judged on 64 drawn prompts with drawn weights.
    """
    return turned(nearest_on_the_set(drawn), product)


@SECTION.claim("eq-45", "(45)")
@on_prompts
def eq_45(drawn: Drawn) -> tuple[Array, Array]:
    r"""For $(A, B) \in \mathcal{S}$ and orthogonal $U$, with $U_\Sigma = \Sigma^{1/2} U \Sigma^{-1/2}$, $U_\Sigma^{-1}
    \frac{d}{dt} G(U_\Sigma X_0, B_j + t S_j) = \frac{d}{dt} G(X_0, B_j + t U_\Sigma^{-1} S_j U_\Sigma)$

    Judged on 64 drawn prompts with drawn weights and S_j, for every j.
    """
    return turned_slopes(drawn, product, "B")


@SECTION.claim("eq-47", "(47)")
@on_prompts
def eq_47(drawn: Drawn) -> tuple[Array, Array]:
    r"""For $(A, B) \in \mathcal{S}$ and orthogonal $U$, with $U_\Sigma = \Sigma^{1/2} U \Sigma^{-1/2}$, $U_\Sigma^{-1}
    \frac{d}{dt} X_i(U_\Sigma X_0, A_j + t R_j) = \frac{d}{dt} X_i(X_0, A_j + t U_\Sigma^\top R_j U_\Sigma)$

    Judged on 64 drawn prompts with drawn weights and R_j, for all i and j.
    """
    return turned_slopes(drawn, covariates, "A")


@SECTION.claim("eq-50", "(50)")
@on_prompts
def eq_50(drawn: Drawn) -> tuple[Array, Array]:
    r"""For $(A, B) \in \mathcal{S}$ and orthogonal $U$, with $U_\Sigma = \Sigma^{1/2} U \Sigma^{-1/2}$, $U_\Sigma^{-1}
    \frac{d}{dt} G(U_\Sigma X_0, A_j + t R_j) = \frac{d}{dt} G(X_0, A_j + t U_\Sigma^\top R_j U_\Sigma)$

    Judged on 64 drawn prompts with drawn weights and R_j, for every j.
    """
    return turned_slopes(drawn, product, "A")
