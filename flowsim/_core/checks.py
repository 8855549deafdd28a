"""Argument checks. All errors have one wording, ``NAME must be EXPECTED, but WHAT CAME``.

The values of a traced array are unknown, so it passes every check of its values. Its shape is always checked.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import NoReturn, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float

from flowsim._core.text import nearest as nearest
from flowsim._core.text import one_line


class ProblemError(ValueError):
    """Raised on bad input. The message is one line that names the field or the argument."""

    def __init__(self, message: str):
        super().__init__(one_line(message))


_COPIES = 16  # copies of the largest array of a problem that its flow and verdicts hold at once


def refuse(name: str, expected: str, came: str) -> NoReturn:
    """Raise a `ProblemError` in the wording of all errors: ``NAME must be EXPECTED, but WHAT CAME``."""
    raise ProblemError(f"{name} must be {expected}, but {came}")


def is_concrete(x: object) -> bool:
    """Whether ``x`` is not a tracer of JAX, so that its value is known."""
    return not isinstance(x, Tracer)


def is_number(x: object) -> TypeGuard[float]:
    """Whether ``x`` is a single number with a known value."""
    return is_concrete(x) and isinstance(x, int | float | np.generic | np.ndarray | jax.Array) and np.ndim(x) == 0


def require_float64() -> None:
    """Refuse to compute in single precision, where rounding would decide verdicts."""
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        refuse("float64", "switched on (call flowsim.setup() first)", "it is off")


@contextlib.contextmanager
def refuse_leaks(name: str) -> Iterator[None]:
    """Refuse a function that stores tracers of JAX.

    Use this as a context around calls of the function, or as a decorator.

    **Arguments:** name: the name of the function, for the message.

    **Raises:** `ProblemError`
    """
    try:
        yield
    except jax.errors.UnexpectedTracerError as error:
        expected = "one that keeps nothing of its weights from one call to the next, in a global or on an object"
        raise ProblemError(f"{name} must be {expected}, but it reads what an earlier call kept") from error


def refuse_debugging() -> None:
    """Refuse debugging settings of JAX.

    Two of them, ``jax_debug_nans`` and ``jax_debug_infs``, raise on NaN and infinity, which flowsim computes on
    purpose. Under ``jax_check_tracer_leaks`` no flow ends, and under ``jax_disable_jit`` no flow is compiled.
    """
    for name in ("jax_debug_nans", "jax_debug_infs", "jax_check_tracer_leaks", "jax_disable_jit"):
        if jax.config.values[name]:
            refuse(name, "off", "it is on")


def as_array(name: str, x: ArrayLike | Iterable, shape: tuple[int | None, ...]) -> Float[Array, "..."]:
    """``x`` as a float64 array, refused unless it has the given shape. None in the shape stands for any length.

    **Raises:** `ProblemError` on another shape, on entries that are not real numbers, on NaN or infinity.
    """
    require_float64()
    found = _on_the_host(x)
    # JAX would drop imaginary parts.
    if isinstance(found, np.ndarray | jax.Array) and np.iscomplexobj(found):
        refuse(name, f"an array of numbers of shape {shape_text(shape)}", f"got {x!r:.60}")
    # Known numbers stay known while a function is traced, so that a loss that is made there can be kept.
    evaluating = jax.ensure_compile_time_eval() if isinstance(found, np.ndarray) else contextlib.nullcontext()
    try:
        with evaluating:
            array = jnp.asarray(found, dtype=jnp.float64)
    except (TypeError, ValueError):
        refuse(name, f"an array of numbers of shape {shape_text(shape)}", f"got {x!r:.60}")
    if array.ndim != len(shape) or any(
        want is not None and want != have for want, have in zip(shape, array.shape, strict=True)
    ):
        refuse(name, f"an array of shape {shape_text(shape)}", f"its shape is {array.shape}")
    if is_concrete(array) and not np.all(np.isfinite(array)):
        refuse(name, "finite", "it holds NaN or infinity")
    return array


def _on_the_host(x: ArrayLike | Iterable) -> ArrayLike | Iterable:
    """Numbers as a float64 or complex NumPy array, which JAX accepts without compiling.

    JAX arrays, and values that are not numbers, are returned unchanged.
    """
    with contextlib.suppress(TypeError, ValueError):
        if not isinstance(x, jax.Array) and (values := np.asarray(x)).dtype.kind in "biufc":
            return values if values.dtype.kind == "c" else values.astype(np.float64)
    return x


def shape_text(shape: tuple[int | None, ...]) -> str:
    """A shape as text, with "any" for None."""
    return "(" + ", ".join("any" if n is None else str(n) for n in shape) + ("," if len(shape) == 1 else "") + ")"


def positive(name: str, x: ArrayLike) -> Float[Array, ""]:
    """``x`` as a float64 scalar, refused unless it is positive and finite."""
    value = as_array(name, x, ())
    if is_concrete(value) and not float(value) > 0:
        refuse(name, "positive", f"it is {float(value):g}")
    return value


def nonnegative(name: str, x: ArrayLike) -> Float[Array, ""]:
    """``x`` as a float64 scalar, refused unless it is finite and at least 0."""
    value = as_array(name, x, ())
    if is_concrete(value) and float(value) < 0:
        refuse(name, "at least 0", f"it is {float(value):g}")
    return value


def within_memory(name: str, count: int) -> None:
    """Refuse a problem if, by an estimate, its flow would not fit into the memory of this machine.

    **Arguments:**

    - name: the field that sets the size, for the message.
    - count: how many numbers the largest array of the problem holds.
    """
    memory, needed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _COPIES * 8 * count
    if needed > memory:
        # float cannot hold whole numbers beyond about 10^308.
        takes = f"a flow of that size takes some {min(needed, 10**300) / 2**30:.3g} GiB"
        refuse(name, f"small enough for {memory / 2**30:.3g} GiB of memory", takes)


def square(name: str, matrices: Float[Array, "..."]) -> Float[Array, "..."]:
    """The given matrix or stack of matrices, refused unless the matrices are square and not empty."""
    if matrices.shape[-2] != matrices.shape[-1] or matrices.size == 0:
        refuse(name, "a square matrix" if matrices.ndim == 2 else "square matrices", f"its shape is {matrices.shape}")
    return matrices


def symmetric(name: str, matrices: Float[Array, "... d d"]) -> Float[Array, "... d d"]:
    """The given matrix or stack of matrices made exactly symmetric, refused if the asymmetry exceeds rounding."""
    if is_concrete(matrices):
        values = np.asarray(matrices)
        asymmetry = np.max(np.abs(values - np.swapaxes(values, -1, -2)))
        if asymmetry > 1e-12 * np.max(np.abs(values)):
            refuse(name, "symmetric", f"it differs from its transpose by {asymmetry:.3g}")
        return jnp.asarray((values + np.swapaxes(values, -1, -2)) / 2, dtype=jnp.float64)
    return (matrices + jnp.swapaxes(matrices, -1, -2)) / 2


def count(name: str, x: object) -> int:
    """``x`` as an int, refused unless it is a whole number of at least 1 that is not traced."""
    if isinstance(x, bool) or not isinstance(x, int | np.integer) or x < 1:
        refuse(name, "a whole number of at least 1", f"it is {x!r:.60}")
    return int(x)


def positive_definite(name: str, x: ArrayLike | Iterable, *, semi: bool = False) -> Float[Array, "d d"]:
    """``x`` as an exactly symmetric matrix, refused unless it is positive definite.

    **Arguments:** semi: whether a positive semidefinite matrix is accepted, too.

    **Raises:** `ProblemError`, with the smallest eigenvalue if the matrix is symmetric but not definite.
    """
    given = square(name, as_array(name, x, (None, None)))
    matrix = symmetric(name, given)
    if is_concrete(given):
        values = np.asarray(given)
        size = np.max(np.abs(values))
        smallest = np.linalg.eigvalsh(values)[0]
        if not semi and smallest <= 1e-15 * values.shape[0] * size:
            refuse(name, "positive definite", f"its smallest eigenvalue is {smallest:.3g}")
        if semi and smallest < -1e-12 * size:
            refuse(name, "positive semidefinite", f"its smallest eigenvalue is {smallest:.3g}")
    return matrix


def context_length(name: str, x: ArrayLike) -> Float[Array, ""]:
    """``x`` as a float64 scalar, refused unless it is a whole number of at least 1, or infinity."""
    require_float64()
    value = jnp.asarray(_on_the_host(x), dtype=jnp.float64)
    whole = True
    if is_concrete(value):
        number = np.asarray(value)  # inside a transformation JAX would trace an operation of jnp
        whole = np.all((number >= 1) & (np.isinf(number) | (number == np.floor(number))))
    if value.ndim or not whole:
        refuse(name, "a whole number of at least 1, or inf", f"it is {x}")
    return value


EARLIEST, LATEST = 1e-290, 1e290  # times; beyond them, steps and rates leave the range of float64


def time(name: str, value: float) -> float:
    """``value``, refused unless it is a time from `EARLIEST` to `LATEST`.

    No array is made, since that would start JAX's devices.
    """
    if not EARLIEST <= value <= LATEST:
        refuse(name, f"from {EARLIEST:g} to {LATEST:g}", f"it is {value:g}")
    return value


def increasing_times(name: str, times: ArrayLike | Iterable) -> np.ndarray:
    """``times`` as an array (T,), refused unless they are strictly increasing and from `EARLIEST` to `LATEST`."""
    values = np.asarray(list(times) if isinstance(times, Iterator) else times, dtype=np.float64)
    if values.ndim != 1:
        refuse(name, "a list of times", f"its shape is {values.shape}")
    if not np.all(np.isfinite(values)):
        refuse(name, "finite", "it holds NaN or infinity")
    if np.any(values <= 0):
        refuse(name, "positive", f"it holds {values[values <= 0][0]:g}")
    for value in values[(values < EARLIEST) | (values > LATEST)]:
        refuse(name, f"from {EARLIEST:g} to {LATEST:g}", f"it holds {value:g}")
    falls = np.flatnonzero(np.diff(values) <= 0)
    if falls.size:
        refuse(name, "strictly increasing", f"{values[falls[0]]:g} is followed by {values[falls[0] + 1]:g}")
    return values
