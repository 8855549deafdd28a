"""zhang2023's section 3.3: Assumption 3.3 on the start, which starts meet it, and why each of its parts is needed."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from flowsim.claims.claim import Comparison, at_least
from flowsim.claims.critical_points.end_points import end_constants, ends_above_the_minimum
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import Hypothesis, hypothesis
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.initialization import balanced
from flowsim.losses import LinearAttentionLoss
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.conditions import assumption_3_3
from flowsim.papers.zhang2023.limits import distance_to_limit
from flowsim.papers.zhang2023.problems import EASY, FLOWS, HARD
from flowsim.papers.zhang2023.section_5_3 import limit_constants, tends_to_limit
from flowsim.papers.zhang2023.setting import assumption, one_covariance

Loss = LinearAttentionLoss


_RANDOM_STARTS = 32


def _easy_from(name: str, **init: Any) -> dict[str, Any]:
    return {"name": name, "task": EASY["task"], "init": init}


BEYOND = _easy_from("d = 3, ten times the scale condition", kind="balanced", scale=6.7, seed=0)
UNBALANCED = _easy_from("d = 3, unbalanced", kind="unbalanced", scale=0.5, seed=0)
ALL_WEIGHTS = _easy_from(
    "d = 3, u12 and u21 not zero",
    kind="explicit",
    U11=[[0.01 / 3**0.5 * (i == j) for j in range(3)] for i in range(3)],
    u_minus1=0.01,
    u12=[0.0, 0.0, 0.1],
    u21=[0.0, 0.0, 0.1],
)
INDEFINITE = _easy_from("d = 3, balanced but indefinite", kind="balanced-indefinite", scale=0.2, seed=4)


def all_but(*left_out: str) -> Callable[[Loss, LinearAttention], list[Hypothesis]]:
    """Assumption 3.3 without the parts of these names."""

    def hypotheses(loss: Loss, start: LinearAttention) -> list[Hypothesis]:
        return [condition for condition in assumption_3_3(loss.task, start) if condition.name not in left_out]

    return hypotheses


def blocks_not_zero(loss: Loss, start: LinearAttention) -> list[Hypothesis]:
    """Assumption 3.3 with u12 = u21 = 0 replaced by its opposite."""
    size = jnp.linalg.norm(start.u12) + jnp.linalg.norm(start.u21)
    kept = all_but("u12(0) = 0", "u21(0) = 0")(loss, start)
    return [*kept, hypothesis("|u12(0)| + |u21(0)| > 0", size, ">", 0.0)]


SECTION = Section("zhang2023", LinearAttention, setting=one_covariance)


@SECTION.claim("assumption-3.3", "remark after Assumption 3.3", problems=(EASY, HARD), spaces=spaces.BALANCED)
@eqx.filter_jit
def random_thetas_meet_it(loss: Loss) -> Comparison:
    r"""If $M$ has i.i.d. entries from a continuous law, $\Theta \Theta^\top = M M^\top/\lVert M M^\top \rVert_F$ meets
    the assumption a.s.

    Judged on 32 random M; Theta Theta^T is built from M as stated.
    """
    Lambda, d = loss.task.covariance, loss.task.dimension

    def theta_lambda(key):
        shape = balanced(1.0, jax.random.normal(key, (d, d))).U11
        return jnp.sqrt(jnp.trace(Lambda @ shape @ Lambda)), jnp.linalg.norm(shape)

    values, norms = jax.vmap(theta_lambda)(jax.random.split(jax.random.key(2), _RANDOM_STARTS))
    comparison = at_least(values, 0.0, size=jnp.linalg.norm(Lambda))
    # A norm other than 1 breaks the assumption just as Theta Lambda = 0 does.
    broken = jnp.abs(norms - 1) > 1e-12
    return eqx.tree_at(lambda c: c.slack, comparison, jnp.where(broken, -comparison.size, comparison.slack))


@SECTION.claim(
    "assumption-3.3.nonzero",
    "Assumption 3.3",
    form="corrected",
    hypotheses=all_but("Theta Lambda != 0"),
    problems=FLOWS,
    spaces=spaces.BALANCED,
)
@eqx.filter_jit
def theta_lambda_follows(loss: Loss, start: PyTree) -> Comparison:
    r"""$\Theta \Lambda \ne 0$ follows from $\lVert \Theta \Theta^\top \rVert_F = 1$ and $\Lambda \succ 0$: $\lVert
    \Theta \Lambda \rVert_F \ge \lambda_{\min}$

    The part Theta Lambda != 0 of the assumption follows from the others, so it is not needed.
    """
    Lambda = loss.task.covariance
    value, least = jnp.sqrt(jnp.trace(Lambda @ Lambda @ start.U11) / start.u_minus1), jnp.linalg.eigvalsh(Lambda)[:1]
    positive = at_least(value[None], 0.0, size=least)
    return joined([positive, at_least(value[None], least, promised=loss.task.dimension > 1)])


@SECTION.claim(
    "assumption-3.3.balance",
    "Assumption 3.3 with (5.9)",
    form="corrected",
    hypotheses=all_but("|Theta Theta^T|_F = 1"),
    problems=(UNBALANCED, *FLOWS),
    spaces=spaces.UNBALANCED + spaces.BALANCED,
)
def limit_without_balance(loss: Loss, flow: Trajectory) -> Comparison:
    r"""Without $\lVert \Theta \Theta^\top \rVert_F = 1$: $u_{-1}^2 \to \bigl(c + \sqrt{c^2 + 4 \lVert \Gamma^{-1}
    \rVert_F^2}\bigr)/2$, $u_{-1} U_{11} \to \Gamma^{-1}$

    Balance is needed for the limit (5.9) itself, not for global convergence: with the conserved c = u_{-1}(0)^2 -
    |U11(0)|_F^2 the flow ends elsewhere on the same set of minima; c = 0 gives (5.9).
    """
    c = loss.conserved(flow.start)
    inverse = jnp.linalg.inv(loss.task.gamma())
    u = jnp.sqrt((c + jnp.sqrt(c**2 + 4 * jnp.sum(inverse**2))) / 2)
    return distance_to_limit(loss, flow, LinearAttention(inverse / u, u))


@SECTION.claim(
    "assumption-3.3.semidefinite",
    "Assumption 3.3 with (5.9)",
    form="corrected",
    hypotheses=all_but("Theta Theta^T semidefinite", "Theta Lambda != 0"),
    problems=(INDEFINITE,),
    spaces=spaces.INDEFINITE,
)
def without_semidefiniteness(loss: Loss, flow: Trajectory) -> Comparison:
    r"""Without $\Theta \Theta^\top \succeq 0$, from a symmetric balanced start with $u_{-1}(0) > 0$, the flow tends to
    (5.9)

    Semidefiniteness makes the loss negative at the start, and so keeps the flow off the saddle at 0. An indefinite
    start also reaches (5.9) unless it lies on the saddle's stable set, as U11(0) = -u_{-1}(0) I/sqrt(d) does when
    Lambda is a multiple of I.
    """
    return tends_to_limit(loss, flow)


@SECTION.claim(
    "assumption-3.3.zero-blocks",
    "Assumption 3.3 with Theorem 4.1",
    form="corrected",
    hypotheses=blocks_not_zero,
    problems=(ALL_WEIGHTS,),
    spaces=spaces.ALL_WEIGHTS,
    constants=end_constants,
)
def without_zero_blocks(loss: Loss, flow: Trajectory) -> Comparison:
    """Without $u_{12}(0) = u_{21}(0) = 0$ the flow can end at another local minimum, above the global one

    An example that meets every other part shows what the zero blocks are needed for; a flow that reaches the global
    minimum says nothing about this. At the end of this flow no eigenvalue of the Hessian is negative, and one is zero,
    that of the rescaling.
    """
    return ends_above_the_minimum(loss, flow)


@SECTION.claim(
    "assumption-3.3.scale",
    "Theorem 4.1 without its scale condition",
    form="corrected",
    hypotheses=assumption,
    problems=(BEYOND, *FLOWS),
    spaces=spaces.BALANCED,
    constants=limit_constants,
)
def without_the_scale_condition(loss: Loss, flow: Trajectory) -> Comparison:
    r"""From Assumption 3.3 alone, at any $\sigma > 0$, the flow tends to (5.9)

    The condition on sigma is sufficient, not necessary: for a semidefinite start the diagonal of U11 in the eigenbasis
    stays nonnegative and u_{-1} positive whatever sigma is.
    """
    return tends_to_limit(loss, flow)
