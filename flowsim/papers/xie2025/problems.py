"""Problems for the statements of xie2025; the start is zero where only the task and the guess matter."""

from typing import Any

SEED = {"kind": "random", "scale": 0.3}


def heads(
    name: str, d: int, C: int | str, prior_mean: list[float], init: dict[str, Any] | None = None, **model: Any
) -> dict[str, Any]:
    """A problem of heads on x ~ N(0, I) in d dimensions, which start at zero by default."""
    task = {"covariance": "identity", "dimension": d, "context_length": C, "prior_mean": prior_mean}
    return {
        "name": name,
        "task": task,
        "model": {"architecture": "multi-head", **model},
        "init": init or {"kind": "zeros"},
    }


def guess(name: str, d: int, C: int | str, prior_mean: list[float], init: dict[str, Any], **model: Any) -> dict:
    """A problem of one head with a trainable guess."""
    table = heads(name, d, C, prior_mean, init, **model)
    return {**table, "model": {"architecture": "initial-guess", **model}}


# One head, so that a statement about the prompts alone is quick to judge.
EASY = heads("d = 3, C = 5, w* = (2, 1, 0)", 3, 5, [2.0, 1.0, 0.0], heads=1)
SHORT = heads("d = 4, C = 1, w* = (1, 1, 1, 1)", 4, 1, [1.0] * 4, heads=1)
ZERO_MEAN = heads("d = 3, C = 5, w* = 0", 3, 5, [0.0] * 3, heads=1)
LARGE_MEAN = heads("d = 2, C = 100, |w*| = 1000", 2, 100, [1000.0, 0.0], heads=1)
PAPER = heads("d = 10, C = 10, w* = (2, .., 2)", 10, 10, [2.0] * 10, heads=1)
LIMIT = heads("d = 3, C = inf, w* = (2, 1, 0)", 3, "inf", [2.0, 1.0, 0.0], heads=1)
PAPER_LIMIT = heads("d = 10, C = inf, w* = (2, .., 2)", 10, "inf", [2.0] * 10, heads=1)
ONE = heads("d = 1, C = 2, w* = 3", 1, 2, [3.0], heads=1)

BIASED = heads("d = 3, C = 5, a guess of 1", 3, 5, [2.0, 1.0, 0.0], heads=2, guess={"bias": 1.0})
LINEAR = heads(
    "d = 3, C = 5, a linear guess and a bias", 3, 5, [0.0] * 3, heads=2, guess={"linear": [1.0, -1.0, 2.0], "bias": 0.5}
)
PAPER_GUESS = heads("d = 10, C = 10, w* = 0, a linear guess", 10, 10, [0.0] * 10, heads=1, guess={"linear": [1.0] * 10})

# Flows.
ONE_HEAD = heads("d = 3, C = 5, one head", 3, 5, [2.0, 1.0, 0.0], SEED, heads=1)
TWO_HEADS = heads("d = 3, C = 5, two heads", 3, 5, [2.0, 1.0, 0.0], SEED, heads=2)
FOUR_HEADS = heads("d = 3, C = 5, four heads", 3, 5, [2.0, 1.0, 0.0], SEED, heads=4)
FACTORED = heads("d = 2, C = 5, three heads, factored", 2, 5, [2.0, 1.0], SEED, heads=3, parametrisation="factored")
GUESSED = heads(
    "d = 3, C = 5, w* = 0, four heads, a linear guess and a bias",
    3,
    5,
    [0.0] * 3,
    SEED,
    heads=4,
    guess={"linear": [1.0, 0.0, 0.0], "bias": 1.0},
)
WIDER_ONE_HEAD = heads("d = 5, C = 10, one head", 5, 10, [2.0] * 5, {"kind": "random", "scale": 0.1}, heads=1)
TRAINED_GUESS = guess("d = 3, C = 5, trainable guess", 3, 5, [2.0, 1.0, 0.0], SEED)
TRAINED_GUESS_LIMIT = guess("d = 3, C = inf, trainable guess", 3, "inf", [2.0, 1.0, 0.0], SEED)
TRAINED_GUESS_FACTORED = guess(
    "d = 3, C = 5, trainable guess, factored", 3, 5, [2.0, 1.0, 0.0], SEED, parametrisation="factored"
)
TRAINED_GUESS_WIDER = guess("d = 5, C = 10, trainable guess", 5, 10, [2.0] * 5, {"kind": "random", "scale": 0.1})
BLOCK = {
    "name": "d = 3, C = 5, linear transformer block",
    "task": EASY["task"],
    "model": {"architecture": "linear-block"},
    "init": {"kind": "random", "scale": 0.5},
}

# The problems on which most statements are judged.
TASKS = (EASY, SHORT, ZERO_MEAN, LARGE_MEAN, PAPER, LIMIT)
FINITE = (EASY, SHORT, ZERO_MEAN, LARGE_MEAN, PAPER, ONE)
LIMITS = (LIMIT, PAPER_LIMIT, EASY)
ZERO_MEAN_LIMITS = tuple(heads(f"d = {d}, C = inf, w* = 0", d, "inf", [0.0] * d, heads=1) for d in (3, 10, 1))
