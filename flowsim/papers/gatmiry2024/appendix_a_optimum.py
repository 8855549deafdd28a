"""gatmiry2024's appendix A: Theorem A.8 on the optimum, and Lemma A.9 on what a small loss means."""

from flowsim.claims.claim import Comparison, at_most
from flowsim.claims.declaring import Section
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.bisection import LARGEST, SMALLEST, crossing
from flowsim.papers.gatmiry2024.optimum import OPTIMUM, bias_is_zero, minimiser_constants, minimum_below, within
from flowsim.papers.gatmiry2024.section_4 import PROXIMITY, proximity_constants
from flowsim.papers.gatmiry2024.setting import (
    MODELS,
    Loss,
    compared,
    delta,
    delta_power,
    dimension_root,
    everywhere,
    long_context,
    looped,
    loops,
    over_determined,
    without_bias,
)

SECTION = Section("gatmiry2024", *MODELS, setting=looped)


@SECTION.claim(
    "theorem-a.8",
    "Theorem A.8",
    hypotheses=long_context,
    problems=OPTIMUM,
    spaces=spaces.OPTIMUM,
    constants=minimiser_constants,
)
def optimum(loss: Loss) -> Comparison:
    r"""$\delta d^{1/(2L)} < 1/2$ implies $\mathcal{L}(A_{\mathrm{opt}}) \le d (2 \delta)^{2L}$, $\lVert
    A_{\mathrm{opt}}^{1/2} \Sigma^* A_{\mathrm{opt}}^{1/2} - I \rVert \le 4 \delta d^{1/(2L)}$, (23) and
    $u_{\mathrm{opt}} = 0$

    The same bounds as Theorem 3.2, and (22), which is twice as sharp.
    """
    return joined([minimum_below(loss), within(loss, 4.0), within(loss, 8.0), bias_is_zero(loss)])


@SECTION.claim(
    "lemma-a.9",
    "Lemma A.9",
    hypotheses=(without_bias, over_determined),
    problems=PROXIMITY,
    spaces=spaces.PROXIMITY,
    constants=proximity_constants,
)
def appendix_proximity(loss: Loss, flow: Trajectory) -> Comparison:
    r"""For $\epsilon > 2 \delta$, $\mathcal{L}(A, 0) \le \epsilon^{2L} - \delta^{2L} (\epsilon + 2)^{2L}$ implies $(1 -
    c) A_{\mathrm{opt}} \preceq A \preceq (1 + c) A_{\mathrm{opt}}$, $c = 4 \epsilon + 16 \delta d^{1/(2L)}$

    Judges both halves, along the flow and at drawn A, with the least epsilon that the loss allows; nothing is promised
    where delta >= 1.
    """
    points, power = everywhere(loss, flow), 2 * loops(loss)
    # The bound is epsilon^{2L} times an increasing function, positive from some epsilon > 2 delta on if delta < 1.
    room = lambda e: e**power * (1.0 - delta_power(loss) * (1.0 + 2.0 / e) ** power)
    _, epsilon = crossing(room, points.loss, LARGEST)
    bound = 4.0 * epsilon + 16.0 * delta(loss) * dimension_root(loss)
    promised = (room(epsilon) >= points.loss) & (points.loss > 0) & (epsilon > 10.0 ** (SMALLEST + 1))
    return compared(at_most(points.deviation, bound, promised=promised), points)
