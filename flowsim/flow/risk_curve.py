"""The risk on new prompts along a flow."""

import dataclasses
import os

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowsim._core.files import write_arrays
from flowsim.flow.trajectory import Trajectory
from flowsim.losses.prompt_risk import Task, best_linear_error, check_model, risk, risk_function, zero_predictor_error
from flowsim.tasks import LinearRegression, RandomCovarianceRegression


def risk_along(trajectory: Trajectory, task: Task, test_length: ArrayLike) -> Float[Array, " T"]:
    """`risk` at every output time of a flow: (T,), the test risk against flow time.

    **Raises:** as `risk`.
    """
    check_model(trajectory.models, task)
    return jax.lax.map(risk_function(task, test_length), trajectory.models)


@dataclasses.dataclass(frozen=True)
class RiskCurve:
    """Test risk against flow time, and the levels to read it against.

    t, risk: (T,); limit: the risk of the limit; best_linear_error: of the best linear predictor;
    zero_predictor_error: of predicting zero; test_length: M.
    """

    t: np.ndarray
    risk: np.ndarray
    limit: float
    best_linear_error: float
    zero_predictor_error: float
    test_length: float

    def save(self, path: str | os.PathLike) -> None:
        """Write an npz file (no pickle), whole or not at all, each number under its own name."""
        arrays = {name: np.asarray(value) for name, value in dataclasses.asdict(self).items()}
        write_arrays(path, arrays)


def risk_curve(trajectory: Trajectory, task: LinearRegression | RandomCovarianceRegression, limit: PyTree) -> RiskCurve:
    """`risk` along a flow on prompts of a task, with its own context_length as the test length.

    **Arguments:** limit: the model that the flow is predicted to tend to.

    **Raises:** as `risk`.
    """
    M = task.context_length
    return RiskCurve(
        t=np.asarray(trajectory.t),
        risk=np.asarray(risk_along(trajectory, task, M)),
        limit=float(risk(limit, task, M)),
        best_linear_error=float(best_linear_error(task)),
        zero_predictor_error=float(zero_predictor_error(task)),
        test_length=float(M),
    )
