"""The first verdict: seconds from the command to the table, with nothing compiled before and with everything.

`flowsim run` on README's problem and on one at d = 16, each in a process of its own, three times: with an empty folder
of compiled programs, and then with what the run before left there. The least of the last two counts as warm.

    python benchmarks/start_up.py
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # to be run as a file, too
from benchmarks.measurements import Measurement, measure

README = """
[task]
context_length = 10
covariance = [[0.5, 0, 0], [0, 1, 0], [0, 0, 2]]
[init]
kind = "balanced"
scale = 0.3
theta = [[1, 0.5, 0], [0, 1, -0.5], [0.3, 0, 1]]
"""
SIXTEEN = """
[task]
context_length = 20
covariance = {condition = 10.0, dimension = 16, rotation_seed = 0}
[init]
kind = "balanced"
scale = 0.2
"""
COMMAND = "import sys; from flowsim.cli.main import main; sys.exit(main(sys.argv[1:]))"


def seconds(folder: pathlib.Path, out: str) -> tuple[float, float]:
    """Until the table is printed, and until the command ends."""
    command = [sys.executable, "-c", COMMAND, "run", str(folder / "problem.toml"), "--out", str(folder / out)]
    environment = os.environ | {"XDG_CACHE_HOME": str(folder), "PYTHONUNBUFFERED": "1"}
    begin, table = time.perf_counter(), float("nan")
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("claim "):
                table = time.perf_counter() - begin
    return table, time.perf_counter() - begin


def measure_start_up(quick: bool) -> list[Measurement]:
    """Cold and warm, of both problems."""
    found = []
    for name, text in (("README's problem", README), ("d = 16", SIXTEEN))[: 1 if quick else 2]:
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            (place / "problem.toml").write_text(text)
            cold, *warm = (seconds(place, f"out{number}") for number in range(3))
        least, whole = (min(times) for times in zip(*warm, strict=True))
        found += [
            Measurement(f"{name}: to the table, nothing compiled", cold[0], "s", "at most", 10.0),
            Measurement(f"{name}: to the table, all compiled", least, "s", "at most", 3.0),
            Measurement(f"{name}: to the report, nothing compiled", cold[1], "s", "at most", 20.0),
            Measurement(f"{name}: to the report, all compiled", whole, "s", "at most", 7.0),
        ]
    return found


def main(quick: bool = False) -> list[Measurement]:
    """Measure and print; unless quick, write the results."""
    return measure((measure_start_up,), quick, "start_up", "The first verdict", str(__doc__))


if __name__ == "__main__":
    main()
