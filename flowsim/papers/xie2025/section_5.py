"""xie2025, section 5: least risks of heads and of y_q-LSA, compared with the risk of gradient descent.

The number of heads, the prior mean and the guess vary. The figures show training by Adam on batches. Here they are
judged along the gradient flow of the exact risk.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, at_least, at_most
from flowsim.claims.hypotheses import Hypothesis, agrees, hypothesis
from flowsim.claims.limits import limit
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiHeadLoss
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.models import GradientDescentStep
from flowsim.models.multi_head import AnyHeads
from flowsim.papers.xie2025 import problems, prompts, setting, spaces
from flowsim.papers.xie2025.exact import Moments
from flowsim.tasks import LinearRegression

_DIFFER = "At eta = 1 the two differ even"
_BETTER = "With the step size of least risk the statement holds: best-step."
_SCALES = (0.0, 0.5, 1.0, 2.0, 10.0)


# Section 5.1.1, varying numbers of heads


def _risks_by_heads(task: LinearRegression) -> tuple[Float[Array, " H"], Bool[Array, ""]]:
    """The least risks of 1, .., d + 1 heads with y_q = 0, and whether one of two checks of these risks fails.

    The first check compares each least risk with the risk at the weights that attain it, by the closed form and by
    exact moments. The second check compares the least risks of d and d + 1 heads with the solution of the normal
    equations.
    """
    d, bound = task.dimension, setting.least(task)
    found = jnp.stack([setting.reached(task, setting.zero_heads(d, H))[1] for H in range(1, d + 2)])
    off = jnp.any(jnp.abs(found - found[:, -1:]) > setting.SAME * found)
    return found[:, -1], off | jnp.any(jnp.abs(found[-2:, -1] - bound) > setting.SAME * bound)


SECTION = setting.HEADS(needs=setting.few_coordinates)
ON_FINITE = SECTION.on(
    problems.FINITE, spaces.FINITE, hypotheses=setting.prior_mean, constants=setting.optimum_constants
)
ON_TASKS = SECTION.on(problems.TASKS, spaces.TASKS, constants=setting.optimum_constants)


@SECTION.on((problems.EASY, problems.SHORT, problems.LARGE_MEAN, problems.ONE), spaces.FINITE).claim(
    "sec-5.1.heads", "section 5.1.1", hypotheses=setting.prior_mean
)
def more_heads_help(loss: MultiHeadLoss) -> Comparison:
    """the least risk decreases with every head up to $d + 1$

    It decreases up to d heads only. Head d + 1 does not lower it.
    """
    risks, wrong = _risks_by_heads(loss.task)
    return setting.counted(risks[1:] >= (1 - setting.SAME) * risks[:-1], unknown=wrong)


@SECTION.on((problems.EASY, problems.SHORT, problems.ONE), spaces.FINITE).corrected(
    more_heads_help, hypotheses=(setting.prior_mean, setting.finite_context)
)
def more_heads_help_up_to_d(loss: MultiHeadLoss) -> Comparison:
    """at finite $C$ the least risk decreases with every head up to $d$, and not from $d$ to $d + 1$

    The risk saturates at d heads, and not at d + 1 as printed.
    """
    risks, wrong = _risks_by_heads(loss.task)
    return setting.counted(
        risks[1:-1] >= (1 - setting.SAME) * risks[:-2], risks[-1] < (1 - setting.SAME) * risks[-2], unknown=wrong
    )


@ON_FINITE.claim(
    "sec-5.1.heads.lower-bound",
    "section 5.1.1",
    note=setting.ANY_STEP
    + f" At eta = 1 gradient descent has the risk d (d+1)/C, which heads beat at small |w*|. {_BETTER}",
)
def any_descent_is_better(loss: MultiHeadLoss) -> Comparison:
    r"""the risk of one step of gradient descent from $w_\star$, of any step size $\eta$, is strictly below that of
    multi-head LSA with $y_q = 0$, for $w_\star \ne 0$
    """
    return at_least(setting.least(loss.task)[None], setting.descent_risks(loss.task))


@ON_FINITE.claim(
    "sec-5.1.heads.lower-bound.best-step",
    "section 5.1.1",
    hypotheses=(setting.prior_mean, setting.finite_context),
    note=setting.BEST_STEP + " The gap is 2 |w*|^2/(d C + 2), which vanishes as C -> infinity.",
)
def best_descent_is_better(loss: MultiHeadLoss) -> Comparison:
    r"""at finite $C$ the risk of one step of gradient descent from $w_\star$ with $\eta^* = C/(C+d+1)$ is strictly
    below that of multi-head LSA with $y_q = 0$, for $w_\star \ne 0$
    """
    return at_least(setting.least(loss.task)[None], setting.best_descent_risks(loss.task))


# Sections 5.1.2 and 5.1.3, the effect of the prior mean and of y_q


def _gap(
    loss: MultiHeadLoss, descent: setting.Descent, mean: np.ndarray, w: np.ndarray, bias: float = 0.0
) -> Comparison:
    """The statement that the least risk of d + 1 heads is above the risk of gradient descent, and by how much.

    The difference is (|mean - w|^2 + bias^2) times `HeadRisk.gap`.

    The prior mean of the task is ``mean``. Its covariance and context length are those of the task of ``loss``.

    **Arguments:**

    - loss: gives the covariance and the context length.
    - descent: the function that returns the risks of gradient descent on a task.
    - mean: the prior mean w*, (d,).
    - w, bias: the guess is w^T x_q + bias.
    """
    d = loss.task.dimension
    with jax.ensure_compile_time_eval():  # so that the moments are rational numbers even while JAX traces
        task = LinearRegression(loss.task.covariance, loss.task.context_length, prior_mean=mean)
    expected = (jnp.sum((mean - w) ** 2) + bias**2) * loss.risk.gap
    return setting.same_gaps(
        task, setting.zero_heads(d, d + 1, False, w, bias), setting.least(task, w, bias), expected, descent(task)
    )


def _gap_of_prior_mean(loss: MultiHeadLoss, descent: setting.Descent) -> Comparison:
    task = loss.task
    zero = np.zeros(task.dimension)
    w = zero if task.prior_mean is None else np.asarray(task.prior_mean)
    return joined([_gap(loss, descent, c * w, zero) for c in _SCALES])


def _gap_of_guess(loss: MultiHeadLoss, descent: setting.Descent) -> Comparison:
    zero, one = np.zeros(loss.task.dimension), np.ones(loss.task.dimension)
    guesses = [guess for c in _SCALES for guess in ((c * one, 0.0), (zero, c))]
    return joined([_gap(loss, descent, zero, *guess) for guess in guesses])


@ON_TASKS.claim(
    "sec-5.1.prior-mean",
    "section 5.1.2",
    note=f"{setting.ANY_STEP} {_DIFFER} at w* = 0. The text has d + 1 heads or more, Table 1 has 1. {_BETTER}",
)
def gap_of_prior_mean(loss: MultiHeadLoss) -> Comparison:
    r"""the least risk of $d + 1$ heads with $y_q = 0$ is above that of one step of gradient descent from $w_\star$, of
    any step size $\eta$, by a multiple of $\lVert w_\star \rVert^2$
    """
    return _gap_of_prior_mean(loss, setting.descent_risks)


@ON_TASKS.claim(
    "sec-5.1.prior-mean.best-step", "section 5.1.2", note=setting.BEST_STEP + " Judged at c w* for c from 0 to 10."
)
def best_gap_of_prior_mean(loss: MultiHeadLoss) -> Comparison:
    r"""the least risk of $d + 1$ heads with $y_q = 0$ is above that of one step of gradient descent from $w_\star$ with
    $\eta^* = C/(C+d+1)$ by $\frac{2 \lVert w_\star \rVert^2}{d C + 2}$
    """
    return _gap_of_prior_mean(loss, setting.best_descent_risks)


@ON_TASKS.claim(
    "sec-5.1.initial-guess",
    "section 5.1.3",
    note=f"{setting.ANY_STEP} {_DIFFER} without a guess. The text has d + 1 heads, Table 1 has 1. {_BETTER}",
)
def gap_of_guess(loss: MultiHeadLoss) -> Comparison:
    r"""at $w_\star = 0$ the least risk of $d + 1$ heads exceeds that of one step of gradient descent from $w_\star$, of
    any step size $\eta$, by multiples of $\lVert y_{\text{q\_guess}} \rVert^2$, $y_{\text{q\_bias}}^2$
    """
    return _gap_of_guess(loss, setting.descent_risks)


@ON_TASKS.claim(
    "sec-5.1.initial-guess.best-step",
    "section 5.1.3",
    note=setting.BEST_STEP + " A guess and a bias are judged separately.",
)
def best_gap_of_guess(loss: MultiHeadLoss) -> Comparison:
    r"""at $w_\star = 0$ the least risk of $d + 1$ heads exceeds that of one step of gradient descent from $w_\star$
    with $\eta^* = C/(C+d+1)$ by $(\lVert y_{\text{q\_guess}} \rVert^2 + y_{\text{q\_bias}}^2) \frac{2}{d C + 2}$
    """
    return _gap_of_guess(loss, setting.best_descent_risks)


def _guess_closes_gap(task: LinearRegression, descent: setting.Descent) -> Comparison:
    like = setting.zero_heads(task.dimension, 1, True, HeadRisk(task).prior_mean)
    return setting.same_gaps(task, like, setting.least_with_trained_guess(task), 0.0, descent(task))


@SECTION.on(problems.TASKS, spaces.TASKS).claim(
    "sec-5.2", "section 5.2", note=setting.ANY_STEP + " At finite C the least risk of y_q-LSA is below that of both."
)
def guess_closes_gap(loss: MultiHeadLoss) -> Comparison:
    r"""$y_q$-LSA reaches the risk of one step of gradient descent from $w_\star$, of any step size $\eta$, whatever
    $w_\star$
    """
    return _guess_closes_gap(loss.task, setting.descent_risks)


@SECTION.on(problems.TASKS, spaces.TASKS).corrected(guess_closes_gap)
def guess_closes_best_gap(loss: MultiHeadLoss) -> Comparison:
    r"""the least risk of $y_q$-LSA is that of one step of gradient descent from $w_\star$ with $\eta^* = C/(C+d+1)$,
    whatever $w_\star$

    The printed statement is true for the best step size.
    """
    return _guess_closes_gap(loss.task, setting.best_descent_risks)


_REACHED = 1e-3  # relative to the risk of gradient descent; a figure shows no smaller difference


def fixed_guess(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """The hypotheses that the guess is not trained, and that it differs from w*^T x_q or has a bias."""
    model = start.reduced()
    missed = jnp.sum((loss.risk.prior_mean - model.w) ** 2) + model.bias**2
    return [
        agrees("trainable guesses", float(model.trainable), 0.0),
        hypothesis("|w* - w|^2 + bias^2 > 0", missed, ">", 0.0),
    ]


def all_heads(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """The hypotheses that the guess is not trained, and that there are at least d + 1 heads."""
    model, d = start.reduced(), loss.task.dimension
    fixed = agrees("trainable guesses", float(model.trainable), 0.0)
    return [fixed, hypothesis("heads >= d + 1", float(model.b.shape[0]), ">=", d + 1.0)]


def trained_guess(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """The hypotheses that the guess is trained and has no bias."""
    model = start.reduced()
    return [agrees("trainable guesses", float(model.trainable), 1.0), agrees("bias", model.bias, 0.0)]


def _moments(loss: MultiHeadLoss) -> Moments:
    return prompts.moments(loss.risk.prior_mean, 1 / loss.task.context_length)


def _descent(loss: MultiHeadLoss) -> GradientDescentStep:
    """One step of gradient descent from w* with eta* = C/(C+d+1)."""
    return GradientDescentStep(1 / (1 + (loss.task.dimension + 1) / loss.task.context_length), loss.risk.prior_mean)


def _scale(loss: MultiHeadLoss) -> Scalar:
    """The risk of gradient descent, or d if C is infinite, because the risk of gradient descent is then 0."""
    return jnp.where(loss.risk.descent_risk > 0, loss.risk.descent_risk, float(loss.task.dimension))


def _still_to_fall(loss: MultiHeadLoss, trajectory: Trajectory) -> Float[Array, "1"]:
    """A bound on the fall of the risk from the end of a flow to its limit.

    It is the smaller of two numbers: the excess risk at the end, and the bound of `limit` on the change of the
    excess.
    """
    _, change = limit(trajectory, loss.excess)
    return jnp.maximum(jnp.minimum(trajectory.excess[-1:], change), 0.0)


FIGURES = setting.HEADS()
ON_FLOWS = FIGURES.on(problems.FLOWS, spaces.FLOWS, hypotheses=fixed_guess)


@ON_FLOWS.claim("figure-1", "Figure 1", note=setting.BEST_STEP)
def above_descent(loss: MultiHeadLoss, flow: Trajectory) -> Comparison:
    r"""with $w_\star \ne 0$ the risk of LSA stays above that of one step of gradient descent with $\eta^* = C/(C+d+1)$
    along training
    """
    known = _moments(loss)
    return at_least(jax.vmap(known)(flow.models), known(_descent(loss)))


@ON_FLOWS.claim("figure-2", "Figure 2")
def ends_least(loss: MultiHeadLoss, flow: Trajectory) -> Comparison:
    """training ends at the least risk of as many heads

    Judged from random starts. With fewer than d + 1 heads, the risk in the figure depends on the start.
    """
    distance = jnp.abs(_moments(loss)(flow.end) - loss.minimum)
    return at_most(distance[None], _REACHED * _scale(loss), allowance=_still_to_fall(loss, flow))


@FIGURES.on((problems.FOUR_HEADS, problems.FACTORED, problems.ONE_HEAD), spaces.FLOWS).claim(
    "figure-3",
    "Figure 3",
    hypotheses=all_heads,
    note="To within 1e-3 of the risk of gradient descent. The caption says that the gap is approximately linear "
    "in |w*|^2. " + setting.BEST_STEP,
)
def ends_at_gap(loss: MultiHeadLoss, flow: Trajectory) -> Comparison:
    r"""with $d + 1$ heads and $y_q = 0$ training ends above one step of gradient descent with $\eta^* = C/(C+d+1)$ by
    $\frac{2 \lVert w_\star \rVert^2}{d C + 2}$
    """
    model, known = flow.start.reduced(), _moments(loss)
    inverse_C = 1 / loss.task.context_length
    missed = jnp.sum((known.prior_mean - model.w) ** 2) + model.bias**2
    gap = known(flow.end) - known(_descent(loss))
    expected = missed * 2 * inverse_C / (loss.task.dimension + 2 * inverse_C)
    return at_most(jnp.abs(gap - expected)[None], _REACHED * _scale(loss), allowance=_still_to_fall(loss, flow))


@FIGURES.on((problems.GUESSED, problems.FOUR_HEADS), spaces.GUESSED_FLOWS).claim(
    "figure-4",
    "Figure 4",
    hypotheses=all_heads,
    note="To within 1e-3 of the risk of gradient descent. The caption says that only the guess w*^T x_q without a bias "
    "reaches this risk. " + setting.BEST_STEP,
)
def ends_at_gap_of_guess(loss: MultiHeadLoss, flow: Trajectory) -> Comparison:
    r"""with $d + 1$ heads training ends above one step of gradient descent with $\eta^* = C/(C+d+1)$ by $(\lVert
    w_\star - y_{\text{q\_guess}} \rVert^2 + y_{\text{q\_bias}}^2) \frac{2}{d C + 2}$
    """
    return ends_at_gap.compare(loss, flow)


def alignment(risk: HeadRisk, model: AnyHeads) -> tuple[Scalar, Scalar, Scalar]:
    """Compares the derivative df/dx_q of a model's prediction f with that of one gradient step from w*.

    The step has the best step size. Let f_GD be its prediction and g = df_GD/dx_q. If the model has no bias, f and
    f_GD are linear in x_q ~ N(0, I), so E |df/dx_q - g|^2 = E (f - f_GD)^2.

    **Returns:** E |df/dx_q - g|^2, the cosine E <df/dx_q, g>/sqrt(E |df/dx_q|^2 E |g|^2), and E |g|^2.
    """
    descent = GradientDescentStep(risk.step_size, risk.prior_mean)
    ours, theirs = ((m.reduced().w, risk.forms(m)) for m in (model, descent))
    # The coefficient of x_i is <G, N_i> + w_i.
    product = lambda a, b: jnp.sum(
        risk.pairing(a[1], b[1])[:-1] + a[0] * risk.mean(b[1])[:-1] + b[0] * risk.mean(a[1])[:-1] + a[0] * b[0]
    )
    apart = jax.tree.map(jnp.subtract, ours, theirs)
    sizes = product(ours, ours), product(theirs, theirs)
    return product(apart, apart), product(ours, theirs) / jnp.sqrt(sizes[0] * sizes[1]), sizes[1]


@FIGURES.on(problems.TRAINED_GUESS, spaces.TRAINED_GUESS).claim(
    "figure-5",
    "Figure 5",
    hypotheses=trained_guess,
    note="To within 1e-3, in mean squares over prompts. " + setting.BEST_STEP,
)
def matches_descent(loss: MultiHeadLoss, flow: Trajectory) -> Comparison:
    r"""training $y_q$-LSA ends at one step of gradient descent with $\eta^* = C/(C+d+1)$: in predictions, in
    derivatives by $x_q$, and in their cosine
    """
    difference, cosine, size = alignment(loss.risk, flow.end)
    allowance = jnp.broadcast_to(_still_to_fall(loss, flow) / size, 2)
    return at_most(jnp.stack([difference / size, 1 - cosine]), _REACHED, allowance=allowance)
