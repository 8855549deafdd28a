"""The quantities that a model learns along a flow: the eigenvalues or singular values of its matrices."""

from collections.abc import Mapping

import equinox as eqx
import numpy as np
from jaxtyping import ArrayLike, PyTree

from flowsim.flow.trajectory import weights
from flowsim.models import LinearAttention

_LARGEST = 64  # rows or columns of a matrix
_MOST = 6  # matrices


def learned(models: PyTree) -> dict[str, tuple[np.ndarray, str]]:
    """The eigenvalues or singular values of a model's matrices at each time.

    For one layer of linear attention, the matrix is u_{-1} U11. Its eigenvalues are returned if it is symmetric at
    all times, otherwise its singular values. For other models, the singular values of each of `matrices_of` are
    returned.

    **Arguments:** models: the models of a trajectory, with time on the first axis of every weight.

    **Returns:** for the name of each matrix, an array (times, values) and "eigenvalues" or "singular values".
    """
    if isinstance(models, LinearAttention):
        V = np.asarray(models.u_minus1)[:, None, None] * np.asarray(models.U11)
        if np.max(np.abs(V - np.swapaxes(V, 1, 2))) <= 1e-9 * np.max(np.abs(V), initial=0.0):
            return {"$u_{-1} U_{11}$": (np.linalg.eigvalsh((V + np.swapaxes(V, 1, 2)) / 2), "eigenvalues")}
        return {"$u_{-1} U_{11}$": (np.linalg.svd(V, compute_uv=False), "singular values")}
    found = matrices_of(weights(models))
    return {name: (np.linalg.svd(matrix, compute_uv=False), "singular values") for name, matrix in found.items()}


def matrices_of(named: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """The matrices of a model by name, each an array (times, rows, columns). A weight with several matrices, such
    as one for each layer or head, gives one entry for each matrix.

    At most six matrices are returned, the first ones. Left out are matrices with a single entry, with more than 64
    rows or columns, or with entries that are not finite.

    **Arguments:** named: the weights of the model by name, with time on the first axis.
    """
    found: dict[str, np.ndarray] = {}
    for name, leaf in named.items():
        if not eqx.is_inexact_array_like(leaf) or np.ndim(leaf) < 3:
            continue
        stack = np.asarray(leaf)
        rows, columns = stack.shape[-2:]
        if not (1 < max(rows, columns) <= _LARGEST) or not np.all(np.isfinite(stack)):
            continue
        each = stack.reshape(stack.shape[0], -1, rows, columns)
        for number in range(each.shape[1]):
            found[f"{name}[{number}]" if each.shape[1] > 1 else name] = each[:, number]
    return dict(list(found.items())[:_MOST])
