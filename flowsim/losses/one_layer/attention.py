"""The exact population loss of one layer of linear attention, for any heads and any `LinearRegression`."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from flowsim._core import checks
from flowsim._core.types import Matrix, Scalar
from flowsim.losses.base import AbstractPopulationLoss, MinimumKind
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.models.heads import AbstractHeads, AbstractLabelHeads, TokenHeads, resting
from flowsim.tasks import LinearRegression

_SEARCHES, _STEPS = 8, 1000
_SEARCHED = 800  # the largest number of weights in all searches together


class AttentionLoss(AbstractPopulationLoss):
    """The exact loss L = (1/2) E (yhat - <w, x_q>)^2 of `MergedHeads`, `SeparateHeads` or `TokenHeads`.

    The prompt has N examples with x ~ N(0, Lambda) and y = <w, x> + sigma N(0, 1). N may be infinite or random. The
    query is x_q ~ N(0, Lambda_q), and w ~ N(mu, Sigma_w).

    2 L is a constant plus |r(theta)|^2, where r is a vector of residuals; see `LabelResiduals` and
    `TokenResiduals`. With r_0 = r at the minimum, the excess is (1/2) |r - r_0|^2 + <r - r_0, r_0>. If heads of
    this shape can predict as well as any heads, r_0 = 0.

    The minimum is exact for `MergedHeads` and `SeparateHeads` of any rank (by Eckart and Young), and for more than
    d `TokenHeads`. For up to d `TokenHeads` it is exact if the guess is trained or equals the prior mean mu, unless
    the heads attend to the query's token and mu is not 0. In all other cases it is the smallest loss that up to
    eight searches from random weights find.

    The excess is accurate relative to its own size down to the minimum, with one exception: for `TokenHeads` with
    r_0 not 0 its error is about eps |r_0|^2, as if two losses were subtracted.

    **Arguments:**

    - task: a `LinearRegression`.
    - model: the heads. The minimum is over heads of the same shape. A guess that is not trained is held fixed.

    **Fields:**

    - residuals: the map r, with the constant.
    - minimizer: the heads with the smallest known loss.
    - least: r_0.

    **Raises:** `ValueError` naming the argument. Methods raise it on heads of another kind, and `excess` on heads
    of a larger rank.
    """

    residuals: "AbstractResiduals"
    minimizer: AbstractHeads
    least: Float[Array, " r"]
    minimum: Scalar
    minimum_kind: MinimumKind = eqx.field(static=True)

    def __init__(self, task: LinearRegression, model: AbstractHeads):
        if not isinstance(task, LinearRegression):
            checks.refuse("task", "a LinearRegression: the exact form needs one fixed covariance", f"got {task!r:.60}")
        if model.w.shape[-1] != task.dimension:
            checks.refuse("model", f"of the task's dimension {task.dimension}", f"it is of {model.w.shape[-1]}")
        self.residuals = _residuals(task, model)
        self.minimizer, self.minimum_kind = self.residuals.best(model)
        self.least = self.residuals(self.minimizer)
        self.minimum = (self.residuals.floor + jnp.sum(self.least**2)) / 2

    @property
    def task(self) -> LinearRegression:
        """The law of the prompts."""
        return self.residuals.risk.task

    def __call__(self, model: AbstractHeads) -> Scalar:
        self._check_kind(model)
        return (self.residuals.floor + self.residuals.shift(model) + jnp.sum(self.residuals(model) ** 2)) / 2

    def excess(self, model: AbstractHeads) -> Scalar:
        self._check_kind(model)
        if model.rank > self.minimizer.rank:
            came = f"their rank is {model.rank}, and the minimum is of heads of rank {self.minimizer.rank}"
            checks.refuse("model", "of at most the rank of the heads that the loss was built for", came)
        off = self.residuals(model) - self.least
        along = self.residuals.along(model, off, self.least)
        return (jnp.sum(off**2) + 2 * along + self.residuals.shift(model)) / 2

    def least_model(self) -> AbstractHeads:
        """The heads with the smallest known loss."""
        return self.minimizer

    def conserved(self, model: AbstractHeads) -> Float[Array, " numbers"]:
        """The balances of the heads (see ``model.balances``), as one vector."""
        return model.balances.reshape(-1)

    def _check_kind(self, model: AbstractHeads) -> None:
        """Refuse heads whose class or `_kind` differs from the minimizer. The number and the weights may differ.

        **Raises:** `ValueError` naming the first difference.
        """
        ours, theirs = ((type(one).__name__, *_kind(one)) for one in (self.minimizer, model))
        if ours != theirs:
            names = ("the class", "the dimension", "trainable", "query_token")
            place = next(i for i, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other)
            came = f"{names[place]} is {theirs[place]} and not {ours[place]}"
            checks.refuse("model", "of the kind that the loss was built for", came)


def _kind(model: AbstractHeads) -> tuple[int, bool, bool]:
    """The dimension of the prompts, whether the guess is trained, and whether heads attend to the query's token."""
    return model.w.shape[-1], model.trainable, getattr(model, "query_token", False)


def _residuals(task: LinearRegression, model: AbstractHeads) -> "AbstractResiduals":
    if isinstance(model, TokenHeads):
        return TokenResiduals(task, model)
    if isinstance(model, AbstractLabelHeads):
        return LabelResiduals(task, model)
    checks.refuse("model", "MergedHeads, SeparateHeads or TokenHeads", f"got {type(model).__name__}")


class AbstractResiduals(eqx.Module):
    """Heads' residuals: a vector r(theta) with E (yhat - <w, x_q>)^2 = floor + shift + |r|^2.

    **Fields:**

    - risk: the law of the prompts, in the coordinates of `HeadRisk`.
    - floor: the constant for the guess that the residuals were built with.
    """

    risk: eqx.AbstractVar[HeadRisk]
    floor: eqx.AbstractVar[Scalar]

    @abc.abstractmethod
    def __call__(self, model: AbstractHeads) -> Float[Array, " r"]:
        """The residuals r of heads."""

    @abc.abstractmethod
    def shift(self, model: AbstractHeads) -> Scalar:
        """The amount that must be added to ``floor`` for the guess of these heads.

        It is exactly zero if their guess is the guess that the residuals were built with.
        """

    @abc.abstractmethod
    def along(self, model: AbstractHeads, off: Float[Array, " r"], least: Float[Array, " r"]) -> Scalar:
        """The product <r - r_0, r_0>, where r_0 are the residuals at the minimum.

        **Arguments:** model: heads with the residuals r; off: r - r_0; least: r_0.
        """

    @abc.abstractmethod
    def best(self, like: AbstractHeads) -> tuple[AbstractHeads, MinimumKind]:
        """The heads of the shape of ``like`` with the smallest known |r|, and how this minimum is known.

        A guess that is not trained is the guess of ``like``.
        """


class LabelResiduals(AbstractResiduals):
    """The residuals of `MergedHeads` and `SeparateHeads`, which predict yhat = beta^T Gamma x_q + g^T x_q + bias.

    beta is the mean of y x over the context. D, K, K_q, J and n are defined in `HeadRisk`. Let
    Gamma' = K^T Gamma K_q, m = K^T mu, c = K_q^T (g - mu), and E = D + m m^T + (tr D + |m|^2 + sigma^2) I. Let
    X = D + n E be the covariance of K^-1 beta. Then

        E (yhat - <w, x_q>)^2 = tr(J n D X^-1 E J^T) + bias^2
                                + |X^{1/2} (Gamma' - X^-1 D J^T)|_F^2 + |c + Gamma'^T m|^2.

    If the guess is trained, the residuals are the matrix and the vector in the second line. Otherwise c is fixed.
    The second line is then |Y^{1/2} (Gamma' - T)|_F^2 + |missed|^2 with Y = X + m m^T and T = Y^-1 (D J^T - m c^T).
    The residuals are Y^{1/2} (Gamma' - T), and the remainder |missed|^2 belongs to ``floor``.

    If the guess is trained, let Z = X and T = X^-1 D J^T, else Z = Y. With the singular value decomposition
    Z^{1/2} T = sum_i s_i l_i r_i^T, the best heads of rank R learn the first R terms. So <r - r_0, r_0> is
    -sum_{i > R} s_i l_i^T Z^{1/2} Gamma' r_i, a sum over the terms that they do not learn.

    **Fields:**

    - root, target: Z^{1/2} and T.
    - like: heads with the rank and the guess for which the minimum is known.
    - turn: Y^-1 m, which multiplies -c^T in T; zero if the guess is trained.
    - free_root: X^{1/2}.
    - missed: the matrix X^{1/2} (T - X^-1 D J^T) and the vector c + T^T m, both zero if the guess is trained.
    - singular: the l_i as columns, the s_i, and the r_i as rows.
    """

    risk: HeadRisk
    floor: Scalar
    root: Matrix
    target: Matrix
    like: AbstractLabelHeads
    turn: Float[Array, " d"]
    free_root: Matrix
    missed: tuple[Matrix, Float[Array, " d"]]
    singular: tuple[Matrix, Float[Array, " d"], Matrix]

    def __init__(self, task: LinearRegression, like: AbstractLabelHeads):
        self.risk = risk = HeadRisk(task)
        d, D, n, m = task.dimension, jnp.diag(risk.spread), risk.inverse_length, risk.root.T @ risk.prior_mean
        energy = D + jnp.outer(m, m) + (risk.label_energy + m @ m) * jnp.eye(d)
        spread = D + n * energy
        drive = D @ risk.drive.T
        self.root, self.target = self.free_root, free = _root_and_solution(spread, drive)
        self.like, self.turn, self.missed = like, jnp.zeros(d), (jnp.zeros((d, d)), jnp.zeros(d))
        self.floor = jnp.sum(risk.drive.T * (n * energy @ self.target)) + like.bias**2
        if not like.trainable:
            c = risk.query_root.T @ (like.w - risk.prior_mean)
            right = jnp.concatenate([drive - jnp.outer(m, c), m[:, None]], axis=1)
            self.root, solution = _root_and_solution(spread + jnp.outer(m, m), right)
            self.target, self.turn = solution[:, :d], solution[:, d]
            self.missed = (self.free_root @ (self.target - free), c + self.target.T @ m)
            self.floor += sum(jnp.sum(part**2) for part in self.missed)
        left, sizes, right = jnp.linalg.svd(self.root @ self.target)
        self.singular = (left, sizes, right)

    def __call__(self, model: AbstractLabelHeads) -> Float[Array, " r"]:
        risk, model = self.risk, resting(model)
        seen = risk.root.T @ model.readout @ risk.query_root
        found = (self.root @ (seen - self.target) + self._turned(model)).reshape(-1)
        if not model.trainable:
            return found
        missed = risk.query_root.T @ (model.w - risk.prior_mean)
        return jnp.append(found, missed + seen.T @ (risk.root.T @ risk.prior_mean))

    def along(self, model: AbstractLabelHeads, off: Float[Array, " r"], least: Float[Array, " r"]) -> Scalar:
        risk, model, reached = self.risk, resting(model), self.like.rank
        left, sizes, right = self.singular
        left, sizes, right = left[:, reached:].T, sizes[reached:], right[reached:]
        seen = model.readout_along(left @ self.root @ risk.root.T, right @ risk.query_root.T)
        turned = jnp.einsum("ni,ij,nj->n", left, self._turned(model), right)
        return -sizes @ (seen + turned)

    def shift(self, model: AbstractLabelHeads) -> Scalar:
        model, further = resting(model), self._further(model)
        along = further * (1 - self.turn @ (self.risk.root.T @ self.risk.prior_mean))
        steps = (-self.free_root @ jnp.outer(self.turn, further), along)
        moved = sum(jnp.sum(step * (2 * part + step)) for step, part in zip(steps, self.missed, strict=True))
        return moved + (model.bias - self.like.bias) * (model.bias + self.like.bias)

    def _turned(self, model: AbstractLabelHeads) -> Matrix:
        """The change of the residuals if the guess differs from the guess of ``like``. Zero if the guess is
        trained.
        """
        return self.root @ jnp.outer(self.turn, self._further(model))

    def _further(self, model: AbstractLabelHeads) -> Float[Array, " d"]:
        """The change of c = K_q^T (g - mu) if the guess differs from the guess of ``like``. Zero if the guess is
        trained.
        """
        if model.trainable:
            return jnp.zeros_like(self.turn)
        return self.risk.query_root.T @ jax.lax.stop_gradient(model.w - self.like.w)

    def best(self, like: AbstractLabelHeads) -> tuple[AbstractLabelHeads, MinimumKind]:
        risk, (left, sizes, right) = self.risk, self.singular
        kept = jnp.where(jnp.arange(sizes.size) < like.rank, sizes, 0.0)
        _, seen = _root_and_solution(self.root, (left * kept[None, :]) @ right)
        readout = jnp.linalg.solve(risk.root.T, jnp.linalg.solve(risk.query_root.T, seen.T).T)
        w = risk.prior_mean - readout.T @ (risk.task.covariance @ risk.prior_mean) if like.trainable else like.w
        return like.of_readout(readout, w), MinimumKind.EXACT


class TokenResiduals(AbstractResiduals):
    """The residuals of `TokenHeads`, whose prediction is yhat = sum_h p_h^T G Q_h x_q + g^T x_q + bias.

    In the symbols of `HeadRisk`, with s_i = sum_j S_ijj,

        E (yhat - <w, x_q>)^2 = R_0 + bias^2
                                + sum_i [(t_i + c_i + 3 n s_i)^2 + 2n |P_i + pi_i D|_F^2
                                         + 4 |(D + n (D + nu I))^{1/2} (p_i - p_i^*)|^2 + W pi_i^2]
                                + 6 E N^-2 |S|^2 + 9 (E N^-2 - n^2) |s|^2.

    R_0 is the least risk of any heads with the guess g = mu. It is reached at p_i = p_i^*, where all other squares
    are zero. The terms with S are left out unless the heads attend to the query's token.

    **Fields:** floor: R_0 + bias^2, for the ``bias`` of the heads that the residuals were built with.
    """

    risk: HeadRisk
    floor: Scalar
    bias: Scalar

    def __init__(self, task: LinearRegression, like: TokenHeads):
        self.risk, self.bias = HeadRisk(task, like.query_token), like.bias
        self.floor = self.risk.descent_risk + like.bias**2

    def shift(self, model: TokenHeads) -> Scalar:
        model = resting(model)
        return (model.bias - self.bias) * (model.bias + self.bias)

    def __call__(self, model: TokenHeads) -> Float[Array, " r"]:
        risk, reduced = self.risk, model.reduced()
        forms = risk.forms(model)
        # The last form belongs to the query's label, which these heads ignore.
        shifted, p, pi = forms.shifted[:-1], forms.p[:-1], forms.pi[:-1]
        b, n = risk.spread, risk.inverse_length
        means = risk.mean(forms)[:-1] + risk.query_root.T @ (reduced.w - risk.prior_mean)
        parts = [
            jnp.sqrt(2 * n) * shifted,
            2 * jnp.sqrt(b + n * (b + risk.label_energy))[None, :] * (p - risk.best(reduced.w).p[:-1]),
            jnp.sqrt(risk.label_weight) * pi,
        ]
        if forms.cubic is not None:
            trace = jnp.trace(forms.cubic, axis1=1, axis2=2)
            square = risk.task.inverse_square_length
            means = means + 3 * n * trace
            parts += [jnp.sqrt(6 * square) * forms.cubic, 3 * jnp.sqrt(jnp.maximum(square - n**2, 0.0)) * trace]
        return jnp.concatenate([part.reshape(-1) for part in [means, *parts]])

    def along(self, model: TokenHeads, off: Float[Array, " r"], least: Float[Array, " r"]) -> Scalar:
        return off @ least

    def best(self, like: TokenHeads) -> tuple[TokenHeads, MinimumKind]:
        risk, d = self.risk, self.risk.task.dimension
        off = risk.prior_mean if like.query_token else jnp.zeros(d)
        off = off if like.trainable else jnp.append(off, like.w - risk.prior_mean)
        if not checks.is_concrete(off) or np.any(np.asarray(off)):
            if like.p.shape[0] > d:
                return _solved(self, like), MinimumKind.EXACT
            return _searched(self, like), MinimumKind.NUMERICAL
        wanted = 2 * risk.best(risk.prior_mean).p[:-1].T
        block = jnp.linalg.solve(risk.root.T, jnp.linalg.solve(risk.query_root.T, wanted.T).T)
        p = jnp.zeros_like(like.p).at[0].set(jnp.append(-risk.prior_mean, 1.0))
        Q = jnp.zeros_like(like.Q).at[0, :d].set(block)
        size = jnp.sqrt(jnp.linalg.norm(block) / jnp.linalg.norm(p))
        balanced = (p * size, Q / jnp.where(size > 0, size, 1.0))
        w = risk.prior_mean if like.trainable else like.w
        return eqx.tree_at(lambda m: (m.p, m.Q, m.w), like, (*balanced, w)), MinimumKind.EXACT


@eqx.filter_jit
def _solved(residuals: TokenResiduals, like: TokenHeads) -> TokenHeads:
    """The heads of least |r| if there are more than d heads, by linear least squares.

    With p_h = e_h for the first d + 1 heads, the sum over heads can form any matrices, and r is affine in Q and in
    the guess.
    """
    H, rows, d = like.Q.shape
    basis = eqx.tree_at(lambda m: (m.p, m.Q), like, (jnp.eye(H, rows), jnp.zeros_like(like.Q)))

    def model(weights: tuple[Array, Array]) -> TokenHeads:
        Q = jnp.pad(weights[0], ((0, H - rows), (0, 0), (0, 0)))
        return eqx.tree_at(lambda m: (m.Q, m.w), basis, (Q, weights[1] if like.trainable else like.w))

    start, unravel = ravel_pytree((jnp.zeros((rows, rows, d)), jnp.zeros(d)))
    missed = lambda x: residuals(model(unravel(x)))
    solution, *_ = jnp.linalg.lstsq(jax.jacfwd(missed)(start), -missed(start))
    return model(unravel(solution))


@eqx.filter_jit
def _searched(residuals: TokenResiduals, like: TokenHeads) -> TokenHeads:
    """The heads with the smallest |r| that the method of Levenberg and Marquardt finds from random weights."""

    def model(weights: tuple[Array, ...]) -> TokenHeads:
        p, Q, w = weights
        return eqx.tree_at(lambda m: (m.p, m.Q, m.w), like, (p, Q, w if like.trainable else like.w))

    def search(key: Array) -> tuple[tuple[Array, ...], Scalar]:
        keys = jax.random.split(key, 3)
        start = tuple(jax.random.normal(key, x.shape) for key, x in zip(keys, (like.p, like.Q, like.w), strict=True))
        solver = optimistix.LevenbergMarquardt(1e-12, 1e-14)
        missed = lambda weights, _: residuals(model(weights))
        found = optimistix.least_squares(missed, solver, start, max_steps=_STEPS, throw=False).value
        return found, jnp.sum(residuals(model(found)) ** 2)

    weights = like.p.size + like.Q.size
    searches = max(1, min(_SEARCHES, _SEARCHED // weights))
    ends, squares = jax.lax.map(search, jax.random.split(jax.random.key(0), searches))
    least = jnp.argmin(jnp.where(jnp.isfinite(squares), squares, jnp.inf))
    return model(jax.tree.map(lambda leaf: leaf[least], ends))


def _root_and_solution(matrix: Matrix, right: Float[Array, "d columns"]) -> tuple[Matrix, Float[Array, "d columns"]]:
    """A^{1/2} and A^+ B for a positive semidefinite matrix A and a right-hand side B.

    A^+ is the pseudoinverse, since A may be singular: for example if w does not vary and the context is infinite.
    """
    values, vectors = jnp.linalg.eigh(matrix)
    some = values > values.size * jnp.finfo(values.dtype).eps * values[-1]
    inverse = jnp.where(some, 1 / jnp.where(some, values, 1.0), 0.0)
    root = (vectors * jnp.sqrt(jnp.where(some, values, 0.0))[None, :]) @ vectors.T
    return root, vectors @ (inverse[:, None] * (vectors.T @ right))
