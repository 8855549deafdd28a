"""A sweep of 1,000 starts, beside the same flows one by one, scipy and CVODE: cost of a flow, accuracy and memory.

The problem is that of `fixed_covariance` at d = 16: eigenvalues geometric from 1 to 0.01 in a random basis, N = 20,
rtol 1e-8, to t1 = 25 / (slowest rate at the minimum). The starts are balanced and random, 25 at each of 40 scales,
geometric from 1e-4 of the scale condition's bound to half of it. Each measurement runs in a process of its own; times
are warm, those of a sweep hold all it does, files included.

    python benchmarks/sweep.py            # the whole table, a few minutes
    python -c "from benchmarks.sweep import main; main(quick=True)"    # 100 starts
"""

import dataclasses
import json
import multiprocessing
import pathlib
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # to be run as a file, too
from benchmarks.fixed_covariance import (
    CONDITION,
    CONTEXT_LENGTH,
    RTOL,
    best_of,
    distance,
    in_numpy,
    in_own_process,
    of_weights,
    peak_megabytes,
    slowest_rate,
)
from benchmarks.measurements import cvode

D = 16
SEEDS = 25
SCALES = 40
RESULTS = pathlib.Path(__file__).parent / "results"
LIMIT = 900.0
TARGETS = {"flowsim one by one": 5.0, "scipy": 50.0, "CVODE": 50.0}
SCIPY_METHODS = ("BDF", "LSODA")


@dataclasses.dataclass
class Measurement:
    """One method; ``seconds_a_flow`` is warm, ``error`` the largest over the flows that were compared."""

    method: str
    flows: int
    seconds_a_flow: float | None = None
    first_seconds: float | None = None
    error: float | None = None
    peak_megabytes: float | None = None
    note: str = ""


def problem() -> tuple[dict[str, Any], float]:
    """The tables that all cells share, and the bound on the scale."""
    eigenvalues = np.geomspace(1.0, 1.0 / CONDITION, D)
    gamma = eigenvalues + (eigenvalues + eigenvalues.sum()) / CONTEXT_LENGTH
    covariance = {"condition": CONDITION, "dimension": D, "rotation_seed": 0}
    tables = {
        "task": {"context_length": CONTEXT_LENGTH, "covariance": covariance},
        "init": {"kind": "balanced"},
        "flow": {"rtol": RTOL, "t1": 25.0 / slowest_rate(eigenvalues, gamma)},
    }
    return tables, float(np.sqrt(2 / (np.sqrt(D) * gamma.max())))


def axes(scales: int, seeds: int) -> dict[str, list]:
    """The axes of a sweep with that many starts."""
    _, bound = problem()
    return {"init.scale": np.geomspace(1e-4 * bound, 0.5 * bound, scales).tolist(), "init.seed": list(range(seeds))}


def starts(count: int, first: int = 0) -> list[Any]:
    """Problems of some of the starts, spread over the sweep from the given one on."""
    from flowsim.experiments.sweep.axes import GridAxis
    from flowsim.experiments.sweep.maps import specs

    tables, _ = problem()
    cells = list(specs(tables, tuple(GridAxis.of(field, values) for field, values in axes(SCALES, SEEDS).items())))
    return [cells[i].build() for i in np.linspace(first, len(cells) - 1, count).round().astype(int)]


def measure_sweep(scales: int, seeds: int) -> Measurement:
    """`flowsim.sweep`, from the tables to the map on the disk; the error is that of the excess at t1/3000, relative."""
    import jax

    from flowsim.experiments.sweep.maps import sweep
    from flowsim.flow.gradient_flow import reduced_flow

    def run(early: float = 1.0):
        tables, _ = problem()
        tables["flow"]["t1"] *= early
        with tempfile.TemporaryDirectory() as folder:
            return sweep(tables, axes(scales, seeds), out=pathlib.Path(folder) / "map")

    first, _ = best_of(run, 0.0)
    best, found = best_of(run, 5.0)
    measurement = Measurement("flowsim sweep", scales * seeds, best / (scales * seeds), first)
    measurement.peak_megabytes = peak_megabytes()
    measurement.note = f"{int(found['steps'].mean())} steps a flow, {jax.device_count()} device"
    assert set(found["outcome"].flat) == {"global-minimum"}
    early = run(1 / 3000)
    errors = []
    for index in [(0, 0), (scales // 2, seeds // 2), (scales - 1, seeds - 1)]:
        cell = early.problem(index).build()
        exact = reduced_flow(cell.loss, cell.start, [float(early.tables["flow"]["t1"])], 1e-12)
        errors.append(abs(early["excess_end"][index] / float(exact.excess[-1]) - 1))
    measurement.error = float(max(errors))
    return measurement


def measure_one_by_one(points_per_decade: int | None, count: int) -> Measurement:
    """`gradient_flow` on the starts one after the other, each built beforehand."""
    from flowsim.flow.gradient_flow import reduced_flow

    problems = starts(count)
    run = lambda: [cell.run(points_per_decade=points_per_decade) for cell in problems]
    first, _ = best_of(run, 0.0)
    best, found = best_of(run, 5.0)
    name = "flowsim one by one" + (", default output" if points_per_decade is None else ", t1 alone")
    measurement = Measurement(name, count, best / count, first)
    measurement.peak_megabytes = peak_megabytes()
    cell, end = problems[-1], found[-1].end
    measurement.error = distance(end, reduced_flow(cell.loss, cell.start, [cell.spec.flow.t1], 1e-10).end)
    return measurement


def measure_scipy(method: str, count: int) -> Measurement:
    """`scipy.integrate.solve_ivp` as a user would call it, with the analytic gradient (5.4) in NumPy."""
    import scipy.integrate

    def solve(field, y, t1):
        atol = RTOL * np.max(np.abs(y))
        return scipy.integrate.solve_ivp(field, (0, t1), y, method=method, rtol=RTOL, atol=atol).y[:, -1]

    return _measure_peer(f"scipy {method}", solve, count)


def measure_cvode(count: int) -> Measurement:
    """CVODE's BDF with GMRES, with the same gradient."""
    return _measure_peer("CVODE BDF, GMRES", lambda field, y, t1: cvode(field, y, t1, RTOL).y[-1], count)


def _measure_peer(name: str, solve: Callable[..., np.ndarray], count: int) -> Measurement:
    """A peer on starts at the largest scale alone: smaller ones take it longer, up to minutes."""
    from flowsim.flow.gradient_flow import reduced_flow

    problems = starts(count, SEEDS * (SCALES - 1))
    flows = [(*in_numpy(cell.loss, cell.start, D), cell.spec.flow.t1) for cell in problems]
    first, ends = best_of(lambda: [solve(*flow) for flow in flows], 0.0)
    measurement = Measurement(name, count, first / count, first)
    measurement.peak_megabytes, measurement.note = peak_megabytes(), "at the largest scale, its easiest"
    cell = problems[-1]
    exact = reduced_flow(cell.loss, cell.start, [cell.spec.flow.t1], 1e-10).end
    measurement.error = distance(of_weights(ends[-1], D), exact)
    return measurement


def measure_memory(rtol: float, lanes: int) -> Measurement:
    """Peak memory of one batch; a tighter tolerance takes more steps."""
    from flowsim.experiments.sweep.axes import GridAxis
    from flowsim.experiments.sweep.integration import CellBatch, run
    from flowsim.experiments.sweep.maps import specs

    tables, _ = problem()
    tables["flow"]["rtol"] = rtol
    chosen = axes(1, lanes)
    cells = list(specs(tables, tuple(GridAxis.of(field, values) for field, values in chosen.items())))
    batch = CellBatch(tuple(range(lanes)), D, lanes)
    begin = time.perf_counter()
    (found,) = run([batch], cells, None)
    first = time.perf_counter() - begin
    measurement = Measurement(f"one batch of {lanes}, rtol {rtol:g}", lanes, None, first)
    measurement.peak_megabytes = peak_megabytes()
    measurement.note = f"{int((found['steps'] + found['rejected_steps']).mean())} steps a flow"
    return measurement


def measure_all(quick: bool) -> list[Measurement]:
    """Every method; scipy and the flows one by one on fewer starts of the same sweep."""
    scales, seeds, count = (10, 10, 5) if quick else (SCALES, SEEDS, 50)
    measurements = []

    def add(measure: Callable[..., Any], *arguments: Any) -> None:
        found: Any = in_own_process(measure, *arguments, limit=LIMIT)
        if not isinstance(found, Measurement):
            found = Measurement(found.method, arguments[-1], note=found.note)
        measurements.append(found)
        print(found, flush=True)

    add(measure_sweep, scales, seeds)
    add(measure_one_by_one, 0, count)
    add(measure_one_by_one, None, count)
    for method in SCIPY_METHODS:
        add(measure_scipy, method, max(5, count // 5))
    add(measure_cvode, max(5, count // 5))
    add(measure_sweep, scales, seeds)
    if not quick:
        for lanes, rtol in ((32, 1e-8), (128, 1e-8), (128, 1e-13), (512, 1e-8), (2048, 1e-8)):
            add(measure_memory, rtol, lanes)
    return measurements


def ratios(measurements: list[Measurement]) -> dict[str, float]:
    """How many times less a flow of the sweep costs, by rival; the sweep's cost is the better of its two."""
    seconds = [(m.method, m.seconds_a_flow) for m in measurements if m.seconds_a_flow is not None]
    ours = [value for name, value in seconds if name == "flowsim sweep"]
    if not ours:
        return {}
    rivals = {target: [value for name, value in seconds if name.startswith(target)] for target in TARGETS}
    return {target: min(values) / min(ours) for target, values in rivals.items() if values}


def table(measurements: list[Measurement]) -> str:
    """The measurements and the ratios as Markdown."""
    lines = [
        "| method | flows | a flow, warm (ms) | first time, all (s) | error | peak memory (MB) | note |",
        "|---|---|---|---|---|---|---|",
    ]
    text = lambda value, form, unit=1.0: "" if value is None else format(value * unit, form)
    for m in measurements:
        lines.append(
            f"| {m.method} | {m.flows} | {text(m.seconds_a_flow, '.3g', 1e3)} | {text(m.first_seconds, '.3g')} | "
            f"{text(m.error, '.1e')} | {text(m.peak_megabytes, '.0f')} | {m.note} |"
        )
    lines += ["", "| a flow of the sweep costs less than that of | by | target |", "|---|---|---|"]
    lines += [
        f"| {name}, at its best | {ratio:.1f}x | {TARGETS[name]:.0f}x |" for name, ratio in ratios(measurements).items()
    ]
    return "\n".join(lines)


def main(quick: bool = False) -> list[Measurement]:
    """Measure, print and, unless quick, write ``results/sweep.md`` and ``.json``."""
    measurements = measure_all(quick)
    text = table(measurements)
    print(text)
    if not quick:
        RESULTS.mkdir(exist_ok=True)
        machine = f"{platform.machine()}, {multiprocessing.cpu_count()} CPUs, Python {platform.python_version()}"
        header = f"# Sweeps\n\n{(__doc__ or '').split('Each')[0].strip()}\n\nMeasured on {machine}.\n\n"
        (RESULTS / "sweep.md").write_text(header + text + "\n")
        rows = [dataclasses.asdict(measurement) for measurement in measurements]
        document = {"machine": machine, "rows": rows, "ratios": ratios(measurements)}
        (RESULTS / "sweep.json").write_text(json.dumps(document, indent=1) + "\n")
    return measurements


if __name__ == "__main__":
    main()
