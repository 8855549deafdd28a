"""One-pass stochastic gradient descent on a loss that is quadratic in its weights: exact moments of its iterates."""

from collections.abc import Iterable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks
from flowsim._core.types import Matrix, Scalar
from flowsim.tasks import LinearRegression

_KNOWN = ("label_noise", "prior_covariance", "query_covariance")
Fourth = Float[Array, "n n n n"]


class OnePassMoments(NamedTuple):
    """What `OnePassSGD` expects of each iterate.

    **Fields:**

    - mean: (K + 1, d, d) E Gamma_k, which is gradient descent on L.
    - bias: (K + 1,) L(E Gamma_k) - min L.
    - excess: (K + 1,) E L(Gamma_k) - min L.
    """

    mean: Float[Array, "iterates d d"]
    bias: Float[Array, " iterates"]
    excess: Float[Array, " iterates"]


class OnePassSGD(eqx.Module):
    """Stochastic gradient descent, each prompt used once, of a layer of linear attention that is linear in its weights.

    The layer predicts x_q^T Gamma z with z = (1/N) sum_i y_i x_i. With L(Gamma) = E (x_q^T Gamma z - y_q)^2/2,

        Gamma_{k+1} = Gamma_k - (eta_k/B) sum_{b <= B} grad_Gamma (x_b^T Gamma_k z_b - y_b)^2/2

    on B fresh prompts a step. The mean and the second moment of Gamma_k - Gamma* obey linear maps, whose coefficients
    are moments of degree 4 of z and w. Given w these follow from Isserlis' theorem, as does their mean over w. So
    nothing is sampled, and nothing cancels as Gamma_k approaches Gamma*.

    **Arguments:** task: a `LinearRegression` with w ~ N(0, Sigma_w), label noise and a query covariance if there are.

    **Fields:**

    - least: (d, d) Gamma*, the minimum of L.
    - minimum: L(Gamma*).
    - energy: (d, d) E z z^T.

    **Raises:** `ValueError` for another task, or if E z z^T has no inverse in float64.

    **Source:** Wu, Zou, Chen, Braverman, Gu and Bartlett, How many pretraining tasks are needed for in-context learning
    of linear regression?, for the model and the descent. The moments are derived here.
    """

    least: Matrix
    minimum: Scalar
    energy: Matrix
    query: Matrix
    noise: Scalar
    fourth: Fourth

    def __init__(self, task: LinearRegression):
        if not isinstance(task, LinearRegression):
            checks.refuse("task", "a LinearRegression", f"got {task!r:.60}")
        if given := [name for name in task.shifts if name not in _KNOWN]:
            checks.refuse("task", f"one without {' and '.join(given)}", f"it has a {given[0]}")
        H, Sigma, inverse_n = task.covariance, task.weight_covariance, 1 / task.context_length
        self.query = H if task.query_covariance is None else task.query_covariance
        self.noise = jnp.zeros(()) if task.label_noise is None else task.label_noise**2
        second, fourth = _of_contexts(H, Sigma, self.noise, inverse_n)
        d = task.dimension
        self.energy = second[:d, :d]
        self.least = jnp.linalg.solve(self.energy, second[:d, d:]).T
        if checks.is_concrete(self.least) and not np.all(np.isfinite(self.least)):
            checks.refuse("task", "one whose E z z^T float64 can invert", f"E z z^T is {self.energy!s:.60}")
        # From (z, w) to (z, w - Gamma* z), whose parts are uncorrelated.
        change = jnp.block([[jnp.eye(d), jnp.zeros((d, d))], [-self.least, jnp.eye(d)]])
        self.fourth = jnp.einsum("ijkl,pi,qj,rk,sl->pqrs", fourth, change, change, change, change)
        rest = (change @ second @ change.T)[d:, d:]
        self.minimum = (jnp.sum(self.query * rest) + self.noise) / 2

    def __call__(self, model: Matrix) -> Scalar:
        """L(Gamma)."""
        return self.minimum + self.excess(model)

    def excess(self, model: Matrix) -> Scalar:
        """L(Gamma) - min L = tr(H (Gamma - Gamma*) E[z z^T] (Gamma - Gamma*)^T)/2.

        **Raises:** `ValueError` for an array of another shape.
        """
        self._check("model", model)
        off = model - self.least
        return jnp.sum((self.query @ off @ self.energy) * off) / 2

    def moments(
        self, start: ArrayLike, step_sizes: Float[ArrayLike, " K"] | Iterable[float], *, batch: int = 1
    ) -> OnePassMoments:
        """The moments of the iterates.

        **Arguments:**

        - start: (d, d) Gamma_0.
        - step_sizes: (K,) eta_0, .., eta_{K-1}, at least 0.
        - batch: B, at least 1.

        **Raises:** `ValueError` naming the argument.
        """
        begin = checks.as_array("start", start, (None, None))
        self._check("start", begin)
        sizes = checks.as_array("step_sizes", step_sizes, (None,))
        # By NumPy, since JAX would trace the comparison of known numbers, too.
        if checks.is_concrete(sizes) and np.any(np.asarray(sizes) < 0):
            checks.refuse("step_sizes", "at least 0", f"the least is {np.min(np.asarray(sizes)):g}")
        return _moments(self, begin, sizes, jnp.asarray(1 / checks.count("batch", batch)))

    def _check(self, name: str, model: Matrix) -> None:
        if jnp.shape(model) != self.least.shape:
            expected = f"an array of shape {checks.shape_text(self.least.shape)}"
            checks.refuse(name, expected, f"its shape is {checks.shape_text(jnp.shape(model))}")


@eqx.filter_jit
def _moments(sgd: OnePassSGD, start: Matrix, sizes: Float[Array, " K"], share: Scalar) -> OnePassMoments:
    H, Z, d = sgd.query, sgd.energy, sgd.least.shape[0]
    identity = jnp.eye(d)

    def seen(mean: Matrix, second: Fourth) -> tuple[Matrix, Scalar, Scalar]:
        bias = jnp.sum((H @ mean @ Z) * mean) / 2
        return mean + sgd.least, bias, jnp.einsum("ij,pq,ipjq->", H, Z, second) / 2

    def step(carry: tuple[Matrix, Fourth], eta: Scalar) -> tuple[tuple[Matrix, Fourth], tuple]:
        # The gradient is x x^T (Delta z - b) z^T - x e z^T with Delta = Gamma - Gamma*, b = w - Gamma* z, noise e.
        mean, second = carry
        across = -jnp.einsum("ip,jq->ipjq", mean, identity)
        both = jnp.einsum("ip,jq->ipjq", identity, identity)
        whole = jnp.concatenate(
            [jnp.concatenate([second, across], axis=3), jnp.concatenate([across.transpose(2, 3, 0, 1), both], axis=3)],
            axis=1,
        )
        errors = jnp.einsum("rpsq,arbs->abpq", sgd.fourth[:, :d, :, :d], whole)
        spread = (
            jnp.einsum("ia,abpq,bj->ipjq", H, errors + errors.swapaxes(0, 1), H)
            + jnp.einsum("ij,ab,abpq->ipjq", H, H, errors)
            + sgd.noise * jnp.einsum("ij,pq->ipjq", H, Z)
        )
        once = jnp.einsum("ia,apjq->ipjq", H, jnp.einsum("arjq,rp->apjq", second, Z))
        twice = jnp.einsum("jb,ipbs,sq->ipjq", H, once, Z)
        change = eta**2 * (share * spread + (1 - share) * twice) - eta * (once + once.transpose(2, 3, 0, 1))
        after = mean - eta * H @ mean @ Z, second + change
        return after, seen(*after)

    off = start - sgd.least
    begin = off, jnp.einsum("ip,jq->ipjq", off, off)
    _, later = jax.lax.scan(step, begin, sizes)
    return OnePassMoments(*jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), seen(*begin), later))


def _of_contexts(H: Matrix, Sigma: Matrix, noise: Scalar, inverse_n: Scalar) -> tuple[Matrix, Fourth]:
    """E v v^T and E v v v v of v = (z, w), for z = (1/N) sum_i y_i x_i.

    Given w let u = (H w, w), s = w^T H w + noise and K = diag(H, 0). With m of the indices in z, and q = 1/N,

        E[v v v v | w] = a_m u u u u + b_m s sum_6 K u u + q^2 (1 + 2 q) s^2 sum_3 K K,

    a_m = (1 + q) .. (1 + (m - 1) q), b_m = a_m q/(1 + q).
    """
    d, q = H.shape[0], inverse_n
    map_ = jnp.concatenate([H, jnp.eye(d)])
    K = jnp.zeros((2 * d, 2 * d)).at[:d, :d].set(H)
    s = jnp.sum(H * Sigma) + noise
    s_squared = s**2 + 2 * jnp.sum((H @ Sigma @ H) * Sigma)
    means = map_ @ Sigma @ map_.T
    means_s = map_ @ (s * Sigma + 2 * Sigma @ H @ Sigma) @ map_.T
    in_z = (np.arange(2 * d) < d).astype(int)
    count = np.add.outer(in_z, in_z)
    second = jnp.where(count == 2, 1 + q, 1.0) * means + q * s * K
    a = jnp.stack([1.0, 1.0, 1 + q, (1 + q) * (1 + 2 * q), (1 + q) * (1 + 2 * q) * (1 + 3 * q)])
    counts = np.add.outer(count, count)
    mixed = _pairings(K, means_s) + _pairings(means_s, K)
    pairs = q**2 * (1 + 2 * q) * s_squared * _pairings(K, K)
    return second, a[counts] * (_pairings(means, means) + q / (1 + q) * mixed) + pairs


def _pairings(A: Matrix, B: Matrix) -> Fourth:
    """A_ij B_kl + A_ik B_jl + A_il B_jk."""
    product = jnp.einsum("ij,kl->ijkl", A, B)
    return product + product.transpose(0, 2, 1, 3) + product.transpose(0, 2, 3, 1)
