"""The exact risk of heads of linear self-attention as a quadratic form in the matrices that they make."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.models import MultiHeadAttention
from flowsim.models.multi_head import AnyHeads
from flowsim.tasks import LinearRegression


class Forms(NamedTuple):
    """Symmetric matrices [P p; p^T pi] of quadratic forms on tokens (x, eps^T x), with any leading axes.

    ``shifted`` is P + pi I: with it the second moment of <G, N> has no mixed terms.
    """

    shifted: Float[Array, "... d d"]
    p: Float[Array, "... d"]
    pi: Float[Array, "..."]

    def matrices(self) -> Float[Array, "... rows rows"]:
        """The matrices [P p; p^T pi]."""
        P = self.shifted - jnp.einsum("...,ij->...ij", self.pi, jnp.eye(self.p.shape[-1]))
        upper = jnp.concatenate([P, self.p[..., None]], axis=-1)
        return jnp.concatenate([upper, jnp.append(self.p, self.pi[..., None], axis=-1)[..., None, :]], axis=-2)


class HeadRisk(eqx.Module):
    """R of `MultiHeadLoss`, by the forms that the heads of a model make of the context's tokens.

    **Arguments:** task: x ~ N(0, I), w-hat ~ N(w*, I).
    """

    task: LinearRegression

    @property
    def prior_mean(self) -> Float[Array, " d"]:
        """w*."""
        return jnp.zeros(self.task.dimension) if self.task.prior_mean is None else self.task.prior_mean

    @property
    def descent_risk(self) -> Scalar:
        """d (d+1)/(C+d+1), of one step of gradient descent from w* with `step_size`."""
        d, inverse_C = self.task.dimension, 1 / self.task.context_length
        return d * (d + 1) * inverse_C / (1 + (d + 1) * inverse_C)

    @property
    def step_size(self) -> Scalar:
        """C/(C+d+1), with which one step of gradient descent has the least risk d (1 - 2 eta + eta^2 (C+d+1)/C)."""
        return 1 / (1 + (self.task.dimension + 1) / self.task.context_length)

    @property
    def gap(self) -> Scalar:
        """2/(d C + 2), how much a guess that is off by |delta|^2 + bias^2 = 1 costs with heads of any number."""
        inverse_C = 1 / self.task.context_length
        return 2 * inverse_C / (self.task.dimension + 2 * inverse_C)

    def bound(self, model: AnyHeads) -> Scalar:
        """The least risk of any number of heads with the guess of a model, as it stands."""
        reduced = model.reduced()
        return self.descent_risk + (jnp.sum((self.prior_mean - reduced.w) ** 2) + reduced.bias**2) * self.gap

    def __call__(self, model: AnyHeads) -> Scalar:
        return self.bound(model) + self.above(model.reduced(), self.forms(model))

    def forms(self, model: AnyHeads) -> Forms:
        """The forms M_i + w_i M_{d+1} of the coordinates i of the query, and last the form M_{d+1} of the bias."""
        reduced, d = model.reduced(), self.task.dimension
        A = reduced.A.at[:, :, :d].add(reduced.A[:, :, d:] * reduced.w[None, None, :])
        return self.form(jnp.einsum("hm,hni->imn", reduced.b, A))

    def form(self, matrices: Float[Array, "... rows rows"]) -> Forms:
        """The forms on tokens (x, eps^T x) that matrices on tokens (x, y) are."""
        d = self.task.dimension
        lift = jnp.eye(d + 1).at[:d, d].set(self.prior_mean)
        N = lift @ ((matrices + jnp.swapaxes(matrices, -1, -2)) / 2) @ lift.T
        pi = N[..., d, d]
        return Forms(N[..., :d, :d] + jnp.einsum("...,ij->...ij", pi, jnp.eye(d)), N[..., :d, d], pi)

    def mean(self, form: Forms) -> Float[Array, "..."]:
        """E <G, M> for each form."""
        return jnp.trace(form.shifted, axis1=-2, axis2=-1)

    def pairing(self, one: Forms, other: Forms) -> Float[Array, "..."]:
        """E <G, M> <G, M'> for each pair of forms."""
        d, inverse_C = self.task.dimension, 1 / self.task.context_length
        squares = self.mean(one) * self.mean(other) + 2 * inverse_C * jnp.sum(
            one.shifted * other.shifted, axis=(-2, -1)
        )
        vectors = 4 * jnp.sum(one.p * other.p, axis=-1) + 2 * d * one.pi * other.pi
        return squares + (1 + (d + 1) * inverse_C) * vectors

    def best(self, w: Float[Array, " d"]) -> Forms:
        """The forms of least risk with a guess, of any number of heads."""
        d = self.task.dimension
        means = jnp.append(self.prior_mean - w, -1.0) / (d + 2 / self.task.context_length)
        p = jnp.zeros((d + 1, d)).at[:d].set(jnp.eye(d) * self.step_size / 2)
        return Forms(means[:, None, None] * jnp.eye(d)[None], p, jnp.zeros(d + 1))

    def off(self, w: Float[Array, " d"], forms: Forms) -> Forms:
        """What forms are off the best ones with a guess."""
        return jax.tree.map(jnp.subtract, forms, self.best(w))

    def above(self, reduced: MultiHeadAttention, forms: Forms) -> Scalar:
        """The risk of forms above the least one with the guess of a model: a sum of squares."""
        off = self.off(reduced.w, forms)
        energies = self.pairing(off, off)
        return jnp.sum(energies[:-1]) + reduced.bias**2 * energies[-1]

    def separated(self, model: AnyHeads) -> Float[Array, " rows"]:
        """L_1(M_1), .., L_d(M_d), L_{d+1}(M_{d+1}) of (18): the risk is their sum where y_q is independent of x_q.

        L_i = E(<G, M_i> - w-hat_i)^2 and L_{d+1} = E(1 + <G, M_{d+1}>)^2 E y_q^2.
        """
        reduced, d = model.reduced(), self.task.dimension
        forms = self.form(jnp.einsum("hm,hni->imn", reduced.b, reduced.A))
        means, energies = self.mean(forms), self.pairing(forms, forms)
        crossed = 2 * jnp.diagonal(forms.p[:d]) + self.prior_mean * means[:d]
        coordinates = energies[:d] - 2 * crossed + 1 + self.prior_mean**2
        guess = (jnp.sum(reduced.w**2) + reduced.bias**2) * (energies[d] + 2 * means[d] + 1)
        return jnp.append(coordinates, guess)
