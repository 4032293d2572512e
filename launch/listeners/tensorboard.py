"""TensorBoard's event file: curves, pictures, the configuration, one hparams entry a run."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

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


class TensorBoard:
    """Writes to the run folder itself; x is the optimizer step; flushed at each log interval."""

    def __init__(self, folder: Path) -> None:
        self._folder = RunFolder(folder)
        self._file: _EventFile | None = None
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
        self._file = _EventFile(self._folder.path, purge_step)
        self._hparams = dict(flatten(event.config))
        self._file.text("config", f"```yaml\n{event.config_text}\n```", event.start_step)
        self._file.flush()

    def _write(self, file: _EventFile, event: Event) -> None:
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

    def _write_hparams(self, file: _EventFile, tags: Mapping[str, float], step: int) -> None:
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


class _EventFile:
    """An event file, written in place: SummaryWriter's thread costs more than it saves (3x)."""

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        # Imported here: it takes up to a second, which only rank 0 need spend.
        from tensorboard.compat.proto.event_pb2 import Event as Proto
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
        from torch.utils.tensorboard import summary

        self._event: Any = Proto
        self._summary: Any = Summary
        self._make: Any = summary
        # TensorBoard reads files in the order of their names
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self._bytes = (folder / name).open("ab")
        self._writer: Any = RecordWriter(self._bytes)
        self._write(file_version="brain.Event:2")
        if purge_step is not None:
            self._write(step=purge_step, session_log=SessionLog(status=SessionLog.START))

    def scalars(self, tags: Mapping[str, float], step: int) -> None:
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in tags.items()]
        self._write(step=step, summary=self._summary(value=values))

    def text(self, tag: str, text: str, step: int) -> None:
        self._write(step=step, summary=self._make.text(tag, text))

    def picture(self, event: Picture) -> None:
        pixels = torch.nan_to_num(event.pixels.detach().float()).cpu()
        self._write(
            step=event.step, summary=self._make.image(event.name, pixels, dataformats="CHW")
        )

    def hparams(
        self, values: Mapping[str, float | str], tags: Mapping[str, float], step: int
    ) -> None:
        """Write the three protos into this very file: add_hparams would make a run of its own."""
        for summary in self._make.hparams(dict(values), dict(tags)):
            self._write(step=step, summary=summary)

    def _write(self, **fields: Any) -> None:
        event = self._event(wall_time=time.time(), **fields)
        self._writer.write(event.SerializeToString())

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._bytes.close()
