"""flowsim on a GPU, beside the CPU of the same machine: does it work, is it fast, does it find the same.

The parts, in the order of worth, each in a process of its own with its own limit of time: README's first flow and what
a device may do differently; the field of sampled losses beside what arithmetic and memory allow; flows with an
arrowhead, 10^5 at once; flows of any loss in lockstep; the same flows on both devices; a flow of a sampled loss;
PyTorch's loop over prompts; float32 products under float64 sums; fields in blocks of other sizes; README's scenario and
tests. The CPU does the same on half of the cores meanwhile. Results are written after each part, beside those of other
parts that were measured on the same machine before. Without a GPU everything is small.

    python benchmarks/gpu.py                     # everything, in at most eight minutes
    python benchmarks/gpu.py --minutes 4 --part fields --part arrowheads --out DIR
"""

import argparse
import collections
import dataclasses
import importlib
import json
import math
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # to be run as a file, too
from benchmarks.gpu_parts.rows import Row, cores

RESULTS = pathlib.Path(__file__).parent / "results"
ENOUGH = 10.0  # seconds, less than which no part is begun with


@dataclasses.dataclass(frozen=True)
class Part:
    """Where the measures of a part are, how many seconds it may take, and whether a CPU has a device for each core."""

    module: str
    function: str
    limit: float
    shared: bool = False


PARTS = {
    "smoke": Part("smoke", "measures", 120.0),
    "fields": Part("fields", "measures", 150.0, shared=True),
    "arrowheads": Part("flows", "measures", 90.0),
    "general": Part("flows", "general", 120.0),
    "same": Part("same", "measures", 150.0),
    "sampled": Part("flows", "sampled", 60.0),
    "pytorch": Part("fields", "pytorch", 40.0),
    "float32": Part("fields", "float32", 40.0),
    "blocks": Part("fields", "block_sizes", 150.0, shared=True),
    "readme": Part("readme", "measures", 240.0),
}
_PROBE = """
import jax
device = jax.devices()[0]
print(jax.default_backend(), jax.__version__, device.device_kind, sep="|")
"""


class Report:
    """The rows so far, which two threads add to, and the files that hold them."""

    def __init__(self, out: pathlib.Path, machine: str, gpu: str | None):
        self.out, self.machine, self.gpu = out, machine, gpu
        self.rows: list[Row] = []
        self.ends: list[str] = []
        self._lock = threading.Lock()

    def keep(self, parts: list[str]) -> None:
        """Take over what is there of other parts than these, of the same machine."""
        file = self.out / "gpu.json"
        kept = json.loads(file.read_text()) if file.exists() else {}
        if (kept.get("machine"), kept.get("gpu")) == (self.machine, self.gpu):
            self.rows = [Row(**row) for row in kept["rows"] if row["part"] not in parts]
            self.ends = [end for end in kept["parts"] if end.split()[0] not in parts]

    def add(self, rows: list[Row], end: str) -> None:
        """Add what a part found and how it ended, and write everything."""
        with self._lock:
            self.rows += rows
            self.ends.append(end)
            self.out.mkdir(parents=True, exist_ok=True)
            document = {"machine": self.machine, "gpu": self.gpu, "parts": self.ends}
            document["rows"] = [_plain(row) for row in self.rows]
            (self.out / "gpu.json").write_text(json.dumps(document, indent=1) + "\n")
            (self.out / "gpu.md").write_text(self.page())
        print(f"{end}\n{table(rows)}\n", flush=True)

    def page(self) -> str:
        """The whole page in Markdown."""
        about = (__doc__ or "").split("    python")[0].strip()
        gpu = f"GPU: {self.gpu}." if self.gpu else "**No GPU here**: the CPU alone, everything small."
        ends = "\n".join(f"- {end}" for end in sorted(self.ends))
        return f"# On a GPU\n\n{about}\n\nMeasured on {self.machine}. {gpu}\n\n{table(self.rows)}\n\n{ends}\n"


def _plain(row: Row) -> dict:
    """A row for JSON, without the numbers that were to be compared."""
    found = dataclasses.asdict(row)
    del found["numbers"]
    return found


def table(rows: list[Row]) -> str:
    """What was measured in Markdown, a line for each quantity with both devices in it."""
    lines = ["| part | what | unit | GPU | CPU | times faster | GPU over its bound | CPU over its bound | both agree |"]
    lines.append("|---" * 9 + "|")
    notes = []
    together: dict[tuple[str, str], dict[str, Row]] = collections.defaultdict(dict)
    for row in rows:
        together[row.part, row.what][row.device] = row
    for (part, what), by_device in together.items():
        gpu, cpu = by_device.get("gpu"), by_device.get("cpu")
        seconds = [_time(row) for row in (gpu, cpu)]
        faster = f"{cpu.seconds / gpu.seconds:.3g}" if gpu and cpu and gpu.seconds and cpu.seconds else ""
        over = [f"{row.seconds / row.bound:.2f}" if row and row.seconds and row.bound else "" for row in (gpu, cpu)]
        unit = next((row.unit for row in by_device.values() if row.unit), "")
        agree = agreement(gpu, cpu) if gpu and cpu else ""
        lines.append(
            f"| {part} | {what} | {unit} | {seconds[0]} | {seconds[1]} | {faster} | {' | '.join(over)} | {agree} |"
        )
        for device, row in by_device.items():
            verdict = "" if gpu and cpu or not row.words else "; ".join(row.words[:3])
            notes.append(f"- {part}, {what}, {device}: {row.note} {verdict} ({row.took:.0f} s in all)")
    return "\n".join([*lines, "", *notes])


def _time(row: Row | None) -> str:
    """Seconds in a unit that suits them."""
    if row is None or row.seconds is None:
        return ""
    power = min(max(math.floor(math.log10(row.seconds) / 3), -5), 0)
    return f"{row.seconds / 10 ** (3 * power):.3g} {['s', 'ms', 'us', 'ns', 'ps', 'fs'][-power]}"


def agreement(one: Row, other: Row) -> str:
    """Whether two devices found the same words, and how far apart their numbers are, relative to the largest."""
    found = []
    if one.words is not None and other.words is not None:
        differing = [f"{a} / {b}" for a, b in zip(one.words, other.words, strict=False) if a != b]
        same = not differing and len(one.words) == len(other.words)
        found.append(f"{len(one.words)} words the same" if same else f"DIFFERENT: {'; '.join(differing)}")
    if one.numbers and other.numbers:
        pairs = [pair for pair in zip(one.numbers, other.numbers, strict=True) if pair[0] != pair[1]]
        largest = max((abs(number) for number in one.numbers if math.isfinite(number)), default=0.0)
        gap = max((abs(a - b) for a, b in pairs), default=0.0)
        found.append(f"numbers to {gap / largest if largest else gap:.0e}")
    return ", ".join(found)


def measure(name: str, full: bool, device: str) -> None:
    """Take the measures of a part in this process, a line of JSON for each."""
    import flowsim

    flowsim.setup()
    import gc

    import jax

    if full:
        # A first call is one for which nothing was compiled before.
        jax.config.update("jax_compilation_cache_dir", None)
    part = PARTS[name]
    if part.shared and full and device == "cpu":
        jax.config.update("jax_num_cpu_devices", 2 ** int(math.log2(cores())))
    module = importlib.import_module(f"benchmarks.gpu_parts.{part.module}")
    for what, run in getattr(module, part.function)(full):
        begin = time.perf_counter()
        try:
            row = run()
        except Exception as error:
            row = Row("", note=f"FAILED: {type(error).__name__}: {str(error)[:1000]}".replace("\n", " "))
        row = dataclasses.replace(row, what=what, part=name, device=device, took=time.perf_counter() - begin)
        print(json.dumps(dataclasses.asdict(row)), flush=True)
        # Arrays of one measure are not to take the memory of the next.
        del run
        gc.collect()


def lane(device: str, names: list[str], full: bool, until: float, most: float, own: set[int], report: Report) -> None:
    """The parts on one device, one after the other, each for at most so many seconds, until the time is over."""
    # The GPU's process counts operations by compiling for its host's CPU, too.
    platforms = {"JAX_PLATFORMS": "cpu" if device == "cpu" else "cuda,cpu"}
    for name in names:
        limit = min(PARTS[name].limit, most, until - time.monotonic())
        if limit < ENOUGH:
            report.add([], f"{name} on the {device}: not begun, the time was over")
            continue
        begin = time.monotonic()
        command = [sys.executable, __file__, "--measure", name, device, "full" if full else "small"]
        with tempfile.TemporaryFile("w+") as lines, tempfile.TemporaryFile("w+") as errors:
            child = subprocess.Popen(command, stdout=lines, stderr=errors, env=os.environ | platforms)
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(child.pid, own)
            try:
                code = child.wait(limit)
                end = "finished" if code == 0 else f"ended with {code}"
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                end = f"cut off at {limit:.0f}"
            lines.seek(0)
            errors.seek(0)
            found = [Row(**json.loads(line)) for line in lines.read().splitlines() if line.startswith("{")]
            said = errors.read().strip().splitlines()[-1:] if end.startswith("ended") else []
        report.add(found, f"{name} on the {device}: {end}, {time.monotonic() - begin:.0f} s {' '.join(said)}".strip())


def main(
    minutes: float = 8.0,
    parts: list[str] | None = None,
    out: pathlib.Path | None = None,
    devices: str = "both",
    limit: float = math.inf,
) -> list[Row]:
    """Take the parts on both devices at once, and write ``gpu.md`` and ``gpu.json`` after each.

    **Arguments:** parts: names, default all; out: a folder, default ``benchmarks/results``; devices: "gpu", "cpu" or
    "both"; limit: seconds that any part may take, below its own limit.
    """
    until = time.monotonic() + 60 * minutes
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=120)
    backend, version, kind = (probe.stdout.strip().splitlines() or ["none||"])[-1].split("|")
    full = backend == "gpu"
    everything = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cores()))
    half = len(everything) // 2
    of_gpu, of_cpu = (everything[:half], everything[half:]) if full and devices == "both" else (everything, everything)
    machine = f"{platform.machine()}, {len(of_cpu)} cores, Python {platform.python_version()}, JAX {version}"
    report = Report(
        RESULTS if out is None else out, machine, f"{kind}, with {len(of_gpu)} other cores" if full else None
    )
    names = list(PARTS) if parts is None else parts
    report.keep(names)
    lanes = [("cpu", of_cpu)] if not full else [("gpu", of_gpu), ("cpu", of_cpu)]
    threads = [
        threading.Thread(target=lane, args=(device, names, full, until, limit, set(own), report))
        for device, own in lanes
        if devices in (device, "both")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return report.rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=8.0, help="after which no part goes on (default 8)")
    parser.add_argument("--part", action="append", choices=PARTS, help="one of the parts; may be given again")
    parser.add_argument("--out", type=pathlib.Path, help="the folder of gpu.md and gpu.json")
    parser.add_argument("--devices", choices=("both", "gpu", "cpu"), default="both")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds that any part may take")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.measure[0], given.measure[2] == "full", given.measure[1])
    else:
        main(given.minutes, given.part, given.out, given.devices, given.limit)
