"""What is planned: a task's model without memory, and batches as a step would get them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import Dataset, IterableDataset

from launch.config import Config, build_task
from launch.data import GlobalBatchSampler, Transfer, seed_all
from launch.data.fetch import Fetch
from launch.data.sampler import Part
from launch.objective import objective
from launch.optimizers import optimizer_maker
from launch.prepare import Datasets, Length
from launch.resume import refuse_own_state
from launch.task import Task
from parallel import Batch, Objective, Settings, UsageError, Work, World
from parallel.pipeline.engine import NO_EVALUATION
from parallel.pipeline.layers import layers
from parallel.pipeline.strategy import NO_OUTPUTS


@dataclass
class Subject:
    """A task with its data; ``model`` is on the meta device wherever it can be built there."""

    config: Config
    task: Task
    datasets: Datasets
    model: nn.Module
    objective: Objective
    _batches: dict[int, Batch] = field(default_factory=dict)

    @staticmethod
    def of(config: Config, task: Task | None = None, datasets: Datasets | None = None) -> Subject:
        """Return what ``config`` says is trained; its data are prepared if need be."""
        task = task or build_task(config.task)
        if datasets is None:
            task.prepare()
            seed_all(config.seed)
            datasets = task.datasets()
        return Subject(config, task, datasets, _model(task, config.seed), objective(task))

    @property
    def train(self) -> Dataset[Any]:
        """What is trained on."""
        return self.datasets["train"]

    @property
    def samples(self) -> int | None:
        """How many there are; None of a stream."""
        is_stream = isinstance(self.train, IterableDataset)
        return None if is_stream else len(self.train)  # type: ignore[arg-type]  # it has a length

    @property
    def uncut(self) -> str:
        """Why the model cannot be cut into stages, in words; "" if it can."""
        if self.objective.loss_of_outputs is None:
            return NO_OUTPUTS
        if self.objective.evaluate_outputs is None and len(self.datasets) > 1:
            return NO_EVALUATION
        return _refusal(lambda: layers(self.model))

    @property
    def undivided(self) -> str:
        """Why no process can hold a part of the model only, in words; "" if it can."""
        return _refusal(lambda: refuse_own_state(self.task, is_split=True))

    @property
    def gradient_bytes(self) -> int:
        """Return the bytes of all gradients."""
        size = 8 if self.config.train.precision == "float64" else 0
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return sum(p.numel() * (size or p.element_size()) for p in trained)

    def work(self, world: World, example: Batch) -> Work:
        """Return what a strategy is put to."""
        train = self.config.train
        length = Length.of(self.config, self.train)
        make = optimizer_maker(
            self.task, self.config.optimizer, length.steps, length.steps_per_epoch
        )
        settings = Settings(train.precision, train.clip_norm)
        return Work(self.model, make, self.objective, settings, world, lambda: example)

    def batches(self, sizes: Sequence[int]) -> list[Batch]:
        """Return batches of so many samples; alike ones are the same one."""
        return [self.batch(size) for size in sizes]

    def batch(self, size: int) -> Batch:
        """Return the first ``size`` samples in the run's order; larger ones without numbers."""
        known = min(size, self.config.train.global_batch_size, self.samples or size)
        if known not in self._batches:
            self._batches[known] = self._fetch(known)
        if size == known:
            return self._batches[known]
        if _is_rectangular(self._batches[known], known):
            return tree_map_only(Tensor, lambda each: _enlarged(each, size), self._batches[known])
        return self._fetch(size)

    def _fetch(self, size: int) -> Batch:
        own = type(self.task).collate is not Task.collate
        fetch = Fetch(self.train, self.task.collate if own else None)
        move = Transfer(torch.device("cpu"), self.config.train.precision == "float64")
        if isinstance(self.train, IterableDataset):
            return move(fetch.collate(list(islice(iter(self.train), size))))
        seed = self.config.seed
        sampler = GlobalBatchSampler(self.samples or 0, size, seed=seed)
        order = sampler.permutation()
        indices = order[torch.arange(size) % len(order)]
        return move(fetch.__getitems__(Part(indices, size, (seed, "fetch", 0, 0, 0, 0))))


def _refusal(call: Callable[[], object]) -> str:
    """Return what ``call`` refuses, in its words; "" if nothing."""
    try:
        call()
    except UsageError as error:
        return str(error)
    return ""


def _model(task: Task, seed: int) -> nn.Module:
    """Return the task's model without memory; with, where its constructor reads its numbers."""
    for device in ("meta", "cpu"):
        seed_all(seed)
        try:
            with torch.device(device):
                model = task.model()
        except Exception:
            if device == "cpu":
                raise
        else:
            break
    if not isinstance(model, nn.Module):
        raise UsageError(f"the task's model() returned a {type(model).__name__}, wanted a Module")
    return model


def _is_rectangular(batch: Batch, size: int) -> bool:
    """Whether each tensor of ``batch`` has a row a sample, and there is nothing else."""
    leaves = tree_leaves(batch)
    return all(isinstance(x, Tensor) and x.ndim and x.shape[0] == size for x in leaves)


def _enlarged(tensor: Tensor, size: int) -> Tensor:
    return torch.empty((size, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
