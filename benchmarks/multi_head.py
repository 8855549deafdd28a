"""Heads with a guess: the exact risk and its optima, and flows, beside prompts through the literal model.

d = 10, C = 10, w* = (2, .., 2), y_q = 0, each step in a process of its own: one value and gradient of the exact risk of
11 heads, beside the same of one batch of 2,048 prompts, which the paper trains on; the least risk of 11 heads and of
5 with its weights, at d = 10 and at d = 100; a flow of 11 heads from small random weights to a gradient norm of 1e-8;
and the exact lines of the figures against prompts through the literal model, in standard errors.

    python benchmarks/multi_head.py
"""

import pathlib
import sys
import time
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # to be run as a file, too
from benchmarks.fixed_covariance import best_of
from benchmarks.measurements import Measurement, measure

D, C, BATCH = 10, 10, 2048
PROMPTS = 2**18


def problem(H: int, d: int = D, context: int = C) -> tuple[Any, Any, Any]:
    """The task, heads from small random weights, and their loss."""
    from flowsim import initialization
    from flowsim.losses import MultiHeadLoss
    from flowsim.models import MultiHeadAttention
    from flowsim.tasks import LinearRegression

    task = LinearRegression(np.eye(d), context, prior_mean=2 * np.ones(d))
    start = initialization.heads(0.1, MultiHeadAttention(np.zeros((H, d + 1)), np.zeros((H, d + 1, d + 1))), 0)
    return task, start, MultiHeadLoss(task, start)


def measure_risk(quick: bool) -> list[Measurement]:
    """Value and gradient, exact and of a batch."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    task, start, loss = problem(11)
    spell = 0.5 if quick else 5.0
    exact = eqx.filter_jit(lambda loss, model: jax.value_and_grad(loss)(model))

    @eqx.filter_jit
    def sampled(model: Any, key: Any) -> Any:
        def mean(model: Any) -> Any:
            prompts, labels = jax.vmap(task.sample)(jax.random.split(key, BATCH))
            return jnp.mean((jax.vmap(model)(prompts) - labels) ** 2)

        return jax.value_and_grad(mean)(model)

    jax.block_until_ready((exact(loss, start), sampled(start, jax.random.key(0))))  # to compile
    ours, _ = best_of(lambda: jax.block_until_ready(exact(loss, start)), spell)
    theirs, _ = best_of(lambda: jax.block_until_ready(sampled(start, jax.random.key(0))), spell)
    note = f"a batch of {BATCH} prompts {1e3 * theirs:.2f} ms, {theirs / ours:.0f} times as long"
    return [Measurement("risk and gradient, 11 heads", 1e3 * ours, "ms", "at most", 0.3, note)]


def measure_optima(quick: bool) -> list[Measurement]:
    """The least risk and its weights."""
    import jax

    from flowsim.losses import MultiHeadLoss

    found = []
    for d, context, H, target in ((10, 10, 11, 0.1), (10, 10, 5, 0.1), (100, 100, 101, 10.0), (100, 100, 5, 10.0)):
        task, start, _ = problem(H, d, context)
        seconds, _ = best_of(lambda task=task, start=start: jax.block_until_ready(MultiHeadLoss(task, start)), 0.5)
        loss = MultiHeadLoss(task, start)
        size = max(float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(loss.gradient(loss.minimizer)))
        note = f"{loss.minimum_kind} minimum {float(loss.minimum):.6f}, largest derivative there {size:.0e}"
        found.append(Measurement(f"optimum, d = {d}, {H} heads", seconds, "s", "at most", target, note))
    return found


def measure_flow(quick: bool) -> list[Measurement]:
    """A flow of 11 heads, compilation included."""
    import flowsim

    _, start, loss = problem(11)
    begin = time.perf_counter()
    stop = flowsim.Stop(excess=0.0, grad_norm=1e-12)
    flow = flowsim.gradient_flow(loss, start, rtol=1e-8, stop=stop)
    seconds = time.perf_counter() - begin
    norm = float(flow.grad_norm_sq[-1]) ** 0.5
    note = f"gradient norm {norm:.1e}, excess {float(flow.excess[-1]):.1e}, {flow.certificates.steps} steps"
    seconds = seconds if norm <= 1e-8 else float("inf")
    return [Measurement("flow of 11 heads to 1e-8", seconds, "s", "at most", 120.0, note)]


def measure_lines(quick: bool) -> list[Measurement]:
    """Exact lines of the figures, at the least weights, against prompts."""
    import jax

    from flowsim.losses import MultiHeadLoss
    from flowsim.models import GradientDescentStep, MultiHeadAttention

    task, _, loss = problem(11)
    heads = lambda H, **options: MultiHeadAttention(np.zeros((H, D + 1)), np.zeros((H, D + 1, D + 1)), **options)
    models: dict[str, Any] = {f"{H} heads": MultiHeadLoss(task, heads(H)).minimizer for H in (1, 5, 10, 11)}
    models["a linear guess and a bias"] = MultiHeadLoss(task, heads(11, w=np.ones(D), bias=2.0)).minimizer
    models["a trained guess"] = MultiHeadLoss(task, heads(1, trainable=True)).minimizer
    models["gradient descent"] = GradientDescentStep(loss.risk.step_size, 2 * np.ones(D))
    scores = {}
    count = PROMPTS // 8 if quick else PROMPTS
    for index, (name, model) in enumerate(models.items()):
        error = lambda key, model=model: (lambda prompt, y: (model(prompt) - y) ** 2)(*task.sample(key))
        keys = jax.random.split(jax.random.key(index), count)
        errors = np.asarray(jax.jit(lambda keys, error=error: jax.lax.map(error, keys, batch_size=2**12))(keys))
        scores[name] = (errors.mean() - float(loss.risk(model))) / (errors.std() / np.sqrt(count))
    note = ", ".join(f"{name} {score:+.1f}" for name, score in scores.items())
    largest = max(abs(score) for score in scores.values())
    return [Measurement("exact lines, against prompts", largest, "standard errors", "at most", 3.0, note)]


def main(quick: bool = False) -> list[Measurement]:
    """Measure, print and, unless quick, write ``results/multi_head.md`` and ``.json``."""
    steps = (measure_risk, measure_optima, measure_flow, measure_lines)
    return measure(steps, quick, "multi_head", "Heads with a guess", __doc__ or "")


if __name__ == "__main__":
    main()
