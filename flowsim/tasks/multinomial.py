"""The multinomial law: all counts of features among independent tokens, with their probabilities."""

import itertools
import math
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
from jaxtyping import Float, Int

from flowsim._core import checks

_ROUNDING = 1e-12


def multinomial_outcomes(
    tokens: int, probabilities: Iterable
) -> tuple[Int[np.ndarray, "outcomes K"], Float[np.ndarray, " outcomes"]]:
    """All counts c of K features among N independent tokens, and the probability of each, correctly rounded.

    P(c) = N!/(c_1! .. c_K!) prod_k p_k^c_k is computed in whole numbers. A model for which the order of tokens does
    not matter has C(N + K - 1, K - 1) distinct prompts, one for each c, in place of K^N.

    **Arguments:** tokens: N; probabilities: (K,) p_k > 0 with sum 1. Fractions are taken exactly.

    **Returns:** the counts, (outcomes, K), and their probabilities, (outcomes,).

    **Raises:** `ValueError` naming the argument.
    """
    tokens, law = checks.count("tokens", tokens), list(probabilities)
    parts = [Fraction(p) if math.isfinite(p) else Fraction(-1) for p in law]
    if not parts or min(parts) <= 0 or abs(sum(parts) - 1) > _ROUNDING:
        checks.refuse("probabilities", "positive with sum 1", f"they are {[float(p) for p in law]!r:.60}")
    count = len(parts)
    checks.within_memory("tokens", math.comb(tokens + count - 1, count - 1) * count)
    unit = math.lcm(*(p.denominator for p in parts))
    weights = [int(p * unit) for p in parts]
    bars = itertools.combinations(range(tokens + count - 1), count - 1)
    edges = np.array([(-1, *places, tokens + count - 1) for places in bars])
    counts = np.diff(edges, axis=1) - 1
    # The exact sum divides, so that the given numbers may be rounded. A quotient of integers rounds once.
    factors = [[weight**n for n in range(tokens + 1)] for weight in weights]
    orders, total = [math.factorial(n) for n in range(tokens + 1)], sum(weights) ** tokens
    values = [
        orders[tokens]
        // math.prod(orders[n] for n in row)
        * math.prod(f[n] for f, n in zip(factors, row, strict=True))
        / total
        for row in counts.tolist()
    ]
    return counts, np.array(values)
