"""A search for a counterexample of every claim, started blind from the spaces that the claims declare.

    python benchmarks/counterexamples.py [PREFIX ..] [--budget 600] [--holds-budget 60] [--docs docs]

For each statement that the ledger calls violated: how long it took until a counterexample was found, confirmed and
made small, and where it is. For each that holds: how many problems were looked at, and the smallest margin.
Counterexamples go to docs/counterexamples/, the table to benchmarks/results/counterexamples.md; claims that are there
already are kept.
"""

import argparse
import json
import os
import pathlib
import re
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # to be run as a file, too
import flowsim
from benchmarks.measurements import DOCS, ledger
from flowsim.experiments.search import refute

RESULTS = pathlib.Path(__file__).parent / "results"


def violated() -> set[tuple[str, str]]:
    """The claims, with their forms, that the ledger calls violated."""
    rows = re.findall(r"^\| \[(.*?)\]\(.*?\) \| (\w+) \| (.*?) \|", ledger(), re.MULTILINE)
    return {(identifier, form) for identifier, form, verdicts in rows if "violated" in verdicts}


def main() -> None:
    """Search for every claim that was asked for and is not there yet, and write the table after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("prefixes", nargs="*", default=[""])
    parser.add_argument("--budget", type=float, default=600.0)
    parser.add_argument("--holds-budget", type=float, default=60.0)
    parser.add_argument("--only", choices=("violated", "holds"))
    parser.add_argument("--docs", type=pathlib.Path, default=DOCS / "counterexamples")
    parser.add_argument("--name", default="counterexamples")
    asked = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    file = RESULTS / f"{asked.name}.json"
    rows = json.loads(file.read_text()) if file.exists() else []
    broken = violated()
    for claim in flowsim.ALL_CLAIMS:
        known = (claim.id, claim.form)
        kind = "violated" if known in broken else "holds"
        if not claim.id.startswith(tuple(asked.prefixes)) or asked.only not in (None, kind):
            continue
        if any((row["id"], row["form"]) == known for row in rows):
            continue
        row = {"id": claim.id, "form": claim.form, "ledger": kind} | searched(
            claim, asked.budget if kind == "violated" else asked.holds_budget, asked.docs
        )
        print(json.dumps(row), flush=True)
        rows.append(row)
        file.write_text(json.dumps(rows, indent=1) + "\n")
        jax.clear_caches()
    (RESULTS / f"{asked.name}.md").write_text(table(rows))


def searched(claim: flowsim.Claim, budget: float, docs: pathlib.Path) -> dict:
    """What a search finds, as a row."""
    begin = time.monotonic()
    try:
        found = refute(claim, budget=budget)
    except ValueError as error:
        return {"found": False, "seconds": time.monotonic() - begin, "refused": str(error)}
    row = {
        "found": found.counterexample is not None,
        "seconds": found.seconds,
        "budget": budget,
        "problems": found.problems,
        "met": found.met,
        "promising": found.promising,
        "doubtful": found.doubtful,
        "least": None if found.least is None else found.least[0],
    }
    if found.counterexample is not None:
        row |= {"margin": found.counterexample.verdict.margin, "where": found.counterexample.where}
        if found.counterexample.problem is not None:
            docs.mkdir(parents=True, exist_ok=True)
            name = claim.id if claim.form == "printed" else f"{claim.id}.corrected"
            text = f"# {found.counterexample.erratum}\n" + found.counterexample.problem.to_toml()
            (docs / f"{name}.toml").write_text(text)
    return row


def table(rows: list[dict]) -> str:
    """The rows in Markdown, those of the violated first."""
    lines = [
        "# Searches for counterexamples",
        "",
        f"Measured on {os.uname().machine}, {os.cpu_count()} CPUs. Margins are relative to the bound.",
        "",
        "| claim | form | ledger | counterexample | seconds | problems | hypotheses met | margin | where |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: row["ledger"] != "violated"):
        margin = row.get("margin", row.get("least"))
        cells = [
            row["id"],
            row["form"],
            row["ledger"],
            "found" if row["found"] else row.get("refused", "none"),
            f"{row['seconds']:.0f}",
            str(row.get("problems", "-")),
            str(row.get("met", "-")),
            "-" if margin is None else f"{margin:.3g}",
            row.get("where", "-"),
        ]
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
