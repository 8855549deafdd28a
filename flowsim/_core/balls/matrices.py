"""Products and factorizations of matrices of balls, with the signatures of JAX's operations.

LU and Cholesky factors are enclosures: whatever pivots are chosen, they contain a factorization of every matrix in
the given balls. Eigenvalues are enclosures too. Eigenvectors are approximations of the eigenvectors of the
midpoints.
"""

import math
from collections.abc import Callable

import flint
import numpy as np

from flowsim._core.types import Params

Balls = np.ndarray  # of flint.arb

_SWEEPS = 60
_MOST_REMEMBERED = 16
_DIAGONALIZED: dict[tuple, tuple[np.ndarray, np.ndarray]] = {}


def _each_matrix(factorize: Callable[..., tuple]) -> Callable[..., list[np.ndarray]]:
    """Turn a factorization of one matrix into a function that factorizes every matrix of a batch."""

    def all_of_them(matrices: Balls, *others: Balls) -> list[np.ndarray]:
        batch = matrices.shape[:-2]
        found = [factorize(matrices[index], *[other[index] for other in others]) for index in np.ndindex(*batch)]
        return [np.stack(parts).reshape(*batch, *parts[0].shape) for parts in zip(*found, strict=True)]

    return all_of_them


def contraction(params: Params, a: Balls, b: Balls) -> Balls:
    """JAX's dot_general: the product of two arrays, summed over pairs of axes."""
    (a_contracted, b_contracted), (a_batch, b_batch) = params["dimension_numbers"]
    a_free = [axis for axis in range(a.ndim) if axis not in (*a_contracted, *a_batch)]
    b_free = [axis for axis in range(b.ndim) if axis not in (*b_contracted, *b_batch)]
    batch = [a.shape[axis] for axis in a_batch]
    inner = math.prod(a.shape[axis] for axis in a_contracted)
    rows, columns = [a.shape[axis] for axis in a_free], [b.shape[axis] for axis in b_free]
    left = a.transpose(*a_batch, *a_free, *a_contracted).reshape(math.prod(batch), math.prod(rows), inner)
    right = b.transpose(*b_batch, *b_contracted, *b_free).reshape(math.prod(batch), inner, math.prod(columns))
    product = [(_matrix(one) * _matrix(other)).entries() for one, other in zip(left, right, strict=True)]
    entries = np.asarray([entry for one in product for entry in one], dtype=object)
    return entries.reshape((*batch, *rows, *columns))


def _matrix(entries: Balls) -> flint.arb_mat:
    rows, columns = entries.shape
    return flint.arb_mat(rows, columns, list(entries.reshape(-1)))


def lu(params: Params, matrices: Balls) -> list[np.ndarray]:
    """The LU factorization with pivoting: L and U in one matrix, the pivots, and the permutation of the rows."""
    return _each_matrix(_eliminated)(matrices)


def _eliminated(matrix: Balls) -> tuple[np.ndarray, ...]:
    matrix, rows = matrix.copy(), np.arange(matrix.shape[0])
    pivots = np.zeros(min(matrix.shape), dtype=np.int32)
    for k in range(pivots.size):
        pivots[k] = best = k + int(np.argmax([abs(float(ball.mid())) for ball in matrix[k:, k]]))
        matrix[[k, best]], rows[[k, best]] = matrix[[best, k]], rows[[best, k]]
        for i in range(k + 1, matrix.shape[0]):
            matrix[i, k] = matrix[i, k] / matrix[k, k]
            matrix[i, k + 1 :] = matrix[i, k + 1 :] - matrix[i, k] * matrix[k, k + 1 :]
    return matrix, pivots, rows.astype(np.int32)


def _total(row: Balls) -> flint.arb:
    return sum(row, flint.arb(0))


def cholesky(params: Params, matrices: Balls) -> Balls:
    """The lower triangular L with L L^T equal to the given matrix, of which only the lower triangle is read."""
    return _each_matrix(_lower_root)(matrices)[0]


def _lower_root(matrix: Balls) -> tuple[np.ndarray]:
    root = np.full(matrix.shape, flint.arb(0), dtype=object)
    for j in range(matrix.shape[0]):
        root[j, j] = (matrix[j, j] - _total(root[j, :j] * root[j, :j])).sqrt()
        for i in range(j + 1, matrix.shape[0]):
            root[i, j] = (matrix[i, j] - _total(root[i, :j] * root[j, :j])) / root[j, j]
    return (root,)


def triangular_solve(params: Params, matrices: Balls, right: Balls) -> Balls:
    """The solution X of op(A) X = B, or of X op(A) = B without ``left_side``, for a triangular A.

    Here op(A) is A or A^T.
    """

    def one(matrix: Balls, right: Balls) -> tuple[np.ndarray]:
        transposed = bool(params["transpose_a"]) != (not params["left_side"])
        matrix, lower = (matrix.T, not params["lower"]) if transposed else (matrix, params["lower"])
        found = right.copy() if params["left_side"] else right.T.copy()
        order = range(matrix.shape[0]) if lower else reversed(range(matrix.shape[0]))
        for i in order:
            before = slice(0, i) if lower else slice(i + 1, None)
            for j in range(found.shape[1]):
                found[i, j] = found[i, j] - _total(matrix[i, before] * found[before, j])
                found[i, j] = found[i, j] if params["unit_diagonal"] else found[i, j] / matrix[i, i]
        return (found if params["left_side"] else found.T,)

    return _each_matrix(one)(matrices, right)[0]


def eigh(params: Params, matrices: Balls) -> list[np.ndarray]:
    """Approximate eigenvectors of the midpoints as columns, and enclosures of the ascending eigenvalues."""
    return _each_matrix(_remembered)(matrices)


def _remembered(matrix: Balls) -> tuple[np.ndarray, np.ndarray]:
    """The cached result of `_diagonalized`. The claims on one flow diagonalize the same few matrices."""
    digits = lambda ball: (ball.mid().man_exp(), ball.rad().man_exp()) if ball.is_finite() else str(ball)
    key = flint.ctx.prec, *map(digits, matrix.reshape(-1))
    if key not in _DIAGONALIZED:
        if len(_DIAGONALIZED) == _MOST_REMEMBERED:
            _DIAGONALIZED.clear()
        _DIAGONALIZED[key] = _diagonalized(matrix)
    vectors, values = _DIAGONALIZED[key]
    return vectors.copy(), values.copy()


def _diagonalized(matrix: Balls) -> tuple[np.ndarray, np.ndarray]:
    """Approximate eigenvectors of the midpoints as columns, and enclosures of the ascending eigenvalues.

    Jacobi's rotations start from the eigenvectors in float64 and end when only rounding is left off the diagonal.
    """
    middle = np.frompyfunc(lambda ball: ball.mid(), 1, 1)
    given = np.asarray(np.tril(matrix) + np.tril(matrix, -1).T, dtype=object)
    matrix = np.asarray(middle(given), dtype=object)
    size, one = matrix.shape[0], np.asarray(np.frompyfunc(flint.arb, 1, 1)(np.eye(matrix.shape[0])), dtype=object)
    _, vectors = np.linalg.eigh(np.asarray(matrix, dtype=float))
    vectors = np.asarray(np.frompyfunc(flint.arb, 1, 1)(vectors), dtype=object)
    for _ in range(4):  # Newton's iteration for an orthogonal matrix: each step doubles the correct digits
        vectors = np.asarray(middle(vectors.dot(3 * one - vectors.T.dot(vectors)) / 2), dtype=object)
    matrix = np.asarray(middle(vectors.T.dot(matrix).dot(vectors)), dtype=object)
    scale = max([abs(ball) for ball in matrix.reshape(-1)], key=float, default=flint.arb(0))
    least = scale * flint.arb(2) ** (8 - flint.ctx.prec)
    for _ in range(_SWEEPS):
        pairs = [(i, j) for i in range(size) for j in range(i + 1, size) if abs(matrix[i, j]) > least]
        if not pairs:
            break
        for i, j in pairs:
            if matrix[i, j] == 0:
                continue
            slope = (matrix[j, j] - matrix[i, i]) / (2 * matrix[i, j])
            tangent = (1 if slope >= 0 else -1) / (abs(slope) + (1 + slope**2).sqrt())
            cosine = 1 / (1 + tangent**2).sqrt()
            for columns in (vectors, matrix, matrix.T):
                first, second = columns[:, i].copy(), columns[:, j].copy()
                columns[:, i] = middle(cosine * (first - tangent * second))
                columns[:, j] = middle(cosine * (tangent * first + second))
    values = np.diagonal(matrix)
    order = np.argsort([float(value) for value in values], kind="stable")
    vectors, values = vectors[:, order], values[order]
    return vectors, values + _off(given, vectors, values) * flint.arb(0, 1)


def _off(matrix: Balls, vectors: Balls, values: Balls) -> flint.arb:
    """An upper bound on the error of approximate eigenvalues lambda of a matrix A with approximate eigenvectors V.

        |V^T A V - diag(lambda)| + |V^T V - I| |A|,  in Frobenius norms

    The first term is by Weyl's inequality, the second by Ostrowski's theorem.
    """
    norm = lambda part: _total(abs(part.reshape(-1)) * abs(part.reshape(-1))).upper().sqrt()
    one = np.asarray(np.frompyfunc(flint.arb, 1, 1)(np.eye(len(values))), dtype=object)
    left = vectors.T.dot(matrix).dot(vectors) - np.where(one == 1, values, one)
    return norm(left) + norm(vectors.T.dot(vectors) - one) * norm(matrix)
