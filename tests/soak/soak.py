"""Train the digits through many ends, and compare with a run that nobody disturbed.

    python tests/soak/soak.py --kills 100 --seed 0

Two processes under torchrun, two loader processes each, a checkpoint every few steps. Each attempt
is ended at a random moment, by a random signal to a random process, and started again by the same
command. At the end the run must have the bytes of the unbroken one, every sample must have been
seen once an epoch, and no end may have left a process. Exit code 0 only if all of it holds.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

import processes
from history import entries
from started import Run
from verdict import broken_checkpoints, compare, last_checkpoint, status

PACE = "0.03 0.03 0.05"  # see ledger.py
ENDS = (
    ("KILL", "rank"),
    ("KILL", "rank"),  # the only one by which work is lost, so twice as likely
    ("KILL", "launcher"),
    ("TERM", "launcher"),
    ("TERM", "rank"),
    ("INT", "launcher"),
    ("USR1", "rank"),
    ("USR1", "launcher"),
)
START_S, STEPS_S = 9.0, 2.5  # latest moment after the start, and after the first new step
FIRST_STEP_S, LEAVE_S, GONE_S = 90.0, 45.0, 20.0  # deadlines; torchrun gives its ranks 30 s


@dataclass
class Soak:
    """Ends dealt out to one run; problems: what did not hold, a sentence each."""

    run: Run
    chance: random.Random
    problems: list[str] = field(default_factory=list)
    leftovers: processes.Found = field(default_factory=dict)
    last: str = ""  # end that was dealt
    ended: float = 0.0
    longest_s: float = 0.0  # from an end to the last process gone
    in_a_write: int = 0

    def deal(self, number: int) -> bool:
        """Start the run and end it; return whether it makes sense to go on."""
        lines, process = self.run.lines(), self.run.start()
        early = self.chance.random() < 0.1
        wait_s = self.chance.uniform(0, START_S if early else STEPS_S)
        if not early and not self._wait(
            lambda: self.run.lines() > lines or process.poll() is not None, FIRST_STEP_S
        ):
            self.problems.append(f"end {number}: no new step within {FIRST_STEP_S:g} s")
            self._kill_all(process)
            return False
        self._wait(lambda: process.poll() is not None, wait_s)
        into_a_write = not early and self.chance.random() < 0.3
        if into_a_write:
            self._wait(lambda: self._writes() or process.poll() is not None, STEPS_S, 0.002)
        if process.poll() is not None:
            self.problems.append(
                f"before end {number} the run was over: {status(self.run.folder)}, exit code "
                f"{process.poll()}; see {self.run.folder}/terminal.txt"
            )
            return False
        what = self._strike(process)
        when = f"{wait_s:.1f} s after {'the start' if early else 'its first step'}"
        when += ", into a write" if into_a_write else ""
        self._look(number, f"{what}, {when}", process, lines)
        return True

    def _strike(self, process: Popen[bytes]) -> str:
        name, whom = self.chance.choice(ENDS)
        ranks = processes.ranks(process.pid)
        chosen = self.chance.randrange(self.run.options.processes)
        if whom == "rank" and chosen < len(ranks):
            whom, pid = f"rank process {chosen}", ranks[chosen]
        else:
            whom, pid = "launcher", process.pid
        self._check_leftovers(at_last=True)
        self.leftovers = processes.of(self.run.folder)
        os.kill(pid, getattr(signal, f"SIG{name}"))
        self.ended = time.monotonic()
        return f"{name} to {whom}"

    def _look(self, number: int, what: str, process: Popen[bytes], lines: int) -> None:
        """Wait for the end, and see what it left."""
        self.last = f"end {number}, {what}"
        if not self._wait(lambda: process.poll() is not None, LEAVE_S):
            self.problems.append(f"{self.last}: the launcher is still there")
            self._kill_all(process)
        left_s = time.monotonic() - self.ended
        at_once = self.chance.random() < 0.5  # the next attempt may meet what is still leaving
        if not at_once:
            self._wait(lambda: not self.leftovers, GONE_S)
            self._check_leftovers(at_last=True)
        new = entries(self.run.folder)[lines:]
        went = f"steps {new[0]['step']} to {new[-1]['step']}" if new else "no step"
        saved, broken = last_checkpoint(self.run.folder), broken_checkpoints(self.run.folder)
        self.in_a_write += self._writes()
        told = status(self.run.folder)
        say(
            f"{number:3} {what}: {went}, saved {saved}, {told}, launcher gone after {left_s:.1f} s"
            f"{', started again at once' if at_once else ''}"
        )
        self.problems += [f"{self.last}: {why}" for why in broken]
        if told is None and new:
            self.problems.append(f"{self.last}: status.json is no JSON")
        if new and saved < new[-1]["step"] - self.run.options.every_steps:
            self.problems.append(f"{self.last}: more was lost than since the last save")
        still_leaving = at_once and "launcher" in what
        is_loss = what.startswith("KILL to rank") or still_leaving
        if new and not is_loss and (told != "stopped" or saved != new[-1]["step"]):
            self.problems.append(f"{self.last}: {told} at {new[-1]['step']}: no save")

    def _writes(self) -> bool:
        """Whether a checkpoint is half written, now or for ever."""
        return any(self.run.folder.glob("runs/soak/checkpoints/.step-*.part"))

    def _wait(self, is_over: Callable[[], bool], wait_s: float, pause_s: float = 0.05) -> bool:
        deadline = time.monotonic() + wait_s
        while not is_over():
            if time.monotonic() > deadline:
                return False
            self._check_leftovers()
            time.sleep(pause_s)
        return True

    def _check_leftovers(self, at_last: bool = False) -> None:
        """Note who of the attempt before is still there."""
        if not self.leftovers:
            return
        left, since = processes.still_there(self.leftovers), time.monotonic() - self.ended
        if not left:
            self.longest_s, self.leftovers = max(self.longest_s, since), {}
        elif at_last and since > GONE_S:
            self.problems.append(f"{self.last}: {left} are still there after {since:.0f} s")
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            self.leftovers = {}

    def _kill_all(self, process: Popen[bytes]) -> None:
        process.kill()
        for pid in processes.of(self.run.folder):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def to_the_end(run: Run) -> list[str]:
    code = run.start().wait()
    met = status(run.folder)
    return [] if (code, met) == (0, "completed") else [f"{run.folder}: {met}, exit code {code}"]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--strategy", choices=("ddp", "pipeline"), default="ddp")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=None, help="enough for all kills")
    parser.add_argument("--every-steps", type=int, default=5, help="between checkpoints")
    parser.add_argument("--folder", type=Path, default=None, help="empty; kept")
    found = parser.parse_args()
    found.epochs = found.epochs or found.kills * 4 // 5 + 6
    return found


def main() -> int:
    chosen, start = options(), time.monotonic()
    # a shell lets what it starts in the background ignore SIGINT, and launchers would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = (chosen.folder or Path(tempfile.mkdtemp(prefix="soak-"))).resolve()
    broken, whole = Run(folder / "broken", chosen, PACE), Run(folder / "unbroken", chosen)
    say(f"seed {chosen.seed}, {chosen.kills} kills, {chosen.epochs} epochs, in {folder}")
    soak = Soak(broken, random.Random(chosen.seed))
    dealt = 0
    while dealt < chosen.kills and soak.deal(dealt + 1):
        dealt += 1
    problems = soak.problems
    if dealt == chosen.kills:
        problems += [*to_the_end(broken), *to_the_end(whole)]
        problems += compare(broken.folder, whole.folder)
    for problem in problems:
        say(f"PROBLEM {problem}")
    say(
        f"{dealt} ends in {(time.monotonic() - start) / 60:.1f} min, {broken.step} steps of which "
        f"{broken.lines()} were done, {soak.in_a_write} ends in a write, the last process gone "
        f"after {soak.longest_s:.1f} s at most: "
        + (f"{len(problems)} problems" if problems else "the bytes of the unbroken run")
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
