"""Sums over batches, in float64, from which exact means are made."""

from __future__ import annotations

import torch
from torch import Tensor

from parallel.strategy import Outcome

Sums = dict[str, tuple[Tensor, Tensor | float]]  # name -> (sum of weight x value, sum of weight)


def add(sums: Sums, outcome: Outcome) -> None:
    """Add one batch to ``sums``: 0-d means by their weight, [n] values one by one.

    Without weight (a borrowed batch, or one of padding alone) only zeros: the mean of nothing is
    NaN, so it is never multiplied. On a GPU nothing is read, only selected by.
    """
    weight = outcome.weight if isinstance(outcome.weight, Tensor) else float(outcome.weight or 0.0)
    for name, value in {"loss": outcome.loss, **outcome.metrics}.items():
        entry = _entry(value.detach(), weight)
        before = sums.get(name)
        sums[name] = entry if before is None else (before[0] + entry[0], before[1] + entry[1])


def _entry(value: Tensor, weight: Tensor | float) -> tuple[Tensor, Tensor | float]:
    if isinstance(weight, float) and not weight:
        return torch.zeros((), dtype=torch.float64, device=value.device), 0.0
    if value.ndim:
        return value.sum(dtype=torch.float64), float(value.numel())
    if isinstance(weight, float):
        return value.double() * weight, weight
    return torch.where(weight > 0, value.double() * weight, 0.0), weight.double()
