"""The claims of xie2025's figures, along flows."""

from flowsim.claims.claim import Claim
from flowsim.papers.xie2025 import figures, problems, spaces
from flowsim.papers.xie2025.making import claim

_BASELINE = "The paper does not say which step size the line of gradient descent has: here that of least risk."

CLAIMS: tuple[Claim, ...] = (
    claim(
        "figure-1",
        "Figure 1",
        "with w* != 0 the risk of LSA stays above that of one step of gradient descent with eta* = C/(C+d+1) along "
        "training",
        figures.above_descent,
        along_flow=True,
        spaces=spaces.FLOWS,
        hypotheses=figures.fixed_guess,
        problems=(
            problems.ONE_HEAD,
            problems.TWO_HEADS,
            problems.FOUR_HEADS,
            problems.WIDER_ONE_HEAD,
            problems.FACTORED,
        ),
        note=_BASELINE,
    ),
    claim(
        "figure-2",
        "Figure 2",
        "training ends at the least risk of as many heads",
        figures.ends_least,
        along_flow=True,
        spaces=spaces.FLOWS,
        hypotheses=figures.fixed_guess,
        problems=(
            problems.ONE_HEAD,
            problems.TWO_HEADS,
            problems.FOUR_HEADS,
            problems.WIDER_ONE_HEAD,
            problems.FACTORED,
        ),
        note="From the drawn starts; what the figure shows of fewer than d + 1 heads depends on it.",
    ),
    claim(
        "figure-3",
        "Figure 3",
        "with d + 1 heads and y_q = 0 training ends above one step of gradient descent with eta* = C/(C+d+1) by "
        "2 |w*|^2/(d C + 2)",
        figures.ends_at_gap,
        along_flow=True,
        spaces=spaces.FLOWS,
        hypotheses=figures.all_heads,
        problems=(problems.FOUR_HEADS, problems.FACTORED, problems.ONE_HEAD),
        note="To 1e-3 of the risk of gradient descent. The caption: approximately linear in |w*|^2. " + _BASELINE,
    ),
    claim(
        "figure-4",
        "Figure 4",
        "with d + 1 heads training ends above one step of gradient descent with eta* = C/(C+d+1) by "
        "(|w* - y_q_guess|^2 + y_q_bias^2) 2/(d C + 2)",
        figures.ends_at_gap,
        along_flow=True,
        spaces=spaces.GUESSED_FLOWS,
        hypotheses=figures.all_heads,
        problems=(problems.GUESSED, problems.FOUR_HEADS),
        note="To 1e-3 of the risk of gradient descent, which the caption says is reached only where the guess is "
        "w*^T x_q without a bias. " + _BASELINE,
    ),
    claim(
        "figure-5",
        "Figure 5",
        "training y_q-LSA ends at one step of gradient descent with eta* = C/(C+d+1): in predictions, in derivatives "
        "by x_q, and in their cosine",
        figures.matches_descent,
        along_flow=True,
        spaces=spaces.TRAINED_GUESS,
        hypotheses=figures.trained_guess,
        problems=(
            problems.TRAINED_GUESS,
            problems.TRAINED_GUESS_LIMIT,
            problems.TRAINED_GUESS_FACTORED,
            problems.TRAINED_GUESS_WIDER,
            problems.BLOCK,
        ),
        note="To 1e-3, in mean squares over prompts. " + _BASELINE,
    ),
)
