"""What is wrong with weights that should be taken in.

UsageError
└── WeightsError     a file that cannot be read as tensors, or that is of another model
"""

from __future__ import annotations

from collections.abc import Sequence

from parallel.errors import UsageError


class WeightsError(UsageError):
    """Weights that cannot be read, or that do not fit the model."""


def first(items: Sequence[str], count: int = 3) -> str:
    """Return the first of ``items``, and how many more there are."""
    more = len(items) - count
    return ", ".join(items[:count]) + (f" and {more:,} more" if more > 0 else "")
