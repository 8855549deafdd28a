"""Both sides of every statement of zhang2023's sections 3-5 and appendix A, with hypotheses and constants.

Every comparison takes (loss, trajectory) with a `LinearAttentionLoss`, whose task is the statement's. Statements about
every parameter, not about a flow, are judged at the points of the trajectory. The paper's symbols are used throughout.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Series
from flowsim.claims.claim import Comparison, at_least, equal
from flowsim.claims.hypotheses import Hypothesis, agrees, hypothesis
from flowsim.claims.inequalities import polyak_lojasiewicz, sharp_constant
from flowsim.claims.rates import decayed, exponential_envelope
from flowsim.claims.statements import joined, stays_positive
from flowsim.flow.systems import norm_sq
from flowsim.flow.trajectory import Trajectory
from flowsim.initialization import balanced
from flowsim.losses import AbstractPopulationLoss, LinearAttentionLoss, RandomCovarianceLoss
from flowsim.losses.arrowhead import local_rate
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023.conditions import assumption_3_3, limit, pl_constant, scale_condition, u_lower_bound_sq

Loss = LinearAttentionLoss

_SHORT = 1e-4  # of the weights' size, the longest way to a limit from which the end of a flow is compared with it
_RANDOM_STARTS = 32


def _norms(matrices: Array) -> Series:
    return jnp.sqrt(jnp.sum(matrices**2, axis=(1, 2)))


# Hypotheses


def one_covariance(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """The setting of sections 3 to 5: every prompt has the same covariance."""
    fixed = isinstance(loss, LinearAttentionLoss)
    return None if fixed else agrees("one covariance for all prompts", 0.0, 1.0)


def assumption(loss: Loss, start: LinearAttention) -> list[Hypothesis]:
    """Assumption 3.3."""
    return assumption_3_3(loss.task, start)


def assumption_and_scale(loss: Loss, start: LinearAttention) -> list[Hypothesis]:
    """Assumption 3.3 and the scale condition of Theorem 4.1."""
    return [*assumption_3_3(loss.task, start), scale_condition(loss.task, start)]


def all_but(*left_out: str):
    """Assumption 3.3 without the parts of these names."""

    def hypotheses(loss: Loss, start: LinearAttention) -> list[Hypothesis]:
        return [condition for condition in assumption_3_3(loss.task, start) if condition.name not in left_out]

    return hypotheses


# Lemma 5.2, Lemma A.1, Corollary A.2: the loss and its dynamics


def printed_field(loss: Loss, model: LinearAttention) -> tuple[Array, Array, Array]:
    """The right-hand sides of (5.4), and the size of their terms."""
    Lambda, Gamma, U, u = loss.task.covariance, loss.task.gamma(), model.U11, model.u_minus1
    attraction, drive = u**2 * Gamma @ Lambda @ U @ Lambda, u * Lambda @ Lambda
    dU = -attraction + drive
    pull = u * jnp.trace(Gamma @ Lambda @ U @ Lambda @ U.T)
    push = jnp.trace(Lambda @ Lambda @ U.T)
    size = jnp.linalg.norm(attraction) + jnp.linalg.norm(drive) + jnp.abs(pull) + jnp.abs(push)
    return dU, -(pull - push), size


def printed_loss(loss: Loss, model: LinearAttention) -> Array:
    """(5.5), which is (A.11)."""
    Lambda, Gamma, U, u = loss.task.covariance, loss.task.gamma(), model.U11, model.u_minus1
    return jnp.trace(u**2 / 2 * Gamma @ Lambda @ U @ Lambda @ U.T - u * Lambda @ Lambda @ U.T)


def over_models(function, trajectory: Trajectory):
    """A function of the model at every output time."""
    return jax.lax.map(function, trajectory.models)


def dynamics(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The gradient of the exact loss over all weights against minus (5.4), and against zero for u12 and u21."""

    def deviation(model):
        dU, du, size = printed_field(loss, model)
        gradient = loss.gradient(model)
        square = jnp.sum((gradient.U11 + dU) ** 2) + (gradient.u_minus1 + du) ** 2
        return jnp.sqrt(square + jnp.sum(gradient.u12**2) + jnp.sum(gradient.u21**2)), size

    value, size = over_models(deviation, trajectory)
    return equal(value, jnp.zeros(()), size)


def same_loss(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The gradients of (A.11) and of the exact loss, and that the two losses differ by tr(Lambda)/2."""
    constant = jnp.trace(loss.task.covariance) / 2

    def deviation(model):
        gradient, printed = loss.gradient(model), jax.grad(lambda m: printed_loss(loss, m))(model)
        gap = jnp.sqrt(norm_sq(jax.tree.map(jnp.subtract, gradient, printed)))
        _, _, size = printed_field(loss, model)
        difference = jnp.abs(loss(model) - printed_loss(loss, model) - constant)
        return gap / jnp.where(size > 0, size, 1.0) + difference / (constant + jnp.abs(loss(model)))

    return equal(over_models(deviation, trajectory), jnp.zeros(()), jnp.ones(()))


def minimum_and_excess(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The printed loss minus the printed minimum, and the loss's excess, against the printed square; and that Gamma^-1
    attains the minimum.
    """
    Lambda, Gamma = loss.task.covariance, loss.task.gamma()
    values, vectors = jnp.linalg.eigh(Lambda)
    root = (vectors * jnp.sqrt(values)[None, :]) @ vectors.T
    gamma_values, gamma_vectors = jnp.linalg.eigh(Gamma)
    gamma_root = (gamma_vectors * jnp.sqrt(gamma_values)[None, :]) @ gamma_vectors.T
    minimum = -jnp.trace(Lambda @ Lambda @ jnp.linalg.inv(Gamma)) / 2

    def sides(model):
        inner = model.u_minus1 * root @ model.U11 @ root - Lambda @ jnp.linalg.inv(Gamma)
        square = jnp.sum((gamma_root @ inner) ** 2) / 2
        return printed_loss(loss, model) - minimum, loss.excess(model), square, square - minimum

    left, excess, right, size = over_models(sides, trajectory)
    attained = printed_loss(loss, LinearAttention(jnp.linalg.inv(Gamma), 1.0))
    comparisons = [equal(left, right, size), equal(attained[None], minimum, -minimum), equal(excess, right, size)]
    return joined(comparisons)


# Lemma 5.4, Lemmas A.3 to A.5, Theorem 4.1


def _mu(loss: Loss, trajectory: Trajectory) -> Array:
    return pl_constant(loss.task, trajectory.start)


def pl(loss: Loss, trajectory: Trajectory) -> Comparison:
    """(5.8)."""
    return polyak_lojasiewicz(trajectory, _mu(loss, trajectory))


def pl_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """mu of (5.7) and the largest that holds along the flow."""
    return {"mu": _mu(loss, trajectory), "sharp_mu": sharp_constant(trajectory)}


def rate(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The exponential bound of the proof of Lemma 5.4."""
    return exponential_envelope(trajectory, _mu(loss, trajectory))


def rate_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """mu of (5.7), the largest rate that the bound holds with, and the local rate at the limit."""
    elapsed = jnp.where(trajectory.t > 0, trajectory.t, 1.0)
    rates = jnp.where(trajectory.t > 0, decayed(trajectory) / elapsed, jnp.inf)
    return {
        "mu": _mu(loss, trajectory),
        "sharp_mu": jnp.min(jnp.where(jnp.isfinite(rates), rates, jnp.inf)),
        "local_rate": local_rate(loss.structure),
    }


def limit_of_flow(
    loss: Loss | RandomCovarianceLoss, trajectory: Trajectory
) -> tuple[LinearAttention, Float[Array, ""]]:
    """The limit that the flow is proved to have; infinity beside it where nothing is proved, and else zero."""
    arrowhead = loss.structure
    limit, proved = arrowhead.limit(arrowhead.state(trajectory.start), arrowhead.state(trajectory.end))
    return arrowhead.model(limit), jnp.where(proved, 0.0, jnp.inf)


def distance_to_limit(
    loss: Loss | RandomCovarianceLoss, trajectory: Trajectory, expected: LinearAttention
) -> Comparison:
    """The limit of the flow, where it is proved to have one, and its end, where the way still to go is short, against
    an expected limit.
    """
    size = jnp.sqrt(norm_sq(expected))

    def to_expected(model: LinearAttention, allowance: Array) -> Comparison:
        distance = jnp.sqrt(norm_sq(jax.tree.map(jnp.subtract, model, expected)))
        return equal(distance[None], 0.0, size, allowance=allowance)

    return joined([to_expected(*limit_of_flow(loss, trajectory)), short_way(loss, trajectory, to_expected)])


def short_way(
    loss: Loss | RandomCovarianceLoss, trajectory: Trajectory, against: Callable[[LinearAttention, Array], Comparison]
) -> Comparison:
    """The end of the flow, with a bound on the way still to go, against something; only where that way is short."""
    end, arrowhead = trajectory.end, loss.structure
    to_go = arrowhead.way_to_go(arrowhead.state(end))
    short = to_go <= _SHORT * jnp.sqrt(norm_sq(end))
    comparison = against(end, jnp.where(short, to_go, 0.0))
    return eqx.tree_at(lambda c: c.promised, comparison, comparison.promised & short)


def tends_to_limit(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The limit and the end of the flow against (5.9)."""
    inverse = jnp.linalg.inv(loss.task.gamma())
    u = jnp.sqrt(jnp.linalg.norm(inverse))
    return distance_to_limit(loss, trajectory, LinearAttention(inverse / u, u))


def tends_to_matrices(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The limit and the end of the flow against the blocks of (4.1)."""
    inverse = jnp.linalg.inv(loss.task.gamma())
    fourth_root = jnp.trace(inverse @ inverse) ** 0.25
    return distance_to_limit(loss, trajectory, LinearAttention(inverse / fourth_root, fourth_root))


def limit_without_balance(loss: Loss, trajectory: Trajectory) -> Comparison:
    """u^2 = (c + sqrt(c^2 + 4 |Gamma^-1|_F^2))/2 with the conserved c = u(0)^2 - |U11(0)|_F^2, and U11 = Gamma^-1/u."""
    c = loss.conserved(trajectory.start)
    inverse = jnp.linalg.inv(loss.task.gamma())
    u = jnp.sqrt((c + jnp.sqrt(c**2 + 4 * jnp.sum(inverse**2))) / 2)
    return distance_to_limit(loss, trajectory, LinearAttention(inverse / u, u))


def blocks_not_zero(loss: Loss, start: LinearAttention) -> list[Hypothesis]:
    """Assumption 3.3 but for u12 = u21 = 0, of which it asks the opposite."""
    size = jnp.linalg.norm(start.u12) + jnp.linalg.norm(start.u21)
    kept = all_but("u12(0) = 0", "u21(0) = 0")(loss, start)
    return [*kept, hypothesis("|u12(0)| + |u21(0)| > 0", size, ">", 0.0)]


def limit_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """u_{-1} at the limit (5.9) and at the end of the flow."""
    return {"u_limit": limit(loss.task).u_minus1, "u_end": trajectory.end.u_minus1}


def stays_balanced(loss: AbstractPopulationLoss, trajectory: Trajectory) -> Comparison:
    """(A.12)."""
    models = trajectory.models
    size = models.u_minus1**2 + jnp.sum(models.U11**2, axis=(1, 2))
    return equal(models.u_minus1**2, jnp.sum(models.U11**2, axis=(1, 2)), jnp.max(size))


def u_positive(loss: AbstractPopulationLoss, trajectory: Trajectory) -> Comparison:
    """u_{-1} > 0, relative to |U11|_F, which it equals in size."""
    return stays_positive(trajectory.models.u_minus1, _norms(trajectory.models.U11))


def u_bounded_below(loss: Loss, trajectory: Trajectory) -> Comparison:
    """(A.14)."""
    bound_sq = u_lower_bound_sq(loss.task, trajectory.start)
    return at_least(trajectory.models.u_minus1, jnp.sqrt(jnp.maximum(bound_sq, 0.0)), promised=bound_sq > 0)


def u_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The bound of (A.14) and the least u_{-1} along the flow."""
    bound_sq = jnp.maximum(u_lower_bound_sq(loss.task, trajectory.start), 0.0)
    return {"u_lower_bound": jnp.sqrt(bound_sq), "sharp_u_lower_bound": jnp.min(trajectory.models.u_minus1)}


# Assumption 3.3: who meets it, and what each part is needed for


@eqx.filter_jit
def random_thetas_meet_it(loss: Loss, trajectory: Trajectory) -> Comparison:
    """|Theta Lambda|_F over random Theta of full rank, which with |Theta Theta^T|_F = 1 is all that can fail."""
    Lambda, d = loss.task.covariance, loss.task.dimension

    def theta_lambda(key):
        shape = balanced(1.0, jax.random.normal(key, (d, d))).U11
        return jnp.sqrt(jnp.trace(Lambda @ shape @ Lambda)), jnp.linalg.norm(shape)

    values, norms = jax.vmap(theta_lambda)(jax.random.split(jax.random.key(2), _RANDOM_STARTS))
    comparison = at_least(values, 0.0, size=jnp.linalg.norm(Lambda))
    # Any norm but 1 would break the assumption as surely as Theta Lambda = 0.
    broken = jnp.abs(norms - 1) > 1e-12
    return eqx.tree_at(lambda c: c.slack, comparison, jnp.where(broken, -comparison.size, comparison.slack))


@eqx.filter_jit
def theta_lambda_follows(loss: Loss, trajectory: Trajectory) -> Comparison:
    """|Theta Lambda|_F >= lambda_min |Theta|_F >= lambda_min |Theta Theta^T|_F^{1/2} = lambda_min > 0.

    At d = 1 the first two are equal.
    """
    Lambda, start = loss.task.covariance, trajectory.start
    value, least = jnp.sqrt(jnp.trace(Lambda @ Lambda @ start.U11) / start.u_minus1), jnp.linalg.eigvalsh(Lambda)[:1]
    positive = at_least(value[None], 0.0, size=least)
    return joined([positive, at_least(value[None], least, promised=loss.task.dimension > 1)])
