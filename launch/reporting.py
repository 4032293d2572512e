"""When the ranks meet while training, and what rank 0 then tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from launch.control import Control
from launch.events import Listener, Progress
from launch.failures import TrainingError
from launch.meter import Meeting, Meter
from parallel import StepResult
from parallel.phases import NAMES

ADVICE = (
    "Look at the data, lower optimizer.lr, set train.clip_norm=1.0, or, in a low precision, "
    "train.precision=float32"
)
Lr = Callable[[], float]  # asked at reports only: on a GPU it may wait
SHORT_S = 0.05  # a step below this does not wait for a meeting
CHECK_S = 1.0  # a stop is agreed on within about this much work, however slow a step is


@dataclass(frozen=True)
class _Pending:
    """A meeting under way, and where training stood when it began; lr: None at a mere check."""

    wait: Callable[[], Meeting]
    step: int
    epoch: int
    lr: float | None


@dataclass
class Reporter:
    """Meets every ``every_steps`` steps to report, and in between to agree on stopping.

    Where steps are short, a meeting ends one step after it began: its messages travel meanwhile.
    """

    meter: Meter
    tell: Listener
    control: Control
    every_steps: int
    max_skipped: int
    _next_check: int = 0
    _reported: int = 0
    _epoch: int = 0  # of the last step
    _at_once: bool = True  # alike on all ranks too: when a meeting ends decides when to stop
    _pending: _Pending | None = None

    def start(self) -> None:
        """Start the clocks, just before the first step."""
        self.control.start()
        self.control.meet(self.meter.world)  # a rank may have been told to stop by now
        self.meter.resume_clock()

    def step_done(self, result: StepResult, total: int, step: int, epoch: int, lr: Lr) -> None:
        """Take in a step; meet where that is due. Collective."""
        self.control.tick()
        self.settle()
        self._epoch = epoch
        self.meter.add(result, total)
        in_a_row = self.meter.in_a_row
        too_many = isinstance(in_a_row, int) and in_a_row >= self.max_skipped
        if step % self.every_steps == 0 or too_many:
            self._report(step, epoch, lr)
        elif step >= self._next_check:
            self._begin(step, epoch, None)
        if self._at_once or too_many:
            self.settle()

    def finish(self, step: int, lr: Lr) -> None:
        """Report what has not been reported yet. Collective."""
        self.settle()
        if self._reported < step and self.meter.has_news:
            self._report(step, self._epoch, lr)
        self.settle()

    def require_progress(self, step: int) -> None:
        """Raise ``TrainingError`` where ``step`` steps have changed nothing."""
        if step and int(self.meter.in_a_row) >= step:
            raise TrainingError(f"not one of {step} steps had finite gradients: {ADVICE}")

    def settle(self) -> None:
        """End a meeting that is under way, and tell what was agreed."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        met = pending.wait()
        first = met.rows[0]
        self.control.agree(met.rows)
        self._next_check = int(first["next_check"])
        self._at_once = first["seconds"] > SHORT_S * first["steps"]
        if pending.lr is not None:
            self.tell(_progress(met, pending, pending.lr, self.meter.metric_names))
        if first["in_a_row"] >= self.max_skipped:
            raise TrainingError(_not_finite(int(first["in_a_row"]), pending.step, met))

    def _report(self, step: int, epoch: int, lr: Lr) -> None:
        self._reported = step
        self._begin(step, epoch, lr())
        self.meter.forget()

    def _begin(self, step: int, epoch: int, lr: float | None) -> None:
        meter = self.meter
        pace = meter.seconds / meter.steps if meter.steps else CHECK_S
        ahead = max(1, int(CHECK_S / max(pace, 1e-6)))
        wait = meter.meet_later(**self.control.wishes(), next_check=float(step + ahead))
        self._pending = _Pending(wait, step, epoch, lr)


def _progress(met: Meeting, at: _Pending, lr: float, names: list[str]) -> Progress:
    first = met.rows[0]
    steps, seconds = first["steps"], met.most("seconds")
    times = {name: first[name] / steps for name in NAMES} if steps else {}
    return Progress(
        step=at.step,
        epoch=at.epoch,
        loss=met.mean("loss"),
        metrics={name: met.mean(name) for name in names},
        lr=lr,
        grad_norm=first["grad_norm"],
        samples_per_s=first["samples"] / seconds if steps else None,
        time_s={**times, "step": first["seconds"] / steps} if steps else {},
        peak_gib=met.most("peak_gib"),
        slowest_rank=met.slowest_rank,
        skipped=int(first["skipped"]),
    )


def _not_finite(in_a_row: int, step: int, met: Meeting) -> str:
    bad = [rank for rank, row in enumerate(met.rows) if row["sum loss"] - row["sum loss"] != 0]
    where = f"the loss itself on rank {', '.join(map(str, bad))}" if bad else "the gradients alone"
    return (
        f"no finite gradients for {in_a_row} steps in a row, up to step {step}; not finite: "
        f"{where}. {ADVICE}"
    )
