"""zhang2023: Trained Transformers Learn Linear Models In-Context (Zhang, Frei, Bartlett), sections 3-5, appendix A.

Every comparison takes (loss, trajectory) with a `LinearAttentionLoss`, whose task is the statement's. Statements about
every parameter, not about a flow, are judged at the points of the trajectory. The paper's symbols are used throughout.
"""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._systems import norm_sq
from flowsim.analysis.base import Claim, Comparison, Relation, at_least, equal
from flowsim.analysis.inequalities import polyak_lojasiewicz, sharp_constant
from flowsim.analysis.invariants import stays_positive
from flowsim.analysis.rates import decayed, exponential_envelope
from flowsim.initialization import (
    Hypothesis,
    assumption_3_3,
    balanced,
    hypothesis,
    limit,
    local_rate,
    pl_constant,
    scale_condition,
    u_lower_bound_sq,
)
from flowsim.losses import LinearAttentionLoss
from flowsim.models import LinearAttention
from flowsim.models.linear_attention import embed
from flowsim.tasks import Prompt
from flowsim.trajectory import Trajectory

Series = Float[Array, " T"]
Loss = LinearAttentionLoss

_PROMPTS = 64
_RANDOM_STARTS = 32


def _norms(matrices: Array) -> Series:
    return jnp.sqrt(jnp.sum(matrices**2, axis=(1, 2)))


# Hypotheses


def _assumption(loss: Loss, start: LinearAttention) -> list[Hypothesis]:
    return assumption_3_3(loss.task, start)


def _assumption_and_scale(loss: Loss, start: LinearAttention) -> list[Hypothesis]:
    return [*assumption_3_3(loss.task, start), scale_condition(loss.task, start)]


def _all_but(*left_out: str):
    def hypotheses(loss: Loss, start: LinearAttention) -> list[Hypothesis]:
        return [condition for condition in assumption_3_3(loss.task, start) if condition.name not in left_out]

    return hypotheses


def _finite_context(loss: Loss, start: LinearAttention) -> list[Hypothesis]:
    return [hypothesis("N finite, so that prompts can be drawn", loss.task.context_length, "<", jnp.inf)]


# Section 5.1: statements about one prompt


def _prompts(loss: Loss):
    keys = jax.random.split(jax.random.key(0), _PROMPTS)
    return jax.vmap(lambda key: loss.task.sample(key)[0])(keys)


def _quadratic_form(loss: Loss, trajectory: Trajectory) -> Comparison:
    """yhat from (3.6) against u^T H u with H = X/2 (x) E E^T/N, over random prompts and weights, u12 and u21 too."""
    if jnp.isinf(loss.task.context_length):
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
    if jnp.isinf(loss.task.context_length):
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


def _at_least_d_plus_one(loss: Loss, trajectory: Trajectory) -> Comparison:
    count, unsure = _negative_eigenvalues(loss)
    # Counts are whole numbers: half a one is room enough.
    return at_least(count, loss.task.dimension + 1.0, promised=unsure == 0, allowance=0.5)


def _exactly_rank(loss: Loss, trajectory: Trajectory) -> Comparison:
    count, unsure = _negative_eigenvalues(loss)
    expected = jnp.minimum(loss.task.context_length, loss.task.dimension) + 1.0
    return equal(count, expected, expected, allowance=unsure)


def _counts(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
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


def _over_models(function, trajectory: Trajectory):
    return jax.lax.map(function, trajectory.models)


def _dynamics(loss: Loss, trajectory: Trajectory) -> Comparison:
    def deviation(model):
        dU, du, size = _printed_field(loss, model)
        gradient = loss.gradient(model)
        square = jnp.sum((gradient.U11 + dU) ** 2) + (gradient.u_minus1 + du) ** 2
        return jnp.sqrt(square + jnp.sum(gradient.u12**2) + jnp.sum(gradient.u21**2)), size

    value, size = _over_models(deviation, trajectory)
    return equal(value, jnp.zeros(()), size)


def _same_loss(loss: Loss, trajectory: Trajectory) -> Comparison:
    constant = jnp.trace(loss.task.covariance) / 2

    def deviation(model):
        gradient, printed = loss.gradient(model), jax.grad(lambda m: _printed_loss(loss, m))(model)
        gap = jnp.sqrt(norm_sq(jax.tree.map(jnp.subtract, gradient, printed)))
        _, _, size = _printed_field(loss, model)
        difference = jnp.abs(loss(model) - _printed_loss(loss, model) - constant)
        return gap / jnp.where(size > 0, size, 1.0) + difference / (constant + jnp.abs(loss(model)))

    return equal(_over_models(deviation, trajectory), jnp.zeros(()), jnp.ones(()))


def _minimum_and_excess(loss: Loss, trajectory: Trajectory) -> Comparison:
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

    left, right, size = _over_models(sides, trajectory)
    attained = _printed_loss(loss, limit(loss.task))
    return equal(jnp.append(left, attained), jnp.append(right, minimum), jnp.append(size, -minimum))


def _at_the_minimum(loss: Loss, trajectory: Trajectory) -> Comparison:
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


def _pl(loss: Loss, trajectory: Trajectory) -> Comparison:
    return polyak_lojasiewicz(trajectory, _mu(loss, trajectory))


def _pl_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    return {"mu": _mu(loss, trajectory), "sharp_mu": sharp_constant(trajectory)}


def _rate(loss: Loss, trajectory: Trajectory) -> Comparison:
    return exponential_envelope(trajectory, _mu(loss, trajectory))


def _rate_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    elapsed = jnp.where(trajectory.t > 0, trajectory.t, 1.0)
    rates = jnp.where(trajectory.t > 0, decayed(trajectory) / elapsed, jnp.inf)
    return {
        "mu": _mu(loss, trajectory),
        "sharp_mu": jnp.min(jnp.where(jnp.isfinite(rates), rates, jnp.inf)),
        "local_rate": local_rate(loss.task),
    }


def _to_limit(loss: Loss, trajectory: Trajectory, expected: LinearAttention) -> Comparison:
    """The end of the flow against a limit. The way still to go is at most 2 sqrt(excess/p), where |grad|^2 >= p excess:
    p is the smaller of the ratio seen at the end and the one of the Hessian at the limit, with a factor 2 to spare.
    """
    ratio = trajectory.grad_norm_sq[-1] / jnp.where(trajectory.excess[-1] > 0, trajectory.excess[-1], 1.0)
    p = jnp.minimum(ratio, local_rate(loss.task)) / 2
    to_go = jnp.where(trajectory.excess[-1] > 0, 2 * jnp.sqrt(trajectory.excess[-1] / p), 0.0)
    distance = jnp.sqrt(norm_sq(jax.tree.map(jnp.subtract, trajectory.end, expected)))
    size = jnp.sqrt(norm_sq(expected))
    return equal(distance[None], jnp.zeros(()), size, allowance=to_go)


def _limit(loss: Loss, trajectory: Trajectory) -> Comparison:
    return _to_limit(loss, trajectory, limit(loss.task))


def _limit_without_balance(loss: Loss, trajectory: Trajectory) -> Comparison:
    """u^2 = (c + sqrt(c^2 + 4 |Gamma^-1|_F^2))/2 with the conserved c = u(0)^2 - |U11(0)|_F^2, and U11 = Gamma^-1/u."""
    c = loss.conserved(trajectory.start)
    inverse = jnp.linalg.inv(loss.task.gamma())
    u = jnp.sqrt((c + jnp.sqrt(c**2 + 4 * jnp.sum(inverse**2))) / 2)
    return _to_limit(loss, trajectory, LinearAttention(inverse / u, u))


def _limit_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    return {"u_limit": limit(loss.task).u_minus1, "u_end": trajectory.end.u_minus1}


def _stays_balanced(loss: Loss, trajectory: Trajectory) -> Comparison:
    models = trajectory.models
    size = models.u_minus1**2 + jnp.sum(models.U11**2, axis=(1, 2))
    return equal(models.u_minus1**2, jnp.sum(models.U11**2, axis=(1, 2)), jnp.max(size))


def _u_positive(loss: Loss, trajectory: Trajectory) -> Comparison:
    return stays_positive(trajectory.models.u_minus1, _norms(trajectory.models.U11))


def _u_bounded_below(loss: Loss, trajectory: Trajectory) -> Comparison:
    bound_sq = u_lower_bound_sq(loss.task, trajectory.start)
    return at_least(trajectory.models.u_minus1, jnp.sqrt(jnp.maximum(bound_sq, 0.0)), promised=bound_sq > 0)


def _u_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    bound_sq = jnp.maximum(u_lower_bound_sq(loss.task, trajectory.start), 0.0)
    return {"u_lower_bound": jnp.sqrt(bound_sq), "sharp_u_lower_bound": jnp.min(trajectory.models.u_minus1)}


# Assumption 3.3: who meets it, and what each part is needed for


@eqx.filter_jit
def _random_thetas_meet_it(loss: Loss, trajectory: Trajectory) -> Comparison:
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
def _theta_lambda_follows(loss: Loss, trajectory: Trajectory) -> Comparison:
    """|Theta Lambda|_F >= lambda_min |Theta|_F >= lambda_min |Theta Theta^T|_F^{1/2} = lambda_min > 0."""
    Lambda, start = loss.task.covariance, trajectory.start
    value = jnp.sqrt(jnp.trace(Lambda @ Lambda @ start.U11) / start.u_minus1)
    return at_least(value[None], 0.0, size=loss.eigenvalues[0])


# The claims

_EASY = {
    "name": "d = 3, diagonal covariance",
    "task": {"covariance": [[0.5, 0, 0], [0, 1, 0], [0, 0, 2]], "context_length": 10},
    "init": {"kind": "balanced", "scale": 0.3, "theta": [[1, 0.5, 0], [0, 1, -0.5], [0.3, 0, 1]]},
}
_HARD = {
    "name": "d = 8, condition 100, N = 3, rank one, sigma = 1e-4",
    "task": {
        "covariance": {"eigenvalues": [0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0], "rotation_seed": 1},
        "context_length": 3,
    },
    "init": {"kind": "balanced", "scale": 1e-4, "rank": 1, "seed": 1},
}
_EDGE = {
    "name": "d = 4, just under the scale condition, N = 2",
    "task": {"covariance": {"eigenvalues": [0.1, 0.3, 1.0, 3.0], "rotation_seed": 2}, "context_length": 2},
    "init": {"kind": "balanced", "scale": 0.4137, "seed": 3},
}
_ONE_DIMENSION = {
    "name": "d = 1, exactly solvable",
    "task": {"covariance": [[2.0]], "context_length": 5},
    "init": {"kind": "balanced", "scale": 0.05, "theta": [[1.0]]},
}
_PROBLEMS = (_EASY, _HARD, _EDGE, _ONE_DIMENSION)


def _with_init(problem: Mapping[str, Any], name: str, **init: Any) -> dict[str, Any]:
    return {"name": name, "task": problem["task"], "init": init}


_BEYOND = _with_init(_EASY, "d = 3, ten times the scale condition", kind="balanced", scale=6.7, seed=0)
_UNBALANCED = _with_init(_EASY, "d = 3, unbalanced", kind="unbalanced", scale=0.5, seed=0)
_INDEFINITE = _with_init(_EASY, "d = 3, balanced but indefinite", kind="balanced-indefinite", scale=0.2, seed=4)


def _claim(part: str, source: str, statement: str, compare, **options) -> Claim:
    options.setdefault("problems", _PROBLEMS)
    return Claim(f"zhang2023.{part}", f"zhang2023, {source}", statement, compare, **options)


CLAIMS: tuple[Claim, ...] = (
    _claim(
        "assumption-3.3",
        "remark after Assumption 3.3",
        "If M has i.i.d. entries from a continuous law, Theta Theta^T = M M^T/|M M^T|_F meets the assumption a.s.",
        _random_thetas_meet_it,
        along_flow=False,
        problems=(_EASY, _HARD),
        note="Judged on 32 random M; that Theta is what was drawn is by construction.",
    ),
    _claim(
        "assumption-3.3.nonzero",
        "Assumption 3.3",
        "Theta Lambda != 0 follows from |Theta Theta^T|_F = 1 and Lambda > 0: |Theta Lambda|_F >= lambda_min",
        _theta_lambda_follows,
        form="corrected",
        hypotheses=_all_but("Theta Lambda != 0"),
        along_flow=False,
        note="The part Theta Lambda != 0 of the assumption is implied by the others and needed for nothing more.",
    ),
    _claim(
        "assumption-3.3.balance",
        "Assumption 3.3 with (5.9)",
        "Without |Theta Theta^T|_F = 1: u_{-1}^2 -> (c + sqrt(c^2 + 4 |Gamma^-1|_F^2))/2, u_{-1} U11 -> Gamma^-1",
        _limit_without_balance,
        form="corrected",
        relation=Relation.IDENTITY,
        hypotheses=_all_but("|Theta Theta^T|_F = 1"),
        problems=(_UNBALANCED, *_PROBLEMS),
        note="Balance is needed for the limit (5.9) itself, not for global convergence: with the conserved "
        "c = u_{-1}(0)^2 - |U11(0)|_F^2 the flow ends elsewhere on the same set of minima; c = 0 gives (5.9).",
    ),
    _claim(
        "assumption-3.3.semidefinite",
        "Assumption 3.3 with (5.9)",
        "Without Theta Theta^T >= 0, from a symmetric balanced start with u_{-1}(0) > 0, the flow tends to (5.9)",
        _limit,
        form="corrected",
        relation=Relation.IDENTITY,
        hypotheses=_all_but("Theta Theta^T semidefinite", "Theta Lambda != 0"),
        problems=(_INDEFINITE,),
        note="Semidefiniteness makes the loss negative at the start, hence keeps the flow off the saddle at 0. An "
        "indefinite start reaches (5.9) as well unless it lies on the saddle's stable set, as "
        "U11(0) = -u_{-1}(0) I/sqrt(d) does when Lambda is a multiple of I.",
    ),
    _claim(
        "assumption-3.3.scale",
        "Theorem 4.1 without its scale condition",
        "From Assumption 3.3 alone, at any sigma > 0, the flow tends to (5.9)",
        _limit,
        form="corrected",
        relation=Relation.IDENTITY,
        hypotheses=_assumption,
        constants=_limit_constants,
        problems=(_BEYOND, *_PROBLEMS),
        note="The condition on sigma is sufficient, not necessary: for a semidefinite start the diagonal of U11 in the "
        "eigenbasis stays nonnegative and u_{-1} positive whatever sigma is.",
    ),
    _claim(
        "theorem-4.1",
        "Theorem 4.1",
        "Under Assumption 3.3 and sigma^2 |Gamma|_op sqrt(d) < 2, W^PV and W^KQ tend to (4.1), a global minimum",
        _limit,
        relation=Relation.IDENTITY,
        hypotheses=_assumption_and_scale,
        constants=_limit_constants,
    ),
    _claim(
        "lemma-5.1",
        "Lemma 5.1",
        "yhat = u^T H u with H = (1/2) X (x) (E E^T/N), u = Vec(U)",
        _quadratic_form,
        relation=Relation.IDENTITY,
        hypotheses=_finite_context,
        along_flow=False,
        note="Judged on 64 random prompts with random u12 and u21.",
    ),
    _claim(
        "sec-5.1.negative-eigenvalues",
        "section 5.1",
        "H has at least d + 1 negative eigenvalues almost surely",
        _at_least_d_plus_one,
        constants=_counts,
        hypotheses=_finite_context,
        along_flow=False,
        note="H has one negative eigenvalue for each positive one of E E^T, whose rank is min(N, d) + 1 almost surely: "
        "the labels are linear in the covariates, so the context spans d dimensions at most and N when N < d.",
    ),
    _claim(
        "sec-5.1.negative-eigenvalues",
        "section 5.1",
        "H has exactly min(N, d) + 1 negative eigenvalues almost surely",
        _exactly_rank,
        constants=_counts,
        form="corrected",
        relation=Relation.IDENTITY,
        hypotheses=_finite_context,
        along_flow=False,
        note="The printed count d + 1 needs N >= d. The form is non-convex either way.",
    ),
    _claim(
        "lemma-5.2",
        "Lemma 5.2",
        "dU11/dt and du_{-1}/dt are (5.4), and u12 = u21 = 0 for all t",
        _dynamics,
        relation=Relation.IDENTITY,
        hypotheses=_assumption,
        note="Compared with the gradient of the exact loss over all weights, u12 and u21 included.",
    ),
    _claim(
        "lemma-5.3",
        "Lemma 5.3",
        "u_{-1} U11 = Gamma^-1 at every global minimum of (5.5)",
        _at_the_minimum,
        relation=Relation.IDENTITY,
        note="Judged where the flow ends; the allowance is what the excess left there permits.",
    ),
    _claim(
        "lemma-5.4.pl",
        "Lemma 5.4, (5.8)",
        "|grad l|^2 >= mu (l - min l) for all t, with mu of (5.7)",
        _pl,
        hypotheses=_assumption_and_scale,
        constants=_pl_constants,
    ),
    _claim(
        "lemma-5.4.rate",
        "proof of Lemma 5.4",
        "l(t) - min l <= e^{-mu t} (l(0) - min l), with mu of (5.7)",
        _rate,
        hypotheses=_assumption_and_scale,
        constants=_rate_constants,
    ),
    _claim(
        "lemma-5.4.limit",
        "Lemma 5.4, (5.9)",
        "u_{-1} -> |Gamma^-1|_F^{1/2} and U11 -> |Gamma^-1|_F^{-1/2} Gamma^-1",
        _limit,
        relation=Relation.IDENTITY,
        hypotheses=_assumption_and_scale,
        constants=_limit_constants,
    ),
    _claim(
        "lemma-a.1",
        "Lemma A.1",
        "The flow of L is that of (A.11), and L - l is constant (it is tr(Lambda)/2)",
        _same_loss,
        relation=Relation.IDENTITY,
        hypotheses=_assumption,
    ),
    _claim(
        "corollary-a.2",
        "Corollary A.2",
        "min l = -tr(Lambda^2 Gamma^-1)/2 and l - min l = |Gamma^{1/2}(u Lambda^{1/2} U11 Lambda^{1/2} - "
        "Lambda Gamma^-1)|_F^2/2",
        _minimum_and_excess,
        relation=Relation.IDENTITY,
        note="Judged by subtraction, along the trajectory and at the limit (5.9), where the minimum is attained.",
    ),
    _claim(
        "lemma-a.3",
        "Lemma A.3, (A.12)",
        "u_{-1}^2 = tr(U11 U11^T) for all t",
        _stays_balanced,
        relation=Relation.IDENTITY,
        hypotheses=_assumption,
    ),
    _claim("lemma-a.4", "Lemma A.4", "u_{-1} > 0 for all t", _u_positive, hypotheses=_assumption_and_scale),
    _claim(
        "lemma-a.5",
        "Lemma A.5, (A.14)",
        "u_{-1}^2 >= sigma^2 |Lambda Theta|_F^2 (2 - sqrt(d) sigma^2 |Gamma|_op)/(2 sqrt(d) |Lambda|_op^2) for all t",
        _u_bounded_below,
        hypotheses=_assumption_and_scale,
        constants=_u_constants,
        note="The extracted text leaves open how far the root of (A.14) reaches; (A.15) squares the whole product.",
    ),
)
