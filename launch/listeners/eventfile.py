"""The file that TensorBoard reads: scalars, text, pictures and hparams, as records of protos."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from launch.events import Picture


def name_now() -> str:
    """Return a name that TensorBoard takes for an event file's; it reads them in name order."""
    return f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"


class EventFile:
    """An event file, written in place: SummaryWriter's thread costs more than it saves (3x).

    purge_step: what earlier files of the folder hold from this step on is not shown.
    """

    def __init__(self, path: Path, purge_step: int | None = None) -> None:
        # Imported here: it takes up to a second, which only rank 0 need spend.
        from tensorboard.compat.proto.event_pb2 import Event as Proto
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
        from torch.utils.tensorboard import summary

        self._event: Any = Proto
        self._summary: Any = Summary
        self._make: Any = summary
        self._bytes = path.open("ab")
        self._writer: Any = RecordWriter(self._bytes)
        self._write(file_version="brain.Event:2")
        if purge_step is not None:
            self._write(step=purge_step, session_log=SessionLog(status=SessionLog.START))

    def scalars(self, tags: Mapping[str, float], step: int) -> None:
        """Write a point of each curve."""
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in tags.items()]
        self._write(step=step, summary=self._summary(value=values))

    def text(self, tag: str, text: str, step: int) -> None:
        """Write text, read as Markdown."""
        self._write(step=step, summary=self._make.text(tag, text))

    def picture(self, event: Picture) -> None:
        """Write a picture; what is no number in it is black."""
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
        """Have what was written on its way to the disk, where others can read it."""
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._bytes.close()
