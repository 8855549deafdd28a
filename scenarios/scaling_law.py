"""Scaling laws of one layer on a power-law spectrum: the excess against time and dimension, up to d = 16384.

**Source:** the flow of zhang2023 (5.4) with lambda_i = i^-a; derived here, as none of the papers states it. Where the
first I directions are learned, u^4 is the sum of gamma_i^-2 over them, the next one is learned at the rate u^2 gamma
lambda^2, and sum_{i > I} lambda_i^2/(2 gamma_i) is left. With N = infinity gamma_i = lambda_i, else gamma_i tends to
tr(Lambda)/N, so that

    excess ~ t^-(a-1)/(2a-1/2) for N = infinity,      excess ~ t^-(2a-1)/(2a-1/2) for finite N.

**What it shows:** both exponents, at up to d = 16384 and 2.7e8 weights; small layers leave the law when they are done.

**What would falsify it:** a slope at the largest dimension more than 10% from its exponent.
"""

import pathlib

import matplotlib.pyplot as plt
import numpy as np

import flowsim

A, SCALE, RANK = 1.5, 0.01, 4
LAST, WINDOW = 3e5, (1e3, 1e5)
EXPONENTS = {np.inf: (A - 1) / (2 * A - 0.5), 100: (2 * A - 1) / (2 * A - 0.5)}


def flow_of(dimension: int, length: float) -> flowsim.Trajectory:
    """The flow from a small balanced start of low rank."""
    task = flowsim.SpectralRegression(np.arange(1, dimension + 1.0) ** -A, length, weights="isotropic")
    loss = flowsim.SpectralAttentionLoss(task, SCALE, np.random.default_rng(0).standard_normal((dimension, RANK)))
    return flowsim.gradient_flow(loss, loss.start, t1=LAST)


def main(quick: bool = False, out: pathlib.Path | None = None) -> dict[float, list[float]]:
    """Integrate and draw; returns the slopes of every context length, one a dimension. Quick takes small dimensions."""
    flowsim.setup()
    print("Following flows of growing dimension ..", flush=True)
    dimensions = (64, 1024) if quick else (64, 256, 1024, 4096, 16384)
    found, path = {}, pathlib.Path(out or ".", "scaling_law.png")
    with flowsim.plots.drawing(path, figsize=(8.0, 3.4)) as figure:
        for place, (length, exponent) in enumerate(EXPONENTS.items()):
            axes = figure.add_subplot(1, 2, place + 1, title=f"N = {length:g}", xlabel="t", ylabel="excess")
            for color, d in zip(plt.cm.viridis(np.linspace(0, 0.9, len(dimensions))), dimensions, strict=True):
                flow = flow_of(d, length)
                within = (flow.t >= WINDOW[0]) & (flow.t <= WINDOW[1])
                slope = -np.polyfit(np.log(flow.t[within]), np.log(flow.excess[within]), 1)[0]
                found[length] = [*found.get(length, []), float(slope)]
                print(f"N = {length:g}, d = {d}: slope {slope:.3f}, exponent {exponent:.3f}")
                axes.loglog(flow.t[1:], flow.excess[1:], color=color, label=f"d = {d}")
            line = np.array(WINDOW)
            axes.loglog(line, 0.6 * flow.excess[within][0] * (line / line[0]) ** -exponent, "k--", lw=0.8)
            axes.set(xlim=(1, LAST), ylim=(0.3 * flow.excess[-1], 2 * flow.excess[0]))
            axes.legend()
    print(f"figure: {path.absolute()}")
    return found


if __name__ == "__main__":
    main()
