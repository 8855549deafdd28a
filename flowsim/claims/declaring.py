"""Declare a claim: a function returns the two sides, and its docstring is the statement."""

import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from flowsim._core import checks
from flowsim._core.types import Options, Tables
from flowsim.claims.claim import Claim, Comparison, equal
from flowsim.claims.hypotheses import Conditions, all_of
from flowsim.claims.spaces import Space
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss

Declare = Callable[[Callable[..., Comparison] | Claim], Claim]

_TAKES: dict[str, Callable[..., object]] = {
    "loss": lambda loss, flow: loss,
    "task": lambda loss, flow: loss.task,
    "start": lambda loss, flow: flow.start,
    "flow": lambda loss, flow: flow,
    "descent": lambda loss, flow: flow,
}
# By identity, since a function that wraps a comparison takes over its attributes.
_OF_THE_START: weakref.WeakSet[Callable[..., Comparison]] = weakref.WeakSet()


def reads_the_start_only(claim: Claim) -> bool:
    """Whether the function of a claim takes neither a flow nor a descent, so that it uses no more than the start of
    a flow.
    """
    return claim.compare in _OF_THE_START


def claim(
    id: str,
    source: str,
    *,
    hypotheses: Conditions | Sequence[Conditions] = (),
    needs: Conditions | None = None,
    **fields: Any,
) -> Declare:
    r"""A decorator that makes a `Claim` of a function that returns the comparison of its two sides::

        @flowsim.claim("mine.pl", "my notes, (3)")
        def gradient_dominates(flow):
            r'''$\lVert \nabla L \rVert^2 \ge 2 L$ for all $t$'''
            return flowsim.at_least(flow.grad_norm_sq, 2 * flow.excess)

    The function names its inputs as arguments: ``loss``, ``task`` (the task of the loss), ``start`` (the model at
    time 0) and ``flow`` or ``descent`` (the `Trajectory`). A claim that takes the flow is judged along it; one that
    takes the descent is about `gradient_descent` instead. The first paragraph of the docstring is the statement,
    with formulas in ``$..$``; the other paragraphs are the note. If the statement contains a number that is only
    known at run time, give the text as ``statement=``. If a `Claim` is decorated in place of a function, its
    comparison is declared again as a claim with this id and source.

    **Arguments:**

    - id, source, fields: fields of `Claim`.
    - hypotheses: one function (loss, start) -> list of `Hypothesis`, or several; (loss, descent) for a descent.
    - needs: one more function of this form, for the hypotheses without which the sides cannot be computed. The
      claim asserts nothing where they are not met.

    **Raises:** `ValueError` on a function without a docstring, or with an argument of another name.
    """
    conditions = [hypotheses] if callable(hypotheses) else [*hypotheses]

    def declare(sides: Any) -> Claim:
        sides = sides.compare.__wrapped__ if isinstance(sides, Claim) else sides
        takes = _taken(sides)
        of_descent = "descent" in takes

        @functools.wraps(sides)
        def compare(loss: AbstractPopulationLoss, flow: Trajectory) -> Comparison:
            given = flow if of_descent else flow.start
            if needs is not None and not all(condition.met for condition in needs(loss, given)):
                return eqx.tree_at(lambda c: c.promised, equal(jnp.zeros(1), 0.0, 1.0), jnp.zeros(1, dtype=bool))
            return sides(*(_TAKES[name](loss, flow) for name in takes))

        if not {"flow", "descent"} & {*takes}:
            _OF_THE_START.add(compare)
        said = {} if "statement" in fields else _said(sides)
        own = {"along_flow": "flow" in takes or of_descent, "of_descent": of_descent, **said, **fields}
        return Claim(id, source, compare=compare, hypotheses=all_of(*conditions, *([needs] if needs else [])), **own)

    return declare


def _said(sides: Callable) -> dict[str, str]:
    """The statement and the note in the docstring of a function, each on one line.

    **Raises:** `ValueError` if there is no docstring.
    """
    statement, *note = inspect.cleandoc(sides.__doc__ or "").split("\n\n")
    if not statement:
        checks.refuse("a claim", "a function whose docstring states it", f"{sides.__name__} has no docstring")
    return {"statement": " ".join(statement.split()), "note": " ".join(" ".join(note).split())}


def _taken(sides: Callable) -> tuple[str, ...]:
    """The names of the inputs of a claim's function: its arguments without a default value.

    **Raises:** `ValueError` on an unknown name, or on both "flow" and "descent".
    """
    parameters = inspect.signature(sides).parameters.values()
    names = tuple(one.name for one in parameters if one.default is one.empty)
    if unknown := [name for name in names if name not in _TAKES]:
        checks.refuse(f"an argument of {sides.__name__}", f"one of {', '.join(_TAKES)}", f'it is "{unknown[0]}"')
    if {"flow", "descent"} <= {*names}:
        checks.refuse(f"an argument of {sides.__name__}", '"flow" or "descent"', "it takes both")
    return names


def takes_like(sides: Callable) -> Callable[[Callable], Callable]:
    """A decorator that gives a function the name and docstring of ``sides``, and leaves its arguments as they
    are.
    """

    def dress(function: Callable) -> Callable:
        signature = inspect.signature(function)
        dressed: Any = functools.update_wrapper(function, sides)
        del dressed.__wrapped__
        dressed.__signature__ = signature
        return dressed

    return dress


class Section:
    """The claims of one part of a paper in the order of their declaration, and the settings that they share::

        SECTION = Section("smith2025", LinearAttention, setting=one_covariance, hypotheses=balanced)
        FLOWS = SECTION.on(problems.FLOWS, spaces.BALANCED)

        @FLOWS.claim("positive", "the paper's (4)")
        def positive(flow):
            r'''$u_{-1}(t) > 0$ for all $t$'''
            return at_least(flow.models.u_minus1, 0.0, size=flow.start.u_minus1)

    **Arguments:**

    - paper: the id of the paper.
    - models: the classes of models that the claims are about.
    - shared: arguments of `claim` for all claims of the section. A claim can override them.
    """

    def __init__(self, paper: str, *models: type[eqx.Module], **shared: Any):
        self.paper, self._shared = paper, {"models": models, **shared}
        self._claims: list[Claim] = []

    @property
    def claims(self) -> tuple[Claim, ...]:
        """All claims declared so far in this section, including those declared through `on`."""
        return tuple(self._claims)

    def on(self, problems: Sequence[Tables], spaces: Sequence[Space], **shared: Any) -> "Section":
        """The section for claims that are judged on the given problems. They are claims of this section too.

        **Arguments:**

        - problems: the problems on which each claim is judged.
        - spaces: the sets of problems that the claims cover.
        - shared: arguments of `claim`, which replace those of the section.
        """
        part = Section(self.paper)
        part._shared = {**self._shared, "problems": tuple(problems), "spaces": tuple(spaces), **shared}
        part._claims = self._claims
        return part

    def claim(self, part: str, source: str, **own: Any) -> Declare:
        """A decorator that declares a claim of this section.

        **Arguments:**

        - part: the id of the claim without the id of the paper in front.
        - source: the place of the statement without the id of the paper in front.
        - own: arguments of `claim` that differ from those of the section.
        """
        return self._declared(f"{self.paper}.{part}", f"{self.paper}, {source}", own)

    def corrected(self, printed: Claim, source: str = "", **own: Any) -> Declare:
        """A decorator that declares the corrected form of a printed claim, with the same id.

        **Arguments:**

        - printed: the printed claim.
        - source: the place of the corrected statement, default that of the printed claim.
        - own: arguments of `claim` that differ from those of the section.
        """
        place = f"{self.paper}, {source}" if source else printed.source
        return self._declared(printed.id, place, {"form": "corrected", **own})

    def _declared(self, id: str, source: str, own: Options) -> Declare:
        declare = claim(id, source, **{**self._shared, **own})

        def kept(sides: Callable[..., Comparison] | Claim) -> Claim:
            self._claims.append(declare(sides))
            return self._claims[-1]

        return kept
