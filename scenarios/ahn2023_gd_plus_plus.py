"""Layers that also move the covariates (GD++): what they gain, and the local minima that they bring.

**Source:** ahn2023 (Transformers learn to implement preconditioned gradient descent), Theorem 5, section 6.1, Figures
3 and 4: d = 5, n = 10, three layers with A_i = a_i covariance^-1 and B_i = b_i I, on which set the loss is exact.

**What it shows:** B lowers the least loss of three layers from 0.579 to 0.039, which is not 0; there a_0 < a_1 < a_2.
But the set has many local minima. From drawn starts the flow of the scalars ends at several of them, and at some the
a_i do not increase. Without B every order of the same a_i is as good (Lemma 8).

**What would falsify it:** a flow that ends below the least loss, "violated" for Figure 4 at the best scalars, or flows
that all end at the same loss.
"""

import pathlib
import textwrap

import numpy as np

import flowsim
from flowsim.losses import ScalarLayersLoss
from flowsim.models import ScalarLayers

CLAIMS = [f"ahn2023.{name}" for name in ("theorem-5.local-minima", "figure-3.loss", "figure-4", "figure-4.elsewhere")]


def main(quick: bool = False, out: pathlib.Path | None = None) -> tuple:
    """Follow flows from drawn starts, and judge the claims at the best scalars. Quick: two layers, fewer starts."""
    flowsim.setup()
    print("Following flows from 24 drawn starts, then judging the claims ..", flush=True)
    d, n, k = 5, 10, 2 if quick else 3
    loss = ScalarLayersLoss(d, n, k, residual_stream=True)
    depths = range(1, k + 1)
    without = [ScalarLayersLoss(d, n, layers) for layers in depths]
    drawn = np.random.default_rng(0).uniform(0, 1, (4 if quick else 24, 2 * k - 1))
    flows = [flowsim.gradient_flow(loss, ScalarLayers(start[:k], start[k:] / 2)) for start in drawn]
    flows.sort(key=lambda run: float(run.loss[-1]))

    best, path = loss.minimizer, pathlib.Path(out or ".", "ahn2023_gd_plus_plus.png")
    with flowsim.plots.drawing(path, figsize=(9.0, 3.0)) as figure:
        left, middle, right = figure.subplots(1, 3)
        for run in flows:
            left.loglog(run.t[1:], run.loss[1:], "-", color="tab:blue", lw=0.8)
            middle.semilogy(range(k), run.end.a, "-", color="tab:blue", lw=0.8, alpha=0.5)
        left.axhline(float(loss.minimum), color="k", ls="--")
        left.set(xlabel="time", title="loss, from drawn starts")
        middle.semilogy(range(k), best.a, "ko-", label="best, with $B$")
        middle.semilogy(range(k), np.sort(without[-1].minimizer.a), "s--", color="tab:red", label="best, without $B$")
        middle.set(xlabel="layer $i$", xticks=range(k), title="$a_i$ where the flows end")
        middle.legend()
        right.semilogy(depths, [float(other.minimum) for other in without], "s--", color="tab:red", label="without $B$")
        with_B = [without[0], *(ScalarLayersLoss(d, n, layers, residual_stream=True) for layers in depths[1:])]
        right.semilogy(depths, [float(other.minimum) for other in with_B], "ko-", label="with $B$")
        right.set(xlabel="layers", xticks=depths, title="least loss")
        right.legend()
    task = flowsim.LinearRegression(np.diag([1, 1, 0.25, 0.0625, 1]), n, weights="inverse-covariance")
    full = flowsim.MultiLayerLoss(task, k)
    claims = [claim for claim in flowsim.ALL_CLAIMS if claim.id in CLAIMS]
    verdicts = flowsim.judge(claims, full, flowsim.gradient_flow(full, full.minimizer, t1=1e-6, solver="explicit"))
    print(flowsim.verdict_table(verdicts), f"figure: {path.absolute()}", sep="\n")
    print("losses at the ends:", textwrap.fill(" ".join(f"{run.loss[-1]:.6f}" for run in flows), 80), sep="\n")
    return loss, flows, verdicts


if __name__ == "__main__":
    main()
