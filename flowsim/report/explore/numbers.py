"""Rounds numbers to few digits, for the data of a page."""

import math
from typing import SupportsFloat


def short(value: SupportsFloat, digits: int = 4) -> float | int | None:
    """Round a number to a few significant digits; return None if it is not finite."""
    if not math.isfinite(value := float(value)):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e6 else short
