"""What a flow accepts."""

from collections.abc import Iterable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, PyTree

from flowsim import _checks
from flowsim.trajectory import weights

SOLVERS = ("auto", "implicit", "explicit")


def check_model(model: PyTree) -> None:
    """Refuse a model without float64 weights, or with weights that are not finite."""
    _checks.require_float64()
    flowing = weights(eqx.filter(model, eqx.is_inexact_array))
    if not flowing:
        _checks.fail("model", "an Equinox module with float64 weights", "it has none")
    for name, leaf in flowing.items():
        if leaf.dtype != jnp.float64:
            _checks.fail(f"model.{name}", "float64", f"it is {leaf.dtype}")
        if not np.all(np.isfinite(np.asarray(leaf))):
            _checks.fail(f"model.{name}", "finite", "it holds NaN or infinity")


def check_arguments(
    model: PyTree,
    times: ArrayLike | Iterable[float],
    t1: float | None,
    rtol: float,
    solver: str,
    points_per_decade: int | None,
    budget_seconds: float | None,
) -> np.ndarray:
    """Refuse what `gradient_flow` cannot do; the requested times as an array."""
    check_model(model)
    requested = _checks.increasing_times("times", times)
    if t1 is not None:
        t1 = float(_checks.positive("t1", t1))
        if requested.size and requested[-1] > t1:
            _checks.fail("times", f"no later than t1 = {t1:g}", f"the last is {requested[-1]:g}")
    if not 1e-14 <= rtol < 1:
        _checks.fail("rtol", "at least 1e-14 and below 1", f"it is {rtol}")
    if solver not in SOLVERS:
        _checks.fail("solver", f"one of {', '.join(SOLVERS)}", f'it is "{solver}"{_checks.nearest(solver, SOLVERS)}')
    if points_per_decade is not None and points_per_decade < 0:
        _checks.fail("points_per_decade", "at least 0", f"it is {points_per_decade}")
    if points_per_decade == 0 and not requested.size and t1 is None:
        _checks.fail("points_per_decade", "positive where neither times nor t1 is given", "it is 0")
    if budget_seconds is not None:
        _checks.positive("budget_seconds", budget_seconds)
    return requested
