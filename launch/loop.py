"""The training loop."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from launch.data.loader import Shares
from launch.early import EarlyStopping
from launch.evaluation import Evaluator
from launch.reporting import Reporter
from launch.schedule import Schedule
from parallel import Engine, Share


@dataclass
class Position:
    """How far training has come."""

    step: int = 0  # optimizer steps done
    epoch: int = 0  # the one that is running
    batch: int = 0  # global batches done in it


@dataclass(frozen=True)
class Limits:
    """The first one reached ends the run; time is looked after by the reporter."""

    epochs: int | None
    max_steps: int | None


@dataclass
class Training:
    """All that takes part in a run's steps."""

    engine: Engine
    shares: Shares
    schedule: Schedule
    evaluator: Evaluator
    reporter: Reporter
    limits: Limits
    early: EarlyStopping | None = None
    after_step: Callable[[Position], None] | None = None
    at: Position = field(default_factory=Position)
    metrics: dict[str, float] = field(default_factory=dict)  # "valid/loss": the last of each
    _judged: int = -1

    def fit(self) -> str:
        """Train until a limit is reached; return which. Collective."""
        gc.freeze()  # what lives by now stays; the collector would only walk over it again
        self.reporter.start()
        try:
            reason = self._train()
        finally:
            gc.unfreeze()
        if self.at.batch == self.shares.steps_per_epoch:
            self._epoch_done()
        self.reporter.finish(self.at.step, self.lr)
        if self._judged < self.at.step:
            self._judge()
        return reason

    def _train(self) -> str:
        while True:
            for share in self.shares.epoch(self.at.epoch, self.at.batch, self.engine.phases):
                reason = self._step(share)
                if reason:
                    return reason
            self._epoch_done()
            if self.evaluator.is_due(self.at.step, self.at.epoch) and self._judge():
                return "early_stop"
            if self.at.epoch == self.limits.epochs:
                return "train.epochs"

    def _epoch_done(self) -> None:
        self.at.epoch, self.at.batch = self.at.epoch + 1, 0

    def _step(self, share: Share) -> str | None:
        result = self.engine.train_step(share)
        self.at.step += 1
        self.at.batch += 1
        step = self.at.step
        self.reporter.step_done(result, share.total, step, self.at.epoch, self.lr)
        self.schedule.advance(result.skipped)
        if self.after_step:
            self.after_step(self.at)
        if self.evaluator.is_due(step) and self._judge():
            return "early_stop"
        if step == self.limits.max_steps:
            return "train.max_steps"
        return "train.max_minutes" if self.reporter.time_is_up else None

    def _judge(self) -> bool:
        """Evaluate; return whether there is no more progress to wait for. Collective."""
        self.reporter.settle()
        self.reporter.meter.stop_clock()
        found = self.evaluator.judge(self.at.step, self.at.epoch)
        self.metrics |= found
        self.schedule.judged(found)
        self._judged = self.at.step
        self.reporter.meter.resume_clock()
        return self.early is not None and self.early.is_over(found)

    def lr(self) -> float:
        """Return the first parameter group's learning rate."""
        rate: Tensor | float | Any = self.engine.optimizers[0].param_groups[0]["lr"]
        return float(rate)
