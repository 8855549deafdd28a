"""ahn2023's section 5.3: the best point of S seems globally optimal. Figures 1 and 2 are in `figures_1_2`."""

from flowsim.claims.claim import Comparison, equal
from flowsim.claims.declaring import Section
from flowsim.claims.statements import rounded
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer import Loss, basis, cancellation, many_starts
from flowsim.papers.ahn2023.multi_layer_problems import FREE, LARGE, PAPER, SHORT
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights

SECTION = Section(
    "ahn2023", *LAYERED, setting=layers_with_inverse_weights, problems=(SHORT, LARGE, FREE, PAPER), spaces=spaces.LAYERS
)


@SECTION.claim("theorem-4.global", "section 5.3", form="corrected")
def every_start(loss: Loss) -> Comparison:
    r"""The best point of $\mathcal{S}$ is a global minimum, as it ``appears'': many starts over all matrices end at its
    loss

    Each of 16 Gaussian starts reaches it. This is evidence, not a proof.
    """
    return rounded(equal(many_starts(loss, basis(loss)), 0.0, loss.minimum), cancellation(loss))
