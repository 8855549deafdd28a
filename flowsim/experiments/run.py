"""A run: integrate the flow of a problem, judge the claims about it, and save the results in one folder."""

import contextlib
import dataclasses
import fnmatch
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jax.sharding import Mesh

from flowsim import papers
from flowsim._core.checks import refuse
from flowsim._core.documents import ForeignFileError, require_origin, write_json
from flowsim._core.files import (
    DamagedFileError,
    at_work_in,
    bytes_of,
    folder_of,
    ignore_damaged,
    read_arrays,
    remove_parts_of_the_dead,
    write_whole,
)
from flowsim._core.hosts import by_first
from flowsim._core.progress import progress_bar
from flowsim._core.types import Document, Tables
from flowsim.claims import Claim, Evidence, Verdicts, confidence_band
from flowsim.claims.deciding.iterates import DescentEvidence
from flowsim.claims.deciding.judging import evidence_of, judge_or_note
from flowsim.claims.deciding.measuring import Band, ends
from flowsim.claims.evidence.comparing import refuse_misshapen
from flowsim.experiments.certification import Certificates
from flowsim.experiments.certification.kept import SECONDS
from flowsim.experiments.documents import verdicts_document
from flowsim.flow.trajectory import Trajectory, metadata_of
from flowsim.losses import AbstractPopulationLoss, MonteCarloLoss
from flowsim.papers import constants_of, limits_of
from flowsim.problem import AbstractSpec, Problem, ProblemError, differing_field, toml

TRAJECTORY, FIGURES, CERTIFICATES = "trajectory.npz", "figures", "certificates"


@dataclasses.dataclass(frozen=True)
class Run:
    """The result of a run.

    **Fields:**

    - problem: the problem.
    - trajectory: its flow.
    - evidence: the repetitions of the flow that the verdicts are based on.
    - verdicts: the verdicts.
    - band: the `confidence_band` of a sampled loss; empty otherwise.
    - claims: the claims that were judged, in the order of the verdicts.
    """

    problem: Problem
    trajectory: Trajectory
    evidence: Evidence | DescentEvidence
    verdicts: Verdicts
    band: Mapping[str, Band]
    claims: Sequence[Claim]

    def document(self) -> Document:
        """The contents of verdicts.json."""
        constants = constants_of(self.problem)
        for verdict in self.verdicts:
            constants |= {f"{verdict.id}.{name}": value for name, value in verdict.constants.items()}
        trajectory = self.trajectory
        certificates = dataclasses.asdict(trajectory.certificates) | {"ladder": self.evidence.ladder()}
        limits = limits_of(self.problem)
        return verdicts_document(self.problem.spec, trajectory.status, certificates, constants, limits, self.verdicts)


def run(
    problem: Problem,
    out: str | os.PathLike,
    *,
    claims: str | None = None,
    resume: bool = False,
    certify: bool | float = False,
    progress: bool = False,
) -> Run:
    """Integrate a problem, judge the claims about its flow, and save the results in a folder.

    The files problem.toml, trajectory.npz and verdicts.json are written in this order, each whole or not at all. A
    flow that could not be finished is saved and judged as far as possible; its status says why it ended.
    Certificates are written to the subfolder ``certificates``. They change no verdict.

    **Arguments:**

    - problem: such as ``ProblemSpec.from_toml(text).build()``.
    - out: the folder, which must not hold another run.
    - claims: a pattern of the ids of the claims to judge, default the claims about the flow.
    - resume: whether to continue the run that the folder holds.
    - certify: True to try to prove or refute each judged claim within 60 seconds, or another time limit in seconds.
    - progress: whether to show progress bars, and to print the trajectory before the claims are judged.

    **Raises:** `ProblemError` if the folder holds another run, if another process is at work in it, if no id
    matches, or if the problem does not permit certificates; `ContradictionError` if a certificate shows the
    opposite of a verdict, in which case verdicts.json is not written.
    """
    seconds = _seconds(certify, problem)
    problem, out = problem.prepared(), pathlib.Path(out)
    chosen = claims_about(problem, claims)
    mesh, checkpoint = _mesh(problem.loss), out / "checkpoint"
    with contextlib.ExitStack() as hold:
        by_first(mesh, lambda: hold.enter_context(at_work_in(out, "run")))
        with _taken_back(out / "problem.toml"):
            kept = by_first(mesh, lambda: _enter(out, problem, resume))
            trajectory = _integrated(problem, kept, out / TRAJECTORY, checkpoint, progress)
        if progress:
            print(trajectory, "", sep="\n", flush=True)
        how = {} if problem.is_descent else {"claims": chosen, "checkpoint": checkpoint, "progress": progress}
        evidence = evidence_of(problem.loss, trajectory, **how)
        verdicts = Verdicts()
        with progress_bar("judging", len(chosen), unit="claim", shown=progress) as bar:
            for claim in chosen:
                verdicts.append(judge_or_note(claim, evidence))
                bar.update()
        if seconds is not None:
            kept_in = Certificates(out / CERTIFICATES, seconds)
            with progress_bar("certifying", len(chosen), unit="claim", shown=progress) as bar:
                for place, claim in enumerate(chosen):
                    verdicts[place] = kept_in.certified(claim, verdicts[place], evidence, problem.spec)
                    bar.update()
        finished = trajectory.status.finished
        band = confidence_band(evidence) if finished and isinstance(evidence, Evidence) else {}
        found = Run(problem, trajectory, evidence, verdicts, band, chosen)
        document = found.document()
        by_first(mesh, lambda: write_json(out / "verdicts.json", document))
        if found.band:
            beside = problem.extra_arrays(trajectory.models) | ends(found.band)
            by_first(mesh, lambda: trajectory.save(out / TRAJECTORY, beside, problem.identity))
        if finished:
            by_first(mesh, lambda: shutil.rmtree(checkpoint, ignore_errors=True))
        return found


def claims_about(problem: Problem, pattern: str | None) -> list[Claim]:
    """The claims of papers and of the problem's file that are about the problem's model.

    Claims along a flow are included only if the problem is a flow, and claims about gradient descent only if it is
    a descent. With a pattern, the claims whose ids match it are returned. Without a pattern, all claims of the file
    are returned, and the claims of papers about the whole flow or descent. Claims of papers about the start alone
    are then left out.

    **Raises:** `ProblemError` if no id matches the pattern; `ValueError` if a claim of the file has sides of
    different shapes.
    """
    own = problem.spec.own(Claim)
    every = (*papers.ALL_CLAIMS, *own)
    speaks = lambda claim: claim.of_descent == problem.is_descent or not claim.along_flow
    about = [claim for claim in every if speaks(claim) and claim.is_about(problem.start)]
    refuse_misshapen([claim for claim in own if claim in about], problem.loss, problem.start)
    if pattern is None:
        return [claim for claim in about if claim.along_flow or claim in own]
    chosen = [claim for claim in about if fnmatch.fnmatchcase(claim.id, pattern)]
    if about and not chosen:
        refuse("--claims", "a pattern of the id of some claim about this model", f'none matches "{pattern}"')
    return chosen


def _seconds(certify: bool | float, problem: Problem) -> float | None:
    """The time limit in seconds for each certificate, or None if no certificates are wanted.

    **Raises:** `ProblemError` for a sampled loss, for gradient descent, or for a time that is not positive.
    """
    if certify is False:
        return None
    if problem.is_descent:
        refuse("certify", "left out for gradient descent, whose iterates are enclosed anyway", "it is given")
    if isinstance(problem.loss, MonteCarloLoss):
        refuse("certify", "left out for a sampled loss, as nothing is proved of a sample", "it is given")
    seconds = SECONDS if certify is True else float(certify)
    if not seconds > 0:
        refuse("certify", "a positive number of seconds, or a truth value", f"it is {certify}")
    return seconds


def _enter(out: pathlib.Path, problem: Problem, resume: bool) -> dict[str, np.ndarray] | None:
    """Create the folder of a run or open it again, and write problem.toml.

    **Returns:** the arrays of the trajectory that the folder holds, or None.

    **Raises:** `ProblemError` if the folder holds a run and ``resume`` is False, or if it holds the run of another
    problem.
    """
    file, spec = out / "problem.toml", problem.spec
    with folder_of(out):
        if file.exists():
            if not resume:
                refuse("--out", "a folder without a run", f"{out} holds one: add --resume, or take another folder")
            name = differing_field(_written(file, spec), spec)
            if name is not None:
                refuse("--out", "the folder of this same problem", f"{name} differs from {file}: take another folder")
        kept = _kept(out / TRAJECTORY, problem, known=file.exists())
        if resume:
            remove_parts_of_the_dead(out)
            remove_parts_of_the_dead(out / FIGURES)
        write_whole(file, lambda stream: stream.write(spec.to_toml().encode()))
    return kept


@contextlib.contextmanager
def _taken_back(file: pathlib.Path) -> Iterator[None]:
    """A context that restores problem.toml if the folder turns out to hold results of another problem.

    On a `ProblemError` or a `ForeignFileError` the file gets its former contents. If the file did not exist before,
    it is removed.
    """
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
    """The problem in problem.toml, as nested tables. If the file is damaged, the problem of this run is returned
    instead. Every other file in the folder identifies its own problem, so that nothing foreign is used.
    """
    try:
        return toml.parse(bytes_of(file).decode())
    except ValueError as error:
        ignore_damaged(DamagedFileError(f"{file} is damaged ({error})"), "it is written again")
        return toml.parse(spec.to_toml())


def _kept(file: pathlib.Path, problem: Problem, known: bool) -> dict[str, np.ndarray] | None:
    """The arrays of the trajectory in a file. None if the file does not exist, or if it is damaged and ``known`` is
    True.

    **Arguments:** file: the file; problem: the problem; known: whether the folder belongs to a run of this problem.

    **Raises:** `ForeignFileError` if the file is of another problem or another version of the software;
    `ProblemError` if it is damaged and ``known`` is False.
    """
    if not file.exists():
        return None
    try:
        arrays = read_arrays(file)
        require_origin(metadata_of(arrays, file).get("origin"), problem.identity, "--out", "problem", file)
        return arrays
    except DamagedFileError as error:
        if known:
            ignore_damaged(error, "the flow is integrated again")
            return None
        refuse("--out", "a folder without the flow of another problem", f"{error}: take another folder")


def _integrated(
    problem: Problem,
    kept: Mapping[str, np.ndarray] | None,
    file: pathlib.Path,
    checkpoint: pathlib.Path,
    progress: bool,
) -> Trajectory:
    """The trajectory of a run: the saved one if it is finished; otherwise it is integrated and saved.

    **Arguments:**

    - problem: the problem.
    - kept: the arrays of the saved trajectory, or None.
    - file: where the trajectory is saved.
    - checkpoint: a folder for unfinished integrations.
    - progress: whether to show a progress bar.
    """
    if kept is not None and (found := Trajectory.of_arrays(kept, file, problem.start)).status.finished:
        return found
    trajectory = problem.run(checkpoint=checkpoint / "flow", progress=progress)
    beside, identity = problem.extra_arrays(trajectory.models), problem.identity
    by_first(_mesh(problem.loss), lambda: trajectory.save(file, beside, identity))
    return trajectory


def _mesh(loss: AbstractPopulationLoss) -> Mesh | None:
    """The devices that share the samples of a loss; None for a loss without samples."""
    return loss.mesh if isinstance(loss, MonteCarloLoss) else None
