"""Laws of an example (x, y) beyond linear regression, given by the moments that enter a risk."""

from collections.abc import Iterable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks

_ROUNDING = 1e-12


class JointLaw(eqx.Module):
    """A joint law of covariates x ~ N(0, Lambda) and a label y of any kind, given by moments.

    The examples of a context and (x_query, y_query) are independent draws from it.

    **Arguments:**

    - covariance: (d, d) Lambda.
    - cross: (d,) E[y x].
    - spread: (d, d) the covariance of y x.
    - label_energy: E[y^2], at least E[y x]^T Lambda^-1 E[y x].

    **Fields:** the arguments, and samples: the pair (inputs, labels) of a law made by `of_samples`, else None.

    **Raises:** `ValueError` naming the argument.
    """

    covariance: Float[Array, "d d"]
    cross: Float[Array, " d"]
    spread: Float[Array, "d d"]
    label_energy: Float[Array, ""]
    samples: tuple[Float[Array, "n d"], Float[Array, " n"]] | None

    def __init__(
        self,
        covariance: ArrayLike | Iterable,
        cross: ArrayLike | Iterable,
        spread: ArrayLike | Iterable,
        label_energy: ArrayLike,
    ):
        self.covariance = checks.positive_definite("covariance", covariance)
        d = self.covariance.shape[0]
        self.cross = checks.as_array("cross", cross, (d,))
        self.spread = checks.positive_definite("spread", checks.as_array("spread", spread, (d, d)), semi=True)
        self.label_energy = checks.nonnegative("label_energy", label_energy)
        self.samples = None
        explained = self.cross @ self.best_weight
        if checks.is_concrete(explained) and self.label_energy < (1 - _ROUNDING) * explained:
            expected = f"at least cross^T covariance^-1 cross = {float(explained):.6g}"
            checks.refuse("label_energy", expected, f"it is {float(self.label_energy):.6g}")

    @property
    def dimension(self) -> int:
        """The dimension d."""
        return self.covariance.shape[-1]

    @property
    def best_weight(self) -> Float[Array, " d"]:
        """a = Lambda^-1 E[y x], (d,), the weight of the best linear predictor."""
        return jnp.linalg.solve(self.covariance, self.cross)

    @staticmethod
    def of_samples(inputs: ArrayLike | Iterable, labels: ArrayLike | Iterable) -> "JointLaw":
        """The law whose moments are means over n samples. The samples are stored for the standard error of a risk.

        **Arguments:** inputs: (n, d) rows x_i with mean zero, n > d; labels: (n,) y_i.

        **Raises:** `ValueError` naming the argument.
        """
        x = checks.as_array("inputs", inputs, (None, None))
        n, d = x.shape
        if n <= d:
            checks.refuse("inputs", "more rows than columns", f"their shape is {x.shape}")
        y = checks.as_array("labels", labels, (n,))
        scaled = y[:, None] * x
        cross = jnp.mean(scaled, axis=0)
        deviations = scaled - cross[None, :]
        law = JointLaw(x.T @ x / n, cross, deviations.T @ deviations / n, jnp.mean(y**2))
        return eqx.tree_at(lambda law: law.samples, law, (x, y), is_leaf=lambda leaf: leaf is None)

    @staticmethod
    def of_polynomial(
        covariance: ArrayLike | Iterable,
        weight: ArrayLike | Iterable,
        *,
        direction: ArrayLike | Iterable | None = None,
        square: ArrayLike = 0.0,
        cube: ArrayLike = 0.0,
        label_noise: ArrayLike = 0.0,
    ) -> "JointLaw":
        """The exact law of a label that is a polynomial in x plus noise.

            y = <w, x> + b <v, x>^2 + c <v, x>^3 + label_noise N(0, 1),  with the mean E[y] = b v^T Lambda v

        **Arguments:**

        - covariance: (d, d) Lambda.
        - weight: (d,) w.
        - direction: (d,) v, default w.
        - square: b.
        - cube: c.
        - label_noise: the standard deviation of the noise.

        **Raises:** `ValueError` naming the argument.

        **Source:** Stein's lemma twice, E[f x x^T] = E[f] Lambda + Lambda E[Hess f] Lambda with f = y^2.
        """
        Lambda = checks.positive_definite("covariance", covariance)
        d = Lambda.shape[0]
        w = checks.as_array("weight", weight, (d,))
        v = w if direction is None else checks.as_array("direction", direction, (d,))
        b, c = checks.as_array("square", square, ()), checks.as_array("cube", cube, ())
        noise = checks.nonnegative("label_noise", label_noise)
        along_w, along_v = Lambda @ w, Lambda @ v
        size, overlap = v @ along_v, v @ along_w
        nonlinear = 3 * b**2 * size**2 + 15 * c**2 * size**3 + 6 * c * size * overlap
        energy = w @ along_w + nonlinear + noise**2
        both = jnp.outer(along_w, along_v)
        # E[y^2 x x^T] - E[xy] E[xy]^T, with the products of E[xy] = along_w + 3 c size along_v already subtracted.
        straight = jnp.outer(along_w, along_w) + 3 * c * size * (both + both.T)
        bent = (12 * b**2 * size + 12 * c * overlap + 81 * c**2 * size**2) * jnp.outer(along_v, along_v)
        return JointLaw(Lambda, along_w + 3 * c * size * along_v, energy * Lambda + straight + bent, energy)
