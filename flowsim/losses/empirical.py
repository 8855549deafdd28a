"""The empirical risk of one layer of linear attention on drawn prompts, and its error on new prompts."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.losses.base import AbstractPopulationLoss, MinimumKind
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.models import TokenHeads
from flowsim.tasks import LinearRegression, Prompt
from flowsim.tasks.sampling import draw_prompts


class EmpiricalLoss(AbstractPopulationLoss):
    """The empirical risk of one layer of linear attention on drawn prompts, with an optional ridge penalty.

    The prompts are drawn once, n for each of M tasks. The model is the key-query matrix Theta, a (d+1, d) array, of
    `TokenHeads` with one head. The last row of the value matrix is fixed, p = (0, .., 0, 1). The prediction <Theta,
    H> is linear in Theta, with H = (1/N) sum_i y_i (x_i, y_i) x_q^T. Let y_j be the label of the query of prompt j.
    Then

        L = (1/(M n)) sum_j (<Theta, H_j> - y_j)^2/2 + ridge |Theta|_F^2/2 = min L + |R (Theta - Theta*)|^2/2

    with a square matrix R. The second form does not cancel near the minimum. Theta* is the minimizer of least norm,
    to which the flow from zero tends. Without a ridge, Theta* fits every label exactly if there are at most d (d+1)
    prompts.

    **Arguments:**

    - task: a `LinearRegression` with one finite context length N.
    - tasks, prompts, seed: M, n and the seed of `draw_prompts`.
    - ridge: the factor of the penalty, at least 0.

    **Fields:**

    - root: R, with a row and a column for each entry of Theta.
    - least: Theta*.
    - rounding: a bound on the rounding error of Theta* in the Frobenius norm, given the numbers H_j and y_j. It is
      infinite if the rank of the matrix of all H_j is neither the number of prompts nor d (d+1).

    **Raises:** `ValueError` naming the argument.

    **Source:** Lu, Letey, Zavatone-Veth, Maiti and Pehlevan (Asymptotic theory of in-context learning by linear
    attention), for the prediction and for the ridge regression of Theta.
    """

    risk: HeadRisk
    root: Float[Array, "p p"]
    least: Float[Array, "rows d"]
    rounding: Scalar
    minimum: Scalar
    minimum_kind: MinimumKind = eqx.field(static=True)

    def __init__(self, task: LinearRegression, tasks: int, prompts: int, *, seed: int = 0, ridge: ArrayLike = 0.0):
        drawn, labels = draw_prompts(task, tasks, prompts, seed=seed)
        penalty, d = float(checks.nonnegative("ridge", ridge)), task.dimension
        count, p = labels.size, d * (d + 1)
        rows, right = np.asarray(_features(drawn)).reshape(count, p), np.asarray(labels)
        if penalty > 0:
            rows, right = np.vstack([rows, math.sqrt(count * penalty) * np.eye(p)]), np.append(right, np.zeros(p))
        least, rounding, minimum = _least_squares(rows, right)
        # Padded, so that the losses of any numbers of prompts have one structure and are compiled once.
        root = np.asarray(np.linalg.qr(rows, mode="r")) if len(rows) > p else np.pad(rows, ((0, p - len(rows)), (0, 0)))
        self.risk, self.root, self.least = (
            HeadRisk(task),
            jnp.asarray(root / math.sqrt(count)),
            jnp.asarray(least.reshape(d + 1, d)),
        )
        self.rounding, self.minimum = jnp.asarray(rounding), jnp.asarray(minimum / count)
        self.minimum_kind = MinimumKind.EXACT

    @property
    def task(self) -> LinearRegression:
        """The law from which the prompts were drawn."""
        return self.risk.task

    @property
    def hessian(self) -> Float[Array, "p p"]:
        """The Hessian R^T R, which is constant. Rows and columns are in the order of ``Theta.ravel()``."""
        return self.root.T @ self.root

    def __call__(self, model: Float[Array, "rows d"]) -> Scalar:
        return self.minimum + self.excess(model)

    def excess(self, model: Float[Array, "rows d"]) -> Scalar:
        self._check(model)
        return jnp.sum(jnp.square(self.root @ (model - self.least).ravel())) / 2

    def population(self, model: Float[Array, "rows d"]) -> Scalar:
        """The exact population loss E (<Theta, H> - y)^2/2 of Theta on new prompts with new tasks.

        It includes the noise of the query's label y.

        **Raises:** `ValueError` if Theta does not have the shape (d+1, d).
        """
        self._check(model)
        d, noise = self.task.dimension, self.task.label_noise
        head = TokenHeads(jnp.eye(1, d + 1, d), model[None])
        return (self.risk(head) + (0.0 if noise is None else noise**2)) / 2

    def conserved(self, model: Float[Array, "rows d"]) -> None:
        return None

    def least_model(self) -> Float[Array, "rows d"]:
        """The minimizer Theta* of least norm."""
        return self.least

    def _check(self, model: Float[Array, "rows d"]) -> None:
        if jnp.shape(model) != self.least.shape:
            expected = f"an array of shape {checks.shape_text(self.least.shape)}"
            checks.refuse("model", expected, f"its shape is {checks.shape_text(jnp.shape(model))}")


@jax.jit
def _features(prompts: Prompt) -> Float[Array, "prompts rows d"]:
    """The matrix H of each prompt."""
    tokens = jnp.concatenate([prompts.inputs, prompts.labels[:, :, None]], axis=2)
    seen = jnp.einsum("jn,jnr->jr", prompts.labels, tokens) / prompts.labels.shape[1]
    return seen[:, :, None] * prompts.query[:, None, :]


def _least_squares(A: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float, float]:
    """The least-squares solution x of A x = y of least norm, a bound on its rounding error, and |A x - y|^2/2.

    Let r = y - A x, and let s be the smallest singular value of A. For full column rank the error of x is at most
    |A^T r|/s^2. For full row rank its part in the row space is at most |r|/s, and its part orthogonal to the row
    space is at most |x - A^T z| for any z. If neither rank is full, the bound is infinite.
    """
    m, p = A.shape
    x, _, rank, sizes = np.linalg.lstsq(A, y, rcond=None)
    long_A, long_y, eps = A.astype(np.longdouble), y.astype(np.longdouble), float(np.finfo(np.longdouble).eps)
    missed = lambda x: long_y - long_A @ x.astype(np.longdouble)
    # One step of refinement, with a residual in more digits where the machine has them.
    x = x + np.linalg.lstsq(A, missed(x).astype(float), rcond=None)[0]
    residual = missed(x)
    minimum = 0.0 if rank == m else float(residual @ residual) / 2
    if rank < min(m, p):
        return x, math.inf, minimum
    size, many = np.abs(A), (m + p) * eps
    off = many * (np.abs(y) + size @ np.abs(x))  # bounds the rounding of the residual
    s = max(sizes[-1] - (m + p) * np.finfo(float).eps * sizes[0], 0.0)
    if rank == p:
        slope = np.abs((long_A.T @ residual).astype(float)) + size.T @ (off + many * np.abs(residual.astype(float)))
        bound = np.linalg.norm(slope) / s**2 if s > 0 else math.inf
    else:
        z = np.linalg.lstsq(A.T, x, rcond=None)[0]
        beside = np.abs((x - long_A.T @ z.astype(np.longdouble)).astype(float)) + many * (
            np.abs(x) + size.T @ np.abs(z)
        )
        along = np.linalg.norm(np.abs(residual.astype(float)) + off)
        bound = along / s + np.linalg.norm(beside) if s > 0 else math.inf
    # The norms are rounded, too, and so is the root of a ridge, which moves x by less than 2 eps |x|.
    return x, 1.001 * float(bound) + 2 * np.finfo(float).eps * float(np.linalg.norm(x)), minimum
