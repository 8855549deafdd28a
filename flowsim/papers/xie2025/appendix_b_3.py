"""xie2025, appendix B.3: the proof of Theorem 4, with the derivatives of the risk and the means that they need."""

import jax.numpy as jnp
import numpy as np

from flowsim.claims.claim import Comparison, Relation
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiHeadLoss
from flowsim.papers.paper import Section
from flowsim.papers.xie2025 import exact, problems, spaces
from flowsim.papers.xie2025.conditions import (
    MODELS,
    all_of,
    few_coordinates,
    finite_context,
    heads_on_isotropic,
    promised_where,
)
from flowsim.papers.xie2025.setting import drawn_heads, gradient, risks, same

SECTION = Section("xie2025", *MODELS)


@SECTION.claim(
    "appendix-b.3.risk",
    "appendix B.3",
    "R = sum_j E t_j^2, t_j = <G, b a_j^T> + <G, b a_{d+1}^T> v_j + v_j - w-hat_j",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=few_coordinates,
    problems=problems.TASKS,
    spaces=spaces.TASKS,
    note="The preceding display lacks a square, and the first one counts v^T x_q in addition to y_q.",
)
@promised_where(few_coordinates)
def sum_of_parts(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """sum_j E t_j^2, by exact moments, against the closed form of the risk at drawn weights of y_q-LSA."""
    task = loss.task
    found = jnp.stack([risks(task, drawn_heads(task.dimension, 1, seed, trainable=True)) for seed in (6, 7)])
    return same(task, found[:, 0], found[:, 1], found[:, 1])


@SECTION.claim(
    "appendix-b.3.gradient",
    "appendix B.3, step 1",
    "dR/db = 2 sum_j E[t_j (G a_j + v_j G a_{d+1})], dR/da_j = 2 E[t_j G b], dR/da_{d+1} = 2 sum_j E[t_j v_j G b], "
    "dR/dv_j = 2 E[t_j (1 + b^T G a_{d+1})]",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=few_coordinates,
    problems=problems.TASKS,
    spaces=spaces.TASKS,
    note="In dR/dv_j step 2 writes b^T G a_j for b^T G a_{d+1}, which is 0 there.",
)
@promised_where(few_coordinates)
def listed_derivatives(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The listed derivatives in b, a_1, .., a_{d+1} and v, by exact moments, against those of the closed form by JAX.

    They are taken at drawn weights of y_q-LSA.
    """
    task = loss.task
    model = drawn_heads(task.dimension, 1, 8, trainable=True)
    found = exact.gradient(exact.moments(task), model).reduced()
    expected = gradient(loss.risk, model).reduced()
    pairs = []
    for one, other in ((found.b, expected.b), (found.A, expected.A), (found.w, expected.w)):
        pairs.append(same(task, one.reshape(-1), other.reshape(-1), jnp.max(jnp.abs(other))))
    return joined(pairs)


@SECTION.claim(
    "appendix-b.3.squares",
    "appendix B.3, step 2",
    "E[(sum_i x_i[j] x_i^T)(sum_k x_k[j] x_k)] = C (C - 1) + C (d + 2)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(finite_context, few_coordinates),
    problems=problems.FINITE,
    spaces=spaces.FINITE,
)
@promised_where(few_coordinates)
def squared_row(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """C (C - 1) + C (d + 2) against E |sum_i x_i[j] x_i|^2, j = 1, .., d."""
    task, d = loss.task, loss.task.dimension
    C, second = float(task.context_length), exact.moments(task).second
    found = exact.floats(np.asarray([sum(second[j, m, j, m] for m in range(d)) for j in range(d)], dtype=object))
    return same(task, C**2 * found, C * (C - 1) + C * (d + 2), C**2 * (d + 2.0))


@SECTION.claim(
    "appendix-b.3.map",
    "appendix B.3, step 2",
    "E[w^T (sum_i x_i x_i[j]) (sum_k x_k x_k^T) w] = C (C + 1) w_j w + C |w|^2 e_j",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(finite_context, few_coordinates),
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    note="The preceding line has the number C (C - 1) w_j |w|^2 where it means C (C - 1) w_j w.",
)
@promised_where(few_coordinates)
def squared_map(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """C (C + 1) w_j w + C |w|^2 e_j against E[w^T (sum_i x_i x_i[j]) (sum_k x_k x_k^T) w] at a drawn w."""
    task, d = loss.task, loss.task.dimension
    C, second = float(task.context_length), exact.moments(task).second[:d, :d, :d, :d]
    w = np.random.default_rng(9).integers(1, 5, size=d)
    found = exact.floats(np.einsum("jabc,a,c->jb", second, w, w))
    stated = C * (C + 1) * np.multiply.outer(w, w) + C * float(w @ w) * np.eye(d)
    return same(task, C**2 * found.reshape(-1), stated.reshape(-1), float(np.max(stated)))
