"""The two sides of statements that several families make: functions of the flow, or of a model, and of numbers."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

import flowsim
from benchmarks.verdict_families.base import HAS_LIMITS, RESOLVED, Stated, said
from flowsim.claims.claim import Comparison, at_least, at_most, equal


def size(model: PyTree) -> Array:
    """The norm of all weights."""
    return jnp.sqrt(sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(model)), jnp.zeros(())))


def dominates(flow, number) -> Comparison:
    """|grad L|^2 >= number (L - min L)."""
    return at_least(flow.grad_norm_sq, number * flow.excess, promised=flow.excess > 0)


def decays(flow, number) -> Comparison:
    """L - min L <= (L(0) - min L) e^(-number t)."""
    bound = flow.excess[0] * jnp.exp(-number * flow.t)
    return at_most(flow.excess, bound, size=bound)


def has_size(model, number) -> Comparison:
    """The norm of the weights at a time is a number."""
    return equal(size(model)[None], number, jnp.abs(number))


def tends_to(flow, number) -> Comparison:
    """The norm of the weights tends to a number, by what is known of the way still to go."""
    return equal(size(flow.end)[None], number, jnp.abs(number), allowance=flow.way_to_go)


def has_the_limit(flow, number) -> Comparison:
    """The norm of the weights tends to a number, by the limit itself."""
    value, allowance = flowsim.limit(flow, size)  # pyright: ignore[reportAttributeAccessIssue]
    return equal(value, number, jnp.abs(number), allowance=allowance)


def has_the_limit_size(exact: float, *, expected: bool) -> list[Stated]:
    """The statements that the norm of the weights tends to a number, and to another."""
    return [
        said("limit", compare, exact * (1 + off), fails, identity=True, expected=expected)
        for compare in (tends_to, *([has_the_limit] if HAS_LIMITS else []))
        for off, fails in ((0.0, None), (RESOLVED, 0.0))
    ]


def tends_to_the_minimum(flow, number) -> Comparison:
    """The loss tends to a number or to less."""
    lost = jnp.sqrt(flow.grad_norm_sq[-1:]) * flow.way_to_go
    return at_most(flow.loss[-1:], number, size=flow.loss[0], allowance=lost)


def ends_at_the_minimum(flow, number) -> Comparison:
    """The excess ends below a number."""
    return at_most(flow.excess[-1:], number, size=flow.excess[0])
