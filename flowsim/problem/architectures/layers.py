"""The architectures "looped" and "multi-layer": several layers of linear attention."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from flowsim import initialization
from flowsim._core import checks
from flowsim._core.checks import refuse
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import (
    AbstractPopulationLoss,
    DiagonalLayersLoss,
    LoopedLoss,
    MultiLayerLoss,
    ScalarLayersLoss,
    ScalarLoopLoss,
)
from flowsim.losses.deep.multi_layer import MOST_LAYERS, MOST_LOOPS
from flowsim.losses.deep.scalar_layers import restricted_speeds
from flowsim.models import DiagonalLayers, LoopedAttention, MultiLayerAttention, ScalarLayers, ScalarLoop
from flowsim.problem.architecture import Architecture, Curve, Restriction, Series, Start, scale_of, seed_of
from flowsim.problem.init_table import InitTable
from flowsim.problem.model_table import LossTable, ModelTable
from flowsim.problem.task_tables import TaskTable
from flowsim.tasks import LinearRegression, SpectralRegression

_LAWS = ("inverse-covariance", "isotropic")


def _looped_loss(model: ModelTable, task: LinearRegression, kind: str) -> LoopedLoss:
    assert model.loops is not None and model.symmetric is not None, "a resolved table has both"
    return LoopedLoss(task, model.loops, form=_form(kind), symmetric=model.symmetric)


def _layers_loss(model: ModelTable, task: LinearRegression, kind: str) -> MultiLayerLoss:
    assert model.symmetric is not None, "a resolved table has it"
    return MultiLayerLoss(task, model.depth, symmetric=model.symmetric)


def _form(kind: str) -> str:
    return "printed" if kind == "printed" else "exact"


def _has_exact_loss(model: ModelTable) -> bool:
    depth, most = (model.loops, MOST_LOOPS) if model.loops else (model.depth, MOST_LAYERS)
    return not model.residual_stream and depth <= most[bool(model.symmetric)]


def _defaults(model: ModelTable, task: TaskTable, symmetric: bool, restrict: str | None) -> dict[str, object]:
    # If w ~ N(0, covariance^-1), a looped flow from a symmetric start stays symmetric.
    stays = model.loops is None or (symmetric and task.weights == "inverse-covariance")
    given: dict[str, object] = {"symmetric": stays or restrict is not None}
    return given | ({} if model.loops is not None else {"residual_stream": False})


def _check(model: ModelTable, task: TaskTable, loss: LossTable, restrict: str | None) -> None:
    """Refuse combinations of fields for which the loss is not known.

    **Raises:** `ProblemError` naming the field.
    """
    if restrict and not model.symmetric:
        refuse("model.symmetric", "true where flow.restrict is given", "it is false")
    if restrict == "inverse-covariance":
        here = 'with flow.restrict = "inverse-covariance"'
        if task.weights != "inverse-covariance":
            refuse("task.weights", f'"inverse-covariance" {here}', f'it is "{task.weights}"')
        if loss.kind == "printed":
            # On multiples of the inverse covariance the printed loss is the exact loss.
            refuse("loss.kind", f'"exact" or "limit" {here}', f'it is "{loss.kind}"')
    elif model.residual_stream and loss.kind != "monte-carlo":
        expected = 'false unless flow.restrict = "inverse-covariance", where the loss is known, or'
        refuse("model.residual_stream", f'{expected} loss.kind = "monte-carlo"', "it is true")
    if loss.kind == "printed" and not (model.symmetric and task.weights == "inverse-covariance"):
        expected = '"exact" or "limit" unless the model is symmetric and w has the law "inverse-covariance"'
        refuse("loss.kind", expected, f'it is "{loss.kind}"')


# Starts of full matrices.


def _layers(matrices: jax.Array, model: ModelTable) -> PyTree:
    """The looped or multi-layer model with given matrices.

    **Arguments:** matrices: A for a looped model, else A_1, .., A_k followed by the B_i if the model has them,
    along the first axis; model: [model] with all defaults.
    """
    k = model.depth
    if model.loops is None:
        B = matrices[k:] if model.residual_stream else None
        return MultiLayerAttention(matrices[:k], B, symmetric=bool(model.symmetric))
    return LoopedAttention(checks.symmetric("A", matrices[0]) if model.symmetric else matrices[0], loops=model.loops)


def _count(model: ModelTable) -> int:
    """The number of matrices of a model: k matrices A_i and, with a residual stream, k - 1 matrices B_i."""
    return 2 * model.depth - 1 if model.residual_stream else model.depth


def _equal(table: InitTable, d: int, model: ModelTable) -> PyTree:
    """The start at which every matrix is scale I, or zero for the kind "zeros"."""
    return _layers(jnp.broadcast_to((table.scale or 0.0) * jnp.eye(d), (_count(model), d, d)), model)


def _random(table: InitTable, d: int, model: ModelTable) -> PyTree:
    """The start with Gaussian matrices. The A_i are symmetric if the model is; the B_i are not.

    For one seed the A_i are the same with and without B_i.
    """
    drawn = initialization.gaussian(scale_of(table), d, seed_of(table), _count(model))
    if model.symmetric:
        drawn = drawn.at[: model.depth].set(initialization.symmetric(scale_of(table), d, seed_of(table), model.depth))
    return _layers(drawn, model)


def _diagonal(table: InitTable, d: int, model: ModelTable) -> PyTree:
    return _layers(initialization.diagonal(scale_of(table), d, seed_of(table), _count(model)), model)


def _explicit_loop(table: InitTable, d: int, model: ModelTable) -> LoopedAttention:
    if model.symmetric and any(table.u or ()):
        refuse("u", "zero with model.symmetric = true", "it is not")
    weights = table.arrays({"A": (d, d), "u": (d,)})
    looped = _layers(weights["A"][None], model)
    return LoopedAttention(looped.A, weights.get("u"), loops=looped.loops)


def _explicit_layers(table: InitTable, d: int, model: ModelTable) -> MultiLayerAttention:
    k = model.depth
    _check_moves(model, "B", "matrices", table.B is not None)
    # An empty list has no shape to check.
    weights = table.arrays({"A": (k, d, d)} | ({"B": (k - 1, d, d)} if table.B else {}))
    if model.residual_stream and k == 1:
        weights["B"] = jnp.zeros((0, d, d))
    return MultiLayerAttention(**weights, symmetric=bool(model.symmetric))


def _check_moves(model: ModelTable, name: str, kind: str, given: bool) -> None:
    """Refuse a start that lacks the B_i or b_i of a model that moves the covariates, or has them for another model.

    **Arguments:** model: [model]; name: the field, "B" or "b"; kind: its elements in words, "matrices" or
    "numbers"; given: whether the start has the field.

    **Raises:** `ProblemError` naming the field.
    """
    if given != bool(model.residual_stream):
        expected = f"a list of {kind}" if model.residual_stream else "left out"
        came = "it is given" if given else "it is missing"
        refuse(name, f"{expected} with model.residual_stream = {str(bool(model.residual_stream)).lower()}", came)


_STARTS = {
    "zeros": Start(_equal),
    "scaled-identity": Start(_equal, ("scale",)),
    "random": Start(_random, ("scale",), ("seed",)),
    "random-diagonal": Start(_diagonal, ("scale",), ("seed",)),
}
_OF_LOOPS: Mapping[str, Start] = _STARTS | {"explicit": Start(_explicit_loop, ("A",), ("u",))}
_OF_LAYERS: Mapping[str, Start] = _STARTS | {"explicit": Start(_explicit_layers, ("A",), ("B",))}


# Models that are multiples of the inverse covariance and of I.


def _scalar_loss(model: ModelTable, task: LinearRegression, kind: str) -> AbstractPopulationLoss:
    d, n, speeds = task.dimension, task.context_length, restricted_speeds(task.covariance)
    if model.loops is not None:
        return ScalarLoopLoss(d, n, model.loops, speed=speeds.a)
    return ScalarLayersLoss(d, n, model.depth, bool(model.residual_stream), speeds=speeds)


def _scalars(a: jax.Array, model: ModelTable, b: jax.Array | None) -> PyTree:
    """The model with the matrices A_i = a_i covariance^-1 and, if it has them, B_i = b_i I."""
    if model.loops is not None:
        return ScalarLoop(a[0], loops=model.loops)
    return ScalarLayers(a, b if model.residual_stream else None)


def _equal_scalars(table: InitTable, d: int, model: ModelTable) -> PyTree:
    """The start at which every scalar a_i and b_i is the scale, or zero for the kind "zeros"."""
    value = table.scale or 0.0
    return _scalars(jnp.full(model.depth, value), model, jnp.full(model.depth - 1, value))


def _random_scalars(table: InitTable, d: int, model: ModelTable) -> PyTree:
    """The start with independent a_i and b_i ~ scale N(0, 1), each drawn with the key that `_random` uses for A_i
    or B_i.
    """
    k = model.depth
    drawn = jnp.ravel(initialization.gaussian(scale_of(table), 1, seed_of(table), 2 * k - 1))
    return _scalars(drawn[:k], model, drawn[k:])


def _explicit_scalars(table: InitTable, d: int, model: ModelTable) -> PyTree:
    k = model.depth
    weights = table.arrays({"a": () if model.loops is not None else (k,), "b": (k - 1,)})
    _check_moves(model, "b", "numbers", "b" in weights)
    return _scalars(jnp.atleast_1d(weights["a"]), model, weights.get("b"))


# Models in the eigenbasis of the covariance.


def _diagonal_loss(model: ModelTable, task: SpectralRegression, kind: str) -> DiagonalLayersLoss:
    return DiagonalLayersLoss(task, model.loops or model.depth, looped=model.loops is not None, form=_form(kind))


def _eigenvalues(table: InitTable, task: SpectralRegression, model: ModelTable) -> DiagonalLayers:
    """The start with matrices that are diagonal in the eigenbasis of the covariance.

    Each matrix has one eigenvalue for each distinct eigenvalue of the covariance.
    """
    shape = (model.depth, task.eigenvalues.size)
    if table.kind != "random-diagonal":
        return DiagonalLayers(jnp.full(shape, table.scale or 0.0), task)
    return DiagonalLayers(scale_of(table) * jax.random.normal(jax.random.key(seed_of(table)), shape), task)


_RESTRICTIONS = {
    "inverse-covariance": Restriction(
        {
            "zeros": Start(_equal_scalars),
            "scaled-identity": Start(_equal_scalars, ("scale",)),
            "random": Start(_random_scalars, ("scale",), ("seed",)),
            "explicit": Start(_explicit_scalars, ("a",), ("b",)),
        },
        _scalar_loss,
    ),
    "eigenbasis": Restriction(
        {name: _STARTS[name] for name in ("zeros", "scaled-identity", "random-diagonal")}, _diagonal_loss, _eigenvalues
    ),
}


def _distance_to_optimum(trajectory: Trajectory, best: PyTree) -> Series:
    """The distance of (A, u) from the weights with the smallest known loss, divided by the norm of these weights.

    **Arguments:** trajectory: of looped models; best: the model with the smallest known loss.

    **Returns:** the relative distance in the Frobenius norm at each time, (T,).
    """
    A, u = np.asarray(trajectory.models.A - best.A[None]), np.asarray(trajectory.models.u - best.u[None])
    gap = np.sum(A**2, axis=(1, 2)) + np.sum(u**2, axis=1)
    return np.sqrt(gap / (np.sum(np.asarray(best.A) ** 2) + np.sum(np.asarray(best.u) ** 2)))


LOOPED = Architecture(
    "looped",
    loss=_looped_loss,
    starts=lambda model: _OF_LOOPS,
    fields=("loops", "symmetric"),
    needed=("loops",),
    defaults=_defaults,
    losses=("exact", "printed", "limit", "monte-carlo"),
    laws_of_weights=_LAWS,
    has_exact_loss=_has_exact_loss,
    restrictions=_RESTRICTIONS,
    check=_check,
    curves={
        "distance-to-optimum": Curve(
            r"$\|(A, u) - (A, u)_{opt}\|_F \,/\, \|(A, u)_{opt}\|_F$",
            "Relative distance of the weights (A, u) in the Frobenius norm from the weights of least known loss.",
            _distance_to_optimum,
        )
    },
)
MULTI_LAYER = Architecture(
    "multi-layer",
    loss=_layers_loss,
    starts=lambda model: _OF_LAYERS,
    fields=("layers", "symmetric", "residual_stream"),
    needed=("layers",),
    defaults=_defaults,
    losses=("exact", "limit", "monte-carlo"),
    laws_of_weights=_LAWS,
    has_exact_loss=_has_exact_loss,
    restrictions=_RESTRICTIONS,
    check=_check,
)
