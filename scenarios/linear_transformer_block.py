"""Gradient descent with a learned start, beside linear attention alone, on tasks whose mean is not zero.

**Source:** Zhang, Wu and Bartlett (In-context learning of a linear transformer block), its abstract: a block learns one
step of gradient descent from a start beta, x^T (beta - Gamma X^T (X beta - y)/N), and attention alone has an error that
stays. Derived here: the limits beta* = E w and Gamma* = H Z^-1, Z = E S^2 + (noise^2/N) H, and the constant below.

**What it shows:** from zero the flow tends to (beta*, Gamma*). On the way |grad L|^2 >= 1.98 l (L - min L) for any
beta*, with the product l of the least eigenvalues of H and Z; with 2.02, planted, it is violated. The least loss of
attention that a search finds grows with beta*, and that of the block does not.

**What would falsify it:** another verdict, or attention that needs no block at a beta* other than 0."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import flowsim

H, N, NOISE, SIZES = np.diag([1.0, 0.5, 0.25]), 10, 0.5, (0.0, 1.0, 2.0, 4.0)
Z = H @ H * (1 + 1 / N) + (np.trace(H) + NOISE**2) / N * H
BEST, CONSTANT = H @ np.linalg.inv(Z), np.min(np.diag(H)) * np.min(np.diag(Z))


def excess(model: tuple[jax.Array, jax.Array], mean: np.ndarray) -> jax.Array:
    """L - min L of (beta, Gamma), in terms of the distances to their limits."""
    off, apart, G = model[1] - BEST, jnp.outer(model[0] - mean, model[0] - mean), model[1]
    sandwich = (1 + 1 / N) * H @ apart @ H + jnp.trace(apart @ H) / N * H  # E S apart S
    rest = apart - G @ H @ apart - apart @ H @ G.T + G @ sandwich @ G.T
    return jnp.trace(H @ (off @ Z @ off.T + rest)) / 2


def claims_about(mean: np.ndarray) -> list[flowsim.Claim]:
    """The limit, and the inequality with two constants."""
    equal = lambda value, bound: flowsim.equal(value, jnp.append(mean, BEST)[None], 1.0, allowance=bound)
    said = {"tends to the limits": lambda flow: equal(*flowsim.limit(flow, lambda both: jnp.append(*both)))}
    dominates = lambda c: lambda flow: flowsim.at_least(flow.grad_norm_sq, c * CONSTANT * flow.excess)
    said |= {f"|grad L|^2 >= {c:g} l (L - min L)": dominates(c) for c in (1.98, 2.02)}
    return [flowsim.claim(f"block.{i}", "here", statement=text)(said[text]) for i, text in enumerate(said, 1)]


def main(quick: bool = False, out: pathlib.Path | None = None) -> tuple[list[flowsim.Verdicts], np.ndarray]:
    """Judge, print and draw; returns the verdicts at each mean, and both least losses. Quick makes no difference."""
    flowsim.setup()
    print("Following gradient descent with a learned start ..", flush=True)
    verdicts, least, path = [], [], pathlib.Path(out or ".", "linear_transformer_block.png")
    with flowsim.plots.drawing(path, figsize=(8.0, 3.4)) as figure:
        axes = figure.add_subplot(1, 2, 1, xlabel="t", ylabel="excess", yscale="log", xlim=(-5, 300), ylim=(1e-8, 10))
        for size, mean in zip(SIZES, np.outer(SIZES, np.full(3, 3**-0.5)), strict=True):
            loss = flowsim.FunctionLoss(above := functools.partial(excess, mean=mean), excess=above, minimum=0.0)
            flow = flowsim.gradient_flow(loss, (jnp.zeros(3), jnp.zeros((3, 3))))
            verdicts.append(flowsim.judge(claims_about(mean), loss, flow))
            print(f"|beta*| = {size:g}\n{flowsim.verdict_table(verdicts[-1])}", flush=True)
            task = flowsim.LinearRegression(H, N, label_noise=NOISE, prior_mean=mean)
            alone = flowsim.AttentionLoss(task, flowsim.TokenHeads(jnp.eye(1, 4), jnp.zeros((1, 4, 3))))
            least.append([float(alone.minimum), np.trace(H - H @ BEST @ H) / 2])
            axes.plot(flow.t, flow.excess, label=rf"$|\beta^*|$ = {size:g}")
        further = figure.add_subplot(1, 2, 2, xlabel=r"$|\beta^*|$", ylabel="least loss")
        further.plot(SIZES, least, "o-", label=["attention alone", "the block"])
        _ = axes.legend(), further.legend()
    print(f"figure: {path.absolute()}")
    return verdicts, np.array(least)


if __name__ == "__main__":
    main()
