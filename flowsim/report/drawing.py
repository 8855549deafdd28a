"""Draws the figures of a run and writes its report."""

import functools
import os
import pathlib
from collections.abc import Mapping

from flowsim.claims import Claim
from flowsim.experiments.run import FIGURES, Run
from flowsim.flow.risk_curve import risk_curve
from flowsim.papers import predictions_of
from flowsim.report import plots
from flowsim.report.facts import test_facts
from flowsim.report.page import write_report
from flowsim.report.plots.bands import of_band
from flowsim.report.plots.dominance import of_verdicts
from flowsim.report.plots.modes import of_matrices
from flowsim.report.plots.plateaus import of_plateaus
from flowsim.report.plots.verdicts import of_judged


def draw_run(
    run: Run, out: str | os.PathLike, facts: Mapping[str, str], format: str, explored: str | None = None
) -> dict[str, str]:
    """Draw the figures of a run and write report.html. If the problem has a table [test], also write test_risk.npz.

    **Arguments:**

    - run: the result of `flowsim.run`.
    - out: the folder of the run.
    - facts: texts by label that the page shows about the end of the flow, as `run_facts` returns them.
    - format: the format of the figures, png, svg, pdf or pgf.
    - explored: the name of a page with sliders in the folder, which the report links to; None without it.

    **Returns:** the facts. With a table [test] they include the risk on its prompts.
    """
    problem, trajectory, out = run.problem, run.trajectory, pathlib.Path(out)
    # What papers predict is about flows.
    predicted, tested, told = None if problem.is_descent else predictions_of(problem), None, dict(facts)
    if predicted is not None and problem.test is not None:
        tested = risk_curve(trajectory, problem.test, predicted.limit)
        tested.save(out / "test_risk.npz")
        told |= test_facts(tested) if trajectory.status.finished else {}
    (out / FIGURES).mkdir(exist_ok=True)
    curves, best = problem.curves, problem.minimizer
    captions = {name: drawn.caption for name, drawn in curves.items()}
    own = {
        name: functools.partial(plots.curve, trajectory=trajectory, drawn=drawn, minimizer=best)
        for name, drawn in curves.items()
    }
    judged = of_judged(run.verdicts, run.claims, run.evidence, problem.spec.own(Claim))
    limits = predicted.limits if predicted is not None else {}
    more = judged | own | of_verdicts(run.verdicts, trajectory) | of_band(trajectory, run.band)
    more |= of_plateaus(trajectory) | of_matrices(trajectory, limits)
    figures = plots.draw_all(out / FIGURES, trajectory, predicted, format, tested, more)
    write_report(
        out / "report.html", problem.spec, trajectory, run.verdicts, figures, predicted, told, captions, explored
    )
    return told
