"""zhang2023's appendix D: technical lemmas, judged in the dimension and with the covariance of a task.

Statements about all matrices are judged on random ones and on hard cases: nearly aligned, of low rank, badly scaled.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.declaring import Section
from flowsim.claims.statements import joined, rounded
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.conditions import one_covariance
from flowsim.papers.zhang2023.literal import gaussian_sum
from flowsim.papers.zhang2023.problems import STILL
from flowsim.tasks import LinearRegression

Matrices = Float[Array, "n rows columns"]

_DRAWN = 16
# A and B surely commute if |AB - BA|/(|A| |B|) is at most the first number, and surely do not if above the second.
_COMMUTE, _DO_NOT = 1e-12, 1e-6


def _derivatives(d: int) -> list[tuple[Array, Array]]:
    """Both sides of the six identities of Lemma D.1, on random matrices of d, d + 1 and d + 2 rows."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.standard_normal(shape))
    vec = lambda matrix: matrix.T.reshape(-1)
    square, x, A, B = normal(d, d), normal(d), normal(d + 2, d), normal(d + 1, d + 1)
    X, C, tall, wide = normal(d, d + 1), normal(d, d + 2), normal(d, d + 1), normal(d + 1, d + 2)
    return [
        (jax.grad(lambda x: x @ square @ x)(x), (square + square.T) @ x),
        (vec(A @ X @ wide), jnp.kron(wide.T, A) @ vec(X)),
        (jnp.trace(tall.T @ X)[None], (vec(tall) @ vec(X))[None]),
        (jax.grad(lambda X: jnp.trace(X @ B @ X.T))(X), X @ B.T + X @ B),
        (jax.grad(lambda X: jnp.trace(tall @ X.T))(X), tall),
        (jax.grad(lambda X: jnp.trace(A @ X @ B @ X.T @ C))(X), A.T @ C.T @ X @ B.T + C @ A @ X @ B),
    ]


SECTION = Section("zhang2023", LinearAttention, setting=one_covariance, problems=STILL, spaces=spaces.STILL)


@SECTION.claim("lemma-d.1", "Lemma D.1")
@eqx.filter_jit
def matrix_calculus(task: LinearRegression) -> Comparison:
    r"""The derivatives of $x^\top B x$, $\operatorname{tr}(X B X^\top)$, $\operatorname{tr}(A X^\top)$ and
    $\operatorname{tr}(A X B X^\top C)$; $\operatorname{Vec}(A X B) = (B^\top \otimes A) \operatorname{Vec}(X)$; and
    $\operatorname{tr}(A^\top B) = \operatorname{Vec}(A)^\top \operatorname{Vec}(B)$

    Judged on random matrices of d, d + 1 and d + 2 rows.
    """
    pairs = _derivatives(task.dimension)
    distances = jnp.stack([jnp.linalg.norm(left - right) for left, right in pairs])
    sizes = jnp.stack([jnp.linalg.norm(right) for _, right in pairs]) * (task.dimension + 2.0)
    return equal(distances, 0.0, sizes)


@SECTION.claim("lemma-d.2", "Lemma D.2")
@eqx.filter_jit
def fourth_moment(task: LinearRegression) -> Comparison:
    r"""$\mathbb{E}[X X^\top A X X^\top] = \Lambda (A + A^\top) \Lambda + \operatorname{tr}(A \Lambda) \Lambda$ for $X
    \sim \mathcal{N}(0, \Lambda)$ and every $A$

    Judged on 20 matrices A. The cubature for the expectation is exact for polynomials of degree 5.
    """
    Lambda, d = task.covariance, task.dimension
    root = jnp.linalg.cholesky(Lambda)
    drawn = jax.random.normal(jax.random.key(0), (_DRAWN, d, d))
    matrices = [jnp.eye(d), Lambda, drawn[0] - drawn[0].T, jnp.outer(drawn[0, 0], drawn[1, 0]), *drawn]

    def sides(A):
        def terms(z, weights):
            x = z @ root.T
            forms = weights * jnp.einsum("ki,ij,kj->k", x, A, x)
            return jnp.einsum("k,ki,kj->ij", forms, x, x), jnp.sum(jnp.abs(weights) * jnp.sum(x**2, axis=1) ** 2)

        moment, size = gaussian_sum(terms, d)
        lemma = Lambda @ (A + A.T) @ Lambda + jnp.trace(A @ Lambda) * Lambda
        return jnp.linalg.norm(moment - lemma), size * jnp.linalg.norm(A)

    gaps, sizes = jax.lax.map(sides, jnp.stack(matrices))
    return equal(gaps, 0.0, sizes)


def _pairs(d: int, n: int) -> tuple[Matrices, Matrices]:
    """Pairs (U, V), each (pairs, d, n): random ones, some with rows scaled down to 1e-6, and nearly aligned ones."""
    U, V, noise = jax.random.normal(jax.random.key(n), (3, _DRAWN, d, n))
    falling = jnp.geomspace(1.0, 1e-6, d)[None, :, None]
    return jnp.concatenate([U, falling * U, U]), jnp.concatenate([V, V, U + 1e-3 * noise])


@SECTION.claim("lemma-d.3", "Lemma D.3")
@eqx.filter_jit
def von_neumann(task: LinearRegression) -> Comparison:
    r"""$\operatorname{tr}(U^\top V) \le \sum \sigma_i(U) \sigma_i(V) \le \lVert U \rVert_{\mathrm{op}} \sum \sigma_i(V)
    \le \sqrt{d} \lVert U \rVert_{\mathrm{op}} \lVert V \rVert_F$ for $d \le n$

    Judged on 48 pairs for each of n = d and n = d + 3.
    """
    d, comparisons = task.dimension, []
    for n in (d, d + 3):
        U, V = _pairs(d, n)
        of_U, of_V = jnp.split(jnp.linalg.svd(jnp.concatenate([U, V]), compute_uv=False), 2)
        trace, products = jnp.sum(U * V, axis=(1, 2)), jnp.sum(of_U * of_V, axis=1)
        nuclear = of_U[:, 0] * jnp.sum(of_V, axis=1)
        frobenius = jnp.sqrt(float(d)) * of_U[:, 0] * jnp.linalg.norm(V, axis=(1, 2))
        sizes = jnp.linalg.norm(U, axis=(1, 2)) * jnp.linalg.norm(V, axis=(1, 2))
        comparisons += [
            at_most(trace, products, size=sizes, promised=n > 1),
            at_most(products, nuclear, promised=d > 1),
            at_most(nuclear, frobenius, promised=d > 1),
        ]
    return rounded(joined(comparisons), jnp.asarray(float(d)))


def _semidefinite_pairs(task: LinearRegression) -> tuple[Matrices, Matrices]:
    """Pairs of semidefinite (A, B), each (pairs, d, d). Some commute, some almost commute, and others do not."""
    Lambda, d = task.covariance, task.dimension
    vectors = jnp.linalg.eigh(Lambda)[1]
    values = jax.random.uniform(jax.random.key(0), (2, _DRAWN, d))
    values = values.at[0, : _DRAWN // 2, 0].set(0.0)  # half of the A are singular
    A, B = ((vectors[None] * part[:, None, :]) @ vectors.T for part in values)
    factors = jax.random.normal(jax.random.key(1), (2, _DRAWN, d, max(1, d - 1)))
    C, D = factors @ jnp.swapaxes(factors, 2, 3)
    near = A + 1e-3 * D
    return jnp.concatenate([Lambda[None], Lambda[None], A, C, A]), jnp.concatenate(
        [task.gamma()[None], Lambda[None], B, D, near]
    )


def _symmetric_part(products: Matrices) -> tuple[Array, Array]:
    """The smallest eigenvalue of (P + P^T)/2, and |P - P^T|_F, for each matrix P of a stack (n, d, d)."""
    transposed = jnp.swapaxes(products, 1, 2)
    return jnp.linalg.eigvalsh((products + transposed) / 2)[:, 0], jnp.linalg.norm(products - transposed, axis=(1, 2))


@SECTION.claim("lemma-d.4", "Lemma D.4")
@eqx.filter_jit
def products_of_semidefinite(task: LinearRegression) -> Comparison:
    r"""For semidefinite $A$ and $B$: $\operatorname{tr}(AB) \ge 0$, and $AB \succeq 0$ if and only if $A$ and $B$
    commute

    Judged on 50 pairs. Here AB >= 0 means that AB is symmetric and semidefinite. If it only meant x^T A B x >= 0 for
    every x, A and B need not commute.
    """
    A, B = _semidefinite_pairs(task)
    sizes = jnp.linalg.norm(A, axis=(1, 2)) * jnp.linalg.norm(B, axis=(1, 2))
    trace = jnp.einsum("nij,nji->n", A, B)
    smallest, asymmetry = _symmetric_part(A @ B)
    commutator = jnp.linalg.norm(A @ B - B @ A, axis=(1, 2))
    semidefinite = (asymmetry <= _COMMUTE * sizes) & (smallest >= -_COMMUTE * sizes)
    commute = commutator <= _DO_NOT * sizes
    doubt = commute & (commutator > _COMMUTE * sizes)
    truths = equal(semidefinite.astype(float), commute.astype(float), 1.0, allowance=doubt.astype(float))
    return joined([equal(trace, jnp.maximum(trace, 0.0), sizes), truths])
