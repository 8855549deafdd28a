"""Gradient descent with steps that are too large to converge, on polynomials of two weights: cycles and chaos.

The true iterates are followed in decimals of 800 digits, of which 60 steps of a cubic map lose a part. The numbers are
short binary fractions, so that the problem is given exactly. A bound on what is largest along the iterates is given a
little above it and a little below it, down to a part in 10^12.
"""

import decimal
import functools
from collections.abc import Iterator
from decimal import Decimal

import jax.numpy as jnp
import numpy as np

import flowsim
from benchmarks.verdict_families.base import Statement
from benchmarks.verdict_families.drawn import Drawn
from flowsim.claims import judge_on
from flowsim.claims.claim import Claim, at_most
from flowsim.claims.deciding.iterates import DescentEvidence

_DIGITS, _STEPS, _FAR = 800, 60, Decimal(10) ** 30


def _product(x):
    return (x[0] * x[1] - 1) ** 2 / 2


def _wells(x):
    return (x[0] ** 2 - 1) ** 2 / 4 + (x[1] ** 2 - 1) ** 2 / 4 + x[0] * x[1] / 4


def _cubic(x):
    return (x[0] ** 3 - 1) ** 2 / 16 + x[1] ** 2 * (1 + x[0] ** 2) / 4


# Each loss with its gradient, for weights that are decimals.
_LOSSES = {
    _product: lambda a, b: ((a * b - 1) * b, (a * b - 1) * a),
    _wells: lambda a, b: ((a * a - 1) * a + b / 4, (b * b - 1) * b + a / 4),
    _cubic: lambda a, b: ((a**3 - 1) * 3 * a * a / 8 + b * b * a / 2, b * (1 + a * a) / 2),
}


def iterates(gradient, start, eta: float, steps: int, momentum: float, direction: str) -> list[list[Decimal]]:
    """The true iterates, until they are far away."""
    with decimal.localcontext() as context:
        context.prec = _DIGITS
        now, moved, found = list(map(Decimal, start)), [Decimal(0)] * 2, []
        for _ in range(steps + 1):
            found.append(now)
            if max(map(abs, now)) > _FAR:
                break
            slope = gradient(*now)
            if direction == "sign":
                slope = [Decimal((one > 0) - (one < 0)) for one in slope]
            moved = [Decimal(momentum) * last - Decimal(eta) * one for last, one in zip(moved, slope, strict=True)]
            now = [a + b for a, b in zip(now, moved, strict=True)]
        return found


def _weight(descent, number):
    return at_most(descent.models[:, 0], number)


def _rise(descent, number):
    return at_most(descent.loss[1:] - descent.loss[:-1], number)


def chaos(rng: np.random.Generator, index: int) -> Iterator[Drawn]:
    """Statements about a descent that may be chaotic; none about one that diverges."""
    short = lambda low, high: round(float(rng.uniform(low, high)) * 2**10) / 2**10
    loss = list(_LOSSES)[int(rng.integers(len(_LOSSES)))]
    start, eta, steps = [short(-1.5, 1.5) for _ in range(2)], short(0.3, 2.0), int(rng.integers(5, _STEPS))
    momentum, direction = float(rng.choice([0, 0, 0.25, 0.5])), str(rng.choice(["gradient", "gradient", "sign"]))
    true = iterates(_LOSSES[loss], start, eta, steps, momentum, direction)
    if max(map(abs, true[-1])) > _FAR:
        return
    run = flowsim.gradient_descent(
        given := flowsim.FunctionLoss(loss), jnp.asarray(start), eta, steps, momentum=momentum, direction=direction
    )
    evidence = DescentEvidence(given, run)
    with decimal.localcontext() as context:
        context.prec = _DIGITS
        weights, losses = [one[0] for one in true], [loss(one) for one in true]
        rises = [after - before for before, after in zip(losses, losses[1:], strict=False)]
        bounds = {_weight: (weights, max(max(map(abs, one)) for one in true)), _rise: (rises, max(map(abs, losses)))}
        little = Decimal(10.0 ** rng.uniform(-12, -3))
        for compare, (values, size) in bounds.items():
            for side in (1, -1):
                number = float(max(values) + side * little * size)
                fails = next((float(k) for k, one in enumerate(values) if one > Decimal(number)), None)
                name = f"{compare.__name__[1:]} at most {'more' if side > 0 else 'less'}"
                claim = Claim(
                    f"fuzz.chaos, {name}",
                    "a random descent",
                    name,
                    Statement(jnp.asarray(number), compare),
                    of_descent=True,
                )
                yield Drawn(index, claim, functools.partial(judge_on, evidence=evidence), fails, True)
