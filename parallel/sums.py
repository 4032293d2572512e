"""Exact means: sums of weight x value and of weight, in float64, over many batches at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from parallel.errors import UsageError
from parallel.strategy import Outcome

Sums = Mapping[str, tuple[Tensor, Tensor | float]]  # "loss" and metrics -> (sum, sum of weights)


def sums(outcomes: Sequence[Outcome]) -> dict[str, tuple[Tensor, Tensor | float]]:
    """Return sums over ``outcomes``, each with its weight: 0-d means by it, [n] values one by one.

    What has no weight (a borrowed batch, or one of padding alone) counts for nothing: the mean of
    nothing is NaN, so it is never multiplied. On a GPU nothing is read, only selected by.
    Raises ``UsageError`` where a metric is [n] in some outcomes and 0-d in others.
    """
    counted = [o for o in outcomes if isinstance(o.weight, Tensor) or o.weight]
    if not counted:
        return {name: _nothing(value) for o in outcomes[:1] for name, value in _values(o)}
    found: dict[str, list[tuple[Tensor, Tensor | float | None]]] = {}
    for outcome in counted:
        for name, value in _values(outcome):
            found.setdefault(name, []).append((value, outcome.weight))
    for name, entries in found.items():
        if len({bool(value.ndim) for value, _ in entries}) > 1:
            raise UsageError(mixed_forms(name))
    return {name: _sum(entries) for name, entries in found.items()}


def mixed_forms(name: str) -> str:
    """Return what is wrong with a metric that batches give in different forms."""
    return (
        f"the metric {name!r} is one value for each sample [n] with some batches and a mean [] "
        "with others; return one of them always (squeeze() makes [] of a batch of one: name its "
        "dimension, as in squeeze(1))"
    )


def _values(outcome: Outcome) -> list[tuple[str, Tensor]]:
    return [("loss", outcome.loss), *outcome.metrics.items()]


def _nothing(value: Tensor) -> tuple[Tensor, float]:
    return torch.zeros((), dtype=torch.float64, device=value.device), 0.0


def _sum(entries: list[tuple[Tensor, Tensor | float | None]]) -> tuple[Tensor, Tensor | float]:
    first, weight = entries[0]
    if first.ndim:
        each = torch.cat([value.reshape(-1) for value, _ in entries])
        return each.sum(dtype=torch.float64), float(each.numel())
    values = torch.stack([value for value, _ in entries]).double()
    if isinstance(weight, Tensor):
        weights = torch.stack([torch.as_tensor(w) for _, w in entries]).to(values)
        return torch.where(weights > 0, values * weights, 0.0).sum(), weights.sum()
    numbers = torch.tensor([float(w or 0.0) for _, w in entries], dtype=torch.float64)
    return (values * numbers.to(values.device)).sum(), float(numbers.sum())
