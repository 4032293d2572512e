"""Processes as others can know them: who, where, and whether they still run."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Owner:
    """A process; ``started`` tells it from a later one of the same pid."""

    host: str
    pid: int
    started: int | None  # clock ticks since the machine came up; None where /proc is absent
    time: str  # for people
    parent: int | None = None  # its launcher's pid
    job: str | None = None  # the launcher's own name for what it started, if there is one

    @staticmethod
    def here(job: str | None = None) -> Owner:
        """Return this process."""
        seen = _process(os.getpid())
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        started = seen.started if seen else None
        return Owner(socket.gethostname(), os.getpid(), started, now, os.getppid(), job)

    def is_alive(self) -> bool:
        """Whether the process runs; to be asked on its own host only."""
        try:
            os.kill(self.pid, 0)  # asks, sends nothing
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # somebody else's process: it exists
        seen = _process(self.pid)
        if seen is None:
            return True
        return seen.state not in "ZX" and self.started in (None, seen.started)

    def is_stopped(self) -> bool:
        """Whether a signal (SIGSTOP, Ctrl-Z) keeps it from running; to be asked on its own host."""
        seen = _process(self.pid)
        return seen is not None and seen.state == "T" and self.started in (None, seen.started)

    def is_orphan(self) -> bool:
        """Whether its launcher is gone, so that it will soon leave by itself."""
        seen = _process(self.pid)
        return seen is not None and self.parent not in (None, seen.parent)


@dataclass(frozen=True)
class _Seen:
    state: str
    parent: int
    started: int


def _process(pid: int) -> _Seen | None:
    """Return a process's state, parent and start time (proc(5), fields 3, 4, 22) where known."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold spaces
    return _Seen(fields[0], int(fields[1]), int(fields[19]))
