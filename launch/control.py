"""What asks a run to stop or to save, and what the ranks agreed on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from launch.signals import Signals
from parallel import World

LIMIT, BUDGET, FILE, ORPHAN = 1000.0, 1001.0, 1002.0, 1003.0  # beyond any signal's number
REASONS = {
    LIMIT: "train.max_minutes",
    BUDGET: "--max-minutes",
    FILE: "the file STOP",
    ORPHAN: "the launcher is gone",
}


def idle() -> None:
    """Do nothing: nobody asks whether there is progress."""


@dataclass(frozen=True)
class Ending:
    """How a run ends: "completed", or "stopped" and resumable; reason: one line."""

    state: str
    reason: str


@dataclass
class Control:
    """What this process wishes, and what holds for all ranks since they last met.

    limit_s: training time that completes the run. budget_s: time, start-up included, after which
    it stops and can be resumed. save_every_s: between checkpoints. stop_file: looked for if given.
    """

    signals: Signals
    limit_s: float | None = None
    budget_s: float | None = None
    save_every_s: float | None = None
    stop_file: Path | None = None
    tick: Callable[[], None] = idle  # called whenever the main thread makes progress
    orphaned: bool = False
    spent_s: float = 0.0  # by the attempts before this one
    ending: Ending | None = None  # agreed
    save_is_due: bool = False  # agreed; whoever saves takes it back
    _born: float = field(default_factory=monotonic)
    _start: float = field(default_factory=monotonic)
    _saved: float = field(default_factory=monotonic)

    def start(self) -> None:
        """Start the clock of training, just before the first step."""
        self._start = self._saved = monotonic()
        self.tick()

    @property
    def trained_s(self) -> float:
        """Seconds of training, all attempts together."""
        return self.spent_s + monotonic() - self._start

    def wishes(self) -> dict[str, float]:
        """Return what this rank brings to a meeting."""
        since = monotonic() - self._saved
        due = self.save_every_s is not None and since >= self.save_every_s
        return {"stop": self._code(), "save": float(due)}

    def saved(self) -> None:
        """Take in that a checkpoint was made."""
        self.save_is_due, self._saved = False, monotonic()

    def agree(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Take in all ranks' wishes: one of them stops all; rank 0's clock says when to save."""
        self.save_is_due = bool(rows[0]["save"])
        told = [(row["stop"], rank) for rank, row in enumerate(rows) if row["stop"]]
        if told and (self.ending is None or self.ending.state == "completed"):
            code, rank = next((at for at in told if at[0] != LIMIT), told[0])
            self.ending = _ending(code, rank, len(rows))

    def meet(self, world: World) -> None:
        """Agree now. Collective."""
        self.agree(world.gather_objects(self.wishes()))

    def _code(self) -> float:
        if self.signals.last:
            return float(self.signals.last)
        if self.orphaned:
            return ORPHAN
        if self.budget_s is not None and monotonic() - self._born > self.budget_s:
            return BUDGET
        if self.stop_file is not None and self.stop_file.exists():
            return FILE
        return LIMIT if self.limit_s is not None and self.trained_s > self.limit_s else 0.0


def _ending(code: float, rank: int, size: int) -> Ending:
    if code == LIMIT:
        return Ending("completed", REASONS[LIMIT])
    reason = REASONS.get(code) or signal.Signals(int(code)).name
    where = f" on rank {rank}" if size > 1 and code not in (BUDGET, FILE) else ""
    return Ending("stopped", reason + where)
