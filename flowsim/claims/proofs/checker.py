"""Checks certificates about gradient flows: `python checker.py CERTIFICATE.json` exits with 0 only on a proof.

It needs only python-flint, and checks every bound. A certificate holds a loss L on R^n, a start and the sides of a
statement as lists of operations. The flow is x' = f(x) = -grad L(x). For each piece of time, of length h, the
certificate also holds a polynomial p and numbers r, delta, mu. If |x - p| <= e at the left end, the checker shows

1. |p' - f(p)| <= delta, and every eigenvalue of -Hess L is at most mu in the tube |x - p(t)| <= r;
2. e < r and E < r with E = e exp(mu h) + delta (exp(mu h) - 1)/mu; the next e is E plus the jump to the next p.

As -Hess L is symmetric, |x - p|' <= mu |x - p| + delta in the tube. The resulting bound on |x - p| is monotone in
time and less than r at both ends, so x never leaves the tube. On the tube the sides are then bounded.
"""

import functools
import hashlib
import json
import sys
from fractions import Fraction

from flint import acb_mat, arb, arb_poly, arb_series, ctx, fmpq

VERSION = 1
pairs = functools.partial(zip, strict=True)
HALVINGS, ORDER = 30, 4  # of a piece, until the statement is decided on each part, and of its expansions
one_by = lambda x: 1 / x if coefficient(x, 0) != 0 else unknown() if isinstance(x, arb_series) else arb.nan()
unknown = lambda: arb_series([arb.nan()] * ctx.cap, ctx.cap)  # no number, as a number is a constant
_undefined = lambda x, y: x + y + unknown() if arb_series in (type(x), type(y)) else x * y
coefficient = lambda series, k: series[k] if isinstance(series, arb_series) else ZERO if k else series
between = lambda low, high: (low + high) / 2 + arb(0, ((high - low) / 2).upper())  # all numbers from one to another
# An upper bound of the solution of e' = mu e + delta after a time h.
grown = lambda error, mu, delta, h: (error * (mu * h).exp() + delta * (mu * h).expm1() / mu).upper()


class RefusedError(Exception):
    """The certificate does not prove what it states."""


ZERO, ONE, MINUS = arb(0), arb(1), arb(-1)  # known to be so, and skipped
_is_number = lambda x: x.is_finite() if type(x) is arb else coefficient(x, 0) * 0 == 0  # and not infinite
_times_zero = lambda x, y: ZERO if _is_number(x) and _is_number(y) else _undefined(x, y)
_times = lambda x, y: y if x is ONE else x if y is ONE else _times_zero(x, y) if x is ZERO or y is ZERO else x * y
_pulled = lambda adjoint, slope: ZERO if adjoint is ZERO else _times(adjoint, slope)  # as it may not be chosen
_plus = lambda x, y: y if x is ZERO else x if y is ZERO else x + y
_minus = lambda x, y: ZERO if x is y and _is_number(x) else x if y is ZERO else _plus(x, -y)
_rational = lambda text: ZERO if (x := Fraction(text)) == 0 else ONE if x == 1 else fmpq(x.numerator, x.denominator)
# At least what the radii of a symmetric matrix change an eigenvalue by: the largest sum of a row of them.
widest = lambda rows: functools.reduce(arb.max, (sum((x.rad() for x in row), ZERO).upper() for row in rows), ZERO)
NEAR = arb(1, 2.0**-40)  # how far numbers that were rounded may be off
_dyadic = lambda text: arb(tuple(map(int, text.split("p"))))
# A ball around a number that is written as "0.3", "-2/7" or "5p-3", which is 5 * 2^-3.
number = lambda text: arb(x) if isinstance(x := _dyadic(text) if "p" in text else _rational(text), fmpq) else x
# x^k by multiplication, since flint's power of a ball around zero may be NaN.
power = lambda x, k: functools.reduce(_times, [abs(x) if isinstance(x, arb) and k % 2 == 0 else x] * k, ONE)
length = lambda x: functools.reduce(_plus, (power(abs(y).upper(), 2) for y in x), ZERO).sqrt().upper()  # at least |x|


def whole(x, least=0):
    """A whole number that is at least ``least``."""
    if type(x) is int and x >= least:
        return x
    raise RefusedError(f"{x!r} is not a whole number of at least {least}")


def dot(x, y, shape, sound=True):
    """Products of (batch, rows, inner) and (batch, inner, columns). sound: all numbers are finite; skip zeros."""
    batch, rows, inner, columns = shape
    if len(x) != batch * rows * inner or len(y) != batch * inner * columns:
        raise RefusedError("the shapes of a product of matrices do not fit")
    found = [ZERO] * (batch * rows * columns)
    for row in range(batch * rows):
        right = row // rows * inner
        for k, factor in enumerate(x[row * inner : (row + 1) * inner]):
            if factor is not ZERO or not sound:
                for j, other in enumerate(y[(right + k) * columns : (right + k + 1) * columns], row * columns):
                    if other is not ZERO or not sound:
                        before = found[j]
                        found[j] = _times(factor, other) if before is ZERO else before + _times(factor, other)
    return found


def _above(x, y):
    moving = arb_series in (type(x), type(y))  # and may part where they are equal
    x, y = coefficient(x, 0), coefficient(y, 0)
    return ONE if x > y else ZERO if x < y or (x <= y and not moving) else unknown() if moving else arb(0.5, 0.5)


_either = lambda *given: unknown() if arb_series in map(type, given) else arb(given[1]).union(arb(given[2]))
_select = lambda which, x, y: x if which is ONE else y if which is ZERO else _either(which, x, y)
_shares = lambda which: (ZERO, which, 1 - which) if which in (ONE, ZERO) else (ZERO, unknown(), unknown())
ROOTS = "sqrt", "sqrt of squares"  # where the number cannot be negative, the second is taken
_of_squares = lambda x: between(ZERO, x.upper().sqrt()) if isinstance(x, arb) and x.contains(0) else x.sqrt()
_of = lambda function, at_zero: lambda x: at_zero if x is ZERO else function(arb(x) if isinstance(x, fmpq) else x)
# Of each operation on entries: its value, and its derivatives by each of them.
ENTRIES = {
    "add": (_plus, lambda x, y: (ONE, ONE)),
    "sub": (_minus, lambda x, y: (ONE, MINUS)),
    "mul": (_times, lambda x, y: (y, x)),
    "div": (lambda x, y: _times(x, one_by(y)), lambda x, y: (one_by(y), _times(_times(MINUS, x), one_by(y * y)))),
    "above": (_above, lambda x, y: (ZERO, ZERO)),
    "select": (_select, lambda which, x, y: _shares(which)),
    "exp": (_of(lambda x: x.exp(), ONE), lambda x: (x.exp(),)),
    "log": (_of(lambda x: x.log(), arb.nan()), lambda x: (one_by(x),)),
    ROOTS[0]: (_of(lambda x: x.sqrt(), ZERO), lambda x: (one_by(2 * x.sqrt()),)),
    ROOTS[1]: (_of(_of_squares, ZERO), lambda x: (one_by(2 * x.sqrt()),)),
    "sin": (_of(lambda x: x.sin(), ZERO), lambda x: (x.cos(),)),
    "cos": (_of(lambda x: x.cos(), ONE), lambda x: (-x.sin(),)),
    "erf": (_of(lambda x: x.erf(), ZERO), lambda x: (2 / arb.pi().sqrt() * (-x * x).exp(),)),
}


def pivots(rows, more):
    """Pivots of A + more I, for the midpoints A of a matrix of balls. As many are negative as eigenvalues are."""
    rows, found = [[x.mid() + (more if i == j else 0) for j, x in enumerate(row)] for i, row in enumerate(rows)], []
    while rows:
        first, *rest = rows
        found.append(first[0])
        rows = [[x - row[0] / first[0] * y for x, y in pairs(row[1:], first[1:])] for row in rest]
    return found


def eigenvalues(entries, n):
    """Balls around the eigenvalues, in increasing order, of a symmetric n x n matrix given by its lower triangle."""
    if len(entries) != n * n or arb_series in map(type, entries):
        raise RefusedError("eigenvalues are those of a square matrix, and have no expansion")
    rows = [[arb(entries[n * max(i, j) + min(i, j)]) for j in range(n)] for i in range(n)]
    with ctx.workprec(4 * ctx.prec):  # as pivots may be small; the middles are exact
        near = sorted(x.real.mid() for x in acb_mat([[x.mid() for x in row] for row in rows]).eig(algorithm="approx"))
        room = (abs(near[0]) + abs(near[-1])).upper() * 2.0 ** (30 - ctx.prec // 4) + 2.0 ** (-ctx.prec // 4)
        for k, x in enumerate(near):  # n - k are above x - room, and k + 1 below x + room
            if sum(p > 0 for p in pivots(rows, room - x)) < n - k or sum(p < 0 for p in pivots(rows, -room - x)) <= k:
                raise RefusedError("an eigenvalue is not enclosed")
        return [x + arb(0, (room + widest(rows)).upper()) for x in near]


OTHERS = {
    "number": lambda texts, read: [read(text) for text in texts],
    "near": lambda texts, read: [number(text) * NEAR for text in texts[1:]],  # the first tells these from all others
    "eigenvalues": lambda n, read, matrix: eigenvalues(matrix, whole(n)),
    "power": lambda exponent, read, given: [power(x, exponent) for x in given],
    "take": lambda places, read, *given: [*map(sum(given, []).__getitem__, places)],
    "dot": lambda shape, read, x, y: dot(x, y, shape, all(map(_is_number, x)) and all(map(_is_number, y))),
}


def apply(name, given, parameter, read):
    """The value of an operation on ``given``: a list of balls, power series of balls, or rational numbers."""
    if name in ENTRIES:
        return [ENTRIES[name][0](*entries) for entries in pairs(*given)]
    if name in OTHERS:
        return OTHERS[name](parameter, read, *given)
    raise RefusedError(f"the operation {name!r} is not known")


def pulled_back(name, parameter, given, adjoint, wanted):
    """The adjoints of the inputs for which ``wanted`` is true, from the adjoint of the operation's value."""
    if name in ENTRIES:
        slopes = [ENTRIES[name][1](*entries) for entries in pairs(*given)]
        return [each and [_pulled(a, slope[i]) for a, slope in pairs(adjoint, slopes)] for i, each in enumerate(wanted)]
    if name == "power":
        return ([_pulled(a, parameter * power(x, parameter - 1)) for a, x in pairs(adjoint, given[0])],)
    if name == "take":
        everything = [ZERO] * sum(map(len, given))
        for a, i in pairs(adjoint, parameter):
            everything[i] = _plus(everything[i], a)
        rest = iter(everything)
        return [[next(rest) for _ in one] for one in given]
    batch, rows, inner, columns = parameter  # of a dot
    swapped = lambda x, m, n: [x[b * m * n + i * n + j] for b in range(batch) for j in range(n) for i in range(m)]
    left = wanted[0] and dot(adjoint, swapped(given[1], inner, columns), (batch, rows, columns, inner))
    return left, wanted[1] and dot(swapped(given[0], rows, inner), adjoint, (batch, inner, rows, columns))


class Program:
    """A list of operations, called with its inputs. Operations that depend on no input are carried out once. With
    read=_rational equal ones share one value. A value minus itself is exactly zero."""

    def __init__(self, document, read=number):
        self.operations, self.result, self.read = [], document["result"], read
        self.known, self.constant, self.squares = {}, [], []
        for name, arguments, parameter in document["operations"]:
            given = [self.constant[whole(i)] for i in arguments]
            name = ROOTS[self.squares[arguments[0]]] if name in ROOTS else name
            self.squares.append(self._is_of_squares(name, arguments, parameter))
            self.operations.append((name, arguments, parameter))
            for x in parameter if name in ("take", "dot") else [parameter] if name == "power" else []:
                whole(x, least=1 if name == "power" else 0)
            found = self._apply(name, given, parameter) if name != "input" and None not in given else None
            self.constant.append(found and [ZERO if x == 0 else x for x in found])

    def _is_of_squares(self, name, arguments, parameter):
        """Whether the form of an operation shows that its values are nonnegative wherever they are defined."""
        of = [self.squares[i] for i in arguments]
        if name == "select":  # max(x, y) is x where x is above y
            which, compared, _ = self.operations[arguments[0]]
            return of[2] and (of[1] or (which == "above" and compared[0] == arguments[1] and self.squares[compared[1]]))
        twice = name in ("mul", "dot") and arguments[0] == arguments[1] and (parameter or [0, 1, 0, 1])[1::2] == [1, 1]
        even = (name == "power" and parameter % 2 == 0) or (name == "number" and all(number(x) >= 0 for x in parameter))
        kept = name in ("add", "mul", "div", "dot", "take", "power") and all(of)
        return twice or even or kept or name in (*ROOTS, "exp", "above")

    def _apply(self, name, given, parameter):
        if self.read is number:
            return apply(name, given, parameter, number)
        key = name, tuple(tuple(map(id, one)) for one in given), str(parameter)
        # What is given is kept along, so that nothing else takes its id.
        return self.known.setdefault(key, (apply(name, given, parameter, self.read), given))[0]

    def values(self, inputs):
        """The value of each operation, from the inputs by name."""
        values = list(self.constant)
        for place, (name, arguments, parameter) in enumerate(self.operations):
            if values[place] is None:
                given = [values[i] for i in arguments]
                values[place] = inputs.get(parameter) if name == "input" else self._apply(name, given, parameter)
        return values

    def __call__(self, **inputs):
        if not (found := self.values(inputs)[self.result]):
            raise RefusedError("a list of operations has no result, or reads what is not there")
        return found

    def field(self, weights):
        """Minus the gradient of the result, one number, with respect to the input "weights" (by reverse mode)."""
        values = self.values({"weights": weights})
        adjoints, found = [None] * len(values), [ZERO] * len(weights)
        (value,) = values[self.result]  # one number and no more
        adjoints[self.result] = [MINUS if coefficient(value, 0).is_finite() else unknown()]
        for place in reversed(range(len(values))):
            adjoint, (name, arguments, parameter) = adjoints[place], self.operations[place]
            if adjoint is None or self.constant[place] is not None:
                continue
            if name == "input":
                found = [_plus(x, y) for x, y in pairs(found, adjoint)]
                continue
            given, wanted = [values[i] for i in arguments], [self.constant[i] is None for i in arguments]
            for i, part in pairs(arguments, pulled_back(name, parameter, given, adjoint, wanted)):
                if self.constant[i] is None:
                    before = adjoints[i]
                    adjoints[i] = part if before is None else [_plus(x, y) for x, y in pairs(before, part)]
        return found


def _series(coefficients, order):
    ctx.cap = order
    return ZERO if all(c is ZERO for c in coefficients) else arb_series(coefficients, order)


def flow_series(program, states, order):
    """The power series of the flow from a box of states. Its coefficients obey (k + 1) x_{k+1} = f(x)_k."""
    flow = [[x] for x in states]
    for k in range(order):
        slopes = program.field([_series(x, k + 1) for x in flow])
        flow = [[*x, _times(coefficient(slope, k), ONE / (k + 1))] for x, slope in pairs(flow, slopes)]
    return [_series(x, order + 1) for x in flow] if order else flow


def hessian(program, box):
    """Hess L at all points of a box of balls, as a list of rows."""
    n = range(len(box))
    along = [[_series([box[j], ONE], 2) if i == j else box[j] for j in n] for i in n]
    return [[_times(MINUS, coefficient(slope, 1)) for slope in program.field(one)] for one in along]


def is_positive(matrix, more):
    """Whether (A + A^T)/2 + more I is positive definite for every A in a matrix of balls."""
    n = range(len(matrix))
    both = [[(matrix[i][j] + matrix[j][i]) / 2 for j in n] for i in n]
    return all(p > 0 for p in pivots(both, more - widest(both)))


class Piece:
    """A piece of the path: the polynomials p(s), 0 <= s <= h, expanded about the middle of this interval."""

    def __init__(self, polynomials, begin, end):
        self.begin, self.h = begin, end - begin
        self.start = [p[0] if len(p) else ZERO for p in polynomials]
        self.centred = [arb_poly(p)(arb_poly([self.h / 2, 1])) for p in polynomials]

    def at(self, s, radius=ZERO):
        """Balls that contain all points within ``radius`` of p(s), for all s in a ball."""
        around = arb_poly([s.mid() - self.h / 2, 1]), arb(0, s.rad())
        return [p(around[0])(around[1]) + arb(0, radius) for p in self.centred]

    def defect(self, program, order):
        """A bound on |p' - f(p)| by expansion about the middle, with Lagrange's remainder of this order."""
        half, total = self.h / 2, ZERO
        for spread, orders in ((ZERO, range(order)), (arb(0, half.upper()), [order])):
            shifted = [p(arb_poly([spread, 1])) for p in self.centred]
            slopes = program.field([_series(p.coeffs()[: order + 1], order + 1) for p in shifted])
            for k in orders:
                speeds = [(k + 1) * (p[k + 1] if p.degree() > k else ZERO) for p in shifted]
                off = [speed - coefficient(slope, k) for speed, slope in pairs(speeds, slopes)]
                total = total + length(off) * power(half, k)
        return total.upper()


def digest(certificate):
    """The SHA-256 of everything in the certificate but its digest."""
    rest = {key: value for key, value in certificate.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def follow(certificate):
    """Yield each piece of the path and the radius of its tube, once the bounds of the piece are shown."""
    program, order = Program(certificate["loss"]), whole(certificate["order"], least=1)
    at, begin, error = Program(certificate["start"])(), ZERO, ZERO
    for place, given in enumerate(certificate["pieces"]):
        end, radius, delta, mu = (number(given[key]) for key in ("until", "radius", "defect", "growth"))
        if not end > begin:
            raise RefusedError(f"piece {place} ends before it begins")
        piece = Piece([[number(c) for c in p] for p in given["polynomials"]], begin, end)
        error = (error + length([x - y for x, y in pairs(at, piece.start)])).upper()
        if not piece.defect(program, order) <= delta:
            raise RefusedError(f"the defect of piece {place} is not shown to be at most {given['defect']}")
        if not is_positive(hessian(program, piece.at(between(ZERO, piece.h), radius)), mu):
            raise RefusedError(f"an eigenvalue of -Hess L on piece {place} may be more than {given['growth']}")
        after = grown(error, mu, delta, piece.h)
        if not (error < radius and after < radius):
            raise RefusedError(f"the flow may leave the tube of piece {place}")
        yield piece, radius
        at, begin, error = piece.at(piece.h), end, after


class Statement:
    """The slack of a statement: positive where the statement holds strictly, and negative where it fails."""

    def __init__(self, certificate):
        self.certificate, self.sides = certificate, Program(certificate["sides"])
        self.start = Program(certificate["start"])()
        self.loss = Program(certificate["loss"]) if certificate["pieces"] else None

    def at_start(self, *, flow=True):
        """The slack at t = 0, in rational numbers if possible. With flow=False it may use neither t nor weights."""
        start = Program(self.certificate["start"], _rational)()
        along = {"t": [ZERO], "weights": start} if flow else {}
        return Program(self.certificate["sides"], _rational)(start=start, **along)

    def along(self, piece, s, radius, order=0):
        """The power series of the slack along the flow, from all points of the tube at all times in the ball s."""
        weights = flow_series(self.loss, piece.at(s, radius), order)
        t = _series([piece.begin + s, ONE], order + 1) if order else piece.begin + s
        return self.sides(t=[t], start=self.start, weights=weights if order else [x for (x,) in weights])

    def expanded(self, piece, about, s, radius, least):
        """Whether slack/(s - about)^least >= 0 for s in a ball, by the expansion of the slack at ``about``."""
        sides = pairs(self.along(piece, about, radius, ORDER - 1), self.along(piece, s, radius, ORDER))
        ends, zero = range(least, ORDER + 1), lambda y: 0 * coefficient(y, 0)  # or NaN where y is, also times zero
        rows = [[coefficient(y if k == ORDER else x, k) + zero(y) for k in ends] for x, y in sides]
        return all(sum((c * power(s - about, k) for k, c in enumerate(row)), ZERO) >= 0 for row in rows)

    def holds(self, piece, low, high, radius):
        """Whether this shows that the slack is nonnegative for low <= s <= high. At t = 0 the slack may be zero."""
        s = between(low, high)
        shown = all(x >= 0 for x in self.along(piece, s, radius)) or self.expanded(piece, s.mid(), s, radius, 0)
        first = not shown and piece.begin is ZERO and low is ZERO and all(x >= 0 for x in self.at_start())
        return shown or (first and self.expanded(piece, ZERO, s, radius, 1))

    def show(self, piece, low, high, radius, halvings=HALVINGS):
        """Show that the slack is nonnegative for all s from low to high; raises `RefusedError` if that fails."""
        if self.holds(piece, low, high, radius):
            return
        middle = ((low + high) / 2).mid()
        if not halvings or any(x < 0 for x in self.along(piece, middle, radius)):
            raise RefusedError(f"the statement is not shown at t = {float(piece.begin + middle):.6g}")
        self.show(piece, low, middle, radius, halvings - 1)
        self.show(piece, middle, high, radius, halvings - 1)


def check(certificate, follow=follow):
    """The statement that a certificate proves, in words. Raises `RefusedError` if it proves nothing."""
    if (version := certificate.get("version")) != VERSION:
        raise RefusedError(f"its version is {version}, and this checker reads version {VERSION}")
    if certificate.get("digest") != digest(certificate):
        raise RefusedError("its digest is not that of its contents: something was changed")
    with ctx.workprec(whole(certificate["precision"], least=2)):
        statement, refutes = Statement(certificate), {"proved": False, "refuted": True}[certificate["verdict"]]
        if not certificate["pieces"]:
            slack = statement.at_start(flow=refutes)
            if not (any(x < 0 for x in slack) if refutes else all(x >= 0 for x in slack)):
                raise RefusedError(f"the statement is not {certificate['verdict']}")
            return certificate["verdict"]
        until, end = number(certificate["until"]), ZERO
        for piece, radius in follow(certificate):
            end = piece.begin + piece.h
            high = until - piece.begin if until < end else piece.h
            if refutes and piece.begin <= until < end and any(x < 0 for x in statement.along(piece, high, radius)):
                return f"refuted at t = {certificate['until']}"
            if not refutes:
                statement.show(piece, ZERO, high, radius)
        if refutes or not end >= until:
            raise RefusedError(f"the statement is not {certificate['verdict']} until t = {certificate['until']}")
        return f"proved for all t from 0 to {certificate['until']}"


if __name__ == "__main__":
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            print(check(json.load(file)))
    except Exception as error:  # a certificate with any fault proves nothing
        raise SystemExit(f"not a proof: {error}") from None
