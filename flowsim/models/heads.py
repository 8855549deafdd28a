"""Heads of linear attention. Keys and queries are merged or separate; values are labels or whole tokens."""

import abc
import dataclasses
from collections.abc import Iterable, Mapping
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import AbstractVar
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks
from flowsim.models.linear_attention import embed
from flowsim.models.multi_head import MultiHeadAttention, with_guess
from flowsim.tasks import Prompt


class AbstractHeads(eqx.Module):
    """H heads of linear attention whose sum is added to a guess of the query's label, w^T x_q + bias.

    **Fields:**

    - w: (d,) the weights of the guess.
    - bias: the constant in the guess, never trained.
    - trainable: whether a flow moves w.
    """

    w: AbstractVar[Float[Array, " d"]]
    bias: AbstractVar[Float[Array, ""]]
    trainable: AbstractVar[bool]

    @property
    def weights(self) -> dict[str, Float[Array, "..."]]:
        """The arrays that a flow moves, by name."""
        fixed = ("bias",) if self.trainable else ("w", "bias")
        arrays = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: x for name, x in arrays.items() if eqx.is_inexact_array(x) and name not in fixed}

    @property
    @abc.abstractmethod
    def rank(self) -> int:
        """The largest possible rank of the prediction's matrix Gamma, or for `TokenHeads` the number of heads."""

    @property
    @abc.abstractmethod
    def balances(self) -> Float[Array, "H ..."]:
        """Quantities that the flow of any loss of the prediction conserves, one or more for each head."""

    def guess(self, prompt: Prompt) -> Float[Array, ""]:
        """The guess w^T x_q + bias for a prompt, with derivatives of zero in the parts that are not trained."""
        model = resting(self)
        return model.w @ prompt.query + model.bias


Heads = TypeVar("Heads", bound=AbstractHeads)


def resting(heads: Heads) -> Heads:
    """The same heads, with derivatives of zero in the bias, and in w if it is not trainable."""
    fixed = (lambda x: x) if heads.trainable else jax.lax.stop_gradient
    return eqx.tree_at(lambda m: (m.w, m.bias), heads, (fixed(heads.w), jax.lax.stop_gradient(heads.bias)))


def with_weights(heads: Heads, weights: Mapping[str, ArrayLike]) -> Heads:
    """The heads with some of their arrays replaced by the given ones, by name."""
    names = tuple(weights)
    arrays = tuple(jnp.asarray(weights[name]) for name in names)
    return eqx.tree_at(lambda m: tuple(getattr(m, name) for name in names), heads, arrays)


class AbstractLabelHeads(AbstractHeads):
    """Heads whose values are the labels of the N examples.

        yhat = beta^T Gamma x_q + w^T x_q + bias,  beta = (1/N) sum y_n x_n

    All other blocks of weights are zero: a value matrix has one entry, for the label, and a key-query matrix one
    block, for the covariates.
    """

    @property
    @abc.abstractmethod
    def readout(self) -> Float[Array, "d d"]:
        """The matrix Gamma of the prediction, (d, d)."""

    @abc.abstractmethod
    def readout_along(self, left: Float[Array, "n d"], right: Float[Array, "n d"]) -> Float[Array, " n"]:
        """l_i^T Gamma r_i for each row l_i of ``left`` and the same row r_i of ``right``, (n,)."""

    @abc.abstractmethod
    def of_readout(self, readout: Float[Array, "d d"], w: Float[Array, " d"]) -> "AbstractLabelHeads":
        """Balanced heads of the same shape as these, with Gamma = ``readout`` and the weights w of the guess.

        Only the `rank` largest singular values of ``readout`` are used.
        """


class MergedHeads(AbstractLabelHeads):
    """Heads whose values are the labels of the N examples, with one key-query matrix for each head.

        yhat = sum_h v_h beta^T U_h x_q + w^T x_q + bias,  beta = (1/N) sum y_n x_n

    **Arguments:**

    - v: (H,) values of the labels.
    - U: (H, d, d) key-query matrices.
    - w: (d,) the weights of the guess, default zero.
    - bias: the constant in the guess, default zero.
    - trainable: whether a flow moves w.

    **Raises:** `ValueError` naming the argument.
    """

    v: Float[Array, " H"]
    U: Float[Array, "H d d"]
    w: Float[Array, " d"]
    bias: Float[Array, ""]
    trainable: bool = eqx.field(static=True)

    def __init__(
        self,
        v: ArrayLike | Iterable,
        U: ArrayLike | Iterable,
        w: ArrayLike | Iterable | None = None,
        bias: ArrayLike = 0.0,
        *,
        trainable: bool = False,
    ):
        self.U = checks.square("U", _with_heads("U", U))
        self.v = checks.as_array("v", v, self.U.shape[:1])
        self.w, self.bias = with_guess(w, bias, self.U.shape[-1])
        self.trainable = trainable

    def __call__(self, prompt: Prompt) -> Float[Array, ""]:
        scores = jnp.einsum("ni,hij,j->hn", prompt.inputs, self.U, prompt.query)
        return self.guess(prompt) + self.v @ scores @ prompt.labels / prompt.labels.shape[0]

    @property
    def readout(self) -> Float[Array, "d d"]:
        return jnp.tensordot(self.v, self.U, 1)

    def readout_along(self, left: Float[Array, "n d"], right: Float[Array, "n d"]) -> Float[Array, " n"]:
        return jnp.einsum("ni,ij,nj->n", left, self.readout, right)

    @property
    def rank(self) -> int:
        return self.U.shape[-1]

    @property
    def balances(self) -> Float[Array, " H"]:
        """v_h^2 - |U_h|_F^2 for each head."""
        return self.v**2 - jnp.sum(self.U**2, axis=(1, 2))

    def of_readout(self, readout: Float[Array, "d d"], w: Float[Array, " d"]) -> "MergedHeads":
        size = jnp.sqrt(jnp.linalg.norm(readout))
        first = jnp.eye(1, self.v.size)[0]
        U = first[:, None, None] * readout[None] / jnp.where(size > 0, size, 1.0)
        return MergedHeads(size * first, U, w, self.bias, trainable=self.trainable)


class SeparateHeads(AbstractLabelHeads):
    """Heads whose values are the labels of the N examples, with R keys and R queries for each head.

        yhat = sum_h v_h beta^T (sum_r k_hr q_hr^T) x_q + w^T x_q + bias,  beta = (1/N) sum y_n x_n

    **Arguments:**

    - v: (H,) values of the labels.
    - k, q: (H, R, d) keys and queries.
    - w, bias, trainable: as in `MergedHeads`.

    **Raises:** `ValueError` naming the argument.
    """

    v: Float[Array, " H"]
    k: Float[Array, "H R d"]
    q: Float[Array, "H R d"]
    w: Float[Array, " d"]
    bias: Float[Array, ""]
    trainable: bool = eqx.field(static=True)

    def __init__(
        self,
        v: ArrayLike | Iterable,
        k: ArrayLike | Iterable,
        q: ArrayLike | Iterable,
        w: ArrayLike | Iterable | None = None,
        bias: ArrayLike = 0.0,
        *,
        trainable: bool = False,
    ):
        self.k = _with_heads("k", k)
        self.q = checks.as_array("q", q, self.k.shape)
        self.v = checks.as_array("v", v, self.k.shape[:1])
        self.w, self.bias = with_guess(w, bias, self.k.shape[-1])
        self.trainable = trainable

    def __call__(self, prompt: Prompt) -> Float[Array, ""]:
        keys, queries = prompt.inputs[None] @ jnp.swapaxes(self.k, 1, 2), self.q @ prompt.query
        scores = jnp.einsum("hnr,hr->hn", keys, queries)
        return self.guess(prompt) + self.v @ scores @ prompt.labels / prompt.labels.shape[0]

    @property
    def readout(self) -> Float[Array, "d d"]:
        return jnp.einsum("h,hri,hrj->ij", self.v, self.k, self.q)

    def readout_along(self, left: Float[Array, "n d"], right: Float[Array, "n d"]) -> Float[Array, " n"]:
        """l_i^T Gamma r_i for each row l_i of ``left`` and the same row r_i of ``right``, (n,).

        It is computed from the products of keys with l_i and of queries with r_i, so that small values keep all
        digits.
        """
        keys, queries = jnp.einsum("hrd,nd->nhr", self.k, left), jnp.einsum("hrd,nd->nhr", self.q, right)
        return jnp.einsum("h,nhr,nhr->n", self.v, keys, queries)

    @property
    def rank(self) -> int:
        H, R, d = self.k.shape
        return min(H * R, d)

    @property
    def balances(self) -> Float[Array, "H 2"]:
        """v_h^2 - sum_r |k_hr|^2 and sum_r (|k_hr|^2 - |q_hr|^2) for each head."""
        keys, queries = (jnp.sum(x**2, axis=(1, 2)) for x in (self.k, self.q))
        return jnp.stack([self.v**2 - keys, keys - queries], axis=1)

    def of_readout(self, readout: Float[Array, "d d"], w: Float[Array, " d"]) -> "SeparateHeads":
        """Balanced heads of the same shape as these, with Gamma = ``readout`` and the weights w of the guess.

        Each head gets R pairs of singular vectors, in order of their singular values s_r. With v_h^3 = sum_r s_r
        the heads are balanced.
        """
        H, R, d = self.k.shape
        left, sizes, right = jnp.linalg.svd(readout)
        # The cube root would enlarge the rounding of a singular value that is zero.
        sizes = jnp.where(sizes > d * jnp.finfo(sizes.dtype).eps * sizes[0], sizes, 0.0)
        used, spare = self.rank, (0, H * R - self.rank)
        sizes = jnp.pad(sizes[:used], spare).reshape(H, R)
        v = jnp.cbrt(jnp.sum(sizes, axis=1))
        roots = jnp.sqrt(sizes / jnp.where(v > 0, v, 1.0)[:, None])[:, :, None]
        k, q = (jnp.pad(x[:used], (spare, (0, 0))).reshape(H, R, d) for x in (left.T, right))
        return SeparateHeads(v, roots * k, roots * q, w, self.bias, trainable=self.trainable)


class TokenHeads(AbstractHeads):
    """Heads whose keys and values are whole tokens z = (x, y).

        yhat = sum_h p_h^T G Q_h x_q + w^T x_q + bias,  G = (1/N) sum z_n z_n^T

    **Arguments:**

    - p: (H, d+1) last rows of the value matrices.
    - Q: (H, d+1, d) key-query matrices, without the column that multiplies the query's label 0.
    - w, bias, trainable: as in `MergedHeads`.
    - query_token: whether the sum in G also contains the query's token (x_q, 0). The sum is divided by N in both
      cases.

    **Raises:** `ValueError` naming the argument.
    """

    p: Float[Array, "H rows"]
    Q: Float[Array, "H rows d"]
    w: Float[Array, " d"]
    bias: Float[Array, ""]
    trainable: bool = eqx.field(static=True)
    query_token: bool = eqx.field(static=True)

    def __init__(
        self,
        p: ArrayLike | Iterable,
        Q: ArrayLike | Iterable,
        w: ArrayLike | Iterable | None = None,
        bias: ArrayLike = 0.0,
        *,
        trainable: bool = False,
        query_token: bool = False,
    ):
        self.Q = _with_heads("Q", Q)
        H, rows, d = self.Q.shape
        if rows != d + 1:
            checks.refuse("Q", "an array of shape (H, d + 1, d)", f"its shape is {self.Q.shape}")
        self.p = checks.as_array("p", p, (H, rows))
        self.w, self.bias = with_guess(w, bias, d)
        self.trainable, self.query_token = trainable, query_token

    def __call__(self, prompt: Prompt) -> Float[Array, ""]:
        Z = embed(prompt)
        seen = Z if self.query_token else Z[:, :-1]
        values, scores = self.p @ seen, (self.Q @ prompt.query) @ seen
        return self.guess(prompt) + jnp.sum(values * scores) / prompt.labels.shape[0]

    @property
    def rank(self) -> int:
        return self.p.shape[0]

    @property
    def balances(self) -> Float[Array, " H"]:
        """|p_h|^2 - |Q_h|_F^2 for each head."""
        return jnp.sum(self.p**2, axis=1) - jnp.sum(self.Q**2, axis=(1, 2))

    def reduced(self) -> MultiHeadAttention:
        """The `MultiHeadAttention` that makes the same predictions if ``query_token`` is False.

        Its heads do not read the guess.
        """
        A = jnp.concatenate([self.Q, jnp.zeros_like(self.Q[:, :, :1])], axis=2)
        return MultiHeadAttention(self.p, A, self.w, self.bias, trainable=self.trainable).reduced()


def _with_heads(name: str, x: ArrayLike | Iterable) -> Float[Array, "H rows columns"]:
    """The matrices of the heads as an array of three axes, none of them empty."""
    array = checks.as_array(name, x, (None, None, None))
    if 0 in array.shape:
        checks.refuse(name, "an array with H, R and d at least 1", f"its shape is {array.shape}")
    return array
