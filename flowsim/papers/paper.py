"""The parts of every paper: its sections with their claims, the models it covers, and what it promises for a start."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, PyTree

from flowsim._core.types import Scalar
from flowsim.claims import Claim, Hypothesis
from flowsim.problem import Problem


class AbstractPromises(abc.ABC):
    """What a paper says about a flow, given its start, before anything is integrated.

    paper: its id; heading: the name of its conditions; conditions: what it requires of the start; coefficients: the
    coefficients through which the law of the prompts enters the flow, by name; limit: the model that the flow tends
    to; excess: the excess at the start.
    """

    paper: ClassVar[str]
    heading: str
    conditions: tuple[Hypothesis, ...]
    coefficients: Mapping[str, Array]
    limit: PyTree
    excess: float

    @abc.abstractmethod
    def constants(self) -> dict[str, float]:
        """The paper's constants here, by name."""

    @abc.abstractmethod
    def limits(self) -> dict[str, Array]:
        """The weights that the flow tends to, by name."""

    @abc.abstractmethod
    def guaranteed_time(self, epsilon: float) -> float:
        """The time after which the paper guarantees an excess of at most epsilon."""

    @abc.abstractmethod
    def prompt_lengths(self, task: Any, epsilon: float) -> Any:
        """How long prompts must be for a risk of epsilon, as an object with ``facts()``; None where it does not say.

        **Raises:** `ValueError` where no length is long enough.
        """

    @abc.abstractmethod
    def facts(self) -> dict[str, Scalar | float | Array | str]:
        """What follows from the start, by a label that names the equation."""


def _nothing(problem: Problem) -> None:
    return None


@dataclasses.dataclass(frozen=True)
class Paper:
    """A paper with its claims.

    id: the first part of the ids of its claims; models: the classes of models that it covers; claims: its statements,
    printed and corrected; promises: problem -> what it says about the flow, None where it says nothing.
    """

    id: str
    authors: str
    year: int
    title: str
    arxiv: str
    models: tuple[type[eqx.Module], ...]
    claims: tuple[Claim, ...]
    promises: Callable[[Problem], Any] = _nothing

    def speaks_of(self, model: PyTree) -> bool:
        """Whether any of its statements may be about such a model."""
        return isinstance(model, self.models)
