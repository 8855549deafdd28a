"""Analysis of programs that JAX traced: which arguments an operation depends on, and whether rows of arrays mix."""

import enum
from collections.abc import Iterable, Iterator, Sequence

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from flowsim._core.types import Params

Names = frozenset[str]

_ON_ENTRIES = {
    *("add", "add_any", "sub", "mul", "div", "pow", "integer_pow", "square", "sqrt", "rsqrt", "cbrt", "neg", "abs"),
    *("sign", "max", "min", "rem", "floor", "ceil", "round", "is_finite", "erf", "erfc", "logistic"),
    *("exp", "exp2", "expm1", "log", "log1p"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor", "select_n", "clamp"),
    *("convert_element_type", "copy", "copy_p", "stop_gradient"),
}
_OVER_AXES = {f"reduce_{name}" for name in ("sum", "prod", "max", "min", "and", "or")} | {"argmax", "argmin"}
_ON_MATRICES = {"cholesky", "lu", "eigh", "qr", "svd", "triangular_solve"}
CALLS = {"jit", "pjit", "closed_call", "core_call", "remat", "checkpoint", "custom_jvp_call", "custom_vjp_call"}


class Kind(enum.Enum):
    """How an array depends on arguments whose first axis counts rows.

    - FIXED: it depends on the first row of the arguments only.
    - EVEN: it depends on the first row only, and all rows of the array are equal.
    - ROWS: each row of the array depends only on the same row of the arguments and on the first one.
    - JOINED: the array is a concatenation, along the first axis, of arrays of the kinds above.
    - MIXED: it depends on the arguments in any other way.
    """

    FIXED = enum.auto()
    EVEN = enum.auto()
    ROWS = enum.auto()
    JOINED = enum.auto()
    MIXED = enum.auto()


def kinds_of(jaxpr: Jaxpr, given: Sequence[Kind], rows: int) -> list[Kind]:
    """The kinds of the outputs of a program.

    **Arguments:** given: the kinds of the program's arguments; rows: the number of rows.
    """
    known: dict[Var, Kind] = dict(zip(jaxpr.invars, given, strict=True))
    kinds = lambda vars: [Kind.FIXED if isinstance(var, Literal) else known.get(var, Kind.FIXED) for var in vars]
    for eqn in jaxpr.eqns:
        inputs, programs = kinds(eqn.invars), programs_of(eqn)
        if eqn.primitive.name in CALLS and len(programs) == 1 and len(programs[0].invars) == len(inputs):
            found = kinds_of(programs[0], inputs, rows)
        else:
            found = [_kind(eqn, inputs, rows)] * len(eqn.outvars)
        known.update(zip(eqn.outvars, found, strict=True))
    return kinds(jaxpr.outvars)


def _kind(eqn: JaxprEqn, inputs: list[Kind], rows: int) -> Kind:
    if Kind.MIXED in inputs or Kind.JOINED in inputs:
        return Kind.MIXED
    if eqn.primitive.name == "concatenate" and eqn.params["dimension"] == 0:
        return Kind.JOINED if any(kind is Kind.ROWS for kind in inputs) else Kind.FIXED
    in_rows = [kind is not Kind.FIXED for kind in inputs]
    if not any(in_rows):
        return Kind.EVEN if _repeats(eqn, rows) else Kind.FIXED
    if _keeps_rows(eqn, in_rows, rows):
        return Kind.ROWS if Kind.ROWS in inputs else Kind.EVEN
    return Kind.FIXED if Kind.ROWS not in inputs or _is_first_row(eqn) else Kind.MIXED


def _repeats(eqn: JaxprEqn, rows: int) -> bool:
    """Whether an operation repeats an array along a new first axis."""
    if eqn.primitive.name != "broadcast_in_dim" or eqn.params["shape"][:1] != (rows,):
        return False
    return eqn.params["broadcast_dimensions"][:1] != (0,) or _shape(eqn.invars[0])[0] == 1 != rows


def _is_first_row(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name == "slice" and (eqn.params["start_indices"][0], eqn.params["limit_indices"][0]) == (0, 1)


def _keeps_rows(eqn: JaxprEqn, in_rows: list[bool], rows: int) -> bool:
    """Whether each row of an operation's output depends only on the same row of the inputs that have rows.

    **Arguments:** in_rows: whether each input has rows; rows: the number of rows.
    """
    name, params, shape = eqn.primitive.name, eqn.params, _shape(eqn.invars[0])
    if name in _ON_ENTRIES:
        return all(is_in_rows or _shape(var) == () for var, is_in_rows in zip(eqn.invars, in_rows, strict=True))
    if name in _OVER_AXES:
        return 0 not in params["axes"]
    if name in _ON_MATRICES:
        return all(in_rows) and len(shape) > 2
    if name == "scan":
        constants, carried = parts_of_scan(params)
        return carried == 0 and params["length"] == rows and not any(in_rows[:constants]) and all(in_rows[constants:])
    if name == "dot_general":
        (contracted, _), (batch, other_batch) = params["dimension_numbers"]
        both = tuple(batch[:1]) == tuple(other_batch[:1]) == (0,)
        return all(in_rows) and both or in_rows == [True, False] and 0 not in contracted and not batch
    if name == "concatenate":
        return all(in_rows)
    if name == "slice":
        whole = (params["start_indices"][0], params["limit_indices"][0]) == (0, rows)
        return whole and (params["strides"] is None or params["strides"][0] == 1)
    if name == "broadcast_in_dim":
        return params["broadcast_dimensions"][0] == 0 and params["shape"][0] == rows
    if name == "reshape":
        return params["dimensions"] is None and params["new_sizes"][:1] == (rows,)
    if name == "squeeze":
        return 0 not in params["dimensions"]
    return name == "transpose" and params["permutation"][0] == 0


def _shape(var: Var | Literal) -> tuple[int, ...]:
    return getattr(var.aval, "shape", ())


def operations_with_names(jaxpr: Jaxpr, names: Sequence[str]) -> Iterator[tuple[JaxprEqn, list[Names]]]:
    """Every operation of a program, with the names of the arguments that each of its inputs depends on.

    **Arguments:** names: a name for each argument of the program, in order.
    """
    found: list[tuple[JaxprEqn, list[Names]]] = []
    _follow(jaxpr, [frozenset([name]) for name in names], found)
    return iter(found)


def operations_in_loops(jaxpr: Jaxpr, turns: int, inside: bool = False) -> Iterator[JaxprEqn]:
    """Every operation inside loops of ``turns`` iterations, and inside the programs that these loops call.

    **Arguments:** inside: whether the program itself belongs to such a loop.
    """
    for eqn in jaxpr.eqns:
        if inside:
            yield eqn
        looped = eqn.primitive.name == "scan" and eqn.params["length"] == turns
        for program in programs_of(eqn):
            yield from operations_in_loops(program, turns, inside or looped)


def pairs_the_same(params: Params) -> bool:
    """Whether a dot_general of an array with itself multiplies each entry by itself.

    The trace tr(R R^T) does so, tr(R R) does not.
    """
    return all(tuple(first) == tuple(second) for first, second in params["dimension_numbers"])


def _follow(jaxpr: Jaxpr, given: Sequence[Names], found: list[tuple[JaxprEqn, list[Names]]]) -> list[Names]:
    """The names of the arguments that the outputs of a program depend on.

    Every operation is appended to ``found`` with the names that each of its inputs depends on.

    **Arguments:** given: the names that each argument of the program depends on.
    """
    known: dict[Var, Names] = dict(zip(jaxpr.invars, given, strict=True))

    def names(var: Var | Literal) -> Names:
        return frozenset() if isinstance(var, Literal) else known.get(var, frozenset())

    for eqn in jaxpr.eqns:
        inputs = [names(var) for var in eqn.invars]
        everything = frozenset().union(*inputs)
        programs = programs_of(eqn)
        outputs = [everything] * len(eqn.outvars)
        if eqn.primitive.name == "scan":
            outputs = _through(eqn, programs[0], inputs, found)
        else:
            for inner in programs:
                alike = len(programs) == 1 and len(inner.invars) == len(inputs) and eqn.primitive.name != "while"
                outcome = _follow(inner, inputs if alike else [everything] * len(inner.invars), found)
                if alike and len(outcome) == len(outputs):
                    outputs = outcome
        if not programs:
            found.append((eqn, inputs))
        known.update(zip(eqn.outvars, outputs, strict=True))
    return [names(var) for var in jaxpr.outvars]


def _through(eqn: JaxprEqn, body: Jaxpr, inputs: list[Names], found: list) -> list[Names]:
    """The names of the arguments that the outputs of a scan depend on.

    The body is read repeatedly until the names no longer change, since outputs carried from one iteration are
    inputs of the next.
    """
    constants, carried = parts_of_scan(eqn.params)
    returning, inputs = slice(constants, constants + carried), [*inputs]
    while True:
        inside: list[tuple[JaxprEqn, list[Names]]] = []
        outputs = _follow(body, inputs, inside)
        before = inputs[returning]
        inputs[returning] = [one | other for one, other in zip(before, outputs[:carried], strict=True)]
        if inputs[returning] == before:
            found += inside
            return outputs


def parts_of_scan(params: Params) -> tuple[int, int]:
    """How many inputs of a scan are constants, and how many are carried from one iteration to the next."""
    if "ft_in" in params:  # JAX 0.12
        constants, carried, _ = (len(part) for part in params["ft_in"].unpack())
        return constants, carried
    return params["num_consts"], params["num_carry"]


def programs_of(eqn: JaxprEqn) -> list[Jaxpr]:
    """The programs that an operation calls."""
    found: list[Jaxpr] = []
    _collect(eqn.params.values(), found)
    return found


def _collect(values: Iterable[object], found: list[Jaxpr]) -> None:
    for value in values:
        if isinstance(value, tuple | list):
            _collect(value, found)
        elif isinstance(value, ClosedJaxpr):
            found.append(value.jaxpr)
        elif isinstance(value, Jaxpr):
            found.append(value)
