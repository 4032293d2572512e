"""TensorBoard's event file: curves, pictures, the configuration, one hparams entry a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launch.events import (
    EvaluationDone,
    Event,
    Picture,
    Progress,
    RunEnded,
    RunStarted,
    Scalar,
)
from launch.folder.run import RunFolder
from launch.listeners.eventfile import EventFile, name_now


class TensorBoard:
    """Writes to the run folder itself; x is the optimizer step; flushed at each log interval."""

    def __init__(self, folder: Path) -> None:
        self._folder = RunFolder(folder)
        self._file: EventFile | None = None
        self._hparams: dict[str, float | str] | None = None  # until they are written
        self._has_loss = False

    def __call__(self, event: Event) -> None:
        """Write the event, if it is one for curves or pictures."""
        if isinstance(event, RunStarted):
            self._start(event)
        elif self._file is not None:
            self._write(self._file, event)

    def close(self) -> None:
        """Flush and close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _start(self, event: RunStarted) -> None:
        self.close()
        purge_step = None
        if event.start_step:
            purge_step = event.start_step + 1
        elif self._folder.events():
            purge_step = 0  # nothing of an attempt that left no checkpoint is kept
        self._file = EventFile(self._folder.path / name_now(), purge_step)
        self._hparams = dict(flatten(event.config))
        self._file.text("config", f"```yaml\n{event.config_text}\n```", event.start_step)
        self._file.flush()

    def _write(self, file: EventFile, event: Event) -> None:
        match event:
            case Progress():
                file.scalars(progress_tags(event), event.step)
                self._has_loss = True
            case EvaluationDone():
                tags = {f"{event.split}/{name}": value for name, value in event.metrics.items()}
                file.scalars(tags, event.step)
                self._write_hparams(file, tags, event.step)
            case Scalar():
                file.scalars({event.name: event.value}, event.step)
                return  # flushed with the log interval: a task may report every step
            case Picture():
                file.picture(event)
                return
            case RunEnded():
                if self._has_loss:  # an entry without a curve would show an empty column
                    self._write_hparams(file, event.metrics or {"train/loss": 0.0}, event.step)
            case _:
                return
        file.flush()

    def _write_hparams(self, file: EventFile, tags: Mapping[str, float], step: int) -> None:
        if self._hparams is not None:
            file.hparams(self._hparams, tags, step)
            self._hparams = None


def progress_tags(event: Progress) -> dict[str, float]:
    """Return tag -> value of one log interval."""
    tags = {f"train/{name}": value for name, value in event.metrics.items()}
    tags |= {"train/loss": event.loss, "train/lr": event.lr, "train/grad_norm": event.grad_norm}
    tags |= {f"time/{phase}": seconds for phase, seconds in event.time_s.items()}
    tags |= {"memory/peak_gib": event.peak_gib, "rank/slowest": event.slowest_rank}
    if event.samples_per_s is not None:
        tags["throughput/samples_per_s"] = event.samples_per_s
    return tags


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | str]]:
    """Yield dotted keys with numbers or text: what the hparams table can hold."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{prefix}{key}", value
        else:
            yield (
                f"{prefix}{key}",
                value if isinstance(value, str) else json.dumps(value, default=str),
            )
