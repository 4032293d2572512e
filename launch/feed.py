"""What each process of a run is fed with: its replica's shares, and the batches it judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from launch.data import EvaluationBatches, GlobalBatchSampler, Transfer, loader
from launch.data.example import example
from launch.data.fetch import Collate
from launch.data.loader import Shares
from launch.data.workers import WorkerSettings
from launch.prepare import Datasets, Prepared
from launch.task import Task
from parallel import Batch, World


class Unread(Dataset[None]):
    """So many samples that nobody looks at."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> None:
        return None


def nothing(samples: list[Any]) -> None:
    """Return what a batch of samples is that nobody looks at."""


@dataclass(frozen=True)
class Feed:
    """A run's data, as one process sees it."""

    prepared: Prepared
    datasets: Datasets
    world: World

    @property
    def replica(self) -> int:
        """The replica that this process belongs to; ranks of one replica follow each other."""
        return self.world.rank * self.prepared.replicas // self.world.size

    @property
    def noise(self) -> tuple[int, ...]:
        """What this process's noise depends on: its replica, and which part of it this is."""
        part = self.world.rank - self.replica * (self.world.size // self.prepared.replicas)
        return (self.replica, part) if part else (self.replica,)

    @property
    def samples(self) -> int | None:
        """How many samples there are to train on; None of a stream."""
        train = self.datasets["train"]
        if isinstance(train, IterableDataset):
            return None
        return len(train)  # type: ignore[arg-type]  # a map-style dataset has a length

    @property
    def shards(self) -> int | None:
        """Into how many parts a stream's own ``shard`` divides it; None where it has none."""
        train = self.datasets["train"]
        if not isinstance(train, IterableDataset) or not hasattr(train, "shard"):
            return None
        return self.prepared.replicas * max(1, self.prepared.config.data.workers)

    def shares(self) -> Shares:
        """Return the stream of this replica's shares of global batches."""
        config = self.prepared.config
        return loader(
            self._read(self.datasets["train"]),
            self.world,
            config.train.global_batch_size,
            drop_last=config.data.drop_last,
            collate=self._collate,
            double=config.train.precision == "float64",
            settings=self._workers,
            **self._division,
        )

    def splits(self) -> Mapping[str, EvaluationBatches]:
        """Return the batches of each split that is judged: every one but train."""
        config, replicas = self.prepared.config, self.prepared.replicas
        parts = replicas * self.prepared.strategy.rounds(config.train.accumulate)
        size = config.evaluate.batch_size or -(-config.train.global_batch_size // parts)
        return {
            split: EvaluationBatches(
                self._read(dataset),
                size,
                replicas,
                self.replica,
                self._transfer,
                self._collate,
                self._workers,
                config.seed,
            )
            for split, dataset in self.datasets.items()
            if split != "train"
        }

    def example(self) -> Batch | None:
        """Return the first batch that the first replica trains on; None of a stream."""
        if self.samples is None:
            return None
        size = self.prepared.config.train.global_batch_size
        sampler = GlobalBatchSampler(self.samples, size, **self._division)
        return example(self.datasets["train"], sampler, self._transfer, self._collate)

    def _read(self, dataset: Dataset[Any]) -> Dataset[Any]:
        """Return ``dataset``, or its length alone where nobody here looks at a sample."""
        if isinstance(dataset, IterableDataset) or self.prepared.strategy.reads(self.world):
            return dataset
        return Unread(len(dataset))  # type: ignore[arg-type]  # a map-style dataset has a length

    @property
    def _division(self) -> dict[str, Any]:
        config = self.prepared.config
        return {
            "replicas": self.prepared.replicas,
            "accumulate": self.prepared.strategy.rounds(config.train.accumulate),
            "seed": config.seed,
        }

    @property
    def _transfer(self) -> Transfer:
        return Transfer(self.world.device, self.prepared.config.train.precision == "float64")

    @property
    def _collate(self) -> Collate | None:
        """The task's own way of making a batch; None for torch's default."""
        task = self.prepared.task
        if not self.prepared.strategy.reads(self.world):
            return nothing
        return None if type(task).collate is Task.collate else task.collate

    @property
    def _workers(self) -> WorkerSettings:
        data = self.prepared.config.data
        pin = self.world.device.type == "cuda" if data.pin == "auto" else data.pin == "true"
        method = None if data.start_method == "auto" else data.start_method
        return WorkerSettings(data.workers, data.prefetch, pin, data.persistent, method)
