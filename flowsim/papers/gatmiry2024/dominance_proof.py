"""Steps of gatmiry2024's proofs of Lemma A.10 and Theorem A.11: (27), what follows it, Hoelder's inequality, (28)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowsim.claims.claim import Claim, Comparison, at_least, at_most
from flowsim.claims.hypotheses import Hypothesis, hypothesis
from flowsim.claims.statements import joined
from flowsim.losses import LoopedLoss
from flowsim.papers.gatmiry2024 import landscape, spaces
from flowsim.papers.gatmiry2024 import landscape_problems as problems
from flowsim.papers.gatmiry2024.setting import (
    Loss,
    Points,
    Scalar,
    Series,
    all_of,
    at_points,
    compared,
    delta,
    delta_power,
    dimension_root,
    dominance_factor,
    dominance_power,
    drawn,
    least_eigenvalue,
    long_context,
    looped,
    loops,
    of_loss,
    over_determined,
    whitened,
)

_FACTORS = (1.0 + 1e-6, 1.5, 2.0, 10.0, 100.0)  # of the least epsilon that a step speaks of


class _Spread(NamedTuple):
    """Drawn positive A: what is known there, lambda_i - 1 with multiplicities, lambda_1, where Lemma A.10 speaks."""

    points: Points
    offsets: Float[Array, "T r"]
    counts: Float[Array, " r"]
    largest: Series
    promised: Array

    def sum_of_powers(self, power: int) -> Series:
        """sum_i |lambda_i - 1|^p."""
        return jnp.abs(self.offsets) ** power @ self.counts


def _spread(loss: Loss) -> _Spread:
    models = drawn(loss)
    points, values = at_points(loss, models), whitened(loss, models)
    counts = jnp.ones(values.shape[1]) if isinstance(loss, LoopedLoss) else loss.task.multiplicities
    _, allowed = landscape.epsilons(loss, points.loss)
    promised = allowed & (jnp.min(values, axis=1) > 0)
    return _Spread(points, values - 1.0, counts, jnp.max(values, axis=1), promised)


def _lines(loss: Loss, factor: ArrayLike) -> Comparison:
    """The first two lines of (27) and the inequality that Hoelder's is applied to."""
    at, L = _spread(loss), loops(loss)
    noise = delta_power(loss) * (at.largest + 1.0) ** (2 * L - 1)
    first = (at.offsets ** (2 * L - 1) - noise[:, None]) ** 2 @ at.counts
    second = at.sum_of_powers(4 * L - 2) / 2 - jnp.sum(at.counts) * noise**2
    gradient = at.points.grad_norm_sq
    steps = [
        at_least(gradient, factor * first, promised=at.promised),
        at_least(first, second, size=first, promised=at.promised),
        at_least(gradient, factor * at.sum_of_powers(4 * L - 2) / 4, promised=at.promised),
    ]
    return joined([compared(step, at.points) for step in steps])


@of_loss
def printed_lines(loss: Loss) -> Comparison:
    """(27), and |grad L|^2 >= sum_i (lambda_i - 1)^{4L-2}/4."""
    return _lines(loss, 1.0)


@of_loss
def lines(loss: Loss) -> Comparison:
    """The same with lambda_d(Sigma*)^2 on the right of |grad L|^2."""
    return _lines(loss, least_eigenvalue(loss) ** 2)


def _noise(loss: Loss, offset) -> Comparison:
    """d delta^{4L} (lambda_1 + 1)^{4L-2} against a quarter of an offset from one, to the power 4L - 2."""
    at, L = _spread(loss), loops(loss)
    left = loss.task.dimension * delta_power(loss) ** 2 * (at.largest + 1.0) ** (4 * L - 2)
    right = offset(at) ** (4 * L - 2) / 4
    promised = at.promised & jnp.isfinite(loss.task.context_length)
    return at_most(left, right, size=jnp.maximum(left, right), promised=promised)


@of_loss
def printed_noise(loss: Loss) -> Comparison:
    """d delta^{4L} (lambda_1 + 1)^{4L-2} <= (lambda_1 - 1)^{4L-2}/4."""
    return _noise(loss, lambda at: at.largest - 1.0)


@of_loss
def noise(loss: Loss) -> Comparison:
    """The same with max_i |lambda_i - 1| on the right."""
    return _noise(loss, lambda at: jnp.max(jnp.abs(at.offsets), axis=1))


def _hoelder(loss: Loss, exponent: float, promised: Array, at: _Spread) -> Comparison:
    L, d = loops(loss), float(loss.task.dimension)
    right = d**-exponent * at.sum_of_powers(2 * L) ** dominance_power(loss)
    return at_least(at.sum_of_powers(4 * L - 2), right, promised=promised)


@of_loss
def printed_hoelder(loss: Loss) -> Comparison:
    """sum (lambda_i - 1)^{4L-2} >= d^{-(L-1)/(2L-1)} (sum (lambda_i - 1)^{2L})^{(2L-1)/L}."""
    L, at = loops(loss), _spread(loss)
    return _hoelder(loss, (L - 1) / (2 * L - 1), jnp.ones(at.largest.shape, dtype=bool), at)


@of_loss
def hoelder(loss: Loss) -> Comparison:
    """The same with d^{-(L-1)/L}, where the |lambda_i - 1| are not all equal."""
    L, at = loops(loss), _spread(loss)
    sizes = jnp.abs(at.offsets)
    apart = jnp.min(sizes, axis=1) < 0.99 * jnp.max(sizes, axis=1)
    return _hoelder(loss, (L - 1) / L, apart & (L > 1), at)


def _restated(loss: Loss, factor: ArrayLike) -> Comparison:
    """|grad L|^2 against epsilon^{4L-2}/4 with 2 epsilon^{2L} = L(A, 0), where epsilon > 4 delta."""
    points = at_points(loss, drawn(loss))
    epsilon = (points.loss / 2) ** (1 / (2 * loops(loss)))
    bound = factor * epsilon ** (4 * loops(loss) - 2) / 4
    promised = (epsilon > 4.0 * delta(loss)) & (points.loss > 0)
    return compared(at_least(points.grad_norm_sq, bound, promised=promised), points)


@of_loss
def printed_restated(loss: Loss) -> Comparison:
    """(28)."""
    return _restated(loss, 1.0)


@of_loss
def restated(loss: Loss) -> Comparison:
    """(28) with lambda_d(Sigma*)^2 d^{-(L-1)/L}."""
    return _restated(loss, dominance_factor(loss))


def _step(loss: Loss, least: Scalar) -> Comparison:
    """epsilon^{2L} over d delta^{2L} (epsilon + 2)^{2L} against 1, from the least epsilon on."""
    epsilon, power = least * jnp.asarray(_FACTORS), 2 * loops(loss)
    known = jnp.isfinite(loss.task.context_length)
    safe = jnp.where(known, delta_power(loss), 1.0)
    ratio = (epsilon / (epsilon + 2.0)) ** power / (loss.task.dimension * safe)
    return at_least(ratio, 1.0, promised=known)


@of_loss
def printed_step(loss: Loss) -> Comparison:
    """epsilon > 4 delta implies epsilon^{2L} >= d delta^{2L} (epsilon + 2)^{2L}."""
    return _step(loss, 4.0 * delta(loss))


@of_loss
def step(loss: Loss) -> Comparison:
    """epsilon > 4 delta d^{1/(2L)} implies it."""
    return _step(loss, 4.0 * delta(loss) * dimension_root(loss))


def short_of_half(loss: Loss, start) -> list[Hypothesis]:
    """delta d^{1/(2L)} < 1/2. **Source:** gatmiry2024, Theorem A.8."""
    return [hypothesis("delta d^(1/(2L)) < 1/2", delta(loss) * dimension_root(loss), "<", 0.5)]


def _claim(part: str, source: str, statement: str, compare, **options) -> Claim:
    options.setdefault("problems", _PROBLEMS)
    return Claim(
        f"gatmiry2024.{part}",
        f"gatmiry2024, {source}",
        statement,
        compare,
        setting=looped,
        along_flow=False,
        spaces=spaces.OPTIMUM,
        **options,
    )


_PROBLEMS = (
    problems.VERY_LONG,
    problems.WIDE_LONG,
    problems.VERY_LONG_ANISOTROPIC,
    problems.SMALL_COVARIANCE,
    problems.INFINITE,
    problems.EASY,
)
_LONG = (problems.VERY_LONG, problems.VERY_LONG_ANISOTROPIC, problems.SMALL_COVARIANCE, problems.INFINITE)
_OF_THE_LEMMA = all_of(over_determined, landscape.small_delta)
_DRAWN = "Judged at drawn positive A for which an epsilon as in Lemma A.10 exists. "

CLAIMS: tuple[Claim, ...] = (
    _claim(
        "lemma-a.10.eq-27",
        "proof of Lemma A.10, (27)",
        "|grad L|^2 >= sum_i ((lambda_i - 1)^{2L-1} - delta^{2L} (lambda_1 + 1)^{2L-1})^2 >= sum_i "
        "((lambda_i - 1)^{4L-2}/2 - delta^{4L} (lambda_1 + 1)^{4L-2}), and |grad L|^2 >= sum_i (lambda_i - 1)^{4L-2}/4",
        printed_lines,
        hypotheses=_OF_THE_LEMMA,
        problems=_LONG,
        note=_DRAWN + "The lambda_i are those of A^{1/2} Sigma* A^{1/2}: the gradient has them only at Sigma* = I.",
    ),
    _claim(
        "lemma-a.10.eq-27",
        "proof of Lemma A.10, (27)",
        "The same with lambda_d(Sigma*)^2 on the right of |grad L|^2",
        lines,
        form="corrected",
        hypotheses=_OF_THE_LEMMA,
        note=_DRAWN
        + "Where lambda_i < 1 the noise enters with the other sign; the factor 4 L^2 of the gradient, which "
        "the proof leaves out, makes up for it.",
    ),
    _claim(
        "lemma-a.10.noise",
        "proof of Lemma A.10",
        "d delta^{4L} (lambda_1 + 1)^{4L-2} <= (lambda_1 - 1)^{4L-2}/4",
        printed_noise,
        hypotheses=_OF_THE_LEMMA,
        problems=_LONG[:2],
        note=_DRAWN + "It is the largest |lambda_i - 1| that is known to be large, and lambda_1 may be one.",
    ),
    _claim(
        "lemma-a.10.noise",
        "proof of Lemma A.10",
        "d delta^{4L} (lambda_1 + 1)^{4L-2} <= max_i |lambda_i - 1|^{4L-2}/4",
        noise,
        form="corrected",
        hypotheses=_OF_THE_LEMMA,
        problems=_LONG[:2],
        note=_DRAWN,
    ),
    _claim(
        "lemma-a.10.hoelder",
        "proof of Lemma A.10",
        "sum_i (lambda_i - 1)^{4L-2} >= d^{-(L-1)/(2L-1)} (sum_i (lambda_i - 1)^{2L})^{(2L-1)/L}",
        printed_hoelder,
        note="Fails at multiples of I, where d^{-(L-1)/L} makes it an equality; the last line of the proof then drops "
        "the factor.",
    ),
    _claim(
        "lemma-a.10.hoelder",
        "proof of Lemma A.10",
        "sum_i (lambda_i - 1)^{4L-2} >= d^{-(L-1)/L} (sum_i (lambda_i - 1)^{2L})^{(2L-1)/L}",
        hoelder,
        form="corrected",
        note="Judged where the |lambda_i - 1| differ, for L > 1; where they agree it is an equality.",
    ),
    _claim(
        "theorem-a.11.eq-28",
        "proof of Theorem A.11, (28)",
        "For epsilon > 4 delta, L(A, 0) >= 2 epsilon^{2L} implies |grad L|^2 >= epsilon^{4L-2}/4",
        printed_restated,
        hypotheses=over_determined,
        note="Lemma A.10 is used without its conditions 8 delta d^{3/(4L)} <= epsilon <= 1, without Sigma* = I, and "
        "without the d^{-(L-1)/L} that its proof has.",
    ),
    _claim(
        "theorem-a.11.eq-28",
        "proof of Theorem A.11, (28)",
        "For 8 L d^2/sqrt(n) <= 2^{-2L} and epsilon > 4 delta, L(A, 0) >= 2 epsilon^{2L} implies |grad L|^2 >= "
        "lambda_d(Sigma*)^2 d^{-(L-1)/L} epsilon^{4L-2}/4",
        restated,
        form="corrected",
        hypotheses=long_context,
        note="Judged at drawn A.",
    ),
    _claim(
        "theorem-a.11.step",
        "proof of Theorem A.11",
        "epsilon > 4 delta implies epsilon^{2L} >= d delta^{2L} (epsilon + 2)^{2L}",
        printed_step,
        hypotheses=over_determined,
        note="Needs delta <= d^{-1/(2L)} - 1/2, and so d < 4^L: Theorem A.11 rests on it.",
    ),
    _claim(
        "theorem-a.11.step",
        "proof of Theorem A.11",
        "For delta d^{1/(2L)} < 1/2, epsilon > 4 delta d^{1/(2L)} implies "
        "epsilon^{2L} >= d delta^{2L} (epsilon + 2)^{2L}",
        step,
        form="corrected",
        hypotheses=short_of_half,
        note="The threshold on the loss that this gives is d times that of Theorem A.11.",
    ),
)
