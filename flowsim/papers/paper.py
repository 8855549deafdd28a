"""The type of a paper: its claims, the models that it covers, and its predictions for a start."""

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
    """A rate of exponential decay of the excess L - min L, as a paper states it.

    value: the rate, positive only if the paper guarantees a decay. symbol: the paper's letter for the rate, in TeX.
    source: where the paper states it.
    """

    value: float
    symbol: str
    source: str


@dataclasses.dataclass(frozen=True)
class ScaleBound:
    """The scale of a start, and the bound below which the paper guarantees a rate of decay.

    condition: the condition in words and TeX, without the value of the bound. rates: a function of an array of
    scales. For each scale it returns the rate of decay that the paper guarantees for the start rescaled to this
    scale.
    """

    scale: float
    bound: float
    condition: str
    rates: Callable[[Series], Series]


@runtime_checkable
class PromptLengths(Protocol):
    """The interface of a dataclass that holds the prompt lengths sufficient for a given risk."""

    def facts(self) -> dict[str, str]:
        """The lengths as text, each under a label that names the paper's statement."""
        ...


@dataclasses.dataclass(frozen=True)
class Predictions:
    """A paper's predictions for the flow from a given start. A formula without a real value gives NaN.

    - paper: the id of the paper.
    - heading: a title for the conditions.
    - conditions: the paper's conditions on the start.
    - coefficients: the coefficients of the flow that depend on the law of the prompts, by name.
    - constants: the values of the paper's constants, by name.
    - limits, limit: the limits of the weights, by name, and the model in the limit.
    - excess: the excess L - min L at the start.
    - rate: the rate of decay of the excess that the paper guarantees.
    - local_rate: the rate of decay of the excess near the limit.
    - scale_bound: the bound on the scale of the start.
    - facts: the numbers predicted from the start, each under a label that names its equation.
    - promised: the bounds, rates and limits in `facts` as text for a page, each under a label.
    - curves: the figures that compare a run with the predictions, by name. In these figures the limit is the model
      with the least known loss.
    - captions: the captions of the other figures of a run, by name.
    - prompt_lengths: a function that maps a risk to the prompt lengths that suffice for this risk.
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
        """The time after which the excess is at most epsilon at the guaranteed rate: log(excess/epsilon)/rate.

        It is zero if the excess at the start is already at most epsilon, and infinite if the rate is not positive.

        **Raises:** `ValueError` unless epsilon is positive.
        """
        if not epsilon > 0:
            checks.refuse("epsilon", "positive", f"it is {epsilon}")
        if self.excess <= epsilon:
            return 0.0
        return math.log(self.excess / epsilon) / self.rate.value if self.rate.value > 0 else math.inf


@dataclasses.dataclass(frozen=True)
class Paper:
    """A paper with its claims.

    - id: the first part of the ids of its claims.
    - models: the classes of models that the paper covers.
    - claims: the paper's statements, printed and corrected.
    - predictions: a function of a problem that gives the predictions for its flow, or None.
    - mapped: the claims that every sweep judges, grouped by the name that their margins have in a map. Claims under
      one name are about different losses.
    - columns: a function of a loss and a trajectory that returns scalars to add to a map, by name. It is pure JAX,
      and returns the same names for every loss.
    - out_of_reach: the statements without a claim, and why they have none, in lines of Markdown.
    """

    id: str
    authors: str
    year: int
    title: str
    arxiv: str
    models: tuple[type[eqx.Module], ...]
    claims: tuple[Claim, ...]
    predictions: Callable[[Problem], Predictions | None] = lambda problem: None
    mapped: Mapping[str, tuple[Claim, ...]] = dataclasses.field(default_factory=dict)
    columns: Callable[[Any, Trajectory], dict[str, Array]] = lambda loss, run: {}
    out_of_reach: str = ""

    def speaks_of(self, model: PyTree) -> bool:
        """Whether the paper covers the class of a model."""
        return isinstance(model, self.models)
