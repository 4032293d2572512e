"""status.json: what state a run is in, for scripts and for the next run in its folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launch.events import EvaluationDone, Event, Progress, RunEnded, RunStarted
from launch.folder.disk import replace_text, strict_json
from launch.folder.run import RunFolder

EVERY_S = 5.0  # between replacements while steps go by


class Status:
    """Keeps status.json true: at once at start and end, every ``EVERY_S`` seconds between."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = RunFolder(folder).status
        self._clock = clock
        self._due_s = clock()
        self._metrics: dict[str, float] = {}
        self._state: dict[str, Any] = {
            "state": "running",
            "step": 0,
            "epoch": 0,
            "reason": None,
            "rank": None,
            "metrics": self._metrics,
            "world_size": None,
            "strategy": None,
        }

    def __call__(self, event: Event) -> None:
        """Take the event in, and replace the file where that is due."""
        match event:
            case RunStarted():
                self._state.update(
                    step=event.start_step, world_size=event.world_size, strategy=event.strategy
                )
                self._replace()
            case RunEnded():
                self._metrics.update(event.metrics)
                self._state.update(state=event.state, reason=event.reason, rank=event.rank)
                self._state.update(step=event.step, epoch=event.epoch)
                self._replace()
            case Progress() | EvaluationDone():
                if isinstance(event, EvaluationDone):
                    named = {f"{event.split}/{k}": v for k, v in event.metrics.items()}
                    self._metrics.update(named)
                self._state.update(step=event.step, epoch=event.epoch)
                if self._clock() >= self._due_s:
                    self._replace()

    def close(self) -> None:
        """Hold nothing."""

    def _replace(self) -> None:
        replace_text(self._path, strict_json(self._state) + "\n")
        self._due_s = self._clock() + EVERY_S
