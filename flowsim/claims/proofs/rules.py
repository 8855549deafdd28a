"""Translates JAX's operations on numbers into the operations of certificates.

A rule has the arguments writer, params and the inputs of a JAX operation, where ``params`` are JAX's parameters of
the operation. It writes the operation with `Writer` and returns the results. An array is called known if it depends
on no input of the program, so that its float64 value is available.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from flowsim._core.balls.operations import UndecidedError
from flowsim._core.types import Params
from flowsim.claims.proofs.writer import BINARY, NOWHERE, UNARY, Array, Value, Writer

_LARGEST_POWER = 64
_MOST_ROWS = 8  # of a matrix with eigenvectors


def _pow(writer: Writer, params: Params, x: Array, exponent: Array) -> Array:
    if exponent.known is None or exponent.size == 0 or np.any(exponent.known != np.ravel(exponent.known)[0]):
        return writer.unary("exp", writer.binary("mul", exponent, writer.unary("log", x)))
    power = float(np.ravel(exponent.known)[0])
    if power == round(power) and abs(power) <= _LARGEST_POWER:
        return writer.power(x, round(power))
    if 4 * power == round(4 * power) and abs(power) <= _LARGEST_POWER:
        root = writer.unary("sqrt", x)
        if 2 * power == round(2 * power):
            return writer.power(root, round(2 * power))
        return writer.power(writer.unary("sqrt", root), round(4 * power))
    return writer.unary("exp", writer.binary("mul", exponent, writer.unary("log", x)))


def _tanh(writer: Writer, params: Params, x: Array) -> Array:
    """Write tanh(x) as 1 - 2/(1 + exp(2x))."""
    twice = writer.unary("exp", writer.binary("mul", writer.number(2.0), x))
    rest = writer.binary("div", writer.number(2.0), writer.binary("add", writer.number(1.0), twice))
    return writer.binary("sub", writer.number(1.0), rest)


def _eigh(writer: Writer, params: Params, matrix: Array) -> list[Array]:
    """Write the eigenvectors and the eigenvalues of a symmetric matrix.

    For a known diagonal matrix they are unit vectors and its sorted entries. For a known 2 x 2 matrix there is a
    formula. For other matrices see `_eigenvectors` and `_eigenvalues`.
    """
    if not params["lower"]:
        matrix = writer.taken([matrix], np.arange(matrix.size).reshape(matrix.shape).T)
    n, known = _square(matrix), matrix.known
    if known is not None and np.all(known == np.diag(np.diagonal(known))):
        order = np.argsort(np.diagonal(known), kind="stable")
        return [writer.array(np.eye(n)[:, order]), writer.taken([matrix], order * (n + 1))]
    if n != 2 or known is None:
        return [_eigenvectors(writer, matrix, values := _eigenvalues(writer, matrix)), values]
    binary, root, two = writer.binary, lambda x: writer.unary("sqrt", x), writer.number(2.0)
    squares = lambda x, y: binary("add", binary("mul", x, x), binary("mul", y, y))
    a, b, c = (_entry(writer, matrix, *index) for index in ((0, 0), (1, 0), (1, 1)))
    middle = binary("div", binary("add", a, c), two)
    apart = root(squares(binary("div", binary("sub", a, c), two), b))
    values = [binary(name, middle, apart) for name in ("sub", "add")]
    # float64 chooses the signs of (b, value - a).
    signs = np.sign(np.asarray(jnp.linalg.eigh(jnp.asarray(known))[1])[0] * known[1, 0])
    vectors = [(b, binary("sub", value, a)) for value in values]
    sizes = [binary("mul", writer.number(float(s)), root(squares(*v))) for s, v in zip(signs, vectors, strict=True)]
    entries = [binary("div", vectors[column][row], sizes[column]) for row in range(2) for column in range(2)]
    return [_of_entries(writer, entries, (2, 2)), _of_entries(writer, values, (2,))]


def _eigenvalues(writer: Writer, matrix: Array) -> Array:
    """Write the eigenvalues of a symmetric matrix in ascending order. JAX has symmetrized the matrix before.

    **Raises:** `UndecidedError` if the matrix is known and not finite.
    """
    if matrix.known is not None and not np.all(np.isfinite(matrix.known)):
        raise UndecidedError("it has eigenvalues of a matrix that flowsim computes in float64")
    values = None if matrix.known is None else np.linalg.eigvalsh(matrix.known)
    return writer.write("eigenvalues", [matrix], _square(matrix), (_square(matrix),), values)


def _eigenvectors(writer: Writer, matrix: Array, values: Array) -> Array:
    """Write unit eigenvectors of a known symmetric matrix A, with the signs that float64 gives.

    For an eigenvalue c, the largest entry of the eigenvector v is set to 1. The rows of (A - c) v = 0 for the other
    entries are then linear equations for these. If c is not simple, the equations are singular, and their solution
    in balls is NaN. If A is not known or has more than 8 rows, the result counts as not finite.
    """
    n = _square(matrix)
    if matrix.known is None or n > _MOST_ROWS:
        return Array((n, n), NOWHERE, None)
    known, columns = np.asarray(jnp.linalg.eigh(jnp.asarray(matrix.known))[1]), []
    for k in range(n):
        largest = int(np.argmax(np.abs(known[:, k])))
        others = np.delete(np.arange(n), largest)
        inner = writer.taken([matrix], others[:, None] * n + others)
        inner = _less_diagonal(writer, inner, writer.taken([values], np.full(n - 1, k)))
        right = writer.taken([matrix], (others * n + largest)[:, None])
        solved = _solved(writer, inner, writer.binary("sub", writer.number(0.0), right))
        vector = writer.taken([solved, writer.number(1.0)], np.insert(np.arange(n - 1), largest, n - 1))
        columns.append(_unit(writer, vector, known[largest, k]))
    return writer.taken(columns, np.arange(n * n).reshape(n, n).T)


def _unit(writer: Writer, vector: Array, sign: float) -> Array:
    """Write a vector divided by its length and multiplied by the sign of ``sign``."""
    size = writer.unary("sqrt", writer.summed(writer.binary("mul", vector, vector), (0,)))
    return writer.binary("div", vector, writer.binary("mul", size, writer.number(np.sign(sign))))


def _less_diagonal(writer: Writer, matrix: Array, values: Array) -> Array:
    """Write A - diag(c) for a square matrix A and a vector c."""
    n = _square(matrix)
    places = np.full((n, n), n)
    np.fill_diagonal(places, np.arange(n))
    return writer.binary("sub", matrix, writer.taken([values, writer.number(0.0)], places))


def _solved(writer: Writer, matrix: Array, right: Array) -> Array:
    """Write the solution X of A X = B by an LU decomposition."""
    factors, _, order = _lu(writer, {}, matrix)
    assert isinstance(factors, Array)
    columns = right.shape[1]
    rows = writer.taken([right], np.arange(right.size).reshape(right.shape)[np.asarray(order)])
    how = {"left_side": True, "transpose_a": False}
    (rows,) = _triangular_solve(writer, how | {"lower": True, "unit_diagonal": True}, factors, rows)
    (found,) = _triangular_solve(writer, how | {"lower": False, "unit_diagonal": False}, factors, rows)
    return writer.reshaped(found, (_square(matrix), columns))


def _qr(writer: Writer, params: Params, matrix: Array) -> list[Array]:
    """Write Q and R of a QR decomposition by the Gram-Schmidt process, with the signs that float64 gives.

    **Raises:** `UndecidedError` for a matrix that is not known, for a square Q of a tall matrix, and with pivoting.
    """
    m, n = matrix.shape
    if matrix.known is None or (params["full_matrices"] and m > n) or params.get("pivoting"):
        raise UndecidedError("certificates do not have the operation qr of numbers that move, or with all columns")
    count, known = min(m, n), np.linalg.qr(matrix.known)[0]
    columns: list[Array] = []
    for k in range(count):
        vector = writer.taken([matrix], np.arange(m) * n + k)
        for column in columns:
            along = writer.summed(writer.binary("mul", column, vector), (0,))
            vector = writer.binary("sub", vector, writer.binary("mul", column, along))
        columns.append(_unit(writer, vector, float(known[:, k] @ matrix.known[:, k])))
    Q = writer.taken(columns, np.arange(count * m).reshape(count, m).T)
    products = writer.contracted({"dimension_numbers": (((0,), (0,)), ((), ()))}, Q, matrix)
    places = np.where(np.tri(count, n, -1) > 0, products.size, np.arange(products.size).reshape(count, n))
    R = writer.taken([products, writer.number(0.0)], places)
    return [Q, R]


def _svd(writer: Writer, params: Params, matrix: Array) -> list[Array]:
    """Write the singular values of A in descending order. Singular vectors count as not finite.

    The singular values are the largest eigenvalues of the block matrix [0 A; A^T 0].
    """
    m, n = matrix.shape
    count, size = min(m, n), m + n
    places = np.full((size, size), matrix.size)
    places[:m, m:] = np.arange(matrix.size).reshape(m, n)
    places[m:, :m] = places[:m, m:].T
    values = _eigenvalues(writer, writer.taken([matrix, writer.number(0.0)], places))
    largest = writer.taken([values], np.arange(size)[::-1][:count])
    shapes = [(m, m), (n, n)] if params.get("full_matrices") else [(m, count), (count, n)]
    return [largest, *[Array(shape, NOWHERE, None) for shape in shapes if params["compute_uv"]]]


def _entry(writer: Writer, array: Array, *index: int) -> Array:
    return writer.taken([array], np.asarray(np.arange(array.size).reshape(array.shape)[index]))


def _of_entries(writer: Writer, entries: Sequence[Array], shape: tuple[int, ...]) -> Array:
    return writer.taken(entries, np.arange(len(entries)).reshape(shape))


def _less_products(writer: Writer, x: Array, left: Sequence[Array], right: Sequence[Array]) -> Array:
    for one, other in zip(left, right, strict=True):
        x = writer.binary("sub", x, writer.binary("mul", one, other))
    return x


def _cholesky(writer: Writer, params: Params, matrix: Array) -> list[Array]:
    n = _square(matrix)
    rows: list[list[Array]] = []
    for i in range(n):
        row: list[Array] = []
        for j in range(i + 1):
            left = _less_products(writer, _entry(writer, matrix, i, j), row, (row if i == j else rows[j])[:j])
            row.append(writer.unary("sqrt", left) if i == j else writer.binary("div", left, rows[j][j]))
        rows.append(row)
    # Where a matrix is not positive definite it has no factor at all: zero over a pivot is zero or nothing.
    zero = writer.number(0.0)
    parts = [writer.binary("div", zero, row[-1]) for row in rows]
    rest = functools.reduce(functools.partial(writer.binary, "add"), parts)
    entries = [writer.binary("add", rows[i][j], rest) if j <= i else zero for i in range(n) for j in range(n)]
    return [_of_entries(writer, entries, (n, n))]


def _lu(writer: Writer, params: Params, matrix: Array) -> list[Value]:
    """Write L and U in one matrix, with the pivots that float64 chooses; also return the pivots and the order of
    the rows.

    **Raises:** `UndecidedError` for a matrix that is not known.
    """
    n = _square(matrix)
    if matrix.known is None:
        raise UndecidedError("certificates do not have systems of equations whose matrix moves")
    _, pivots, order = jax.lax.linalg.lu(jnp.asarray(matrix.known))
    rows = [[_entry(writer, matrix, int(i), j) for j in range(n)] for i in np.asarray(order)]
    for k in range(n):
        for i in range(k + 1, n):
            rows[i][k] = writer.binary("div", rows[i][k], rows[k][k])
            for j in range(k + 1, n):
                rows[i][j] = _less_products(writer, rows[i][j], [rows[i][k]], [rows[k][j]])
    factors = _of_entries(writer, [entry for row in rows for entry in row], (n, n))
    return [factors, np.asarray(pivots), np.asarray(order)]


def _triangular_solve(writer: Writer, params: Params, matrix: Array, right: Array) -> list[Array]:
    """Write the solution X of op(A) X = B, or of X op(A) = B, for a triangular matrix A; op(A) is A or A^T."""
    n = _square(matrix)
    swap = lambda array: np.arange(array.size).reshape(array.shape).T
    transposed = bool(params["transpose_a"]) != (not params["left_side"])
    lower = bool(params["lower"]) != transposed
    matrix = writer.taken([matrix], swap(matrix)) if transposed else matrix
    right = right if params["left_side"] else writer.taken([right], swap(right))
    found: dict[int, list[Array]] = {}
    for i in range(n) if lower else reversed(range(n)):
        before = range(i) if lower else range(i + 1, n)
        row = [_entry(writer, matrix, i, k) for k in before]
        found[i] = []
        for j in range(right.shape[1]):
            left = _less_products(writer, _entry(writer, right, i, j), row, [found[k][j] for k in before])
            divided = left if params["unit_diagonal"] else writer.binary("div", left, _entry(writer, matrix, i, i))
            found[i].append(divided)
    solution = _of_entries(writer, [entry for i in range(n) for entry in found[i]], right.shape)
    return [solution if params["left_side"] else writer.taken([solution], swap(solution))]


def _square(matrix: Array) -> int:
    return matrix.shape[-1]


def _each(rule: Callable[..., list]) -> Callable[..., list]:
    """Extend a rule for one matrix to batches, by applying it to each matrix of a batch."""

    def apply(writer: Writer, params: Params, *arrays: Array) -> list:
        batch = arrays[0].shape[:-2]
        if not batch:
            return rule(writer, params, *arrays)
        parts = lambda array: np.arange(array.size).reshape(-1, *array.shape[len(batch) :])
        places = [parts(array) for array in arrays]
        found = [
            rule(
                writer,
                params,
                *[writer.taken([array], np.asarray(rows[k])) for array, rows in zip(arrays, places, strict=True)],
            )
            for k in range(len(places[0]))
        ]
        return [_stacked(writer, one, batch) for one in zip(*found, strict=True)]

    return apply


def _stacked(writer: Writer, values: Sequence[Value], batch: tuple[int, ...]) -> Value:
    shape = (*batch, *values[0].shape)
    if known := [value for value in values if not isinstance(value, Array)]:
        return np.stack(known).reshape(shape)
    return writer.reshaped(writer.joined([*map(writer.array, values)]), shape)


def _added(name: str, one: float) -> Callable[..., Array]:
    """Return the rule for exp(x) - 1 if ``name`` is "exp", else the rule for log(1 + x)."""
    if name == "exp":
        return lambda w, params, x: w.binary("sub", w.unary("exp", x), w.number(one))
    return lambda w, params, x: w.unary("log", w.binary("add", x, w.number(one)))


RULES: dict[str, Callable[..., Array]] = {
    **{name: lambda w, params, x, y, name=name: w.binary(name, x, y) for name in BINARY},
    **{name: lambda w, params, x, name=name: w.unary(name, x) for name in UNARY},
    "add_any": lambda w, params, x, y: w.binary("add", x, y),
    "square": lambda w, params, x: w.binary("mul", x, x),
    "integer_pow": lambda w, params, x: w.power(x, params["y"]),
    "pow": _pow,
    "neg": lambda w, params, x: w.binary("sub", w.number(0.0), x),
    "tanh": _tanh,
    "rsqrt": lambda w, params, x: w.binary("div", w.number(1.0), w.unary("sqrt", x)),
    "expm1": _added("exp", 1.0),
    "log1p": _added("log", 1.0),
    "logistic": lambda w, params, x: w.binary(
        "div", w.number(1.0), w.binary("add", w.number(1.0), w.unary("exp", w.binary("sub", w.number(0.0), x)))
    ),
    "reduce_sum": lambda w, params, x: w.summed(x, params["axes"]),
    "dot_general": lambda w, params, x, y: w.contracted(params, x, y),
    "stop_gradient": lambda w, params, x: x,
}
FACTORIZED: dict[str, Callable[..., list]] = {
    "cholesky": _each(_cholesky),
    "lu": _each(_lu),
    "triangular_solve": _each(_triangular_solve),
    "eigh": _each(_eigh),
    "svd": _each(_svd),
    "qr": _each(_qr),
}
