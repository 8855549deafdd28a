"""Proofs: what enclosures and certificates cost, how near they come, and how much of the ledger they decide.

Flows are enclosed until most of their way is done. The claims of README's problem that read its flow are certified up
to its end, the constants of two inequalities are planted a billionth on either side of the sharp ones, a certificate is
changed in one place, again and again. `flowsim audit --certify --out docs` tries to refute every printed statement that
the ledger calls violated, on its smallest counterexample or one of its problems.

    python benchmarks/proofs.py            # the table, three minutes
    python benchmarks/proofs.py ledger     # what docs/certified says of the ledger, a second
    python benchmarks/proofs.py flows      # the flows of general_flows.py, up to an hour
    python benchmarks/proofs.py random     # random statements whose truth is known, a quarter of an hour
    python -c "from benchmarks.proofs import main; main(quick=True)"
"""

import functools
import itertools
import json
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
from benchmarks.measurements import DOCS, Measurement, measure

README = {
    "task": {"covariance": {"eigenvalues": [0.5, 1, 2]}, "context_length": 10},
    "init": {"kind": "balanced", "scale": 0.3},
}
_SECONDS = 60.0  # for the certificate of a claim
_RUN = 60.0  # for the flow of a random problem
_FLOW = 600.0  # for the enclosure of a flow
_EACH = 6.0  # for that of a random statement
_OF_EACH, _STATEMENTS, _SEED = 14, 4, 72  # random problems of each family, and statements of each problem


def _timed(function: Any, *arguments: Any, **options: Any) -> tuple[Any, float]:
    begin = time.process_time()
    return function(*arguments, **options), time.process_time() - begin


def measure_enclosures(quick: bool) -> list[Measurement]:
    """CPU seconds and proved radii."""
    import flowsim
    from flowsim.problem import spec_of

    problem = spec_of(README).build()
    factors = flowsim.FunctionLoss(lambda w: (w[0] * w[1] * w[2] - 1) ** 2 / 2, minimum=0.0)
    stiff = flowsim.FunctionLoss(lambda w: jnp.sum(jnp.asarray([1e4, 1.0, 0.1]) * w**2) / 2, minimum=0.0)
    flows = {
        "README's problem, 16 weights": (problem.loss, problem.start, 2.0 if quick else 20.0, 10.0),
        "rates of 1e4, 1 and 0.1, three weights": (stiff, jnp.ones(3), 20.0, 5.0),
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


def measure_flow(name: str, quick: bool) -> list[Measurement]:
    """One flow without an arrowhead, up to its end."""
    import flowsim
    from benchmarks.general_flows import FLOWS
    from flowsim.claims.proofs import OpenError
    from flowsim.experiments.certification.clock import TimeUpError, within

    loss, start = FLOWS[name]()
    end = float(flowsim.gradient_flow(loss, start).t[-1]) * (0.1 if quick else 1.0)
    begin, radius, note = time.process_time(), np.nan, f"to t = {end:.4g}"
    try:
        with within(_FLOW):
            path = flowsim.enclose(loss, start, t1=end)
        radius, note = path.errors[-1], f"{note}, {len(path.pieces)} pieces"
    except (OpenError, ValueError, TimeUpError) as error:
        note = f"{note}: {error or 'the time is up'}"
    return [
        Measurement(f"{name}: time", time.process_time() - begin, "s", "at most", _FLOW, note),
        Measurement(f"{name}: radius at the end", radius, "", "at most", 1e-9, note),
    ]


def measure_claims(quick: bool) -> list[Measurement]:
    """Claims along the flow of README's problem, and planted constants."""
    import flowsim
    from flowsim.claims import Evidence
    from flowsim.claims.proofs import FollowedFlow, check
    from flowsim.experiments.certification import certified
    from flowsim.problem import spec_of

    problem = spec_of(README).build()
    run = problem.run()
    follow = lambda: FollowedFlow(problem.loss, run.start, problem.spec.start_from_tables)
    evidence, followed = Evidence(problem.loss, run), functools.cache(follow)
    chosen = [claim for claim in flowsim.ALL_CLAIMS if claim.along_flow and claim.is_about(problem.start)]
    verdicts = flowsim.judge(chosen, problem.loss, run)
    judged = [each for each in zip(chosen, verdicts, strict=True) if each[1].verdict in ("holds", "violated")]
    decided, forever, spent, times = 0, 0, 0.0, []
    for claim, verdict in judged[: 3 if quick else None]:
        (tried, certificate), took = _timed(certified, claim, verdict, evidence, followed, seconds=_SECONDS)
        spent += took
        if certificate is None:
            print(f"{claim.id} [{claim.form}]: {tried.uncertified}")
            continue
        decided += 1
        forever += "until" not in certificate or certificate["verdict"] == "refuted"
        times.append(_timed(check, certificate)[1])
    note, of = f"until the end of the flow, t = {run.t[-1]:.4g}", f"of {len(judged)} that hold or are violated"
    name = "README's problem: claims along the flow"
    found = [
        Measurement(f"{name} with a certificate", decided, "", "at least", len(judged), f"{of}, {note}"),
        Measurement(f"{name} proved for all t or in the limit, or refuted", forever, "", "at least", len(judged), of),
        Measurement(f"{name}, time of all certificates", spent, "s", "at most", 60.0),
        Measurement(f"{name}, longest check", max(times, default=np.nan), "s", "at most", 10.0),
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
    """What `flowsim audit --certify` recorded of the ledger's statements."""
    files = sorted((DOCS / "certified").glob("*.json"))[: 1 if quick else None]
    rows = {name: row for file in files for name, row in json.loads(file.read_text()).items()}
    violated = {name: row for name, row in rows.items() if row["verdict"] == "violated"}
    print(*(f"{name}: {row['uncertified']}" for name, row in violated.items() if not row["certified"]), sep="\n")
    times = [row["took"] for row in violated.values() if row["certified"]]
    name = "printed statements called violated that are refuted"
    found = [
        Measurement(name, len(times), "", "at least", 90, f"of {len(violated)}"),
        Measurement("time of one, in the median", float(np.median(times)), "s", "at most", 20),
    ]
    for file in files:
        tried = [row for row in json.loads(file.read_text()).values() if row["verdict"] != "violated"]
        proved = sum(row["certified"] == "proved" for row in tried)
        if tried:
            name = f"other statements of {file.stem} that are proved of a problem"
            found.append(Measurement(name, proved, "", "at least", len(tried), f"of {len(tried)}"))
    return found


def measure_random(quick: bool) -> list[Measurement]:
    """Random statements of which other means say what is true, those of `benchmarks/verdict_fuzz.py`."""
    import flowsim
    from benchmarks.verdict_families import FAMILIES
    from benchmarks.verdict_fuzz import problem_of
    from flowsim.claims import Evidence, judge_on
    from flowsim.claims.proofs import FollowedFlow, check
    from flowsim.experiments.certification import certified
    from flowsim.flow.gradient_flow import start_alone

    count, shown, denied, contradicted = 0, 0, [], []
    for index, family in itertools.product(range(1 if quick else _OF_EACH), list(FAMILIES)[: 3 if quick else None]):
        problem, rng = problem_of(family, _SEED, index)
        run = start_alone(problem.loss, problem.start)
        if problem.how is not None:
            run = flowsim.gradient_flow(problem.loss, problem.start, budget_seconds=_RUN, **problem.how)
        evidence, followed = (
            Evidence(problem.loss, run),
            functools.cache(lambda p=problem: FollowedFlow(p.loss, p.start)),
        )
        count += 1
        known = problem.statements(run)
        for place in rng.permutation(len(known))[:_STATEMENTS]:
            claim, fails = known[place].claim, known[place].fails
            verdict, certificate = certified(claim, judge_on(claim, evidence), evidence, followed, seconds=_EACH)
            if certificate is None:
                continue
            shown += 1
            check(certificate)
            row = (
                f"{family}, problem {index}, {claim.id}: {verdict.certified_text()}, {verdict.verdict}, fails: {fails}"
            )
            until = np.inf if verdict.proved_until is None else verdict.proved_until
            is_proof = verdict.certified == "proved"
            if (is_proof and fails is not None and fails <= until) or (not is_proof and fails is None):
                denied.append(row)
            if verdict.contradicted:
                contradicted.append(row)
    print(*denied, *contradicted, sep="\n")
    note = f"{count} problems, {shown} certificates"
    return [
        Measurement("certificates of what is not true", len(denied), "", "at most", 0, note),
        Measurement("certificates that contradict the verdict", len(contradicted), "", "at most", 0, note),
    ]


def main(quick: bool = False) -> list[Measurement]:
    """Measure and print all but the ledger; unless quick, write the results."""
    return measure((measure_enclosures, measure_claims, measure_changes), quick, "proofs", "Proofs", str(__doc__))


if __name__ == "__main__":
    if sys.argv[1:] == ["flows"]:
        from benchmarks.general_flows import FLOWS

        steps = tuple(functools.partial(measure_flow, name) for name in FLOWS)
        measure(steps, False, "enclosures", "Enclosures of flows", str(__doc__))
    elif sys.argv[1:] == ["random"]:
        measure((measure_random,), False, "random_proofs", "Certificates of random statements", str(__doc__))
    elif sys.argv[1:] == ["ledger"]:
        measure((measure_ledger,), False, "refutations", "Refutations", str(__doc__))
    else:
        main()
