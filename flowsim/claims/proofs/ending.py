"""Checks claims about all t or about the limit: `python ending.py CERTIFICATE.json` exits with 0 only on a proof.

It needs only python-flint, and `checker.py` and `identities.py` in the same folder. A certificate has the form that
`checker.py` reads, with pieces of time until T, and also a ball at the end: a centre c, a radius R, a number m and
affine fields v_j. With g = grad L the checker shows that

1. <v_j(x), g(x)> is the polynomial zero;
2. Hess L + sum_j v_j v_j^T - m I is positive definite at all points of the ball |x - c| <= R;
3. |x(T) - c| + |g(x(T))|/m < R.

As g' = -(Hess L) g along the flow and <v_j, g> = 0, |g|' <= -m |g| in the ball, so that the remaining length of the
path is at most |g(x(T))|/m and the flow never leaves the ball. The sides are then bounded at all points of the
ball, for every t: what holds at all of these points holds from T on, and what fails at all of them fails from T on
and in the limit.

A certificate may also give a point x* by exact numbers. Then every v_j is the gradient of a quadratic q_j, which
the flow conserves, and the checker shows, with polynomials, that

4. x* is in the ball, g(x*) = 0, q_j(x*) = q_j(x(0)), and a weight that stays zero is zero in x*.

Then x* is the limit of the flow. To see this, let y be the true limit. It is in the ball too, with g(y) = 0 and
q_j(y) = q_j(x*). Let d = y - x*, let M be the mean of Hess L over the segment from x* to y, and take v_j at its
midpoint. Then <d, M d> = <d, g(y) - g(x*)> = 0 and <v_j, d> = q_j(y) - q_j(x*) = 0, so that d = 0 by 2. A statement
about the limit is computed at x*. If the slack of a statement for all t is a polynomial s, it is shown from T on by

5. s(x*) = 0, grad s(x*) = 0, and Hess s + k sum_j v_j v_j^T is positive definite in the ball for some k.

To see this, let d = x(t) - x*, and let S be a weighted mean of Hess s over the segment from x* to x(t). Again <v_j,
d> = 0, so that s(x(t)) = <d, S d>/2, which is positive, as x(t) never reaches x*.

Let p be a polynomial, and a, c, r numbers. A slack s = c log p + r t + a that is not negative at T stays so if
p > 0 and p s' = r p + c p' >= 0. A slack s = c exp(r t + a) + p that is not negative at T stays so if
s' - r s = p' - r p >= 0.
"""

import functools
import json
import operator
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
LIMIT, ALL_TIMES = "the limit", "all times"  # what a certificate that knows the limit may be about
NEAR = 2.0**-96  # a distance from the limit, in which the slacks of a statement about it are computed
OF_TIME = "its sides depend on the time, and are judged at all later times together"
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
    """The values of an affine field at all points of a box of balls."""
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

    def with_fields(self, rows, factor):
        """The matrix ``rows`` plus a factor times sum_j v_j v_j^T, at all points of the ball."""
        for v in [at(field, self.box) for field in self.fields]:
            rows = [[x + factor * a * b for x, b in zip(row, v, strict=True)] for row, a in zip(rows, v, strict=True)]
        return rows

    def is_curved(self):
        """Whether the curvature m is positive and Hess L + sum_j v_j v_j^T - m I positive definite in the ball."""
        rows = self.with_fields(checker.hessian(self.loss, self.box), 1)
        return bool(self.curvature > 0) and checker.is_positive(rows, -self.curvature)

    def holds(self, point, further=checker.ZERO):
        """Whether the ball contains all points within the distance ``further`` of a box of balls."""
        return bool(checker.length([x - c for x, c in zip(point, self.centre, strict=True)]) + further < self.radius)

    def keeps(self, states):
        """Whether no flow from a box of states leaves the ball, provided that `is_curved` is true."""
        return self.holds(states, checker.length(self.loss.field(states)) / self.curvature)

    def slack(self, statement):
        """The slack of a statement at all points of the ball and at all t."""
        return statement.sides(t=[arb.nan()], start=statement.start, weights=self.box)


def conserved(ring, field, x):
    """The value at exact numbers x of the quadratic polynomial whose gradient is a field."""
    entries = {(i, j): ring.zero for i, j, _ in field}
    for i, j, a in field:
        entries[i, j] = entries[i, j] + ring.constant(a)
    if any(j < ring.n and entries.get((j, i)) != a for (i, j), a in entries.items()):
        raise RefusedError("a field is not the gradient of what the flow conserves")
    values = [*x, ring.constant(2)]
    return sum((a * values[i] * values[j] / 2 for (i, j), a in entries.items()), ring.zero)


class Limit:
    """The limit of the flow of a certificate, as exact numbers. The flow must be shown separately to end in the
    ball.

    **Arguments:** certificate; statement: its statement; ball: its ball.

    **Raises:** `RefusedError` if the point in the certificate is not shown to be the limit.
    """

    def __init__(self, certificate, statement, ball):
        self.certificate, self.statement, self.ball = certificate, statement, ball
        self.signs = {}  # of polynomials, as texts
        self.in_another_ball = False  # whether a smaller ball may show more
        self.ring = ring = identities.Polynomials(len(ball.centre))
        self.exactly, self.start = ring.values(certificate["limit"]), ring.values(certificate["start"])
        self.balls = checker.Program(certificate["limit"])()
        self.known = dict(zip(ring.names, [*ball.box, arb.nan()], strict=False))  # the last being t
        (loss,) = ring.values(certificate["loss"], weights=ring.weights)
        self.weights, self.along = identities.field(ring, ring.plain(ring.reduced(loss)), self.start)
        if not len(self.exactly) == len(self.start) == ring.n:
            raise RefusedError("the limit has another number of weights")
        if not ball.holds(self.balls):
            raise RefusedError("the limit is not in the ball at the end")
        stays = [x for x, weight in zip(self.exactly, self.weights, strict=True) if weight == 0]
        differences = [conserved(ring, v, self.exactly) - conserved(ring, v, self.start) for v in ball.fields]
        slopes = [ring.within(slope, self.exactly, ring.zero) for slope in self.along]
        if any(ring.reduced(x) != 0 for x in (*stays, *differences, *slopes)):
            raise RefusedError("the point that is given is not the limit")
        ring.defined, ring.decided = self._refuse_undefined, self._decided

    def show(self):
        """Show that the slacks tend to numbers that are not negative.

        A function may jump at the limit. The slacks are therefore computed at all points near the limit and, where
        two numbers that are compared are equal in the limit, for both outcomes of the comparison, which must agree.
        """
        self.ring.decided = lambda p: None if p == 0 else self._decided(p)
        given = {"start": self.start, "weights": self.exactly, "t": [self.ring.t]}
        moves = [arb(0, NEAR if weight != 0 else 0) for weight in self.weights]
        around = [x + by for x, by in zip(self.balls, moves, strict=True)]
        near = self.statement.sides(t=[arb.nan()], start=self.statement.start, weights=around)
        for value, exact in zip(near, self.ring.values(self.certificate["sides"], **given), strict=True):
            if not (value >= 0 or (value.is_finite() and self.ring.reduced(exact) == 0)):
                raise identities.RefusedError("the statement is not shown in the limit")

    def show_around(self, slacks):
        """Show that slacks that are not negative at T stay so after T. ``slacks`` are their values in the ball."""
        if all(a.overlaps(b) for a, b in zip(self.statement.start, self.balls, strict=True)):
            raise RefusedError("the flow is not shown to move")
        given = {"start": self.start, "weights": self.weights, "t": [self.ring.t]}
        for value, exact in zip(slacks, self.ring.values(self.certificate["sides"], **given), strict=True):
            if not (value >= 0 or self._holds(self.ring.reduced(exact))):
                refusal = RefusedError if self.in_another_ball else identities.RefusedError
                raise refusal("its sides may meet in the limit" if self._is_plain(exact) else OF_TIME)

    def _moving(self, p):
        """The names of those variables in a polynomial that are not numbers."""
        return self.ring.names_of(p) - self.ring.known

    def _is_plain(self, p):
        """Whether p is a polynomial of the weights alone. Its coefficients may contain unknown numbers."""
        return self._moving(p) <= set(self.ring.names[: self.ring.n])

    def _holds(self, slack):
        """Whether a slack that is not negative at T is so from T on: a polynomial of the weights, c log p + r t + a, or
        c exp(r t + a) + p, with a polynomial p of the weights and numbers a, c and r.
        """
        if self._is_plain(slack):
            return self._is_never_negative(slack)
        t, of_t = self.ring.t, self.ring.n
        if (form := self._of("log", slack)) is not None:
            c, log, p = form
            rate = slack.derivative(of_t)
            if self._moving(rate) or self._moving(slack - c * log - rate * t) or not self._is_plain(p):
                return False
            return self._is_above(p) and self._is_never_negative(rate * p + c * self._slope(p))  # it is p s'
        if (form := self._of("exp", slack)) is None:
            return False
        c, exponential, exponent = form
        rate, p = exponent.derivative(of_t), slack - c * exponential
        if self._moving(rate) or self._moving(exponent - rate * t) or not self._is_plain(p):
            return False
        return self._is_never_negative(self._slope(p) - rate * p)  # it is s' - r s

    def _slope(self, p):
        """The derivative of a polynomial of the weights along the flow."""
        return sum((speed * p.derivative(i) for i, speed in enumerate(self.along)), self.ring.zero)

    def _of(self, kind, p):
        """The parts c, f(q) and q of a polynomial p = c f(q) + rest, where f is the function named ``kind``.

        None unless p contains exactly one value of a function that is not a number, and this value is f(q).
        """
        found = [u for u in self.ring.unknowns.values() if str(u) in self._moving(p)]
        if len(found) != 1 or self.ring.meaning[str(found[0])][0] != kind:
            return None
        c = p.derivative(self.ring.names.index(str(found[0])))
        return None if self._moving(c) else (c, found[0], self.ring.meaning[str(found[0])][1][0])

    def _decided(self, p):
        """1 if a polynomial is shown to be positive wherever the flow is from T on, 0 if negative, else None."""
        if p.is_constant():
            return identities.sign(p)
        if str(p) not in self.signs:
            self.signs[str(p)] = 1 if self._is_above(p) else 0 if self._is_above(-p) else None
        self.in_another_ball |= self.signs[str(p)] is None
        return self.signs[str(p)]

    def _refuse_undefined(self, name, p):
        """Refuse a logarithm, a root or a quotient that is not shown to be defined wherever the flow is from T on."""
        sign = self.ring.decided(p)
        if not (sign == 1 or (name == "div" and sign == 0 and p != 0) or (name == "sqrt" and p == 0)):
            refusal = RefusedError if self.in_another_ball else identities.RefusedError
            raise refusal(f"it is not shown where the operation {name} is defined")

    def _is_above(self, p):
        """Whether p is shown to be positive wherever the flow is from T on. It may be a polynomial of the weights,
        or a + c log q with a polynomial q of the weights.
        """
        if self._is_plain(p):
            return bool(self._around(p) > 0) or self._is_least(p)
        if (form := self._of("log", p)) is None:
            return False
        c, log, q = form
        if self._moving(p - c * log) or not self._is_above(q):
            return False
        most, factor = self._around(q).upper().log(), self._around(c)
        return bool(factor < 0 and self._around(p - c * log) + factor * most > 0)

    def _is_never_negative(self, p):
        """Whether a polynomial of the weights is shown to be not negative wherever the flow is from T on."""
        p = self.ring.reduced(p)
        return bool(self._around(p) >= 0) or self._is_least(p)

    def _is_least(self, p):
        """Whether a polynomial of the weights is zero in the limit, and is shown to be positive wherever else in
        the ball the flow may be.
        """
        n = range(self.ring.n)
        slopes = [p.derivative(i) for i in n]
        if self.ring.within(p, self.exactly, self.ring.t) != 0:
            self.in_another_ball = True
            return False
        if any(self.ring.within(slope, self.exactly, self.ring.t) != 0 for slope in slopes):
            return False
        rows = [[self._around(slope.derivative(j)) for j in n] for slope in slopes]
        largest = functools.reduce(arb.max, (abs(x).upper() for row in rows for x in row), checker.ZERO)
        fields = checker.length([checker.length(at(field, self.ball.centre)) for field in self.ball.fields])
        rows = self.ball.with_fields(rows, (largest / (fields * fields)).mid())  # any factor would do
        moving = [i for i in n if self.weights[i] != 0]
        found = checker.is_positive([[rows[i][j] for j in moving] for i in moving], checker.ZERO)
        self.in_another_ball |= not found
        return found

    def _around(self, p):
        """The values of a plain polynomial in the ball."""
        used = [name if degree > 0 else None for name, degree in zip(self.ring.names, p.degrees(), strict=True)]
        values, found = [name and self._value(name) for name in used], checker.ZERO
        for exponents, c in p.terms():
            powers = (checker.power(x, k) for x, k in zip(values, exponents, strict=True) if k)
            found = found + functools.reduce(operator.mul, powers, arb(c))
        return found

    def _value(self, name):
        """A ball that contains the values of one variable: of a weight in the ball, or of an unknown that is a
        number.
        """
        if name not in self.known:
            kind, given = self.ring.meaning[name]
            if kind == "near":
                _, k, *parameter = given
                self.known[name] = checker.apply(kind, [], parameter, checker.number)[k]
            else:
                self.known[name] = checker.ENTRIES[kind][0](*map(self._around, given))
        return self.known[name]


def check(certificate, follow=checker.follow):
    """The statement that a certificate proves, in words; raises `RefusedError` if it proves nothing."""
    if (version := certificate.get("version")) != VERSION:
        raise RefusedError(f"its version is {version}, and this checker reads {VERSION}")
    if certificate.get("digest") != digest(certificate):
        raise RefusedError("its digest is not that of its contents: something was changed")
    with ctx.workprec(checker.whole(certificate["precision"], least=2)):
        return _shown(certificate, follow)


def _shown(certificate, follow):
    statement, end = checker.Statement(certificate), certificate["end"]
    refutes = {"proved": False, "refuted": True}[certificate["verdict"]]
    ball = Ball(checker.Program(certificate["loss"]), end)
    if not len(statement.start) == len(ball.centre):
        raise RefusedError("the ball has another number of weights")
    if ball.fields:
        show_orthogonal(certificate["loss"], ball.fields, len(ball.centre))
    if not ball.is_curved():
        raise RefusedError(f"the curvature is not shown to be at least {end['curvature']} in the ball")
    slack, of_the_limit = ball.slack(statement), False
    if "limit" in certificate and not refutes:
        limit = Limit(certificate, statement, ball)
        of_the_limit = {ALL_TIMES: False, LIMIT: True}[certificate["about"]]
        if of_the_limit:
            limit.show()
        else:
            limit.show_around(slack)
    elif not (any(x < 0 for x in slack) if refutes else all(x >= 0 for x in slack)):
        raise RefusedError(f"the statement is not {certificate['verdict']} in the ball at the end")
    states = None
    for piece, radius in follow(certificate):
        if not (refutes or of_the_limit):
            statement.show(piece, checker.ZERO, piece.h, radius)
        states = piece.at(piece.h, radius)
    if states is None or not ball.keeps(states):
        raise RefusedError("the flow may leave the ball at the end")
    return "proved in the limit" if of_the_limit else "refuted in the limit" if refutes else "proved for all t from 0"


if __name__ == "__main__":
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            print(check(json.load(file)))
    except Exception as error:  # a certificate with any fault proves nothing
        raise SystemExit(f"not a proof: {error}") from None
