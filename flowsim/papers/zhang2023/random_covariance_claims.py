"""The claims of zhang2023, section 4.3 and appendix C, each with problems chosen so that it may break."""

from flowsim.claims.claim import Claim, Relation
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.comparisons import stays_balanced, u_positive
from flowsim.papers.zhang2023.minima import every_random_minimum, tends_to_random_global_minimum
from flowsim.papers.zhang2023.random_covariance import (
    assumption,
    assumption_and_scale,
    corrected_limit,
    dynamics,
    entrywise_dynamics,
    independent_variances,
    limit_constants,
    loss_of_the_dynamics,
    minimum_and_excess,
    pl,
    pl_constants,
    printed_limit,
    proof_equality,
    proof_inequality,
    random_covariances,
    u_bounded_below,
    u_constants,
    value_weight_limit,
)

_THETA = [[1, 0.5, 0], [0, 1, -0.5], [0.3, 0, 1]]
EASY = {
    "name": "d = 3, Exponential(1), N = 10",
    "task": {"covariance_law": {"family": "exponential", "rate": 1.0, "dimension": 3}, "context_length": 10},
    "init": {"kind": "balanced", "scale": 0.1, "theta": _THETA},
}
HARD = {
    "name": "d = 5, Gamma(0.2) with rates from 1 to 10, N = 1, rank one, sigma = 1e-5",
    "task": {
        "covariance_law": {"family": "gamma", "shape": 0.2, "rate": [1.0, 2.0, 3.0, 5.0, 10.0]},
        "context_length": 1,
    },
    "init": {"kind": "balanced", "scale": 1e-5, "rank": 1, "seed": 1},
}
EDGE = {
    "name": "d = 5, log-normal, just under the scale condition",
    "task": {
        "covariance_law": {"family": "log-normal", "location": [-1.0, -0.5, 0.0, 0.5, 0.5], "spread": 0.8},
        "context_length": 4,
    },
    "init": {"kind": "balanced", "scale": 0.115, "seed": 3},
}
ONE_DIMENSION = {
    "name": "d = 1, two values",
    "task": {
        "covariance_law": {"family": "discrete", "values": [[0.1, 5.0]], "probabilities": [[0.9, 0.1]]},
        "context_length": 5,
    },
    "init": {"kind": "balanced", "scale": 0.05, "theta": [[1.0]]},
}
_FULL = {
    "name": "d = 3, Wishart, no common eigenbasis",
    "task": {
        "covariance_law": {
            "family": "wishart", "mean": [[1, 0.3, 0], [0.3, 0.5, 0], [0, 0, 2]], "degrees": 5, "samples": 512,
        },
        "context_length": 6,
    },
    "init": {"kind": "balanced", "scale": 0.1, "theta": _THETA},
}  # fmt: skip
PROBLEMS = (EASY, HARD, EDGE, ONE_DIMENSION)


def _claim(part: str, source: str, statement: str, compare, **options) -> Claim:
    options.setdefault("problems", PROBLEMS)
    options.setdefault("spaces", spaces.RANDOM)
    options.setdefault("setting", independent_variances)
    return Claim(f"zhang2023.{part}", f"zhang2023, {source}", statement, compare, **options)


CLAIMS: tuple[Claim, ...] = (
    _claim(
        "theorem-4.5",
        "Theorem 4.5",
        "Under Assumption 3.3, E[Lambda] Theta != 0 and (4.11), W^PV and W^KQ tend to (4.12), a global minimum",
        tends_to_random_global_minimum,
        relation=Relation.IDENTITY,
        hypotheses=assumption_and_scale,
        constants=limit_constants,
    ),
    _claim(
        "lemma-c.1",
        "Lemma C.1",
        "dU11/dt and du_{-1}/dt are (C.1), and u12 = u21 = 0 for all t, whatever the law of Lambda",
        dynamics,
        relation=Relation.IDENTITY,
        hypotheses=assumption,
        setting=random_covariances,
        problems=(*PROBLEMS, _FULL),
        note="Compared with the gradient of the exact loss over all weights, u12 and u21 included.",
    ),
    _claim(
        "corollary-c.2",
        "Corollary C.2",
        "With diagonal covariances (C.1) is (C.4), entry by entry",
        entrywise_dynamics,
        relation=Relation.IDENTITY,
        hypotheses=assumption,
    ),
    _claim(
        "lemma-c.3",
        "Lemma C.3",
        "(C.4) is the gradient flow of (C.5), whose two lines agree",
        loss_of_the_dynamics,
        relation=Relation.IDENTITY,
        hypotheses=assumption,
    ),
    _claim(
        "lemma-c.4",
        "Lemma C.4",
        "min l = -(1/2) sum xi_i^2/gamma_i, and l - min l is (C.7)",
        minimum_and_excess,
        relation=Relation.IDENTITY,
        note="Judged by subtraction, along the trajectory and at weights of (C.8), where the minimum is attained.",
    ),
    _claim(
        "lemma-c.4.minima",
        "Lemma C.4, (C.8)",
        "u_{-1} u_ij = delta_ij xi_i/gamma_i at every global minimum of (C.5)",
        every_random_minimum,
        relation=Relation.IDENTITY,
        note="For each u_{-1} != 0 the loss is a strictly convex quadratic form in U11, and at u_{-1} = 0 above its "
        "minimum. Judged where its gradient in U11 is zero, for u_{-1} of both signs from 1e-3 to 1e3.",
    ),
    _claim(
        "lemma-c.5",
        "Lemma C.5, (C.9)",
        "u_{-1}^2 = tr(U11 U11^T) for all t",
        stays_balanced,
        relation=Relation.IDENTITY,
        hypotheses=assumption,
        setting=random_covariances,
        problems=(*PROBLEMS, _FULL),
    ),
    _claim("lemma-c.6", "Lemma C.6, (C.11)", "u_{-1} > 0 for all t", u_positive, hypotheses=assumption_and_scale),
    _claim(
        "lemma-c.6.proof-equality",
        "proof of Lemma C.6",
        "E tr[sigma^2 Lambda^2 Theta Theta^T] = sigma^2 |E[Lambda] Theta|_F^2",
        proof_equality,
        relation=Relation.IDENTITY,
        hypotheses=assumption,
        along_flow=False,
        note="The left side is sigma^2 E|Lambda Theta|_F^2, which is larger by sigma^2 tr(Var(Lambda) Theta Theta^T).",
    ),
    _claim(
        "lemma-c.6.proof-equality",
        "proof of Lemma C.6",
        "E tr[sigma^2 Lambda^2 Theta Theta^T] >= sigma^2 |E[Lambda] Theta|_F^2, by Jensen's inequality",
        proof_inequality,
        form="corrected",
        hypotheses=assumption,
        along_flow=False,
        note="The proof needs no more than this inequality, so that the lemma stands.",
    ),
    _claim(
        "lemma-c.7",
        "Lemma C.7, (C.12)",
        "u_{-1}^2 >= sigma^2 (2 |E[Lambda] Theta|_F^2 - sqrt(d) sigma^2 E[|Gamma|_op |Lambda|_F^2])/(2 sqrt(d) "
        "|E[Lambda^2]|_op) for all t",
        u_bounded_below,
        hypotheses=assumption_and_scale,
        constants=u_constants,
    ),
    _claim(
        "lemma-c.8.pl",
        "Lemma C.8, (C.14)",
        "|grad l|^2 >= nu (l - min l) for all t, with nu of (C.13)",
        pl,
        hypotheses=assumption_and_scale,
        constants=pl_constants,
    ),
    _claim(
        "lemma-c.8.limit",
        "Lemma C.8, (C.15)",
        "u_ij -> delta_ij (sum xi_i^2/gamma_i^2)^{-1/4} xi_i/gamma_i and u_{-1} -> (sum xi_i/gamma_i)^{1/4}",
        printed_limit,
        relation=Relation.IDENTITY,
        hypotheses=assumption_and_scale,
        constants=limit_constants,
        note="The squares are missing in the limit of u_{-1}: its own proof has them, in (C.17).",
    ),
    _claim(
        "lemma-c.8.limit",
        "Lemma C.8, (C.15)",
        "u_ij -> delta_ij (sum xi_i^2/gamma_i^2)^{-1/4} xi_i/gamma_i and u_{-1} -> (sum xi_i^2/gamma_i^2)^{1/4}",
        corrected_limit,
        form="corrected",
        relation=Relation.IDENTITY,
        hypotheses=assumption_and_scale,
        constants=limit_constants,
        note="With the squares of (C.17); whether the paper lacks them or its extracted text cannot be told.",
    ),
    _claim(
        "eq-c.17",
        "(C.17)",
        "u_{-1} -> (sum xi_i^2/gamma_i^2)^{1/4}",
        value_weight_limit,
        relation=Relation.IDENTITY,
        hypotheses=assumption_and_scale,
        constants=limit_constants,
    ),
)
