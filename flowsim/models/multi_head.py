"""Heads of masked linear self-attention that refine an initial guess of the query's label."""

from collections.abc import Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks
from flowsim.models.linear_attention import embed
from flowsim.tasks import Prompt


class MultiHeadAttention(eqx.Module):
    """H heads of masked linear self-attention that refine a guess of the query's label.

        prediction = y_q + sum_h b_h^T G A_h (x_q, y_q)
        y_q = w^T x_q + bias,  G = (1/C) sum (x_i, y_i) (x_i, y_i)^T

    Here y_q is the guess, and the sum in G runs over the C examples. b_h is the last row of W^P_h W^V_h and A_h =
    (W^K_h)^T W^Q_h. Nothing else of a head reaches the prediction. One head with a trainable guess is also called
    y_q-LSA.

    **Arguments:**

    - b: (H, d+1).
    - A: (H, d+1, d+1).
    - w: (d,) the weights of the guess, default zero.
    - bias: the constant in the guess, default zero, never trained.
    - trainable: whether a flow moves w.

    **Raises:** `ValueError` naming the argument.
    """

    b: Float[Array, "H rows"]
    A: Float[Array, "H rows rows"]
    w: Float[Array, " d"]
    bias: Float[Array, ""]
    trainable: bool = eqx.field(static=True)

    def __init__(
        self,
        b: ArrayLike | Iterable,
        A: ArrayLike | Iterable,
        w: ArrayLike | Iterable | None = None,
        bias: ArrayLike = 0.0,
        *,
        trainable: bool = False,
    ):
        self.A = _heads("A", A)
        H, rows, _ = self.A.shape
        self.b = checks.as_array("b", b, (H, rows))
        self.w, self.bias = with_guess(w, bias, rows - 1)
        self.trainable = trainable

    def __call__(self, prompt: Prompt) -> Float[Array, ""]:
        model = self.reduced()
        Z = embed(prompt)
        query = Z[:, -1].at[-1].set(model.w @ prompt.query + model.bias)
        G = Z[:, :-1] @ Z[:, :-1].T / prompt.inputs.shape[0]
        return query[-1] + jnp.sum((model.b @ G) * (model.A @ query))

    def reduced(self) -> "MultiHeadAttention":
        """The same model. Derivatives of its predictions by the bias are zero, and by w unless w is trainable."""
        fixed = (lambda x: x) if self.trainable else jax.lax.stop_gradient
        return eqx.tree_at(lambda m: (m.w, m.bias), self, (fixed(self.w), jax.lax.stop_gradient(self.bias)))

    @property
    def balance(self) -> Float[Array, ""]:
        """sum_h (|b_h|^2 - |A_h|_F^2), which a flow conserves."""
        return jnp.sum(self.b**2) - jnp.sum(self.A**2)


class FactoredMultiHeadAttention(eqx.Module):
    """`MultiHeadAttention` in which the four matrices of each head are the weights, as in a transformer.

        prediction = [E + sum_h (1/C) W^P_h W^V_h E W^M (E^T (W^K_h)^T W^Q_h E)]_{d+1, C+1}

    E is the embedding of a prompt with C examples, whose last column is (x_q, y_q) with the guess y_q. The mask is
    W^M = diag(1, .., 1, 0). The flow of these weights differs from the flow of (b, A).

    **Arguments:** W_K, W_Q, W_V, W_P: (H, d+1, d+1); w, bias, trainable: as for `MultiHeadAttention`.

    **Raises:** `ValueError` naming the argument.
    """

    W_K: Float[Array, "H rows rows"]
    W_Q: Float[Array, "H rows rows"]
    W_V: Float[Array, "H rows rows"]
    W_P: Float[Array, "H rows rows"]
    w: Float[Array, " d"]
    bias: Float[Array, ""]
    trainable: bool = eqx.field(static=True)

    def __init__(
        self,
        W_K: ArrayLike | Iterable,
        W_Q: ArrayLike | Iterable,
        W_V: ArrayLike | Iterable,
        W_P: ArrayLike | Iterable,
        w: ArrayLike | Iterable | None = None,
        bias: ArrayLike = 0.0,
        *,
        trainable: bool = False,
    ):
        self.W_K = _heads("W_K", W_K)
        shape = self.W_K.shape
        self.W_Q = checks.as_array("W_Q", W_Q, shape)
        self.W_V = checks.as_array("W_V", W_V, shape)
        self.W_P = checks.as_array("W_P", W_P, shape)
        self.w, self.bias = with_guess(w, bias, shape[1] - 1)
        self.trainable = trainable

    def __call__(self, prompt: Prompt) -> Float[Array, ""]:
        guess = self.reduced()
        E = embed(prompt)
        E = E.at[-1, -1].set(guess.w @ prompt.query + guess.bias)
        context = E.at[:, -1].set(0.0)
        # Only the query's column is computed. The whole E^T W^K^T W^Q E would take C^2 numbers.
        scores = E.T[None] @ (jnp.swapaxes(self.W_K, 1, 2) @ (self.W_Q @ E[None, :, -1:]))
        heads = self.W_P @ (self.W_V @ (context[None] @ scores))
        return (E[:, -1:] + jnp.sum(heads, axis=0) / prompt.inputs.shape[0])[-1, 0]

    def reduced(self) -> MultiHeadAttention:
        """The `MultiHeadAttention` that makes the same predictions.

        The derivatives of its predictions by the bias are zero, and those by w, too, unless w is trainable.
        """
        b = jnp.einsum("hk,hkj->hj", self.W_P[:, -1], self.W_V)
        A = jnp.swapaxes(self.W_K, 1, 2) @ self.W_Q
        return MultiHeadAttention(b, A, self.w, self.bias, trainable=self.trainable).reduced()

    @property
    def balance(self) -> Float[Array, ""]:
        """sum_h (|W^K_h|^2 - |W^Q_h|^2 + |W^P_h|^2 - |W^V_h|^2) in Frobenius norms, which a flow conserves."""
        sizes = [jnp.sum(W**2) for W in (self.W_K, self.W_Q, self.W_P, self.W_V)]
        return sizes[0] - sizes[1] + sizes[2] - sizes[3]


class LinearTransformerBlock(eqx.Module):
    """One head of masked linear self-attention, followed by a linear two-layer perceptron.

        prediction = [W_2^T W_1 (E + (1/C) W^P W^V E W^M E^T (W^K)^T W^Q E)]_{d+1, C+1}

    E is the embedding of a prompt with C examples, whose last column is (x_q, 0), and the mask is W^M = diag(1, ..,
    1, 0). Let omega = (omega_x, .) be the last row of W_2^T W_1 and G = (1/C) sum (x_i, y_i) (x_i, y_i)^T. The
    prediction is omega_x^T x_q + omega^T W^P W^V G (W^K)^T W^Q (x_q, 0), so omega_x^T x_q is a trainable guess.

    **Arguments:** W_1, W_2: (width, d+1); W_K, W_Q, W_V, W_P: (d+1, d+1).

    **Raises:** `ValueError` naming the argument.
    """

    W_1: Float[Array, "width rows"]
    W_2: Float[Array, "width rows"]
    W_K: Float[Array, "rows rows"]
    W_Q: Float[Array, "rows rows"]
    W_V: Float[Array, "rows rows"]
    W_P: Float[Array, "rows rows"]

    def __init__(
        self,
        W_1: ArrayLike | Iterable,
        W_2: ArrayLike | Iterable,
        W_K: ArrayLike | Iterable,
        W_Q: ArrayLike | Iterable,
        W_V: ArrayLike | Iterable,
        W_P: ArrayLike | Iterable,
    ):
        self.W_K = checks.square("W_K", checks.as_array("W_K", W_K, (None, None)))
        shape = self.W_K.shape
        self.W_Q = checks.as_array("W_Q", W_Q, shape)
        self.W_V = checks.as_array("W_V", W_V, shape)
        self.W_P = checks.as_array("W_P", W_P, shape)
        self.W_1 = checks.as_array("W_1", W_1, (None, shape[0]))
        self.W_2 = checks.as_array("W_2", W_2, self.W_1.shape)

    def __call__(self, prompt: Prompt) -> Float[Array, ""]:
        E = embed(prompt)
        attention = self.W_P @ self.W_V @ E.at[:, -1].set(0.0) @ E.T @ self.W_K.T @ self.W_Q @ E
        return (self.W_2.T @ self.W_1 @ (E + attention / prompt.inputs.shape[0]))[-1, -1]

    def reduced(self) -> MultiHeadAttention:
        """The `MultiHeadAttention` of one head and a trainable guess that makes the same predictions.

        The last column of A is zero, so that the head does not read the guess.
        """
        omega = self.W_2[:, -1] @ self.W_1
        A = (self.W_K.T @ self.W_Q).at[:, -1].set(0.0)
        return MultiHeadAttention((omega @ self.W_P @ self.W_V)[None], A[None], omega[:-1], trainable=True)

    @property
    def balance(self) -> Float[Array, ""]:
        """|W^K|^2 - |W^Q|^2 + |W^P|^2 - |W^V|^2 + |W_1|^2 - |W_2|^2 in Frobenius norms, which a flow conserves."""
        sizes = [jnp.sum(W**2) for W in (self.W_K, self.W_Q, self.W_P, self.W_V, self.W_1, self.W_2)]
        return sizes[0] - sizes[1] + sizes[2] - sizes[3] + sizes[4] - sizes[5]


class GradientDescentStep(eqx.Module):
    """The prediction after one step of gradient descent on the context, (w - (eta/C) X^T (X w - y))^T x_q.

    X has the C covariates of the context as rows, and y their labels.

    **Arguments:** eta: the step size; w: (d,) the weights before the step.

    **Raises:** `ValueError` naming the argument.
    """

    eta: Float[Array, ""]
    w: Float[Array, " d"]

    def __init__(self, eta: ArrayLike, w: ArrayLike | Iterable):
        self.eta = checks.as_array("eta", eta, ())
        self.w = checks.as_array("w", w, (None,))

    def __call__(self, prompt: Prompt) -> Float[Array, ""]:
        X, y = prompt.inputs, prompt.labels
        return (self.w - self.eta / y.shape[0] * (X.T @ (X @ self.w - y))) @ prompt.query

    def reduced(self) -> MultiHeadAttention:
        """The `MultiHeadAttention` that takes this step.

        It has the guess w^T x_q and one head with b = (-w, 1) and A = eta [I 0; 0 0].
        """
        d = self.w.shape[0]
        A = self.eta * jnp.eye(d + 1).at[d, d].set(0.0)
        return MultiHeadAttention(jnp.append(-self.w, 1.0)[None], A[None], self.w, trainable=True)


AnyHeads = MultiHeadAttention | FactoredMultiHeadAttention | LinearTransformerBlock | GradientDescentStep


def _heads(name: str, matrices: ArrayLike | Iterable) -> Float[Array, "H rows rows"]:
    """The square matrices of H heads as an array (H, d+1, d+1), refused unless H and d are at least 1."""
    array = checks.square(name, checks.as_array(name, matrices, (None, None, None)))
    if array.shape[0] < 1 or array.shape[1] < 2:
        checks.refuse(name, "of shape (H, d+1, d+1) with H and d at least 1", f"its shape is {array.shape}")
    return array


def with_guess(w: ArrayLike | Iterable | None, bias: ArrayLike, d: int) -> tuple[Float[Array, " d"], Float[Array, ""]]:
    """The weights and the bias of a guess w^T x_q + bias as arrays. If w is None, the weights are zero."""
    return checks.as_array("w", jnp.zeros(d) if w is None else w, (d,)), checks.as_array("bias", bias, ())
