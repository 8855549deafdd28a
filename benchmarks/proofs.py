"""Proofs: what enclosures and certificates cost, how near they come, and how much of the ledger they decide.

Flows are enclosed until most of their way is done. The claims of README's problem that read its flow are certified up
to t = 5, the constants of two inequalities are planted a billionth on either side of the sharp ones, a certificate is
changed in one place, again and again, and every printed statement without a flow that the ledger calls violated is to
be refuted on one of its problems.

    python benchmarks/proofs.py            # the whole table, ten minutes
    python -c "from benchmarks.proofs import main; main(quick=True)"
"""

import functools
import operator
import pathlib
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # to be run as a file, too
from benchmarks.measurements import Measurement, ledger, measure

README = {
    "task": {"covariance": {"eigenvalues": [0.5, 1, 2]}, "context_length": 10},
    "init": {"kind": "balanced", "scale": 0.3},
}


def _timed(function: Any, *arguments: Any, **options: Any) -> tuple[Any, float]:
    begin = time.process_time()
    return function(*arguments, **options), time.process_time() - begin


def measure_enclosures(quick: bool) -> list[Measurement]:
    """CPU seconds and proved radii."""
    import flowsim
    from flowsim.problem import spec_of

    problem = spec_of(README).build()
    factors = flowsim.FunctionLoss(lambda w: (w[0] * w[1] * w[2] - 1) ** 2 / 2, minimum=0.0)
    flows = {
        "README's problem, 16 weights": (problem.loss, problem.start, 2.0 if quick else 20.0, 10.0),
        "three factors from 0.1, through the plateau": (factors, jnp.full(3, 0.1), 20.0, 5.0),
        "three factors from 0.01": (factors, jnp.full(3, 0.01), 20.0 if quick else 120.0, 10.0),
    }
    found = []
    for name, (loss, start, t1, asked) in flows.items():
        path, seconds = _timed(flowsim.enclose, loss, start, t1=t1)
        note = f"to t = {t1:g}, {len(path.pieces)} pieces"
        found.append(Measurement(f"{name}: time", seconds, "s", "at most", asked, note))
        found.append(Measurement(f"{name}: radius at the end", path.errors[-1], "", "at most", 1e-9, note))
    return found


def measure_claims(quick: bool) -> list[Measurement]:
    """Claims along the flow of README's problem, and planted constants."""
    import flowsim
    from flowsim.claims.proofs import OpenError, checker
    from flowsim.problem import spec_of

    problem = spec_of(README).build()
    run = problem.run()
    chosen = [claim for claim in flowsim.ALL_CLAIMS if claim.along_flow and claim.is_about(problem.start)]
    chosen = chosen[:3] if quick else chosen
    decided, verdicts, times = 0, 0, []
    for claim, verdict in zip(chosen, flowsim.judge(chosen, problem.loss, run), strict=True):
        if verdict.verdict not in ("holds", "violated"):
            continue
        verdicts += 1
        refutes = verdict.verdict == "violated"
        t1 = float(verdict.where) if refutes and isinstance(verdict.where, float) else 5.0
        try:
            certificate = flowsim.certify(claim, problem.loss, problem.start, t1=t1, refutes=refutes)
        except OpenError as error:
            print(f"{claim.id} [{claim.form}]: {error}")
            continue
        decided += 1
        times.append(_timed(checker.check, certificate)[1])
    note = f"of {verdicts} that hold or are violated, up to t = 5"
    found = [
        Measurement(
            "README's problem: claims along the flow with a certificate", decided, "", "at least", verdicts, note
        ),
        Measurement("README's problem: longest check", max(times, default=np.nan), "s", "at most", 10.0),
    ]
    loss, start = flowsim.FunctionLoss(lambda w: jnp.sum(w**2) / 2, minimum=0.0), jnp.asarray([0.7])
    right = 0
    for compare in (
        lambda c: lambda flow: flowsim.at_most(flow.excess, jnp.exp(-2 * c * flow.t) * flow.excess[0]),
        lambda c: lambda flow: flowsim.at_least(flow.grad_norm_sq, 2 * c * flow.excess),
    ):
        for c, refutes in ((1 - 1e-9, False), (1 + 1e-9, True)):
            claim = flowsim.claim("planted", "a benchmark", statement="a sharp constant")(compare(c))
            flowsim.certify(claim, loss, start, t1=3.0, refutes=refutes)
            right += 1
    note = "rate and gradient inequality of w^2/2, a billionth on either side"
    return [*found, Measurement("planted constants that are told apart", right, "", "at least", 4, note)]


def _places(document: Any, path: tuple) -> Iterator[tuple]:
    """The way to every number and word of a certificate."""
    if isinstance(document, dict | list):
        for key, part in document.items() if isinstance(document, dict) else enumerate(document):
            yield from _places(part, (*path, key))
    else:
        yield path


def measure_changes(quick: bool) -> list[Measurement]:
    """A certificate that is changed in one place, with a digest of its own as without."""
    import flowsim
    from flowsim.claims.proofs import checker

    claim = flowsim.claim("mine", "a benchmark", statement="a rate")(
        lambda flow: flowsim.at_most(flow.excess, jnp.exp(-0.9 * flow.t) * flow.excess[0])
    )
    loss = flowsim.FunctionLoss(lambda w: (0.5 * w[0] ** 2 + 2 * w[1] ** 2) / 2, minimum=0.0)
    certificate = flowsim.certify(claim, loss, jnp.asarray([1.0, -0.25]), t1=1.5)
    rng, tried, rejected = random.Random(3), 200 if quick else 10_000, 0
    places = list(_places(certificate, ()))
    for path in rng.choices(places, k=tried):
        inside = functools.reduce(operator.getitem, path[:-1], certificate)
        before = inside[path[-1]]
        inside[path[-1]] = f"{before}1" if isinstance(before, str) else 7 if before is None else before + 1
        try:
            checker.check(certificate)
        except checker.RefusedError:
            rejected += 1
        inside[path[-1]] = before
    note = "one digit or word, anywhere"
    return [Measurement(f"of {tried} changed certificates are rejected", rejected, "", "at least", tried, note)]


def measure_ledger(quick: bool) -> list[Measurement]:
    """Printed statements without a flow that the ledger calls violated."""
    import flowsim
    from flowsim.claims.proofs import OpenError
    from flowsim.problem import spec_of

    pages = ledger().split("\n## ")
    violated = {page.split(")")[0] for page in pages if "✗ violated |" in page}
    chosen = [c for c in flowsim.ALL_CLAIMS if f"{c.id} ({c.form}" in violated and c.form == "printed"]
    chosen = chosen[:5] if quick else chosen
    refuted, times = 0, []
    for claim in chosen:
        if claim.along_flow:
            continue
        for named in claim.problems:
            problem = spec_of({name: table for name, table in named.items() if name != "name"}).build()
            try:
                _, seconds = _timed(flowsim.certify, claim, problem.loss, problem.start, refutes=True)
            except (OpenError, ValueError, TypeError):
                continue
            refuted += 1
            times.append(seconds)
            break
    note = f"of {len(chosen)}"
    return [
        Measurement("printed statements called violated that are refuted", refuted, "", "at least", 90, note),
        Measurement("time of one, in the median", float(np.median(times)) if times else np.nan, "s", "at most", 20),
    ]


def main(quick: bool = False) -> list[Measurement]:
    """Measure and print; unless quick, write the results."""
    steps = (measure_enclosures, measure_claims, measure_changes, measure_ledger)
    return measure(steps, quick, "proofs", "Proofs", str(__doc__))


if __name__ == "__main__":
    main()
