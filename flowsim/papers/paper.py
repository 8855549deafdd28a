"""The parts of every paper: its sections with their claims, the models it covers, and what it predicts for a start."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
from jaxtyping import Array, PyTree

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.claims import Claim, Hypothesis
from flowsim.flow.trajectory import Trajectory
from flowsim.problem import Problem
from flowsim.problem.architecture import Curve, Series


@dataclasses.dataclass(frozen=True)
class Rate:
    """A rate at which the excess decays, with the paper's letter for it in TeX and where the paper states it. It is not
    positive where nothing is promised.
    """

    value: float
    symbol: str
    source: str


@dataclasses.dataclass(frozen=True)
class ScaleBound:
    """The scale of a start, and what it must be below for a rate to be promised.

    condition: as text with TeX, without the number; rates: scales -> the rates promised of the same start at these.
    """

    scale: float
    bound: float
    condition: str
    rates: Callable[[Series], Series]


@runtime_checkable
class PromptLengths(Protocol):
    """A dataclass of how long prompts must be for a risk."""

    def facts(self) -> dict[str, str]:
        """The lengths, by a label that names the statement."""
        ...


@dataclasses.dataclass(frozen=True)
class Predictions:
    """What a paper says about a flow, given its start; NaN where a formula has no real value.

    paper: its id; heading: the name of its conditions; conditions: what it requires of the start; coefficients: the
    coefficients through which the law of the prompts enters the flow, by name; constants: the paper's constants here,
    by name; limits: the weights that the flow tends to, by name; limit: the model that it tends to; excess: the excess
    at the start; rate: the promised decay of the excess; local_rate: that at the limit; scale_bound: of the start;
    facts: what follows from the start, by a label that names the equation; promised: the same for a page, as text;
    curves: figures by name, whose model of least known loss is the limit; captions: of the other figures of a run, by
    name; prompt_lengths: risk -> how long prompts must be for it, a dataclass.
    """

    paper: str
    heading: str
    conditions: tuple[Hypothesis, ...]
    coefficients: Mapping[str, Array]
    constants: Mapping[str, float]
    limits: Mapping[str, Array]
    limit: PyTree
    excess: float
    rate: Rate
    local_rate: Rate
    scale_bound: ScaleBound
    facts: Mapping[str, Scalar | float | Array]
    promised: Mapping[str, str]
    curves: Mapping[str, Curve]
    captions: Mapping[str, str]
    prompt_lengths: Callable[[float], PromptLengths] | None

    def guaranteed_time(self, epsilon: float) -> float:
        """The time after which the promised rate brings the excess to at most epsilon, log(excess/epsilon)/rate;
        infinite where the rate is not positive.

        **Raises:** `ValueError` unless epsilon is positive.
        """
        if not epsilon > 0:
            checks.refuse("epsilon", "positive", f"it is {epsilon}")
        if self.excess <= epsilon:
            return 0.0
        return math.log(self.excess / epsilon) / self.rate.value if self.rate.value > 0 else math.inf


def _nothing(problem: Problem) -> None:
    return None


def _no_columns(loss: object, run: Trajectory) -> dict[str, Array]:
    return {}


@dataclasses.dataclass(frozen=True)
class Paper:
    """A paper with its claims.

    id: the first part of the ids of its claims; models: the classes of models that it covers; claims: its statements,
    printed and corrected; predictions: problem -> what it says about the flow, None where it says nothing; mapped: the
    claims that every sweep looks at, by what their margins are called in a map, those of one name about different
    losses; columns: (loss, trajectory) -> further numbers for maps by name, pure JAX, the same names for any loss;
    out_of_reach: which of its statements have no claim, and why, in lines of Markdown.
    """

    id: str
    authors: str
    year: int
    title: str
    arxiv: str
    models: tuple[type[eqx.Module], ...]
    claims: tuple[Claim, ...]
    predictions: Callable[[Problem], Predictions | None] = _nothing
    mapped: Mapping[str, tuple[Claim, ...]] = dataclasses.field(default_factory=dict)
    columns: Callable[[Any, Trajectory], dict[str, Array]] = _no_columns
    out_of_reach: str = ""

    def speaks_of(self, model: PyTree) -> bool:
        """Whether any of its statements may be about such a model."""
        return isinstance(model, self.models)
