"""`flowsim sweep` and `flowsim explore`: integrate the problems of a grid, and draw the map or write the page."""

import collections
import pathlib
from collections.abc import Sequence

import numpy as np

from flowsim._core.files import folder_of
from flowsim._core.types import Document
from flowsim.cli.common import FINISHED, UNFINISHED, part_of, print_json, tables_of
from flowsim.cli.devices import Hosts, mesh_over
from flowsim.experiments.executors import executor_of
from flowsim.experiments.sweep import maps
from flowsim.experiments.sweep.axes import GridAxis
from flowsim.experiments.sweep.judged import Asked
from flowsim.experiments.sweep.maps import Map
from flowsim.experiments.sweep.planning import checked
from flowsim.problem import toml
from flowsim.report.explore import to_explore, write_explored


def sweep(
    path: pathlib.Path,
    out: pathlib.Path,
    *,
    over: Sequence[str],
    overrides: Sequence[str],
    claims: str | None,
    as_json: bool,
    resume: bool,
    format: str,
    disk_budget: float,
    quiet: bool,
    devices: str | None,
    jobs: int,
    scheduler: str | None,
    shard: str | None,
) -> int:
    """Integrate the problems of a grid, and draw their map in the folder ``out``.

    With ``shard``, the text I/N, only integrate the I-th of N parts of the grid, and print what is missing. The
    other arguments are those of `flowsim.cli.commands.problems.sweep`.

    **Returns:** the exit status: 3 if a cell was not integrated to its end, else 0.
    """
    tables, axes = grid_of(path, over, overrides)
    mesh = mesh_over(devices, Hosts())
    plan = checked(tables, axes, Asked(claims), disk_budget, mesh)
    unfinished, part = Map(tables, axes, {}, out, claims, made=plan.made), part_of(shard, out)
    with folder_of(out), executor_of(jobs, scheduler) as executor:
        if shard is not None:
            missing = maps.integrate_part(unfinished, plan, part, not quiet, mesh, executor)
            print(_what_is_missing(len(plan.batches), missing, part[1], shard))
            return FINISHED
        found = maps.entered(unfinished, plan, resume, not quiet, mesh, executor)

    from flowsim.report.plots.maps import draw  # slow to import

    (out / "figures").mkdir(exist_ok=True)
    figure = out / "figures" / f"map.{format}"
    draw(found, figure)
    counts = collections.Counter(found["outcome"].ravel().tolist())
    failed = np.argwhere(found["outcome"] == "failed")
    if as_json:
        places = {"map": str(out / "map.npz"), "figure": str(figure)}
        print_json(places | {"outcomes": counts, "failed": [found.command(cell.tolist()) for cell in failed]})
        return UNFINISHED if failed.size else FINISHED
    if not quiet:
        print(*(f"{count:>8}  {outcome}" for outcome, count in sorted(counts.items())), sep="\n")
    print(f"map: {figure}")
    if failed.size:
        print(f"{len(failed)} cells were not integrated to their end, the first of them by:")
        print(found.command(failed[0].tolist()))
        return UNFINISHED
    return FINISHED


def explore(
    path: pathlib.Path,
    out: pathlib.Path,
    *,
    over: Sequence[str],
    overrides: Sequence[str],
    claims: str | None,
    portrait: str | None,
    quiet: bool,
) -> int:
    """Integrate the problems of a grid, and write the page that shows their flows with sliders."""
    page = to_explore(*grid_of(path, over, overrides), out, claims, portrait)
    print(f"page: {write_explored(page, not quiet)}")
    return FINISHED


def grid_of(path: pathlib.Path, over: Sequence[str], overrides: Sequence[str]) -> tuple[Document, tuple[GridAxis, ...]]:
    """Return the tables that all cells share, and the axes of the grid.

    **Arguments:** path: the problem; over: texts FIELD=VALUES, one for each axis; overrides: texts FIELD=VALUE.
    """
    tables = dict(tables_of(path))
    for assignment in overrides:
        toml.override(tables, assignment)
    return maps.tables_of(tables), tuple(GridAxis.parse(axis) for axis in over)


def _what_is_missing(count: int, missing: Sequence[int], parts: int, shard: str) -> str:
    """Say in one line which batches are missing after a part of a sweep, and how to draw the map.

    **Arguments:** count: the number of all batches; missing: the indices of missing ones; parts: the number of
    parts; shard: the option --shard of this part.
    """
    line = f"the map is drawn by the same command with --resume in place of --shard {shard}"
    if not missing:
        return f"All {count} batches are there: {line}."
    left = collections.Counter(place % parts + 1 for place in missing)
    names = ", ".join(f"{number}/{parts} ({left[number]})" for number in sorted(left))
    return f"{count - len(missing)} of {count} batches are there, those of {names} are missing: when all are, {line}."
