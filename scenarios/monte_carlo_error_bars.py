"""A sampled population loss beside the exact one: error bars that shrink as they must, and methods that draw less.

**Source:** gatmiry2024 (Can Looped Transformers Learn to Implement Multi-step Gradient Descent), the loss of section
3.4, exact by `LoopedLoss` and by samples with `MonteCarloLoss`.

**What it shows:** left, the 95% half width of the loss of two loops against the number of samples, by each method, and
the true error: both fall as one over the root; drawing covariances alone is worth hundreds of times as many prompts.
Right, the sampled flow with its band over 8 replicate flows, and the exact flow inside of it.

**What would falsify it:** a slope away from -1/2, true errors often outside of the intervals, an exact flow outside of
the band.
"""

import pathlib

import numpy as np

import flowsim


def main(quick: bool = False, out: pathlib.Path | None = None) -> tuple[dict, dict, flowsim.Trajectory]:
    """Draw both panels; returns half widths and errors by method, the band and the exact flow. Quick: fewer samples."""
    flowsim.setup()
    print("Computing intervals for growing numbers of samples ..", flush=True)
    task = flowsim.LinearRegression(np.diag([1.0, 0.7, 0.5]), 10, weights="inverse-covariance")
    exact = flowsim.LoopedLoss(task, 2)
    model = flowsim.LoopedAttention(0.4 * np.eye(3), loops=2)
    counts = [2**10, 2**12] if quick else [2**10, 2**12, 2**14, 2**16]
    widths = {}
    for method in ("prompts", "covariances") if quick else ("prompts", "inputs", "covariances", "radial"):
        losses = [flowsim.MonteCarloLoss(task, samples=count, method=method) for count in counts]
        found = [loss.estimate(model) for loss in losses]
        errors = [abs(estimate.value - float(exact(model))) for estimate in found]
        widths[method] = np.asarray([[(e.high - e.low) / 2 for e in found], errors])

    start = flowsim.LoopedAttention(np.zeros((3, 3)), loops=2)
    sampled = flowsim.MonteCarloLoss(task, samples=256 if quick else 2048)
    run = flowsim.gradient_flow(sampled, start, t1=3.0, rtol=1e-6)
    truth = flowsim.gradient_flow(exact, start, times=run.t[1:], points_per_decade=0)
    band = flowsim.confidence_band(flowsim.Evidence(sampled, run))

    path = pathlib.Path(out or ".", "monte_carlo_error_bars.png")
    with flowsim.plots.drawing(path, figsize=(9, 3.4)) as figure:
        left, right = figure.subplots(1, 2)
        for index, (method, (half, error)) in enumerate(widths.items()):
            left.loglog(counts, half, marker="o", color=f"C{index}", ls=("-", "--", "-.", ":")[index], label=method)
            left.loglog(counts, error, "x", color=f"C{index}")
        guide = widths["prompts"][0][0] * np.sqrt(counts[0] / np.asarray(counts))
        left.loglog(counts, guide, "k:", label="one over the root")
        left.set(xlabel="samples", ylabel="half width (o) and error (x)", title="95% interval of the loss")
        left.legend()
        right.fill_between(run.t[1:], *(side[1:] for side in band["loss"]), color="C2", alpha=0.4, label="sampled, 95%")
        right.semilogx(truth.t[1:], truth.loss[1:], "k-", lw=0.8, label="exact")
        right.set(xlabel="time", ylabel="loss", title=f"flow by {sampled.samples} {sampled.prepared(start).method}")
        right.legend()
    print(*(f"{method}: {half[-1]:.2e} at {counts[-1]} samples" for method, (half, _) in widths.items()), sep="\n")
    print(f"figure: {path.absolute()}")
    return widths, band, truth


if __name__ == "__main__":
    main()
