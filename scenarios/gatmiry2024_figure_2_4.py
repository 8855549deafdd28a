"""Figures 2 and 4 of gatmiry2024: looped models beside layers of their own, and where A(t) goes.

**Source:** gatmiry2024 (Can Looped Transformers Learn to Implement Multi-step Gradient Descent?), Figures 2, 4,
section 5.

**What it shows:** d = 10, n = 20. Left: more loops lower the loss, and L layers (dashed) that start nearly equal
follow L loops (solid) down to their minimum, which is a saddle of theirs, leave it later, and end lower. Middle: by
which factor; it grows with L, and with n to that of Gaussian matrices. Right: A(t) = a(t) I tends to c I, c < 1,
further from I the more loops there are; one loop converges too, and takes longest.

**What would falsify it:** layers that end at the loss of the loops, or a(t) that ends at 1.
"""

import pathlib

import numpy as np

import flowsim
from flowsim.losses import ScalarLayersLoss, ScalarLoopLoss
from flowsim.losses.deep.scalar_minima import layer_minimum, scalar_minimum
from flowsim.models import ScalarLayers, ScalarLoop

D, N = 10, 20


def main(quick: bool = False, out: pathlib.Path | None = None) -> dict[int, tuple[float, float, float]]:
    """Draw the figure; returns the losses at the end, looped and of layers, and a at the end. Quick: fewer loops."""
    flowsim.setup()
    print("Following flows of loops and of layers ..", flush=True)
    found, depths = {}, (1, 2) if quick else (1, 2, 3, 4)
    mark = lambda index: {"color": f"C{index}", "marker": "os^D"[index], "markevery": 0.2, "markersize": 3}
    path = pathlib.Path(out or ".", "gatmiry2024_figure_2_4.png")
    with flowsim.plots.drawing(path, figsize=(12, 3.8)) as figure:
        left, middle, right = figure.subplots(1, 3)
        shown = depths if quick else (1, 2, 4, 8)
        looped = {
            L: flowsim.gradient_flow(ScalarLoopLoss(D, N, L), ScalarLoop(1e-3, loops=L)) for L in {*depths, *shown}
        }
        for index, L in enumerate(depths):
            loops = looped[L]
            begin = ScalarLayers(1e-3 * (1 + 0.5 * np.linspace(-1, 1, L) if L > 1 else np.ones(1)))
            layers = flowsim.gradient_flow(ScalarLayersLoss(D, N, L), begin)
            left.plot(loops.t, loops.loss, "-", label=f"L = {L}", **mark(index))
            left.plot(layers.t, layers.loss, "--", **mark(index))
            found[L] = (float(loops.loss[-1]), float(layers.loss[-1]), float(loops.models.a[-1]))
        for index, L in enumerate(shown):
            right.plot(looped[L].t, looped[L].models.a, "-", label=f"L = {L}", **mark(index))
        n = np.unique(np.geomspace(5, 5000, 6 if quick else 25).astype(int))
        for index, L in enumerate(depths[1:], start=1):
            ratio = [scalar_minimum(D, int(m), L)[1] / layer_minimum(D, int(m), L)[1] for m in n]
            middle.plot(n, ratio, "-", label=f"L = {L}", **mark(index))
        left.set(
            xscale="log", yscale="log", xlim=(1e-2, 300), xlabel="t", ylabel="loss of loops (solid), layers (dashed)"
        )
        middle.set(xscale="log", ylim=(0, None), xlabel="n", ylabel="least loss, loops over layers")
        right.axhline(1, color="k", ls=":", lw=1)
        right.set(xscale="log", xlim=(1e-2, 1e1), ylim=(0, 1.05), xlabel="t", ylabel="a(t)")
        for axes in (left, middle, right):
            axes.legend()
    print(f"figure: {path.absolute()}")
    return found


if __name__ == "__main__":
    main()
