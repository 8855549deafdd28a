"""zhang2023's section 5.1: a prediction as a quadratic form, and the negative eigenvalues of that form.

Prompts are drawn and summed one after the other, 1024 tokens at a time, so memory holds at most 1024 (d + 1) numbers of
a prompt, however long it is.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from flowsim.claims.claim import Comparison, at_least, equal
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import can_be_drawn, finite_context
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.problems import FLOWS
from flowsim.papers.zhang2023.setting import one_covariance
from flowsim.tasks import LinearRegression

_PROMPTS = 64
_TOKENS = 1024
_SURE, _POSSIBLE = 1e-12, 1e-14  # of the largest eigenvalue: one above it is surely, or possibly, not zero


class _Sums(NamedTuple):
    """Sums over the columns e of E: of e e^T, of (W^PV e)_{d+1} (e^T W^KQ e_query), and of |e|^2."""

    gram: Float[Array, "rows rows"]
    attended: Float[Array, ""]
    energy: Float[Array, ""]


def _summed(columns: Float[Array, "n rows"], query: Array, W_PV: Array, W_KQ: Array) -> _Sums:
    attended = jnp.sum((columns @ W_PV[-1]) * (columns @ (W_KQ @ query)))
    return _Sums(columns.T @ columns, attended, jnp.sum(columns**2))


def _sums(
    task: LinearRegression, key: Array, W_PV: Float[Array, "rows rows"], W_KQ: Float[Array, "rows rows"]
) -> tuple[Float[Array, " d"], _Sums]:
    """The query of a drawn prompt, and sums over all columns of its embedding (3.4)."""
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


SECTION = Section(
    "zhang2023",
    LinearAttention,
    setting=one_covariance,
    hypotheses=finite_context,
    problems=FLOWS,
    spaces=spaces.BALANCED,
)


@SECTION.claim("lemma-5.1", "Lemma 5.1")
def quadratic_form(loss: LinearAttentionLoss, start: PyTree) -> Comparison:
    r"""$\hat y = u^\top H u$ with $H = \tfrac{1}{2} X \otimes (E E^\top/N)$, $u = \operatorname{Vec}(U)$

    Judged on 64 random prompts; u12, u21 and the entries of W^PV and W^KQ that affect no prediction are random.
    """
    if not can_be_drawn(loss.task):
        return equal(jnp.zeros(1), 0.0, 1.0)
    return equal(*_both_sides(loss.task, start))


def _negative_eigenvalues(loss: LinearAttentionLoss) -> tuple[Array, Array]:
    """The number of negative eigenvalues of H on each random prompt, and by how much it is uncertain."""
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
    """The smallest number of negative eigenvalues found, and the paper's number."""
    count, _ = _negative_eigenvalues(loss)
    return {"fewest_negative_eigenvalues": jnp.min(count), "d_plus_one": jnp.asarray(loss.task.dimension + 1.0)}


@SECTION.claim("sec-5.1.negative-eigenvalues", "section 5.1", constants=counts)
def at_least_d_plus_one(loss: LinearAttentionLoss) -> Comparison:
    """$H$ has at least $d + 1$ negative eigenvalues almost surely

    X has one negative eigenvalue, so H has one for each positive eigenvalue of E E^T. The rank of E E^T is min(N, d) +
    1 almost surely: labels are linear in the covariates, so a context spans at most d dimensions, or N when N < d.
    """
    count, unsure = _negative_eigenvalues(loss)
    d = loss.task.dimension
    # A count is at least d + 1 if it exceeds d + 1/2, which leaves room on both sides.
    return at_least(count, d + 0.5, size=d + 1.0, promised=unsure == 0)


@SECTION.corrected(at_least_d_plus_one, constants=counts)
def exactly_rank(loss: LinearAttentionLoss) -> Comparison:
    r"""$H$ has exactly $\min(N, d) + 1$ negative eigenvalues almost surely

    The printed count d + 1 needs N >= d. The form is non-convex either way.
    """
    count, unsure = _negative_eigenvalues(loss)
    expected = jnp.minimum(loss.task.context_length, loss.task.dimension) + 1.0
    return equal(count, expected, expected, allowance=unsure)
