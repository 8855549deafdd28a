"""[init] of a problem file: the start."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import msgspec
from jaxtyping import PyTree

from flowsim import initialization
from flowsim._core import checks
from flowsim._core.checks import refuse
from flowsim.models import (
    DiagonalLayers,
    FactoredMultiHeadAttention,
    LinearAttention,
    LinearTransformerBlock,
    LoopedAttention,
    MaskedAttention,
    MultiHeadAttention,
    MultiLayerAttention,
    ScalarLayers,
    ScalarLoop,
    SoftmaxAttention,
)
from flowsim.problem import toml
from flowsim.problem.kinds import (
    Count,
    Matrices,
    Matrix,
    Number,
    NumberOrVector,
    Positive,
    Seed,
    Vector,
    VectorOrMatrix,
)
from flowsim.problem.model_table import ModelTable, Task
from flowsim.problem.toml import AbstractTable
from flowsim.tasks import SpectralRegression


class InitTable(AbstractTable, frozen=True):
    """[init]: the start. Which kinds an architecture has, and which fields go with each, is in ``_STARTS``.

    On the multiples a_i of the inverse covariance and b_i of I, where ``flow.restrict`` can put a flow, scale is that
    of these numbers; in the eigenbasis of the covariance, of the eigenvalues.
    """

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
    B: Matrices | None = None
    u: Vector | None = None
    a: NumberOrVector | None = None
    b: VectorOrMatrix | None = None
    W_PV: Matrices | None = None
    W_KQ: Matrices | None = None
    w: Vector | None = None
    W_K: Matrices | None = None
    W_Q: Matrices | None = None
    W_V: Matrices | None = None
    W_P: Matrices | None = None
    W_1: Matrix | None = None
    W_2: Matrix | None = None

    def given(self) -> dict[str, Any]:
        """The fields that are not left out, beside the kind."""
        fields = msgspec.structs.asdict(self).items()
        return {name: value for name, value in fields if value is not None and name != "kind"}

    @property
    def symmetric(self) -> bool:
        """Whether an explicit start is symmetric, with u = 0; so is every other one."""
        return (self.A is None or tuple(zip(*self.A, strict=False)) == self.A) and not any(self.u or ())

    def resolved(self, d: int, model: ModelTable, restrict: str | None) -> "InitTable":
        """With rank and seed where a matrix is drawn; nothing that the kind would ignore."""
        kind, known = self._known(model, restrict)
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

    def start(self, task: Task, model: ModelTable, restrict: str | None) -> PyTree:
        """The model of this table, resolved, for the prompts of a task.

        **Raises:** `ValueError` naming the argument.
        """
        if isinstance(task, SpectralRegression):
            return DiagonalLayers(self._eigenvalues(task, model), task)
        _, known = self._known(model, restrict)
        return known.make(self, task.dimension, model)

    def _eigenvalues(self, task: SpectralRegression, model: ModelTable) -> jax.Array:
        """Of every matrix, one for each eigenvalue of the covariance."""
        shape = (model.depth, task.eigenvalues.size)
        if self.kind != "random-diagonal":
            return jnp.full(shape, self.scale or 0.0)
        return _scale(self) * jax.random.normal(jax.random.key(_seed(self)), shape)

    def start_with(self, d: int, scale: Any, seed: Any) -> LinearAttention:
        """The linear attention with another scale and seed, which may be traced: one program makes many starts."""
        given = self.given()
        others = {name: value for name, value in {"scale": scale, "seed": seed}.items() if name in given}
        _, known = self._known(ModelTable(), None)
        return known.make(msgspec.structs.replace(self, **others), d, ModelTable())

    def _known(self, model: ModelTable, restrict: str | None) -> tuple[str, "_Start"]:
        """The kind, and what is known of it."""
        table = _STARTS[restrict or _FACTORED.get(str(model.parametrisation), model.architecture)]
        kind = self.kind or ("balanced" if model.architecture == "linear-attention" else None)
        if kind is None or kind not in table:
            known = ", ".join(f'"{name}"' for name in table)
            named = f'architecture = "{model.architecture}"' + (
                f' and flow.restrict = "{restrict}"' if restrict else ""
            )
            refuse("init.kind", f"one of {known} with {named}", f'it is "{kind}"' if kind else "it is missing")
        return kind, table[kind]

    def arrays(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, jax.Array]:
        """The weights of an explicit start that are given, of these shapes."""
        given = self.given()
        return {name: checks.as_array(name, given[name], shape) for name, shape in shapes.items() if name in given}


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
            return make(_scale(table), checks.as_array("theta", table.theta, (d, None)))
        return make(_scale(table), initialization.random_theta(d, table.rank or d, _seed(table)))

    return made


def _explicit_linear(table: InitTable, d: int, model: ModelTable) -> LinearAttention:
    return LinearAttention(**table.arrays({"U11": (d, d), "u_minus1": (), "u12": (d,), "u21": (d,)}))


def _explicit_masked(table: InitTable, d: int, model: ModelTable) -> MaskedAttention:
    return MaskedAttention(**table.arrays({"b": (d + 1,), "A": (d + 1, d)}))


def _explicit_softmax(table: InitTable, d: int, model: ModelTable) -> SoftmaxAttention:
    shape = (model.depth, d + 1, d + 1)
    weights = table.arrays({"W_PV": shape, "W_KQ": shape})
    return SoftmaxAttention(weights["W_PV"], weights["W_KQ"])


def _layers(matrices: jax.Array, model: ModelTable) -> PyTree:
    """The looped model of one matrix, or the model with one matrix for each layer, and then one for each B_i."""
    k = model.depth
    if model.loops is None:
        B = matrices[k:] if model.residual_stream else None
        return MultiLayerAttention(matrices[:k], B, symmetric=bool(model.symmetric))
    return LoopedAttention(checks.symmetric("A", matrices[0]) if model.symmetric else matrices[0], loops=model.loops)


def _count(model: ModelTable) -> int:
    """How many matrices the model has: A_i, and B_i of all layers but the last."""
    return 2 * model.depth - 1 if model.residual_stream else model.depth


def _explicit_layers(table: InitTable, d: int, model: ModelTable) -> PyTree:
    k = model.depth
    _check_moves(model, "B", "matrices", table.B is not None)
    # An empty list has no shape to check.
    weights = table.arrays({"A": (k, d, d)} | ({"B": (k - 1, d, d)} if table.B else {}))
    if model.residual_stream and k == 1:
        weights["B"] = jnp.zeros((0, d, d))
    return MultiLayerAttention(**weights, symmetric=bool(model.symmetric))


def _explicit_loop(table: InitTable, d: int, model: ModelTable) -> PyTree:
    if model.symmetric and any(table.u or ()):
        checks.refuse("u", "zero with model.symmetric = true", "it is not")
    weights = table.arrays({"A": (d, d), "u": (d,)})
    looped = _layers(weights["A"][None], model)
    return LoopedAttention(looped.A, weights.get("u"), loops=looped.loops)


def _check_moves(model: ModelTable, name: str, kind: str, given: bool) -> None:
    """What moves the covariates must be given where the model does, and nowhere else."""
    if given != bool(model.residual_stream):
        expected = f"a list of {kind}" if model.residual_stream else "left out"
        came = "it is given" if given else "it is missing"
        checks.refuse(name, f"{expected} with model.residual_stream = {str(bool(model.residual_stream)).lower()}", came)


def _random_layers(table: InitTable, d: int, model: ModelTable) -> PyTree:
    """The A_i with the keys that they have without B, symmetric where the model is; B_i is never symmetric."""
    drawn = initialization.gaussian(_scale(table), d, _seed(table), _count(model))
    if model.symmetric:
        drawn = drawn.at[: model.depth].set(initialization.symmetric(_scale(table), d, _seed(table), model.depth))
    return _layers(drawn, model)


def _diagonal_layers(table: InitTable, d: int, model: ModelTable) -> PyTree:
    return _layers(initialization.diagonal(_scale(table), d, _seed(table), _count(model)), model)


def _equal_layers(table: InitTable, d: int, model: ModelTable) -> PyTree:
    """Every matrix scale I; zero for the kind that has no scale."""
    return _layers(jnp.broadcast_to((table.scale or 0.0) * jnp.eye(d), (_count(model), d, d)), model)


def _scalars(a: Any, model: ModelTable, b: Any) -> PyTree:
    """The model of these multiples of the inverse covariance and of I."""
    if model.loops is not None:
        return ScalarLoop(a[0], loops=model.loops)
    return ScalarLayers(a, b if model.residual_stream else None)


def _explicit_scalars(table: InitTable, d: int, model: ModelTable) -> PyTree:
    k = model.depth
    weights = table.arrays({"a": () if model.loops is not None else (k,), "b": (k - 1,)})
    _check_moves(model, "b", "numbers", "b" in weights)
    return _scalars(jnp.atleast_1d(weights["a"]), model, weights.get("b"))


def _equal_scalars(table: InitTable, d: int, model: ModelTable) -> PyTree:
    """Every scalar the same; zero for the kind that has no scale."""
    value = table.scale or 0.0
    return _scalars(jnp.full(model.depth, value), model, jnp.full(model.depth - 1, value))


def _random_scalars(table: InitTable, d: int, model: ModelTable) -> PyTree:
    """Every scalar scale N(0, 1), with the keys of the matrices they stand for."""
    k = model.depth
    drawn = jnp.ravel(initialization.gaussian(_scale(table), 1, _seed(table), 2 * k - 1))
    return _scalars(drawn[:k], model, drawn[k:])


def _heads(make: Callable[..., PyTree]) -> _Start:
    def made(table: InitTable, d: int, model: ModelTable) -> PyTree:
        return make(_scale(table), model.zero_heads(d), _seed(table))

    return _Start(made, ("scale",), ("seed",))


def _explicit_heads(table: InitTable, d: int, model: ModelTable) -> MultiHeadAttention:
    like = model.zero_heads(d)
    weights = table.arrays({"b": like.b.shape, "A": like.A.shape} | _trained_guess(table, like))
    return MultiHeadAttention(**({"w": like.w} | weights), bias=like.bias, trainable=like.trainable)


def _explicit_factored(table: InitTable, d: int, model: ModelTable) -> FactoredMultiHeadAttention:
    like = model.zero_heads(d)
    matrices = dict.fromkeys(("W_K", "W_Q", "W_V", "W_P"), like.A.shape)
    weights = table.arrays(matrices | _trained_guess(table, like))
    return FactoredMultiHeadAttention(**({"w": like.w} | weights), bias=like.bias, trainable=like.trainable)


def _trained_guess(table: InitTable, like: MultiHeadAttention) -> dict[str, tuple[int, ...]]:
    """The shape of w, which must be given where it is trained, and nowhere else."""
    if (table.w is not None) != like.trainable:
        expected = "a list of numbers" if like.trainable else "left out"
        came = "it is missing" if table.w is None else "it is given"
        checks.refuse("w", f'{expected} with model.guess {"=" if like.trainable else "other than"} "trainable"', came)
    return {"w": like.w.shape}


def _explicit_block(table: InitTable, d: int, model: ModelTable) -> LinearTransformerBlock:
    square, wide = (d + 1, d + 1), (len(table.W_1 or ()), d + 1)
    shapes = {"W_1": wide, "W_2": wide} | dict.fromkeys(("W_K", "W_Q", "W_V", "W_P"), square)
    return LinearTransformerBlock(**table.arrays(shapes))


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
        "random": _random(initialization.masked),
        "explicit": _Start(_explicit_masked, ("b", "A")),
    },
    "softmax-attention": {
        "random": _Start(
            lambda table, d, model: initialization.softmax(_scale(table), d, _seed(table), model.depth),
            ("scale",),
            ("seed",),
        ),
        "explicit": _Start(_explicit_softmax, ("W_PV", "W_KQ")),
    },
    "looped": {
        "zeros": _Start(_equal_layers),
        "scaled-identity": _Start(_equal_layers, ("scale",)),
        "random": _Start(_random_layers, ("scale",), ("seed",)),
        "random-diagonal": _Start(_diagonal_layers, ("scale",), ("seed",)),
        "explicit": _Start(_explicit_loop, ("A",), ("u",)),
    },
}
_STARTS["multi-layer"] = _STARTS["looped"] | {"explicit": _Start(_explicit_layers, ("A",), ("B",))}
_STARTS["inverse-covariance"] = {
    "zeros": _Start(_equal_scalars),
    "scaled-identity": _Start(_equal_scalars, ("scale",)),
    "random": _Start(_random_scalars, ("scale",), ("seed",)),
    "explicit": _Start(_explicit_scalars, ("a",), ("b",)),
}
_MATRICES = ("W_K", "W_Q", "W_V", "W_P")
_STARTS["multi-head"] = {
    "zeros": _Start(lambda table, d, model: model.zero_heads(d)),
    "balanced": _heads(initialization.balanced_heads),
    "random": _heads(initialization.heads),
    "explicit": _Start(_explicit_heads, ("b", "A"), ("w",)),
}
_STARTS["initial-guess"] = _STARTS["multi-head"]
_FACTORED = {"factored": "factored heads"}
_STARTS["factored heads"] = {
    "random": _heads(initialization.factored_heads),
    "explicit": _Start(_explicit_factored, _MATRICES, ("w",)),
}
_STARTS["linear-block"] = {
    "random": _random(initialization.linear_block),
    "explicit": _Start(_explicit_block, ("W_1", "W_2", *_MATRICES)),
}
_STARTS["eigenbasis"] = {name: _STARTS["looped"][name] for name in ("zeros", "scaled-identity", "random-diagonal")}
_FIELDS = toml.fields(InitTable, "init.")
