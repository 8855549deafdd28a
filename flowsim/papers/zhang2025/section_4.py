"""zhang2025's sections 4 and 5, separate keys and queries: 2^D fixed points, and the dynamics from saddle to saddle.

The appendix on contexts of varying length is also here.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import Hypothesis, agrees, hypothesis
from flowsim.claims.statements import conserved, joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AttentionLoss
from flowsim.models import MergedHeads, SeparateHeads
from flowsim.papers.zhang2023.literal import second_moment as mean_square
from flowsim.papers.zhang2025 import problems, setting, spaces

_NEAR = 0.01  # as a fraction of a drop

SECTION = Section("zhang2025", SeparateHeads, setting=setting.plain)
ON_SEPARATE_FINITE = SECTION.on(problems.SEPARATE_FINITE, spaces.SEPARATE, setting=setting.drawable)
ON_SEPARATE = SECTION.on(problems.SEPARATE, spaces.SEPARATE)


@ON_SEPARATE_FINITE.claim("eq-13", "(13)")
def network(loss: AttentionLoss, start: PyTree) -> Comparison:
    r"""$\mathrm{ATTN}_S(X)_{D+1,N+1} = \sum_i v_i q_i^\top K_i z$ with the convolution $K_i$ of $k_i$: a sum of
    three-layer linear networks

    Judged on 16 random prompts, at standard normal weights with the shapes of the start. For R > 1 each head also sums
    over its R keys and queries.
    """
    model, d = setting.drawn_like(start), loss.task.dimension
    K = jax.vmap(jax.vmap(lambda k: jnp.kron(jnp.eye(d), k[None])))(model.k)
    # vec stacks columns, so each block of vec(beta x_q^T) is beta times an entry of x_q.
    vec = lambda z: jnp.swapaxes(z, 1, 2).reshape(len(z), -1)
    expected = lambda z: jnp.einsum("h,hri,hrim,pm->p", model.v, model.q, K, vec(z))
    return setting.on_prompts(loss.task, model, expected)


def _equations(loss: AttentionLoss, start: SeparateHeads, transposed: bool) -> Comparison:
    """Compares the right-hand sides of (14) with minus the gradient, at standard normal weights.

    **Arguments:** transposed: whether to use the transpose of the sum over heads in (14c).
    """
    model, task = setting.drawn_like(start), loss.task
    Lambda, total = task.covariance, model.readout
    square = Lambda @ Lambda + (Lambda + jnp.trace(Lambda) * jnp.eye(task.dimension)) @ Lambda / task.context_length
    missed = Lambda @ Lambda - square @ total @ Lambda
    of_queries = Lambda @ Lambda - Lambda @ (total.T if transposed else total) @ square
    v = jnp.einsum("hri,ij,hrj->h", model.k, missed, model.q)
    k = jnp.einsum("h,ij,hrj->hri", model.v, missed, model.q)
    q = jnp.einsum("h,ij,hrj->hri", model.v, of_queries, model.k)
    slope = loss.gradient(model)
    pairs = [(v, -slope.v), (k, -slope.k), (q, -slope.q)]
    return joined([equal(found.ravel(), expected.ravel(), jnp.linalg.norm(expected)) for found, expected in pairs])


@SECTION.on(problems.SEPARATE, spaces.SEPARATE_PLANE).claim("eq-14", "(14)", hypotheses=setting.several_dimensions)
@eqx.filter_jit
def equations_as_printed(loss: AttentionLoss, start: SeparateHeads) -> Comparison:
    r"""The flow is (14a) to (14c), $dq_i/dt = v_i \bigl(\Lambda^2 - \Lambda \sum_{i'} v_{i'} k_{i'} q_{i'}^\top
    \mathbb{E}[\hat\Lambda^2]\bigr) k_i$ the last

    (14c) lacks a transpose: the terms of its sum should be v_i' q_i' k_i'^T.
    """
    return _equations(loss, start, False)


@ON_SEPARATE.corrected(equations_as_printed)
@eqx.filter_jit
def equations(loss: AttentionLoss, start: SeparateHeads) -> Comparison:
    r"""The flow is (14a), (14b) and $dq_i/dt = v_i \bigl(\Lambda^2 - \Lambda \sum_{i'} v_{i'} q_{i'} k_{i'}^\top
    \mathbb{E}[\hat\Lambda^2]\bigr) k_i$
    """
    return _equations(loss, start, True)


@ON_SEPARATE_FINITE.claim("eq-15", "(15)")
def second_moment(loss: AttentionLoss) -> Comparison:
    r"""$\mathbb{E}[\hat\Lambda^2] = \Lambda^2 + \tfrac{\Lambda + \operatorname{tr}(\Lambda) I}{N} \Lambda$

    Judged by a cubature of degree 5 over the covariates. It is exact for this mean.
    """
    Lambda, N = loss.task.covariance, loss.task.context_length
    stated = Lambda @ Lambda + (Lambda + jnp.trace(Lambda) * jnp.eye(loss.task.dimension)) @ Lambda / N
    return equal(mean_square(loss.task).reshape(-1), stated.reshape(-1), jnp.trace(Lambda) ** 2)


def _fixed(loss: AttentionLoss, start: SeparateHeads) -> tuple[np.ndarray, list[SeparateHeads]]:
    """The sets of eigenvectors that heads like ``start`` can learn, and for each set heads that have learned it.

    The sets are the `subsets` with at most ``start.rank`` members, as rows of an array (sets, d).
    """
    chosen = setting.subsets(loss.task.dimension, start.rank)
    return chosen, [start.of_readout(setting.learned(loss.task, jnp.asarray(ones)), start.w) for ones in chosen]


@ON_SEPARATE.claim("eq-18", "(16)-(18)")
def fixed_points(loss: AttentionLoss, start: PyTree) -> Comparison:
    r"""Heads with $\sum_i v_i k_i q_i^\top = \sum_{d \in S} \frac{e_d e_d^\top}{\lambda_d + (\lambda_d +
    \operatorname{tr} \Lambda)/N}$, for any set $S$ of eigenvectors, and $k_i$, $q_i$ in its span are at a fixed point:
    $2^D$ sets

    Judged for the sets that the heads can learn: all of them if D <= 6, otherwise those among 64 random sets and the
    sets of the first m eigenvectors for each m.
    """
    _, heads = _fixed(loss, start)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *heads)
    slopes, sizes = _slopes_and_sizes(loss, stacked)
    square = jnp.linalg.norm(loss.task.covariance @ loss.task.covariance)
    return equal(slopes, 0.0, square * jnp.maximum(sizes, jnp.max(sizes)) ** 2)


@eqx.filter_jit
def _slopes_and_sizes(loss: AttentionLoss, heads: SeparateHeads) -> tuple[Array, Array]:
    return jax.vmap(lambda model: setting.size(loss.gradient(model)))(heads), jax.vmap(setting.size)(heads)


@ON_SEPARATE.claim("eq-19", "(19)")
def losses(loss: AttentionLoss, start: PyTree) -> Comparison:
    r"""The loss at such a fixed point is $\operatorname{tr}(\Lambda) - \sum_{d \in S} \lambda_d \Bigl(1 + \bigl(1 +
    \operatorname{tr}(\Lambda)/\lambda_d\bigr)/N\Bigr)^{-1}$

    Judged by moments that the code of the loss does not use. The known minimum of the loss is compared with the set of
    as many of the largest eigenvalues as the heads can learn.
    """
    chosen, task = jnp.asarray(setting.subsets(loss.task.dimension, start.rank)), loss.task
    best = jnp.where(jnp.arange(task.dimension) < start.rank, 1.0, 0.0)
    risk = lambda ones: setting.squared_error(task.covariance, task.context_length, setting.learned(task, ones))
    found = jax.vmap(risk)(chosen)
    expected = jax.vmap(lambda ones: setting.level(task, ones))(chosen)
    found, expected = jnp.append(found, 2 * loss.minimum), jnp.append(expected, setting.level(task, best))
    return equal(found, expected, jnp.trace(task.covariance))


@SECTION.on(problems.SEPARATE_FLOWS, spaces.SEPARATE).claim("appendix-e.8.balance", "section 4.3, appendix E.8")
def balance(flow: Trajectory) -> Comparison:
    r"""$v_i^2 - \sum_r \lVert k_{ir} \rVert^2$ of every head and all products $k_{ir}^\top k_{is} - q_{ir}^\top q_{is}$
    are conserved, so that $\lVert k_i \rVert$ and $\lVert q_i \rVert$ stay as equal as they begin
    """

    def kept(m: SeparateHeads) -> Array:
        products = m.k @ jnp.swapaxes(m.k, 1, 2) - m.q @ jnp.swapaxes(m.q, 1, 2)
        return jnp.concatenate([m.balances.reshape(-1), products.reshape(-1)])

    models = flow.models
    return conserved(jax.vmap(kept)(models), jnp.max(jax.vmap(setting.size)(models) ** 2))


def one_head(loss: AttentionLoss, start: SeparateHeads) -> list[Hypothesis]:
    """The hypotheses that one head of rank one is along an eigenvector and that the other heads are zero.

    For the first head v = |k| = |q| > 0, and k = q = v e with an eigenvector e of Lambda.
    """
    _, vectors = setting.spectrum(loss.task)
    k, q, v = start.k[0, 0], start.q[0, 0], start.v[0]
    rest = [jnp.sum(x[1:] ** 2) for x in (start.v, start.k, start.q)]
    along = jnp.max(jnp.abs(vectors.T @ k))
    return [
        hypothesis("R", float(start.k.shape[1]), "<=", 1.0),
        hypothesis("v", v, ">", 0.0),
        agrees("k = q", jnp.linalg.norm(k - q), 0.0, v),
        agrees("|k| = v", jnp.linalg.norm(k), v, v),
        agrees("k along an eigenvector", along, jnp.linalg.norm(k), v),
        agrees("the other heads", jnp.sqrt(jnp.stack(rest).sum()), 0.0, v),
    ]


@SECTION.on(problems.ONE_HEAD, spaces.ONE_HEAD).claim("eq-21", "(21)", hypotheses=one_head)
def scalar_equation(loss: AttentionLoss, flow: Trajectory) -> Comparison:
    r"""One head with $k = q = v e_d$ stays so, and $dv/dt = \lambda_d^2 v^2 - \lambda_d^3 \Bigl(1 + \bigl(1 +
    \operatorname{tr}(\Lambda)/\lambda_d\bigr)/N\Bigr) v^5$

    The other heads are at rest at zero.
    """
    values, vectors = setting.spectrum(loss.task)
    direction = jnp.argmax(jnp.abs(vectors.T @ flow.start.k[0, 0]))
    top = values[direction]
    e = flow.start.k[0, 0] / jnp.linalg.norm(flow.start.k[0, 0])
    v = flow.models.v[:, 0]
    slope = -jax.vmap(lambda m: loss.gradient(m).v[0])(flow.models)
    growth, decay = top**2 * v**2, top**3 * setting.inflation(values, 1 / loss.task.context_length)[direction] * v**5
    aside = [jnp.linalg.norm(x[:, 0, 0] - v[:, None] * e[None, :], axis=1) for x in (flow.models.k, flow.models.q)]
    return joined([equal(slope, growth - decay, growth + decay), *(equal(off, 0.0, v) for off in aside)])


def small_and_apart(loss: AttentionLoss, start: SeparateHeads) -> list[Hypothesis]:
    """The hypotheses that weights are "small" and eigenvalues "distinct", with at least D heads of rank one.

    Small means that each weight is at most 1e-3 times the weights of a head that has learned the first eigenvector.
    Distinct means that the ratios of successive eigenvalues are at least 1.5.
    """
    values, _ = setting.spectrum(loss.task)
    end = jnp.cbrt(1 / (values[0] * setting.inflation(values, 1 / loss.task.context_length)[0]))
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(start)]))
    apart = jnp.min(values[:-1] / values[1:]) if values.size > 1 else jnp.asarray(jnp.inf)
    return [
        hypothesis("weights, relative to those at the end", largest / end, "<=", 1e-3),
        hypothesis("lambda_d/lambda_{d+1}", apart, ">=", 1.5),
        hypothesis("heads", float(start.v.size), ">=", float(loss.task.dimension)),
        hypothesis("R", float(start.k.shape[1]), "<=", 1.0),
    ]


@SECTION.on(problems.SADDLES, spaces.SADDLES).claim("sec-4.3.saddles", "section 4.3", hypotheses=small_and_apart)
def saddles(loss: AttentionLoss, flow: Trajectory) -> Comparison:
    r"""From small weights rank-one heads rest near the fixed points with the first $m$ eigenvectors, those of the
    largest eigenvalues, for $m = 0, 1, \dots, D$ in turn

    The middles of the drops from level to level divide the flow. Judged where |grad L| is least in each part: the loss
    there differs from its level by at most 1% of the next drop, or of the last drop for m = D.
    """
    task, d = loss.task, loss.task.dimension
    levels = jax.vmap(lambda ones: setting.level(task, ones))(jnp.asarray(np.tri(d + 1, d, -1))) / 2
    drops = levels[:-1] - levels[1:]
    half = (levels[:-1] + levels[1:]) / 2
    above, below = jnp.append(jnp.inf, half), jnp.append(half, -jnp.inf)
    here = (flow.loss[None, :] <= above[:, None]) & (flow.loss[None, :] > below[:, None])
    slowest = jnp.argmin(jnp.where(here, flow.grad_norm_sq[None, :], jnp.inf), axis=1)
    off = jnp.abs(flow.loss[slowest] - levels) / jnp.append(drops, drops[-1])
    return at_most(off, _NEAR, promised=jnp.any(here, axis=1))


@SECTION.on(problems.LONG, spaces.LONG).claim("eq-22", "(22)", hypotheses=setting.infinite)
def regression(loss: AttentionLoss, start: PyTree) -> Comparison:
    r"""With $N \to \infty$ the prediction at a fixed point is principal component regression, $w^\top \sum_{d \in S}
    e_d e_d^\top x_q$

    The prediction is beta^T Gamma x_q with the readout Gamma = sum_i v_i k_i q_i^T. At N = infinity beta = Lambda w. So
    Lambda Gamma is compared with sum_{d in S} e_d e_d^T. The loss of the heads is compared with the sum of the
    eigenvalues outside S.
    """
    chosen, heads = _fixed(loss, start)
    values, vectors = setting.spectrum(loss.task)
    off = [
        jnp.linalg.norm(loss.task.covariance @ model.readout - (vectors * jnp.asarray(ones)[None, :]) @ vectors.T)
        for ones, model in zip(chosen, heads, strict=True)
    ]
    errors = jnp.stack([2 * loss(model) for model in heads])
    left = jnp.asarray(1 - chosen) @ values
    return joined([equal(jnp.stack(off), 0.0, 1.0), equal(errors, left, jnp.sum(values))])


LENGTHS = Section(
    "zhang2025",
    MergedHeads,
    SeparateHeads,
    setting=setting.varying_lengths,
    problems=problems.LENGTHS,
    spaces=spaces.LENGTHS,
)


@LENGTHS.claim("appendix.lengths", "appendix on varying context lengths")
@eqx.filter_jit
def lengths(loss: AttentionLoss, start: PyTree) -> Comparison:
    r"""With contexts of varying length the fixed points and their losses are those of one length $N$ with $1/N =
    \mathbb{E}[1/N]$

    Where all eigenvectors are learned, the mean over the lengths of the losses by separate moments is compared with
    (19), and its gradient with zero. The minimum of the loss is compared with (19) for the set of as many of the
    largest eigenvalues as the heads can learn.
    """
    task, law = loss.task, loss.task.length_law
    assert law is not None, "the setting of the claim"

    def mean(readout):
        return law.probabilities @ jax.vmap(lambda N: setting.squared_error(task.covariance, N, readout))(law.lengths)

    best = setting.learned(task, jnp.ones(task.dimension))
    value, slope = jax.value_and_grad(mean)(best)
    square = jnp.linalg.norm(task.covariance @ task.covariance)
    reached = (jnp.arange(task.dimension) < start.rank).astype(float)
    found = jnp.stack([value, 2 * loss.minimum])
    expected = jnp.stack([setting.level(task, chosen) for chosen in (jnp.ones(task.dimension), reached)])
    return joined(
        [equal(found, expected, jnp.trace(task.covariance)), equal(jnp.linalg.norm(slope)[None], 0.0, square)]
    )
