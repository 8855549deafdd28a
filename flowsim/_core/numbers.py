"""Numbers in plain text, on a page and in a picture."""

import math
from typing import SupportsFloat

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number_text(value: SupportsFloat | None, form: str = ".3g") -> str:
    """A number in few digits; a dash for None and NaN."""
    if value is None or math.isnan(value):
        return "-"
    return format(float(value), form) if value else "0"


def value_text(value: object) -> str:
    """A value of a problem file in few digits."""
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
