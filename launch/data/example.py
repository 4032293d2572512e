"""One batch to try a model on before training begins."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from launch.data.fetch import Collate, Fetch
from launch.data.sampler import GlobalBatchSampler
from launch.data.transfer import Transfer
from parallel import Batch


def example(
    dataset: Dataset[Any], sampler: GlobalBatchSampler, transfer: Transfer, collate: Collate | None
) -> Batch:
    """Return the first batch of ``sampler``'s, on the device; all generators stay as they were."""
    first = next(iter(sampler))
    return transfer(Fetch(dataset, collate).__getitems__(first.parts[0]))
