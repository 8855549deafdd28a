"""Both sides of what ahn2023 says of layers with B over all matrices, where the loss is known by prompts alone.

Theorem 5's statements are judged at a start on S, A_i = a_i Sigma^-1 and B_i = b_i I, where the loss is F(a, b) of
`ScalarLayersLoss`; those of Figures 3 and 4 along a flow. Sampling errors never vanish, so that equations are stated as
bounds on how far their sides are apart. Nothing bounds the way that a flow on prompts still has to go, so that limits
are left open.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.hypotheses import Hypothesis, agrees, hypothesis
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss, MonteCarloLoss
from flowsim.models import MultiLayerAttention, ScalarLayers
from flowsim.papers.ahn2023.figures import distance_to_go, distance_to_identity, loss_to_go
from flowsim.papers.ahn2023.multi_layer_scalars import scalar_loss

Layers = Float[Array, "... d d"]

APART = 0.05  # relative, how far the sides of an equation may be apart


def sampled_layers(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """The setting of Theorem 5, with a loss that is known by prompts alone."""
    fits = isinstance(loss, MonteCarloLoss) and loss.exact is None and loss.task.weights == "inverse-covariance"
    return None if fits else agrees("a loss by prompts alone, w ~ N(0, Sigma^-1)", 0.0, 1.0)


def moving(loss: MonteCarloLoss, start: MultiLayerAttention) -> list[Hypothesis]:
    """Layers with matrices B_i."""
    return [hypothesis("matrices B_i", 0.0 if start.B is None else float(start.B.shape[0]), ">=", 1.0)]


def at_scalars(loss: MonteCarloLoss, start: MultiLayerAttention) -> list[Hypothesis]:
    """With matrices B_i, at a start on S."""
    if start.B is None:
        return moving(loss, start)
    on_S = scalars(loss, start).attention(loss.task.covariance)
    assert on_S.B is not None, "scalars with b_i stand for matrices B_i"
    gap = sum(jnp.sum((a - b) ** 2) for a, b in ((start.A, on_S.A), (start.B, on_S.B)))
    return [*moving(loss, start), agrees("distance from S = 0", jnp.sqrt(gap), 0.0, jnp.linalg.norm(start.A))]


def scalars(loss: MonteCarloLoss, model: MultiLayerAttention) -> ScalarLayers:
    """The a_i and b_i of a model on S."""
    d = float(loss.task.dimension)
    return ScalarLayers(jnp.einsum("kij,ij->k", model.A, loss.task.covariance) / d, jnp.einsum("kii->k", model.B) / d)


def theorem_5(loss: MonteCarloLoss, trajectory: Trajectory) -> Comparison:
    """grad_{A_i} f and grad_{B_i} f over all matrices at a point of S against (dF/da_i) Sigma/d and (dF/db_i) I/d."""
    start, d, S = trajectory.start, loss.task.dimension, loss.task.covariance
    exact = scalar_loss(d, float(loss.task.context_length), start.A.shape[0])
    slopes, found = jax.grad(exact)(scalars(loss, start)), loss.gradient(start)
    assert slopes.b is not None, "the loss is one with B"
    off = lambda matrices, slope, shape: jnp.linalg.norm(matrices - slope[:, None, None] * shape[None] / d, axis=(1, 2))
    size = lambda slope, shape: jnp.max(jnp.abs(slope)) * jnp.linalg.norm(shape) / d
    return joined(
        [
            at_most(off(found.A, slopes.a, S), APART * size(slopes.a, S)),
            at_most(off(found.B, slopes.b, jnp.eye(d)), APART * size(slopes.b, jnp.eye(d))),
        ]
    )


def _decrease(loss: MonteCarloLoss, start: MultiLayerAttention, direction: Layers, d: float) -> tuple[Array, Array]:
    """d/dt f along dA_i/dt = -(r_i/d) Sigma^-1 and dB_i/dt = -(s_i/d) direction, and sum |grad|_F^2, by prompts."""
    slopes, S = loss.gradient(start), loss.task.covariance
    r = jnp.einsum("kij,ij->k", slopes.A, S) / d
    s = jnp.einsum("kii->k", slopes.B) / d
    rate = -jnp.sum(r * jnp.einsum("kij,ij->k", slopes.A, jnp.linalg.inv(S)))
    rate = rate - jnp.sum(s * jnp.einsum("kij,ij->k", slopes.B, direction))
    return rate[None], (jnp.sum(slopes.A**2) + jnp.sum(slopes.B**2))[None]


def eq_35(loss: MonteCarloLoss, trajectory: Trajectory) -> Comparison:
    """As printed: no 1/d, and the B_i move along Sigma^-1."""
    rate, squares = _decrease(loss, trajectory.start, jnp.linalg.inv(loss.task.covariance), 1.0)
    return at_most(rate, -squares)


def eq_35_corrected(loss: MonteCarloLoss, trajectory: Trajectory) -> Comparison:
    """With the 1/d of r_i and s_i, along I, where the sides are equal in the population."""
    d = float(loss.task.dimension)
    rate, squares = _decrease(loss, trajectory.start, jnp.eye(loss.task.dimension), d)
    return at_most(jnp.abs(rate + squares), APART * squares)


# Figures 3 and 4


def loss_tends_to_zero(loss: MonteCarloLoss, trajectory: Trajectory) -> Comparison:
    """The loss at the end against 0, relative to that of predicting 0."""
    allowance = loss_to_go(trajectory, jnp.asarray(trajectory.way_to_go))
    return equal(trajectory.loss[-1:], 0.0, float(loss.task.dimension), allowance=allowance)


def _falls(distances: Float[Array, "T matrices"]) -> Comparison:
    return at_most(distances[-1], distances[0])


def moves_to_identity(loss: MonteCarloLoss, trajectory: Trajectory) -> Comparison:
    """Dist(B_i, I) at the end against 0."""
    B, way = trajectory.end.B, jnp.asarray(trajectory.way_to_go)
    return equal(distance_to_identity(B), 0.0, 1.0, allowance=distance_to_go(B, way))


def preconditions(loss: MonteCarloLoss, trajectory: Trajectory) -> Comparison:
    """Dist(Sigma^{1/2} A_i Sigma^{1/2}, I) at the end against 0."""
    primed = _primed(loss, trajectory.end.A)
    way = jnp.linalg.norm(loss.task.covariance, 2) * trajectory.way_to_go
    return equal(distance_to_identity(primed), 0.0, 1.0, allowance=distance_to_go(primed, way))


def _primed(loss: MonteCarloLoss, A: Layers) -> Layers:
    """Sigma^{1/2} A_i Sigma^{1/2}."""
    values, vectors = jnp.linalg.eigh(loss.task.covariance)
    root = (vectors * jnp.sqrt(values)[None]) @ vectors.T
    return root @ A @ root


def nearer_to_identity(loss: MonteCarloLoss, trajectory: Trajectory) -> Comparison:
    """Dist(B_i, I) at the end against the start."""
    return _falls(distance_to_identity(trajectory.models.B))


def better_preconditioned(loss: MonteCarloLoss, trajectory: Trajectory) -> Comparison:
    """Dist(Sigma^{1/2} A_i Sigma^{1/2}, I) at the end against the start."""
    return _falls(distance_to_identity(_primed(loss, trajectory.models.A)))


def increasing(loss: MonteCarloLoss, trajectory: Trajectory) -> Comparison:
    """|A_i|_F < |A_{i+1}|_F at the end."""
    sizes = jnp.linalg.norm(trajectory.end.A, axis=(1, 2))
    return at_least(sizes[1:], sizes[:-1])


def ends(loss: MonteCarloLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The loss and Dist(B_i, I) at both ends, and |A_i|_F at the end."""
    distances = distance_to_identity(trajectory.models.B)
    named = {"loss_start": trajectory.loss[0], "loss_end": trajectory.loss[-1]}
    for i, size in enumerate(jnp.linalg.norm(trajectory.end.A, axis=(1, 2))):
        named[f"size_{i}"] = size
    for i in range(distances.shape[1]):
        named |= {f"dist_start_{i}": distances[0, i], f"dist_end_{i}": distances[-1, i]}
    return named
