"""zhang2023's predictions for a start by formulas, without integration, and its curves and captions of figures."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from flowsim._core import checks
from flowsim._core.text import in_tex, in_unicode
from flowsim._core.types import Scalar
from flowsim.claims import Hypothesis
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss, RandomCovarianceLoss
from flowsim.losses.arrowhead import balanced_minimum, local_rate
from flowsim.models import LinearAttention
from flowsim.papers.paper import Predictions, Rate, ScaleBound
from flowsim.papers.zhang2023.conditions import (
    assumption_3_3,
    pl_constant,
    random_pl_constant,
    random_scale_bound,
    random_scale_condition,
    random_u_lower_bound_sq,
    scale_condition,
    u_lower_bound_sq,
)
from flowsim.papers.zhang2023.prompt_lengths import PromptLengths, prompt_lengths
from flowsim.problem.architecture import Curve, Level, Series
from flowsim.tasks import LinearRegression, RandomCovarianceRegression
from flowsim.tasks.covariance_laws import DiagonalLaw


@dataclasses.dataclass(frozen=True)
class Equations:
    """Where the paper states each prediction.

    scale_bound, mu, u_lower_bound, limit: the number of the equation or theorem. rate_symbol, letter: the paper's
    letter for the rate, as the name of a TeX command and as a character.
    """

    scale_bound: str
    mu: str
    u_lower_bound: str
    limit: str
    rate_symbol: str
    letter: str


FIXED = Equations("Theorem 4.1", "(5.7)", "(A.14)", "(5.9)", "mu", "μ")
RANDOM = Equations("(4.11)", "(C.13)", "(C.12)", "(4.12)", "nu", "ν")


def curves(where: Equations, limit: float, lower_bound: float) -> dict[str, Curve]:
    """The curves of u_{-1} and of |u_{-1} U11 - T|_F / |T|_F along a flow, where T is the limit of u_{-1} U11.

    The curve of u_{-1} also shows its limit, and its lower bound if that is positive. If Lambda is fixed, T is
    Gamma^-1.
    """
    levels = [Level(limit, f"limit {where.limit}: {in_tex(limit)}", is_bound=False)]
    if lower_bound > 0:
        levels.insert(0, Level(lower_bound, f"lower bound {where.u_lower_bound}: {in_tex(lower_bound)}", is_bound=True))
    if where is FIXED:
        target, symbol, lemma, source = r"\Gamma^{-1}", "Γ⁻¹", "Lemma A.5, (A.14)", "Lemma 5.4, (5.9)"
    else:
        target, symbol, lemma, source = "T", "T, diag(ξᵢ/γᵢ) for diagonal covariances", "Lemma C.7, (C.12)", "Lemma C.8"
    weight = (
        f"The value weight u₋₁ (solid), its lower bound of zhang2023, {lemma} (dashed, where it is real), and its "
        f"limit of {'(5.9)' if where is FIXED else '(C.17)'} (dash-dotted)."
    )
    distance = (
        f"Relative distance in the Frobenius norm of the effective weights u₋₁U₁₁ to their limit, {symbol}. zhang2023, "
        f"{source}."
    )
    label = rf"$\|u_{{-1}}U_{{11}} - {target}\|_F \,/\, \|{target}\|_F$"
    return {
        "value-weight": Curve(r"$u_{-1}$", weight, _value_weight, tuple(levels), logarithmic=False),
        "distance": Curve(label, distance, _distance),
    }


def _value_weight(trajectory: Trajectory, limit: LinearAttention) -> Series:
    return np.asarray(trajectory.models.u_minus1)


def _distance(trajectory: Trajectory, limit: LinearAttention) -> Series:
    target = np.asarray(limit.u_minus1 * limit.U11)
    product = np.asarray(trajectory.models.u_minus1)[:, None, None] * np.asarray(trajectory.models.U11)
    return np.linalg.norm(product - target, axis=(1, 2)) / np.linalg.norm(target)


def captions(where: Equations) -> dict[str, str]:
    """The captions of the figures that every run has, by name, with references to the paper's equations."""
    rate, fixed = where.letter, where is FIXED
    lemma, closed_form = ("Lemma 5.4", "Corollary A.2") if fixed else ("Lemma C.8", "(C.7)")
    return {
        "excess": (
            "Excess loss ℓ(t) − min ℓ over flow time, on a logarithmic (left) and a linear time axis (right). Solid: "
            f"computed, in the closed form of zhang2023, {closed_form}. Dashed, where {rate} > 0: the theorem's "
            f"envelope exp(−{rate}t) (ℓ(0) − min ℓ), zhang2023, {lemma} with {rate} of {where.mu}. Dash-dotted, "
            f"through the last point: the decay that the Hessian at the limit {where.limit} predicts, which a balanced "
            "flow reaches."
        ),
        "pl-ratio": (
            "The Polyak–Łojasiewicz ratio ‖∇ℓ‖² / (ℓ − min ℓ) along the flow. Its smallest value (circle) is the sharp "
            "constant on this trajectory; under its hypotheses the theorem promises that it stays above "
            f"{rate} (dashed). zhang2023, {lemma}, {'(5.7) and (5.8)' if fixed else '(C.13) and (C.14)'}."
        ),
        "scale-condition": (
            f"The start (circle) against the scale condition {'σ² √d ‖Γ‖ < 2 ' if fixed else ''}of zhang2023, "
            f"{where.scale_bound}, which holds in the shaded region. The curve is the rate {rate} of {where.mu} that "
            f"{lemma} promises from the same start at other scales: a larger start is promised a faster rate only up "
            "to 1/√2 of the bound."
        ),
        "test_risk": (
            "Risk E(ŷ − y)² of the query's label on the prompts of [test] along the flow, exact (solid). Dash-dotted: "
            f"the risk of the limit {'(4.1)' if fixed else '(4.12)'}. Dashed, where it is positive: the error of the "
            "best linear predictor, which no test length undercuts. zhang2023, Theorem 4.2, (4.6)."
        ),
    }


def predictions(task: Any, start: PyTree) -> Predictions:
    """What Zhang, Frei and Bartlett (2023) predict by formula for a task and a start of linear attention.

    Nothing is integrated. The theorem on random covariances requires diagonal covariances. For other random
    covariances its bounds are NaN.

    **Raises:** `ValueError` on a task or a start that the paper does not cover.
    """
    tasks = (LinearRegression, RandomCovarianceRegression)
    for name, value, kinds in (("task", task, tasks), ("start", start, (LinearAttention,))):
        if not isinstance(value, kinds):
            expected = f"a {' or a '.join(kind.__name__ for kind in kinds)}"
            checks.refuse(name, expected, f"it is a {type(value).__name__}")
    conditions = assumption_3_3(task, start)
    lengths = None
    if isinstance(task, LinearRegression):
        loss, scalars, equations = LinearAttentionLoss(task), _fixed_scalars, FIXED
        conditions.append(scale_condition(task, start))
        coefficients = {"gamma": task.gamma()}
        lengths = functools.partial(prompt_lengths, task.covariance)
    else:
        loss, scalars, equations = RandomCovarianceLoss(task), _random_scalars, RANDOM
        coefficients = {}
        if isinstance(task.law, DiagonalLaw):
            conditions.append(random_scale_condition(loss, start))
            zeta = loss.structure.curvature
            coefficients = {"gamma": jnp.diagonal(zeta), "xi": loss.structure.drive, "zeta": zeta}
    # On u12 = u21 = 0 it takes no tensor of third order.
    arrow = loss.arrowhead(start)
    bound, mu, scale_bound, rate, excess = (float(value) for value in _evaluate(scalars, loss, start, arrow))
    constants = {"mu": mu, "u_lower_bound": bound, "local_rate": rate, "scale_bound": scale_bound}
    numbers = PredictedNumbers(float(start.u_minus1), constants, balanced_minimum(loss.structure), excess, equations)
    return numbers.predictions(tuple(conditions), coefficients, lengths)


@dataclasses.dataclass(frozen=True)
class PredictedNumbers:
    """The numbers that the paper predicts, and where it states them.

    - sigma: the scale of the start.
    - constants: by name. mu is the rate mu of (5.7), or nu of (C.13) for random covariances; u_lower_bound is the
      bound (A.14) or (C.12); local_rate is the rate of decay of the excess near the limit; scale_bound is the bound
      on sigma of Theorem 4.1 or (4.11).
    - limit: the weights of (5.9) or (4.12).
    - excess: the excess at the start.
    - equations: where the paper states each number.
    """

    sigma: float
    constants: Mapping[str, float]
    limit: LinearAttention
    excess: float
    equations: Equations

    def predictions(
        self,
        conditions: tuple[Hypothesis, ...],
        coefficients: Mapping[str, Array],
        lengths: Callable[[float], PromptLengths] | None,
    ) -> Predictions:
        """These numbers, in the form of a paper's `Predictions`.

        **Arguments:** conditions: Assumption 3.3 and the scale condition; coefficients: Gamma, or gamma_i, xi_i and
        zeta_ij of (C.3); lengths: risk -> the prompt lengths of Corollary 4.3.
        """
        where, mu, local_rate = self.equations, self.constants["mu"], self.constants["local_rate"]
        scale_bound, u_bound = self.constants["scale_bound"], self.constants["u_lower_bound"]
        u_limit = self.limit.u_minus1
        # The formula has a positive value at many starts of which the theorem promises nothing.
        rate = mu if all(one.met for one in conditions) else 0.0
        facts = {
            **coefficients,
            f"sigma must be below, {where.scale_bound}": scale_bound,
            f"{where.rate_symbol} {where.mu}": mu,
            f"lower bound of u_minus1 {where.u_lower_bound}": u_bound,
            f"limit of u_minus1 {where.limit}": u_limit,
            f"limit of U11 {where.limit}": self.limit.U11,
            "excess at the start": self.excess,
            "local rate of the excess at the minimum": local_rate,
        }
        promised = {
            f"bound on the scale σ ({where.scale_bound.strip('()')})": in_unicode(scale_bound),
            f"rate {where.letter} that the theorem promises {where.mu}": in_unicode(rate) if rate > 0 else "none",
            f"lower bound of u₋₁ {where.u_lower_bound}": in_unicode(u_bound),
            f"limit of u₋₁ {where.limit}": in_unicode(u_limit, ".10g"),
            f"rate of the excess near the limit {where.limit}, from the Hessian": in_unicode(local_rate),
        }
        root = r" < \sqrt{2/(\sqrt{d}\,\|\Gamma\|_{op})}" if where is FIXED else ""
        condition = rf"{where.scale_bound}: $\sigma{root}$ {'=' if root else '<'}"
        return Predictions(
            paper="zhang2023",
            heading=f"Assumption 3.3 and the scale condition, {where.scale_bound}",
            conditions=conditions,
            coefficients=coefficients,
            constants=self.constants,
            limits={"u_minus1": u_limit, "U11": self.limit.U11},
            limit=self.limit,
            excess=self.excess,
            rate=Rate(rate, rf"\{where.rate_symbol}", where.mu),
            local_rate=Rate(local_rate, "", where.limit),
            scale_bound=ScaleBound(self.sigma, scale_bound, condition, self._rates),
            facts=facts,
            promised=promised,
            curves=curves(where, float(u_limit), u_bound),
            captions=captions(where),
            prompt_lengths=lengths,
        )

    def _rates(self, scales: Series) -> Series:
        """The rates that the paper guarantees for the same start at other scales.

        They are proportional to s^2 (1 - s^2), where s is the scale divided by its bound.
        """
        bound = self.constants["scale_bound"]

        def shape(scale: Any) -> Any:
            square = (scale / bound) * (scale / bound)  # a power raises where it overflows
            return square * (1 - square)

        return np.divide(self.constants["mu"], shape(abs(np.float64(self.sigma)))) * shape(scales)


@eqx.filter_jit
def _evaluate(scalars, loss, start, arrow):
    excess = loss.excess(start) if arrow is None else arrow.excess(arrow.state(start))
    return *scalars(loss, start), local_rate(loss.structure), excess


def _fixed_scalars(loss: LinearAttentionLoss, start: LinearAttention) -> tuple[Scalar, Scalar, Scalar]:
    task = loss.task
    scale_bound = jnp.sqrt(2 / (jnp.sqrt(task.dimension) * loss.gamma_eigenvalues[-1]))
    return jnp.sqrt(u_lower_bound_sq(task, start)), pl_constant(task, start), scale_bound


def _random_scalars(loss: RandomCovarianceLoss, start: LinearAttention) -> tuple[Scalar, Scalar, Scalar]:
    if not isinstance(loss.task.law, DiagonalLaw):
        nan = jnp.asarray(jnp.nan)
        return nan, nan, nan
    bound = jnp.sqrt(random_u_lower_bound_sq(loss, start))
    return bound, random_pl_constant(loss, start), random_scale_bound(loss, start)
