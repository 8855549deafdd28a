"""`flowsim init`: which conditions of theorems a start meets, and what the theorems predict by formula."""

import pathlib
from collections.abc import Mapping, Sequence

import equinox as eqx
import numpy as np
from jaxtyping import Array

from flowsim._core.checks import ProblemError, refuse
from flowsim._core.documents import plain, versions
from flowsim._core.types import Document
from flowsim.cli.common import FINISHED, print_json, read
from flowsim.papers import constants_of, limits_of, predictions_of
from flowsim.papers.paper import Predictions, PromptLengths
from flowsim.problem import Problem


def init(path: pathlib.Path, *, overrides: Sequence[str], epsilon: float, risk: float | None, as_json: bool) -> int:
    """Print which conditions of theorems the start meets, and what the theorems predict. Nothing is integrated.

    **Arguments:**

    - path, overrides: the problem, as for `flowsim.cli.common.read`.
    - epsilon: the excess loss for which the guaranteed time is printed.
    - risk: the risk for which the needed prompt lengths are printed; None without them.
    - as_json: whether to print JSON.

    **Returns:** the exit status.
    """
    if not epsilon > 0:
        refuse("--epsilon", "positive", f"it is {epsilon:g}")
    problem = read(path, overrides)
    predicted = predictions_of(problem)
    lengths = None if risk is None else _prompt_lengths(problem, predicted, risk)
    if as_json:
        print_json(plain(_document(problem, predicted, epsilon, lengths)))
    elif predicted is None:
        print("What is known before anything is integrated")
        _print_rows(_rows_of_least_loss(problem))
    else:
        print(predicted.heading)
        width = max(len(condition.name) for condition in predicted.conditions)
        for condition in predicted.conditions:
            met = "met    " if condition.met else "not met"
            print(
                f"  {met}  {condition.name:{width}}  {condition.value:.6g} {condition.relation} {condition.bound:.6g}"
            )
        print(f"What follows ({predicted.paper})")
        time = {f"time guaranteed for an excess of {epsilon:g}": predicted.guaranteed_time(epsilon)}
        rows = dict(predicted.facts) | time | ({} if lengths is None else lengths.facts())
        _print_rows({label: _text(value) for label, value in rows.items()})
    return FINISHED


def _document(
    problem: Problem, predicted: Predictions | None, epsilon: float, lengths: PromptLengths | None
) -> Document:
    shared = {"problem": problem.spec, "versions": versions(), "limits": limits_of(problem), "prompt_lengths": lengths}
    constants = constants_of(problem)
    if predicted is None:
        value, excess = _at_the_start(problem)
        found = {"hypotheses": [], "constants": constants | {"loss": value, "excess": excess}, "guaranteed_time": None}
        return shared | found
    return shared | {
        "hypotheses": predicted.conditions,
        **predicted.coefficients,
        "constants": constants | {"excess": predicted.excess},
        "guaranteed_time": {"epsilon": epsilon, "t": predicted.guaranteed_time(epsilon)},
    }


def _prompt_lengths(problem: Problem, predicted: Predictions | None, epsilon: float) -> PromptLengths:
    """Return the prompt lengths with which the trained model has risk ``epsilon``, as a paper predicts them.

    **Raises:** `ProblemError` if no paper predicts them, or if the risk is out of range.
    """
    try:
        lengths = predicted.prompt_lengths(epsilon) if predicted and predicted.prompt_lengths else None
    except ValueError as error:
        raise ProblemError(f"--risk: {error}") from None
    if lengths is None:
        refuse("--risk", "left out where no paper says how long prompts must be", "it is given")
    return lengths


def _rows_of_least_loss(problem: Problem) -> dict[str, str]:
    """The rows for a problem about which no paper predicts anything: the loss and excess at the start, and the
    least known loss with the limits of weights.
    """
    value, excess = _at_the_start(problem)
    return (
        {"loss at the start": f"{value:.10g}", "excess at the start": f"{excess:.10g}"}
        | {f"least known loss ({problem.loss.minimum_kind})": f"{float(problem.loss.minimum):.10g}"}
        | {f"{name} there": _text(weight) for name, weight in limits_of(problem).items()}
    )


def _at_the_start(problem: Problem) -> tuple[float, float]:
    loss = problem.prepared().loss
    return float(eqx.filter_jit(loss)(problem.start)), float(eqx.filter_jit(loss.excess)(problem.start))


def _print_rows(rows: Mapping[str, str]) -> None:
    """Print labels and texts in two columns. A text may have several lines."""
    width = max(map(len, rows))
    for label, text in rows.items():
        print(f"  {label:{width}}  " + text.replace("\n", "\n" + " " * (width + 4)))


def _text(value: float | Array | str) -> str:
    """Format a number, or a matrix in rows. A matrix of more than 100 entries is abbreviated to its corners."""
    if isinstance(value, str):
        return value
    if np.ndim(value) == 0:
        return f"{float(value):.6g}"
    return np.array2string(np.asarray(value), precision=6, suppress_small=True, threshold=100, edgeitems=3)
