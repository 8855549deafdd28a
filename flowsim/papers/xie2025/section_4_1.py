"""xie2025, section 4.1, the formulation of y_q-LSA: what it predicts at the weights (7), on drawn prompts."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flowsim.claims.claim import Comparison
from flowsim.claims.declaring import Section
from flowsim.claims.statements import joined
from flowsim.losses import MultiHeadLoss
from flowsim.models import GradientDescentStep
from flowsim.papers.xie2025 import problems, spaces
from flowsim.papers.xie2025.conditions import MODELS, drawable, heads_on_isotropic
from flowsim.papers.xie2025.predictions import alike, normals
from flowsim.papers.xie2025.setting import descent_heads
from flowsim.tasks import Prompt

_ETA = 0.7
_BIAS = 0.3


def _eq_8(loss: MultiHeadLoss, factor: float | Array) -> Comparison:
    """(3) at the weights (7) with W^P = -factor eta I against y_q - (eta/C) (w*^T X^T - y^T) X x_q.

    eta = 0.7, and y_q is 0, a bias, or linear in x_q with a bias.
    """
    w, d = loss.risk.prior_mean, loss.task.dimension

    def comparison(guess: Array, bias: float) -> Comparison:
        def stated(prompt: Prompt) -> Array:
            X, y = prompt.inputs, prompt.labels
            return guess @ prompt.query + bias - _ETA / y.size * ((w @ X.T - y) @ X @ prompt.query)

        return alike(loss.task, descent_heads(w, factor * _ETA, guess, bias), stated)

    return joined([comparison(jnp.zeros(d), 0.0), comparison(jnp.zeros(d), _BIAS), comparison(normals(d), _BIAS)])


SECTION = Section(
    "xie2025", *MODELS, setting=heads_on_isotropic, needs=drawable, problems=problems.FINITE, spaces=spaces.FINITE
)


@SECTION.claim("eq-8", "(8)")
def eq_8_as_printed(loss: MultiHeadLoss) -> Comparison:
    r"""(3) at the weights (7) is $y_q - \tfrac{\eta}{C} (w_\star^\top X^\top - y^\top) X x_q$

    Both (3) and W^P = -(eta/C) I in (7) divide by C, so the step is C times too short.
    """
    return _eq_8(loss, 1 / loss.task.context_length)


@SECTION.corrected(eq_8_as_printed)
def eq_8(loss: MultiHeadLoss) -> Comparison:
    r"""(3) at the weights (7) with $W^P = -\eta I$ is $y_q - \tfrac{\eta}{C} (w_\star^\top X^\top - y^\top) X x_q$

    The printed W^P divides by C again, although (3) has already done so.
    """
    return _eq_8(loss, 1.0)


@SECTION.claim("eq-9", "(9)")
def eq_9(loss: MultiHeadLoss) -> Comparison:
    r"""(8) with $y_q = w_\star^\top x_q$ is $\bigl(w_\star - \tfrac{\eta}{C} X^\top (X w_\star - y)\bigr)^\top x_q$, a
    step down the gradient of $\frac{\lVert X w - y \rVert^2}{2 C}$

    Judged at w* of any size; the surrounding text has w* = 0.
    """
    w = loss.risk.prior_mean

    def rewritten(prompt: Prompt) -> Array:
        X, y = prompt.inputs, prompt.labels
        return w @ prompt.query - _ETA / y.size * ((w @ X.T - y) @ X @ prompt.query)

    def step(prompt: Prompt) -> Array:
        X, y = prompt.inputs, prompt.labels
        down = jax.grad(lambda w: jnp.sum((X @ w - y) ** 2) / (2 * y.size))(w)
        return (w - _ETA * down) @ prompt.query

    return joined([alike(loss.task, rewritten, step), alike(loss.task, GradientDescentStep(_ETA, w), step)])


@SECTION.claim("eq-10", "(10)")
def eq_10_as_printed(loss: MultiHeadLoss) -> Comparison:
    r"""(3) at the weights (7) with $y_q = w_\star^\top x_q$ is $\bigl(w_\star - \tfrac{\eta}{C} X^\top (X w_\star -
    y)\bigr)^\top x_q$

    Both (3) and W^P = -(eta/C) I in (7) divide by C, so the step is C times too short.
    """
    w = loss.risk.prior_mean
    return alike(loss.task, descent_heads(w, _ETA / loss.task.context_length), GradientDescentStep(_ETA, w))


@SECTION.corrected(eq_10_as_printed)
def eq_10(loss: MultiHeadLoss) -> Comparison:
    r"""(3) at the weights (7) with $W^P = -\eta I$ and $y_q = w_\star^\top x_q$ is $\bigl(w_\star - \tfrac{\eta}{C}
    X^\top (X w_\star - y)\bigr)^\top x_q$

    The printed W^P divides by C again, although (3) has already done so.
    """
    w = loss.risk.prior_mean
    return alike(loss.task, descent_heads(w, _ETA), GradientDescentStep(_ETA, w))
