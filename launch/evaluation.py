"""Judging every split but train: each sample once, sums and counts over all processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from launch.control import Control
from launch.data import EvaluationBatches
from launch.events import EvaluationDone, Listener
from parallel import Batch, Engine, Outcome, World, sums


@dataclass(frozen=True)
class Evaluator:
    """The splits to judge, and how often."""

    engine: Engine
    world: World
    splits: Mapping[str, EvaluationBatches]
    tell: Listener
    control: Control
    every_epochs: int | None = 1
    every_steps: int | None = None

    def is_due(self, step: int, epochs_done: int | None = None) -> bool:
        """Whether to judge after ``step``, or at the end of the ``epochs_done``-th epoch."""
        if not self.splits:
            return False
        every, count = (
            (self.every_steps, step) if epochs_done is None else (self.every_epochs, epochs_done)
        )
        return every is not None and count % every == 0

    def judge(self, step: int, epoch: int) -> dict[str, float]:
        """Return "split/metric" -> value, alike on all ranks. Collective.

        Raises ``StoppedError`` on all ranks where one of them was told to stop meanwhile.
        """
        found: dict[str, float] = {}
        for split, batches in self.splits.items():
            start = perf_counter()
            counted = _Counted(batches, self.control, self.world, self.engine.in_step)
            outcomes = self.engine.evaluate(counted)
            judged = counted.samples if outcomes else 0  # where a model is cut, one rank judges
            metrics, samples = combine(outcomes, judged, self.world)
            seconds = perf_counter() - start
            self.tell(EvaluationDone(step, epoch, split, samples, metrics, seconds))
            found |= {f"{split}/{name}": value for name, value in metrics.items()}
        return found


MEET_EVERY_S = 1.0
NOTHING = (0.0, 0.0)  # what a batch says of a metric that it does not have


class StoppedError(Exception):
    """An evaluation was left, as agreed by all ranks."""


class _Counted:
    """Batches, counting the samples that went by, whose ranks meet about once a second.

    A rank that has no batch left goes on meeting the others until none has. ``in_step``: they meet
    at each batch, and it has a borrowed one, of 0 samples.
    """

    def __init__(
        self, batches: EvaluationBatches, control: Control, world: World, in_step: bool = False
    ) -> None:
        self.batches, self.control, self.world = batches, control, world
        self.in_step = in_step and world.size > 1
        self.samples = 0

    def __iter__(self) -> Iterator[tuple[Batch, int]]:
        return self._together() if self.in_step else self._apart()

    def _together(self) -> Iterator[tuple[Batch, int]]:
        start, own = perf_counter(), iter(self.batches)
        spare = None
        for done in itertools.count(1):
            batch, count = next(own, (spare, 0))
            if self._meet(done, perf_counter() - start, over=not count)[0]:
                return
            spare = self.batches.borrowed() if batch is None else batch
            self.samples += count
            yield spare, count
            self.control.tick()

    def _apart(self) -> Iterator[tuple[Batch, int]]:
        start, due = perf_counter(), 1
        for done, (batch, count) in enumerate(self.batches):
            if done == due:
                _, due = self._meet(done, perf_counter() - start, over=False)
            self.samples += count
            yield batch, count
            self.control.tick()
        over = self.world.size == 1
        while not over:
            over, _ = self._meet(due, perf_counter() - start, over=True)

    def _meet(self, done: int, seconds: float, *, over: bool) -> tuple[bool, int]:
        """Return whether all ranks are through, and after how many batches to meet next."""
        ahead = max(1, int(done * MEET_EVERY_S / max(seconds, 1e-6)))
        mine = {**self.control.wishes(), "over": float(over), "next": float(done + ahead)}
        row = torch.tensor(list(mine.values()), dtype=torch.float64, device=self.world.device)
        rows = [dict(zip(mine, r, strict=True)) for r in self.world.gather(row).tolist()]
        self.control.agree(rows)
        if self.control.ending is not None and self.control.ending.state == "stopped":
            raise StoppedError
        busy = [row["next"] for row in rows if not row["over"]]
        return not busy, int(min(busy, default=0))


def combine(
    outcomes: Sequence[Outcome], samples: int, world: World
) -> tuple[dict[str, float], int]:
    """Return means over all batches of all ranks, and the number of samples. Collective.

    Sums are added in the order of the batches, not of the ranks, so that the same batches give
    the same bits for any number of processes.
    """
    tallies = [sums([outcome]) for outcome in outcomes]
    own = {name for tally in tallies for name in tally}
    known = world.gather_objects((own, len(tallies), samples))
    names = sorted({name for found, _, _ in known for name in found})
    most = max(count for _, count, _ in known)
    table = torch.zeros(most, 2 * len(names), dtype=torch.float64, device=world.device)
    for row, tally in zip(table, tallies, strict=False):
        row.copy_(
            torch.stack([_number(x, world) for name in names for x in tally.get(name, NOTHING)])
        )
    gathered = world.gather(table)
    counts = [count for _, count, _ in known]
    in_order = [(rank, i) for i in range(most) for rank, n in enumerate(counts) if i < n]
    rows = [gathered[rank, i] for rank, i in in_order]
    totals = torch.stack(rows).sum(0).tolist() if rows else []
    means = {
        name: value / weight if weight else float("nan")
        for name, value, weight in zip(names, totals[::2], totals[1::2], strict=True)
    }
    return means, sum(count for _, _, count in known)


def _number(value: Tensor | float, world: World) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64, device=world.device)
