"""nn.DataParallel, kept only as the baseline people come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from parallel.errors import UsageError
from parallel.single import TrainingLoss, Whole, refuse_many
from parallel.strategy import Batch, Engine, Strategy, Work


class Scattered(nn.Module):
    """The loss over several GPUs of one process: scattered, computed, gathered, weighted."""

    def __init__(self, loss: TrainingLoss, devices: list[int]) -> None:
        super().__init__()
        self.parts = nn.DataParallel(PartLoss(loss), device_ids=devices)

    def forward(self, batch: Batch) -> tuple[Tensor, Any, dict[str, Tensor]]:
        """Return the weighted mean loss [], its weight, and metrics, as ``TrainingLoss`` does."""
        losses, weights, weighted, metrics = self.parts(batch)
        share = weights / weights.sum()
        means = {
            k: v if v.ndim == 1 and k.endswith(EACH) else (v * share).sum()
            for k, v in metrics.items()
        }
        named = {k.removesuffix(EACH): v for k, v in means.items()}
        return (losses * share).sum(), weights.sum() if weighted.any() else None, named


EACH = (
    "/each"  # marks a metric that has a value for each sample, so that it is joined, not averaged
)


class PartLoss(nn.Module):
    """One GPU's part: everything with a dimension of its own, so that it can be gathered."""

    def __init__(self, loss: TrainingLoss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Return loss [1], weight [1], whether the task gave it [1], and metrics [1] or [n]."""
        loss, weight, metrics = self.loss(batch)
        own = _samples(batch) if weight is None else weight
        named = {
            k + EACH if v.ndim else k: v if v.ndim else v.unsqueeze(0) for k, v in metrics.items()
        }
        weights = torch.as_tensor(own, dtype=loss.dtype, device=loss.device).reshape(1)
        return loss.reshape(1), weights, torch.full_like(weights, weight is not None), named


def _samples(batch: Batch) -> int:
    """Return the first dimension of the first tensor in ``batch``."""
    if isinstance(batch, Tensor):
        return len(batch)
    parts = list(batch.values()) if isinstance(batch, dict) else list(batch)
    for part in parts:
        if isinstance(part, Tensor | tuple | list | dict):
            return _samples(part)
    raise UsageError("strategy 'data_parallel' divides tensors, and this batch has none; use ddp")


@dataclass(frozen=True)
class DataParallel(Strategy):
    """Scatter each batch over the GPUs of one process."""

    def check(self, world_size: int) -> None:
        """Refuse more processes than one."""
        refuse_many("data_parallel", world_size)

    def start(self, work: Work) -> Engine:
        """Return the model over all visible GPUs; with fewer than two, the model alone."""
        engine = Whole(work)
        count = torch.cuda.device_count() if work.world.device.type == "cuda" else 0
        if count > 1:
            engine.forward = Scattered(
                TrainingLoss(engine.module, work.objective), list(range(count))
            )
        else:
            engine.notices = [
                f"data_parallel has {count} GPUs to divide a batch over; it runs as single"
            ]
        return engine
