"""The stream of shares that one replica trains on, from any dataset."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol

from torch.utils.data import Dataset, IterableDataset

from launch.data.fetch import Collate, Fetch
from launch.data.sampler import GlobalBatchSampler, Part
from launch.data.stream import Streamed
from launch.data.transfer import Transfer
from launch.data.workers import WorkerSettings
from parallel import Phases, Share, World


class FlatParts:
    """A sampler's parts one by one, as a DataLoader asks for them."""

    def __init__(self, sampler: GlobalBatchSampler) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Part]:
        for step in self.sampler:
            yield from step.parts


class TrainingShares:
    """One replica's shares of the global batches of a map-style dataset, on the device."""

    def __init__(
        self,
        dataset: Dataset[Any],
        sampler: GlobalBatchSampler,
        transfer: Transfer,
        collate: Collate | None = None,
        settings: WorkerSettings | None = None,
    ) -> None:
        settings = settings or WorkerSettings()
        self.sampler, self.transfer, self.pin = sampler, transfer, settings.pin
        self.fetch = Fetch(dataset, collate)
        self.ahead = self.fetch.at_once(-(-sampler.size // sampler.num_replicas))
        in_workers = settings.workers > 0 or settings.pin
        self.workers = settings.batches(self.fetch, FlatParts(sampler)) if in_workers else None

    @property
    def steps_per_epoch(self) -> int | None:
        """The global batches of an epoch; None where only the data's end tells."""
        return len(self.sampler)

    def epoch(self, epoch: int, start: int, phases: Phases) -> Iterator[Share]:
        """Yield a share for each global batch of ``epoch`` from the ``start``-th on.

        Ends the phases "data" (waiting for a batch) and "transfer" (moving it).
        """
        self.sampler.set_epoch(epoch, start)
        ready = iter(self.workers) if self.workers is not None else None
        steps = iter(self.sampler)
        while True:
            phases.begin()
            block = list(islice(steps, self.ahead))
            if not block:
                return
            parts = [part for step in block for part in step.parts]
            fetched = ready if ready is not None else iter(self.fetch.many(parts))
            for step in block:
                batches = [next(fetched) for _ in step.parts]
                phases.end("data")
                if not self.transfer.is_identity:
                    batches = [self.transfer(batch) for batch in batches]
                phases.end("transfer")
                counts, rounds = [part.count for part in step.parts], self.sampler.rounds(step)
                yield Share(batches, counts, step.total, rounds)
                phases.begin()


class Shares(Protocol):
    """What ``loader`` returns."""

    @property
    def steps_per_epoch(self) -> int | None:
        """The global batches of an epoch; None where only the data's end tells."""

    def epoch(self, epoch: int, start: int, phases: Phases) -> Iterator[Share]:
        """Yield a share for each global batch of ``epoch`` from the ``start``-th on."""


def loader(
    dataset: Dataset[Any],
    world: World,
    global_batch_size: int,
    *,
    replicas: int | None = None,
    accumulate: int = 1,
    seed: int = 0,
    drop_last: bool = False,
    collate: Collate | None = None,
    double: bool = False,
    settings: WorkerSettings | None = None,
) -> Shares:
    """Return the shares of ``dataset`` for this process: with ``replicas``, a replica's.

    Ranks that follow each other belong to one replica where there are fewer replicas than ranks.
    """
    count = world.size if replicas is None else replicas
    replica = world.rank * count // world.size
    transfer = Transfer(world.device, double)
    if isinstance(dataset, IterableDataset):
        return Streamed(
            dataset,
            world,
            global_batch_size,
            count,
            replica,
            accumulate,
            seed=seed,
            drop_last=drop_last,
            transfer=transfer,
            collate=collate,
            settings=settings,
        )
    sampler = GlobalBatchSampler(
        len(dataset),  # type: ignore[arg-type]  # a map-style dataset has a length
        global_batch_size,
        replicas=count,
        replica=replica,
        accumulate=accumulate,
        seed=seed,
        drop_last=drop_last,
    )
    return TrainingShares(dataset, sampler, transfer, collate, settings)
