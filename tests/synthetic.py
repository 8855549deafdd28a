"""A small trajectory with round numbers, for the tests of what is drawn and written rather than computed."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from flowsim.flow.trajectory import Certificates, Settings, Status, Trajectory
from flowsim.models import LinearAttention
from flowsim.papers.paper import Predictions
from flowsim.papers.zhang2023.predictions import FIXED, PredictedNumbers

TIMES = np.array([0.0, 0.01, 0.1, 1.0, 10.0])


def trajectory(
    t: np.ndarray = TIMES,
    *,
    excess: np.ndarray | None = None,
    balance_drift: float | None = 1e-13,
    status: Status = Status.EXCESS,
) -> Trajectory:
    """Excess 2 e^{-t} above a minimum of 1, |grad|^2 = 2 (1 + t) e^{-t}, u_{-1} = 3 - 2 e^{-t}.

    U11 = u_{-1} I / sqrt(2) is balanced.
    """
    decay = np.exp(-t)
    u = 3 - 2 * decay
    models = eqx.tree_at(
        lambda model: (model.U11, model.u_minus1, model.u12, model.u21),
        LinearAttention(jnp.eye(2), 1.0),
        (
            jnp.asarray(u[:, None, None] * np.eye(2) / np.sqrt(2)),
            jnp.asarray(u),
            jnp.zeros((t.size, 2)),
            jnp.zeros((t.size, 2)),
        ),
    )
    return Trajectory(
        t=jnp.asarray(t),
        models=models,
        loss=jnp.asarray(1 + 2 * decay),
        excess=jnp.asarray(2 * decay if excess is None else excess),
        grad_norm_sq=jnp.asarray(2 * (1 + t) * decay),
        # One part in 10^6 short of the decrease in loss.
        dissipated=jnp.asarray((1 - 1e-6) * 2 * (1 - decay)),
        certificates=Certificates(energy_defect=1e-6, balance_drift=balance_drift, steps=50, rejected_steps=2),
        settings=Settings(solver="arrowhead", rtol=1e-9, atol=1e-12),
        status=status,
    )


def predictions(*, mu: float = 0.25, scale_bound: float = 4.0) -> Predictions:
    """mu below the smallest ratio of the trajectory, a limit at its end."""
    constants = {
        "mu": mu,
        "u_lower_bound": 0.5 if mu > 0 else float("nan"),
        "local_rate": 1.0,
        "scale_bound": scale_bound,
    }
    return PredictedNumbers(1.0, constants, LinearAttention(3 * jnp.eye(2) / np.sqrt(2), 3.0), 2.0, FIXED).predictions(
        (), {}, None
    )
