"""What the figures of xie2025 show, along the gradient flow of the exact risk instead of Adam on batches."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, at_least, at_most
from flowsim.claims.hypotheses import Hypothesis, agrees, hypothesis
from flowsim.claims.limits import limit
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiHeadLoss
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.models import GradientDescentStep
from flowsim.models.multi_head import AnyHeads
from flowsim.papers.xie2025 import problems, prompts, spaces
from flowsim.papers.xie2025.exact import Moments
from flowsim.papers.xie2025.minima import BEST_STEP
from flowsim.papers.xie2025.setting import HEADS

_REACHED = 1e-3  # relative to the risk of gradient descent; a figure shows no smaller difference


def fixed_guess(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """The guess is not trained, and differs from w* or has a bias."""
    model = start.reduced()
    missed = jnp.sum((loss.risk.prior_mean - model.w) ** 2) + model.bias**2
    return [
        agrees("trainable guesses", float(model.trainable), 0.0),
        hypothesis("|w* - w|^2 + bias^2 > 0", missed, ">", 0.0),
    ]


def all_heads(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """The guess is not trained, and there are at least d + 1 heads."""
    model, d = start.reduced(), loss.task.dimension
    fixed = agrees("trainable guesses", float(model.trainable), 0.0)
    return [fixed, hypothesis("heads >= d + 1", float(model.b.shape[0]), ">=", d + 1.0)]


def trained_guess(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """The guess is trained and has no bias."""
    model = start.reduced()
    return [agrees("trainable guesses", float(model.trainable), 1.0), agrees("bias", model.bias, 0.0)]


def _moments(loss: MultiHeadLoss) -> Moments:
    return prompts.moments(loss.risk.prior_mean, 1 / loss.task.context_length)


def _descent(loss: MultiHeadLoss) -> GradientDescentStep:
    """One step of gradient descent from w* with eta* = C/(C+d+1)."""
    return GradientDescentStep(1 / (1 + (loss.task.dimension + 1) / loss.task.context_length), loss.risk.prior_mean)


def _scale(loss: MultiHeadLoss) -> Scalar:
    """The risk of gradient descent, or d in the limit, where this risk is 0."""
    return jnp.where(loss.risk.descent_risk > 0, loss.risk.descent_risk, float(loss.task.dimension))


def _still_to_fall(loss: MultiHeadLoss, trajectory: Trajectory) -> Float[Array, "1"]:
    """How far the risk at most falls from the end of a flow to its limit: by its excess, and by what it changes."""
    _, change = limit(trajectory, loss.excess)
    return jnp.maximum(jnp.minimum(trajectory.excess[-1:], change), 0.0)


SECTION = HEADS()
ON_FLOWS = SECTION.on(problems.FLOWS, spaces.FLOWS, hypotheses=fixed_guess)


@ON_FLOWS.claim("figure-1", "Figure 1", note=BEST_STEP)
def above_descent(loss: MultiHeadLoss, flow: Trajectory) -> Comparison:
    r"""with $w_\star \ne 0$ the risk of LSA stays above that of one step of gradient descent with $\eta^* = C/(C+d+1)$
    along training
    """
    known = _moments(loss)
    return at_least(jax.vmap(known)(flow.models), known(_descent(loss)))


@ON_FLOWS.claim("figure-2", "Figure 2")
def ends_least(loss: MultiHeadLoss, flow: Trajectory) -> Comparison:
    """training ends at the least risk of as many heads

    Judged from the drawn starts. With fewer than d + 1 heads, what the figure shows depends on the start.
    """
    distance = jnp.abs(_moments(loss)(flow.end) - loss.minimum)
    return at_most(distance[None], _REACHED * _scale(loss), allowance=_still_to_fall(loss, flow))


@SECTION.on((problems.FOUR_HEADS, problems.FACTORED, problems.ONE_HEAD), spaces.FLOWS).claim(
    "figure-3",
    "Figure 3",
    hypotheses=all_heads,
    note="To within 1e-3 of the risk of gradient descent. The caption says that the gap is approximately linear "
    "in |w*|^2. " + BEST_STEP,
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


@SECTION.on((problems.GUESSED, problems.FOUR_HEADS), spaces.GUESSED_FLOWS).claim(
    "figure-4",
    "Figure 4",
    hypotheses=all_heads,
    note="To within 1e-3 of the risk of gradient descent. The caption says that only the guess w*^T x_q without a bias "
    "reaches this risk. " + BEST_STEP,
)
def ends_at_gap_of_guess(loss: MultiHeadLoss, flow: Trajectory) -> Comparison:
    r"""with $d + 1$ heads training ends above one step of gradient descent with $\eta^* = C/(C+d+1)$ by $(\lVert
    w_\star - y_{\text{q\_guess}} \rVert^2 + y_{\text{q\_bias}}^2) \frac{2}{d C + 2}$
    """
    return ends_at_gap.compare(loss, flow)


def alignment(risk: HeadRisk, model: AnyHeads) -> tuple[Scalar, Scalar, Scalar]:
    """How the derivative df/dx_q of a model compares with g, that of the best step of gradient descent from w*.

    If the model has no bias, both predictions are linear in x_q ~ N(0, I), so that E |df/dx_q - g|^2 = E (f - f_GD)^2.

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


@SECTION.on(problems.TRAINED_GUESS, spaces.TRAINED_GUESS).claim(
    "figure-5", "Figure 5", hypotheses=trained_guess, note="To within 1e-3, in mean squares over prompts. " + BEST_STEP
)
def matches_descent(loss: MultiHeadLoss, flow: Trajectory) -> Comparison:
    r"""training $y_q$-LSA ends at one step of gradient descent with $\eta^* = C/(C+d+1)$: in predictions, in
    derivatives by $x_q$, and in their cosine
    """
    difference, cosine, size = alignment(loss.risk, flow.end)
    allowance = jnp.broadcast_to(_still_to_fall(loss, flow) / size, 2)
    return at_most(jnp.stack([difference / size, 1 - cosine]), _REACHED, allowance=allowance)
