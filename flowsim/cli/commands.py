"""The commands with their options. Heavy modules are imported after parsing."""

import importlib
import pathlib
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal

import tyro

from flowsim.cli.prepare import prepare_jax


def _of(module: str, name: str) -> Callable[..., int]:
    """What a command calls. Its modules take a second or more to import, and a terminal shows that."""
    from flowsim._core.progress import progress_bar

    with progress_bar("starting", 1, shown=sys.stderr.isatty()):
        prepare_jax()
        return vars(importlib.import_module(f"flowsim.cli.{module}"))[name]


def _if_given(metavar: str, help: str | None = None) -> Any:
    """An option that is left out by default, which its help need not say."""
    return tyro.conf.arg(metavar=metavar, help=help, help_behavior_hint="")


ProblemFile = Annotated[tyro.conf.Positional[pathlib.Path], tyro.conf.arg(metavar="PROBLEM.toml|FILE.py:NAME")]
OtherProblem = Annotated[tyro.conf.Positional[pathlib.Path | None], _if_given("[PROBLEM.toml|FILE.py:NAME]")]
Texts = tuple[tuple[str, ...], ...]
Overrides = Annotated[
    Texts,
    tyro.conf.UseAppendAction,
    tyro.conf.arg(name="set", metavar="FIELD=VALUE", help="override fields of the problem, such as init.scale=0.3"),
]
Axes = Annotated[Texts, tyro.conf.UseAppendAction, tyro.conf.arg(name="over", metavar="FIELD=VALUES")]
ClaimIds = Annotated[tyro.conf.Positional[tuple[str, ...]], _if_given("[CLAIM_ID ...]", "without one, flowsim only")]
ClaimId = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="CLAIM_ID")]
Folder = Annotated[pathlib.Path, tyro.conf.arg(metavar="DIR")]
Pattern = Annotated[str | None, _if_given("PATTERN")]
Kept = Annotated[pathlib.Path | None, _if_given("DIR")]
Jobs = Annotated[int, tyro.conf.arg(metavar="N", help="processes of this machine that share the work")]
Scheduler = Annotated[str | None, _if_given("ADDRESS", "a dask scheduler, whose workers share the work")]
Shard = Annotated[str | None, _if_given("I/N", "do only the I-th of N parts; all parts share DIR")]
Budget = Annotated[str, tyro.conf.arg(metavar="TIME", help="the time, such as 90s or 10m")]
Problems = Annotated[int | None, _if_given("N", "try this many problems instead, and finish the batch")]
Form = Annotated[Literal["printed", "corrected"], tyro.conf.arg(help="of the claim")]
Seed = Annotated[int, tyro.conf.arg(help="of random draws")]
Devices = Annotated[str | None, _if_given("N|all")]


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
    quiet: bool = False,
    devices: Devices = None,
    coordinator: Annotated[str | None, _if_given("HOST:PORT|auto")] = None,
    processes: Annotated[int | None, _if_given("N")] = None,
    process: Annotated[int | None, _if_given("I")] = None,
    join_timeout: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 120.0,
) -> int:
    """Integrate the flow of a problem, judge the claims about it, draw figures.

    Args:
        problem: the problem file, or FILE.py:NAME of a function that returns (loss, model).
        out: the folder for the results; it must not hold another run.
        claims: judge those with a matching id, such as "smith2025.lemma-3.*", with or without a flow.
        all_claims: judge every claim about the model, also those without a flow.
        resume: continue the run in DIR.
        certify: prove or refute each judged claim, and keep the certificates in DIR/certificates.
        certify_budget: the time for each claim, such as 90s or 10m.
        json: print only verdicts.json.
        strict: exit with status 1 if a claim is violated.
        format: of the figures; pgf needs pdflatex.
        tex: also write verdicts.tex, a table for a paper.
        quiet: print neither progress nor table.
        devices: how many of each process share the samples of a Monte Carlo loss; all: those that JAX finds.
        coordinator: where process 0 listens, for a run on several hosts; auto asks Slurm or Open MPI.
        processes: their number, at least one for each host.
        process: the number of this one, from 0; process 0 writes the results.
        join_timeout: how long to wait for the others.
    """
    run = _of("run", "run")
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
        quiet=quiet,
        devices=devices,
        hosts=Hosts(coordinator, processes, process, join_timeout),
    )


def init(
    problem: ProblemFile,
    /,
    overrides: Overrides = (),
    epsilon: float = 1e-6,
    risk: Annotated[float | None, _if_given("RISK")] = None,
    json: bool = False,
) -> int:
    """Print which theorem conditions a start meets, and what follows, without integration.

    Args:
        problem: the problem file, or FILE.py:NAME of a function that returns (loss, model).
        epsilon: the excess loss for which the guaranteed time is given.
        risk: also print the prompt length needed for this risk.
        json: print JSON.
    """
    return _of("init", "init")(problem, overrides=sum(overrides, ()), epsilon=epsilon, risk=risk, as_json=json)


def claims(
    pattern: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[PATTERN]", help_behavior_hint="")] = "*",
    /,
    json: bool = False,
) -> int:
    """List claims: id, source, form, statement.

    Args:
        pattern: only those with a matching id, such as "smith2025.lemma-3.*"; without it all.
        json: print JSON.
    """
    return _of("claims", "claims")(pattern, as_json=json)


def check(
    claim_id: ClaimId,
    problem: OtherProblem = None,
    /,
    over: Axes = (),
    overrides: Overrides = (),
    json: bool = False,
    strict: bool = False,
) -> int:
    """Judge one claim, printed and corrected, on the problems that it lists, or over a family of problems.

    Args:
        claim_id: such as smith2025.lemma-3.rate; smith2025.lemma-3 takes all its parts; or FILE.py:NAME for
            your claim.
        problem: the problem file, or a function of your own; without it the claim's own problems.
        over: one field and its values, such as init.scale=geom:1e-1:1e-6:6, for limits and powers along it.
        json: print JSON.
        strict: exit with status 1 if a claim is violated.
    """
    return _of("claims", "check")(
        claim_id, problem, over=sum(over, ()), overrides=sum(overrides, ()), as_json=json, strict=strict
    )


def certify(
    claim_id: ClaimId,
    problem: OtherProblem = None,
    /,
    out: Annotated[pathlib.Path, tyro.conf.arg(metavar="FILE")] = pathlib.Path("certificate.json"),
    overrides: Overrides = (),
    form: Form = "printed",
    until: Annotated[float | None, _if_given("T")] = None,
) -> int:
    """Prove or refute a claim for one problem, and write the proof to a file.

    Args:
        claim_id: such as smith2025.lemma-3.rate, or FILE.py:NAME for a claim of your own.
        problem: the problem file, or a function of your own; without it the claim's own problems.
        out: where the certificate goes.
        until: the last time of a claim along the flow, instead of the flow's own stop; inf for all t.
    """
    return _of("claims", "certify")(claim_id, problem, out, overrides=sum(overrides, ()), form=form, until=until)


def verify(certificate: Annotated[tyro.conf.Positional[pathlib.Path], tyro.conf.arg(metavar="FILE")], /) -> int:
    """Check a certificate that `flowsim certify` wrote: exit status 0 if it is a proof, and 1 if not."""
    return _of("claims", "verify")(certificate)


def audit(
    out: Kept = None,
    paper: Annotated[str | None, _if_given("PAPER|FILE.py")] = None,
    overrides: Overrides = (),
    json: bool = False,
    strict: bool = False,
    fresh: bool = False,
    certify: bool = False,
    certify_budget: Annotated[str, tyro.conf.arg(metavar="TIME")] = "60s",
    jobs: Jobs = 1,
    scheduler: Scheduler = None,
    shard: Shard = None,
) -> int:
    """Judge every claim on the problems that it lists, or on those to which the overrides apply.

    Args:
        out: the folder for verdicts.json and the ledger; finished verdicts there are kept.
        paper: only the claims of one paper, by its id, or of FILE.py.
        json: print JSON.
        strict: exit with status 1 if a claim is violated.
        fresh: judge finished claims again.
        certify: refute the printed claims that are violated and prove the others; DIR/certified records what is shown.
        certify_budget: the time to try it for each claim, such as 90s or 10m.
    """
    audit = _of("audit", "audit")
    given, options = sum(overrides, ()), {"as_json": json, "strict": strict, "fresh": fresh, "shard": shard}
    options["certify"] = certify_budget if certify else None
    return audit(out, paper=paper, overrides=given, jobs=jobs, scheduler=scheduler, **options)


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
        claims: record the margins of claims with a matching id; default a few that papers name.
        resume: continue the sweep in DIR.
        json: print JSON.
        format: of the figure.
        disk_budget: the largest size; a larger sweep is refused.
        quiet: print neither progress nor summary.
        devices: how many share the cells of a batch; all: those that JAX finds.
    """
    return _of("sweep", "sweep")(
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
    quiet: bool = False,
) -> int:
    """Write a page with sliders over the flows of a grid of problems, for any browser, without a network.

    Args:
        problem: the problem file that all cells share, or FILE.py:NAME of a function that returns (loss, model).
        over: a field and its values, as in `sweep`; repeat for each slider.
        out: the page.
        claims: show the margins of claims with a matching id; default a few that papers name.
        quiet: print no progress.
    """
    of = {"over": sum(over, ()), "overrides": sum(overrides, ()), "claims": claims, "quiet": quiet}
    return _of("sweep", "explore")(problem, out, **of)


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
        out: the folder for the counterexample and for batches from which a search resumes.
        json: print JSON.
        strict: exit with status 1 if a counterexample is found.
        format: of the figure.
        quiet: print no progress.
    """
    refute = _of("search", "refute")
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
    """Search for the best constant of a claim's bound, and how it grows.

    Args:
        claim_id: such as smith2025.lemma-3.rate, or FILE.py:NAME for your claim.
        over: search an axis of the claim over LOW:HIGH or a list, and report its growth; repeat for each axis.
        out: the folder for the constants and their picture.
        json: print JSON.
        strict: exit with status 1 if the claim is violated at the best constant.
        format: of the figure.
        quiet: print no progress.
    """
    sharpen = _of("search", "sharpen")
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
    """Search which hypotheses of a claim are needed.

    Args:
        claim_id: such as smith2025.lemma-3.rate, or FILE.py:NAME for your claim.
        out: the folder for ablation.json and its picture.
        json: print JSON.
        format: of the figure.
        quiet: print no progress.
    """
    ablate = _of("search", "ablate")
    from flowsim.cli.search import Asked

    asked = Asked(claim_id, form, (), budget, problems, seed, out, 1, None)
    return ablate(asked, as_json=json, format=format, quiet=quiet)


def cite(claim_ids: ClaimIds = (), /) -> int:
    """Print BibTeX entries of the papers of claims, and of flowsim."""
    return _of("claims", "cite")(claim_ids)


COMMANDS = run, init, claims, check, certify, verify, audit, sweep, explore, refute, sharpen, ablate, cite
