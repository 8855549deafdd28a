"""The best multiples of the inverse covariance (provisional)."""

import functools

import numpy as np
import scipy.optimize

from flowsim.losses import residual_energy
from flowsim.moments.polynomial import at_size


@functools.cache
def layer_minimum(dimension: int, context_length: float, layers: int, looped: bool = False):
    """The scalars and the value."""
    energy = residual_energy
    polynomial = energy.loop_terms(layers, True, False) if looped else energy.layer_terms(layers, True, False)
    values = at_size(polynomial.terms, None if np.isinf(context_length) else int(context_length), dimension)
    k = 1 if looped else layers
    rows = [
        (float(c) * float(dimension) ** len(ms), [sum(w.count("ABCDEFG"[i]) for w in ms) for i in range(k)])
        for ms, c in values.items()
    ]
    c, e = np.array([c for c, _ in rows]), np.array([e for _, e in rows])
    start = 0.5 * (1 + 0.3 * np.linspace(-1, 1, k)) if k > 1 else np.array([0.5])
    options = {"xatol": 1e-13, "fatol": 1e-16, "maxiter": 20000, "maxfev": 20000}
    found = scipy.optimize.minimize(
        lambda a: float(np.sum(c * np.prod(np.asarray(a)[None] ** e, axis=1))),
        start,
        method="Nelder-Mead",
        options=options,
    )
    return tuple(map(float, found.x)), float(found.fun)


def scalar_minimum(dimension: int, context_length: float, loops: int):
    """The scalar and the value."""
    scalars, value = layer_minimum(dimension, context_length, loops, True)
    return scalars[0], value
