"""The architectures that problem files can name. `register` adds a user's architecture."""

from flowsim._core import checks
from flowsim._core.checks import refuse
from flowsim.problem.architecture import Architecture
from flowsim.problem.architectures.attention import ATTENTION
from flowsim.problem.architectures.heads import INITIAL_GUESS, LINEAR_BLOCK, MULTI_HEAD
from flowsim.problem.architectures.layers import LOOPED, MULTI_LAYER
from flowsim.problem.architectures.linear_attention import LINEAR_ATTENTION
from flowsim.problem.architectures.masked_attention import MASKED_ATTENTION
from flowsim.problem.architectures.softmax_attention import SOFTMAX_ATTENTION

_ARCHITECTURES: dict[str, Architecture] = {}


def register(architecture: Architecture) -> None:
    """Add an architecture, so that problem files can name it as ``model.architecture``.

    **Raises:** `ValueError` if another architecture has the same name.
    """
    if _ARCHITECTURES.setdefault(architecture.name, architecture) is not architecture:
        refuse("the architecture's name", "one that is not taken", f'it is "{architecture.name}"')


def architecture_of(name: str) -> Architecture:
    """The architecture with this name.

    **Raises:** `ProblemError` naming the field ``model.architecture`` if no architecture has this name.
    """
    if name not in _ARCHITECTURES:
        refuse(
            "model.architecture",
            f"one of {', '.join(_ARCHITECTURES)}",
            f'it is "{name}"{checks.nearest(name, _ARCHITECTURES)}',
        )
    return _ARCHITECTURES[name]


for _known in (
    LINEAR_ATTENTION,
    MASKED_ATTENTION,
    LOOPED,
    MULTI_LAYER,
    SOFTMAX_ATTENTION,
    MULTI_HEAD,
    INITIAL_GUESS,
    LINEAR_BLOCK,
    ATTENTION,
):
    register(_known)
