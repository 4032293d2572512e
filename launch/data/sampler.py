"""Which samples each replica takes of each global batch: a function of (seed, epoch, k) alone.

the epoch's permutation:  p0 p1 p2 p3 p4 p5 p6 | p7 p8 p9      global batch 7 of 10 samples
replica 0 of 2:           p0    p2    p4    p6 | p7    p9
replica 1 of 2:              p1    p3    p5    |    p8
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

from launch.data.seeds import derive


@dataclass(frozen=True)
class Part:
    """The samples of one round of accumulation on one replica.

    indices: [n] int64, never empty. count: n, or 0 if borrowed (see ``Share``).
    facts: what everything random in fetching them depends on.
    """

    indices: Tensor
    count: int
    facts: tuple[int | str, ...]

    @property
    def seed(self) -> int:
        """Return the seed that the facts make."""
        return derive(*self.facts)


@dataclass(frozen=True)
class StepParts:
    """One replica's part of one global batch; total: samples in all of it."""

    parts: list[Part]
    total: int


class GlobalBatchSampler(DistributedSampler[int]):
    """Yields one ``StepParts`` for each global batch of the epoch that ``set_epoch`` chose.

    As in ``DistributedSampler`` replica r takes every n-th sample; unlike it, no sample is
    repeated or dropped where nothing divides, only by ``drop_last``, after the permutation.
    """

    def __init__(
        self,
        samples: int,
        global_batch_size: int,
        *,
        replicas: int = 1,
        replica: int = 0,
        accumulate: int = 1,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(
            range(samples),  # type: ignore[arg-type]  # only its length is asked
            num_replicas=replicas,
            rank=replica,
            seed=seed,
            drop_last=drop_last,
        )
        self.samples, self.size, self.accumulate = samples, global_batch_size, accumulate
        self.start = 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the epoch, and the first of its global batches to yield."""
        super().set_epoch(epoch)
        self.start = start

    def __len__(self) -> int:
        whole, rest = divmod(self.samples, self.size)
        return whole + (1 if rest and not self.drop_last else 0)

    def rounds(self, step: StepParts) -> int:
        """Return how many parts replica 0, which has most, has in ``step``."""
        return min(self.accumulate, -(-step.total // self.num_replicas))

    def permutation(self) -> Tensor:
        """Return the epoch's order of all samples [samples]."""
        generator = torch.Generator().manual_seed(derive(self.seed, "order", self.epoch))
        return torch.randperm(self.samples, generator=generator)

    def __iter__(self) -> Iterator[StepParts]:  # type: ignore[override]  # parts, not indices
        order = self.permutation()
        for k, batch in enumerate(order.split(self.size)[: len(self)]):
            if k >= self.start:
                yield self._step(k, batch)

    def _step(self, k: int, batch: Tensor) -> StepParts:
        own = batch[self.rank :: self.num_replicas]
        borrowed = not len(own)
        if borrowed:  # what replica 0 computes last: if it works there, it works here
            own = _rounds(batch[:: self.num_replicas], self.accumulate)[-1]
        rounds = [own] if borrowed or self.accumulate == 1 else _rounds(own, self.accumulate)
        facts = (self.seed, "fetch", self.epoch, k, self.rank)
        parts = [
            Part(indices, 0 if borrowed else len(indices), (*facts, number))
            for number, indices in enumerate(rounds)
        ]
        return StepParts(parts, len(batch))


def _rounds(indices: Tensor, accumulate: int) -> list[Tensor]:
    """Divide [n] into at most ``accumulate`` rounds, none empty, lengths apart by one at most."""
    return list(indices.tensor_split(min(accumulate, len(indices))))
