"""The exact risk of several heads of linear self-attention on prompts whose weights w have a nonzero mean."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.losses.base import AbstractPopulationLoss, MinimumKind
from flowsim.losses.one_layer.head_limit import least
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.models import MultiHeadAttention
from flowsim.models.multi_head import AnyHeads
from flowsim.tasks import LinearRegression
from flowsim.tasks.regression import check_regression


class MultiHeadLoss(AbstractPopulationLoss):
    """The exact risk R = E (f - <w-hat, x_q>)^2 of the prediction f of heads with a guess y_q = w^T x_q + bias.

    The covariates are x ~ N(0, I), and each prompt of C examples has one w-hat ~ N(w*, I). So R is `HeadRisk` for
    Lambda = Sigma_w = I. Let G be the mean of z z^T over the context's tokens z = (x, y), a_i^h the columns of A_h,
    and M_i = sum_h b_h (a_i^h)^T. Then

        R = sum_{i <= d} E(<G, M_i + w_i M_{d+1}> - (w-hat_i - w_i))^2 + bias^2 E(1 + <G, M_{d+1}>)^2.

    With delta = w* - w, the least R over all matrices M_i is d (d+1)/(C+d+1) + (|delta|^2 + bias^2) 2/(d C + 2).
    The first term is the risk of one step of gradient descent from w* with the best step size C/(C+d+1).

    d heads reach this least risk. One head reaches it if delta and bias are zero; a trained guess has delta = 0 at
    the minimum. For fewer than d heads and any other guess the minimum is computed by
    `flowsim.losses.one_layer.head_limit` and counts as numerical. As C -> infinity it tends to 0 even for one head.

    **Arguments:**

    - task: a `LinearRegression` with covariance I and no option except ``prior_mean``.
    - model: the heads. The minimum is over the same number of heads. A guess that is not trained is held fixed.

    **Raises:** `ValueError` naming the argument.
    """

    risk: HeadRisk
    minimum: Scalar
    minimizer: MultiHeadAttention
    minimum_kind: MinimumKind = eqx.field(static=True)

    def __init__(self, task: LinearRegression, model: AnyHeads):
        check_regression(task, but="prior_mean", isotropic=True)
        if checks.is_concrete(task.covariance) and np.any(np.asarray(task.covariance) != np.eye(task.dimension)):
            checks.refuse("task.covariance", "the identity: x ~ N(0, I)", "it is another matrix")
        self.risk = HeadRisk(task)
        reduced = model.reduced()
        if reduced.trainable:
            reduced = eqx.tree_at(lambda m: m.w, reduced, self.risk.prior_mean)
        missed = jnp.sum((self.risk.prior_mean - reduced.w) ** 2) + reduced.bias**2
        right = checks.is_concrete(missed) and float(missed) == 0
        self.minimizer, self.minimum = least(self.risk, reduced, right)
        exact = right or reduced.b.shape[0] >= task.dimension
        self.minimum_kind = MinimumKind.EXACT if exact else MinimumKind.NUMERICAL

    @property
    def task(self) -> LinearRegression:
        """The law of the prompts."""
        return self.risk.task

    def __call__(self, model: AnyHeads) -> Scalar:
        return self.risk(model)

    def excess(self, model: AnyHeads) -> Scalar:
        reduced, least = model.reduced(), self.minimizer
        off, least_off = (self.risk.off(m.reduced().w, self.risk.forms(m)) for m in (model, least))
        # A difference of squares loses fewer digits as a product.
        sums, gaps = (jax.tree.map(change, off, least_off) for change in (jnp.add, jnp.subtract))
        products = self.risk.pairing(sums, gaps)
        guess = jnp.sum((2 * self.risk.prior_mean - reduced.w - least.w) * (least.w - reduced.w))
        return self.risk.gap * guess + jnp.sum(products[:-1]) + reduced.bias**2 * products[-1]

    def least_model(self) -> MultiHeadAttention:
        """The heads with the smallest known risk."""
        return self.minimizer

    def separated(self, model: AnyHeads) -> Float[Array, " rows"]:
        """The d + 1 terms L_1(M_1), .., L_{d+1}(M_{d+1}) in equation (18) of Xie et al. (2025). Their sum is the
        risk.

        **Raises:** `ValueError` if the guess depends on x_q, since equation (18) does not hold then.
        """
        reduced = model.reduced()
        if reduced.trainable or (checks.is_concrete(reduced.w) and np.any(np.asarray(reduced.w))):
            came = "it is trained" if reduced.trainable else "its w is not zero"
            checks.refuse("model", "one whose guess does not depend on x_q (18)", came)
        return self.risk.separated(model)

    def conserved(self, model: AnyHeads) -> Scalar | None:
        return getattr(model, "balance", None)
