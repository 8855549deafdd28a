"""gatmiry2024's claims of its figures and of section 5. The figures do not state n."""

from typing import Any

from flowsim.claims.claim import Claim, Relation
from flowsim.claims.hypotheses import Hypothesis, agrees, hypothesis
from flowsim.papers.gatmiry2024 import figures, spaces
from flowsim.papers.gatmiry2024.lemma_settings import (
    Loss,
    looped_by_matrices,
    looped_with_few_dimensions,
    problem,
    shape,
)
from flowsim.papers.gatmiry2024.setting import over_determined


def _identity(loss: Loss, start: Any) -> list[Hypothesis]:
    """S = I."""
    known = shape(loss)
    return [agrees("covariance = I", float(max(abs(x - 1) for x in known.eigenvalues)), 0.0)]


def _more_examples(loss: Loss, start: Any) -> list[Hypothesis]:
    return [*_identity(loss, start), *over_determined(loss, start)]


def _one_loop(loss: Loss, start: Any) -> list[Hypothesis]:
    return [*_identity(loss, start), agrees("L = 1", float(shape(loss).loops), 1.0)]


def _five_times(loss: Loss, start: Any) -> list[Hypothesis]:
    n, d = float(loss.task.context_length), loss.task.dimension
    return [*_identity(loss, start), hypothesis("n >= 5 d", n, ">=", 5.0 * d)]


def _flow(name: str, loops: int, length: int, dimension: int, **init: Any) -> dict[str, Any]:
    return problem(name, loops, length, "identity", dimension=dimension) | {"init": init}


_FEWER = _flow("L = 2, d = 5, n = 3 < d", 2, 3, 5, kind="random", scale=0.1, seed=0)
_FIGURE_1 = _flow("L = 2, d = 5, n = 20", 2, 20, 5, kind="random", scale=0.1, seed=0)
_MANY = _flow("L = 2, d = 5, n = 400", 2, 400, 5, kind="random", scale=0.1, seed=0)
_ONE = _flow("L = 1, d = 10, n = 20", 1, 20, 10, kind="random", scale=0.1, seed=0)
_TWO = problem("L = 2, d = 10, n = 20", 2, 20, "identity", dimension=10)
_LONGER = problem("L = 2, d = 10, n = 50", 2, 50, "identity", dimension=10)
_LONGEST = problem("L = 2, d = 10, n = 1000", 2, 1000, "identity", dimension=10)
_LENGTHS = (_TWO, _LONGER, _LONGEST)


def _claim(part: str, source: str, statement: str, compare, **options) -> Claim:
    options.setdefault("hypotheses", _identity)
    options.setdefault("along_flow", False)
    options.setdefault("setting", looped_with_few_dimensions)
    options.setdefault("problems", _LENGTHS)
    options.setdefault("spaces", spaces.FIGURES)
    return Claim(f"gatmiry2024.{part}", f"gatmiry2024, {source}", statement, compare, **options)


_CLOSE = "The text gives no number for close: 10% is the reading here, as in all rows of this paper. "
_MEDIAN = "Judged on 2000 drawn contexts, exact over w and x_query. "

CLAIMS: tuple[Claim, ...] = (
    _claim(
        "figure-1",
        "Figure 1, section 5.2",
        "A converges to something very close to I even for small n and n < d: |A - I|_2 <= 0.1 in the limit",
        figures.close_to_identity,
        setting=looped_by_matrices,
        along_flow=True,
        constants=figures.scale_constants,
        problems=(_FEWER, _FIGURE_1, _MANY),
        spaces=spaces.FIGURE_1,
        note=_CLOSE + "The flow ends at c I with c far below 1 until n is many times d.",
    ),
    _claim(
        "figure-1",
        "Figure 1, section 5.2",
        "A converges to a multiple of I, even for n < d: min_c |A - c I|_F <= 0.1 |A|_F in the limit",
        figures.close_up_to_scale,
        form="corrected",
        setting=looped_by_matrices,
        along_flow=True,
        constants=figures.scale_constants,
        problems=(_FEWER, _FIGURE_1, _MANY),
        spaces=spaces.FIGURE_1,
        note="In the distance up to scaling of ahn2023, whose code section 5 uses, the limit is I at every n.",
    ),
    _claim(
        "figure-2.loops",
        "Figure 2, section 5.1",
        "More loops lead to a lower loss: the least loss of L + 1 loops is below that of L",
        figures.more_loops_lower_loss,
        note="Judged for L = 1 to 5, exactly.",
    ),
    _claim(
        "figure-2",
        "Figure 2, section 5.1",
        "One layer looped L times performs similarly to L layers: its least loss is at most 10% above theirs",
        figures.loops_like_layers,
        constants=figures.ratio_constants,
        note="The text gives no number for similar, nor for the very close losses of section 5.1: 10% is the reading "
        "here, as in all rows of this paper. Judged for L = 2 to 6, "
        "exactly over multiples of I, which contain the least known losses.",
    ),
    _claim(
        "figure-2",
        "Figure 2, section 5.1",
        "The least loss of L loops is above that of L layers by a factor that grows with L, given n > d",
        figures.loops_fall_behind,
        form="corrected",
        hypotheses=_more_examples,
        constants=figures.ratio_constants,
        note="L layers can be the polynomial of degree L that is least on the spectrum of W, L loops only (1 - a x)^L. "
        "As n grows the factor tends to a ratio of moments of Gaussian matrices: (2L - 1)!!/L! at d = 1, "
        "towards the Catalan number of L as d grows. For n < d the factor can fall: at d = 6, n = 2 from L = 5 to 6.",
    ),
    _claim(
        "figure-3.in-distribution",
        "Figure 3, section 5.3",
        "Of a model trained with L loops, every loop more at test, up to 50, lowers the mean loss",
        figures.mean_keeps_falling,
        constants=figures.test_loop_constants,
        note="Contexts with an eigenvalue of W beyond 2/a make iterations diverge; they are rare, but l loops weigh "
        "them by their 2l-th power, so that the mean falls first and then grows without bound.",
    ),
    _claim(
        "figure-3.in-distribution",
        "Figure 3, section 5.3",
        "Of a model trained with L loops, every loop more at test, up to 50, lowers the loss of the median context",
        figures.median_keeps_falling,
        form="corrected",
        constants=figures.test_loop_constants,
        note=_MEDIAN + "Averages over a few thousand prompts show this, and not the mean.",
    ),
    _claim(
        "figure-3.out-of-distribution",
        "Figure 3, section 5.3",
        "On prompts of another covariance every loop more at test lowers the mean loss",
        figures.other_mean_keeps_falling,
        note="The other covariance has eigenvalues from 0.5 to 1.5. Judged up to 6 loops, exactly.",
    ),
    _claim(
        "figure-3.out-of-distribution",
        "Figure 3, section 5.3",
        "On prompts of another covariance every loop more at test, up to 50, lowers the loss of the median context, "
        "given n > d",
        figures.other_median_keeps_falling,
        form="corrected",
        hypotheses=_more_examples,
        note=_MEDIAN
        + "The other covariance has eigenvalues from 0.5 to 1.5. For n < d it can end in a slow growth: at "
        "d = 4, n = 2.",
    ),
    _claim(
        "figure-4",
        "Figure 4",
        "A converges to I for every number of loops: 1 - c <= 0.1 for A_opt = c I",
        figures.all_loops_reach_identity,
        constants=figures.shrinkage_constants,
        note=_CLOSE + "Judged for 1 to 6 loops.",
    ),
    _claim(
        "figure-4",
        "Figure 4",
        "A_opt = c I is further from I the more loops there are",
        figures.loops_shrink,
        form="corrected",
        constants=figures.shrinkage_constants,
        note="More loops are hurt more by the large eigenvalues of W, and take smaller steps.",
    ),
    _claim(
        "figure-4.slower",
        "Figure 4",
        "Convergence is slower for more loops: the time from A = 0 to within 10% of A_opt grows with L",
        figures.more_loops_slower,
        constants=figures.time_constants,
        note="Judged for 1 to 6 loops. True at long contexts, where the minimum is flatter the more loops there are; "
        "at n = 2d, d = 10, one loop is the slowest.",
    ),
    _claim(
        "figure-4.slower",
        "Figure 4",
        "Convergence is slower for more loops: the time from A = 0 to within 10% of A_opt grows with L, given n >= 5d",
        figures.more_loops_slower,
        form="corrected",
        hypotheses=_five_times,
        constants=figures.time_constants,
        problems=(_LONGER, _LONGEST),
        note="Judged for 1 to 6 loops; at short contexts the times hardly differ, and one loop may be the slowest.",
    ),
    _claim(
        "figure-4.one-loop",
        "Figure 4",
        "Training with 1 loop does not converge in this setup: |A - A_opt|_F stays above 10% of the start's",
        figures.stays_away,
        setting=looped_by_matrices,
        hypotheses=_one_loop,
        along_flow=True,
        problems=(_ONE,),
        spaces=spaces.ONE_LOOP,
        note="The gradient flow is judged, not the optimiser of the experiment, of which the text says nothing.",
    ),
    _claim(
        "figure-4.one-loop",
        "Figure 4",
        "The flow of 1 loop converges: A(t) - A_opt = e^{-rt} (A(0) - A_opt) with r = 2(n + d + 1)/n, A_opt = (2/r) I",
        figures.one_loop_flow,
        form="corrected",
        relation=Relation.IDENTITY,
        setting=looped_by_matrices,
        hypotheses=_one_loop,
        along_flow=True,
        problems=(_ONE,),
        spaces=spaces.ONE_LOOP,
        note="If training with 1 loop did not converge in the experiment, that was the optimiser and not the loss, "
        "which is quadratic.",
    ),
)
