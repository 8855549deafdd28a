"""`flowsim sweep`: integrate a grid of problems and draw the map."""

import pathlib
from collections.abc import Sequence

import numpy as np

from flowsim.cli.common import FINISHED, UNFINISHED, folder_of, tables_of
from flowsim.cli.devices import Hosts, mesh_over
from flowsim.experiments.executors import executor_of
from flowsim.experiments.sweep import maps
from flowsim.experiments.sweep.axes import GridAxis
from flowsim.experiments.sweep.maps import Map
from flowsim.problem import toml


def sweep(
    path: pathlib.Path,
    out: pathlib.Path,
    *,
    over: Sequence[str],
    overrides: Sequence[str],
    resume: bool,
    format: str,
    disk_budget: float,
    quiet: bool,
    devices: str | None,
    jobs: int,
    scheduler: str | None,
) -> int:
    """Integrate the problem over a grid of its fields and draw the map; everything goes to the folder ``out``."""
    tables = dict(tables_of(path))
    for assignment in overrides:
        toml.override(tables, assignment)
    tables, axes = maps.tables_of(tables), tuple(GridAxis.parse(axis) for axis in over)
    mesh = mesh_over(devices, Hosts())
    plan = maps.checked(tables, axes, disk_budget, mesh)
    with folder_of(out), executor_of(jobs, scheduler) as executor:
        found = maps.entered(Map(tables, axes, {}, out), plan, resume, not quiet, mesh, executor)

    from flowsim.report.plots.maps import draw  # slow to import

    (out / "figures").mkdir(exist_ok=True)
    figure = out / "figures" / f"map.{format}"
    draw(found, figure)
    outcomes, counts = np.unique(found["outcome"], return_counts=True)
    if not quiet:
        print(*(f"{count:>8}  {outcome}" for outcome, count in zip(outcomes, counts, strict=True)), sep="\n")
    print(f"map: {figure}")
    failed = np.argwhere(found["outcome"] == "failed")
    if failed.size:
        print(f"{len(failed)} cells were not integrated to their end, the first of them by:")
        print(found.command(failed[0].tolist()))
        return UNFINISHED
    return FINISHED
