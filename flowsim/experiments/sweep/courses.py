"""The time series of each flow of a sweep: the excess and the modes at some of its times.

The modes are the eigenvalues or singular values of the model's matrices; see `learned`.
"""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from flowsim.experiments.modes import learned
from flowsim.experiments.sweep.portrait import Portrait, flat
from flowsim.experiments.sweep.records import MapRecord
from flowsim.flow.trajectory import Trajectory

ROWS, MODES = 64, 16  # at most, of a flow
_LOOKED_AT = 512  # rows of a longer flow
_SAID = 512  # characters of the names of modes

COURSE = {
    "curve_t": np.dtype((float, (ROWS,))),
    "curve_value": np.dtype((float, (ROWS,))),
    "curve_modes": np.dtype((float, (ROWS, MODES))),
    "curve_is_excess": np.dtype(bool),
    "curve_names": np.dtype(f"<U{_SAID}"),
}


def dtypes_of_course(portrait: Portrait | None) -> dict[str, np.dtype]:
    """The dtypes of the columns of `courses`."""
    if portrait is None:
        return COURSE
    return COURSE | {
        "curve_path": np.dtype((float, (ROWS, 2))),
        "curve_end": np.dtype((float, (portrait.size,))),
    }


def courses(runs: Trajectory, portrait: Portrait | None) -> MapRecord:
    """The columns of a map with the time series of flows.

    - curve_t, curve_value: some times of each flow and the values there, NaN after the last one.
    - curve_is_excess: whether the values are the excess. If the excess is unknown, they are the loss.
    - curve_modes: the modes at these times, NaN after the last one.
    - curve_names: for each matrix its name, the kind of its modes, how many are recorded, and how many there are,
      as JSON.
    - curve_path: with a portrait, the points of each flow in the plane of the portrait, NaN after the last one.
    - curve_end: with a portrait, all weights at the end.

    **Arguments:** runs: the flows, with lanes on the first axis; portrait: the plane, or None.
    """
    runs = jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, runs)
    lanes = []
    for lane in range(runs.t.shape[0]):
        of_lane = _of_lane(runs, lane)
        lanes.append(_course(*of_lane) | ({} if portrait is None else _path_in(portrait, of_lane[-1])))
    kinds = dtypes_of_course(portrait)
    return {name: np.stack([np.asarray(lane[name], kind.base) for lane in lanes]) for name, kind in kinds.items()}


def _of_lane(runs: Trajectory, lane: int) -> tuple[np.ndarray, np.ndarray, bool, PyTree]:
    """The times of one flow, its values, whether these are the excess, and its models, without the rows that repeat
    the end.
    """
    t, excess = np.asarray(runs.t[lane]), np.asarray(runs.excess[lane])
    known = bool(np.any(excess > 0))
    values = excess if known else np.asarray(runs.loss[lane])
    weights = [leaf[lane].reshape(t.size, -1) for leaf in jax.tree.leaves(runs.models) if isinstance(leaf, np.ndarray)]
    finite = np.all([np.isfinite(values), *(np.all(np.isfinite(leaf), axis=1) for leaf in weights)], axis=0)
    new = finite[1:] & ((np.diff(t) != 0) | (np.diff(values) != 0))
    rows = np.concatenate([[0], np.flatnonzero(new) + 1])
    if rows.size > _LOOKED_AT:
        rows = rows[_spread(np.arange(rows.size), _LOOKED_AT)]
    pick = lambda leaf: jnp.asarray(leaf[lane][rows]) if isinstance(leaf, np.ndarray) else leaf
    return t[rows], values[rows], known, jax.tree.map(pick, runs.models)


def _course(t: np.ndarray, values: np.ndarray, known: bool, models: PyTree) -> dict[str, object]:
    names, modes = [], np.full((t.size, MODES), np.nan)
    place = 0
    for name, (found, kind) in learned(models).items():
        # The largest at the end, in their order.
        largest = np.sort(np.argsort(-np.abs(found[-1]), kind="stable")[: MODES - place])
        modes[:, place : place + largest.size] = found[:, largest]
        place += largest.size
        names.append([name, kind, largest.size, found.shape[1]])
    if len(json.dumps(names)) > _SAID:
        names = [[f"matrix {number}", *rest] for number, (_, *rest) in enumerate(names, 1)]
    # Rows are dense where a curve bends, on logarithmic axes.
    with np.errstate(all="ignore"):
        path = np.arange(t.size) / t.size + sum(map(_path, (np.log(t), np.log(values), *modes.T)))
    rows = _spread(path, ROWS)
    course: dict[str, object] = {
        name: _filled(array[rows]) for name, array in (("curve_t", t), ("curve_value", values), ("curve_modes", modes))
    }
    return course | {"curve_is_excess": known, "curve_names": json.dumps(names)}


def _path_in(portrait: Portrait, models: PyTree) -> dict[str, object]:
    points = np.stack([portrait.x.along(models), portrait.y.along(models)], axis=1)
    rows = _spread(np.arange(len(points)) / len(points) + sum(map(_path, points.T)), ROWS)
    last = jax.tree.map(lambda leaf: leaf[-1] if eqx.is_array(leaf) else leaf, models)
    return {"curve_path": _filled(points[rows]), "curve_end": flat(last)}


def _filled(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([rows, np.full((ROWS - len(rows), *rows.shape[1:]), np.nan)])


def _path(curve: np.ndarray) -> np.ndarray:
    """The length of a curve up to each row, divided by the range of the curve. Steps of unknown length count as
    zero.
    """
    known = curve[np.isfinite(curve)]
    width = np.ptp(known) if known.size else 0.0
    steps = np.abs(np.diff(curve, prepend=curve[:1])) / (width or 1.0)
    return np.cumsum(np.where(np.isfinite(steps), steps, 0.0))


def _spread(path: np.ndarray, most: int) -> np.ndarray:
    """The indices of at most ``most`` rows at nearly equal distances along an increasing path, including the first
    and the last row.
    """
    if path.size <= most:
        return np.arange(path.size)
    return np.unique(np.searchsorted(path, np.linspace(path[0], path[-1], most)).clip(0, path.size - 1))
