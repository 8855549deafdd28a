"""Exact losses of deep linear transformers, beside sampling: build times, cost of an evaluation, and accuracy.

The loss of loops or layers is a polynomial in traces, built once and evaluated by arrays. Measured here, each in a
process of its own: the time to build it; one value and gradient beside the matrix products whose traces it needs,
alone; the time in which sampling reaches a relative standard error of 1e-3 of loss and gradient (d = 5, n = 20, three
loops), with prompts in batches and with sample covariances whose weights and queries are averaged exactly (at the
optimum the error of the gradient is relative to the gradient at A = 0); and the experiment of ahn2023, section 5.3
(d = 5, n = 20, three layers, five seeds) to a gradient norm of 1e-8.

    python benchmarks/deep_layers.py            # the whole table, some ten minutes
    python -c "from benchmarks.deep_layers import main; main(quick=True)"    # less sampling, one seed
"""

import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # to be run as a file, too
from benchmarks.fixed_covariance import best_of
from benchmarks.measurements import Measurement, measure

D, N, LOOPS = 5, 20, 3
ACCURACY = 1e-3
BATCH = 20_000
GRAD_NORM = 1e-8


def measure_build(quick: bool) -> list[Measurement]:
    """The time to build a polynomial, expand it about its centre and make its arrays."""
    from flowsim.losses.deep.residual_energy import ResidualEnergy, layer_terms, loop_terms

    found = []
    for name, terms, centres, target in (
        ("build, 5 loops", lambda: loop_terms(5, True, False), [0.5], 0.3),
        ("build, 3 layers", lambda: layer_terms(3, True, False), [0.3, 0.5, 0.9], 0.1),
    ):
        ResidualEnergy(terms(), float(N), D, centres)  # what JAX does only once
        times = []
        for _ in range(5):
            loop_terms.cache_clear()
            layer_terms.cache_clear()
            begin = time.perf_counter()
            polynomial = terms()
            ResidualEnergy(polynomial, float(N), D, centres)
            times.append(time.perf_counter() - begin)
        found.append(Measurement(name, min(times), "s", "at most", target, f"{len(polynomial.terms)} terms"))
    return found


def measure_evaluation(quick: bool) -> list[Measurement]:
    """One value and gradient, beside the products of matrices alone."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from flowsim.losses import LoopedLoss, MultiLayerLoss
    from flowsim.losses.deep.residual_energy import layer_terms
    from flowsim.models import LoopedAttention, MultiLayerAttention
    from flowsim.tasks import LinearRegression

    def matrices(count: int, d: int) -> np.ndarray:
        noise = 0.02 * np.random.default_rng(0).standard_normal((count, d, d))
        return 0.3 * np.eye(d)[None] + (noise + np.swapaxes(noise, 1, 2)) / 2

    def products(words: list[str], letters: dict[str, Any]):
        """The traces of words, each product from the one that is a letter shorter, which is made once."""
        known = dict(letters)
        for word in words:
            for length in range(2, len(word) + 1):
                known.setdefault(word[:length], known[word[: length - 1]] @ letters[word[length - 1]])
        return jnp.stack([jnp.trace(known[word]) for word in words])

    def ratio(what: str, loss: Any, model: Any, words: list[str], target: float) -> Measurement:
        names = "ABCD"
        alone = jax.jit(lambda A: products(words, dict(zip(names, A.reshape(-1, *A.shape[-2:]), strict=False))))
        at = lambda A: eqx.tree_at(lambda model: model.A, model, A)
        # Called as the products are: `eqx.filter_jit` takes a hundred microseconds to look at its arguments.
        both = jax.jit(lambda A: (loss(at(A)), loss.gradient(at(A)).A))
        base = microseconds(lambda: alone(model.A))
        value = microseconds(lambda: both(model.A))
        note = f"{value:.0f} us, the products alone {base:.0f} us"
        return Measurement(what, value / base, "times the products alone", "at most", target, note)

    def microseconds(call: Callable[[], Any]) -> float:
        jax.block_until_ready(call())

        def many():
            for _ in range(50):
                last = call()
            return jax.block_until_ready(last)

        return 1e6 * best_of(many, 3.0)[0] / 50

    looped = LinearRegression(np.eye(64), N, weights="inverse-covariance")
    model = LoopedAttention(matrices(1, 64)[0], loops=3)
    untied = LinearRegression(np.eye(32), N, weights="inverse-covariance")
    words = sorted({word for _, monomial in layer_terms(3, True, False).terms for word in monomial if word})
    powers = ["A" * power for power in range(1, 7)]
    return [
        ratio("3 loops, d = 64", LoopedLoss(looped, 3), model, powers, 3.0),
        ratio("3 layers, d = 32", MultiLayerLoss(untied, 3), MultiLayerAttention(matrices(3, 32)), words, 5.0),
    ]


def measure_sampling(quick: bool) -> list[Measurement]:
    """The time of sampling to a relative standard error of 1e-3, over that of one exact value and gradient."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from flowsim.losses import LoopedLoss
    from flowsim.models import LoopedAttention
    from flowsim.tasks import LinearRegression

    task = LinearRegression(np.eye(D), N, weights="inverse-covariance")
    loss = LoopedLoss(task, LOOPS)
    both = eqx.filter_jit(lambda model: (loss(model), loss.gradient(model).A))

    def of_prompts(A, key):
        def one(A, key):
            prompt, label = task.sample(key)
            return (LoopedAttention(A, loops=LOOPS)(prompt) - label) ** 2

        return jax.vmap(jax.value_and_grad(one), in_axes=(None, 0))(A, jax.random.split(key, BATCH))

    def of_covariances(A, key):
        def one(A, key):
            z = jax.random.normal(key, (N, D))
            return jnp.sum(jnp.linalg.matrix_power(jnp.eye(D) - z.T @ z / N @ A, LOOPS) ** 2)

        values, slopes = jax.vmap(jax.value_and_grad(one), in_axes=(None, 0))(A, jax.random.split(key, BATCH))
        return values, (slopes + jnp.swapaxes(slopes, 1, 2)) / 2

    found = []
    points = {"A = 0.4 I": 0.4 * np.eye(D), "the optimum": np.asarray(loss.minimizer.A)}
    for place, A in points.items():
        model = LoopedAttention(A, loops=LOOPS)
        jax.block_until_ready(both(model))
        exact_seconds = best_of(lambda model=model: jax.block_until_ready(both(model)), 2.0)[0]
        # The gradient is zero at the optimum: its error is measured by its size where the flow begins.
        size = float(jnp.linalg.norm(both(LoopedAttention(0 * A, loops=LOOPS))[1]))
        size = max(size if place == "the optimum" else 0.0, float(jnp.linalg.norm(both(model)[1])))
        value = float(both(model)[0])
        for method, sampler, target in (
            ("prompts", of_prompts, 1e4),
            ("covariances", of_covariances, 1e3),
        ):
            seconds, count, error = _sampled(sampler, A, value, size, 2.0 if quick else 120.0)
            note = f"{seconds:.3g} s for {count:.3g} {method}; exact {1e6 * exact_seconds:.0f} us"
            if error > ACCURACY:
                seconds *= (error / ACCURACY) ** 2
                note += f"; stopped at {error:.1e} and extrapolated by 1/sqrt(count)"
            found.append(
                Measurement(f"sampled {method}, {place}", seconds / exact_seconds, "times", "at least", target, note)
            )
    return found


def _sampled(sampler: Callable, A: np.ndarray, value: float, size: float, limit: float) -> tuple[float, float, float]:
    """Seconds, draws and relative standard error of loss and gradient, whichever is larger, at the end."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def sums(A, key):
        values, slopes = sampler(A, key)
        return jnp.sum(values**2), jnp.sum(values), jnp.sum(slopes**2, axis=0), jnp.sum(slopes, axis=0)

    point = jnp.asarray(A)
    jax.block_until_ready(sums(point, jax.random.key(0)))
    begin, total, count, error = time.perf_counter(), None, 0, np.inf
    while error > ACCURACY and time.perf_counter() - begin < limit:
        part = jax.device_get(sums(point, jax.random.key(1 + count)))
        total = part if total is None else tuple(a + b for a, b in zip(total, part, strict=True))
        count += BATCH
        second, first, slope_second, slope_first = (np.asarray(x) / count for x in total)
        loss_error = np.sqrt((second - first**2) / count) / value
        slope_error = np.sqrt(np.sum(slope_second - slope_first**2) / count) / size
        error = max(float(loss_error), float(slope_error))
    return time.perf_counter() - begin, float(count), error


def measure_experiment(quick: bool) -> list[Measurement]:
    """ahn2023, section 5.3: the flow of three layers from Gaussian starts, in symmetric matrices."""
    import jax

    from flowsim.flow.gradient_flow import Stop, gradient_flow
    from flowsim.losses import MultiLayerLoss
    from flowsim.models import MultiLayerAttention
    from flowsim.tasks import LinearRegression

    seeds = 1 if quick else 5
    begin, ends = time.perf_counter(), []
    for seed in range(seeds):
        rotation_key, start_key = jax.random.split(jax.random.key(seed))
        rotation = np.asarray(jax.random.orthogonal(rotation_key, D))
        covariance = rotation.T @ np.diag(np.asarray([1, 1, 0.5, 0.25, 1]) ** 2) @ rotation
        task = LinearRegression((covariance + covariance.T) / 2, N, weights="inverse-covariance")
        start = 0.1 * np.asarray(jax.random.normal(start_key, (3, D, D)))
        start = MultiLayerAttention((start + np.swapaxes(start, 1, 2)) / 2)
        loss = MultiLayerLoss(task, 3)
        run = gradient_flow(loss, start, stop=Stop(excess=0.0, grad_norm=1e-10))
        ends.append((float(run.loss[-1]), float(run.grad_norm_sq[-1]) ** 0.5))
    seconds = time.perf_counter() - begin
    losses, slopes = zip(*ends, strict=True)
    assert max(slopes) < GRAD_NORM, slopes
    note = f"{seeds} seeds; losses {min(losses):.8f} to {max(losses):.8f}, largest gradient norm {max(slopes):.1e}"
    return [Measurement("ahn2023, section 5.3", seconds, "s", "at most", 120.0, note)]


def main(quick: bool = False) -> list[Measurement]:
    """Measure, print and, unless quick, write ``results/deep_layers.md`` and ``.json``."""
    steps = (measure_build, measure_evaluation, measure_sampling, measure_experiment)
    return measure(steps, quick, "deep_layers", "Deep linear transformers", __doc__ or "")


if __name__ == "__main__":
    main()
