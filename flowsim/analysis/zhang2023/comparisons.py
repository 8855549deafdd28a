"""Both sides of every statement of zhang2023's sections 3-5 and appendix A, with hypotheses and constants.

Every comparison takes (loss, trajectory) with a `LinearAttentionLoss`, whose task is the statement's. Statements about
every parameter, not about a flow, are judged at the points of the trajectory. The paper's symbols are used throughout.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._systems import norm_sq
from flowsim.analysis.base import Comparison, at_least, equal
from flowsim.analysis.inequalities import polyak_lojasiewicz, sharp_constant
from flowsim.analysis.invariants import stays_positive
from flowsim.analysis.rates import decayed, exponential_envelope
from flowsim.analysis.statements import can_be_drawn, joined
from flowsim.initialization import (
    Hypothesis,
    agrees,
    assumption_3_3,
    balanced,
    hypothesis,
    limit,
    local_rate,
    pl_constant,
    scale_condition,
    u_lower_bound_sq,
)
from flowsim.losses import AbstractPopulationLoss, LinearAttentionLoss, RandomCovarianceLoss
from flowsim.models import LinearAttention
from flowsim.models.linear_attention import embed
from flowsim.tasks import Prompt
from flowsim.trajectory import Trajectory

Series = Float[Array, " T"]
Loss = LinearAttentionLoss

_PROMPTS = 64
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


# Section 5.1: statements about one prompt


def _prompts(loss: Loss):
    keys = jax.random.split(jax.random.key(0), _PROMPTS)
    return jax.vmap(lambda key: loss.task.sample(key)[0])(keys)


def quadratic_form(loss: Loss, trajectory: Trajectory) -> Comparison:
    """yhat from (3.6) against u^T H u with H = X/2 (x) E E^T/N, over random prompts and weights, u12 and u21 too."""
    if not can_be_drawn(loss.task):
        return equal(jnp.zeros(1), 0.0, 1.0)
    start, d = trajectory.start, loss.task.dimension
    extra = jax.random.normal(jax.random.key(1), (2, d))
    return equal(*_both_sides(LinearAttention(start.U11, start.u_minus1, *extra), _prompts(loss)))


@eqx.filter_jit
def _both_sides(model: LinearAttention, prompts: Prompt) -> tuple[Array, Array, Array]:
    def one(prompt):
        E, d = embed(prompt), prompt.query.shape[0]
        X = jnp.zeros((d + 1, d + 1)).at[:d, d].set(prompt.query).at[d, :d].set(prompt.query)
        U = jnp.block([[model.U11, model.u12[:, None]], [model.u21[None, :], model.u_minus1]])
        # (X (x) G) Vec(U) = Vec(G U X^T), columns stacked.
        form = jnp.sum(U * (E @ E.T / prompt.inputs.shape[0] @ U @ X)) / 2
        size = jnp.linalg.norm(U) ** 2 * jnp.linalg.norm(X) * jnp.linalg.norm(E) ** 2 / prompt.inputs.shape[0]
        return model(prompt), form, size

    return jax.vmap(one)(prompts)


def _negative_eigenvalues(loss: Loss) -> tuple[Array, Array]:
    """How many eigenvalues of H are negative on each random prompt, and by how much the count is unsure."""
    if not can_be_drawn(loss.task):
        return jnp.zeros(1), jnp.zeros(1)
    return _count(_prompts(loss))


@eqx.filter_jit
def _count(prompts: Prompt) -> tuple[Array, Array]:
    def one(prompt):
        E = embed(prompt)
        spectrum = jnp.linalg.eigvalsh(E @ E.T)
        sure = jnp.sum(spectrum > 1e-8 * spectrum[-1])
        possible = jnp.sum(spectrum > 1e-14 * spectrum[-1])
        # X has the eigenvalues +-|x_query| once each, so H has one negative eigenvalue for each positive one of E E^T.
        return sure.astype(float), (possible - sure).astype(float)

    return jax.vmap(one)(prompts)


def at_least_d_plus_one(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The number of negative eigenvalues of H against d + 1."""
    count, unsure = _negative_eigenvalues(loss)
    d = loss.task.dimension
    # A whole number is at least d + 1 where it is more than d + 1/2, which leaves room on both sides.
    return at_least(count, d + 0.5, size=d + 1.0, promised=unsure == 0)


def exactly_rank(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The number of negative eigenvalues of H against min(N, d) + 1, the rank of E E^T."""
    count, unsure = _negative_eigenvalues(loss)
    expected = jnp.minimum(loss.task.context_length, loss.task.dimension) + 1.0
    return equal(count, expected, expected, allowance=unsure)


def counts(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The fewest negative eigenvalues seen, and the paper's number."""
    count, _ = _negative_eigenvalues(loss)
    return {"fewest_negative_eigenvalues": jnp.min(count), "d_plus_one": jnp.asarray(loss.task.dimension + 1.0)}


# Lemma 5.2, Lemma A.1, Corollary A.2, Lemma 5.3: the loss and its dynamics


def _printed_field(loss: Loss, model: LinearAttention) -> tuple[Array, Array, Array]:
    """The right-hand sides of (5.4), and the size of their terms."""
    Lambda, Gamma, U, u = loss.task.covariance, loss.task.gamma(), model.U11, model.u_minus1
    attraction, drive = u**2 * Gamma @ Lambda @ U @ Lambda, u * Lambda @ Lambda
    dU = -attraction + drive
    pull = u * jnp.trace(Gamma @ Lambda @ U @ Lambda @ U.T)
    push = jnp.trace(Lambda @ Lambda @ U.T)
    size = jnp.linalg.norm(attraction) + jnp.linalg.norm(drive) + jnp.abs(pull) + jnp.abs(push)
    return dU, -(pull - push), size


def _printed_loss(loss: Loss, model: LinearAttention) -> Array:
    """(5.5), which is (A.11)."""
    Lambda, Gamma, U, u = loss.task.covariance, loss.task.gamma(), model.U11, model.u_minus1
    return jnp.trace(u**2 / 2 * Gamma @ Lambda @ U @ Lambda @ U.T - u * Lambda @ Lambda @ U.T)


def over_models(function, trajectory: Trajectory):
    """A function of the model at every output time."""
    return jax.lax.map(function, trajectory.models)


def dynamics(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The gradient of the exact loss over all weights against minus (5.4), and against zero for u12 and u21."""

    def deviation(model):
        dU, du, size = _printed_field(loss, model)
        gradient = loss.gradient(model)
        square = jnp.sum((gradient.U11 + dU) ** 2) + (gradient.u_minus1 + du) ** 2
        return jnp.sqrt(square + jnp.sum(gradient.u12**2) + jnp.sum(gradient.u21**2)), size

    value, size = over_models(deviation, trajectory)
    return equal(value, jnp.zeros(()), size)


def same_loss(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The gradients of (A.11) and of the exact loss, and that the two losses differ by tr(Lambda)/2."""
    constant = jnp.trace(loss.task.covariance) / 2

    def deviation(model):
        gradient, printed = loss.gradient(model), jax.grad(lambda m: _printed_loss(loss, m))(model)
        gap = jnp.sqrt(norm_sq(jax.tree.map(jnp.subtract, gradient, printed)))
        _, _, size = _printed_field(loss, model)
        difference = jnp.abs(loss(model) - _printed_loss(loss, model) - constant)
        return gap / jnp.where(size > 0, size, 1.0) + difference / (constant + jnp.abs(loss(model)))

    return equal(over_models(deviation, trajectory), jnp.zeros(()), jnp.ones(()))


def minimum_and_excess(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The printed loss minus the printed minimum against the printed square, and that the limit attains the minimum."""
    Lambda, Gamma = loss.task.covariance, loss.task.gamma()
    values, vectors = jnp.linalg.eigh(Lambda)
    root = (vectors * jnp.sqrt(values)[None, :]) @ vectors.T
    gamma_values, gamma_vectors = jnp.linalg.eigh(Gamma)
    gamma_root = (gamma_vectors * jnp.sqrt(gamma_values)[None, :]) @ gamma_vectors.T
    minimum = -jnp.trace(Lambda @ Lambda @ jnp.linalg.inv(Gamma)) / 2

    def sides(model):
        inner = model.u_minus1 * root @ model.U11 @ root - Lambda @ jnp.linalg.inv(Gamma)
        square = jnp.sum((gamma_root @ inner) ** 2) / 2
        return _printed_loss(loss, model) - minimum, square, square - minimum

    left, right, size = over_models(sides, trajectory)
    attained = _printed_loss(loss, limit(loss.task))
    return equal(jnp.append(left, attained), jnp.append(right, minimum), jnp.append(size, -minimum))


def at_the_minimum(loss: Loss, trajectory: Trajectory) -> Comparison:
    """|u U11 - Gamma^-1|_F at the end of the flow. Its excess e allows sqrt(2 e/min gamma_i lambda_i lambda_j)."""
    inverse = jnp.linalg.inv(loss.task.gamma())
    lam, gam = loss.eigenvalues, loss.gamma_eigenvalues
    stiffness = jnp.min(jnp.outer(gam * lam, lam))
    end = trajectory.end
    # The bound is attained when only the slowest mode is left, hence room for its own rounding.
    allowance = (1 + 1e-6) * jnp.sqrt(2 * trajectory.excess[-1] / stiffness)
    distance = jnp.linalg.norm(end.u_minus1 * end.U11 - inverse)
    return equal(distance[None], jnp.zeros(()), jnp.linalg.norm(inverse), allowance=allowance)


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
    """The end of the flow against (5.9)."""
    return distance_to_limit(loss, trajectory, limit(loss.task))


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
    """|Theta Lambda|_F >= lambda_min |Theta|_F >= lambda_min |Theta Theta^T|_F^{1/2} = lambda_min > 0."""
    Lambda, start = loss.task.covariance, trajectory.start
    value = jnp.sqrt(jnp.trace(Lambda @ Lambda @ start.U11) / start.u_minus1)
    return at_least(value[None], 0.0, size=loss.eigenvalues[0])
