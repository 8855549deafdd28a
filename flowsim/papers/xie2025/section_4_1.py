"""xie2025, section 4.1, the formulation of y_q-LSA: what it predicts at the weights (7), on drawn prompts."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flowsim.claims.claim import Comparison, Relation
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiHeadLoss
from flowsim.models import GradientDescentStep
from flowsim.papers.paper import Section
from flowsim.papers.xie2025 import problems, spaces
from flowsim.papers.xie2025.conditions import MODELS, drawable, heads_on_isotropic, promised_where
from flowsim.papers.xie2025.predictions import alike, normals
from flowsim.papers.xie2025.setting import descent_heads
from flowsim.tasks import Prompt

SECTION = Section("xie2025", *MODELS)

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


@SECTION.claim(
    "eq-8",
    "(8)",
    "(3) at the weights (7) is y_q - (eta/C)(w*^T X^T - y^T) X x_q",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=drawable,
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    note="Both (3) and W^P = -(eta/C) I in (7) divide by C, so the step is C times too short.",
)
@promised_where(drawable)
def eq_8_as_printed(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(3) at the weights (7), with W^P = -(eta/C) I, against (8)."""
    return _eq_8(loss, 1 / loss.task.context_length)


@SECTION.claim(
    "eq-8",
    "(8)",
    "(3) at the weights (7) with W^P = -eta I is y_q - (eta/C)(w*^T X^T - y^T) X x_q",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=drawable,
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    note="The printed W^P divides by C again, although (3) has already done so.",
)
@promised_where(drawable)
def eq_8(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(3) at the weights (7) with W^P = -eta I against (8)."""
    return _eq_8(loss, 1.0)


@SECTION.claim(
    "eq-9",
    "(9)",
    "(8) with y_q = w*^T x_q is (w* - (eta/C) X^T (X w* - y))^T x_q, a step down the gradient of |X w - y|^2/(2 C)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=drawable,
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    note="Judged at w* of any size; the surrounding text has w* = 0.",
)
@promised_where(drawable)
def eq_9(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(8) with y_q = w*^T x_q against a step down the derivative of |X w - y|^2/(2 C) at w*, taken by JAX."""
    w = loss.risk.prior_mean

    def rewritten(prompt: Prompt) -> Array:
        X, y = prompt.inputs, prompt.labels
        return w @ prompt.query - _ETA / y.size * ((w @ X.T - y) @ X @ prompt.query)

    def step(prompt: Prompt) -> Array:
        X, y = prompt.inputs, prompt.labels
        down = jax.grad(lambda w: jnp.sum((X @ w - y) ** 2) / (2 * y.size))(w)
        return (w - _ETA * down) @ prompt.query

    return joined([alike(loss.task, rewritten, step), alike(loss.task, GradientDescentStep(_ETA, w), step)])


@SECTION.claim(
    "eq-10",
    "(10)",
    "(3) at the weights (7) with y_q = w*^T x_q is (w* - (eta/C) X^T (X w* - y))^T x_q",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=drawable,
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    note="Both (3) and W^P = -(eta/C) I in (7) divide by C, so the step is C times too short.",
)
@promised_where(drawable)
def eq_10_as_printed(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(3) at the weights (7), with W^P = -(eta/C) I and y_q = w*^T x_q, against a step of gradient descent from w*."""
    w = loss.risk.prior_mean
    return alike(loss.task, descent_heads(w, _ETA / loss.task.context_length), GradientDescentStep(_ETA, w))


@SECTION.claim(
    "eq-10",
    "(10)",
    "(3) at the weights (7) with W^P = -eta I and y_q = w*^T x_q is (w* - (eta/C) X^T (X w* - y))^T x_q",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=drawable,
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    note="The printed W^P divides by C again, although (3) has already done so.",
)
@promised_where(drawable)
def eq_10(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(3) at the weights (7), with W^P = -eta I and y_q = w*^T x_q, against a step of gradient descent from w*."""
    w = loss.risk.prior_mean
    return alike(loss.task, descent_heads(w, _ETA), GradientDescentStep(_ETA, w))
