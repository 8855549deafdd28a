"""Commands that search: `refute`, `sharpen`, `ablate`, `referee`."""

import pathlib
from typing import Annotated, Literal

import tyro

from flowsim.cli.commands.options import (
    Axes,
    Budget,
    ClaimId,
    Folder,
    Form,
    Jobs,
    Kept,
    OtherProblem,
    Problems,
    Scheduler,
    Seed,
    entry_of,
)


def refute(
    claim_id: ClaimId,
    /,
    over: Axes = (),
    budget: Budget = "10m",
    problems: Problems = None,
    out: Kept = None,
    form: Form = "printed",
    seed: Seed = 0,
    json: bool = False,
    strict: bool = False,
    format: Literal["png", "svg", "pdf"] = "png",
    quiet: bool = False,
    jobs: Jobs = 1,
    scheduler: Scheduler = None,
) -> int:
    """Search for a problem that meets a claim's hypotheses and violates it.

    Args:
        claim_id: such as smith2025.lemma-3.rate, or FILE.py:NAME for your claim.
        over: search an axis of the claim over LOW:HIGH or a list; repeat for each axis.
        out: the folder for the counterexample and for finished batches; the same search later resumes from them.
        json: print JSON.
        strict: exit with status 1 if a counterexample is found.
        format: file format of the figure.
        quiet: print no progress.
    """
    refute = entry_of("search", "refute")
    from flowsim.cli.search import Asked

    asked = Asked(claim_id, form, sum(over, ()), budget, problems, seed, out, jobs, scheduler)
    return refute(asked, as_json=json, strict=strict, format=format, quiet=quiet)


def sharpen(
    claim_id: ClaimId,
    /,
    over: Axes = (),
    budget: Budget = "10m",
    problems: Problems = None,
    out: Kept = None,
    form: Form = "printed",
    seed: Seed = 0,
    json: bool = False,
    strict: bool = False,
    format: Literal["png", "svg", "pdf"] = "png",
    quiet: bool = False,
    jobs: Jobs = 1,
    scheduler: Scheduler = None,
) -> int:
    """Search for the best constant in a claim's bound, and for how it grows with a parameter.

    Args:
        claim_id: such as smith2025.lemma-3.rate, or FILE.py:NAME for your claim.
        over: search an axis of the claim over LOW:HIGH or a list, and report its growth; repeat for each axis.
        out: the folder for the constants and their picture.
        json: print JSON.
        strict: exit with status 1 if the claim is violated at the best constant.
        format: file format of the figure.
        quiet: print no progress.
    """
    sharpen = entry_of("search", "sharpen")
    from flowsim.cli.search import Asked

    asked = Asked(claim_id, form, sum(over, ()), budget, problems, seed, out, jobs, scheduler)
    return sharpen(asked, as_json=json, strict=strict, format=format, quiet=quiet)


def ablate(
    claim_id: ClaimId,
    /,
    budget: Budget = "10m",
    problems: Problems = None,
    out: Kept = None,
    form: Form = "printed",
    seed: Seed = 0,
    json: bool = False,
    format: Literal["png", "svg", "pdf"] = "png",
    quiet: bool = False,
) -> int:
    """Find which hypotheses of a claim are needed, and whether it holds outside the bounds of its spaces of problems.

    Args:
        claim_id: such as smith2025.lemma-3.rate, or FILE.py:NAME for your claim.
        out: the folder for ablation.json and its picture.
        json: print JSON.
        format: file format of the figure.
        quiet: print no progress.
    """
    ablate = entry_of("search", "ablate")
    from flowsim.cli.search import Asked

    asked = Asked(claim_id, form, (), budget, problems, seed, out, 1, None)
    return ablate(asked, as_json=json, format=format, quiet=quiet)


def referee(
    claim_id: ClaimId,
    problem: OtherProblem = None,
    /,
    out: Folder = pathlib.Path("referee"),
    budget: Annotated[str, tyro.conf.arg(metavar="TIME")] = "5m",
    problems: Problems = None,
    form: Form = "printed",
    seed: Seed = 0,
) -> int:
    """Write what a referee needs to know about a claim: its verdicts, proofs, hypotheses, and what was not checked.

    Args:
        claim_id: such as smith2025.lemma-3.rate, or FILE.py:NAME for your claim; smith2025 for the records about the
            whole paper.
        problem: the problem file, or a function of your own; without it the claim's own problems.
        out: the folder for referee.html, referee.md and referee.tex.
        budget: the time limit for certificates and searches, such as 90s or 10m; verdicts take further time.
    """
    options = {"budget": budget, "problems": problems, "form": form, "seed": seed}
    return entry_of("search", "referee")(claim_id, problem, out, **options)
