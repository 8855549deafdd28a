"""zhang2023's section 5: predictions as quadratic forms, the system (5.4), and Lemma 5.4 on the PL inequality.

A prompt is summed 1024 tokens at a time, so memory holds at most 1024 (d + 1) of its numbers.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from flowsim._core.types import Matrix
from flowsim.claims.claim import Comparison, at_least, equal
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import can_be_drawn, finite_context
from flowsim.claims.rates import decayed, exponential_envelope
from flowsim.claims.statements import joined, polyak_lojasiewicz, rounded, sharp_constant
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss
from flowsim.losses.arrowhead import local_rate
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.conditions import assumption, assumption_and_scale, limit, one_covariance, pl_constant
from flowsim.papers.zhang2023.limits import U_MINUS1, distance_to_limit, limit_is_a_minimum, minimiser, whitening
from flowsim.papers.zhang2023.problems import FLOWS
from flowsim.tasks import LinearRegression

_PROMPTS = 64
_TOKENS = 1024
_SURE, _POSSIBLE = 1e-12, 1e-14  # relative to the largest eigenvalue: a larger one is surely, or possibly, not zero


class _Sums(NamedTuple):
    """Sums over the columns e of an embedding E.

    gram: the sum of e e^T; attended: the sum of (W^PV e)_{d+1} (e^T W^KQ e_query); energy: the sum of |e|^2.
    """

    gram: Float[Array, "rows rows"]
    attended: Float[Array, ""]
    energy: Float[Array, ""]


def _summed(columns: Float[Array, "n rows"], query: Array, W_PV: Array, W_KQ: Array) -> _Sums:
    attended = jnp.sum((columns @ W_PV[-1]) * (columns @ (W_KQ @ query)))
    return _Sums(columns.T @ columns, attended, jnp.sum(columns**2))


def _sums(
    task: LinearRegression, key: Array, W_PV: Float[Array, "rows rows"], W_KQ: Float[Array, "rows rows"]
) -> tuple[Float[Array, " d"], _Sums]:
    """The query (d,) of a random prompt, and the sums over all columns of its embedding (3.4)."""
    root, d = jnp.linalg.cholesky(task.covariance), task.dimension
    weight, normal = jax.random.normal(key, (2, d))
    query = root @ normal
    last = jnp.append(query, 0.0)

    def chunk(carry):
        start, sums = carry
        inputs = jax.random.normal(jax.random.fold_in(key, start.astype(int)), (_TOKENS, d)) @ root.T
        columns = jnp.concatenate([inputs, (inputs @ weight)[:, None]], axis=1)
        kept = (start + jnp.arange(float(_TOKENS)) < task.context_length)[:, None]
        more = _summed(jnp.where(kept, columns, 0.0), last, W_PV, W_KQ)
        return start + _TOKENS, jax.tree.map(jnp.add, sums, more)

    begin = (jnp.zeros(()), _summed(last[None], last, W_PV, W_KQ))
    return query, jax.lax.while_loop(lambda carry: carry[0] < task.context_length, chunk, begin)[1]


def _keys() -> Array:
    return jax.random.split(jax.random.key(0), _PROMPTS)


@eqx.filter_jit
def _both_sides(task: LinearRegression, start: LinearAttention) -> tuple[Array, Array, Array]:
    d, N = task.dimension, task.context_length
    W_PV, W_KQ = jax.random.normal(jax.random.key(1), (2, d + 1, d + 1))
    W_PV, W_KQ = W_PV.at[d, d].set(start.u_minus1), W_KQ.at[:d, :d].set(start.U11)
    U = jnp.concatenate([W_KQ[:, :d], W_PV[d][:, None]], axis=1)

    def one(key):
        query, sums = _sums(task, key, W_PV, W_KQ)
        X = jnp.zeros((d + 1, d + 1)).at[:d, d].set(query).at[d, :d].set(query)
        # (X (x) G) Vec(U) = Vec(G U X^T), columns stacked: Lemma D.1.
        form = jnp.sum(U * (sums.gram / N @ U @ X)) / 2
        return sums.attended / N, form, jnp.linalg.norm(U) ** 2 * jnp.linalg.norm(X) * sums.energy / N

    return jax.lax.map(one, _keys())


SECTION = Section("zhang2023", LinearAttention, setting=one_covariance).on(FLOWS, spaces.BALANCED)
ON_DRAWN = SECTION.on(FLOWS, spaces.BALANCED, hypotheses=finite_context)
UNDER_SCALE = SECTION.on(FLOWS, spaces.BALANCED, hypotheses=assumption_and_scale)


@ON_DRAWN.claim("lemma-5.1", "Lemma 5.1")
def quadratic_form(loss: LinearAttentionLoss, start: PyTree) -> Comparison:
    r"""$\hat y = u^\top H u$ with $H = \tfrac{1}{2} X \otimes (E E^\top/N)$, $u = \operatorname{Vec}(U)$

    Judged on 64 random prompts. The weights u12 and u21, and the entries of W^PV and W^KQ that affect no prediction,
    are random.
    """
    if not can_be_drawn(loss.task):
        return equal(jnp.zeros(1), 0.0, 1.0)
    return equal(*_both_sides(loss.task, start))


def _negative_eigenvalues(loss: LinearAttentionLoss) -> tuple[Array, Array]:
    """The number of negative eigenvalues of H on each random prompt, and the uncertainty of each number."""
    if not can_be_drawn(loss.task):
        return jnp.zeros(1), jnp.zeros(1)
    return _count(loss.task)


@eqx.filter_jit
def _count(task: LinearRegression) -> tuple[Array, Array]:
    nothing, d = jnp.zeros((task.dimension + 1, task.dimension + 1)), task.dimension

    def one(key):
        query, sums = _sums(task, key, nothing, nothing)
        X = nothing.at[:d, d].set(query).at[d, :d].set(query)
        # The eigenvalues of a Kronecker product are the products of those of its factors.
        spectrum = jnp.outer(jnp.linalg.eigvalsh(X), jnp.linalg.eigvalsh(sums.gram))
        sure, possible = (jnp.sum(spectrum < -least * jnp.max(spectrum)) for least in (_SURE, _POSSIBLE))
        return sure.astype(float), (possible - sure).astype(float)

    return jax.lax.map(one, _keys())


def counts(loss: LinearAttentionLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The smallest number of negative eigenvalues of H on the random prompts, and the paper's number d + 1."""
    count, _ = _negative_eigenvalues(loss)
    return {"fewest_negative_eigenvalues": jnp.min(count), "d_plus_one": jnp.asarray(loss.task.dimension + 1.0)}


@ON_DRAWN.claim("sec-5.1.negative-eigenvalues", "section 5.1", constants=counts)
def at_least_d_plus_one(loss: LinearAttentionLoss) -> Comparison:
    """$H$ has at least $d + 1$ negative eigenvalues almost surely

    X has one negative eigenvalue, so H has one for each positive eigenvalue of E E^T. Labels are linear in the
    covariates, so N examples span min(N, d) dimensions. With the query's column the rank of E E^T is min(N, d) + 1
    almost surely.
    """
    count, unsure = _negative_eigenvalues(loss)
    d = loss.task.dimension
    # A count is at least d + 1 if it exceeds d + 1/2, which leaves room on both sides.
    return at_least(count, d + 0.5, size=d + 1.0, promised=unsure == 0)


@ON_DRAWN.corrected(at_least_d_plus_one, constants=counts)
def exactly_rank(loss: LinearAttentionLoss) -> Comparison:
    r"""$H$ has exactly $\min(N, d) + 1$ negative eigenvalues almost surely

    The printed count d + 1 needs N >= d. The form is non-convex either way.
    """
    count, unsure = _negative_eigenvalues(loss)
    expected = jnp.minimum(loss.task.context_length, loss.task.dimension) + 1.0
    return equal(count, expected, expected, allowance=unsure)


Loss = LinearAttentionLoss


class Matrices(NamedTuple):
    """The matrices in the equations of section 5. Lambda: the covariance; left: Gamma Lambda; square: Lambda^2."""

    Lambda: Matrix
    left: Matrix
    square: Matrix


def matrices(loss: Loss) -> Matrices:
    """The `Matrices` of a loss."""
    Lambda = loss.task.covariance
    return Matrices(Lambda, loss.task.gamma() @ Lambda, Lambda @ Lambda)


def printed_field(of: Matrices, model: LinearAttention) -> tuple[Array, Array, Array]:
    """The right-hand sides of (5.4), dU11/dt (d, d) and du_{-1}/dt, and the sum of the norms of their terms."""
    U, u, drive = model.U11, model.u_minus1, of.square
    attraction = of.left @ U @ of.Lambda
    dU = -(u**2) * attraction + u * drive
    pull = u * jnp.sum(attraction * U)
    push = jnp.sum(drive * U)
    norms = u**2 * jnp.linalg.norm(attraction) + jnp.abs(u) * jnp.linalg.norm(drive)
    return dU, -(pull - push), norms + jnp.abs(pull) + jnp.abs(push)


@SECTION.claim("lemma-5.2", "Lemma 5.2", hypotheses=assumption)
def dynamics(loss: Loss, flow: Trajectory) -> Comparison:
    """$dU_{11}/dt$ and $du_{-1}/dt$ are (5.4), and $u_{12} = u_{21} = 0$ for all $t$

    Compared with the gradient of the exact loss over all weights, u12 and u21 included.
    """

    of = matrices(loss)

    def deviation(model):
        dU, du, size = printed_field(of, model)
        gradient = loss.gradient(model)
        square = jnp.sum((gradient.U11 + dU) ** 2) + (gradient.u_minus1 + du) ** 2
        return jnp.sqrt(square + jnp.sum(gradient.u12**2) + jnp.sum(gradient.u21**2)), size

    value, size = jax.lax.map(deviation, flow.models)
    return equal(value, jnp.zeros(()), size)


def printed_loss(of: Matrices, model: LinearAttention) -> Array:
    """The loss (5.5), repeated as (A.11): u^2/2 tr(Gamma Lambda U Lambda U^T) - u tr(Lambda^2 U^T).

    Here U = U11 and u = u_{-1}.
    """
    U, u = model.U11, model.u_minus1
    return u**2 / 2 * jnp.sum((of.left @ U @ of.Lambda) * U) - u * jnp.sum(of.square * U)


@eqx.filter_jit
def _every_minimum(loss: Loss) -> Comparison:
    task = loss.task
    V, minimum = minimiser(task)
    inverse = jnp.linalg.inv(task.gamma())

    def at(u):
        model = LinearAttention(V / u, u)
        distance = jnp.linalg.norm(model.u_minus1 * model.U11 - inverse)
        return distance, printed_loss(matrices(loss), model), loss.excess(model)

    distances, values, excesses = jax.lax.map(at, jnp.asarray(U_MINUS1))
    sides = [(distances, 0.0, jnp.linalg.norm(inverse)), (values, minimum, -minimum), (excesses, 0.0, -minimum)]
    return rounded(joined([equal(*each) for each in sides]), whitening(task))


@SECTION.claim("lemma-5.3", "Lemma 5.3")
def every_minimum(loss: Loss) -> Comparison:
    r"""$u_{-1} U_{11} = \Gamma^{-1}$ at every global minimum of (5.5)

    For each u_{-1} != 0 the loss is a strictly convex quadratic function of U11. At u_{-1} = 0 it is above its minimum.
    Judged at solutions of the normal equations, for u_{-1} of both signs from 1e-3 to 1e3. A cubature gives
    E[Lambdahat^2].
    """
    return _every_minimum(loss)


def _mu(loss: Loss, trajectory: Trajectory) -> Array:
    return pl_constant(loss.task, trajectory.start)


def pl_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The mu of (5.7), and the largest mu for which the PL inequality (5.8) holds along the flow."""
    return {"mu": _mu(loss, trajectory), "sharp_mu": sharp_constant(trajectory)}


@UNDER_SCALE.claim("lemma-5.4.pl", "Lemma 5.4, (5.8)", constants=pl_constants)
def pl(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\lVert \nabla \ell \rVert^2 \ge \mu (\ell - \min \ell)$ for all $t$, with $\mu$ of (5.7)"""
    return polyak_lojasiewicz(flow, _mu(loss, flow))


def rate_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The constants of the exponential bound on the excess.

    - mu: the rate of (5.7).
    - sharp_mu: the largest rate for which the bound holds along the flow.
    - local_rate: the rate of decay of the excess near the limit.
    """
    elapsed = jnp.where(trajectory.t > 0, trajectory.t, 1.0)
    rates = jnp.where(trajectory.t > 0, decayed(trajectory) / elapsed, jnp.inf)
    return {
        "mu": _mu(loss, trajectory),
        "sharp_mu": jnp.min(jnp.where(jnp.isfinite(rates), rates, jnp.inf)),
        "local_rate": local_rate(loss.structure),
    }


@UNDER_SCALE.claim("lemma-5.4.rate", "proof of Lemma 5.4", constants=rate_constants)
def rate(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\ell(t) - \min \ell \le e^{-\mu t} \bigl(\ell(0) - \min \ell\bigr)$, with $\mu$ of (5.7)"""
    return exponential_envelope(flow, _mu(loss, flow))


def tends_to_limit(loss: Loss, trajectory: Trajectory) -> Comparison:
    """Compares the limit and the end of the flow with (5.9)."""
    inverse = jnp.linalg.inv(loss.task.gamma())
    u = jnp.sqrt(jnp.linalg.norm(inverse))
    return distance_to_limit(loss, trajectory, LinearAttention(inverse / u, u))


def limit_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """u_{-1} at the limit (5.9) and at the end of the flow."""
    return {"u_limit": limit(loss.task).u_minus1, "u_end": trajectory.end.u_minus1}


@UNDER_SCALE.claim("lemma-5.4.limit", "Lemma 5.4, (5.9)", constants=limit_constants)
def tends_to_global_minimum(loss: Loss, flow: Trajectory) -> Comparison:
    r"""The flow tends to the global minimum: $u_{-1} \to \lVert \Gamma^{-1} \rVert_F^{1/2}$, $U_{11} \to \lVert
    \Gamma^{-1} \rVert_F^{-1/2} \Gamma^{-1}$
    """
    return joined([tends_to_limit(loss, flow), limit_is_a_minimum(loss, flow)])
