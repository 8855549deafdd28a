"""One-pass stochastic gradient descent on a loss that is quadratic in its weights: exact moments of iterates."""

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
    """Moments of the iterates Gamma_0, .., Gamma_K of `OnePassSGD`.

    **Fields:**

    - mean: (K + 1, d, d) E Gamma_k. These are the iterates of gradient descent on L.
    - bias: (K + 1,) L(E Gamma_k) - min L.
    - excess: (K + 1,) E L(Gamma_k) - min L.
    """

    mean: Float[Array, "iterates d d"]
    bias: Float[Array, " iterates"]
    excess: Float[Array, " iterates"]


class OnePassSGD(eqx.Module):
    """One-pass stochastic gradient descent of a linear attention layer that is linear in its weights Gamma, (d, d).

    The layer predicts x_q^T Gamma z with z = (1/N) sum_i y_i x_i. With L(Gamma) = E (x_q^T Gamma z - y_q)^2/2,

        Gamma_{k+1} = Gamma_k - (eta_k/B) sum_{b <= B} grad_Gamma (x_b^T Gamma_k z_b - y_b)^2/2,

    where every step uses B new prompts. Let Gamma* be the minimum of L. The mean and the second moment of Gamma_k -
    Gamma* follow linear recursions, whose coefficients are moments of degree 4 of z and w. Given w these follow
    from Isserlis' theorem, and so does their mean over w. So nothing is sampled, and nothing cancels as Gamma_k
    approaches Gamma* or N grows.

    **Arguments:** task: a `LinearRegression` with w ~ N(0, Sigma_w). The task may have label noise and a query
    covariance.

    **Fields:**

    - least: (d, d) Gamma*.
    - minimum: L(Gamma*).
    - energy: (d, d) E z z^T.
    - query: (d, d) H, the covariance of x_q.
    - noise: the variance of the label noise.
    - fourth: (2d, 2d, 2d, 2d) E[v_i v_j v_k v_l] for v = (z, w - Gamma* z).

    **Raises:** `ValueError` for another task, or if E z z^T has no inverse in float64.

    **Source:** Wu, Zou, Chen, Braverman, Gu and Bartlett, How many pretraining tasks are needed for in-context
    learning of linear regression?, for the model and the descent. The moments are derived here.
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
        H, d = task.covariance, task.dimension
        self.query = H if task.query_covariance is None else task.query_covariance
        self.noise = jnp.zeros(()) if task.label_noise is None else task.label_noise**2
        second, fourth, rest = _of_contexts(H, task.weight_covariance, self.noise, 1 / task.context_length)
        self.energy = jnp.block([jnp.eye(d), H]) @ second @ jnp.block([jnp.eye(d), H]).T
        self.least = jnp.linalg.solve(self.energy, H @ task.weight_covariance).T
        if checks.is_concrete(self.least) and not np.all(np.isfinite(self.least)):
            checks.refuse("task", "one whose E z z^T float64 can invert", f"E z z^T is {self.energy!s:.60}")
        # From (z - H w, w) to (z, w - Gamma* z), whose parts are uncorrelated. Differences of z and H w would cancel.
        change = jnp.block([[jnp.eye(d), H], [-self.least, rest]])
        self.fourth = jnp.einsum("ijkl,pi,qj,rk,sl->pqrs", fourth, change, change, change, change)
        missed = change[d:] @ second @ change[d:].T
        self.minimum = (jnp.sum(self.query * missed) + self.noise) / 2

    def __call__(self, model: Matrix) -> Scalar:
        """L(Gamma) for Gamma = ``model``, (d, d)."""
        return self.minimum + self.excess(model)

    def excess(self, model: Matrix) -> Scalar:
        """L(Gamma) - min L = tr(H (Gamma - Gamma*) E[z z^T] (Gamma - Gamma*)^T)/2 for Gamma = ``model``, (d, d).

        **Raises:** `ValueError` for an array of another shape.
        """
        self._check("model", model)
        off = model - self.least
        return jnp.sum((self.query @ off @ self.energy) * off) / 2

    def moments(
        self, start: ArrayLike, step_sizes: Float[ArrayLike, " K"] | Iterable[float], *, batch: int = 1
    ) -> OnePassMoments:
        """The moments of the iterates for given steps.

        **Arguments:**

        - start: (d, d) Gamma_0.
        - step_sizes: (K,) eta_0, .., eta_{K-1}, at least 0.
        - batch: B, at least 1.

        **Raises:** `ValueError` naming the argument, or if the steps are so large that the moments overflow.
        """
        begin = checks.as_array("start", start, (None, None))
        self._check("start", begin)
        sizes = checks.as_array("step_sizes", step_sizes, (None,))
        # By NumPy, since JAX would trace the comparison of known numbers, too.
        if checks.is_concrete(sizes) and np.any(np.asarray(sizes) < 0):
            checks.refuse("step_sizes", "at least 0", f"the least is {np.min(np.asarray(sizes)):g}")
        found = _moments(self, begin, sizes, jnp.asarray(1 / checks.count("batch", batch)))
        if checks.is_concrete(found.excess):
            bad = np.flatnonzero(~np.isfinite(np.asarray(found.excess) + np.asarray(found.bias)))
            if bad.size:
                checks.refuse(
                    "step_sizes", "such that float64 holds the moments", f"those of iterate {bad[0]} overflow"
                )
        return found

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


def _of_contexts(H: Matrix, Sigma: Matrix, noise: Scalar, q: Scalar) -> tuple[Matrix, Fourth, Matrix]:
    """Second and fourth moments of v = (z - H w, w) with z = (1/N) sum_i y_i x_i, and the matrix I - Gamma* H.

    Given w let u = (H w, w), s = w^T H w + noise, K = diag(H, 0) and q = 1/N. Let m be how many of the four indices
    are in the first half of v. The cumulants of y x give

        E[v v v v | w] = a_m u u u u + b_m s sum_6 K u u + (q^2 + 2 q^3) s^2 sum_3 K K,

    where a = (1, 0, q, 2 q^2, 3 q^2 + 6 q^3), b_m = a_m for m = 2, 3 and b_4 = q^2 + 6 q^3. The sums run over the 6
    or 3 ways to distribute the indices. As Gamma* = Sigma H (E z z^T)^-1, with the mean of s,

        I - Gamma* H = q (Sigma H + s I) ((1 + q) Sigma H + q s I)^-1.

    **Arguments:** H: the covariance of x; Sigma: the covariance of w; noise: the variance of the label noise; q:
    1/N.

    **Returns:** E v v^T, (2d, 2d); E v v v v, (2d, 2d, 2d, 2d); I - Gamma* H, (d, d).
    """
    d = H.shape[0]
    K = jnp.zeros((2 * d, 2 * d)).at[:d, :d].set(H)
    s = jnp.sum(H * Sigma) + noise
    s_squared = s**2 + 2 * jnp.sum((H @ Sigma @ H) * Sigma)
    both = jnp.concatenate([H, jnp.eye(d)])
    means = both @ Sigma @ both.T
    means_s = both @ (s * Sigma + 2 * Sigma @ H @ Sigma) @ both.T
    first = (np.arange(2 * d) < d).astype(int)
    count = np.add.outer(first, first)
    counts = np.add.outer(count, count)
    a = jnp.stack([1.0, 0.0, q, 2 * q**2, 3 * q**2 + 6 * q**3])
    b = jnp.stack([0.0, 0.0, q, 2 * q**2, q**2 + 6 * q**3])
    mixed = _pairings(K, means_s) + _pairings(means_s, K)
    fourth = a[counts] * _pairings(means, means) + b[counts] * mixed
    pairs = (q**2 + 2 * q**3) * s_squared * _pairings(K, K)
    A, identity = Sigma @ H, jnp.eye(d)
    rest = q * jnp.linalg.solve(((1 + q) * A + q * s * identity).T, (A + s * identity).T).T
    return a[count] * means + q * s * K, fourth + pairs, rest


def _pairings(A: Matrix, B: Matrix) -> Fourth:
    """The sum A_ij B_kl + A_ik B_jl + A_il B_jk, with the four indices i, j, k, l."""
    product = jnp.einsum("ij,kl->ijkl", A, B)
    return product + product.transpose(0, 2, 1, 3) + product.transpose(0, 2, 3, 1)
