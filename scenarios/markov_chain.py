"""Which start of a transformer learns a Markov chain of two symbols, and which only its frequencies.

**Source:** Makkuva and others (Local to global: learning dynamics and effect of initialization for transformers), its
abstract. The model has an embedding e, an attention w and a bias b: the logit of the next symbol after x is
b + e^2 (1 + 2 w |w|)(x - 1/2). Derived here: e^2 - w^2 - sgn(w) log |w| is conserved, so that for symbols that
alternate, p + q > 1, a start with w < 0 learns the chain if and only if this is above -(1 + log 2)/2.

**What it shows:** conservation, and where the flow ends: with p + q < 1 at the chain; with p + q > 1 at the frequencies
from w > 0 and from below the bound, where "it learns the chain" is violated, and at the chain from above the bound.

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
    laws, shares = [[1 - p, p], [q, 1 - q]], [q / (p + q), p / (p + q)]
    return flowsim.FiniteLoss(np.arange(2.0), laws, shares, residual="cross-entropy", predict=logits, realizable=True)


@flowsim.claim("chain.1", "derived here")
def conserved(flow):
    """e^2 - w^2 - sgn(w) log|w| is conserved"""
    now, first = energy(flow.models[0], flow.models[1]), energy(*flow.start[:2])
    return flowsim.equal(now, first, jnp.abs(first) + 1)


@flowsim.claim("chain.2", "derived here")
def learns(loss, flow):
    """the excess is below a millionth at t = 700"""
    return flowsim.at_most(loss.excess(flow.at(700.0)), 1e-6)


def main(quick: bool = False, out: pathlib.Path | None = None) -> list[flowsim.Verdicts]:
    """Judge, print and draw; returns the verdicts of each start. Quick makes no difference."""
    flowsim.setup()
    print("Following a transformer on Markov chains ..", flush=True)
    verdicts, path = [], pathlib.Path(out or ".", "markov_chain.png")
    with flowsim.plots.drawing(path, figsize=(8.0, 3.4)) as figure:
        for place, (name, (p, q)) in enumerate(CHAINS.items(), 1):
            axes = figure.add_subplot(1, 2, place, title=name, xlabel="w", ylabel="e")
            for e, w in STARTS[name]:
                flow = flowsim.gradient_flow(loss := loss_of(p, q), (*map(jnp.asarray, (e, w, 0.0)),), t1=1e3)
                verdicts.append(flowsim.judge([conserved, learns], loss, flow))
                print(f"{name}, e = {e:g}, w = {w:g}\n{flowsim.verdict_table(verdicts[-1])}", flush=True)
                axes.plot(flow.models[1], flow.models[0], label=f"from ({w:g}, {e:g})")
                axes.plot(flow.end[1], flow.end[0], "o", color="k", markersize=3)
            if p + q > 1:
                line = np.linspace(-1.6, -0.05, 100)
                bound = np.sqrt(np.maximum(line**2 - np.log(-line) - (1 + np.log(2)) / 2, 0.0))
                axes.plot(line, bound, ":", color="gray", label="the bound")
            axes.legend()
    print(f"figure: {path.absolute()}")
    return verdicts


if __name__ == "__main__":
    main()
