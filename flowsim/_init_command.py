"""`flowsim init`: which conditions a start meets, and what follows from it by formula."""

import json
import pathlib
from collections.abc import Mapping, Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim import initialization
from flowsim._commands import FINISHED, read
from flowsim._toml import refuse
from flowsim.covariance_laws import DiagonalLaw
from flowsim.losses import RandomCovarianceLoss
from flowsim.problem import Problem, ProblemError
from flowsim.report import plain, versions
from flowsim.risk_bounds import PromptLengths, prompt_lengths
from flowsim.tasks import LinearRegression, RandomCovarianceRegression, SpectralRegression


def init(path: pathlib.Path, overrides: Sequence[str], epsilon: float, risk: float | None, as_json: bool) -> int:
    """Print the conditions that a start meets or not, and what follows from it. Integrates nothing."""
    if not epsilon > 0:
        refuse("--epsilon", "positive", f"it is {epsilon:g}")
    problem = read(path, overrides)
    promised = problem.predictions
    if promised is None or isinstance(problem.task, SpectralRegression):
        return _other_model(problem, risk, as_json)
    task, start = problem.task, problem.start
    conditions = initialization.assumption_3_3(task, start)
    if isinstance(task, LinearRegression):
        conditions.append(initialization.scale_condition(task, start))
    elif isinstance(problem.loss, RandomCovarianceLoss) and isinstance(task.law, DiagonalLaw):
        conditions.append(initialization.random_scale_condition(problem.loss, start))
    coefficients = _coefficients(problem)
    time = promised.guaranteed_time(epsilon)
    lengths = None if risk is None else _prompt_lengths(task, risk)
    if as_json:
        document = {
            "problem": problem.spec,
            "versions": versions(),
            "hypotheses": conditions,
            **coefficients,
            "constants": promised.constants() | {"excess": promised.excess},
            "limits": problem.limits,
            "guaranteed_time": {"epsilon": epsilon, "t": time},
            "prompt_lengths": lengths,
        }
        print(json.dumps(plain(document), indent=1))
        return FINISHED
    equations = promised.equations
    print(f"Assumption 3.3 and the scale condition, {equations.scale_bound}")
    width = max(len(condition.name) for condition in conditions)
    for condition in conditions:
        met = "met    " if condition.met else "not met"
        print(f"  {met}  {condition.name:{width}}  {condition.value:.6g} {condition.relation} {condition.bound:.6g}")
    print("What follows (zhang2023)")
    rows = {
        **{name: _matrix(value) for name, value in coefficients.items()},
        f"sigma must be below, {equations.scale_bound}": f"{promised.scale_bound:.6g}",
        f"{equations.rate_symbol} {equations.mu}": f"{promised.mu:.6g}",
        f"lower bound of u_minus1 {equations.u_lower_bound}": f"{promised.u_lower_bound:.6g}",
        f"limit of u_minus1 {equations.limit}": f"{float(promised.limit.u_minus1):.10g}",
        f"limit of U11 {equations.limit}": _matrix(promised.limit.U11),
        "excess at the start": f"{promised.excess:.6g}",
        f"time guaranteed for an excess of {epsilon:g}": f"{time:.6g}",
        "local rate of the excess at the minimum": f"{promised.local_rate:.6g}",
    }
    if lengths is not None:
        rows |= {
            f"M, N that suffice for a risk of {risk:g} (Corollary 4.3)": (
                f"{lengths.sufficient_test_length:.0f}, {lengths.sufficient_context_length:.0f}"
            ),
            f"smallest M at N = {lengths.context_length:.0f}": str(lengths.test_length),
            "smallest N with M infinite": str(lengths.smallest_context_length),
        }
    _print_rows(rows)
    return FINISHED


def _other_model(problem: Problem, risk: float | None, as_json: bool) -> int:
    """The same of a model that zhang2023 does not speak of."""
    if risk is not None:
        refuse("--risk", 'left out unless architecture = "linear-attention"', "it is given")
    loss, start = problem.loss, problem.start
    value, excess = (float(eqx.filter_jit(function)(start)) for function in (loss, loss.excess))
    if as_json:
        document = {
            "problem": problem.spec,
            "versions": versions(),
            "hypotheses": [],
            "constants": problem.constants | {"loss": value, "excess": excess},
            "limits": problem.limits,
            "guaranteed_time": None,
            "prompt_lengths": None,
        }
        print(json.dumps(plain(document), indent=1))
        return FINISHED
    print("What is known before anything is integrated")
    _print_rows(
        {"loss at the start": f"{value:.10g}", "excess at the start": f"{excess:.10g}"}
        | {f"least loss that is known ({loss.minimum_kind})": f"{float(loss.minimum):.10g}"}
        | {f"{name} there": _matrix(weight) for name, weight in problem.limits.items()}
    )
    return FINISHED


def _print_rows(rows: Mapping[str, str]) -> None:
    """Labels and texts, which may have several lines, in two columns."""
    width = max(map(len, rows))
    for label, text in rows.items():
        print(f"  {label:{width}}  " + text.replace("\n", "\n" + " " * (width + 4)))


def _prompt_lengths(task: LinearRegression | RandomCovarianceRegression, epsilon: float) -> PromptLengths:
    """Corollary 4.3 at the sufficient N."""
    if not isinstance(task, LinearRegression):
        refuse("--risk", "left out where covariances are random", "it is given")
    try:
        return prompt_lengths(task.covariance, epsilon)
    except ValueError as error:
        raise ProblemError(f"--risk: {error}") from None


def _coefficients(problem: Problem) -> dict[str, Array]:
    """What the covariances enter the flow by: Gamma, or gamma_i, xi_i and zeta_ij of (C.3)."""
    if isinstance(problem.task, LinearRegression):
        return {"gamma": problem.task.gamma()}
    if not (isinstance(problem.loss, RandomCovarianceLoss) and isinstance(problem.loss.task.law, DiagonalLaw)):
        return {}
    zeta, xi = problem.loss.structure.curvature, problem.loss.structure.drive
    return {"gamma": jnp.diagonal(zeta), "xi": xi, "zeta": zeta}


def _matrix(matrix: Float[Array, "..."]) -> str:
    """A matrix in rows; the corners of a large one."""
    return np.array2string(np.asarray(matrix), precision=6, suppress_small=True, threshold=100, edgeitems=3)
