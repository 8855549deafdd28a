"""Commands about claims: `claims`, `check`, `certify`, `verify`, `audit`, `cite`."""

import pathlib
from typing import Annotated

import tyro

from flowsim.cli.commands.options import (
    Axes,
    ClaimId,
    ClaimIds,
    Form,
    Jobs,
    Kept,
    OtherProblem,
    Overrides,
    Scheduler,
    Shard,
    entry_of,
    if_given,
)


def claims(
    pattern: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[PATTERN]", help_behavior_hint="")] = "*",
    /,
    json: bool = False,
) -> int:
    """List claims: id, source, form, statement.

    Args:
        pattern: list only claims with a matching id, such as "smith2025.lemma-3.*".
        json: print JSON.
    """
    return entry_of("claims", "claims")(pattern, as_json=json)


def check(
    claim_id: ClaimId,
    problem: OtherProblem = None,
    /,
    over: Axes = (),
    overrides: Overrides = (),
    json: bool = False,
    strict: bool = False,
) -> int:
    """Judge one claim, in its printed and corrected forms, on the problems that it lists or over a family of problems.

    Args:
        claim_id: such as smith2025.lemma-3.rate; smith2025.lemma-3 means all its parts; or FILE.py:NAME for
            your claim.
        problem: the problem file, or a function of your own; without it the claim's own problems.
        over: one field and its values, such as init.scale=geom:1e-1:1e-6:6, for a claim about a limit or a power law
            in that field.
        json: print JSON.
        strict: exit with status 1 if a claim is violated.
    """
    return entry_of("claims", "check")(
        claim_id, problem, over=sum(over, ()), overrides=sum(overrides, ()), as_json=json, strict=strict
    )


def certify(
    claim_id: ClaimId,
    problem: OtherProblem = None,
    /,
    out: Annotated[pathlib.Path, tyro.conf.arg(metavar="FILE")] = pathlib.Path("certificate.json"),
    overrides: Overrides = (),
    form: Form = "printed",
    until: Annotated[float | None, if_given("T")] = None,
) -> int:
    """Prove or refute a claim for one problem, and write the proof to a file.

    Args:
        claim_id: such as smith2025.lemma-3.rate, or FILE.py:NAME for a claim of your own.
        problem: the problem file, or a function of your own; without it the claim's own problems.
        out: where the certificate goes.
        until: certify a claim along the flow up to this time, instead of up to the end of the flow; inf for all t.
    """
    return entry_of("claims", "certify")(claim_id, problem, out, overrides=sum(overrides, ()), form=form, until=until)


def verify(certificate: Annotated[tyro.conf.Positional[pathlib.Path], tyro.conf.arg(metavar="FILE")], /) -> int:
    """Check a certificate that `flowsim certify` wrote: exit status 0 if it is a proof, and 1 if not."""
    return entry_of("claims", "verify")(certificate)


def audit(
    out: Kept = None,
    paper: Annotated[str | None, if_given("PAPER|FILE.py")] = None,
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
        certify: refute the printed claims that are violated and prove the others, and record the results in
            DIR/certified.
        certify_budget: the time limit for each certificate, such as 90s or 10m.
    """
    audit = entry_of("audit", "audit")
    given, options = sum(overrides, ()), {"as_json": json, "strict": strict, "fresh": fresh, "shard": shard}
    options["certify"] = certify_budget if certify else None
    return audit(out, paper=paper, overrides=given, jobs=jobs, scheduler=scheduler, **options)


def cite(claim_ids: ClaimIds = (), /) -> int:
    """Print BibTeX entries of the papers of claims, and of flowsim."""
    return entry_of("claims", "cite")(claim_ids)
