"""Learning rate schedules: one step for each optimizer step that was really taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from launch.config import ConfigError, build, with_run_values


class Schedule:
    """Advances the schedulers; counts optimizer steps, never processes or rounds.

    On a GPU it is known only later whether a step was skipped. So the answer is copied to the host
    meanwhile, and the schedulers advance just before the next update, which waits for nothing.
    """

    def __init__(self, schedulers: Sequence[LRScheduler] = (), metric: str | None = None) -> None:
        self.schedulers, self.metric = list(schedulers), metric
        self._pending: tuple[Tensor, torch.cuda.Event] | None = None
        if self.schedulers:
            self.schedulers[0].optimizer.register_step_pre_hook(lambda *_: self.settle())

    def advance(self, skipped: bool | Tensor) -> None:
        """Take in one optimizer step."""
        if not self.schedulers or self.metric is not None:
            return
        if isinstance(skipped, Tensor):
            copied = torch.empty_like(skipped, device="cpu", pin_memory=True)
            copied.copy_(skipped, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self._pending = copied, event
        elif not skipped:
            self._step()

    def settle(self) -> None:
        """Advance for a step whose outcome was not known yet."""
        if self._pending is not None:
            copied, event = self._pending
            self._pending = None
            event.synchronize()
            if not bool(copied):
                self._step()

    def judged(self, metrics: Mapping[str, float]) -> None:
        """Take in an evaluation: ReduceLROnPlateau looks at one metric of it."""
        if self.metric is None:
            return
        if self.metric not in metrics:
            raise ConfigError(
                f"scheduler.metric={self.metric} was not evaluated; there are "
                f"{', '.join(sorted(metrics)) or 'none'}"
            )
        for scheduler in self.schedulers:
            scheduler.step(metrics[self.metric])  # type: ignore[arg-type]  # Plateau's own form

    def state(self) -> list[dict[str, Any]]:
        """Return what the schedulers must know to go on."""
        self.settle()
        return [scheduler.state_dict() for scheduler in self.schedulers]

    def _step(self) -> None:
        for scheduler in self.schedulers:
            scheduler.step()


def make_schedule(
    settings: Mapping[str, Any] | None,
    optimizers: Sequence[Optimizer],
    steps: int | None,
    steps_per_epoch: int | None,
) -> Schedule:
    """Return the schedule of a configuration's ``scheduler``: one for each optimizer."""
    if settings is None:
        return Schedule()
    keys = with_run_values(dict(settings), steps, steps_per_epoch)
    metric = keys.pop("metric", None)
    schedulers = [
        build(keys, LRScheduler, "scheduler", optimizer=optimizer) for optimizer in optimizers
    ]
    plateau = isinstance(schedulers[0], ReduceLROnPlateau)
    return Schedule(schedulers, (metric or "valid/loss") if plateau else None)
