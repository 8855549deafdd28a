"""The expected residual energy E tr(S R R^T) with R = (I - W A_1) ... (I - W A_k), computed exactly.

W is the sample covariance of n vectors z ~ N(0, I) in d dimensions.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.moments.polynomial import TracePolynomial, about, at_size
from flowsim.moments.trace_form import TraceForm
from flowsim.moments.words import expected_traces, power_words, residual_words

_LETTERS = "ABCDEFG"
WEIGHT = "S"
BIAS = "U"


class ResidualEnergy(eqx.Module):
    """A polynomial in traces of products of matrices A_i, expanded in the differences F_i = c_i I - A_i.

    The coefficients for given n, d and centres c_i are computed in rational arithmetic and rounded once. If the
    c_i I are the best multiples of I, the terms hardly cancel at any n, so the value keeps its digits in floats.

    **Arguments:** polynomial: in the A_i; context_length: n; dimension: d; centres: c_1, .., c_k.

    **Fields:**

    - constant: the value where all F_i = 0.
    - form: the other terms, as a function of the F_i and of fixed matrices.
    - centres: the c_i, (k,).
    """

    constant: Scalar
    form: TraceForm
    centres: Float[Array, " k"]

    def __init__(self, polynomial: TracePolynomial, context_length: float, dimension: int, centres: Sequence[float]):
        length = None if np.isinf(context_length) else int(context_length)
        moved = dict(zip(_LETTERS, map(Fraction, map(float, centres)), strict=False))
        expansion = about(at_size(polynomial.terms, length, dimension), moved, dimension, polynomial.symmetric)
        constant = expansion.pop((), Fraction(0))
        letters = sorted({letter.upper() for monomial in expansion for word in monomial for letter in word})
        self.constant = jnp.asarray(float(constant))
        self.form = TraceForm(list(expansion), [float(value) for value in expansion.values()], "".join(letters))
        self.centres = jnp.asarray(centres, dtype=float)

    def terms(
        self, layers: Float[Array, "k d d"], fixed: Mapping[str, Float[Array, "d d"]] | None = None
    ) -> Float[Array, " terms"]:
        """All terms except the constant.

        **Arguments:** layers: the A_i; fixed: the other matrices, by their letters `WEIGHT` and `BIAS`.
        """
        identity = jnp.eye(layers.shape[-1])
        offsets = self.centres[:, None, None] * identity[None] - layers
        return self.form.terms(self._named(offsets, fixed))

    def terms_on_diagonals(
        self,
        layers: Float[Array, "k r"],
        multiplicities: Float[Array, " r"],
        fixed: Mapping[str, Float[Array, " r"]] | None = None,
    ) -> Float[Array, " terms"]:
        """All terms except the constant, for diagonal matrices.

        **Arguments:** layers, fixed: as in `terms`, each matrix given by its r distinct diagonal entries;
        multiplicities: how often each of these entries occurs.
        """
        return self.form.terms_on_diagonals(self._named(self.centres[:, None] - layers, fixed), multiplicities)

    def _named(self, offsets: Array, fixed: Mapping[str, Array] | None) -> dict[str, Array]:
        return dict(zip(_LETTERS, offsets, strict=False)) | dict(fixed or {})


@functools.cache
def layer_terms(layers: int, symmetric: bool, weighted: bool) -> TracePolynomial:
    """The polynomial E tr(S R R^T) with R = (I - W A_1) ... (I - W A_k), where S = I unless ``weighted``.

    **Arguments:** layers: the number k of layers; symmetric: whether the A_i are symmetric.
    """
    letters = _LETTERS[:layers]
    return _energy(letters, letters if symmetric else "", weighted)


@functools.cache
def loop_terms(loops: int, symmetric: bool, weighted: bool) -> TracePolynomial:
    """The polynomial E tr(S R R^T) with R = (I - W A)^L, where L is ``loops`` and S = I unless ``weighted``.

    **Arguments:** loops: the number of layers; symmetric: whether A is symmetric.
    """
    return _energy(_LETTERS[0] * loops, _LETTERS[0] if symmetric else "", weighted)


@functools.cache
def power_terms(power: int) -> TracePolynomial:
    """The polynomial E tr (I - W A)^m = E tr (I - A^{1/2} W A^{1/2})^m, where m is ``power``."""
    letter = _LETTERS[0]
    return TracePolynomial(expected_traces(power_words(letter, power), letter), letter)


@functools.cache
def bias_terms(loops: int) -> TracePolynomial:
    """The polynomial E u^T (I - R)(I - R)^T u with R = (I - W A)^L, for any matrix A.

    L is ``loops``. The letter `BIAS` stands for the matrix u u^T.
    """
    letter = _LETTERS[0]
    words = residual_words(letter * loops, BIAS, BIAS)
    for power in range(loops + 1):
        # These terms add -2 u^T R u, and the next line u^T u.
        words[(BIAS + ("W" + letter) * power,)] -= 2 * (-1) ** power * math.comb(loops, power)
    words[(BIAS,)] += 1
    return TracePolynomial(expected_traces(words, BIAS), BIAS)


def _energy(letters: str, symmetric: str, weighted: bool) -> TracePolynomial:
    known = symmetric + (WEIGHT if weighted else "")
    return TracePolynomial(expected_traces(residual_words(letters, known, WEIGHT if weighted else ""), known), known)
