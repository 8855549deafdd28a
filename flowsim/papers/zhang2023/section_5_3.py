"""zhang2023's section 5.3, Lemma 5.4: the PL inequality (5.8), the rate that follows, and the limit (5.9)."""

import jax.numpy as jnp
from jaxtyping import Array

from flowsim.claims.claim import Comparison
from flowsim.claims.declaring import Section
from flowsim.claims.rates import decayed, exponential_envelope
from flowsim.claims.statements import joined, polyak_lojasiewicz, sharp_constant
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss
from flowsim.losses.arrowhead import local_rate
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.conditions import limit, pl_constant
from flowsim.papers.zhang2023.limits import distance_to_limit
from flowsim.papers.zhang2023.minima import limit_is_a_minimum
from flowsim.papers.zhang2023.problems import FLOWS
from flowsim.papers.zhang2023.setting import assumption_and_scale, one_covariance

Loss = LinearAttentionLoss


def _mu(loss: Loss, trajectory: Trajectory) -> Array:
    return pl_constant(loss.task, trajectory.start)


def pl_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """mu of (5.7) and the largest mu that holds along the flow."""
    return {"mu": _mu(loss, trajectory), "sharp_mu": sharp_constant(trajectory)}


SECTION = Section(
    "zhang2023",
    LinearAttention,
    setting=one_covariance,
    hypotheses=assumption_and_scale,
    problems=FLOWS,
    spaces=spaces.BALANCED,
)


@SECTION.claim("lemma-5.4.pl", "Lemma 5.4, (5.8)", constants=pl_constants)
def pl(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\lVert \nabla \ell \rVert^2 \ge \mu (\ell - \min \ell)$ for all $t$, with $\mu$ of (5.7)"""
    return polyak_lojasiewicz(flow, _mu(loss, flow))


def rate_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """mu of (5.7), the largest rate with which the bound holds, and the local rate at the limit."""
    elapsed = jnp.where(trajectory.t > 0, trajectory.t, 1.0)
    rates = jnp.where(trajectory.t > 0, decayed(trajectory) / elapsed, jnp.inf)
    return {
        "mu": _mu(loss, trajectory),
        "sharp_mu": jnp.min(jnp.where(jnp.isfinite(rates), rates, jnp.inf)),
        "local_rate": local_rate(loss.structure),
    }


@SECTION.claim("lemma-5.4.rate", "proof of Lemma 5.4", constants=rate_constants)
def rate(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\ell(t) - \min \ell \le e^{-\mu t} \bigl(\ell(0) - \min \ell\bigr)$, with $\mu$ of (5.7)"""
    return exponential_envelope(flow, _mu(loss, flow))


def tends_to_limit(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The limit and the end of the flow against (5.9)."""
    inverse = jnp.linalg.inv(loss.task.gamma())
    u = jnp.sqrt(jnp.linalg.norm(inverse))
    return distance_to_limit(loss, trajectory, LinearAttention(inverse / u, u))


def limit_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """u_{-1} at the limit (5.9) and at the end of the flow."""
    return {"u_limit": limit(loss.task).u_minus1, "u_end": trajectory.end.u_minus1}


@SECTION.claim("lemma-5.4.limit", "Lemma 5.4, (5.9)", constants=limit_constants)
def tends_to_global_minimum(loss: Loss, flow: Trajectory) -> Comparison:
    r"""The flow tends to the global minimum: $u_{-1} \to \lVert \Gamma^{-1} \rVert_F^{1/2}$, $U_{11} \to \lVert
    \Gamma^{-1} \rVert_F^{-1/2} \Gamma^{-1}$
    """
    return joined([tends_to_limit(loss, flow), limit_is_a_minimum(loss, flow)])
