"""How large a step gradient descent may take on the looped loss before it no longer follows the flow.

**Source:** gatmiry2024, section 5: training by finite steps, with d = 5, n = 20, Sigma* = I, from A = 0.

**What it shows:** the flow beside gradient descent with steps on both sides of the largest that converges, found by
bisection, and the bound 2/curvature at the minimum. One loop, a quadratic, diverges beyond that bound. More loops are
steep where they start: descent from zero diverges long before it.

**What would falsify it:** a largest step away from the bound at L = 1, or beyond it at any L.
"""

import pathlib

import jax
import numpy as np

import flowsim

D, N = 5, 20


def largest_step(loss, start, bound: float, rounds: int) -> float:
    """The largest step with which descent from the start ends near the minimum, by bisection in the logarithm."""

    def converges(step: float) -> bool:
        run = flowsim.gradient_descent(loss, start, step, 4000)
        return run.status.finished and float(run.excess[-1]) < 1e-3 * float(run.excess[0])

    low, high = bound / 1e3, 2 * bound
    for _ in range(rounds):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if converges(middle) else (low, middle)
    return low


def main(quick: bool = False, out: pathlib.Path | None = None) -> list[tuple[int, float, float]]:
    """Bisect for every number of loops and draw. Quick: two of them, coarsely."""
    flowsim.setup()
    print("Bisecting the largest step that converges, for each number of loops ..", flush=True)
    task = flowsim.SpectralRegression([1.0], N, multiplicities=[D])
    start = flowsim.DiagonalLayers([[0.0]], task)
    path = pathlib.Path(out or ".", "gatmiry2024_step_size.png")
    rows = []
    with flowsim.plots.drawing(path, figsize=(7.0, 5.4)) as figure:
        for index, loops in enumerate((1, 3) if quick else (1, 2, 3, 4)):
            loss = flowsim.DiagonalLayersLoss(task, loops)
            best = loss.minimizer
            slope = lambda x, loss=loss, best=best: loss.gradient(jax.tree.map(lambda leaf: leaf + x, best)).scaled[
                0, 0
            ]
            bound = 2 / float(jax.grad(slope)(0.0))
            step = largest_step(loss, start, bound, 10 if quick else 20)
            rows.append((loops, step, bound))
            print(f"L = {loops}: steps up to {step:.4g} converge; 2/curvature at the minimum is {bound:.4g}")

            axes = figure.add_subplot(2, 2, index + 1, title=f"L = {loops}", xscale="log", yscale="log")
            runs = {"flow": flowsim.gradient_flow(loss, start)}
            for factor in (0.1, 0.98, 1.1):
                runs[f"step {factor * step:.3g}"] = flowsim.gradient_descent(loss, start, factor * step, 4000)
            for style, (label, run) in zip(("k-", "--", "-.", ":"), runs.items(), strict=True):
                unit = 1.0 if run.step_size is None else run.step_size[0]
                axes.plot(unit * run.t[1:], np.clip(run.excess[1:], 1e-13, 1e4), style, label=label)
            axes.set(xlabel="t, or step times count", ylabel="excess loss", ylim=(1e-12, 1e3))
            axes.legend(loc="lower left")
    return rows


if __name__ == "__main__":
    main()
