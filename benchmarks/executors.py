"""The same sweep, audit and search in one process and in several: seconds, and whether the bytes are the same.

A map of 2,000 starts at d = 16, the claims of zhang2025, and a search for a counterexample of zhang2023's PL
inequality among 2,000 problems, which has none; each by this process, by two processes of this machine and, where
they are installed, by two workers of dask and by submitit, a process a unit, on this machine. All compiled before.

    python benchmarks/executors.py        # or --quick
"""

import contextlib
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # to be run as a file, too
from benchmarks.measurements import Measurement, measure

TABLES = {
    "task": {"context_length": 20, "covariance": {"condition": 10.0, "dimension": 16, "rotation_seed": 0}},
    "init": {"kind": "balanced"},
}


@contextlib.contextmanager
def _dask() -> Iterator[Any]:
    from distributed import Client, LocalCluster  # pyright: ignore[reportMissingImports]

    cluster = LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        dashboard_address=None,  # pyright: ignore[reportArgumentType]
    )
    with cluster, Client(cluster) as client:
        yield client.get_executor()


@contextlib.contextmanager
def _submitit() -> Iterator[Any]:
    import submitit  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        executor = submitit.AutoExecutor(folder=folder, cluster="local")
        executor.update_parameters(timeout_min=30)
        yield executor


@contextlib.contextmanager
def _processes() -> Iterator[Any]:
    from flowsim.experiments.executors import Processes

    with Processes(2) as processes:
        yield processes


def _executors() -> dict[str, Any]:
    found = {"this process": contextlib.nullcontext, "two processes": _processes}
    with contextlib.suppress(ImportError):
        import distributed  # noqa: F401  # pyright: ignore[reportMissingImports]

        found["dask, two workers"] = _dask
    with contextlib.suppress(ImportError):
        import submitit  # noqa: F401  # pyright: ignore[reportMissingImports]

        found["submitit, a process a unit"] = _submitit
    return found


def measure_sweep(quick: bool) -> list[Measurement]:
    """Seconds of a sweep, and how many of its arrays differ from those of one process."""
    import flowsim

    flowsim.setup()
    axes = {"init.scale": "geom:1e-3:1:20", "init.seed": f"0:{9 if quick else 99}"}
    found, before, alone = [], None, 0.0
    for name, executor in _executors().items():
        with tempfile.TemporaryDirectory() as folder, executor() as one:
            if before is None:
                flowsim.sweep(TABLES, axes, out=f"{folder}/first")
            begin = time.perf_counter()
            values = flowsim.sweep(TABLES, axes, out=f"{folder}/map", executor=one).quantities
            spent = time.perf_counter() - begin
        bytes_of = {name: array.tobytes() for name, array in values.items()}
        before, alone = (bytes_of, spent) if before is None else (before, alone)
        differing = sum(bytes_of[name] != before[name] for name in before)
        found += [
            Measurement(f"sweep, {name}", spent / alone, "of one process", "at most", 1.2, f"{spent:.1f} s"),
            Measurement(f"sweep, {name}: arrays that differ", differing, "", "at most", 0),
        ]
    return found


def measure_audit(quick: bool) -> list[Measurement]:
    """Seconds of an audit, and how many of its files differ from those of one process."""
    import flowsim

    flowsim.setup()  # an audit forgets its programs as it goes: without those on the disk it would compile them again
    from flowsim.experiments.audit import Kept, judge_all
    from flowsim.papers import ALL_CLAIMS

    claims = [claim for claim in ALL_CLAIMS if claim.id.startswith("zhang2025.eq-9" if quick else "zhang2025.")]
    found, before, alone = [], None, 0.0
    for name, executor in _executors().items():
        with tempfile.TemporaryDirectory() as folder, executor() as one:
            if before is None:
                judge_all(claims)
            begin = time.perf_counter()
            judge_all(claims, kept=Kept(pathlib.Path(folder)), executor=one)
            spent = time.perf_counter() - begin
            units = {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}
        before, alone = (units, spent) if before is None else (before, alone)
        differing = sum(units.get(name) != before[name] for name in before)
        found += [
            Measurement(f"audit, {name}", spent / alone, "of one process", "at most", 1.2, f"{spent:.1f} s"),
            Measurement(f"audit, {name}: verdicts that differ", differing, "", "at most", 0),
        ]
    return found


def measure_search(quick: bool) -> list[Measurement]:
    """Seconds of a search, and whether its file differs from that of one process."""
    import flowsim

    flowsim.setup()
    (claim,) = flowsim.find_claims(flowsim.ALL_CLAIMS, "zhang2023.lemma-5.4.pl")
    problems, found, before, alone = 64 if quick else 2000, [], None, 0.0
    for name, executor in _executors().items():
        with tempfile.TemporaryDirectory() as folder, executor() as one:
            if before is None:
                flowsim.refute(claim, problems=problems)
            begin = time.perf_counter()
            flowsim.refute(claim, problems=problems, out=folder, executor=one)
            spent = time.perf_counter() - begin
            written = (pathlib.Path(folder) / "search.json").read_bytes()
        before, alone = (written, spent) if before is None else (before, alone)
        found += [
            Measurement(f"search, {name}", spent / alone, "of one process", "at most", 1.2, f"{spent:.1f} s"),
            Measurement(f"search, {name}: files that differ", int(written != before), "", "at most", 0),
        ]
    return found


def main(quick: bool = False) -> list[Measurement]:
    """Measure and print; unless quick, write the results."""
    return measure(
        (measure_sweep, measure_audit, measure_search), quick, "executors", "In many processes", str(__doc__)
    )


if __name__ == "__main__":
    main("--quick" in sys.argv)
