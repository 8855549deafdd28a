"""One linear attention layer trained on prompts of one covariance: every theorem about it, along the true flow.

**Source:** zhang2023 (Trained Transformers Learn Linear Models In-Context), Theorem 4.1, section 5, appendix A.

**What it shows:** from a balanced start below the scale condition, the excess loss stays under the envelope e^{-mu t}
of Lemma 5.4 and the weights reach (5.9). The constants are loose: the sharp Polyak-Lojasiewicz constant along
this flow is about 110 times the theorem's mu. One statement is false: that Corollary 4.3 gives one model for all risks.

**What would falsify it:** another "violated" in the table: found again by a solve with far tighter tolerances.
"""

import pathlib

import flowsim

PROBLEM = """
[task]
context_length = 10
covariance = {eigenvalues = [0.5, 1, 2]}
[init]
kind = "balanced"
scale = 0.3
theta = [[1, 0.5, 0], [0, 1, -0.5], [0.3, 0, 1]]
"""

ABOUT = ("corollary-4.3.def", "assumption-3.3", "theorem-4.1", "lemma-5", "sec-5.1", "lemma-a", "corollary-a")


def main(quick: bool = False, out: pathlib.Path | None = None) -> list[flowsim.Verdict]:
    """Integrate, judge, draw; print the verdict table and where the report is. Quick: Lemma 5.4 alone."""
    flowsim.setup()
    print("Following the flow, then judging every statement along it ..", flush=True)
    from flowsim.report.page import write_report  # slow to import

    problem = flowsim.ProblemSpec.from_toml(PROBLEM).build()
    trajectory = problem.run(progress=True)
    parts = "lemma-5.4" if quick else ABOUT
    claims = [claim for claim in flowsim.ALL_CLAIMS if claim.id.removeprefix("zhang2023.").startswith(parts)]
    verdicts = flowsim.judge(claims, problem.loss, trajectory, progress=True)

    folder = pathlib.Path(out or pathlib.Path(__file__).stem, "figures")
    folder.mkdir(parents=True, exist_ok=True)
    promised = flowsim.predictions(problem.task, problem.start)
    figures = flowsim.plots.draw_all(folder, trajectory, promised, more=flowsim.plots.of_tightness(verdicts))
    page = folder.parent / "report.html"
    write_report(page, problem.spec, trajectory, verdicts, figures, promised, facts={})

    print(trajectory, flowsim.verdict_table(verdicts), f"report: {page.absolute()}", sep="\n\n")
    return verdicts


if __name__ == "__main__":
    main()
