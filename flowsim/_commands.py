"""What each command does: print or write, and return the exit status."""

import contextlib
import dataclasses
import errno
import json
import math
import pathlib
import shutil
from collections.abc import Iterable, Iterator, Sequence

import jax
import numpy as np
from jaxtyping import PyTree
from tqdm import tqdm

from flowsim import _checks, _toml, maps
from flowsim._axes import Axis
from flowsim._model_table import ModelTable
from flowsim._toml import refuse
from flowsim.analysis import ALL_CLAIMS, Claim, Evidence, Judgement, Verdict, end_point, find_claims, fit_rate, judge_on
from flowsim.flow import start_alone
from flowsim.ledger import ledger
from flowsim.maps import Map
from flowsim.models import LoopedAttention
from flowsim.problem import Problem, ProblemError, ProblemSpec, differing_field, spec_of
from flowsim.prompt_risk import RiskCurve, risk_curve
from flowsim.report import (
    Entry,
    audit_document,
    verdict_table,
    verdicts_document,
    write_json,
    write_report,
)
from flowsim.trajectory import Status, Trajectory, write_whole

FINISHED, VIOLATED, UNFINISHED = 0, 1, 3

_CASES = 64  # that are judged before their programs are forgotten


def run(
    path: pathlib.Path,
    out: pathlib.Path,
    overrides: Sequence[str],
    resume: bool,
    strict: bool,
    format: str,
    quiet: bool,
) -> int:
    """Integrate a problem, judge every claim about it, draw; everything goes to the folder ``out``."""
    say = (lambda *lines: None) if quiet else (lambda *lines: print(*lines, sep="\n", flush=True))
    problem = read(path, overrides)
    _enter(out, problem.spec, resume)
    checkpoint = out / "checkpoint"
    trajectory = _integrated(problem, out, checkpoint, quiet)
    status = trajectory.status
    say(trajectory, "")

    evidence = Evidence(problem.loss, trajectory, checkpoint=checkpoint, progress=not quiet)
    verdicts = [judge_on(claim, evidence) for claim in ALL_CLAIMS if claim.is_about(problem.start)]
    constants = problem.constants
    for verdict in verdicts:
        constants |= {f"{verdict.id}.{name}": value for name, value in verdict.constants.items()}
    certificates = dataclasses.asdict(trajectory.certificates) | {"ladder": evidence.ladder()}
    document = verdicts_document(problem.spec, status, certificates, constants, problem.limits, verdicts)
    write_json(out / "verdicts.json", document)
    say(verdict_table(verdicts), "")

    from flowsim import dominance_plots, plots  # slow to import: not before the table

    promised, tested = problem.predictions, None
    if promised is not None and problem.test is not None:
        tested = risk_curve(trajectory, problem.test, promised.limit)
    facts = _sharp_constants(verdicts) | _facts(problem, evidence)
    if tested is not None:
        tested.save(out / "test_risk.npz")
        facts |= _test_facts(tested) if status.finished else {}
    say(*(f"{label}: {text}" for label, text in facts.items()), "")
    (out / "figures").mkdir(exist_ok=True)
    more = dominance_plots.of_verdicts(verdicts, trajectory)
    figures = plots.draw_all(out / "figures", trajectory, promised, format, tested, problem.minimizer, more)
    write_report(out / "report.html", problem.spec, trajectory, verdicts, figures, promised, facts)
    print(f"report: {out / 'report.html'}")
    if not status.finished:
        hint = "; --resume goes on with it" if status is Status.BUDGET else ""
        print(f"The integration was not finished ({status}), so no claim along it is judged{hint}.")
        return UNFINISHED
    shutil.rmtree(checkpoint, ignore_errors=True)
    return _status(strict, verdicts)


def claims(as_json: bool) -> int:
    """List every claim."""
    names = ("id", "source", "form", "statement")
    if as_json:
        print(json.dumps([{name: getattr(claim, name) for name in names} for claim in ALL_CLAIMS], indent=1))
        return FINISHED
    for claim in ALL_CLAIMS:
        print(f"{claim.id} [{claim.form}], {claim.source}\n    {claim.statement}")
    return FINISHED


def check(identifier: str, overrides: Sequence[str], as_json: bool, strict: bool) -> int:
    """Judge a claim, or all its parts, in every form on its own problems."""
    try:
        chosen = find_claims(ALL_CLAIMS, identifier)
    except ValueError as error:
        raise ProblemError(str(error)) from None
    entries = list(_judged(chosen, overrides))
    if as_json:
        print(json.dumps(audit_document(entries), indent=1))
    else:
        _print_by_problem(entries)
    return _status(strict, [entry.verdict for entry in entries], [entry.status for entry in entries])


def audit(out: pathlib.Path | None, paper: str | None, strict: bool) -> int:
    """Judge every claim, or those of one paper, on its own problems."""
    papers = {claim.id.partition(".")[0] for claim in ALL_CLAIMS}
    if paper is not None and paper not in papers:
        refuse("--paper", f"one of {', '.join(sorted(papers))}", f'it is "{paper}"{_checks.nearest(paper, papers)}')
    if out is not None:
        with _folder(out):
            out.mkdir(parents=True, exist_ok=True)
    entries = list(_judged([claim for claim in ALL_CLAIMS if paper in (None, claim.id.partition(".")[0])]))
    if out is not None:
        write_json(out / "verdicts.json", audit_document(entries))
        write_whole(out / "claims.md", lambda file: file.write(ledger(entries).encode()))
    _print_by_problem(entries)
    return _status(strict, [entry.verdict for entry in entries], [entry.status for entry in entries])


def sweep(
    path: pathlib.Path,
    over: Sequence[str],
    out: pathlib.Path,
    overrides: Sequence[str],
    resume: bool,
    format: str,
    disk_budget: float,
    quiet: bool,
) -> int:
    """Integrate the problem over a grid of its fields and draw the map; everything goes to the folder ``out``."""
    tables = _toml.parse(_text(path))
    for assignment in overrides:
        _toml.override(tables, assignment)
    tables, axes = maps.tables_of(tables), tuple(Axis.parse(axis) for axis in over)
    plan = maps.checked(tables, axes, disk_budget)
    with _folder(out):
        maps.enter(out, tables, axes, resume)
    found = maps.finish(Map(tables, axes, {}, out), plan, not quiet)

    from flowsim import map_plots  # slow to import

    (out / "figures").mkdir(exist_ok=True)
    figure = out / "figures" / f"map.{format}"
    map_plots.draw(found, figure)
    outcomes, counts = np.unique(found["outcome"], return_counts=True)
    if not quiet:
        print(*(f"{count:>8}  {outcome}" for outcome, count in zip(outcomes, counts, strict=True)), sep="\n")
    print(f"map: {figure}")
    failed = np.argwhere(found["outcome"] == "failed")
    if failed.size:
        print(f"{len(failed)} cells were not integrated to their end, the first of them by:")
        print(found.command(failed[0].tolist()))
        return UNFINISHED
    return FINISHED


def read(path: pathlib.Path, overrides: Sequence[str]) -> Problem:
    """The problem of a file, checked to the last field."""
    return ProblemSpec.from_toml(_text(path), overrides).build()


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        refuse("PROBLEM.toml", "a text file that can be read", f"{path}: {getattr(error, 'strerror', 'not UTF-8')}")


def _enter(out: pathlib.Path, spec: ProblemSpec, resume: bool) -> None:
    """Make the folder of a run, or come back to it, and write the problem in its resolved form."""
    file = out / "problem.toml"
    with _folder(out):
        if file.exists():
            if not resume:
                refuse("--out", "a folder without a run", f"{out} holds one: add --resume to go on, or take another")
            name = differing_field(ProblemSpec.from_toml(file.read_text(encoding="utf-8")), spec)
            if name is not None:
                refuse("--out", "the folder of this same problem", f"{name} differs from {file}: take another folder")
        if resume:
            _remove_partial_files(out)
        out.mkdir(parents=True, exist_ok=True)
        write_whole(file, lambda stream: stream.write(spec.to_toml().encode()))


def _remove_partial_files(out: pathlib.Path) -> None:
    """What `write_whole` was writing to the folder of a run when it was killed."""
    for pattern in (
        ".problem.toml.*",
        ".trajectory.npz.*",
        ".verdicts.json.*",
        ".report.html.*",
        ".test_risk.npz.*",
        "figures/.*",
    ):
        for partial in out.glob(pattern):
            partial.unlink()


@contextlib.contextmanager
def _folder(out: pathlib.Path) -> Iterator[None]:
    """Say that a folder is none to write to; a full disk is no bad input."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        refuse("--out", "a folder that can be written", f"{out}: {error.strerror}")


def _integrated(problem: Problem, out: pathlib.Path, checkpoint: pathlib.Path, quiet: bool) -> Trajectory:
    """The trajectory of a run: the one that is there if it is finished, else integrated and saved."""
    file = out / "trajectory.npz"
    if file.exists():
        trajectory = Trajectory.load(file)
        if trajectory.status.finished:
            return trajectory
    trajectory = problem.run(checkpoint=checkpoint / "flow", progress=not quiet)
    trajectory.save(file, problem.matrices(trajectory.models))
    return trajectory


def _facts(problem: Problem, evidence: Evidence) -> dict[str, str]:
    """What a finished run shows beside its verdicts, label and text."""
    trajectory = evidence.trajectory
    if not trajectory.status.finished:
        return {}
    facts = {}
    if problem.predictions is None and not math.isnan(problem.loss.minimum):
        facts["least loss that is known"] = f"{float(problem.loss.minimum):.10g} ({problem.loss.minimum_kind})"
    if rate := fit_rate(trajectory):
        interval, window = f"{rate.low:.6g} to {rate.high:.6g}", f"t = {rate.t_from:.3g} to {rate.t_to:.3g}"
        facts["decay of the excess at the end"] = f"{rate.kind}, {rate.rate:.6g} ({interval}), {window}"
    if end := end_point(problem.loss, trajectory):
        facts["end point, polished by Newton's method"] = (
            f"{end.kind}, excess {end.excess:.2g}, gradient norm {end.grad_norm:.1g}, {end.distance:.2g} away"
        )
        outside = _directions_outside(problem.start) if getattr(problem.loss, "symmetric", False) else 0
        space = f", {outside} of them out of the symmetric matrices" if outside else ""
        facts["Hessian there"] = f"{end.positive} positive, {end.negative} negative, {end.flat} flat directions{space}"
    for tolerance, gap in evidence.ladder().items():
        facts[f"change of the weights, rtol {tolerance} against a hundredth"] = f"{gap:.1e}"
    return facts


def _directions_outside(model: PyTree) -> int:
    """How many directions of the weights leave the symmetric matrices A_i, and u = 0 in a looped model."""
    *_, d = model.A.shape
    return model.A.size // d * (d - 1) // 2 + (d if isinstance(model, LoopedAttention) else 0)


def _test_facts(tested: RiskCurve) -> dict[str, str]:
    """The risk that a finished flow ends with on the prompts of [test], label and text."""
    levels = (
        f"{tested.limit:.6g} at the limit, {tested.best_linear_error:.6g} for the best linear predictor, "
        f"{tested.zero_predictor_error:.6g} for zero"
    )
    label = f"risk at the end on prompts of length {tested.test_length:g}"
    return {label: f"{tested.risk[-1]:.6g}; {levels}"}


def _sharp_constants(verdicts: Iterable[Verdict]) -> dict[str, str]:
    """The tightest constants along the flow beside the theorem's, label and text."""
    return {
        f"{verdict.id}, sharp {name}": f"{verdict.constants[f'sharp_{name}']:.6g}, the theorem's is {value:.6g}"
        for verdict in verdicts
        for name, value in verdict.constants.items()
        if f"sharp_{name}" in verdict.constants
    }


def _judged(chosen: Iterable[Claim], overrides: Sequence[str] = ()) -> Iterator[Entry]:
    """Verdicts of claims on their own problems; claims that share a problem share its flow, if any of them needs it."""
    cases = [
        (
            claim,
            named.get("name", ""),
            spec_of({name: table for name, table in named.items() if name != "name"}, overrides),
        )
        for claim in chosen
        for named in claim.problems
    ]
    problems = {spec: spec.build() for *_, spec in cases}
    flowing = {spec for claim, _, spec in cases if claim.along_flow}
    flows: dict[ProblemSpec, Evidence] = {}
    for count, (claim, name, spec) in enumerate(tqdm(cases, desc="claims", leave=False, delay=2, disable=None)):
        if count % _CASES == _CASES - 1:
            # Each compiled program holds memory maps, of which Linux gives a process 65,530; the disk keeps it.
            jax.clear_caches()
        if spec not in flows:
            problem = problems[spec]
            trajectory = problem.run() if spec in flowing else start_alone(problem.loss, problem.start)
            flows[spec] = Evidence(problem.loss, trajectory)
        evidence = flows[spec]
        run = evidence.trajectory
        status, certificates = (run.status, run.certificates) if claim.along_flow else (None, None)
        yield Entry(claim, name or _toml.write_inline(spec.init), spec, status, certificates, judge_on(claim, evidence))


def _print_by_problem(entries: Sequence[Entry]) -> None:
    """The verdicts on each problem, under the problem."""
    for spec in dict.fromkeys(entry.problem for entry in entries):
        verdicts = [entry.verdict for entry in entries if entry.problem == spec]
        print(_heading(spec), verdict_table(verdicts), sep="\n")
        print(*(f"  {label}: {text}" for label, text in _sharp_constants(verdicts).items()), "", sep="\n")


def _heading(spec: ProblemSpec) -> str:
    """A problem in a few lines: its task, its model where that is not the default, and its start."""
    tables = ("task", "init") if spec.model == ModelTable() else ("task", "model", "init")
    return "\n".join(f"[{name}] {_toml.write_inline(getattr(spec, name))}" for name in tables)


def _status(strict: bool, verdicts: Iterable[Verdict], statuses: Iterable[Status | None] = ()) -> int:
    if any(status is not None and not status.finished for status in statuses):
        return UNFINISHED
    return VIOLATED if strict and any(verdict.verdict is Judgement.VIOLATED for verdict in verdicts) else FINISHED
