"""The first verdict: seconds from the command to the table, with nothing compiled before and with everything.

`flowsim run` on README's problem and on one at d = 16, each in a process of its own, three times: with an empty folder
of compiled programs, and then with what the run before left there. The least of the last two counts as warm.

Seconds depend on what else the machine does. Processor time, of all threads, depends on it less: it is given for
README's problem and, in Python, for a loss and a claim of one's own, in multiples of what a bare process takes to
import JAX, Equinox, diffrax and NumPy and to multiply two matrices. These are the least of three, each with an empty
folder.

    python benchmarks/start_up.py
"""

import dataclasses
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
BARE = """
import diffrax, equinox, jax, numpy
jax.config.update("jax_enable_x64", True)
jax.jit(lambda x, y: x @ y)(numpy.eye(3), numpy.eye(3)).block_until_ready()
print("done")
"""
OWN = """
import flowsim
flowsim.setup()
import equinox as eqx, jax, jax.numpy as jnp
class Net(eqx.Module):
    a: jax.Array
    b: jax.Array
@flowsim.claim("mine.pl", "my notes")
def dominance(flow):
    "the gradient dominates the excess for all t"
    return flowsim.at_least(flow.grad_norm_sq, 2 * (flow.start.a**2 - flow.start.b**2) * flow.excess)
loss = flowsim.FunctionLoss(lambda net: 0.5 * (net.a * net.b - 1) ** 2, minimum=0.0)
flow = flowsim.gradient_flow(loss, Net(a=jnp.array(0.5), b=jnp.array(0.1)))
print(flowsim.judge([dominance], loss, flow))
print("done")
"""
ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class Taken:
    """What a process took until it printed a line: seconds, and seconds of processor time; and seconds until it
    ended.
    """

    seconds: float
    processor: float
    whole: float


def taken(program: str, *arguments: str, until: str, folder: pathlib.Path) -> Taken:
    """Run a program of Python with this folder for what is compiled."""
    environment = os.environ | {"XDG_CACHE_HOME": str(folder), "PYTHONUNBUFFERED": "1"}
    # Modules are compiled once, as an installer does.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begin, found = time.perf_counter(), (float("nan"), float("nan"))
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(until):
                found = time.perf_counter() - begin, processor_seconds(process.pid)
    return Taken(*found, time.perf_counter() - begin)


def processor_seconds(pid: int) -> float:
    """What a process of this machine has computed so far, as Linux counts it."""
    # The name of the program, in parentheses, may contain spaces.
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def run_in(folder: pathlib.Path, text: str, out: str) -> Taken:
    """`flowsim run`, until its table is printed."""
    problem = folder / "problem.toml"
    problem.write_text(text)
    return taken(COMMAND, "run", str(problem), "--out", str(folder / out), until="claim ", folder=folder)


def measure_seconds(quick: bool) -> list[Measurement]:
    """Cold and warm, of both problems."""
    found = []
    for name, text in (("README's problem", README), ("d = 16", SIXTEEN))[: 1 if quick else 2]:
        with tempfile.TemporaryDirectory() as folder:
            cold, *warm = (run_in(pathlib.Path(folder), text, f"out{number}") for number in range(3))
        least, whole = min(one.seconds for one in warm), min(one.whole for one in warm)
        found += [
            Measurement(f"{name}: to the table, nothing compiled", cold.seconds, "s", "at most", 10.0),
            Measurement(f"{name}: to the table, all compiled", least, "s", "at most", 3.0),
            Measurement(f"{name}: to the report, nothing compiled", cold.whole, "s", "at most", 20.0),
            Measurement(f"{name}: to the report, all compiled", whole, "s", "at most", 7.0),
        ]
    return found


def measure_processor(quick: bool) -> list[Measurement]:
    """Cold and warm, in multiples of a bare process."""
    bare, verdicts = [], {"README's problem": ([], []), "own loss and claim": ([], [])}
    for _ in range(1 if quick else ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            bare.append(taken(BARE, until="done", folder=place).processor)
            for number in range(2):
                verdicts["README's problem"][number].append(run_in(place, README, f"out{number}").processor)
        with tempfile.TemporaryDirectory() as folder:
            for times in verdicts["own loss and claim"]:
                times.append(taken(OWN, until="done", folder=pathlib.Path(folder)).processor)
    least, found = min(bare), []
    for name, (cold, warm) in verdicts.items():
        for kind, times, target in (("nothing", cold, 6.0), ("all", warm, 2.5)):
            what = f"{name}: processor time to the verdict, {kind} compiled"
            note = f"{min(times):.2f} s; a bare process {least:.2f} s"
            found.append(Measurement(what, min(times) / least, "times", "at most", target, note))
    return found


def main(quick: bool = False) -> list[Measurement]:
    """Measure and print; unless quick, write the results."""
    return measure((measure_processor, measure_seconds), quick, "start_up", "The first verdict", str(__doc__))


if __name__ == "__main__":
    main()
