"""Problems on which gatmiry2024's statements about the landscape and the flow are most likely to fail."""

from collections.abc import Mapping
from typing import Any

Problem = Mapping[str, Any]


def looped(
    name: str, loops: int, context_length: int | float | str, covariance: Any = "identity", **tables: Any
) -> Problem:
    """A problem for a looped transformer with w ~ N(0, Sigma*^-1).

    **Arguments:**

    - name: of the problem.
    - loops, context_length, covariance: L, n and Sigma*.
    - tables: ``dimension``, the d of the task, and the tables "init", "flow" and "model". The start is zero and the
      model is a looped transformer unless these tables replace them.
    """
    task = {"covariance": covariance, "context_length": context_length, "weights": "inverse-covariance"}
    if "dimension" in tables:
        task["dimension"] = tables.pop("dimension")
    model = {"architecture": "looped", "loops": loops}
    return {"name": name, "task": task, "model": model, **({"init": {"kind": "zeros"}} | tables)}


# Tolerances far above a stiff solver's rounding, so that the flow can be solved again more accurately.
_EIGENBASIS = {"restrict": "eigenbasis", "rtol": 1e-6}
_FLAT = {"rtol": 1e-7}
_ANISOTROPIC = {"eigenvalues": [0.1, 1.0, 3.0], "rotation_seed": 2}

EASY = looped("d = 2, L = 2, n = 4000000, from zero", 2, 4_000_000, dimension=2)
SHORT = looped("d = 3, L = 2, n = 2, from zero", 2, 2, dimension=3)
ONE_LOOP = looped("d = 3, L = 1, n = 10000000", 1, 10_000_000, dimension=3)
ONE_DIMENSION = looped("d = 1, L = 3, n = 10^9", 3, 1_000_000_000, dimension=1)
RANDOM = looped(
    "d = 4, L = 2, n = 50, random start", 2, 50, dimension=4, init={"kind": "random", "scale": 1.0, "seed": 1}
)
OVERSHOT = looped("d = 2, L = 3, n = 10, from 3 I", 3, 10, dimension=2, init={"kind": "scaled-identity", "scale": 3.0})
ANISOTROPIC = looped("d = 3, condition 30, L = 2, n = 10^8", 2, 100_000_000, covariance=_ANISOTROPIC)
SMALL_COVARIANCE = looped("Sigma* = 0.01 I, d = 2, L = 2, n = inf", 2, "inf", [[0.01, 0.0], [0.0, 0.01]], flow=_FLAT)
VERY_LONG = looped("d = 2, L = 2, n = 10^24", 2, 10**24, dimension=2, flow=_FLAT)
VERY_LONG_ANISOTROPIC = looped("d = 3, condition 30, L = 2, n = 10^24", 2, 10**24, covariance=_ANISOTROPIC, flow=_FLAT)
INFINITE = looped("d = 3, L = 2, n = inf", 2, "inf", dimension=3, flow=_FLAT)
WIDE = looped("d = 100000, L = 2, n = inf, from zero", 2, "inf", dimension=100_000, flow=_EIGENBASIS)
WIDE_LONG = looped("d = 100000, L = 2, n = 10^30, from zero", 2, 10**30, dimension=100_000, flow=_EIGENBASIS)
WIDE_DEEP = looped("d = 20000, L = 3, n = inf, from zero", 3, "inf", dimension=20_000, flow=_EIGENBASIS)
WIDE_ENOUGH = looped("d = 8000, L = 2, n = 10^30, from zero", 2, 10**30, dimension=8000, flow=_EIGENBASIS)
CROWDED = looped("d = 500000, L = 1, n = 1000000, from zero", 1, 1_000_000, dimension=500_000, flow=_EIGENBASIS)
FEW = looped("d = 5, L = 2, n = 2, from zero", 2, 2, dimension=5)
FEW_DEEP = looped("d = 5, L = 3, n = 4, from zero", 3, 4, dimension=5)
TEN = looped("d = 10, L = 2, n = 20, from zero", 2, 20, dimension=10)
FEW_RANDOM = looped(
    "d = 3, L = 2, n = 2, random start", 2, 2, dimension=3, init={"kind": "random", "scale": 0.5, "seed": 2}
)
TEN_TO_THE_16 = looped("d = 2, L = 2, n = 10^16", 2, 10**16, dimension=2)
SKEWED = looped(
    "d = 3, condition 10^4, L = 3, n = 10^18", 3, 10**18, {"eigenvalues": [0.01, 1.0, 100.0], "rotation_seed": 3}
)

OPTIMUM = (EASY, ONE_LOOP, ONE_DIMENSION, ANISOTROPIC, VERY_LONG_ANISOTROPIC, WIDE_LONG, SHORT)
DOMINANCE = (EASY, SHORT, RANDOM, OVERSHOT, INFINITE, WIDE, WIDE_LONG, WIDE_DEEP, CROWDED, ANISOTROPIC)
DOMINANCE_OF_LONG_CONTEXTS = (EASY, ONE_DIMENSION, INFINITE, WIDE, WIDE_LONG, WIDE_DEEP, CROWDED)
# For the steps of the proofs, judged at drawn points.
STEPS = (VERY_LONG, WIDE_LONG, VERY_LONG_ANISOTROPIC, SMALL_COVARIANCE, INFINITE, EASY)
FLOW = (EASY, RANDOM, OVERSHOT, VERY_LONG, INFINITE, WIDE, WIDE_LONG, ONE_LOOP)
PROXIMITY = (VERY_LONG, VERY_LONG_ANISOTROPIC, INFINITE, WIDE_LONG, EASY)
EPSILON = (VERY_LONG, INFINITE, WIDE, WIDE_ENOUGH, SHORT, SMALL_COVARIANCE, VERY_LONG_ANISOTROPIC)
LONG_CONTEXTS = (VERY_LONG, VERY_LONG_ANISOTROPIC, SMALL_COVARIANCE, INFINITE)
SHORT_CONTEXTS = (TEN, FEW, FEW_DEEP, FEW_RANDOM)

# Starts for Theorem 3.3, and problems on the stability of A_opt.
_ANY_MATRIX = {"architecture": "looped", "loops": 2, "symmetric": False}
NOT_SYMMETRIC = looped(
    "d = 2, L = 2, n = inf, A(0) not symmetric", 2, "inf", dimension=2, model=_ANY_MATRIX,
    init={"kind": "explicit", "A": [[0.9, 4.0], [0.0, 0.9]]}, flow={"times": [1e4]},
)  # fmt: skip
NOT_SYMMETRIC_LONG = looped(
    "d = 2, L = 2, n = 10^24, A(0) random and not symmetric", 2, 10**24, dimension=2, model=_ANY_MATRIX,
    init={"kind": "random", "scale": 2.0, "seed": 1}, flow={"times": [1e5]},
)  # fmt: skip
_INDEFINITE = {"kind": "explicit", "A": [[-1.0, 0.5], [0.5, 2.0]]}
INDEFINITE = looped("d = 2, L = 2, n = 50, A(0) indefinite", 2, 50, dimension=2, init=_INDEFINITE)
INDEFINITE_LONG = looped(
    "d = 2, L = 2, n = 10^24, A(0) indefinite", 2, 10**24, dimension=2, flow=_FLAT, init=_INDEFINITE
)
NEGATIVE = looped(
    "d = 3, L = 3, n = 20, A(0) negative", 3, 20, dimension=3,
    init={"kind": "explicit", "A": [[-2.0, 0.5, 0.0], [0.5, -1.0, 0.0], [0.0, 0.0, -0.1]]},
)  # fmt: skip
STARTS = (INDEFINITE_LONG, NOT_SYMMETRIC, NOT_SYMMETRIC_LONG)
TURNED = looped("d = 2, L = 2, n = 10^7", 2, 10**7, dimension=2)
TURNED_DEEP = looped("d = 3, L = 3, n = 10^12", 3, 10**12, dimension=3)
