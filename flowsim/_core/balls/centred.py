"""Smooth functions on balls by their value at the middle and their slopes: of a ball, a difference such as 1 - cos x is
as wide as x, and by its slopes as wide as x^2.
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

# What is one power series about every number; what others are where they have slopes.
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
# What is gone through as often as weights say, and what has slopes of somebody's own.
_BY_ITSELF = {"while", "cond", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}


def is_smooth(traced: Traced) -> bool:
    """Whether a program has no operation on its arguments that branches, jumps or has slopes of its own."""
    return _has_only(traced, lambda eqn, inputs: eqn.primitive.name in _SMOOTH)


def is_analytic(traced: Traced) -> bool:
    """Whether a program is analytic in its arguments wherever these are: what is so of it near one point, such as being
    zero, is so everywhere. A root or a quotient is not, since sqrt(x^2) is -x on one side.
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
    """Whether an operation chooses by none of its arguments, or makes a number of a number."""
    name = eqn.primitive.name
    if name == "select_n":
        return not inputs[0]
    if name == "convert_element_type":
        (given,) = eqn.invars
        return jnp.issubdtype(eqn.params["new_dtype"], jnp.floating) and getattr(given.aval, "dtype", None) != jnp.bool_
    return False


def middles(values: PyTree) -> PyTree:
    """The middles of balls, exactly."""
    with flint.ctx.workprec(BITS):
        return jax.tree.map(np.frompyfunc(lambda ball: ball.mid(), 1, 1), values)


def nearer(values: Balls, at_middles: Balls, arguments: Balls, middles: Balls, slopes: Balls) -> Balls:
    """Values on balls within what their slopes there make of those at the middles.

    **Arguments:** values, at_middles: (rows,); arguments, their middles, and slopes, up to their signs: (rows,
    arguments).
    """
    with flint.ctx.workprec(BITS):
        near = at_middles + np.sum((arguments - middles) * slopes, axis=1)
        return np.asarray([common(*pair) for pair in zip(values, near, strict=True)], dtype=object)


def common(ball: flint.arb, other: flint.arb) -> flint.arb:
    """What two balls of one number have in common; the other, where rounding parts them."""
    if not other.is_finite():
        return ball
    return ball.intersection(other) if ball.is_finite() and ball.overlaps(other) else other


def not_negative(values: Balls) -> Balls:
    """Values that are not negative; what balls hold of them below zero is their own width."""
    return np.asarray(np.frompyfunc(lambda ball: ball.max(0) if ball.is_finite() else ball, 1, 1)(values), dtype=object)
