"""What every family is made of: a loss, a start and a run, with statements about the flow whose truth is known.

A statement ``fails`` at the earliest time from which on somebody can see that it is false: None where it is true for
all t >= 0, and 0 where it is false from the start, or speaks of the limit and is false. An identity fails where it is
off by what a verdict has to resolve. Where only a later time is known at which a statement is false, that is given: it
convicts fewer verdicts, and none wrongly.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

import flowsim
from flowsim import Claim, Stop
from flowsim.claims.claim import Comparison

LITTLE = 1e-5  # by which a false inequality is false
RESOLVED = 2e-4  # by which a false identity is false: one that is known no better than to 1e-4 is not judged
TINY = 1e-290  # below which numbers have fewer digits
# What the limits, the model at a time and the velocity are read by; without them such statements are left out.
HAS_LIMITS = hasattr(flowsim, "limit")
HAS_VELOCITY = hasattr(flowsim.Trajectory, "velocity")


class Point(eqx.Module):
    """x: (d,)."""

    x: Array


class Statement(eqx.Module):
    """A statement about a flow with numbers in it, so that one program serves all numbers.

    compare: (flow, number) -> its two sides, or (model, number) for a statement about the model at a ``time``.
    """

    number: Array
    compare: Callable = eqx.field(static=True)
    time: float | None = eqx.field(static=True, default=None)

    def __call__(self, loss, flow) -> Comparison:
        return self.compare(flow if self.time is None else flow.at(self.time), self.number)


@dataclasses.dataclass(frozen=True)
class Stated:
    """A statement with what is true of it.

    fails: see above; expected: whether a person would expect a verdict on it: it can be decided in double precision
    with modest effort; identity: whether it equates its sides.
    """

    claim: Claim
    fails: float | None
    expected: bool
    identity: bool


@dataclasses.dataclass(frozen=True)
class Exact:
    """The closed form of a flow at some times.

    models: with time first; excess, grad_norm_sq: (T,), where subtraction would lose their digits; limit: the model as
    t -> infinity, where the closed form is of it too.
    """

    models: PyTree
    excess: np.ndarray | None = None
    grad_norm_sq: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Problem:
    """A loss and a start, how far the flow goes, and statements about it once it has been solved.

    how: arguments of `flowsim.gradient_flow`; None where only the start is looked at; statements: (the flow) -> what is
    said of it, which may depend on where it ended and on nothing else; exact: times -> the closed form; limit: the
    model as t -> infinity; where the tests may not know the flow by other means, both are None.
    """

    loss: flowsim.AbstractPopulationLoss
    start: PyTree
    how: dict[str, Any] | None
    statements: Callable[[Any], Sequence[Stated]]
    exact: Callable[[np.ndarray], Exact] | None = None
    limit: PyTree | None = None


def said(
    name: str,
    compare: Callable,
    number: ArrayLike | Sequence[ArrayLike],
    fails: float | None,
    *,
    identity: bool = False,
    expected: bool = True,
    time: float | None = None,
    along_flow: bool = True,
) -> Stated:
    """A statement with a number and its truth."""
    statement = Statement(jnp.asarray(np.asarray(number, dtype=float)), compare, time)
    claim = Claim(f"fuzz.{name}", "a random problem", name, statement, along_flow=along_flow)
    return Stated(claim, None if fails is None else float(fails), bool(expected), identity)


def a_time(end: float) -> float:
    """A time at which to look at a run of that length: a power of two, since a program is compiled for each."""
    return 2.0 ** float(np.floor(np.log2(end)))


def value_at_a_time(
    compare: Callable, value: Callable[[float], ArrayLike], end: float, *, expected: bool = True
) -> list[Stated]:
    """The statement that a quantity of the model has its value at a time, and another; ``end``: of the run."""
    if not HAS_LIMITS or not end > 0:
        return []
    time = a_time(end)
    exact = np.asarray(value(time))
    if not np.all(np.abs(exact) > TINY):
        return []
    return [
        said("value at a time", compare, exact * factor, fails, identity=True, expected=expected, time=time)
        for factor, fails in ((1.0, None), (1 + RESOLVED, 0.0))
    ]


def first_time(reached: Callable[[float], Any], scale: float) -> float | None:
    """The first time, to 13 digits and never too early, at which something has happened that then stays so; None if it
    does not happen.

    **Arguments:** reached: time -> whether it has happened; scale: a time to begin with.
    """
    if reached(0.0):
        return 0.0
    high = scale
    while not reached(high):
        high *= 16
        if high > 1e290:
            return None
    low = 0.0
    while high - low > 1e-13 * high:
        if high < 1e-290:
            return 0.0
        # By factors while the order of the time is not known.
        middle = np.sqrt(low * high) if low > 0 else high / 16
        middle = (low + high) / 2 if high < 2 * low else middle
        low, high = (low, middle) if reached(float(middle)) else (middle, high)
    return float(high)


def few_times(rng: np.random.Generator, timescale: float, furthest: float) -> list[float]:
    """One to four times, the last at that many timescales or before."""
    count = int(rng.integers(1, 5))
    last = timescale * 10 ** rng.uniform(-1, np.log10(furthest))
    return [float(t) for t in np.sort(last * np.append(10 ** rng.uniform(-3, -0.05, count - 1), 1.0))]


def way(rng: np.random.Generator, timescale: float, *, furthest: float = 1e4, longest: float = 1e8) -> dict[str, Any]:
    """One of the ways to end a run: by itself, at a loose stop, at a short, usual or very long t1, and at times far out
    with or without others between.

    **Arguments:** furthest: the last of the times asked for, longest: the latest t1, both in timescales.
    """
    kind = rng.choice(["itself", "loose", "short", "usual", "long", "times", "sparse"])
    if kind == "loose":
        return {"stop": Stop(excess=10 ** rng.uniform(-6, -1), grad_norm=10 ** rng.uniform(-6, -1))}
    if kind == "short":
        return {"t1": timescale * 10 ** rng.uniform(-6, -1)}
    if kind == "usual":
        return {"t1": timescale * 10 ** rng.uniform(-1, 1.5)}
    if kind == "long":
        return {"t1": timescale * 10 ** rng.uniform(3, np.log10(longest))}
    if kind == "times":
        return {"times": few_times(rng, timescale, furthest)}
    if kind == "sparse":
        return {"times": few_times(rng, timescale, furthest), "points_per_decade": 0}
    return {}


def cut(rng: np.random.Generator, timescale: float) -> dict[str, Any]:
    """One of the ways to end a run early."""
    kind = rng.choice(["short", "usual", "sparse", "loose"])
    if kind == "loose":
        return {"stop": Stop(excess=10 ** rng.uniform(-3, -0.5), grad_norm=10 ** rng.uniform(-3, -0.5))}
    if kind == "sparse":
        return {"times": few_times(rng, timescale, 10.0), "points_per_decade": 0}
    return {"t1": timescale * 10 ** (rng.uniform(-6, -1) if kind == "short" else rng.uniform(-1, 1))}


def is_false(verdict: str, fails: float | None, until: float | None) -> bool:
    """Whether a verdict is false of a statement; ``until``: the last time that a "holds" speaks of, None for all."""
    if verdict == "violated":
        return fails is None
    if verdict != "holds" or fails is None:
        return False
    return until is None or (until > fails * (1 + 1e-6) and fails < until)
