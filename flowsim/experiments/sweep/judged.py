"""The columns of a map about claims: the margin of each in a cell, and whether its hypotheses are met there."""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from flowsim import papers
from flowsim._core.types import Scalar
from flowsim.claims import Claim
from flowsim.experiments.margins import seen, traced_start
from flowsim.experiments.sweep.courses import courses, dtypes_of_course
from flowsim.experiments.sweep.portrait import Portrait, portrait_of
from flowsim.experiments.sweep.records import MapRecord
from flowsim.flow.recording import uncertified
from flowsim.flow.solvers.summary import is_known
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.sampled.monte_carlo import stated
from flowsim.problem import Problem

_ENTRIES = 2**22  # numbers in the models along flows that are judged at once


class Judged:
    """The claims that a sweep judges in each cell, and what else it records there.

    **Arguments:**

    - claims: the claims for each name of a margin in the map. Several claims may share a name if no loss is covered
      by two of them.
    - curves: whether to record the time series of each flow too.
    - portrait: the plane in which to record the path of each flow, or None.
    """

    def __init__(self, claims: Mapping[str, Sequence[Claim]], curves: bool = False, portrait: Portrait | None = None):
        self.curves, self.portrait = curves, portrait
        self.claims = {name: tuple(of_name) for name, of_name in claims.items()}
        self._key = tuple((name, *map(id, of_name)) for name, of_name in self.claims.items())

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Judged) and self._key == other._key

    def parts(self) -> "list[Judged]":
        """For each name of a margin, a `Judged` with the claims of this name alone."""
        return [Judged({name: of_name}) for name, of_name in self.claims.items()]


class Asked(NamedTuple):
    """What a sweep records in addition to the end of each flow.

    **Fields:**

    - claims: a pattern of ids, as in `chosen`.
    - curves: whether to record the time series of each flow.
    - portrait: the names of two numbers in whose plane the path of each flow is recorded too, or None.
    """

    claims: str | None = None
    curves: bool = False
    portrait: tuple[str, ...] | None = None


ASKED = Asked()


class Left(NamedTuple):
    """The margin of a claim in a cell.

    **Fields:**

    - margin: the least margin. NaN if the claim says nothing about the cell, if the margin could not be computed,
      or if the statement holds only because its sides have different signs.
    - t: the time of the least margin.
    - counts: whether the margin can be compared with those of other claims.
    - met: whether the hypotheses are met.
    - which: the number of the claim among those with the same name; -1 if none covers the loss.
    """

    margin: Scalar
    t: Scalar
    counts: Bool[Array, ""]
    met: Bool[Array, ""]
    which: Array


def chosen(
    pattern: str | None, problems: Iterable[Problem], curves: bool = False, portrait: Sequence[str] | None = None
) -> Judged:
    """The claims to judge in the cells of a sweep.

    **Arguments:**

    - pattern: of the ids of claims. Without a pattern, the claims are those that papers name for maps.
    - problems: the problems of some cells, at least one for each model. A claim must be about one of their models.
    - curves, portrait: as in `Asked`.
    """
    problems = list(problems)
    plane = None if portrait is None else portrait_of(portrait, problems[0])
    if pattern is None:
        return Judged(papers.MAPPED, curves, plane)
    own = [claim for problem in problems[:1] for claim in problem.spec.own(Claim) if not claim.of_descent]
    found: dict[str, list[Claim]] = {}
    for claim in (*papers.ALL_CLAIMS, *own):
        if fnmatch.fnmatchcase(claim.id, pattern) and any(claim.is_about(problem.start) for problem in problems):
            name = claim.id if claim.form == "printed" else f"{claim.id}.{claim.form}"
            found.setdefault(name, []).append(claim)
    return Judged(found, curves, plane)


def dtypes(judged: Judged) -> dict[str, np.dtype]:
    """The dtypes of a map's columns about claims and time series."""
    ids = [claim.id for claims in judged.claims.values() for claim in claims]
    return {
        **{f"margin_{name}{part}": np.dtype(float) for name in judged.claims for part in ("", "_time")},
        **{f"met_{name}": np.dtype(bool) for name in judged.claims},
        **{name: np.dtype(float) for name in ("smallest_margin", "smallest_margin_time")},
        "smallest_margin_name": np.dtype(f"<U{max(map(len, ids))}"),
        **(dtypes_of_course(judged.portrait) if judged.curves else {}),
    }


def record_of_claims(
    judged: Judged, losses: PyTree, starts: PyTree, runs: Trajectory, subtracted: Float[Array, " lanes"]
) -> MapRecord:
    """The columns of a map about claims, and those that papers add, with lanes on the first axis.

    **Arguments:**

    - judged: the claims.
    - losses, starts: the losses and the models at t = 0.
    - runs: the flows.
    - subtracted: the minimum that was subtracted from each loss to compute its excess, or 0.
    """
    columns = {name: np.asarray(values) for name, values in _columns(losses, runs).items()}
    if judged.curves:
        columns |= courses(runs, judged.portrait)
    names = tuple(judged.claims)
    if not names:
        return columns
    left = _left_of(judged, losses, starts, runs, subtracted)
    values, times, counts = (
        np.stack([getattr(left[name], part) for name in names]) for part in ("margin", "t", "counts")
    )
    known = np.any(counts, axis=0)
    smallest = np.argmin(np.where(counts, values, np.inf), axis=0)[None]
    pick = lambda rows: np.take_along_axis(rows, smallest, axis=0)[0]
    ids = np.stack([np.asarray([*(claim.id for claim in judged.claims[name]), ""])[left[name].which] for name in names])
    return columns | {
        **{f"margin_{name}": row for name, row in zip(names, values, strict=True)},
        **{f"margin_{name}_time": row for name, row in zip(names, times, strict=True)},
        **{f"met_{name}": np.asarray(left[name].met) for name in names},
        "smallest_margin": np.where(known, pick(values), np.nan),
        "smallest_margin_time": np.where(known, pick(times), np.nan),
        "smallest_margin_name": np.where(known, pick(ids), ""),
    }


def _left_of(judged: Judged, *given: PyTree) -> dict[str, Left]:
    """The margins of claims for flows, with lanes on the first axis.

    One program computes all claims. If some claim cannot be traced, each claim gets its own program, and the claims
    that cannot be traced are compared flow by flow.
    """
    try:
        return jax.tree.map(np.asarray, _program(judged, *given))
    except Exception:
        if len(judged.claims) > 1:
            return {name: left for part in judged.parts() for name, left in _left_of(part, *given).items()}
    at = lambda lane: jax.tree.map(lambda leaf: leaf[lane] if eqx.is_array(leaf) else leaf, given)
    found = [_by_itself(judged, *at(lane)) for lane in range(given[-1].shape[0])]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *found)


def _by_itself(judged: Judged, *given: PyTree) -> dict[str, Left]:
    """The margins of claims for one flow. If they cannot be computed, they are NaN."""
    try:
        return _one(judged, *given)
    except (ValueError, ArithmeticError, MemoryError, jax.errors.JaxRuntimeError):
        return dict.fromkeys(judged.claims, _nothing())


@eqx.filter_jit
def _program(judged: Judged, losses: PyTree, starts: PyTree, runs: Trajectory, subtracted: Array) -> dict[str, Left]:
    arrays, others = eqx.partition((losses, starts, runs, subtracted), eqx.is_array)
    entries = sum(leaf[0].size for leaf in jax.tree.leaves(eqx.filter(runs, eqx.is_array)))
    size = max(1, _ENTRIES // entries)
    one = lambda arrays: _one(judged, *eqx.combine(arrays, others))
    return jax.lax.map(one, arrays, batch_size=min(size, subtracted.shape[0]))


@eqx.filter_jit
def _columns(losses: PyTree, runs: Trajectory) -> dict[str, Array]:
    return eqx.filter_vmap(papers.columns_of)(losses, runs)


def _one(
    judged: Judged, loss: AbstractPopulationLoss, start: PyTree, run: Trajectory, subtracted: Scalar
) -> dict[str, Left]:
    loss, run = stated(loss), _until_rounding(run, subtracted)
    return {name: _left(claims, loss, start, run) for name, claims in judged.claims.items()}


def _left(claims: Sequence[Claim], loss: AbstractPopulationLoss, start: PyTree, run: Trajectory) -> Left:
    """The margin of the first claim that covers the loss."""
    for which, claim in enumerate(claims):
        if claim.foreign(loss, start) is not None:
            continue
        along = run if claim.along_flow else traced_start(loss, start)
        found = seen(claim, loss, start, along)
        room, met = found.room, jnp.all(jnp.asarray([True, *found.met]))
        # If the sides have different signs, only these show that a statement holds.
        known = jnp.isfinite(room.margin) & ~((room.margin > 0) & (room.value * room.bound < 0))
        # A bound of zero has no relative margin, and an identity cannot have a positive one.
        counts = known & jnp.where(room.identity, room.clear, (room.bound != 0) | (room.margin <= 0))
        t = along.t[jnp.minimum(room.row, along.t.shape[0] - 1)]
        margin, t = (jnp.where(known, value, jnp.nan) for value in (room.margin, t))
        return Left(margin, t, counts, met, jnp.asarray(which))
    return _nothing()


def _nothing() -> Left:
    nan, no = jnp.asarray(jnp.nan), jnp.asarray(False)
    return Left(nan, nan, no, no, jnp.asarray(-1))


def _until_rounding(run: Trajectory, subtracted: Scalar) -> Trajectory:
    """The flow up to the last row whose excess is more than rounding. All later rows repeat this row."""
    lost = ~is_known(run.excess, subtracted) & jnp.isfinite(run.excess)
    rows = jnp.arange(run.t.shape[0])
    last = jnp.max(jnp.where(lost, 0, rows))
    pick = lambda leaf: leaf[jnp.minimum(rows, last)] if eqx.is_array(leaf) else leaf
    series = map(pick, (run.loss, run.excess, run.grad_norm_sq, run.dissipated))
    return uncertified(pick(run.t), jax.tree.map(pick, run.models), *series)
