"""What gradient descent does on a two-factor linear transformer when its steps are too large to follow the flow.

**Source:** Balasubramanian (Large-step training dynamics of a two-factor linear transformer model), its abstract: on
one prompt the loss is (a b - 1)^2/2. Derived here: a step maps the ellipse a^2 + b^2 - eta a b = 4/eta - eta to itself.

**What it shows:** with larger steps from one start: convergence, convergence after the loss has gone up (a catapult), a
cycle, bounded chaos. The largest step that keeps another start in its ellipse, found by verdicts, is the closed form.

**What would falsify it:** another verdict, or a largest step that is off by more than 2e-6."""

import pathlib

import jax.numpy as jnp
import numpy as np

import flowsim

STEPS = {"converges": 0.375, "catapult": 0.875, "cycle": 1.125, "chaos": 1.875}
CLOSED_FORM = (np.sqrt(2.26**2 + 16 * 0.85) - 2.26) / 1.7  # .85 eta^2 + 2.26 eta = 4 from (1.5, .1)
product = lambda weights: (jnp.prod(weights) - 1) ** 2 / 2


@flowsim.claim("large-steps.inside", "derived here")
def inside(descent):
    r"""$a_k^2 + b_k^2 - \eta a_k b_k \le 4/\eta - \eta$ for all $k$"""
    (a, b), eta = descent.models.T, descent.step_size[0]
    return flowsim.at_most(a**2 + b**2 - eta * a * b, 4 / eta - eta)


@flowsim.claim("large-steps.falls", "the descent lemma, which asks for small steps")
def falls(descent):
    r"""$L(a_{k+1}, b_{k+1}) \le L(a_k, b_k)$ for all $k$"""
    return flowsim.at_most(descent.excess[1:], descent.excess[:-1])


@flowsim.claim("large-steps.learns", "the definition of convergence")
def learns(loss, descent):
    r"""$L(a_{40}, b_{40}) \le 10^{-6}$"""
    return flowsim.at_most(loss.excess(descent.at(40)), 1e-6)


def main(quick: bool = False, out: pathlib.Path | None = None) -> tuple[list[flowsim.Verdicts], list[float]]:
    """Judge, bisect and draw; returns the verdicts and three largest steps. Quick makes no difference."""
    flowsim.setup()
    print("Descending with larger and larger steps ..", flush=True)
    loss, start = flowsim.FunctionLoss(product, excess=product, minimum=0.0), jnp.array([1.25, 1.125])
    verdicts, path = [], pathlib.Path(out or ".", "large_steps.png")
    with flowsim.plots.drawing(path, figsize=(8.0, 3.4)) as figure:
        left, right = figure.subplots(1, 2)
        for name, eta in STEPS.items():
            run = flowsim.gradient_descent(loss, start, eta, 40)
            verdicts.append(flowsim.judge([inside, falls, learns], loss, run))
            print(f"{name}, eta = {eta:g}\n{flowsim.verdict_table(verdicts[-1])}", flush=True)
            left.plot(run.t, jnp.prod(run.models, axis=1), ".-", linewidth=0.7, label=f"{name}, {eta:g}")
        right.plot(*flowsim.gradient_descent(loss, start, eta, 400).models.T, ".", markersize=3, label="chaos")
        angle, turn = np.linspace(0, 2 * np.pi, 300), np.arccos(eta / 2)
        right.plot(*(2 / np.sqrt(eta) * np.cos(angle + side * turn / 2) for side in (1, -1)), "k-", label="ellipse")
        left.set(xlabel="k", ylabel="a b", ylim=(-0.1, 2.6))
        right.set(xlabel="a", ylabel="b")
        for axes in (left, right):
            axes.legend(loc="upper left", ncols=2)
    found = [*flowsim.edge(inside, loss, jnp.array([1.5, 0.1]), 1.0, 2.0, steps=30), CLOSED_FORM]
    print("largest step from (1.5, 0.1): {:.7f} to {:.7f}, in closed form {:.7f}".format(*found))
    print(f"figure: {path.absolute()}")
    return verdicts, found


if __name__ == "__main__":
    main()
