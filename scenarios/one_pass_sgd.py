"""One-pass SGD on linear attention without sampling: the exact mean of its loss after every step.

**Source:** Wu and others (How many pretraining tasks are needed for in-context learning of linear regression?) for the
model, step sizes that halve log2 K times, and the bound's form, E L - min L <= bias + C (tr H + noise^2) D ln(K)/K with
D = sum_ij min(1, (K eta l_i l'_j/ln K)^2) and the eigenvalues of H and E z z^T.

**What it shows:** the bound holds with C = 1/2 from K = 64 to 16,384; with C = 1/10, planted, it is violated. With
steps of .1 the mean loss passes a million after 300, through rare prompts: that of 1,000 sampled descents is below 10.

**What would falsify it:** another verdict, or a sampled mean at small steps that is not the exact one."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import flowsim

H, NOISE, ETA, STEPS, COUNTS = np.diag([1.0, 0.5, 0.25]), 0.5, 0.04, 300, 2 ** np.arange(6, 15)


def bound(sgd: flowsim.OnePassSGD, C: float) -> flowsim.Claim:
    """The bound at every K; shorter descents end with steps of size 0."""
    k, K, effective = np.arange(COUNTS[-1]), COUNTS[:, None], COUNTS / np.log(COUNTS)
    step_sizes = np.where(k < K, ETA * 0.5 ** np.minimum(k * np.log2(K) // K, 16), 0.0)
    rates = np.outer(np.linalg.eigvalsh(H), np.linalg.eigvalsh(sgd.energy))
    D = np.sum(np.minimum(1, (effective[:, None, None] * ETA * rates) ** 2), axis=(1, 2)) / effective
    after = lambda start: jax.vmap(lambda sizes: sgd.moments(start, sizes))(jnp.asarray(step_sizes))
    last = lambda found: flowsim.at_most(found.excess[:, -1], found.bias[:, -1] + C * (np.trace(H) + NOISE**2) * D)
    return flowsim.claim(f"one-pass.{C:g}", "Wu", statement=f"the bound, C = {C:g}")(lambda start: last(after(start)))


def sampled(sgd: flowsim.OnePassSGD, task: flowsim.LinearRegression, eta: float) -> jax.Array:
    """The mean excess of descents that draw their prompts, after each step."""

    def step(Gamma, key):
        prompt, label = task.sample(key)
        z = prompt.labels @ prompt.inputs / prompt.labels.size
        Gamma -= eta * (prompt.query @ Gamma @ z - label) * jnp.outer(prompt.query, z)
        return Gamma, sgd.excess(Gamma)

    descent = lambda key: jax.lax.scan(step, jnp.zeros((3, 3)), jax.random.split(key, STEPS))[1]
    return jnp.mean(jax.jit(jax.vmap(descent))(jax.random.split(jax.random.key(0), 1000)), axis=0)


def main(quick: bool = False, out: pathlib.Path | None = None) -> tuple[flowsim.Verdicts, dict[float, tuple]]:
    """Judge, print and draw; returns the verdicts and, for each step size, the last exact and sampled excess."""
    flowsim.setup()
    print("Following the moments of one-pass SGD ..", flush=True)
    sgd = flowsim.OnePassSGD(task := flowsim.LinearRegression(H, 10, label_noise=NOISE))
    loss, ends = flowsim.FunctionLoss(sgd, excess=sgd.excess, minimum=sgd.minimum), {}
    flow = flowsim.gradient_flow(loss, jnp.zeros((3, 3)), t1=1.0)
    print(flowsim.verdict_table(verdicts := flowsim.judge([bound(sgd, 0.5), bound(sgd, 0.1)], loss, flow)), flush=True)
    with flowsim.plots.drawing(path := pathlib.Path(out or ".", "one_pass_sgd.png"), figsize=(6.4, 4.0)) as figure:
        axes = figure.add_subplot(xlabel="step", ylabel="mean excess", yscale="log", ylim=(0.05, 1e7))
        for color, eta in zip(["C0", "C1", "C3"], (0.01, 0.04, 0.1), strict=True):
            exact, drawn = sgd.moments(flow.start, np.full(STEPS, eta)).excess[1:], sampled(sgd, task, eta)
            axes.plot(exact, color=color, label=f"step size {eta:g}")
            axes.plot(drawn, ":", color=color)
            ends[eta] = float(exact[-1]), float(drawn[-1])
            print("step size {:g}: {:.3g}, of 1000 sampled descents {:.3g}".format(eta, *ends[eta]), flush=True)
        axes.legend(title="exact; dotted: sampled")
    print(f"figure: {path.absolute()}")
    return verdicts, ends


if __name__ == "__main__":
    main()
