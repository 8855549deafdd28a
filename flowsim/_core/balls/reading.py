"""Which arguments of a program each of its operations depends on."""

from collections.abc import Iterable, Iterator, Sequence

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from flowsim._core.types import Params

Names = frozenset[str]


def operations_with_names(jaxpr: Jaxpr, names: Sequence[str]) -> Iterator[tuple[JaxprEqn, list[Names]]]:
    """Every operation of a program, with the names of the arguments that each of its inputs depends on.

    **Arguments:** names: one for each argument, in their order.
    """
    found: list[tuple[JaxprEqn, list[Names]]] = []
    _follow(jaxpr, [frozenset([name]) for name in names], found)
    return iter(found)


def operations_in_loops(jaxpr: Jaxpr, turns: int, inside: bool = False) -> Iterator[JaxprEqn]:
    """Every operation inside loops of this many turns, and inside the programs that these call."""
    for eqn in jaxpr.eqns:
        if inside:
            yield eqn
        looped = eqn.primitive.name == "scan" and eqn.params["length"] == turns
        for program in programs_of(eqn):
            yield from operations_in_loops(program, turns, inside or looped)


def pairs_the_same(params: Params) -> bool:
    """Whether a dot_general of an array with itself squares entries, as tr(R R^T) does and tr(R R) does not."""
    return all(tuple(first) == tuple(second) for first, second in params["dimension_numbers"])


def _follow(jaxpr: Jaxpr, given: Sequence[Names], found: list[tuple[JaxprEqn, list[Names]]]) -> list[Names]:
    """The names that the outputs of a program depend on."""
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
    """The names that the outputs of a scan depend on, found by repetition, since carried outputs become inputs."""
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
    """How many inputs of a scan are constants, and how many are carried from turn to turn."""
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
