"""gatmiry2024's Figure 2: the least loss of L loops and of L layers."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flowsim.claims.claim import Comparison, at_most
from flowsim.claims.declaring import Section
from flowsim.flow.trajectory import Trajectory
from flowsim.losses.deep.scalar_minima import layer_minimum, scalar_minimum
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.figures import LENGTHS, LOOPS, Curve, falls, identity, more_examples, rises, size
from flowsim.papers.gatmiry2024.lemma_settings import looped_with_few_dimensions
from flowsim.papers.gatmiry2024.setting import CLOSE, MODELS, Loss


def minima(loss: Loss) -> tuple[Curve, Curve]:
    """The least loss of one layer looped L times and of L layers, for L = 1, .., 6."""
    d, n = size(loss)
    looped = [scalar_minimum(d, n, L)[1] for L in LOOPS]
    return np.array(looped), np.array([layer_minimum(d, n, L)[1] for L in LOOPS])


def ratio_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The least loss of L loops over that of L layers, at each L from 2 on."""
    looped, layers = minima(loss)
    return {f"ratio_at_{L}": jnp.asarray(looped[L - 1] / layers[L - 1]) for L in LOOPS if L > 1}


SECTION = Section(
    "gatmiry2024",
    *MODELS,
    setting=looped_with_few_dimensions,
    hypotheses=identity,
    problems=LENGTHS,
    spaces=spaces.FIGURES,
)


@SECTION.claim("figure-2.loops", "Figure 2, section 5.1")
def more_loops_lower_loss(loss: Loss) -> Comparison:
    """More loops lead to a lower loss: the least loss of $L + 1$ loops is below that of $L$

    Judged for L = 1 to 5, exactly.
    """
    return falls(minima(loss)[0])


@SECTION.claim("figure-2", "Figure 2, section 5.1", constants=ratio_constants)
def loops_like_layers(loss: Loss) -> Comparison:
    r"""One layer looped $L$ times performs similarly to $L$ layers: its least loss is at most $10\%$ above theirs

    The text gives no number for similar, nor for the very close losses of section 5.1; all rows of this paper read both
    as 10%. Judged for L = 2 to 6, exactly over multiples of I, which contain the least known losses.
    """
    looped, layers = minima(loss)
    return at_most(jnp.asarray(looped[1:]), (1 + CLOSE) * jnp.asarray(layers[1:]))


@SECTION.corrected(loops_like_layers, hypotheses=more_examples, constants=ratio_constants)
def loops_fall_behind(loss: Loss) -> Comparison:
    """The least loss of $L$ loops is above that of $L$ layers by a factor that grows with $L$, given $n > d$

    L layers can realise the polynomial of degree L with the least loss on the spectrum of W, L loops only (1 - a x)^L.
    As n grows, the factor tends to a ratio of moments of Gaussian matrices: (2L - 1)!!/L! at d = 1, and towards the
    Catalan number of L as d grows. For n < d the factor can fall: at d = 6, n = 2 from L = 5 to 6.
    """
    looped, layers = minima(loss)
    return rises(looped / layers)
