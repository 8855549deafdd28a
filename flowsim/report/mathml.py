"""Converts statements to HTML, with formulas in MathML, which browsers display without scripts or network."""

import functools
import html
import re
from xml.etree import ElementTree

from flowsim._core.latex import latex, text_and_formulas, unescaped
from flowsim.claims import Claim, Verdict
from flowsim.papers.data import latex_of_name

# Operators that latex2mathml 3 takes for letters, or does not convert.
_OPERATORS = {"⪯", "⪰", "±", "⌊", "⌋", "⟨", "⟩"}
_MENDED = {r"\lVert": "‖", r"\rVert": "‖", "~": "∼"}
_CAPITALS = set("ΓΔΘΛΣ")  # upright in LaTeX
_SPACES = {**dict.fromkeys("()[]/⌊⌋⟨⟩‖|", ("0em", "0em")), "∼": ("0.278em", "0.278em")}
_ATTRIBUTES = {"accent", "displaystyle", "fence", "linethickness", "mathvariant", "maxsize", "minsize", "stretchy"}
_ATTRIBUTES |= {"scriptlevel", "width"}


def statement_in_html(of: Verdict | Claim) -> str:
    """Convert the statement of a verdict or a claim to HTML, with its text escaped and its formulas in MathML."""
    return in_html(latex(of.statement))


def name_in_html(name: str) -> str:
    """Convert the name of a hypothesis, or a label that ends with the name of a constant, to HTML."""
    return in_html(latex_of_name(name))


@functools.cache
def in_html(latex: str) -> str:
    """Convert text-mode LaTeX with formulas to HTML."""
    parts = text_and_formulas(latex)
    return "".join(_formula(part) if place % 2 else html.escape(unescaped(part)) for place, part in enumerate(parts))


def _formula(latex: str) -> str:
    """Convert a formula to MathML without active elements. If it cannot be converted, return its escaped source."""
    from latex2mathml.converter import convert  # slow to import

    try:
        root = ElementTree.fromstring(re.sub(r' xmlns="[^"]*"', "", convert(latex.replace(r"\_", "_"))))
    except Exception:  # formulas of users may contain anything
        return f"<code>{html.escape(latex)}</code>"
    for element in root.iter():
        if not element.tag.startswith("m"):
            return f"<code>{html.escape(latex)}</code>"
        element.attrib = {name: value for name, value in element.attrib.items() if name in _ATTRIBUTES}
        _mend(element)
    return ElementTree.tostring(root, encoding="unicode")


def _mend(element: ElementTree.Element) -> None:
    """Change an element so that browsers display its letter or operator as LaTeX does."""
    text = element.text = _MENDED.get((element.text or "").strip(), element.text or "")
    if element.tag == "mi" and text in _CAPITALS:
        element.set("mathvariant", "normal")
    if element.tag == "mi" and text in _OPERATORS | {"∼"}:
        element.tag = "mo"
    if element.tag == "mo" and (text in _SPACES or text.isalpha()):
        before, after = _SPACES.get(text, ("0.167em", "0em"))
        element.set("lspace", before)
        element.set("rspace", after)
    if text in _SPACES and "minsize" not in element.attrib:
        element.set("stretchy", "false")  # a bar with a script would stretch without its partner
