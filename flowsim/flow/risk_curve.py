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
    """The `risk` at every output time of a flow, (T,).

    **Arguments:**

    - trajectory: the flow.
    - task: the law of the new prompts.
    - test_length: the number of examples in each new prompt.

    **Raises:** the errors of `risk`.
    """
    check_model(trajectory.models, task)
    return jax.lax.map(risk_function(task, test_length), trajectory.models)


@dataclasses.dataclass(frozen=True)
class RiskCurve:
    """The test risk along a flow, and three constants to compare it with.

    **Fields:**

    - t, risk: (T,) the output times and the risk at each.
    - limit: the risk of the predicted limit of the flow.
    - best_linear_error: the risk of the best linear predictor.
    - zero_predictor_error: the risk of predicting zero.
    - test_length: M, the number of examples in a test prompt.
    """

    t: np.ndarray
    risk: np.ndarray
    limit: float
    best_linear_error: float
    zero_predictor_error: float
    test_length: float

    def save(self, path: str | os.PathLike) -> None:
        """Write an npz file with an array for each field, without pickle. A partial file is never visible."""
        arrays = {name: np.asarray(value) for name, value in dataclasses.asdict(self).items()}
        write_arrays(path, arrays)


def risk_curve(trajectory: Trajectory, task: LinearRegression | RandomCovarianceRegression, limit: PyTree) -> RiskCurve:
    """The risk along a flow on new prompts of a task, with the context length of the task as their length.

    **Arguments:**

    - trajectory: the flow.
    - task: the law of the new prompts.
    - limit: the model that is the predicted limit of the flow.

    **Raises:** the errors of `risk`.
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
