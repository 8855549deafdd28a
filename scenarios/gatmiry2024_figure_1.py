"""Figure 1 of gatmiry2024: where looped models of prompts of n examples end, n < d included.

**Source:** gatmiry2024 (Can Looped Transformers Learn to Implement Multi-step Gradient Descent?), Figure 1, section
5.2.

**What it shows:** d = 5, L = 2, from random starts: A becomes a multiple of I at every n (dashed, the distance up to
scaling that ahn2023's code reports), but of one that is far from I until n is many times d (solid). Right: A_opt = c
I by exact moments; 1 - c falls as 1/n, and is larger with more loops.

**What would falsify it:** a flow that ends away from the c I of the exact moments, or solid lines that fall to zero.
"""

import pathlib

import numpy as np

import flowsim
from flowsim import initialization
from flowsim.losses.deep.scalar_minima import scalar_minimum, scalar_shortfall

D, LOOPS = 5, 2


def main(quick: bool = False, out: pathlib.Path | None = None) -> dict[int, tuple[float, float, float]]:
    """Draw the figure; returns |A - I|, the distance up to scaling and c at the end of each flow. Quick: fewer n."""
    flowsim.setup()
    print("Following a flow of two loops for each n ..", flush=True)
    found, lengths = {}, (3, 20) if quick else (3, 5, 20, 100)
    start = flowsim.LoopedAttention(initialization.symmetric(0.2, D, seed=0), loops=LOOPS)
    path = pathlib.Path(out or ".", "gatmiry2024_figure_1.png")
    with flowsim.plots.drawing(path, figsize=(9, 3.8)) as figure:
        left, right = figure.subplots(1, 2)
        for index, n in enumerate(lengths):
            task = flowsim.LinearRegression(np.eye(D), n, weights="inverse-covariance")
            run = flowsim.gradient_flow(flowsim.LoopedLoss(task, LOOPS), start, rtol=1e-7)
            A, t = np.asarray(run.models.A), np.asarray(run.t)
            gap = np.linalg.norm(A - np.eye(D), 2, axis=(1, 2))
            mean = np.trace(A, axis1=1, axis2=2)[:, None, None] / D
            scaled = np.linalg.norm(A - mean * np.eye(D), axis=(1, 2)) / np.linalg.norm(A, axis=(1, 2))
            mark = {"color": f"C{index}", "marker": "os^Dvx"[index], "markevery": 0.2, "markersize": 3}
            left.plot(t, gap, "-", label=f"n = {n}", **mark)
            left.plot(t, scaled, "--", **mark)
            found[n] = (float(gap[-1]), float(scaled[-1]), scalar_minimum(D, n, LOOPS)[0])
        labels = {"xlabel": "t", "ylabel": r"$\|A - I\|_2$ (solid), up to scaling (dashed)"}
        left.set(xscale="log", yscale="log", xlim=(1e-2, 10), ylim=(1e-4, 3), **labels)
        left.legend(loc="lower left")
        n = np.unique(np.geomspace(1, 1000, 8 if quick else 40).astype(int))
        for loops in (1, 2, 5):
            shortfall = [scalar_shortfall(D, int(length), loops) for length in n]
            right.plot(n, shortfall, label=f"{loops} loop{'s' * (loops > 1)}")
        right.axvline(D, color="k", ls=":", lw=1)
        right.annotate("n = d", (D, 0.011), xytext=(4, 0), textcoords="offset points")
        right.plot(lengths, [gap for gap, _, _ in found.values()], "ko", ms=4, label="ends of the flows, 2 loops")
        right.set(xscale="log", yscale="log", xlabel="n", ylabel=r"$\|A_{opt} - I\|_2 = 1 - c$", ylim=(1e-2, 1.2))
        right.legend()
    print(f"figure: {path.absolute()}")
    return found


if __name__ == "__main__":
    main()
