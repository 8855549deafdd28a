"""Whether flowsim works here at all: README's first flow, and what a device may do differently."""

import time

import numpy as np

from benchmarks.gpu_parts.rows import Measures, Row, first_call, timed


def measures(full: bool) -> Measures:
    """Quick checks, README's flow, and a mesh."""
    for check in (_float64, _no_tensor_floats, _launches, _decompositions, _gram_matrices):
        yield check.__doc__ or "", check
    if not full:  # the same flow is in README's scenario, and a mesh of one device says nothing of a CPU
        return
    yield "README's flow and lemma", _readme
    yield _shares.__doc__ or "", _shares


def _readme() -> Row:
    import flowsim
    from flowsim.initialization import balanced

    begin = time.perf_counter()
    loss = flowsim.LinearAttentionLoss(flowsim.LinearRegression(np.diag([0.5, 1, 2]), context_length=10))
    trajectory = flowsim.gradient_flow(loss, balanced(scale=0.3, theta=np.eye(3)))
    integrated = time.perf_counter() - begin
    lemma = flowsim.find_claims(flowsim.ALL_CLAIMS, "zhang2023.lemma-5.4")
    verdicts = flowsim.judge(lemma, loss, trajectory)
    judged = time.perf_counter() - begin - integrated
    again, _ = first_call(lambda: flowsim.gradient_flow(loss, balanced(scale=0.3, theta=np.eye(3))).t)
    words = [f"{verdict.id} {verdict.form} {verdict.verdict.value}" for verdict in verdicts]
    note = f"first flow {integrated:.1f} s, first verdicts {judged:.1f} s, {trajectory.status}"
    return Row("", again, "flow", words=words, note=note)


def _float64() -> Row:
    """products and sums of float64 against NumPy's"""
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 300, 300))
    x = rng.standard_normal(10**6)
    errors = {
        "product": np.max(np.abs(np.asarray(jnp.asarray(a) @ jnp.asarray(b)) - a @ b)) / np.max(np.abs(a @ b)),
        "sum": abs(float(jnp.sum(jnp.asarray(x))) - x.sum()) / np.abs(x).sum(),
        "exp": np.max(np.abs(np.asarray(jnp.exp(jnp.asarray(x))) / np.exp(x) - 1)),
    }
    return _errors(errors, 1e-14)


def _decompositions() -> Row:
    """decompositions of float64: residuals, alone and in batches"""
    import jax
    import jax.numpy as jnp

    errors = {}
    for n in (3, 30, 100):
        square = jnp.asarray(np.random.default_rng(n).standard_normal((16, n, n)))
        symmetric = square + jnp.swapaxes(square, 1, 2)
        for name, one in (("eigh", lambda S: _eigh_residual(S)), ("Cholesky", lambda S: _cholesky_residual(S @ S.T))):
            alone, batch = float(one(symmetric[0])), float(jnp.max(jax.jit(jax.vmap(one))(symmetric)))
            errors[f"{name} {n}"] = max(alone, batch)
    return _errors(errors, 1e-12)


def _eigh_residual(S):
    import jax.numpy as jnp

    values, vectors = jnp.linalg.eigh(S)
    return jnp.max(jnp.abs(S @ vectors - vectors * values[None, :])) / jnp.max(jnp.abs(values))


def _cholesky_residual(S):
    import jax.numpy as jnp

    root = jnp.linalg.cholesky(S)
    return jnp.max(jnp.abs(root @ root.T - S)) / jnp.max(jnp.abs(S))


def _gram_matrices() -> Row:
    """Gram matrices are symmetric and positive, alone and vmapped"""
    import jax
    import jax.numpy as jnp

    X = jnp.asarray(np.random.default_rng(0).standard_normal((64, 40, 20)))
    gram = lambda x: x.T @ x
    batch = jax.jit(jax.vmap(gram))(X)
    alone = jnp.stack([jax.jit(gram)(x) for x in X[:8]])
    errors = {
        "vmapped and alone": float(jnp.max(jnp.abs(batch[:8] - alone)) / jnp.max(alone)),
        "asymmetry": float(jnp.max(jnp.abs(batch - jnp.swapaxes(batch, 1, 2))) / jnp.max(batch)),
        "negative eigenvalue": float(jnp.maximum(-jnp.min(jnp.linalg.eigvalsh(batch)), 0.0) / jnp.max(batch)),
    }
    return _errors(errors, 1e-14)


def _shares() -> Row:
    """a sampled field with shard_map on a mesh of one device, and without"""
    import equinox as eqx
    import jax

    from flowsim.losses import MonteCarloLoss
    from flowsim.models import LoopedAttention
    from flowsim.tasks import LinearRegression

    mesh = jax.make_mesh((1,), ("samples",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    task = LinearRegression(np.array([[1.0, 0.3], [0.3, 0.5]]), 6, weights="inverse-covariance")
    model = LoopedAttention(np.array([[0.3, 0.1], [0.0, 0.4]]), np.array([0.1, 0.2]), loops=2)
    field = eqx.filter_jit(lambda loss, model: loss.gradient(model).A)
    make = lambda mesh: MonteCarloLoss(task, 4096, method="covariances", mesh=mesh).prepared(model)
    one, other = (np.asarray(field(make(mesh), model)) for mesh in (None, mesh))
    row = _errors({"difference": float(np.max(np.abs(one - other)) / np.max(np.abs(one)))}, 1e-12)
    row.numbers = one.ravel().tolist()
    return row


def _no_tensor_floats() -> Row:
    """a product of float32 matrices, by default and at highest precision (float64 is never computed by TF32)"""
    import jax
    import jax.numpy as jnp

    a = np.random.default_rng(0).standard_normal((1024, 1024))
    errors = []
    for precision in (None, "highest"):
        with jax.default_matmul_precision(precision):
            found = jnp.asarray(a, jnp.float32) @ jnp.asarray(a, jnp.float32)
        errors.append(float(np.max(np.abs(np.asarray(found, float) - a @ a)) / np.max(np.abs(a @ a))))
    return Row("", note=f"default {errors[0]:.1e}, highest {errors[1]:.1e}")


def _launches() -> Row:
    """a step of a loop on the device that asks how it stands, as solvers do"""
    import jax

    loop = jax.jit(lambda n: jax.lax.while_loop(lambda carry: carry[0] < n, lambda c: (c[0] + 1, c[1] * 0.5), (0, 1.0)))
    count = 2000
    first_call(lambda: loop(count))
    return Row("", timed(lambda: loop(count), 0.5) / count, "step")


def _errors(errors: dict[str, float], most: float) -> Row:
    worst = max(errors.values())
    listed = ", ".join(f"{name} {error:.0e}" for name, error in errors.items())
    return Row("", words=["as asked" if worst <= most else "NOT AS ASKED"], note=f"{listed}; at most {most:.0e} asked")
