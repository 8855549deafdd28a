"""How functions of a prompt turn with its covariates, under U_Sigma = Sigma^{1/2} U Sigma^{-1/2} with U orthogonal.

ahn2023's proofs of Theorems 4 and 5 show that the layers at points of S turn with them, and so do their derivatives.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flowsim._core.types import Matrix
from flowsim.papers.ahn2023.prompts import Columns, Drawn, inputs_of, nearest_on_the_set


def _turns(drawn: Drawn) -> tuple[Matrix, Matrix]:
    """U_Sigma and its inverse as the paper writes it, Sigma^{1/2} U^T Sigma^{-1/2}."""
    inverse = jnp.linalg.inv(drawn.root)
    return drawn.root @ drawn.turn @ inverse, drawn.root @ drawn.turn.T @ inverse


def turned(drawn: Drawn, function: Callable[[Drawn, Columns], Array]) -> tuple[Array, Array]:
    """The function at U_Sigma X_0, and U_Sigma times the function at X_0."""
    turn, X = _turns(drawn)[0], inputs_of(drawn)
    return function(drawn, turn @ X), turn @ function(drawn, X)


def _slope(drawn: Drawn, function: Callable[[Drawn, Columns], Array], name: str, steps: Array, X: Columns) -> Array:
    """The derivatives of a function in each A_j, or in each B_j, along its step."""
    of = lambda matrices: function(drawn._replace(**{name: matrices}), X)
    matrices = getattr(drawn, name)
    along = [jnp.zeros_like(steps).at[j].set(steps[j]) for j in range(steps.shape[0])]
    return jnp.stack([jax.jvp(of, (matrices,), (step,))[1] for step in along])


def turned_slopes(drawn: Drawn, function: Callable[[Drawn, Columns], Array], name: str) -> tuple[Array, Array]:
    """U_Sigma^-1 d/dt of a function at U_Sigma X_0 along drawn R_j (name "A") or S_j ("B"), and d/dt at X_0 along the
    turned step U_Sigma^T R_j U_Sigma or U_Sigma^-1 S_j U_Sigma, both at the nearest point of S.
    """
    (turn, back), X, point = _turns(drawn), inputs_of(drawn), nearest_on_the_set(drawn)
    steps = getattr(drawn, name)
    moved = (turn.T if name == "A" else back) @ steps @ turn
    return back @ _slope(point, function, name, steps, turn @ X), _slope(point, function, name, moved, X)
