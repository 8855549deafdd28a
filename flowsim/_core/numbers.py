"""Numbers as people read them."""

import math
from typing import SupportsFloat


def number_text(value: SupportsFloat | None, form: str = ".3g") -> str:
    """A number in few digits, a dash where there is none."""
    if value is None or math.isnan(value):
        return "-"
    return format(float(value), form) if value else "0"
