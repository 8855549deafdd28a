"""Traced functions, shared by the solves of one flow and by flows of the same shape."""

from collections.abc import Callable

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from flowsim._core.balls.enclosure import Traced
from flowsim._core.functions import Shared

_MOST = 256  # traces that are kept for other flows
_LARGE = 1e5  # numbers that a function captures: comparing them by value takes longer than tracing again
_SHARED: Shared[Traced] = Shared(_MOST)


class Traces:
    """The traced functions of one flow.

    Functions of another flow are traced again only if they captured something else than those of this one.
    """

    def __init__(self) -> None:
        # The values hold the objects, so that the ids in a key are not reused.
        self._known: dict[tuple[object, ...], tuple[object, Traced]] = {}

    def get(
        self,
        of: tuple[object, ...],
        captured: PyTree,
        function: Callable[..., PyTree],
        *given: PyTree,
        keeps: Callable[[], bool] = lambda: True,
    ) -> Traced:
        """The trace of a function.

        **Arguments:**

        - of: objects that determine the trace within this flow. Booleans and numbers are compared by value, all others
          by identity.
        - captured: what the function uses besides its arguments, compared by value.
        - function, given: as in `Traced`.
        - keeps: called after tracing, whether other flows may use the trace. They may not if the function used
          anything else.
        """
        key = tuple(one if isinstance(one, bool | int | float) else id(one) for one in of)
        if key not in self._known:
            make = lambda: (Traced(function, *given), keeps())
            if sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(captured, eqx.is_array))) > _LARGE:
                traced, _ = make()
            else:
                traced = _SHARED.get((captured, jax.tree.map(np.shape, given)), make)
            self._known[key] = of, traced
        return self._known[key][1]
