"""An audit of the papers from nothing, again with nothing changed, and again with a module of a paper changed.

`flowsim audit --jobs 2`, a paper after the other into one folder, from no verdict and nothing compiled; then all papers
again, whose verdicts are all kept; then again with a line more in a module of the paper that took least and of the one
that took longest, in a copy of flowsim: the claims of that paper are judged again, with their programs compiled. Quick
is zhang2025 alone.

    python benchmarks/audit.py        # or --quick
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # to be run as a file, too
from benchmarks.measurements import Measurement, measure

FULL, INCREMENTAL = 30 * 60.0, 3 * 60.0  # seconds


def measure_audit(quick: bool) -> list[Measurement]:
    """Seconds of each, and of each paper."""
    from flowsim import papers

    counts = {
        paper.id: sum(len(claim.problems) for claim in paper.claims)
        for paper in papers.PAPERS
        if not quick or paper.id == "zhang2025"
    }
    chosen = ["--paper", *counts] if quick else []
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        package = shutil.copytree(pathlib.Path(papers.__file__).parents[1], place / "flowsim")
        took = {name: seconds(place, "--paper", name) for name in counts}
        found = [
            Measurement("from nothing", sum(took.values()), "s", "at most", FULL, f"{sum(counts.values())} verdicts"),
            *(
                Measurement(
                    f"from nothing, {name}", spent, "s", "at most", FULL, f"{counts[name]} verdicts, part of the above"
                )
                for name, spent in took.items()
            ),
            Measurement("again, nothing changed", seconds(place, *chosen), "s", "at most", INCREMENTAL),
        ]
        for name in dict.fromkeys((min(counts, key=took.__getitem__), max(counts, key=took.__getitem__))):
            module = package / "papers" / name / "__init__.py"
            with module.open("a") as file:
                file.write("CHANGED = True\n")
            before = units(place)
            spent = seconds(place, *chosen)
            again = sum(units(place)[unit] != written for unit, written in before.items())
            what = f"again, a line more in a module of {name}"
            found.append(Measurement(what, spent, "s", "at most", INCREMENTAL, f"{again} verdicts judged again"))
    return found


def seconds(place: pathlib.Path, *options: str) -> float:
    """Of an audit by the flowsim of a folder, into that folder, where its compiled programs are kept too."""
    command = [sys.executable, "-m", "flowsim", "audit", "--out", str(place / "out"), "--jobs", "2", *options]
    environment = os.environ | {"XDG_CACHE_HOME": str(place), "PYTHONPATH": str(place)}
    begin = time.perf_counter()
    subprocess.run(
        command, env=environment, cwd=place, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return time.perf_counter() - begin


def units(place: pathlib.Path) -> dict[str, int]:
    """When each verdict was written."""
    return {path.name: path.stat().st_mtime_ns for path in (place / "out" / "units").iterdir()}


def main(quick: bool = False) -> list[Measurement]:
    """Measure and print; unless quick, write the results."""
    return measure((measure_audit,), quick, "audit", "Audits", str(__doc__))


if __name__ == "__main__":
    main("--quick" in sys.argv)
