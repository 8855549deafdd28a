"""ahn2023's appendix A.3: the proof of Theorem 1 for a general covariance, first for a diagonal one."""

import jax.numpy as jnp

from flowsim.claims.claim import Comparison, Relation
from flowsim.claims.statements import of_task
from flowsim.losses import MaskedAttentionLoss
from flowsim.models import MaskedAttention
from flowsim.papers.ahn2023 import components, spaces
from flowsim.papers.ahn2023.problems import DIAGONAL, DIAGONAL_LARGE, EASY, EVERY, ISOTROPIC_INFINITE
from flowsim.papers.ahn2023.settings import diagonal, masked_layer, of_finite_context
from flowsim.papers.ahn2023.single_layer import Task, in_context_loss, on_drawn
from flowsim.papers.paper import Section
from flowsim.tasks import LinearRegression

SECTION = Section("ahn2023", MaskedAttention)
PROBLEMS = (EASY, DIAGONAL, DIAGONAL_LARGE, ISOTROPIC_INFINITE)


@SECTION.claim(
    "lemma-7",
    "Lemma 7",
    "For Sigma = diag(lambda), X_j = -E_{d+1,j}/(((n+1)/n) lambda_j + (1/n) sum_k lambda_k) is a global minimum of "
    "f_j(X) = E[(<C, X> + w[j])^2]",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=masked_layer,
    problems=PROBLEMS,
    spaces=spaces.MASKED_DIAGONAL,
    hypotheses=diagonal,
    note="The paper attributes its consequences to Lemma 6. The display of A at the end of step 1 lacks a denominator, "
    "in the paper or in its extracted text; (8) is meant.",
)
@of_task
def lemma_7(task: Task) -> Comparison:
    """The gradient of each f_j at X_j = -E_{d+1,j}/(((n+1)/n) lambda_j + (1/n) sum_k lambda_k) against zero."""
    lam, n = jnp.diagonal(task.covariance), task.context_length
    denominators = (1 + 1 / n) * lam + jnp.sum(lam) / n
    return components.stationary(task, -components.unit(task.dimension) / denominators[:, None, None])


@SECTION.claim(
    "eq-20",
    "(20)",
    "For Sigma = diag(lambda), E[w[j] C] = lambda_j (E_{d+1,j} + E_{j,d+1})",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=masked_layer,
    problems=PROBLEMS,
    spaces=spaces.MASKED_DIAGONAL,
    hypotheses=diagonal,
)
@of_task
def eq_20(task: Task) -> Comparison:
    """E[w_j C] against lambda_j (E_{d+1,j} + E_{j,d+1})."""
    return components.linear_term(task, jnp.diagonal(task.covariance))


@SECTION.claim(
    "eq-21",
    "(21)",
    "For Sigma = diag(lambda), E[<C, E_{d+1,j}> C] = (((n+1)/n) lambda_j^2 + (1/n) lambda_j sum_k lambda_k) (E_{d+1,j} "
    "+ E_{j,d+1})",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=masked_layer,
    problems=PROBLEMS,
    spaces=spaces.MASKED_DIAGONAL,
    hypotheses=diagonal,
)
@of_task
def eq_21(task: Task) -> Comparison:
    """E[<C, E_{d+1,j}> C] against (((n+1)/n) lambda_j^2 + (1/n) lambda_j sum_k lambda_k) (E_{d+1,j} + E_{j,d+1})."""
    lam, n = jnp.diagonal(task.covariance), task.context_length
    return components.quadratic_term(task, (1 + 1 / n) * lam**2 + lam * jnp.sum(lam) / n)


@SECTION.claim(
    "lemma-7.unique",
    "appendix A.3, step 1",
    "X_j is the unique global minimum of f_j",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=masked_layer,
    problems=(EASY, DIAGONAL),
    spaces=spaces.MASKED_DIAGONAL,
    hypotheses=diagonal,
    note="As for lemma-6.unique: any antisymmetric matrix may be added to X_j.",
)
@of_task
def unique_component_minimum(task: Task) -> Comparison:
    """The number of flat directions of f_j against zero."""
    return components.no_flat_directions(task)


@SECTION.claim(
    "lemma-7.unique",
    "appendix A.3, step 1",
    "At finite n the global minima of f_j are X_j plus any antisymmetric matrix",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=masked_layer,
    problems=(EASY, DIAGONAL),
    spaces=spaces.MASKED_DIAGONAL,
    form="corrected",
    hypotheses=of_finite_context(diagonal),
    note="C is symmetric, so f_j depends only on the symmetric part of X, which is unique.",
)
@of_task
def unique_symmetric_component_minimum(task: Task) -> Comparison:
    """The number of flat directions of f_j against that of the antisymmetric matrices, d (d+1)/2."""
    return components.antisymmetric_flat_directions(task)


@SECTION.claim(
    "lemma-7.sum",
    "appendix A.3, step 1",
    "For Sigma = diag(lambda), f(b, A) = sum_j f_j(b, A_j)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=masked_layer,
    problems=PROBLEMS,
    spaces=spaces.MASKED_DIAGONAL,
    hypotheses=diagonal,
    note="The display is that of the isotropic case. The weights E[x_query[j]^2] = lambda_j are missing, as the first "
    "display of step 2 shows; the minimum is at the same place with any positive weights.",
)
@of_task
def sum_of_components(task: Task) -> Comparison:
    """f(b, A) = sum_j f_j(b, a_j)."""
    return components.sum_of_components(task, jnp.ones(task.dimension))


@SECTION.claim(
    "lemma-7.sum",
    "appendix A.3, step 1, with the first display of step 2",
    "For Sigma = diag(lambda), f(b, A) = sum_j lambda_j f_j(b, A_j)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=masked_layer,
    problems=PROBLEMS,
    spaces=spaces.MASKED_DIAGONAL,
    form="corrected",
    hypotheses=diagonal,
    note="With the weights lambda_j, which are all 1 only for Sigma = I.",
)
@of_task
def weighted_sum_of_components(task: Task) -> Comparison:
    """f(b, A) = sum_j lambda_j f_j(b, a_j)."""
    return components.sum_of_components(task, jnp.diagonal(task.covariance))


@SECTION.claim(
    "sec-a.3.rotation",
    "appendix A.3, step 2",
    "With Sigma = U Lambda U^T, f(b, A) is the loss of covariance Lambda at [U^T 0; 0 1] b and [U^T 0; 0 1] A U",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=masked_layer,
    problems=EVERY,
    spaces=spaces.MASKED,
    note="Judged at drawn weights. In the labels the displays keep x where its rotation U^T x is meant.",
)
@of_task
def rotated(task: Task) -> Comparison:
    """f(b, A) with Sigma = U Lambda U^T against f with Lambda at [U^T 0; 0 1] b and [U^T 0; 0 1] A U."""
    values, U = jnp.linalg.eigh(task.covariance)
    eigenbasis = LinearRegression(jnp.diag(values), task.context_length)
    turn = jnp.eye(task.dimension + 1).at[:-1, :-1].set(U.T)

    def turned(model):
        return in_context_loss(eigenbasis, MaskedAttention(turn @ model.b, turn @ model.A @ U))

    return on_drawn(task, turned, MaskedAttentionLoss(task))
