"""Claims and comparisons. A claim is a statement about a flow or a descent; its comparison holds both sides."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from flowsim._core import checks
from flowsim._core.latex import plain
from flowsim._core.text import cut
from flowsim._core.types import Tables
from flowsim.claims.hypotheses import Hypothesis, unmet
from flowsim.claims.spaces import Space
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss

Sides = Float[Array | np.ndarray, "*points"]
Mask = Bool[Array | np.ndarray, "*points"]
_TINY = float(np.finfo(float).tiny)


class Trend(eqx.Module):
    """The statement that a number has a limit, or is of the order of a power, along a family of problems.

    **Fields:**

    - expected: the limit of the number, or the exponent p in Theta(parameter^p), O(parameter^p) or
      Omega(parameter^p).
    - within: the tolerance. "holds" needs the limit or the exponent to be known to this accuracy, "violated" needs
      it to differ from ``expected`` by more.
    - kind: "limit", or for a power "both" (Theta), "above" (O) or "below" (Omega).
    """

    expected: Float[Array, ""]
    within: Float[Array, ""]
    kind: str = eqx.field(static=True)


class Likely(eqx.Module):
    """The statement that a comparison holds with at least the given probability over independent draws."""

    probability: float = eqx.field(static=True)


class Comparison(eqx.Module):
    """Both sides of a statement at each time of a trajectory, or at each of some other points.

    Every array has one row for each time or point. A row is a number, or an array of several numbers, such as one
    for each head. All arrays come from JAX operations, so that a program can be compiled for them.

    **Fields:**

    - slack: by how much the statement is satisfied, negative where it fails.
    - size: the size of the bound. A margin is the slack divided by it.
    - scale: the size of the larger side. Rounding and solver errors are relative to it.
    - tightness: the ratio of the two sides, at most 1.
    - promised: where the statement asserts anything.
    - allowance: by how much the sides may differ for a reason other than numerical error, such as the distance from
      the end of the flow to its limit. Infinite where no bound is known.
    - value, bound: the two sides.
    - identity: where the statement is an equality.
    - family: the statement about all members of a family together. None for a statement about each member.
    """

    slack: Sides
    size: Sides
    scale: Sides
    tightness: Sides
    promised: Mask
    allowance: Sides
    value: Sides
    bound: Sides
    identity: Mask
    family: Trend | Likely | None = None

    @property
    def reference(self) -> Sides:
        """The number by which `margin` divides in each row.

        It is the size of the bound where that is positive. Elsewhere it is the largest side in absolute value over
        all rows at which the statement asserts anything. If all sides are zero it is infinite, or the smallest
        positive normal float if any allowance is positive.
        """
        array = self.slack.__array_namespace__()
        sides = array.maximum(array.abs(self.value), array.abs(self.bound))
        largest = array.max(array.where(self.promised & array.isfinite(sides), sides, 0.0), initial=0.0)
        # If all sides are zero, so is the error, unless there is an allowance.
        nothing = array.where(array.any(self.allowance > 0), _TINY, math.inf)
        return array.where(self.size > 0, self.size, array.where(largest > 0, largest, nothing))

    @property
    def margin(self) -> Sides:
        """(slack + allowance)/reference in every row, also where the statement asserts nothing."""
        return relative(self.slack + self.allowance, self.reference)


def relative(slack: Sides, reference: Sides) -> Sides:
    """slack/reference; an infinite slack is returned unchanged."""
    array = slack.__array_namespace__()
    return array.where(array.isinf(slack), slack, slack / reference)


def _real(side: ArrayLike) -> Array:
    """A side of a statement converted to float64, also from integers or truth values."""
    return jnp.asarray(side, dtype=float)


def at_least(
    value: ArrayLike,
    bound: ArrayLike,
    *,
    size: ArrayLike | None = None,
    promised: ArrayLike | None = None,
    allowance: ArrayLike = 0.0,
) -> Comparison:
    """The statement value >= bound.

    **Arguments:**

    - value, bound: numbers or arrays that broadcast, with one row for each time or point.
    - size: what the margin is relative to, default |bound|. Needed where the bound can be zero.
    - promised: where the statement asserts anything, default everywhere.
    - allowance: by how much the sides may differ for a reason other than numerical error.
    """
    value, bound = jnp.broadcast_arrays(_real(value), _real(bound))
    larger = jnp.maximum(jnp.abs(value), jnp.abs(bound))
    ratio = jnp.abs(bound) / jnp.where(larger > 0, larger, 1.0)
    return Comparison(
        slack=value - bound,
        size=jnp.broadcast_to(jnp.abs(bound) if size is None else _real(size), value.shape),
        scale=larger,
        tightness=ratio,
        promised=jnp.broadcast_to(True if promised is None else jnp.asarray(promised, dtype=bool), value.shape),
        allowance=jnp.broadcast_to(_real(allowance), value.shape),
        value=value,
        bound=bound,
        identity=jnp.zeros(value.shape, dtype=bool),
    )


def at_most(
    value: ArrayLike,
    bound: ArrayLike,
    *,
    size: ArrayLike | None = None,
    promised: ArrayLike | None = None,
    allowance: ArrayLike = 0.0,
) -> Comparison:
    """The statement value <= bound. The arguments are those of `at_least`."""
    value, bound = jnp.broadcast_arrays(_real(value), _real(bound))
    comparison = at_least(-value, -bound, size=size, promised=promised, allowance=allowance)
    ratio = jnp.abs(value) / jnp.where(comparison.scale > 0, comparison.scale, 1.0)
    return eqx.tree_at(lambda c: (c.tightness, c.value, c.bound), comparison, (ratio, value, bound))


def equal(value: ArrayLike, expected: ArrayLike, size: ArrayLike, *, allowance: ArrayLike = 0.0) -> Comparison:
    """The statement value = expected.

    **Arguments:**

    - value, expected: numbers or arrays that broadcast, with one row for each time or point.
    - size: what the margin and the numerical errors are relative to.
    - allowance: by how much the sides may differ for a reason other than numerical error.
    """
    value, expected = jnp.broadcast_arrays(_real(value), _real(expected))
    size = jnp.broadcast_to(_real(size), value.shape)
    return Comparison(
        slack=-jnp.abs(value - expected),
        size=size,
        scale=size,
        tightness=jnp.ones_like(value),
        promised=jnp.ones(value.shape, dtype=bool),
        allowance=jnp.broadcast_to(_real(allowance), value.shape),
        value=value,
        bound=expected,
        identity=jnp.ones(value.shape, dtype=bool),
    )


def tends_to(value: ArrayLike, expected: ArrayLike, within: ArrayLike, *, allowance: ArrayLike = 0.0) -> Comparison:
    """The statement that a number tends to a limit along a `Family`.

    **Arguments:**

    - value: the number for one member of the family.
    - expected: the limit, the same for all members.
    - within: the tolerance. "holds" needs the limit to be known to this accuracy, "violated" needs it to differ
      from ``expected`` by more.
    - allowance: a bound on the error of the value for a reason other than numerical error.
    """
    return _trend("limit", value, expected, within, allowance)


def power_law(
    value: ArrayLike, power: ArrayLike, within: ArrayLike, *, bounds: str = "both", allowance: ArrayLike = 0.0
) -> Comparison:
    """The statement that a positive number is of the order of a power of the parameter of a `Family`: value =
    Theta(parameter^power) as the parameter tends to 0 or to infinity.

    **Arguments:**

    - value: the number for one member of the family.
    - power: the power, the same for all members.
    - within: the tolerance. "holds" needs the power to be known to this accuracy, "violated" needs it to differ
      from ``power`` by more.
    - bounds: "both" for Theta, "above" for O(parameter^power), "below" for Omega(parameter^power).
    - allowance: a bound on the error of the value for a reason other than numerical error.

    **Raises:** `ValueError` on any other value of ``bounds``.
    """
    if bounds not in ("both", "above", "below"):
        checks.refuse("bounds", '"both", "above" or "below"', f"it is {bounds!r:.60}")
    return _trend(bounds, value, power, within, allowance)


def _trend(kind: str, *given: ArrayLike) -> Comparison:
    names = "value", "limit or power", "within", "allowance"
    for one, name in zip(given, names, strict=True):
        if isinstance(one, str) or one is None:
            checks.refuse(f"the {name} of a trend", "one number for each member", f"it is {one!r:.60}")
    numbers = [_real(one) for one in given]
    for number, name in zip(numbers, names, strict=True):
        if number.size != 1:
            checks.refuse(f"the {name} of a trend", "one number for each member", f"its shape is {number.shape}")
    value, expected, within, allowance = (number.reshape(1) for number in numbers)
    sides = at_least(value, 0.0, size=1.0, allowance=allowance)
    return dataclasses.replace(sides, family=Trend(expected[0], within[0], kind))


def with_probability(probability: float, comparison: Comparison) -> Comparison:
    """The statement that a comparison holds with at least a given probability over a `Family` of independent draws.

    **Arguments:**

    - probability: greater than 0 and less than 1.
    - comparison: the comparison for one draw.

    **Raises:** `ValueError` on another probability, or if the comparison is itself a statement about a family.
    """
    if not checks.is_number(probability) or not 0 < probability < 1:
        checks.refuse("probability", "between 0 and 1", f"it is {probability!r:.60}")
    if not isinstance(comparison, Comparison) or comparison.family is not None:
        came = "it is about the family" if isinstance(comparison, Comparison) else f"it is {comparison!r:.60}"
        checks.refuse("comparison", "one for each draw, as flowsim.at_least returns", came)
    return dataclasses.replace(comparison, family=Likely(float(probability)))


_LONGEST_ID = 120
_SHOWN = 100  # characters of a statement, in the repr of its claim
_ID = re.compile(r"[^./\\][^/\\]*")  # an audit writes a file with this name


def _any_loss(loss: AbstractPopulationLoss) -> None:
    return None


def _no_hypotheses(loss: AbstractPopulationLoss, start: PyTree) -> list[Hypothesis]:
    return []


def _no_constants(loss: AbstractPopulationLoss, trajectory: Trajectory) -> dict[str, Array]:
    return {}


@dataclasses.dataclass(frozen=True, repr=False)
class Claim:
    """A statement about a flow or a descent, with all that is needed to judge it. `flowsim.claim` declares one.

    **Fields:**

    - id: ``paper.statement[.part]``.
    - source: the place of the statement, such as a paper and the number of a theorem.
    - statement: plain text, or LaTeX with formulas in ``$..$``.
    - compare: (loss, trajectory) -> `Comparison`, in JAX operations only.
    - form: "printed", or "corrected" for what holds instead of a printed form that fails.
    - hypotheses: (loss, start) -> the conditions of the statement. For statements about descents the arguments are
      (loss, descent).
    - constants: (loss, trajectory) -> numbers by name: the constants of the claim, and the sharp values along this
      trajectory.
    - setting: loss -> None if the statement covers this loss, else the `Hypothesis` that is not met.
    - models: the classes of models that the statement is about. Empty if it is about all.
    - along_flow: whether the comparison depends on the trajectory after its start.
    - of_descent: whether the statement is about gradient descent. It is then judged along descents and never along
      flows.
    - problems: the problems on which the claim is judged, as nested dictionaries in the form of a problem file.
    - spaces: the sets of problems that the statement covers, in which `flowsim.refute` looks for a counterexample.
    - note: what a referee should know about the statement.

    **Raises:** `ValueError` on any other form, an id that cannot be the name of a file, or a field of another type.
    """

    id: str
    source: str
    statement: str
    compare: Callable[..., Comparison]
    form: str = "printed"
    hypotheses: Callable[..., list[Hypothesis]] = _no_hypotheses
    constants: Callable[..., dict[str, Array]] = _no_constants
    setting: Callable[..., Hypothesis | None] = _any_loss
    models: tuple[type[eqx.Module], ...] = ()
    along_flow: bool = True
    of_descent: bool = False
    problems: tuple[Tables, ...] = ()
    spaces: tuple[Space, ...] = ()
    note: str = ""

    def __post_init__(self):
        named = isinstance(self.id, str) and _ID.fullmatch(self.id) and self.id.isprintable()
        if not named or len(self.id.encode()) > _LONGEST_ID:
            checks.refuse("id", f"a name without slashes, of at most {_LONGEST_ID} bytes", f"it is {self.id!r:.200}")
        for name in ("source", "statement", "note"):
            if not isinstance(text := getattr(self, name), str):
                checks.refuse(name, "a text", f"it is {text!r:.60}")
        for name, kind in (("problems", Mapping), ("spaces", Space), ("models", type)):
            parts = getattr(self, name)
            if not isinstance(parts, tuple | list) or not all(isinstance(part, kind) for part in parts):
                checks.refuse(name, f"a tuple of objects of the class {kind.__name__}", f"it is {parts!r:.60}")
        if self.form not in ("printed", "corrected"):
            checks.refuse("form", '"printed" or "corrected"', f'it is "{self.form}"')

    @property
    def text(self) -> str:
        """The statement as plain text."""
        return plain(self.statement)

    def __repr__(self) -> str:
        return f"<Claim {self.id} [{self.form}]: {cut(self.text, _SHOWN)}>"

    def is_about(self, model: PyTree) -> bool:
        """Whether the statement is about models of this class."""
        return not self.models or isinstance(model, self.models)

    def foreign(self, loss: AbstractPopulationLoss, model: PyTree) -> Hypothesis | None:
        """None if the statement covers this loss and model, else the `Hypothesis` that is not met."""
        if self.is_about(model):
            return self.setting(loss)
        return unmet(f"a model of the class {' or '.join(kind.__name__ for kind in self.models)}")


def find_claims(claims: Sequence[Claim], identifier: str) -> list[Claim]:
    """The claims with this id, and the claims whose id starts with it and a dot, in all their forms.

    **Raises:** `ValueError` with the nearest id if there is no such claim.
    """
    found = [claim for claim in claims if claim.id == identifier or claim.id.startswith(f"{identifier}.")]
    if not found:
        known = sorted({name for claim in claims for name in (claim.id, claim.id.rpartition(".")[0])})
        checks.refuse(
            "claim id",
            "an id that `flowsim claims` lists",
            f'it is "{identifier}"{checks.nearest(identifier, known)}',
        )
    return found
