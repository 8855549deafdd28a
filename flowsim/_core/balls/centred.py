"""Smooth functions on balls by their value at the middle and their slopes: of a ball, a difference such as 1 - cos x is
as wide as x, and by its slopes as wide as x^2.
"""

import flint
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn
from jaxtyping import PyTree

from flowsim._core.balls.array_moves import MOVES
from flowsim._core.balls.enclosure import BITS, Traced
from flowsim._core.balls.operations import Balls

# Where a function takes another branch its slopes do not tell what it does, and one of somebody's own may say anything.
_SMOOTH = {
    *(
        "add",
        "add_any",
        "sub",
        "mul",
        "div",
        "neg",
        "square",
        "one_minus_square",
        "integer_pow",
        "pow",
        "sqrt",
        "rsqrt",
    ),
    *("exp", "exp2", "expm1", "log", "log1p", "logistic", "erf", "erfc", "lgamma", "sin", "cos", "tan", "asin", "acos"),
    *("atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "reduce_sum", "reduce_prod", "rsqrt"),
    *(
        "cumsum",
        "cumprod",
        "dot_general",
        "lu",
        "cholesky",
        "triangular_solve",
        "iota",
        "gather",
        "scatter-add",
        "jit",
        "pjit",
    ),
    "closed_call",
    *MOVES,
} - {"select_n", "stop_gradient"}


def is_smooth(traced: Traced) -> bool:
    """Whether a program has no operation that branches, jumps or has slopes of its own."""
    return all(_is_smooth(eqn) for eqn, _ in traced.equations)


def _is_smooth(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name == "convert_element_type":
        (given,) = eqn.invars
        return jnp.issubdtype(eqn.params["new_dtype"], jnp.floating) and given.aval.dtype != jnp.bool_
    return eqn.primitive.name in _SMOOTH


def middles(values: PyTree) -> PyTree:
    """The middles of balls, exactly."""
    with flint.ctx.workprec(BITS):
        return jax.tree.map(np.frompyfunc(lambda ball: ball.mid(), 1, 1), values)


def nearer(values: Balls, at_middles: Balls, away: Balls, slopes: Balls) -> Balls:
    """Values on balls within what their slopes there make of those at the middles.

    **Arguments:** values, at_middles: (rows,); away: how far the arguments are from their middles, slopes: up to their
    signs, both (rows, arguments).
    """
    with flint.ctx.workprec(BITS):
        near = at_middles + np.sum((away - np.frompyfunc(lambda ball: ball.mid(), 1, 1)(away)) * slopes, axis=1)
        return np.asarray([_within(*pair) for pair in zip(values, near, strict=True)], dtype=object)


def _within(ball: flint.arb, other: flint.arb) -> flint.arb:
    if not other.is_finite():
        return ball
    return ball.intersection(other) if ball.is_finite() and ball.overlaps(other) else other
