"""Claims that are not what a claim is taken to be.

- jumps: claims with floor, sign and parity, and with windows of time that are smaller than a step. "unresolved" is
  always right, and nobody expects another verdict;
- misdeclared: ``along_flow=False`` for a claim that reads the flow after its start, judged on the flow or on the start
  alone, as an audit does with such claims.
"""

import jax.numpy as jnp
import numpy as np

from benchmarks.verdict_families import curves
from benchmarks.verdict_families.base import LITTLE, TINY, Problem, Stated, said, way
from benchmarks.verdict_families.curves import level
from flowsim.claims.claim import at_least, at_most, equal


def _parity(flow, number):
    """What is promised at even hours and fails at odd ones."""
    odd = jnp.floor(flow.t / number[0]) % 2
    return at_least(jnp.where(odd == 1, number[1], 1.0), 0.5)


def _parity_of_a_promise(flow, number):
    odd = jnp.floor(flow.t / number[0]) % 2
    return at_least(level(flow.models) * jnp.where(odd == 1, number[1], 1.0), 0.0, promised=odd == number[2])


def _window(flow, number):
    inside = (flow.t >= number[0]) & (flow.t < number[1])
    return at_most(jnp.where(inside, number[2], 0.0), 1.0)


def _floor(flow, number):
    return at_least(jnp.floor(level(flow.models) / number[0]), number[1])


def _floor_from_above(flow, number):
    return at_most(jnp.floor(level(flow.models) / number[0]), number[1])


def _sign(flow, number):
    return at_least(number[1] * jnp.sign(level(flow.models) - number[0]), 0.5)


def _wave(flow, number):
    """A wave of short period, which is largest between the outputs."""
    return at_most(jnp.sin(2 * jnp.pi * flow.t / number[0]), number[1])


def jumps(rng: np.random.Generator) -> Problem:
    """A monotone number, or the time alone, in functions that jump."""
    curve = curves.draw(rng)
    how = way(rng, curve.timescale, longest=1e4)
    hour = curve.timescale * 10 ** rng.uniform(-3, 2)
    if rng.random() < 0.4:
        # Outputs at even hours alone.
        how = {"times": [2 * hour * n for n in range(1, int(rng.integers(2, 6)))], "points_per_decade": 0}

    def statements(flow) -> list[Stated]:
        end = float(flow.t[-1])
        say = lambda name, compare, number, fails: said(name, compare, number, fails, expected=False)
        found = [
            say("parity", _parity, [hour, -1.0], hour),
            say("parity", _parity, [hour, 1.0], None),
            say("parity of a promise", _parity_of_a_promise, [hour, -1.0, 1.0], hour),
            say("parity of a promise", _parity_of_a_promise, [hour, -1.0, 0.0], None),
            say("wave", _wave, [hour, 1 - LITTLE], hour * np.arcsin(1 - LITTLE) / (2 * np.pi)),
            say("wave", _wave, [hour, 1 + LITTLE], None),
        ]
        for T in (end * rng.uniform(0, 1), end * 10 ** rng.uniform(-3, 1)):
            width = T * 10 ** rng.uniform(-6, -1)
            found.append(say("window", _window, [T, T + width, 2.0], T))
            found.append(say("window", _window, [T, T + width, 0.5], None))
            value = float(curve.level(T))
            if value < TINY or abs(value - curve.limit) < 1e-6 * curve.size:
                continue
            found.append(say("sign", _sign, [value, curve.sign], curve.time(value)))
            # At T the number passes the seventh of its steps: it is 7 of them from above, and no longer less.
            falls = curve.sign > 0
            step = value / 7
            floor = _floor if falls else _floor_from_above
            passed = curve.time(7 * step)
            found.append(say("floor", floor, [step, 7.0 if falls else 6.0], passed * (1 + 1e-9)))
            lowest = 6.0 if falls else 7.0
            bound = 6 * step if falls else 8 * step
            if np.isfinite(curve.limit) and (curve.limit - bound) * curve.sign > 1e-9 * bound:
                found.append(say("floor", floor, [step, lowest], None))
        if np.isfinite(curve.limit):
            never = curve.limit - curve.sign * LITTLE * max(curve.limit, curve.size)
            found.append(say("sign", _sign, [never, curve.sign], None))
        return found

    return Problem(curve.loss, curve.start, how, statements, curve.exact, curve.end)


def _ends_at(flow, number):
    return equal(level(flow.end)[None], number[0], jnp.abs(number[1]))


def _ends_below(flow, number):
    return at_most(level(flow.end)[None], number[0])


def _ends_above(flow, number):
    return at_least(level(flow.end)[None], number[0])


def _stays_below(flow, number):
    return at_most(level(flow.models), number[0])


def _stays_above(flow, number):
    return at_least(level(flow.models), number[0])


def _reads_the_start(flow, number):
    return at_least(level(flow.start)[None], number[0])


def misdeclared(rng: np.random.Generator) -> Problem:
    """A limit, or a bound on a monotone number, that is said to be of the start alone."""
    curve = curves.draw(rng, tuple(name for name in curves.SHAPES if name != "escape"))
    alone = rng.random() < 0.4
    how = None if alone else way(rng, curve.timescale)
    x0 = float(curve.level(0.0))
    passes, keeps = (_stays_above, _stays_below) if curve.sign > 0 else (_stays_below, _stays_above)
    ends_beyond, ends_before = (_ends_above, _ends_below) if curve.sign > 0 else (_ends_below, _ends_above)

    def statements(flow) -> list[Stated]:
        def say(name, compare, number, fails, identity=False):
            return said(name, compare, number, fails, identity=identity, along_flow=False, expected=False)

        end = float(flow.t[-1])
        # Between the start and the limit.
        between = curve.limit + (x0 - curve.limit) * rng.uniform(0.1, 0.9)
        size = max(curve.limit, x0)
        far = curve.sign * LITTLE * size
        found = [
            say("stays", passes, [between], curve.time(between)),
            say("stays", passes, [curve.limit - far], None),
            say("stays", keeps, [x0 + far], None),
            said("start", _reads_the_start, [x0 * (1 - LITTLE)], None, along_flow=False),
            said("start", _reads_the_start, [x0 * (1 + LITTLE)], 0.0, along_flow=False),
        ]
        # By the end of a run that was cut somebody may mean where it was: then these are as true or false.
        if alone or not how:
            found.append(say("limit", _ends_at, [curve.limit, size], None, identity=True))
        if alone or end > curve.time(between):
            found.append(say("limit on a side", ends_before, [between], None))
            found.append(say("limit on a side", ends_beyond, [between], 0.0))
            found.append(say("limit", _ends_at, [x0, size], 0.0, identity=True))
        return found

    return Problem(curve.loss, curve.start, how, statements, curve.exact, curve.end)
