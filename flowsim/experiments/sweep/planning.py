"""The plan of a sweep, checked before anything is integrated or written."""

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from flowsim._core.checks import ProblemError, nearest, refuse, require_float64
from flowsim._core.types import Tables
from flowsim.experiments.sweep import integration
from flowsim.experiments.sweep.axes import GridAxis, grid_shape, specs
from flowsim.experiments.sweep.integration import CellBatch
from flowsim.experiments.sweep.judged import Asked, chosen, dtypes
from flowsim.experiments.sweep.kept import OF_BATCHES
from flowsim.experiments.sweep.records import DTYPES
from flowsim.problem import AbstractSpec, ProblemSpec, known_fields


class SweepPlan(NamedTuple):
    """The plan of a sweep.

    **Fields:**

    - cells: the problems of all cells. The last axis varies fastest.
    - batches: the batches in which the cells are integrated.
    - asked: what is recorded.
    - made: a digest of the losses and starts that a user's function returned for the cells, or None.
    """

    cells: list[AbstractSpec]
    batches: list[CellBatch]
    asked: Asked
    made: str | None = None


def checked(
    tables: Tables, axes: tuple[GridAxis, ...], asked: Asked, disk_budget: float, mesh: Mesh | None
) -> SweepPlan:
    """The plan of a sweep, after all checks.

    **Arguments:**

    - tables: the problem that all cells share.
    - axes: the axes of the grid.
    - asked: what is recorded.
    - disk_budget: the largest size of the map in MB.
    - mesh: devices that share samples.

    **Raises:** `ProblemError` in one line if a problem is not valid, no claim matches, or the map is larger than
    the disk budget.
    """
    require_float64()
    if not axes:
        refuse("a sweep", "over at least one axis", "there is none")
    names, known = [axis.field for axis in axes], known_fields(tables)
    for name in names:
        if name not in known:
            raise ProblemError(f"{name} is not a known field{nearest(name, known)}")
        if names.count(name) > 1:
            refuse("a sweep", "over different fields", f"{name} is there twice")
    if "budget_seconds" in tables.get("flow", {}):
        refuse("flow.budget_seconds", "left out of a sweep, whose cells do not depend on the clock", "it is given")
    if "descent" in tables.get("flow", {}) or any(name.startswith("flow.descent") for name in names):
        refuse("flow.descent", "left out of a sweep, whose cells are flows", "it is given")
    count = math.prod(grid_shape(axes))
    _check_size(count, tuple(DTYPES.values()), disk_budget)
    cells = list(specs(tables, axes))
    models = [spec.build(mesh=mesh) for spec in _of_each_model(cells)]
    judged = chosen(asked.claims, models, asked.curves, asked.portrait)
    if not judged.claims:
        refuse("--claims", "a pattern of the id of some claim about these models", f'none matches "{asked.claims}"')
    known = DTYPES | dtypes(judged)
    _check_size(count, tuple(known.values()), disk_budget)
    for name in cells[0].observables:
        if name in (*known, *OF_BATCHES, "metadata"):
            refuse("OBSERVABLES", "names that no array of a map has", f'one is "{name}"')
    return SweepPlan(cells, integration.plan(cells, mesh), asked, _made(cells))


def _made(cells: Sequence[AbstractSpec]) -> str | None:
    """A digest of the losses and starts that a user's function returns for the cells. The digest is needed since
    the function may read data that no field of the problem names. None for problems that problem files describe.
    """
    if any(isinstance(spec, ProblemSpec) for spec in cells):
        return None
    digest = hashlib.sha256()
    for spec in cells:
        digest.update(spec.build().identity.encode())
    return digest.hexdigest()


def _check_size(count: int, kinds: tuple[np.dtype, ...], disk_budget: float) -> None:
    """Raise `ProblemError` if a map is larger than the disk budget.

    **Arguments:** count: the number of cells; kinds: the dtypes of the map's columns; disk_budget: in MB.
    """
    # Finished batches exist together with the map until it is complete.
    megabytes = 2 * count * sum(kind.itemsize for kind in kinds) / 1e6
    if not megabytes <= disk_budget:
        came = f"its {count} cells take {megabytes:.3g} MB"
        refuse("the map", f"within the disk budget of {disk_budget:g} MB (--disk-budget)", came)


def _of_each_model(cells: Sequence[AbstractSpec]) -> list[AbstractSpec]:
    """The first cell for each model that problem files name. Problems of a user's function name no model, and the
    first cell stands for all of them.
    """
    return list({repr(getattr(spec, "model", None)): spec for spec in reversed(cells)}.values())
