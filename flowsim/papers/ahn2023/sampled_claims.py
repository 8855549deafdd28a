"""The claims of ahn2023, section 6, over all matrices, by prompts: with B the loss has no exact form there."""

import functools
from typing import Any

import jax.numpy as jnp

from flowsim.claims.claim import Claim, Comparison, Relation, at_most
from flowsim.papers.ahn2023 import sampled_layers, spaces
from flowsim.papers.ahn2023.multi_layer_problems import ON_SCALARS, SAMPLED, WITHOUT_B


def _claim(part: str, source: str, statement: str, compare: Any, **options: Any) -> Claim:
    """A claim that promises nothing of layers without B."""

    @functools.wraps(compare)
    def of_layers_with_B(loss: Any, trajectory: Any) -> Comparison:
        if trajectory.models.B is None:
            return at_most(jnp.zeros(1), 1.0, promised=False)
        return compare(loss, trajectory)

    identifier, place = f"ahn2023.{part}", f"ahn2023, {source}"
    return Claim(identifier, place, statement, of_layers_with_B, setting=sampled_layers.sampled_layers, **options)


def _ends(loss: Any, trajectory: Any) -> dict[str, Any]:
    return {} if trajectory.models.B is None else sampled_layers.ends(loss, trajectory)


_AT_SCALARS: dict[str, Any] = {
    "along_flow": False,
    "hypotheses": sampled_layers.at_scalars,
    "problems": ON_SCALARS,
    "spaces": spaces.ON_SCALARS,
}
_SHORT_OF: dict[str, Any] = {**_AT_SCALARS, "problems": (ON_SCALARS[0], ON_SCALARS[2], WITHOUT_B)}
_PER_CENT = f"{100 * sampled_layers.APART:.0f} per cent"
_FLOWS: dict[str, Any] = {
    "hypotheses": sampled_layers.moving,
    "constants": _ends,
    "problems": SAMPLED,
    "spaces": spaces.SAMPLED,
}
_NOTE = (
    "Along gradient flow of an average over drawn prompts from a Gaussian start, where the paper uses L-BFGS, 5 times. "
    "The first problem has the paper's d = 5, n = 10, k = 3 and Sigma, at which samples do not tell the loss; the "
    "others have not: with d = 3, n = 100, k = 2 (A_0 and A_1 alone) they do."
)
_LIMIT = " Nothing bounds how far such a flow still is from its limit."
_SEEN = " What can be said at a finite time of what the figure says of the limit: less."
CLAIMS: tuple[Claim, ...] = (
    _claim(
        "theorem-5.all-matrices",
        "proof of Theorem 5",
        f"On S, where f(A, B) = F(a, b), grad_{{A_i}} f = (dF/da_i) Sigma/d and grad_{{B_i}} f = (dF/db_i) I/d, to "
        f"{_PER_CENT}",
        sampled_layers.theorem_5,
        form="corrected",
        **_AT_SCALARS,
        note="By prompts of the matrices, against quadrature of the scalars: (36) and (37) with S~_j = s_j I say this.",
    ),
    _claim(
        "eq-35.all-matrices",
        "(35)",
        "Along dA_i/dt = -r_i Sigma^-1, dB_i/dt = -s_i Sigma^-1 d/dt f <= -sum |grad_{A_i} f|_F^2 + "
        "|grad_{B_i} f|_F^2 at points of S",
        sampled_layers.eq_35,
        **_SHORT_OF,
        note="By prompts, at the start alone: the sentence of eq-35, and false as there. The part of A has a factor d "
        "to spare, as the 1/d of the text above it is left out; the part of B falls short by the factor tr Sigma^-1 "
        "where that is below 1, which decides where A is at rest, as in the last problem.",
    ),
    _claim(
        "eq-35.all-matrices",
        "(35)",
        "Along dA_i/dt = -r_i Sigma^-1, dB_i/dt = -s_i I, with 1/d in r_i and s_i, d/dt f = -sum |grad_{A_i} f|_F^2 + "
        f"|grad_{{B_i}} f|_F^2, to {_PER_CENT}",
        sampled_layers.eq_35_corrected,
        form="corrected",
        **_AT_SCALARS,
        note="By prompts, at the start alone.",
    ),
    _claim(
        "figure-3.training.loss",
        "Figure 3 (c)",
        "The loss converges to 0",
        sampled_layers.loss_tends_to_zero,
        relation=Relation.IDENTITY,
        **_FLOWS,
        note=_NOTE + _LIMIT,
    ),
    _claim(
        "figure-3.training.B",
        "section 6.1, Figure 3 (a), (b)",
        "Dist(B_i, I) -> 0 from Gaussian starts",
        sampled_layers.moves_to_identity,
        relation=Relation.IDENTITY,
        **_FLOWS,
        note=_NOTE + _LIMIT,
    ),
    _claim(
        "figure-3.training.B",
        "section 6.1, Figure 3 (a), (b)",
        "Dist(B_i, I) is smaller at the end of the run than at its Gaussian start",
        sampled_layers.nearer_to_identity,
        form="corrected",
        **_FLOWS,
        note=_NOTE + _SEEN,
    ),
    _claim(
        "figure-3.training.A",
        "section 6.1, Figure 3 (d)-(f), blue",
        "Dist(Sigma^{1/2} A_i Sigma^{1/2}, I) -> 0 from Gaussian starts",
        sampled_layers.preconditions,
        relation=Relation.IDENTITY,
        **_FLOWS,
        note=_NOTE + _LIMIT,
    ),
    _claim(
        "figure-3.training.A",
        "section 6.1, Figure 3 (d)-(f), blue",
        "Dist(Sigma^{1/2} A_i Sigma^{1/2}, I) is smaller at the end of the run than at its Gaussian start",
        sampled_layers.better_preconditioned,
        form="corrected",
        **_FLOWS,
        note=_NOTE + _SEEN,
    ),
    _claim(
        "figure-4.training",
        "section 6.1, Figure 4 (c)-(e)",
        "At the end of training |A_0|_F < |A_1|_F < |A_2|_F",
        sampled_layers.increasing,
        **_FLOWS,
        note=_NOTE + " The end of training is the last time of the problem.",
    ),
)
