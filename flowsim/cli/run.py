"""`flowsim run`: integrate, judge and draw, all in one folder."""

import contextlib
import dataclasses
import fnmatch
import functools
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from jax.sharding import Mesh

from flowsim import papers
from flowsim._core.checks import refuse
from flowsim._core.documents import ForeignFileError, require_origin, write_json
from flowsim._core.files import DamagedFileError, at_work_in, bytes_of, ignore_damaged, read_arrays, write_whole
from flowsim._core.hosts import by_first, is_first
from flowsim._core.progress import progress_bar
from flowsim._core.types import Tables
from flowsim.claims import Claim, Evidence, Judgement, Verdict, confidence_band
from flowsim.claims.deciding.bands import Band, ends
from flowsim.claims.evidence.comparing import refuse_misshapen
from flowsim.claims.judging import judge_or_note
from flowsim.cli.common import UNFINISHED, check_format, exit_status, folder_of, print_json, table_of, tables_of
from flowsim.cli.devices import Hosts, mesh_over
from flowsim.flow.risk_curve import risk_curve
from flowsim.flow.trajectory import Trajectory, metadata_of
from flowsim.papers import constants_of, limits_of, predictions_of
from flowsim.problem import AbstractSpec, Problem, ProblemError, differing_field, spec_of, toml
from flowsim.report.documents import summary, verdicts_document
from flowsim.report.facts import run_facts, sharp_constants, test_facts
from flowsim.report.page import write_report
from flowsim.report.tex import verdicts_table

TRAJECTORY = "trajectory.npz"


def run(
    path: pathlib.Path,
    out: pathlib.Path,
    *,
    overrides: Sequence[str],
    claims: str | None,
    resume: bool,
    as_json: bool,
    strict: bool,
    format: str,
    tex: bool,
    quiet: bool,
    devices: str | None,
    hosts: Hosts,
) -> int:
    """Integrate a problem, judge the claims about it and draw. All files are written to the folder ``out``."""
    check_format(format)
    spec = spec_of(tables_of(path), overrides)
    mesh = _mesh(spec, devices, hosts)
    problem, first = spec.build(mesh=mesh).prepared(), is_first(mesh)
    chosen = _claims_about(problem, claims)
    quiet = quiet or not first or as_json
    say = (lambda *lines: None) if quiet else (lambda *lines: print(*lines, sep="\n", flush=True))
    checkpoint = out / "checkpoint"
    with contextlib.ExitStack() as hold:
        by_first(mesh, lambda: hold.enter_context(_working_in(out)))
        with _taken_back(out / "problem.toml"):
            kept = by_first(mesh, lambda: _enter(out, problem.spec, resume))
            trajectory = _integrated(problem, kept, out / TRAJECTORY, checkpoint, quiet)
        status = trajectory.status
        say(trajectory, "")

        evidence = Evidence(problem.loss, trajectory, claims=chosen, checkpoint=checkpoint, progress=not quiet)
        verdicts = []
        with progress_bar("judging", len(chosen), unit="claim", shown=not quiet) as bar:
            for claim in chosen:
                verdicts.append(judge_or_note(claim, evidence))
                bar.update()
        about = [verdict for verdict in verdicts if verdict.verdict is not Judgement.NOT_APPLICABLE]
        say(table_of(about), "")
        if verdicts:
            why = "; verdicts.json says why these do not apply" if len(about) < len(verdicts) else ""
            say(f"{len(verdicts)} claims: {summary(verdicts)}{why}", "")
        constants = constants_of(problem)
        for verdict in verdicts:
            constants |= {f"{verdict.id}.{name}": value for name, value in verdict.constants.items()}
        certificates = dataclasses.asdict(trajectory.certificates) | {"ladder": evidence.ladder()}
        document = verdicts_document(problem.spec, status, certificates, constants, limits_of(problem), verdicts)
        by_first(mesh, lambda: write_json(out / "verdicts.json", document))
        if tex:
            table = verdicts_table(verdicts).encode()
            by_first(mesh, lambda: write_whole(out / "verdicts.tex", lambda file: file.write(table)))
        if as_json and first:
            print_json(document)

        facts = sharp_constants(verdicts) | run_facts(problem, evidence)
        band = confidence_band(evidence) if status.finished else {}
        if band:
            extras = problem.extra_arrays(trajectory.models) | ends(band)
            by_first(mesh, lambda: trajectory.save(out / TRAJECTORY, extras, problem.spec.identity))
        if first:
            report = _draw(
                out,
                problem,
                trajectory=trajectory,
                verdicts=verdicts,
                facts=facts,
                band=band,
                format=format,
                say=say,
            )
            if not as_json:
                print(f"report: {report}")
        if not status.finished:
            if first and not as_json:
                judged = "claims along it are judged up to there" if status.judged else "no claim along it is judged"
                print(f"The integration was not finished ({status}): {judged}. {status.advice}")
            return UNFINISHED
        if first:
            shutil.rmtree(checkpoint, ignore_errors=True)
        return exit_status(strict, verdicts)


def _draw(
    out: pathlib.Path,
    problem: Problem,
    *,
    trajectory: Trajectory,
    verdicts: Sequence[Verdict],
    facts: dict[str, str],
    band: Mapping[str, Band],
    format: str,
    say: Callable[..., None],
) -> pathlib.Path:
    """Draw the figures and write the report, with the risk on other prompts if asked for; the file of the report."""
    from flowsim.report import plots  # slow to import, so that the table comes first
    from flowsim.report.plots.bands import of_band
    from flowsim.report.plots.dominance import of_verdicts
    from flowsim.report.plots.plateaus import of_plateaus

    predicted, tested = predictions_of(problem), None
    if predicted is not None and problem.test is not None:
        tested = risk_curve(trajectory, problem.test, predicted.limit)
        tested.save(out / "test_risk.npz")
        facts = facts | (test_facts(tested) if trajectory.status.finished else {})
    say(*(f"{label}: {text}" for label, text in facts.items()), "")
    (out / "figures").mkdir(exist_ok=True)
    curves, best = problem.curves, problem.minimizer
    captions = {name: drawn.caption for name, drawn in curves.items()}
    own = {
        name: functools.partial(plots.curve, trajectory=trajectory, drawn=drawn, minimizer=best)
        for name, drawn in curves.items()
    }
    more = own | of_verdicts(verdicts, trajectory) | of_band(trajectory, band) | of_plateaus(trajectory)
    figures = plots.draw_all(out / "figures", trajectory, predicted, format, tested, more)
    write_report(out / "report.html", problem.spec, trajectory, verdicts, figures, predicted, facts, captions)
    return out / "report.html"


def _claims_about(problem: Problem, pattern: str | None) -> list[Claim]:
    """The claims about a problem's model whose ids match a pattern. Without one, flowsim's claims along the flow and
    all claims in the problem's file.
    """
    own = problem.spec.own(Claim)
    about = [claim for claim in (*papers.ALL_CLAIMS, *own) if claim.is_about(problem.start)]
    refuse_misshapen([claim for claim in own if claim in about], problem.loss, problem.start)
    if pattern is None:
        return [claim for claim in about if claim.along_flow or claim in own]
    chosen = [claim for claim in about if fnmatch.fnmatchcase(claim.id, pattern)]
    if about and not chosen:
        refuse("--claims", "a pattern of the id of some claim about this model", f'none matches "{pattern}"')
    return chosen


def _mesh(spec: AbstractSpec, devices: str | None, hosts: Hosts) -> Mesh | None:
    """The devices that share the samples of a problem."""
    if spec.only_device is not None:
        for name, value in {"--devices": devices, "--coordinator": hosts.coordinator}.items():
            if value is not None:
                refuse(name, f"left out {spec.only_device}", f'it is "{value}"')
    return mesh_over(devices, hosts)


@contextlib.contextmanager
def _working_in(out: pathlib.Path) -> Iterator[None]:
    """Create the folder of a run, and lock it."""
    with contextlib.ExitStack() as hold:
        with folder_of(out):
            out.mkdir(parents=True, exist_ok=True)
            hold.enter_context(at_work_in(out, "run"))
        yield


def _enter(out: pathlib.Path, spec: AbstractSpec, resume: bool) -> dict[str, np.ndarray] | None:
    """Begin or resume a run in its folder, and write the resolved problem; the arrays of a trajectory that is there."""
    file = out / "problem.toml"
    with folder_of(out):
        if file.exists():
            if not resume:
                refuse("--out", "a folder without a run", f"{out} holds one: add --resume, or take another folder")
            name = differing_field(_written(file, spec), spec)
            if name is not None:
                refuse("--out", "the folder of this same problem", f"{name} differs from {file}: take another folder")
        kept = _kept(out / TRAJECTORY, spec, known=file.exists())
        if resume:
            _remove_partial_files(out)
        write_whole(file, lambda stream: stream.write(spec.to_toml().encode()))
    return kept


@contextlib.contextmanager
def _taken_back(file: pathlib.Path) -> Iterator[None]:
    """Restore the problem file of a folder that turns out to hold chunks of another problem."""
    before = None
    with contextlib.suppress(OSError):
        before = bytes_of(file)
    try:
        yield
    except (ProblemError, ForeignFileError):
        with contextlib.suppress(OSError):
            if before is None:
                file.unlink()
            elif bytes_of(file) != before:
                write_whole(file, lambda stream: stream.write(before))
        raise


def _written(file: pathlib.Path, spec: AbstractSpec) -> Tables:
    """The problem in a folder. If it cannot be read, that of the run, since each result identifies its problem."""
    try:
        return toml.parse(bytes_of(file).decode())
    except ValueError as error:
        ignore_damaged(DamagedFileError(f"{file} is damaged ({error})"), "it is written again")
        return toml.parse(spec.to_toml())


def _kept(file: pathlib.Path, spec: AbstractSpec, known: bool) -> dict[str, np.ndarray] | None:
    """The arrays of a trajectory of this problem in a file; None if there is none.

    ``known`` says whether the folder is that of a run of this problem.
    """
    if not file.exists():
        return None
    try:
        arrays = read_arrays(file)
        require_origin(metadata_of(arrays, file).get("origin"), spec.identity, "--out", "problem", file)
        return arrays
    except DamagedFileError as error:
        if known:
            ignore_damaged(error, "the flow is integrated again")
            return None
        refuse("--out", "a folder without the flow of another problem", f"{error}: take another folder")


def _remove_partial_files(out: pathlib.Path) -> None:
    """Remove files that `write_whole` left in the folder when a run was killed."""
    for pattern in (
        ".problem.toml.*",
        ".trajectory.npz.*",
        ".verdicts.json.*",
        ".verdicts.tex.*",
        ".report.html.*",
        ".test_risk.npz.*",
        "figures/.*",
    ):
        for partial in out.glob(pattern):
            partial.unlink()


def _integrated(
    problem: Problem, kept: Mapping[str, np.ndarray] | None, file: pathlib.Path, checkpoint: pathlib.Path, quiet: bool
) -> Trajectory:
    """The trajectory of a run: the kept one if it is finished, else integrated and saved."""
    if kept is not None and (found := Trajectory.of_arrays(kept, file, problem.start)).status.finished:
        return found
    trajectory = problem.run(checkpoint=checkpoint / "flow", progress=not quiet)
    extras, identity = problem.extra_arrays(trajectory.models), problem.spec.identity
    by_first(problem.loss.devices(), lambda: trajectory.save(file, extras, identity))
    return trajectory
