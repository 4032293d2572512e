"""Whether the data can fill the batches that were asked for: known before the first step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from parallel import UsageError, World

_SAME = (
    "; return the same data on every rank, in the same order, and read no rank in datasets(): "
    "each process is then given its own part of it"
)


def check_batch(global_batch_size: int, replicas: int, accumulate: int) -> None:
    """Raise ``UsageError`` where a full global batch leaves a replica's round without a sample."""
    if global_batch_size < replicas * accumulate:
        raise UsageError(
            f"train.global_batch_size={global_batch_size} is smaller than {_processes(replicas)} x "
            f"train.accumulate={accumulate}: each round wants at least one sample; use "
            f"train.global_batch_size={replicas * accumulate} or more, or fewer processes"
        )


def check_datasets(
    datasets: Mapping[str, Dataset[Any]],
    global_batch_size: int,
    replicas: int,
    drop_last: bool,
) -> None:
    """Raise ``UsageError`` where a split is no dataset, or too small to give a batch."""
    if not isinstance(datasets, Mapping) or "train" not in datasets:
        met = sorted(datasets) if isinstance(datasets, Mapping) else type(datasets).__name__
        raise UsageError(
            f"the task's datasets() returned {met}, wanted a dict with 'train' and the splits to "
            'evaluate: {"train": ..., "valid": ...}'
        )
    for split, dataset in datasets.items():
        if not isinstance(dataset, IterableDataset) and not _samples(split, dataset):
            raise UsageError(f"the split {split!r} is empty: 0 samples, wanted at least 1")
    if isinstance(datasets["train"], IterableDataset):
        return
    samples = _samples("train", datasets["train"])
    numbers = (
        f"{samples} training samples, {_processes(replicas)}, "
        f"train.global_batch_size={global_batch_size}, data.drop_last={str(drop_last).lower()}"
    )
    if samples < replicas:
        raise UsageError(f"fewer samples than processes: {numbers}; use fewer processes")
    if drop_last and samples < global_batch_size:
        raise UsageError(
            f"0 batches an epoch: {numbers}; "
            f"use train.global_batch_size={samples} or less, or data.drop_last=false"
        )


def compare_datasets(datasets: Mapping[str, Dataset[Any]], world: World) -> None:
    """Raise ``UsageError`` on every rank where the ranks' splits differ. Collective.

    Ranks that evaluate other splits, or take other numbers of steps, would wait for each other.
    """
    mine = {
        split: None if isinstance(dataset, IterableDataset) else _samples(split, dataset)
        for split, dataset in datasets.items()
    }
    every = world.gather_objects(mine)
    names = [", ".join(map(str, splits)) for splits in every]  # in the order of evaluation
    if len(set(names)) > 1:
        raise UsageError(
            f"the task's datasets() has other splits by rank: {_by_rank(names)}{_SAME}"
        )
    for split in mine:
        lengths = [_length(splits[split]) for splits in every]
        if len(set(lengths)) > 1:
            raise UsageError(f"the split {split!r} differs by rank: {_by_rank(lengths)}{_SAME}")


def _by_rank(met: Sequence[str]) -> str:
    """Return what was met, the ranks that it was met on beside it."""
    ranks = {what: [str(r) for r, other in enumerate(met) if other == what] for what in met}
    return "; ".join(f"{what} on rank {', '.join(where)}" for what, where in ranks.items())


def _length(samples: int | None) -> str:
    if samples is None:
        return "a stream"
    return f"{samples} sample{'' if samples == 1 else 's'}"


def _processes(count: int) -> str:
    return f"{count} process{'' if count == 1 else 'es'}"


def _samples(split: str, dataset: Dataset[Any]) -> int:
    try:
        return len(dataset)  # type: ignore[arg-type]  # that is what is asked here
    except TypeError:
        raise UsageError(
            f"the split {split!r} is a {type(dataset).__name__} without a length, wanted a Dataset "
            "with __len__ and __getitem__, or a torch IterableDataset"
        ) from None
