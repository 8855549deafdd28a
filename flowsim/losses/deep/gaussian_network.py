"""The exact population loss of networks of two layers on Gaussian inputs."""

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
    """L = E (f(x) - f*(x))^2/2 for x ~ N(0, S), a network f of two layers and a teacher f*, each a `TwoLayerNetwork`.

    With b = (a, -a*) and the rows v of W and of W*, L = (1/2) sum_ij b_i b_j E phi(v_i . x) phi(v_j . x) and

        erf:    E phi(u . x) phi(v . x) = (2/pi) arcsin(c_uv / sqrt((1 + c_uu)(1 + c_vv))),
        relu:   E phi(u . x) phi(v . x) = sqrt(c_uu c_vv) (sin theta + (pi - theta) cos theta)/(2 pi),

    with c_uv = u^T S v and cos theta = c_uv / sqrt(c_uu c_vv). There are no biases. At w_i = 0, where relu has no
    derivative, the gradient is the mean of those on both sides.

    Summed over kernels, L would have an error of about 1e-16 of the size of each layer. If the minimum is 0, L is then
    computed from differences near the teacher. A unit of f is close to a unit of the teacher if their distance is less
    than half of the distances between units of the teacher. It then enters as its difference from that unit, and the
    mean products of such differences do not cancel.

    Let these differences have the relative size delta, and let the angles between units of the teacher be at least
    epsilon. Then the relative error of L is about 1e-16/(delta epsilon^2), and L is accurate down to about 1e-30. For
    erf and units close to the teacher's in both layers it has full relative accuracy. For erf a unit may be close up
    to the sign of both layers, for relu up to a factor, and several units may be close to one. If f is near f* in
    another way, or the teacher has equal units, the error remains about 1e-16. The gradient is that of the sum of
    kernels, with a relative error of about 1e-16/delta.

    **Arguments:**

    - teacher: the network f*.
    - units: how many units f has, default as many as the teacher. With fewer the minimum is unknown, else it is 0.
    - covariance: (d, d) S, positive definite, default the identity.
    - speeds: c_a and c_W of the flow da/dt = -c_a dL/da, dW/dt = -c_W dL/dW, positive, default 1 and 1.

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
        """The gradient of the sum of kernels, which is compiled several times faster than that of the differences."""
        self._check(model)
        return jax.grad(self._sum_of_kernels)(model)

    @property
    def may_have_kinks(self) -> bool:
        return self.teacher.activation == "relu"

    def conserved(self, model: TwoLayerNetwork) -> Float[Array, " units"] | None:
        """|w_i|^2/c_W - a_i^2/c_a of each unit for relu."""
        if self.teacher.activation == "erf":
            return None
        c_a, c_W = (1.0, 1.0) if self.speed is None else self.speed
        return jnp.sum(jnp.square(model.W), axis=1) / c_W - jnp.square(model.a) / c_a

    def least_model(self) -> TwoLayerNetwork | None:
        """The teacher, with units of zero weights where f has more; None if the minimum is unknown."""
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
        """a_i and w_i for inputs of covariance I; for relu |w_i| is a factor of a_i."""
        W = model.W @ self.root
        if self.teacher.activation == "erf":
            return model.a, W
        size = lengths(W)
        return model.a * size, W / jnp.where(size > 0, size, 1.0)[:, None]

    def _reach(self) -> Float[Array, " units"]:
        """Half of the distance of each unit of the teacher to the others and to zero."""
        _, T = self._apart(self.teacher)
        others = lengths(T[:, None] - T[None])
        if self.teacher.activation == "erf":
            others = jnp.minimum(others, lengths(T[:, None] + T[None]))
        return jnp.minimum(lengths(T), jnp.min(others, axis=1, where=~jnp.eye(len(T), dtype=bool), initial=jnp.inf)) / 2

    def _near(self, U: Float[Array, "n d"], T: Float[Array, "units d"]) -> Float[Array, "n units"]:
        """1 where a row of U is within the reach of one of T, else 0."""
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
