"""gatmiry2024's section 4.1: Theorem 4.5, the error of the trained transformer on prompts with another covariance."""

import equinox as eqx

from flowsim.claims.claim import Comparison
from flowsim.claims.declaring import Section
from flowsim.losses import LoopedLoss
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.out_of_distribution import PROBLEMS, bounded, error_constants
from flowsim.papers.gatmiry2024.setting import MODELS, matrices

SECTION = Section("gatmiry2024", *MODELS, setting=matrices, problems=PROBLEMS, spaces=spaces.NEW_COVARIANCES)


@SECTION.claim("theorem-4.5", "Theorem 4.5, (10)", constants=error_constants)
@eqx.filter_jit
def printed_error(loss: LoopedLoss) -> Comparison:
    r"""$\Sigma^* \preceq \Sigma_{\mathrm{out}} \preceq (2 - \zeta) \Sigma^*$, $\Sigma_{\mathrm{out}} = X X^\top$,
    implies $(\text{prediction} - y)^2 \le (1 + x)^2 (1 + x - \zeta)^{2L} \lVert x_q \rVert^2_{\Sigma^*} \lVert w
    \rVert^2_{{\Sigma^*}^{-1}}$, $x = 16 \delta d^{1/(2L)}$

    The transformer divides by n but Sigma_out does not, so at X X^T = Sigma* the prediction hardly moves from zero. By
    the proof, with A_opt close to Sigma*^-1, the norms are |x_q|_{Sigma*^-1} and |w|_{Sigma*}; its last step swaps
    them.
    """
    return bounded(loss, lambda zeta: 1.0, mean=False, swapped=False)


@SECTION.corrected(printed_error, constants=error_constants)
@eqx.filter_jit
def error(loss: LoopedLoss) -> Comparison:
    r"""$\Sigma^* \preceq \tfrac{1}{n} X X^\top \preceq (2 - \zeta) \Sigma^*$ implies $(\text{prediction} - y)^2 \le (1
    + x)^2 (1 + x - \zeta)^{2L} \lVert x_q \rVert^2_{{\Sigma^*}^{-1}} \lVert w \rVert^2_{\Sigma^*}$, $x = 16 \delta
    d^{1/(2L)}$

    Sigma_out is the sample covariance, and the norms are those in which w and x_q are isotropic. Judged by the norm of
    the matrix between w and x_q, which covers all w and x_q, at drawn and extreme (1/n) X X^T.
    """
    return bounded(loss, lambda zeta: 1.0, mean=True, swapped=True)


@SECTION.claim("theorem-4.5.norms", "Theorem 4.5, (10), and its proof", constants=error_constants)
@eqx.filter_jit
def error_in_printed_norms(loss: LoopedLoss) -> Comparison:
    r"""The printed bound, with the sample covariance $\tfrac{1}{n} X X^\top$ as $\Sigma_{\mathrm{out}}$

    The printed norms fail even then, unless Sigma* is a multiple of I.
    """
    return bounded(loss, lambda zeta: 1.0, mean=True, swapped=False)


@SECTION.corrected(error_in_printed_norms, constants=error_constants)
@eqx.filter_jit
def error_in_norms_of_proof(loss: LoopedLoss) -> Comparison:
    r"""The same with $\lVert x_q \rVert^2_{{\Sigma^*}^{-1}} \lVert w \rVert^2_{\Sigma^*}$, which is $w^\top
    A_{\mathrm{opt}}^{-1} w\, x_q^\top A_{\mathrm{opt}} x_q$ of the proof

    The same as the corrected Theorem 4.5.
    """
    return bounded(loss, lambda zeta: 1.0, mean=True, swapped=True)
