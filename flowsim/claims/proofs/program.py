"""Functions that JAX traced, written out as the lists of operations that certificates hold."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jaxtyping import PyTree

from flowsim._core.balls.enclosure import Traced, is_key
from flowsim._core.balls.operations import UndecidedError
from flowsim._core.balls.reading import parts_of_scan
from flowsim._core.types import Document, Params
from flowsim.claims.proofs.decisions import Decisions
from flowsim.claims.proofs.rules import FACTORIZED, RULES
from flowsim.claims.proofs.writer import NOWHERE, Array, Value, Writer, decimals

_UNKNOWN = "it holds a number that is not finite, or that flowsim computes in float64"
_DECIDED = {"eq", "ne", "lt", "le", "gt", "ge", "max", "min", "abs", "sign", "is_finite", "ceil", "floor", "and"}
_LATER = {"eq", "ne", "lt", "le", "gt", "ge", "max", "min", "and"}
_FOLDED = {"reduce_max": "max", "reduce_min": "min", "reduce_prod": "mul", "reduce_and": "mul", "reduce_or": "or"}
_MOVES = {
    *("broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "slice", "rev", "concatenate", "copy"),
    *("split", "pad", "copy_p", "stack", "unstack", "tile"),
}
_OF_TRUTHS = {"convert_element_type", "reduce_and", "reduce_or", *_MOVES}
_MOST_TURNS = 1000  # of a loop
Exact: TypeAlias = Mapping[str, Document]
_NONE: Exact = MappingProxyType({})
_INDICES = {  # which arguments of operations that move entries are indices
    "gather": slice(1, 2),
    "dynamic_slice": slice(1, None),
    "dynamic_update_slice": slice(2, None),
    "scatter": slice(1, 2),
    "select_n": slice(0, 1),
}


def program(
    function: Callable[..., PyTree], *, given: frozenset[float] | None = None, exact: Exact = _NONE, **inputs: PyTree
) -> Document:
    """The list of operations of a function of float64 arrays, with its result flat.

    A number in the function stands for the shortest decimal that rounds to it, as it is written in a file. A number
    with many digits counts as computed, and stands for any number near its decimal, unless it is in ``given``.

    **Arguments:**

    - function: from trees of arrays to a tree of arrays.
    - given: the numbers with many digits that are exact. None if all are.
    - exact: for each known input that is computed, its program. The values of other known inputs are decimals.
    - inputs: for each argument of the function, a tree of arrays if its values are known, else of shapes. Known
      values decide comparisons. If a tree has both arrays and shapes, its arrays are constants.

    **Raises:** `UndecidedError` on an operation that certificates do not have; what JAX raises in tracing.
    """
    writer, outputs = _written(function, inputs, exact, given)
    result = writer.joined([writer.array(value) for value in outputs])
    if result.place == NOWHERE:
        raise UndecidedError(_UNKNOWN)
    return _needed(writer.operations, result.place)


def _needed(operations: list[list[Any]], result: int) -> Document:
    """The operations that a result depends on, as a program with this result."""
    needed = {result}
    for place in reversed(range(result + 1)):
        if place in needed:
            needed.update(operations[place][1])
    places = {place: count for count, place in enumerate(sorted(needed))}
    kept = [operations[place] for place in places]
    return {
        "operations": [[name, [places[i] for i in arguments], parameter] for name, arguments, parameter in kept],
        "result": places[result],
    }


def constants(function: Callable[..., PyTree], *, exact: Exact = _NONE, **inputs: PyTree) -> list[np.ndarray]:
    """The arrays that a function returns, if they depend on none of its inputs. Arguments: as for `program`.

    **Raises:** `UndecidedError` if an array depends on an input; otherwise as `program`.
    """
    known = [value.known if isinstance(value, Array) else value for value in _written(function, inputs, exact)[1]]
    if any(value is None for value in known):
        raise UndecidedError("it depends on the weights")
    return [np.asarray(value) for value in known]


def _written(
    function: Callable[..., PyTree], inputs: dict[str, PyTree], exact: Exact, given: frozenset[float] | None = None
) -> tuple[Writer, list[Value]]:
    names = list(inputs)
    traced = Traced(lambda *given: function(**dict(zip(names, given, strict=True))), *inputs.values())
    writer = Writer(given)
    arguments: list[Value] = []
    for name, tree in inputs.items():
        leaves = jax.tree.leaves(tree)
        sizes = [math.prod(leaf.shape) for leaf in leaves]
        known = None if not all(map(eqx.is_array, leaves)) else np.concatenate([np.ravel(leaf) for leaf in leaves])
        whole = writer.write("input", [], name, (sum(sizes),), known)
        writer.known |= {} if known is None else {name: exact.get(name) or decimals(known)}
        for leaf, size, end in zip(leaves, sizes, np.cumsum(sizes), strict=True):
            fixed = known is None and eqx.is_array(leaf)
            taken = writer.taken([whole], np.arange(end - size, end).reshape(leaf.shape))
            arguments.append(writer.array(leaf) if fixed else taken)
    return writer, _Reader(writer).run(traced.jaxpr, traced.consts, arguments)


class _Reader:
    """Interprets a program that JAX traced, and writes its operations with a `Writer`."""

    def __init__(self, writer: Writer):
        self.writer, self.decisions = writer, Decisions(writer)
        self.draws, self.normal = False, set[int]()

    def run(self, jaxpr: Jaxpr, consts: Sequence[object], arguments: Sequence[Value]) -> list[Value]:
        """Interpret a traced program, and return the values of its results."""
        values: dict[Var, Value] = {}

        def read(var: Var | Literal) -> Value:
            return self._lifted(var.val) if isinstance(var, Literal) else values[var]

        values.update(zip(jaxpr.constvars, map(self._lifted, consts), strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))
        for eqn in jaxpr.eqns:
            found = self._apply(eqn, [read(var) for var in eqn.invars])
            values.update(zip(eqn.outvars, found, strict=True))
            kinds = {var.aval.dtype for var in eqn.outvars if isinstance(values[var], Array)}  # pyright: ignore[reportAttributeAccessIssue]
            if kinds - {np.dtype(float), np.dtype(bool)}:
                raise UndecidedError(f"certificates do not have numbers that move of the type {kinds.pop()}")
        return [read(var) for var in jaxpr.outvars]

    def _lifted(self, value: Any) -> Value:
        if is_key(value):
            return value  # what is drawn with it is known
        array = np.asarray(value)
        return self.writer.read(array) if array.dtype == np.float64 else array

    def _call(self, program: ClosedJaxpr | Jaxpr, arguments: Sequence[Value]) -> list[Value]:
        if isinstance(program, ClosedJaxpr):
            return self.run(program.jaxpr, program.consts, arguments)
        return self.run(program, (), arguments)

    def _apply(self, eqn: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
        name, params = eqn.primitive.name, eqn.params
        program = next((params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params), None)
        if name == "scan":
            return self._scan(params, inputs)
        if name == "while":
            return self._while(params, inputs)
        if name == "cond" and not isinstance(inputs[0], Array):
            return self._call(params["branches"][int(inputs[0])], inputs[1:])
        if name == "custom_linear_solve":
            lengths = params["const_lengths"]
            before = lengths.matvec + lengths.vecmat
            constants = inputs[before : before + lengths.solve]
            return self._call(params["jaxprs"].solve, [*constants, *inputs[sum(lengths) :]])
        if program is not None:
            return self._call(program, inputs)
        if name not in _OF_TRUTHS:
            inputs = [self._decision(var, value) for var, value in zip(eqn.invars, inputs, strict=True)]
        if not any(isinstance(value, Array) for value in inputs):
            self.draws |= name == "random_bits"
            found = eqn.primitive.bind(*inputs, **params)
            return [self._lifted(value) for value in (found if eqn.primitive.multiple_results else [found])]
        if name == "select_n" and isinstance(inputs[0], Array):
            which, no, yes = map(self.writer.array, inputs)
            return [self.writer.selected(which, yes, no)]
        if name == "convert_element_type":
            return [self._converted(eqn, inputs[0])]
        if name in _MOVES or name in _INDICES:
            return self._moved(eqn, inputs)
        if name == "scatter-add":
            return [self._added(eqn, *inputs)]
        if name in _DECIDED:
            return [self._decided(eqn, inputs)]
        if name == "erf_inv" and self.draws and isinstance(inputs[0], Array) and inputs[0].known is not None:
            # A normal number that was drawn is the float64 that came out.
            drawn = self.writer.array(eqn.primitive.bind(jnp.asarray(inputs[0].known), **params))
            self.normal.add(drawn.place)
            return [drawn]
        known = [x.known for x in inputs if isinstance(x, Array) and x.known is not None]
        places = {x.place for x in inputs if isinstance(x, Array)}
        if name == "mul" and len(known) == 2 and places & self.normal:  # by the square root of 2
            return [self.writer.array(np.multiply(*known))]
        if name in ("argmax", "argmin"):
            return [self.decisions.place(eqn, self.writer.array(inputs[0]))]
        if name in _FOLDED:
            return [self._folded(name, params["axes"], self.writer.array(inputs[0]))]
        if name in ("pow", "eigh"):
            inputs[-1] = self.decisions.unless_rounded(name, self.writer.array(inputs[-1]))
        if name in RULES:
            return [RULES[name](self.writer, params, *map(self.writer.array, inputs))]
        if name in FACTORIZED:
            return FACTORIZED[name](self.writer, params, *map(self.writer.array, inputs))
        raise UndecidedError(f"certificates do not have the operation {name}")

    def _scan(self, params: Params, inputs: list[Value]) -> list[Value]:
        constants, carried = parts_of_scan(params)
        fixed, carry, rows = inputs[:constants], inputs[constants : constants + carried], inputs[constants + carried :]
        order = range(params["length"])
        kept: list[list[Value]] = []
        for i in reversed(order) if params["reverse"] else order:
            outputs = self._call(params["jaxpr"], [*fixed, *carry, *[self._row(row, i) for row in rows]])
            carry = outputs[:carried]
            kept.append(list(outputs[carried:]))
        kept = kept[::-1] if params["reverse"] else kept
        return [*carry, *map(self._stacked, zip(*kept, strict=True))]

    def _while(self, params: Params, inputs: list[Value]) -> list[Value]:
        """Write the iterations of a loop one after the other. The loop's condition must not depend on an input."""
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        carry = inputs[second:]
        for _ in range(_MOST_TURNS):
            (goes_on,) = self._call(params["cond_jaxpr"], [*inputs[:first], *carry])
            if isinstance(goes_on, Array):
                if goes_on.known is None:
                    raise UndecidedError("certificates do not have loops that end when numbers that move say so")
                goes_on = goes_on.known == 1.0
            if not goes_on:
                return carry
            carry = self._call(params["body_jaxpr"], [*inputs[first:second], *carry])
        raise UndecidedError(f"a loop has more than {_MOST_TURNS} turns")

    def _stacked(self, rows: Sequence[Value]) -> Value:
        known = [row for row in rows if not isinstance(row, Array)]
        if len(known) == len(rows):
            return np.stack(known)
        return self.writer.reshaped(self.writer.joined([*map(self.writer.array, rows)]), (len(rows), *rows[0].shape))

    def _row(self, rows: Value, i: int) -> Value:
        if not isinstance(rows, Array):
            return rows[i]
        return self.writer.taken([rows], np.asarray(np.arange(rows.size).reshape(rows.shape)[i]))

    def _moved(self, eqn: JaxprEqn, inputs: list[Value]) -> list[Value]:
        """Write an operation that only moves entries. To see where they go, JAX applies it to their indices."""
        arrays, places, offset = [], [], 0
        indices = range(len(inputs))[_INDICES.get(eqn.primitive.name, slice(0))]
        for i, value in enumerate(inputs):
            if i in indices:
                if isinstance(value, Array):
                    raise UndecidedError("certificates do not have indices that move")
                places.append(value)
                continue
            array = self.writer.array(value)
            arrays.append(array)
            places.append(np.arange(offset, offset + array.size).reshape(array.shape))
            offset += array.size
        params = eqn.params | ({"fill_value": -1} if "fill_value" in eqn.params else {})
        found = eqn.primitive.bind(*map(jnp.asarray, places), **params)
        found = [np.asarray(one) for one in (found if eqn.primitive.multiple_results else [found])]
        if any(np.any(one < 0) for one in found):
            raise UndecidedError("it reads outside of an array")
        return [self.writer.taken(arrays, one) for one in found]

    def _added(self, eqn: JaxprEqn, array: Value, indices: Value, updates: Value) -> Array:
        """Write JAX's "scatter-add" of updates to an array as the array plus a matrix times the updates."""
        if isinstance(indices, Array):
            raise UndecidedError("certificates do not have indices that move")
        array, updates = map(self.writer.array, (array, updates))
        units = jnp.eye(updates.size).reshape(updates.size, *updates.shape)
        zeros = jnp.zeros(array.shape)
        where = jax.vmap(lambda unit: eqn.primitive.bind(zeros, jnp.asarray(indices), unit, **eqn.params))(units)
        matrix = self.writer.array(np.asarray(where).reshape(updates.size, array.size).T)
        numbers = {"dimension_numbers": (((1,), (0,)), ((), ()))}
        sums = self.writer.contracted(numbers, matrix, self.writer.reshaped(updates, (updates.size,)))
        return self.writer.binary("add", array, self.writer.reshaped(sums, array.shape))

    def _converted(self, eqn: JaxprEqn, array: Value) -> Value:
        """Convert to another type. Numbers become integers or truth values only if they depend on no input."""
        assert isinstance(array, Array)
        before, after = eqn.invars[0].aval.dtype, np.dtype(eqn.params["new_dtype"])  # pyright: ignore[reportAttributeAccessIssue]
        if after == np.float64:
            return array
        if before == np.bool_ and array.known is None:
            return array
        if array.known is None or not np.all(np.isfinite(array.known)):
            raise UndecidedError(f"certificates do not have numbers that move of the type {after}")
        known = array.known if before == np.bool_ else self.decisions.converted(array, after)
        return self._lifted(eqn.primitive.bind(jnp.asarray(known), **eqn.params))

    def _decided(self, eqn: JaxprEqn, inputs: list[Value]) -> Value:
        """Write a comparison, or an operation with one in it, decided here if its numbers depend on no input."""
        given = [value.known if isinstance(value, Array) else value for value in inputs]
        known, name = [value for value in given if value is not None], eqn.primitive.name
        if len(known) < len(given):
            if name in ("eq", "ne") and eqn.invars[0] is eqn.invars[1]:
                return self._is_number(self.writer.array(inputs[0]), name == "eq")
            return self._decided_later(name, *map(self.writer.array, inputs))
        if any(np.any(np.isnan(value)) for value in known):
            raise UndecidedError(_UNKNOWN)
        found = np.asarray(eqn.primitive.bind(*map(jnp.asarray, known), **eqn.params))
        if name in ("is_finite", "and"):
            return found
        zero = self.writer.number(0.0)
        x, y = (self.writer.spread(self.writer.array(value), found.shape) for value in (*inputs, zero)[:2])
        if NOWHERE in (x.place, y.place):
            return self._of_infinite(name, found, x, y)
        if name in ("ceil", "floor"):
            down = self.decisions.rounded_down
            return self.writer.array(down(x) if name == "floor" else -down(self.writer.binary("sub", zero, x)))
        if name in ("abs", "max", "min"):
            return self._chosen(name, x, y)
        if name == "sign":
            return self.writer.array(
                np.asarray(1.0 * self.decisions.compared("gt", x, y) - self.decisions.compared("lt", x, y))
            )
        if name in ("eq", "ne"):
            return self.decisions.compared(name, x, y)
        later = self._decided_later(name, x, y)
        if np.any(np.isnan(self.decisions.signs(x, y))):  # what follows holds either way
            return later._replace(known=None)
        return later._replace(known=np.asarray(1.0 * self.decisions.compared(name, x, y)))

    def _of_infinite(self, name: str, found: np.ndarray, x: Array, y: Array) -> Value:
        """The value of an operation on numbers some of which are infinite, as float64 gives it."""
        if found.dtype != np.float64:
            return found
        if name in ("max", "min"):
            return self.writer.chosen(np.asarray(found == x.known), x, y)
        return self.writer.array(found)

    def _chosen(self, name: str, x: Array, y: Array) -> Array:
        """|x| if ``name`` is "abs" (y is 0), else the larger or the smaller of x and y. They depend on no input."""
        other = self.writer.binary("sub", y, x) if name == "abs" else y
        signs = self.decisions.signs(x, y)
        if np.any(np.isnan(signs)):
            assert x.known is not None and y.known is not None
            if name == "abs":
                return self._decided_later(name, x)._replace(known=np.asarray(np.abs(x.known)))
            larger = np.maximum if name == "max" else np.minimum
            return self._decided_later(name, x, y)._replace(known=np.asarray(larger(x.known, y.known)))
        return self.writer.chosen(np.asarray(signs <= 0 if name == "min" else signs >= 0), x, other)

    def _decision(self, var: Var | Literal, value: Value) -> Value:
        """The truth values of a condition that depends on no input. Any other value is returned unchanged."""
        if isinstance(value, Array) and value.known is not None and var.aval.dtype == np.bool_:  # pyright: ignore[reportAttributeAccessIssue]
            return np.asarray(value.known == 1.0)
        return value

    def _folded(self, name: str, axes: Sequence[int], x: Array) -> Array:
        """Write a reduction along axes: the largest or least entry, the product, or whether all or any are true."""
        kept = [axis for axis in range(len(x.shape)) if axis not in axes]
        rows = np.arange(x.size).reshape(x.shape).transpose(*axes, *kept).reshape(-1, *(x.shape[axis] for axis in kept))
        if not len(rows):
            raise UndecidedError(f"certificates do not have the operation {name} of nothing")
        entries = [self.writer.taken([x], np.asarray(row)) for row in rows]
        if name == "reduce_or":
            one = self.writer.number(1.0)
            none = [self.writer.binary("sub", one, entry) for entry in entries]
            return self.writer.binary("sub", one, functools.reduce(functools.partial(self.writer.binary, "mul"), none))
        return functools.reduce(lambda one, other: self._pair(_FOLDED[name], one, other), entries)

    def _pair(self, name: str, x: Array, y: Array) -> Array:
        if name == "mul":
            return self.writer.binary("mul", x, y)
        if x.known is None or y.known is None or np.any(np.isnan(x.known) | np.isnan(y.known)):
            return self._decided_later(name, x, y)
        if NOWHERE in (x.place, y.place):
            return self.writer.chosen(np.asarray(x.known > y.known if name == "max" else x.known < y.known), x, y)
        return self._chosen(name, x, y)

    def _is_number(self, x: Array, wanted: bool) -> Array:
        """Write x == x if ``wanted``, else x != x, by x > x - 1: true for a number, unknown for NaN."""
        one = self.writer.number(1.0)
        found = self.writer.binary("above", x, self.writer.binary("sub", x, one))
        return found if wanted else self.writer.binary("sub", one, found)

    def _decided_later(self, name: str, x: Array, y: Array | None = None) -> Array:
        """Write a comparison, or an operation with one in it, for the checker to decide. True is 1, false is 0."""
        binary = self.writer.binary
        if name == "abs":
            zero = self.writer.number(0.0)
            return self.writer.selected(binary("above", x, zero), x, binary("sub", zero, x))
        if y is None or name not in _LATER:
            raise UndecidedError(f"certificates do not have the operation {name} of numbers that move")
        if name in ("max", "min"):  # softmax takes the largest of its numbers and minus infinity
            for one, other in ((x, y), (y, x)):
                if one.place == NOWHERE and np.all(one.known == (-np.inf if name == "max" else np.inf)):
                    return self.writer.spread(other, np.broadcast_shapes(x.shape, y.shape))
        if name in ("gt", "lt"):
            return binary("above", *((x, y) if name == "gt" else (y, x)))
        if name in ("eq", "ne"):
            apart = binary("add", binary("above", x, y), binary("above", y, x))
            return apart if name == "ne" else binary("sub", self.writer.number(1.0), apart)
        if name in ("ge", "le"):
            return binary("sub", self.writer.number(1.0), binary("above", *((y, x) if name == "ge" else (x, y))))
        if name == "and":
            return binary("mul", x, y)
        return self.writer.selected(binary("above", x, y), *((x, y) if name == "max" else (y, x)))
