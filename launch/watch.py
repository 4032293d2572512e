"""What ends a process that nobody would end: its launcher is gone, or it hangs."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from launch.control import Control
from launch.ending import stopped_code
from launch.failures import Failure, innermost
from launch.signals import Signals, say
from parallel import Place, World

ORPHANS_LEAVE_S = 12.0  # for the ranks to agree, save, and leave; then at once
STARTERS_LEAVE_S = 10.0  # enough for others that are told too, and come, to agree with
WATCHED_LEAVE_S = 2.0
EARLY, BEFORE_S = 0.9, 2.0  # of launch.timeout_s: who hangs says so before the others give up
WAITING = (  # files whose innermost frame waits for other ranks
    "torch/distributed/distributed_c10d.py",
    "torch/nn/parallel/distributed.py",
    "torch/autograd/graph.py",
    "parallel/world.py",
)


@dataclass
class Launcher:
    """The process that started this one: where it is gone, the run stops, and then leaves."""

    control: Control
    pid: int = field(default_factory=os.getppid)
    _gone_since: float | None = None

    def check(self) -> None:
        """Look; called every second."""
        if os.getppid() == self.pid:
            return
        self.control.orphaned = True
        self._gone_since = self._gone_since or monotonic()
        if monotonic() - self._gone_since > ORPHANS_LEAVE_S:
            os._exit(1)


@dataclass
class StartUp:
    """The time before the ranks have met: who is told to stop and still waits for them, leaves.

    torchrun tells all at once, and ends the others where one leaves with ``code`` 1.
    """

    signals: Signals
    code: int
    after_s: float
    is_over: bool = False
    _told: float | None = None

    @staticmethod
    def of(place: Place, signals: Signals) -> StartUp:
        """Return the watch over ``place``'s start."""
        if place.launcher == "torchrun":
            return StartUp(signals, 1, WATCHED_LEAVE_S)
        return StartUp(signals, stopped_code(place), STARTERS_LEAVE_S)

    def check(self) -> None:
        """Look; called every second."""
        if self.is_over or not self.signals.last:
            return
        self._told = self._told or monotonic()
        if monotonic() - self._told > self.after_s:
            if self.code != 1:
                say(f"{signal.Signals(self.signals.last).name} while waiting for the other ranks")
            os._exit(self.code)


@dataclass
class Hang:
    """Notices that the main thread makes no progress for most of ``timeout_s``.

    Then its stack, and those of its other threads, go to ``stacks``. Unless it waits for others,
    it is the one that hangs: it leaves word for them, and once their patience is over it writes
    ``last_words`` and leaves.
    """

    world: World
    timeout_s: float
    stacks: Path
    step: Callable[[], int]
    last_words: Callable[[Failure], None]
    _tick: float = field(default_factory=monotonic)
    _told: Failure | None = None
    _dumped: bool = False

    @property
    def _patience_s(self) -> float:
        soon = min(EARLY * self.timeout_s, self.timeout_s - BEFORE_S)
        return max(soon, self.timeout_s / 2)

    def tick(self) -> None:
        """Take in that the main thread goes on; costs nothing."""
        self._tick = monotonic()

    def check(self) -> None:
        """Look; called every second."""
        idle = monotonic() - self._tick
        if idle > self._patience_s:
            if not self._dumped:
                self._dump(idle)
            if self._told and self.world.notes.first_failure(0):
                self._leave(self._told)
        elif self._dumped:
            self._dumped, self._told = False, None
            self.world.notes.report_hang("")

    def _dump(self, idle: float) -> None:
        self._dumped = True
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        frames = [(f.filename, str(f.lineno), f.name) for f in traceback.extract_stack(frame)]
        with self.stacks.open("a", encoding="utf-8") as file:
            file.write(f"no progress for {idle:.0f} s after step {self.step()}; the stacks are:\n")
            file.flush()
            faulthandler.dump_traceback(file)
        if frames and not frames[-1][0].endswith(WAITING):
            busy = self.world.notes.announced()
            self._told = Failure(
                rank=self.world.rank,
                kind="Hang",
                message=f"no progress for {idle:.0f} s" + (f": {busy}" if busy else ""),
                at=innermost(_within_the_run(frames)) or "an unknown place",
                advice="the stacks of all ranks are in ranks/; if a step may take so long, raise "
                "launch.timeout_s",
                step=self.step(),
            )
            self.world.notes.report_hang(self._told.to_json())

    def _leave(self, failure: Failure) -> None:
        self.last_words(failure)
        say(failure.text(self.world.size))
        get_error_handler().record_exception(RuntimeError(failure.reason))  # for torchrun's table
        os._exit(1)


def _within_the_run(frames: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Leave out what called the run: its place says nothing."""
    inside = [i for i, (file, _, _) in enumerate(frames) if file.endswith("launch/run.py")]
    return frames[inside[0] :] if inside else frames
