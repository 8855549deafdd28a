"""Judge claims on their problems, which overrides may change."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import jax

from flowsim import papers
from flowsim._core.checks import refuse
from flowsim._core.progress import progress_bar
from flowsim._core.types import Document
from flowsim.claims import Claim, Evidence, Hypothesis, Judgement, Verdict
from flowsim.claims.deciding.iterates import DescentEvidence
from flowsim.claims.deciding.judging import judge_or_note
from flowsim.claims.evidence.comparing import refuse_misshapen
from flowsim.claims.hypotheses import can_be_drawn, longest_drawn
from flowsim.experiments.audit.kept import Kept, as_document
from flowsim.experiments.executors import Executor, gathered
from flowsim.flow.gradient_flow import start_alone
from flowsim.flow.trajectory import Certificates, Status
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss
from flowsim.problem import AbstractSpec, Problem, ProblemError, spec_of, toml, unnamed
from flowsim.problem.own.files import own_objects

_CASES = 64  # judged cases, after which compiled programs are dropped
_judged = 0


class Entry(NamedTuple):
    """The verdict on a claim for one of its problems.

    **Fields:**

    - claim: the claim.
    - name: the name of the problem.
    - problem: the problem.
    - status, certificates: the status of the flow and the certificates of its accuracy; None if nothing was
      integrated.
    - verdict: the verdict.
    """

    claim: Claim
    name: str
    problem: AbstractSpec
    status: Status | None
    certificates: Certificates | None
    verdict: Verdict


class _Case(NamedTuple):
    claim: Claim
    name: str
    spec: AbstractSpec


class _Call(NamedTuple):
    """The cases to judge on one problem. A case is a claim with a problem.

    **Fields:** spec: the problem; keys: the key of each case (see `_keys`), by the index of the case in the list of
    all cases.
    """

    spec: AbstractSpec
    keys: dict[int, str]


def judge_all(
    chosen: Iterable[Claim],
    overrides: Sequence[str] = (),
    skipped: list[str] | None = None,
    *,
    kept: Kept | None = None,
    executor: Executor | None = None,
    shard: tuple[int, int] = (1, 1),
    own: str | None = None,
) -> list[Entry]:
    """Judge claims on their problems. Claims on the same problem share its flow.

    A verdict does not depend on the process that computes it. The chosen claims of a paper along one flow are
    compared together. If the verdict of one of them is missing, all of them are judged again.

    **Arguments:**

    - chosen: the claims.
    - overrides: "field=value" for fields of every problem.
    - skipped: a list to which the reason is added if the overrides do not apply to a problem. Without it, such a
      problem raises `ProblemError`.
    - kept: a folder of finished verdicts.
    - executor: where problems are judged, default this process.
    - shard: (i, n) to judge only the i-th of n parts of the problems.
    - own: the file of the claims if they do not belong to a paper.

    **Returns:** the entries in the order of the claims. Entries of other shards are left out unless their verdicts
    are in ``kept``.

    **Raises:** `ProblemError` in one line.
    """
    kept = Kept(None) if kept is None else kept
    cases = list(_cases(chosen, overrides, skipped))
    found: dict[int, Document] = {}
    calls: list[_Call] = []
    for number, places in enumerate(_groups(cases)):
        keys = dict(zip(places, _keys(kept, [cases[place] for place in places]), strict=True))
        for place, key in keys.items():
            if (document := kept.load(cases[place].claim, cases[place].spec, key)) is not None:
                found[place] = document
        missing = {place for place in places if place not in found}
        if any(cases[place].claim.along_flow for place in missing):
            missing |= {place for place in places if cases[place].claim.along_flow}
        if missing and number % shard[1] == shard[0] - 1:
            calls.append(_Call(cases[places[0]].spec, {place: keys[place] for place in sorted(missing)}))
    total = sum(len(call.keys) for call in calls)
    with progress_bar("judging", total, unit="claim") as bar:
        for number, documents in _judge_calls(cases, calls, executor, own):
            for (place, key), document in zip(calls[number].keys.items(), documents, strict=True):
                found[place] = document
                kept.save(cases[place].claim, cases[place].spec, key, document)
            bar.update(len(documents))
    return [_entry(case, found[place]) for place, case in enumerate(cases) if place in found]


def _cases(chosen: Iterable[Claim], overrides: Sequence[str], skipped: list[str] | None) -> Iterator[_Case]:
    built: set[AbstractSpec] = set()
    for claim in chosen:
        for named in claim.problems:
            tables = unnamed(named)
            with _skipping(skipped):
                spec = spec_of(tables, overrides)
                if overrides and spec not in built:
                    # Without overrides the problem can be built. With overrides it is built before anything is judged.
                    evidence_of(spec.build(), False)
                    built.add(spec)
                yield _Case(claim, named.get("name", "") or spec.start_in_short, spec)


def _groups(cases: Sequence[_Case]) -> Iterable[list[int]]:
    """Group the indices of cases (pairs of a claim and a problem) that are judged together: those of one paper on
    one problem.
    """
    groups: dict[tuple[AbstractSpec, str], list[int]] = {}
    for place, case in enumerate(cases):
        groups.setdefault((case.spec, case.claim.id.partition(".")[0]), []).append(place)
    return groups.values()


def _keys(kept: Kept, cases: Sequence[_Case]) -> list[str]:
    """For each case (a claim with a problem), a digest of all that its verdict depends on. All cases have one
    problem.

    Claims along the flow are compared together, so that the digest of each such case covers all of them.
    """
    flowing = [case.claim for case in cases if case.claim.along_flow]
    return [kept.key_of(case.claim, flowing if case.claim.along_flow else (), case.spec) for case in cases]


def _judge_calls(
    cases: Sequence[_Case],
    calls: Sequence[_Call],
    executor: Executor | None,
    own: str | None,
) -> Iterator[tuple[int, list[Document]]]:
    """Compute calls in this process or on an executor, and yield the index of each call with the results of its
    cases.
    """
    if executor is None:
        for number, (spec, keys) in enumerate(calls):
            yield number, judge_problem(spec, [cases[place].claim for place in keys])
        return
    described = [
        (spec.to_toml(), [(cases[place].claim.id, cases[place].claim.form) for place in keys], own)
        for spec, keys in calls
    ]
    yield from gathered(executor, judge_by_name, described)


def entry_of(claim: Claim, name: str, spec: AbstractSpec, kept: Kept) -> Entry:
    """The entry of a claim on one problem. If its verdict is not in the folder ``kept``, the claim is judged and
    the verdict is saved there.
    """
    key = kept.key_of(claim, (claim,) if claim.along_flow else (), spec)
    if (document := kept.load(claim, spec, key)) is None:
        (document,) = judge_problem(spec, [claim])
        kept.save(claim, spec, key, document)
    return _entry(_Case(claim, name, spec), document)


def judge_by_name(problem: str, names: Sequence[tuple[str, str]], own: str | None) -> list[Document]:
    """Judge claims like `judge_problem`, with arguments that can be sent to another process.

    **Arguments:**

    - problem: the text of the problem file.
    - names: the ids and forms of the claims.
    - own: the file of the claims if they do not belong to a paper, or None.
    """
    known = papers.ALL_CLAIMS if own is None else own_objects(own, Claim)
    by_name = {(claim.id, claim.form): claim for claim in known}
    return judge_problem(spec_of(toml.parse(problem)), [by_name[name] for name in names])


def judge_problem(spec: AbstractSpec, claims: Sequence[Claim]) -> list[Document]:
    """Judge claims on one problem.

    **Returns:** for each claim the status and the certificates of the flow, and the verdict, as a JSON document.
    """
    problem = spec.build()
    own = [claim for claim in claims if claim not in papers.ALL_CLAIMS and claim.is_about(problem.start)]
    refuse_misshapen(own, problem.loss, problem.start)
    evidence = evidence_of(problem, any(claim.along_flow for claim in claims), claims)
    return [_judged_alone(claim, evidence) for claim in claims]


def _judged_alone(claim: Claim, evidence: Evidence | DescentEvidence) -> Document:
    global _judged
    _judged += 1
    if _judged % _CASES == 0:
        # The compiled programs of many problems hold gigabytes of memory. The disk keeps them.
        jax.clear_caches()
    run = evidence.trajectory
    status, certificates = (evidence.status, run.certificates) if claim.along_flow else (None, None)
    verdict = judge_or_note(claim, evidence)
    return as_document({"status": status, "certificates": certificates, "verdict": verdict})


def _entry(case: _Case, found: Document) -> Entry:
    status = None if found["status"] is None else Status(found["status"])
    certificates = None if found["certificates"] is None else Certificates(**found["certificates"])
    verdict = dict(found["verdict"])
    verdict["verdict"] = Judgement(verdict["verdict"])
    verdict["hypotheses"] = tuple(Hypothesis(**condition) for condition in verdict["hypotheses"])
    return Entry(*case, status, certificates, Verdict(**verdict))


def evidence_of(problem: Problem, flows: bool, claims: Sequence[Claim] = ()) -> Evidence | DescentEvidence:
    """The evidence for claims on a problem: its flow, its descent, or its start alone.

    **Arguments:**

    - problem: the problem.
    - flows: whether to integrate the flow or the descent. Otherwise the start alone is used.
    - claims: the claims that will be judged.

    **Raises:** `ProblemError` if the loss is sampled and the prompts of the task are too long to be drawn.
    """
    if isinstance(problem.loss, MonteCarloLoss) and not can_be_drawn(problem.task):
        longest = longest_drawn(problem.task)
        refuse("task.context_length", f'at most {longest} with loss.kind = "monte-carlo"', "it is more")
    problem = problem.prepared()
    if flows and problem.is_descent:
        return DescentEvidence(problem.loss, problem.run())
    return Evidence(problem.loss, problem.run() if flows else start_alone(problem.loss, problem.start), claims=claims)


@contextlib.contextmanager
def _skipping(skipped: list[str] | None) -> Iterator[None]:
    """A context that adds the message of a `ProblemError` to ``skipped``. If ``skipped`` is None, the error is
    raised.
    """
    try:
        yield
    except ProblemError as error:
        if skipped is None:
            raise
        skipped.append(str(error))
