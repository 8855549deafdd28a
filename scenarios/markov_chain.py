"""Which start of a transformer learns a Markov chain of two symbols, and which only its frequencies.

**Source:** Makkuva and others (Local to global: learning dynamics and effect of initialization for transformers), its
abstract. The model has an embedding e, an attention w and a bias b: the logit of the next symbol after x is
b + e^2 (1 + 2 w |w|)(x - 1/2). Derived here: e^2 - w^2 - sgn(w) log |w| is conserved, so that for symbols that
alternate, p + q > 1, a start with w < 0 learns the chain if and only if it is above -(1 + log 2)/2.

**What it shows:** conservation, and where the flow ends: with p + q < 1 at the chain, and with p + q > 1 at the
frequencies from w > 0 and from below the bound, but at the chain from above it. "The flow learns the chain" is violated
where it does not.

**What would falsify it:** another verdict."""

import pathlib

import jax.numpy as jnp
import numpy as np

import flowsim

CHAINS = {"p + q < 1": (0.2, 0.3), "p + q > 1": (0.7, 0.8)}  # the probabilities of a change, from 0 and from 1
STARTS = {"p + q < 1": [(0.5, 0.3)], "p + q > 1": [(0.5, 0.3), (0.66, -0.3), (0.68, -0.3)]}
energy = lambda e, w: e**2 - w**2 - jnp.sign(w) * jnp.log(jnp.abs(w))
logits = lambda model, x: jnp.stack([0.0, model[2] + model[0] ** 2 * (1 + 2 * model[1] * abs(model[1])) * (x - 0.5)])


def loss_of(p: float, q: float) -> flowsim.FiniteLoss:
    """The cross-entropy of the next symbol, in the long run."""
    laws = [[1 - p, p], [q, 1 - q]]
    return flowsim.FiniteLoss(
        np.arange(2.0), laws, [q / (p + q), p / (p + q)], residual="cross-entropy", predict=logits, realizable=True
    )


@flowsim.claim("chain.1", "derived here", statement="e^2 - w^2 - sgn(w) log|w| is conserved")
def conserved(flow):
    now, first = energy(flow.models[0], flow.models[1]), energy(*flow.start[:2])
    return flowsim.equal(now, first, jnp.abs(first) + 1)


@flowsim.claim("chain.2", "derived here", statement="the flow learns the chain")
def learns(flow):
    value, allowance = flowsim.limit(flow, lambda model: logits(model, 1.0)[1] - logits(model, 0.0)[1])
    return flowsim.at_most(value, value, allowance=allowance)
