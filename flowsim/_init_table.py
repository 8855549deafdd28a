"""[init] of a problem file: the start."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import msgspec
from jaxtyping import PyTree

from flowsim import _checks, _toml, initialization, starts
from flowsim._kinds import Count, Matrices, Matrix, Number, Positive, Seed, Vector
from flowsim._model_table import ModelTable
from flowsim._toml import AbstractTable, refuse
from flowsim.models import LinearAttention, LoopedAttention, MaskedAttention, MultiLayerAttention


class InitTable(AbstractTable, frozen=True):
    """[init]: the start. Which kinds an architecture has, and which fields go with each, is in ``_STARTS``."""

    kind: (
        Literal[
            "balanced",
            "balanced-indefinite",
            "unbalanced",
            "zeros",
            "scaled-identity",
            "random",
            "random-diagonal",
            "explicit",
        ]
        | None
    ) = None
    scale: Positive | None = None
    theta: Matrix | None = None
    rank: Count | None = None
    seed: Seed | None = None
    U11: Matrix | None = None
    u_minus1: Number | None = None
    u12: Vector | None = None
    u21: Vector | None = None
    A: Matrices | None = None
    u: Vector | None = None
    b: Vector | None = None

    def given(self) -> dict[str, Any]:
        """The fields that are not left out, beside the kind."""
        fields = msgspec.structs.asdict(self).items()
        return {name: value for name, value in fields if value is not None and name != "kind"}

    @property
    def symmetric(self) -> bool:
        """Whether an explicit start is symmetric, with u = 0; so is every other one."""
        return (self.A is None or tuple(zip(*self.A, strict=False)) == self.A) and not any(self.u or ())

    def resolved(self, d: int, model: ModelTable) -> "InitTable":
        """With rank and seed where a matrix is drawn; nothing that the kind would ignore."""
        kind, known = self._known(model)
        given = self.given()
        for name in known.needed:
            if name not in given:
                refuse(f"init.{name}", _FIELDS[f"init.{name}"].expected, f'it is missing (kind = "{kind}")')
        for name in given:
            if name not in known.needed + known.allowed:
                named = (
                    "" if model.architecture == "linear-attention" else f' and architecture = "{model.architecture}"'
                )
                refuse(f"init.{name}", f'left out with kind = "{kind}"{named}', "it is given")
            if name in ("rank", "seed") and self.theta is not None:
                refuse(f"init.{name}", "left out where theta is given", "it is given")
        if self.rank is not None and self.rank > d:
            refuse("init.rank", f"at most the dimension, {d}", f"it is {self.rank}")
        drawn = () if self.theta is not None else known.allowed
        defaults = {name: value for name, value in {"rank": d, "seed": 0}.items() if name in drawn}
        return msgspec.structs.replace(self, kind=kind, **(defaults | given))

    def start(self, d: int, model: ModelTable) -> PyTree:
        """The model of this table, resolved, in dimension d.

        **Raises:** `ValueError` naming the argument.
        """
        _, known = self._known(model)
        return known.make(self, d, model)

    def start_with(self, d: int, scale: Any, seed: Any) -> LinearAttention:
        """The linear attention with another scale and seed, which may be traced: one program makes many starts."""
        given = self.given()
        others = {name: value for name, value in {"scale": scale, "seed": seed}.items() if name in given}
        return msgspec.structs.replace(self, **others).start(d, ModelTable())

    def _known(self, model: ModelTable) -> tuple[str, "_Start"]:
        """The kind, and what is known of it."""
        table = _STARTS[model.architecture]
        kind = self.kind or ("balanced" if "balanced" in table else None)
        if kind is None or kind not in table:
            known = ", ".join(f'"{name}"' for name in table)
            named = f'architecture = "{model.architecture}"'
            refuse("init.kind", f"one of {known} with {named}", f'it is "{kind}"' if kind else "it is missing")
        return kind, table[kind]

    def arrays(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, jax.Array]:
        """The weights of an explicit start that are given, of these shapes."""
        given = self.given()
        return {name: _checks.as_array(name, given[name], shape) for name, shape in shapes.items() if name in given}


@dataclasses.dataclass(frozen=True)
class _Start:
    """A kind of start: what makes it, the fields that it needs, and those that it may have."""

    make: Callable[[InitTable, int, ModelTable], PyTree]
    needed: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()


def _scale(table: InitTable) -> Any:
    """What a resolved table of a kind with a scale has."""
    assert table.scale is not None
    return table.scale


def _seed(table: InitTable) -> Any:
    """What a resolved table of a kind that is drawn has."""
    assert table.seed is not None
    return table.seed


def _of_theta(make: Callable[..., LinearAttention]) -> Callable[[InitTable, int, ModelTable], LinearAttention]:
    """A start that a matrix M shapes, given or drawn."""

    def made(table: InitTable, d: int, model: ModelTable) -> LinearAttention:
        if table.theta is not None:
            return make(_scale(table), _checks.as_array("theta", table.theta, (d, None)))
        return make(_scale(table), initialization.random_theta(d, table.rank or d, _seed(table)))

    return made


def _explicit_linear(table: InitTable, d: int, model: ModelTable) -> LinearAttention:
    return LinearAttention(**table.arrays({"U11": (d, d), "u_minus1": (), "u12": (d,), "u21": (d,)}))


def _explicit_masked(table: InitTable, d: int, model: ModelTable) -> MaskedAttention:
    return MaskedAttention(**table.arrays({"b": (d + 1,), "A": (d + 1, d)}))


def _layers(matrices: jax.Array, model: ModelTable, u: jax.Array | None = None) -> PyTree:
    """The looped model of one matrix, or the model with one matrix for each layer."""
    if model.loops is None:
        return MultiLayerAttention(matrices, symmetric=bool(model.symmetric))
    A = _checks.symmetric("A", matrices[0]) if model.symmetric else matrices[0]
    return LoopedAttention(A, u, loops=model.loops)


def _explicit_layers(table: InitTable, d: int, model: ModelTable) -> PyTree:
    if model.loops is None:
        return _layers(table.arrays({"A": (model.depth, d, d)})["A"], model)
    weights = table.arrays({"A": (d, d), "u": (d,)})
    if model.symmetric and any(table.u or ()):
        _checks.fail("u", "zero with model.symmetric = true", "it is not")
    return _layers(weights["A"][None], model, weights.get("u"))


def _random_layers(table: InitTable, d: int, model: ModelTable) -> PyTree:
    draw = starts.symmetric if model.symmetric else starts.gaussian
    return _layers(draw(_scale(table), d, _seed(table), model.depth), model)


def _diagonal_layers(table: InitTable, d: int, model: ModelTable) -> PyTree:
    return _layers(starts.diagonal(_scale(table), d, _seed(table), model.depth), model)


def _equal_layers(table: InitTable, d: int, model: ModelTable) -> PyTree:
    """Every matrix scale I; zero for the kind that has no scale."""
    return _layers(jnp.broadcast_to((table.scale or 0.0) * jnp.eye(d), (model.depth, d, d)), model)


def _random(make: Callable[..., PyTree]) -> _Start:
    return _Start(lambda table, d, model: make(_scale(table), d, _seed(table)), ("scale",), ("seed",))


_STARTS: dict[str, dict[str, _Start]] = {
    "linear-attention": {
        "balanced": _Start(_of_theta(initialization.balanced), ("scale",), ("theta", "rank", "seed")),
        # Drawn square and not as a factor, so that it has no rank to choose.
        "balanced-indefinite": _Start(_of_theta(initialization.balanced_indefinite), ("scale",), ("theta", "seed")),
        "unbalanced": _Start(_of_theta(initialization.unbalanced), ("scale",), ("theta", "rank", "seed")),
        "zeros": _Start(lambda table, d, model: initialization.zeros(d)),
        "scaled-identity": _Start(lambda table, d, model: initialization.scaled_identity(_scale(table), d), ("scale",)),
        "random": _random(initialization.random),
        "explicit": _Start(_explicit_linear, ("U11", "u_minus1"), ("u12", "u21")),
    },
    "masked-attention": {
        "zeros": _Start(lambda table, d, model: MaskedAttention(jnp.zeros(d + 1), jnp.zeros((d + 1, d)))),
        "random": _random(starts.masked),
        "explicit": _Start(_explicit_masked, ("b", "A")),
    },
    "looped": {
        "zeros": _Start(_equal_layers),
        "scaled-identity": _Start(_equal_layers, ("scale",)),
        "random": _Start(_random_layers, ("scale",), ("seed",)),
        "random-diagonal": _Start(_diagonal_layers, ("scale",), ("seed",)),
        "explicit": _Start(_explicit_layers, ("A",), ("u",)),
    },
}
_STARTS["multi-layer"] = _STARTS["looped"] | {"explicit": _Start(_explicit_layers, ("A",))}
_FIELDS = _toml.fields(InitTable, "init.")
