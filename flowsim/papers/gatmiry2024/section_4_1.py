"""gatmiry2024's section 4.1: Theorem 4.5, the error of the trained transformer on prompts with another covariance."""

from flowsim.claims.claim import Comparison, Relation
from flowsim.losses import LoopedLoss
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.out_of_distribution import PROBLEMS, bounded, error_constants
from flowsim.papers.gatmiry2024.setting import MODELS, matrices, of_loss
from flowsim.papers.paper import Section

SECTION = Section("gatmiry2024", *MODELS)


@SECTION.claim(
    "theorem-4.5",
    "Theorem 4.5, (10)",
    "Sigma* <= Sigma_out <= (2 - zeta) Sigma*, Sigma_out = X X^T, implies (prediction - y)^2 <= (1 + x)^2 "
    "(1 + x - zeta)^{2L} |x_q|^2_{Sigma*} |w|^2_{Sigma*^-1}, x = 16 delta d^{1/(2L)}",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=matrices,
    constants=error_constants,
    problems=PROBLEMS,
    spaces=spaces.NEW_COVARIANCES,
    note="The transformer divides by n but Sigma_out does not, so at X X^T = Sigma* the prediction hardly moves from "
    "zero. By the proof, with A_opt close to Sigma*^-1, the norms are |x_q|_{Sigma*^-1} and |w|_{Sigma*}; its last "
    "step swaps them.",
)
@of_loss
def printed_error(loss: LoopedLoss) -> Comparison:
    """The bound printed in (10): Sigma* <= X X^T <= (2 - zeta) Sigma*, |x|_{Sigma*} and |w|_{Sigma*^-1}."""
    return bounded(loss, lambda zeta: 1.0, mean=False, swapped=False)


@SECTION.claim(
    "theorem-4.5",
    "Theorem 4.5, (10)",
    "Sigma* <= (1/n) X X^T <= (2 - zeta) Sigma* implies (prediction - y)^2 <= (1 + x)^2 (1 + x - zeta)^{2L} "
    "|x_q|^2_{Sigma*^-1} |w|^2_{Sigma*}, x = 16 delta d^{1/(2L)}",
    form="corrected",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=matrices,
    constants=error_constants,
    problems=PROBLEMS,
    spaces=spaces.NEW_COVARIANCES,
    note="Sigma_out is the sample covariance, and the norms are those in which w and x_q are isotropic. Judged by "
    "the norm of the matrix between w and x_q, which covers all w and x_q, at drawn and extreme (1/n) X X^T.",
)
@of_loss
def error(loss: LoopedLoss) -> Comparison:
    """The corrected bound: Sigma* <= (1/n) X X^T <= (2 - zeta) Sigma*, |w|_{Sigma*} and |x|_{Sigma*^-1}."""
    return bounded(loss, lambda zeta: 1.0, mean=True, swapped=True)


@SECTION.claim(
    "theorem-4.5.norms",
    "Theorem 4.5, (10), and its proof",
    "The printed bound, with the sample covariance (1/n) X X^T as Sigma_out",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=matrices,
    constants=error_constants,
    problems=PROBLEMS,
    spaces=spaces.NEW_COVARIANCES,
    note="The printed norms fail even then, unless Sigma* is a multiple of I.",
)
@of_loss
def error_in_printed_norms(loss: LoopedLoss) -> Comparison:
    """The printed norms: Sigma* <= (1/n) X X^T <= (2 - zeta) Sigma*, |x|_{Sigma*} and |w|_{Sigma*^-1}."""
    return bounded(loss, lambda zeta: 1.0, mean=True, swapped=False)


error_in_norms_of_proof = SECTION.claim(
    "theorem-4.5.norms",
    "Theorem 4.5, (10), and its proof",
    "The same with |x_q|^2_{Sigma*^-1} |w|^2_{Sigma*}, which is w^T A_opt^-1 w x_q^T A_opt x_q of the proof",
    form="corrected",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=matrices,
    constants=error_constants,
    problems=PROBLEMS,
    spaces=spaces.NEW_COVARIANCES,
    note="The same as the corrected Theorem 4.5.",
)(error)
