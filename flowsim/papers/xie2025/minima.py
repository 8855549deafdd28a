"""Both sides of xie2025's statements about least risks, in and beyond the number of heads, and about gradient descent.

Least risks are those of the normal equations in exact moments. They are compared with the closed forms, and with the
risks, by both routes, of the weights that are said to have them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, at_least
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiHeadLoss
from flowsim.losses.head_risk import HeadRisk
from flowsim.models import GradientDescentStep, MultiHeadAttention
from flowsim.papers.xie2025 import exact
from flowsim.papers.xie2025.predictions import block_of
from flowsim.papers.xie2025.setting import (
    STEPS,
    counted,
    descent_heads,
    drawn_heads,
    label_energy,
    reached,
    risks,
    same,
    zero_heads,
)
from flowsim.tasks import LinearRegression

Task = LinearRegression
Descent = Callable[[Task], Float[Array, " n"]]

_SAME = 1e-9  # relative, of risks that cannot be told apart
_SCALES = (0.0, 0.5, 1.0, 2.0, 10.0)


def optimum_constants(loss: MultiHeadLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The best step, its risk, and what a guess that is off by one costs."""
    risk = loss.risk
    return {"step size": risk.step_size, "risk of gradient descent": risk.descent_risk, "gap": risk.gap}


def least(task: Task, w: np.ndarray | None = None, bias: float = 0.0) -> Array:
    """The least risk of any number of heads with the guess w^T x_q + bias, by the normal equations."""
    guess = np.zeros(task.dimension) if w is None else w
    return exact.floats(exact.least(exact.moments(task), guess, bias))


def least_with_trained_guess(task: Task) -> Array:
    """The least risk of any number of heads and any guess w^T x_q, by the normal equations."""
    return exact.floats(exact.least_with_trained_guess(exact.moments(task)))


def _descent(task: Task, eta: float | Array) -> GradientDescentStep:
    """One step of gradient descent from w*."""
    return GradientDescentStep(eta, HeadRisk(task).prior_mean)


def _descents(task: Task) -> Float[Array, " n"]:
    """The risk of one step from w* with some step sizes, by both routes."""
    return jnp.concatenate([risks(task, _descent(task, eta)) for eta in STEPS])


def _best_descent(task: Task) -> Float[Array, "3"]:
    """The risk of one step with eta* = C/(C+d+1) from w*: as stated, and by both routes."""
    risk = HeadRisk(task)
    return jnp.append(risks(task, _descent(task, risk.step_size)), risk.descent_risk)


def _same_forms(task: Task, model: MultiHeadAttention, known: exact.Moments, w: np.ndarray) -> list[Comparison]:
    """That the forms of a model are those of the normal equations, which determine them where C is finite."""
    if np.isinf(float(task.context_length)):
        return []
    found, expected = exact.symmetric_forms(model)[:-1], exact.solution(known, w)[:-1]
    size = jnp.max(jnp.abs(exact.floats(expected)))
    return [same(task, exact.floats(found).reshape(-1), exact.floats(expected).reshape(-1), size)]


# Section 3


def saturated(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The least risks of d + 1 and of d + 2 heads, and their forms, against those of any number."""
    task, d = loss.task, loss.task.dimension
    pairs = []
    for H in (d + 1, d + 2):
        model, found = reached(task, zero_heads(d, H))
        pairs.append(same(task, found, least(task), label_energy(task)))
        pairs += _same_forms(task, model, exact.moments(task), np.zeros(d))
    return joined(pairs)


def cost_of_a_head(task: Task) -> Array:
    """How far above the least risk of any number d - 1 heads with y_q = 0 stay at least, at a finite C and w* != 0.

    The symmetric parts N_i that d - 1 heads have vanish, as quadratic forms, on a plane, which has a vector (x, w*^T x)
    with |x| = 1. Of N with N(v, v) = 0 at v = (x, w*^T x), the least E <G, N - N_i>^2 is N_i(v, v)^2/E <G, F>^2 with
    E[<G, F> G] = v v^T; neither sum_i N_i(v, v)^2 nor E <G, F>^2 depends on the direction of x, as no law of x does.
    """
    known, d = exact.moments(task), task.dimension
    v = np.append(np.eye(d, dtype=int)[0], known.prior_mean[0])
    (F,) = exact.solved(known, np.outer(v, v)[None])
    off = sum((v @ N @ v) ** 2 for N in exact.solution(known, np.zeros(d))[:-1])
    return exact.floats(off / (v @ F @ v))


def fewest_heads(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """Whether d heads miss the least risk of any number, and d - 1 reach it (for d = 1 there is no such number)."""
    task, d = loss.task, loss.task.dimension
    bound = least(task)
    _, found = reached(task, zero_heads(d, d))
    failures = [jnp.abs(found - bound) > _SAME * bound]
    if d > 1:
        _, fewer = reached(task, zero_heads(d, d - 1))
        cost = cost_of_a_head(task)
        failures += [cost <= _SAME * bound, fewer < (1 - _SAME) * (bound + cost)]
        failures += [jnp.abs(fewer - fewer[-1]) > _SAME * fewer]
    return counted(*failures)


def distance_to_descent(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """min E (f - f_GD)^2 over any number of heads with y_q = 0, against zero: f_GD is a head, with weight eta, plus
    w*^T x_q, so that it is |w*|^2 min_N E (<G, N> - 1)^2, by the normal equations and in closed form.
    """
    known, missed = exact.moments(loss.task), jnp.sum(loss.risk.prior_mean**2)
    (N,) = exact.solved(known, known.first[None])
    found = jnp.stack([exact.floats(1 - (N * known.first).sum()), loss.risk.gap])
    return at_least(missed * found, 0.0, size=missed)


# Section 4.2


def _is_least(task: Task, found: Array) -> Comparison:
    """That these are the least risk of a trained guess."""
    return same(task, found, least_with_trained_guess(task), float(task.dimension))


def unit_step_is_least(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The risk of one step with eta = 1 from w* against the least of a trained guess."""
    return _is_least(loss.task, risks(loss.task, _descent(loss.task, 1.0)))


def best_step_is_least(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The risk, and the forms, of the best step from w* against the least ones of a trained guess."""
    task = loss.task
    step = _descent(task, HeadRisk(task).step_size).reduced()
    forms = _same_forms(task, step, exact.moments(task).centred, np.zeros(task.dimension))
    return joined([_is_least(task, _best_descent(task)), *forms])


def descent_is_a_lower_bound(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The least risk of y_q-LSA above that of one step from w*, for eta = 0.5 and 1."""
    return at_least(least_with_trained_guess(loss.task)[None], _descents(loss.task))


def best_descent_is_a_lower_bound(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The risk of y_q-LSA by exact moments, at drawn weights and near one step from w* with eta* = C/(C+d+1), above
    that of this step.
    """
    task, step = loss.task, _descent(loss.task, loss.risk.step_size).reduced()
    known, drawn = exact.moments(task), drawn_heads(task.dimension, 1, 10, trainable=True)
    models = [jax.tree.map(lambda a, b, s=s: a + s * b, step, drawn) for s in (-1.0, -1e-3, 1e-3, 1.0)]
    above = exact.floats(np.asarray([known(model) for model in models], dtype=object))
    return at_least(jnp.tile(above, 3), jnp.repeat(_best_descent(task), above.size))


def block_stays_above(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The least risk of a linear transformer block above that of one step from w*, for eta = 0.5 and 1.

    The block is one head with a trained guess, whose last column of A is lost.
    """
    return at_least(_risks_of_block(loss)[-1:], _descents(loss.task))


def block_is_descent(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The risk of the block that takes one step from w* with eta* = C/(C+d+1), and the least risk of any block, against
    that of this step.
    """
    task = loss.task
    gaps = _risks_of_block(loss)[None] - _best_descent(task)[:, None]
    # The weights of the block are products of its W_1, whose entries are up to 1 + |w*|^2.
    return rounded(same(task, gaps.reshape(-1), 0.0, float(task.dimension)), label_energy(task) ** 2)


def _risks_of_block(loss: MultiHeadLoss) -> Float[Array, "3"]:
    """Of the block that takes the best step from w*, by both routes, and the least of any block: at least that of any
    heads with a trained guess, which this block reaches.
    """
    model = block_of(descent_heads(loss.risk.prior_mean, loss.risk.step_size))
    return jnp.append(risks(loss.task, model), least_with_trained_guess(loss.task))


# Section 5


def _risks_by_heads(task: Task) -> tuple[Float[Array, " H"], bool]:
    """The least risks of 1, .., d + 1 heads, and whether any is not that of its weights, or of the normal equations."""
    d, bound = task.dimension, least(task)
    found = jnp.stack([reached(task, zero_heads(d, H))[1] for H in range(1, d + 2)])
    off = jnp.any(jnp.abs(found - found[:, -1:]) > _SAME * found)
    return found[:, -1], bool(off | jnp.any(jnp.abs(found[-2:, -1] - bound) > _SAME * bound))


def more_heads_help(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """How often H + 1 heads have no lower least risk than H, for H = 1, .., d."""
    risks, wrong = _risks_by_heads(loss.task)
    return counted(risks[1:] >= (1 - _SAME) * risks[:-1], unknown=wrong)


def more_heads_help_up_to_d(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """How often H + 1 heads have no lower least risk than H, for H = 1, .., d - 1, or d + 1 heads have than d."""
    risks, wrong = _risks_by_heads(loss.task)
    return counted(risks[1:-1] >= (1 - _SAME) * risks[:-2], risks[-1] < (1 - _SAME) * risks[-2], unknown=wrong)


def _is_better(task: Task, descent: Float[Array, " n"]) -> Comparison:
    return at_least(least(task)[None], descent)


def any_descent_is_better(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The least risk of any number of heads above that of one step from w*, for eta = 0.5 and 1."""
    return _is_better(loss.task, _descents(loss.task))


def best_descent_is_better(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The least risk of any number of heads above that of one step from w* with eta* = C/(C+d+1)."""
    return _is_better(loss.task, _best_descent(loss.task))


def _gaps(
    task: Task, like: MultiHeadAttention, bound: Array, expected: Array | float, descent: Float[Array, " n"]
) -> Comparison:
    """The least risk with a guess, as stated, by its weights and by the normal equations, less gradient descent's,
    against what is expected.
    """
    _, found = reached(task, like)
    gaps = jnp.append(found, bound)[None] - descent[:, None]
    missed = jnp.sum((HeadRisk(task).prior_mean - like.w) ** 2) + like.bias**2
    return same(task, gaps.reshape(-1), expected, task.dimension + missed)


def _gap_of_prior_mean(loss: MultiHeadLoss, descent: Descent) -> Comparison:
    task, risk, d = loss.task, loss.risk, loss.task.dimension
    pairs = []
    for c in _SCALES:
        moved = LinearRegression(task.covariance, task.context_length, prior_mean=c * risk.prior_mean)
        expected = c**2 * jnp.sum(risk.prior_mean**2) * risk.gap
        pairs.append(_gaps(moved, zero_heads(d, d + 1), least(moved), expected, descent(moved)))
    return joined(pairs)


def gap_of_prior_mean(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The gap at c w* against 2 c^2 |w*|^2/(d C + 2), c = 0, 0.5, 1, 2 and 10, for eta = 0.5 and 1."""
    return _gap_of_prior_mean(loss, _descents)


def best_gap_of_prior_mean(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The gap at c w* against 2 c^2 |w*|^2/(d C + 2), c = 0, 0.5, 1, 2 and 10, for eta* = C/(C+d+1)."""
    return _gap_of_prior_mean(loss, _best_descent)


def _gap_of_guess(loss: MultiHeadLoss, descent: Descent) -> Comparison:
    d = loss.task.dimension
    task = LinearRegression(loss.task.covariance, loss.task.context_length)
    pairs = []
    for c in _SCALES:
        for w, bias in ((c * np.ones(d), 0.0), (np.zeros(d), c)):
            expected = (float(w @ w) + bias**2) * loss.risk.gap
            like = zero_heads(d, d + 1, False, w, bias)
            pairs.append(_gaps(task, like, least(task, w, bias), expected, descent(task)))
    return joined(pairs)


def gap_of_guess(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """At w* = 0 and for eta = 0.5 and 1, the gap at a guess c (1, .., 1)^T x_q, and at a bias of c, against
    2 c^2 d/(d C + 2) and without d.
    """
    return _gap_of_guess(loss, _descents)


def best_gap_of_guess(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """`gap_of_guess` for eta* = C/(C+d+1)."""
    return _gap_of_guess(loss, _best_descent)


def _guess_closes_gap(task: Task, descent: Descent) -> Comparison:
    like = zero_heads(task.dimension, 1, True, HeadRisk(task).prior_mean)
    return _gaps(task, like, least_with_trained_guess(task), 0.0, descent(task))


def guess_closes_gap(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The least risk of one head with a trained guess against that of one step from w*, for eta = 0.5 and 1."""
    return _guess_closes_gap(loss.task, _descents)


def guess_closes_best_gap(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The least risk of one head with a trained guess against that of one step from w* with eta* = C/(C+d+1)."""
    return _guess_closes_gap(loss.task, _best_descent)
