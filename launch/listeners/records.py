"""metrics.jsonl: what happened in a run, one JSON object a line, each step once."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from launch.events import (
    CheckpointSaved,
    EvaluationDone,
    Event,
    Progress,
    RunEnded,
    RunStarted,
)
from launch.folder.disk import strict_json, sync
from launch.folder.run import RunFolder


class Records:
    """Writes and flushes a line an event; on start, cuts what an earlier run wrote past it."""

    def __init__(self, folder: Path) -> None:
        self._path = RunFolder(folder).metrics
        self._file: TextIO | None = None

    def __call__(self, event: Event) -> None:
        """Write the event's line, if it has one."""
        if isinstance(event, RunStarted):
            self._open(event.start_step)
        line = _line(event)
        if line is not None:
            file = self._file or self._open(math.inf)  # a run may fail before it starts
            try:
                file.write(strict_json(line) + "\n")
                file.flush()
            except OSError as error:  # which says no path of itself
                self._file = None  # opened anew, and mended, should there be room again
                with suppress(OSError):
                    file.close()
                raise OSError(error.errno, error.strerror, str(self._path)) from error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, last_step: float) -> TextIO:
        self.close()
        _cut(self._path, last_step)
        self._file = self._path.open("a", encoding="utf-8", newline="\n")
        return self._file


def _line(event: Event) -> Mapping[str, Any] | None:
    match event:
        case RunStarted():
            return _start(event)
        case Progress():
            return _step(event)
        case EvaluationDone():
            return {
                "event": "evaluation",
                "step": event.step,
                "epoch": event.epoch,
                "split": event.split,
                "samples": event.samples,
                "metrics": event.metrics,
                "seconds": event.seconds,
            }
        case CheckpointSaved():
            return {"event": "checkpoint", **vars(event)}
        case RunEnded():
            return {"event": "end", **vars(event)}
    return None


def _start(event: RunStarted) -> Mapping[str, Any]:
    return {
        "event": "start",
        "step": event.start_step,
        "versions": event.versions,
        "git": _git_commit(),
        "world_size": event.world_size,
        "strategy": event.strategy,
        "device": event.device,
        "backend": event.backend,
        "parameters": event.parameters,
        "global_batch_size": event.global_batch_size,
        "batch_sizes": event.batch_sizes,
        "accumulate": event.accumulate,
        "precision": event.precision,
        "steps": event.steps,
        "epochs": event.epochs,
    }


def _step(event: Progress) -> Mapping[str, Any]:
    return {
        "event": "step",
        "step": event.step,
        "epoch": event.epoch,
        "loss": event.loss,
        "lr": event.lr,
        "grad_norm": event.grad_norm,
        "samples_per_s": event.samples_per_s,
        "time_s": event.time_s,
        "peak_gib": event.peak_gib,
        "slowest_rank": event.slowest_rank,
        "metrics": event.metrics,
        "skipped": event.skipped,
    }


def _git_commit() -> str | None:
    """Return the commit of the folder we run in; None where it is no git tree."""
    command = ["git", "rev-parse", "--verify", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=3, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def _cut(path: Path, last_step: float) -> None:
    """Drop lines past ``last_step`` and lines broken off by a kill; whole or not at all."""
    if not path.exists():
        return
    part = path.with_name(f".{path.name}.part")
    try:
        with path.open("rb") as old, part.open("wb") as new:
            new.writelines(_kept(old, last_step))
            new.flush()
            os.fsync(new.fileno())
    except OSError:
        part.unlink(missing_ok=True)
        raise
    if part.stat().st_size == path.stat().st_size:
        part.unlink()
        return
    part.replace(path)
    sync(path.parent)


def _kept(lines: Iterator[bytes], last_step: float) -> Iterator[bytes]:
    for line in lines:
        try:
            is_past = json.loads(line)["step"] > last_step
        except (ValueError, TypeError, KeyError):
            continue
        if not is_past and line.endswith(b"\n"):
            yield line
