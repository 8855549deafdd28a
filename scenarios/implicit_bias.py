"""The least l1 norm in the limit of small starts: a diagonal network, with the power at which it is approached.

**Source:** from u = v = s, beta = u*u - v*v tends to the interpolator of least hyperbolic entropy (Woodworth and
others, Kernel and rich regimes in overparametrized models): beta = 2 s^2 sinh(2 eta), eta in the row space. Derived
here: with the dual solution lambda of least |beta|_1, beta_j is of the order of s^(2 - 2 |x_j^T lambda|) off the
support, so that |beta(infinity)|_1 - min |beta|_1 = Theta(s^p), p = 2 - 2 max_j |x_j^T lambda|.

**What it shows:** p, from limits that are proved to 1e-11 at starts from 1e-2 to 1e-14; powers that are .1 off fail.

**What would falsify it:** another verdict."""

import pathlib

import jax.numpy as jnp
import numpy as np
from scipy.optimize import linprog

import flowsim

SCALES, OFF, RNG = [10.0**-k for k in range(2, 16, 2)], np.array([0.0, 0.1, -0.1]), np.random.default_rng(10)
X, Y = RNG.standard_normal((5, 20)) / np.sqrt(5), RNG.standard_normal(5)
beta = lambda net: net[0] ** 2 - net[1] ** 2  # of the weights (u, v)


def power_of_theory() -> float:
    """p, from the interpolator of least l1 norm and the dual solution on its support."""
    split = linprog(np.ones(40), A_eq=np.hstack([X, -X]), b_eq=Y).x
    signs = np.sign(np.round(split[:20] - split[20:], 9))
    slopes = X.T @ np.linalg.solve(X[:, signs != 0].T, signs[signs != 0])
    return 2 - 2 * np.max(np.abs(slopes[signs == 0]))


def main(quick: bool = False, out: pathlib.Path | None = None) -> flowsim.Verdicts:
    """Judge, print and draw; returns the verdicts. Quick makes no difference."""
    flowsim.setup()
    print("Following flows from ever smaller starts ..", flush=True)
    loss = flowsim.FunctionLoss(lambda net: 0.5 * jnp.sum((X @ beta(net) - Y) ** 2), minimum=0.0)
    make = lambda scale: (loss, (jnp.full(20, scale), jnp.full(20, scale)))
    family = flowsim.Family(make, {"scale": SCALES}, rtol=1e-10, stop=flowsim.Stop(excess=1e-26, grad_norm=1e-14))
    theory, (least, error) = power_of_theory(), flowsim.least_norm(X, Y)

    def claim(power: float) -> flowsim.Claim:
        @flowsim.claim(f"l1.power-{power:.3f}", "derived here", statement=f"|beta|_1 - min = Theta(s^{power:.4f})")
        def sides(flow):
            norm, allowance = flowsim.limit(flow, lambda net: jnp.sum(jnp.abs(beta(net))))
            return flowsim.power_law(norm - least, power, within=0.05, allowance=allowance + error)

        return sides

    print(flowsim.verdict_table(verdicts := family.judge(map(claim, theory + OFF), progress=True)))
    print(verdicts[0].note)
    path, found = pathlib.Path(out or ".", "implicit_bias.png"), family.measured(claim(theory))
    with flowsim.plots.drawing(path, figsize=(5.6, 3.8)) as figure:
        axes = figure.add_subplot(xlabel="scale of the start", ylabel=r"$|\beta(\infty)|_1 - \min |\beta|_1$")
        axes.loglog(SCALES, found.values, "o", label="limit of the flow")
        slope = found.values[-1] * np.divide(SCALES, SCALES[-1]) ** theory
        axes.loglog(SCALES, slope, "--", label=f"$s^{{{theory:.3f}}}$, from the dual program")
        axes.legend()
    print(f"figure: {path.absolute()}")
    return verdicts


if __name__ == "__main__":
    main()
