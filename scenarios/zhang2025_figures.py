"""Training on 5,000 sampled sequences, as linattn-icl does it, beside the exact flow of the population loss.

**Source:** zhang2025, Figures 1, 3 and 4 (arXiv 2501.16265), and its code, github yedizhang/linattn-icl: d = 4, N = 31,
eight heads, merged ones from normal weights of 1e-6 with step 0.001, separate ones from 0.01 over the root of a layer's
size with step 0.02. Its layers do not divide by N: weights and steps are ours times powers of N.

**What it shows:** one drop for merged keys and queries, up to four for separate ones, near the levels (19).

**What would falsify it:** a training loss that the flow's does not follow, or a plateau that is at no level of (19).
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import flowsim

VALUES, N, H, SEQUENCES = np.array([0.4, 0.3, 0.2, 0.1]), 31, 8, 5000
LEVELS = 1 - np.cumsum([0.0, *(VALUES / (1 + (1 + 1 / VALUES) / N))])


def empirical_loss(task: flowsim.LinearRegression) -> flowsim.FunctionLoss:
    """Half the mean squared error on the sequences, in z = beta x_q^T."""
    prompts, y = jax.vmap(task.sample)(jax.random.split(jax.random.key(10), SEQUENCES))
    z = jnp.einsum("pn,pni,pj->pij", prompts.labels, prompts.inputs, prompts.query).reshape(SEQUENCES, 16) / N
    of_readout = lambda readout: jnp.mean((y - z @ readout) ** 2) / 2
    return flowsim.FunctionLoss(lambda heads: of_readout(heads.readout.ravel()))


def starts() -> dict[str, tuple]:
    """The start, the step size and the number of steps of each configuration, in our units."""
    merged, drawn = flowsim.MergedHeads(np.zeros(H), np.zeros((H, 4, 4))), flowsim.initialization.linear_heads
    found: dict[str, tuple] = {"merged": (drawn(1e-6 * N**0.5, merged, 0), 0.002 * N, 6000)}
    for R in (1, 2):
        like = flowsim.SeparateHeads(np.zeros(H), np.zeros((H, R, 4)), np.zeros((H, R, 4)))
        value, key = (0.01 * N ** (1 / 3) / size**0.5 for size in (25 * H, 5 * H * R))
        start = drawn(key, like, 0, {"v": value})
        found[f"separate, rank {R}"] = (start, 2 * 0.02 * N ** (2 / 3), 100_000)
    return found


def main(quick: bool = False, out: pathlib.Path | None = None) -> dict[str, tuple]:
    """Train, integrate and draw; returns the times of half of all that is lost. Quick makes no difference."""
    flowsim.setup()
    print("Training on 5,000 sequences, and following the flows beside it ..", flush=True)
    task = flowsim.LinearRegression(np.diag(VALUES), N)
    found, path, empirical = {}, pathlib.Path(out or ".", "zhang2025_figures.png"), empirical_loss(task)
    half = lambda run: float(run.t[np.argmax(run.loss < (LEVELS[0] + LEVELS[-1]) / 4)])
    with flowsim.plots.drawing(path, figsize=(12.0, 3.4)) as figure:
        for place, (name, (start, step, count)) in enumerate(starts().items()):
            trained = flowsim.gradient_descent(empirical, start, step, count, at=np.geomspace(1, count, 200))
            flow = flowsim.gradient_flow(flowsim.AttentionLoss(task, start), start, t1=step * count)
            found[name] = (step * half(trained), half(flow))
            print(f"{name}: half is lost at t = {found[name][0]:.0f} in training, {found[name][1]:.0f} in the flow")
            axes = figure.add_subplot(1, 3, place + 1, title=name, xlabel="steps of training", ylabel="loss")
            axes.hlines(LEVELS, count / 300, count, "0.7", "--", lw=0.8)
            for label, run, unit in (("5,000 sequences", trained, 1.0), ("exact flow", flow, step)):
                axes.semilogx(run.t[1:] / unit, 2 * run.loss[1:], label=label)
            axes.set(xlim=(count / 300, count))
            axes.legend()
    print(f"figure: {path.absolute()}")
    return found


if __name__ == "__main__":
    main()
