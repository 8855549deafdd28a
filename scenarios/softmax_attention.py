"""Softmax against linear attention: one layer of each on the same prompts, from the same weights.

**Source:** zhang2023 (Trained Transformers Learn Linear Models In-Context), section 3.2: the softmax module and (3.3).

**What it shows:** linear attention predicts the same with (U11, u_{-1}) and (-U11, -u_{-1}); its exact flow ends at
(4.1) from either. Softmax attention has no exact loss on Gaussian prompts: its flows run on disjoint sets of them,
with their spread as a 95% band, and end higher. The two signs are two basins: for U11 > 0 the query, whose label is 0,
attends to itself more than evenly; for U11 < 0 hardly, and the layer looks at the examples that point away from it.

**What would falsify it:** bands at the end that meet, or reach linear attention; fresh prompts that say otherwise.
"""

import pathlib

import numpy as np

import flowsim
from flowsim.losses.sampled.confidence import half_width

D, N = 2, 10


def softmax(model: flowsim.LinearAttention) -> flowsim.SoftmaxAttention:
    """One layer of softmax attention with the weights of linear attention."""
    W_PV, W_KQ = np.zeros((2, 1, D + 1, D + 1))
    W_PV[0, D, D], W_KQ[0, :D, :D] = model.u_minus1, model.U11
    return flowsim.SoftmaxAttention(W_PV, W_KQ)


def main(quick: bool = False, out: pathlib.Path | None = None) -> dict[str, tuple[float, ...]]:
    """Integrate and draw; returns where each ends: the loss, its interval, and that on fresh prompts. Quick: 4 sets."""
    flowsim.setup()
    print("Following flows on sets of drawn prompts, from two starts ..", flush=True)
    task, times, sets = flowsim.LinearRegression(np.diag([0.5, 1.0]), N), np.geomspace(0.1, 100, 31), 4 if quick else 8
    linear = flowsim.LinearAttention(0.3 * np.eye(D), 0.3)
    exact = flowsim.gradient_flow(flowsim.LinearAttentionLoss(task), linear, times=times, t1=times[-1])
    sampled = flowsim.MonteCarloLoss(task, samples=sets * 1024, replicates=sets, factor=0.5, method="prompts")
    ends: dict[str, tuple[float, ...]] = {"linear": (float(exact.loss[-1]),)}
    path = pathlib.Path(out or ".", "softmax_attention.png")
    with flowsim.plots.drawing(path, figsize=(5, 3.5)) as figure:
        axes = figure.add_subplot()
        axes.plot(exact.t, exact.loss, "k", label="linear, exact")
        for name, sign in (("softmax, U11 > 0", 1.0), ("softmax, U11 < 0", -1.0)):
            start = softmax(flowsim.LinearAttention(sign * linear.U11, sign * linear.u_minus1))
            settings = {"times": times, "t1": times[-1], "points_per_decade": 0, "rtol": 1e-5, "solver": "explicit"}
            loss = sampled.prepared(start)
            flows = [flowsim.gradient_flow(part, start, **settings) for part in loss.replicates()]
            losses = np.stack([flow.loss for flow in flows])
            mean, half = losses.mean(axis=0), half_width(losses, 0.95)
            (line,) = axes.plot(flows[0].t, mean, label=name)
            axes.fill_between(flows[0].t, mean - half, mean + half, color=line.get_color(), alpha=0.2, lw=0)
            fresh = loss.fresh(start)
            told = [fresh.estimate(flow.end) for flow in flows]
            ends[name] = mean[-1], half[-1], *np.mean([(one.low, one.high) for one in told], axis=0)
            interval = "{:.4f} +- {:.4f}, on fresh prompts {:.4f} to {:.4f}".format(*ends[name])
            print(f"{name}: ends at {interval}")
        axes.set(xscale="log", xlabel="t", ylabel="population loss", ylim=(0, None))
        axes.legend()
    print(f"linear attention: ends at {exact.loss[-1]:.4f}")
    print(f"figure: {path.absolute()}")
    return ends


if __name__ == "__main__":
    main()
