"""A small GPT-2-style decoder that reads a prompt as a sequence of tokens."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flowsim._core import checks
from flowsim.tasks import Prompt

_INITIAL_POSITION = 0.02  # the standard deviation of GPT-2's position embeddings at the start


class _Block(eqx.Module):
    """One pre-LayerNorm layer: h <- h + attention(norm(h)), then h <- h + MLP(norm(h))."""

    attention_norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp_norm: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP

    def __init__(self, embedding: int, heads: int, key: PRNGKeyArray):
        attention_key, mlp_key = jax.random.split(key)
        self.attention_norm = eqx.nn.LayerNorm(embedding)
        biases = {f"use_{name}_bias": True for name in ("query", "key", "value", "output")}
        self.attention = eqx.nn.MultiheadAttention(heads, embedding, **biases, key=attention_key)
        self.mlp_norm = eqx.nn.LayerNorm(embedding)
        self.mlp = eqx.nn.MLP(embedding, embedding, 4 * embedding, 1, jax.nn.gelu, key=mlp_key)

    def __call__(
        self, hidden: Float[Array, "tokens embedding"], mask: Bool[Array, "tokens tokens"]
    ) -> Float[Array, "tokens embedding"]:
        normed = jax.vmap(self.attention_norm)(hidden)
        hidden = hidden + self.attention(normed, normed, normed, mask)
        return hidden + jax.vmap(self.mlp)(jax.vmap(self.mlp_norm)(hidden))


class Decoder(eqx.Module):
    """A GPT-2-style decoder on the tokens x_1, (y_1, 0, .., 0), x_2, .., x_query, with a prediction at every x.

    It has a linear read-in, learnt absolute position embeddings, pre-LayerNorm blocks, a last LayerNorm and a
    linear read-out. A block is causal attention followed by a GELU MLP of four times the width. All layers have
    biases, and there is no dropout. The first axis of the blocks' weights counts the layers.

    Weights start as Equinox initialises them, position embeddings from N(0, 0.02^2) as in GPT-2. Training does not
    change the embeddings of positions beyond the longest training prompt.

    **Arguments:**

    - dimension: d.
    - embedding: the width, a multiple of heads.
    - layers: the number of blocks.
    - heads: the number of attention heads in a block.
    - longest: the largest number of examples in a prompt.
    - key: the random key with which the weights are drawn.

    **Raises:** `ValueError` naming the argument; on a prompt of another dimension, or with more examples than
    longest.

    **Source:** Garg et al. (2022): d = 20, embedding 256, 12 layers, 8 heads.
    """

    read_in: eqx.nn.Linear
    positions: eqx.nn.Embedding
    blocks: _Block
    norm: eqx.nn.LayerNorm
    read_out: eqx.nn.Linear
    longest: int = eqx.field(static=True)

    def __init__(self, dimension: int, *, embedding: int, layers: int, heads: int, longest: int, key: PRNGKeyArray):
        checks.require_float64()
        dimension, embedding = checks.count("dimension", dimension), checks.count("embedding", embedding)
        layers, heads = checks.count("layers", layers), checks.count("heads", heads)
        if embedding % heads:
            checks.refuse("embedding", f"a multiple of heads = {heads}", f"it is {embedding}")
        self.longest = checks.count("longest", longest)
        in_key, position_key, out_key, block_key = jax.random.split(key, 4)
        self.read_in = eqx.nn.Linear(dimension, embedding, key=in_key)
        drawn = jax.random.normal(position_key, (2 * self.longest + 1, embedding))
        self.positions = eqx.nn.Embedding(weight=_INITIAL_POSITION * drawn)
        make = eqx.filter_vmap(lambda key: _Block(embedding, heads, key))
        self.blocks = make(jax.random.split(block_key, layers))
        self.norm = eqx.nn.LayerNorm(embedding)
        self.read_out = eqx.nn.Linear(embedding, 1, key=out_key)

    def predictions(self, prompt: Prompt) -> Float[Array, " positions"]:
        """The predicted labels of x_1, .., x_N, x_query, (N + 1,), each computed from the examples before it.

        **Raises:** `ValueError` on a prompt of another dimension, or with more examples than ``longest``.
        """
        N, d = prompt.inputs.shape
        if d != self.read_in.in_features:
            checks.refuse("prompt", f"of dimension {self.read_in.in_features}, as the decoder", f"its inputs have {d}")
        if self.longest < N:
            checks.refuse("prompt", f"of at most longest = {self.longest} examples", f"it has {N}")
        labels = jnp.zeros((N, d)).at[:, 0].set(prompt.labels)
        pairs = jnp.stack([prompt.inputs, labels], axis=1).reshape(2 * N, d)
        tokens = jnp.concatenate([pairs, prompt.query[None, :]], axis=0)
        hidden = jax.vmap(self.read_in)(tokens) + self.positions.weight[: 2 * N + 1]
        causal = jnp.tril(jnp.ones((2 * N + 1, 2 * N + 1), dtype=bool))
        weights, rest = eqx.partition(self.blocks, eqx.is_array)
        hidden, _ = jax.lax.scan(lambda h, one: (eqx.combine(one, rest)(h, causal), None), hidden, weights)
        return jax.vmap(self.read_out)(jax.vmap(self.norm)(hidden[::2]))[:, 0]

    def __call__(self, prompt: Prompt) -> Float[Array, ""]:
        return self.predictions(prompt)[-1]
