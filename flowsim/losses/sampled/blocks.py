"""Sums over samples, in blocks that fit into memory and caches, on one device or on the devices of a mesh.

The last axis of every array of draws counts the samples. A sample depends on the key and its index only. So sums do
not depend on the blocks and devices, up to rounding.
"""

import functools
import os
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, ArrayLike, Float, Key, PRNGKeyArray, PyTree

from flowsim._core import checks
from flowsim._core import hosts as hosts
from flowsim.losses.sampled.estimators import AbstractEstimator

AXIS = "samples"

_PROBE = 64
_DRAWN_AT_ONCE = 2**26  # bytes
_KEPT = 1 / 8  # of the memory for the draws; replicates, fresh prompts and a temporary copy take as much each
_CACHE_BYTES = 2**13  # for one array of a block: a quarter of the smallest common first-level cache
_BLOCKS = (16, 1024)  # the smallest and largest block on a CPU
_LARGEST_BLOCK = 2**20
_TANGENTS = 512  # up to this many weights, an end point carries a tangent for each at once
COLUMNS = 8  # tangents that are carried at once for more weights


class Samples(eqx.Module):
    """The samples number ``first`` to ``first + count - 1`` of a key. ``draws`` is None if the samples are drawn
    again at every use.
    """

    key: PRNGKeyArray
    first: Array
    draws: PyTree | None
    count: int = eqx.field(static=True)


class BlockPlan(NamedTuple):
    """The number of samples to compute at once on a device, and whether all draws are stored."""

    block: int
    kept: bool


def check_mesh(mesh: Mesh) -> None:
    """Check that the devices of a mesh can share samples.

    **Raises:** `ValueError` unless the mesh has a single axis, named "samples" and of type Auto.
    """
    if mesh.axis_names != (AXIS,) or mesh.axis_types != (AxisType.Auto,):
        types = zip(mesh.axis_names, mesh.axis_types, strict=True)
        axes = ", ".join(f'"{name}" of type {kind.name}' for name, kind in types)
        checks.refuse("mesh", f'one with the single axis "{AXIS}", of type Auto', f"it has {axes}")


def plan(estimator: AbstractEstimator, model: PyTree, samples: int, block: int | None, mesh: Mesh | None) -> BlockPlan:
    """Choose a plan that fits into the memory of each device.

    **Arguments:** estimator, model: for the memory of one sample; samples: the number of all samples; block: the
    number of samples to compute at once, or None to choose it; mesh: the devices, None for one.

    **Raises:** `ValueError` if no plan fits, or if the given block does not fit.
    """
    devices = 1 if mesh is None else mesh.size
    local = jax.local_devices()[:1] if mesh is None else mesh.local_devices
    shared = len(local) if local[0].platform == "cpu" else 1
    memory = hosts.least(mesh, min(_free_bytes(device) for device in local) / shared)
    draw_bytes = _draw_bytes(estimator)
    weights = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
    at_once = _needs(estimator, model).bytes * (1 + (weights if weights <= _TANGENTS else COLUMNS))
    fits = int(memory / 2 / at_once)
    if block is not None and block > max(fits, 1):
        checks.refuse(
            "block", f"at most {max(fits, 1)}, which {memory / 2**30:.2g} GiB of memory hold", f"it is {block}"
        )
    if fits < 1:
        came = f"one sample takes {at_once / 2**30:.2g} GiB"
        checks.refuse("model", f"small enough for {memory / 2**30:.2g} GiB of memory", came)
    if block is None:
        cached = 2 ** int(np.log2(max(_CACHE_BYTES / draw_bytes, 1)))
        block = int(np.clip(cached, *_BLOCKS)) if local[0].platform == "cpu" else _LARGEST_BLOCK
    return BlockPlan(min(block, fits, samples // devices), samples * draw_bytes / devices <= memory * _KEPT)


@eqx.filter_jit
def total(
    function: Callable[..., PyTree],
    estimator: AbstractEstimator,
    samples: Samples,
    block: int | None,
    mesh: Mesh | None,
    *models: PyTree,
) -> PyTree:
    """The sum of a function over all samples. function(estimator, draws, *models) returns the sum over the given
    draws.

    **Arguments:** samples: all samples; block: the number of samples to compute at once, None for all; mesh: the
    devices that share the samples, None for one.
    """

    def of_part(part: Samples, estimator: AbstractEstimator, *models: PyTree) -> PyTree:
        at = lambda start, size: function(estimator, _draws(estimator, part, start, size), *models)
        size = min(block or part.count, part.count)
        rest = part.count % size or size
        add = lambda sum, start: (jax.tree.map(jnp.add, sum, at(start, size)), None)
        return jax.lax.scan(add, at(0, rest), jnp.arange(rest, part.count, size))[0]

    if mesh is None:
        return of_part(samples, estimator, *models)

    def of_device(part: Samples, *everything: PyTree) -> PyTree:
        # All sums travel in one message.
        sums, unravel = ravel_pytree(of_part(part, *everything))
        return unravel(jax.lax.psum(sums, AXIS))

    return _shared(of_device, mesh, samples, PartitionSpec(), estimator, *models)


@eqx.filter_jit
def each(
    estimator: AbstractEstimator, model: PyTree, samples: Samples, block: int | None, mesh: Mesh | None
) -> Float[Array, " samples"]:
    """(samples,) the squared errors of all samples. With a mesh, every device holds the whole array."""

    def of_part(part: Samples, estimator: AbstractEstimator, model: PyTree) -> Float[Array, " samples"]:
        errors = lambda start, size: estimator.squared_errors(model, _draws(estimator, part, start, size))
        size = min(block or part.count, part.count)
        remainder = part.count % size
        whole = jax.lax.map(lambda start: errors(start, size), jnp.arange(remainder, part.count, size)).reshape(-1)
        return jnp.concatenate([errors(0, remainder), whole]) if remainder else whole

    if mesh is None:
        return of_part(samples, estimator, model)
    parts = _shared(of_part, mesh, samples, PartitionSpec(AXIS), estimator, model)
    return jax.lax.with_sharding_constraint(parts, NamedSharding(mesh, PartitionSpec()))


@eqx.filter_jit
def drawn(estimator: AbstractEstimator, samples: Samples, mesh: Mesh | None) -> PyTree:
    """The draws of all samples. With a mesh, each device holds a part of them."""

    def of_part(part: Samples, estimator: AbstractEstimator) -> PyTree:
        indices = part.first + jnp.arange(part.count, dtype=part.first.dtype)
        one = lambda index: estimator.draw(jax.random.fold_in(part.key, index))
        at_once = int(np.clip(_DRAWN_AT_ONCE / _draw_bytes(estimator), 1, part.count))
        leading = jax.lax.map(one, indices, batch_size=at_once)
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), leading)

    fresh = Samples(samples.key, samples.first, None, samples.count)
    if mesh is None:
        return of_part(fresh, estimator)
    shapes = jax.eval_shape(estimator.draw, samples.key)
    out = jax.tree.map(lambda leaf: PartitionSpec(*[None] * leaf.ndim, AXIS), shapes)
    return _shared(of_part, mesh, fresh, out, estimator)


def cost(estimator: AbstractEstimator, model: PyTree, keys: Key[Array, " count"]) -> float:
    """The variance of the gradient of one sample, multiplied by the number of operations that XLA counts for this
    gradient. The variance is estimated from the samples with these ``keys``.
    """
    return float(_variance(estimator, model, keys)) * _needs(estimator, model).operations


@eqx.filter_jit
def _variance(estimator: AbstractEstimator, model: PyTree, keys: Key[Array, " count"]) -> Float[Array, ""]:
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)

    def slope(key: PRNGKeyArray) -> PyTree:
        draws = jax.tree.map(lambda leaf: leaf[..., None], estimator.draw(key))
        return jax.grad(lambda arrays: jnp.sum(estimator.squared_errors(eqx.combine(arrays, rest), draws)))(arrays)

    slopes = jax.lax.map(slope, keys, batch_size=_PROBE)
    return sum((jnp.sum(jnp.var(leaf, axis=0)) for leaf in jax.tree.leaves(slopes)), jnp.zeros(()))


class _Needs(NamedTuple):
    """The bytes and floating-point operations that the squared error of one sample and its gradient take."""

    bytes: float
    operations: float


def _needs(estimator: AbstractEstimator, model: PyTree) -> _Needs:
    leaves, structure = jax.tree.flatten((estimator, model))
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf for leaf in leaves]
    return _needs_of_shapes(structure, tuple(shapes))


@functools.lru_cache(maxsize=64)
def _needs_of_shapes(structure: Hashable, leaves: tuple) -> _Needs:
    is_shape = lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)
    shapes, rest = eqx.partition(jax.tree.unflatten(structure, leaves), is_shape)

    def both(arrays: PyTree, draws: PyTree) -> tuple[Float[Array, ""], PyTree]:
        estimator, model = eqx.combine(arrays, rest)
        weights, fixed = eqx.partition(model, eqx.is_inexact_array)
        error = lambda weights: jnp.sum(estimator.squared_errors(eqx.combine(weights, fixed), draws))
        return jax.value_and_grad(error)(weights)

    draw = lambda arrays, keys: jax.vmap(eqx.combine(arrays, rest)[0].draw, out_axes=-1)(keys)
    draws = jax.eval_shape(draw, shapes, jax.eval_shape(lambda: jax.random.split(jax.random.key(0), _PROBE)))
    compiled = jax.jit(both).lower(shapes, draws).compile()
    memory, counts = compiled.memory_analysis(), compiled.cost_analysis() or {}
    temporary = 0 if memory is None else memory.temp_size_in_bytes
    return _Needs(max(temporary / _PROBE, 8.0), float(counts.get("flops", 1.0)) / _PROBE)


def _shared(function: Callable, mesh: Mesh, samples: Samples, out: PyTree, *arguments: PyTree) -> PyTree:
    """Call function(samples, *arguments) on every device of a mesh, with the part of the samples that it holds.
    ``out`` gives the partition of the results.
    """
    arrays, rest = eqx.partition(arguments, eqx.is_array)
    parts = jax.tree.map(lambda leaf: PartitionSpec(*[None] * (leaf.ndim - 1), AXIS), samples.draws)
    where = Samples(PartitionSpec(), PartitionSpec(), parts, samples.count)  # pyright: ignore[reportArgumentType]

    def of_device(samples: Samples, arrays: PyTree) -> PyTree:
        # Otherwise derivatives by arrays that all devices hold would be summed over the devices in every block.
        arrays = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, AXIS, to="varying"), arrays)
        return function(_share(samples, mesh), *eqx.combine(arrays, rest))

    return jax.shard_map(of_device, mesh=mesh, in_specs=(where, PartitionSpec()), out_specs=out)(samples, arrays)


def _share(samples: Samples, mesh: Mesh) -> Samples:
    """The samples that belong to the current device, inside of ``jax.shard_map``."""
    count = samples.count // mesh.size
    first = samples.first + jax.lax.axis_index(AXIS).astype(samples.first.dtype) * count
    return Samples(samples.key, first, samples.draws, count)


def _draws(estimator: AbstractEstimator, samples: Samples, start: ArrayLike, size: int) -> PyTree:
    """The draws of ``size`` samples, from number ``start`` of ``samples`` on: a slice if stored, else drawn anew."""
    if samples.draws is not None:
        slice_ = lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, size, axis=leaf.ndim - 1)
        return jax.tree.map(slice_, samples.draws)
    indices = samples.first + (start + jnp.arange(size)).astype(samples.first.dtype)
    return jax.vmap(lambda index: estimator.draw(jax.random.fold_in(samples.key, index)), out_axes=-1)(indices)


def _draw_bytes(estimator: AbstractEstimator) -> int:
    drawn = jax.eval_shape(estimator.draw, jax.random.key(0))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(drawn))


def _free_bytes(device: Any) -> float:
    statistics = device.memory_stats() if device.platform != "cpu" else None
    if statistics is not None:
        return 0.9 * (statistics["bytes_limit"] - statistics["bytes_in_use"])
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
