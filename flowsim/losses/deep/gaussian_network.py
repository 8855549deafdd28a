"""The exact population loss of two-layer networks on Gaussian inputs."""

from collections.abc import Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.losses.base import AbstractPopulationLoss, MinimumKind, unknown_minimum
from flowsim.models import TwoLayerNetwork
from flowsim.moments.activations import lengths, mixed_differences, products


class GaussianNetworkLoss(AbstractPopulationLoss):
    """The loss L = E (f(x) - f*(x))^2/2 of a two-layer network f and a teacher f*, for inputs x ~ N(0, S).

    Both networks are `TwoLayerNetwork`: f(x) = sum_i a_i phi(w_i . x) and f*(x) = sum_i a*_i phi(w*_i . x), without
    biases. Let b = (a, -a*), and let v_i be the rows of W followed by those of W*. Then
    L = (1/2) sum_ij b_i b_j E phi(v_i . x) phi(v_j . x). With c_uv = u^T S v and
    cos theta = c_uv / sqrt(c_uu c_vv), the kernels are

        erf:    E phi(u . x) phi(v . x) = (2/pi) arcsin(c_uv / sqrt((1 + c_uu)(1 + c_vv))),
        relu:   E phi(u . x) phi(v . x) = sqrt(c_uu c_vv) (sin theta + (pi - theta) cos theta)/(2 pi).

    At w_i = 0, where relu has no derivative, the gradient is the mean of the one-sided gradients.

    This double sum over kernels has an error of about 1e-16 times the size of the layers. If the minimum is 0, L is
    therefore computed from differences. A unit of f is close to a unit w* of the teacher if its distance from w* is
    less than half of the smallest distance from w* to zero and to the teacher's other units. A close unit enters L
    through its difference from w*. The mean products of these differences do not cancel.

    Let delta be the relative size of these differences, and let the angles between units of the teacher be at least
    epsilon. Then the relative error of L is about 1e-16/(delta epsilon^2), and L is accurate down to about 1e-30.
    For erf L has full relative accuracy if the units are close to the teacher's in both layers. Several units of f
    may be close to one unit of the teacher. A unit may also be close up to a common sign of a_i and w_i for erf,
    and up to a positive factor moved from w_i to a_i for relu. If f is near f* in another way, or the teacher has
    equal units, the error of L remains about 1e-16. The gradient is computed from the sum over kernels and has a
    relative error of about 1e-16/delta.

    **Arguments:**

    - teacher: the network f*.
    - units: the number of units of f, default as many as the teacher has. With fewer units the minimum is unknown,
      otherwise it is 0.
    - covariance: (d, d) S, positive definite, default the identity.
    - speeds: c_a and c_W of the flow da/dt = -c_a dL/da, dW/dt = -c_W dL/dW, positive, default 1 and 1.

    **Fields:**

    - root: (d, d) a matrix R with R R^T = S.
    - reach: for each unit of the teacher, the distance below which a unit of f is close to it.
    - speed: the speeds, or None.

    **Raises:** `ValueError` naming the argument.

    **Source:** Saad and Solla (1995, On-line learning in soft committee machines) for erf; Cho and Saul (2009, Kernel
    methods for deep learning) for relu.
    """

    teacher: TwoLayerNetwork
    root: Float[Array, "d d"]
    reach: Float[Array, " units"]
    speed: tuple[Scalar, Scalar] | None
    minimum: Scalar
    units: int = eqx.field(static=True)
    minimum_kind: MinimumKind = eqx.field(static=True)

    def __init__(
        self,
        teacher: TwoLayerNetwork,
        units: int | None = None,
        *,
        covariance: ArrayLike | Iterable | None = None,
        speeds: tuple[ArrayLike, ArrayLike] | None = None,
    ):
        if not isinstance(teacher, TwoLayerNetwork):
            checks.refuse("teacher", "a TwoLayerNetwork", f"got {teacher!r:.60}")
        width, d = teacher.W.shape
        self.teacher = teacher
        self.units = width if units is None else checks.count("units", units)
        self.root = jnp.eye(d)
        if covariance is not None:
            S = checks.positive_definite("covariance", covariance)
            if S.shape != (d, d):
                checks.refuse("covariance", f"of shape ({d}, {d}), as the teacher's inputs", f"its shape is {S.shape}")
            self.root = jnp.linalg.cholesky(S)
        self.speed = None
        if speeds is not None:
            given = len(speeds) if hasattr(speeds, "__len__") else 1
            if given != 2:
                checks.refuse("speeds", "two numbers, of a and of W", f"there are {given}")
            self.speed = checks.positive("speeds", speeds[0]), checks.positive("speeds", speeds[1])
        self.reach = self._reach()
        realizable = self.units >= width
        self.minimum = jnp.zeros(()) if realizable else unknown_minimum()
        self.minimum_kind = MinimumKind.EXACT if realizable else MinimumKind.UNKNOWN

    def __call__(self, model: TwoLayerNetwork) -> Scalar:
        self._check(model)
        return self._sum_of_kernels(model) if self.minimum_kind is MinimumKind.UNKNOWN else self._by_differences(model)

    def excess(self, model: TwoLayerNetwork) -> Scalar:
        return self(model) - self.minimum

    @eqx.filter_jit
    def gradient(self, model: TwoLayerNetwork) -> TwoLayerNetwork:
        """The gradient of the sum over kernels.

        The gradient of the differences would take several times longer to compile.
        """
        self._check(model)
        return jax.grad(self._sum_of_kernels)(model)

    @property
    def may_have_kinks(self) -> bool:
        return self.teacher.activation == "relu"

    def conserved(self, model: TwoLayerNetwork) -> Float[Array, " units"] | None:
        """|w_i|^2/c_W - a_i^2/c_a for each unit if the activation is relu; None for erf."""
        if self.teacher.activation == "erf":
            return None
        c_a, c_W = (1.0, 1.0) if self.speed is None else self.speed
        return jnp.sum(jnp.square(model.W), axis=1) / c_W - jnp.square(model.a) / c_a

    def least_model(self) -> TwoLayerNetwork | None:
        """The teacher, padded with units of zero weights to the units of f; None if f has fewer units."""
        more = self.units - self.teacher.a.size
        if more < 0:
            return None
        a, W = jnp.pad(self.teacher.a, (0, more)), jnp.pad(self.teacher.W, ((0, more), (0, 0)))
        return eqx.tree_at(lambda model: (model.a, model.W), self.teacher, (a, W))

    def speeds(self, model: TwoLayerNetwork) -> TwoLayerNetwork | None:
        if self.speed is None:
            return None
        return eqx.tree_at(lambda model: (model.a, model.W), model, self.speed)

    def _sum_of_kernels(self, model: TwoLayerNetwork) -> Scalar:
        b = jnp.concatenate([model.a, -self.teacher.a])
        V = jnp.concatenate([model.W, self.teacher.W]) @ self.root
        return b @ products(self.teacher.activation, V, V) @ b / 2

    def _by_differences(self, model: TwoLayerNetwork) -> Scalar:
        (a, U), (teacher_a, T) = self._apart(model), self._apart(self.teacher)
        nearest = self._near(U, T)
        if self.teacher.activation == "erf":
            nearest = nearest - self._near(U, -T)
        # f - f* is the sum of a_i (phi_i - phi of the nearest unit) and of the teacher's units times what is left.
        coefficients = jnp.concatenate([a, a @ nearest - teacher_a])
        base = jnp.concatenate([nearest @ T, jnp.zeros_like(T)])
        moved = jnp.concatenate([U, T]) - base
        return coefficients @ mixed_differences(self.teacher.activation, base, moved, base, moved) @ coefficients / 2

    def _apart(self, model: TwoLayerNetwork) -> tuple[Float[Array, " units"], Float[Array, "units d"]]:
        """The layers a and W of the same network on inputs of covariance I. For relu each row of W has length 1."""
        W = model.W @ self.root
        if self.teacher.activation == "erf":
            return model.a, W
        size = lengths(W)
        return model.a * size, W / jnp.where(size > 0, size, 1.0)[:, None]

    def _reach(self) -> Float[Array, " units"]:
        """For each unit of the teacher, half of the smallest distance to the other units and to zero.

        For erf the negatives of the other units count, too.
        """
        _, T = self._apart(self.teacher)
        others = lengths(T[:, None] - T[None])
        if self.teacher.activation == "erf":
            others = jnp.minimum(others, lengths(T[:, None] + T[None]))
        return jnp.minimum(lengths(T), jnp.min(others, axis=1, where=~jnp.eye(len(T), dtype=bool), initial=jnp.inf)) / 2

    def _near(self, U: Float[Array, "n d"], T: Float[Array, "units d"]) -> Float[Array, "n units"]:
        """The matrix with the entry (i, j) = 1 if the rows U_i and T_j are closer than ``reach[j]``, else 0."""
        return (lengths(U[:, None] - T[None]) < self.reach[None]).astype(float)

    def _check(self, model: TwoLayerNetwork) -> None:
        teacher = self.teacher
        if not isinstance(model, TwoLayerNetwork) or model.activation != teacher.activation:
            came = f"it is a {type(model).__name__}"
            if isinstance(model, TwoLayerNetwork):
                came = f"its activation is {model.activation}"
            checks.refuse("model", f"a TwoLayerNetwork with the activation {teacher.activation}", came)
        shape = self.units, teacher.W.shape[1]
        if jnp.shape(model.W) != shape:
            checks.refuse("model.W", f"of shape {checks.shape_text(shape)}", f"its shape is {jnp.shape(model.W)}")
