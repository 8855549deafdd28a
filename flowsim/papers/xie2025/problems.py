"""Problems for the statements of xie2025. Where only the task and the guess matter, the start is zero."""

from typing import Any

from flowsim._core.types import Document

_STILL = {"kind": "zeros"}
_DRAWN = {"kind": "random", "scale": 0.3}
_SMALL = {"kind": "random", "scale": 0.1}
_MEAN = [2.0, 1.0, 0.0]
_ZERO = [0.0, 0.0, 0.0]


def _heads(
    name: str,
    C: int | str,
    prior_mean: list[float],
    init: Document = _STILL,
    architecture: str = "multi-head",
    **model: Any,
) -> Document:
    """A problem with attention heads on x ~ N(0, I), where ``prior_mean`` is E w-hat, (d,)."""
    d = len(prior_mean)
    task = {"covariance": "identity", "dimension": d, "context_length": C, "prior_mean": prior_mean}
    model = {"architecture": architecture, **model}
    return {"name": f"d = {d}, C = {C}, {name}", "task": task, "model": model, "init": init}


# One head, so that a statement about the prompts alone is quick to judge.
EASY = _heads("w* = (2, 1, 0)", 5, _MEAN, heads=1)
SHORT = _heads("w* = (1, 1, 1, 1)", 1, [1.0] * 4, heads=1)
ZERO_MEAN = _heads("w* = 0", 5, _ZERO, heads=1)
LARGE_MEAN = _heads("|w*| = 1000", 100, [1000.0, 0.0], heads=1)
PAPER = _heads("w* = (2, .., 2)", 10, [2.0] * 10, heads=1)
LIMIT = _heads("w* = (2, 1, 0)", "inf", _MEAN, heads=1)
PAPER_LIMIT = _heads("w* = (2, .., 2)", "inf", [2.0] * 10, heads=1)
ONE = _heads("w* = 3", 2, [3.0], heads=1)

BIASED = _heads("a guess of 1", 5, _MEAN, heads=2, guess={"bias": 1.0})
LINEAR = _heads("a linear guess and a bias", 5, _ZERO, heads=2, guess={"linear": [1.0, -1.0, 2.0], "bias": 0.5})
PAPER_GUESS = _heads("w* = 0, a linear guess", 10, [0.0] * 10, heads=1, guess={"linear": [1.0] * 10})
GUESSES = (BIASED, LINEAR, EASY, PAPER_GUESS)

# Flows.
ONE_HEAD = _heads("one head", 5, _MEAN, _DRAWN, heads=1)
TWO_HEADS = _heads("two heads", 5, _MEAN, _DRAWN, heads=2)
FOUR_HEADS = _heads("four heads", 5, _MEAN, _DRAWN, heads=4)
WIDER_ONE_HEAD = _heads("one head", 10, [2.0] * 5, _SMALL, heads=1)
FACTORED = _heads("three heads, factored", 5, [2.0, 1.0], _DRAWN, heads=3, parametrisation="factored")
FLOWS = (ONE_HEAD, TWO_HEADS, FOUR_HEADS, WIDER_ONE_HEAD, FACTORED)
_GUESS = {"linear": [1.0, 0.0, 0.0], "bias": 1.0}
GUESSED = _heads("w* = 0, four heads, a linear guess and a bias", 5, _ZERO, _DRAWN, heads=4, guess=_GUESS)
TRAINED_GUESS = (
    _heads("trainable guess", 5, _MEAN, _DRAWN, "initial-guess"),
    _heads("trainable guess", "inf", _MEAN, _DRAWN, "initial-guess"),
    _heads("trainable guess, factored", 5, _MEAN, _DRAWN, "initial-guess", parametrisation="factored"),
    _heads("trainable guess", 10, [2.0] * 5, _SMALL, "initial-guess"),
    _heads("linear transformer block", 5, _MEAN, {"kind": "random", "scale": 0.5}, "linear-block"),
)

# The problems on which most statements are judged.
TASKS = (EASY, SHORT, ZERO_MEAN, LARGE_MEAN, PAPER, LIMIT)
FINITE = (EASY, SHORT, ZERO_MEAN, LARGE_MEAN, PAPER, ONE)
LIMITS = (LIMIT, PAPER_LIMIT, EASY)
ZERO_MEAN_LIMITS = tuple(_heads("w* = 0", "inf", [0.0] * d, heads=1) for d in (3, 10, 1))
