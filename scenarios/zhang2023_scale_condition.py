"""The scale condition of Theorem 4.1 against what really converges, over eight decades of the start's scale.

**Source:** zhang2023 (Trained Transformers Learn Linear Models In-Context), Theorem 4.1: the flow converges to (5.9) if
sigma^2 |Gamma|_op sqrt(d) < 2; Lemma 5.4: its excess is then at most e^{-mu t} of the start's.

**What it shows:** the condition is sufficient, not necessary. The flow reaches (5.9) from every scale, and fastest from
scales that the theorem leaves out; the time that it guarantees runs off to infinity at both ends of its range.

**What would falsify it:** "violated" below the bound, or a scale beyond it from which the flow does not converge.
"""

import pathlib

import numpy as np

import flowsim
from flowsim import initialization

EPSILON = 1e-6
CLAIMS = ("zhang2023.theorem-4.1", "zhang2023.assumption-3.3.scale")
THETA = np.array([[1, 0.5, 0], [0, 1, -0.5], [0.3, 0, 1]])


def main(quick: bool = False, out: pathlib.Path | None = None) -> dict[float, list[flowsim.Verdict]]:
    """Judge both forms at every scale, and draw the time to an excess of 1e-6 beside the guaranteed one."""
    flowsim.setup()
    print("Following a flow from each scale, and judging both forms on it ..", flush=True)
    loss = flowsim.LinearAttentionLoss(flowsim.LinearRegression(np.diag([0.5, 1, 2]), 10))
    predict = lambda sigma: flowsim.predictions(loss.task, initialization.balanced(sigma, THETA))
    print("sigma    Theorem 4.1     any scale       time needed")
    verdicts, needed = {}, {}
    for sigma in np.geomspace(1e-6, 1e2, 9 if quick else 25):
        # From a large start, a fraction of its own excess would be no sign of convergence.
        stop = flowsim.Stop(excess=1e-12 / max(1.0, predict(sigma).excess), grad_norm=0.0)
        flow = flowsim.gradient_flow(loss, initialization.balanced(sigma, THETA), stop=stop)
        verdicts[sigma] = flowsim.judge(CLAIMS, loss, flow)
        needed[sigma] = np.interp(-np.log(EPSILON), -np.log(flow.excess), flow.t)
        print(f"{sigma:<8.2g}", *(f"{verdict.verdict:15}" for verdict in verdicts[sigma]), f"{needed[sigma]:.3g}")
    bound = predict(1.0).constants["scale_bound"]
    below = bound * (1 - np.geomspace(1 - 1e-6 / bound, 1e-4, 100))
    path = pathlib.Path(out or ".", "zhang2023_scale_condition.png")
    with flowsim.plots.drawing(path) as figure:
        axes = figure.add_subplot(xscale="log", yscale="log", xlim=(1e-6, 1e2))
        axes.axvspan(1e-6, bound, facecolor="C2", alpha=0.12, label="scale condition met")
        axes.plot(below, [predict(sigma).guaranteed_time(EPSILON) for sigma in below], "C1--", label="guaranteed")
        axes.plot(list(needed), list(needed.values()), "C0.-", label="needed")
        axes.set(xlabel=r"scale of the start  $\sigma$", ylabel=r"time $t$ to an excess of $10^{-6}$")
        axes.legend()
    print(f"figure: {path.absolute()}")
    return verdicts


if __name__ == "__main__":
    main()
