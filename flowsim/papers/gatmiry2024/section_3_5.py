"""gatmiry2024's section 3.5: the delta that governs all estimates, and what else the paper calls delta."""

import jax.numpy as jnp
from jaxtyping import Array

from flowsim.claims.claim import Comparison, equal
from flowsim.claims.declaring import Section
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.lemma_settings import looped_with_finite_context, shape
from flowsim.papers.gatmiry2024.moments import LENGTHS, powers
from flowsim.papers.gatmiry2024.setting import MODELS, Loss, delta, over_determined


def _of_remark(loss: Loss, power: int) -> Array:
    """4kd/sqrt(n), the delta of the remark on Theorem 3.2."""
    known = shape(loss)
    return jnp.asarray(4.0 * power * known.dimension / known.root_length)


def _of_lemma(loss: Loss, power: int) -> Array:
    """(4kd/sqrt(n))^{1/k}, the delta of Lemma A.7."""
    return jnp.asarray(shape(loss).first_order(power) ** (1 / power))


def delta_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The delta of section 3.5, and the other two at k = 2L."""
    last = powers(shape(loss))[-1]
    return {"section_3_5": delta(loss), "remark": _of_remark(loss, last), "lemma_a_7": _of_lemma(loss, last)}


SECTION = Section(
    "gatmiry2024",
    *MODELS,
    setting=looped_with_finite_context,
    hypotheses=over_determined,
    problems=LENGTHS,
    spaces=spaces.MOMENTS,
)


@SECTION.claim("sec-3.5.delta", "section 3.5, remark on Theorem 3.2, Lemma A.7", constants=delta_constants)
def one_delta(loss: Loss) -> Comparison:
    r"""$\delta$ is one number: $(8Ld/\sqrt{n})^{1/(2L)} = 4kd/\sqrt{n} = (4kd/\sqrt{n})^{1/k}$ for all $k \le 2L$

    The first stands in section 3.5 and Theorem 3.2, the second in the remark on the theorem and in the proof of Lemma
    A.5, which leaves its delta open, the third in Lemma A.7. Both lemmas are said to restate Lemmas 4.2 and 4.3, where
    delta is the first.
    """
    others = [of(loss, k) for k in powers(shape(loss)) for of in (_of_remark, _of_lemma)]
    return equal(jnp.stack(others), delta(loss), delta(loss))


@SECTION.corrected(one_delta, constants=delta_constants)
def same_delta_at_the_last_power(loss: Loss) -> Comparison:
    r"""At $k = 2L$ the $\delta$ of Lemma A.7 is that of section 3.5, and the remark's is its power $2L$

    For k < 2L and delta < 1, 4kd/sqrt(n) is below delta^k, so that Lemmas A.5 and A.7 bound more strictly than Lemmas
    4.2 and 4.3.
    """
    last = powers(shape(loss))[-1]
    found = jnp.stack([_of_lemma(loss, last), _of_remark(loss, last) ** (1 / last)])
    return equal(found, delta(loss), delta(loss))
