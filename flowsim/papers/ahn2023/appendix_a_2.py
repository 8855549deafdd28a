"""ahn2023's appendix A.2: the proof of Theorem 1 for isotropic data, one component f_j at a time."""

import jax
import jax.numpy as jnp

from flowsim.claims.claim import Comparison, Relation, equal
from flowsim.claims.hypotheses import can_be_drawn, finite_context
from flowsim.claims.statements import of_task, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.models import MaskedAttention
from flowsim.models.linear_attention import embed
from flowsim.moments import token_covariance_times_form
from flowsim.papers.ahn2023 import components, spaces
from flowsim.papers.ahn2023.problems import ISOTROPIC, ISOTROPIC_INFINITE, ISOTROPIC_LARGE, ISOTROPIC_SHORT
from flowsim.papers.ahn2023.settings import isotropic, masked_layer, of_finite_context
from flowsim.papers.ahn2023.single_layer import Loss, Task, nothing_drawn, prompts_of
from flowsim.papers.paper import Section

SECTION = Section("ahn2023", MaskedAttention)
PROBLEMS = (ISOTROPIC, ISOTROPIC_SHORT, ISOTROPIC_LARGE, ISOTROPIC_INFINITE)


@SECTION.claim(
    "lemma-6.sum",
    "appendix A.2, step 1",
    "For Sigma = I, f(b, A) = sum_j f_j(b, A)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=masked_layer,
    problems=PROBLEMS,
    spaces=spaces.MASKED_ISOTROPIC,
    hypotheses=isotropic,
)
@of_task
def sum_of_components(task: Task) -> Comparison:
    """f(b, A) = sum_j f_j(b, a_j)."""
    return components.sum_of_components(task, jnp.ones(task.dimension))


@SECTION.claim(
    "lemma-6",
    "Lemma 6",
    "For Sigma = I, X_j = -E_{d+1,j}/((n-1)/n + (d+2)/n) is a global minimum of f_j(X) = E[(<C, X> + w[j])^2]",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=masked_layer,
    problems=PROBLEMS,
    spaces=spaces.MASKED_ISOTROPIC,
    hypotheses=isotropic,
    note="f_j is convex, since its quadratic part is E<C, X>^2, so a zero of its gradient is a global minimum. The "
    "proof prints y^T instead of y^2 in the corner of C.",
)
@of_task
def lemma_6(task: Task) -> Comparison:
    """The gradient of each f_j at X_j = -E_{d+1,j}/((n-1)/n + (d+2)/n) against zero."""
    n = task.context_length
    return components.stationary(task, -components.unit(task.dimension) / ((1 - 1 / n) + (task.dimension + 2) / n))


@SECTION.claim(
    "eq-17",
    "(16), (17)",
    "For Sigma = I, E[w[j] C] = E_{d+1,j} + E_{j,d+1}",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=masked_layer,
    problems=PROBLEMS,
    spaces=spaces.MASKED_ISOTROPIC,
    hypotheses=isotropic,
)
@of_task
def eq_17(task: Task) -> Comparison:
    """E[w_j C] against E_{d+1,j} + E_{j,d+1}."""
    return components.linear_term(task, jnp.ones(task.dimension))


def _inner_products(task: Task, factor: float) -> Comparison:
    """<C, E_{d+1,j}> against ``factor`` times sum_i <w, x_i> x_i[j], on drawn prompts, for each j.

    Each side rounds at most 2 n times.
    """
    prompts = prompts_of(task)
    tokens = jax.vmap(lambda prompt: embed(prompt)[:, :-1])(prompts)
    C = tokens @ jnp.swapaxes(tokens, 1, 2) / tokens.shape[-1]
    products = prompts.labels[:, :, None] * prompts.inputs
    sizes = factor * jnp.sum(jnp.abs(products), axis=1)
    sides = C[:, -1, :-1].reshape(-1), factor * jnp.sum(products, axis=1).reshape(-1)
    return rounded(equal(*sides, sizes.reshape(-1)), jnp.asarray(float(task.context_length)))


@SECTION.claim(
    "lemma-6.inner-product",
    "proof of Lemma 6",
    "<C, E_{d+1,j}> = sum_i <w, x_i> x_i[j]",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=masked_layer,
    problems=(ISOTROPIC, ISOTROPIC_SHORT, ISOTROPIC_LARGE),
    spaces=spaces.MASKED_ISOTROPIC,
    hypotheses=finite_context,
    note="The factor 1/n of C is missing here and in the next displays; (19) has it again.",
)
def inner_product_as_printed(loss: Loss, trajectory: Trajectory) -> Comparison:
    """<C, E_{d+1,j}> against sum_i <w, x_i> x_i[j], without the 1/n, as printed."""
    return nothing_drawn() if not can_be_drawn(loss.task) else _inner_products(loss.task, 1.0)


@SECTION.claim(
    "lemma-6.inner-product",
    "proof of Lemma 6",
    "<C, E_{d+1,j}> = (1/n) sum_i <w, x_i> x_i[j]",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=masked_layer,
    problems=(ISOTROPIC, ISOTROPIC_SHORT, ISOTROPIC_LARGE),
    spaces=spaces.MASKED_ISOTROPIC,
    form="corrected",
    hypotheses=finite_context,
    note="With the factor 1/n of C.",
)
def inner_product(loss: Loss, trajectory: Trajectory) -> Comparison:
    """<C, E_{d+1,j}> against (1/n) sum_i <w, x_i> x_i[j]."""
    n = float(loss.task.context_length)
    return nothing_drawn() if jnp.isinf(n) else _inner_products(loss.task, 1 / n)


@SECTION.claim(
    "eq-18",
    "(18) and the display before it",
    "For Sigma = I, E[<w, x_i> x_i[j] <w, x_i'> x_i'[j']] is 0 for j != j'; for j = j' it is 1 where i != i' and d + 2 "
    "where i = i'",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=masked_layer,
    problems=PROBLEMS,
    spaces=spaces.MASKED_ISOTROPIC,
    hypotheses=isotropic,
    note="Judged as E[<C, E_{d+1,j}> C] at n = 1, where i = i', and at n = inf, where only pairs i != i' remain.",
)
@of_task
def eq_18(task: Task) -> Comparison:
    """E[<w, x_i> x_i[j] <w, x_i'> x_i'[j']] for all j and j': at n = 1 only i = i', at n = inf only i != i'."""
    d, units = task.dimension, components.unit(task.dimension)

    def moments(n):
        return jax.vmap(lambda X: token_covariance_times_form(X, task.covariance, jnp.asarray(n)))(units)[:, d, :d]

    sides = jnp.stack([moments(jnp.inf), moments(1.0)]), jnp.stack([jnp.eye(d), (d + 2.0) * jnp.eye(d)])
    return equal(sides[0].reshape(-1), sides[1].reshape(-1), d + 2.0)


@SECTION.claim(
    "eq-19",
    "(19)",
    "For Sigma = I, E[<C, E_{d+1,j}> C] = ((n-1)/n + (d+2)/n) (E_{d+1,j} + E_{j,d+1})",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=masked_layer,
    problems=PROBLEMS,
    spaces=spaces.MASKED_ISOTROPIC,
    hypotheses=isotropic,
)
@of_task
def eq_19(task: Task) -> Comparison:
    """E[<C, E_{d+1,j}> C] against ((n-1)/n + (d+2)/n) (E_{d+1,j} + E_{j,d+1})."""
    n = task.context_length
    return components.quadratic_term(task, jnp.full(task.dimension, (1 - 1 / n) + (task.dimension + 2) / n))


@SECTION.claim(
    "lemma-6.unique",
    "appendix A.2, step 3",
    "X_j is the unique global minimum of f_j",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=masked_layer,
    problems=(ISOTROPIC, ISOTROPIC_SHORT),
    spaces=spaces.MASKED_ISOTROPIC,
    hypotheses=isotropic,
    note="Only the symmetric part of X enters f_j, as C is symmetric: any antisymmetric matrix may be added to X_j. "
    "Theorem 1 needs no uniqueness.",
)
@of_task
def unique_component_minimum(task: Task) -> Comparison:
    """The number of flat directions of f_j against zero."""
    return components.no_flat_directions(task)


@SECTION.claim(
    "lemma-6.unique",
    "appendix A.2, step 3",
    "At finite n the global minima of f_j are X_j plus any antisymmetric matrix",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=masked_layer,
    problems=(ISOTROPIC, ISOTROPIC_SHORT),
    spaces=spaces.MASKED_ISOTROPIC,
    form="corrected",
    hypotheses=of_finite_context(isotropic),
    note="C is symmetric, so f_j depends only on the symmetric part of X, which is unique. At n = inf, where C depends "
    "on w alone, even that is not.",
)
@of_task
def unique_symmetric_component_minimum(task: Task) -> Comparison:
    """The number of flat directions of f_j against that of the antisymmetric matrices, d (d+1)/2."""
    return components.antisymmetric_flat_directions(task)
