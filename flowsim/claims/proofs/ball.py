"""The ball at the end of a flow: where it is, and the fields along which the loss is constant there."""

import functools
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

Field = list[list[int | str]]  # its entries, as [row, column, number]


def with_the_end(certificate: Document, followed: FollowedFlow) -> Document:
    """Complete a certificate with pieces of the path until the flow is in a ball at all of whose points the statement
    is shown to hold, or to fail.

    **Raises:** `OpenError` if no such ball is found.
    """
    if any(operation[::2] == ["input", "t"] for operation in certificate["sides"]["operations"]):
        raise OpenError("its sides depend on the time, and are judged at all later times together")
    refutes = certificate["verdict"] == "refuted"
    with flint.ctx.workprec(PRECISION):
        statement = checker.Statement(certificate)
        for pieces, end, ball in _balls(followed):
            slack = ball.slack(statement)
            fails, holds = any(x < 0 for x in slack), all(x >= 0 for x in slack)
            if fails if refutes else holds:
                return certificate | {"loss": followed.program, "pieces": pieces, "end": end} | followed.digits.fields
            if fails or holds:
                raise OpenError(f"the statement {'fails' if fails else 'holds'} in the ball at the end")
            if ball.radius < (_LEAST_APART if refutes else _SMALLEST) * checker.length(statement.start).max(
                checker.length(ball.centre)
            ):
                raise OpenError("its sides may meet in the limit")
    raise OpenError("the flow is not seen to end in a ball that it cannot leave")


def _balls(followed: FollowedFlow) -> Iterator[tuple[list[Document], Document, ending.Ball]]:
    """Balls that the flow cannot leave from ever later times on, with the pieces until then."""
    for t in map(float, _TIMES):
        if found := _ball_at(followed, t):
            yield followed.until(t).pieces, *found


@functools.lru_cache(maxsize=64)  # as it is the same for all statements about a flow
def _ball_at(followed: FollowedFlow, t: float) -> tuple[Document, ending.Ball] | None:
    """A ball that the flow cannot leave from a time on; None if none is shown."""
    pieces = followed.until(t).pieces
    begin = checker.number(pieces[-2]["until"]) if len(pieces) > 1 else checker.ZERO
    numbers = [[checker.number(c) for c in p] for p in pieces[-1]["polynomials"]]
    piece = checker.Piece(numbers, begin, checker.number(pieces[-1]["until"]))
    states = piece.at(piece.h, checker.number(pieces[-1]["radius"]))
    fields = [*_constant(followed, len(states)), *(_fields(followed, len(states)) if len(states) <= _LARGEST else [])]
    return _ball(checker.Program(followed.program), states, fields)


def _ball(loss: checker.Program, states: list[arb], fields: list[Field]) -> tuple[Document, ending.Ball] | None:
    """A ball around states that no flow from them leaves; None if none is shown."""
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
    """Fields with independent values at the centre."""
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
    """The directions that leave the domain of the loss, where the program of it does not change along them."""
    fields: list[Field] = [[[k, n, str(a)] for k, a in direction] for direction in followed.domain.outside]
    try:
        ending.show_orthogonal(followed.program, fields, n)
    except identities.RefusedError:
        return []
    return fields


@functools.lru_cache(maxsize=4)
def _fields(followed: FollowedFlow, n: int) -> list[Field]:
    """Linear fields v with <v, grad L> = 0 everywhere: a basis of those with rational entries."""
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


def _reduced(basis: Float[np.ndarray, "k n"]) -> Float[np.ndarray, "k n"]:
    """The basis of the same space in reduced echelon form."""
    rows = basis.copy()
    for k in range(len(rows)):
        i, j = np.unravel_index(np.argmax(np.abs(rows[k:])), rows[k:].shape)
        rows[[k, k + i]] = rows[[k + i, k]]
        rows[k] /= rows[k, j]
        others = np.arange(len(rows)) != k
        rows[others] -= np.outer(rows[others, j], rows[k])
    return rows
