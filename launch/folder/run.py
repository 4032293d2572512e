"""Where things lie in a run's folder, and how it is opened for one run at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from launch.folder.disk import replace_text, told
from launch.folder.lock import Lock


@dataclass(frozen=True)
class RunFolder:
    """The names in runs/NAME; nothing of it need exist."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration, as YAML."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """One JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def status(self) -> Path:
        """The run's state, replaced atomically."""
        return self.path / "status.json"

    @property
    def lock(self) -> Path:
        """Who runs here now."""
        return self.path / "lock"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def ranks(self) -> Path:
        """The folder of what each rank logged."""
        return self.path / "ranks"

    @property
    def stop(self) -> Path:
        """A file that asks the run to save and stop."""
        return self.path / "STOP"

    def events(self) -> list[Path]:
        """Return TensorBoard's files, oldest first."""
        return sorted(self.path.glob("events.out.tfevents.*"))


@dataclass(frozen=True)
class OpenFolder(RunFolder):
    """A run folder that this process alone may write to.

    descriptor: the folder itself, wherever it goes; None where nobody looks after that.
    """

    held: Lock
    descriptor: int | None = None

    def lost(self) -> str:
        """Return what became of the folder meanwhile; nothing where all is in its place."""
        if self.descriptor is None:
            return ""
        try:
            same = _is_same(self.path, self.descriptor)
            if same and self.config.exists():
                return ""
        except OSError:  # a file server that does not answer: it may, the next time
            return ""
        if same:
            return (
                f"{self.config} was removed while the run went on, and what has none is no run's "
                "folder; bring it back from a copy, and give the same command again"
            )
        now = _place_of(self.descriptor)
        if now is None:
            return (
                f"the run folder {self.path} was removed, or moved away, while the run went on, "
                "and its checkpoints with it; bring it back to go on from the last of them, or "
                "train anew by the same command"
            )
        return (
            f"the run folder {self.path} was moved to {now} while the run went on; the last whole "
            f"checkpoint is in {now / 'checkpoints'}: move the folder back, and give the same "
            "command again"
        )

    def touch_lock(self) -> None:
        """Say that this run lives; raises ``FolderError`` where another took the folder over."""
        self.held.touch()

    def write_config(self, text: str) -> None:
        """Replace config.yaml. Raises ``FolderError`` where it cannot be written."""
        with told(self.path):
            replace_text(self.config, text)


@contextmanager
def open_folder(
    path: Path, *, stale_after_s: float = 300, job: str | None = None
) -> Iterator[OpenFolder]:
    """Make the folder ours; the lock goes on every way out.

    stale_after_s: silence after which a lock of another host counts as a dead run's.
    job: what the launcher calls all that it starts for one run; such a lock is ours at once.
    Raises ``FolderError`` where another run lives in it or it cannot be written.
    """
    folder = RunFolder(path)
    lock = Lock(folder.lock, stale_after_s, job)
    with told(path):
        path.mkdir(parents=True, exist_ok=True)
        lock.take()
    descriptor = None
    try:
        with told(path):
            folder.ranks.mkdir(exist_ok=True)
            descriptor = os.open(path, os.O_RDONLY)
        yield OpenFolder(path, lock, descriptor)
    finally:
        lock.release()
        if descriptor is not None:
            os.close(descriptor)


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        met = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    with suppress(OSError):  # what was removed on a file server cannot be asked any more
        return os.path.samestat(met, os.fstat(descriptor))
    return False


def _place_of(descriptor: int) -> Path | None:
    """Return where an open folder lies now; None where it is removed, or nobody knows."""
    with suppress(OSError, ValueError):
        now = Path(f"/proc/self/fd/{descriptor}").readlink()  # Linux alone tells
        return now if os.path.samestat(now.stat(), os.fstat(descriptor)) else None
    return None
