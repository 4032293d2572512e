"""What happened since the last log line on this process, and over all of them once they meet."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from parallel import Outcome, StepResult, World, sums
from parallel.phases import NAMES, Phases

WARM_UP_STEPS = 2  # first steps set up memory, threads and buckets: their times are left out


@dataclass(frozen=True)
class Meeting:
    """What all ranks know after they met: rank -> numbers by name."""

    rows: list[dict[str, float]]

    def total(self, name: str) -> float:
        """Return the sum over ranks."""
        return sum(row[name] for row in self.rows)

    def most(self, name: str) -> float:
        """Return the largest over ranks."""
        return max(row[name] for row in self.rows)

    def mean(self, name: str) -> float:
        """Return the weighted mean of a sum, over ranks; NaN without weight."""
        weight = self.total(f"weight {name}")
        return self.total(f"sum {name}") / weight if weight else float("nan")

    @property
    def slowest_rank(self) -> int:
        """Return the rank that spent most time on its own work."""
        own = [sum(row[name] for name in NAMES if name != "communication") for row in self.rows]
        return own.index(max(own))


@dataclass
class Meter:
    """Adds up steps without waiting for the device; ``meet_later`` is the only collective."""

    world: World
    phases: Phases
    outcomes: list[Outcome] = field(default_factory=list)  # since the last summing up
    totals: dict[str, tuple[float, float]] = field(default_factory=dict)  # name -> (sum, weight)
    samples: int = 0  # of all replicas
    steps: int = 0  # timed
    warm: int = WARM_UP_STEPS  # steps still to be left out
    seconds: float = 0.0  # of the timed steps
    skipped: Tensor | int = 0  # of the whole run
    in_a_row: Tensor | int = 0
    grad_norm: Tensor | float = 0.0
    has_news: bool = False  # whether there was a step since the last ``forget``; alike on all ranks
    _since: float = 0.0
    _names: list[str] | None = None

    def resume_clock(self) -> None:
        """Start the clock: what comes next is training."""
        self._since = perf_counter()

    def stop_clock(self) -> None:
        """Stop the clock: what comes next is not training."""
        self.seconds += perf_counter() - self._since

    def add(self, result: StepResult, total: int) -> None:
        """Take in one step of a global batch of ``total`` samples."""
        self.outcomes += result.outcomes
        self.has_news = True
        self.grad_norm = result.grad_norm
        self._count_skipped(result.skipped)
        if self.warm:
            self.warm -= 1
            if not self.warm:
                self.phases.forget()
                self.seconds, self._since = 0.0, perf_counter()
        else:
            self.samples += total
            self.steps += 1

    def _count_skipped(self, skipped: bool | Tensor) -> None:
        if isinstance(skipped, Tensor):
            self.skipped = self.skipped + skipped
            self.in_a_row = torch.where(skipped, self.in_a_row + 1, 0)
        elif skipped:
            self.skipped, self.in_a_row = self.skipped + 1, self.in_a_row + 1
        elif self.in_a_row:
            self.in_a_row = 0

    def _sum_up(self) -> None:
        """Bring the outcomes into the totals. Waits for the device."""
        for name, (value, weight) in sums(self.outcomes).items():
            before = self.totals.get(name, (0.0, 0.0))
            self.totals[name] = (before[0] + float(value), before[1] + float(weight))
        self.outcomes = []

    def meet_later(self, **also: float) -> Callable[[], Meeting]:
        """Start telling every rank's numbers since the last ``forget``, and ``also``. Collective.

        What is returned waits for the others; it is no collective itself.
        """
        self.stop_clock()
        self.resume_clock()
        self._sum_up()
        if self._names is None:  # some ranks may know no loss at all: stages of a pipeline
            known = self.world.gather_objects(self.totals.keys() - {"loss"})
            self._names = sorted(set().union(*known))
        mine = {
            "samples": self.samples,
            "steps": self.steps,
            "seconds": self.seconds,
            "skipped": float(self.skipped),
            "in_a_row": float(self.in_a_row),
            "grad_norm": float(self.grad_norm),
            "peak_gib": peak_gib(self.world.device),
            **also,
            **self.phases.seconds(),
        }
        for name in ("loss", *self._names):
            mine[f"sum {name}"], mine[f"weight {name}"] = self.totals.get(name, (0.0, 0.0))
        row = torch.tensor(list(mine.values()), dtype=torch.float64, device=self.world.device)
        gathered = self.world.gather_later(row)
        return lambda: Meeting([dict(zip(mine, r, strict=True)) for r in gathered().tolist()])

    @property
    def metric_names(self) -> list[str]:
        """Return the metrics that a meeting reports."""
        return self._names or []

    def forget(self) -> None:
        """Start the next log interval."""
        self.totals = {}
        self.has_news = False
        self.samples = self.steps = 0
        self.seconds = 0.0
        self.phases.forget()


def peak_gib(device: torch.device) -> float:
    """Return the most memory this process held: of the GPU, or resident on the CPU, in GiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 1024  # bytes, or KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
