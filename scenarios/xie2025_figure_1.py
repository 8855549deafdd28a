"""One head without a guess, where the prior has a mean: the gap to one step of gradient descent that training leaves.

**Source:** xie2025 (The initialization determines whether in-context learning is gradient descent), Figure 1, section
5.1, appendix C.1: d = 10, C = 10, w* = (2, .., 2).

**What it shows:** the exact gradient flow of (b, A), and that of the four matrices that the paper trains, end at the
least risk of one head, 14.43, far above the 5.24 of gradient descent from w*. So does Adam on batches, more slowly.
A prediction of 0 has risk 50.

**What would falsify it:** a flow that ends at another loss, or a curve that falls below the line of gradient descent.
"""

import pathlib

import jax
import numpy as np

import flowsim
from flowsim import initialization


def main(quick: bool = False, out: pathlib.Path | None = None) -> tuple:
    """Integrate, train and draw; returns the loss, the flows and Adam's risk. Quick: d = 3, factors, 200 steps."""
    flowsim.setup()
    print("Following the flows of one head, then training it by Adam ..", flush=True)
    d, C, steps, batch = (3, 5, 200, 256) if quick else (10, 10, 5000, 2048)
    task = flowsim.LinearRegression(np.eye(d), C, prior_mean=2 * np.ones(d))
    like = flowsim.MultiHeadAttention(np.zeros((1, d + 1)), np.zeros((1, d + 1, d + 1)))
    loss = flowsim.MultiHeadLoss(task, like)
    factored = initialization.factored_heads(0.2, like, seed=0)
    settings = {"rtol": 1e-6, "solver": "explicit", "stop": flowsim.Stop(excess=1e-9)}
    flows = {"$W^K, W^Q, W^V, W^P$": flowsim.gradient_flow(loss, factored, **settings)}
    if not quick:
        flows["$(b, A)$"] = flowsim.gradient_flow(loss, initialization.heads(0.1, like, seed=0), **settings)
    rate = 5e-3 if quick else 5e-4
    trained, batches = flowsim.train(
        factored, task, steps=steps, batch=batch, learning_rate=rate, key=jax.random.key(0), progress=not quick
    )
    path = pathlib.Path(out or ".", "xie2025_figure_1.png")
    with flowsim.plots.drawing(path, figsize=(8.0, 3.3)) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        for name, flow in flows.items():
            left.plot(flow.t, flow.loss, label=f"flow of {name}")
        right.plot(np.arange(steps) + 1, batches, color="tab:gray", lw=0.5, label="Adam, on its batches")
        for axes, label in ((left, "time of the flow"), (right, "steps of Adam")):
            axes.axhline(float(loss.minimum), color="k", ls=":", label="least of one head")
            axes.axhline(float(loss.risk.descent_risk), color="tab:red", ls="--", label="gradient descent from $w_*$")
            axes.set(xscale="log", yscale="log", xlabel=label)
            axes.legend()
        left.set(ylabel="risk")
    for name, flow in flows.items():
        print(f"flow of {name}: ends at {flow.loss[-1]:.6f}, excess {flow.excess[-1]:.1e}")
    print(f"Adam ends at {loss(trained):.6f} after {steps} steps; least risk of one head {loss.minimum:.6f}")
    print(f"gradient descent {loss.risk.descent_risk:.6f}", f"figure: {path.absolute()}", sep="\n")
    return loss, list(flows.values()), float(loss(trained))


if __name__ == "__main__":
    main()
