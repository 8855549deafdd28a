"""Gradient descent on (1/2) sum_i h_i x_i^2: its iterates are rational numbers, and are computed as such.

Rates, the descent lemma, decrease at steps below and beyond the edge 2/h, the iterate after some steps, and limits;
with a step that is constant or of a schedule, with momentum, and with signs. The numbers are short binary fractions, so
that the problem is given exactly. What is false by little is false from a step on that may lie beyond the last one.
"""

import functools
import math
from collections.abc import Iterator
from fractions import Fraction

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import flowsim
from benchmarks.verdict_families.base import RESOLVED, Statement
from benchmarks.verdict_families.drawn import Drawn
from flowsim.claims import judge_on
from flowsim.claims.claim import Claim, at_most, equal
from flowsim.claims.deciding.iterates import DescentEvidence

_LITTLE = 2.0**-20  # by which what is false is false
_AFTER = 3  # steps
_FURTHEST = 200  # steps that are looked at for where a statement fails


class _Squares(eqx.Module):
    curvatures: Array

    def __call__(self, model: Array) -> Array:
        return jnp.sum(self.curvatures * model**2) / 2


def _rate(descent, number):
    return at_most(descent.excess, number ** (2 * descent.t) * descent.excess[0])


def _lemma(descent, number):
    loss, slope, step = descent.loss[:-1], descent.grad_norm_sq[:-1], descent.step_size[:-1]
    return at_most(descent.loss[1:], loss - step * (1 - step * number / 2) * slope, size=loss)


def _decrease(descent, number):
    return at_most(descent.loss[1:], descent.loss[:-1] * number)


def _after(descent, number):
    return equal(descent.at(float(_AFTER))[0][None], number[0], number[1])


def _at_infinity(descent, number):
    value, allowance = flowsim.limit(descent, lambda model: model[0])
    return equal(value, number[0], number[1], allowance=allowance)


class Exact:
    """The iterates in rational numbers."""

    def __init__(self, h, x, steps, momentum, direction):
        self.h, self.x, self.steps, self.momentum, self.direction = h, x, steps, momentum, direction

    def __iter__(self) -> Iterator[list[Fraction]]:
        now, before, step = self.x, self.x, 0
        while True:
            yield now
            eta = self.steps[min(step, len(self.steps) - 1)]
            slope = [h * x for h, x in zip(self.h, now, strict=True)]
            if self.direction == "sign":
                slope = [Fraction((one > 0) - (one < 0)) for one in slope]
            parts = zip(now, slope, before, strict=True)
            now, before = [x - eta * g + self.momentum * (x - last) for x, g, last in parts], now
            step += 1


def _loss(h, x) -> Fraction:
    return sum((a * b**2 for a, b in zip(h, x, strict=True)), Fraction(0)) / 2


def _fraction(rng: np.random.Generator, low: float, high: float, bits: int = 8) -> Fraction:
    return Fraction(int(rng.integers(math.ceil(low * 2**bits), math.floor(high * 2**bits) + 1)), 2**bits)


def _first(fails: Iterator[bool]) -> float | None:
    """The first step at which a statement fails, of those that are looked at."""
    return next((float(k) for k, failed in zip(range(_FURTHEST), fails, strict=False) if failed), None)


def descents(rng: np.random.Generator, index: int) -> Iterator[Drawn]:
    """Statements about a descent."""
    d, steps = int(rng.choice([1, 1, 2, 3])), int(rng.integers(4, 40))
    h = [_fraction(rng, 0.05, 4.0) for _ in range(d)]
    x = [_fraction(rng, 0.1, 2.0) * int(rng.choice([-1, 1])) for _ in range(d)]
    kind = rng.choice(["plain", "plain", "beyond", "schedule", "momentum", "sign"])
    edge = 2 / max(h)
    share = rng.uniform(0.05, 0.98) if kind != "beyond" else 1 + 10 ** -rng.uniform(0.5, 3)
    eta = Fraction(math.floor(float(edge) * share * 2**12) + 1, 2**12)
    sizes = [eta] if kind != "schedule" else [eta / (1 + k % 3) for k in (1, 0, 1, 3, 7) * 8][:steps]
    sizes = [Fraction(float(one)) for one in sizes]
    momentum = _fraction(rng, 0.1, 0.9) if kind == "momentum" else Fraction(0)
    direction = "sign" if kind == "sign" else "gradient"
    exact = Exact(h, x, sizes, momentum, direction)
    form = _Squares(jnp.asarray([float(one) for one in h]))
    loss = flowsim.FunctionLoss(form, excess=form, minimum=0.0)
    given = np.asarray([float(one) for one in sizes]) if kind == "schedule" else float(eta)
    run = flowsim.gradient_descent(
        loss,
        jnp.asarray([float(one) for one in x]),
        given,
        len(sizes) if kind == "schedule" else steps,
        momentum=float(momentum),
        direction=direction,
    )
    evidence = DescentEvidence(loss, run)
    for name, compare, number, fails, expected in _statements(rng, kind, h, exact, eta):
        said = Statement(jnp.asarray(np.asarray(number, dtype=float)), compare)
        claim = Claim(f"fuzz.{kind}, {name}", "a random descent", name, said, of_descent=True)
        yield Drawn(index, claim, functools.partial(judge_on, evidence=evidence), fails, expected)


def _statements(rng: np.random.Generator, kind: str, h, exact: Exact, eta: Fraction) -> Iterator[tuple]:
    """(name, the two sides, number, the step at which it fails, whether it is to be decided)."""
    early = [one for one, _ in zip(exact, range(_AFTER + 1), strict=False)]
    value, size = early[_AFTER][0], max(abs(one[0]) for one in early)
    plainly = kind != "sign"
    yield "an iterate", _after, [value, size], None, plainly
    yield "another iterate", _after, [value + Fraction(RESOLVED) * size, size], 0.0, plainly
    if kind == "sign":
        return
    losses = lambda: (_loss(h, one) for one in exact)
    pairs = lambda: zip(losses(), _later(losses()), strict=False)
    most, least = max(h), min(h)
    if kind in ("plain", "beyond"):
        q = max(abs(1 - eta * one) for one in h)
        yield "a rate", _rate, _above(q), None, True
        if q > Fraction(1, 100):
            below = Fraction(float(q) * (1 - _LITTLE))
            first = _loss(h, exact.x)
            fails = _first(one > below ** (2 * k) * first for k, one in enumerate(losses()))
            # It fails at last, if not among the steps that are looked at: the slowest part decays like q^k.
            yield "too fast a rate", _rate, below, _FURTHEST if fails is None else fails, len(h) == 1
        grows = _first(after > before for before, after in pairs())
        if kind == "plain" or grows is not None:
            yield "it decreases", _decrease, 1.0, grows, len(h) == 1
    if kind == "plain":
        yield "a limit", _at_infinity, [0.0, 1.0], None, False
        yield "another limit", _at_infinity, [RESOLVED, 1.0], 0.0, False
    if kind in ("plain", "beyond", "schedule"):
        yield "the descent lemma", _lemma, most, None, True
        low = Fraction(float(most) * (1 - _LITTLE)) if len(h) == 1 else least / 2
        fails = _first(_lemma_fails(h, exact, low))
        if fails is not None:
            yield "the descent lemma with too small a curvature", _lemma, low, fails, len(h) == 1
    factor = Fraction(float(rng.uniform(0.2, 1.5)))
    fails = _first(after > factor * before for before, after in pairs())
    if fails is not None:
        yield "it decreases by a factor", _decrease, factor, fails, False


def _lemma_fails(h, exact: Exact, curvature: Fraction) -> Iterator[bool]:
    """Whether the descent lemma fails with this curvature, step by step."""
    before, step = None, 0
    for now in exact:
        if before is not None:
            eta = exact.steps[min(step, len(exact.steps) - 1)]
            slope = sum((a * b) ** 2 for a, b in zip(h, before, strict=True))
            yield _loss(h, now) > _loss(h, before) - eta * (1 - eta * curvature / 2) * slope
            step += 1
        before = now


def _later(values: Iterator[Fraction]) -> Iterator[Fraction]:
    next(values)
    return values


def _above(value: Fraction) -> Fraction:
    """A number that floats hold, not below this one."""
    number = float(value)
    return Fraction(number if Fraction(number) >= value else float(np.nextafter(number, np.inf)))
