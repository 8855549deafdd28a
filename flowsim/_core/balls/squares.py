"""Read from the trace of a function how to write it as a sum of squares or as a quadratic of other functions."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jaxtyping import Array, ArrayLike, Float

from flowsim._core.balls.reading import pairs_the_same, programs_of
from flowsim._core.types import Params

Weight: TypeAlias = np.ndarray  # in the shape of a node, or ()
Entry: TypeAlias = "_Node | ArrayLike"  # a value of a program: a node, or a number that depends on no argument


@dataclasses.dataclass(frozen=True, eq=False)
class _Node:
    """A value in a program that depends on its arguments: an output of an operation, or an argument itself.

    **Fields:**

    - shape: the shape of the value.
    - inputs: the values that the operation reads; empty for an argument.
    - name: the name of the operation.
    - bind: computes all outputs of the operation from its inputs; None for an argument.
    - params: the parameters of the operation.
    - place: which output of the operation this value is.
    """

    shape: tuple[int, ...]
    inputs: "tuple[Entry, ...]" = ()
    name: str = ""
    bind: Callable[..., list[ArrayLike]] | None = None
    params: Params = dataclasses.field(default_factory=dict)
    place: int = 0


def residuals_of(
    function: Callable[[Float[Array, " n"]], Float[Array, ""]], at: Float[np.ndarray, " n"]
) -> Callable[[Float[Array, " n"]], Float[Array, " m"]] | None:
    """A function r such that function(x) = sum_i r_i(x)^2 + constant.

    **Arguments:** at: any x, (n,), for its shape.

    **Returns:** r, from x, (n,), to the residuals, (m,); None if the trace of the function does not show this form.
    """
    closed = jax.make_jaxpr(function)(at)
    argument = _Node(np.shape(at))
    (value,) = _nodes(closed.jaxpr, closed.consts, [argument], {})
    found = _squares(value, np.ones(()))
    if not found:
        return None

    def residuals(x: Float[Array, " n"]) -> Float[Array, " m"]:
        known: dict[int, Sequence[ArrayLike]] = {id(argument): (x,)}
        parts = [jnp.ravel(np.sqrt(weight) * _value(node, known)) for weight, node in found]
        return jnp.concatenate(parts)

    return residuals


class Quadratic(NamedTuple):
    """A function written as outer(inner(x)), where outer is a polynomial of degree at most 2.

    **Fields:**

    - outer: from an array (k,) to a number.
    - inner: from x, (n,), to an array (k,).
    - is_plain: whether inner(x) = x.
    """

    outer: Callable[[Float[Array, " k"]], Float[Array, ""]]
    inner: Callable[[Float[Array, " n"]], Float[Array, " k"]]
    is_plain: bool


def quadratic_of(function: Callable[[Float[Array, " n"]], Float[Array, ""]], at: Float[np.ndarray, " n"]) -> Quadratic:
    """Write a function as a quadratic polynomial of intermediate values, as late in its trace as possible.

    For the least-squares loss of a linear network these values are the products of its layers.

    **Arguments:** at: any x, (n,), for its shape.
    """
    closed = jax.make_jaxpr(function)(at)
    argument = _Node(np.shape(at))
    (value,) = _nodes(closed.jaxpr, closed.consts, [argument], {})
    leaves: dict[int, _Node] = {}
    _gather(value, 2, leaves, set())
    sizes = [math.prod(leaf.shape) for leaf in leaves.values()]

    def inner(x: Float[Array, " n"]) -> Float[Array, " k"]:
        known: dict[int, Sequence[ArrayLike]] = {id(argument): (x,)}
        return jnp.concatenate([jnp.zeros(0), *(jnp.ravel(_value(leaf, known)) for leaf in leaves.values())])

    def outer(p: Float[Array, " k"]) -> Float[Array, ""]:
        parts = jnp.split(p, np.cumsum(sizes)[:-1]) if sizes else []
        of_leaves = zip(leaves.items(), parts, strict=True)
        known: dict[int, Sequence[ArrayLike]] = {
            key: (0.0,) * leaf.place + (jnp.reshape(part, leaf.shape),) for (key, leaf), part in of_leaves
        }
        return jnp.asarray(_value(value, known))

    return Quadratic(outer, inner, list(leaves) == [id(argument)])


def _gather(node: Entry, degree: int, leaves: dict[int, _Node], seen: set[tuple[int, int]]) -> None:
    """Add to ``leaves`` nodes in which ``node`` is a polynomial of degree at most ``degree``, which is 1 or 2.

    **Arguments:** seen: the pairs (id of a node, degree) that were already visited; new ones are added.
    """
    if not isinstance(node, _Node) or (id(node), degree) in seen:
        return
    seen.add((id(node), degree))
    inputs, name = node.inputs, node.name
    depends = [isinstance(one, _Node) for one in inputs]
    by_a_constant = sum(depends) == 1 and (name in _BILINEAR or (depends[0] and name in _AFFINE_IN_FIRST))
    if name in _AFFINE or by_a_constant or (name == "select_n" and not depends[0]):
        within = degree
    elif degree == 2 and (name in _BILINEAR or _squares_it(node)):
        within = 1
    else:
        leaves[id(node)] = node
        return
    for one in inputs:
        _gather(one, within, leaves, seen)


def _nodes(
    jaxpr: Jaxpr, consts: Sequence[ArrayLike], arguments: Sequence[Entry], known: dict[tuple, list[Entry]]
) -> list[Entry]:
    """The outputs of a program as nodes. Equal operations on equal inputs share one node.

    **Arguments:**

    - consts: the values of the program's constants.
    - arguments: the nodes or numbers that the program's arguments stand for.
    - known: the outputs of the operations read so far, by operation and inputs; new ones are added.
    """
    values: dict[Var, Entry] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))
    for eqn in jaxpr.eqns:
        inputs = [var.val if isinstance(var, Literal) else values[var] for var in eqn.invars]
        program = next((eqn.params[key] for key in ("jaxpr", "call_jaxpr") if key in eqn.params), None)
        if program is not None and eqn.primitive.name in _INLINED:
            inner, constants = (program.jaxpr, program.consts) if isinstance(program, ClosedJaxpr) else (program, ())
            outputs = _nodes(inner, constants, inputs, known)
        elif any(isinstance(one, _Node) for one in inputs):
            bind, name = functools.partial(_carried_out, eqn), eqn.primitive.name
            shapes = [getattr(var.aval, "shape", ()) for var in eqn.outvars]
            made: list[Entry] = [
                _Node(shape, tuple(inputs), name, bind, eqn.params, i) for i, shape in enumerate(shapes)
            ]
            # The text of a program or an array may leave out numbers. Nodes hold their inputs, so that no id returns.
            is_plain = not programs_of(eqn) and not any(hasattr(one, "__array__") for one in eqn.params.values())
            key = (name, str(eqn.params), *map(_identity, inputs)) if is_plain else (object(),)
            outputs = known.setdefault(key, made)
        else:
            outputs = _carried_out(eqn, *inputs)
        values.update(zip(eqn.outvars, outputs, strict=True))
    return [var.val if isinstance(var, Literal) else values[var] for var in jaxpr.outvars]


def _identity(entry: Entry) -> object:
    is_number = not isinstance(entry, _Node) and np.ndim(entry) == 0
    return ("number", float(np.asarray(entry))) if is_number else id(entry)


def _carried_out(eqn: JaxprEqn, *inputs: Any) -> list[ArrayLike]:
    outputs = eqn.primitive.bind(*inputs, **eqn.params)
    return list(outputs) if eqn.primitive.multiple_results else [outputs]


def _value(node: Entry, known: dict[int, Sequence[ArrayLike]]) -> ArrayLike:
    if not isinstance(node, _Node):
        return node
    key = id(node)
    if key not in known:
        assert node.bind is not None
        known[key] = node.bind(*[_value(one, known) for one in node.inputs])
    return known[key][node.place]


def _squares(node: Entry, weight: Weight) -> list[tuple[Weight, Entry]] | None:
    """Write a weighted sum of a node's entries as a sum of squares.

    The result has weights w_k and nodes n_k with sum weight * node = sum_k sum w_k * n_k^2 + constant, where a sum
    without index runs over all entries. The result is None if no such weights and nodes are found.

    **Arguments:** weight: at least 0, in the shape of the node or ().
    """
    if not isinstance(node, _Node):
        return []
    inputs, name = node.inputs, node.name
    constants = [not isinstance(one, _Node) for one in inputs]
    if name in ("add", "add_any"):
        return _both(_squares(inputs[0], weight), _squares(inputs[1], weight))
    if name == "sub" and constants[1]:
        return _squares(inputs[0], weight)
    if name in ("mul", "div") and any(constants):
        factor = np.asarray(inputs[constants.index(True)])
        if (name == "div" and not constants[1]) or not np.all(factor > 0):
            return None
        return _squares(inputs[constants.index(False)], weight * factor if name == "mul" else weight / factor)
    if (name == "mul" and inputs[0] is inputs[1]) or _squares_it(node):
        return _squared(inputs[0], weight)
    if name in ("convert_element_type", "copy"):
        return _squares(inputs[0], weight)
    if name == "reduce_sum":
        shape = np.shape(inputs[0])
        kept = [1 if axis in node.params["axes"] else length for axis, length in enumerate(shape)]
        return _squares(inputs[0], np.broadcast_to(np.reshape(_full(weight, node), kept), shape))
    if name in ("squeeze", "expand_dims") or (name == "reshape" and node.params["dimensions"] is None):
        return _squares(inputs[0], np.reshape(_full(weight, node), np.shape(inputs[0])))
    if name == "dot_general" and inputs[0] is inputs[1] and node.shape == () and pairs_the_same(node.params):
        return _squared(inputs[0], weight)
    return None


def _squares_it(node: _Node) -> bool:
    """Whether a node is the square of its first input."""
    if node.name == "pow" and not isinstance(node.inputs[1], _Node):
        return bool(np.all(np.asarray(node.inputs[1]) == 2))
    return node.name == "square" or (node.name == "integer_pow" and node.params["y"] == 2)


def _squared(node: Entry, weight: Weight) -> list[tuple[Weight, Entry]] | None:
    if isinstance(node, _Node) and node.name == "sqrt":
        return _squares(node.inputs[0], weight)
    return [(weight, node)]


def _both(first: list | None, second: list | None) -> list | None:
    return None if first is None or second is None else [*first, *second]


def _full(weight: Weight, node: _Node) -> Weight:
    return np.broadcast_to(weight, node.shape)


_AFFINE = {
    *("add", "add_any", "sub", "neg", "reduce_sum", "cumsum", "copy", "broadcast_in_dim", "concatenate", "expand_dims"),
    *("reshape", "rev", "slice", "split", "squeeze", "stack", "tile", "transpose", "unstack"),
}
_AFFINE_IN_FIRST = "div", "gather", "dynamic_slice"
_BILINEAR = "mul", "dot_general"
_INLINED = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint"}
