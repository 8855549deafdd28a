"""Encloses a gradient flow: a piecewise polynomial near it, and bounds on its distance, which the checker verifies.

A piece is the Taylor polynomial of the flow at its left end. It is so long that the remainder is negligible, or
shorter if the checker's bounds need that. If the field is stiff, with rates much faster than the flow, a piece is a
polynomial by collocation instead, which may be much longer.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import flint
import jax.numpy as jnp
import numpy as np
from flint import arb, arb_poly
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, PyTree

from flowsim._core import checks
from flowsim._core.balls.collocation import collocated
from flowsim._core.balls.operations import UndecidedError
from flowsim._core.types import Document
from flowsim.claims.proofs import checker
from flowsim.claims.proofs.domain import Domain, as_decimals, exactly_computed, numbers_of, rebuilt, refuse_sampled
from flowsim.claims.proofs.program import program
from flowsim.claims.proofs.writer import above, exactly
from flowsim.losses import AbstractPopulationLoss

PRECISION = 128  # bits, where the pieces of a path need no more
_FAR = 1e-9  # of the weights: a path with a larger error is computed with more digits
_GROWN = 1e-12  # of the weights: the error from which on a tube does not close for want of digits
_SHORTEST = 2.0**-40  # of the time so far, a piece that is not tried any more
_ROUNDS = 6  # of guesses of a radius
_ROOM = 4.0  # times the error at which a tube is first tried
_STAGES = 20  # of collocation; with more of them more digits cancel
_STIFF = 4.0  # the fastest rate times the length of a Taylor polynomial, from which on collocation is tried
_GROWTH, _SHRUNK, _SAFE = 2.0, 0.3, 0.8  # the ratio of two pieces by collocation
_TRIES, _WAIT = 2, 8  # lengths that are tried, and pieces until the next time
_ADDED, _ANYWAY = 0.02, 100.0  # what a longer piece may add to the error, of it or of what is negligible
_LOOSE = 0.03  # mu h beyond what it is in the middle of a piece by collocation
_STEEP = 2.0  # mu h, above which a piece is halved if that helps
_AGREES = 1e-9  # of the gradient's size, to which two routes to it must agree
_SEEN = 8  # of the pieces' ends, at which they are compared

Numbers = list[arb]


class Digits(NamedTuple):
    """The accuracy with which the pieces of a path are computed.

    **Fields:**

    - bits: the precision in bits.
    - degree: the degree of the polynomials.
    - negligible: the largest allowed remainder of a piece, relative to the weights.
    """

    bits: int
    degree: int
    negligible: float

    @property
    def fields(self) -> Document:
        """The fields of a certificate: the precision, and the order of the checker's expansion of the defect."""
        return {"precision": self.bits, "order": self.degree + 1}


_DIGITS = Digits(PRECISION, 20, 1e-20), Digits(2 * PRECISION, 40, 1e-45)


class OpenError(ArithmeticError):
    """Raised if neither a proof nor a refutation was found, for the reason in the message."""


@dataclasses.dataclass(frozen=True)
class Enclosure:
    """A proof that a gradient flow stays close to a piecewise polynomial, the path.

    **Fields:**

    - loss, start, pieces: as in a certificate; see `flowsim.claims.proofs.checker`.
    - ends: (pieces,) the times at which the pieces end, exactly.
    - errors: (pieces,) bounds on the Euclidean distance of the flow from the path at these times.
    - template: a model with weights in the shapes of the flow's.
    """

    loss: Document
    start: Document
    pieces: list[Document]
    ends: Float[np.ndarray, " pieces"]
    errors: Float[np.ndarray, " pieces"]
    template: PyTree

    def at(self, t: float) -> tuple[PyTree, float]:
        """Return the path at a time as a model, and a bound on the distance of the flow's weights from it.

        **Raises:** `ValueError` for a time outside of [0, t1].
        """
        place = int(np.searchsorted(self.ends, t))
        if not (t >= 0 and place < len(self.pieces)):
            checks.refuse("t", f"a time from 0 to {self.ends[-1]:g}", f"it is {t}")
        given = self.pieces[place]
        begin = checker.number(self.pieces[place - 1]["until"]) if place else checker.ZERO
        with flint.ctx.workprec(PRECISION):
            numbers = [[checker.number(c) for c in p] for p in given["polynomials"]]
            piece = checker.Piece(numbers, begin, checker.number(given["until"]))
            points = piece.at(arb(t) - begin)
            weights = np.asarray([float(x.mid()) for x in points])
            rounding = checker.length([x - float(w) for x, w in zip(points, weights, strict=True)])
            radius = _at_most(checker.number(given["radius"]) + rounding)
        return ravel_pytree(self.template)[1](jnp.asarray(weights)), radius


def enclose(loss: AbstractPopulationLoss, start: PyTree, *, t1: float) -> Enclosure:
    """Enclose the gradient flow of an exact loss up to a time, with proof.

    Every number of the loss and of the start is taken as the decimal in which it is written. On each piece of time
    the path is a polynomial p. Ball arithmetic bounds the defect |p' - f(p)| of the field f = -grad L, and the
    eigenvalues of -Hess L in a tube around p by mu. The distance e of the flow from p then obeys e' <= mu e + |p' -
    f(p)|.

    **Arguments:**

    - loss: exact, of operations that certificates have: arithmetic, powers, exp, log, sqrt, sin, cos, tanh, erf.
    - start: a model of the loss.
    - t1: the last time, positive.

    **Raises:** `ValueError` naming the argument, for a sampled loss, one whose gradient is not the derivative of
    its value, or an operation that certificates do not have; `OpenError` if no tube is found that holds the flow.
    """
    return FollowedFlow(loss, start).until(checks.time("t1", t1))


class FollowedFlow:
    """A gradient flow, enclosed up to the latest time requested. Later requests continue it. Proofs share it.

    **Arguments:**

    - loss, start: as for `enclose`.
    - exact_start: a function that computes the start from exact numbers when JAX traces it. If it is None or
      returns None, each weight of the start is the decimal in which it is written.

    **Fields:** domain: a `Domain`; program, of_start: the programs of the loss and of the start.

    **Raises:** as `enclose`.
    """

    def __init__(
        self, loss: AbstractPopulationLoss, start: PyTree, exact_start: Callable[[], PyTree | None] | None = None
    ):
        refuse_sampled(loss)
        if loss.speeds(start) is not None:
            checks.refuse("loss", "one whose weights flow at unit speed", f"{type(loss).__name__} has other speeds")
        self.domain = Domain(loss, start)
        try:
            value, weights = lambda weights: rebuilt(loss, start)(weights), self.domain.shapes
            self.program = program(value, given=numbers_of(loss), weights=weights)
        except UndecidedError as error:
            checks.refuse("loss", "one of operations that certificates have", str(error))
        self.loss, self.start = loss, start
        self._elsewhere = self.domain.near(np.random.default_rng(0), 1 / 4)
        self._check_gradient([])
        self.of_start = (exact_start and exactly_computed(exact_start, start)) or as_decimals(start)
        self._begin(_DIGITS[0])

    def _begin(self, digits: Digits) -> None:
        self.digits = digits
        with flint.ctx.workprec(digits.bits):
            self._steps = [_Step(None, checker.ZERO, checker.ZERO, checker.Program(self.of_start)())]

    def until(self, t1: float) -> Enclosure:
        """Return the enclosure up to a time >= 0, computed with more digits if the error grows large."""
        last = float(np.nextafter(t1, 2 * t1))  # of a decimal that may be above its float64
        try:
            self._follow(last)
            enough = self._error < _FAR
        except OpenError:
            if self._error < _GROWN:
                raise
            enough = False
        if not enough and self.digits != _DIGITS[-1]:
            self._begin(_DIGITS[-1])
            self._follow(last)
        ends = np.asarray([float(step.end) for step in self._steps])
        count = int(np.searchsorted(ends, last)) + 1
        pieces = [step.piece for step in self._steps[1:count] if step.piece is not None]
        errors = np.asarray([_at_most(step.error) for step in self._steps[1:count]])
        path = Enclosure(self.program, self.of_start, pieces, ends[1:count], errors, self.start)
        seen = path.ends[::-1][:: count // _SEEN + 1]
        self._check_gradient([np.asarray(ravel_pytree(path.at(float(t))[0])[0]) for t in seen])
        return path

    @property
    def _error(self) -> float:
        """The bound on the error at the end of the last piece, divided by the largest weight."""
        step = self._steps[-1]
        return float(step.error) / (max(abs(float(x)) for x in step.weights) or 1.0)

    def _follow(self, last: float) -> None:
        with flint.ctx.workprec(self.digits.bits):
            field = checker.Program(self.program)
            while self._steps[-1].end < arb(last):
                self._steps.append(_further(field, self.digits, self._steps[-1], arb(last)))

    def _check_gradient(self, points: list[np.ndarray]) -> None:
        """Refuse a loss whose `gradient` is not the derivative of its value, such as one with `stop_gradient`."""
        points, unravel = [self._elsewhere, *points], ravel_pytree(self.start)[1]
        with flint.ctx.workprec(PRECISION):
            field = checker.Program(self.program).field
            found = [field([arb(float(x)) for x in point]) for point in points]
            ours = -np.asarray([[float(checker.coefficient(x, 0)) for x in one] for one in found])
        slopes = [ravel_pytree(self.loss.gradient(unravel(jnp.asarray(point))))[0] for point in points]
        theirs = np.stack([np.asarray(slope) for slope in slopes])
        if not np.max(np.abs(ours - theirs)) <= _AGREES * np.max(np.abs(theirs)):
            checks.refuse("loss", "one whose gradient is the derivative of its value", "they differ at some weights")
        if np.any(theirs[:, self.domain.held]):
            checks.refuse("loss", "one that moves a weight everywhere or nowhere", "it moves one at some weights alone")


class _Step(NamedTuple):
    """The end of a piece, from which the path continues.

    **Fields:**

    - piece: the piece, as in a certificate; None at t = 0.
    - end, error, weights: the time, a bound on the error then, and the weights of the path then.
    - curvature: an approximate Hessian of the loss on the piece.
    - reach: after collocation, the length to try for the next piece.
    - waits: the number of next pieces for which collocation is not tried.
    - onwards: after collocation, the weights in more digits.
    """

    piece: Document | None
    end: arb
    error: arb
    weights: Numbers
    curvature: Float[np.ndarray, "n n"] = np.zeros((0, 0))
    reach: float = 0.0
    waits: int = 0
    onwards: Numbers | None = None

    @property
    def fastest(self) -> float:
        """The largest rate of the field, |Hess L|."""
        return float(np.linalg.norm(self.curvature, 2)) if self.curvature.size else 0.0


def _further(field: checker.Program, digits: Digits, before: _Step, last: arb) -> _Step:
    """Compute the next piece of a path, and return the step at its end, which is at ``last`` or before."""
    begin, centre = before.end, before.onwards or [ball.mid() for ball in before.weights]
    off = checker.length([ball - mid for ball, mid in zip(before.weights, centre, strict=True)])
    error = (before.error + off).upper()
    if before.onwards and (longer := _collocated(field, digits, before, centre, before.reach, last, error)):
        return longer
    series = _taylor(field, centre, digits.degree)
    if not all(c.is_finite() for one in series for c in one):
        raise OpenError(f"the field has no expansion at t = {float(begin):.6g}")
    h = _first_length(series, last - begin, digits)
    waits = before.waits - 1
    if waits < 0 and begin + h < last and float(h) * before.fastest > _STIFF:
        if longer := _collocated(field, digits, before, centre, _GROWTH * float(h), last, error):
            return longer
        waits = _WAIT
    while (found := _closed(field, digits, series, begin, end := _end(begin + h, last), error)) is None:
        h = h / 2
        if float(h) < _SHORTEST * max(float(begin), 1.0):
            raise OpenError(f"no tube was found that the flow does not leave, at t = {float(begin):.6g}")
    return found.step(end, waits=waits)


def _collocated(
    field: checker.Program, digits: Digits, before: _Step, centre: Numbers, length: float, last: arb, error: arb
) -> _Step | None:
    """Return the step after a piece by collocation, at most as long as ``length``; None if no piece is accurate.

    Its length can be the time in which the flow changes, even if the field has much faster rates.
    """
    begin, least = before.end, digits.negligible * (max(abs(float(x)) for x in centre) or 1.0)
    for _ in range(_TRIES):
        end = _end(begin + length, last)
        series = collocated(field.field, centre, end - begin, -before.curvature, _STAGES, least)
        found, asked = None if series is None else _closed(field, digits, series, begin, end, error), _SHRUNK
        if series is not None and found is not None:
            added = float(checker.number(found.given["defect"]) * (end - begin))
            most = max(_ADDED * float(error), _ANYWAY * least)
            # A tube around a long piece holds many points, so that its bound of the growth is loose.
            growth = float(checker.number(found.given["growth"])) + float(np.linalg.eigvalsh(found.curvature)[0])
            loose = max(growth * float(end - begin), _LOOSE * _GROWTH**-2)
            asked = min((most / added) ** (1 / _STAGES) if added else _GROWTH, (_LOOSE / loose) ** 0.5, _GROWTH)
            asked *= _SAFE
            if added <= most and loose <= _LOOSE:
                # Rounding would put the next piece off the slow motion, and a fast one in its polynomial.
                onwards = [arb_poly(one)(end - begin).mid() for one in series]
                return found.step(end, reach=asked * length, onwards=onwards)
        length = max(asked, _SHRUNK) * length
    return None


class _Closed(NamedTuple):
    """A piece with its bounds, as in a certificate; the error at its end; and an approximate Hess L on it."""

    given: Document
    piece: checker.Piece
    error: arb
    curvature: Float[np.ndarray, "n n"]

    def step(self, end: arb, **more: Any) -> _Step:
        """Return the step at the end of the piece."""
        return _Step(self.given, end, self.error, self.piece.at(self.piece.h), self.curvature, **more)


def _end(end: arb, last: arb) -> arb:
    """Round the end of a piece to a float64, so that it is exact; return ``last`` if the end is not before it."""
    return arb(float(end)) if end < last else last


def _at_most(bound: arb) -> float:
    """Return a float64 that is at least a bound."""
    return float(np.nextafter(float(bound.upper()), np.inf))


def _taylor(field: checker.Program, x: Numbers, degree: int) -> list[Numbers]:
    """Return the Taylor coefficients of the flow from a point, for each weight."""
    flow: Any = checker.flow_series(field, [checker.ZERO if one.is_zero() else one for one in x], degree)
    return [[checker.coefficient(one, k).mid() for k in range(degree + 1)] for one in flow]


def _first_length(series: list[Numbers], most: arb, digits: Digits) -> arb:
    """Return a length of few binary digits, at most ``most``, for which the last two terms are negligible."""
    size = _size(series)
    bounds = [
        (digits.negligible * size / largest) ** (1 / k)
        for k in (digits.degree - 1, digits.degree)
        if (largest := max(abs(float(one[k])) for one in series)) > 0
    ]
    h = min([*bounds, 2 * float(most)])
    if h >= float(most):
        return most
    mantissa, exponent = np.frexp(h)
    return arb((int(mantissa * 64), int(exponent) - 6))


def _closed(
    field: checker.Program, digits: Digits, series: list[Numbers], begin: arb, end: arb, error: arb
) -> _Closed | None:
    """Bound a piece with given coefficients. Return None if no tube is found that the flow cannot leave."""
    h = end - begin
    size = _size(series)
    numbers = [_rounded(one, float(h), digits.negligible * size) for one in series]
    piece = checker.Piece(numbers, begin, end)
    error = (error + checker.length([one[0] - x for one, x in zip(series, piece.start, strict=True)])).upper()
    delta = above(piece.defect(field, digits.degree + 1))
    if not delta.is_finite():
        return None
    radius = above(_ROOM * (error + delta * h))
    for _ in range(_ROUNDS):
        hessian = checker.hessian(field, piece.at(checker.between(checker.ZERO, h), radius))
        mu = _largest_eigenvalue(hessian)
        if mu is None or float(mu * h) > 64 * _STEEP:
            return None
        after = checker.grown(error, mu, delta, h)
        if error < radius and after < radius:
            bounds = {"radius": radius, "defect": delta, "growth": mu, "until": end}
            texts = {name: exactly(bound) for name, bound in bounds.items()}
            curvature = np.asarray([[float(x.mid()) for x in row] for row in hessian])
            return _Closed(texts | {"polynomials": [list(map(exactly, p)) for p in numbers]}, piece, after, curvature)
        radius = above(2 * error.max(after))
    return None


def _size(series: list[Numbers]) -> float:
    """Return the largest weight at the left end; if all are 0, the size to which they grow at first."""
    largest = [max(abs(float(one[k])) for one in series) for k in range(3)]
    return largest[0] or (largest[1] * min(1.0, largest[1] / (largest[2] or 1e-300))) or 1.0


def _rounded(coefficients: Numbers, h: float, least: float) -> Numbers:
    """Round all coefficients but the first. The polynomial changes by less than ``least`` on [0, h]."""
    kept = []
    for k, c in enumerate(coefficients):
        exponent = int(np.floor(np.log2(least) - k * np.log2(h))) - 6
        scaled = (c * arb((1, -exponent)) + arb(0.5)).mid().floor()
        kept.append(c if k == 0 else (scaled * arb((1, exponent))).mid())
    return kept


def _largest_eigenvalue(hessian: list[Numbers]) -> arb | None:
    """Return an upper bound on the eigenvalues of -Hess L that the checker can verify; None if it verifies none."""
    n = range(len(hessian))
    both = [[(hessian[i][j] + hessian[j][i]) / 2 for j in n] for i in n]
    middle, widest = np.asarray([[float(x.mid()) for x in row] for row in both]), float(checker.widest(both))
    if not (np.all(np.isfinite(middle)) and np.isfinite(widest)):
        return None
    values = np.linalg.eigvalsh(middle)
    size = float(np.max(np.abs(values)))
    for room in (2.0**-40, 2.0**-30, 2.0**-20):
        mu = above(arb(-values[0] + widest * (1 + room) + size * room))
        if checker.is_positive(hessian, mu):
            return mu
    return None
