"""zhang2023's Corollary 4.3 and Definition 3.2: how long prompts must be for a given risk of the limit (4.1)."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks
from flowsim._core.types import Matrix, Scalar
from flowsim.claims.claim import Comparison
from flowsim.claims.declaring import Section
from flowsim.losses import LinearAttentionLoss
from flowsim.losses.prompt_risk import risk
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.conditions import limit, one_covariance
from flowsim.papers.zhang2023.problems import COVARIANCES, ISOTROPIC, STILL_EASY, STILL_HARD, STILL_ONE
from flowsim.papers.zhang2023.prompts import asymptotic, bounded, conditioning, each, two_routes
from flowsim.papers.zhang2023.section_4_1 import conditioned_trace, noiseless_risk
from flowsim.tasks import LinearRegression

# Beyond this a float64 no longer tells whole numbers apart.
_LONGEST = 2.0**53


def sufficient_test_length(covariance: Matrix, epsilon: ArrayLike) -> Scalar:
    """The test length M = 2 (d+1) tr(Lambda)/epsilon, not rounded.

    With `sufficient_context_length` it suffices for a risk of epsilon: each of the two terms of `averaged_bounds`
    is then epsilon/2.

    **Source:** zhang2023, Corollary 4.3.
    """
    return 2 * (covariance.shape[0] + 1) * jnp.trace(covariance) / epsilon


def sufficient_context_length(covariance: Matrix, epsilon: ArrayLike) -> Scalar:
    """The training length N = sqrt(2 (1 + 2d + d^2 kappa) tr(Lambda)) epsilon^{-1/2}, not rounded.

    With this N the last term of `averaged_bounds` is epsilon/2.

    **Source:** zhang2023, Corollary 4.3, with the root as in its derivation; see `printed_context_length`.
    """
    return jnp.sqrt(2 * conditioned_trace(jnp.linalg.eigvalsh(covariance)) / epsilon)


def printed_context_length(covariance: Matrix, epsilon: ArrayLike) -> Scalar:
    """The training length N = sqrt(2 (1 + 2d + d^2 kappa) tr(Lambda) epsilon^{-1/2}), not rounded.

    It does not suffice for a risk of epsilon: the root should end before epsilon^{-1/2}.

    **Source:** zhang2023, Corollary 4.3 as its extracted text reads.
    """
    return jnp.sqrt(2 * conditioned_trace(jnp.linalg.eigvalsh(covariance)) * jnp.asarray(epsilon, dtype=float) ** -0.5)


@dataclasses.dataclass(frozen=True)
class PromptLengths:
    """How long prompts must be for a risk of at most epsilon, averaged over w ~ N(0, I), at the limit (4.1).

    - epsilon: the risk.
    - sufficient_test_length, sufficient_context_length: the M and N of Corollary 4.3, which together suffice.
    - context_length: the requested N, by default the sufficient one.
    - test_length: the smallest M that suffices at N = `context_length`.
    - smallest_context_length: the smallest N that suffices at M = inf.
    - matching_context_length: the smallest N that suffices at M = `test_length`.
    """

    epsilon: float
    sufficient_test_length: float
    sufficient_context_length: float
    context_length: float
    test_length: int
    smallest_context_length: int
    matching_context_length: int

    def facts(self) -> dict[str, str]:
        """The lengths as text, each under a label."""
        sufficient = f"{self.sufficient_test_length:.0f}, {self.sufficient_context_length:.0f}"
        return {
            f"M, N that suffice for a risk of {self.epsilon:g} (Corollary 4.3)": sufficient,
            f"smallest M at N = {self.context_length:.0f}": str(self.test_length),
            "smallest N with M infinite": str(self.smallest_context_length),
        }


def prompt_lengths(
    covariance: ArrayLike | Iterable, epsilon: ArrayLike, context_length: ArrayLike | None = None
) -> PromptLengths:
    """The lengths that suffice by Corollary 4.3, and the smallest lengths that suffice by the exact risk.

    At fixed N the risk falls with M. At fixed M it falls with N up to N = M, where the model is the best for that
    length, and rises beyond.

    **Arguments:** covariance: (d, d) Lambda; epsilon: the risk to reach, E(yhat - y_query)^2; context_length: N in
    training, default the sufficient one.

    **Raises:** `ValueError` if an argument is invalid; if no M reaches epsilon at the requested N (the message
    names the smallest N at which some M does); or if no length below 2^53 reaches epsilon.

    **Source:** zhang2023, Corollary 4.3 and Theorem 4.2.
    """
    Lambda = checks.positive_definite("covariance", covariance)
    target = float(checks.positive("epsilon", epsilon))
    sufficient = [
        max(1.0, float(np.ceil(float(length(Lambda, target)))))
        for length in (sufficient_test_length, sufficient_context_length)
    ]
    N = float(checks.context_length("context_length", sufficient[1] if context_length is None else context_length))

    def reached(n: float, m: float) -> bool:
        return float(_averaged_risk(Lambda, jnp.asarray(n), jnp.asarray(m))) <= target

    if not reached(_LONGEST, _LONGEST):
        checks.refuse("epsilon", "a risk within reach of lengths below 2^53", f"it is {target:g}")
    smallest = _first(lambda n: reached(n, jnp.inf))
    if not reached(N, _LONGEST):
        floor = float(_averaged_risk(Lambda, jnp.asarray(N), jnp.asarray(jnp.inf)))
        expected = f"at least {smallest} for a risk of {target:g}"
        checks.refuse("context_length", expected, f"at {N:g} the risk is {floor:g} however long the prompt")
    test_length = _first(lambda m: reached(N, m))
    return PromptLengths(
        epsilon=target,
        sufficient_test_length=sufficient[0],
        sufficient_context_length=sufficient[1],
        context_length=N,
        test_length=test_length,
        smallest_context_length=smallest,
        matching_context_length=_first(lambda n: reached(n, float(test_length)), last=test_length),
    )


def _first(enough: Callable[[float], bool], last: int = int(_LONGEST)) -> int:
    """The smallest positive whole number n <= ``last`` for which ``enough(n)`` is true.

    Every larger number up to ``last`` must also be enough.
    """
    low, high = 0, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(float(middle)) else (middle, high)
    return high


@eqx.filter_jit
def _averaged_risk(covariance: Matrix, context_length: Scalar, test_length: Scalar) -> Scalar:
    task = LinearRegression(covariance, context_length)
    return risk(limit(task), task, test_length)


Task = LinearRegression

_EPSILONS = (0.5, 0.1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8)


def _limit_risk(covariance: Matrix, context_length: Scalar, test_length: Scalar) -> Float[Array, " routes"]:
    task = LinearRegression(covariance, context_length)
    return two_routes(limit(task), task)(test_length)


def _whole(length: Scalar) -> Scalar:
    return jnp.maximum(jnp.ceil(length), 1.0)


def _reached(task: Task, lengths: Callable[[Scalar], list[tuple[Scalar, Scalar]]]) -> Comparison:
    """The statement risk <= epsilon at several lengths, for every epsilon in `_EPSILONS`.

    **Arguments:** lengths: epsilon -> a list of pairs (N, M).
    """

    def at(epsilon):
        N, M = (jnp.stack(column) for column in zip(*lengths(epsilon), strict=True))
        return jax.lax.map(lambda pair: _limit_risk(task.covariance, *pair), (N, M)), epsilon

    value, bound = each(at, jnp.asarray(_EPSILONS))
    return bounded(value, bound, jnp.trace(task.covariance), conditioning(task))


def lengths_at_one_percent(loss: LinearAttentionLoss, trajectory: Any) -> dict[str, Array]:
    """The lengths of the corollary and the smallest sufficient lengths, for epsilon = tr(Lambda)/100.

    This epsilon is 1 % of the risk of predicting zero. Empty if no length below 2^53 is enough.
    """
    covariance = loss.task.covariance
    epsilon = jnp.trace(covariance) / 100
    try:
        found = prompt_lengths(covariance, epsilon)
    except ValueError:  # out of reach: float64 resolves neither the lengths nor the risk of such a covariance
        return {}
    constants = {
        "test_length": found.sufficient_test_length,
        "sharp_test_length": found.test_length,
        "context_length": found.sufficient_context_length,
        "sharp_context_length": found.smallest_context_length,
        "printed_context_length": printed_context_length(covariance, epsilon),
    }
    return {name: jnp.asarray(value, dtype=float) for name, value in constants.items()}


SECTION = Section("zhang2023", LinearAttention, setting=one_covariance)
ON_COVARIANCES = SECTION.on(COVARIANCES, spaces.STILL, constants=lengths_at_one_percent)


@ON_COVARIANCES.claim("corollary-4.3.test-length", "Corollary 4.3")
@eqx.filter_jit
def long_enough_in_test(task: Task) -> Comparison:
    r"""$M \ge 2(d+1) \operatorname{tr}(\Lambda)/\epsilon$ is enough for a risk of $\epsilon$, at every $N$ that is long
    enough

    Judged at epsilon from 0.5 to 1e-8. For each, N is the N of the derivation, ten times this N, or infinity. The
    constants are for epsilon = tr(Lambda)/100.
    """

    def lengths(epsilon):
        M = _whole(sufficient_test_length(task.covariance, epsilon))
        N = _whole(sufficient_context_length(task.covariance, epsilon))
        return [(N, M), (10 * N, M), (jnp.asarray(jnp.inf), M)]

    return _reached(task, lengths)


def _train_length(task: Task, length: Callable[[Matrix, Scalar], Scalar]) -> Comparison:
    """The statement risk <= epsilon at N = length(Lambda, epsilon), for the corollary's M and for M = infinity."""

    def lengths(epsilon):
        N = _whole(length(task.covariance, epsilon))
        return [(N, _whole(sufficient_test_length(task.covariance, epsilon))), (N, jnp.asarray(jnp.inf))]

    return _reached(task, lengths)


@SECTION.on((STILL_EASY, STILL_HARD, ISOTROPIC, STILL_ONE), spaces.STILL).claim(
    "corollary-4.3.train-length", "Corollary 4.3", constants=lengths_at_one_percent
)
@eqx.filter_jit
def printed_length_in_training(task: Task) -> Comparison:
    r"""$N \ge \sqrt{2(1 + 2d + d^2 \kappa) \operatorname{tr}(\Lambda) \epsilon^{-1/2}}$ is enough for a risk of
    $\epsilon$, at every $M$ that is long enough

    This N grows only as epsilon^{-1/4}. A risk of epsilon needs N of the order epsilon^{-1/2}, even at M = infinity. In
    the extracted text the root includes epsilon^{-1/2}; the PDF may differ.
    """
    return _train_length(task, printed_context_length)


@ON_COVARIANCES.corrected(printed_length_in_training)
@eqx.filter_jit
def long_enough_in_training(task: Task) -> Comparison:
    r"""$N \ge \sqrt{2(1 + 2d + d^2 \kappa) \operatorname{tr}(\Lambda)} \epsilon^{-1/2}$ is enough for a risk of
    $\epsilon$, at every $M$ that is long enough

    The root ends before epsilon^{-1/2}, as the averaged bound before the corollary implies. In the extracted text it
    includes this factor.
    """
    return _train_length(task, sufficient_context_length)


@ON_COVARIANCES.claim("corollary-4.3.definition-3.2", "Corollary 4.3 with Definition 3.2")
@eqx.filter_jit
def one_model_for_all(task: Task) -> Comparison:
    r"""The model trained at $N$ in-context learns linear models: for every $\epsilon \in (0, 1)$ its risk is at most
    $\epsilon$ on all prompts that are long enough

    Definition 3.2 requires one model for every epsilon. At a finite N the risk stays above the last term of (4.6),
    however long the prompts are. The corollary's N, and so its model, depends on epsilon.
    """
    Lambda, N = task.covariance, task.context_length
    axes = jnp.sqrt(float(task.dimension)) * jnp.eye(task.dimension)
    floor = jnp.mean(jax.lax.map(lambda w: noiseless_risk(Lambda, w, N, jnp.inf)[1], axes))
    below = jnp.where(floor > 0, jnp.minimum(floor / 2, _EPSILONS[0]), _EPSILONS[0])
    found = asymptotic(two_routes(limit(task), task))
    value, bound = each(lambda epsilon: (found, epsilon), jnp.append(jnp.asarray(_EPSILONS), below))
    return bounded(value, bound, jnp.trace(Lambda), conditioning(task))


@ON_COVARIANCES.corrected(one_model_for_all)
@eqx.filter_jit
def a_model_for_each(task: Task) -> Comparison:
    r"""For every $\epsilon \in (0, 1)$ a model trained at the $N$ of the corollary, or longer, has a risk of at most
    $\epsilon$ on all prompts of at least its length $M$

    The N is that of the corrected corollary. Judged at epsilon from 0.5 to 1e-8, at N and 10 N, and at M, M + 1, 100 M
    and infinity. At N = infinity one model serves every epsilon.
    """

    def lengths(epsilon):
        M = _whole(sufficient_test_length(task.covariance, epsilon))
        N = _whole(sufficient_context_length(task.covariance, epsilon))
        return [(n, m) for n in (N, 10 * N) for m in (M, M + 1, 100 * M, jnp.asarray(jnp.inf))]

    return _reached(task, lengths)
