"""xie2025, appendix B.3: the proof of Theorem 4, with the derivatives of the risk and the means that they need."""

import jax.numpy as jnp
import numpy as np

from flowsim.claims.claim import Comparison
from flowsim.claims.declaring import Section
from flowsim.claims.statements import joined
from flowsim.losses import MultiHeadLoss
from flowsim.papers.xie2025 import exact, problems, spaces
from flowsim.papers.xie2025.conditions import (
    MODELS,
    few_coordinates,
    finite_context,
    heads_on_isotropic,
)
from flowsim.papers.xie2025.setting import drawn_heads, gradient, risks, same

SECTION = Section("xie2025", *MODELS, setting=heads_on_isotropic, needs=few_coordinates)
ON_TASKS = SECTION.on(problems.TASKS, spaces.TASKS)
ON_FINITE = SECTION.on(problems.FINITE, spaces.FINITE, hypotheses=finite_context)


@ON_TASKS.claim("appendix-b.3.risk", "appendix B.3")
def sum_of_parts(loss: MultiHeadLoss) -> Comparison:
    r"""$R = \sum_j \mathbb{E} t_j^2$, $t_j = \langle G, b a_j^\top \rangle + \langle G, b a_{d+1}^\top \rangle v_j +
    v_j - \hat w_j$

    The preceding display lacks a square, and the first one counts v^T x_q in addition to y_q.
    """
    task = loss.task
    found = jnp.stack([risks(task, drawn_heads(task.dimension, 1, seed, trainable=True)) for seed in (6, 7)])
    return same(task, found[:, 0], found[:, 1], found[:, 1])


@ON_TASKS.claim("appendix-b.3.gradient", "appendix B.3, step 1")
def listed_derivatives(loss: MultiHeadLoss) -> Comparison:
    r"""$\partial R/\partial b = 2 \sum_j \mathbb{E}\bigl[t_j (G a_j + v_j G a_{d+1})\bigr]$, $\partial R/\partial a_j =
    2 \mathbb{E}[t_j G b]$, $\partial R/\partial a_{d+1} = 2 \sum_j \mathbb{E}[t_j v_j G b]$, $\partial R/\partial v_j =
    2 \mathbb{E}\bigl[t_j (1 + b^\top G a_{d+1})\bigr]$

    In dR/dv_j step 2 writes b^T G a_j for b^T G a_{d+1}, which is 0 there.
    """
    task = loss.task
    model = drawn_heads(task.dimension, 1, 8, trainable=True)
    found = exact.gradient(exact.moments(task), model).reduced()
    expected = gradient(loss.risk, model).reduced()
    pairs = []
    for one, other in ((found.b, expected.b), (found.A, expected.A), (found.w, expected.w)):
        pairs.append(same(task, one.reshape(-1), other.reshape(-1), jnp.max(jnp.abs(other))))
    return joined(pairs)


@ON_FINITE.claim("appendix-b.3.squares", "appendix B.3, step 2")
def squared_row(loss: MultiHeadLoss) -> Comparison:
    r"""$\mathbb{E}\bigl[\bigl(\sum_i x_i[j] x_i^\top\bigr)\bigl(\sum_k x_k[j] x_k\bigr)\bigr] = C (C - 1) + C
    (d + 2)$
    """
    task, d = loss.task, loss.task.dimension
    C, second = float(task.context_length), exact.moments(task).second
    found = exact.floats(np.asarray([sum(second[j, m, j, m] for m in range(d)) for j in range(d)], dtype=object))
    return same(task, C**2 * found, C * (C - 1) + C * (d + 2), C**2 * (d + 2.0))


@ON_FINITE.claim("appendix-b.3.map", "appendix B.3, step 2")
def squared_map(loss: MultiHeadLoss) -> Comparison:
    r"""$\mathbb{E}\bigl[w^\top \bigl(\sum_i x_i x_i[j]\bigr) \bigl(\sum_k x_k x_k^\top\bigr) w\bigr] = C (C + 1) w_j w
    + C \lVert w \rVert^2 e_j$

    The preceding line has the number C (C - 1) w_j |w|^2 where it means C (C - 1) w_j w.
    """
    task, d = loss.task, loss.task.dimension
    C, second = float(task.context_length), exact.moments(task).second[:d, :d, :d, :d]
    w = np.random.default_rng(9).integers(1, 5, size=d)
    found = exact.floats(np.einsum("jabc,a,c->jb", second, w, w))
    stated = C * (C + 1) * np.multiply.outer(w, w) + C * float(w @ w) * np.eye(d)
    return same(task, C**2 * found.reshape(-1), stated.reshape(-1), float(np.max(stated)))
