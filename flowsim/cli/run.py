"""`flowsim run`: call `flowsim.run`, print its verdicts and draw its figures."""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jax.sharding import Mesh

from flowsim._core.checks import refuse
from flowsim._core.files import write_whole
from flowsim._core.hosts import is_first
from flowsim._core.text import counted
from flowsim.claims import Judgement
from flowsim.cli.common import UNFINISHED, check_format, exit_status, print_json, seconds_of, table_of, tables_of
from flowsim.cli.devices import Hosts, mesh_over
from flowsim.experiments.run import Run
from flowsim.experiments.run import run as run_in
from flowsim.problem import AbstractSpec, spec_of
from flowsim.report.documents import summary, uncertified
from flowsim.report.facts import run_facts, sharp_constants
from flowsim.report.tex import verdicts_table

if TYPE_CHECKING:
    from flowsim.report.explore import Explorable


def run(
    path: pathlib.Path,
    out: pathlib.Path,
    *,
    overrides: Sequence[str],
    claims: str | None,
    resume: bool,
    certify: str | None,
    as_json: bool,
    strict: bool,
    format: str,
    tex: bool,
    explore: Sequence[str],
    quiet: bool,
    devices: str | None,
    hosts: Hosts,
) -> int:
    """Integrate a problem, judge the claims about it, and draw figures and a report in the folder ``out``.

    **Arguments:**

    - path, overrides: the problem.
    - claims: a pattern of ids, or None for all claims about the flow.
    - resume: whether to continue the run in ``out``.
    - certify: the time limit for each certificate, such as "90s"; None without certificates.
    - explore: axes of a grid, as for `flowsim explore`, whose page is written next to the report.

    The other arguments are those of `flowsim.cli.commands.problems.run`.

    **Returns:** the exit status.
    """
    check_format(format)
    seconds = False if certify is None else seconds_of("--certify-budget", certify)
    spec = spec_of(tables_of(path), overrides)
    page = _page(path, out, explore, overrides, claims, hosts)
    mesh = _mesh(spec, devices, hosts)
    first = is_first(mesh)
    talks = first and not (quiet or as_json)
    found = run_in(spec.build(mesh=mesh), out, claims=claims, resume=resume, certify=seconds, progress=talks)
    if talks:
        _print_verdicts(found)
    facts = sharp_constants(found.verdicts) | run_facts(found.problem, found.evidence)
    if first:
        if tex:
            write_whole(out / "verdicts.tex", lambda file: file.write(verdicts_table(found.verdicts).encode()))
        if as_json:
            print_json(found.document())
        if page is not None:
            from flowsim.report.explore import write_explored

            write_explored(page, talks)
        from flowsim.report.drawing import draw_run  # slow to import: not before the table

        facts = draw_run(found, out, facts, format, explored=None if page is None else page.out.name)
        if talks:
            print(*(f"{label}: {text}" for label, text in facts.items()), "", sep="\n")
        if not as_json:
            print(f"report: {out / 'report.html'}", *([] if page is None else [f"page: {page.out}"]), sep="\n")
    status = found.trajectory.status
    if not status.finished:
        if first and not as_json:
            why = status.in_words.partition(": ")[2]
            judged = "claims along it are judged up to there" if status.judged else "no claim along it is judged"
            print(f"The integration was not finished ({why}): {judged}. {status.advice}")
        return UNFINISHED
    return exit_status(strict, found.verdicts)


def _page(
    path: pathlib.Path,
    out: pathlib.Path,
    explore: Sequence[str],
    overrides: Sequence[str],
    claims: str | None,
    hosts: Hosts,
) -> "Explorable | None":
    """Check the axes of the page with sliders, and return the page to write; None without the option --explore."""
    if not explore:
        return None
    if hosts.coordinator is not None:
        refuse("--explore", "left out with --coordinator: flowsim explore writes the page", "it is given")
    from flowsim.cli.sweep import grid_of  # slow to import, as is the page
    from flowsim.report.explore import to_explore

    return to_explore(*grid_of(path, explore, overrides), out / "explore.html", claims)


def _print_verdicts(found: Run) -> None:
    verdicts = found.verdicts
    about = [verdict for verdict in verdicts if verdict.verdict is not Judgement.NOT_APPLICABLE]
    print(table_of(about), "", sep="\n", flush=True)
    if missing := uncertified(about):
        print(*missing, "", sep="\n", flush=True)
    if verdicts:
        why = "; verdicts.json says why these do not apply" if len(about) < len(verdicts) else ""
        print(f"{counted(len(verdicts), 'claim')}: {summary(verdicts)}{why}", "", sep="\n", flush=True)


def _mesh(spec: AbstractSpec, devices: str | None, hosts: Hosts) -> Mesh | None:
    """Return the devices that share the samples of a problem's loss; None for a single device.

    **Raises:** `ProblemError` if devices or hosts are given for a problem that runs on one device only.
    """
    if spec.only_device is not None:
        for name, value in {"--devices": devices, "--coordinator": hosts.coordinator}.items():
            if value is not None:
                refuse(name, f"left out {spec.only_device}", f'it is "{value}"')
    return mesh_over(devices, hosts)
