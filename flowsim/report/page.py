"""report.html: a run as a self-contained page that reads like a page of a paper."""

import base64
import itertools
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence

import jinja2

from flowsim._core import checks
from flowsim._core.documents import versions
from flowsim._core.files import write_whole
from flowsim._core.text import in_unicode
from flowsim.claims.deciding.verdict import Judgement, Verdict, certificates_asked, citation, own_stop
from flowsim.claims.hypotheses import Hypothesis
from flowsim.experiments.certification.kept import certificate_name
from flowsim.experiments.run import CERTIFICATES
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.paper import Predictions
from flowsim.problem import AbstractSpec
from flowsim.report.documents import MARKS, ORDER
from flowsim.report.mathml import name_in_html, statement_in_html

_MEDIA_TYPES = {".png": "image/png", ".svg": "image/svg+xml"}


def write_report(
    path: str | os.PathLike,
    spec: AbstractSpec,
    trajectory: Trajectory,
    verdicts: Sequence[Verdict],
    figures: Mapping[str, pathlib.Path],
    predictions: Predictions | None,
    facts: Mapping[str, str],
    captions: Mapping[str, str] | None = None,
) -> None:
    """Write report.html, a self-contained page with problem, verdicts, figures and the settings of the computation.

    **Arguments:**

    - path: the file.
    - spec: the problem.
    - trajectory: the flow.
    - verdicts: the verdicts.
    - figures: names and files (png or svg) as `flowsim.report.plots.draw_all` returns them.
    - predictions: what a paper predicts for the start, or None.
    - facts: further results at the end of the flow, text by label.
    - captions: of figures that have no caption here.

    **Raises:** `ValueError` on a figure that a page cannot show.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "number": in_unicode,
        "where": Verdict.where_text,
        "citation": citation,
        "anchor": lambda verdict: f"{verdict.id}-{verdict.form}",
        "statement": statement_in_html,
        "own_stop": own_stop,
        "certificate": lambda verdict: f"{CERTIFICATES}/{certificate_name(verdict)}",
        "name": name_in_html,
    }
    ordered = sorted(verdicts, key=lambda verdict: ORDER.index(verdict.verdict))
    not_applicable = [verdict for verdict in ordered if verdict.verdict is Judgement.NOT_APPLICABLE]
    html = environment.get_template("report.html.jinja").render(
        spec=spec,
        trajectory=trajectory,
        verdicts=verdicts,
        counts=_counts(ordered),
        shown=_shown(verdicts),
        groups=[
            (False, ordered[: len(ordered) - len(not_applicable)]),
            *([(True, not_applicable)] if not_applicable else []),
        ],
        start_excess=float(trajectory.excess[0]),
        marks=MARKS,
        hypotheses=_hypotheses(ordered),
        figures={name: _data_uri(figure) for name, figure in figures.items()},
        promised=predictions.promised if predictions else {},
        facts=facts,
        captions=_captions(predictions) | dict(captions or {}),
        versions=versions(),
    )
    write_whole(path, lambda file: file.write(html.encode()))


def _captions(predictions: Predictions | None) -> dict[str, str]:
    """A paper's captions for figures."""
    if predictions is None:
        return {}
    return {name: drawn.caption for name, drawn in predictions.curves.items()} | dict(predictions.captions)


def _counts(ordered: Sequence[Verdict]) -> list[tuple[str, list[Verdict]]]:
    """``11 hold``, ``1 is violated``, with the verdicts that are named."""
    counts = []
    for judgement, found in itertools.groupby(ordered, key=lambda verdict: verdict.verdict):
        same = list(found)
        one = len(same) == 1
        if judgement is Judgement.HOLDS:
            verb = "holds" if one else "hold"
        else:
            verb = f"{'is' if one else 'are'} {judgement.replace('-', ' ')}"
        named = judgement in (Judgement.VIOLATED, Judgement.UNRESOLVED)
        counts.append((f"{len(same)} {verb}", same if named else []))
    return counts


def _shown(verdicts: Sequence[Verdict]) -> str:
    """A sentence that counts what certificates show; empty if none was asked for."""
    if not certificates_asked(verdicts):
        return ""
    counts = {word: sum(verdict.certified == word for verdict in verdicts) for word in ("proved", "refuted")}
    return f"Certificates prove {counts['proved']} of them and refute {counts['refuted']}."


def _hypotheses(ordered: Iterable[Verdict]) -> list[tuple[list[str], tuple[Hypothesis, ...]]]:
    """The hypotheses of each claim, with the ids of all claims that share them."""
    groups: dict[str, tuple[list[str], tuple[Hypothesis, ...]]] = {}
    for verdict in ordered:
        if verdict.hypotheses:
            names, _ = groups.setdefault(repr(verdict.hypotheses), ([], verdict.hypotheses))
            if verdict.id not in names:
                names.append(verdict.id)
    return list(groups.values())


def _data_uri(figure: pathlib.Path) -> str:
    if figure.suffix not in _MEDIA_TYPES:
        checks.refuse("figures", f"files that a page can show ({', '.join(_MEDIA_TYPES)})", f"one is {figure.name}")
    return f"data:{_MEDIA_TYPES[figure.suffix]};base64,{base64.b64encode(figure.read_bytes()).decode()}"
