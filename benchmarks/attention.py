"""The exact loss of one layer of linear attention: cost, and drawn prompts.

Value and gradient at d = 10 with eleven heads, full covariances of covariates, queries and weights, a prior mean and
label noise. Then 200 random settings of the grid, each with four million prompts of the literal model: how many
standard errors they are off at most, and in the mean square.

    python benchmarks/attention.py            # the whole table, half an hour
    python -c "from benchmarks.attention import main; main(quick=True)"    # 10 settings
"""

import pathlib
import sys
import time
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # to be run as a file, too
from benchmarks.measurements import Measurement, measure

PROMPTS, BATCH = 4_000_000, 50_000


def _covariance(rng: np.random.Generator, d: int) -> np.ndarray:
    root = rng.standard_normal((d, d))
    return root @ root.T / d + 0.2 * np.eye(d)


def _heads(rng: np.random.Generator, kind: int, d: int, H: int, R: int) -> Any:
    import flowsim

    draw = lambda *shape: rng.standard_normal(shape) / np.sqrt(d)
    guess = {"w": draw(d), "bias": float(rng.standard_normal())}
    if kind == 0:
        return flowsim.MergedHeads(draw(H), draw(H, d, d), **guess)
    if kind == 1:
        return flowsim.SeparateHeads(draw(H), draw(H, R, d), draw(H, R, d), **guess)
    return flowsim.TokenHeads(draw(H, d + 1), draw(H, d + 1, d), **guess, query_token=kind == 3)


def measure_cost(quick: bool) -> list[Measurement]:
    """Seconds of value and gradient, compiled."""
    import equinox as eqx

    import flowsim

    rng, d = np.random.default_rng(0), 10
    full = {
        "prior_mean": rng.standard_normal(d),
        "prior_covariance": _covariance(rng, d),
        "query_covariance": _covariance(rng, d),
        "label_noise": 0.3,
    }
    found = []
    for name, kind in (("merged", 0), ("separate, rank 2", 1), ("whole tokens", 2), ("with the query's token", 3)):
        model = _heads(rng, kind, d, 11, 2)
        loss = flowsim.AttentionLoss(flowsim.LinearRegression(_covariance(rng, d), 20, **full), model)
        both = eqx.filter_jit(lambda model, loss=loss: (loss(model), loss.gradient(model)))
        jax.block_until_ready(both(model))
        times = []
        for _ in range(20 if quick else 200):
            begin = time.perf_counter()
            jax.block_until_ready(both(model))
            times.append(time.perf_counter() - begin)
        found.append(Measurement(f"11 heads, {name}, d = 10", 1e3 * min(times), "ms", "at most", 0.5))
    return found


def measure_prompts(quick: bool) -> list[Measurement]:
    """Scores of drawn prompts over random settings."""
    import jax.numpy as jnp

    import flowsim
    import flowsim.tasks

    scores, prompts = [], 100_000 if quick else PROMPTS
    for seed in range(10 if quick else 200):
        rng = np.random.default_rng([17, seed])
        d, N, H, R = (int(rng.integers(1, top)) for top in (5, 9, 4, 3))
        extras: dict[str, Any] = {}
        if rng.random() < 0.5:
            extras["prior_mean"] = rng.standard_normal(d)
        if rng.random() < 0.5:
            extras["prior_covariance"] = _covariance(rng, d)
        if rng.random() < 0.5:
            extras["query_covariance"] = _covariance(rng, d)
        if rng.random() < 0.5:
            extras["label_noise"] = float(rng.random())
        task, model = flowsim.LinearRegression(_covariance(rng, d), N, **extras), _heads(rng, seed % 4, d, H, min(R, d))
        root = lambda matrix: jnp.linalg.cholesky(jnp.asarray(matrix))
        of_query = task.covariance if task.query_covariance is None else task.query_covariance
        roots = (root(task.covariance), root(of_query), root(task.weight_covariance))
        noise = 0.0 if task.label_noise is None else task.label_noise

        @jax.jit
        def errors(key, task=task, model=model, roots=roots, noise=noise, d=d, N=N):
            keys = jax.random.split(key, 4)
            X = jax.random.normal(keys[0], (BATCH, N, d)) @ roots[0].T[None]
            query = jax.random.normal(keys[1], (BATCH, d)) @ roots[1].T
            w = task.weight_mean[None] + jax.random.normal(keys[2], (BATCH, d)) @ roots[2].T
            y = jnp.einsum("pni,pi->pn", X, w) + noise * jax.random.normal(keys[3], (BATCH, N))
            predicted = jax.vmap(lambda X, y, x: model(flowsim.tasks.Prompt(X, y, x)))(X, y, query)
            squares = (predicted - jnp.sum(w * query, axis=1)) ** 2 / 2
            return jnp.mean(squares), jnp.mean(squares**2)

        parts = np.asarray([errors(jax.random.key(1000 * seed + i, impl="rbg")) for i in range(prompts // BATCH)])
        mean, square = parts.mean(axis=0)
        exact = float(flowsim.AttentionLoss(task, model)(model))
        scores.append((mean - exact) / np.sqrt((square - mean**2) / prompts))
    settings = f"{len(scores)} settings, {prompts} prompts each"
    beyond = float(np.sum(np.abs(scores) > 3))
    return [
        Measurement("settings off by more than 3 standard errors", beyond, "", "at most", 3, settings),
        Measurement("largest score", float(np.max(np.abs(scores))), "standard errors", "at most", 4, settings),
        Measurement("mean square of the scores", float(np.mean(np.square(scores))), "", "at most", 1.3, settings),
    ]


def main(quick: bool = False) -> list[Measurement]:
    """Measure and print; unless quick, write the results."""
    steps = (measure_cost, measure_prompts)
    return measure(steps, quick, "attention", "One layer of linear attention", str(__doc__))


if __name__ == "__main__":
    main()
