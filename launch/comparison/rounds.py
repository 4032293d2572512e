"""Rows by turns: A B C A B C, the same steps for all, until the time is up.

Each row warms up once, in turns of round 0 whose times do not count. How many steps a turn has
follows from what they take there: about ``TURN_S`` for the fastest row, and no more than lets the
time do for ``ROUNDS`` rounds. Rows with which not even ``LEAST`` rounds fit are left out, the
slowest first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Protocol

from launch.comparison.job import JobError
from launch.comparison.load import Watch
from launch.comparison.turns import Found, Turn

WARM = 3  # steps: the first two set up memory and threads
SHORT_S, MORE = 0.02, 30  # where the first row's step is shorter, all warm up by so many more
TURN_S = 1.0
ROUNDS, LEAST = 5, 2
SAY_S = 2.0  # between lines of progress
START_SHARE = 0.6  # of the time: rows that have not begun by then are left out


class Runs(Protocol):
    """A row at work; ``meet`` and ``turn`` raise ``JobError``."""

    traits: list[str]
    pids: list[int]

    def meet(self, timeout_s: float) -> None:
        """Wait until it is ready for its first turn."""

    def turn(self, steps: int, timeout_s: float) -> dict[str, Any]:
        """Return what so many further steps gave."""

    def end(self) -> None:
        """Leave no process behind."""


Start = Callable[[Found], Runs]


@dataclass(frozen=True)
class Pace:
    """How long all may take, and a row; spent_s: of the minutes, before.

    steps: of a turn; None: as fits. limit_s: a row's start, or a turn, that takes longer is ended.
    stays: whether rows stay up between their turns, as those on a CPU can.
    """

    minutes: float
    limit_s: float
    stays: bool
    steps: int | None = None
    spent_s: float = 0.0

    @property
    def left_s(self) -> float:
        """Seconds that there are yet."""
        return 60 * self.minutes - self.spent_s


@dataclass
class Rounds:
    """The comparison at work; ``found`` is filled, row by row, but for those with a problem.

    say: told a line of progress. kept: called after each round, to write down what there is.
    """

    found: Sequence[Found]
    start: Start
    pace: Pace
    say: Callable[[str], None]
    kept: Callable[[], None]
    _up: dict[int, Runs] = field(default_factory=dict)
    _met: set[int] = field(default_factory=set)  # of these, which are ready
    _step_s: dict[int, float] = field(default_factory=dict)
    _start_s: dict[int, float] = field(default_factory=dict)
    _deadline: float = 0.0
    _said: float = 0.0
    _more: int | None = None  # steps to warm up by, beyond the first

    def run(self) -> None:
        """Take turns until the time is up; whatever ends it, no process is left."""
        self._deadline = monotonic() + self.pace.left_s
        with ExitStack() as stack:
            stack.callback(self._end_all)
            self._begin()
            self.kept()
            steps = self._fit()
            number = 1 + max((t.round for each in self.found for t in each.turns), default=0)
            took_s, done, alone = 0.0, 0, len(self._step_s) < 2
            while self._step_s and (done < LEAST or monotonic() + took_s < self._deadline):
                if len(self._step_s) < 2 and not alone:
                    break  # there is nothing left to compare with
                started = monotonic()
                self._round(number + done, steps)
                took_s, done = monotonic() - started, done + 1
                self.kept()

    def _begin(self) -> None:
        """Start each row and let it warm up."""
        begun = monotonic()
        for at, each in enumerate(self.found):
            if each.problem:
                continue
            spent = monotonic() - begun
            if len(self._step_s) > 1 and spent > START_SHARE * self.pace.left_s:
                each.problem = f"not started: --minutes {self.pace.minutes:g} did not do for all"
                continue
            self.say(f"{each.row.name}: starts")
            started = monotonic()
            self._step_s[at] = math.inf
            self._launch(at)
            coming = (n for n in range(at + 1, len(self.found)) if not self.found[n].problem)
            if self.pace.stays and (behind := next(coming, None)) is not None:
                self._launch(behind)  # comes up meanwhile
            if not self._warm_up(at):
                continue
            step_s = self._step_s[at] = each.turns[-1].step_s
            self._start_s[at] = monotonic() - started - WARM * step_s

    def _warm_up(self, at: int) -> bool:
        """Let a row take its first steps; return whether it did. All take the same ones."""
        warm = self._turn(at, WARM)
        if warm is None:
            return False
        self.found[at].turns.append(warm)
        if self._more is None:
            self._more = MORE if warm.step_s < SHORT_S else 0
        more = self._turn(at, self._more) if self._more and self.pace.stays else None
        if more is not None:
            self.found[at].turns.append(more)
        return at in self._step_s

    def _fit(self) -> int:
        """Return the steps of a turn; rows that are too slow for the time are left out."""
        while len(self._step_s) > 1:
            left_s = self._deadline - monotonic()
            again_s = 0.0 if self.pace.stays else sum(map(self._start_s.__getitem__, self._step_s))
            all_s, fastest = sum(self._step_s.values()), min(self._step_s.values())
            wanted = self.pace.steps or max(1, math.ceil(TURN_S / fastest))
            if self.pace.steps is None:
                wanted = min(wanted, max(1, int((left_s / ROUNDS - again_s) / all_s)))
            if LEAST * (wanted * all_s + again_s) <= left_s:
                return wanted
            self._leave_out(max(self._others(), key=self._step_s.__getitem__), wanted)
        return self.pace.steps or max(1, math.ceil(TURN_S / min(self._step_s.values(), default=1)))

    def _others(self) -> list[int]:
        """Return the rows that may be left out: all but the one that speed-ups are over."""
        return [at for at in self._step_s if not self.found[at].row.is_reference]

    def _leave_out(self, at: int, steps: int) -> None:
        each = self.found[at]
        each.problem = (
            f"a step takes {self._step_s[at]:.3g} s: {LEAST} rounds of {steps} "
            f"{'steps' if steps > 1 else 'step'} do not fit into --minutes {self.pace.minutes:g}"
        )
        self._close(at)

    def _round(self, number: int, steps: int) -> None:
        said = []
        for at in sorted(self._step_s):
            turn = self._turn(at, steps)
            if turn is not None:
                each = self.found[at]
                each.turns.append(replace(turn, round=number))
                said.append(f"{each.row.name} {turn.step_s * 1e3:.3g} ms")
        if monotonic() - self._said >= SAY_S:
            self._said = monotonic()
            self.say(f"round {number}: {', '.join(said)}")

    def _turn(self, at: int, steps: int) -> Turn | None:
        """Return a row's turn; where it fails, the row is closed, and none of the others."""
        each, limit_s = self.found[at], self.pace.limit_s
        late_s = max(1.0, self._deadline - monotonic() + 15)
        try:
            if at not in self._met:
                self._launch(at).meet(min(limit_s, late_s))
                self._met.add(at)
                each.traits = self._up[at].traits
                if self._step_s[at] < math.inf:  # it is up again
                    self._up[at].turn(WARM, min(limit_s, late_s))
            watch = Watch(self._up[at].pids)
            said = self._up[at].turn(steps, min(limit_s, late_s))
            load = watch.load()
        except JobError as error:
            each.problem = str(error)
            self.say(f"{each.row.name}: {each.problem}")
            self._close(at)
            return None
        each.peak_bytes = said["peak_bytes"]
        if not self.pace.stays:
            self._end(at)
        return Turn(round=0, load=load, **said["turn"])

    def _close(self, at: int) -> None:
        """End a row's processes; it has no further turn."""
        self._step_s.pop(at, None)
        self._end(at)

    def _launch(self, at: int) -> Runs:
        if at not in self._up:
            self._up[at] = self.start(self.found[at])
        return self._up[at]

    def _end(self, at: int) -> None:
        self._met.discard(at)
        runs = self._up.pop(at, None)
        if runs is not None:
            runs.end()

    def _end_all(self) -> None:
        for at in list(self._up):
            self._end(at)
