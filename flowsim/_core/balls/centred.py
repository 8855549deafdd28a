"""Tighter enclosures of smooth functions, by the mean value form f(m) + f'(B) (B - m) on a ball B with midpoint m.

Plain ball arithmetic gives 1 - cos x near x = 0 an error of the size of x; the mean value form gives x^2.
"""

from collections.abc import Callable

import flint
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn
from jaxtyping import PyTree

from flowsim._core.balls.array_moves import MOVES
from flowsim._core.balls.enclosure import BITS, Traced
from flowsim._core.balls.operations import Balls
from flowsim._core.balls.reading import Names, operations_with_names

# Operations that are analytic everywhere, and those that are analytic wherever they are differentiable.
_ANALYTIC = {
    *("add", "add_any", "sub", "mul", "neg", "square", "one_minus_square", "exp", "exp2", "expm1", "logistic", "erf"),
    *("erfc", "sin", "cos", "atan", "sinh", "cosh", "tanh", "asinh", "reduce_sum", "reduce_prod", "cumsum", "cumprod"),
    *("dot_general", "iota", "gather", "scatter-add"),
    *MOVES,
} - {"select_n", "stop_gradient"}
_SMOOTH = _ANALYTIC | {
    *("div", "integer_pow", "pow", "sqrt", "rsqrt", "log", "log1p", "lgamma", "tan", "asin", "acos", "acosh", "atanh"),
    *("lu", "cholesky", "triangular_solve"),
}
# Operations whose number of turns depends on the arguments, or whose derivatives are defined by hand.
_BY_ITSELF = {"while", "cond", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}


def is_smooth(traced: Traced) -> bool:
    """Whether no operation on the arguments of a program branches, jumps or has derivatives defined by hand."""
    return _has_only(traced, lambda eqn, inputs: eqn.primitive.name in _SMOOTH)


def is_analytic(traced: Traced) -> bool:
    """Whether a program is an analytic function of its arguments everywhere.

    An identity that such a function satisfies near one point, such as f = 0, holds everywhere. Roots and quotients
    are not allowed, since sqrt(x^2) is x for x > 0 and -x for x < 0.
    """
    return _has_only(traced, _is_analytic)


def _is_analytic(eqn: JaxprEqn, inputs: list[Names]) -> bool:
    name = eqn.primitive.name
    if name == "div":
        return not inputs[1]
    return name in _ANALYTIC or (name == "integer_pow" and eqn.params["y"] >= 0)


def _has_only(traced: Traced, allowed: Callable[[JaxprEqn, list[Names]], bool]) -> bool:
    if any(eqn.primitive.name in _BY_ITSELF for eqn, _ in traced.equations):
        return False
    read = operations_with_names(traced.jaxpr, ["argument"] * len(traced.jaxpr.invars))
    return all(_moves_on(eqn, inputs) or allowed(eqn, inputs) for eqn, inputs in read if any(inputs))


def _moves_on(eqn: JaxprEqn, inputs: list[Names]) -> bool:
    """Whether an operation selects by a condition that depends on no argument, or converts numbers to floats."""
    name = eqn.primitive.name
    if name == "select_n":
        return not inputs[0]
    if name == "convert_element_type":
        (given,) = eqn.invars
        return jnp.issubdtype(eqn.params["new_dtype"], jnp.floating) and getattr(given.aval, "dtype", None) != jnp.bool_
    return False


def middles(values: PyTree) -> PyTree:
    """The midpoints of balls, as exact balls."""
    with flint.ctx.workprec(BITS):
        return jax.tree.map(np.frompyfunc(lambda ball: ball.mid(), 1, 1), values)


def nearer(values: Balls, at_middles: Balls, arguments: Balls, middles: Balls, slopes: Balls) -> Balls:
    """Tighten enclosures of a function f by the mean value form.

    The values on balls B with midpoints m are intersected with f(m) + f'(B) (B - m).

    **Arguments:**

    - values: enclosures of f on the balls, (rows,).
    - at_middles: enclosures of f at their midpoints, (rows,).
    - arguments: the balls B, (rows, arguments).
    - middles: their midpoints m, (rows, arguments).
    - slopes: enclosures of f' on the balls, (rows, arguments). Their signs do not matter.
    """
    with flint.ctx.workprec(BITS):
        near = at_middles + np.sum((arguments - middles) * slopes, axis=1)
        return np.asarray([common(*pair) for pair in zip(values, near, strict=True)], dtype=object)


def common(ball: flint.arb, other: flint.arb) -> flint.arb:
    """The intersection of two balls that contain the same number; the second if rounding made them disjoint."""
    if not other.is_finite():
        return ball
    return ball.intersection(other) if ball.is_finite() and ball.overlaps(other) else other


def not_negative(values: Balls) -> Balls:
    """Enclosures of values that are known to be nonnegative, with the negative part of each ball cut off."""
    return np.asarray(np.frompyfunc(lambda ball: ball.max(0) if ball.is_finite() else ball, 1, 1)(values), dtype=object)
