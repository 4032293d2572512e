"""A program of the user's own as a row: run as it is, once a round."""

from __future__ import annotations

import math
import re
import shlex
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.comparison.job import Command, JobError, slug
from launch.comparison.turns import Row

NUMBER = r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)"
SECONDS = re.compile(rf"{NUMBER} ?s(?:ec|econds?)?\b")
LOSS = re.compile(rf"\bloss\b\D{{0,3}}{NUMBER}")


@dataclass
class Beside:
    """The program, which says at its end how long its training took: the last "3.2 s" it prints.

    It has the machine for itself, as if it were typed. It knows nothing of turns: each is a whole
    run of it, of ``steps`` steps.
    """

    row: Row
    command: str
    within: Command
    steps: int
    traits: list[str] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    def meet(self, timeout_s: float) -> None:
        """Do nothing: it starts with its turn."""

    def turn(self, steps: int, timeout_s: float) -> dict[str, Any]:
        """Return what a whole run gave; to warm up, nothing is run. Raises ``JobError``."""
        if steps < self.steps:
            return _said(0, 0.0, math.nan)
        log = self.within.logs / f"{slug(self.row.name)}.log"
        text = self._run(log, timeout_s)
        seconds, loss = SECONDS.findall(text), LOSS.findall(text)
        if not seconds:
            raise JobError(f"{self.command!r} prints no seconds, such as 'training 3.2 s': {log}")
        return _said(self.steps, float(seconds[-1]), float(loss[-1]) if loss else math.nan)

    def end(self) -> None:
        """Leave no process behind."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _run(self, log: Path, timeout_s: float) -> str:
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                shlex.split(self.command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pids = [self.process.pid]
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        code = self.process.poll()
        if code is None:
            self.end()
            raise JobError(f"ended by its time limit: a run took more than {timeout_s:.0f} s")
        if code:
            raise JobError(f"ended with code {code}; its words are in {log}")
        return log.read_text(errors="replace")


def _said(steps: int, seconds: float, loss: float) -> dict[str, Any]:
    turn = {"first": 1, "last": steps, "step_s": seconds / max(1, steps), "loss": loss}
    return {"turn": turn, "peak_bytes": []}
