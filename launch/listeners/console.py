"""What a person sees of a run: its start, progress, evaluations, checkpoints, notes and end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from launch.events import (
    CheckpointSaved,
    EvaluationDone,
    Event,
    Notice,
    Progress,
    RunEnded,
    RunStarted,
)
from launch.listeners import text
from launch.listeners.progress import Bar, Lines, Nothing, Pace, View


class Console:
    """Prints what happens.

    progress: bar, lines, or none (start, notes and end only); auto: a bar on a terminal.
    """

    def __init__(self, progress: str = "auto", clock: Callable[[], float] = time.monotonic) -> None:
        self._kind = progress if progress != "auto" else _suited()
        self._clock = clock
        self._view: View = Nothing()
        self._pace: Pace | None = None
        self._folder: Path | None = None
        self._phases = _Phases()
        self._is_read = True

    def __call__(self, event: Event) -> None:
        """Say what happened, where it is worth saying and somebody still reads."""
        if self._is_read:
            with self._while_read():
                self._say(event)

    def _say(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._start(event)
            case Progress():
                self._phases.add(event)
                left_s = self._pace.left_s(event.step) if self._pace else None
                self._view.show(event, left_s)
            case EvaluationDone() if self._kind != "none":
                self._view.write(text.evaluation(event))
            case CheckpointSaved() if self._kind != "none":
                self._view.write(text.checkpoint(event))
            case Notice():
                self._view.write(f"note: {event.text}")
            case RunEnded():
                self._end(event)

    def close(self) -> None:
        """Leave the terminal in order."""
        view, self._view = self._view, Nothing()
        with self._while_read():
            view.close()

    @contextmanager
    def _while_read(self) -> Iterator[None]:
        """Go on in silence where the terminal or the pipe is gone: training is worth more."""
        try:
            yield
        except BrokenPipeError:
            self._is_read = False

    def _start(self, event: RunStarted) -> None:
        self._view.write(text.started(event))
        self._folder = event.folder
        self._pace = Pace(event, self._clock)
        self._phases = _Phases(event.start_step)
        if self._kind == "bar":
            self._view = Bar(event)
        elif self._kind == "lines":
            self._view = Lines(event, self._clock)

    def _end(self, event: RunEnded) -> None:
        self.close()
        lines = [text.ended(event)]
        if event.state != "failed":
            lines += [text.metrics(event.metrics), self._phases.line()]
        if self._folder is not None:
            lines.append(f"run folder: {self._folder}")
            if event.state != "failed":  # the failing rank has the last word, and few lines
                lines.append(f"tensorboard --logdir {quote(str(self._folder.parent))}")
        for line in filter(None, lines):
            self._view.write(line)


class _Phases:
    """Sums what the phases took, over all intervals that were timed."""

    def __init__(self, start_step: int = 0) -> None:
        self._last = start_step
        self._steps = 0
        self._sums: dict[str, float] = {}

    def add(self, event: Progress) -> None:
        steps, self._last = event.step - self._last, event.step
        if event.time_s:
            self._steps += steps
            for name, seconds in event.time_s.items():
                self._sums[name] = self._sums.get(name, 0.0) + steps * seconds

    def line(self) -> str:
        """Return the mean step and its shares; nothing where no step was timed."""
        if not self._sums.get("step") or not self._steps:
            return ""
        return text.phases({name: value / self._steps for name, value in self._sums.items()})


def _suited() -> str:
    terminals = (sys.stdout, sys.stderr)  # None where they were closed before the start
    return "bar" if all(t is not None and t.isatty() for t in terminals) else "lines"
