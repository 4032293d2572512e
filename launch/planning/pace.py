"""What one process takes for a step, by its samples: between and beyond those that are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """Seconds that one process takes for a step: to fetch, compute and update."""

    data_s: float
    forward_s: float
    backward_s: float
    update_s: float

    @property
    def compute_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s

    @property
    def step_s(self) -> float:
        """All of it."""
        return self.data_s + self.compute_s + self.update_s


Paces = Mapping[int, Pace]  # by samples


def pace(paces: Paces, samples: float) -> Pace:
    """Return the pace for ``samples``: on the line between, or beyond, those that are known."""
    known = sorted(paces)
    if len(known) == 1:
        return _scaled(paces[known[0]], samples / known[0])
    above = next((at for at in range(1, len(known)) if known[at] >= samples), len(known) - 1)
    a, b = known[above - 1], known[above]
    part = (samples - a) / (b - a)
    least = min(paces[a].compute_s, paces[b].compute_s) / 4  # a line may pass below nothing
    found = [
        x + part * (y - x) for x, y in zip(_numbers(paces[a]), _numbers(paces[b]), strict=True)
    ]
    data_s, forward_s, backward_s, update_s = (max(0.0, each) for each in found)
    if forward_s + backward_s < least and samples < a:
        return _scaled(paces[a], samples / a)
    return Pace(data_s, forward_s, backward_s, update_s)


def _scaled(each: Pace, factor: float) -> Pace:
    return Pace(
        each.data_s * factor, each.forward_s * factor, each.backward_s * factor, each.update_s
    )


def _numbers(each: Pace) -> tuple[float, float, float, float]:
    return each.data_s, each.forward_s, each.backward_s, each.update_s
