"""Double descent in context: what linear attention learns from M prompts, by its error on new ones.

**Source:** Lu, Letey, Zavatone-Veth, Maiti and Pehlevan (Asymptotic theory of in-context learning by linear attention)
for the model, whose prediction is linear in its d (d+1) weights Theta, and its ridge regression.

**What it shows:** from zero the flow tends to the solution of least norm, or with a ridge to that of ridge regression,
at each of 30 numbers of prompts and ridges. Its exact error on new prompts falls, peaks where M = d (d+1) and falls
again; a ridge removes the peak.

**What would falsify it:** another verdict, a peak elsewhere, or one with the ridge."""

import pathlib

import jax.numpy as jnp
import numpy as np

import flowsim

D, N, NOISE, RIDGES = 8, 32, 0.5, {"no ridge": 0.0, "ridge 0.3": 0.3}
PROMPTS = [9, 18, 27, 36, 45, 54, 63, 68, 72, 76, 81, 108, 144, 216, 432]  # as many tasks, with one prompt each
STRICT = flowsim.Stop(excess=1e-26, grad_norm=1e-14)


def claim(factor: float) -> flowsim.Claim:
    """That the flow tends to a multiple of the least-squares solution of least norm."""

    @flowsim.claim(f"double-descent.{factor:g}", "derived here", statement=f"Theta(t) -> {factor:g} Theta*")
    def sides(loss, flow):
        value, allowance = flowsim.limit(flow, lambda Theta: Theta)
        expected, size = factor * loss.least_model()[None], jnp.max(jnp.abs(loss.least_model()))
        return flowsim.equal(value, expected, size, allowance=allowance + loss.rounding)

    return sides


def main(quick: bool = False, out: pathlib.Path | None = None) -> dict[str, tuple[flowsim.Verdicts, np.ndarray]]:
    """Judge, print and draw; returns verdicts and errors without and with a ridge. Quick makes no difference."""
    flowsim.setup()
    print("Following linear attention on drawn prompts ..", flush=True)
    task, zero = flowsim.LinearRegression(np.eye(D), N, label_noise=NOISE), jnp.zeros((D + 1, D))
    population = flowsim.EmpiricalLoss(task, 1, 1).population  # the same whatever was drawn
    found, path = {}, pathlib.Path(out or ".", "double_descent.png")
    with flowsim.plots.drawing(path, figsize=(6.4, 4.0)) as figure:
        axes = figure.add_subplot(xlabel="prompts M", ylabel="error on new prompts", xscale="log", yscale="log")
        for name, ridge in RIDGES.items():
            make = lambda M, ridge=ridge: (flowsim.EmpiricalLoss(task, M, 1, ridge=ridge), zero)
            family = flowsim.Family(make, {"M": PROMPTS}, stop=STRICT)
            print(name, flowsim.verdict_table(verdicts := family.judge(claim(1))), sep="\n")
            ends = [family.evidence(place).trajectory.end for place in range(len(PROMPTS))]
            errors = np.array([population(Theta) for Theta in ends])
            found[name] = verdicts, errors
            axes.plot(PROMPTS, errors, "o-", label=name)
            print(*(f"M = {M}: {error:.3g}" for M, error in zip(PROMPTS, errors, strict=True)), sep=", ", flush=True)
        heads = flowsim.TokenHeads(jnp.eye(1, D + 1, D), zero[None])
        axes.axhline(float(population(zero)), color="gray", ls=":", label=r"$\Theta = 0$")
        axes.axhline(
            float(flowsim.AttentionLoss(task, heads).minimum) + NOISE**2 / 2, color="k", ls="--", label="least"
        )
        axes.axvline(D * (D + 1), color="gray", lw=0.8, label="M = d (d + 1)")
        axes.legend()
    print(f"figure: {path.absolute()}")
    return found


if __name__ == "__main__":
    main()
