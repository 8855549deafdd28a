"""xie2025, appendix A.2, the proof of Theorem 2: (17) to (25), the parts L_i of the risk and the moments of G.

One side of a comparison is the paper's formula at drawn matrices, with the closed forms of the risk for the moments
that it leaves open. The other side is exact.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, Relation
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiHeadLoss
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.models import FactoredMultiHeadAttention, MultiHeadAttention
from flowsim.papers.paper import Section
from flowsim.papers.xie2025 import exact, moments, problems, prompts, spaces
from flowsim.papers.xie2025.conditions import (
    MODELS,
    all_of,
    few_coordinates,
    heads_on_isotropic,
    independent_guess,
    infinite_context,
    promised_where,
)
from flowsim.papers.xie2025.moments import (
    SHARED_WEIGHTS,
    Square,
    derivative,
    drawn,
    outer_square,
    same_entries,
    same_moment,
    same_second_moments,
    same_slopes,
    second_moment,
    weighted_moments,
)
from flowsim.papers.xie2025.setting import counted, drawn_heads, risks, same
from flowsim.tasks import LinearRegression

Task = LinearRegression

SECTION = Section("xie2025", *MODELS)

_GUESSES = (problems.BIASED, problems.LINEAR, problems.EASY, problems.PAPER_GUESS)
_ZERO = 1e-10


@SECTION.claim(
    "eq-17",
    "(17)",
    "the risk of (6) is E((1 + <G, M_{d+1}>) y_q + sum_i (<G, M_i> - w-hat_i) x_q[i])^2, M_i = sum_h b_h (a_i^h)^T",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=prompts.few_prompts,
    problems=(problems.EASY, problems.SHORT, problems.ONE),
    spaces=spaces.FEW,
    note="The closed form and exact moments are judged against an exact mean over the prompts of the literal model.",
)
@promised_where(prompts.few_prompts)
def literal_risk(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(17), by both routes, against the mean squared error of (6) over prompts.

    There are two heads with drawn W^K, W^Q, W^V, W^P, a guess and a bias.
    """
    task, rows = loss.task, loss.task.dimension + 1
    rng = np.random.default_rng([3, rows])
    W_K, W_Q, W_V, W_P = rng.standard_normal((4, 2, rows, rows)) / 2
    model = FactoredMultiHeadAttention(W_K, W_Q, W_V, W_P, rng.standard_normal(rows - 1), 0.7)
    literal = prompts.mean_squared_error(task, model)
    return same(task, risks(task, model), literal, literal)


@SECTION.claim(
    "eq-18",
    "(18)",
    "R = sum_{i <= d} E(<G, M_i> - w-hat_i)^2 + E(1 + <G, M_{d+1}>)^2 y_q^2, given y_q independent of x_q",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(independent_guess, few_coordinates),
    problems=_GUESSES,
    spaces=spaces.GUESSES,
    note="The printed statement has no condition on y_q. It fails for a guess that is linear in x_q.",
)
@SECTION.claim(
    "eq-18",
    "(18)",
    "R = sum_{i <= d} E(<G, M_i> - w-hat_i)^2 + E(1 + <G, M_{d+1}>)^2 y_q^2",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=few_coordinates,
    problems=_GUESSES,
    spaces=spaces.GUESSES,
    note="The cross terms of y_q with x_q vanish only if y_q is independent of x_q. For y_q = w^T x_q, the guess of "
    "section 5.1.3 and of y_q-LSA, they do not.",
)
@promised_where(few_coordinates)
def separated(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(18) at drawn heads: sum L_i(M_i) + E(1 + <G, M_{d+1}>)^2 E y_q^2 against the risk, by both routes."""
    model, task = trajectory.start.reduced(), loss.task
    pairs = []
    for seed in (1, 2):
        heads = drawn_heads(task.dimension, model.b.shape[0], seed)
        moved = MultiHeadAttention(heads.b, heads.A, model.w, model.bias, trainable=model.trainable)
        whole = risks(task, moved)
        pairs.append(same(task, jnp.sum(loss.risk.separated(moved)), whole, whole[0]))
    return joined(pairs)


@SECTION.claim(
    "eq-19",
    "(19)",
    "grad L_i = 2 E[<G, M_i> G] - 2 E[w-hat_i G], i <= d",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=few_coordinates,
    problems=problems.TASKS,
    spaces=spaces.TASKS,
)
@promised_where(few_coordinates)
def eq_19(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """2 E[<G, N> G] - 2 E[w-hat_i G] against the derivatives of L_1, .., L_d."""
    return same_slopes(loss.task, lambda risk, N: 2 * (second_moment(risk, N)[None] - weighted_moments(risk)))


@SECTION.claim(
    "eq-20",
    "(20)",
    "grad L_{d+1} = 2 y_q^2 E[(1 + <G, M_{d+1}>) G]",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=few_coordinates,
    problems=problems.TASKS,
    spaces=spaces.TASKS,
    note="Here y_q is a number. If it is random but independent of x_q, its mean square replaces y_q^2.",
)
@promised_where(few_coordinates)
def eq_20(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """2 y_q^2 E[(1 + <G, N>) G] against the derivative of L_{d+1}, for y_q = 1.7."""
    task, y_q = loss.task, 1.7
    known, N, d = exact.moments(task).rounded, jnp.asarray(drawn(task.dimension)), task.dimension
    mean = jax.grad(lambda N: loss.risk.mean(loss.risk.form(N)))(jnp.zeros((d + 1, d + 1)))
    stated = lambda N: 2 * y_q**2 * (second_moment(loss.risk, N) + mean)
    part = lambda N: y_q**2 * ((known.paired(N) * N).sum() + 2 * (N * known.first).sum() + 1)
    return same_entries(task, jax.vmap(stated)(N), jax.vmap(jax.grad(part))(N))


@SECTION.claim(
    "eq-21",
    "(21)",
    "E[w-hat_i G] = [w*_i I, w*_i w* + e_i; (w*_i w* + e_i)^T, w*_i (|w*|^2 + d + 2)]",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=few_coordinates,
    problems=problems.TASKS,
    spaces=spaces.TASKS,
)
@promised_where(few_coordinates)
def eq_21(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(21) against E[w-hat_i G]."""
    w = loss.risk.prior_mean
    d, units = w.size, jnp.eye(w.size)
    outer = w[:, None] * w[None] + units
    printed = jnp.zeros((d, d + 1, d + 1)).at[:, :d, :d].set(w[:, None, None] * units[None])
    printed = printed.at[:, :d, d].set(outer).at[:, d, :d].set(outer).at[:, d, d].set(w * (w @ w + d + 2))
    return same_entries(loss.task, printed, exact.floats(exact.moments(loss.task).mixed))


@SECTION.claim(
    "eq-22",
    "(22)",
    "M = E[z z^T] = [I w*; w*^T |w*|^2 + d]",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=few_coordinates,
    problems=problems.TASKS,
    spaces=spaces.TASKS,
)
@promised_where(few_coordinates)
def eq_22(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(22) against E G."""
    return same_entries(
        loss.task, moments.mean_tokens(loss.risk.prior_mean), exact.floats(exact.moments(loss.task).first)
    )


@SECTION.claim(
    "eq-23",
    "(23)",
    "E[G_mn G_pq] = M_mn M_pq as C -> infinity",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(infinite_context, few_coordinates),
    problems=problems.LIMITS,
    spaces=spaces.LIMITS,
    note=SHARED_WEIGHTS,
)
@promised_where(few_coordinates)
def eq_23(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """M_mn M_pq against E[G_mn G_pq]."""
    return same_second_moments(loss, outer_square(moments.mean_tokens(loss.risk.prior_mean)))


@SECTION.claim(
    "eq-23",
    "(23)",
    "E[G_mn G_pq] = E_w[(M_w)_mn (M_w)_pq] as C -> infinity, M_w = [I w; w^T |w|^2]",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(infinite_context, few_coordinates),
    problems=problems.LIMITS,
    spaces=spaces.LIMITS,
    note="G tends to M_w with w-hat still random: the mean of the product is not the product of the means.",
)
@promised_where(few_coordinates)
def eq_23_shared(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """E[(M_w)_mn (M_w)_pq] against E[G_mn G_pq]."""
    return same_second_moments(loss, prompts.moments(loss.risk.prior_mean, 0.0).second)


def product_of_means(risk: HeadRisk, N: Square) -> Square:
    """The right side of (24) as printed, <M, N> M."""
    M = moments.mean_tokens(risk.prior_mean)
    return jnp.sum(M * N) * M


@SECTION.claim(
    "eq-24",
    "(24)",
    "E[<G, M_i> G] = <M, M_i> M as C -> infinity, with M = E G",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(infinite_context, few_coordinates),
    problems=problems.LIMITS,
    spaces=spaces.LIMITS,
    note=SHARED_WEIGHTS,
)
@promised_where(few_coordinates)
def eq_24(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """<M, N> M against E[<G, N> G]."""
    return same_moment(loss.task, product_of_means)


def product_with_spread(risk: HeadRisk, N: Square) -> Square:
    """The right side of the corrected (24), <M, N> M + 2 S [0 p; p^T d pi] S^T, N = S^-T [P p; p^T pi] S^-1."""
    d = risk.task.dimension
    S = jnp.eye(d + 1).at[d, :d].set(risk.prior_mean)
    lifted = S.T @ N @ S
    p, pi = lifted[:d, d], lifted[d, d]
    spread = jnp.zeros((d + 1, d + 1)).at[:d, d].set(p).at[d, :d].set(p).at[d, d].set(d * pi)
    return product_of_means(risk, N) + 2 * S @ spread @ S.T


@SECTION.claim(
    "eq-24",
    "(24)",
    "E[<G, N> G] = <M, N> M + 2 S [0 p; p^T d pi] S^T as C -> infinity, for N = S^-T [P p; p^T pi] S^-1 and "
    "S = [I 0; w*^T 1]",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(infinite_context, few_coordinates),
    problems=problems.LIMITS,
    spaces=spaces.LIMITS,
    note="The printed product of means lacks the covariance of G over w-hat, which remains as C -> infinity.",
)
@promised_where(few_coordinates)
def eq_24_shared(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """<M, N> M + 2 S [0 p; p^T d pi] S^T against E[<G, N> G] in the limit, for N = S^-T [P p; p^T pi] S^-1."""
    return same_moment(loss.task, product_with_spread)


@SECTION.claim(
    "eq-25",
    "(25)",
    "grad L_i = (2 <M, M_i> - 2 w*_i) M - 2 N_i as C -> infinity",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(infinite_context, few_coordinates),
    problems=problems.LIMITS,
    spaces=spaces.LIMITS,
    note=SHARED_WEIGHTS,
)
@promised_where(few_coordinates)
def eq_25(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(2 <M, N> - 2 w*_i) M - 2 N_i against the derivatives of L_1, .., L_d."""
    return same_slopes(loss.task, lambda risk, N: derivative(risk, N, product_of_means))


@SECTION.claim(
    "eq-25",
    "(25)",
    "grad L_i = (2 <M, M_i> - 2 w*_i) M - 2 N_i + 4 S [0 p; p^T d pi] S^T as C -> infinity, for "
    "M_i = S^-T [P p; p^T pi] S^-1 and S = [I 0; w*^T 1]",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(infinite_context, few_coordinates),
    problems=problems.LIMITS,
    spaces=spaces.LIMITS,
    note="With the corrected (24) instead of the printed one.",
)
@promised_where(few_coordinates)
def eq_25_shared(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(25) with the corrected (24), against the derivatives of L_1, .., L_d."""
    return same_slopes(loss.task, lambda risk, N: derivative(risk, N, product_with_spread))


def _slopes_at_labels(task: Task) -> Float[Array, "routes d"]:
    """The size of grad L_i at M_i = e_{d+1} e_i^T for each i, by both routes, relative to that of its first term."""
    known, risk, d = exact.moments(task).rounded, HeadRisk(task), task.dimension
    index = jnp.arange(d)
    N = jnp.zeros((d, d + 1, d + 1)).at[index, d, index].set(1.0)
    closed = 2 * (jax.vmap(lambda N: second_moment(risk, N))(N) - weighted_moments(risk))
    exactly = jax.vmap(jax.grad(known.component))(N, index)
    sizes = jnp.max(jnp.abs(jnp.stack([exactly, closed])), axis=(2, 3))
    return sizes / jnp.max(jnp.abs(2 * known.paired(N)), axis=(1, 2))[None]


@SECTION.claim(
    "eq-25.nonzero",
    "(25), appendix A.2",
    "grad L_i != 0 at every M_i as C -> infinity, as M has full rank and N_i a rank of at most 2",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(infinite_context, few_coordinates),
    problems=problems.LIMITS,
    spaces=spaces.LIMITS,
    note="It rests on (24), which multiplies means over w-hat. Moreover, at d = 1 both ranks are 2.",
)
@promised_where(few_coordinates)
def no_zero_slope(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The number of i for which the derivative of L_i is zero at M_i = e_{d+1} e_i^T."""
    return counted(jnp.all(_slopes_at_labels(loss.task) < _ZERO, axis=0))


@SECTION.claim(
    "eq-25.nonzero",
    "(25), appendix A.2",
    "grad L_i = 0 at M_i = e_{d+1} e_i^T as C -> infinity",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(infinite_context, few_coordinates),
    problems=problems.LIMITS,
    spaces=spaces.LIMITS,
    note="The opposite of the printed statement: there <G, M_i> = w-hat_i, so that L_i = 0.",
)
@promised_where(few_coordinates)
def zero_slope(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The derivative of each L_i at M_i = e_{d+1} e_i^T against zero."""
    return same(loss.task, _slopes_at_labels(loss.task).reshape(-1), 0.0, 1.0)
