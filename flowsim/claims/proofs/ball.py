"""Completes a certificate with a ball that the flow cannot leave, and with the exact limit of the flow if it is
needed.

The ball comes with fields v along which the loss is constant, <v, grad L> = 0. In the ball Hess L + sum v v^T is
positive definite. `flowsim.claims.proofs.ending` shows what follows from this.
"""

import contextlib
import functools
import itertools
from collections.abc import Iterator
from fractions import Fraction

import flint
import numpy as np
from flint import arb
from jaxtyping import Float

from flowsim._core.types import Document
from flowsim.claims.proofs import checker, ending, identities
from flowsim.claims.proofs.path import PRECISION, FollowedFlow, OpenError
from flowsim.claims.proofs.writer import exactly

_TIMES = 2.0 ** (np.arange(-4, 21) / 2)  # at which the flow is tried to be in such a ball
_LARGEST = 24  # weights, beyond which no field is looked for
_AGREES = 1e-9  # what a rational number may differ from one that was computed
_DENOMINATOR = 64
_LEAST = 1e-3  # of the largest curvature, which the least one must be
_LESS = 1 - 2.0**-5  # times the curvature at the centre: that in the ball
_WIDER = 1 + 2.0**-5  # times the remaining length: the radius
_SMALLEST = 1e-4  # of the weights: a radius at which sides that touch may meet in the limit
_LEAST_APART = 1e-12  # of the weights, by which the sides in the limit must fail

_BITS = 1024  # of the numbers of a limit that are recognized
_EXACT, _LARGEST_DENOMINATOR = 2.0**-900, 2**300  # their error, and how large the denominators may be
_STEPS = 12  # of Newton's method
_DEGREES = (2, 4)  # of roots of rational numbers
_MOST_ROOTS = 3

Field = list[list[int | str]]  # its entries, as [row, column, number]


def with_the_end(certificate: Document, followed: FollowedFlow, *, in_the_limit: bool) -> Document:
    """Add to a certificate the path until the flow is in a ball that it cannot leave, in which the statement is
    shown to hold everywhere, or to fail everywhere. If the sides of the statement meet in the limit, also add the
    exact limit.

    **Arguments:**

    - certificate: the statement and its verdict, still without a path.
    - followed: the flow.
    - in_the_limit: whether the statement is about the limit alone.

    **Returns:** the completed certificate.

    **Raises:** `OpenError` if no such ball is found, if the sides may meet in the limit, or if the ball shows the
    opposite of the verdict.
    """
    refutes = certificate["verdict"] == "refuted"
    of_time = any(operation[::2] == ["input", "t"] for operation in certificate["sides"]["operations"])
    with flint.ctx.workprec(PRECISION):
        statement = checker.Statement(certificate)
        for pieces, end, ball in _balls(followed):
            found = certificate | {"loss": followed.program, "pieces": pieces, "end": end} | followed.digits.fields
            slack, smallest = ball.slack(statement), _LEAST_APART if refutes else _SMALLEST
            fails, holds = any(x < 0 for x in slack), all(x >= 0 for x in slack)
            if fails if refutes else holds:
                return found
            if fails or holds:
                raise OpenError(f"the statement {'fails' if fails else 'holds'} in the ball at the end")
            limit = None if refutes else _limit(followed)
            if of_time and limit is None:
                raise OpenError(ending.OF_TIME)
            if limit is not None:
                found |= {"limit": limit, "about": ending.LIMIT if in_the_limit else ending.ALL_TIMES}
                known = ending.Limit(found, statement, ball)
                smallest = _LEAST_APART
                with contextlib.suppress(checker.RefusedError):  # what a smaller ball may show
                    known.show() if in_the_limit else known.show_around(slack)
                    return found
            if ball.radius < smallest * checker.length(statement.start).max(checker.length(ball.centre)):
                raise OpenError("its sides may meet in the limit")
    raise OpenError("the flow is not seen to end in a ball that it cannot leave")


def _balls(followed: FollowedFlow) -> Iterator[tuple[list[Document], Document, ending.Ball]]:
    """Yield balls that the flow cannot leave after a time t, for increasing t.

    **Yields:** the pieces of the path until t; the centre, radius, curvature and fields of the ball, in the form of
    a certificate; and the same ball as a `Ball`.
    """
    for t in map(float, _TIMES):
        if found := _ball_at(followed, t):
            yield followed.until(t).pieces, *found


@functools.lru_cache(maxsize=64)  # as it is the same for all statements about a flow
def _ball_at(followed: FollowedFlow, t: float) -> tuple[Document, ending.Ball] | None:
    """Return a ball that the flow cannot leave from a time on, as in a certificate and as a `Ball`; None if none is
    shown.
    """
    pieces = followed.until(t).pieces
    begin = checker.number(pieces[-2]["until"]) if len(pieces) > 1 else checker.ZERO
    numbers = [[checker.number(c) for c in p] for p in pieces[-1]["polynomials"]]
    piece = checker.Piece(numbers, begin, checker.number(pieces[-1]["until"]))
    states = piece.at(piece.h, checker.number(pieces[-1]["radius"]))
    fields = [*_constant(followed, len(states)), *(_fields(followed, len(states)) if len(states) <= _LARGEST else [])]
    return _ball(checker.Program(followed.program), states, fields)


def _ball(loss: checker.Program, states: list[arb], fields: list[Field]) -> tuple[Document, ending.Ball] | None:
    """Return a ball around ``states`` that no flow from these states leaves, as in a certificate and as a `Ball`.
    None if none is shown.

    **Arguments:** loss: the program of the loss; states: a ball of numbers for each weight; fields: fields along
    which the loss is constant.
    """
    centre = [arb(float(x)) for x in states]
    hessian = np.asarray([[float(x) for x in row] for row in checker.hessian(loss, centre)])
    if not np.all(np.isfinite(hessian)):
        return None
    chosen = _independent(fields, centre)
    rows = np.asarray([[float(x) for x in ending.at(field, centre)] for field in chosen]).reshape(-1, len(centre))
    least, *_, largest = np.linalg.eigvalsh(hessian + rows.T @ rows) if len(centre) > 1 else [hessian[0, 0]] * 2
    if not least > _LEAST * largest:
        return None
    curvature = arb(float(least) * _LESS)
    off = checker.length([x - c for x, c in zip(states, centre, strict=True)])
    radius = arb(float(_WIDER * (off + checker.length(loss.field(states)) / curvature)))
    end = {"centre": list(map(exactly, centre)), "fields": chosen}
    end |= {"radius": exactly(radius), "curvature": exactly(curvature)}
    ball = ending.Ball(loss, end)
    return (end, ball) if ball.is_curved() and ball.keeps(states) else None


def _independent(fields: list[Field], centre: list[arb]) -> list[Field]:
    """Select fields whose values at the centre are linearly independent."""
    kept, basis = [], np.zeros((0, len(centre)))
    for field in fields:
        value = np.asarray([float(x) for x in ending.at(field, centre)])
        rest = value - basis.T @ (basis @ value)
        if np.linalg.norm(rest) > _LEAST * np.linalg.norm([float(x) for x in centre]):
            kept.append(field)
            basis = np.vstack([basis, rest / np.linalg.norm(rest)])
    return kept


@functools.lru_cache(maxsize=4)
def _constant(followed: FollowedFlow, n: int) -> list[Field]:
    """Return the directions in which the weights do not move, as constant fields. The list is empty if the program
    of the loss changes along one of these directions.
    """
    fields: list[Field] = [[[k, n, str(a)] for k, a in direction] for direction in followed.domain.outside]
    try:
        ending.show_orthogonal(followed.program, fields, n)
    except identities.RefusedError:
        return []
    return fields


@functools.lru_cache(maxsize=4)
def _fields(followed: FollowedFlow, n: int) -> list[Field]:
    """Search for linear fields v with <v, grad L> = 0 everywhere. Return those of a basis that have rational
    entries and for which the equation is shown.
    """
    loss, rng = checker.Program(followed.program), np.random.default_rng(0)
    points = rng.standard_normal((n * n + n, n))
    slopes = np.asarray([[float(checker.coefficient(x, 0)) for x in loss.field(list(map(arb, p)))] for p in points])
    if not np.all(np.isfinite(slopes)):
        return []
    rows = (slopes[:, :, None] * points[:, None, :]).reshape(len(points), -1)
    _, sizes, across = np.linalg.svd(rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-300))
    kernel = _reduced(across[np.sum(sizes > _AGREES * sizes[0]) :])
    found = []
    for row in kernel:
        near = [Fraction(float(x)).limit_denominator(_DENOMINATOR) for x in row]
        field = [[k // n, k % n, str(a)] for k, a in enumerate(near) if a]
        try:
            ending.show_orthogonal(followed.program, [field], n)
        except identities.RefusedError:
            continue
        found.append(field)
    return found


@functools.lru_cache(maxsize=4)
def _limit(followed: FollowedFlow) -> Document | None:
    """Return a program that computes the limit of a flow: rational numbers times roots of rational numbers. None if
    the limit is not of this form.
    """
    _, _, ball = next(_balls(followed))
    with flint.ctx.workprec(_BITS):
        loss = checker.Program(followed.program)
        point = _converged(loss, ball, list(map(arb, checker.Program(followed.of_start)())))
        return None if point is None else _recognized(point)


def _converged(loss: checker.Program, ball: ending.Ball, start: list[arb]) -> list[arb] | None:
    """Find the limit of the flow by Newton's method, from the centre of a ball; return None if the method does not
    converge.

    At the limit the gradient is zero, and the conserved quadratic functions, whose gradients are the ball's fields,
    have their values at the start.
    """
    middles = lambda numbers: [arb(x).mid() for x in numbers]
    x, start = ball.centre, middles(start)
    for _ in range(_STEPS):
        down = middles(checker.coefficient(slope, 0) for slope in loss.field(x))
        rows = list(map(middles, checker.hessian(loss, x)))
        for field in ball.fields:
            v = middles(ending.at(field, x))
            parts = (checker.number(a) * ([*start, 2][j] * start[i] - [*x, 2][j] * x[i]) for i, j, a in field)
            off = (sum(parts, arb(0)) / 2).mid()
            down = middles(a + off * b for a, b in zip(down, v, strict=True))
            rows = [middles(c + a * b for c, b in zip(row, v, strict=True)) for row, a in zip(rows, v, strict=True)]
        step = flint.arb_mat(rows).solve(flint.arb_mat([[a] for a in down]), nonstop=True, algorithm="approx").entries()
        x = middles(a + b for a, b in zip(x, step, strict=True))
        if all(abs(a) < _EXACT for a in step):
            return x
    return None


def _recognized(point: list[arb]) -> Document | None:
    """Return a program for numbers that are rational multiples of products of at most three roots; None for other
    numbers.
    """
    roots: list[tuple[arb, Fraction, int]] = []  # their values, radicands and degrees
    factors: list[Fraction] = []
    powers: list[tuple[int, ...]] = []
    for x in point:
        if (found := _multiple(x, roots)) is None:
            radicands = ((_rational(checker.power(x, degree)), degree) for degree in _DEGREES)
            radicand, degree = next(((one, degree) for one, degree in radicands if one is not None), (None, 0))
            if radicand is None or len(roots) == _MOST_ROOTS:
                return None
            roots.append((abs(x), radicand, degree))
            found = Fraction(1 if x > 0 else -1), (0,) * (len(roots) - 1) + (1,)
        factors.append(found[0])
        powers.append(found[1])
    operations: list[list] = [["number", [], ["1"]], ["number", [], list(map(str, factors))]]
    result = 1
    for k, (_, radicand, degree) in enumerate(roots):
        operations.append(["number", [], [str(radicand)]])
        operations += [["sqrt", [len(operations) + i - 1], None] for i in range(degree // 2)]
        root = len(operations) - 1
        operations += [["power", [root], exponent] for exponent in range(1, degree)]
        chosen = [0, *range(root + 1, root + degree)]
        operations.append(["take", chosen, [one[k] if k < len(one) else 0 for one in powers]])
        operations.append(["mul", [result, len(operations) - 1], None])
        result = len(operations) - 1
    return {"operations": operations, "result": result}


def _multiple(x: arb, roots: list[tuple[arb, Fraction, int]]) -> tuple[Fraction, tuple[int, ...]] | None:
    """Write a number as a rational multiple of a product of powers of given roots: return the factor and the
    powers. None if the number is not of this form.

    **Arguments:** x: the number; roots: the value, the radicand and the degree of each root.
    """
    for powers in itertools.product(*(range(degree) for _, _, degree in roots)):
        product = arb(1)
        for (root, _, _), power in zip(roots, powers, strict=True):
            product = product * checker.power(root, power) if power else product
        if (factor := _rational(x / product)) is not None:
            return factor, powers
    return None


def _rational(x: arb) -> Fraction | None:
    """Return the fraction with a denominator of at most 2^300 that is within 2^-900 of a number; None if there is
    none.
    """
    mantissa, exponent = x.mid().man_exp()
    exact = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    near = exact.limit_denominator(_LARGEST_DENOMINATOR)
    return near if abs(exact - near) <= Fraction(_EXACT) else None


def _reduced(basis: Float[np.ndarray, "k n"]) -> Float[np.ndarray, "k n"]:
    """Return the basis in reduced echelon form of the space that the rows of ``basis`` span."""
    rows = basis.copy()
    for k in range(len(rows)):
        i, j = np.unravel_index(np.argmax(np.abs(rows[k:])), rows[k:].shape)
        rows[[k, k + i]] = rows[[k + i, k]]
        rows[k] /= rows[k, j]
        others = np.arange(len(rows)) != k
        rows[others] -= np.outer(rows[others, j], rows[k])
    return rows
