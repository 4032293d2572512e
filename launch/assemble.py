"""The parts of a run put together: model, data, engine and everything that looks on."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from launch import __version__
from launch.config import Config, to_dict, to_yaml
from launch.data import EvaluationBatches, Transfer, derive, loader, seed_all
from launch.data.fetch import Collate
from launch.data.loader import Shares
from launch.data.workers import WorkerSettings
from launch.early import EarlyStopping
from launch.evaluation import Evaluator
from launch.events import Listener, Notice, Picture, RunStarted, Scalar
from launch.loop import Limits, Position, Training
from launch.meter import Meter
from launch.objective import objective
from launch.optimizers import optimizer_maker
from launch.prepare import Datasets, Length, Prepared, prepare_data
from launch.reporting import Reporter
from launch.schedule import make_schedule
from launch.task import StepContext, Task
from parallel import Engine, Settings, UsageError, World, use_deterministic_algorithms


def assemble(prepared: Prepared, world: World, tell: Listener) -> Training:
    """Return a run that is ready for its first step, and tell that it starts. Collective."""
    config, task, train = prepared.config, prepared.task, prepared.config.train
    if train.deterministic:
        use_deterministic_algorithms()
    datasets = prepare_data(prepared, world)
    length = Length.of(config, datasets["train"])
    engine = _engine(prepared, world)
    tell(_started(prepared, world, engine, length))
    for text in (*prepared.notes, *engine.notices):
        tell(Notice(text))
    meter = Meter(world, engine.phases)
    return Training(
        engine=engine,
        shares=_shares(prepared, datasets, world),
        schedule=make_schedule(
            config.scheduler, engine.optimizers, length.steps, length.steps_per_epoch
        ),
        evaluator=Evaluator(
            engine,
            world,
            _splits(prepared, datasets, world),
            tell,
            config.evaluate.every_epochs,
            config.evaluate.every_steps,
        ),
        reporter=Reporter(
            meter, tell, config.log.every_steps, train.max_minutes, train.max_skipped
        ),
        limits=Limits(train.epochs, train.max_steps),
        early=EarlyStopping(config.early_stop, world) if config.early_stop else None,
        after_step=_after_step(task, engine.module, world, tell),
    )


def _engine(prepared: Prepared, world: World) -> Engine:
    """Return the strategy at work on a model that starts alike on every rank."""
    config, task = prepared.config, prepared.task
    seed_all(config.seed)
    model = task.model()
    if not isinstance(model, nn.Module):
        raise UsageError(f"the task's model() returned a {type(model).__name__}, wanted a Module")
    train = config.train
    settings = Settings(train.precision, train.clip_norm, train.compile)
    make = optimizer_maker(task, config.optimizer)
    engine = prepared.strategy.engine(model, make, objective(task), settings, world)
    seed_all(derive(config.seed, "replica", _replica(prepared, world)))
    return engine


def _replica(prepared: Prepared, world: World) -> int:
    return world.rank * prepared.replicas // world.size


def _collate(task: Task) -> Collate | None:
    """Return the task's own way of making a batch; None for torch's default."""
    return None if type(task).collate is Task.collate else task.collate


def _worker_settings(config: Config, world: World) -> WorkerSettings:
    data = config.data
    pin = world.device.type == "cuda" if data.pin == "auto" else data.pin == "true"
    method = None if data.start_method == "auto" else data.start_method
    return WorkerSettings(data.workers, data.prefetch, pin, data.persistent, method)


def _shares(prepared: Prepared, datasets: Datasets, world: World) -> Shares:
    config = prepared.config
    return loader(
        datasets["train"],
        world,
        config.train.global_batch_size,
        replicas=prepared.replicas,
        accumulate=config.train.accumulate,
        seed=config.seed,
        drop_last=config.data.drop_last,
        collate=_collate(prepared.task),
        double=config.train.precision == "float64",
        settings=_worker_settings(config, world),
    )


def _splits(
    prepared: Prepared, datasets: Datasets, world: World
) -> Mapping[str, EvaluationBatches]:
    config, replicas = prepared.config, prepared.replicas
    parts = replicas * config.train.accumulate
    size = config.evaluate.batch_size or -(-config.train.global_batch_size // parts)
    transfer = Transfer(world.device, config.train.precision == "float64")
    return {
        split: EvaluationBatches(
            dataset,
            size,
            replicas,
            _replica(prepared, world),
            transfer,
            _collate(prepared.task),
            _worker_settings(config, world),
            config.seed,
        )
        for split, dataset in datasets.items()
        if split != "train"
    }


def _after_step(
    task: Task, module: nn.Module, world: World, tell: Listener
) -> Callable[[Position], None] | None:
    """Return what calls the task's own ``after_step``; None where it has none."""
    if type(task).after_step is Task.after_step:
        return None

    def call(at: Position) -> None:
        def scalar(name: str, value: float) -> None:
            tell(Scalar(at.step, name, float(value)))

        def picture(name: str, pixels: Tensor) -> None:
            if pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
                raise UsageError(
                    f"the picture {name!r} has shape {list(pixels.shape)}, wanted [3, height, "
                    "width] or [1, height, width]"
                )
            tell(Picture(at.step, name, pixels.detach().cpu()))

        task.after_step(StepContext(at.step, at.epoch, module, world.is_main, scalar, picture))

    return call


def _started(prepared: Prepared, world: World, engine: Engine, length: Length) -> RunStarted:
    config, train = prepared.config, prepared.config.train
    sizes = [
        len(range(replica, train.global_batch_size, prepared.replicas))
        for replica in range(prepared.replicas)
    ]
    return RunStarted(
        folder=Path(prepared.folder),
        config=to_dict(config),
        config_text=to_yaml(config),
        strategy=type(prepared.strategy).__name__.lower(),
        world_size=world.size,
        device=world.device.type,
        backend=world.backend,
        parameters=sum(p.numel() for p in engine.module.parameters()),
        global_batch_size=train.global_batch_size,
        batch_sizes=(min(sizes), max(sizes)),
        accumulate=train.accumulate,
        precision=train.precision,
        steps=length.steps,
        epochs=train.epochs,
        start_step=0,
        versions=_versions(),
    )


def _versions() -> dict[str, Any]:
    return {"python": platform.python_version(), "torch": torch.__version__, "launch": __version__}
