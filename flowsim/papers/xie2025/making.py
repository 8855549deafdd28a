"""How the claims of xie2025 are made: of heads with a guess, judged at the start unless it is said otherwise."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import PyTree

from flowsim.claims.claim import Claim, Comparison, Relation, equal
from flowsim.claims.hypotheses import Hypothesis, can_be_drawn, finite_context, hypothesis
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiHeadLoss
from flowsim.papers.xie2025 import exact, prompts, setting

Compare = Callable[[MultiHeadLoss, Trajectory], Comparison]
Conditions = Callable[[MultiHeadLoss, PyTree], list[Hypothesis]]


def claim(part: str, source: str, statement: str, compare: Callable[..., Any], **options: Any) -> Claim:
    """An inequality."""
    options.setdefault("along_flow", False)
    return Claim(
        f"xie2025.{part}", f"xie2025, {source}", statement, compare, setting=setting.heads_on_isotropic, **options
    )


def equation(part: str, source: str, statement: str, compare: Callable[..., Any], **options: Any) -> Claim:
    """An identity."""
    return claim(part, source, statement, compare, relation=Relation.IDENTITY, **options)


def of_moments(make: Callable[..., Claim], *texts: str, compare: Compare, **options: Any) -> Claim:
    """A claim that is judged by moments which are written out: d must be small."""
    return _where(_few_terms, _small, make, texts, compare, options)


def of_prompts(make: Callable[..., Claim], *texts: str, compare: Compare, **options: Any) -> Claim:
    """A claim that is judged on prompts, which must fit into memory."""
    return _where(finite_context, lambda loss: can_be_drawn(loss.task), make, texts, compare, options)


def of_all_prompts(make: Callable[..., Claim], *texts: str, compare: Compare, **options: Any) -> Claim:
    """A claim that is judged on all prompts of an exact mean, which must be few."""
    possible = lambda loss: all(condition.met for condition in prompts.few_prompts(loss, None))
    return _where(prompts.few_prompts, possible, make, texts, compare, options)


def _where(
    conditions: Conditions,
    possible: Callable[[MultiHeadLoss], bool],
    make: Callable[..., Claim],
    texts: tuple[str, ...],
    compare: Compare,
    options: dict[str, Any],
) -> Claim:
    """A claim with further conditions, where they are not met of a comparison that promises nothing."""
    others: Conditions = options.pop("hypotheses", lambda loss, start: [])

    @functools.wraps(compare)
    def guarded(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
        if possible(loss):
            return compare(loss, trajectory)
        return eqx.tree_at(lambda c: c.promised, equal(jnp.zeros(1), 0.0, 1.0), jnp.zeros(1, dtype=bool))

    hypotheses = lambda loss, start: others(loss, start) + conditions(loss, start)
    return make(*texts, guarded, hypotheses=hypotheses, **options)


def _few_terms(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    name = f"d at most {exact.MOST_COORDINATES}, so that moments can be written out"
    return [hypothesis(name, float(loss.task.dimension), "<=", float(exact.MOST_COORDINATES))]


def _small(loss: MultiHeadLoss) -> bool:
    return loss.task.dimension <= exact.MOST_COORDINATES
