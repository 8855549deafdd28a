"""The risk of heads by moments of prompts in rational arithmetic, computed independently of `HeadRisk`.

A moment is the mean of a product of entries of tokens z = (x, y). With y = sum_k w-hat_k x_k it becomes a sum of
products of E x_k^p and E w-hat_k^p. The normal equations give the least risks, and elimination solves them.
"""

import collections
import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import flint
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks
from flowsim.models.multi_head import AnyHeads
from flowsim.tasks import LinearRegression

MOST_COORDINATES = 12

Rationals = np.ndarray  # of flint.fmpq
Numbers = Any  # rationals, or float64


def rationals(values: ArrayLike | Iterable) -> Rationals:
    """Float64 numbers, converted exactly to rational numbers."""
    convert = np.frompyfunc(lambda value: flint.fmpq(*float(value).as_integer_ratio()), 1, 1)
    return np.asarray(convert(np.asarray(values, dtype=float)), dtype=object)


def floats(values: Numbers) -> Float[Array, "..."]:
    """Rational numbers, rounded to float64. JAX arrays are returned unchanged."""
    if isinstance(values, jax.Array):
        return values
    rounded = np.frompyfunc(lambda value: int(value.p) / int(value.q), 1, 1)(np.asarray(values, dtype=object))
    return jnp.asarray(np.asarray(rounded, dtype=float))


class Moments(eqx.Module):
    """Moments of G = (1/C) sum z z^T and w-hat, as rational numbers or in float64.

    **Fields:**

    - prior_mean: w*, (d,).
    - first: E G, (d+1, d+1).
    - mixed: E[w-hat_i G], (d, d+1, d+1).
    - second: E[G_mn G_pq], (d+1, d+1, d+1, d+1).
    """

    prior_mean: Numbers
    first: Numbers
    mixed: Numbers
    second: Numbers

    @property
    def rounded(self) -> "Moments":
        """The moments, rounded to float64 so that JAX can differentiate."""
        return Moments(floats(self.prior_mean), floats(self.first), floats(self.mixed), floats(self.second))

    @property
    def centred(self) -> "Moments":
        """The moments of G - E G and w-hat - w*.

        They are enough for a trained guess, because this guess absorbs the means.
        """
        mixed = self.mixed - self.prior_mean[:, None, None] * self.first
        second = self.second - self.first[:, :, None, None] * self.first
        return Moments(self.prior_mean * 0, self.first * 0, mixed, second)

    def paired(self, N: Numbers) -> Numbers:
        """E[<G, N> G] for matrices N, (.., d+1, d+1)."""
        rows = self.first.shape[0] ** 2
        return (N.reshape(*N.shape[:-2], rows) @ self.second.reshape(rows, rows)).reshape(N.shape)

    def component(self, N: Numbers, i: int | Array) -> Numbers:
        """L_i(N) = E(<G, N> - w-hat_i)^2 for a (d+1, d+1) matrix N. ``i`` counts from 0."""
        return (self.paired(N) * N).sum() - 2 * (N * self.mixed[i]).sum() + 1 + self.prior_mean[i] ** 2

    def __call__(self, model: AnyHeads) -> Numbers:
        """The risk E (f - <w-hat, x_q>)^2 of a model with prediction f.

        The error is linear in the query's x_q. The risk is the sum of the mean squares of the coefficients of its
        coordinates and of the constant term.
        """
        heads = model.reduced()
        if self.second.dtype == object and _is_traced(heads):
            return self.rounded(heads)
        b, A, w, bias = (self._kind(leaf) for leaf in (heads.b, heads.A, heads.w, heads.bias))
        M = _matrices(b, A)
        N = M[:-1] + w[:, None, None] * M[-1][None]
        offsets = ((self.prior_mean - w) ** 2).sum() + w.size
        slopes = (N * (self.mixed - w[:, None, None] * self.first[None])).sum()
        constant = (self.paired(M[-1]) * M[-1]).sum() + 2 * (M[-1] * self.first).sum() + 1
        return (self.paired(N) * N).sum() - 2 * slopes + offsets + bias**2 * constant

    def _kind(self, leaf: Array) -> Numbers:
        return rationals(leaf) if self.second.dtype == object else leaf


def _is_traced(model: AnyHeads) -> bool:
    """Whether JAX traces a model. If so, its risk and the gradient are computed in float64."""
    return not all(map(checks.is_concrete, jax.tree.leaves(model)))


def moments(task: LinearRegression, length: float | None = None) -> Moments:
    """The exact moments of a task at its context length, or at ``length`` if it is given. Both may be infinite."""
    mean = np.zeros(task.dimension) if task.prior_mean is None else np.asarray(task.prior_mean, dtype=float)
    return _moments(tuple(mean.tolist()), float(task.context_length) if length is None else length)


def solved(known: Moments, right: Rationals) -> Rationals:
    """Symmetric matrices N, (k, d+1, d+1), with E[<G, N> G] = F for each F of ``right``, by elimination.

    If N is not unique, its free entries are zero.

    **Arguments:** right: (k, d+1, d+1), symmetric.
    """
    rows, upper = known.first.shape[0], np.triu_indices(known.first.shape[0])
    count, sides = upper[0].size, right[:, *upper].T
    system = np.hstack([known.second[upper][:, *upper], sides])
    reduced, rank = flint.fmpq_mat(system.shape[0], system.shape[1], list(system.reshape(-1))).rref()
    entries = np.asarray(reduced.entries(), dtype=object).reshape(system.shape)
    coefficients = np.full(sides.T.shape, flint.fmpq(0))
    for row in entries[:rank]:
        pivot = next(column for column, value in enumerate(row) if value != 0)
        coefficients[:, pivot] = row[count:]
    found = np.full((len(right), rows, rows), flint.fmpq(0))
    found[:, *upper] = coefficients / 2
    return found + found.transpose(0, 2, 1)


def solution(known: Moments, w: ArrayLike) -> Rationals:
    """Symmetric matrices of least risk: N_1, .., N_d for the guess w^T x_q, and last the M_{d+1} for a bias.

    N_i is the symmetric part of M_i + w_i M_{d+1}.

    **Arguments:** w: (d,).

    **Returns:** (d+1, d+1, d+1).
    """
    guess = rationals(w)
    return solved(known, np.concatenate([known.mixed - guess[:, None, None] * known.first, -known.first[None]]))


def least(known: Moments, w: ArrayLike, bias: float = 0.0) -> flint.fmpq:
    """The least risk of any number of heads with the guess w^T x_q + bias."""
    guess, size = rationals(w), flint.fmpq(*float(bias).as_integer_ratio())
    N = solution(known, w)
    gains = (N[:-1] * (known.mixed - guess[:, None, None] * known.first)).sum()
    return ((known.prior_mean - guess) ** 2).sum() + guess.size - gains + size**2 * (1 + (N[-1] * known.first).sum())


def least_with_trained_guess(known: Moments) -> flint.fmpq:
    """The least risk of any number of heads and any guess w^T x_q."""
    return least(known.centred, np.zeros(len(known.prior_mean)))


def gradient(known: Moments, model: AnyHeads) -> AnyHeads:
    """The gradient of the risk in all weights of a model.

    It is computed exactly in b, A and w, and then by the chain rule in float64. If JAX traces the model, everything
    is computed in float64. Let t_i be the coefficient of the query's coordinate i in the error, and a_i column i of
    a head's A. Without a bias the derivatives are 2 sum_i E[t_i G (a_i + w_i a_{d+1})] for b, 2 E[t_i G b] for a_i,
    2 sum_i w_i E[t_i G b] for a_{d+1} and, for one head, 2 E[t_i (1 + b^T G a_{d+1})] for w_i.
    """
    if _is_traced(model):
        return eqx.filter_grad(known.rounded)(model)
    parts, pull = eqx.filter_vjp(lambda model: (lambda heads: (heads.b, heads.A, heads.w))(model.reduced()), model)
    b, A, w = (rationals(part) for part in parts)
    bias = rationals(model.reduced().bias)
    M = _matrices(b, A)
    N = M[:-1] + w[:, None, None] * M[-1][None]
    slopes = 2 * (known.paired(N) - known.mixed + w[:, None, None] * known.first)
    last = (w[:, None, None] * slopes).sum(axis=0) + 2 * bias**2 * (known.paired(M[-1]) + known.first)
    by_form = np.concatenate([slopes, last[None]])
    by_b = np.asarray([sum(by_form[i] @ head[:, i] for i in range(len(by_form))) for head in A])
    by_A = np.asarray([np.stack([form @ row for form in by_form], axis=1) for row in b])
    constants = (known.first * N).sum(axis=(1, 2)) + w - known.prior_mean
    by_w = (slopes * M[-1]).sum(axis=(1, 2)) + 2 * constants
    (found,) = pull((floats(by_b), floats(by_A), floats(by_w)))
    return found


def symmetric_forms(model: AnyHeads) -> Rationals:
    """The symmetric parts of M_i + w_i M_{d+1} for i <= d, followed by the symmetric part of M_{d+1}.

    The shape is (d+1, d+1, d+1). Because G is symmetric, predictions depend on no other part of the heads.
    """
    heads = model.reduced()
    M = _matrices(rationals(heads.b), rationals(heads.A))
    forms = np.concatenate([M[:-1] + rationals(heads.w)[:, None, None] * M[-1][None], M[-1:]])
    return (forms + forms.transpose(0, 2, 1)) / 2


def _matrices(b: Numbers, A: Numbers) -> Numbers:
    """M_i = sum_h b_h (a_i^h)^T with the columns a_i^h of A_h, for i = 1, .., d + 1."""
    return (b[:, :, None, None] * A[:, None]).sum(axis=0).transpose(2, 0, 1)


@functools.lru_cache(maxsize=64)
def _moments(mean: tuple[float, ...], length: float) -> Moments:
    d = len(mean)
    w = rationals(mean)
    inverse = flint.fmpq(0) if math.isinf(length) else 1 / flint.fmpq(*float(length).as_integer_ratio())
    first = np.full((d + 1, d + 1), flint.fmpq(0))
    mixed = np.full((d, d + 1, d + 1), flint.fmpq(0))
    second = np.full((d + 1,) * 4, flint.fmpq(0))
    pairs = list(itertools.combinations_with_replacement(range(d + 1), 2))
    for m, n in pairs:
        first[m, n] = first[n, m] = _mean(w, [(m, n)])
        for i in range(d):
            mixed[i, m, n] = mixed[i, n, m] = _mean(w, [(m, n)], (i,))
    for (m, n), (p, q) in itertools.combinations_with_replacement(pairs, 2):
        # In C (C - 1) of the C^2 pairs of tokens, the two tokens differ.
        value = (1 - inverse) * _mean(w, [(m, n), (p, q)]) + inverse * _mean(w, [(m, n, p, q)])
        for a, b, c, e in ((m, n, p, q), (n, m, p, q), (m, n, q, p), (n, m, q, p)):
            second[a, b, c, e] = second[c, e, a, b] = value
    return Moments(w, first, mixed, second)


def _mean(w: Rationals, tokens: list[tuple[int, ...]], weights: tuple[int, ...] = ()) -> flint.fmpq:
    """The mean of a product of entries of different tokens and of entries of w-hat.

    **Arguments:**

    - w: the mean w* of w-hat.
    - tokens: for each token the indices of its entries in the product. Index d is the label.
    - weights: the indices of the entries of w-hat.
    """
    d, total = w.size, flint.fmpq(0)
    labels = sum(index == d for token in tokens for index in token)
    for chosen in itertools.product(range(d), repeat=labels):
        terms = iter(chosen)
        covariates = [collections.Counter(next(terms) if m == d else m for m in token) for token in tokens]
        if any(power % 2 for counts in covariates for power in counts.values()):
            continue
        factor = math.prod(_double_factorial(power) for counts in covariates for power in counts.values())
        powers = collections.Counter((*chosen, *weights))
        total += factor * math.prod((_power(w[k], power) for k, power in powers.items()), start=flint.fmpq(1))
    return total


def _double_factorial(power: int) -> int:
    """E x^p = (p - 1)!! of a standard normal number x, for an even power p."""
    return math.prod(range(1, power, 2))


def _power(mean: flint.fmpq, power: int) -> flint.fmpq:
    """E (mean + x)^power of a standard normal number x."""
    even = range(0, power + 1, 2)
    return sum((math.comb(power, k) * _double_factorial(k) * mean ** (power - k) for k in even), flint.fmpq(0))
