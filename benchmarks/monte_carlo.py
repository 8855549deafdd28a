"""Sampled losses, beside sampling prompts in batches: variance times seconds, throughput, and coverage of intervals.

d = 5, n = 20, three loops, w ~ N(0, I) and covariance I, each measured in a process of its own:

- variance times seconds of loss and gradient of `MonteCarloLoss`, against batches of 20,000 prompts through the literal
  model with `jax.vmap` and `jax.value_and_grad`, at A = 0.4 I and at the optimum;
- the field (the gradient) on two CPU devices, against the least time in which two cores could do its arithmetic
  (XLA's count over the speed of a large product of matrices, measured beside it) and read its draws (their bytes over
  the speed of a sum);
- how often the stated 95% interval of the loss holds the exact value, over 400 keys, for one loop (a light tail).

    python benchmarks/monte_carlo.py
"""

import pathlib
import sys
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # to be run as a file, too
from benchmarks.fixed_covariance import best_of
from benchmarks.measurements import Measurement, measure

D, N, LOOPS = 5, 20, 3
BATCH = 20_000
SAMPLES = 2**17
REPETITIONS = 400


def points() -> tuple[Any, dict[str, Any]]:
    """The task, and the models at which the methods are compared."""
    from flowsim.losses import LoopedLoss
    from flowsim.models import LoopedAttention
    from flowsim.tasks import LinearRegression

    task = LinearRegression(np.eye(D), N, weights="inverse-covariance")
    best = LoopedLoss(task, LOOPS).minimizer
    return task, {"A = 0.4 I": LoopedAttention(0.4 * np.eye(D), loops=LOOPS), "the optimum": best}


def measure_variance(quick: bool) -> list[Measurement]:
    """Variance times seconds of prompts in batches, over that of a sampled loss."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from flowsim.losses import MonteCarloLoss

    task, models = points()
    spell = 0.5 if quick else 5.0

    @eqx.filter_jit
    def batch(model: Any, key: Any) -> tuple[Any, Any]:
        def one(A: Any, key: Any) -> Any:
            prompt, label = task.sample(key)
            return (eqx.tree_at(lambda m: m.A, model, A)(prompt) - label) ** 2

        mean = lambda A: jnp.mean(jax.vmap(one, in_axes=(None, 0))(A, jax.random.split(key, BATCH)))
        return jax.value_and_grad(mean)(model.A)

    @eqx.filter_jit
    def both(loss: Any, model: Any) -> tuple[Any, Any]:
        return loss(model), loss.gradient(model).A

    found = []
    for place, model in models.items():
        loss = MonteCarloLoss(task, samples=SAMPLES).prepared(model)

        jax.block_until_ready((both(loss, model), batch(model, jax.random.key(0))))  # to compile
        ours, _ = best_of(lambda loss=loss, model=model: jax.block_until_ready(both(loss, model)), spell)
        theirs, _ = best_of(lambda model=model: jax.block_until_ready(batch(model, jax.random.key(0))), spell)
        parts = [both(part, model) for part in loss.replicates()]
        batches = [batch(model, jax.random.key(1 + seed)) for seed in range(8 if quick else 64)]
        for what, index in (("loss", 0), ("gradient", 1)):
            spread = [
                float(np.sum(np.var([np.asarray(pair[index]) for pair in pairs], axis=0, ddof=1))) * count
                for pairs, count in ((batches, BATCH), (parts, SAMPLES // 8))
            ]
            ratio = spread[0] * theirs / BATCH / (spread[1] * ours / SAMPLES)
            note = f"variance {spread[0]:.3g} and {spread[1]:.3g} a sample, {1e9 * theirs / BATCH:.0f} ns and"
            note += f" {1e9 * ours / SAMPLES:.0f} ns a sample, method {loss.method}"
            target = 50.0 if place == "A = 0.4 I" else 10.0
            found.append(Measurement(f"{what}, {place}", ratio, "times less", "at least", target, note))
    return found


def measure_throughput(quick: bool) -> list[Measurement]:
    """The time of a gradient on two devices, over what arithmetic and memory allow."""
    import jax

    jax.config.update("jax_num_cpu_devices", 2)
    import equinox as eqx
    import jax.numpy as jnp
    from jax.sharding import AxisType

    from flowsim.losses import MonteCarloLoss
    from flowsim.losses.sampled import blocks

    task, models = points()
    model = models["A = 0.4 I"]
    spell = 0.5 if quick else 5.0
    mesh = jax.make_mesh((2,), ("samples",), axis_types=(AxisType.Auto,))
    loss = MonteCarloLoss(task, samples=SAMPLES, mesh=mesh).prepared(model)
    field = eqx.filter_jit(lambda loss, model: loss.gradient(model).A)
    jax.block_until_ready(field(loss, model))  # to compile
    seconds, _ = best_of(lambda: jax.block_until_ready(field(loss, model)), spell)
    assert loss.estimator is not None
    operations = SAMPLES * blocks._needs(loss.estimator, model).operations
    size = 1500
    square = jnp.ones((size, size))
    product = jax.jit(lambda a: a @ a)
    jax.block_until_ready(product(square))
    arithmetic = operations / (2 * size**3 / best_of(lambda: jax.block_until_ready(product(square)), spell)[0])
    large = jnp.ones(2**25)
    read = jax.jit(jnp.sum)
    jax.block_until_ready(read(large))
    speed = large.nbytes / best_of(lambda: jax.block_until_ready(read(large)), spell)[0]
    memory = sum(leaf.nbytes for leaf in jax.tree.leaves(loss.draws)) / speed
    note = f"{1e9 * seconds / SAMPLES:.0f} ns a sample; arithmetic {1e9 * arithmetic / SAMPLES:.0f} ns "
    note += f"({operations / SAMPLES:.0f} operations at {1e-9 * operations / arithmetic:.0f} GFlop/s), memory "
    note += f"{1e9 * memory / SAMPLES:.0f} ns ({1e-9 * speed:.0f} GB/s)"
    return [Measurement("field on 2 cores", seconds / max(arithmetic, memory), "times the bound", "at most", 3.0, note)]


def measure_coverage(quick: bool) -> list[Measurement]:
    """How often the 95% interval holds the exact loss."""
    import jax

    from flowsim.losses import LoopedLoss, MonteCarloLoss
    from flowsim.models import LoopedAttention

    task, _ = points()
    model = LoopedAttention(0.4 * np.eye(D), loops=1)
    exact = float(LoopedLoss(task, 1)(model))
    repetitions, held, shapes = 40 if quick else REPETITIONS, 0, []
    for seed in range(repetitions):
        loss = MonteCarloLoss(task, samples=2048, key=jax.random.key(seed), method="covariances")
        estimate = loss.estimate(model)
        held += estimate.low <= exact <= estimate.high
        shapes.append(estimate.tail.shape)
    note = f"{held} of {repetitions}; Pareto shape {np.median(shapes):.2f} in the median"
    return [
        Measurement("coverage of the 95% interval", held / repetitions, "", relation, target, note)
        for relation, target in (("at least", 0.92), ("at most", 0.98))
    ]


def main(quick: bool = False) -> list[Measurement]:
    """Measure, print and, unless quick, write ``results/monte_carlo.md`` and ``.json``."""
    steps = (measure_variance, measure_throughput, measure_coverage)
    return measure(steps, quick, "monte_carlo", "Sampled losses", __doc__ or "")


if __name__ == "__main__":
    main()
