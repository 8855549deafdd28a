"""zhang2025's section 3, merged keys and queries: the two-layer network, its fixed points, and the abrupt drop."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix
from jaxtyping import Array, PyTree

from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import Hypothesis, agrees, hypothesis
from flowsim.claims.statements import conserved, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AttentionLoss
from flowsim.models import MergedHeads, TokenHeads
from flowsim.models.heads import with_weights
from flowsim.papers.zhang2025 import problems, setting, spaces

_ABOUT = 0.02
# How far from a fixed point a search starts, and the slope, over the smallest curvature, below which a point counts as
# fixed.
_NEAR, _STILL = 1e-2, 1e-9

SECTION = Section("zhang2025", MergedHeads, setting=setting.plain)
ON_MERGED_FINITE = SECTION.on(problems.MERGED_FINITE, spaces.MERGED, setting=setting.drawable)
ON_MERGED = SECTION.on(problems.MERGED, spaces.MERGED)


@ON_MERGED_FINITE.claim("eq-6", "(6)")
def network(loss: AttentionLoss, start: PyTree) -> Comparison:
    r"""$\mathrm{ATTN}_M(X)_{D+1,N+1} = w_2^\top W_1 z$, a two-layer linear network on the cubic features $z =
    \operatorname{vec}(\beta x_q^\top)$ of (7)

    Judged on 16 random prompts, at standard normal weights with the shapes of the start.
    """
    model = setting.drawn_like(start)
    return setting.on_prompts(loss.task, model, lambda z: jnp.einsum("h,hij,pij->p", model.v, model.U, z))


@ON_MERGED.claim("sec-2.3.blocks", "section 2.3")
@eqx.filter_jit
def blocks(loss: AttentionLoss, start: PyTree) -> Comparison:
    """Blocks of $W^V$ and $W^{KQ}$ that are zero at first remain zero throughout training: $v_i$ and $U_i$ alone are
    learned

    Judged by the gradient of the layer with all blocks, which also attends to the query's token, at standard normal v
    and U.
    """
    model = setting.drawn_like(start)
    d, zeros = loss.task.dimension, jnp.zeros_like
    p = jnp.concatenate([zeros(model.U[:, 0]), model.v[:, None]], axis=1)
    Q = jnp.concatenate([model.U, zeros(model.U[:, :1])], axis=1)
    heads = TokenHeads(p, Q, query_token=True)
    slope = AttentionLoss(loss.task, heads).gradient(heads)
    others = jnp.sqrt(jnp.sum(slope.p[:, d] ** 2) + jnp.sum(slope.Q[:, :d] ** 2))
    return equal(jnp.stack([jnp.linalg.norm(slope.p[:, :d]), jnp.linalg.norm(slope.Q[:, d])]), 0.0, others)


def _on_the_minimum(loss: AttentionLoss, start: MergedHeads) -> MergedHeads:
    """Random weights on the manifold (9b), which fixes the sum of v_i U_i.

    The last head has v = 1, and its U gives the sum the required value.
    """
    drawn, best = setting.drawn_like(start), setting.learned(loss.task, jnp.ones(loss.task.dimension))
    v = drawn.v.at[-1].set(1.0)
    rest = best - jnp.tensordot(v[:-1], drawn.U[:-1], 1)
    return eqx.tree_at(lambda m: (m.v, m.U), drawn, (v, drawn.U.at[-1].set(rest)))


def _zero(model: MergedHeads) -> MergedHeads:
    return jax.tree.map(jnp.zeros_like, model)


@ON_MERGED.claim("eq-9.fixed", "(9)")
@eqx.filter_jit
def fixed_points(loss: AttentionLoss, start: MergedHeads) -> Comparison:
    r"""Zero weights, and all with $w_2^\top W_1 = \mathbb{E}[y_q z^\top] \mathbb{E}[z z^\top]^{-1}$, are fixed points
    of (8)

    Judged at zero and at random weights of the second kind. The gradient is compared with |Lambda^2| times the size of
    random weights.
    """
    drawn, random = setting.drawn_like(start), _on_the_minimum(loss, start)
    slopes = jnp.stack([setting.size(loss.gradient(model)) for model in (_zero(drawn), random)])
    square = loss.task.covariance @ loss.task.covariance
    return equal(slopes, 0.0, jnp.linalg.norm(square) * jnp.stack([setting.size(drawn), setting.size(random)]))


def _idle(loss: AttentionLoss, start: MergedHeads) -> MergedHeads:
    """Weights with v = 0 and random U_i with <U_i, Lambda^2> = 0, where the gradient is zero."""
    drawn, square = setting.drawn_like(start), loss.task.covariance @ loss.task.covariance
    along = jnp.einsum("hij,ij->h", drawn.U, square) / jnp.sum(square**2)
    U = drawn.U - along[:, None, None] * square[None]
    return eqx.tree_at(lambda m: (m.v, m.U), drawn, (jnp.zeros_like(drawn.v), U))


@SECTION.on(problems.MERGED, spaces.MERGED_PLANE).claim("eq-9", "(9)", hypotheses=setting.several_dimensions)
@eqx.filter_jit
def two_manifolds(loss: AttentionLoss, start: PyTree) -> Comparison:
    r"""(8) has two manifolds of fixed points: zero weights, and $w_2^\top W_1 = \mathbb{E}[y_q z^\top] \mathbb{E}[z
    z^\top]^{-1}$

    Weights with w_2 = 0 and W_1 E[z y_q] = 0 are fixed points too. Judged at random weights of this kind, after a check
    that the gradient is zero there. On one of the manifolds their size or the error of their readout would be zero.
    """
    model = _idle(loss, start)
    missed = jnp.linalg.norm(model.readout - setting.learned(loss.task, jnp.ones(loss.task.dimension)))
    rounding = 1e-12 * setting.size(model) * jnp.linalg.norm(loss.task.covariance) ** 2
    comparison = equal(jnp.minimum(setting.size(model), missed)[None], 0.0, setting.size(model))
    return eqx.tree_at(lambda c: c.promised, comparison, setting.size(loss.gradient(model))[None] <= rounding)


@ON_MERGED.corrected(two_manifolds)
@eqx.filter_jit
def two_functions(loss: AttentionLoss, start: PyTree) -> Comparison:
    r"""(8) has two fixed points in function space: at each $w_2^\top W_1$ is $0$ or $\mathbb{E}[y_q z^\top]
    \mathbb{E}[z z^\top]^{-1}$

    Judged at zeros of the gradient. The Levenberg-Marquardt method finds them from random weights, and from weights
    near w_2 = 0 with W_1 E[z y_q] = 0.
    """
    drawn, idle = setting.drawn_like(start), _idle(loss, start)
    near = jax.tree.map(lambda x, y: x + _NEAR * y, idle, drawn)
    found = [_fixed_point(loss, model) for model in (drawn, near)]
    best = setting.learned(loss.task, jnp.ones(loss.task.dimension))
    readouts = jnp.stack([model.readout for model in found])
    off = jnp.minimum(jnp.linalg.norm(readouts, axis=(1, 2)), jnp.linalg.norm(readouts - best[None], axis=(1, 2)))
    slopes = jnp.stack([setting.size(loss.gradient(model)) / setting.size(model) for model in found])
    still = slopes <= _STILL * jnp.linalg.norm(jnp.linalg.inv(loss.task.covariance), 2) ** -2
    return at_most(off / jnp.linalg.norm(best), _NEAR**2, promised=still)


def _fixed_point(loss: AttentionLoss, model: MergedHeads) -> MergedHeads:
    """A zero of the gradient, found by the Levenberg-Marquardt method from a model.

    If a thousand steps do not reach a zero, the weights after the last step are returned.
    """

    def slope(weights: tuple[Array, Array], _: None) -> tuple[Array, Array]:
        found = loss.gradient(with_weights(model, dict(zip(("v", "U"), weights, strict=True))))
        return found.v, found.U

    method = optimistix.LevenbergMarquardt(rtol=1e-13, atol=1e-13)
    solution = optimistix.least_squares(slope, method, (model.v, model.U), max_steps=1000, throw=False)
    return with_weights(model, {"v": solution.value[0], "U": solution.value[1]})


@ON_MERGED.claim("sec-3.2.minimum", "section 3.2")
@eqx.filter_jit
def losses(loss: AttentionLoss) -> Comparison:
    """The second manifold is the global minimum

    Moments that the code of the loss does not use give the loss at zero and on the second manifold. The loss at zero is
    compared with tr(Lambda). The loss on the manifold and the known minimum are compared with (19) for all
    eigenvectors.
    """
    task, d = loss.task, loss.task.dimension
    ends = [jnp.zeros((d, d)), setting.learned(task, jnp.ones(d))]
    found = [setting.squared_error(task.covariance, task.context_length, end) for end in ends]
    expected = [setting.level(task, jnp.zeros(d)), setting.level(task, jnp.ones(d))]
    return equal(jnp.stack([*found, 2 * loss.minimum]), jnp.stack([*expected, expected[1]]), expected[0])


@SECTION.on(problems.MERGED_FLOWS, spaces.MERGED).claim("sec-3.3.balance", "section 3.3")
def balance(flow: Trajectory) -> Comparison:
    r"""$w_2 w_2^\top - W_1 W_1^\top$ is conserved, as in every two-layer linear network"""

    def kept(m: MergedHeads) -> Array:
        W_1 = m.U.reshape(m.v.size, -1)
        return jnp.outer(m.v, m.v) - W_1 @ W_1.T

    models = flow.models
    return conserved(jax.vmap(kept)(models), jnp.max(jax.vmap(setting.size)(models) ** 2))


def aligned(loss: AttentionLoss, start: MergedHeads) -> list[Hypothesis]:
    """The hypotheses that Lambda is a multiple of I, and that U_i = v_i I/sqrt(D) for every head.

    Small starts approach such U_i before the drop of the loss.
    """
    d = loss.task.dimension
    off = jnp.linalg.norm(start.U - start.v[:, None, None] * jnp.eye(d)[None] / jnp.sqrt(float(d)))
    return [*setting.white(loss, start), agrees("|U_i - v_i I/sqrt(D)| = 0", off, 0.0, setting.size(start))]


@SECTION.on(problems.WHITE, spaces.WHITE).claim("eq-10", "(10)", hypotheses=aligned)
def time_course(loss: AttentionLoss, flow: Trajectory) -> Comparison:
    r"""For $\Lambda = \lambda I$, $\sum_i v_i U_i = \sigma(t) I$, $\sigma = \frac{e}{\lambda \bigl(1 + (1+D)/N\bigr)(e
    - 1) + \sqrt{D}/w_{\mathrm{init}}^2}$, $e = \exp(2 \lambda^2 \sqrt{D} t)$, $w_{\mathrm{init}}^2 = \sum_i v_i(0)^2$

    The paper states it for lambda = 1 and an infinitesimal start. From U_i = v_i I/sqrt(D) it is exact.
    """
    d, (values, _) = loss.task.dimension, setting.spectrum(loss.task)
    root, top = jnp.sqrt(float(d)), values[0]
    factor = top * setting.inflation(values, 1 / loss.task.context_length)[0]
    # Both terms of the fraction are divided by e, which overflows.
    decay = jnp.exp(-2 * top**2 * root * flow.t)
    sigma = 1 / (factor * (1 - decay) + decay * root / jnp.sum(flow.start.v**2))
    readouts = jax.vmap(lambda m: m.readout)(flow.models)
    off = jnp.linalg.norm(readouts - sigma[:, None, None] * jnp.eye(d)[None], axis=(1, 2))
    return equal(off, 0.0, root * sigma)


@ON_MERGED_FINITE.claim("eq-11", "(11)")
def regression(loss: AttentionLoss, start: MergedHeads) -> Comparison:
    r"""On the second manifold the prediction is $\beta^\top \Bigl(\Lambda + \bigl(\Lambda + \operatorname{tr}(\Lambda)
    I\bigr)/N\Bigr)^{-1} x_q$

    Judged by the layer with its full matrices, on 16 random prompts, at random weights on the manifold.
    """
    inverse, model = jnp.linalg.inv(loss.task.gamma()), _on_the_minimum(loss, start)
    comparison = setting.on_prompts(loss.task, model, lambda z: jnp.einsum("pij,ij->p", z, inverse))
    return rounded(comparison, 1 + jnp.linalg.cond(loss.task.gamma()))


def small(loss: AttentionLoss, start: MergedHeads) -> list[Hypothesis]:
    """The hypothesis that the start is "small": the norm of its weights is at most 1e-3 |R|_F^{1/2}.

    R is the readout that has learned all eigenvectors.
    """
    end = jnp.sqrt(jnp.linalg.norm(setting.learned(loss.task, jnp.ones(loss.task.dimension))))
    return [hypothesis("|weights|, relative to those at the end", setting.size(start) / end, "<=", 1e-3)]


def first_rate(loss: AttentionLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The rate |Lambda^2|_F, and the ratio of the escape time to its prediction ln(1/w_init)/|Lambda^2|_F.

    At the escape time the loss has fallen by a hundredth. w_init is the norm of all value weights at the start.
    """
    rate = jnp.linalg.norm(loss.task.covariance @ loss.task.covariance)
    early = trajectory.loss >= 0.99 * trajectory.loss[0]
    time = jnp.max(jnp.where(early, trajectory.t, 0.0))
    return {"rate": rate, "escape_over_predicted": -time * rate / jnp.log(jnp.linalg.norm(trajectory.start.v))}


@SECTION.on(problems.SMALL_MERGED, spaces.SMALL_MERGED).claim(
    "sec-3.3.escape", "section 3.3", hypotheses=small, constants=first_rate
)
def escape(loss: AttentionLoss, flow: Trajectory) -> Comparison:
    r"""A small start escapes in about $\ln(1/w_{\mathrm{init}})/\lVert \Lambda^2 \rVert_F$: the norm of $v_i + \langle
    U_i, \Lambda^2 \rangle/\lVert \Lambda^2 \rVert_F$ over the heads grows as $\exp(\lVert \Lambda^2 \rVert_F t)$

    Judged to within 2%, until the loss has fallen by a hundredth.
    """
    square = loss.task.covariance @ loss.task.covariance
    rate, models = jnp.linalg.norm(square), flow.models
    growing = jnp.linalg.norm(models.v + jnp.einsum("thij,ij->th", models.U, square) / rate, axis=1)
    off = jnp.abs(growing / growing[0] * jnp.exp(-rate * flow.t) - 1)
    return at_most(off, _ABOUT, promised=flow.loss >= 0.99 * flow.loss[0])
