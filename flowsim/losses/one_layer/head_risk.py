"""The exact risk of heads of linear self-attention, as a quadratic function of the matrices M_i of `HeadRisk`."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.models import MultiHeadAttention, TokenHeads
from flowsim.models.multi_head import AnyHeads
from flowsim.tasks import LinearRegression

Reducible = AnyHeads | TokenHeads


class Forms(NamedTuple):
    """Quadratic forms N = [P p; p^T pi] on the tokens of `HeadRisk`, as symmetric matrices with any leading axes.

    **Fields:**

    - shifted: P + pi D with D = diag(b). As a function of ``shifted``, p and pi, the variance of <G, N> has no
      mixed terms.
    - p, pi: the last column of N.
    - cubic: the symmetric tensor S of the term <S, zeta zeta zeta>/N that the query's token adds to the prediction.
      None if the heads do not attend to this token.
    """

    shifted: Float[Array, "... d d"]
    p: Float[Array, "... d"]
    pi: Float[Array, "..."]
    cubic: Float[Array, "d d d"] | None = None

    def matrices(self) -> Float[Array, "... rows rows"]:
        """The matrices [P p; p^T pi], if D = I."""
        P = self.shifted - jnp.einsum("...,ij->...ij", self.pi, jnp.eye(self.p.shape[-1]))
        upper = jnp.concatenate([P, self.p[..., None]], axis=-1)
        return jnp.concatenate([upper, jnp.append(self.p, self.pi[..., None], axis=-1)[..., None, :]], axis=-2)


class HeadRisk(eqx.Module):
    """The risk R = E (yhat - <w, x_q>)^2 of heads with a guess, exact for all weights and every `LinearRegression`.

    Let G be the mean of z z^T over the context's tokens z = (x, y), a_i^h the columns of A_h, and g^T x_q + beta
    the guess of the query's label. With M_i = sum_h b_h (a_i^h)^T,

        yhat - <w, x_q> = sum_{i <= d} x_{q,i} (<G, M_i + g_i M_{d+1}> + g_i - w_i) + beta (1 + <G, M_{d+1}>).

    The covariates are x = K xi and the query is x_q = K_q zeta, where xi and zeta are standard normal,
    K K^T = Lambda and K_q K_q^T = Lambda_q. K is chosen so that u = K^T (w - mu) ~ N(0, D) with a diagonal
    D = diag(b). In the tokens (xi, u^T xi + noise), whose noise has the variance sigma^2, each matrix M acts as a
    form N = [P p; p^T pi]. Given u these tokens are independent and normal, so G is a Wishart matrix. With
    nu = tr D + sigma^2 and n = E 1/N,

        E <G, N> = t = tr(P + pi D) + sigma^2 pi,     E u <G, N> = 2 D p,
        E <G, N>^2 = t^2 + 2 pi^2 tr D^2 + 4 p^T D p
                     + 2 n (|P + pi D|_F^2 + 2 p^T (D + nu I) p + pi^2 (nu^2 + tr D^2)).

    So R is a sum of quadratic functions, one for each coordinate zeta_i with its own form N_i, and one for beta.
    The smallest R of any number of heads is `bound`. With J = K_q^T K^-T, c = K_q^T (g - mu),
    W = 2 tr D^2 + 2 n (nu^2 + tr D^2) and s = sigma^4/W, it is reached at

        p_i = p_i^* = D (D + n (D + nu I))^-1 J_i / 2,     P_i + pi_i D = -c_i I / (d + 2 n (1 + s)),
        pi_i = -c_i (sigma^2/W) 2n/(d + 2 n (1 + s)).

    A layer that attends to the query's token (x_q, 0) adds T/N to yhat, with T = <S, zeta zeta zeta>. The tensor S
    is the symmetric part of the upper d x d blocks of the M_i in the coordinates zeta. With (tr S)_i = sum_j S_ijj,
    E zeta T = 3 tr S and E T^2 = 6 |S|^2 + 9 |tr S|^2.

    **Arguments:**

    - task: the law of a prompt. The label of the query is <w, x_q>, without noise.
    - query_token: whether the heads attend to the query's token. Their M_{d+1} must then be zero.

    **Fields:** root: K; spread: b; query_root: K_q; drive: J.
    """

    task: LinearRegression
    root: Float[Array, "d d"]
    spread: Float[Array, " d"]
    query_root: Float[Array, "d d"]
    drive: Float[Array, "d d"]
    query_token: bool = eqx.field(static=True)

    def __init__(self, task: LinearRegression, query_token: bool = False):
        self.task, self.query_token = task, query_token
        self.root, self.spread, self.query_root, self.drive = _roots(task)

    @property
    def prior_mean(self) -> Float[Array, " d"]:
        """The mean mu = E w of the task's weights."""
        return self.task.weight_mean

    @property
    def inverse_length(self) -> Scalar:
        """The mean n = E 1/N over the law of the context length."""
        return 1 / self.task.context_length

    @property
    def label_energy(self) -> Scalar:
        """The mean square nu = E (y - mu^T x)^2 = tr D + sigma^2."""
        noise = self.task.label_noise
        return jnp.sum(self.spread) + (0.0 if noise is None else noise**2)

    @property
    def label_weight(self) -> Scalar:
        """The coefficient W = 2 tr D^2 + 2 n (nu^2 + tr D^2) of pi^2 in the risk."""
        square = jnp.sum(self.spread**2)
        return 2 * square + 2 * self.inverse_length * (self.label_energy**2 + square)

    @property
    def descent_risk(self) -> Scalar:
        """The least risk of any number of heads with the guess g = mu and beta = 0.

        For Lambda = Sigma_w = I it is d (d+1)/(N+d+1), the risk of one step of gradient descent from mu with the
        step size `step_size`.
        """
        lost = self.inverse_length * (self.spread + self.label_energy)
        return jnp.sum(self.drive**2 @ (self.spread * _ratio(lost, self.spread + lost)))

    @property
    def step_size(self) -> Scalar:
        """The best step size N/(N+d+1) of one step of gradient descent from mu, for Lambda = Sigma_w = I.

        A step of size eta has the risk d (1 - 2 eta + eta^2 (N+d+1)/N).
        """
        return 1 / (1 + (self.task.dimension + 1) * self.inverse_length)

    @property
    def gap(self) -> Scalar:
        """The factor 2n/(d + 2n (1 + s)) in `bound`, which multiplies the squared error |c|^2 + beta^2 of the
        guess.
        """
        return 2 * self.inverse_length / self._room

    def bound(self, model: Reducible) -> Scalar:
        """The least risk of any number of heads that have the guess of this model and ignore the query's token."""
        reduced = model.reduced()
        return self.descent_risk + (jnp.sum(self._missed(reduced.w) ** 2) + reduced.bias**2) * self.gap

    def __call__(self, model: Reducible) -> Scalar:
        return self.bound(model) + self.above(model.reduced(), self.forms(model))

    def forms(self, model: Reducible) -> Forms:
        """The forms N_i of a model for the coordinates zeta_i of the query, followed by the form of M_{d+1}."""
        reduced, d = model.reduced(), self.task.dimension
        seen = reduced.A[:, :, :d] + reduced.A[:, :, d:] * reduced.w[None, None, :]
        columns = jnp.concatenate([seen @ self.query_root[None], reduced.A[:, :, d:]], axis=2)
        found = _symmetric(jnp.einsum("hm,hni->imn", reduced.b @ self._lift.T, self._lift[None] @ columns))
        cubic = None
        if self.query_token:
            rows = self.query_root.T[None] @ columns[:, :d, :d]
            cubic = _symmetric_tensor(jnp.einsum("hj,hkl->jkl", reduced.b[:, :d] @ self.query_root, rows))
        return self._split(found, cubic)

    def form(self, matrices: Float[Array, "... rows rows"]) -> Forms:
        """Convert matrices on the tokens (x, y) to forms on the tokens (xi, u^T xi + noise)."""
        return self._split(self._lift @ _symmetric(matrices) @ self._lift.T)

    def mean(self, form: Forms) -> Float[Array, "..."]:
        """The mean E <G, N> of each form N."""
        noise = self.task.label_noise
        mean = jnp.trace(form.shifted, axis1=-2, axis2=-1)
        return mean if noise is None else mean + noise**2 * form.pi

    def pairing(self, one: Forms, other: Forms) -> Float[Array, "..."]:
        """The product moment E <G, N> <G, N'> of each pair of forms N in ``one`` and N' in ``other``."""
        n, b = self.inverse_length, self.spread
        squares = self.mean(one) * self.mean(other) + 2 * n * jnp.sum(one.shifted * other.shifted, axis=(-2, -1))
        vectors = 4 * jnp.einsum("i,...i,...i", b + n * (b + self.label_energy), one.p, other.p)
        return squares + vectors + self.label_weight * one.pi * other.pi

    def best(self, w: Float[Array, " d"]) -> Forms:
        """The d + 1 forms of least risk for any number of heads with the guess w. They ignore the query's token."""
        d, n, b = self.task.dimension, self.inverse_length, self.spread
        missed = -jnp.append(self._missed(w), 1.0) / self._room
        p = jnp.zeros((d + 1, d)).at[:d].set(self.drive * _ratio(b, b + n * (b + self.label_energy))[None, :] / 2)
        noise = self.task.label_noise
        pi = jnp.zeros(d + 1) if noise is None else missed * 2 * n * _ratio(noise**2, self.label_weight)
        cubic = jnp.zeros((d, d, d)) if self.query_token else None
        return Forms(missed[:, None, None] * jnp.eye(d)[None], p, pi, cubic)

    def off(self, w: Float[Array, " d"], forms: Forms) -> Forms:
        """The forms minus the `best` forms for the guess w."""
        return jax.tree.map(jnp.subtract, forms, self.best(w))

    def above(self, reduced: MultiHeadAttention, forms: Forms) -> Scalar:
        """The risk of a model minus `bound`, computed from mean squares and the terms of the query's token.

        **Arguments:** reduced: the model, of which only the guess is used; forms: the forms of the model.
        """
        off = self.off(reduced.w, forms)
        energies = self.pairing(off, off)
        return jnp.sum(energies[:-1]) + reduced.bias**2 * energies[-1] + self._of_query_token(reduced.w, forms)

    def separated(self, model: Reducible) -> Float[Array, " rows"]:
        """The terms L_1(M_1), .., L_{d+1}(M_{d+1}) in equation (18) of Xie et al. (2025), for Lambda = Sigma_w = I.

        L_i = E(<G, M_i> - w_i)^2 for i <= d, and L_{d+1} = E(1 + <G, M_{d+1}>)^2 E y_q^2. Their sum is the risk if
        the guess y_q does not depend on x_q.
        """
        reduced, d = model.reduced(), self.task.dimension
        forms = self.form(jnp.einsum("hm,hni->imn", reduced.b, reduced.A))
        means, energies = self.mean(forms), self.pairing(forms, forms)
        crossed = 2 * jnp.diagonal(forms.p[:d]) + self.prior_mean * means[:d]
        coordinates = energies[:d] - 2 * crossed + 1 + self.prior_mean**2
        guess = (jnp.sum(reduced.w**2) + reduced.bias**2) * (energies[d] + 2 * means[d] + 1)
        return jnp.append(coordinates, guess)

    @property
    def _lift(self) -> Float[Array, "rows rows"]:
        """The transpose of the matrix F that maps tokens, (x, y) = F (xi, u^T xi + noise)."""
        rows = jnp.concatenate([self.root.T, (self.root.T @ self.prior_mean)[:, None]], axis=1)
        return jnp.concatenate([rows, jnp.eye(1, self.task.dimension + 1, self.task.dimension)])

    @property
    def _room(self) -> Scalar:
        """The denominator d + 2n (1 + s) of the best forms."""
        noise = self.task.label_noise
        s = 0.0 if noise is None else _ratio(noise**4, self.label_weight)
        return self.task.dimension + 2 * self.inverse_length * (1 + s)

    def _missed(self, w: Float[Array, " d"]) -> Float[Array, " d"]:
        """The error c = K_q^T (w - mu) of a guess w."""
        return self.query_root.T @ (w - self.prior_mean)

    def _split(self, form: Float[Array, "... rows rows"], cubic: Float[Array, "d d d"] | None = None) -> Forms:
        pi = form[..., -1, -1]
        shifted = form[..., :-1, :-1] + jnp.einsum("...,i,ij->...ij", pi, self.spread, jnp.eye(self.task.dimension))
        return Forms(shifted, form[..., :-1, -1], pi, cubic)

    def _of_query_token(self, w: Float[Array, " d"], forms: Forms) -> Scalar | float:
        """The terms of the risk that come from the query's token: 2 E (yhat - <w, x_q>) T/N + E T^2/N^2.

        Here yhat is the prediction without T/N.
        """
        if forms.cubic is None:
            return 0.0
        trace = jnp.trace(forms.cubic, axis1=1, axis2=2)
        crossed = 6 * self.inverse_length * (self.mean(forms)[:-1] + self._missed(w)) @ trace
        return crossed + self.task.inverse_square_length * (6 * jnp.sum(forms.cubic**2) + 9 * jnp.sum(trace**2))


def _ratio(part: Float[Array, "..."], whole: Float[Array, "..."]) -> Float[Array, "..."]:
    """The quotient part/whole, or 0 where whole is 0. That is the case in directions in which w does not vary."""
    return jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1.0), 0.0)


def _symmetric(matrices: Float[Array, "... rows rows"]) -> Float[Array, "... rows rows"]:
    return (matrices + jnp.swapaxes(matrices, -1, -2)) / 2


def _symmetric_tensor(tensor: Float[Array, "d d d"]) -> Float[Array, "d d d"]:
    pairs = _symmetric(tensor)
    return (pairs + jnp.transpose(pairs, (1, 0, 2)) + jnp.transpose(pairs, (2, 1, 0))) / 3


@eqx.filter_jit
def _roots(task: LinearRegression) -> tuple[Array, Array, Array, Array]:
    """The arrays K, b, K_q and J of `HeadRisk`."""
    values, vectors = jnp.linalg.eigh(task.covariance)
    root = vectors * jnp.sqrt(values)[None, :]
    # For isotropic weights this matrix is diagonal already.
    spread, turn = jnp.linalg.eigh(root.T @ task.weight_covariance @ root)
    root, spread = root @ turn, jnp.maximum(spread, 0.0)
    if task.query_covariance is None:
        return root, spread, root, jnp.eye(task.dimension)
    query_root = jnp.linalg.cholesky(task.query_covariance)
    return root, spread, query_root, jnp.linalg.solve(root, query_root).T
