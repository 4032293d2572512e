"""Three ways to show how far a run has come: a bar, lines now and then, nothing."""

# A person reads this file's output, so it prints.
# ruff: noqa: T201 - the lines that a person sees are printed here

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Protocol

from tqdm import tqdm

from launch.events import Progress, RunStarted
from launch.listeners import text

EVERY_S = 2.0  # between lines, where there is no bar


class View(Protocol):
    """A way to show progress between other lines."""

    def show(self, event: Progress, left_s: float | None) -> None:
        """Show that a log interval has passed."""

    def write(self, line: str) -> None:
        """Print a line of its own."""

    def close(self) -> None:
        """Show what was held back, and nothing more."""


class Nothing:
    """No progress; lines are printed all the same."""

    def show(self, event: Progress, left_s: float | None) -> None:
        """Show nothing."""

    def write(self, line: str) -> None:
        """Print a line."""
        print(line, flush=True)

    def close(self) -> None:
        """Hold nothing back."""


class Lines(Nothing):
    """Whole lines: the first, the last, and one every ``EVERY_S`` seconds between."""

    def __init__(self, start: RunStarted, clock: Callable[[], float]) -> None:
        self._steps, self._clock = start.steps, clock
        self._due_s = clock()
        self._held: str | None = None

    def show(self, event: Progress, left_s: float | None) -> None:
        """Print the interval, or hold it back where the last line is fresh."""
        self._held = text.progress(event, self._steps, left_s)
        if self._clock() >= self._due_s or event.step == self._steps:
            self.close()

    def close(self) -> None:
        """Print the line that was held back, if any."""
        if self._held is not None:
            self.write(self._held)
            self._held, self._due_s = None, self._clock() + EVERY_S


class Bar:
    """One bar over all steps, on the terminal; lines are printed above it."""

    def __init__(self, start: RunStarted) -> None:
        counted = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}"
        _Steps.set_lock(threading.RLock())  # tqdm's own also makes a semaphore for processes
        self._bar = _Steps(
            total=start.steps,
            initial=start.start_step,
            file=sys.stderr,
            dynamic_ncols=True,
            bar_format=counted if start.steps else "{n_fmt} steps{postfix}",
        )

    def show(self, event: Progress, left_s: float | None) -> None:
        """Move the bar to the step reached."""
        self._bar.n = event.step
        self._bar.set_postfix_str(", ".join(text.pace(event, left_s)), refresh=False)
        self._bar.refresh()

    def write(self, line: str) -> None:
        """Print a line above the bar."""
        _Steps.write(line, file=sys.stdout)
        sys.stdout.flush()

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()


class _Steps(tqdm):  # type: ignore[type-arg]  # generic in the stubs alone
    monitor_interval = 0  # no thread: the bar moves at Progress only


class Pace:
    """Guesses the time left from what the steps took so far, evaluations included."""

    def __init__(self, start: RunStarted, clock: Callable[[], float]) -> None:
        train = start.config.get("train") or {}
        self._minutes: float | None = train.get("max_minutes")
        self._steps, self._clock = start.steps, clock
        self._begun_s = clock()
        self._from = (start.start_step, self._begun_s)
        self._is_first = True

    def left_s(self, step: int) -> float | None:
        """Return the seconds to the first limit; None where none is known. Once an interval."""
        now = self._clock()
        guesses = []
        if self._minutes is not None:
            guesses.append(60 * self._minutes - (now - self._begun_s))
        first_step, first_s = self._from
        if self._steps is not None and step > first_step:
            guesses.append((now - first_s) / (step - first_step) * (self._steps - step))
        if self._is_first:  # the steps up to here held the warm-up: count from here on
            self._from, self._is_first = (step, now), False
        return max(min(guesses), 0.0) if guesses else None
