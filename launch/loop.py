"""The training loop."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from launch.best import Best
from launch.config import ConfigError
from launch.control import Control, Ending
from launch.data.loader import Shares
from launch.evaluation import Evaluator, StoppedError
from launch.reporting import Reporter
from launch.saving import Checkpoints
from launch.schedule import Schedule
from parallel import Engine, Share

AGREED_AFTER = (1, 2)  # steps of this process after which replicas are compared


@dataclass
class Position:
    """How far training has come."""

    step: int = 0  # optimizer steps done
    epoch: int = 0  # the one that is running
    batch: int = 0  # global batches done in it
    samples: int = 0  # and samples, over all processes


@dataclass(frozen=True)
class Limits:
    """The first one reached completes the run; patience: evaluations without a better value."""

    epochs: int | None
    max_steps: int | None
    patience: int | None = None


@dataclass
class Training:
    """All that takes part in a run's steps."""

    engine: Engine
    shares: Shares
    schedule: Schedule
    evaluator: Evaluator
    reporter: Reporter
    checkpoints: Checkpoints
    control: Control
    limits: Limits
    early: Best | None = None
    after_step: Callable[[Position], None] | None = None
    compare_replicas: bool = True
    at: Position = field(default_factory=Position)
    metrics: dict[str, float] = field(default_factory=dict)  # "valid/loss": the last of each
    judged: int = 0  # the step after which that was
    _steps: int = 0  # of this process
    _rate: Tensor | float | Any = 0.0  # the last step's learning rate, not yet read

    def fit(self) -> Ending:
        """Train to a limit or an agreed stop, save, and return which it was. Collective."""
        gc.freeze()  # what lives by now stays; the collector would only walk over it again
        self.reporter.start()
        try:
            ending = self._train()
        finally:
            gc.unfreeze()
        if self.at.batch == self.shares.steps_per_epoch:
            self._next_epoch()
        return self._finish(ending)

    def _train(self) -> Ending:
        epochs_done = None if self.at.batch else self.at.epoch
        ending = self._after(epochs_done) if self.at.step else self.control.ending
        while ending is None:
            ending = self._epoch()
        return ending

    def _epoch(self) -> Ending | None:
        for share in self.shares.epoch(self.at.epoch, self.at.batch, self.engine.phases):
            ending = self._step(share)
            if ending is not None:
                return ending
        self._next_epoch()
        return self._after(self.at.epoch)

    def _next_epoch(self) -> None:
        self.at.epoch, self.at.batch, self.at.samples = self.at.epoch + 1, 0, 0

    def _step(self, share: Share) -> Ending | None:
        result = self.engine.train_step(share)
        self._rate = self.engine.optimizers[0].param_groups[0]["lr"]
        self._steps += 1
        self.at.step += 1
        self.at.batch += 1
        self.at.samples += share.total
        self.reporter.step_done(result, share.total, self.at.step, self.at.epoch, self.lr)
        self.schedule.advance(result.skipped)
        if self.after_step:
            self.after_step(self.at)
        if self.compare_replicas and self._steps in AGREED_AFTER:
            self.engine.check_agreement()
        return self._after()

    def _after(self, epochs_done: int | None = None) -> Ending | None:
        """Judge, save or end where that is due; once told to stop, only that."""
        told, step = self.control.ending, self.at.step
        if told is not None and told.state == "stopped":
            return told
        if self.judged < step and self.evaluator.is_due(step, epochs_done):
            try:
                self._judge()
            except StoppedError:
                return self.control.ending
        if self.checkpoints.is_due(step, epochs_done):
            self.checkpoints.save(step, self.at.epoch)
        return self._limit_reached() or told

    def _limit_reached(self) -> Ending | None:
        limits, patience = self.limits, self.limits.patience
        if self.early is not None and patience is not None and self.early.waited >= patience:
            return Ending("completed", "early_stop")
        if limits.max_steps is not None and self.at.step >= limits.max_steps:
            return Ending("completed", "train.max_steps")
        if limits.epochs is not None and self.at.epoch >= limits.epochs:
            return Ending("completed", "train.epochs")
        return None

    def _judge(self) -> None:
        """Evaluate. Collective."""
        self.reporter.settle()
        self.reporter.meter.stop_clock()
        found = self.evaluator.judge(self.at.step, self.at.epoch)
        self.judged = self.at.step
        self.metrics |= found
        try:
            self.schedule.judged(found)
            if self.early is not None:
                self.early.judge(found)
            self.checkpoints.judged(found)
        except ConfigError:  # a metric that is not there; with its name mended it can go on
            self.checkpoints.finish(self.at.step, self.at.epoch)
            raise
        self.reporter.meter.resume_clock()

    def _finish(self, ending: Ending) -> Ending:
        """Report and save what is left; a completed run is judged first. Collective."""
        self.reporter.finish(self.at.step, self.lr)
        if ending.state == "completed":
            self.reporter.require_progress(self.at.step)
            try:
                if self.judged < self.at.step and self.evaluator.splits:
                    self._judge()
            except StoppedError:
                ending = self.control.ending or ending
        self.checkpoints.finish(self.at.step, self.at.epoch)
        return ending

    def lr(self) -> float:
        """Return the first parameter group's learning rate in the last step."""
        return float(self._rate)
