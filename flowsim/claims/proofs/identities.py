"""Checks equalities for all t: `python identities.py CERTIFICATE.json` exits with 0 only on a proof.

It needs only python-flint. A certificate holds a loss L, a start and the slack of a statement as lists of
operations. Each operation is carried out on polynomials with rational coefficients. Their unknowns are the weights,
t, and one more for each value of a function that is not a polynomial. If c > 0 is a rational number times square
roots of numbers, the square of the unknown for sqrt(c) is replaced by c. With f = -grad L, the checker shows for
each slack s(t, x) that

1. ds/dt + <f, grad s> is the polynomial zero, so that s is constant along the flow x' = f(x);
2. s is zero at the start.

It also shows that roots, logarithms and quotients are defined. The argument of a root must be a number, or a sum of
squares and of values that are never negative. The argument of a logarithm, and a divisor, must be a number, or a
sum of this form that contains a positive number.

Weights that are zero at the start stay zero if their components of f are zero wherever these weights are zero. They
are replaced by zero. A value times zero, or minus itself, is taken as zero.
"""

import functools
import hashlib
import json
import math
import operator
import sys
from collections.abc import Callable
from fractions import Fraction

from flint import Ordering, fmpq, fmpq_mpoly_ctx

VERSION = "identity 1"
UNKNOWNS = 64  # values of other functions
NOTHING = "nothing"  # the value of a number divided by zero, and of all that is computed with it
ROOTS = 8  # square roots, of which all products are tried


class RefusedError(Exception):
    """The certificate does not prove what it states."""


def digest(certificate):
    """The SHA-256 of everything in the certificate but its digest."""
    rest = {key: value for key, value in certificate.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def whole(numbers, least):
    """A list of whole numbers that are at least ``least``."""
    if not all(type(x) is int and x >= least for x in numbers):
        raise RefusedError(f"{numbers} are not whole numbers of at least {least}")
    return numbers


def sign(p):
    """1 if a polynomial is a positive constant, 0 if it is another constant, None if it is not constant."""
    return int(p != 0 and p.leading_coefficient() > 0) if p.is_constant() else None


def rational_root(constant):
    """The square root of a positive constant polynomial if it is rational, else None."""
    c = constant.leading_coefficient()
    found = fmpq(math.isqrt(int(c.p)), math.isqrt(int(c.q)))
    return found if found**2 == c else None


class Polynomials:
    """The polynomials in n weights, in t, and in one unknown for each value of another function.

    **Fields:**

    - defined: (name, p) raises an error unless the logarithm or the root of p, or a number divided by p, is shown to be
      defined. By default the form of p has to show it.
    - decided: p -> 1 if p is positive, 0 if it is not, None if this is not known. By default constants are decided.
    """

    def __init__(self, n):
        self.defined: Callable = self._is_defined_by_form
        self.decided: Callable = sign
        self.names = [*[f"x{i}" for i in range(n)], "t", *[f"v{i}" for i in range(UNKNOWNS)]]
        gens = list(fmpq_mpoly_ctx.get(self.names, Ordering.lex).gens())
        self.n, self.weights, self.t, self.rest = n, gens[:n], gens[n], gens[n + 1 :]
        self.zero, self.unknowns, self.meaning, self.roots = gens[n] * 0, {}, {}, []
        self.moving, self.known, self.programs = set(self.names[: n + 1]), set(), 0

    def constant(self, text):
        """The constant polynomial with the value of a text such as "1/3"."""
        exact = Fraction(text)
        return self.zero + fmpq(exact.numerator, exact.denominator)

    def reduced(self, p):
        """The polynomial p with each square of a root replaced by the root's argument, which may contain earlier
        roots.
        """
        for root, square in reversed(self.roots):
            p = divmod(p, root * root - square)[1]
        return p

    def is_positive(self, p):
        """Whether a polynomial is a positive rational number times square roots of positive numbers."""
        return len(p) == 1 and p.leading_coefficient() > 0 and self.names_of(p) <= {str(root) for root, _ in self.roots}

    def is_never_negative(self, p):
        """Whether the form of a polynomial shows that it is never negative: its coefficients are positive, and it
        has odd powers only of unknowns that are never negative.
        """
        powers = (power for monomial in p.monoms() for power in zip(monomial, self.names, strict=True))
        even = (k % 2 == 0 or self._is_never_negative(name) for k, name in powers)
        return all(even) and all(c > 0 for c in p.coeffs())

    def _is_never_negative(self, name):
        """Whether the meaning of an unknown shows that it is never negative: a positive number that was rounded, a
        root, an exponential, an absolute value, or a maximum with a value that is never negative.
        """
        kind, given = self.meaning.get(name, ("", ()))
        if kind == "near":
            return self._is_near_a_positive_number(given)
        if kind != "select":
            return kind in ("sqrt", "exp")
        which, yes, no = given
        condition, sides = self.meaning.get(str(which), ("", ()))
        if condition != "above" or sides[0] != yes or not self.is_never_negative(sides[1]):
            return False
        return self.is_never_negative(no) or (sides[1] == 0 and no == -yes)

    def _is_near_a_positive_number(self, given):
        _, k, _, *texts = given
        return Fraction(texts[k]) > 0

    def is_above_zero(self, p):
        """Whether the form of a polynomial shows that it is positive: a polynomial that is never negative and has a
        positive constant term, a positive number that was rounded, or a maximum with a positive value.
        """
        kind, given = self.meaning.get(str(p), ("", ()))
        if kind == "near":
            return self._is_near_a_positive_number(given)
        if kind == "select":
            return self._is_never_negative(str(p)) and self.is_above_zero(given[2])
        return self.is_never_negative(p) and p.compose(*[self.zero] * len(self.names)) != 0

    def _is_defined_by_form(self, name, p):
        """Refuse p unless it is a number or its form shows that the operation is defined. See `defined`."""
        numbers = not self.names_of(p) - self.known
        if numbers and (name == "div" or not p.is_constant()):
            return  # which is not zero
        if not (self.is_never_negative(p) if name == "sqrt" else self.is_above_zero(p)):
            raise RefusedError(f"it is not shown where the operation {name} is defined")

    def root(self, x):
        """The square root of x: a rational number times earlier roots if possible, else a new unknown."""
        chosen = range(2 ** len(self.roots)) if self.is_positive(x) and len(self.roots) <= ROOTS else []
        for which in chosen:
            product = self.zero + 1
            for k, (root, _) in enumerate(self.roots):
                product = product * root if which >> k & 1 else product
            factor, rest = divmod(x, self.reduced(product * product))
            exact = rational_root(factor) if rest == 0 and factor.is_constant() and factor != 0 else None
            if exact is not None:
                return product * exact
        found = self.unknown("sqrt", x)
        if chosen:
            self.roots.append((found, x))
        return found

    def inverse(self, x):
        """1/x, where x is a rational number times square roots. For each root r the inverse is r/r^2."""
        found = 1 / x.leading_coefficient() + self.zero
        for root, square in self.roots:
            if str(root) in self.names_of(x):
                found = self.reduced(found * root * self.inverse(square))
        return found

    def unknown(self, name, *given):
        """The unknown that stands for the value of a function. Equal arguments give the same unknown."""
        key = name, *map(str, given)
        if key not in self.unknowns:
            if len(self.unknowns) == UNKNOWNS:
                raise RefusedError("it has too many values of other functions")
            # The order of the unknowns is lexical, and later ones come first in it.
            self.unknowns[key] = found = self.rest[-1 - len(self.unknowns)]
            self.meaning[str(found)] = name, given
            if name == "near" or (name != NOTHING and not set().union(*map(self.names_of, given)) - self.known):
                self.known.add(str(found))  # a number, and what holds for the unknown holds for it
        return self.unknowns[key]

    def is_nothing(self, p):
        """Whether the computation of a value divides by zero."""
        return (NOTHING,) in self.unknowns and str(self.unknowns[NOTHING,]) in self.names_of(p)

    def entry(self, name, *entries):
        """The value of an operation on numbers or polynomials, one for each argument."""
        given = [self.reduced(x) for x in entries]
        if any(map(self.is_nothing, given[:1] if name == "select" else given)):
            return self.unknown(NOTHING)
        if name in ("add", "sub", "mul"):
            return getattr(operator, name)(*given)
        if name == "div" and given[1].is_zero():
            return self.unknown(NOTHING)
        if name in ("div", "log", "sqrt"):
            self.defined(name, given[-1])
        if name in ("div", "sqrt") and given[0].is_zero():
            return self.zero
        if name == "div" and len(given[1]) == 1 and (given[1].is_constant() or self.is_positive(given[1] * given[1])):
            return self.reduced(given[0] * self.inverse(given[1]))
        if name == "div" and not self.names_of(given[1]) - self.known:
            return self.reduced(given[0] * self.unknown("div", self.zero + 1, given[1]))
        if name == "div":
            quotient, rest = divmod(*given)
            return quotient if rest == 0 else self.unknown(name, *given)
        if name == "sqrt":
            return self.root(*given)
        if name == "above" and (which := self.decided(self.reduced(given[0] - given[1]))) is not None:
            return self.zero + which
        if name == "select" and (given[0] == 1 or given[0] == 0 or given[1] == given[2]):
            return given[2] if given[0] == 0 else given[1]
        if name in ("above", "select", "exp", "log", "sin", "cos", "erf"):
            return self.unknown(name, *given)
        raise RefusedError(f"the operation {name!r} is not known")

    def apply(self, name, given, parameter):
        """The value of an operation on lists of polynomials: again a list of polynomials."""
        if name == "number":
            return [self.constant(text) for text in parameter]
        if name == "near":
            # Of another list of operations they are other numbers.
            return [self.unknown(name, self.programs, k, *parameter) for k in range(len(parameter) - 1)]
        if name in ("power", "dot") and any(self.is_nothing(x) for one in given for x in one):
            raise RefusedError("it divides by zero")
        if name == "power":
            (k,) = whole([parameter], 1)
            return [functools.reduce(lambda p, x: self.reduced(p * x), [x] * k) for x in given[0]]
        if name == "take":
            everything = [x for one in given for x in one]
            return [everything[i] for i in whole(parameter, 0)]
        if name == "dot":
            batch, rows, inner, columns = whole(parameter, 0)
            x, y = given
            if len(x) != batch * rows * inner or len(y) != batch * inner * columns:
                raise RefusedError("the shapes of a product of matrices do not fit")
            lines = [(x[i * inner :][:inner], y[i // rows * inner * columns :]) for i in range(batch * rows)]
            products = [map(operator.mul, line, right[j::columns]) for line, right in lines for j in range(columns)]
            return [self.reduced(sum(each, self.zero)) for each in products]
        return [self.entry(name, *entries) for entries in zip(*given, strict=True)]

    def values(self, program, **inputs):
        """The result of a list of operations, from its inputs by name."""
        values, self.programs = [], self.programs + 1
        for name, arguments, parameter in program["operations"]:
            given = [values[i] for i in whole(arguments, 0)]
            values.append(inputs[parameter] if name == "input" else self.apply(name, given, parameter))
        return values[whole([program["result"]], 0)[0]]

    def names_of(self, p):
        """The names of all variables in a polynomial: weights, t and other unknowns."""
        return {name for name, degree in zip(self.names, p.degrees(), strict=True) if degree > 0}

    def plain(self, p):
        """Return p, or raise `RefusedError` if p contains values of functions of the weights or of t."""
        if self.names_of(p) - self.known - self.moving:
            raise RefusedError("what has to be polynomial in the weights and t is not")
        return p

    def within(self, p, weights, t):
        """The value at given weights and t of a polynomial that `plain` accepts."""
        return self.reduced(self.plain(p).compose(*weights, t, *self.rest))


def field(ring, loss, start):
    """The weights with those that stay zero replaced by 0, and the field -grad L at these weights."""
    still = {i for i, x in enumerate(start) if x == 0}
    slopes = [loss.derivative(i) for i in range(ring.n)]
    while True:
        weights = [ring.zero if i in still else x for i, x in enumerate(ring.weights)]
        found = [-ring.within(slope, weights, ring.t) for slope in slopes]
        if all(found[i] == 0 for i in still):
            return weights, found
        still = {i for i in still if found[i] == 0}


def check(certificate):
    """The statement that a certificate proves, in words; raises `RefusedError` if it proves nothing."""
    if (version := certificate.get("version")) != VERSION:
        raise RefusedError(f"its version is {version}, and this checker reads {VERSION}")
    if certificate.get("digest") != digest(certificate):
        raise RefusedError("its digest is not that of its contents: something was changed")
    if certificate.get("verdict") != "proved":
        raise RefusedError("an equality is proved or it is not")
    ring = Polynomials(len(Polynomials(0).values(certificate["start"])))
    start = ring.values(certificate["start"])
    (loss,) = ring.values(certificate["loss"], weights=ring.weights)
    weights, along = field(ring, ring.plain(ring.reduced(loss)), start)
    slacks = ring.values(certificate["sides"], weights=weights, start=start, t=[ring.t])
    if not slacks or len(start) != ring.n:
        raise RefusedError("it has no sides, or another number of weights")
    for slack in map(ring.reduced, slacks):
        at_start = ring.within(slack, start, ring.zero)
        slope = sum((speed * slack.derivative(i) for i, speed in enumerate([*along, 1])), ring.zero)
        if ring.reduced(slope) != 0:
            raise RefusedError("its sides may part along the flow")
        if at_start != 0:
            raise RefusedError("its sides are not equal at the start")
    return "proved for all t from 0"


if __name__ == "__main__":
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            print(check(json.load(file)))
    except Exception as error:  # a certificate with any fault proves nothing
        raise SystemExit(f"not a proof: {error}") from None
