"""gatmiry2024's section 3.7: whether the loss is convex in A, judged by the loss halfway between two A."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from flowsim.claims.claim import Comparison, at_least, at_most
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import Hypothesis, agrees, hypothesis
from flowsim.claims.statements import rounded
from flowsim.losses import LoopedLoss
from flowsim.models import LoopedAttention
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.lemma_settings import DEEP, ONE_DIMENSION, SHORT, SINGLE, SKEW, problem
from flowsim.papers.gatmiry2024.setting import MODELS, long_context, loops, matrices

Pairs = Float[Array, "pairs 2 d d"]

_INFINITE = problem("L = 2, d = 3, anisotropic, n = inf", 2, "inf", SKEW)
_LONG = problem("L = 3, d = 3, identity, n = 10^20", 3, 10**20, "identity", dimension=3)
_INFINITE_DEEP = problem("L = 3, d = 4, n = inf", 3, "inf", "identity", dimension=4)
_PAIRS = 12
_MOST_LOOPS = 3  # of the exact loss over all matrices
_LENGTHS = (0.5, 1.0, 2.0, 4.0)


def _halfway(loss: LoopedLoss, pairs: Pairs) -> tuple[Array, Array]:
    """L((A + B)/2, 0) and (L(A, 0) + L(B, 0))/2 for each pair of A' and B'."""
    inverse_root = jnp.linalg.inv(loss.root)
    energy = lambda A: loss(LoopedAttention(inverse_root @ A @ inverse_root, loops=loops(loss)))
    return jax.lax.map(lambda pair: (energy((pair[0] + pair[1]) / 2), (energy(pair[0]) + energy(pair[1])) / 2), pairs)


def _nilpotent(loss: LoopedLoss) -> Pairs:
    """Pairs of A' = c I + r e_1 e_d^T and its transpose, c I the best multiple of I; at d = 1, c + r and c - r."""
    d, c = loss.task.dimension, loss.energy.centres[0]
    corner = jnp.zeros((d, d)).at[0, d - 1].set(1.0)
    other = corner.T if d > 1 else -corner
    offsets = jnp.asarray(_LENGTHS)[:, None, None, None] * jnp.stack([corner, other])[None]
    return c * jnp.eye(d)[None, None] + offsets


def _best_pair(loss: LoopedLoss) -> tuple[Array, Array]:
    """The loss halfway and the mean loss, for the pair where the first exceeds the second most, relative to it."""
    middle, mean = _halfway(LoopedLoss(loss.task, loops(loss), symmetric=False), _nilpotent(loss))
    best = jnp.argmax((middle - mean) / middle)
    return middle[best], mean[best]


def _few_loops(loss: LoopedLoss, start: PyTree) -> list[Hypothesis]:
    """L is small enough to build the exact loss over all matrices quickly."""
    return [hypothesis("L small enough for the loss over all matrices", float(loops(loss)), "<=", float(_MOST_LOOPS))]


def _decided(loss: LoopedLoss, start: PyTree) -> list[Hypothesis]:
    """The search decides: a pair lies above its mean, or none does because L = 1 or d = 1; unknown elsewhere."""
    few = _few_loops(loss, start)
    if loops(loss) == 1 or loss.task.dimension == 1 or not few[0].met:
        return few
    middle, mean = _best_pair(loss)
    found = 1.0 if middle > mean else float("nan")
    return [*few, hypothesis("a pair of A above the mean of its losses is known", found, ">=", 1.0)]


def long_and_several(loss: LoopedLoss, start: PyTree) -> list[Hypothesis]:
    """L > 1, d > 1 and the condition of Theorem 3.2."""
    d, L = float(loss.task.dimension), float(loops(loss))
    several = [hypothesis("L > 1", L, ">", 1.0), hypothesis("d > 1", d, ">", 1.0)]
    return [*several, *_few_loops(loss, start), *long_context(loss, start)]


SECTION = Section("gatmiry2024", *MODELS, setting=matrices)


@SECTION.claim(
    "sec-3.7.non-convex",
    "after Theorem 3.3",
    hypotheses=_decided,
    problems=(SHORT, DEEP, _INFINITE, SINGLE, ONE_DIMENSION),
    spaces=spaces.LANDSCAPES,
)
def not_convex(loss: LoopedLoss) -> Comparison:
    r"""The landscape of the loss in $A$ is highly non-convex: $\mathcal{L}\bigl((A + B)/2, 0\bigr) >
    \bigl(\mathcal{L}(A, 0) + \mathcal{L}(B, 0)\bigr)/2$ for some $A$, $B$

    Judged at B = A^T, Sigma*^{1/2} A Sigma*^{1/2} = c I + r e_1 e_d^T. At L = 1 the loss is quadratic, and at d = 1 it
    is a mean of even powers; both are convex. At short contexts no such pair may be found, as for two loops at n = 5, d
    = 3; the row is then unresolved.
    """
    middle, mean = _best_pair(loss)
    return at_least(middle[None], mean[None], size=middle[None])


@SECTION.corrected(not_convex, hypotheses=long_and_several, problems=(_INFINITE, _LONG), spaces=spaces.LANDSCAPES)
def not_convex_of_several_loops(loss: LoopedLoss) -> Comparison:
    r"""For $L > 1$, $d > 1$ and $8 L d^2/\sqrt{n} \le 2^{-2L}$, $\mathcal{L}\bigl((A + A^\top)/2, 0\bigr) >
    \mathcal{L}(A, 0)$ for some $A$

    At n = inf all A with (Sigma*^{1/2} A Sigma*^{1/2} - I)^L = 0 have loss 0, so Sigma*^-1 is not the only minimiser
    among matrices that need not be symmetric.
    """
    middle, mean = _best_pair(loss)
    return at_least(middle[None], mean[None], size=middle[None])


def _symmetric(loss: LoopedLoss) -> Pairs:
    """Drawn pairs of symmetric A' and B' of many sizes, positive or not."""
    d = loss.task.dimension
    noise = jax.random.normal(jax.random.key(0), (_PAIRS, 2, d, d))
    sizes = jnp.geomspace(0.1, 10.0, _PAIRS)[:, None, None, None]
    return jnp.eye(d)[None, None] + sizes * (noise + jnp.swapaxes(noise, 2, 3)) / 2


def _infinite(loss: LoopedLoss, start: PyTree) -> list[Hypothesis]:
    """n = infinity."""
    return [agrees("n = infinity", float(1.0 / loss.task.context_length), 0.0)]


@SECTION.claim(
    "sec-3.7.convex-on-symmetric",
    "after Theorem 3.3",
    form="corrected",
    hypotheses=_infinite,
    problems=(_INFINITE, _INFINITE_DEEP),
    spaces=spaces.LANDSCAPES,
)
def convex_on_symmetric(loss: LoopedLoss) -> Comparison:
    r"""At $n = \infty$ the loss is convex on symmetric $A$, to which $A^{1/2}$ and the flow of Theorem 3.3 belong

    The loss is tr (I - Sigma*^{1/2} A Sigma*^{1/2})^{2L}, the trace of a convex function. So convex analysis does apply
    in the limit that Theorem 3.3 speaks of; only strong convexity is lost, for L > 1. Judged at drawn A and B.
    """
    middle, mean = _halfway(loss, _symmetric(loss))
    return rounded(at_most(middle, mean), jnp.asarray(float(loss.task.dimension)))
