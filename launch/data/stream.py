"""Shares of an iterable dataset: every item once, whatever the number of replicas and workers.

Nobody knows where a stream ends, so the ranks add up at each step how many samples they have. A
replica that has run out borrows, as at the end of a map-style epoch, until all have.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from itertools import islice, pairwise
from typing import Any

import torch
import torch.utils.data._utils.worker as loader_process
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from launch.data.fetch import Collate
from launch.data.seeds import derive, lent
from launch.data.transfer import Transfer
from launch.data.workers import WorkerSettings
from parallel import Phases, Share, UsageError, World


class Sharded(IterableDataset[tuple[bool, Any]]):
    """The items of one of ``count`` parts, each marked True.

    A dataset with ``shard(index, count)`` is asked for its part; any other is walked whole, and
    ``block`` items after each other go to each part in turn, from part 0 on in every ``period``.
    A part without items hands on the stream's first, unmarked: it can be borrowed. Workers take
    turns, so that the DataLoader, which does too, has the items in the stream's order.

    period 4, block 1, 3 parts:    0 1 2 0 | 0 1 2 0 | 0 1      as a sampler's global batches
    period 4, block 2, 2 parts:    0 0 1 1 | 0 0 1 1 | 0 0      as the batches of an evaluation
    """

    def __init__(
        self, dataset: IterableDataset[Any], index: int, count: int, period: int, block: int = 1
    ) -> None:
        self.dataset, self.index, self.count = dataset, index, count
        self.period, self.block = period, block
        self.worker = 0, 1

    def __iter__(self) -> Iterator[tuple[bool, Any]]:
        info = get_worker_info()
        if info is not None:
            self.worker = info.id, info.num_workers
            # told of workers, a dataset would take its own part of what is divided here already
            loader_process._worker_info = None
        worker, workers = self.worker
        if hasattr(self.dataset, "shard"):
            index, count = self.index * workers + worker, self.count * workers
            yield from ((True, item) for item in _shard(self.dataset, index, count))
            return
        own, first = 0, []
        for number, item in enumerate(self.dataset):
            if number % self.period // self.block % self.count == self.index:
                if own % workers == worker:
                    yield True, item
                own += 1
            elif not number:
                first = [item]
        if not own:
            yield from ((False, item) for item in first)


def _shard(dataset: Any, index: int, count: int) -> Any:
    """Return a part of ``dataset``; Hugging Face's ``shard`` takes its arguments by these names."""
    if "num_shards" in signature(dataset.shard).parameters:
        return dataset.shard(num_shards=count, index=index)
    return dataset.shard(index, count)


class Streamed:
    """One replica's shares of the global batches of an iterable dataset, on the device."""

    @property
    def steps_per_epoch(self) -> int | None:
        """None: nobody knows where a stream ends."""
        return None

    def __init__(
        self,
        dataset: IterableDataset[Any],
        world: World,
        global_batch_size: int,
        replicas: int,
        replica: int,
        accumulate: int,
        *,
        seed: int,
        drop_last: bool,
        transfer: Transfer,
        collate: Collate | None,
        settings: WorkerSettings | None,
    ) -> None:
        settings = settings or WorkerSettings()
        self.world, self.replica, self.per_replica = world, replica, world.size // replicas
        self.size, self.accumulate, self.drop_last = global_batch_size, accumulate, drop_last
        self.wanted = len(range(replica, global_batch_size, replicas))
        self.seed, self.transfer = seed, transfer
        self.collate = collate or default_collate
        self.items = settings.batches(Sharded(dataset, replica, replicas, global_batch_size), None)

    def epoch(self, epoch: int, start: int, phases: Phases) -> Iterator[Share]:
        """Yield shares until every replica's items are used up; see ``TrainingShares.epoch``."""
        self.items.generator = torch.Generator().manual_seed(
            derive(self.seed, "stream", epoch, self.replica)
        )
        with lent(derive(self.seed, "stream", epoch, self.replica)):
            items = iter(self.items)
        spare: list[Any] = []
        k = 0
        while True:
            phases.begin()
            with lent(derive(self.seed, "fetch", epoch, k, self.replica)):
                taken = self._take(items, spare)
            total = self._total(len(taken))
            if not total and not k:
                raise UsageError("the training stream is empty: 0 samples, wanted at least 1")
            if self.drop_last and total < self.size and not k:
                raise UsageError(
                    f"0 batches an epoch: {total} samples in the stream, train.global_batch_size="
                    f"{self.size}, data.drop_last=true; use fewer, or data.drop_last=false"
                )
            if not total or (self.drop_last and total < self.size):
                return
            if k >= start:
                with lent(derive(self.seed, "collate", epoch, k, self.replica)):
                    share = self._share(taken, spare, total, phases)
                yield share
            k += 1

    def _take(self, items: Iterator[tuple[bool, Any]], spare: list[Any]) -> list[Any]:
        """Return the next items of this replica, as many as a full share has."""
        taken: list[Any] = []
        while len(taken) < self.wanted:
            found = list(islice(items, self.wanted - len(taken)))
            if not found:
                break
            spare[:] = [found[0][1]]
            taken += [item for mine, item in found if mine]
        return taken

    def _total(self, count: int) -> int:
        """Return the samples of the global batch, over all replicas. Collective."""
        value = torch.tensor(
            count / self.per_replica, dtype=torch.float64, device=self.world.device
        )
        return round(float(self.world.sum(value)))

    def _share(self, taken: list[Any], spare: list[Any], total: int, phases: Phases) -> Share:
        if not taken and not spare:
            raise UsageError(
                f"replica {self.replica} got no item at all from the stream's shard(): it must "
                "leave at least one item for every process, or offer no shard()"
            )
        rounds = min(self.accumulate, max(1, len(taken)))
        cuts = [len(taken) * i // rounds for i in range(rounds + 1)]
        lists = [taken[a:b] for a, b in pairwise(cuts)] if taken else [spare]
        batches = [self.collate(part) for part in lists]
        phases.end("data")
        batches = [self.transfer(batch) for batch in batches]
        phases.end("transfer")
        counts = [len(part) for part in lists] if taken else [0]
        return Share(batches, counts, total, self.accumulate)
