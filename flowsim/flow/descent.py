"""Gradient descent, x_{k+1} = x_k - eta_k grad L(x_k): iterates in float64, and balls that enclose the exact
iterates.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import flint
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float, PyTree

from flowsim._core import checks
from flowsim._core.balls.enclosure import Traced, upper
from flowsim._core.balls.operations import Balls, UndecidedError, balls
from flowsim._core.types import Scalar
from flowsim.flow import basin
from flowsim.flow.recording import check_model, chunk_of, records, trajectory, truncate
from flowsim.flow.systems import Descent, LossSystem, ScaledSystem, loss_system, norm
from flowsim.flow.trajectory import DESCENT, AbstractDescent, Settings, Status, Trajectory
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.sampled.monte_carlo import prepared

Numbers = ArrayLike | Iterable[float | int]
StepSize = Numbers | Callable[[int], float]

_MOST_BYTES = 2**30  # of recorded iterates
_BITS = 256, 1024, 4096, 16384  # precisions of balls, which grow with every step
_SHARP = 2.0**-64  # of the weights: the radius of balls that are sharp enough


def _of_one_length(slope: PyTree) -> PyTree:
    length = norm(slope)
    return jax.tree.map(lambda leaf: leaf / jnp.where(length > 0, length, 1.0), slope)


_DIRECTIONS: dict[str, Callable[[PyTree], PyTree]] = {
    "gradient": lambda slope: slope,
    "sign": lambda slope: jax.tree.map(jnp.sign, slope),
    "normalized": _of_one_length,
}


def gradient_descent(
    loss: AbstractPopulationLoss,
    model: PyTree,
    step_size: StepSize,
    steps: int,
    *,
    momentum: float = 0.0,
    direction: str = "gradient",
    at: Numbers | None = None,
) -> Trajectory:
    """Run gradient descent, x_{k+1} = x_k - eta_k d_k + beta (x_k - x_{k-1}) with x_{-1} = x_0.

    **Arguments:**

    - loss, model: as for `gradient_flow`; x_0 is the model.
    - step_size: eta_k > 0, one number, (steps,) numbers, or a function of k.
    - steps: the number of steps, at least 1.
    - momentum: beta, at least 0 and below 1 (heavy ball).
    - direction: d_k, "gradient" for the gradient g, "sign" for the sign of each entry of g, or "normalized" for
      g/|g|.
    - at: the numbers k of the iterates to record, by default all. The start is always recorded. Claims can be
      judged only if all are recorded.

    **Returns:** a `Trajectory` with t = k. Its ``step_size`` holds eta_k in row k. If ``step_size`` gives no eta
    for the last row, that row repeats the last eta. Its ``dissipated`` is the sum of <g, x_k - x_{k+1}>, so that
    ``energy_defect`` measures the effect of finite steps. If the descent diverges, the rows from the first infinite
    or NaN value on are left out, and the status is nonfinite. The same call gives bitwise equal results.

    **Raises:** `ValueError` on bad arguments.

    **Source:** Polyak (1964), for the momentum.
    """
    check_model(model)
    steps = checks.count("steps", steps)
    checks.within_memory("steps", steps)
    if not checks.is_number(momentum) or not 0 <= momentum < 1:
        checks.refuse("momentum", "at least 0 and below 1", f"it is {momentum!r:.60}")
    if direction not in _DIRECTIONS:
        came = f'it is "{direction}"{checks.nearest(str(direction), _DIRECTIONS)}'
        checks.refuse("direction", f"one of {', '.join(_DIRECTIONS)}", came)
    if direction != "gradient" and loss.speeds(model) is not None:
        checks.refuse("direction", '"gradient" where the weights flow at different speeds', f'it is "{direction}"')
    settings = Settings(DESCENT, 0.0, 0.0, momentum=float(momentum), direction=direction)
    counts = range(steps + 1) if at is None else _recorded(at, steps)
    entries = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
    if 8 * entries * len(counts) > _MOST_BYTES:
        came = f"{len(counts)} models take {8e-9 * entries * len(counts):.1f} GB"
        checks.refuse("at", f"numbers of steps whose models take at most {_MOST_BYTES / 1e9:.1f} GB", came)
    found = descended(loss, model, step_sizes(step_size, steps), settings, np.asarray(counts))
    if not callable(step_size):
        return found
    # A function may change at steps that were not made.
    return eqx.tree_at(lambda one: one.descent.step_size, found, jax.device_put(np.asarray(np.nan)))


def step_sizes(step_size: StepSize, steps: int) -> Float[np.ndarray, " all"]:
    """The step sizes eta_k for k = 0, .., steps, where the last of ``steps`` given numbers is repeated.

    **Arguments:** as for `gradient_descent`.

    **Raises:** `ValueError` if they are not positive and finite, or if their number is not 1 or ``steps``.
    """
    if callable(step_size):
        sizes = np.append([], [_numbers(f"step_size at k = {k}", step_size(k), ()) for k in range(steps + 1)])
    else:
        given = _numbers("step_size", step_size)
        if given.shape not in ((), (steps,)):
            checks.refuse("step_size", f"one number or {steps} of them", f"it has the shape {given.shape}")
        sizes = np.full(steps + 1, given) if given.ndim == 0 else np.append(given, given[-1])
    if not np.all((sizes > 0) & np.isfinite(sizes)):
        wrong = int(np.argmin((sizes > 0) & np.isfinite(sizes)))
        checks.refuse("step_size", "positive and finite", f"it is {sizes[wrong]:g} at k = {wrong}")
    return sizes


def _numbers(name: str, given: Any, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """The value ``given`` of the argument ``name``, which may be an iterator, as an array of floats. Other shapes
    than ``shape`` are refused, unless ``shape`` is None.
    """
    expected = "one number or a list of numbers" if shape is None else "one number"
    try:
        listed = isinstance(given, Iterable) and not hasattr(given, "__array__")
        found = np.asarray(list(given) if listed else given, dtype=float)
    except (TypeError, ValueError):
        checks.refuse(name, expected, f"it is {given!r:.60}")
    if shape is not None and found.shape != shape:
        checks.refuse(name, expected, f"its shape is {found.shape}")
    return found


def _recorded(at: Numbers, steps: int) -> np.ndarray:
    given = _numbers("at", at)
    if not np.all(np.isfinite(given)):
        checks.refuse("at", f"numbers from 1 to {steps}", "it holds NaN or infinity")
    counts = np.unique(np.append(0, np.round(given))).astype(int)
    if counts.size < 2 or counts[0] < 0 or counts[-1] > steps:
        checks.refuse("at", f"numbers from 1 to {steps}", f"they go from {counts[0]} to {counts[-1]}")
    return counts


def descended(
    loss: AbstractPopulationLoss,
    model: PyTree,
    sizes: Float[np.ndarray, " all"],
    settings: Settings,
    counts: np.ndarray,
    shaken: float = 0.0,
) -> Trajectory:
    """Run gradient descent with step sizes that are known in advance.

    **Arguments:**

    - loss, model: as for `gradient_descent`.
    - sizes: the step sizes eta_k for k = 0, .., steps, as from `step_sizes`.
    - settings: the momentum and the direction.
    - counts: the numbers of the iterates to record, increasing from 0.
    - shaken: the relative size of a perturbation that is added to the weights after every step, with signs that
      alternate between neighbouring entries of an array.
    """
    system = loss_system(prepared(loss, model), model)
    numbers = (jnp.asarray(sizes), jnp.asarray(settings.momentum), jnp.asarray(shaken))
    states, dissipated = _descend(system, system.encode(model), *numbers, settings.direction, jnp.asarray(counts))
    record = records(system, states)
    finite = np.isfinite(record.loss) & np.isfinite(record.grad_norm_sq) & np.isfinite(dissipated)
    run = chunk_of(counts.astype(float), record, np.asarray(dissipated), np.asarray([int(counts[-1]), 0]))
    length = counts.size if finite.all() else max(1, int(np.argmin(finite)))
    status = Status.DESCENT if finite.all() else Status.NONFINITE
    found = trajectory(system, truncate(run, length), status, settings)
    constant = sizes[0] if np.all(sizes == sizes[0]) else np.nan
    iteration = Iteration(Descent(system), jax.device_put(np.asarray(constant)), settings.momentum, settings.direction)
    return eqx.tree_at(
        lambda one: (one.step_size, one.descent),
        found,
        (jax.device_put(sizes[counts[:length]]), iteration),
        is_leaf=lambda part: part is None,
    )


class Iteration(AbstractDescent):
    """The velocity -grad L of a model, together with the settings of a gradient descent.

    **Fields:** flow: maps a model to -grad L; step_size: eta, NaN if it is not constant; momentum, direction: as
    for `gradient_descent`.
    """

    flow: Descent
    step_size: Scalar
    momentum: float = eqx.field(static=True)
    direction: str = eqx.field(static=True)

    def __call__(self, model: PyTree) -> PyTree:
        return self.flow(model)

    def way_to_go(self, model: PyTree, start: PyTree, apart: float = 0.0) -> float:
        """A proved bound on the distance between a model and every later iterate; infinite if no bound is found. It
        is always infinite for descents with momentum, in other directions than the gradient, or with a step size
        that is not constant.

        **Arguments:** model: the current iterate; start: x_0; apart: for any point within this distance of the
        model, the bound also holds for the descent from this point.
        """
        system = self.flow.system
        landscape = system.landscape()
        eta = float(self.step_size)
        plain = self.direction == "gradient" and not self.momentum and math.isfinite(eta)
        if landscape is None or not plain or not isinstance(system, LossSystem):
            return math.inf
        state, begin = system.encode(model), system.encode(start)
        return basin.way_to_go(landscape, state, begin, eta, apart)


def _step(system: LossSystem | ScaledSystem, direction: str, carry: tuple, eta: Scalar, momentum: Scalar) -> tuple:
    """Make one step. ``carry`` and the result hold the weights, the last step x_k - x_{k-1}, and the energy
    dissipated so far.
    """
    state, moved, dissipated = carry
    slope = system.field(state)
    step = jax.tree.map(lambda before, d: momentum * before + eta * d, moved, _DIRECTIONS[direction](slope))
    gain = sum((jnp.sum(s * d) for s, d in zip(*map(jax.tree.leaves, (slope, step)), strict=True)), jnp.zeros(()))
    return jax.tree.map(jnp.add, state, step), step, dissipated + gain


@eqx.filter_jit
def _descend(system, state, sizes, momentum, shaken, direction, counts):
    def shake(leaf):
        signs = 1.0 - 2.0 * (np.sum(np.indices(leaf.shape), axis=0) % 2)
        return leaf * (1 + shaken * signs)

    def one(k, carry):
        state, moved, dissipated = _step(system, direction, carry, sizes[k], momentum)
        return jax.tree.map(shake, state), moved, dissipated

    def segment(carry, ends):
        carry = jax.lax.fori_loop(ends[0], ends[1], one, carry)
        return carry, (carry[0], carry[2])

    start = (state, jax.tree.map(jnp.zeros_like, state), jnp.zeros(()))
    _, rest = jax.lax.scan(segment, start, (counts[:-1], counts[1:]))
    return jax.tree.map(lambda first, later: jnp.concatenate([first[None], later]), (state, jnp.zeros(())), rest)


def true_iterates(system: LossSystem, run: Trajectory, most_operations: float) -> tuple[PyTree, Balls] | None:
    """Enclose the iterates of a gradient descent in exact arithmetic by balls.

    The balls grow with every step, even if the descent contracts. So the precision is raised until they are narrow.

    **Arguments:**

    - system: the loss.
    - run: the descent in float64, with all of its iterates. Its start and step sizes are taken as exact.
    - most_operations: the limit on the number of operations at one precision.

    **Returns:** the iterates, with k on the first axis of every array, and (T,) the energy dissipated until each;
    None if they cannot be enclosed.
    """
    state = jax.tree.map(np.asarray, system.encode(run.start))
    sizes, settings = np.asarray(run.step_size), run.settings
    step = lambda carry, eta, momentum: _step(system, settings.direction, carry, eta, momentum)
    begin = (state, jax.tree.map(np.zeros_like, state), np.zeros(()))
    try:
        traced = Traced(step, begin, sizes[0], np.asarray(settings.momentum))
        if traced.operations * sizes.size > most_operations:
            return None
        for bits in _BITS:
            if (found := _iterates(traced, begin, sizes, settings.momentum, bits)) is not None:
                return found
    except (UndecidedError, jax.errors.JAXTypeError, TypeError, ValueError):
        return None
    return None


def _iterates(
    traced: Traced, begin: tuple, sizes: np.ndarray, momentum: float, bits: int
) -> tuple[PyTree, Balls] | None:
    """The iterates and dissipated energies, computed with ``bits`` bits; None if the balls become too wide."""
    carry = jax.tree.map(balls, begin)
    kept = [(carry[0], carry[2])]
    for eta in sizes[:-1]:
        carry = traced.on(carry, balls(eta), balls(momentum), bits=bits)
        with flint.ctx.workprec(bits):
            if not all(map(_is_sharp, jax.tree.leaves(carry[0]))):
                return None
        kept.append((carry[0], carry[2]))
    stack = lambda *leaves: np.stack([np.asarray(leaf, dtype=object) for leaf in leaves])
    return jax.tree.map(stack, *kept)


def _is_sharp(leaf: Balls) -> bool:
    radii = np.vectorize(lambda ball: float(ball.rad()), otypes=[float])(leaf)
    return not leaf.size or bool(np.max(radii) <= _SHARP * np.max(upper(np.abs(leaf))))
