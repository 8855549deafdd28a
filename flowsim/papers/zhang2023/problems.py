"""The problems on which zhang2023's claims are judged, each chosen as one on which a claim could fail."""

from typing import Any

from flowsim._core.types import Document

_DIAGONAL = [[0.5, 0, 0], [0, 1, 0], [0, 0, 2]]
_CONDITION_100 = {"eigenvalues": [0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0], "rotation_seed": 1}
_EXPONENTIAL = {"family": "exponential", "rate": 1.0, "dimension": 3}
_THETA = [[1, 0.5, 0], [0, 1, -0.5], [0.3, 0, 1]]


def _balanced(name: str, context_length: int | str, task: Document, **init: Any) -> Document:
    task = {**task, "context_length": context_length}
    return {"name": name, "task": task, "init": {"kind": "balanced", **init}}


# One covariance for all prompts

EASY = _balanced("d = 3, diagonal covariance", 10, {"covariance": _DIAGONAL}, scale=0.3, theta=_THETA)
HARD = _balanced(
    "d = 8, condition 100, N = 3, rank one, sigma = 1e-4", 3, {"covariance": _CONDITION_100}, scale=1e-4, rank=1, seed=1
)
EDGE = _balanced(
    "d = 4, just under the scale condition, N = 2",
    2,
    {"covariance": {"eigenvalues": [0.1, 0.3, 1.0, 3.0], "rotation_seed": 2}},
    scale=0.385,
    seed=3,
)
ONE_DIMENSION = _balanced("d = 1, exactly solvable", 5, {"covariance": [[2.0]]}, scale=0.05, theta=[[1.0]])
SEVERAL_DIMENSIONS = (EASY, HARD, EDGE)
FLOWS = (*SEVERAL_DIMENSIONS, ONE_DIMENSION)

# Covariances that are drawn anew for every prompt

RANDOM_EASY = _balanced("d = 3, Exponential(1), N = 10", 10, {"covariance_law": _EXPONENTIAL}, scale=0.1, theta=_THETA)
EXPONENTIAL = _balanced(
    "d = 3, Exponential(1), N infinite", "inf", {"covariance_law": _EXPONENTIAL}, scale=0.1, theta=_THETA
)
RANDOM_HARD = _balanced(
    "d = 5, Gamma(0.2) with rates from 1 to 10, N = 1, rank one, sigma = 1e-5",
    1,
    {"covariance_law": {"family": "gamma", "shape": 0.2, "rate": [1.0, 2.0, 3.0, 5.0, 10.0]}},
    scale=1e-5,
    rank=1,
    seed=1,
)
RANDOM_EDGE = _balanced(
    "d = 5, log-normal, just under the scale condition",
    4,
    {"covariance_law": {"family": "log-normal", "location": [-1.0, -0.5, 0.0, 0.5, 0.5], "spread": 0.8}},
    scale=0.115,
    seed=3,
)
_TWO_VALUES = {"family": "discrete", "values": [[0.1, 5.0]], "probabilities": [[0.9, 0.1]]}
RANDOM_ONE_DIMENSION = _balanced("d = 1, two values", 5, {"covariance_law": _TWO_VALUES}, scale=0.05, theta=[[1.0]])
RANDOM_BEYOND = _balanced(
    "d = 3, Exponential(1), ten times the scale condition",
    10,
    {"covariance_law": _EXPONENTIAL},
    scale=2.7,
    theta=_THETA,
)
_WISHART = {"mean": [[1, 0.3, 0], [0.3, 0.5, 0], [0, 0, 2]], "degrees": 5, "samples": 512}
NO_COMMON_EIGENBASIS = _balanced(
    "d = 3, Wishart, no common eigenbasis",
    6,
    {"covariance_law": {"family": "wishart", **_WISHART}},
    scale=0.1,
    theta=_THETA,
)
RANDOM_FLOWS = (RANDOM_EASY, RANDOM_HARD, RANDOM_EDGE, RANDOM_ONE_DIMENSION)

# Statements about a task alone: the start is a saddle, where nothing moves


def _still(name: str, covariance: Any, context_length: int | str, **task: Any) -> Document:
    table = {"covariance": covariance, "context_length": context_length, **task}
    return {"name": name, "task": table, "init": {"kind": "zeros"}}


STILL_EASY = _still("d = 3, diagonal covariance", _DIAGONAL, 10)
STILL_HARD = _still("d = 8, condition 100, N = 3", _CONDITION_100, 3)
NEAR_SINGULAR = _still("d = 3, condition 1e6, N = 2", {"eigenvalues": [1e-6, 1e-3, 1.0], "rotation_seed": 3}, 2)
ISOTROPIC = _still("d = 3, identity, N = 3", "identity", 3, dimension=3)
STILL_ONE = _still("d = 1, N = 1", [[2.0]], 1)
LONG = _still("d = 3, N = 100000", {"eigenvalues": [0.1, 0.3, 3.0], "rotation_seed": 2}, 100_000)
INFINITE = _still("d = 3, N = inf", {"eigenvalues": [0.2, 1.0, 3.0], "rotation_seed": 4}, "inf")

STILL = (STILL_EASY, STILL_HARD, NEAR_SINGULAR, ISOTROPIC, STILL_ONE)
FINITE_LENGTHS = (STILL_EASY, STILL_HARD, NEAR_SINGULAR, STILL_ONE, LONG)
ALL_LENGTHS = (*FINITE_LENGTHS, INFINITE)
# For statements at N = M = inf, or at a given N: only the covariance matters.
COVARIANCES = (STILL_EASY, STILL_HARD, NEAR_SINGULAR, STILL_ONE)

# Figure 1.
_LAW = {"covariance_law": {**_EXPONENTIAL, "dimension": 20}, "context_length": "inf"}
DASHED = ({"name": "d = 20, Exponential(1), N infinite", "task": _LAW, "init": {"kind": "zeros"}},)
PANEL = tuple(_still(f"d = 20, identity, N = {N}", "identity", N, dimension=20) for N in (40, 70, 100))
