"""Which hypotheses of a claim are needed: problems that meet all of them but one, at which the statement may fail.

Besides the claim's own spaces, those of its paper's other claims about the same models are searched, and starts in
which one array of weights is multiplied, negated, made less symmetric or moved.
"""

import dataclasses
import functools
import itertools
import math
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from flowsim import papers
from flowsim._core import checks
from flowsim._core.documents import plain, versions, write_json
from flowsim._core.text import counted
from flowsim._core.types import Document, Scalar
from flowsim.claims import Claim
from flowsim.claims.spaces import Real, Space, Whole
from flowsim.experiments.search.clock import Clock
from flowsim.experiments.search.counterexample import Counterexample, confirmed, shrunk
from flowsim.experiments.search.points import Point, Sampler
from flowsim.experiments.search.screening import Margin, Screen, built, with_numbers
from flowsim.losses import AbstractPopulationLoss
from flowsim.problem import spec_of

_AMOUNT, _SEED, _CHANGE = "change.amount", "change.seed", "change.kind"
_SIZE = 2  # dimensions, layers, heads of problems with a changed start
_CONFIRMED = 3  # problems that are judged for each hypothesis
_FAR = 1e3  # a larger factor is not worth a word
_LOOKING = 0.6  # of the budget, before any problem is judged


@dataclasses.dataclass(frozen=True)
class Ablated:
    """What is known of one hypothesis, or of several that are only ever unmet together.

    **Fields:**

    - names: the conditions.
    - counterexample: one of them at which it is violated.
    - misses: of each problem the factor by which it misses them, and whether the statement fails.
    - least: the least margin of all of them.
    """

    names: tuple[str, ...]
    counterexample: Counterexample | None
    misses: tuple[tuple[float, bool], ...]
    least: float

    @property
    def problems(self) -> int:
        """How many problems met all hypotheses but these."""
        return len(self.misses)

    @property
    def fails(self) -> int:
        """At how many of them the statement seems to fail."""
        return sum(failed for _, failed in self.misses)

    @property
    def factor(self) -> float:
        """The least factor by which a failure misses them; infinite if none does."""
        return min((factor for factor, failed in self.misses if failed), default=math.inf)

    @property
    def verdict(self) -> str:
        """ "needed", "not found needed", or "never unmet alone" where no problem could tell."""
        if self.counterexample is not None:
            return "needed"
        return "not found needed" if self.problems else "never unmet alone"

    def __str__(self) -> str:
        name = " and ".join(self.names)
        if self.counterexample is not None:
            said = f"{name}: needed. Without it the statement fails at {self.counterexample.where}"
            if 1 < self.factor < _FAR:
                by = f"{self.factor - 1:.2g} of its size" if self.factor < 2 else f"a factor of {self.factor:.3g}"
                said += f"; the nearest failure misses it by {by}"
            return f"{said}."
        if not self.problems:
            return f"{name}: never unmet alone, in no problem that was tried."
        fails = f"; {self.fails} seemed to fail, but were not judged violated" if self.fails else ""
        tried = f"{counted(self.problems, 'problem')}, with a least margin of {self.least:.3g}"
        return f"{name}: not found needed in {tried}{fails}."


@dataclasses.dataclass(frozen=True)
class Ablation:
    """Which hypotheses of a claim are needed.

    **Fields:**

    - claim: the claim.
    - hypotheses: a row for each hypothesis, then one for each set of several that are unmet together where one of them
      is never unmet alone.
    - problems: the number of problems tried.
    - seconds: the time spent.
    """

    claim: Claim
    hypotheses: tuple[Ablated, ...]
    problems: int
    seconds: float

    def __str__(self) -> str:
        head = f"{self.claim.id} [{self.claim.form}], {self.problems} problems in {self.seconds:.0f} s:"
        return "\n".join([head, *(f"  {row}" for row in self.hypotheses)])

    def document(self) -> Document:
        """The contents of ablation.json."""
        rows = [
            {
                "hypotheses": row.names,
                "verdict": row.verdict,
                "problems": row.problems,
                "fails": row.fails,
                "factor": row.factor,
                "least": row.least,
                "counterexample": None if row.counterexample is None else row.counterexample.document(),
            }
            for row in self.hypotheses
        ]
        head = {"id": self.claim.id, "form": self.claim.form, "statement": self.claim.text}
        return plain(head | {"hypotheses": rows, "problems": self.problems, "versions": versions()})

    def save(self, folder: str | os.PathLike) -> None:
        """Write ablation.json."""
        write_json(pathlib.Path(folder) / "ablation.json", self.document())


def ablate(
    claim: Claim,
    *,
    budget: int | float = 600,
    problems: int | None = None,
    seed: int = 0,
    out: str | os.PathLike | None = None,
    progress: bool = False,
) -> Ablation:
    """Search, for each hypothesis of a claim, for a problem that meets all others and violates the statement.

    **Arguments:**

    - claim: the claim.
    - budget: seconds. At most one more unit of work is done (see `Clock`).
    - problems: a number of problems instead. The result then depends on the seed and not on the clock.
    - seed: the seed of the draws.
    - out: a folder for ablation.json.
    - progress: whether to show a progress bar.

    **Raises:** `ValueError` if the claim has no spaces or no hypotheses.
    """
    if not claim.spaces:
        checks.refuse(f"the claim {claim.id}", "one with a space of problems to search", "it declares none")
    clock = Clock(budget, problems)
    loss, start, _ = built(claim.spaces[0], Sampler(claim.spaces[0], 0, seed).draw(0, 1)[0].values)
    names = [condition.name for condition in claim.hypotheses(loss, start)]
    if not names:
        checks.refuse(f"the claim {claim.id}", "one with hypotheses", "it has none")
    with clock.shown(claim.id, progress):
        changed = [_changed(space, place) for place, space in enumerate(claim.spaces)]
        spaces = (*changed, *claim.spaces, *_siblings(claim))
        seen = _looked(claim, spaces, len(changed), seed, clock)
        rows = tuple(_row(claim, spaces, group, seen, clock) for group in _groups(names, seen))
    found = Ablation(claim, rows, len(seen), clock.seconds)
    if out is not None:
        pathlib.Path(out).mkdir(parents=True, exist_ok=True)
        found.save(out)
    return found


def _siblings(claim: Claim) -> list[Space]:
    """The other spaces of the claim's paper, of claims about the same models."""
    paper, found = claim.id.partition(".")[0], []
    for other in papers.ALL_CLAIMS:
        if other.id.partition(".")[0] == paper and other.models == claim.models:
            found += [space for space in other.spaces if space not in (*claim.spaces, *found)]
    return found


def _changed(space: Space, place: int) -> Space:
    """A space of problems of one small shape with one array of the start changed, or all of them."""
    example = Sampler(space, place, 0).draw(0, 1)[0].values
    axes = {
        name: Whole(size := min(max(_SIZE, axis.low), axis.high), size)
        if name in (*space.shaping, "init.rank") and isinstance(axis, Whole)
        else axis
        for name, axis in space.axes.items()
    }
    count = len(_changes(built(space, example)[1]))
    axes |= {_CHANGE: Whole(0, count - 1), _AMOUNT: Real(-3.0, 3.0), _SEED: Whole(0, 2**31 - 1)}

    def make(**values: Any) -> tuple[AbstractPopulationLoss, PyTree]:
        change, amount, seed = (values.pop(name) for name in (_CHANGE, _AMOUNT, _SEED))
        if space.make is not None:
            loss, start = space.make(**values)
        else:
            known = {key: value for key, value in values.items() if checks.is_concrete(value)}
            numbers = {key: value for key, value in values.items() if key not in known}
            problem = with_numbers(spec_of(space.tables({**example, **known})), numbers).build()
            loss, start = problem.loss, problem.start
        weights, rest = eqx.partition(start, eqx.is_inexact_array)
        ways = [
            functools.partial(way, amount=jnp.asarray(amount, dtype=float), key=jax.random.key(seed))
            for way in _changes(start).values()
        ]
        return loss, eqx.combine(jax.lax.switch(jnp.asarray(change, dtype=int), ways, weights), rest)

    return Space(axes, make=make, shapes=space.shaping, sized_by=space.sized_by)


def _changes(start: PyTree) -> dict[str, Callable[..., PyTree]]:
    """The ways to change a start, each (weights, amount, key) -> weights, by a description."""
    paths = jax.tree_util.tree_leaves_with_path(eqx.filter(start, eqx.is_inexact_array))
    leaves = [(place, jax.tree_util.keystr(path).lstrip("."), leaf) for place, (path, leaf) in enumerate(paths)]
    every = tuple(place for place, _, _ in leaves)
    found = {"all weights times": functools.partial(_scaled, places=every)}
    found["minus all weights"] = functools.partial(_negated, places=every)
    for place, name, leaf in leaves:
        found[f"{name} times"] = functools.partial(_scaled, places=(place,))
        found[f"minus {name}"] = functools.partial(_negated, places=(place,))
        found[f"{name} moved"] = functools.partial(_moved, place=place)
        if leaf.ndim == 2 and leaf.shape[0] == leaf.shape[1]:
            found[f"{name} less symmetric"] = functools.partial(_skewed, place=place)
    return found


def _scaled(weights: PyTree, amount: Scalar, key: Array, places: tuple[int, ...]) -> PyTree:
    leaves, structure = jax.tree.flatten(weights)
    scaled = [amount * leaf if place in places else leaf for place, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, scaled)


def _negated(weights: PyTree, amount: Scalar, key: Array, places: tuple[int, ...]) -> PyTree:
    return _scaled(weights, jnp.asarray(-1.0), key, places)


def _moved(weights: PyTree, amount: Scalar, key: Array, place: int) -> PyTree:
    return _with_noise(weights, amount, key, place, lambda noise: noise)


def _skewed(weights: PyTree, amount: Scalar, key: Array, place: int) -> PyTree:
    skewed, structure = jax.tree.flatten(_with_noise(weights, amount, key, place, lambda noise: noise - noise.T))
    before, after = jnp.linalg.norm(jax.tree.leaves(weights)[place]), jnp.linalg.norm(skewed[place])
    skewed[place] = skewed[place] * before / jnp.where(after > 0, after, 1.0)
    return jax.tree.unflatten(structure, skewed)


def _with_noise(weights: PyTree, amount: Scalar, key: Array, place: int, shape: Callable[[Array], Array]) -> PyTree:
    leaves, structure = jax.tree.flatten(weights)
    size = jnp.max(jnp.asarray([jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]))
    leaves[place] = leaves[place] + amount * size * shape(jax.random.normal(key, leaves[place].shape))
    return jax.tree.unflatten(structure, leaves)


def _looked(claim: Claim, spaces: Sequence[Space], changed: int, seed: int, clock: Clock) -> list[tuple[Point, Margin]]:
    """Problems with the margin of the statement, where it is known, and the hypotheses that are not met.

    **Arguments:** changed: how many of the first spaces change the start. Every second batch is drawn from these.
    """
    screen = Screen(claim, spaces, clock.longest, beyond=True)
    seen: list[tuple[Point, Margin]] = []
    spare = (1 - _LOOKING) * clock.budget if math.isfinite(clock.budget) else 0.0
    for number in itertools.count():
        turn, first, count = number // 2, *((0, changed) if number % 2 == 0 else (changed, len(spaces) - changed))
        place, batch = first + turn % count, turn // count
        sampler = Sampler(spaces[place], place, seed)
        points = sampler.draw(batch, screen.lanes(sampler.draw(batch, 1)[0]))
        seen += [(point, margin) for point, margin in screen.look(points, clock) if not math.isnan(margin.margin)]
        if clock.has_ended(len(seen)) or clock.is_up("looking at problems", spare):
            return seen
    return seen


def _groups(names: Sequence[str], seen: Sequence[tuple[Point, Margin]]) -> Iterator[frozenset[str]]:
    """Each hypothesis, and where it is never unmet alone the smallest set with which it most often is."""
    counts = Counter(frozenset(margin.unmet) for _, margin in seen)
    together = set()
    for name in names:
        yield frozenset([name])
        others = [group for group in counts if name in group]
        if others and not counts[frozenset([name])]:
            together.add(min(others, key=lambda group: (len(group), -counts[group], sorted(group))))
    yield from sorted(together, key=sorted)


def _row(
    claim: Claim,
    spaces: Sequence[Space],
    group: frozenset[str],
    seen: Sequence[tuple[Point, Margin]],
    clock: Clock,
) -> Ablated:
    """The result of the problems at which exactly these hypotheses are not met."""
    of_group = [(point, margin) for point, margin in seen if frozenset(margin.unmet) == group]
    fails = sorted((one for one in of_group if one[1].clear), key=lambda one: one[1].margin)
    others = lambda loss, start: [one for one in claim.hypotheses(loss, start) if one.name not in group]
    screen = Screen(dataclasses.replace(claim, hypotheses=others), spaces, clock.longest)
    found: Counterexample | None = None
    for point, _ in fails[:_CONFIRMED]:
        clock.tell(f"judging without {', '.join(sorted(group))}")
        if not isinstance(judged := confirmed(screen, point), str):
            simpler, _ = shrunk(screen, point, clock, 0.0)
            smaller = confirmed(screen, simpler) if simpler.values != point.values else judged
            found = _described(judged if isinstance(smaller, str) else smaller, spaces, point)
            break
    margins = [margin.margin for _, margin in of_group]
    misses = tuple((math.exp(margin.distance), margin.clear) for _, margin in of_group)
    return Ablated(tuple(sorted(group)), found, misses, min(margins, default=math.nan))


def _described(found: Counterexample, spaces: Sequence[Space], point: Point) -> Counterexample:
    """The counterexample with its change of the start in words."""
    if _CHANGE not in found.values:
        return found
    values = dict(found.values)
    change = [*_changes(found.evidence.trajectory.start)][values.pop(_CHANGE)]
    amount, seed = values.pop(_AMOUNT), values.pop(_SEED)
    by = "" if change.startswith("minus") else f" {amount:.4g}"
    random = f" (seed {seed})" if change.endswith(("moved", "symmetric")) else ""
    return dataclasses.replace(found, values=values | {"start": f"{change}{by}{random}"})
