"""Change the starts of small problems: multiply or negate one array of weights or all arrays, or displace one array
or make it less symmetric.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.claims.spaces import Axis, Real, Space, Whole
from flowsim.experiments.search.counterexample import Counterexample
from flowsim.experiments.search.points import Sampler
from flowsim.experiments.search.screening import built, with_numbers
from flowsim.losses import AbstractPopulationLoss
from flowsim.problem import spec_of

_AMOUNT, _SEED, _CHANGE = "amount", "seed", "kind"  # of each change
_SIZE = 2  # dimensions, layers, heads of problems with a changed start


def changed(space: Space, place: int, times: int) -> Space:
    """A space of small problems, all of one shape, whose starts are changed.

    Sizes of arrays are 2 if their axis allows it. Each change applies to one array of the start, or to all. The
    axes ``change.K.kind``, ``change.K.amount`` and ``change.K.seed`` describe the K-th change, counted from 0.

    **Arguments:** space: the space of the problems; place: the index of the space; times: the number of successive
    changes.
    """
    example = Sampler(space, place, 0).draw(0, 1)[0].values
    axes = {
        name: Whole(size := min(max(_SIZE, axis.low), axis.high), size)
        if name in (*space.shaping, "init.rank") and isinstance(axis, Whole)
        else axis
        for name, axis in space.axes.items()
    }
    count = len(_changes(built(space, example)[1]))
    own: dict[str, Axis] = {_CHANGE: Whole(0, count - 1), _AMOUNT: Real(-3.0, 3.0), _SEED: Whole(0, 2**31 - 1)}
    axes |= {_name(number, kind): axis for number in range(times) for kind, axis in own.items()}

    def make(**values: Any) -> tuple[AbstractPopulationLoss, PyTree]:
        changes = [[values.pop(_name(number, kind)) for kind in own] for number in range(times)]
        if space.make is not None:
            loss, start = space.make(**values)
        else:
            known = {key: value for key, value in values.items() if checks.is_concrete(value)}
            numbers = {key: value for key, value in values.items() if key not in known}
            problem = with_numbers(spec_of(space.tables({**example, **known})), numbers).build()
            loss, start = problem.loss, problem.start
        for change, amount, seed in changes:
            weights, rest = eqx.partition(start, eqx.is_inexact_array)
            ways = [
                functools.partial(way, amount=jnp.asarray(amount, dtype=float), key=jax.random.key(seed))
                for way in _changes(start).values()
            ]
            start = eqx.combine(jax.lax.switch(jnp.asarray(change, dtype=int), ways, weights), rest)
        return loss, start

    return Space(axes, make=make, shapes=space.shaping, sized_by=space.sized_by)


def _name(number: int, kind: str) -> str:
    return f"change.{number}.{kind}"


def _changes(start: PyTree) -> dict[str, Callable[..., PyTree]]:
    """The possible changes of a start, by their description. Each is a function (weights, amount, key) ->
    weights.
    """
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


def described(found: Counterexample) -> Counterexample:
    """The counterexample with the changes of its start in words, as the value "start", instead of the axes of the
    changes.
    """
    values, said = dict(found.values), []
    ways = [*_changes(found.evidence.trajectory.start)]
    for number in itertools.count():
        if _name(number, _CHANGE) not in values:
            break
        change, amount, seed = (values.pop(_name(number, kind)) for kind in (_CHANGE, _AMOUNT, _SEED))
        by = "" if ways[change].startswith("minus") else f" {amount:.4g}"
        random = f" (seed {seed})" if ways[change].endswith(("moved", "symmetric")) else ""
        said.append(f"{ways[change]}{by}{random}")
    start = {"start": ", then ".join(said)} if said else {}
    return dataclasses.replace(found, values=values | start)
