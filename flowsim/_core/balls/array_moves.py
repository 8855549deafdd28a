"""JAX's operations written in NumPy: operations that only move entries, and operations on integers and booleans.

JAX itself is not used, because it would compile each operation that runs outside a program, and has no arrays of
balls.
"""

from collections.abc import Callable

import numpy as np

from flowsim._core.balls.operations import Value, as_balls, is_balls
from flowsim._core.types import Params


def _alike(*values: Value) -> list[Value]:
    """The arrays in a common type, so that they can be joined: all become balls if one of them holds balls."""
    return list(map(as_balls, values) if any(map(is_balls, values)) else values)


def _broadcast(params: Params, x: Value) -> Value:
    shape = np.ones(len(params["shape"]), dtype=int)
    shape[list(params["broadcast_dimensions"])] = x.shape
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _reshape(params: Params, x: Value) -> Value:
    order = params["dimensions"]
    return (x if order is None else x.transpose(order)).reshape(params["new_sizes"])


def _slice(params: Params, x: Value) -> Value:
    strides = params["strides"] or (1,) * x.ndim
    return x[tuple(map(slice, params["start_indices"], params["limit_indices"], strides))]


def _pad(params: Params, x: Value, filling: Value) -> Value:
    if x.ndim == 0:
        return x
    x, filling = _alike(x, filling)
    low, high, between = np.asarray(params["padding_config"]).T
    sizes = np.asarray(x.shape)
    spread = np.full(sizes + np.maximum(sizes - 1, 0) * between, filling[()], dtype=x.dtype)
    spread[tuple(slice(None, None, step) for step in between + 1)] = x
    around = np.maximum(np.stack([low, high], axis=1), 0)
    wide = np.pad(spread, around, constant_values=filling[()])
    return wide[tuple(slice(max(-a, 0), n - max(-b, 0)) for a, b, n in zip(low, high, wide.shape, strict=True))]


def _dynamic_slice(params: Params, x: Value, *begins: Value) -> Value:
    sizes = params["slice_sizes"]
    first = [min(max(int(begin), 0), n - size) for begin, n, size in zip(begins, x.shape, sizes, strict=True)]
    return x[tuple(slice(begin, begin + size) for begin, size in zip(first, sizes, strict=True))]


def _unstacked(params: Params, x: Value) -> list[Value]:
    return list(np.moveaxis(x, params["axis"], 0))


def _selection(params: Params, which: Value, *cases: Value) -> Value:
    which = np.broadcast_to(which, cases[0].shape).astype(int)
    return np.take_along_axis(np.stack(_alike(*cases)), which[None], axis=0)[0]


def _iota(params: Params) -> np.ndarray:
    shape, along = params["shape"], params["dimension"]
    counted = np.arange(shape[along], dtype=params["dtype"])
    return np.broadcast_to(counted.reshape([-1 if axis == along else 1 for axis in range(len(shape))]), shape)


MOVES: dict[str, Callable] = {
    **{name: lambda params, x: x for name in ("copy", "copy_p", "stop_gradient", "optimization_barrier")},
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda params, *parts: np.concatenate(_alike(*parts), axis=params["dimension"]),
    "dynamic_slice": _dynamic_slice,
    "expand_dims": lambda params, x: np.expand_dims(x, params["dimensions"]),
    "pad": _pad,
    "reshape": _reshape,
    "rev": lambda params, x: np.flip(x, params["dimensions"]),
    "select_n": _selection,
    "slice": _slice,
    "split": lambda params, x: np.split(x, np.cumsum(params["sizes"])[:-1], axis=params["axis"]),
    "squeeze": lambda params, x: np.squeeze(x, params["dimensions"]),
    "stack": lambda params, *parts: np.stack(_alike(*parts), axis=params["axis"]),
    "tile": lambda params, x: np.tile(x, params["reps"]),
    "transpose": lambda params, x: np.transpose(x, params["permutation"]),
    "unstack": _unstacked,
}
PLAIN: dict[str, Callable] = {
    "iota": _iota,
    "convert_element_type": lambda params, x: np.asarray(x).astype(params["new_dtype"]),
    **{
        name: lambda params, *inputs, function=function: np.asarray(function(*inputs))
        for name, function in {
            "add": np.add,
            "sub": np.subtract,
            "mul": np.multiply,
            "eq": np.equal,
            "ne": np.not_equal,
            "lt": np.less,
            "le": np.less_equal,
            "gt": np.greater,
            "ge": np.greater_equal,
            "not": np.invert,
            "and": np.bitwise_and,
            "or": np.bitwise_or,
        }.items()
    },
    "reduce_and": lambda params, x: np.bitwise_and.reduce(x, axis=params["axes"]),
    "reduce_or": lambda params, x: np.bitwise_or.reduce(x, axis=params["axes"]),
}
