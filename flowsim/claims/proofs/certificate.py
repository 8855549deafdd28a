"""Certificates: proofs of a claim for one problem, which `checker.py` checks without the rest of flowsim."""

import functools
import json
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import flint
import jax
import jax.numpy as jnp
import numpy as np
from flint import arb
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowsim._core import VERSION, checks
from flowsim._core.balls.operations import UndecidedError
from flowsim._core.types import Document
from flowsim.claims.claim import Claim, Comparison, Sides
from flowsim.claims.proofs import checker, ending, identities
from flowsim.claims.proofs.ball import with_the_end
from flowsim.claims.proofs.domain import Domain, as_decimals, compared, numbers_of_problem, rebuilt, refuse_sampled
from flowsim.claims.proofs.path import PRECISION, FollowedFlow, OpenError
from flowsim.claims.proofs.program import constants, program
from flowsim.claims.proofs.writer import decimals
from flowsim.losses import AbstractPopulationLoss

_ROWS = 5  # of a flow, at which the sides of a certificate are compared with the claim's
_DRAWS = 3  # of such models, where a claim is about the limit
_AGREES = 1e-6  # of their size, to which they must agree
_SAME = 1e-9  # of their size: by less, sides at one time do not depend on other times
_FAR = 8.0  # times the largest weight, by which another row is moved
_ANYWHERE = 1e6  # times the largest weight, within which rows that are not to be read may be
_LATER = np.geomspace(2.0, 1e9, 200)  # times the last time: those of more rows
_OTHER = "its sides are not functions of the time, the start and the weights at that time alone"
_MORE = "its sides in the limit depend on more than the start and the end"
_REFUSED = checker.RefusedError, identities.RefusedError


class _Problem(NamedTuple):
    """The loss, the start of its flow, the directions in which the weights may move, the program of a start that
    was computed, and the numbers that are exact.
    """

    loss: AbstractPopulationLoss
    start: PyTree
    domain: Domain
    exact: dict[str, Document]
    given: frozenset[float]

    @property
    def weights(self) -> np.ndarray:
        """The weights of the start."""
        return np.asarray(ravel_pytree(self.start)[0])

    def models(self, rows: list[np.ndarray]) -> list[PyTree]:
        """The models with the given weights."""
        return [ravel_pytree(self.start)[1](jnp.asarray(row)) for row in rows]


def certify(
    claim: Claim,
    loss: AbstractPopulationLoss,
    start: PyTree,
    *,
    t1: float | None = None,
    refutes: bool = False,
    problem: str = "",
    followed: FollowedFlow | None = None,
) -> Document:
    """A certificate that a claim holds for all t up to a time, or that it fails at that time or in the limit.

    A claim that depends on no flow is proved or refuted from the problem alone, an equality in rational numbers.

    **Arguments:**

    - claim, loss, start: the claim and its problem.
    - t1: for a claim along the flow, the last time of a proof, or the time of a refutation. Infinity requests a
      proof for all t, which can succeed for equalities of polynomials, and for inequalities whose sides stay apart
      in a ball that the flow does not leave. Equalities are always shown for all t.
    - refutes: whether to show that the claim fails. A claim about the limit, with an allowance, fails if it fails
      at all points of a ball that the flow does not leave.
    - problem: the text of the problem, which the certificate contains.
    - followed: the flow of this loss from this start, if an earlier proof has enclosed it.

    **Raises:** `OpenError` with the reason if no certificate is found; `ValueError` as `flowsim.enclose` does.
    """
    refuse_sampled(loss)
    if claim.of_descent:
        checks.refuse(claim.id, "a claim about the flow, since only flows are enclosed", "it is about gradient descent")
    if not claim.along_flow:
        t1 = 1.0  # which nothing reads
    elif t1 is None:
        checks.refuse("t1", "given for a claim along the flow", "it is not")
    elif not (refutes and t1 == 0) and (refutes or t1 != math.inf):
        t1 = checks.time("t1", t1)
    foreign = claim.foreign(loss, start)
    if missing := [one.name for one in ([foreign] if foreign else claim.hypotheses(loss, start)) if not one.met]:
        raise OpenError(f"it says nothing of this problem: not met: {'; '.join(missing)}")
    followed = followed or FollowedFlow(loss, start) if claim.along_flow else None
    domain, exact = (followed.domain, {"start": followed.of_start}) if followed else (Domain(loss, start), {})
    where = _Problem(loss, start, domain, exact, numbers_of_problem(loss, start, domain, followed and followed.program))
    in_the_limit = claim.along_flow and _is_of_the_limit(claim, where)
    sides, is_equality = _sides(claim, where, refutes, in_the_limit)
    certificate: Document = {
        "version": checker.VERSION,
        "made by": f"flowsim {VERSION}",
        "statement": {"id": claim.id, "source": claim.source, "form": claim.form, "text": claim.statement},
        "verdict": "refuted" if refutes else "proved",
        "precision": PRECISION,
        "order": 1,
        "problem": problem,
        "weights": _names(start),
        "sides": sides,
        "start": followed.of_start if followed else as_decimals(start),
        "pieces": [],
    }
    if not in_the_limit:
        _check_sides(certificate, claim, where, t1 if t1 and t1 < math.inf else 1.0)
    if claim.along_flow:
        _check_unread(certificate, claim, where, in_the_limit, is_equality)
    if followed and in_the_limit:
        try:
            found = _of_the_end(certificate, followed, in_the_limit=True)
        except _REFUSED as error:
            raise OpenError(str(error)) from error
        _check_limit(found, claim, where)
        return found
    if followed and not refutes and (t1 == math.inf or is_equality):
        try:
            if is_equality:
                return _of_equality(certificate, followed.program)
            return _of_the_end(certificate, followed)
        except (OpenError, *_REFUSED) as error:
            if t1 == math.inf:
                raise OpenError(f"no proof for all t was found: {error}") from error
    if followed and t1 is not None:
        path = followed.until(t1 * (1 + 2.0**-20) if refutes else t1)
        times = {"until": decimals(np.asarray(t1))[0]}
        certificate |= {"loss": path.loss, "pieces": path.pieces, **times, **followed.digits.fields}
    certificate["digest"] = checker.digest(certificate)
    try:
        checker.check(certificate, _followed)
    except checker.RefusedError as error:
        raise OpenError(str(error)) from error
    return certificate


def check(certificate: Document) -> str:
    """Run the checker for this kind of certificate, and return in words the statement that the certificate proves.

    **Raises:** the checker's `RefusedError` if nothing is proved; any exception if the certificate is damaged.
    """
    checkers = {identities.VERSION: identities, ending.VERSION: ending}
    return checkers.get(certificate.get("version", ""), checker).check(certificate)


def _of_equality(certificate: Document, of_loss: Document) -> Document:
    """Complete and check a certificate that the sides of a claim are equal for all t."""
    kept = {key: value for key, value in certificate.items() if key not in ("precision", "order", "pieces")}
    kept |= {"version": identities.VERSION, "loss": of_loss}
    kept["digest"] = identities.digest(kept)
    identities.check(kept)
    return kept


def _of_the_end(certificate: Document, followed: FollowedFlow, *, in_the_limit: bool = False) -> Document:
    """Complete and check a certificate about all t or the limit, by a ball that the flow never leaves."""
    kept = with_the_end(certificate | {"version": ending.VERSION}, followed, in_the_limit=in_the_limit)
    kept["digest"] = ending.digest(kept)
    ending.check(kept, _followed)
    return kept


def _followed(certificate: Document) -> list[tuple[checker.Piece, arb]]:
    """The pieces of a path, each with the radius of its tube. They are checked once for all claims about a flow."""
    names = ("loss", "start", "order", "pieces")
    return _followed_once(flint.ctx.prec, json.dumps({name: certificate[name] for name in names}))


@functools.lru_cache(maxsize=4)
def _followed_once(precision: int, path: str) -> list[tuple[checker.Piece, arb]]:
    return list(checker.follow(json.loads(path)))


def _is_of_the_limit(claim: Claim, problem: _Problem) -> bool:
    """Whether a claim is about the limit: it has no more rows for a longer flow, and it has an allowance."""
    rows = [problem.weights, *(problem.domain.near(np.random.default_rng(k), 1 / 8) for k in range(2))]
    models = problem.models(rows)
    one, other = (compared(claim, problem.loss, jnp.arange(float(n)), models[:n]) for n in (2, 3))
    if len(one.slack) != len(other.slack):
        return False
    traced = functools.partial(_traced, claim, problem, True)
    return bool(jnp.any(other.allowance != 0)) or not _is_zero(
        lambda **given: traced(**given).allowance, _inputs(problem)
    )


def _inputs(problem: _Problem) -> dict[str, PyTree]:
    """The inputs of the sides' program: a time, the start, the weights at that time; also the start's program."""
    start, t = eqx.filter(problem.start, eqx.is_inexact_array), jax.ShapeDtypeStruct((1,), float)
    return {"t": t, "start": start, "weights": problem.domain.shapes, "exact": problem.exact}


def _traced(
    claim: Claim,
    problem: _Problem,
    in_the_limit: bool,
    t: Float[Array, " T"],
    start: PyTree,
    weights: PyTree,
    others: Sequence[PyTree] = (),
) -> Comparison:
    """The comparison of a claim at the start and, along a flow, at a time or in the limit, from the numbers of its
    problem. Two rows ``others`` may be added: one before and one after the time, or both before the limit.
    """
    fixed = eqx.filter(problem.start, eqx.is_inexact_array, inverse=True)
    later = [*others[1:], weights] if in_the_limit else [weights, *others[1:]]
    rows = [start, *others[:1], *later]
    models = [eqx.combine(row, fixed) for row in (rows if claim.along_flow else [start])]
    times = jnp.append(0.0, t)[: len(models)]
    known = problem.start if in_the_limit else None
    return compared(claim, rebuilt(problem.loss, problem.start), times, models, known)


def _sides(claim: Claim, problem: _Problem, refutes: bool, in_the_limit: bool) -> tuple[Document, bool]:
    """Return a program, and whether a claim is an equality. The program computes the slack of the claim at a time t
    from t, the start and the weights at t.

    An equality has two slacks, the difference of its sides and the negative of it. Rows that a claim has in
    addition to those of the flow, such as rows for given weights, are compared again at each time.
    """
    traced, inputs = functools.partial(_traced, claim, problem, in_the_limit), _inputs(problem)
    try:
        (identity,) = constants(lambda **given: traced(**given).identity, **inputs)
        rows = slice(1 if claim.along_flow and not in_the_limit else 0, None)
        _check_promise(lambda **given: traced(**given).promised[rows], inputs, refutes)
        if not (refutes or in_the_limit) and not _is_zero(lambda **given: traced(**given).allowance[rows], inputs):
            raise OpenError("it has an allowance, within which it is not proved")

        def slack(**given: PyTree) -> Sides:
            ours = jax.tree.map(lambda side: side[rows], traced(**given))
            return _slack(ours, identity[rows], allows=refutes)

        return program(slack, given=problem.given, **inputs), bool(np.all(identity[rows]))
    except UndecidedError as error:
        raise OpenError(str(error)) from error
    except jax.errors.JAXTypeError as error:
        raise OpenError("it is computed outside of JAX") from error


def _slack(ours: Comparison, identity: np.ndarray, *, allows: bool) -> Sides:
    allowance = ours.allowance if allows else jnp.zeros(())
    both = [ours.value - ours.bound + allowance, ours.bound - ours.value + allowance]
    return jnp.concatenate(both) if np.all(identity) else ours.slack + allowance


def _check_sides(certificate: Document, claim: Claim, problem: _Problem, t1: float) -> None:
    """Refuse a certificate whose sides differ from the claim's sides at any of the models that are tried. For a
    claim along the flow these are several random models, otherwise only the start. The sides differ, for example,
    if the claim at one time also reads the last model of the flow. **Raises:** `OpenError` if the sides differ.
    """
    rng, count = np.random.default_rng(0), _ROWS if claim.along_flow else 1
    rows = [problem.weights, *(problem.domain.near(rng, 1 / 8) for _ in range(count - 1))]
    t = np.append(0.0, t1 * 0.3 ** np.arange(count - 1)[::-1])
    theirs = compared(claim, problem.loss, jnp.asarray(t), problem.models(rows))
    if len(theirs.slack) < count:
        raise OpenError("it does not return its sides at each time")
    if claim.along_flow:
        _check_rows(claim, problem, rows, t, theirs)
    beside = [*range(count, len(theirs.slack))]
    for k in range(1, count) if claim.along_flow else [0]:
        chosen = np.asarray([k, *beside] if claim.along_flow else range(len(theirs.slack)))
        one = jax.tree.map(lambda side, chosen=chosen: side[chosen], theirs)
        agree = _agreement(certificate, one, t[k], rows[0], rows[k] if claim.along_flow else None)
        if agree is None or (np.all(one.promised) and not np.all(agree)):
            raise OpenError(_OTHER)


def _check_rows(claim: Claim, problem: _Problem, rows: list[np.ndarray], t: np.ndarray, theirs: Comparison) -> None:
    """Refuse a claim whose sides at a time change when rows for other times are added to the flow: one directly
    after the start, and many after the last row.
    """
    rng, count = np.random.default_rng(1), len(rows)
    for further in (-_FAR, 1.0, _FAR):
        first, last = (problem.domain.near(rng, further) for _ in range(2))
        *models, end = problem.models([rows[0], first, *rows[1:], last])
        times = jnp.asarray([t[0], t[1] / 2, *t[1:], *(t[-1] * _LATER)])
        ours = compared(claim, problem.loss, times, [*models, *[end] * len(_LATER)])
        for name in ("value", "bound", "slack"):
            was, now = np.asarray(getattr(theirs, name))[1:count], np.asarray(getattr(ours, name))[2 : count + 1]
            # A statement may name any size for its sides, so that their own counts.
            if not np.allclose(now, was, rtol=0.0, atol=_SAME * _largest(was, now), equal_nan=True):
                raise OpenError(_OTHER)


def _check_unread(
    certificate: Document, claim: Claim, problem: _Problem, in_the_limit: bool, is_equality: bool
) -> None:
    """Refuse a claim whose sides at a time, or in the limit, depend on rows other than the start and their own."""
    refutes, inputs = certificate["verdict"] == "refuted", _inputs(problem)
    inputs |= {"t": jax.ShapeDtypeStruct((3,), float), "others": [inputs["weights"]] * 2}

    def slack(**given: PyTree) -> Sides:
        ours = _traced(claim, problem, in_the_limit, **given)  # at the start, before, at t and later, and elsewhere
        chosen = np.arange(len(ours.slack)) if in_the_limit else np.asarray([2, *range(4, len(ours.slack))])
        return _slack(jax.tree.map(lambda side: side[chosen], ours), np.asarray(is_equality), allows=refutes)

    rng, far = np.random.default_rng(2), arb(0, _ANYWHERE * problem.domain.size)
    points = [[arb(float(x)) for x in problem.domain.near(rng, share)] for share in (0.0, 1 / 8, 1 / 8)]
    others = [x + far for point in points[1:] for x in point]
    try:
        with flint.ctx.workprec(PRECISION):
            statement = checker.Statement(certificate)
            wider, agree = checker.Program(program(slack, given=problem.given, **inputs)), []
            for weights in points:
                t, given = arb(rng.uniform()), {"start": statement.start, "weights": weights}
                both = zip(statement.sides(t=[t], **given), wider(t=[far, t, far], others=others, **given), strict=True)
                agree.append([abs(x - y) <= _AGREES * (1 + abs(x)) if arb(x).is_finite() else None for x, y in both])
    except (UndecidedError, checker.RefusedError, ValueError) as error:
        raise OpenError(_MORE if in_the_limit else _OTHER) from error
    if not all(any(row) and False not in row for row in zip(*agree, strict=True)):
        raise OpenError(_MORE if in_the_limit else _OTHER)


def _largest(*sides: ArrayLike) -> float:
    """The largest absolute value of a finite number in some arrays."""
    arrays = map(np.asarray, sides)
    return max(float(np.max(np.abs(one), where=np.isfinite(one), initial=0.0)) for one in arrays)


def _check_limit(certificate: Document, claim: Claim, problem: _Problem) -> None:
    """Refuse a certificate whose sides differ from the claim's at the end of the flow, for example if the claim
    also reads earlier rows. In a refutation only sides that fail at the end are compared.
    """
    refutes = certificate["verdict"] == "refuted"
    with flint.ctx.workprec(PRECISION):
        ball = ending.Ball(checker.Program(certificate["loss"]), certificate["end"])
        count = np.asarray([bool(x < 0) or not refutes for x in ball.slack(checker.Statement(certificate))])
        end = np.asarray([float(x) for x in ball.centre])
    share = 1.0 + 4 * np.max(np.abs(end - problem.weights)) / problem.domain.size
    for seed in range(_DRAWS):
        # What is in the middle is further away, on both sides, so that it has the extremes.
        far = [problem.domain.near(np.random.default_rng(seed), sign * share) for sign in (1, -1)]
        first, *middle, last = problem.models([problem.weights, *far, end])
        models = [first, *middle * len(_LATER), last]
        theirs = compared(claim, problem.loss, jnp.arange(float(len(models))), models, problem.start)
        agree = _agreement(certificate, theirs, np.nan, problem.weights, end)
        if agree is None or not np.all(agree[count]):
            raise OpenError(_MORE)


def _agreement(
    certificate: Document, theirs: Comparison, t: float, start: np.ndarray, weights: np.ndarray | None
) -> np.ndarray | None:
    """Where a certificate's slacks equal ``theirs``; None if their numbers differ. weights: None at the start."""
    numbers = lambda row: [arb(float(x)) for x in row]
    with flint.ctx.workprec(PRECISION):
        statement = checker.Statement(certificate)
        if weights is None:
            ours = statement.at_start(flow=False)
        else:
            ours = statement.sides(t=[arb(t)], start=numbers(start), weights=numbers(weights))
        found = np.asarray([float(x) for x in map(arb, ours)])
    allows = certificate["verdict"] == "refuted"
    expected = np.ravel(np.asarray(_slack(theirs, np.asarray(theirs.identity), allows=allows)))
    if found.shape != expected.shape:
        return None
    return np.abs(found - expected) <= _AGREES * _largest(expected, theirs.scale, theirs.size)


def _is_zero(function: Callable[..., PyTree], inputs: dict[str, PyTree]) -> bool:
    """Whether a function is zero whatever its arguments are."""
    try:
        return not np.any(constants(function, **inputs)[0])
    except UndecidedError:
        return False


def _check_promise(promised: Callable[..., PyTree], inputs: dict[str, PyTree], refutes: bool) -> None:
    """Refuse a claim that asserts nothing at some points, if this does not depend on the weights."""
    try:
        (known,) = constants(promised, **inputs)
    except UndecidedError:
        if refutes:
            raise
        return
    if not np.all(known):
        raise OpenError("it promises nothing at some of its points")


def _names(start: PyTree) -> list[str]:
    """The names of the weights, in the order in which programs take them."""
    named = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(eqx.filter(start, eqx.is_inexact_array)):
        name = jax.tree_util.keystr(path).lstrip(".") or "w"
        named += [name + "".join(f"[{i}]" for i in index) for index in np.ndindex(np.shape(leaf))]
    return named
