"""The lock of a run folder: one live run at a time, and a dead one's is taken over."""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from launch.folder.disk import FolderError
from launch.processes import Owner

ORPHANS_LEAVE_S = 20.0  # a run whose launcher is gone ends by itself within 15 s


class Lock:
    """A file that names its owner, made only where there is none."""

    def __init__(self, path: Path, stale_after_s: float, job: str | None = None) -> None:
        self.path = path
        self.stale_after_s = stale_after_s
        self.owner = Owner.here(job)

    def take(self) -> None:
        """Make the lock ours. Raises ``FolderError`` where another run lives.

        One that was left alone by its launcher is waited for: it is about to end.
        """
        deadline = time.monotonic() + ORPHANS_LEAVE_S
        while True:
            try:
                return self._make()
            except FileExistsError:
                owner = owner_of(self.path)
                here = owner is not None and owner.host == self.owner.host
                ends = owner is not None and here and owner.is_alive() and owner.is_orphan()
                if ends and time.monotonic() < deadline:
                    time.sleep(0.2)
                else:
                    self._remove_dead()

    def touch(self) -> None:
        """Say that we live; for hosts that cannot see our process."""
        owner = owner_of(self.path)
        if owner == self.owner:
            os.utime(self.path)
        elif owner is not None:
            raise FolderError(
                f"{self.path} was taken over by process {owner.pid} on {owner.host}: "
                "two runs in one folder; this one stops"
            )

    def release(self) -> None:
        """Remove the lock if it is ours."""
        if owner_of(self.path) == self.owner:
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
        folder, owner = self.path.parent, owner_of(self.path)
        if owner is not None and owner.host == self.owner.host:
            if owner.is_alive():
                raise FolderError(
                    f"run folder {folder} is in use by process {owner.pid} on {owner.host} "
                    f"since {owner.time}; stop that run, or give this one a name: name=OTHER"
                )
        elif owner is not None and owner.job is not None and owner.job == self.owner.job:
            return  # the launcher that started both has ended it, or lost its host
        elif age_s <= self.stale_after_s:
            who = f"process {owner.pid} on {owner.host}" if owner else "an unknown process"
            raise FolderError(
                f"run folder {folder} is in use by {who}, which gave a sign of life "
                f"{max(age_s, 0):.0f} s ago; if that run is dead, delete {self.path}, or wait: "
                f"after {self.stale_after_s:.0f} s of silence it is taken over"
            )


def owner_of(path: Path) -> Owner | None:
    """Return who wrote a lock; None where it is gone or cannot be read."""
    try:
        owner = Owner(**json.loads(path.read_text(encoding="utf-8")))
        return owner if owner.pid > 0 else None
    except (OSError, ValueError, TypeError):
        return None
