"""Numbers and sentences as a reader of a comparison sees them."""

from __future__ import annotations

import math
from collections.abc import Iterable

DIGITS = 3


def digits(value: float) -> str:
    """Return three significant digits, and no power of ten where it can be read without."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.3g}"
    rounded = float(f"{value:.{DIGITS - 1}e}")
    exponent = math.floor(math.log10(abs(rounded)))
    if not -4 <= exponent < 9:
        return f"{value:.{DIGITS - 1}e}"
    return f"{rounded:,.{max(0, DIGITS - 1 - exponent)}f}"


def percent(share: float) -> str:
    """Return hundredths, with one decimal below ten."""
    return f"{100 * share:.{1 if abs(share) < 0.0995 else 0}f}"


def duration(seconds: float) -> str:
    """Return three digits with the unit in which they read best."""
    if seconds >= 1:
        return f"{digits(seconds)} s"
    return f"{digits(1e3 * seconds)} ms" if seconds >= 1e-4 else f"{digits(1e6 * seconds)} us"


def listed(names: Iterable[str]) -> str:
    """Return "a", "a and b", or "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def counted(number: int, noun: str) -> str:
    """Return "1 round", "2 rounds"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def one_line(text: str, most: int) -> str:
    """Return the text on one line, cut where it is longer than ``most``."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3].rstrip()}..."
