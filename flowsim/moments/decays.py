"""Sums of many decays, sum_i w_i a_i^k exp(-2 a_i s), exact or compressed to a bounded number of terms."""

from collections.abc import Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

MOMENTS = 6
_BLOCK = 4096  # terms that are summed at once; more are summed by rows, each of which fits into the cache
_BINS_PER_OCTAVE = 32
_TERMS = 16
_LARGEST_EXPONENT = 16.0  # of the series; a bin with a larger one has decayed to e^-700


class DecaySums(eqx.Module):
    """The sums F_k(s) = sum_i w_i a_i^k exp(-2 a_i s) for k = 0, .., 5, with rates a_i and weights w_i >= 0.

    Rates close to each other share a bin of centre c and width 2h. With a = c + h x, |x| <= 1,

        exp(-2 a s) = exp(-2 c s) sum_p (-2 h s)^p/p! x^p,

    so a bin only stores the sums of w a^k x^p over its rates. Exact sums have a bin for every rate.

    Bins may be spread over several rows, whose sums are added up.

    **Fields:**

    - centres: c, (rows, bins).
    - widths: h, (rows, bins), or (rows, 0) for exact sums.
    - coefficients: the sums of w a^k x^p over each bin, (rows, k, p, bins).
    """

    centres: Float[Array, "rows bins"]
    widths: Float[Array, "rows _"]
    coefficients: Float[Array, "rows moments terms bins"]

    @staticmethod
    def exact(rates: Float[Array, "d d"], weights: Float[Array, "d d"]) -> "DecaySums":
        """The exact sums over all entries of a matrix of rates, (d, d), and the matrix of their weights, (d, d)."""
        rows = (1, rates.size) if rates.size <= _BLOCK else rates.shape
        powers = jnp.stack([(rates**k * weights).reshape(rows) for k in range(MOMENTS)], axis=1)
        return DecaySums(rates.reshape(rows), jnp.zeros((rows[0], 0)), powers[:, :, None, :])

    @staticmethod
    def compressed(blocks: Iterable[tuple[np.ndarray, np.ndarray]], least: float, largest: float) -> "DecaySums":
        """The sums with 32 bins for each octave of rates. The rates are read one block at a time.

        The relative error is at most a few units in the last place, until every octave of rates has decayed to
        e^-64 of its value at s = 0. The first neglected term is below (0.022 a s)^16/16!.

        **Arguments:**

        - blocks: pairs (rates, weights) of arrays (n,).
        - least, largest: positive bounds on all rates.
        """
        first = int(np.floor(np.log2(least) * _BINS_PER_OCTAVE))
        count = int(np.floor(np.log2(largest) * _BINS_PER_OCTAVE)) + 1 - first
        edges = np.exp2(np.arange(first, first + count + 1) / _BINS_PER_OCTAVE)
        centres, widths = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
        powers = np.zeros((_TERMS + MOMENTS - 1, count))
        for rates, weights in blocks:
            place = np.floor(np.log2(rates) * _BINS_PER_OCTAVE).astype(np.int64) - first
            np.clip(place, 0, count - 1, out=place)
            x, term = (rates - centres[place]) / widths[place], weights
            for row in powers:
                row += np.bincount(place, term, count)
                term = term * x
        # Padded to a power of two, so that few programs are compiled.
        filled = np.flatnonzero(powers[0] > 0)
        spare = 2 ** max(filled.size - 1, 0).bit_length() - filled.size
        pad = lambda row: np.append(row[filled], np.zeros(spare))
        centres, widths, powers = pad(centres), pad(widths), np.stack([pad(row) for row in powers])
        moments = []
        for _ in range(MOMENTS):
            moments.append(powers[:_TERMS])
            # a = c + h x
            powers = centres * powers[:-1] + widths * powers[1:]
        return DecaySums(*(jax.device_put(part[None]) for part in (centres, widths, np.stack(moments))))

    def __call__(self, s: Float[Array, " points"]) -> Float[Array, "moments points"]:
        """F_k(s) for all k, (6, points), at times s >= 0, (points,)."""
        terms = self.coefficients.shape[2]

        def row(parts):
            centres, widths, coefficients = parts
            decays = jnp.exp(-2 * centres[:, None] * s[None, :])
            if terms == 1:
                return coefficients[:, 0] @ decays
            exponents = jnp.maximum(-2 * widths[:, None] * s[None, :], -_LARGEST_EXPONENT)
            series = [decays]
            for p in range(1, terms):
                series.append(series[-1] * exponents / p)
            return jnp.einsum("kpb,pbs->ks", coefficients, jnp.stack(series))

        return jnp.sum(jax.lax.map(row, (self.centres, self.widths, self.coefficients)), axis=0)
