"""Judge every claim again by prompts, and compare the verdicts with those of the exact losses in docs/claims.

    python benchmarks/sampled_verdicts.py gatmiry2024 --samples 1024

A sampled loss may leave open what the exact one decides, and find vacuous what it finds vacuous; where one says "holds"
and the other "violated", one of them is wrong. Exits with status 1 if any do.
"""

import argparse
import collections
import dataclasses
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # to be run as a file, too
from benchmarks.measurements import ledger
from flowsim.cli.prepare import prepare_jax
from flowsim.experiments.audit import judge_all
from flowsim.papers import ALL_CLAIMS


def exact_verdicts() -> dict[tuple[str, str, str], str]:
    """The verdicts of the ledger by claim, form and problem."""
    sections = re.findall(r"^## (\S*) \((\w*)\)\n(.*?)(?=^## |^<!-- |\Z)", ledger(), re.MULTILINE | re.DOTALL)
    return {
        (identifier, form, re.sub(r"\\(.)", r"\1", name)): verdict
        for identifier, form, body in sections
        for name, verdict in re.findall(r"^\| (.*) \| . ([\w-]*) \| \S* \| \S* \|$", body, re.MULTILINE)
    }


def main(arguments: list[str] | None = None) -> int:
    """Print every verdict as it is found, then the counts and the contradictions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", help="zhang2023, or another, or the beginning of the ids of its claims")
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--method", default="covariances")
    parser.add_argument("--problems", type=int, default=100, help="how many of each claim's own, at most")
    parser.add_argument("--minutes", type=float, default=15.0, help="after which no further problem is begun")
    asked = parser.parse_args(arguments)
    prepare_jax()
    fields = {"kind": "monte-carlo", "samples": asked.samples, "method": asked.method}
    overrides = ["flow.rtol=1e-6", "flow.solver=implicit", *(f"loss.{name}={value}" for name, value in fields.items())]
    begun, exact, skipped = time.monotonic(), exact_verdicts(), []
    pairs, contradictions = collections.Counter(), []
    # Only claims along a flow read the prompts, where the exact loss is known.
    chosen = [claim for claim in ALL_CLAIMS if claim.along_flow and claim.id.startswith(asked.paper)]
    chosen = [dataclasses.replace(claim, problems=claim.problems[: asked.problems]) for claim in chosen]
    problems = [problem for claim in chosen for problem in claim.problems]
    for place, problem in enumerate(problems):
        if problem in problems[:place]:
            continue
        if time.monotonic() - begun > 60 * asked.minutes:
            print("out of time")
            break
        about = [dataclasses.replace(claim, problems=(problem,)) for claim in chosen if problem in claim.problems]
        for entry in judge_all(about, overrides, skipped):
            claim, found = entry.claim, entry.verdict
            pair = exact[claim.id, claim.form, entry.name], str(found.verdict)
            pairs[pair] += 1
            line = f"{time.monotonic() - begun:6.0f} s  {claim.id} ({claim.form}), {entry.name}: {' -> '.join(pair)}"
            numbers = "" if found.margin is None else f", margin {found.margin:.2g}, floor {found.floor:.1g}"
            print(f"{line}{numbers}. {found.note[-200:] if pair[0] != pair[1] else ''}", flush=True)
            if set(pair) == {"holds", "violated"}:
                contradictions.append(line)
    print(*(f"{count:4d}  {' -> '.join(pair)}" for pair, count in pairs.most_common()), sep="\n")
    print(f"{len(skipped):4d}  problems to which the overrides do not apply")
    print(f"{len(contradictions):4d}  contradictions", *contradictions, sep="\n")
    return int(bool(contradictions))


if __name__ == "__main__":
    sys.exit(main())
