"""All that one process can know of a run before it meets the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import Dataset, IterableDataset

from launch.config import (
    Config,
    ConfigError,
    build,
    build_strategy,
    build_task,
    with_run_values,
)
from launch.data import (
    GlobalBatchSampler,
    check_batch,
    check_datasets,
    compare_datasets,
    seed_all,
)
from launch.objective import objective
from launch.optimizers import refuse_closures
from launch.schedule import check_schedule, make_schedule
from launch.task import Task
from parallel import PeerLeftError, Place, Strategy, World, find_device

Datasets = Mapping[str, Dataset[Any]]


@dataclass(frozen=True)
class Prepared:
    """Checked and built, with every mistake that can be seen alone already refused.

    datasets: None where the task's ``prepare`` must run first, once on each node.
    """

    config: Config
    task: Task
    strategy: Strategy
    replicas: int
    datasets: Datasets | None
    folder: Path
    notes: Sequence[str] = ()


def prepare(config: Config, place: Place, notes: Sequence[str] = ()) -> Prepared:
    """Return what this process needs to take part. Raises ``UsageError``."""
    device, backend = find_device(place, config.launch.device, config.launch.backend)
    task = build_task(config.task)
    strategy = build_strategy(config.strategy, place.size)
    strategy.check_objective(objective(task))
    world = World(place.rank, place.size, place.local_rank, place.local_size, device, backend)
    replicas = strategy.replicas(world)
    check_batch(config.train.global_batch_size, replicas, config.train.accumulate)
    datasets = None
    if type(task).prepare is Task.prepare:
        datasets = load_datasets(config, task, replicas)
    check_updates(config, datasets)
    folder = Path(config.runs, config.name)
    return Prepared(config, task, strategy, replicas, datasets, folder, notes)


def with_strategy(prepared: Prepared, settings: Mapping[str, Any], world: World) -> Prepared:
    """Return the same run by the strategy of ``settings``. Raises ``UsageError``."""
    strategy = build_strategy(settings, world.size)
    strategy.check_objective(objective(prepared.task))
    replicas = strategy.replicas(world)
    train = prepared.config.train
    check_batch(train.global_batch_size, replicas, train.accumulate)
    return replace(prepared, strategy=strategy, replicas=replicas)


def load_datasets(config: Config, task: Task, replicas: int) -> Datasets:
    """Return the task's splits. Raises ``UsageError`` where they cannot fill the batches."""
    seed_all(config.seed)
    datasets = task.datasets()
    train = config.train
    check_datasets(datasets, train.global_batch_size, replicas, config.data.drop_last)
    judged = {"early_stop": config.early_stop, "checkpoint.best": config.checkpoint.best}
    splits = sorted(set(datasets) - {"train"})
    for key, by in judged.items():
        if by is not None and by.metric.partition("/")[0] not in splits:
            raise ConfigError(
                f"{key}.metric={by.metric} is of a split that is not evaluated; the task has "
                f"{', '.join(splits) or 'none'}"
            )
    return datasets


def check_updates(config: Config, datasets: Datasets | None) -> None:
    """Try optimizer and scheduler on a stand-in for the model. Raises ``UsageError``."""
    stand_in = [torch.nn.Parameter(torch.zeros(2, 2))]
    length = Length.of(config, datasets["train"]) if datasets else Length(1000, 100)
    steps, per_epoch = length.steps, length.steps_per_epoch
    settings = with_run_values(config.optimizer, steps, per_epoch, "optimizer")
    optimizer = build(settings, Optimizer, "optimizer", params=stand_in)
    refuse_closures([optimizer])
    schedule = make_schedule(config.scheduler, [optimizer], steps, per_epoch)
    may_end_earlier = per_epoch is None or config.train.max_minutes or config.early_stop
    certain = 1 if datasets is None or may_end_earlier else steps
    check_schedule(schedule, certain or 1)


@dataclass(frozen=True)
class Length:
    """How many optimizer steps a run and an epoch have; None where the data's end tells."""

    steps: int | None
    steps_per_epoch: int | None

    @staticmethod
    def of(config: Config, train: Dataset[Any]) -> Length:
        """Return the length of training on ``train``."""
        limits = config.train
        if isinstance(train, IterableDataset):
            return Length(limits.max_steps, None)
        batches = GlobalBatchSampler(
            len(train),  # type: ignore[arg-type]  # a map-style dataset has a length
            limits.global_batch_size,
            drop_last=config.data.drop_last,
        )
        per_epoch = len(batches)
        planned = [limits.epochs * per_epoch] if limits.epochs else []
        planned += [limits.max_steps] if limits.max_steps else []
        return Length(min(planned, default=None), per_epoch)


def prepare_data(prepared: Prepared, world: World) -> Datasets:
    """Return the splits, after the task's ``prepare`` on each node's first process. Collective.

    Raises ``UsageError`` on every rank where the ranks' splits differ.
    """
    datasets = prepared.datasets
    if datasets is None:
        _prepare_once(prepared.task, world)
        datasets = load_datasets(prepared.config, prepared.task, prepared.replicas)
    compare_datasets(datasets, world)
    return datasets


def _prepare_once(task: Task, world: World) -> None:
    """Call the task's ``prepare`` on each node's first process. Collective."""
    error: Exception | None = None
    if not world.local_rank:
        world.notes.announce("is in the task's prepare()")
        try:
            task.prepare()
        except Exception as met:
            error = met
        world.notes.announce("")
    failed = [why for why in world.gather_objects(repr(error) if error else "") if why]
    if error is not None:
        raise error
    if failed:
        raise PeerLeftError(f"the task's prepare() failed: {failed[0]}")
