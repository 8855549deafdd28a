"""The fixed-covariance flow, beside what people use today: time, steps, accuracy and memory in one run.

Eigenvalues geometric from 1 to 0.01 in a random basis, N = 20, rtol 1e-8, a balanced random start at half the scale
condition, to t1 = 25 / (slowest rate at the minimum). The strongest peer is the BDF of SUNDIALS' CVODE with GMRES
(`pip install 'flowsim[benchmarks]'`), which needs no Jacobian. Each measurement runs in a process of its own, so that
its peak memory is its own; times are warm, the time to trace and compile stands apart.

The last row is a power-law spectrum i^-1.5 in 16384 dimensions by `SpectralAttentionLoss`, from a start of rank 4 at
scale 0.01 with N = 100, to t = 1e6: its time is that of everything, the sums of the start included; its error is that
of 1024 dimensions at t = 10.

    python benchmarks/fixed_covariance.py            # the whole table, about five minutes
    python -c "from benchmarks.fixed_covariance import main; main(quick=True)"    # d = 16 alone
"""

import dataclasses
import json
import multiprocessing
import os
import pathlib
import platform
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # to be run as a file, too
from benchmarks.measurements import cvode

CONTEXT_LENGTH = 20
RTOL = 1e-8
CONDITION = 100.0
RESULTS = pathlib.Path(__file__).parent / "results"
SCIPY_METHODS = ("BDF", "LSODA")
DIFFRAX_METHODS = ("Tsit5", "Kvaerno5")  # at the smallest dimension: beyond, they take minutes or all the memory
LIMITS = {16: 120.0, 32: 120.0, 64: 120.0, 256: 600.0, 1024: 600.0, 16384: 600.0}  # seconds a method may take
BY_SPECTRUM = 16384  # dimensions
PEERS = (16, 32, 64, 256)  # dimensions at which CVODE is compared
SCIPY_UP_TO = 32  # the dimension beyond which its methods take minutes
TARGET = 50.0  # how many times faster than the best peer


@dataclasses.dataclass
class Measurement:
    """One method on one problem; ``seconds`` is warm, None where it was not finished, and ``note`` says why."""

    method: str
    d: int
    seconds: float | None = None
    compile_seconds: float | None = None
    steps: int | None = None
    rejected_steps: int | None = None
    error: float | None = None
    peak_megabytes: float | None = None
    note: str = ""


def problem(d: int, seed: int = 0) -> tuple[Any, Any, float]:
    """The loss, the start and t1 at dimension d."""
    from flowsim.initialization import balanced, random_theta
    from flowsim.losses import LinearAttentionLoss
    from flowsim.tasks import LinearRegression

    eigenvalues = np.geomspace(1.0, 1.0 / CONDITION, d)
    rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]
    covariance = (rotation * eigenvalues) @ rotation.T
    task = LinearRegression((covariance + covariance.T) / 2, CONTEXT_LENGTH)
    gamma = eigenvalues + (eigenvalues + eigenvalues.sum()) / CONTEXT_LENGTH
    scale = 0.5 * np.sqrt(
        2 / (np.sqrt(d) * gamma.max())
    )  # the bound of Lemma 5.4 is 2 / (sqrt(d) |Gamma|_op) on sigma^2
    start = balanced(scale, random_theta(d, d, seed))
    return LinearAttentionLoss(task), start, 25.0 / slowest_rate(eigenvalues, gamma)


def slowest_rate(eigenvalues: np.ndarray, gamma: np.ndarray) -> float:
    """The smallest positive eigenvalue of the Hessian at the minimum of (5.9), in the eigenbasis of Lambda.

    Off the diagonal it is u^2 gamma_i lambda_i lambda_j; the diagonal of U and u make an arrowhead, whose eigenvalue
    0 belongs to the direction in which the product u U stays the same, and which a balanced flow does not move in.
    """
    u = np.linalg.norm(1 / gamma) ** 0.5
    shaft = 1 / (gamma * u)
    curvature = gamma * eigenvalues**2
    arrow = np.diag(np.append(u**2 * curvature, np.sum(curvature * shaft**2)))
    arrow[-1, :-1] = arrow[:-1, -1] = 2 * u * curvature * shaft - eigenvalues**2
    off = u**2 * np.outer(gamma * eigenvalues, eigenvalues)[~np.eye(len(gamma), dtype=bool)]
    return float(min(np.sort(np.linalg.eigvalsh(arrow))[1], off.min(initial=np.inf)))


def peak_megabytes() -> float:
    """The largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def best_of(run: Callable[[], Any], spell: float = 2.0) -> tuple[float, Any]:
    """The least of the seconds that ``run`` takes, called until a spell is over, and its last result."""
    best, result = np.inf, None
    until = time.perf_counter() + spell
    while result is None or time.perf_counter() < until:
        begin = time.perf_counter()
        result = run()
        best = min(best, time.perf_counter() - begin)
    return best, result


def distance(model: Any, reference: Any) -> float:
    """The larger of the errors in u and, in the maximum norm, in u U11."""
    u, exact = float(model.u_minus1), float(reference.u_minus1)
    product = np.max(np.abs(u * np.asarray(model.U11) - exact * np.asarray(reference.U11)))
    return max(abs(u - exact), float(product))


def measure_flowsim(d: int) -> Measurement:
    """flowsim's own route, `gradient_flow` at its defaults; the error is against `reduced_flow`."""
    from flowsim.flow.gradient_flow import gradient_flow

    loss, start, t1 = problem(d)
    run = lambda: gradient_flow(loss, start, t1=t1, rtol=RTOL, points_per_decade=0)
    first, _ = best_of(run, 0.0)
    best, trajectory = best_of(run)
    measurement = Measurement("flowsim", d, best, first - best, note=str(trajectory.status))
    measurement.steps = trajectory.certificates.steps + trajectory.certificates.rejected_steps
    measurement.rejected_steps = trajectory.certificates.rejected_steps
    measurement.peak_megabytes = peak_megabytes()
    early = t1 if d <= 64 else t1 / 100  # the reference is explicit, and its cost is that of a stiff problem
    at_early = gradient_flow(loss, start, t1=early, rtol=RTOL, points_per_decade=0).end
    measurement.error = distance(at_early, reference_end(loss, start, early))
    if early < t1:
        measurement.note += ", error at t1/100"
    return measurement


def measure_spectrum(d: int) -> Measurement:
    """flowsim's route for many dimensions, from the spectrum to the end of the flow."""
    from flowsim.flow.gradient_flow import gradient_flow
    from flowsim.losses import LinearAttentionLoss, SpectralAttentionLoss
    from flowsim.tasks import LinearRegression, SpectralRegression

    def loss_of(d: int) -> SpectralAttentionLoss:
        task = SpectralRegression(np.arange(1, d + 1.0) ** -1.5, 100, weights="isotropic")
        return SpectralAttentionLoss(task, 0.01, np.random.default_rng(0).standard_normal((d, 4)))

    def run() -> tuple[Any, Any]:
        loss = loss_of(d)
        return loss, gradient_flow(loss, loss.start, t1=1e6, rtol=RTOL)

    first, _ = best_of(run, 0.0)
    best, (_, trajectory) = best_of(run, 0.0)
    measurement = Measurement("flowsim, by its spectrum", d, best, first - best, note=str(trajectory.status))
    measurement.steps = trajectory.certificates.steps + trajectory.certificates.rejected_steps
    measurement.rejected_steps = trajectory.certificates.rejected_steps
    measurement.peak_megabytes = peak_megabytes()
    loss = loss_of(1024)
    end = gradient_flow(loss, loss.start, t1=10.0, rtol=RTOL, points_per_decade=0).end
    layer = LinearAttentionLoss(LinearRegression(np.diag(np.asarray(loss.task.eigenvalues)), 100))
    full = of_weights(np.append(np.ravel(loss.weights(loss.start)), 0.01), 1024)
    measurement.error = distance(
        of_weights(np.append(np.ravel(loss.weights(end)), end.u_minus1), 1024), reference_end(layer, full, 10.0)
    )
    return measurement


def in_numpy(loss: Any, start: Any, d: int) -> tuple[Callable[[float, np.ndarray], np.ndarray], np.ndarray]:
    """The analytic gradient (5.4) as a user would write it, and the weights of the start."""
    Lambda, Gamma = np.asarray(loss.task.covariance), np.asarray(loss.task.gamma())
    gamma_lambda, lambda_squared = Gamma @ Lambda, Lambda @ Lambda

    def field(t, y):
        U, u = y[:-1].reshape(d, d), y[-1]
        sandwich = gamma_lambda @ U @ Lambda
        dU = -(u**2) * sandwich + u * lambda_squared
        du = -u * np.sum(sandwich * U) + np.sum(lambda_squared * U)
        return np.append(dU.ravel(), du)

    return field, np.append(np.asarray(start.U11).ravel(), float(start.u_minus1))


def of_weights(y: np.ndarray, d: int) -> Any:
    """The model of some weights."""
    from flowsim.models import LinearAttention

    return LinearAttention(y[:-1].reshape(d, d), y[-1])


def measure_scipy(method: str, d: int) -> Measurement:
    """`scipy.integrate.solve_ivp` as a user would call it, with the analytic gradient (5.4) in NumPy."""
    import scipy.integrate

    loss, start, t1 = problem(d)
    field, y = in_numpy(loss, start, d)
    atol = RTOL * np.max(np.abs(y))
    run = lambda: scipy.integrate.solve_ivp(field, (0, t1), y, method=method, rtol=RTOL, atol=atol)
    seconds, solution = best_of(run)
    measurement = Measurement(f"scipy {method}", d, seconds, note="" if solution.success else solution.message)
    measurement.steps = len(solution.t) - 1
    measurement.peak_megabytes = peak_megabytes()
    measurement.error = distance(of_weights(solution.y[:, -1], d), reference_end(loss, start, t1))
    return measurement


def measure_cvode(d: int) -> Measurement:
    """CVODE's BDF with GMRES, with the same gradient."""
    loss, start, t1 = problem(d)
    field, y = in_numpy(loss, start, d)
    seconds, solution = best_of(lambda: cvode(field, y, t1, RTOL))
    measurement = Measurement("CVODE BDF, GMRES", d, seconds, note="" if solution.success else str(solution.message))
    measurement.peak_megabytes = peak_megabytes()
    early = t1 if d <= 64 else t1 / 100
    measurement.error = distance(of_weights(cvode(field, y, early, RTOL).y[-1], d), reference_end(loss, start, early))
    measurement.note += ", error at t1/100" if early < t1 else ""
    return measurement


def measure_diffrax(method: str, d: int) -> Measurement:
    """`diffrax.diffeqsolve` as its documentation shows it, with the analytic gradient (5.4) on (U11, u_minus1)."""
    import diffrax
    import jax
    import jax.numpy as jnp

    from flowsim.models import LinearAttention

    loss, start, t1 = problem(d)
    Lambda, Gamma = loss.task.covariance, loss.task.gamma()
    matrices = Gamma @ Lambda, Lambda, Lambda @ Lambda

    def field(t, y, args):
        (U, u), (gamma_lambda, Lambda, lambda_squared) = y, args
        sandwich = gamma_lambda @ U @ Lambda
        return -(u**2) * sandwich + u * lambda_squared, -u * jnp.sum(sandwich * U) + jnp.sum(lambda_squared * U)

    y = start.U11, start.u_minus1
    atol = RTOL * max(float(jnp.max(jnp.abs(leaf))) for leaf in y)

    def solve(y, matrices):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            getattr(diffrax, method)(),
            0.0,
            t1,
            None,
            y,
            matrices,
            stepsize_controller=diffrax.PIDController(RTOL, atol),
            max_steps=10_000_000,
            throw=False,
        )

    compile_seconds, compiled = best_of(lambda: jax.jit(solve).lower(y, matrices).compile(), 0.0)
    seconds, solution = best_of(lambda: jax.block_until_ready(compiled(y, matrices)))
    measurement = Measurement(f"diffrax {method}", d, seconds, compile_seconds)
    measurement.steps = int(solution.stats["num_steps"])
    measurement.rejected_steps = int(solution.stats["num_rejected_steps"])
    measurement.peak_megabytes = peak_megabytes()
    measurement.note = "" if diffrax.is_successful(solution.result) else str(solution.result)
    U, u = (leaf[-1] for leaf in solution.ys)
    measurement.error = distance(LinearAttention(U, u), reference_end(loss, start, t1))
    return measurement


def reference_end(loss: Any, start: Any, t1: float) -> Any:
    """The state at t1 by the exact reduction, which shares neither equations nor solver with any method here."""
    from flowsim.flow.gradient_flow import reduced_flow

    return reduced_flow(loss, start, [t1], 1e-12).end


def _child(measure: Callable[..., Measurement], arguments: tuple, results: Any) -> None:
    import jax

    # A method that wants more memory than there is fails by itself, instead of taking the machine with it.
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    jax.config.update("jax_enable_x64", True)
    try:
        results.put(measure(*arguments))
    except Exception as error:
        results.put(f"{type(error).__name__}: {error}".splitlines()[0])
        raise


def in_own_process(measure: Callable[..., Measurement], *arguments: Any, limit: float) -> Measurement:
    """A measurement in a fresh process; it is stopped at the limit, and the note says why one is missing."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    child = context.Process(target=_child, args=(measure, arguments, results))
    child.start()
    child.join(timeout=limit)
    name = " ".join([measure.__name__.removeprefix("measure_"), *map(str, arguments[:-1])])
    if child.is_alive():
        child.kill()
        child.join()
        return Measurement(name, arguments[-1], note=f"not finished in {limit:g} s")
    if results.empty():
        return Measurement(name, arguments[-1], note=f"ended by signal {-(child.exitcode or 0)}")
    outcome = results.get()
    return Measurement(name, arguments[-1], note=outcome) if isinstance(outcome, str) else outcome


def measure_all(dimensions: tuple[int, ...]) -> list[Measurement]:
    """Every method at every dimension it is compared at.

    A method of scipy that was not finished at one dimension is not tried at the next.
    """
    measurements = []
    methods = list(SCIPY_METHODS)

    def add(measure, *arguments):
        measurements.append(in_own_process(measure, *arguments, limit=LIMITS[arguments[-1]]))
        print(measurements[-1], flush=True)
        return measurements[-1].seconds is not None

    for d in dimensions:
        add(measure_spectrum if d == BY_SPECTRUM else measure_flowsim, d)
        if d in PEERS:
            add(measure_cvode, d)
        if d <= SCIPY_UP_TO:
            methods = [method for method in methods if add(measure_scipy, method, d)]
        if d == dimensions[0]:
            for method in DIFFRAX_METHODS:
                add(measure_diffrax, method, d)
    return measurements


def table(measurements: list[Measurement]) -> str:
    """The measurements and the ratios as Markdown."""
    lines = [
        "| d | method | warm (s) | compile (s) | steps (rejected) | error | peak memory (MB) | note |",
        "|---|---|---|---|---|---|---|---|",
    ]

    def text(value, form):
        return "" if value is None else format(value, form)

    for m in measurements:
        rejected = "" if m.rejected_steps is None else f" ({m.rejected_steps})"
        lines.append(
            f"| {m.d} | {m.method} | {text(m.seconds, '.3g')} | {text(m.compile_seconds, '.2g')} | "
            f"{text(m.steps, 'd')}{rejected} | {text(m.error, '.1e')} | {text(m.peak_megabytes, '.0f')} | {m.note} |"
        )
    lines += ["", "| d | the best peer | flowsim is faster by | target |", "|---|---|---|---|"]
    for d in PEERS:
        seconds = {m.method: m.seconds for m in measurements if m.d == d and m.seconds is not None}
        rivals = {name: value for name, value in seconds.items() if name != "flowsim"}
        if "flowsim" in seconds and rivals:
            best = min(rivals, key=lambda name: rivals[name])
            lines.append(f"| {d} | {best} | {rivals[best] / seconds['flowsim']:.0f}x | {TARGET:.0f}x |")
    return "\n".join(lines)


def main(quick: bool = False) -> list[Measurement]:
    """Measure, print and, unless quick, write ``results/fixed_covariance.md`` and ``.json``."""
    measurements = measure_all((16,) if quick else tuple(LIMITS))
    text = table(measurements)
    print(text)
    if not quick:
        RESULTS.mkdir(exist_ok=True)
        machine = f"{platform.machine()}, {multiprocessing.cpu_count()} CPUs, Python {platform.python_version()}"
        header = f"# Fixed covariance\n\n{(__doc__ or '').split('Each')[0].strip()}\n\nMeasured on {machine}.\n\n"
        (RESULTS / "fixed_covariance.md").write_text(header + text + "\n")
        rows = [dataclasses.asdict(measurement) for measurement in measurements]
        (RESULTS / "fixed_covariance.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    return measurements


if __name__ == "__main__":
    main()
