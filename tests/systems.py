"""Gradient flows whose solution is known exactly: a loss, a start and the state at any time."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from helpers import covariance
from jaxtyping import Array, Float

from flowsim.losses.base import FunctionLoss
from flowsim.losses.one_layer.single_layer import LinearAttentionLoss
from flowsim.models import LinearAttention
from flowsim.tasks import LinearRegression


@dataclasses.dataclass(frozen=True)
class System:
    """A flow with its exact solution: ``state(t)`` is the model at time t, ``times`` cover its whole course."""

    name: str
    loss: Any
    start: Any
    state: Callable[[float], Any]
    times: tuple[float, ...]


class Vector(eqx.Module):
    """A model that is one vector of weights."""

    x: Float[Array, " n"]


class Scalar(eqx.Module):
    """A model that is one number."""

    x: Float[Array, ""]


class TwoLayers(eqx.Module):
    """A scalar linear network of two layers, x -> a b x."""

    a: Float[Array, ""]
    b: Float[Array, ""]


class QuadraticForm(eqx.Module):
    """x^T H x / 2."""

    hessian: Float[Array, "n n"]

    def __call__(self, model: Vector) -> Float[Array, ""]:
        return model.x @ self.hessian @ model.x / 2


class Quartic(eqx.Module):
    """x^4 / 4: the flow slows down to a power of time."""

    def __call__(self, model: Scalar) -> Float[Array, ""]:
        return model.x**4 / 4


class Factorisation(eqx.Module):
    """(a b - s)^2 / 2: a saddle at 0, and a^2 - b^2 is conserved."""

    target: Float[Array, ""]

    def __call__(self, model: TwoLayers) -> Float[Array, ""]:
        return (model.a * model.b - self.target) ** 2 / 2


def quadratic(n: int = 5, condition: float = 1e4) -> System:
    """x(t) = e^{-Ht} x(0); stiff by the condition number."""
    hessian = covariance(n, seed=1, condition=condition)
    start = np.random.default_rng(2).standard_normal(n)
    rates, basis = np.linalg.eigh(hessian)

    def state(t: float) -> Vector:
        return Vector(jnp.asarray(basis @ (np.exp(-rates * t) * (basis.T @ start))))

    form = QuadraticForm(jnp.asarray(hessian))
    loss = FunctionLoss(form, excess=form, minimum=0.0)
    return System("quadratic", loss, state(0.0), state, (0.01, 1.0, 100.0, 3.0 * condition))


def quartic(start: float = 1.5) -> System:
    """x(t) = x(0) (1 + 2 x(0)^2 t)^{-1/2}."""

    def state(t: float) -> Scalar:
        return Scalar(jnp.asarray(start / np.sqrt(1 + 2 * start**2 * t)))

    loss = FunctionLoss(Quartic(), excess=Quartic(), minimum=0.0)
    return System("quartic", loss, state(0.0), state, (0.01, 1.0, 100.0, 1e6))


def two_layers(a: float = 0.5, b: float = 0.01, target: float = 2.0) -> System:
    """z = (a + b) / (a - b) solves the Riccati equation dz/dt = 2 s z - (c/2) (z^2 - 1), c = a^2 - b^2 conserved.

    Its fixed points z+ and z- give (z - z+) / (z - z-) = K e^{-t sqrt(4 s^2 + c^2)}. Needs a > |b|.
    """
    balance = a**2 - b**2
    rate = np.sqrt(4 * target**2 + balance**2)
    upper, lower = (2 * target + rate) / balance, (2 * target - rate) / balance
    ratio = (a + b) / (a - b)
    constant = (ratio - upper) / (ratio - lower)

    def state(t: float) -> TwoLayers:
        decayed = constant * np.exp(-rate * t)
        z = (upper - lower * decayed) / (1 - decayed)
        total = np.sqrt(balance * z)
        return TwoLayers(jnp.asarray((total + balance / total) / 2), jnp.asarray((total - balance / total) / 2))

    form = Factorisation(jnp.asarray(target))
    loss = FunctionLoss(form, excess=form, minimum=0.0)
    return System("two layers", loss, state(0.0), state, (0.01, 0.5, 1.0, 2.0, 5.0))


def balanced_scalar(scale: float = 0.1, variance: float = 0.7, context_length: float = 10.0) -> System:
    """zhang2023 at d = 1 from a balanced start: u(t) = U(t) = [Gamma + (sigma^-2 - Gamma) e^{-2 Lambda^2 t}]^{-1/2}."""
    task = LinearRegression(np.array([[variance]]), context_length)
    gamma = float(task.gamma()[0, 0])

    def state(t: float) -> LinearAttention:
        u = (gamma + (scale**-2 - gamma) * np.exp(-2 * variance**2 * t)) ** -0.5
        return LinearAttention(np.array([[u]]), u)

    escape = np.log(1 + scale**-2) / (2 * variance**2)
    times = tuple(float(escape * fraction) for fraction in (0.1, 0.5, 1.0, 1.5, 3.0))
    return System("balanced scalar", LinearAttentionLoss(task), state(0.0), state, times)
