"""Certificates: proofs of a claim for one problem, which `checker.py` checks without the rest of flowsim."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from flowsim._core import VERSION, checks
from flowsim._core.balls.operations import UndecidedError
from flowsim._core.types import Document
from flowsim.claims.claim import Claim, Comparison, Mask, Sides
from flowsim.claims.proofs import checker
from flowsim.claims.proofs.path import DEGREE, PRECISION, OpenError, path_of, programs, rebuilt, shapes_of
from flowsim.claims.proofs.program import constants, program
from flowsim.claims.proofs.writer import decimals
from flowsim.flow.trajectory import uncertified
from flowsim.losses import AbstractPopulationLoss

_ORDER = DEGREE + 1


def certify(
    claim: Claim,
    loss: AbstractPopulationLoss,
    start: PyTree,
    *,
    t1: float | None = None,
    refutes: bool = False,
    problem: str = "",
) -> Document:
    """A certificate that a claim holds for all t up to a time, or that it fails at that time.

    A claim that reads no flow is proved or refuted of the problem alone, its equalities in rational numbers.

    **Arguments:**

    - claim, loss, start: of one problem.
    - t1: the last time of a claim along the flow, or the time at which it fails.
    - refutes: whether to show that the claim fails.
    - problem: its text, which the certificate carries along.

    **Raises:** `OpenError` where this is not shown, with the reason; `ValueError` as `flowsim.enclose` does.
    """
    sides = _sides(claim, loss, start, refutes)
    certificate: Document = {
        "version": checker.VERSION,
        "made by": f"flowsim {VERSION}",
        "statement": {"id": claim.id, "source": claim.source, "form": claim.form, "text": claim.statement},
        "verdict": "refuted" if refutes else "proved",
        "precision": PRECISION,
        "order": _ORDER,
        "problem": problem,
        "weights": _names(start),
        "sides": sides,
        "start": {"operations": [["number", [], decimals(np.asarray(ravel_pytree(start)[0]))]], "result": 0},
        "pieces": [],
    }
    if claim.along_flow:
        if t1 is None:
            checks.refuse("t1", "given for a claim along the flow", "it is not")
        of_loss, of_start = programs(loss, start)
        path = path_of(of_loss, of_start, start, t1 * (1 + 2.0**-20) if refutes else t1)
        times = {"until": decimals(np.asarray(t1))[0]}
        certificate |= {"loss": of_loss, "start": of_start, "pieces": path.pieces, **times}
    certificate["digest"] = checker.digest(certificate)
    try:
        checker.check(certificate)
    except checker.RefusedError as error:
        raise OpenError(str(error)) from error
    return certificate


def _sides(claim: Claim, loss: AbstractPopulationLoss, model: PyTree, refutes: bool) -> Document:
    """The program of the slack of a claim at a time: of t, the start and the weights at that time.

    An equality has two slacks, the difference of its sides and the negative of it.
    """
    weights, fixed = eqx.partition(model, eqx.is_inexact_array)

    def compared(t: Float[Array, " 1"], start: PyTree, weights: PyTree) -> Comparison:
        again = rebuilt(loss, model)
        rows = [start, weights] if claim.along_flow else [start]
        models = eqx.combine(jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows), fixed)
        t, unread = jnp.append(0.0, t)[: len(rows)], jnp.full(len(rows), jnp.nan)
        loss_at, excess, squares, dissipated = (unread,) * 4
        if claim.along_flow:
            loss_at, excess, squares, dissipated = _series(again, [eqx.combine(row, fixed) for row in rows])
        flow = uncertified(t, models, loss_at, excess, squares, dissipated)
        return jax.tree.map(jnp.atleast_1d, claim.compare(again, flow))

    inputs = {"t": jax.ShapeDtypeStruct((1,), float), "start": weights, "weights": shapes_of(weights)}
    rows = slice(1, None) if claim.along_flow else slice(None)
    try:
        allowance, identity = constants(lambda **given: _fixed(compared(**given)), **inputs)
        if claim.along_flow and identity.shape[0] != 2:
            raise OpenError("it compares no sides at each time")
        if np.any(allowance[rows]):
            raise OpenError("it has an allowance for the distance to a limit")
        _check_promise(lambda **given: compared(**given).promised[rows], inputs, refutes)

        def slack(**given: PyTree) -> Array:
            ours = jax.tree.map(lambda side: side[rows], compared(**given))
            both = jnp.concatenate([ours.value - ours.bound, ours.bound - ours.value])
            return both if np.all(identity[rows]) else ours.slack

        return program(slack, **inputs)
    except (UndecidedError, jax.errors.JAXTypeError) as error:
        raise OpenError(str(error)) from error


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
