"""A checker of what holds for all t, or fails in the limit: `python ending.py CERTIFICATE.json` ends with 0 on a proof.

It needs python-flint alone, and `checker.py` and `identities.py` in the same folder. The certificate is one of
`checker.py` for some pieces of time, until T, with the ball at the end: a centre c, a radius R, a number m and affine
fields v_j. With g = grad L the checker shows that

1. <v_j(x), g(x)> is the polynomial zero;
2. Hess L + sum_j v_j v_j^T - m I is positive definite at all points of the ball |x - c| <= R;
3. |x(T) - c| + |g(x(T))|/m < R.

As g' = -(Hess L) g along the flow and <v_j, g> = 0, |g|' <= -m |g| in the ball, so that the remaining length of the
path is at most |g(x(T))|/m and the flow never leaves the ball. The sides are then bounded at all of its points,
whatever t is: what holds at all of them holds from T on, and what fails at all of them fails from T on and in the
limit.
"""

import json
import pathlib
import sys

from flint import arb, ctx

if __package__:
    from flowsim.claims.proofs import checker, identities
else:
    sys.path.append(str(pathlib.Path(__file__).parent))
    import checker  # pyright: ignore[reportMissingImports]
    import identities  # pyright: ignore[reportMissingImports]

VERSION = "ending 1"
RefusedError, digest = checker.RefusedError, checker.digest


def show_orthogonal(loss, fields, n):
    """Show that <v, grad L> is the polynomial zero for each field v. An entry [i, j, a] of a field adds a x_j to v_i,
    with x_n = 1.
    """
    ring = identities.Polynomials(n)
    (value,) = ring.values(loss, weights=ring.weights)
    value = ring.plain(ring.reduced(value))
    for field in fields:
        along = ring.zero
        for i, j, a in field:
            identities.whole([i, j], 0)
            along = along + ring.constant(a) * [*ring.weights, ring.constant(1)][j] * value.derivative(i)
        if ring.reduced(along) != 0:
            raise RefusedError("the loss is not constant along a field")


def at(field, box):
    """The values of a field on a box of balls."""
    found = [checker.ZERO] * len(box)
    for i, j, a in field:
        found[i] = found[i] + checker.number(a) * [*box, 1][j]
    return found


class Ball:
    """The ball |x - c| <= R of a certificate, around the weights at which its pieces of time end.

    **Arguments:** loss: a program; end: centre c, radius R, curvature m and affine fields v_j of the certificate.
    """

    def __init__(self, loss, end):
        self.loss, self.fields = loss, end["fields"]
        self.radius, self.curvature = checker.number(end["radius"]), checker.number(end["curvature"])
        self.centre = [checker.number(x) for x in end["centre"]]
        self.box = [x + arb(0, self.radius.upper()) for x in self.centre]

    def is_curved(self):
        """Whether Hess L + sum_j v_j v_j^T is larger than the curvature at all points."""
        rows = checker.hessian(self.loss, self.box)
        for v in [at(field, self.box) for field in self.fields]:
            rows = [[x + a * b for x, b in zip(row, v, strict=True)] for row, a in zip(rows, v, strict=True)]
        return bool(self.curvature > 0) and checker.is_positive(rows, -self.curvature)

    def keeps(self, states):
        """Whether no flow from a box of states leaves the ball, given `is_curved`."""
        off = checker.length([x - c for x, c in zip(states, self.centre, strict=True)])
        way = checker.length(self.loss.field(states)) / self.curvature
        return bool(off + way < self.radius)

    def slack(self, statement):
        """The slack of a statement at all points of the ball and at all t."""
        return statement.sides(t=[arb.nan()], start=statement.start, weights=self.box)


def check(certificate):
    """The statement that a certificate proves, in words; raises `RefusedError` if it proves nothing."""
    if (version := certificate.get("version")) != VERSION:
        raise RefusedError(f"its version is {version}, and this checker reads {VERSION}")
    if certificate.get("digest") != digest(certificate):
        raise RefusedError("its digest is not that of its contents: something was changed")
    with ctx.workprec(checker.whole(certificate["precision"], least=2)):
        return _shown(certificate)


def _shown(certificate):
    statement, end = checker.Statement(certificate), certificate["end"]
    refutes = {"proved": False, "refuted": True}[certificate["verdict"]]
    ball = Ball(checker.Program(certificate["loss"]), end)
    if not len(statement.start) == len(ball.centre):
        raise RefusedError("the ball has another number of weights")
    if ball.fields:
        show_orthogonal(certificate["loss"], ball.fields, len(ball.centre))
    if not ball.is_curved():
        raise RefusedError(f"the curvature is not shown to be at least {end['curvature']} in the ball")
    slack = ball.slack(statement)
    if not (any(x < 0 for x in slack) if refutes else all(x >= 0 for x in slack)):
        raise RefusedError(f"the statement is not {certificate['verdict']} in the ball at the end")
    states = None
    for piece, radius in checker.follow(certificate):
        if not refutes:
            statement.show(piece, checker.ZERO, piece.h, radius)
        states = piece.at(piece.h, radius)
    if states is None or not ball.keeps(states):
        raise RefusedError("the flow may leave the ball at the end")
    return "refuted in the limit" if refutes else "proved for all t from 0"


if __name__ == "__main__":
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            print(check(json.load(file)))
    except Exception as error:  # a certificate with any fault proves nothing
        raise SystemExit(f"not a proof: {error}") from None
