"""What zhang2023 brings to the pictures of a run: curves beside its bounds and limits, and captions."""

import dataclasses

import numpy as np

from flowsim._core.text import in_tex
from flowsim.flow.trajectory import Trajectory
from flowsim.models import LinearAttention
from flowsim.problem.architecture import Curve, Level, Series


@dataclasses.dataclass(frozen=True)
class Equations:
    """Where the paper states each prediction, and its letter for the rate, in TeX and as a character."""

    scale_bound: str
    mu: str
    u_lower_bound: str
    limit: str
    rate_symbol: str
    letter: str


FIXED = Equations("Theorem 4.1", "(5.7)", "(A.14)", "(5.9)", "mu", "μ")
RANDOM = Equations("(4.11)", "(C.13)", "(C.12)", "(4.12)", "nu", "ν")


def curves(where: Equations, limit: float, lower_bound: float) -> dict[str, Curve]:
    """u_{-1} beside its bound and its limit, and |u_{-1} U11 - T|_F / |T|_F with T the limit of u_{-1} U11, which is
    Gamma^-1 where Lambda is fixed.
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
    """What a reader is to see in the figures of any run, with the paper's equations."""
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
