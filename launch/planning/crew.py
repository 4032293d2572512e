"""Processes of this machine's own that try things out together, and end for sure."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from parallel import World, join

START_S = 90.0  # until torch is imported everywhere


class CrewError(Exception):
    """Nothing was measured; says why."""


@dataclass
class Crew:
    """``size`` processes that wait to be told what to do. A context manager.

    cores: of each on a CPU. device: as launch.device.
    """

    size: int
    cores: int
    device: str = "auto"
    _processes: list[BaseProcess] = field(default_factory=list)
    _ends: list[Connection] = field(default_factory=list)
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Crew:
        """Start the processes, and do not wait for them."""
        self._folder = tempfile.TemporaryDirectory(prefix="launch-plan-")
        store, context = str(Path(self._folder.name, "store")), get_context("spawn")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            at = (rank, self.size, store, self.cores, self.device, theirs)
            process = context.Process(target=_serve, args=at, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._ends.append(ours)
        return self

    def __exit__(self, *error: object) -> None:
        """Leave no process and no file behind."""
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.kill()
            process.join()
            process.close()
        if self._folder is not None:
            self._folder.cleanup()

    def ask(self, what: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
        """Return what ``what(world, *args)`` returns on rank 0; all call it together.

        Raises ``CrewError`` where one fails, or takes longer.
        """
        for end in self._ends:
            try:
                end.send((what, args))
            except OSError:
                raise CrewError("a process that should measure has ended") from None
        deadline, said = monotonic() + timeout_s, []
        for end in self._ends:
            try:
                if not end.poll(max(0.0, deadline - monotonic())):
                    raise CrewError(f"measuring took more than {timeout_s:.0f} s")
                answer, problem = end.recv()
            except (EOFError, OSError):
                raise CrewError("a process that measured was ended, perhaps for memory") from None
            if problem:
                raise CrewError(problem)
            said.append(answer)
        return said[0]


def _serve(rank: int, size: int, store: str, cores: int, device: str, end: Connection) -> None:
    """Be one of the crew: do what comes, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started us ends us
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - a task may print; it lives as long as we
    with join(rank=rank, size=size, store=store, device=device, timeout_s=START_S) as world:
        if world.device.type == "cpu":
            torch.set_num_threads(cores)
        while True:
            try:
                what, args = end.recv()
            except EOFError:
                os._exit(0)
            end.send(_answer(world, what, args))


def _answer(world: World, what: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, str]:
    try:
        answer = what(world, *args)
    except Exception as error:  # a task's own code may raise anything
        return None, f"{type(error).__name__}: {error}"
    return (answer if world.is_main else None), ""
