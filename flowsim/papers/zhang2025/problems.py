"""The problems on which zhang2025's claims are judged."""

from typing import Any

from flowsim._core.types import Document

PAPER_EIGENVALUES = {"eigenvalues": [0.4, 0.3, 0.2, 0.1], "rotation_seed": 0}
WIDE = {"dimension": 5, "condition": 100.0, "rotation_seed": 1}


def heads(
    name: str, covariance: Any, N: Any, init: Document | None = None, keys: str = "merged", **model: Any
) -> Document:
    """The document of a problem with heads of linear attention.

    **Arguments:** covariance, N: of the prompts; init: default random weights of scale 0.1; keys: "merged" or
    "separate"; model: further entries of the model's table.
    """
    return {
        "name": name,
        "task": {"covariance": covariance, "context_length": N},
        "model": {"architecture": "attention", "keys": keys, **model},
        "init": init or {"kind": "random", "scale": 0.1},
    }


def _aligned(v: list[float], d: int) -> Document:
    U = [[[x / d**0.5 * (i == j) for j in range(d)] for i in range(d)] for x in v]
    return {"kind": "explicit", "v": v, "U": U}


def _one_head(v: float, place: int, d: int, H: int) -> Document:
    vector = [v * (i == place) for i in range(d)]
    rest = [[[0.0] * d]] * (H - 1)
    return {"kind": "explicit", "v": [v] + [0.0] * (H - 1), "k": [[vector], *rest], "q": [[vector], *rest]}


_SMALL = {"kind": "random", "scale": 1e-3}
_TINY = {"kind": "random", "scale": 1e-4, "seed": 1}
_HALVES = {"eigenvalues": [4.0, 2.0, 1.0, 0.5]}

EASY_MERGED = heads("merged, D = 4, N = 31, H = 3", PAPER_EIGENVALUES, 31, heads=3)
HARD_MERGED = heads("merged, D = 5, condition 100, N = 1, H = 1", WIDE, 1, heads=1)
LONG_MERGED = heads("merged, D = 4, N = inf, H = 2", PAPER_EIGENVALUES, "inf", heads=2)
MERGED_FINITE = (EASY_MERGED, HARD_MERGED)
MERGED = (EASY_MERGED, HARD_MERGED, LONG_MERGED)
MERGED_FLOWS = (
    EASY_MERGED,
    heads("merged, D = 4, N = 31, H = 8, scale 1e-3", PAPER_EIGENVALUES, 31, _SMALL, heads=8),
    heads("merged, D = 3, condition 30, N = 2, H = 2, scale 1", {"dimension": 3, "condition": 30.0}, 2,
          {"kind": "random", "scale": 1.0}, heads=2),
)  # fmt: skip
SMALL_MERGED = (
    heads("merged, D = 4, N = 31, H = 8, scale 1e-6", PAPER_EIGENVALUES, 31,
          {"kind": "random", "scale": 1e-6}, heads=8),
    heads("merged, D = 2, N = 1, H = 1, scale 1e-6", {"eigenvalues": [1.0, 0.1]}, 1,
          {"kind": "random", "scale": 1e-6}, heads=1),
)  # fmt: skip
WHITE = (
    heads("white, D = 3, N = 10, H = 2", {"eigenvalues": [0.5, 0.5, 0.5]}, 10, _aligned([0.1, 0.02], 3), heads=2),
    heads("white, D = 4, N = 1, H = 1, from 1e-4", {"eigenvalues": [2.0] * 4}, 1, _aligned([1e-4], 4), heads=1),
)

EASY_SEPARATE = heads("separate, D = 4, N = 31, H = 8", PAPER_EIGENVALUES, 31, keys="separate", heads=8)
FEW_SEPARATE = heads("separate, D = 5, condition 100, N = 1, H = 2, R = 2", WIDE, 1, keys="separate", heads=2, rank=2)
LONG_SEPARATE = heads("separate, D = 4, N = inf, H = 4", PAPER_EIGENVALUES, "inf", keys="separate", heads=4)
WIDE_SEPARATE = heads(
    "separate, D = 8, N = 31, H = 9, R = 2", {"dimension": 8, "condition": 8.0}, 31, keys="separate", heads=9, rank=2
)
SEPARATE_FINITE = (EASY_SEPARATE, FEW_SEPARATE)
SEPARATE = (EASY_SEPARATE, FEW_SEPARATE, LONG_SEPARATE, WIDE_SEPARATE)
SEPARATE_FLOWS = (
    heads("separate, D = 3, N = 5, H = 3, scale 0.3", {"dimension": 3, "condition": 10.0}, 5,
          {"kind": "random", "scale": 0.3}, keys="separate", heads=3),
    heads("separate, D = 4, N = 31, H = 2, R = 3, scale 1e-2", PAPER_EIGENVALUES, 31,
          {"kind": "random", "scale": 1e-2}, keys="separate", heads=2, rank=3),
)  # fmt: skip
ONE_HEAD = (
    # Its limit is a saddle, at which no flow stops by itself.
    heads("one head along the second eigenvector", {"eigenvalues": [2.0, 1.0, 0.5]}, 10, _one_head(0.05, 1, 3, 2),
          keys="separate", heads=2) | {"flow": {"t1": 30.0}},
    heads("one head along the last eigenvector, N = 1", {"eigenvalues": [4.0, 0.2]}, 1, _one_head(0.3, 1, 2, 1),
          keys="separate", heads=1),
)  # fmt: skip
SADDLES = (
    heads("four heads from 1e-4", _HALVES, 31, _TINY, keys="separate", heads=4),
    heads("eight heads from 1e-5", _HALVES, 31, {"kind": "random", "scale": 1e-5}, keys="separate", heads=8),
)
LONG = (LONG_SEPARATE, heads("separate, D = 2, N = inf, H = 1", {"eigenvalues": [1.0, 0.01]}, "inf", keys="separate"))
LENGTHS = (
    heads("lengths 1 to 31", PAPER_EIGENVALUES, {"lengths": list(range(1, 32))}, heads=2),
    heads("lengths 1 and inf", WIDE, {"lengths": [1, "inf"], "probabilities": [0.25, 0.75]}, keys="separate", heads=5),
    heads(
        "lengths 1 and 50, one head of rank 1",
        {"dimension": 3, "condition": 5.0},
        {"lengths": [1, 50]},
        keys="separate",
    ),
)
