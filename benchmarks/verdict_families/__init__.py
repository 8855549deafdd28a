"""Random problems whose truth is known without flowsim, by the kind of error that a verdict on them may make."""

from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.verdict_families.base import Problem
from benchmarks.verdict_families.cancelling import cancelling_claim, cancelling_loss
from benchmarks.verdict_families.chaos import chaos
from benchmarks.verdict_families.decays import far_decay, zero_bound
from benchmarks.verdict_families.descents import descents
from benchmarks.verdict_families.drawn import Drawn
from benchmarks.verdict_families.gates import gates, together
from benchmarks.verdict_families.jumps import jumps, misdeclared
from benchmarks.verdict_families.kinks import kinks
from benchmarks.verdict_families.ladders import ladders
from benchmarks.verdict_families.limits import limits
from benchmarks.verdict_families.narrow import walls, windows
from benchmarks.verdict_families.peaks import peaks
from benchmarks.verdict_families.products import factors, quadratic
from benchmarks.verdict_families.promises import promises, up_to_t1
from benchmarks.verdict_families.prompts import one_layer, one_weight
from benchmarks.verdict_families.resting import resting, rounding_rest
from benchmarks.verdict_families.saddles import saddles

Family = Callable[[np.random.Generator], Problem]

FAMILIES: dict[str, Family] = {
    "one-weight": one_weight,
    "one-layer": one_layer,
    "factors": factors,
    "quadratic": quadratic,
    "cancelling-loss": cancelling_loss,
    "cancelling-claim": cancelling_claim,
    "far-decay": far_decay,
    "zero-bound": zero_bound,
    "promises": promises,
    "up-to-t1": up_to_t1,
    "peaks": peaks,
    "windows": windows,
    "walls": walls,
    "kinks": kinks,
    "rounding-rest": rounding_rest,
    "resting": resting,
    "saddles": saddles,
    "limits": limits,
    "jumps": jumps,
    "misdeclared": misdeclared,
    "gates": gates,
    "together": together,
}

# Statements that are not about one flow.
OTHERS: dict[str, Callable[[np.random.Generator, int], Iterator[Drawn]]] = {
    "ladders": ladders,
    "descents": descents,
    "chaos": chaos,
}

# Of all problems; those of the papers have one statement each.
_OURS = [*FAMILIES, *OTHERS]
SHARES = dict.fromkeys(_OURS, 0.9 / len(_OURS)) | {"theorems": 0.08, "theorems-extreme": 0.02}
