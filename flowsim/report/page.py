"""Writes report.html, which shows a run as one self-contained page in the style of a paper."""

import base64
import functools
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
from flowsim.report.facts import looseness, with_sharp
from flowsim.report.mathml import name_in_html, statement_in_html
from flowsim.report.plots.verdicts import SIDES

_LEADING = ("tightness", "excess", "loss")
_LOOSE = 1.5  # the factor from which on a constant is called too small or too large
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
    explored: str | None = None,
) -> None:
    """Write report.html, a self-contained page with the problem, verdicts, figures and settings of a run.

    **Arguments:**

    - path: the file to write.
    - spec: the problem.
    - trajectory: the flow.
    - verdicts: the verdicts.
    - figures: the file (png or svg) of each figure by name, as `flowsim.report.plots.draw_all` returns them.
    - predictions: what a paper predicts for the start, or None.
    - facts: further results at the end of the flow, as texts by label.
    - captions: captions of figures by name, used instead of a paper's.
    - explored: the name of a page with sliders in the same folder, to which a link leads; None without it.

    **Raises:** `ValueError` on a figure that a page cannot show.
    """
    ordered = sorted(verdicts, key=lambda verdict: ORDER.index(verdict.verdict))
    not_applicable = [verdict for verdict in ordered if verdict.verdict is Judgement.NOT_APPLICABLE]
    applicable = ordered[: len(ordered) - len(not_applicable)]
    leading = [name for name in _LEADING if name in figures] + [name for name in figures if name.startswith(SIDES)]
    shown = [*leading, *(name for name in figures if name not in leading)]
    html = template("report.html.jinja").render(
        spec=spec,
        trajectory=trajectory,
        descends=trajectory.step_size is not None,
        method="gradient flow" if trajectory.step_size is None else trajectory.settings.method,
        clock="flow time" if trajectory.step_size is None else "the number of steps",
        verdicts=verdicts,
        counts=_counts(applicable),
        all_hold=bool(applicable) and all(verdict.verdict is Judgement.HOLDS for verdict in applicable),
        unmet=len(not_applicable),
        loosest=_loosest(applicable),
        shown=_shown(verdicts),
        groups=[(False, applicable), *([(True, not_applicable)] if not_applicable else [])],
        start_excess=float(trajectory.excess[0]),
        marks=MARKS,
        hypotheses=_hypotheses(ordered),
        figures={name: _data_uri(figures[name]) for name in shown},
        parts=[leading, shown[len(leading) :]],
        numbers={name: number for number, name in enumerate(shown, 1)},
        sides={f"{SIDES}{verdict.id}-{verdict.form}": verdict for verdict in verdicts},
        promised=predictions.promised if predictions else {},
        facts=facts,
        captions=_captions(predictions) | dict(captions or {}),
        explored=explored,
        versions=versions(),
    )
    write_whole(path, lambda file: file.write(html.encode()))


@functools.cache
def template(name: str) -> jinja2.Template:
    """Load a template from the folder ``templates``, with the filters that the pages use."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent / "templates"),
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
    return environment.get_template(name)


def _captions(predictions: Predictions | None) -> dict[str, str]:
    """Return the captions that a paper gives for figures, by the figures' names."""
    if predictions is None:
        return {}
    return {name: drawn.caption for name, drawn in predictions.curves.items()} | dict(predictions.captions)


def _loosest(applicable: Sequence[Verdict]) -> tuple[Verdict, str, str] | None:
    """Find the statement that holds with the loosest constant.

    **Returns:** its verdict, the name of the constant, and how loose the constant is in words; None if no constant
    differs from the sharp one by a factor of 1.5 or more.
    """
    found: list[tuple[float, Verdict, str, str]] = []
    for verdict, name, *pair in with_sharp(applicable):
        times = looseness(*pair)
        if verdict.verdict is Judgement.HOLDS and times is not None:
            factor = max(times, 1 / times)
            found.append((factor, verdict, name, f"{in_unicode(factor)} times too {'small' if times > 1 else 'large'}"))
    largest = max(found, key=lambda one: one[0], default=None)
    return largest[1:] if largest is not None and largest[0] >= _LOOSE else None


def _counts(ordered: Sequence[Verdict]) -> list[tuple[str, int, list[Verdict]]]:
    """Count the verdicts of each kind, for sorted verdicts.

    **Returns:** for each kind a text such as "11 hold" or "1 is violated", the number, and the verdicts to list by
    name, which are those that are violated or unresolved.
    """
    counts = []
    for judgement, found in itertools.groupby(ordered, key=lambda verdict: verdict.verdict):
        same = list(found)
        one = len(same) == 1
        if judgement is Judgement.HOLDS:
            verb = "holds" if one else "hold"
        else:
            verb = f"{'is' if one else 'are'} {judgement.replace('-', ' ')}"
        named = judgement in (Judgement.VIOLATED, Judgement.UNRESOLVED)
        counts.append((f"{len(same)} {verb}", len(same), same if named else []))
    return counts


def _shown(verdicts: Sequence[Verdict]) -> str:
    """Count in a sentence what certificates prove and refute. The text is empty without certificates."""
    if not certificates_asked(verdicts):
        return ""
    counts = {word: sum(verdict.certified == word for verdict in verdicts) for word in ("proved", "refuted")}
    return f"Certificates prove {counts['proved']} of them and refute {counts['refuted']}."


def _hypotheses(ordered: Iterable[Verdict]) -> list[tuple[Hypothesis, list[str]]]:
    """Return each hypothesis once, with the ids of the claims that assume it. Hypotheses that are not met come
    first.
    """
    found: dict[str, tuple[Hypothesis, list[str]]] = {}
    for verdict in ordered:
        for hypothesis in verdict.hypotheses:
            _, names = found.setdefault(repr(hypothesis), (hypothesis, []))
            if verdict.id not in names:
                names.append(verdict.id)
    return sorted(found.values(), key=lambda pair: pair[0].met)


def _data_uri(figure: pathlib.Path) -> str:
    if figure.suffix not in _MEDIA_TYPES:
        checks.refuse("figures", f"files that a page can show ({', '.join(_MEDIA_TYPES)})", f"one is {figure.name}")
    return f"data:{_MEDIA_TYPES[figure.suffix]};base64,{base64.b64encode(figure.read_bytes()).decode()}"
