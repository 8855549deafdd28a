"""Softmax attention over three orthonormal features: its loss is a finite sum over counts, and so exact.

**Source:** Huang, Cheng and Liang (In-context convergence of transformers). A query with feature v_k scores A_k for its
own feature and B_kn for others. As sum_j attn_j <w, x_j> is linear in w ~ N(0, I), L = E |sum_j attn_j x_j - x_q|^2/2.

**What it shows:** on prompts of 12 tokens that hold the query's feature A_k grows, L <= 2.5/t, and no more than
15/sqrt(t) of the attention goes to other features. |B_kn| <= 2 A_k/K for equal features; for unequal ones it is
violated, as queries with a rare feature must first unlearn the common one. So is L <= 0.5/t, planted.

**What would falsify it:** another verdict."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import flowsim

N, K, LAWS = 12, 3, {"equal features": (1 / 3, 1 / 3, 1 / 3), "unequal features": (0.7, 0.2, 0.1)}
A = lambda Q: jnp.diagonal(Q, axis1=1, axis2=2)[:, None]  # at each time, in each column the query's own score
each = lambda loss, Q: jnp.sum(jax.vmap(lambda prompt: attention(Q, prompt))(loss.prompts) * loss.targets, axis=1)
missed = lambda loss, flow: 1 - jnp.min(jax.vmap(lambda Q: each(loss, Q))(flow.models), axis=1)  # in any prompt
SIDES = {
    "d A_k/dt > 0": lambda flow: flowsim.at_least(A(flow.velocity), 0.0, size=A(flow.velocity)),
    "|B_kn| <= 2 A_k/K": lambda flow: flowsim.at_most((1 - np.eye(K))[None] * abs(flow.models), 2 / K * A(flow.models)),
    "L <= 2.5/t": lambda flow: flowsim.at_most(flow.t * flow.loss, 2.5),
    "L <= 0.5/t": lambda flow: flowsim.at_most(flow.t * flow.loss, 0.5),
    "1 - attention <= 15/sqrt(t)": lambda loss, flow: flowsim.at_most(jnp.sqrt(flow.t) * missed(loss, flow), 15.0),
}


def attention(Q: jax.Array, prompt: tuple[jax.Array, jax.Array]) -> jax.Array:
    """The attention to each feature, from the counts and the query, for scores (feature, query)."""
    weights = prompt[0] * jnp.exp(Q @ prompt[1])
    return weights / jnp.sum(weights)


def loss_of(law: tuple[float, ...]) -> flowsim.FiniteLoss:
    """The loss over all counts that hold the feature of the query."""
    counts, chances = flowsim.multinomial_outcomes(N, law)
    queries, held = np.tile(np.eye(K), (len(counts), 1)), (counts > 0).ravel()
    chances = np.outer(chances, law).ravel()[held]
    prompts, chances = (np.repeat(1.0 * counts, K, axis=0)[held], queries[held]), chances / np.sum(chances)
    return flowsim.FiniteLoss(prompts, queries[held], chances, predict=attention, realizable=True)


def main(quick: bool = False, out: pathlib.Path | None = None) -> dict[str, flowsim.Verdicts]:
    """Judge, print and draw; returns the verdicts of both laws. Quick makes no difference."""
    flowsim.setup()
    print("Following softmax attention over three features ..", flush=True)
    claims = [flowsim.claim(f"features.{i}", "Huang", statement=text)(SIDES[text]) for i, text in enumerate(SIDES, 1)]
    verdicts, path = {}, pathlib.Path(out or ".", "softmax_finite_features.png")
    with flowsim.plots.drawing(path, figsize=(8.0, 3.4)) as figure:
        for place, (name, law) in enumerate(LAWS.items(), 1):
            flow = flowsim.gradient_flow(loss := loss_of(law), jnp.zeros((K, K)), t1=1e4)
            verdicts[name] = flowsim.judge(claims, loss, flow, progress=True)
            print(f"{name}, {loss.probabilities.size} prompts\n{flowsim.verdict_table(verdicts[name])}", flush=True)
            axes = figure.add_subplot(1, 2, place, title=name, xlabel="t", xscale="log", ylabel="$A_k$, $B_{kn}$")
            for k, p in enumerate(law):
                axes.plot(flow.t[1:], flow.models[1:, :, k], ":", color=f"C{k}")
                axes.plot(flow.t[1:], flow.models[1:, k, k], color=f"C{k}", label=f"k = {k + 1}, p = {p:.2f}")
            axes.legend()
    print(*[f"{i}: {text}" for i, text in enumerate(SIDES, 1)], f"figure: {path.absolute()}", sep="\n")
    return verdicts


if __name__ == "__main__":
    main()
