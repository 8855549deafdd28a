"""Certificates: proofs of a claim for one problem, which `checker.py` checks without the rest of flowsim."""

import math
from collections.abc import Callable

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
from flowsim.claims.claim import Claim, Comparison, Mask, Sides
from flowsim.claims.proofs import checker, ending, identities
from flowsim.claims.proofs.ball import with_the_end
from flowsim.claims.proofs.path import (
    PRECISION,
    FollowedFlow,
    OpenError,
    numbers_of,
    rebuilt,
    refuse_sampled,
    shapes_of,
)
from flowsim.claims.proofs.program import constants, program
from flowsim.claims.proofs.writer import decimals
from flowsim.flow.recording import uncertified
from flowsim.losses import AbstractPopulationLoss

_ROWS = 5  # of a flow, at which the sides of a certificate are compared with the claim's
_AGREES = 1e-6  # of their size, to which they must agree
_SAME = 1e-9  # of their size: by less, sides at one time do not depend on other times
_FAR = 8.0  # times the largest weight, by which another row is moved
_READS_OTHERS = "its sides are not functions of the time, the start and the weights at that time alone"
_REFUSED = checker.RefusedError, identities.RefusedError


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
    """A certificate that a claim holds for all t up to a time, or that it fails at that time.

    A claim that reads no flow is proved or refuted of the problem alone, its equalities in rational numbers.

    **Arguments:**

    - claim, loss, start: of one problem.
    - t1: the last time of a claim along the flow, positive, or the time at which it fails. Infinity asks for all t,
      which is shown of equalities of polynomials, and of inequalities whose sides stay apart in a ball that the flow
      does not leave. Of equalities all t are shown whatever the last time is.
    - refutes: whether to show that the claim fails.
    - problem: its text, which the certificate carries along.
    - followed: the flow of this loss from this start, if other proofs enclosed it before.

    **Raises:** `OpenError` where this is not shown, with the reason; `ValueError` as `flowsim.enclose` does.
    """
    refuse_sampled(loss)
    if claim.of_descent:
        checks.refuse(claim.id, "a claim about the flow, which is what is enclosed", "it is about gradient descent")
    if not claim.along_flow:
        t1 = 1.0  # which nothing reads
    elif t1 is None:
        checks.refuse("t1", "given for a claim along the flow", "it is not")
    elif not (refutes and t1 == 0) and (refutes or t1 != math.inf):
        t1 = checks.time("t1", t1)
    foreign = claim.foreign(loss, start)
    if missing := [one.name for one in ([foreign] if foreign else claim.hypotheses(loss, start)) if not one.met]:
        raise OpenError(f"it says nothing of this problem: not met: {'; '.join(missing)}")
    sides, is_equality = _sides(claim, loss, start, refutes)
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
        "start": {"operations": [["number", [], decimals(np.asarray(ravel_pytree(start)[0]))]], "result": 0},
        "pieces": [],
    }
    _check_sides(certificate, claim, loss, start, t1 if t1 and t1 < math.inf else 1.0)
    followed = followed or FollowedFlow(loss, start) if claim.along_flow else None
    if followed and not refutes and (t1 == math.inf or is_equality):
        try:
            if is_equality:
                return _of_equality(certificate, followed.program)
            return _of_all_times(certificate, followed)
        except (OpenError, *_REFUSED) as error:
            if t1 == math.inf:
                raise OpenError(f"nothing is shown of all t: {error}") from error
    if followed and t1 is not None:
        path = followed.until(t1 * (1 + 2.0**-20) if refutes else t1)
        times = {"until": decimals(np.asarray(t1))[0]}
        certificate |= {"loss": path.loss, "pieces": path.pieces, **times, **followed.digits.fields}
    certificate["digest"] = checker.digest(certificate)
    try:
        checker.check(certificate)
    except checker.RefusedError as error:
        raise OpenError(str(error)) from error
    return certificate


def check(certificate: Document) -> str:
    """What a certificate proves, in words, by the checker of its kind.

    **Raises:** the checker's `RefusedError`, or what a damaged certificate raises, where it proves nothing.
    """
    checkers = {identities.VERSION: identities, ending.VERSION: ending}
    return checkers.get(certificate.get("version", ""), checker).check(certificate)


def _of_equality(certificate: Document, of_loss: Document) -> Document:
    """The certificate that the sides of a claim are equal for all t."""
    kept = {key: value for key, value in certificate.items() if key not in ("precision", "order", "pieces")}
    kept |= {"version": identities.VERSION, "loss": of_loss}
    kept["digest"] = identities.digest(kept)
    identities.check(kept)
    return kept


def _of_all_times(certificate: Document, followed: FollowedFlow) -> Document:
    """The certificate that an inequality holds for all t, as the flow ends in a ball."""
    kept = with_the_end(certificate | {"version": ending.VERSION}, followed)
    kept["digest"] = ending.digest(kept)
    ending.check(kept)
    return kept


def _sides(claim: Claim, loss: AbstractPopulationLoss, model: PyTree, refutes: bool) -> tuple[Document, bool]:
    """The program of the slack of a claim at a time, of t, the start and the weights at that time, and whether it is an
    equality.

    An equality has two slacks, the difference of its sides and the negative of it.
    """
    weights, fixed = eqx.partition(model, eqx.is_inexact_array)

    def compared(t: Float[Array, " 1"], start: PyTree, weights: PyTree) -> Comparison:
        models = [eqx.combine(row, fixed) for row in ([start, weights] if claim.along_flow else [start])]
        return _compared(claim, rebuilt(loss, model), jnp.append(0.0, t)[: len(models)], models)

    inputs = {"t": jax.ShapeDtypeStruct((1,), float), "start": weights, "weights": shapes_of(weights)}
    rows = slice(1, None) if claim.along_flow else slice(None)
    try:
        allowance, identity = constants(lambda **given: _fixed(compared(**given)), **inputs)
        if claim.along_flow and identity.shape[0] != 2:
            raise OpenError("it compares no sides at each time")
        if np.any(allowance[rows]):
            raise OpenError("it has an allowance for the distance to a limit")
        _check_promise(lambda **given: compared(**given).promised[rows], inputs, refutes)

        def slack(**given: PyTree) -> Sides:
            ours = jax.tree.map(lambda side: side[rows], compared(**given))
            return _slack(ours, identity[rows])

        return program(slack, given=numbers_of(loss), **inputs), bool(np.all(identity[rows]))
    except (UndecidedError, jax.errors.JAXTypeError) as error:
        raise OpenError(str(error)) from error


def _compared(claim: Claim, loss: AbstractPopulationLoss, t: Float[Array, " T"], models: list[PyTree]) -> Comparison:
    """A claim at models along a flow, or at its start alone."""
    moving, fixed = zip(*(eqx.partition(model, eqx.is_inexact_array) for model in models), strict=True)
    stacked = eqx.combine(jax.tree.map(lambda *leaves: jnp.stack(leaves), *moving), fixed[0])
    value = excess = squares = dissipated = jnp.full(len(models), jnp.nan)
    if claim.along_flow:
        value, excess, squares, dissipated = _series(loss, models)
    flow = uncertified(t, stacked, value, excess, squares, dissipated)
    return jax.tree.map(jnp.atleast_1d, claim.compare(loss, flow))


def _slack(ours: Comparison, identity: np.ndarray) -> Sides:
    both = jnp.concatenate([ours.value - ours.bound, ours.bound - ours.value])
    return both if np.all(identity) else ours.slack


def _check_sides(certificate: Document, claim: Claim, loss: AbstractPopulationLoss, start: PyTree, t1: float) -> None:
    """Refuse sides that are not those of the claim at each of several random models, as where it reads the last one."""
    rng, weights = np.random.default_rng(0), np.asarray(ravel_pytree(start)[0])
    count = _ROWS if claim.along_flow else 1
    size = np.max(np.abs(weights)) or 1.0
    rows = [weights, *(weights + size * rng.standard_normal((count - 1, weights.size)) / 8)]
    t = np.append(0.0, t1 * 0.3 ** np.arange(count - 1)[::-1])
    theirs = _compared(claim, loss, jnp.asarray(t), [ravel_pytree(start)[1](row) for row in rows])
    if theirs.slack.shape[0] != count and claim.along_flow:
        raise OpenError("it compares no sides at each time")
    if claim.along_flow:
        _check_rows(claim, loss, start, rows, t, theirs)
    with flint.ctx.workprec(PRECISION):
        numbers = [[arb(float(x)) for x in row] for row in rows]
        statement = checker.Statement(certificate)
        for k in range(1, count) if claim.along_flow else [0]:
            one = jax.tree.map(lambda side, k=k: side[k : k + 1] if claim.along_flow else side, theirs)
            given = {"t": [arb(t[k])], "start": numbers[0], "weights": numbers[k]}
            ours = statement.sides(**given) if claim.along_flow else statement.at_start(flow=False)
            expected = np.ravel(_slack(one, np.asarray(one.identity)))
            room = _AGREES * _largest(one.value, one.bound, one.scale, one.size)
            off = np.asarray([float(x) for x in map(arb, ours)]) - expected
            if np.all(one.promised) and not np.max(np.abs(off)) <= room:
                raise OpenError(_READS_OTHERS)


def _check_rows(
    claim: Claim, loss: AbstractPopulationLoss, start: PyTree, rows: list[np.ndarray], t: np.ndarray, theirs: Comparison
) -> None:
    """Refuse a claim whose sides at a time change when the rows after the start move by one place, and a new row takes
    the first place.
    """
    rng, unravel = np.random.default_rng(1), ravel_pytree(start)[1]
    size = np.max(np.abs(rows[0])) or 1.0
    before, after = slice(1, -1), slice(2, None)
    for further in (-_FAR, 1.0, _FAR):
        other = rows[0] + further * size * rng.uniform(0.1, 1.0, rows[0].size)
        shifted = [rows[0], other, *rows[before]]
        ours = _compared(claim, loss, jnp.asarray([t[0], t[1] / 2, *t[before]]), list(map(unravel, shifted)))
        for name in ("value", "bound", "slack"):
            was, now = np.asarray(getattr(theirs, name))[before], np.asarray(getattr(ours, name))[after]
            # A statement may name any size for its sides, so that their own counts.
            if not np.allclose(now, was, rtol=0.0, atol=_SAME * _largest(was, now), equal_nan=True):
                raise OpenError(_READS_OTHERS)


def _largest(*sides: ArrayLike) -> float:
    """The largest absolute value of a finite number in some arrays."""
    arrays = map(np.asarray, sides)
    return max(float(np.max(np.abs(one), where=np.isfinite(one), initial=0.0)) for one in arrays)


def _series(loss: AbstractPopulationLoss, models: list[PyTree]) -> tuple[Array, Array, Array, Array]:
    """What a trajectory records of models: loss, excess, |grad|^2 and the energy that is dissipated."""
    value, excess = jnp.stack([loss(model) for model in models]), jnp.stack([loss.excess(model) for model in models])
    slopes = [jax.tree.leaves(loss.gradient(model)) for model in models]
    squares = jnp.stack([sum(jnp.sum(slope**2) for slope in leaves) for leaves in slopes])
    return value, excess, squares, value[0] - value


def _fixed(ours: Comparison) -> tuple[Sides, Mask]:
    return ours.allowance, ours.identity


def _check_promise(promised: Callable[..., PyTree], inputs: dict[str, PyTree], refutes: bool) -> None:
    """Refuse what promises nothing at points that are known. Where it may promise nothing at others, more is proved."""
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
