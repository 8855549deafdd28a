"""Three linear attention layers learn the inverse covariance: the flow from Gaussian matrices, and L-BFGS.

**Source:** ahn2023 (Transformers learn to implement preconditioned gradient descent), section 5.3, Figures 1 and 2:
d = 5, n = 20, covariance U^T D^2 U with D = diag(1, 1, 1/2, 1/4, 1), w ~ N(0, covariance^-1).

**What it shows:** from each of five starts S^{1/2} A_i S^{1/2} tends to a multiple of I, and the loss to the least one
over such matrices, which is 0.1336 and not 0. Dist(A_i, I) tends to that of S^-1. L-BFGS ends at the same loss.

**What would falsify it:** a start that ends elsewhere, or a loss of L-BFGS that is not that of the flow.
"""

import pathlib

import equinox as eqx
import jax
import numpy as np
import optimistix

import flowsim
from flowsim.papers.ahn2023.figures import distance_to_identity, preconditioned

VARIANCES = np.array([1, 1, 0.5, 0.25, 1]) ** 2


def train(seed: int, layers: int, **how) -> tuple[flowsim.MultiLayerLoss, flowsim.Trajectory, float]:
    """The loss, the flow from a Gaussian start, and the excess at which L-BFGS ends from there."""
    U = np.asarray(jax.random.orthogonal(jax.random.key(seed), 5))
    task = flowsim.LinearRegression((U.T * VARIANCES) @ U, context_length=20, weights="inverse-covariance")
    loss = flowsim.MultiLayerLoss(task, layers)
    start = flowsim.MultiLayerAttention(flowsim.initialization.symmetric(1.0, 5, seed, layers))
    weights, rest = eqx.partition(start, eqx.is_array)
    value = lambda y, _: loss.excess(eqx.combine(y, rest))
    found = optimistix.minimise(value, optimistix.LBFGS(1e-10, 1e-12), weights, max_steps=5000, throw=False).value
    return loss, flowsim.gradient_flow(loss, start, stop=flowsim.Stop(excess=0.0), **how), float(value(found, None))


def main(quick: bool = False, out: pathlib.Path | None = None) -> list[tuple]:
    """Train five times, and draw distances, losses and the first run's matrices. Quick: two layers, once, roughly."""
    flowsim.setup()
    print("Following five flows of three layers, and L-BFGS from the same starts ..", flush=True)
    runs = [train(0, 2, rtol=1e-5)] if quick else [train(seed, 3) for seed in range(5)]
    loss, first, _ = runs[0]
    k, path = loss.layers, pathlib.Path(out or ".", "ahn2023_figure_1.png")
    with flowsim.plots.drawing(path, figsize=(2.6 * (k + 1), 5.0)) as figure:
        above, below = figure.subplots(2, k + 1)
        for run_loss, run, _ in runs:
            for i, axes in enumerate(above[:k]):
                A = run.models.A[1:, i]
                axes.loglog(run.t[1:], distance_to_identity(A), "--", color="tab:red", lw=1)
                axes.loglog(run.t[1:], distance_to_identity(preconditioned(run_loss, A)), "-", color="tab:blue", lw=1)
                axes.set(xlabel="time", title=f"distance to identity, layer {i}")
            for axes, name, title in ((above[k], "loss", "loss"), (below[k], "excess", "loss above its minimum")):
                axes.loglog(run.t[1:], getattr(run, name)[1:], "-", color="tab:blue", lw=1)
                axes.set(xlabel="time", title=title)
        shown = np.asarray(preconditioned(loss, first.end.A))
        for i, axes in enumerate(below[:k]):
            figure.colorbar(axes.imshow(shown[i], cmap="RdBu", vmin=-np.max(shown), vmax=np.max(shown)), ax=axes)
            axes.set(title=rf"$\Sigma^{{1/2}} A_{i} \Sigma^{{1/2}}$, first start", xticks=[], yticks=[])
        above[0].legend(["$A_0$", r"$\Sigma^{1/2} A_0 \Sigma^{1/2}$"])
        above[k].axhline(float(loss.minimum), color="k", ls="--")
    for _, run, excess in runs:
        print(f"{run.status}, loss {run.loss[-1]:.10f}, excess {run.excess[-1]:.1e}; of L-BFGS {excess:.1e}")
    print(f"least loss on multiples of covariance^-1 {loss.minimum:.10f}", f"figure: {path.absolute()}", sep="\n")
    return runs


if __name__ == "__main__":
    main()
