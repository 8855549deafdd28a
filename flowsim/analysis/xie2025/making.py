"""How the claims of xie2025 are made: of heads with a guess, judged at the start unless it is said otherwise."""

from collections.abc import Callable
from typing import Any

from flowsim.analysis.base import Claim, Relation
from flowsim.analysis.xie2025 import optima


def claim(part: str, source: str, statement: str, compare: Callable[..., Any], **options: Any) -> Claim:
    """An inequality."""
    options.setdefault("along_flow", False)
    return Claim(
        f"xie2025.{part}", f"xie2025, {source}", statement, compare, setting=optima.heads_on_isotropic, **options
    )


def equation(part: str, source: str, statement: str, compare: Callable[..., Any], **options: Any) -> Claim:
    """An identity."""
    return claim(part, source, statement, compare, relation=Relation.IDENTITY, **options)
