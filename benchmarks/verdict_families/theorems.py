"""Statements of the papers that nobody has seen fail, at random points of the spaces that they speak of.

- theorems: as the spaces have them;
- theorems-extreme: with t1 very short or very long, and where the start has a scale, with a tiny or a huge one. Where
  a hypothesis is then not met the verdict is that it does not apply, which is right.

These have only true statements.
"""

import functools
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

import flowsim
from benchmarks.measurements import DOCS, ledger
from benchmarks.verdict_families.drawn import Drawn
from flowsim import Claim
from flowsim.claims import Evidence, judge_on
from flowsim.claims.deciding.iterates import DescentEvidence
from flowsim.claims.spaces import Space
from flowsim.experiments.audit import evidence_of
from flowsim.experiments.search.points import Sampler
from flowsim.flow.gradient_flow import start_alone
from flowsim.papers import ALL_CLAIMS
from flowsim.problem import ProblemError, spec_of


def true_theorems() -> list[Claim]:
    """Claims of the ledger that no problem breaks."""
    sections = re.findall(r"^## (\S*) \((\w*)\)\n(.*?)(?=^## |^<!-- |\Z)", ledger(), re.MULTILINE | re.DOTALL)
    broken = {(identifier, form) for identifier, form, body in sections if "violated" in body}
    broken |= {_named(path) for path in (DOCS / "counterexamples").iterdir()}
    known = {(identifier, form) for identifier, form, _ in sections}
    return [claim for claim in ALL_CLAIMS if (claim.id, claim.form) in known - broken]


def _named(path: pathlib.Path) -> tuple[str, str]:
    identifier, form = path.stem.rsplit("-", 1)
    return identifier, form


def theorems(count: int, seed: int, seconds: float, *, extreme: bool = False) -> Iterator[Drawn]:
    """Theorems, each at points of its spaces.

    **Arguments:** seconds: for a flow; extreme: whether time and scale are beyond what the space has.
    """
    claims = [claim for claim in true_theorems() if claim.along_flow or not extreme]
    rng = np.random.default_rng([seed, 15])
    if count < len(claims):
        claims = [claims[place] for place in np.sort(rng.permutation(len(claims))[:count])]
    each = -(-count // max(len(claims), 1))
    for number, claim in enumerate(claims):
        space = claim.spaces[number % len(claim.spaces)]
        for index, point in enumerate(Sampler(space, 0, seed).draw(0, each)):
            further = beyond(rng, space) if extreme else {}
            try:
                evidence = _evidence_at(claim, space, point.values, further, seconds)
            except ProblemError as error:
                print(f"{claim.id} at {dict(point.values)}, {further}: {error}", file=sys.stderr)
                continue
            told = "".join(f", {name} = {value:.3g}" for name, value in further.items())
            judge = functools.partial(judge_on, evidence=evidence)
            yield Drawn(f"{claim.id} {index}{told}", claim, judge, None, not extreme)
        jax.clear_caches()


def beyond(rng: np.random.Generator, space: Space) -> dict[str, float]:
    """A time of the end, and a scale of the start where it has one."""
    kind = rng.integers(4)
    further = {}
    if kind != 3:
        further["flow.t1"] = 10 ** (rng.uniform(3, 6) if kind == 0 else rng.uniform(-6, -2))
    if "init.scale" in space.axes or "scale" in space.problem.get("init", {}):
        further["init.scale"] = float(rng.choice([1e-8, 1e-4, 30.0, 1e3]))
    return further


def _evidence_at(
    claim: Claim, space: Space, values: Mapping[str, Any], beyond: Mapping[str, float], seconds: float
) -> Evidence | DescentEvidence:
    """The problem at a point of a space, with its flow where the claim speaks of one."""
    if space.make is None:
        overrides = [f"{name}={value!r}" for name, value in beyond.items()]
        spec = spec_of(space.tables(values), [f"flow.budget_seconds={seconds}", *overrides])
        return evidence_of(spec.build(), claim.along_flow)
    loss, start = space.make(**values)
    if not claim.along_flow:
        return Evidence(loss, start_alone(loss, start))
    return Evidence(loss, flowsim.gradient_flow(loss, start, t1=beyond.get("flow.t1"), budget_seconds=seconds))
