"""The claims of xie2025 about the moments of G and the parts of the risk."""

from flowsim.analysis.base import Claim
from flowsim.analysis.xie2025 import moments, problems, setting, spaces
from flowsim.analysis.xie2025.making import equation, of_moments

_GUESSES = (problems.BIASED, problems.LINEAR, problems.EASY, problems.PAPER_GUESS)
_SHARED = (
    "All tokens of a prompt share one w-hat: given it, the moments of different tokens multiply, but their means over "
    "w-hat do not. The paper multiplies the means, which is wrong at every C > 1 and in the limit."
)

CLAIMS: tuple[Claim, ...] = (
    of_moments(
        equation,
        "eq-21",
        "(21)",
        "E[w-hat_i G] = [w*_i I, w*_i w* + e_i; (w*_i w* + e_i)^T, w*_i (|w*|^2 + d + 2)]",
        compare=moments.eq_21,
        problems=problems.TASKS,
        spaces=spaces.TASKS,
    ),
    of_moments(
        equation,
        "eq-24",
        "(24)",
        "E[<G, M_i> G] = <M, M_i> M as C -> infinity, with M = E G",
        compare=moments.eq_24,
        hypotheses=setting.infinite_context,
        problems=problems.LIMITS,
        spaces=spaces.LIMITS,
        note=_SHARED,
    ),
    of_moments(
        equation,
        "eq-24",
        "(24)",
        "E[<G, N> G] = <M, N> M + 2 S [0 p; p^T d pi] S^T as C -> infinity, for N = S^-T [P p; p^T pi] S^-1 and "
        "S = [I 0; w*^T 1]",
        compare=moments.eq_24_shared,
        form="corrected",
        hypotheses=setting.infinite_context,
        problems=problems.LIMITS,
        spaces=spaces.LIMITS,
        note="The printed product of means lacks the covariance of G over w-hat, which stays as C -> infinity.",
    ),
    of_moments(
        equation,
        "eq-27",
        "(27)",
        "E[G_mn G_pq] = (1 - 1/C) M_mn M_pq + (1/C) E[z_m z_n z_p z_q]",
        compare=moments.eq_27,
        problems=problems.FINITE,
        spaces=spaces.FINITE,
        note=_SHARED,
    ),
    of_moments(
        equation,
        "eq-27",
        "(27)",
        "E[G_mn G_pq] = (1 - 1/C) E_w[(M_w)_mn (M_w)_pq] + (1/C) E[z_m z_n z_p z_q], M_w = [I w; w^T |w|^2]",
        compare=moments.eq_27_shared,
        form="corrected",
        problems=problems.FINITE,
        spaces=spaces.FINITE,
        note="The printed form has the product of the means over w-hat in place of the mean of the product.",
    ),
    of_moments(
        equation,
        "eq-29",
        "(29)",
        "grad L_i = 2 E[<G, M_i> G] - 2 (w*_i M + N_i), the first by (27)",
        compare=moments.eq_29,
        hypotheses=setting.finite_context,
        problems=problems.FINITE,
        spaces=spaces.FINITE,
        note=_SHARED + "",
    ),
    of_moments(
        equation,
        "eq-29",
        "(29)",
        "grad L_i = 2 E[<G, M_i> G] - 2 (w*_i M + N_i), the first by the corrected (27)",
        compare=moments.eq_29_shared,
        form="corrected",
        hypotheses=setting.finite_context,
        problems=problems.FINITE,
        spaces=spaces.FINITE,
        note="Holds with the corrected (27) in place of the printed one.",
    ),
    of_moments(
        equation,
        "eq-18",
        "(18)",
        "R = sum_{i <= d} E(<G, M_i> - w-hat_i)^2 + E(1 + <G, M_{d+1}>)^2 y_q^2",
        compare=moments.separated,
        problems=_GUESSES,
        spaces=spaces.GUESSES,
        note="Cross terms of y_q with x_q vanish only where y_q is independent of x_q; not for y_q = w^T x_q, the "
        "guess of section 5.1.3 and of y_q-LSA.",
    ),
    of_moments(
        equation,
        "eq-18",
        "(18)",
        "R = sum_{i <= d} E(<G, M_i> - w-hat_i)^2 + E(1 + <G, M_{d+1}>)^2 y_q^2, given y_q independent of x_q",
        compare=moments.separated,
        form="corrected",
        hypotheses=setting.independent_guess,
        problems=_GUESSES,
        spaces=spaces.GUESSES,
        note="The printed statement has no condition on y_q, and fails for a guess that is linear in x_q.",
    ),
)
