"""README's scenario, and tests of what a device may change, each as a user runs it."""

import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from benchmarks.gpu_parts.rows import Measures, Row, on_gpu

ROOT = pathlib.Path(__file__).parents[2]
TESTS = (
    "test_threads.py",
    "test_losses.py",
    "test_dense.py",
    "test_sampling.py",
    "test_lockstep.py",
    "test_moments.py",
)
LIMIT = 150.0


def measures(full: bool) -> Measures:
    """The scenario of README, and on a GPU the tests."""
    yield "README's scenario", lambda: _scenario(full)
    if full and on_gpu():
        yield "quick tests on this device", _tests


def _environment() -> dict[str, str]:
    found = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "MPLBACKEND": "Agg"}
    return found | {"PYTHONPATH": os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])}


def _scenario(full: bool) -> Row:
    line = "import sys; sys.path.insert(0, 'scenarios'); import pathlib, zhang2023_fixed_covariance as scenario; "
    line += f"scenario.main({not full}, pathlib.Path(sys.argv[1]))"
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", line, folder]
        ran = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=LIMIT)
    seconds = time.perf_counter() - begin
    # Verdicts alone: margins differ in their last digits.
    rows = re.findall(r"^(\S+) +(printed|corrected) +(\S+)", ran.stdout, re.MULTILINE)
    note = f"{len(rows)} verdicts" if ran.returncode == 0 else ran.stderr.strip().splitlines()[-1][:300]
    return Row("", seconds, "job, with its imports", words=[" ".join(row) for row in rows], note=note)


def _tests() -> Row:
    # The plug-in for benchmarks warns beside several workers, and warnings are errors.
    without = ["-p", "no:cacheprovider", "-p", "no:benchmark"]
    options = ["-v", "-n4", *without, "-m", "not slow", *(f"tests/{name}" for name in TESTS)]
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+") as log:
        # Without a limit of its own a first failure of the device would be lost with the rest.
        child = subprocess.Popen([sys.executable, "-m", "pytest", *options], cwd=ROOT, env=_environment(), stdout=log)
        try:
            child.wait(LIMIT)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        log.seek(0)
        text = log.read()
    found = re.findall(r"(PASSED|FAILED|ERROR|SKIPPED) (tests/\S+)", text)
    if not found:
        raise RuntimeError(f"no test was run: {' '.join(text.split()[-40:])}")
    counts = collections.Counter(outcome for outcome, _ in found)
    failed = [name for outcome, name in found if outcome in ("FAILED", "ERROR")]
    errors = re.findall(r"^E  +(\S.*)$", text, re.MULTILINE)[:8]
    note = ", ".join(f"{count} {outcome.lower()}" for outcome, count in counts.items()) + ("; " if failed else "")
    return Row("", time.perf_counter() - begin, "all", note=note + "; ".join([*failed, *errors])[:2000])
