"""A trainable guess makes one head one step of gradient descent: in risk, predictions, derivatives and their angle.

**Source:** xie2025 (The initialization determines whether in-context learning is gradient descent), Figure 5, section
5.2, appendix C.2, Theorem 4: d = 10, C = 10, w* = (2, .., 2).

**What it shows:** the exact flow of y_q-LSA passes plateaus and ends at the risk 5.238 of gradient descent from w* with
its best step, C/(C+d+1). The distance of the predictions and of their derivatives in x_q (one number, as both are
linear in x_q) goes to 0 and their cosine to 1, exactly over all prompts and on drawn ones.

**What would falsify it:** a flow that ends elsewhere, a cosine below 1 at the end, or drawn prompts that say otherwise.
"""

import pathlib

import jax
import numpy as np

import flowsim
import flowsim.tasks
from flowsim.papers.xie2025.section_5 import alignment


def main(quick: bool = False, out: pathlib.Path | None = None) -> tuple:
    """Integrate and draw; returns the loss, the flow, and (T, 2) exact and drawn cosines. Quick: d = 3, C = 5."""
    flowsim.setup()
    print("Following the flow of one head with a trainable guess ..", flush=True)
    d, C = (3, 5) if quick else (10, 10)
    task = flowsim.LinearRegression(np.eye(d), C, prior_mean=2 * np.ones(d))
    like = flowsim.MultiHeadAttention(np.zeros((1, d + 1)), np.zeros((1, d + 1, d + 1)), trainable=True)
    start = flowsim.initialization.heads(0.1, like, seed=0)
    loss = flowsim.MultiHeadLoss(task, start)
    stop = flowsim.Stop(excess=1e-8)
    per_decade = 4 if quick else 8
    flow = flowsim.gradient_flow(loss, start, rtol=1e-6, solver="explicit", stop=stop, points_per_decade=per_decade)
    apart, cosines, size = jax.jit(jax.vmap(lambda model: alignment(loss.risk, model)))(flow.models)

    descent = flowsim.GradientDescentStep(loss.risk.step_size, 2 * np.ones(d))
    prompts = jax.vmap(lambda key: task.sample(key)[0])(jax.random.split(jax.random.key(0), 2000))
    slopes = jax.jit(jax.vmap(jax.grad(lambda query, model, prompt: model(asked(prompt, query))), (0, None, 0)))
    theirs = np.asarray(slopes(prompts.query, descent, prompts))
    drawn = []
    for index in range(flow.t.size):
        ours = np.asarray(slopes(prompts.query, flow.row(index), prompts))
        drawn.append(np.sum(ours * theirs) / np.sqrt(np.sum(ours**2) * np.sum(theirs**2)))
    path = pathlib.Path(out or ".", "xie2025_figure_5.png")
    with flowsim.plots.drawing(path, figsize=(8.0, 3.3)) as figure:
        left, right = figure.subplots(1, 2)
        left.loglog(flow.t[1:], flow.loss[1:], label="trainable guess, one head")
        left.axhline(float(loss.risk.descent_risk), color="tab:red", ls="--", label="gradient descent from $w_*$")
        left.set(xlabel="time", ylabel="risk")
        left.legend()
        right.loglog(flow.t[1:], np.sqrt(apart / size)[1:], label="distance to gradient descent, relative")
        right.loglog(flow.t[1:], 1 - cosines[1:], label="1 - cosine")
        right.loglog(flow.t[1:], 1 - np.asarray(drawn)[1:], "k.", ms=3, label="1 - cosine, 2000 prompts")
        right.set(xlabel="time", ylim=(1e-8, 4))
        right.legend()
    print(f"risk at the end {flow.loss[-1]:.8f}, of gradient descent {loss.risk.descent_risk:.8f}")
    print(f"cosine at the end: one less {1 - cosines[-1]:.1e}", f"figure: {path.absolute()}", sep="\n")
    return loss, flow, np.stack([np.asarray(cosines), np.asarray(drawn)], axis=1)


def asked(prompt: flowsim.tasks.Prompt, query: jax.Array) -> flowsim.tasks.Prompt:
    """The prompt with another query."""
    return flowsim.tasks.Prompt(prompt.inputs, prompt.labels, query)


if __name__ == "__main__":
    main()
