"""Checks of the arguments of a flow."""

from collections.abc import Iterable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, PyTree

from flowsim._core import checks
from flowsim.flow.trajectory import COUNTED, SERIES, weights

SOLVERS = ("auto", "implicit", "explicit")


def check_model(model: PyTree) -> None:
    """Refuse a model without float64 weights, or with weights that are not finite."""
    checks.require_float64()
    flowing = weights(eqx.filter(model, eqx.is_inexact_array))
    if not sum(leaf.size for leaf in flowing.values()):
        checks.refuse("model", "an Equinox module with float64 weights", "it has none")
    for name in weights(model):
        if name in (*SERIES, *COUNTED, "metadata"):
            checks.refuse(f"model.{name}", "a weight of another name, as a trajectory has one of that", "it is not")
    for name, leaf in flowing.items():
        if leaf.dtype != jnp.float64:
            checks.refuse(f"model.{name}", "float64", f"it is {leaf.dtype}")
        if checks.is_concrete(leaf) and not np.all(np.isfinite(np.asarray(leaf))):
            checks.refuse(f"model.{name}", "finite", "it holds NaN or infinity")


def check_arguments(
    model: PyTree,
    times: ArrayLike | Iterable[float],
    t1: float | None,
    rtol: float,
    solver: str,
    points_per_decade: int | None,
    steps_per_decade: int | None,
    budget_seconds: float | None,
) -> np.ndarray:
    """Refuse invalid arguments of `gradient_flow`, which documents them; return the requested times as an array."""
    check_model(model)
    requested = checks.increasing_times("times", times)
    if t1 is not None:
        t1 = checks.time("t1", float(checks.positive("t1", t1)))
        if requested.size and requested[-1] > t1:
            checks.refuse("times", f"no later than t1 = {t1:g}", f"the last is {requested[-1]:g}")
    if not 1e-14 <= rtol < 1:
        checks.refuse("rtol", "at least 1e-14 and below 1", f"it is {rtol}")
    if solver not in SOLVERS:
        checks.refuse("solver", f"one of {', '.join(SOLVERS)}", f'it is "{solver}"{checks.nearest(solver, SOLVERS)}')
    for name, count in (("points_per_decade", points_per_decade), ("steps_per_decade", steps_per_decade)):
        if count is not None and count < 0:
            checks.refuse(name, "at least 0", f"it is {count}")
    if points_per_decade == 0 and not requested.size and t1 is None:
        checks.refuse("points_per_decade", "positive where neither times nor t1 is given", "it is 0")
    if budget_seconds is not None:
        checks.positive("budget_seconds", budget_seconds)
    return requested
