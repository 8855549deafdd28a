"""Beyond the edge of stability gradient descent follows the central flow, not the gradient flow.

**Source:** the central flow of Cohen and others (Understanding optimization in deep learning with central flows), here
for L = y x^2/2 + eps (y - S)^2/2, whose sharpness y grows along the flow up to S: with one sharp direction it is the
gradient flow on y <= 2/eta. Derived here: the sum of x^2 over the steps follows from that of y.

**What it shows:** the flow ends at sharpness S, above 2/eta. The mean of y over the steps of descent differs from that
of the central flow, min(y(t), 2/eta), by at most 50/(k + 1), and from that of the flow by more: x oscillates, with a
mean square of 2 eps (S - 2/eta) in the end, and holds y back.

**What would falsify it:** another verdict."""

import pathlib

import jax.numpy as jnp
import numpy as np

import flowsim

RATE, SHARPEST, FIRST, ETA, STEPS = 0.0625, 6.0, 4.0, 0.375, 1000
toy = lambda weights: weights[1] * weights[0] ** 2 / 2 + RATE * (weights[1] - SHARPEST) ** 2 / 2
# The sharpness of the gradient flow while x = 0, and of the central flow.
flowing = lambda t: SHARPEST - (SHARPEST - FIRST) * jnp.exp(-RATE * t)
central = lambda t: jnp.minimum(flowing(t), 2 / ETA)


@flowsim.claim("central-flow.central", "the central flow")
def follows_central(descent):
    r"""$|\sum_{j \le k} (y_j - c(\eta j))| \le 50$ for all $k$, with the central flow $c$"""
    return flowsim.at_most(jnp.abs(jnp.cumsum(descent.models[:, 1] - central(ETA * descent.t))), 50.0)


@flowsim.claim("central-flow.gradient", "the gradient flow")
def follows_flow(descent):
    r"""$|\sum_{j \le k} (y_j - f(\eta j))| \le 50$ for all $k$, with the gradient flow $f$"""
    return flowsim.at_most(jnp.abs(jnp.cumsum(descent.models[:, 1] - flowing(ETA * descent.t))), 50.0)


@flowsim.claim("central-flow.oscillation", "derived here")
def oscillation(descent):
    r"""$\sum_{j<k} x_j^2 = 2 \epsilon \sum_{j<k} (S - y_j) - 2 (y_k - y_0)/\eta$"""
    x, y = descent.models.T
    left, right = jnp.cumsum(x**2)[:-1], 2 * RATE * jnp.cumsum(SHARPEST - y)[:-1] - 2 * (y[1:] - y[0]) / ETA
    return flowsim.equal(left, right, 2 * RATE * SHARPEST * descent.t[1:] + 2 * SHARPEST / ETA)


def main(quick: bool = False, out: pathlib.Path | None = None) -> flowsim.Verdicts:
    """Descend, judge and draw; returns the verdicts. Quick makes no difference."""
    flowsim.setup()
    print("Descending beyond the edge of stability ..", flush=True)
    loss, start = flowsim.FunctionLoss(toy), jnp.array([0.0625, FIRST])
    run, flow = flowsim.gradient_descent(loss, start, ETA, STEPS), flowsim.gradient_flow(loss, start, t1=ETA * STEPS)
    verdicts = flowsim.judge([follows_central, follows_flow, oscillation], loss, run)
    print(flowsim.verdict_table(verdicts))
    path = pathlib.Path(out or ".", "central_flow.png")
    with flowsim.plots.drawing(path, figsize=(8.0, 3.4)) as figure:
        axes = figure.add_subplot(xlabel=r"t, or $\eta$ times k", ylabel="sharpness y")
        axes.plot(ETA * run.t, run.models[:, 1], linewidth=0.7, label="descent")
        axes.plot(flow.t, flow.models[:, 1], "k--", label="flow")
        axes.plot(t := np.linspace(0.0, ETA * STEPS, 500), central(t), "k-", label="central flow")
        axes.legend()
    print(f"figure: {path.absolute()}")
    return verdicts


if __name__ == "__main__":
    main()
