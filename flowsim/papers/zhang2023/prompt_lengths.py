"""zhang2023's Corollary 4.3 by formula: how long prompts must be for a bound on the risk of the limit (4.1)."""

import dataclasses
from collections.abc import Callable, Iterable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from flowsim._core import checks
from flowsim._core.types import Matrix, Scalar, Vector
from flowsim.losses.prompt_risk import risk
from flowsim.papers.zhang2023.conditions import limit
from flowsim.tasks import LinearRegression

# Beyond this a float64 no longer tells whole numbers apart.
_LONGEST = 2.0**53


def conditioned_trace(eigenvalues: Vector) -> Scalar:
    """(1 + 2d + d^2 kappa) tr(Lambda), from the (d,) eigenvalues of Lambda in ascending order."""
    d = eigenvalues.shape[0]
    return (1 + 2 * d + d**2 * eigenvalues[-1] / eigenvalues[0]) * jnp.sum(eigenvalues)


def sufficient_test_length(covariance: Matrix, epsilon: ArrayLike) -> Scalar:
    """The sufficient M, 2 (d+1) tr(Lambda)/epsilon, not rounded. **Source:** zhang2023, Corollary 4.3."""
    return 2 * (covariance.shape[0] + 1) * jnp.trace(covariance) / epsilon


def sufficient_context_length(covariance: Matrix, epsilon: ArrayLike) -> Scalar:
    """The sufficient N, sqrt(2 (1 + 2d + d^2 kappa) tr(Lambda)) epsilon^{-1/2}, not rounded.

    With this N the last term of `averaged_bounds` is epsilon/2.

    **Source:** zhang2023, Corollary 4.3, with the root as in its derivation; see `printed_context_length`.
    """
    return jnp.sqrt(2 * conditioned_trace(jnp.linalg.eigvalsh(covariance)) / epsilon)


def printed_context_length(covariance: Matrix, epsilon: ArrayLike) -> Scalar:
    """The printed N, sqrt(2 (1 + 2d + d^2 kappa) tr(Lambda) epsilon^{-1/2}), whose root spans everything.

    It is not sufficient.

    **Source:** zhang2023, Corollary 4.3 as its extracted text reads.
    """
    return jnp.sqrt(2 * conditioned_trace(jnp.linalg.eigvalsh(covariance)) * jnp.asarray(epsilon, dtype=float) ** -0.5)


@dataclasses.dataclass(frozen=True)
class PromptLengths:
    """How long prompts must be for a risk of at most epsilon, averaged over w ~ N(0, I), at the limit (4.1).

    sufficient_test_length, sufficient_context_length: M and N of Corollary 4.3, which together suffice; context_length:
    the requested N, or the sufficient one; test_length: the smallest M at that N; smallest_context_length: the smallest
    N at M = inf; matching_context_length: the smallest N at `test_length`.
    """

    epsilon: float
    sufficient_test_length: float
    sufficient_context_length: float
    context_length: float
    test_length: int
    smallest_context_length: int
    matching_context_length: int

    def facts(self) -> dict[str, str]:
        """The lengths, by a label that names the corollary."""
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

    **Raises:** `ValueError` naming the argument; also where no M reaches epsilon at that N, with the smallest N at
    which some M does, and where no length below 2^53 reaches epsilon.

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
    """The smallest whole number from 1 to ``last`` that is enough, if all larger ones up to ``last`` are too."""
    low, high = 0, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(float(middle)) else (middle, high)
    return high


@eqx.filter_jit
def _averaged_risk(covariance: Matrix, context_length: Scalar, test_length: Scalar) -> Scalar:
    task = LinearRegression(covariance, context_length)
    return risk(limit(task), task, test_length)
