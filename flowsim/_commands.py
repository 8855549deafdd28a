"""What each command does: print or write, and return the exit status."""

import contextlib
import dataclasses
import errno
import json
import pathlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from jax.sharding import Mesh

from flowsim import _checks, _devices, _hosts, _toml, maps
from flowsim._audit import judged
from flowsim._axes import Axis
from flowsim._devices import Hosts
from flowsim._facts import run_facts, sharp_constants, test_facts
from flowsim._files import DamagedFileError, done_without, read_arrays, write_whole
from flowsim._model_table import ModelTable
from flowsim._systems import mesh_of
from flowsim._toml import refuse
from flowsim.analysis import ALL_CLAIMS, Evidence, Judgement, Verdict, confidence_band, find_claims
from flowsim.analysis.bands import Band, ends
from flowsim.analysis.judging import judge_or_note
from flowsim.ledger import ledger
from flowsim.maps import Map
from flowsim.problem import Problem, ProblemError, ProblemSpec, differing_field
from flowsim.prompt_risk import risk_curve
from flowsim.report import (
    Entry,
    audit_document,
    verdict_table,
    verdicts_document,
    write_json,
    write_report,
)
from flowsim.trajectory import Status, Trajectory, metadata_of

FINISHED, VIOLATED, UNFINISHED = 0, 1, 3
TRAJECTORY = "trajectory.npz"


def run(
    path: pathlib.Path,
    out: pathlib.Path,
    overrides: Sequence[str],
    resume: bool,
    strict: bool,
    format: str,
    quiet: bool,
    devices: str | None,
    hosts: Hosts,
) -> int:
    """Integrate a problem, judge every claim about it, draw; everything goes to the folder ``out``."""
    spec = ProblemSpec.from_toml(_text(path), overrides)
    mesh = _mesh(spec, devices, hosts)
    problem, first = spec.build(mesh=mesh), _hosts.is_first(mesh)
    quiet = quiet or not first
    say = (lambda *lines: None) if quiet else (lambda *lines: print(*lines, sep="\n", flush=True))
    checkpoint = out / "checkpoint"
    with _taken_back(out / "problem.toml"):
        kept = _hosts.by_first(mesh, lambda: _enter(out, problem.spec, resume))
        trajectory = _integrated(problem, kept, out / TRAJECTORY, checkpoint, quiet)
    status = trajectory.status
    say(trajectory, "")

    evidence = Evidence(problem.loss, trajectory, checkpoint=checkpoint, progress=not quiet)
    verdicts = [judge_or_note(claim, evidence) for claim in ALL_CLAIMS if claim.is_about(problem.start)]
    constants = problem.constants
    for verdict in verdicts:
        constants |= {f"{verdict.id}.{name}": value for name, value in verdict.constants.items()}
    certificates = dataclasses.asdict(trajectory.certificates) | {"ladder": evidence.ladder()}
    document = verdicts_document(problem.spec, status, certificates, constants, problem.limits, verdicts)
    _hosts.by_first(mesh, lambda: write_json(out / "verdicts.json", document))
    say(verdict_table(verdicts), "")

    facts = sharp_constants(verdicts) | run_facts(problem, evidence)
    band = confidence_band(evidence) if status.finished else {}
    if band:
        beside = problem.matrices(trajectory.models) | ends(band)
        _hosts.by_first(mesh, lambda: trajectory.save(out / TRAJECTORY, beside, problem.spec.identity))
    if first:
        _draw(out, problem, trajectory, verdicts, facts, band, format, say)
    if not status.finished:
        hint = "; --resume goes on with it" if status is Status.BUDGET else ""
        if first:
            print(f"The integration was not finished ({status}), so no claim along it is judged{hint}.")
        return UNFINISHED
    if first:
        shutil.rmtree(checkpoint, ignore_errors=True)
    return _status(strict, verdicts)


def _draw(
    out: pathlib.Path,
    problem: Problem,
    trajectory: Trajectory,
    verdicts: Sequence[Verdict],
    facts: dict[str, str],
    band: Mapping[str, Band],
    format: str,
    say: Callable[..., None],
) -> None:
    """The figures and the report of a run, with the risk on other prompts where it is asked for."""
    from flowsim import band_plots, dominance_plots, plots  # slow to import: not before the table

    promised, tested = problem.predictions, None
    if promised is not None and problem.test is not None:
        tested = risk_curve(trajectory, problem.test, promised.limit)
        tested.save(out / "test_risk.npz")
        facts = facts | (test_facts(tested) if trajectory.status.finished else {})
    say(*(f"{label}: {text}" for label, text in facts.items()), "")
    (out / "figures").mkdir(exist_ok=True)
    more = dominance_plots.of_verdicts(verdicts, trajectory) | band_plots.of_band(trajectory, band)
    figures = plots.draw_all(out / "figures", trajectory, promised, format, tested, problem.minimizer, more)
    write_report(out / "report.html", problem.spec, trajectory, verdicts, figures, promised, facts)
    print(f"report: {out / 'report.html'}")


def _mesh(spec: ProblemSpec, devices: str | None, hosts: Hosts) -> Mesh | None:
    """The devices that share the samples of a problem."""
    if spec.loss.kind != "monte-carlo":
        for name, value in {"--devices": devices, "--coordinator": hosts.coordinator}.items():
            if value is not None:
                expected = f'left out with loss.kind = "{spec.loss.kind}", which one device computes'
                refuse(name, expected, f'it is "{value}"')
    return _devices.mesh(devices, hosts)


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
    entries = list(judged(chosen, overrides))
    if as_json:
        print(json.dumps(audit_document(entries), indent=1))
    else:
        _print_by_problem(entries)
    return _status(strict, [entry.verdict for entry in entries], [entry.status for entry in entries])


def audit(out: pathlib.Path | None, paper: str | None, overrides: Sequence[str], strict: bool) -> int:
    """Judge every claim, or those of one paper, on those of its own problems to which the overrides apply."""
    papers = {claim.id.partition(".")[0] for claim in ALL_CLAIMS}
    if paper is not None and paper not in papers:
        refuse("--paper", f"one of {', '.join(sorted(papers))}", f'it is "{paper}"{_checks.nearest(paper, papers)}')
    if out is not None:
        with folder_of(out):
            out.mkdir(parents=True, exist_ok=True)
    skipped: list[str] = []
    chosen = [claim for claim in ALL_CLAIMS if paper in (None, claim.id.partition(".")[0])]
    entries = list(judged(chosen, overrides, skipped if overrides else None))
    if not entries:
        raise ProblemError(f"--set must be something that applies to a problem, but {skipped[0]}")
    if out is not None:
        write_json(out / "verdicts.json", audit_document(entries))
        write_whole(out / "claims.md", lambda file: file.write(ledger(entries).encode()))
    _print_by_problem(entries)
    if skipped:
        print(f"Not judged, as the overrides do not apply to the problem: {len(skipped)}")
        print(*(f"  {count}: {reason}" for reason, count in Counter(skipped).most_common()), sep="\n")
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
    devices: str | None,
) -> int:
    """Integrate the problem over a grid of its fields and draw the map; everything goes to the folder ``out``."""
    tables = _toml.parse(_text(path))
    for assignment in overrides:
        _toml.override(tables, assignment)
    tables, axes = maps.tables_of(tables), tuple(Axis.parse(axis) for axis in over)
    mesh = _devices.mesh(devices, Hosts())
    plan = maps.checked(tables, axes, disk_budget, mesh)
    with folder_of(out):
        maps.enter(out, tables, axes, resume)
    found = maps.finish(Map(tables, axes, {}, out), plan, not quiet, mesh)

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
    except UnicodeDecodeError:
        refuse("PROBLEM.toml", "a text file that can be read", f"{path}: not UTF-8")
    except (OSError, ValueError) as error:  # the latter of a path that can be none
        refuse("PROBLEM.toml", "a text file that can be read", f"{path}: {getattr(error, 'strerror', error)}")


def _enter(out: pathlib.Path, spec: ProblemSpec, resume: bool) -> dict[str, np.ndarray] | None:
    """Make the folder of a run, or come back to it, and write the problem in its resolved form; the arrays of the
    trajectory that is there.
    """
    file = out / "problem.toml"
    with folder_of(out):
        if file.exists():
            if not resume:
                refuse("--out", "a folder without a run", f"{out} holds one: add --resume to go on, or take another")
            name = differing_field(_written(file, spec), spec)
            if name is not None:
                refuse("--out", "the folder of this same problem", f"{name} differs from {file}: take another folder")
        kept = _kept(out / TRAJECTORY, spec, known=file.exists())
        if resume:
            _remove_partial_files(out)
        out.mkdir(parents=True, exist_ok=True)
        write_whole(file, lambda stream: stream.write(spec.to_toml().encode()))
    return kept


@contextlib.contextmanager
def _taken_back(file: pathlib.Path) -> Iterator[None]:
    """Put the problem of a folder that turns out to hold the chunks of another back to what it was."""
    before = None
    with contextlib.suppress(OSError):
        before = file.read_bytes()
    try:
        yield
    except ProblemError:
        with contextlib.suppress(OSError):
            if before is None:
                file.unlink()
            elif file.read_bytes() != before:
                write_whole(file, lambda stream: stream.write(before))
        raise


def _written(file: pathlib.Path, spec: ProblemSpec) -> ProblemSpec:
    """The problem of a folder; that of the run where it cannot be read, since each result knows its own problem."""
    try:
        return ProblemSpec.from_toml(file.read_text(encoding="utf-8"))
    except ValueError as error:
        done_without(DamagedFileError(f"{file} is damaged ({error})"), "it is written again")
        return spec


def _kept(file: pathlib.Path, spec: ProblemSpec, known: bool) -> dict[str, np.ndarray] | None:
    """The arrays of the trajectory of this same problem, where there is one.

    **Arguments:** known: whether the folder is that of a run of this problem.
    """
    if not file.exists():
        return None
    try:
        arrays = read_arrays(file)
        came = f"{file} is of another problem"
        if metadata_of(arrays, file).get("problem") == spec.identity:
            return arrays
    except DamagedFileError as error:
        if known:
            done_without(error, "the flow is integrated again")
            return None
        came = str(error)
    refuse("--out", "a folder without the flow of another problem", f"{came}: take another folder")


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
def folder_of(out: pathlib.Path) -> Iterator[None]:
    """Say that a folder cannot be written to; a full disk is not bad input."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        refuse("--out", "a folder that can be written to", f"{out}: {error.strerror}")


def _integrated(
    problem: Problem, kept: Mapping[str, np.ndarray] | None, file: pathlib.Path, checkpoint: pathlib.Path, quiet: bool
) -> Trajectory:
    """The trajectory of a run: the one that is kept if it is finished, else integrated and saved."""
    if kept is not None and (found := Trajectory.of_arrays(kept, file)).status.finished:
        return found
    trajectory = problem.run(checkpoint=checkpoint / "flow", progress=not quiet)
    beside, identity = problem.matrices(trajectory.models), problem.spec.identity
    _hosts.by_first(mesh_of(problem.loss), lambda: trajectory.save(file, beside, identity))
    return trajectory


def _print_by_problem(entries: Sequence[Entry]) -> None:
    """The verdicts on each problem, under the problem."""
    for spec in dict.fromkeys(entry.problem for entry in entries):
        verdicts = [entry.verdict for entry in entries if entry.problem == spec]
        print(_heading(spec), verdict_table(verdicts), sep="\n")
        print(*(f"  {label}: {text}" for label, text in sharp_constants(verdicts).items()), "", sep="\n")


def _heading(spec: ProblemSpec) -> str:
    """A problem in a few lines: its task, its model where that is not the default, and its start."""
    tables = ("task", "init") if spec.model == ModelTable() else ("task", "model", "init")
    return "\n".join(f"[{name}] {_toml.write_inline(getattr(spec, name))}" for name in tables)


def _status(strict: bool, verdicts: Iterable[Verdict], statuses: Iterable[Status | None] = ()) -> int:
    if any(status is not None and not status.finished for status in statuses):
        return UNFINISHED
    return VIOLATED if strict and any(verdict.verdict is Judgement.VIOLATED for verdict in verdicts) else FINISHED
