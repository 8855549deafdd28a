"""ahn2023's section 4: the loss of a single layer, what it depends on, and its global minimum."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, equal
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import can_be_drawn, finite_context
from flowsim.claims.statements import joined
from flowsim.losses import MaskedAttentionLoss
from flowsim.models import MaskedAttention
from flowsim.models.linear_attention import embed
from flowsim.models.masked_attention import attend
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.problems import (
    DIAGONAL,
    EASY,
    EVERY,
    HARD,
    ISOTROPIC,
    ISOTROPIC_INFINITE,
    ISOTROPIC_LARGE,
    ISOTROPIC_SHORT,
    ONE,
)
from flowsim.papers.ahn2023.settings import isotropic, masked_layer
from flowsim.papers.ahn2023.single_layer import (
    Loss,
    Square,
    Task,
    in_context_loss,
    nothing_drawn,
    of_sums,
    on_drawn,
    prompts_of,
)
from flowsim.tasks import Prompt

_RESCALINGS = (1e-3, 0.1, -1.0, 7.0, 1e3)


SECTION = Section("ahn2023", MaskedAttention, setting=masked_layer)
ON_EVERY = SECTION.on(EVERY, spaces.MASKED)
ON_MASKED = SECTION.on((EASY, HARD, DIAGONAL, ONE), spaces.MASKED, hypotheses=finite_context)


@ON_EVERY.claim("eq-6", "section 4, (6)")
@eqx.filter_jit
def without_square(task: Task) -> Comparison:
    r"""The in-context loss (5) of one layer is $\mathbb{E}\bigl[[Z_0 + \operatorname{Attn}(Z_0)/n]_{d+1,n+1} + w^\top
    x^{(n+1)}\bigr]$

    The expectation as printed is that of an odd function of x^(n+1), hence zero for all weights.
    """
    d, Sigma = task.dimension, task.covariance
    mean = jnp.zeros((d + 1, d + 1)).at[:d, :d].set(Sigma).at[d, d].set(jnp.trace(Sigma))
    mean_query = jnp.zeros(d)
    return on_drawn(task, lambda model: model.b @ mean @ model.A @ mean_query, MaskedAttentionLoss(task))


@ON_EVERY.corrected(without_square, "section 4, (6) with (15)")
@eqx.filter_jit
def with_square(task: Task) -> Comparison:
    r"""The in-context loss (5) of one layer is $\mathbb{E}\bigl[(b^\top C A x^{(n+1)} + w^\top x^{(n+1)})^2\bigr]$

    The square that (6) lacks is there in (5), in (15) and where appendix A.1 repeats (6). Judged at drawn weights: a
    sum of quadratic forms in b (A s)^T against the loss from the parts of the error odd and even in w.
    """
    return on_drawn(task, lambda model: in_context_loss(task, model), MaskedAttentionLoss(task))


def _reaches(task: Task, count: int) -> Comparison:
    """The predictions with all of P and Q against those with only the last row of P and the first ``count`` columns of
    Q, and against those without the first ``count`` rows of P and the last column of Q.
    """
    d, prompts = task.dimension, prompts_of(task)
    P, Q = np.random.default_rng(1).standard_normal((2, d + 1, d + 1))
    row, column = np.indices((d + 1, d + 1))
    only = P * (row == d), Q * (column < count)
    without = P * (row >= count), Q * (column < d)
    full, *others = (_read_off(prompts, jnp.asarray(a), jnp.asarray(b)) for a, b in ((P, Q), only, without))
    return joined([equal(other, full, jnp.max(jnp.abs(full))) for other in others])


@eqx.filter_jit
def _read_off(prompts: Prompt, P: Square, Q: Square) -> Float[Array, " n"]:
    """[Attn(Z_0)/n]_{d+1,n+1} on every prompt."""
    return jax.vmap(lambda prompt: attend(embed(prompt), P, Q)[-1, -1] / prompt.inputs.shape[0])(prompts)


@ON_MASKED.claim("sec-4.parameters", "section 4, after (6)")
def parameters_as_printed(loss: Loss) -> Comparison:
    """The loss depends only on the last row of $P$ and the first $n$ columns of $Q$; the first $n$ rows of $P$ and the
    last column of $Q$ do not affect it

    Judged by the predictions on 16 drawn prompts. For n < d, columns of Q that matter are left out; for n > d, the last
    row of P is among its first n rows. At n = d, as in the last problem, the count is right.
    """
    n = loss.task.context_length
    return nothing_drawn() if jnp.isinf(n) else _reaches(loss.task, int(n))


@ON_MASKED.corrected(parameters_as_printed, "section 4, after (6), with (7)")
def parameters(loss: Loss) -> Comparison:
    """The loss depends only on the last row of $P$ and the first $d$ columns of $Q$; the first $d$ rows of $P$ and the
    last column of $Q$ do not affect it

    The count is d, not n, as in (7) and appendix A.1. Judged by the predictions on 16 drawn prompts.
    """
    return nothing_drawn() if not can_be_drawn(loss.task) else _reaches(loss.task, loss.task.dimension)


def _minimum_at(task: Task, gammas: Float[Array, " n"]) -> Comparison:
    """f against its minimum, and the gradients in b and in A against zero, relative to one of their terms, at (8)
    re-scaled by each gamma.
    """
    loss = MaskedAttentionLoss(task)
    f = lambda model: in_context_loss(task, model)

    def sides(gamma):
        model = loss.minimizer(gamma)
        value, gradient = jax.value_and_grad(f)(model)
        part_b = jax.grad(f)(MaskedAttention(jnp.zeros_like(model.b), model.A)).b
        part_A = jax.grad(f)(MaskedAttention(model.b, jnp.zeros_like(model.A))).A
        slope_b, slope_A, size_b, size_A = (jnp.linalg.norm(x) for x in (gradient.b, gradient.A, part_b, part_A))
        sizes = jnp.stack([jnp.trace(task.covariance), size_b, size_A])
        return jnp.stack([value, slope_b, slope_A]), jnp.stack([loss.minimum, 0.0, 0.0]), sizes

    values, expected, sizes = (side.reshape(-1) for side in jax.vmap(sides)(gammas))
    return of_sums(task, equal(values, expected, sizes))


@ON_EVERY.claim("theorem-1", "Theorem 1, (8)")
@eqx.filter_jit
def minimum_at_8(task: Task) -> Comparison:
    r"""$b = e_{d+1}$, $A = -\begin{bmatrix} U \operatorname{diag}\bigl(1/(\tfrac{n+1}{n} \lambda_i + \tfrac{1}{n}
    \sum_k \lambda_k)\bigr) U^\top \\ 0 \end{bmatrix}$ is a global minimum of $f$

    Value and gradient come from the quadratic forms of appendix A, the minimum from a sum of two squares, those of the
    parts of the error odd and even in w.
    """
    return _minimum_at(task, jnp.ones(1))


@ON_EVERY.claim("theorem-1.rescaling", "Theorem 1")
@eqx.filter_jit
def minimum_at_rescalings(task: Task) -> Comparison:
    r"""$b \gets \gamma b$ and $A \gets A/\gamma$ makes of (8) a global minimum again

    Judged at gamma = 1e-3, 0.1, -1, 7 and 1e3.
    """
    return _minimum_at(task, jnp.asarray(_RESCALINGS))


@SECTION.on((ISOTROPIC, ISOTROPIC_SHORT, ISOTROPIC_LARGE, ISOTROPIC_INFINITE), spaces.MASKED_ISOTROPIC).claim(
    "theorem-1.isotropic", "display after Theorem 1", hypotheses=isotropic
)
@eqx.filter_jit
def isotropic_form(task: Task) -> Comparison:
    r"""For $\Sigma = I$ (8) is $A = -\begin{bmatrix} I \\ 0 \end{bmatrix}\big/\bigl(\frac{n-1}{n} +
    \frac{d+2}{n}\bigr)$
    """
    d, n = task.dimension, task.context_length
    printed = -jnp.eye(d + 1, d) / ((1 - 1 / n) + (d + 2) / n)
    A = MaskedAttentionLoss(task).minimizer().A
    return equal(jnp.linalg.norm(A - printed)[None], 0.0, jnp.linalg.norm(A))
