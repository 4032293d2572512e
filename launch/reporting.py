"""When the ranks meet while training, and what rank 0 then tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from launch.events import Listener, Progress
from launch.meter import Meeting, Meter
from parallel import StepResult
from parallel.phases import NAMES

Lr = Callable[[], float]  # asked at reports only: on a GPU it may wait
CHECK_S = 1.0  # a stop is agreed on within about this much work, however slow a step is


class NotFiniteError(Exception):
    """Too many steps in a row without finite gradients; raised on all ranks alike."""


@dataclass
class Reporter:
    """Meets every ``every_steps`` steps to report, and in between to agree on stopping."""

    meter: Meter
    tell: Listener
    every_steps: int
    max_minutes: float | None
    max_skipped: int
    _started: float = 0.0
    _next_check: int = 1
    _reported: int = 0

    def start(self) -> None:
        """Start the clocks, just before the first step."""
        self._started = monotonic()
        self.meter.resume_clock()

    def step_done(self, result: StepResult, total: int, step: int, epoch: int, lr: Lr) -> bool:
        """Take in a step; at a meeting, return whether time is up, alike on all ranks."""
        self.meter.add(result, total)
        in_a_row = self.meter.in_a_row
        if isinstance(in_a_row, int) and in_a_row >= self.max_skipped:
            self.report(step, epoch, lr)
        if step % self.every_steps == 0:
            return self._time_is_up(self.report(step, epoch, lr))
        if step >= self._next_check:
            return self._time_is_up(self._meet(step))
        return False

    def finish(self, step: int, epoch: int, lr: Lr) -> None:
        """Report what has not been reported yet. Collective."""
        if self._reported < step:
            self.report(step, epoch, lr)

    def report(self, step: int, epoch: int, lr: Lr) -> Meeting:
        """Tell of the steps since the last report. Collective."""
        met = self._meet(step)
        self._reported = step
        first = met.rows[0]
        steps, seconds = first["steps"], met.most("seconds")
        times = {name: first[name] / steps for name in NAMES} if steps else {}
        self.tell(
            Progress(
                step=step,
                epoch=epoch,
                loss=met.mean("loss"),
                metrics={name: met.mean(name) for name in self.meter.metric_names},
                lr=lr(),
                grad_norm=first["grad_norm"],
                samples_per_s=first["samples"] / seconds if steps else None,
                time_s={**times, "step": first["seconds"] / steps} if steps else {},
                peak_gib=met.most("peak_gib"),
                slowest_rank=met.slowest_rank,
                skipped=int(first["skipped"]),
            )
        )
        self.meter.forget()
        if first["in_a_row"] >= self.max_skipped:
            raise NotFiniteError(_not_finite(int(first["in_a_row"]), step, met))
        return met

    def _meet(self, step: int) -> Meeting:
        up = self.max_minutes is not None and monotonic() - self._started > self.max_minutes * 60
        meter = self.meter
        pace = meter.seconds / meter.steps if meter.steps else CHECK_S
        ahead = max(1, int(CHECK_S / max(pace, 1e-6)))
        met = meter.meet(stop=float(up), next_check=float(step + ahead))
        self._next_check = int(met.rows[0]["next_check"])
        return met

    def _time_is_up(self, met: Meeting) -> bool:
        return bool(met.rows[0]["stop"])


def _not_finite(in_a_row: int, step: int, met: Meeting) -> str:
    bad = [rank for rank, row in enumerate(met.rows) if row["loss"] - row["loss"] != 0]
    where = f"the loss itself on rank {', '.join(map(str, bad))}" if bad else "the gradients alone"
    return (
        f"no finite gradients for {in_a_row} steps in a row, up to step {step}; not finite: "
        f"{where}. Look at the data, lower optimizer.lr, set train.clip_norm=1.0, or "
        "train.precision=float32"
    )
