"""Error messages, lists and numbers as text in one line. This module imports only the standard library."""

import difflib
import math
from collections.abc import Iterable
from typing import SupportsFloat

LONGEST = 1000  # characters
LINE = 78  # characters of a text that is shown in one line
TRACEBACK = "FLOWSIM_TRACEBACK"  # with the value 1, unexpected errors are raised with their traceback


def one_line(text: str) -> str:
    """The text with control characters, bidirectional marks and line breaks escaped, cut to `LONGEST` characters."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def nearest(word: str, known: Iterable[str]) -> str:
    """``; did you mean "..."?`` with the closest known word; the empty string if no known word is close."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f'; did you mean "{matches[0]}"?' if matches else ""


def cut(text: str, width: int) -> str:
    """The text, cut to at most ``width`` characters. A text that was cut ends in "…"."""
    return text if len(text) <= width else f"{text[: width - 1].rstrip()}…"


def counted(count: int, word: str) -> str:
    """A count with its noun, such as ``1 claim`` or ``2 claims``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def in_short(error: BaseException) -> str:
    """The type of an error and the first line of its message, of which at most 300 characters are taken."""
    lines = said_by(error).splitlines()
    return one_line(f"{type(error).__name__}: {lines[0]:.300}" if lines else type(error).__name__)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, NumPy or XLA says that memory ran out."""
    said = said_by(error)
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in said or "ut of memory" in said


def said_by(error: BaseException) -> str:
    """The message of an error. It is empty if ``str(error)`` fails, which may happen for a user's class."""
    try:
        return str(error)
    except BaseException:
        return ""


def listed(text: str) -> list[str]:
    """Split a text at its commas, except at those within square brackets, braces and quotation marks."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += (character in "[{") - (character in "]}")
        if character == "," and not (depth or quote):
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number_text(value: SupportsFloat | None, form: str = ".3g") -> str:
    """A number in the format ``form``; a dash for None and NaN."""
    if value is None or math.isnan(value):
        return "-"
    return format(float(value), form) if value else "0"


def value_text(value: object) -> str:
    """A value of a problem file as text, with numbers rounded to four digits."""
    if isinstance(value, list):
        return f"[{', '.join(map(value_text, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def in_unicode(value: SupportsFloat | None, form: str = ".3g") -> str:
    """A number in Unicode, such as 2.1×10⁻¹⁴."""
    mantissa, _, exponent = number_text(value, form).replace("inf", "∞").partition("e")
    digits = mantissa if mantissa == "-" else mantissa.replace("-", "−")
    return f"{digits}×10{str(int(exponent)).translate(_SUPERSCRIPTS)}" if exponent else digits


def in_tex(value: SupportsFloat) -> str:
    """A number of three digits in TeX, such as $2.1\\times10^{-14}$."""
    mantissa, _, exponent = f"{float(value):.3g}".partition("e")
    if not exponent:
        return mantissa
    times = "" if mantissa == "1" else rf"{mantissa}\times"
    return rf"${times}10^{{{int(exponent)}}}$"
