"""zhang2023's section 4.1, where training ends: Theorem 4.1, the remark after it, (4.2), and Corollary 4.3's limit."""

import equinox as eqx
import jax.numpy as jnp

from flowsim.claims.claim import Comparison, equal
from flowsim.claims.declaring import Section
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.conditions import limit
from flowsim.papers.zhang2023.limits import distance_to_limit
from flowsim.papers.zhang2023.minima import limit_is_a_minimum
from flowsim.papers.zhang2023.problems import ALL_LENGTHS, FLOWS, ISOTROPIC, STILL_ONE
from flowsim.papers.zhang2023.prompts import DRAWN_LENGTHS, drawn_prompts, predicted
from flowsim.papers.zhang2023.section_3_3 import BEYOND
from flowsim.papers.zhang2023.section_5_3 import limit_constants
from flowsim.papers.zhang2023.setting import assumption, assumption_and_scale, isotropic, one_covariance
from flowsim.tasks import LinearRegression

SECTION = Section("zhang2023", LinearAttention, setting=one_covariance)


@SECTION.claim(
    "corollary-4.3.convergence",
    "Corollary 4.3, first sentence",
    hypotheses=assumption,
    problems=(BEYOND, *FLOWS),
    spaces=spaces.BALANCED,
    constants=limit_constants,
)
def tends_to_matrices(loss: LinearAttentionLoss, flow: Trajectory) -> Comparison:
    r"""From Assumption 3.3, with no condition on $\sigma$, gradient flow converges to the $W^{PV}$ and $W^{KQ}$ of
    (4.1)

    Theorem 4.1, from which the corollary follows, has the condition sigma^2 |Gamma|_op sqrt(d) < 2. It is not needed:
    see assumption-3.3.scale.
    """
    inverse = jnp.linalg.inv(loss.task.gamma())
    fourth_root = jnp.trace(inverse @ inverse) ** 0.25
    return distance_to_limit(loss, flow, LinearAttention(inverse / fourth_root, fourth_root))


@SECTION.claim(
    "theorem-4.1",
    "Theorem 4.1",
    hypotheses=assumption_and_scale,
    problems=FLOWS,
    spaces=spaces.BALANCED,
    constants=limit_constants,
)
def tends_to_global_minimum_of_matrices(loss: LinearAttentionLoss, flow: Trajectory) -> Comparison:
    r"""Under Assumption 3.3 and $\sigma^2 \lVert \Gamma \rVert_{\mathrm{op}} \sqrt{d} < 2$, $W^{PV}$ and $W^{KQ}$ tend
    to (4.1), a global minimum

    To judge that the limit is a global minimum, the loss there is compared with the minimum by normal equations, with
    E[Lambdahat^2] by cubature.
    """
    return joined([tends_to_matrices.compare(loss, flow), limit_is_a_minimum(loss, flow)])


@SECTION.claim(
    "sec-4.1.isotropic",
    "remark after Theorem 4.1",
    hypotheses=isotropic,
    problems=(ISOTROPIC, STILL_ONE),
    spaces=spaces.PANEL,
)
@eqx.filter_jit
def isotropic_limit(task: LinearRegression) -> Comparison:
    r"""For $\Lambda = I$ the limit has $u_{-1} U_{11} = \bigl(1 + (d + 1)/N\bigr)^{-1} I$

    For Lambda = lambda I the product is 1/lambda times this.
    """
    model, d = limit(task), task.dimension
    expected = jnp.eye(d) / (1 + (d + 1) / task.context_length) / task.covariance[0, 0]
    return equal(jnp.linalg.norm(model.u_minus1 * model.U11 - expected)[None], 0.0, jnp.linalg.norm(expected))


@SECTION.claim("eq-4.2", "(4.2)", problems=ALL_LENGTHS, spaces=spaces.STILL + spaces.STILL_INFINITE)
@eqx.filter_jit
def prediction(task: LinearRegression) -> Comparison:
    r"""At (4.1) the prediction is $\hat y = x_{\mathrm{query}}^\top \Gamma^{-1} \bigl(\tfrac{1}{M} \sum x_i
    x_i^\top\bigr) w$, for every prompt and $M$

    Judged on the literal model with 12 prompts for each of M = 1 and M = 7, and w of size 1e-2 to 1e2.
    """

    def formula(queries, means, inverse):
        return jnp.einsum("pd,de,pe->p", queries, inverse, means)

    return joined([predicted(task, *drawn_prompts(task, length), formula) for length in DRAWN_LENGTHS])
