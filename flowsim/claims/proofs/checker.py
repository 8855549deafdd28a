"""A checker of certificates about gradient flows: `python checker.py CERTIFICATE.json` ends with 0 only on a proof.

It needs python-flint alone, shares no code with the maker of certificates, and believes none of its bounds.

A certificate holds a loss L on R^n, a start x_0 and the sides of a statement as lists of operations. The flow is
x' = f(x), f = -grad L, x(0) = x_0. For each piece of time it holds a polynomial p and numbers r, delta and mu. The
checker shows in ball arithmetic, for a piece of length h that is entered at a distance of at most e from p,

1. |p' - f(p)| <= delta on the piece;
2. every eigenvalue of -Hess L is at most mu in the tube |x - p(t)| <= r;
3. e < r and e exp(mu h) + delta (exp(mu h) - 1)/mu < r, and with the latter and the jump to the next p it goes on.

The Jacobian of f is the symmetric matrix -Hess L, so that |x - p|' <= mu |x - p| + delta while x is in the tube. The
bound in 3 is monotone in time and less than r at both ends, so x never leaves the tube. The sides of the statement are
evaluated at all points of the tube, on parts of each piece that are halved until the slack is certainly not negative (a
proof), or at one time, where it certainly is (a refutation).
"""

import functools
import hashlib
import json
import sys
from fractions import Fraction

from flint import arb, arb_poly, arb_series, ctx, fmpq

VERSION = 1
pairs = functools.partial(zip, strict=True)
HALVINGS = 30  # of a piece, until the statement is decided on each part


class RefusedError(Exception):
    """The certificate is not a proof, for the reason in the message."""


ZERO, ONE, MINUS = arb(0), arb(1), arb(-1)  # known to be so, and skipped


def number(text):
    """A ball around a number that is written as "0.3", "-2/7" or "5p-3", which is 5 * 2^-3."""
    if "p" in text:
        found = arb(tuple(map(int, text.split("p"))))
        return ZERO if found.is_zero() else found
    found = _rational(text)
    return arb(found) if isinstance(found, fmpq) else found


def _rational(text):
    exact = Fraction(text)
    if exact in (0, 1):
        return ONE if exact else ZERO
    return fmpq(exact.numerator, exact.denominator)


def _times(x, y):
    if x is ZERO or y is ZERO:
        return ZERO
    if x is ONE or y is ONE:
        return y if x is ONE else x
    return x * y


def _plus(x, y):
    if x is ZERO:
        return y
    return x if y is ZERO else x + y


def power(x, exponent):
    """x^k by multiplication, as flint's powers of balls around zero may be NaN."""
    x = abs(x) if isinstance(x, arb) and exponent % 2 == 0 else x
    return functools.reduce(_times, [x] * exponent, ONE)


def dot(x, y, shape):
    """Products of matrices, one after the other: (batch, rows, inner) times (batch, inner, columns)."""
    batch, rows, inner, columns = shape
    if len(x) != batch * rows * inner or len(y) != batch * inner * columns:
        raise RefusedError("the shapes of a product of matrices do not fit")
    found = [ZERO] * (batch * rows * columns)
    for row in range(batch * rows):
        right = row // rows * inner
        for k, factor in enumerate(x[row * inner : (row + 1) * inner]):
            if factor is not ZERO:
                for j, other in enumerate(y[(right + k) * columns : (right + k + 1) * columns], row * columns):
                    found[j] = _plus(found[j], _times(factor, other))
    return found


# Of each function: its value, its derivative from argument and value, and its value at 0.
FUNCTIONS = {
    "exp": (lambda x: x.exp(), lambda x, y: y, ONE),
    "log": (lambda x: x.log(), lambda x, y: 1 / x, arb.nan()),
    "sqrt": (lambda x: x.sqrt(), lambda x, y: 1 / (2 * y), ZERO),
    "sin": (lambda x: x.sin(), lambda x, y: x.cos(), ZERO),
    "cos": (lambda x: x.cos(), lambda x, y: -x.sin(), ONE),
    "erf": (lambda x: x.erf(), lambda x, y: 2 / arb.pi().sqrt() * (-x * x).exp(), ZERO),
}
BINARY = {
    "add": _plus,
    "sub": lambda x, y: ZERO if x is y else _plus(x, _times(MINUS, y)),
    "mul": _times,
    "div": lambda x, y: _times(x, 1 / y),
}


def _function(name, x):
    value, _, at_zero = FUNCTIONS[name]
    return at_zero if x is ZERO else value(arb(x) if isinstance(x, fmpq) else x)


def apply(name, given, parameter, read):
    """The value of an operation: a list of balls, of power series of balls, or of rational numbers."""
    if name == "number":
        return [read(text) for text in parameter]
    if name in BINARY:
        return [BINARY[name](x, y) for x, y in pairs(*given)]
    if name in FUNCTIONS:
        return [_function(name, x) for x in given[0]]
    if name == "power":
        return [power(x, parameter) for x in given[0]]
    if name == "take":
        everything = given[0] if len(given) == 1 else [x for one in given for x in one]
        return [everything[i] for i in parameter]
    if name == "dot":
        return dot(*given, parameter)
    raise RefusedError(f"the operation {name!r} is not known")


def pulled_back(name, parameter, given, value, adjoint):
    """The adjoints of the arguments of an operation."""
    if name == "add":
        return adjoint, adjoint
    if name == "sub":
        return adjoint, [_times(MINUS, a) for a in adjoint]
    if name == "mul":
        return [_times(a, y) for a, y in pairs(adjoint, given[1])], [_times(a, x) for a, x in pairs(adjoint, given[0])]
    if name == "div":
        first = [_times(a, 1 / y) for a, y in pairs(adjoint, given[1])]
        return first, [_times(MINUS, _times(a, q)) for a, q in pairs(first, value)]
    if name in FUNCTIONS:
        return ([ZERO if a is ZERO else a * FUNCTIONS[name][1](x, y) for a, x, y in pairs(adjoint, given[0], value)],)
    if name == "power":
        return ([_times(a, parameter * power(x, parameter - 1)) for a, x in pairs(adjoint, given[0])],)
    if name == "take":
        everything = [ZERO] * sum(map(len, given))
        for a, i in pairs(adjoint, parameter):
            everything[i] = _plus(everything[i], a)
        rest = iter(everything)
        return [[next(rest) for _ in one] for one in given]
    if name == "dot":
        batch, rows, inner, columns = parameter
        first = dot(adjoint, _transposed(given[1], batch, inner, columns), (batch, rows, columns, inner))
        return first, dot(_transposed(given[0], batch, rows, inner), adjoint, (batch, inner, rows, columns))
    raise RefusedError(f"the operation {name!r} is not differentiated")


def _transposed(x, batch, rows, columns):
    size = rows * columns
    return [x[b * size + i * columns + j] for b in range(batch) for j in range(columns) for i in range(rows)]


class Program:
    """A list of operations; those that depend on no input are carried out once.

    With read=rational the numbers are rational, and what is not rational is a ball. The same operation on the same
    numbers then gives the same ball, so that the difference of two things that are computed alike is exactly zero.
    """

    def __init__(self, document, read=number):
        self.operations, self.result, self.read = document["operations"], document["result"], read
        self.known, self.constant = {}, []
        for name, arguments, parameter in self.operations:
            given = [self.constant[i] for i in arguments]
            known = name != "input" and None not in given
            self.constant.append(self._apply(name, given, parameter) if known else None)

    def _apply(self, name, given, parameter):
        if self.read is number:
            return apply(name, given, parameter, number)
        key = name, tuple(tuple(map(id, one)) for one in given), str(parameter)
        if key not in self.known:
            self.known[key] = apply(name, given, parameter, _rational), given  # kept, so that no other takes its id
        return self.known[key][0]

    def values(self, inputs):
        """The values of all operations."""
        values = list(self.constant)
        for place, (name, arguments, parameter) in enumerate(self.operations):
            if values[place] is None:
                given = [values[i] for i in arguments]
                values[place] = inputs[parameter] if name == "input" else self._apply(name, given, parameter)
        return values

    def __call__(self, **inputs):
        return self.values(inputs)[self.result]

    def field(self, weights):
        """Minus the gradient of the one number of the result in the input "weights", by its adjoint."""
        values = self.values({"weights": weights})
        adjoints = [None] * len(values)
        (_,) = values[self.result]  # one number and no more
        adjoints[self.result] = [MINUS]
        found = [ZERO] * len(weights)
        for place in reversed(range(len(values))):
            adjoint, (name, arguments, parameter) = adjoints[place], self.operations[place]
            if adjoint is None or self.constant[place] is not None:
                continue
            if name == "input":
                found = adjoint
                continue
            given = [values[i] for i in arguments]
            for i, part in pairs(arguments, pulled_back(name, parameter, given, values[place], adjoint)):
                if self.constant[i] is None:
                    before = adjoints[i]
                    adjoints[i] = part if before is None else [_plus(x, y) for x, y in pairs(before, part)]
        return found


def series(coefficients, order):
    """A power series up to an order."""
    ctx.cap = order
    return ZERO if all(c is ZERO for c in coefficients) else arb_series(coefficients, order)


def coefficient(series, k):
    """Its k-th coefficient; of a number, that of a constant."""
    return series[k] if isinstance(series, arb_series) else (ZERO if k else series)


def length(numbers):
    """An upper bound of the Euclidean norm."""
    return functools.reduce(_plus, (power(abs(x).upper(), 2) for x in numbers), ZERO).sqrt().upper()


def hessian(program, box):
    """Hess L on a box of balls, a row for each weight."""
    n = range(len(box))
    along = [[series([box[j], ONE if i == j else ZERO], 2) for j in n] for i in n]
    return [[_times(MINUS, coefficient(slope, 1)) for slope in program.field(one)] for one in along]


def is_positive(matrix, more):
    """Whether (A + A^T)/2 + more I is positive definite for every A in a matrix of balls.

    The radii change no eigenvalue by more than the largest sum of a row of theirs, and the middle is factorized.
    """
    n = len(matrix)
    both = [[(matrix[i][j] + matrix[j][i]) / 2 for j in range(n)] for i in range(n)]
    more = more - functools.reduce(arb.max, (sum((x.rad() for x in row), ZERO).upper() for row in both))
    rows = [[both[i][j].mid() + (more if i == j else 0) for j in range(n)] for i in range(n)]
    for k in range(n):
        if not (rows[k][k] > 0 and all(x.is_finite() for x in both[k])):
            return False
        for i in range(k + 1, n):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [x - factor * y for x, y in pairs(rows[i], rows[k])]
    return True


class Piece:
    """A piece of the path: p(s) for 0 <= s <= h, about its middle."""

    def __init__(self, polynomials, begin, end):
        self.begin, self.h = begin, end - begin
        self.start = [p[0] if len(p) else ZERO for p in polynomials]
        self.centred = [arb_poly(p)(arb_poly([self.h / 2, 1])) for p in polynomials]

    def at(self, s, radius=ZERO):
        """All points within a radius of p(s) for a ball s, by an expansion about the middle of s."""
        around = arb_poly([s.mid() - self.h / 2, 1]), arb(0, s.rad())
        return [p(around[0])(around[1]) + arb(0, radius) for p in self.centred]

    def defect(self, program, order):
        """A bound of |p' - f(p)|: about the middle, with Lagrange's remainder."""
        half, total = self.h / 2, ZERO
        for spread, orders in ((ZERO, range(order)), (arb(0, half.upper()), [order])):
            shifted = [p(arb_poly([spread, 1])) for p in self.centred]
            states = [series(p.coeffs()[: order + 1], order + 1) for p in shifted]
            slopes = program.field(states)
            for k in orders:
                speeds = [(k + 1) * (p[k + 1] if p.degree() > k else ZERO) for p in shifted]
                off = [speed - coefficient(slope, k) for speed, slope in pairs(speeds, slopes)]
                total = total + length(off) * power(half, k)
        return total.upper()


def between(low, high):
    """All numbers from one to another."""
    return (low + high) / 2 + arb(0, ((high - low) / 2).upper())


def grown(error, mu, delta, h):
    """The solution of e' = mu e + delta after a time h, as an upper bound."""
    return (error * (mu * h).exp() + delta * (mu * h).expm1() / mu).upper()


def digest(certificate):
    """The SHA-256 of everything in the certificate but its digest."""
    rest = {key: value for key, value in certificate.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def follow(certificate):
    """Yield each piece and the radius of its tube, once its bounds are shown."""
    program, order = Program(certificate["loss"]), certificate["order"]
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
    """The sides of a statement: its slack is positive where it holds with room, and negative where it fails."""

    def __init__(self, certificate):
        self.certificate, self.sides = certificate, Program(certificate["sides"])
        self.start = Program(certificate["start"])()

    def at_start(self):
        """The slack at t = 0, as exactly as rational numbers go."""
        start = Program(self.certificate["start"], _rational)()
        return Program(self.certificate["sides"], _rational)(t=[ZERO], start=start, weights=start)

    def slack(self, piece, s, radius):
        """The slack for a ball of times and all points of the tube at these."""
        return self.sides(t=[piece.begin + s], start=self.start, weights=piece.at(s, radius))

    def rises(self, piece, s, radius):
        """Whether the slack is not negative at t = 0, and where it may be negative later its slope is not."""
        tube = piece.at(s, radius)
        slopes = Program(self.certificate["loss"]).field(tube)
        moving = [series([x, v], 2) for x, v in pairs(tube, slopes)]
        slack = self.sides(t=[series([piece.begin + s, ONE], 2)], start=self.start, weights=moving)
        grows = all(coefficient(x, 0) >= 0 or coefficient(x, 1) >= 0 for x in slack)
        return grows and all(x >= 0 for x in self.at_start())

    def show(self, piece, low, high, radius, halvings=HALVINGS):
        """Show that the slack is not negative for all s from low to high."""
        s = between(low, high)
        first = piece.begin is ZERO and low is ZERO
        if all(x >= 0 for x in self.slack(piece, s, radius)) or (first and self.rises(piece, s, radius)):
            return
        middle = ((low + high) / 2).mid()
        if not halvings or any(x < 0 for x in self.slack(piece, middle, radius)):
            raise RefusedError(f"the statement is not shown at t = {float(piece.begin + middle):.6g}")
        self.show(piece, low, middle, radius, halvings - 1)
        self.show(piece, middle, high, radius, halvings - 1)


def check(certificate):
    """What a certificate proves, in words; a RefusedError where it proves nothing."""
    if certificate.get("version") != VERSION:
        raise RefusedError(f"its version is {certificate.get('version')}, and this checker reads version {VERSION}")
    if certificate.get("digest") != digest(certificate):
        raise RefusedError("its digest is not that of its contents: something was changed")
    ctx.prec = certificate["precision"]
    statement, refutes = Statement(certificate), certificate["verdict"] == "refuted"
    if not certificate["pieces"]:
        slack = statement.at_start()
        if not (any(x < 0 for x in slack) if refutes else all(x >= 0 for x in slack)):
            raise RefusedError(f"the statement is not {certificate['verdict']}")
        return "refuted" if refutes else "proved"
    until, end = number(certificate["until"]), ZERO
    for piece, radius in follow(certificate):
        end = piece.begin + piece.h
        high = until - piece.begin if until < end else piece.h
        if refutes and until < end and any(x < 0 for x in statement.slack(piece, high, radius)):
            return f"refuted at t = {certificate['until']}"
        if not refutes:
            statement.show(piece, ZERO, high, radius)
    if refutes or not end >= until:
        raise RefusedError(f"the statement is not {certificate['verdict']} until t = {certificate['until']}")
    return f"proved for all t from 0 to {certificate['until']}"


def _main(path):
    try:
        with open(path, encoding="utf-8") as file:
            print(check(json.load(file)))
    except Exception as error:  # whatever is wrong with a certificate, it is no proof
        print(f"not a proof: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(_main(sys.argv[1]))
