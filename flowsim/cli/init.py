"""`flowsim init`: the conditions that a start meets, and predictions by formula."""

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
    """Print the conditions of theorems that a start meets or not, and what the theorems predict. Integrates nothing."""
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
    """The prompt lengths for a risk of epsilon, if a paper predicts them."""
    try:
        lengths = predicted.prompt_lengths(epsilon) if predicted and predicted.prompt_lengths else None
    except ValueError as error:
        raise ProblemError(f"--risk: {error}") from None
    if lengths is None:
        refuse("--risk", "left out where no paper says how long prompts must be", "it is given")
    return lengths


def _rows_of_least_loss(problem: Problem) -> dict[str, str]:
    """What is known about a flow for which no paper predicts anything."""
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
    """Print labels and texts in two columns. Texts may have several lines."""
    width = max(map(len, rows))
    for label, text in rows.items():
        print(f"  {label:{width}}  " + text.replace("\n", "\n" + " " * (width + 4)))


def _text(value: float | Array | str) -> str:
    """A number, or a matrix in rows; of a large one only the corners."""
    if isinstance(value, str):
        return value
    if np.ndim(value) == 0:
        return f"{float(value):.6g}"
    return np.array2string(np.asarray(value), precision=6, suppress_small=True, threshold=100, edgeitems=3)
