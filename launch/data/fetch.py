"""Batches from map-style datasets, all samples at once where the dataset can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from launch.data.sampler import Part
from launch.data.seeds import lent
from parallel import Batch

AHEAD_BYTES, AHEAD_STEPS = 2**24, 64  # of a set of tensors, what is selected in one go
Collate = Callable[[list[Any]], Batch]


class Fetch(Dataset[Batch]):
    """A dataset of batches: asked for a ``Part``, it returns the batch. Pickles if its parts do.

    collate: None for torch's default. What ``dataset.__getitems__`` returns is the batch itself,
    unless it is a list of samples.
    """

    def __init__(self, dataset: Dataset[Any], collate: Collate | None = None) -> None:
        self.dataset, self.collate = dataset, collate or default_collate
        self.is_tensors = collate is None and _is_tensors(dataset)

    def __getitems__(self, part: Part) -> Batch:
        """Return the batch; DataLoader's workers ask in this way too."""
        if self.is_tensors:
            return _select(self.dataset, part.indices)
        with lent(part.seed):
            return self._gather(part.indices.tolist())

    def many(self, parts: Sequence[Part]) -> list[Batch]:
        """Return the batches of ``parts``: of tensors selected in one go, and divided."""
        if not self.is_tensors or len(parts) < 2:
            return [self.__getitems__(part) for part in parts]
        sizes = [len(part.indices) for part in parts]
        whole = _select(self.dataset, torch.cat([part.indices for part in parts]))
        columns = [tensor.split(sizes) for tensor in whole]
        return [list(batch) for batch in zip(*columns, strict=True)]

    def at_once(self, samples: int) -> int:
        """Return how many steps of ``samples`` to fetch together: up to ``AHEAD_BYTES``."""
        if not self.is_tensors:
            return 1
        size = sum(tensor.nbytes for tensor in _select(self.dataset, torch.zeros(1).long()))
        return max(1, min(AHEAD_STEPS, AHEAD_BYTES // max(1, size * samples)))

    def _gather(self, indices: list[int]) -> Batch:
        at_once = getattr(self.dataset, "__getitems__", None)
        samples = at_once(indices) if at_once else [self.dataset[i] for i in indices]
        return self.collate(samples) if isinstance(samples, list) else samples


def _is_tensors(dataset: Dataset[Any]) -> bool:
    """Whether ``dataset`` is tensors on the CPU, or a subset of such; subclasses may differ."""
    if type(dataset) is Subset:
        return _is_tensors(dataset.dataset)
    return type(dataset) is TensorDataset and all(not t.is_cuda for t in dataset.tensors)


def _select(dataset: Any, indices: Tensor) -> list[Tensor]:
    """Return what ``default_collate`` makes of the samples: a list of [n, ...]."""
    if type(dataset) is Subset:
        return _select(dataset.dataset, torch.as_tensor(dataset.indices)[indices])
    return [tensor.index_select(0, indices) for tensor in dataset.tensors]
