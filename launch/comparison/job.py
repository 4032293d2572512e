"""A row's torchrun job, as the comparison sees it: started, told to take turns, ended for sure."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from launch.comparison.load import descendants
from launch.comparison.talk import Line, failure_of
from launch.comparison.turns import Row

GRACE_S = 3.0  # between being asked to end, and being killed
QUIET = (  # what would be saved, or end a run early
    "checkpoint.every_epochs=null",
    "checkpoint.every_steps=null",
    "checkpoint.every_minutes=null",
    "checkpoint.best=null",
    "early_stop=null",
)


class JobError(Exception):
    """A row cannot go on; says why, in words for the table."""


@dataclass(frozen=True)
class Command:
    """What all rows have in common: files and overrides as typed, and cores a device has.

    sockets: a folder whose path is short enough for them. logs: what each row's processes say.
    cores: of a device, where devices are shares of the cores; else 0.
    """

    files: Sequence[Path]
    overrides: Sequence[str]
    sockets: Path
    logs: Path
    cores: int

    def words(self, row: Row, path: Path) -> list[str]:
        """Return the row's command line."""
        own = [f"train.global_batch_size={row.batch}", *QUIET, *row.words]
        launcher = ["--standalone", f"--nproc_per_node={row.processes}"]
        kept = [f"--cores={self.cores}"] if self.cores and row.devices == 1 else []
        return [
            *self._threads(row),
            *(sys.executable, "-m", "torch.distributed.run", *launcher),
            *("-m", "launch.comparison.worker", f"--to={path}", *kept),
            *map(str, self.files),
            *self.overrides,
            *own,
        ]

    def _threads(self, row: Row) -> list[str]:
        """Return what gives the row's processes their threads, which are shared out as cores are.

        env(1) becomes the command: whoever starts it need not know the environment.
        """
        each = self.cores * row.devices // row.processes
        return ["env", f"OMP_NUM_THREADS={each}"] if self.cores else []


@dataclass
class Job:
    """One row's processes."""

    row: Row
    process: subprocess.Popen[bytes]
    listener: socket.socket
    path: Path
    log: Path
    line: Line | None = None
    traits: list[str] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)

    @staticmethod
    def start(command: Command, row: Row, number: int) -> Job:
        """Return the job, which will be ready for its first turn after a while."""
        path, log = command.sockets / str(number), command.logs / f"{number}-{slug(row.name)}.log"
        path.unlink(missing_ok=True)
        for rank in range(row.processes):
            failure_of(path, rank).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command.words(row, path),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the comparison, which ends its jobs
            )
        return Job(row, process, listener, path, log)

    def meet(self, timeout_s: float) -> None:
        """Wait until it is ready. Raises ``JobError``."""
        deadline = monotonic() + timeout_s
        self.listener.settimeout(0.1)
        while self.line is None:
            try:
                self.line = Line(self.listener.accept()[0])
            except TimeoutError:
                if self.process.poll() is not None:
                    raise JobError(self._why()) from None
                if monotonic() > deadline:
                    raise JobError(f"not ready after {timeout_s:.0f} s") from None
        said = self._hear(max(0.1, deadline - monotonic()), "its start")["ready"]
        self.traits, self.pids = said["traits"], said["pids"]

    def turn(self, steps: int, timeout_s: float) -> dict[str, Any]:
        """Return what so many further steps gave, see ``talk``. Raises ``JobError``."""
        if self.line is not None:
            with suppress(OSError):  # that it is gone is heard next
                self.line.say({"steps": steps})
        return self._hear(timeout_s, f"{steps} steps")

    def end(self) -> None:
        """Leave no process behind."""
        if self.line is not None:
            self.line.close()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE_S)
        if self.process.poll() is None:
            self.pids += descendants(self.process.pid)
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE_S)
        for pid in {*self.pids, self.process.pid}:
            if pid in self.pids or self.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.listener.close()
        self.path.unlink(missing_ok=True)

    def _hear(self, timeout_s: float, of: str) -> dict[str, Any]:
        try:
            message = self.line.hear(timeout_s) if self.line is not None else None
        except TimeoutError:
            raise JobError(
                f"ended by its time limit: {of} took more than {timeout_s:.0f} s"
            ) from None
        if message is None:
            raise JobError(self._why())
        return message

    def _why(self) -> str:
        """Return what the rank that failed first said."""
        end = monotonic() + GRACE_S
        while self.process.poll() is None and monotonic() < end:
            sleep(0.05)
        said = []
        for rank in range(self.row.processes):
            with suppress(OSError, ValueError):
                at, _, text = failure_of(self.path, rank).read_text().partition("\n")
                said.append((float(at), text.strip()))
        if said:
            return min(said)[1]
        log = self.log.read_text(errors="replace")
        killed = re.findall(r"Signal \d+ \((SIG\w+)\)", log)[-1:]  # torchrun's root cause is last
        if killed:
            memory = ", perhaps for want of memory" if killed == ["SIGKILL"] else ""
            return f"killed by {killed[0]}{memory}"
        return f"ended with code {self.process.returncode}; its words are in {self.log}"


def slug(name: str) -> str:
    """Return a row's name as that of a file."""
    return re.sub(r"[^\w.=-]+", "-", name)
