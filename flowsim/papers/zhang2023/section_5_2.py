"""zhang2023's section 5.2: the dynamical system (5.4) of gradient flow, its loss (5.5) and the minima (5.6)."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from flowsim.claims.claim import Comparison, equal
from flowsim.claims.declaring import Section
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.minima import U_MINUS1, minimiser, whitening
from flowsim.papers.zhang2023.problems import FLOWS
from flowsim.papers.zhang2023.setting import assumption, one_covariance

Loss = LinearAttentionLoss


def printed_field(loss: Loss, model: LinearAttention) -> tuple[Array, Array, Array]:
    """The right-hand sides of (5.4), and the size of their terms."""
    Lambda, Gamma, U, u = loss.task.covariance, loss.task.gamma(), model.U11, model.u_minus1
    attraction, drive = u**2 * Gamma @ Lambda @ U @ Lambda, u * Lambda @ Lambda
    dU = -attraction + drive
    pull = u * jnp.trace(Gamma @ Lambda @ U @ Lambda @ U.T)
    push = jnp.trace(Lambda @ Lambda @ U.T)
    size = jnp.linalg.norm(attraction) + jnp.linalg.norm(drive) + jnp.abs(pull) + jnp.abs(push)
    return dU, -(pull - push), size


SECTION = Section("zhang2023", LinearAttention, setting=one_covariance, problems=FLOWS, spaces=spaces.BALANCED)


@SECTION.claim("lemma-5.2", "Lemma 5.2", hypotheses=assumption)
def dynamics(loss: Loss, flow: Trajectory) -> Comparison:
    """$dU_{11}/dt$ and $du_{-1}/dt$ are (5.4), and $u_{12} = u_{21} = 0$ for all $t$

    Compared with the gradient of the exact loss over all weights, u12 and u21 included.
    """

    def deviation(model):
        dU, du, size = printed_field(loss, model)
        gradient = loss.gradient(model)
        square = jnp.sum((gradient.U11 + dU) ** 2) + (gradient.u_minus1 + du) ** 2
        return jnp.sqrt(square + jnp.sum(gradient.u12**2) + jnp.sum(gradient.u21**2)), size

    value, size = jax.lax.map(deviation, flow.models)
    return equal(value, jnp.zeros(()), size)


def printed_loss(loss: Loss, model: LinearAttention) -> Array:
    """The loss (5.5), which is (A.11)."""
    Lambda, Gamma, U, u = loss.task.covariance, loss.task.gamma(), model.U11, model.u_minus1
    return jnp.trace(u**2 / 2 * Gamma @ Lambda @ U @ Lambda @ U.T - u * Lambda @ Lambda @ U.T)


@eqx.filter_jit
def _every_minimum(loss: Loss) -> Comparison:
    task = loss.task
    V, minimum = minimiser(task)
    inverse = jnp.linalg.inv(task.gamma())

    def at(u):
        model = LinearAttention(V / u, u)
        distance = jnp.linalg.norm(model.u_minus1 * model.U11 - inverse)
        return distance, printed_loss(loss, model), loss.excess(model)

    distances, values, excesses = jax.lax.map(at, jnp.asarray(U_MINUS1))
    sides = [(distances, 0.0, jnp.linalg.norm(inverse)), (values, minimum, -minimum), (excesses, 0.0, -minimum)]
    return rounded(joined([equal(*each) for each in sides]), whitening(task))


@SECTION.claim("lemma-5.3", "Lemma 5.3")
def every_minimum(loss: Loss) -> Comparison:
    r"""$u_{-1} U_{11} = \Gamma^{-1}$ at every global minimum of (5.5)

    For each u_{-1} != 0 the loss is a strictly convex quadratic function of U11; at u_{-1} = 0 it is above its minimum.
    Judged at the solutions of the normal equations for u_{-1} of both signs from 1e-3 to 1e3, with E[Lambdahat^2] by
    cubature.
    """
    return _every_minimum(loss)
