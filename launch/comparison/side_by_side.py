"""A comparison from what is asked for to what is shown, and kept in its folder."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic

import torch

from launch.comparison import output
from launch.comparison.advice import advise
from launch.comparison.asked import before, facts
from launch.comparison.beside import Beside
from launch.comparison.header import Header, head
from launch.comparison.job import Command, Job
from launch.comparison.report import text
from launch.comparison.rounds import Pace, Rounds, Runs
from launch.comparison.rows import rows as all_rows
from launch.comparison.table import lines as table
from launch.comparison.turns import Found
from launch.comparison.wanted import Wanted
from launch.planning.corrections import factors_of, place_of, write_factors

INTERRUPTED = 130  # the exit code of a command that was interrupted
Say = Callable[[str], None]


def compare(wanted: Wanted, say: Say) -> int:
    """Run all rows by turns, show and keep what was found; return the exit code."""
    began, earlier = monotonic(), before(wanted)
    found = earlier.found or all_rows(wanted)
    with tempfile.TemporaryDirectory(prefix="compare-") as sockets:
        command = Command(
            wanted.files,
            wanted.overrides,
            Path(sockets),
            wanted.folder / "logs",
            wanted.cores,
        )
        return _Comparison(wanted, command, found, say, earlier.spent_s, began).run()


@dataclass
class _Comparison:
    """The rows at work, and the table that grows meanwhile."""

    wanted: Wanted
    command: Command
    found: Sequence[Found]
    say: Say
    spent_s: float  # by earlier ones of the same
    began: float

    def run(self) -> int:
        wanted = self.wanted
        cores, spent_s = self.command.cores, self._spent_s()
        pace = Pace(wanted.minutes, wanted.limit_s, bool(cores), wanted.steps, spent_s)
        if pace.left_s <= 0 and any(each.timed for each in self.found):
            self.say(
                f"all of --minutes {wanted.minutes:g} is used; with more of them it goes "
                "on, with --anew it begins again"
            )
            return self._show()
        try:
            Rounds(self.found, self._start, pace, self.say, self._keep).run()
        except KeyboardInterrupt:
            self._show()
            self.say("interrupted; the same command goes on")
            return INTERRUPTED
        return self._show()

    def _spent_s(self) -> float:
        return self.spent_s + monotonic() - self.began

    def _start(self, each: Found) -> Runs:
        wanted = self.wanted
        if each.row.is_beside and wanted.beside and wanted.steps:
            return Beside(each.row, wanted.beside, self.command, wanted.steps)
        return Job.start(self.command, each.row, self.found.index(each))

    def _keep(self) -> None:
        """Write down what there is so far."""
        rows = table(self.found)
        output.write(self.wanted.folder, self.found, rows, self._header(), advise(rows))

    def _show(self) -> int:
        """Show the table and keep it; fails where no row was timed."""
        rows, header = table(self.found), self._header()
        advice, folder = advise(rows), self.wanted.folder
        output.finish(folder, self.found, rows, header, advice)
        self._correct()
        self.say("\n" + text(rows, head(header, self.found), advice))
        self.say(f"kept in {folder}: compare.md, .csv, .json, .png; tensorboard --logdir {folder}")
        return 0 if any(each.timed for each in self.found) else 1

    def _correct(self) -> None:
        """Leave behind by how much the planner was off, for plans to come."""
        own = [each for each in table(self.found) if not each.is_scaled]
        times = [(each.foreseen_step_s, each.step_s) for each in own]
        sizes = [(each.foreseen_gib, each.peak_gib) for each in own]
        factors = factors_of(self.wanted.machine, _known(times), _known(sizes))
        if _known(times):
            write_factors(place_of(self.wanted.config), factors)

    def _header(self) -> Header:
        wanted = self.wanted
        cores = wanted.cores * wanted.machine.devices
        return Header(
            wanted.config.name,
            wanted.command,
            wanted.place,
            cores,
            wanted.machine.devices,
            wanted.config.train.global_batch_size,
            datetime.now(timezone.utc).isoformat(timespec="seconds"),
            {"torch": torch.__version__, "python": platform.python_version()},
            facts(self.wanted),
            self._spent_s(),
        )


def _known(pairs: Iterable[tuple[float | None, float | None]]) -> list[tuple[float, float]]:
    return [(one, other) for one, other in pairs if one is not None and other is not None]
