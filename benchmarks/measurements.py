"""What a benchmark measured beside what is asked of it, each step in a process of its own, and the table of it."""

import dataclasses
import json
import multiprocessing
import os
import pathlib
import platform
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np

RESULTS = pathlib.Path(__file__).parent / "results"
DOCS = RESULTS.parents[1] / "docs"


@dataclasses.dataclass
class Measurement:
    """One quantity with what is asked of it: ``at most`` or ``at least`` the target."""

    what: str
    value: float
    unit: str
    relation: str
    target: float
    note: str = ""


def ledger() -> str:
    """The pages of docs/claims, one after the other."""
    return "\n".join(page.read_text() for page in sorted((DOCS / "claims").glob("*.md")))


def measure(
    steps: tuple[Callable[[bool], list[Measurement]], ...], quick: bool, name: str, title: str, text: str
) -> list[Measurement]:
    """Take the steps, print the table and, unless quick, write ``results/<name>.md`` and ``.json``.

    **Arguments:** text: what is measured, up to the first line of code.
    """
    begin, measurements, load = time.perf_counter(), [], os.getloadavg()[0]
    for step in steps:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _prepare) as process:
            found = process.submit(step, quick).result()
        measurements += found
        print(table(found), f"\n{time.perf_counter() - begin:.0f} s", flush=True)
    if not quick:
        RESULTS.mkdir(exist_ok=True)
        cores = multiprocessing.cpu_count()
        machine = (
            f"{platform.machine()}, {cores} CPUs, Python {platform.python_version()}, load {load:.1f} at the start"
        )
        about = text.split("    python")[0].strip()
        page = f"# {title}\n\n{about}\n\nMeasured on {machine}.\n\n{table(measurements)}\n"
        (RESULTS / f"{name}.md").write_text(page)
        rows = [dataclasses.asdict(measurement) for measurement in measurements]
        (RESULTS / f"{name}.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    return measurements


def table(measurements: list[Measurement]) -> str:
    """The measurements in Markdown."""
    lines = ["| what | measured | asked | met | note |", "|---|---|---|---|---|"]
    for m in measurements:
        met = m.value <= m.target if m.relation == "at most" else m.value >= m.target
        asked = f"{m.relation} {m.target:g}"
        lines.append(f"| {m.what} | {m.value:.3g} {m.unit} | {asked} | {'yes' if met else 'no'} | {m.note} |")
    return "\n".join(lines)


def cvode(
    field: Callable[[float, np.ndarray], np.ndarray],
    start: np.ndarray,
    t1: float,
    rtol: float,
    jacobian: Callable[[np.ndarray], np.ndarray] | None = None,
):
    """A flow by the BDF of SUNDIALS' CVODE (`pip install 'flowsim[benchmarks]'`) with atol = rtol max |start|: its
    solution, from a dense Jacobian, or by GMRES without one.
    """
    # A peer, which nothing but a benchmark needs: the type checker may run where it is not installed.
    from sksundae.cvode import CVODE  # pyright: ignore[reportMissingImports]

    def slope(t, y, out):
        out[:] = field(t, y)

    def dense(t, y, slope, out):
        assert jacobian is not None
        out[:, :] = jacobian(y)

    linear = {"linsolver": "gmres"} if jacobian is None else {"linsolver": "dense", "jacfn": dense}
    atol = rtol * np.max(np.abs(start))
    return CVODE(slope, rtol=rtol, atol=atol, max_num_steps=10**6, **linear).solve(np.array([0.0, t1]), start)


def _prepare() -> None:
    import flowsim

    flowsim.setup()
    import jax

    # A first call is one for which nothing was compiled before.
    jax.config.update("jax_compilation_cache_dir", None)
