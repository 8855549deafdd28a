"""What heads, a prior mean and a wrong guess do to the least risk: exact lines, and where flows end.

**Source:** xie2025 (The initialization determines whether in-context learning is gradient descent), Figures 2, 3 and 4,
section 5.1: d = 10, C = 10.

**What it shows:** the least risk falls with every head up to d and no further (the paper says d + 1). With that many
it is above gradient descent's by 2 (|w* - w|^2 + bias^2)/(d C + 2) exactly, a line in the squared norms. Flows of the
exact risk from small random weights end on the lines.

**What would falsify it:** a flow that ends off its line.
"""

import pathlib

import numpy as np

import flowsim
from flowsim import initialization


def ends(task: flowsim.LinearRegression, heads: int, w: np.ndarray | None = None, bias: float = 0.0) -> tuple:
    """The least risk of so many heads with a guess, and the risk that a flow ends with."""
    rows = task.dimension + 1
    like = flowsim.MultiHeadAttention(np.zeros((heads, rows)), np.zeros((heads, rows, rows)), w, bias)
    loss = flowsim.MultiHeadLoss(task, like)
    stop = flowsim.Stop(excess=1e-7)
    flow = flowsim.gradient_flow(loss, initialization.heads(0.1, like, seed=0), rtol=1e-5, stop=stop)
    return float(loss.minimum), float(flow.loss[-1])


def main(quick: bool = False, out: pathlib.Path | None = None) -> dict[str, np.ndarray]:
    """Compute and draw; returns (points, 3) abscissa, least risk and end of a flow by panel. Quick: d = 2, C = 5."""
    flowsim.setup()
    print("Following a flow for each number of heads, mean and guess ..", flush=True)
    d, C = (2, 5) if quick else (10, 10)
    ones, sizes = np.ones(d), (0.0, 2.0) if quick else (0.0, 1.0, 2.0)
    at = lambda mean: flowsim.LinearRegression(np.eye(d), C, prior_mean=mean)
    found = {
        "heads": [(H, *ends(at(2 * ones), H)) for H in ((1, 3) if quick else (1, 2, 3, 5, 7, 9, 10, 11))],
        "$|w_*|^2$": [(d * c**2, *ends(at(c * ones), d + 1)) for c in sizes],
        "$|w|^2$ of the guess, $w_* = 0$": [(d * c**2, *ends(at(0 * ones), d + 1, c * ones)) for c in sizes],
        "bias$^2$ of the guess, $w_* = 0$": [(c**2, *ends(at(0 * ones), d + 1, bias=c)) for c in sizes],
    }
    panels = {name: np.asarray(rows) for name, rows in found.items()}
    descent = d * (d + 1) / (C + d + 1)
    path = pathlib.Path(out or ".", "xie2025_figures_2_to_4.png")
    with flowsim.plots.drawing(path, figsize=(11.0, 3.0)) as figure:
        for axes, (name, rows) in zip(figure.subplots(1, 4), panels.items(), strict=True):
            axes.plot(rows[:, 0], rows[:, 1], "k-", label="least risk")
            axes.plot(rows[:, 0], rows[:, 2], "o", mfc="none", color="tab:blue", label="end of the flow")
            axes.axhline(descent, color="tab:red", ls="--", label="gradient descent")
            axes.set(xlabel=name)
        figure.axes[0].set(ylabel="risk")
        figure.axes[0].legend()
    for name, rows in panels.items():
        print(name, *(f"  {x:g}: least {least:.6f}, flow {end:.6f}" for x, least, end in rows), sep="\n")
    print(f"figure: {path.absolute()}")
    return panels


if __name__ == "__main__":
    main()
