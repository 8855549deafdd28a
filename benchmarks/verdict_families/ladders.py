"""Families of problems in a parameter s -> 0, or of independent draws: limits, powers and probabilities that are known.

- sequences, of which a statement reads a number at the start: A + B s^p + C s^r, powers with a logarithm or an
  oscillation;
- flows: a parabola at a time (linear in s), a product of two weights at a time (its logistic growth, s^2 at first), and
  the limit of unbalanced ones (b^2 - a^2 = 3 s^2 is conserved and a b -> 1, so that a^2 is known in closed form);
- bounds at every member, some of which one member breaks; statements that independent draws meet with probability p.

A limit is false by three times what the statement allows, a power by .3. Of two terms the slower is the larger one: one
too small to be seen could not be excluded by any ladder (docs/how-to/families.md).
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import flowsim
from benchmarks.verdict_families.base import LITTLE
from benchmarks.verdict_families.drawn import Drawn
from flowsim.claims.claim import Claim, Comparison, at_most

_WITHIN = 3.0  # times what a statement allows: by how much a false one is off
_MARGIN = 0.15  # of a probability
_TINY_TIME = 1e-3  # of the flow of a statement that reads its start


def _parabola_loss(model: Array) -> Array:
    return jnp.sum((model - 1.0) ** 2) / 2


def _product_loss(model: Array) -> Array:
    return (model[0] * model[1] - 1.0) ** 2 / 2


@functools.cache
def _loss(function: Callable) -> flowsim.FunctionLoss:
    return flowsim.FunctionLoss(function, minimum=0.0)


class _Said(eqx.Module):
    """A trend of a number, or a bound on it or a probability of that, with numbers that one program serves."""

    numbers: Array
    expected: Array
    within: Array
    quantity: Callable = eqx.field(static=True)
    form: str = eqx.field(static=True)

    def __call__(self, loss, flow) -> Comparison:
        value, allowance = self.quantity(flow, self.numbers)
        value = jnp.ravel(value)
        if self.form == "limit":
            return flowsim.tends_to(value, self.expected, self.within, allowance=allowance)
        if self.form in ("both", "above", "below"):
            return flowsim.power_law(value, self.expected, self.within, bounds=self.form, allowance=allowance)
        sides = at_most(value, self.expected, size=jnp.ones(1), allowance=allowance)
        return sides if self.form == "all" else flowsim.with_probability(float(self.form), sides)


class _Ladder(NamedTuple):
    """make: s -> (loss, start); values: of s; how: arguments of `gradient_flow`; along: whether statements read the
    flow; stated: (name, form, quantity, numbers, expected, within, whether it is true, whether to be decided).
    """

    make: Callable
    values: np.ndarray
    how: dict
    along: bool
    stated: list[tuple]


def _term(flow, numbers):
    """A + B s^p + C s^r, times a logarithm and an oscillation."""
    s = flow.start[0]
    A, B, p, C, r, power_of_log, wave = numbers
    factor = jnp.log(1 / s) ** power_of_log * (1 + wave * jnp.sin(2 * jnp.log(s)))
    return A + (B * s**p + C * s**r) * factor, 0.0


def _sequence(rng: np.random.Generator) -> _Ladder:
    values = np.geomspace(10 ** -rng.uniform(0.7, 2), 10 ** -rng.uniform(3.5, 8), int(rng.integers(6, 10)))
    p = rng.uniform(0.25, 3)
    # Beside a term of a power p another that fades faster, or a larger one that fades more slowly.
    r = p * rng.choice([2.0, 1.5, 0.7])
    B = rng.choice([-1, 1]) * 10 ** rng.uniform(-2, 2)
    C = B * rng.choice([-1, 0, 1]) * (10 ** rng.uniform(-1.5, 0) if r > p else 10 ** rng.uniform(0, 1))
    kind = rng.choice(["limit", "power", "logarithm", "wave"])
    if kind == "limit":
        A = rng.standard_normal() * 10 ** rng.uniform(-3, 3)
        within = float((abs(A) + abs(B)) * 10 ** -rng.uniform(1, 8))
        numbers = [A, B, p, C, r, 0.0, 0.0]
        sign = float(rng.choice([-1, 1]))
        stated = [("a limit", "limit", _term, numbers, A, within, True, False)]
        stated += [("another limit", "limit", _term, numbers, A + sign * _WITHIN * within, within, False, False)]
        return _Ladder(_start, values, {"t1": _TINY_TIME}, False, stated)
    # Positive: of one sign.
    B, C = abs(B), abs(C)
    leading = p if C == 0 else min(p, r)
    numbers = [0.0, B, p, C, r, float(kind == "logarithm"), 0.5 * (kind == "wave")]
    within = 0.05
    stated = [
        ("a power", "both", _term, numbers, leading, within, kind != "logarithm", False),
        ("another power", "both", _term, numbers, leading + rng.choice([-1, 1]) * 0.3, within, False, False),
        # With a logarithm as without: s^p log(1/s) is O(s^q) for every q < p, and Omega(s^p).
        ("at most a power", "above", _term, numbers, leading - 0.3, within, True, False),
        ("at most too high a power", "above", _term, numbers, leading + 0.3, within, False, False),
        ("at least a power", "below", _term, numbers, leading + 0.3, within, True, False),
        ("at least too low a power", "below", _term, numbers, leading - 0.3, within, False, False),
    ]
    return _Ladder(_start, values, {"t1": _TINY_TIME}, False, stated)


def _start(s):
    return _loss(_parabola_loss), jnp.asarray([float(s)])


def _moved(flow, numbers):
    """The weight at a time, less a number."""
    return flow.at(1.0)[0] - numbers[0], 0.0


def _parabola(rng: np.random.Generator) -> _Ladder:
    """x(1) = 1 - 1/e + s/e."""
    values = np.geomspace(10 ** -rng.uniform(0.5, 1.5), 10 ** -rng.uniform(3, 6), int(rng.integers(6, 9)))
    limit, within = 1 - math.exp(-1), 10 ** -rng.uniform(2, 4)
    stated = [
        ("a limit at a time", "limit", _moved, [0.0], limit, within, True, False),
        ("another limit at a time", "limit", _moved, [0.0], limit + _WITHIN * within, within, False, True),
        ("a power at a time", "both", _moved, [limit], 1.0, 0.02, True, True),
        ("another power at a time", "both", _moved, [limit], 1.3, 0.02, False, True),
    ]
    # At the largest s by little, or not.
    most = float(values[0]) * math.exp(-1)
    stated += [("at every member", "all", _moved, [limit], most * (1 + LITTLE), 1.0, True, True)]
    stated += [("not at every member", "all", _moved, [limit], most * (1 - LITTLE), 1.0, False, True)]
    return _Ladder(_start, values, {"times": [1.0]}, True, stated)


def _both(s):
    return _loss(_product_loss), jnp.asarray([float(s), float(s)])


def _grown(flow, numbers):
    model = flow.at(0.5)
    return model[0] * model[1], 0.0


def _growth(rng: np.random.Generator) -> _Ladder:
    """u = a b of a = b = s: u(t) = s^2 e^(2 t)/(1 + s^2 (e^(2 t) - 1))."""
    values = np.geomspace(10 ** -rng.uniform(0.5, 1.5), 10 ** -rng.uniform(3, 6), int(rng.integers(6, 9)))
    stated = [
        ("a power at a time", "both", _grown, [0.0], 2.0, 0.02, True, True),
        ("another power at a time", "both", _grown, [0.0], float(rng.choice([1.7, 2.3])), 0.02, False, True),
        ("a limit at a time", "limit", _grown, [0.0], 0.0, 1e-3, True, False),
        ("another limit at a time", "limit", _grown, [0.0], 3e-3, 1e-3, False, False),
    ]
    return _Ladder(_both, values, {"times": [0.5]}, True, stated)


def _twice(s):
    return _loss(_product_loss), jnp.asarray([float(s), 2 * float(s)])


def _lost(flow, numbers):
    return flowsim.limit(flow, lambda model: 1 - model[0] ** 2)


def _unbalanced(rng: np.random.Generator) -> _Ladder:
    """a^2 = (sqrt(4 + 9 s^4) - 3 s^2)/2 in the limit t -> infinity, so that 1 - a^2 = 1.5 s^2 + O(s^4)."""
    values = np.geomspace(10 ** -rng.uniform(0.7, 1.2), 10 ** -rng.uniform(2, 3), 6)
    stated = [
        ("a power in the limit", "both", _lost, [0.0], 2.0, 0.05, True, False),
        ("another power in the limit", "both", _lost, [0.0], float(rng.choice([1.7, 2.3])), 0.05, False, False),
        ("a limit in the limit", "limit", _lost, [0.0], 0.0, 1e-3, True, False),
        ("another limit in the limit", "limit", _lost, [0.0], 3e-3, 1e-3, False, False),
    ]
    return _Ladder(_twice, values, {"stop": flowsim.Stop(excess=1e-24, grad_norm=1e-13)}, True, stated)


def _start_itself(flow, numbers):
    return flow.start[0], 0.0


def _draws(rng: np.random.Generator) -> _Ladder:
    """Starts that are at most 1 with probability p; one of them is 2^-20 from 1."""
    count, p = int(rng.integers(20, 60)), rng.uniform(0.25, 0.75)
    below = rng.random(count) < p
    numbers = 2.0 ** -rng.integers(2, 20, count) * np.where(below, -1, 1) + 1.0
    values = np.unique(numbers + 2.0**-40 * np.arange(count) * np.where(below, -1, 1))
    stated = [
        ("a probability", f"{p - _MARGIN:.3f}", _start_itself, [0.0], 1.0, 1.0, True, False),
        ("too high a probability", f"{p + _MARGIN:.3f}", _start_itself, [0.0], 1.0, 1.0, False, False),
    ]
    return _Ladder(_start, values, {"t1": _TINY_TIME}, False, stated)


_KINDS = {_sequence: 0.6, _parabola: 0.1, _growth: 0.1, _unbalanced: 0.1, _draws: 0.1}


def ladders(rng: np.random.Generator, index: int) -> Iterator[Drawn]:
    """Statements about a family of problems."""
    drawn: _Ladder = rng.choice(np.asarray([*_KINDS], dtype=object), p=[*_KINDS.values()])(rng)
    family = flowsim.Family(drawn.make, {"s": drawn.values}, **drawn.how)
    judge = lambda claim: family.judge(claim)[0]
    for name, form, quantity, numbers, expected, within, true, decided in drawn.stated:
        known = [jnp.asarray(np.asarray(one, dtype=float)) for one in (numbers, expected, within)]
        said = _Said(known[0], known[1], known[2], quantity, form)
        claim = Claim(f"fuzz.{name}", "a random family", name, said, along_flow=drawn.along)
        yield Drawn(index, claim, judge, None if true else 0.0, decided)
