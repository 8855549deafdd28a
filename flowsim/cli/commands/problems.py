"""Commands about a problem: `run`, `init`, `sweep`, `explore`."""

import pathlib
from typing import Annotated, Literal

import tyro

from flowsim.cli.commands.options import (
    Axes,
    Devices,
    Explored,
    Folder,
    Jobs,
    Overrides,
    Pattern,
    ProblemFile,
    Scheduler,
    Shard,
    entry_of,
    if_given,
)


def run(
    problem: ProblemFile,
    /,
    out: Folder,
    overrides: Overrides = (),
    claims: Pattern = None,
    all_claims: bool = False,
    resume: bool = False,
    certify: bool = False,
    certify_budget: Annotated[str, tyro.conf.arg(metavar="TIME")] = "60s",
    json: bool = False,
    strict: bool = False,
    format: Literal["png", "svg", "pdf", "pgf"] = "png",
    tex: bool = False,
    explore: Explored = (),
    quiet: bool = False,
    devices: Devices = None,
    coordinator: Annotated[str | None, if_given("HOST:PORT|auto")] = None,
    processes: Annotated[int | None, if_given("N")] = None,
    process: Annotated[int | None, if_given("I")] = None,
    join_timeout: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 120.0,
) -> int:
    """Integrate the flow of a problem, judge the claims about it, draw figures.

    Args:
        problem: the problem file, or FILE.py:NAME of a function that returns (loss, model).
        out: the folder for the results; it must not hold another run.
        claims: judge only claims with a matching id, such as "smith2025.lemma-3.*". They need not be about the flow.
        all_claims: judge every claim about the model, also those that are not about the flow.
        resume: continue the run in DIR.
        certify: prove or refute each judged claim, and keep the certificates in DIR/certificates.
        certify_budget: the time limit for each certificate, such as 90s or 10m.
        json: print only verdicts.json.
        strict: exit with status 1 if a claim is violated.
        format: file format of the figures; pgf needs pdflatex.
        tex: also write verdicts.tex, a table for a paper.
        explore: also write DIR/explore.html, a page with a slider over these values, as `explore` does with --over;
            repeat for each slider.
        quiet: print neither progress nor table.
        devices: how many devices of each process share the samples of a Monte Carlo loss; all: as many as JAX finds.
        coordinator: for a run on several hosts, the address of process 0; auto asks Slurm or Open MPI for it.
        processes: for a run on several hosts, the number of processes, at least one for each host.
        process: the number of this process, from 0; process 0 writes the results.
        join_timeout: how long to wait until all processes have started.
    """
    run = entry_of("run", "run")
    from flowsim.cli.devices import Hosts

    return run(
        problem,
        out,
        overrides=sum(overrides, ()),
        claims=claims or ("*" if all_claims else None),
        resume=resume,
        certify=certify_budget if certify else None,
        as_json=json,
        strict=strict,
        format=format,
        tex=tex,
        explore=sum(explore, ()),
        quiet=quiet,
        devices=devices,
        hosts=Hosts(coordinator, processes, process, join_timeout),
    )


def init(
    problem: ProblemFile,
    /,
    overrides: Overrides = (),
    epsilon: float = 1e-6,
    risk: Annotated[float | None, if_given("RISK")] = None,
    json: bool = False,
) -> int:
    """Print which conditions of theorems a start meets, and what they predict. Nothing is integrated.

    Args:
        problem: the problem file, or FILE.py:NAME of a function that returns (loss, model).
        epsilon: the excess loss for which the guaranteed time is given.
        risk: also print the prompt length needed for this risk.
        json: print JSON.
    """
    return entry_of("init", "init")(problem, overrides=sum(overrides, ()), epsilon=epsilon, risk=risk, as_json=json)


def sweep(
    problem: ProblemFile,
    /,
    over: Axes,
    out: Folder,
    overrides: Overrides = (),
    claims: Pattern = None,
    resume: bool = False,
    json: bool = False,
    format: Literal["png", "svg", "pdf"] = "png",
    disk_budget: Annotated[float, tyro.conf.arg(metavar="MB")] = 256.0,
    quiet: bool = False,
    devices: Devices = None,
    jobs: Jobs = 1,
    scheduler: Scheduler = None,
    shard: Shard = None,
) -> int:
    """Integrate the flows of a grid of problems, and draw a map of the results.

    Args:
        problem: the problem file that all cells share, or FILE.py:NAME of a function that returns (loss, model).
        over: a field and its values: geom:FROM:TO:COUNT, lin:FROM:TO:COUNT, FIRST:LAST or a list; repeat for each axis.
        out: the folder for the map; it must not hold another sweep.
        claims: record the margins of claims with a matching id, instead of the few that papers name for maps.
        resume: continue the sweep in DIR.
        json: print JSON.
        format: file format of the figure.
        disk_budget: the largest size of the map on disk; a larger sweep is refused.
        quiet: print neither progress nor summary.
        devices: how many devices share the cells of a batch; all: as many as JAX finds.
    """
    return entry_of("sweep", "sweep")(
        problem,
        out,
        over=sum(over, ()),
        overrides=sum(overrides, ()),
        claims=claims,
        resume=resume,
        as_json=json,
        format=format,
        disk_budget=disk_budget,
        quiet=quiet,
        devices=devices,
        jobs=jobs,
        scheduler=scheduler,
        shard=shard,
    )


def explore(
    problem: ProblemFile,
    /,
    over: Axes,
    out: Annotated[pathlib.Path, tyro.conf.arg(metavar="FILE.html")],
    overrides: Overrides = (),
    claims: Pattern = None,
    portrait: Annotated[str | None, if_given("X,Y")] = None,
    quiet: bool = False,
) -> int:
    """Write a page with sliders over the flows of a grid of problems. Any browser shows it, also offline.

    Args:
        problem: the problem file that all cells share, or FILE.py:NAME of a function that returns (loss, model).
        over: a field and its values, as in `sweep`; repeat for each slider.
        out: the file of the page.
        claims: show the margins of claims with a matching id, instead of the few that papers name for maps.
        portrait: also show the flows in the plane of two weights, such as a,b or u_minus1,U11[0][1].
        quiet: print no progress.
    """
    of = {"over": sum(over, ()), "overrides": sum(overrides, ()), "claims": claims, "portrait": portrait}
    return entry_of("sweep", "explore")(problem, out, **of, quiet=quiet)
