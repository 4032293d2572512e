"""The lock of a run folder: one live run at a time, and a dead one's is taken over."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from launch.folder.disk import FolderError


@dataclass(frozen=True)
class Owner:
    """The process that holds a lock; ``started`` tells it from a later one of the same pid."""

    host: str
    pid: int
    started: int | None  # clock ticks since the machine came up; None where /proc is absent
    time: str  # for people

    @staticmethod
    def here() -> Owner:
        """Return this process."""
        seen = _process(os.getpid())
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        return Owner(socket.gethostname(), os.getpid(), seen[1] if seen else None, now)

    @staticmethod
    def of(path: Path) -> Owner | None:
        """Return who wrote a lock; None where it is gone or cannot be read."""
        try:
            owner = Owner(**json.loads(path.read_text(encoding="utf-8")))
            return owner if owner.pid > 0 else None
        except (OSError, ValueError, TypeError):
            return None

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
        state, started = seen
        return state not in "ZX" and self.started in (None, started)


class Lock:
    """A file that names its owner, made only where there is none."""

    def __init__(self, path: Path, stale_after_s: float) -> None:
        self.path = path
        self.stale_after_s = stale_after_s
        self.owner = Owner.here()

    def take(self) -> None:
        """Make the lock ours. Raises ``FolderError`` where another run lives."""
        while True:
            try:
                return self._make()
            except FileExistsError:
                self._remove_dead()

    def touch(self) -> None:
        """Say that we live; for hosts that cannot see our process."""
        owner = Owner.of(self.path)
        if owner == self.owner:
            os.utime(self.path)
        elif owner is not None:
            raise FolderError(
                f"{self.path} was taken over by process {owner.pid} on {owner.host}: "
                "two runs in one folder; this one stops"
            )

    def release(self) -> None:
        """Remove the lock if it is ours."""
        if Owner.of(self.path) == self.owner:
            with suppress(OSError):
                self.path.unlink()

    def _make(self) -> None:
        descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps(asdict(self.owner)) + "\n")
        except OSError:  # a full disk: an empty lock would name nobody
            self.path.unlink()
            raise

    def _remove_dead(self) -> None:
        """Remove the lock found, or raise; of several who judge it at once, one removes it."""
        try:
            file = self.path.open("r+b")  # flock over NFS wants a writable one
        except FileNotFoundError:
            return
        with file:
            with suppress(OSError):  # where the filesystem knows no flock
                fcntl.flock(file, fcntl.LOCK_EX)
            found = os.fstat(file.fileno())
            with suppress(FileNotFoundError):
                if os.path.samestat(self.path.stat(), found):
                    self._refuse_live(time.time() - found.st_mtime)
                    self.path.unlink()

    def _refuse_live(self, age_s: float) -> None:
        folder, owner = self.path.parent, Owner.of(self.path)
        if owner is not None and owner.host == self.owner.host:
            if owner.is_alive():
                raise FolderError(
                    f"run folder {folder} is in use by process {owner.pid} on {owner.host} "
                    f"since {owner.time}; stop that run, or give this one a name: name=OTHER"
                )
        elif age_s <= self.stale_after_s:
            who = f"process {owner.pid} on {owner.host}" if owner else "an unknown process"
            raise FolderError(
                f"run folder {folder} is in use by {who}, which gave a sign of life "
                f"{max(age_s, 0):.0f} s ago; if that run is dead, delete {self.path}, or wait: "
                f"after {self.stale_after_s:.0f} s of silence it is taken over"
            )


def _process(pid: int) -> tuple[str, int] | None:
    """Return a process's state letter and start time (proc(5), fields 3 and 22) where known."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold spaces
    return fields[0], int(fields[19])
