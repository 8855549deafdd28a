"""The best constants of the bounds that report theirs, over the spaces that their claims declare.

    python benchmarks/sharp_constants.py [PREFIX ..] [--budget 120]

Writes benchmarks/results/sharp_constants.md, and the picture of zhang2023's PL inequality to docs/sharpening.png.
"""

import argparse
import json
import os
import pathlib
import re
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # to be run as a file, too
import flowsim
from benchmarks.measurements import DOCS, ledger
from flowsim.report.plots.search import draw_growth

RESULTS = pathlib.Path(__file__).parent / "results"
PICTURE = DOCS / "sharpening.png"
DRAWN = "zhang2023.lemma-5.4.pl"


def main() -> None:
    """Sharpen every bound that was asked for and is not there yet, and write the table after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("prefixes", nargs="*", default=[""])
    parser.add_argument("--budget", type=float, default=120.0)
    asked = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    file = RESULTS / "sharp_constants.json"
    rows = json.loads(file.read_text()) if file.exists() else []
    bounds = with_sharp_constants()
    for claim in flowsim.ALL_CLAIMS:
        if not ((claim.id, claim.form) in bounds and claim.id.startswith(tuple(asked.prefixes))):
            continue
        if any((row["id"], row["form"]) == (claim.id, claim.form) for row in rows):
            continue
        try:
            found = flowsim.sharpen(claim, budget=asked.budget)
        except ValueError as error:
            print(f"{claim.id} [{claim.form}]: {error}", flush=True)
            continue
        print(found, flush=True)
        if claim.id == DRAWN:
            draw_growth(found, PICTURE)
        rows.append(found.document() | {"seconds": found.seconds, "budget": asked.budget})
        file.write_text(json.dumps(rows, indent=1) + "\n")
        jax.clear_caches()
    (RESULTS / "sharp_constants.md").write_text(table(rows))


def with_sharp_constants() -> set[tuple[str, str]]:
    """The claims, with their forms, that the ledger links to a sharp constant."""
    sections = re.findall(r"^## (\S+) \((\w+)\)\n(.*?)(?=^## |^<!-- |\Z)", ledger(), re.MULTILINE | re.DOTALL)
    return {(identifier, form) for identifier, form, body in sections if "- Sharp constant: " in body}


def table(rows: list[dict]) -> str:
    """The rows in Markdown."""
    lines = [
        "# Sharp constants",
        "",
        f"Measured on {os.uname().machine}, {os.cpu_count()} CPUs. The factor is what the bound may be multiplied by",
        "(an upper bound: divided by) so that it holds at every problem that was looked at; below 1 it fails.",
        "",
        "| claim | form | factor | attained at | power of each parameter | problems | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        where = ", ".join(f"{name} = {value:.4g}" if isinstance(value, float) else f"{name} = {value}"
                          for name, value in row["values"].items())  # fmt: skip
        powers = [(growth["name"], growth["slope"]) for growth in row["growth"]]
        known = ", ".join(f"{name} {slope:.2f}" for name, slope in powers if slope is not None and slope == slope)
        numbers = str(row["problems"]), f"{row['seconds']:.0f}"
        cells = [row["id"], row["form"], f"{row['factor']:.4g}", where, known or "-", *numbers]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
