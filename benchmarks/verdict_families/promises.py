"""Statements that promise something from some time on or until then, and those that are true until after the run.

The flows are those of one number with a closed form (`curves`): powers, logistic, escaping, circles and others.

- promises: "x <= c once t >= T", "once L <= e" and "while x >= c", with what is promised just true or just false where
  the promise begins or ends: between two outputs, in the last stretch of the run, and after it;
- up-to-t1: true for the whole of a run that was cut at t1 or at a loose stop, and false later; also what stays true.
"""

import numpy as np

from benchmarks.verdict_families import curves
from benchmarks.verdict_families.base import LITTLE, TINY, Problem, Stated, cut, first_time, said, way
from benchmarks.verdict_families.curves import Curve, level
from flowsim.claims.claim import at_least, at_most


def _below_from(flow, number):
    return at_most(level(flow.models), number[0], promised=flow.t >= number[1])


def _above_from(flow, number):
    return at_least(level(flow.models), number[0], promised=flow.t >= number[1])


def _below_until(flow, number):
    return at_most(level(flow.models), number[0], promised=flow.t <= number[1])


def _above_until(flow, number):
    return at_least(level(flow.models), number[0], promised=flow.t <= number[1])


def _below_once_low(flow, number):
    return at_most(level(flow.models), number[0], promised=flow.loss <= number[1])


def _above_once_low(flow, number):
    return at_least(level(flow.models), number[0], promised=flow.loss <= number[1])


def _steep_while_above(flow, number):
    return at_least(flow.grad_norm_sq, number[0], promised=level(flow.models) >= number[1])


def _steep_while_below(flow, number):
    return at_least(flow.grad_norm_sq, number[0], promised=level(flow.models) <= number[1])


def promises(rng: np.random.Generator) -> Problem:
    """A monotone number beside what it is where a promise begins or ends."""
    curve = curves.draw(rng)
    how = way(rng, curve.timescale, furthest=1e3, longest=1e6)

    def statements(flow) -> list[Stated]:
        times, end = np.asarray(flow.t), float(flow.t[-1])
        last = float(times[-2]) if times.size > 1 else 0.0
        # An exponential is at its limit, or at the least number that there is, long before the end of a long run.
        reach = end if curve.shape.curvature == 0 else min(end, 300 * curve.timescale)
        inside = reach * (rng.uniform(0, 1) if rng.random() < 0.5 else 10 ** rng.uniform(-4, 0))
        found = []
        for T in (inside, last + (end - last) * rng.uniform(0.05, 0.95), end * 10 ** rng.uniform(0.01, 1)):
            if float(curve.level(T)) > TINY:
                found += _about(curve, T, end)
        return found

    return Problem(curve.loss, curve.start, how, statements, curve.exact, curve.end)


def _about(curve: Curve, T: float, end: float) -> list[Stated]:
    """What is promised from T on, until T, and once or while the flow is as it is at T."""
    value, x0, falls = float(curve.level(T)), float(curve.level(0.0)), curve.sign > 0
    loss, away = float(curve.excess(value)), abs(value - curve.limit) / curve.size
    within, clear = end >= T, loss > 1e-9 * curve.rate * curve.size**2
    after, before = (_below_from, _above_until) if falls else (_above_from, _below_until)
    low = _below_once_low if falls else _above_once_low
    steep = _steep_while_above if falls else _steep_while_below
    found = []
    for right in (True, False):
        # A number that falls is below c from T on if c is larger than it is at T, and above c until T if c is less.
        little = LITTLE * curve.sign * (1 if right else -1)
        c = value * (1 + little)
        found.append(said("once the time is", after, [c, T], None if right else T, expected=within))
        if loss > TINY:
            found.append(said("once the loss is", low, [c, loss], None if right else T, expected=within and clear))
        c = value * (1 - little)
        passed = 0.0 if (c - x0) * curve.sign >= 0 else None if right else curve.time(c)
        if not right or passed is None:
            found.append(said("until the time is", before, [c, T], passed, expected=within))
        # Next to a limit a slope is not known to so many digits.
        if curve.shape.slows and away > 1e-6 and float(curve.slope(value)) ** 2 > TINY:
            number = float(curve.slope(value)) ** 2 * (1 - LITTLE if right else 1 + LITTLE)
            slow = lambda t, number=number: float(curve.slope(curve.level(t))) ** 2 < number
            fails = None if right else first_time(slow, T)
            found.append(said("while the number is", steep, [number, value], fails, expected=within))
    return found


def _stays_above(flow, number):
    return at_least(level(flow.models), number[0])


def _stays_below(flow, number):
    return at_most(level(flow.models), number[0])


def _stays_steep(flow, number):
    return at_least(flow.grad_norm_sq, number[0])


def _stays_costly(flow, number):
    return at_least(flow.loss, number[0])


def up_to_t1(rng: np.random.Generator) -> Problem:
    """A number that passes another after the end of the run, and one that it never passes."""
    curve = curves.draw(rng)
    how = cut(rng, curve.timescale)
    x0 = float(curve.level(0.0))
    stays, other = (_stays_above, _stays_below) if curve.sign > 0 else (_stays_below, _stays_above)

    def statements(flow) -> list[Stated]:
        end = float(flow.t[-1])
        later = end * (1 + 10 ** rng.uniform(-3, 3))
        value = float(curve.level(later))
        room = abs(value / float(curve.level(end)) - 1)
        found = []
        # Next to a limit the number is as good as there, and so is the statement.
        if value > TINY and abs(value - curve.limit) > 1e-9 * abs(value):
            found.append(said("side", stays, [value], curve.time(value), expected=room > 1e-7))
            if curve.excess(value) > TINY:
                found.append(said("costly", _stays_costly, [curve.excess(value)], later, expected=room > 1e-7))
            if curve.shape.slows and curve.slope(value) ** 2 > TINY:
                found.append(said("steep", _stays_steep, [curve.slope(value) ** 2], later, expected=room > 1e-7))
        if np.isfinite(curve.limit):
            never = curve.limit - curve.sign * LITTLE * max(abs(curve.limit), abs(x0))
            found.append(said("side", stays, [never], None))
        found.append(said("costly", _stays_costly, [-LITTLE * curve.excess(x0)], None))
        found.append(said("other side", other, [x0 * (1 + curve.sign * LITTLE)], None))
        return found

    return Problem(curve.loss, curve.start, how, statements, curve.exact, curve.end)
