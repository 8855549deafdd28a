"""One linear attention layer trained on prompts with random covariances: which limit of u_{-1} is right?

**Source:** zhang2023 (Trained Transformers Learn Linear Models In-Context), Theorem 4.5, Lemmas C.6 to C.8, (C.15),
(C.17).

**What it shows:** with independent Exponential(1) variances the flow reaches the limit (4.12) of the theorem. Lemma C.8
prints another one for u_{-1} in (C.15), without the squares that its own proof has in (C.17), and is violated; so is an
equality in the proof of Lemma C.6, which holds as the inequality that the proof needs.

**What would falsify it:** "violated" for Theorem 4.5 or (C.17), or "holds" for Lemma C.8's limit as printed.
"""

import pathlib

import flowsim

PROBLEM = """
[task]
context_length = 10
covariance_law = {family = "exponential", rate = 1.0, dimension = 3}
[init]
kind = "balanced"
scale = 0.1
theta = [[1, 0.5, 0], [0, 1, -0.5], [0.3, 0, 1]]
"""
CLAIMS = ("theorem-4.5", "lemma-c.6.proof-equality", "lemma-c.7", "lemma-c.8", "eq-c.17")


def main(quick: bool = False, out: pathlib.Path | None = None) -> list[flowsim.Verdict]:
    """Integrate, judge, and draw u_{-1} beside both limits. Quick: Lemma C.8 alone."""
    flowsim.setup()
    print("Following the flow, then judging Theorem 4.5 and appendix C ..", flush=True)
    problem = flowsim.ProblemSpec.from_toml(PROBLEM).build()
    trajectory = problem.run(progress=True)
    names = CLAIMS[3:4] if quick else CLAIMS
    verdicts = flowsim.judge([f"zhang2023.{name}" for name in names], problem.loss, trajectory, progress=True)

    constants = next(verdict.constants for verdict in verdicts if verdict.id == "zhang2023.lemma-c.8.limit")
    path = pathlib.Path(out or ".", "zhang2023_random_covariance.png")
    with flowsim.plots.drawing(path) as figure:
        predicted = flowsim.predictions(problem.task, problem.start)
        drawn = predicted.curves["value-weight"]
        axes = flowsim.plots.curve(trajectory, drawn, predicted.limit, ax=figure.add_subplot())
        axes.axhline(constants["u_printed"], color="C3", linestyle=":")
        axes.annotate("(C.15) as printed", (0.02, constants["u_printed"]), (0, 3), color="C3",
                      xycoords=axes.get_yaxis_transform(), textcoords="offset points")  # fmt: skip
    print(trajectory, flowsim.verdict_table(verdicts), f"figure: {path.absolute()}", sep="\n\n")
    return verdicts


if __name__ == "__main__":
    main()
