"""gatmiry2024's appendix A: Theorem A.8 on the optimum, and Lemma A.9 on what a small loss means."""

from flowsim.claims.claim import Comparison, Relation, at_most
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.bisection import LARGEST, SMALLEST, crossing
from flowsim.papers.gatmiry2024.optimum import OPTIMUM, bias_is_zero, minimiser_constants, within_eight, within_four
from flowsim.papers.gatmiry2024.section_3_7 import minimum_bounded
from flowsim.papers.gatmiry2024.section_4 import PROXIMITY, proximity_constants
from flowsim.papers.gatmiry2024.setting import (
    MODELS,
    Loss,
    all_of,
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
from flowsim.papers.paper import Section

SECTION = Section("gatmiry2024", *MODELS)


@SECTION.claim(
    "theorem-a.8",
    "Theorem A.8",
    "delta d^{1/(2L)} < 1/2 implies L(A_opt) <= d (2 delta)^{2L}, |A_opt^{1/2} Sigma* A_opt^{1/2} - I| <= "
    "4 delta d^{1/(2L)}, (23) and u_opt = 0",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=looped,
    hypotheses=long_context,
    constants=minimiser_constants,
    problems=OPTIMUM,
    spaces=spaces.OPTIMUM,
    note="The same bounds as Theorem 3.2, and (22), which is twice as sharp.",
)
def optimum(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The three parts of Theorem A.8, with 4 delta d^{1/(2L)} as well as 8 delta d^{1/(2L)}."""
    parts = [minimum_bounded, within_four, within_eight]
    return joined([*(part(loss, trajectory) for part in parts), bias_is_zero(loss)])


@SECTION.claim(
    "lemma-a.9",
    "Lemma A.9",
    "For epsilon > 2 delta, L(A, 0) <= epsilon^{2L} - delta^{2L} (epsilon + 2)^{2L} implies "
    "(1 - c) A_opt <= A <= (1 + c) A_opt, c = 4 epsilon + 16 delta d^{1/(2L)}",
    relation=Relation.INEQUALITY,
    along_flow=True,
    setting=looped,
    hypotheses=all_of(without_bias, over_determined),
    constants=proximity_constants,
    problems=PROXIMITY,
    spaces=spaces.PROXIMITY,
    note="Judges both halves, along the flow and at drawn A, with the least epsilon that the loss allows; nothing "
    "is promised where delta >= 1.",
)
def appendix_proximity(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The distance of A from A_opt against 4 epsilon + 16 delta d^{1/(2L)}, with the least epsilon > 2 delta for which
    L <= epsilon^{2L} - delta^{2L} (epsilon + 2)^{2L}.
    """
    points, power = everywhere(loss, trajectory), 2 * loops(loss)
    # The bound is epsilon^{2L} times an increasing function, positive from some epsilon > 2 delta on if delta < 1.
    room = lambda e: e**power * (1.0 - delta_power(loss) * (1.0 + 2.0 / e) ** power)
    _, epsilon = crossing(room, points.loss, LARGEST)
    bound = 4.0 * epsilon + 16.0 * delta(loss) * dimension_root(loss)
    promised = (room(epsilon) >= points.loss) & (points.loss > 0) & (epsilon > 10.0 ** (SMALLEST + 1))
    return compared(at_most(points.deviation, bound, promised=promised), points)
