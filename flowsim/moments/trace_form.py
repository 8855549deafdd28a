"""Polynomials in traces of words, evaluated in float64 on arrays."""

import functools
from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flowsim._core.types import Scalar


class TraceForm(eqx.Module):
    """The polynomial sum_m c_m prod_k tr(word_mk) in matrices named by letters. A lower-case letter is a transpose.

    Each word is cut into a left and a right half, and few halves are distinct. Let U_i be the products of the left
    halves and V_j those of the right halves. All traces are entries of the Gram matrix <U_i, V_j^T>, which takes
    one matrix product.

    **Arguments:**

    - monomials: the words of each term, none empty.
    - coefficients: c, one for each term.
    - letters: the capital letters of the matrices.
    """

    coefficients: Float[Array, " terms"]
    factors: Int[Array, "terms degree"]
    left: Int[Array, " words"]
    right: Int[Array, " words"]
    words: tuple[str, ...] = eqx.field(static=True)
    lefts: tuple[str, ...] = eqx.field(static=True)
    rights: tuple[str, ...] = eqx.field(static=True)
    letters: str = eqx.field(static=True)

    def __init__(self, monomials: Sequence[Sequence[str]], coefficients: Sequence[float], letters: str):
        words = sorted({word for monomial in monomials for word in monomial}, key=lambda word: (-len(word), word))
        self.words = tuple(words)
        lefts: dict[str, int] = {}
        rights: dict[str, int] = {}
        halves = [_halves(word, lefts, rights) for word in words]
        self.left = jnp.asarray([lefts[left] for left, _ in halves], dtype=int)
        self.right = jnp.asarray([rights[right] for _, right in halves], dtype=int)
        self.lefts, self.rights = tuple(lefts), tuple(rights)
        places = {word: index for index, word in enumerate(words)}
        degree = max((len(monomial) for monomial in monomials), default=0)
        # The place after the last word holds 1.
        table = np.full((len(monomials), degree), len(words))
        for row, monomial in zip(table, monomials, strict=True):
            row[: len(monomial)] = [places[word] for word in monomial]
        self.factors = jnp.asarray(table)
        self.coefficients = jnp.asarray(coefficients, dtype=float)
        self.letters = letters

    def __call__(self, matrices: Mapping[str, Float[Array, "d d"]]) -> Scalar:
        """The value of the polynomial at matrices (d, d), given by letter."""
        return jnp.sum(self.terms(matrices))

    def weighted(self, weights: Float[Array, " terms"], matrices: Mapping[str, Float[Array, "d d"]]) -> Scalar:
        """The sum of all terms, each multiplied by its weight, at matrices (d, d) given by letter."""
        return jnp.sum(weights * self.terms(matrices))

    def terms(self, matrices: Mapping[str, Float[Array, "d d"]]) -> Float[Array, " terms"]:
        """The value of every term of the sum, (terms,), at matrices (d, d) given by letter."""
        return self._terms(self._traces(matrices))

    def terms_on_diagonals(
        self, diagonals: Mapping[str, Float[Array, " r"]], multiplicities: Float[Array, " r"]
    ) -> Float[Array, " terms"]:
        """The value of every term of the sum, (terms,), at diagonal matrices.

        **Arguments:** diagonals: the distinct entries of each matrix, (r,), by letter; multiplicities: how often
        each of them occurs on the diagonal, (r,).
        """
        if not self.lefts:
            return self._terms(jnp.zeros(0))
        lefts, rights = (self._products(names, diagonals, jnp.multiply, jnp.asarray) for names in self._halves)
        return self._terms(((lefts * multiplicities[None, :]) @ rights.T)[self.left, self.right])

    @property
    def _halves(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.lefts, self.rights

    def _traces(self, matrices: Mapping[str, Float[Array, "d d"]]) -> Float[Array, " words"]:
        if not self.lefts:
            return jnp.zeros(0)
        if len(set("".join(self.words))) == 1:
            powers = _power_traces(len(self.words[0]), matrices[self.letters])
            return powers[jnp.asarray([len(word) - 1 for word in self.words])]
        lefts, rights = (self._products(names, matrices, jnp.matmul, jnp.transpose) for names in self._halves)
        return (lefts.reshape(len(lefts), -1) @ jnp.swapaxes(rights, 1, 2).reshape(len(rights), -1).T)[
            self.left, self.right
        ]

    def _products(self, names, values, multiply, transpose) -> Float[Array, "..."]:
        """The products of the letters in each name, stacked.

        Each is computed from the product that is one letter shorter.
        """
        first = next(iter(values.values()))
        identity = jnp.ones_like(first) if first.ndim == 1 else jnp.eye(first.shape[0])
        known = {"": identity}

        def product(name: str):
            if name not in known:
                last = name[-1]
                factor = values[last] if last.isupper() else transpose(values[last.upper()])
                known[name] = factor if len(name) == 1 else multiply(product(name[:-1]), factor)
            return known[name]

        return jnp.stack([product(name) for name in names])

    def _terms(self, traces: Float[Array, " words"]) -> Float[Array, " terms"]:
        value = self.coefficients
        padded = jnp.append(traces, 1.0)
        for column in range(self.factors.shape[1]):
            value = value * padded[self.factors[:, column]]
        return value


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _power_traces(highest: int, matrix: Float[Array, "d d"]) -> Float[Array, " highest"]:
    """tr M^j for j = 1, .., ``highest``.

    The derivative j M^{j-1} of tr M^j is given by hand, since it takes fewer products than the chain rule.
    """
    powers = _powers((highest + 1) // 2, matrix)
    pairs = [(powers[(j + 1) // 2], powers[j // 2]) for j in range(1, highest + 1)]
    return jnp.stack([jnp.sum(left * right.T) for left, right in pairs])


@_power_traces.defjvp
def _power_traces_jvp(highest, primals, tangents):
    (matrix,), (step,) = primals, tangents
    powers = _powers(highest - 1, matrix)
    slopes = [j * jnp.sum(power.T * step) for j, power in enumerate(powers, start=1)]
    return _power_traces(highest, matrix), jnp.stack(slopes)


def _powers(highest: int, matrix: Float[Array, "d d"]) -> list[Float[Array, "d d"]]:
    """I, M, ..., M^highest."""
    powers = [jnp.eye(matrix.shape[0]), matrix]
    for _ in range(1, highest):
        powers.append(powers[-1] @ matrix)
    return powers[: highest + 1]


def _halves(word: str, lefts: dict[str, int], rights: dict[str, int]) -> tuple[str, str]:
    """Cut a cyclic word into two halves where this needs the fewest new products, and return them.

    New halves are added to ``lefts`` and ``rights``, with their numbers.
    """
    middle = (len(word) + 1) // 2
    turns = [word[i:] + word[:i] for i in range(len(word))]
    cuts = [(turn[:middle], turn[middle:]) for turn in turns]
    left, right = min(cuts, key=lambda cut: ((cut[0] not in lefts) + (cut[1] not in rights), cut))
    lefts.setdefault(left, len(lefts))
    rights.setdefault(right, len(rights))
    return left, right
