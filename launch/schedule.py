"""Learning rate schedules: one step for each optimizer step that was really taken."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau

from launch.config import ConfigError, build, find_target, with_run_values
from launch.config.annotations import signature_of
from launch.config.building import apply_to_targets
from launch.config.errors import joined
from launch.config.importing import failure
from launch.failures import TrainingError
from parallel import UsageError

REHEARSED = 300  # steps that the schedulers of a stand-in take before the run: a few ms
T = TypeVar("T")


class Schedule:
    """Advances the schedulers; counts optimizer steps, never processes or rounds.

    On a GPU it is known only later whether a step was skipped. So the answer is copied to the host
    meanwhile, and the schedulers advance just before the next update, which waits for nothing.
    """

    def __init__(self, schedulers: Sequence[LRScheduler] = (), metric: str | None = None) -> None:
        self.schedulers, self.metric = list(schedulers), metric
        self.steps = 0  # taken
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

    def load(self, states: Sequence[Mapping[str, Any]], steps: int) -> None:
        """Go on from ``states``, one for each scheduler, after ``steps`` steps."""
        self.steps = steps
        for scheduler, state in zip(self.schedulers, states, strict=True):
            scheduler.load_state_dict({**scheduler.state_dict(), **state})

    def replay(self, steps: int) -> None:
        """Take ``steps`` steps at once from the start, as on a schedule followed that far."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a schedule that runs ahead of its optimizer
            for _ in range(steps):
                self._step()

    def _step(self) -> None:
        self.steps += 1
        for scheduler in self.schedulers:
            try:
                scheduler.step()
            except UsageError:
                raise
            except Exception as error:
                raise TrainingError(_no_step(scheduler, failure(error))) from error


def make_schedule(
    settings: Mapping[str, Any] | None,
    optimizers: Sequence[Optimizer],
    steps: int | None,
    steps_per_epoch: int | None,
) -> Schedule:
    """Return the schedule of a configuration's ``scheduler``: one for each optimizer."""
    if settings is None:
        return Schedule()
    keys = with_run_values(settings, steps, steps_per_epoch, "scheduler")
    metric = keys.pop("metric", None)
    schedulers = [_made(keys, LRScheduler, "scheduler", optimizer) for optimizer in optimizers]
    plateau = isinstance(schedulers[0], ReduceLROnPlateau)
    if metric is not None and not plateau:
        raise ConfigError(
            f"scheduler.metric={metric}: only ReduceLROnPlateau looks at a metric, not "
            f"{type(schedulers[0]).__name__}; leave it out with scheduler.metric=null"
        )
    return Schedule(schedulers, (metric or "valid/loss") if plateau else None)


def check_schedule(schedule: Schedule, steps: int) -> None:
    """Raise ``ConfigError`` where the schedulers of a stand-in cannot go on for ``steps`` steps.

    They are advanced as far as is cheap; what goes wrong later still ends the run in words.
    """
    if schedule.metric is not None:
        return
    for scheduler in schedule.schedulers:
        if isinstance(scheduler, OneCycleLR) and scheduler.total_steps < steps:
            raise ConfigError(
                f"scheduler.total_steps={scheduler.total_steps} is too few: this run takes {steps} "
                "optimizer steps, and OneCycleLR ends after its own; type "
                "'scheduler.total_steps=${run:steps}'"
            )
    try:
        schedule.replay(min(steps, REHEARSED))
    except TrainingError as error:
        raise ConfigError(str(error)) from error


def _made(settings: Mapping[str, Any], kind: type[T], key: str, optimizer: Optimizer) -> T:
    """Return what ``settings`` stand for; schedulers inside are built first, for one optimizer."""
    signature = signature_of(find_target(settings, kind, key))
    takes_one = kind is LRScheduler or (signature and "optimizer" in signature.parameters)
    ready = {
        name: apply_to_targets(
            value, joined(key, name), lambda inner, at: _made(inner, object, at, optimizer)
        )
        for name, value in settings.items()
    }
    return build(ready, kind, key, **({"optimizer": optimizer} if takes_one else {}))


def _no_step(scheduler: LRScheduler, said: str) -> str:
    return (
        f"the scheduler {type(scheduler).__name__} cannot take its next step: {said}; look at the "
        "keys of scheduler: lengths count optimizer steps from 1 on, and ${run:steps} stands for "
        "all of the run"
    )
