"""`flowsim refute`, `flowsim sharpen`, `flowsim ablate` and `flowsim referee`."""

import contextlib
import dataclasses
import math
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from flowsim import papers
from flowsim._core.checks import ProblemError, refuse
from flowsim._core.documents import ForeignFileError
from flowsim._core.files import folder_of, refuse_taken
from flowsim._core.text import TRACEBACK, in_short, listed
from flowsim._core.types import Options
from flowsim.claims import Claim
from flowsim.claims.spaces import Axis, Choice, Real, Whole
from flowsim.cli.common import FINISHED, claim_of, claims_of, exit_status, print_json, seconds_of, tables_of
from flowsim.experiments.ablation import FILE as ABLATION
from flowsim.experiments.ablation import ablate as ablated
from flowsim.experiments.certification import ContradictionError, counterexample_of
from flowsim.experiments.executors import executor_of
from flowsim.experiments.search import refute as search
from flowsim.experiments.search import sharpen as sharpened
from flowsim.experiments.search.kept import PROGRESS
from flowsim.problem import ProblemSpec, toml
from flowsim.problem.own.files import is_place

if TYPE_CHECKING:
    from flowsim.report.referee.pages import AbstractPage

_FIELDS = toml.fields(ProblemSpec)


class Asked(NamedTuple):
    """The options of a search, as given on the command line.

    **Fields:**

    - claim, form: which claim; see `flowsim.cli.common.claim_of`.
    - over: the axes to search, texts FIELD=LOW:HIGH or FIELD=A,B,C.
    - budget: the time limit, such as "90s" or "10m".
    - problems: the number of problems to try instead of a time limit, or None.
    - seed: the seed of the random draws.
    - out: the folder for results, or None.
    - jobs, scheduler: which processes share the work: their number, or the address of a dask scheduler.
    """

    claim: str
    form: str
    over: Sequence[str]
    budget: str
    problems: int | None
    seed: int
    out: pathlib.Path | None
    jobs: int
    scheduler: str | None


def refute(asked: Asked, *, as_json: bool, strict: bool, format: str, quiet: bool) -> int:
    """Search for a counterexample, and print it. If ``asked.out`` is given, also write and draw it there.

    **Returns:** the exit status: 1 if ``strict`` is set and a counterexample is found, else 0.
    """
    out = asked.out
    with _options(asked, "counterexample.toml", f"figures/counterexample.{format}") as (claim, options):
        found = search(claim, **options, out=out, progress=not quiet)
    lines, known = [str(found)], counterexample_of(claim)
    if known is not None and found.counterexample is None:
        lines.append(f"A counterexample is known: {known} (flowsim run shows it).")
    elif claim.note:
        lines.append(f"Note of the claim: {claim.note}")
    if out is not None and found.counterexample is not None:
        from flowsim.report.plots.search import draw_counterexample  # slow to import

        (out / "figures").mkdir(exist_ok=True)
        figure = out / "figures" / f"counterexample.{format}"
        draw_counterexample(found.counterexample, figure)
        lines.append(f"figure: {figure}")
        if found.counterexample.problem is not None:
            lines.append(f"problem: {out / 'counterexample.toml'}")
    if as_json:
        print_json(found.document() | {"known": None if known is None else str(known)})
    else:
        print(*lines, sep="\n")
    return exit_status(strict, [] if found.counterexample is None else [found.counterexample.verdict])


def sharpen(asked: Asked, *, as_json: bool, strict: bool, format: str, quiet: bool) -> int:
    """Search for the best constant, and print it. If ``asked.out`` is given, also write it there, and draw how it
    grows with each parameter.

    **Returns:** the exit status: 1 if ``strict`` is set and the claim is violated at the best constant, else 0.
    """
    out = asked.out
    with _options(asked, f"figures/sharpening.{format}") as (claim, options):
        found = sharpened(claim, **options, out=out, progress=not quiet)
    lines = [str(found)]
    if out is not None:
        from flowsim.report.plots.search import draw_growth  # slow to import

        figure = out / "figures" / f"sharpening.{format}"
        if any(len(growth.values) > 1 for growth in found.growth):
            figure.parent.mkdir(exist_ok=True)
            draw_growth(found, figure)
            lines.append(f"figure: {figure}")
        else:
            lines.append("figure: none, as no parameter has two values over which the constant could grow")
    print_json(found.document()) if as_json else print(*lines, sep="\n")
    return exit_status(strict, [found.verdict])


def ablate(asked: Asked, *, as_json: bool, format: str, quiet: bool) -> int:
    """Find which hypotheses a claim needs, and print the result. If ``asked.out`` is given, also write and draw it
    there.
    """
    with _options(asked, ABLATION, f"figures/ablation.{format}") as (claim, options):
        found = ablated(claim, **{name: options[name] for name in ("budget", "problems", "seed")}, progress=not quiet)
    lines = [str(found)]
    if asked.out is not None:
        from flowsim.report.plots.search import draw_ablation  # slow to import

        found.save(asked.out)
        figure = asked.out / "figures" / f"ablation.{format}"
        figure.parent.mkdir(exist_ok=True)
        draw_ablation(found, figure)
        lines.append(f"figure: {figure}")
    print_json(found.document()) if as_json else print(*lines, sep="\n")
    return FINISHED


def referee(
    identifier: str,
    problem: pathlib.Path | None,
    out: pathlib.Path,
    *,
    budget: str,
    problems: int | None,
    form: str,
    seed: int,
) -> int:
    """Write the page for a referee to the folder ``out``, and print a few lines for a review.

    The page gathers all results about a claim in every form. For the name of a paper it gathers the records about
    all statements of the paper, and judges nothing again.
    """
    from flowsim.report.referee import review, review_of_paper  # slow to import

    _check_seed(seed)
    if (paper := next((one for one in papers.PAPERS if one.id == identifier), None)) is not None:
        for name, given in {"PROBLEM.toml": problem, "--problems": problems, "--form": form != "printed"}.items():
            if given:
                refuse(name, "left out with the name of a paper, whose records are not judged again", "it is given")
        return _written(review_of_paper(paper), out)
    chosen, seconds = claim_of(identifier, form), seconds_of("--budget", budget)
    others = [claim for claim in claims_of(identifier) if claim.id == chosen.id and claim.form != form]
    claims = [chosen, *others]
    if problem is not None:
        claims = [dataclasses.replace(claim, problems=(tables_of(problem),)) for claim in claims]
    if not chosen.problems and problem is None:
        refuse("claim id", "that of a claim that lists problems", f"{identifier} has none: name a problem, too")
    with folder_of(out):
        out.mkdir(parents=True, exist_ok=True)
    with _blaming(identifier):
        found = review(claims, out, budget=seconds, problems=problems, seed=seed)
    return _written(found, out)


def _written(page: "AbstractPage", out: pathlib.Path) -> int:
    """Write a page to a folder; print its lines for a review, and the paths of its files."""
    with folder_of(out):
        out.mkdir(parents=True, exist_ok=True)
        written = page.save(out)
    print(page, *(f"page: {path}" for path in written), sep="\n")
    return FINISHED


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**32:
        refuse("--seed", "a whole number of at least 0 and below 2^32", f"it is {seed!s:.60}")


@contextlib.contextmanager
def _options(asked: Asked, *files: str) -> Iterator[tuple[Claim, Options]]:
    """Check the options of a search, and then create the folder ``asked.out``.

    **Arguments:** asked: the options; files: the names of files that will be written to the folder. A name is
    refused if a folder or a device has it.

    **Returns:** a context whose value is the claim and the keyword arguments of its search.

    **Raises:** `ProblemError` on a wrong option. If the search in the context raises one, the file of progress that
    the search began is removed.
    """
    _check_seed(asked.seed)
    claim, over = claim_of(asked.claim, asked.form), dict(map(_axis, asked.over))
    budget = seconds_of("--budget", asked.budget)
    with executor_of(asked.jobs, asked.scheduler) as executor:
        if asked.out is not None:
            with folder_of(asked.out):
                refuse_taken("--out", *(asked.out / name for name in files))
                asked.out.mkdir(parents=True, exist_ok=True)
        fresh = asked.out is not None and not (asked.out / PROGRESS).exists()
        try:
            with _blaming(asked.claim):
                yield (
                    claim,
                    {
                        "over": over,
                        "budget": budget,
                        "problems": asked.problems,
                        "seed": asked.seed,
                        "executor": executor,
                    },
                )
        except ProblemError:
            # A refused search leaves nothing to resume, since the corrected one is another search.
            if asked.out is not None and fresh:
                (asked.out / PROGRESS).unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _blaming(identifier: str) -> Iterator[None]:
    """Turn an error that a user's claim raises into a `ProblemError` that names the claim.

    Errors of other claims, and errors that flowsim raises on purpose, are raised unchanged.
    """
    try:
        yield
    except (ProblemError, ForeignFileError, OSError, ContradictionError):
        raise
    except Exception as error:
        if not is_place(identifier) or os.environ.get(TRACEBACK) == "1":
            raise
        refuse("claim id", "that of a claim that can be searched", f"{identifier} raises {in_short(error)}")


def _axis(text: str) -> tuple[str, Axis]:
    """Parse ``FIELD=LOW:HIGH``, ``FIELD=A,B,C`` or ``FIELD=VALUE``; return the field and its axis.

    **Raises:** `ProblemError` if the text has another form, or if its bounds do not suit the field.
    """
    field, equals, form = (part.strip() for part in text.partition("="))
    if not (field and equals and form):
        refuse("--over", "FIELD=LOW:HIGH or a list such as FIELD=5,10,20", f"it is {text!r}")
    if ":" not in form:
        return field, Choice(tuple(toml.read_value(field, part) for part in listed(form)))
    try:
        low, high = map(float, form.split(":"))
    except ValueError:
        refuse(field, "searched over LOW:HIGH", f"it is {form!r}")
    whole = field not in _FIELDS or "whole number" in _FIELDS[field].expected
    if not low <= high or not (math.isfinite(low) and math.isfinite(high)):
        refuse(field, "searched from a finite number to one that is at least as large", f"it is {form!r}")
    if whole and field in _FIELDS and not (low.is_integer() and high.is_integer()):
        refuse(field, "searched over whole numbers", f"it is {form!r}")
    return field, Whole(int(low), int(high)) if whole and low.is_integer() and high.is_integer() else Real(low, high)
