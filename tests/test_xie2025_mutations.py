"""Errors of one percent in what xie2025's claims speak of: each claim that holds stops holding, or it is said why not.

Claims that are violated as they stand need none. Two routes stand behind most claims: each is put off by itself.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flowsim.flow.gradient_flow import start_alone
from flowsim.losses import MultiHeadLoss
from flowsim.losses.one_layer.head_risk import Forms, HeadRisk
from flowsim.models import FactoredMultiHeadAttention, GradientDescentStep, LinearTransformerBlock, MultiHeadAttention
from flowsim.papers.xie2025 import CLAIMS, appendix_a_1_2, exact, prompts, setting
from flowsim.tasks import LinearRegression

pytestmark = [pytest.mark.slow, pytest.mark.long]

OFF = 1.01
PAIRING = HeadRisk.pairing


def whole(owner, name):
    """A value that is one percent too large."""

    def mutation(patch):
        true = vars(owner)[name]
        function = true.fget if isinstance(true, property) else true
        assert function is not None
        off = lambda *arguments, **options: jax.tree.map(lambda leaf: OFF * leaf, function(*arguments, **options))
        patch.setattr(owner, name, property(off) if isinstance(true, property) else off)

    return mutation


def field(owner, name, part):
    """One field of a value."""

    def mutation(patch):
        true = vars(owner)[name]

        def off(*arguments, **options):
            value = true(*arguments, **options)
            if isinstance(value, Forms):
                return value._replace(**{part: OFF * getattr(value, part)})
            leaves = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            factor = exact.rationals(OFF)[()] if leaves[part].dtype == object else OFF
            return exact.Moments(**leaves | {part: factor * leaves[part]})

        patch.setattr(owner, name, off)

    return mutation


def term(of):
    """One term of the closed form of E <G, M> <G, M'>."""

    def mutation(patch):
        patch.setattr(HeadRisk, "pairing", lambda self, a, b: PAIRING(self, a, b) + (OFF - 1) * of(self, a, b))

    return mutation


def weights(patch):
    """The b_h of Theorem 1's proof."""
    patch.setattr(appendix_a_1_2, "MultiHeadAttention", lambda b, *others: MultiHeadAttention(OFF * b, *others))


def more(risk):
    return 1 + (risk.task.dimension + 1) / risk.task.context_length


spread = lambda risk, a, b: 2 / risk.task.context_length * jnp.sum(a.shifted * b.shifted, axis=(-2, -1))
MUTATIONS = {
    "descent risk": whole(HeadRisk, "descent_risk"),
    "step size": whole(HeadRisk, "step_size"),
    "gap": whole(HeadRisk, "gap"),
    "mean form": whole(HeadRisk, "mean"),
    "term in P": term(spread),
    "term in p": term(lambda risk, a, b: 4 * more(risk) * jnp.sum(a.p * b.p, axis=-1)),
    "term in pi": term(lambda risk, a, b: 2 * risk.task.dimension * more(risk) * a.pi * b.pi),
    "p of forms": field(HeadRisk, "_split", "p"),
    "P of the best forms": field(HeadRisk, "best", "shifted"),
    "p of the best forms": field(HeadRisk, "best", "p"),
    "parts": whole(HeadRisk, "separated"),
    "exact first moment": field(exact, "moments", "first"),
    "exact mixed moment": field(exact, "moments", "mixed"),
    "exact second moment": field(exact, "moments", "second"),
    "second moment given w-hat": field(prompts, "moments", "second"),
    "M": whole(appendix_a_1_2, "mean_tokens"),
    "N": whole(appendix_a_1_2, "shared"),
    "heads": whole(FactoredMultiHeadAttention, "__call__"),
    "step": whole(GradientDescentStep, "__call__"),
    "block": whole(LinearTransformerBlock, "__call__"),
    "weights of the proof": weights,
    "determinant": whole(jnp.linalg, "det"),
}

CLOSED = ("mean form", "term in P", "term in p", "term in pi")
EXACT = ("exact mixed moment", "exact second moment")
BREAKS = {
    ("eq-17", "printed"): (*CLOSED, *EXACT, "heads"),
    ("eq-19", "printed"): (*CLOSED, *EXACT, "p of forms"),
    ("eq-20", "printed"): (*CLOSED, "exact second moment", "exact first moment"),
    ("eq-21", "printed"): ("exact mixed moment",),
    ("eq-22", "printed"): ("exact first moment", "M"),
    ("eq-23", "corrected"): ("exact second moment", "second moment given w-hat"),
    ("eq-24", "corrected"): ("exact second moment", "M"),
    ("eq-25", "corrected"): (*EXACT, "M", "N"),
    ("eq-25.nonzero", "corrected"): (*EXACT, "term in p", "mean form"),
    ("eq-26", "corrected"): ("exact second moment", "second moment given w-hat"),
    ("eq-27", "corrected"): (*CLOSED, "exact second moment"),
    ("eq-28", "corrected"): ("exact second moment", "second moment given w-hat"),
    ("eq-29", "corrected"): (*CLOSED, *EXACT, "M", "N"),
    ("eq-18", "corrected"): (*EXACT, "parts"),
    ("theorem-2", "corrected"): (*EXACT, "p of the best forms"),
    ("theorem-2.exception", "printed"): (*EXACT, "p of the best forms"),
    ("theorem-4", "corrected"): (*EXACT, "p of the best forms"),
    ("theorem-4.finite-context", "printed"): (*EXACT, "term in p"),
    ("theorem-4.finite-context.best-step", "corrected"): (*EXACT, "p of the best forms", "step size"),
    ("appendix-a.4.positive", "printed"): ("exact first moment",),
    ("appendix-b.3.risk", "printed"): (*CLOSED, *EXACT, "p of forms"),
    ("appendix-b.3.gradient", "printed"): (*CLOSED, *EXACT, "p of forms"),
    ("appendix-b.3.squares", "printed"): ("exact second moment",),
    ("appendix-b.3.map", "printed"): ("exact second moment",),
    ("eq-8", "corrected"): ("heads",),
    ("eq-9", "printed"): ("step",),
    ("eq-10", "corrected"): ("heads", "step"),
    ("lemma-3", "printed"): ("heads", "block"),
    ("lemma-3.proof", "corrected"): ("heads", "block"),
    ("theorem-1.classes", "printed"): ("weights of the proof",),
    ("eq-31", "printed"): ("determinant",),
    ("theorem-1", "printed"): (*EXACT, "descent risk", "gap", "P of the best forms", "p of the best forms"),
    ("theorem-1.fewest", "corrected"): ("exact second moment", "descent risk", "gap", "p of the best forms"),
    ("sec-4.2.conjecture", "corrected"): (*EXACT, "descent risk", "step size", "p of the best forms"),
    ("sec-4.2.lower-bound", "corrected"): ("descent risk",),
    ("sec-4.2.newton", "corrected"): (*EXACT, "descent risk"),
    ("sec-5.1.heads", "corrected"): ("exact second moment", "descent risk", "gap"),
    ("sec-5.1.prior-mean.best-step", "printed"): (*EXACT, "descent risk", "gap", "P of the best forms"),
    ("sec-5.1.initial-guess.best-step", "printed"): (*EXACT, "descent risk", "gap", "P of the best forms"),
    ("sec-5.2", "corrected"): (*EXACT, "descent risk"),
}
LIMITS = {"eq-23", "eq-24", "eq-25", "eq-25.nonzero", "eq-26", "theorem-2", "theorem-4"}
LIMITS |= {"theorem-2.exception", "theorem-2.exception.eq-25"}
ONE_COORDINATE = {"theorem-1.fewest", "sec-5.1.heads"}  # where no number of heads needs a search

# Claims that hold with room to spare.
SLACK = {
    ("lemma-1", "printed"): "the risk at the middle is above that of the ends by a fifth of E y^2 and more",
    ("lemma-2", "printed"): "as for Lemma 1",
    ("theorem-2.exception.eq-25", "corrected"): "solvable at any factor; without the spread it is the printed row",
    ("appendix-a.4.convex", "printed"): "the drawn matrices are far apart; what is linear in M_i is so at any moments",
    (
        "sec-1.heads",
        "printed",
    ): "the distance is positive, whatever it is; sec-5.1.prior-mean.best-step has it as an equation",
    ("sec-5.1.heads.lower-bound.best-step", "printed"): "as for sec-1.heads",
    ("figure-1", "printed"): "as for sec-1.heads, along a flow",
    ("figure-2", "printed"): "a picture: to 1e-3, and an error of one percent in the forms is one of 1e-4 in the risk",
    ("figure-3", "printed"): "as for figure-2; sec-5.1.prior-mean.best-step has the end as an equation",
    ("figure-4", "printed"): "as for figure-2; sec-5.1.initial-guess.best-step has the end as an equation",
    ("figure-5", "printed"): "as for figure-2; sec-5.2 has the end as an equation",
}
VIOLATED = {"eq-18", "eq-23", "eq-24", "eq-25", "eq-25.nonzero", "eq-26", "eq-27", "eq-28", "eq-29", "theorem-2"}
VIOLATED |= {
    "theorem-4",
    "eq-8",
    "eq-10",
    "lemma-3.proof",
    "sec-4.2.conjecture",
    "sec-4.2.lower-bound",
    "sec-4.2.newton",
}
VIOLATED |= {"sec-5.1.heads", "sec-5.1.heads.lower-bound", "sec-5.1.prior-mean", "sec-5.1.initial-guess", "sec-5.2"}
VIOLATED |= {"theorem-2.exception.eq-25"}

OF = {(claim.id.removeprefix("xie2025."), claim.form): claim for claim in CLAIMS}


@functools.cache
def case(d, length):
    """A loss and its start, a head with a bias as its guess."""
    task = LinearRegression(np.eye(d), length, prior_mean=[1.0, -2.0][:d])
    start = setting.zero_heads(d, 1, bias=1.0)
    loss = MultiHeadLoss(task, start)
    return loss, start_alone(loss, start)


def holds(key):
    """Whether a claim's sides agree, or have room, to 1e-9."""
    claim = OF[key]
    comparison = claim.compare(*case(1 if key[0] in ONE_COORDINATE else 2, np.inf if key[0] in LIMITS else 3.0))
    assert np.all(comparison.promised)
    room = np.asarray(comparison.slack / comparison.size)
    return bool(np.all(room > (-1e-9 if np.all(comparison.identity) else 1e-9)))


def test_every_claim_is_in_the_tables_once():
    tables = [set(BREAKS), set(SLACK), {(name, "printed") for name in VIOLATED}]
    assert set().union(*tables) == set(OF) and sum(map(len, tables)) == len(OF)
    assert {name for names in BREAKS.values() for name in names} == set(MUTATIONS)


def test_every_claim_that_is_to_break_holds_as_it_is():
    assert [key for key in BREAKS if not holds(key)] == []


@pytest.mark.slow  # compiled anew for each error
@pytest.mark.parametrize("name", MUTATIONS)
def test_an_error_of_one_percent_breaks_what_speaks_of_it(name, monkeypatch):
    for d, length in ((1, 3.0), (2, 3.0), (2, np.inf)):
        case(d, length)
    jax.clear_caches()  # of what was compiled without the error
    MUTATIONS[name](monkeypatch)
    unmoved = [key for key, names in BREAKS.items() if name in names and holds(key)]
    jax.clear_caches()
    assert unmoved == []
