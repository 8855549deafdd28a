"""`flowsim refute` and `flowsim sharpen`."""

import contextlib
import math
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flowsim import papers
from flowsim._core.checks import ProblemError, refuse
from flowsim._core.documents import ForeignFileError
from flowsim._core.files import folder_of
from flowsim._core.text import TRACEBACK, in_short, listed
from flowsim._core.types import Options
from flowsim.claims import Claim
from flowsim.claims.spaces import Axis, Choice, Real, Whole
from flowsim.cli.common import claim_of, exit_status, print_json
from flowsim.experiments.executors import executor_of
from flowsim.experiments.search import refute as search
from flowsim.experiments.search import sharpen as sharpened
from flowsim.experiments.search.kept import PROGRESS
from flowsim.problem import ProblemSpec, toml
from flowsim.problem.own.files import is_place

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = 1e9  # in any unit
_FIELDS = toml.fields(ProblemSpec)


class Asked(NamedTuple):
    """The options, as they were written."""

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
    """Search for a counterexample; print it, and write it to the folder ``out``."""
    out = asked.out
    with _options(asked) as (claim, options):
        found = search(claim, **options, out=out, progress=not quiet)
    lines, known = [str(found)], _known(claim)
    if known is not None and found.counterexample is None:
        lines.append(f"A counterexample is known: {known} (flowsim run shows it).")
    elif claim.note:
        lines.append(f"What is known of it: {claim.note}")
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
    """Search for the best constant; print it, and write it with a picture of its growth to the folder ``out``."""
    out = asked.out
    with _options(asked) as (claim, options):
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


def _known(claim: Claim) -> pathlib.Path | None:
    """The file of a counterexample in the repository, or None."""
    place = pathlib.Path(papers.__file__).parents[2] / "docs" / "counterexamples" / f"{claim.id}.toml"
    return place if claim.form == "printed" and place.is_file() else None


@contextlib.contextmanager
def _options(asked: Asked) -> Iterator[tuple[Claim, Options]]:
    """The claim and the arguments of its search. The folder is created after all options were checked."""
    if not 0 <= asked.seed < 2**32:
        refuse("--seed", "a whole number of at least 0 and below 2^32", f"it is {asked.seed!s:.60}")
    claim, over, budget = claim_of(asked.claim, asked.form), dict(map(_axis, asked.over)), _budget(asked.budget)
    with executor_of(asked.jobs, asked.scheduler) as executor:
        if asked.out is not None:
            with folder_of(asked.out):
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
    """Report that a user's claim raises."""
    try:
        yield
    except (ProblemError, ForeignFileError, OSError):
        raise
    except Exception as error:
        if not is_place(identifier) or os.environ.get(TRACEBACK) == "1":
            raise
        refuse("claim id", "that of a claim that can be searched", f"{identifier} raises {in_short(error)}")


def _budget(text: str) -> float:
    """Seconds from ``90``, ``90s``, ``10m`` or ``2h``."""
    parts = re.fullmatch(r"(\d+(?:\.\d*)?)([smh]?)", text.strip())
    if not parts or not 0 < float(parts[1]) <= _LONGEST:
        refuse("--budget", "a positive time such as 90s, 10m or 2h", f'it is "{text}"')
    return float(parts[1]) * _SECONDS[parts[2]]


def _axis(text: str) -> tuple[str, Axis]:
    """The field and the axis in ``FIELD=LOW:HIGH``, ``FIELD=A,B,C`` or ``FIELD=VALUE``."""
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
