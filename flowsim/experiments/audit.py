"""Verdicts of claims on their own problems, as they are or with overrides."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
from tqdm import tqdm

from flowsim._core.checks import refuse
from flowsim.claims import Claim, Evidence, Verdict
from flowsim.claims.hypotheses import can_be_drawn, longest_drawn
from flowsim.claims.judging import judge_or_note
from flowsim.flow.gradient_flow import start_alone
from flowsim.flow.trajectory import Certificates, Status
from flowsim.problem import AbstractSpec, Problem, ProblemError, spec_of

_CASES = 64  # that are judged before their programs are forgotten


class Entry(NamedTuple):
    """One claim judged on one of its problems, of that name; status and certificates are None if nothing was
    integrated.
    """

    claim: Claim
    name: str
    problem: AbstractSpec
    status: Status | None
    certificates: Certificates | None
    verdict: Verdict


def judge_all(
    chosen: Iterable[Claim], overrides: Sequence[str] = (), skipped: list[str] | None = None
) -> Iterator[Entry]:
    """Verdicts of claims on their own problems; claims that share a problem share its flow, if any of them needs it.

    Problems to which the overrides do not apply are skipped where there is something to say so in, and refused else.
    """
    problems: dict[AbstractSpec, Problem] = {}
    cases = []
    pairs = [(claim, named) for claim in chosen for named in claim.problems]
    for claim, named in pairs:
        tables = {name: table for name, table in named.items() if name != "name"}
        with _skipping(skipped):
            spec = spec_of(tables, overrides)
            if spec not in problems:
                problems[spec] = _drawable(spec.build())
            cases.append((claim, named.get("name", ""), spec))
    flowing = {spec for claim, _, spec in cases if claim.along_flow}
    flows: dict[AbstractSpec, Evidence] = {}
    for count, (claim, name, spec) in enumerate(tqdm(cases, desc="claims", leave=False, delay=2, disable=None)):
        if count % _CASES == _CASES - 1:
            # Each compiled program holds memory maps, of which Linux gives a process 65,530; the disk keeps it.
            jax.clear_caches()
        if spec not in flows:
            with _skipping(skipped):
                flows[spec] = evidence_of(problems[spec], spec in flowing)
            if spec not in flows:
                continue
        evidence = flows[spec]
        run = evidence.trajectory
        status, certificates = (run.status, run.certificates) if claim.along_flow else (None, None)
        yield Entry(claim, name or spec.start_in_short, spec, status, certificates, judge_or_note(claim, evidence))


def evidence_of(problem: Problem, flows: bool) -> Evidence:
    """The flow of a problem, or its start alone."""
    try:
        loss = problem.loss.prepared(problem.start)
    except ValueError as error:
        raise ProblemError(f"loss.{error}") from None
    problem = dataclasses.replace(problem, loss=loss)
    return Evidence(loss, problem.run() if flows else start_alone(loss, problem.start))


def _drawable(problem: Problem) -> Problem:
    """The problem, if prompts that it asks for fit into memory."""
    if problem.loss.sampled and not can_be_drawn(problem.task):
        longest = longest_drawn(problem.task)
        refuse("task.context_length", f'at most {longest} with loss.kind = "monte-carlo"', "it is more")
    return problem


@contextlib.contextmanager
def _skipping(skipped: list[str] | None) -> Iterator[None]:
    """Note why a problem is refused, where there is something to note it in."""
    try:
        yield
    except ProblemError as error:
        if skipped is None:
            raise
        skipped.append(str(error))
