"""The record of a run: its chunks in memory and on disk, and the trajectory that is made of them."""

import dataclasses
import enum
import functools
import hashlib
import math
import os
import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from flowsim._core import checks
from flowsim._core import hosts as hosts
from flowsim._core.documents import origin, require_origin
from flowsim._core.files import DamagedFileError, ignore_damaged, read_arrays, write_arrays
from flowsim._core.types import Options
from flowsim.flow.solvers.clock import origin_moves
from flowsim.flow.solvers.step_size import SMALLEST
from flowsim.flow.systems import AbstractSystem, Descent, Record
from flowsim.flow.trajectory import (
    COUNTED,
    SAME,
    SERIES,
    STEP_SIZE,
    AbstractDescent,
    Certificates,
    Settings,
    Status,
    Trajectory,
    weights,
)


def check_model(model: PyTree) -> None:
    """Refuse a model without weights, or with weights that are not float64, not finite, or named like a field of
    `Trajectory`.
    """
    checks.require_float64()
    flowing = weights(eqx.filter(model, eqx.is_inexact_array))
    if not sum(leaf.size for leaf in flowing.values()):
        checks.refuse("model", "an Equinox module with float64 weights", "it has none")
    for name in weights(model):
        if name in (*SERIES, *COUNTED, STEP_SIZE, "metadata"):
            checks.refuse(f"model.{name}", "a weight of another name", f'a trajectory has a field "{name}" already')
    for name, leaf in flowing.items():
        if leaf.dtype != jnp.float64:
            checks.refuse(f"model.{name}", "float64", f"it is {leaf.dtype}")
        if checks.is_concrete(leaf) and not np.all(np.isfinite(np.asarray(leaf))):
            checks.refuse(f"model.{name}", "finite", "it holds NaN or infinity")


class Role(enum.IntEnum):
    """The purpose of a recorded state: TO_GO_ON to start the next chunk only, WANTED as an output at a requested
    time, REGULAR as an output at the end of a step. Stopping rules are tested at REGULAR states only.
    """

    TO_GO_ON = 0
    WANTED = 1
    REGULAR = 2


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A finished stretch of a run, with T recorded states. The next chunk begins at the last state.

    **Fields:**

    - t: (T,) the times from the start of the run.
    - record: the `Record` of the states, with time on the first axis.
    - dissipated: (T,) the energy dissipated since t = 0.
    - roles: (T,) the `Role` of each state.
    - largest: (T,) the largest |grad L|^2 from the start of the chunk to each time.
    - steps: (2,) the numbers of accepted and rejected steps in the chunk.
    - next_step: the length of the first step of the next chunk, 0 if unknown.
    - failure: the status that says how the integration failed in the chunk, or None.
    - since, origins: (T,) each time, counted from an origin, and this origin.
    - fields: the number of evaluations of the field in the chunk.
    - turn: how often the solver has changed since the start of the run.
    - directions: the number of eigenvectors of the Hessian to keep in the next chunk, 0 if unknown.
    - wanted: the time of the last output, counted from the origin.
    - timescale: the time in which the gradient changes at the origin of the next chunk, 0 if this is the start.
    - anew: whether the end of this chunk is the origin of the next one.
    """

    t: np.ndarray
    record: Record
    dissipated: np.ndarray
    roles: np.ndarray
    largest: np.ndarray
    steps: np.ndarray
    next_step: float
    failure: Status | None
    since: np.ndarray
    origins: np.ndarray
    fields: int = 0
    turn: int = 0
    directions: int = 0
    wanted: float = 0.0
    timescale: float = 0.0
    anew: bool = False

    @property
    def reached(self) -> float:
        """The time at the end of the chunk, counted from its origin."""
        return float(self.since[-1])


def chunk_of(t: np.ndarray, record: Record, dissipated: np.ndarray, steps: np.ndarray) -> Chunk:
    """A chunk that is a whole run, of which all states are outputs. For the arguments see `Chunk`."""
    largest = np.maximum.accumulate(record.grad_norm_sq)
    roles = np.full(t.size, Role.WANTED)
    return Chunk(t, record, dissipated, roles, largest, steps, 0.0, None, since=t, origins=np.zeros(t.size))


class ChunkStore:
    """A folder with the finished chunks of one run. Each file holds a digest that identifies the run. If several
    hosts share a mesh, only the first of them reads and writes.

    **Arguments:** folder: the folder, None to store nothing; identity: everything that determines the run; mesh:
    the devices of the run, or None.
    """

    def __init__(self, folder: str | os.PathLike | None, identity: PyTree, mesh: jax.sharding.Mesh | None):
        self.folder, self._mesh = None if folder is None else pathlib.Path(folder), mesh
        self._identity = "" if folder is None else _digest(identity)

    def load(self, index: int, like: Record) -> Chunk | None:
        """The chunk number ``index``; None if it is missing or damaged. ``like`` is any record of the run.

        **Raises:** `ForeignFileError`, a `ValueError`, if the file belongs to another run or another version of the
        software.
        """
        if self.folder is None:
            return None
        file = hosts.by_first(self._mesh, functools.partial(_read, self._path(self.folder, index), self._identity))
        if file is None:
            return None
        leaves = [file[f"record{i}"] for i in range(len(jax.tree.leaves(like)))]
        failure = str(file["failure"])
        rest: Options = {name: file[name] for name in _ARRAYS}
        rest |= {name: file[name].item() for name in _NUMBERS}
        record = jax.tree.unflatten(jax.tree.structure(like), leaves)
        return Chunk(record=record, failure=Status(failure) if failure else None, **rest)

    def save(self, index: int, chunk: Chunk) -> None:
        """Write the chunk number ``index``. A partial file is never visible."""
        if self.folder is None:
            return
        arrays = {f"record{i}": leaf for i, leaf in enumerate(jax.tree.leaves(chunk.record))}
        arrays |= {name: getattr(chunk, name) for name in _ARRAYS}
        arrays |= {name: np.asarray(getattr(chunk, name)) for name in _NUMBERS}
        arrays["failure"] = np.asarray(chunk.failure.value if chunk.failure else "")
        arrays["origin"] = np.asarray(origin(self._identity))
        hosts.by_first(self._mesh, functools.partial(_write, self._path(self.folder, index), arrays))

    @staticmethod
    def _path(folder: pathlib.Path, index: int) -> pathlib.Path:
        return folder / f"chunk-{index:05d}.npz"


def _digest(identity: PyTree) -> str:
    digest = hashlib.sha256()
    arrays, rest = eqx.partition(identity, eqx.is_array)
    digest.update(eqx.tree_pformat(rest).encode())  # all of it, where the repr of a loss is short
    for leaf in jax.tree.leaves(arrays):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        # An array that is distributed over several hosts cannot be read.
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
            digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


def _read(path: pathlib.Path, identity: str) -> dict[str, np.ndarray] | None:
    if not path.exists():
        return None
    try:
        arrays = read_arrays(path)
    except DamagedFileError as error:
        ignore_damaged(error, "it is integrated again")
        return None
    require_origin(arrays.get("origin"), identity, "checkpoint", "run", path)
    return arrays


def _write(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_arrays(path, arrays)


_SHORTEST = 32  # output times that one program decodes, for models with few weights
_ROUNDINGS = 16  # units of rounding of the loss
_PADDING = 2**20  # weights by which a batch may be padded for decoding
_ROWS = ("t", "since", "origins", "dissipated", "roles", "largest")
_ARRAYS = (*_ROWS, "steps")
_NUMBERS = ("next_step", "fields", "turn", "directions", "wanted", "timescale", "anew")


def distinct(t: np.ndarray, same: float) -> np.ndarray:
    """A mask (T,) of the times that differ from the next one, t_i < (1 - same) t_{i+1}, and of the last time.

    **Arguments:**

    - t: (T,) increasing times.
    - same: the relative difference up to which two times count as equal.
    """
    return np.append(t[:-1] < (1 - same) * t[1:], np.ones(t[-1:].size, dtype=bool))


def join(chunks: list[Chunk]) -> Chunk:
    """Join the chunks of a run into one, without the states that only start the next chunk. Of two states at the
    same time up to rounding, the later one is kept.
    """
    wanted = np.concatenate([chunk.roles for chunk in chunks]) > Role.TO_GO_ON
    since, origins = (
        np.concatenate([getattr(chunk, name) for chunk in chunks])[wanted] for name in ("since", "origins")
    )
    # During a late drop all steps are distinct.
    same = SMALLEST / 2 if np.any(origins) else SAME
    wanted[wanted] = distinct(since, same) | np.append(origin_moves(origins, since), True)
    joined = lambda *leaves: np.concatenate(leaves)[wanted]
    rows = {name: joined(*[getattr(chunk, name) for chunk in chunks]) for name in _ROWS}
    return dataclasses.replace(
        chunks[-1],
        record=jax.tree.map(joined, *[chunk.record for chunk in chunks]),
        steps=np.sum([chunk.steps for chunk in chunks], axis=0),
        fields=sum(chunk.fields for chunk in chunks),
        **rows,
    )


def truncate(chunk: Chunk, length: int) -> Chunk:
    """The chunk with its first ``length`` recorded states only."""
    rows = {name: getattr(chunk, name)[:length] for name in _ROWS}
    return dataclasses.replace(chunk, record=jax.tree.map(lambda leaf: leaf[:length], chunk.record), **rows)


@eqx.filter_jit
def _record_all(system, states):
    return jax.lax.map(system.record, states)


def records(system: AbstractSystem, states: PyTree) -> Record:
    """The record of states, both with time on the first axis, in NumPy arrays."""
    return jax.tree.map(np.asarray, _record_all(system, states))


@np.errstate(invalid="ignore", over="ignore")  # a run may end because numbers overflow
def trajectory(system: AbstractSystem, run: Chunk, status: Status, settings: Settings) -> Trajectory:
    """The trajectory of a finished run, with certificates computed from its record.

    **Arguments:** system: the flow; run: all chunks of the run, joined; status: how the run ended; settings: the
    settings of the solver.
    """
    record = run.record
    lost = record.loss[0] - record.loss if np.isnan(record.excess[0]) else record.excess[0] - record.excess
    # Energies and defects below the rounding of the loss count as zero.
    known_to = np.finfo(float).eps * np.max(np.abs(record.loss))
    scale = max(np.max(run.dissipated), known_to, np.finfo(float).tiny)
    off = max(np.max(np.abs(lost - run.dissipated)) - _ROUNDINGS * known_to, 0.0)
    drift = np.max(np.abs(record.conserved - record.conserved[0])) / max(np.max(record.norm_sq), np.finfo(float).tiny)
    return Trajectory(
        t=jax.device_put(run.t),
        counted=None if not np.any(run.origins) else jax.device_put((run.origins, run.since)),
        models=_decoded(system, record.state),
        loss=jax.device_put(record.loss),
        excess=jax.device_put(record.excess),
        grad_norm_sq=jax.device_put(record.grad_norm_sq),
        dissipated=jax.device_put(run.dissipated),
        certificates=Certificates(
            energy_defect=float(off / scale),
            balance_drift=None if np.isnan(drift) else float(drift),
            steps=int(run.steps[0]),
            rejected_steps=int(run.steps[1]),
        ),
        settings=settings,
        status=status,
        descent=Descent(system),
    )


def _decoded(system: AbstractSystem, states: PyTree) -> PyTree:
    """The models of states, decoded in batches of few shapes, so that few programs are compiled."""
    count = jax.tree.leaves(states)[0].shape[0]
    shortest = min(_SHORTEST, _PADDING // system.entries(jax.tree.map(lambda leaf: leaf[0], states)))
    spare = 2 ** (max(count, shortest) - 1).bit_length() - count
    stretch = lambda leaf: jax.device_put(np.concatenate([leaf, np.repeat(leaf[-1:], spare, 0)]))
    cut = lambda leaf: jax.device_put(np.asarray(leaf)[:count]) if eqx.is_array(leaf) else leaf
    return jax.tree.map(cut, _decode_all(system, jax.tree.map(stretch, states)))


@eqx.filter_jit
def _decode_all(system: AbstractSystem, states: PyTree) -> PyTree:
    return eqx.filter_vmap(system.decode)(states)


def uncertified(
    t: Float[Array, " T"],
    models: PyTree,
    loss: Float[Array, " T"],
    excess: Float[Array, " T"],
    grad_norm_sq: Float[Array, " T"],
    dissipated: Float[Array, " T"],
    descent: AbstractDescent | None = None,
    step_size: Float[Array, " T"] | None = None,
) -> Trajectory:
    """A trajectory for comparisons only. Its certificates say that the accuracy is unknown. It may be built inside
    a JAX trace, since its static fields are constants. For the arguments see `Trajectory`.
    """
    # What is not known must not look like perfect accuracy.
    certificates = Certificates(energy_defect=math.nan, balance_drift=None, steps=0, rejected_steps=0)
    settings = Settings(solver="", rtol=0.0, atol=0.0)
    if step_size is not None and descent is not None:
        known = {name: getattr(descent, name) for name in ("momentum", "direction") if hasattr(descent, name)}
        settings = dataclasses.replace(settings, **known)
    return Trajectory(
        t,
        models,
        loss,
        excess,
        grad_norm_sq,
        dissipated,
        certificates,
        settings,
        Status.TIME,
        way_to_go=jnp.asarray(jnp.inf),
        descent=descent,
        step_size=step_size,
    )
