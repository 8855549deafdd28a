"""The field of sampled losses, beside what arithmetic and memory allow, and beside a loop over prompts in PyTorch.

The bound of a sample is the larger of its floating-point operations, by XLA's count for a CPU, over the speed of a
large product of float64 matrices measured in the same process, and the bytes of its draws over the speed of a sum.
"""

import contextlib
import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu_parts.rows import Measures, Row, first_call, on_gpu, timed
from flowsim import LinearAttention, LinearRegression, LoopedAttention, MonteCarloLoss
from flowsim.losses.sampled import blocks, estimators
from flowsim.models import Decoder, SoftmaxAttention, residuals

LENGTH = 20  # examples of a prompt
BATCH = 20_000  # prompts of PyTorch's loop
LARGEST_BLOCK = 2**20
MILLION = 1_024_000  # a multiple of replicates times devices


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with its task. operations: of a sample, None for XLA's count, which takes the body of a loop once."""

    task: LinearRegression
    model: Any
    method: str
    operations: float | None = None


def looped(d: int) -> Case:
    """Three loops of ahn2023's layer at A = 0.4 I."""
    task = LinearRegression(np.eye(d), LENGTH, weights="inverse-covariance")
    return Case(task, LoopedAttention(0.4 * np.eye(d), loops=3), "covariances")


def one_layer(d: int) -> Case:
    """zhang2023's layer."""
    task = LinearRegression(np.diag(np.geomspace(1, 0.1, d)), LENGTH)
    return Case(task, LinearAttention(0.3 * np.eye(d), 0.5), "covariances")


def softmax(d: int) -> Case:
    """One layer of softmax attention."""
    weights = 0.3 * np.random.default_rng(0).standard_normal((2, 1, d + 1, d + 1))
    return Case(LinearRegression(np.eye(d), LENGTH), SoftmaxAttention(*weights), "prompts")


def decoder(layers: int, width: int, d: int, examples: int) -> Case:
    """A decoder; a weight takes two operations a token forwards and four backwards, besides those of attention."""
    make = lambda key: Decoder(d, embedding=width, layers=layers, heads=8, longest=examples, key=key)
    model = eqx.filter_jit(make)(jax.random.key(0))  # compiled once, where every operation would be
    tokens = 2 * examples + 1
    operations = 6 * layers * tokens * (12 * width**2 + 2 * tokens * width)
    return Case(LinearRegression(np.eye(d), examples), model, "prompts", operations)


def prepared(case: Case, samples: int, block: int = LARGEST_BLOCK) -> MonteCarloLoss:
    """The loss with its prompts drawn, in blocks of a given size, on all devices that JAX has here."""
    count = len(jax.devices())
    mesh = jax.make_mesh((count,), (blocks.AXIS,), axis_types=(jax.sharding.AxisType.Auto,)) if count > 1 else None
    loss = MonteCarloLoss(case.task, samples, 4, method=case.method, mesh=mesh)
    return loss._with(block=min(block, samples // count), planned=True)._drawn()


field = eqx.filter_jit(lambda loss, model: loss.gradient(model))


class Bounds:
    """The speeds of this device, as they are measured."""

    def __init__(self, full: bool):
        self.size, self.length = (8192, 2**28) if on_gpu() else (2048, 2**25) if full else (256, 2**18)
        self.spell = 1.0 if full else 0.05
        self.operations = self.bytes = np.nan

    def product(self, dtype: Any, precision: str | None) -> Row:
        """A product of large matrices, by the operation."""
        matrix = jax.random.normal(jax.random.key(0), (self.size, self.size), dtype)
        multiply = jax.jit(lambda a: jnp.matmul(a, a, precision=precision))
        first_call(lambda: multiply(matrix))
        seconds = timed(lambda: multiply(matrix), self.spell) / (2 * self.size**3)
        if dtype == jnp.float64:
            self.operations = 1 / seconds
        return Row("", seconds, "operation", note=f"{1e-12 / seconds:.3g} TFlop/s")

    def sum(self) -> Row:
        """A sum, by the byte."""
        numbers = jax.random.normal(jax.random.key(0), (self.length,))
        add = jax.jit(jnp.sum)
        first_call(lambda: add(numbers))
        seconds = timed(lambda: add(numbers), self.spell) / numbers.nbytes
        self.bytes = 1 / seconds
        return Row("", seconds, "byte", note=f"{1e-9 / seconds:.0f} GB/s")


def operations(case: Case, loss: MonteCarloLoss) -> float:
    """Floating-point operations of one sample's error and gradient."""
    assert loss.estimator is not None
    if case.operations is not None:
        return case.operations
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return blocks._needs(loss.estimator, case.model).operations


def measured(case: Case, loss: MonteCarloLoss, bounds: Bounds, note: str = "") -> Row:
    """The time of a field, by the sample."""
    compiling, compiled = first_call(lambda: field.lower(loss, case.model).compile())
    jax.block_until_ready(compiled(loss, case.model))
    seconds = timed(lambda: compiled(loss, case.model), bounds.spell) / loss.samples
    drawn = sum(leaf.nbytes for leaf in jax.tree.leaves(loss.draws)) / loss.samples
    count = operations(case, loss)
    arithmetic, memory = count / bounds.operations, drawn / bounds.bytes
    analysis = compiled.compiled.memory_analysis()
    temporary = 0 if analysis is None else analysis.temp_size_in_bytes
    note += f"{1e-12 * count / seconds:.3g} TFlop/s, {count:.3g} operations and {drawn:.0f} bytes a sample, "
    note += f"block {loss.block}, {temporary / 2**20:.0f} MiB besides, compiled in {compiling:.1f} s"
    return Row("", seconds, "sample", max(arithmetic, memory), note=note)


def drawn_and_measured(make: Callable[[], Case], samples: int, block: int, bounds: Bounds) -> Row:
    """The same with its draws, whose cost the note has."""
    case = make()
    drawing, loss = first_call(lambda: prepared(case, samples, block))
    return measured(case, loss, bounds, f"{samples:.0e} samples, drawn in {drawing:.1f} s; ")


def measures(full: bool) -> Measures:
    """Bounds, and fields."""
    bounds = Bounds(full)
    yield from _bounds(bounds)
    for precision in (None, "highest"):
        name = f"product of float32 matrices, precision {precision or 'default'}"
        yield name, functools.partial(bounds.product, jnp.float32, precision)
    for name, make, samples, block in _cases(full):
        yield name, functools.partial(drawn_and_measured, make, samples, block, bounds)


def _bounds(bounds: Bounds) -> Measures:
    yield "product of float64 matrices", lambda: bounds.product(jnp.float64, None)
    yield "sum of float64", bounds.sum


Cases = Iterator[tuple[str, Callable[[], Case], int, int]]


def _cases(full: bool) -> Cases:
    """Names, problems, samples and blocks, in the order of worth."""
    if not full:
        yield "three loops, d = 5, 1e3 samples", lambda: looped(5), 10**3, 512
        yield "softmax, d = 5", lambda: softmax(5), 256, 128
        yield "decoder, 12 layers, width 256", lambda: decoder(2, 16, 2, 3), 128, 32
        return
    # A GPU is given more samples, and larger blocks: a CPU keeps the arrays of a block in its caches.
    choose = lambda gpu, cpu: gpu if on_gpu() else cpu
    small = choose(LARGEST_BLOCK, 32)
    yield "three loops, d = 5, 1e6 samples", lambda: looped(5), MILLION, small
    yield "one layer, d = 5", lambda: one_layer(5), MILLION, small
    yield "softmax, d = 5", lambda: softmax(5), choose(2**19, 2**15), choose(2**16, 64)
    yield "decoder, 12 layers, width 256", lambda: decoder(12, 256, 20, 40), choose(1024, 128), choose(128, 8)
    yield "three loops, d = 5, 1e7 samples", lambda: looped(5), 10 * MILLION, small
    yield "three loops, d = 16", lambda: looped(16), choose(MILLION, 2**16), choose(2**17, 32)
    yield "one layer, d = 64", lambda: one_layer(64), choose(MILLION // 10, 2**12), choose(2**13, 16)
    yield "three loops, d = 5, 1e4 samples", lambda: looped(5), MILLION // 100, small


def block_sizes(full: bool) -> Measures:
    """Fields in blocks of several sizes, and with other products of small matrices."""
    bounds = Bounds(full)
    yield from _bounds(bounds)
    many, few, sizes = (2**20, 2**16, (2**13, 2**15, 2**17, 2**19)) if on_gpu() else (2**14, 2**9, (32, 512))
    many, few, sizes = (many, few, sizes) if full else (256, 128, (32, 64))
    for size in sizes:
        for name, make in (("three loops, d = 5", lambda: looped(5)), ("softmax, d = 5", lambda: softmax(5))):
            yield f"{name}, block {size}", functools.partial(drawn_and_measured, make, many, size, bounds)
    for product in PRODUCTS:
        loops = functools.partial(_with_product, lambda: looped(5), many, sizes[-2], product, bounds)
        yield f"three loops, d = 5, products {product}, block {sizes[-2]}", loops
        # Entry by entry so large a product is a program without an end.
        if full and product != "by entries":
            layer = functools.partial(_with_product, lambda: one_layer(64), few, sizes[0], product, bounds)
            yield f"one layer, d = 64, products {product}, block {sizes[0]}", layer


def _with_product(make: Callable[[], Case], samples: int, block: int, product: str, bounds: Bounds) -> Row:
    with _products(PRODUCTS[product]):
        return drawn_and_measured(make, samples, block, bounds)


def _by_entries(left: jax.Array, right: jax.Array) -> jax.Array:
    """Every entry an array of its own, so that all products of a sample may be fused into one kernel."""
    (rows, inner), columns = left.shape[:2], right.shape[1]
    entry = lambda i, j: sum((left[i, k] * right[k, j] for k in range(1, inner)), left[i, 0] * right[0, j])
    return jnp.stack([jnp.stack([entry(i, j) for j in range(columns)]) for i in range(rows)])


PRODUCTS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "by entries": _by_entries,
    "einsum": lambda left, right: jnp.einsum("ik...,kj...->ij...", left, right),
    "unrolled": lambda left, right: sum(
        (left[:, k, None] * right[k][None] for k in range(1, right.shape[0])), left[:, 0, None] * right[0][None]
    ),
}


@contextlib.contextmanager
def _products(product: Callable[[jax.Array, jax.Array], jax.Array]) -> Iterator[None]:
    """Products of small matrices in another way, in all that is compiled meanwhile."""
    jax.clear_caches()
    with mock.patch.object(residuals, "product", product), mock.patch.object(estimators, "product", product):
        yield
    jax.clear_caches()


def pytorch(full: bool) -> Measures:
    """Prompts in batches through the literal model with PyTorch, as they are trained on: drawing, error, gradient."""
    if importlib.util.find_spec("torch") is None:
        yield "three loops, d = 5, by PyTorch", lambda: Row("", note="PyTorch is not installed")
        return
    for name in ("float64", "float32"):
        yield f"three loops, d = 5, by PyTorch in {name}", functools.partial(_pytorch, full, name)


def _pytorch(full: bool, dtype: str) -> Row:
    """Three layers of masked linear attention on tokens (x_i, y_i), a batch of prompts at a time."""
    import torch  # pyright: ignore[reportMissingImports]

    device = "cuda" if torch.cuda.is_available() and on_gpu() else "cpu"
    kind, d, count = getattr(torch, dtype), 5, BATCH if full else 100
    A = (0.4 * torch.eye(d, dtype=kind, device=device)).requires_grad_()

    def step() -> Any:
        x = torch.randn(count, LENGTH + 1, d, dtype=kind, device=device)
        w = torch.randn(count, d, dtype=kind, device=device)
        y = torch.einsum("bnd,bd->bn", x, w)
        labels = torch.cat([y[:, :-1], torch.zeros(count, 1, dtype=kind, device=device)], dim=1)
        for _ in range(3):
            scores = x[:, :-1] @ A @ x.transpose(1, 2)
            labels = labels - torch.einsum("bn,bnm->bm", labels[:, :-1], scores) / LENGTH
        loss = torch.mean((labels[:, -1] + y[:, -1]) ** 2)
        (slope,) = torch.autograd.grad(loss, A)
        if device == "cuda":
            torch.cuda.synchronize()
        return slope

    for _ in range(3):
        step()
    return Row("", timed(step, 1.0 if full else 0.05) / count, "sample", note=f"batches of {count} prompts, {device}")


def float32(full: bool) -> Measures:
    """Fields of float32 arithmetic with sums in float64 over blocks of samples, and their error."""
    for near, place in ((0.0, "at A = 0.4 I"), (1.0, "at the optimum")):
        yield f"three loops, d = 5, in float32, {place}", functools.partial(_float32, full, near)


def _float32(full: bool, near: float, together: int = 256) -> Row:
    from flowsim.losses import LoopedLoss

    case = looped(5)
    samples = 2**20 if on_gpu() else 2**17 if full else 2**12
    best = LoopedLoss(case.task, 3).minimizer
    model = jax.tree.map(lambda a, b: (1 - near) * a + near * b, case.model, best)
    loss = prepared(case, samples, LARGEST_BLOCK if on_gpu() else 128)
    half = lambda tree: jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)
    parts = jax.tree.map(lambda leaf: leaf.reshape(*leaf.shape[:-1], -1, together), half(loss.draws))

    def slopes(estimator: Any, draws: Any, model: Any) -> Any:
        error = lambda A, draws: jnp.sum(estimator.squared_errors(eqx.tree_at(lambda m: m.A, model, A), draws))
        return jax.vmap(jax.grad(error), in_axes=(None, -2))(model.A, draws)

    of_blocks = eqx.filter_jit(slopes)
    add = jax.jit(lambda parts: jnp.sum(parts.astype(jnp.float64), axis=0) / samples)

    def run() -> jax.Array:
        # No constant of the model's may be a float64.
        with jax.enable_x64(False):
            found = of_blocks(half(loss.estimator), parts, half(model))
        return add(found)

    exact, start = (np.asarray(field(loss, point).A) for point in (model, case.model))
    first_call(run)
    seconds = timed(run, 1.0 if full else 0.05) / samples
    error = np.max(np.abs(np.asarray(run()) - exact))
    note = (
        f"error {error / np.max(np.abs(exact)):.1e} of the largest entry, {error / np.max(np.abs(start)):.1e} of the "
    )
    note += f"start's; in float64 {1e9 * timed(lambda: field(loss, model), 0.5 if full else 0.05) / samples:.3g} ns"
    return Row("", seconds, "sample", note=note)
