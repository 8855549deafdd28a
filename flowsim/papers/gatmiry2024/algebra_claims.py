"""gatmiry2024's formulas for the layers and the loss, judged on the literal transformer and by exact expectations."""

from flowsim.claims.claim import Claim, Relation
from flowsim.papers.gatmiry2024 import layers, spaces
from flowsim.papers.gatmiry2024.lemma_settings import DEEP, LONG, ONE_DIMENSION, SHORT, SINGLE, looped_by_matrices
from flowsim.papers.gatmiry2024.setting import over_determined


def _claim(part: str, source: str, statement: str, compare, **options) -> Claim:
    options.setdefault("relation", Relation.IDENTITY)
    options.setdefault("problems", (SHORT, SINGLE, DEEP, ONE_DIMENSION, LONG))
    return Claim(
        f"gatmiry2024.{part}",
        f"gatmiry2024, {source}",
        statement,
        compare,
        setting=looped_by_matrices,
        along_flow=False,
        spaces=spaces.LEMMAS,
        **options,
    )


_DRAWN = "Judged on 6 drawn contexts, layer after layer. "
_SIGN = (
    _DRAWN
    + "Each layer adds u^T to the row of labels before it subtracts, y <- y - (u + v)^T Sigma A X, so that the sum "
    "over u enters with the other sign; where all u are zero both forms agree, and the loss does not see the sign. "
)

CLAIMS: tuple[Claim, ...] = (
    _claim(
        "lemma-4.1",
        "Lemma 4.1",
        "L(A, 0) = E tr (I - A^{1/2} Sigma A^{1/2})^{2L}",
        layers.printed_looped_loss,
        constants=layers.gap_constants,
        note="The expression is |.|_F^2 with the sample covariance where the loss has the population's: equal for "
        "every prompt if A is a multiple of S^-1, below the loss by a share of order 1/n otherwise.",
    ),
    _claim(
        "lemma-4.1",
        "Lemma 4.1",
        "E[(prediction - y_query)^2 | X] = |(I - W A')^L|_F^2, whose mean is L(A, 0), A' = S^{1/2} A S^{1/2}",
        layers.loss_of_loops,
        form="corrected",
        note=_DRAWN + "The printed trace is of (I - W A')^{2L}, the loss of (I - W A')^L (I - A' W)^L.",
    ),
    _claim(
        "lemma-4.1.gap",
        "Lemma 4.1",
        "E tr (I - A^{1/2} Sigma A^{1/2})^{2L} < L(A, 0) unless A is a multiple of S^-1",
        layers.printed_looped_loss_below,
        form="corrected",
        relation=Relation.INEQUALITY,
        constants=layers.gap_constants,
        problems=(SHORT, SINGLE, DEEP, LONG),
        note="By Weyl's inequality, |tr M^{2L}| <= |M^L|_F^2 for every M. At L = 1 the gap is "
        "(d tr A'^2 - (tr A')^2)/n.",
    ),
    _claim(
        "corollary-a.4.u-term",
        "Corollary A.4",
        "L(A, u) - L(A, 0) = E |sum_{i < L} u^T Sigma A (I - Sigma A)^{L-1-i} Sigma^{1/2}|^2",
        layers.printed_bias_loss,
        note="Sigma is read as the sample covariance, as Lemma 4.1 defines it. The last root is the query's, of the "
        "population covariance. Judged with L at most 3.",
    ),
    _claim(
        "corollary-a.4.u-term",
        "Corollary A.4",
        "L(A, u) = E |(I - W A')^L|_F^2 + E |u^T (I - (I - Sigma A)^L) S^{1/2}|^2 with S^{1/2} the population's",
        layers.loss_of_loops_with_bias,
        form="corrected",
        note=_DRAWN + "With the sample's root in the place of S^{1/2}, as printed, both terms are others.",
    ),
    _claim(
        "theorem-a.1.eq-12",
        "Theorem A.1, (12)",
        "y^{(t)T} = w^T prod_{i<t} (I - Sigma A_i) X + sum_{i<t} u_i^T Sigma A_i prod_{i<j<t} (I - Sigma A_j) X",
        layers.labels_plus,
        note=_SIGN,
    ),
    _claim(
        "theorem-a.1.eq-12",
        "Theorem A.1, (12)",
        "y^{(t)T} = w^T prod_{i<t} (I - Sigma A_i) X - sum_{i<t} u_i^T Sigma A_i prod_{i<j<t} (I - Sigma A_j) X",
        layers.labels_minus,
        form="corrected",
        note=_SIGN + "The proof writes X X^T = Sigma; Sigma is X X^T / n.",
    ),
    _claim(
        "theorem-a.1.eq-13",
        "Theorem A.1, (13)",
        "y_q^{(t)} = y_q - w^T prod_{i<t} (I - Sigma A_i) x_q - sum_{i<t} u_i^T Sigma A_i "
        "prod_{i<j<t} (I - Sigma A_j) x_q",
        layers.query_plus,
        note=_SIGN,
    ),
    _claim(
        "theorem-a.1.eq-13",
        "Theorem A.1, (13)",
        "y_q^{(t)} = y_q - w^T prod_{i<t} (I - Sigma A_i) x_q + sum_{i<t} u_i^T Sigma A_i "
        "prod_{i<j<t} (I - Sigma A_j) x_q",
        layers.query_minus,
        form="corrected",
        note=_SIGN,
    ),
    _claim(
        "lemma-a.3",
        "Lemma A.3",
        "L = E |Sigma^{-1/2} prod (I - Sigma A_i) Sigma^{1/2}|^2 + E |sum_i d_i^T Sigma A_i prod_{j>i} (I - Sigma A_j) "
        "Sigma^{1/2}|^2",
        layers.printed_layers_loss,
        hypotheses=over_determined,
        note="Sigma is read as the sample covariance throughout, of which Lemma 4.1 is then the case of equal layers. "
        "The outer roots come from the laws of w and x_query and are of the population covariance. Judged at d_i = 0 "
        "with at most 3 symmetric layers.",
    ),
    _claim(
        "lemma-a.3",
        "Lemma A.3",
        "L = E |S^{-1/2} prod (I - Sigma A_i) S^{1/2}|^2 + E |sum_i u_i^T Sigma A_i prod_{j>i} (I - Sigma A_j) "
        "S^{1/2}|^2",
        layers.loss_of_layers,
        form="corrected",
        note=_DRAWN + "The outer roots are of the population covariance S; printed they are of the sample's.",
    ),
)
