"""Verdicts on random problems beside what is true there, which other means say; no verdict may be false.

    python benchmarks/verdict_fuzz.py [--problems 6000] [--seed 0] [--family one-weight] [--keep]

Each problem is drawn with up to three statements that are true and three that are false, mostly by little or not before
the run ends. All are judged after a run that ends by itself, at a loose stop, or at short, long or few times. What is
true is known without flowsim: by closed forms, conserved quantities, rationals and quadrature. A family of problems is
of one kind of error, and `benchmarks/verdict_families` has a file for each group of kinds.

A statement that is false from some time on may be said to hold until then. "unresolved" is never false, and told by its
cause, for the statements that a person would expect to be decided. Exits with status 1 if any verdict is false, or
an error comes in place of one.
"""

import argparse
import collections
import functools
import json
import os
import pathlib
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # of what JAX reads from its cache
import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # to be run as a file, too
import flowsim
from benchmarks.verdict_families import FAMILIES, OTHERS, SHARES
from benchmarks.verdict_families.base import Problem, is_false
from benchmarks.verdict_families.drawn import Drawn
from benchmarks.verdict_families.theorems import theorems
from flowsim.claims import Evidence, judge_on
from flowsim.cli.prepare import prepare_jax
from flowsim.flow.gradient_flow import start_alone

RESULTS = pathlib.Path(__file__).parent / "results"
_SECONDS = 20.0  # for a flow
_OF_EACH = 3  # true statements, and false ones


def generator_of(family: str, seed: int, index: int) -> np.random.Generator:
    """What a problem of a family is drawn by."""
    return np.random.default_rng([seed, zlib.crc32(family.encode()), index])


def problem_of(family: str, seed: int, index: int) -> tuple[Problem, np.random.Generator]:
    """A problem of a family, and the generator that goes on to choose its statements."""
    rng = generator_of(family, seed, index)
    return FAMILIES[family](rng), rng


def constructed(family: str, count: int, seed: int) -> Iterator[Drawn]:
    """Some true statements and some false ones about each problem of a family."""
    for index in range(count):
        if family in OTHERS:
            yield from OTHERS[family](generator_of(family, seed, index), index)
            continue
        problem, rng = problem_of(family, seed, index)
        if problem.how is None:
            flow = start_alone(problem.loss, problem.start)
        else:
            flow = flowsim.gradient_flow(problem.loss, problem.start, budget_seconds=_SECONDS, **problem.how)
        judge = functools.partial(judge_on, evidence=Evidence(problem.loss, flow))
        found = problem.statements(flow)
        for truth in (True, False):
            known = [one for one in found if (one.fails is None) is truth]
            for place in rng.permutation(len(known))[:_OF_EACH]:
                one = known[place]
                yield Drawn(index, one.claim, judge, one.fails, one.expected)


def judged(drawn: Drawn) -> dict[str, Any]:
    """The verdict on a statement beside what is true of it; "raised" where there is an error in place of one."""
    claim = drawn.claim
    known = {"problem": drawn.problem, "statement": claim.id, "form": claim.form}
    known |= {"fails": drawn.fails, "expected": drawn.expected}
    try:
        verdict = drawn.judge(claim)
    except Exception as error:
        note = f"{type(error).__name__}: {error}"
        return known | {"verdict": "raised", "until": None, "note": note, "margin": None, "floor": None}
    return known | {
        "verdict": str(verdict.verdict),
        "until": getattr(verdict, "until", None),
        "note": verdict.note,
        "margin": verdict.margin,
        "floor": verdict.floor,
    }


_CAUSES = {
    "No bound is known": "no bound is known on the distance to the limit",
    "did not finish": "a solve did not finish",
    "did not confirm": "a more accurate solve did not confirm a violation",
    "not finite": "a side is not finite",
    "energy balance": "the energy balance is off",
    "is not known here": "a side of a hypothesis is not known",
    "could not be confirmed": "a violation could not be confirmed with more digits",
    "draws: the probability": "the draws leave the probability open",
    "By extrapolation from": "the interval that was extrapolated leaves it open",
    "last digits": "the last digits of the start decide where the flow goes",
}


def _cause(row: Mapping[str, Any]) -> str:
    known = next((cause for part, cause in _CAUSES.items() if part in row["note"]), None)
    # What the note says first, where it is another.
    return known or row["note"].partition(".")[0][:100] or "the margin is below its error"


def _is_false(row: Mapping[str, Any]) -> bool:
    return is_false(row["verdict"], row["fails"], row["until"])


def _is_wrong(row: Mapping[str, Any]) -> bool:
    return _is_false(row) or row["verdict"] == "raised"


def _is_open(row: Mapping[str, Any]) -> bool:
    return row["verdict"] == "unresolved"


def summary(rows: Mapping[str, list[dict]]) -> str:
    """What was found by family, the unresolved by cause, and every false verdict."""
    lines = ["| family | problems | verdicts | right | unresolved | not applicable or vacuous | raised "]
    lines[0] += "| false | expected | of these unresolved |"
    lines += ["|---" * 10 + "|"]
    for family, found in rows.items():
        open_, false = sum(map(_is_open, found)), sum(map(_is_false, found))
        rest = sum(row["verdict"] in ("vacuous", "not-applicable") for row in found)
        raised = sum(row["verdict"] == "raised" for row in found)
        problems = len({row["problem"] for row in found})
        expected = [row for row in found if row["expected"]]
        share = f"{sum(map(_is_open, expected)) / len(expected):.0%}" if expected else "-"
        right = len(found) - open_ - rest - raised - false
        numbers = (problems, len(found), right, open_, rest, raised, false, len(expected), share)
        lines.append(f"| {' | '.join(map(str, (family, *numbers)))} |")
    lines += ["", "| family | why unresolved | verdicts | of these expected |", "|---|---|---|---|"]
    for family, found in rows.items():
        causes = collections.Counter(_cause(row) for row in found if _is_open(row))
        expected = collections.Counter(_cause(row) for row in found if _is_open(row) and row["expected"])
        lines += [f"| {family} | {cause} | {n} | {expected[cause]} |" for cause, n in causes.most_common()]
    wrong = [(family, row) for family, found in rows.items() for row in found if _is_wrong(row)]
    lines += ["", f"{sum(_is_false(row) for _, row in wrong)} false verdicts."]
    if wrong:
        kinds = collections.Counter((family, row["statement"], row["verdict"]) for family, row in wrong)
        lines += ["", "| family | statement | verdict | false or raised |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(kind)} | {n} |" for kind, n in kinds.most_common()]
        lines += ["", *(f"- {family}, problem {row['problem']}: {json.dumps(row)}" for family, row in wrong)]
    return "\n".join(lines)


def _keep(found: Mapping[str, dict]) -> None:
    """Replace what the results have of these families, so that each can be run by a process of its own."""
    file = RESULTS / "verdict_fuzz.json"
    everything = (json.loads(file.read_text()) if file.exists() else {}) | dict(found)
    # What an older version kept says less of each verdict.
    whole = {family: one for family, one in everything.items() if all("fails" in row for row in one["rows"])}
    kept = {family: whole[family] for family in SHARES if family in whole}
    file.write_text(json.dumps(kept, indent=0) + "\n")
    about = str(__doc__).partition("    python")[0].strip()
    seeds = ", ".join(f"{family} {one['seed']}" for family, one in kept.items())
    page = summary({family: one["rows"] for family, one in kept.items()})
    text = f"# Verdicts on random problems\n\n{about}\n\nSeeds: {seeds}.\n\n{page}\n"
    (RESULTS / "verdict_fuzz.md").write_text(text)


def main(arguments: list[str] | None = None) -> int:
    """Print every false verdict as it is found, then the summary, which a whole run keeps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", choices=[*SHARES], help="only these")
    parser.add_argument(
        "--keep", action="store_true", help="write what was found into benchmarks/results/verdict_fuzz.md and .json"
    )
    asked = parser.parse_args(arguments)
    prepare_jax()
    rows: dict[str, list[dict]] = {}
    for family in [asked.family] if asked.family else SHARES:
        begun = time.monotonic()
        count = asked.problems if asked.family else round(SHARES[family] * asked.problems)
        of_papers = family.startswith("theorems")
        if of_papers:
            drawn = theorems(count, asked.seed, _SECONDS, extreme=family == "theorems-extreme")
        else:
            drawn = constructed(family, count, asked.seed)
        rows[family] = []
        for row in tqdm(map(judged, drawn), desc=family, total=count if of_papers else 2 * _OF_EACH * count):
            rows[family].append(row)
            if _is_wrong(row):
                tqdm.write(f"FALSE {family} {row}")
        print(f"{family}: {len(rows[family])} verdicts, {time.monotonic() - begun:.0f} s", flush=True)
    print(summary(rows))
    if asked.keep:
        _keep({family: {"seed": asked.seed, "rows": found} for family, found in rows.items()})
    return int(any(_is_wrong(row) for found in rows.values() for row in found))


if __name__ == "__main__":
    sys.exit(main())
