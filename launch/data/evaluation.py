"""The batches of one replica in an evaluation: every sample once, in the dataset's order.

Batch i holds samples i*b to i*b+b-1 for any number of replicas, and replica r judges the batches
r, r+n, r+2n ...: so what is computed for a batch does not depend on the number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, default_collate

from launch.data.fetch import Collate, Fetch
from launch.data.sampler import Part
from launch.data.seeds import derive, lent
from launch.data.stream import Sharded
from launch.data.transfer import Transfer
from launch.data.workers import WorkerSettings
from parallel import Batch, UsageError


class EvaluationBatches:
    """Iterates over (batch on the device, number of samples)."""

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        replicas: int,
        replica: int,
        transfer: Transfer,
        collate: Collate | None = None,
        settings: WorkerSettings | None = None,
        seed: int = 0,
    ) -> None:
        settings = settings or WorkerSettings()
        self.size, self.transfer, self.seed = batch_size, transfer, seed
        self.collate = collate or default_collate
        self.items = self.parts = None
        if isinstance(dataset, IterableDataset):
            share = Sharded(dataset, replica, replicas, replicas * batch_size, batch_size)
            self.items = settings.batches(share, None)
            return
        samples = len(dataset)  # type: ignore[arg-type]  # a map-style dataset has a length
        self.first = torch.arange(min(batch_size, samples))
        self.parts = [
            Part(torch.arange(a, min(a + batch_size, samples)), 0, (seed, "evaluate", a))
            for a in range(replica * batch_size, samples, replicas * batch_size)
        ]
        self.fetch = Fetch(dataset, collate)
        in_workers = settings.workers > 0 and self.parts
        self.workers = settings.batches(self.fetch, self.parts) if in_workers else None

    def __iter__(self) -> Iterator[tuple[Batch, int]]:
        if self.parts is None:
            yield from self._streamed()
            return
        ready = iter(self.workers) if self.workers is not None else None
        for part in self.parts:
            batch = self.fetch.__getitems__(part) if ready is None else next(ready)
            yield self.transfer(batch), len(part.indices)

    def borrowed(self) -> Batch:
        """Return the first batch of all, for a replica that has none and must compute one."""
        if self.parts is None:
            raise UsageError(
                "a process has no sample of the stream that is evaluated, and must compute one all "
                "the same where the model is divided; use fewer processes, or a smaller "
                "evaluate.batch_size"
            )
        part = Part(self.first, 0, (self.seed, "evaluate", 0))
        return self.transfer(self.fetch.__getitems__(part))

    def _streamed(self) -> Iterator[tuple[Batch, int]]:
        with lent(derive(self.seed, "evaluate")):
            marked: Iterator[tuple[bool, Any]] = iter(self.items if self.items is not None else ())
        own = (item for mine, item in marked if mine)
        for number in count():
            with lent(derive(self.seed, "evaluate", number)):
                taken = list(islice(own, self.size))
                batch = self.collate(taken) if taken else None
            if not taken:
                return
            yield self.transfer(batch), len(taken)
