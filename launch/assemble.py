"""The parts of a run put together: model, data, engine and everything that looks on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn
from torch.utils.data import IterableDataset

from launch.best import Best
from launch.checkpoint import Writer
from launch.config import Config
from launch.control import Control
from launch.data import EvaluationBatches, Transfer, derive, loader, seed_all
from launch.data.fetch import Collate
from launch.data.loader import Shares
from launch.data.workers import WorkerSettings
from launch.evaluation import Evaluator
from launch.events import Listener, Notice
from launch.hooks import after_step
from launch.loop import Limits, Training
from launch.meter import Meter
from launch.objective import objective
from launch.optimizers import optimizer_maker
from launch.prepare import Datasets, Length, Prepared, prepare_data
from launch.reporting import Reporter
from launch.resume import Built, Choice, Resumed, capture, load, restore
from launch.saving import Checkpoints
from launch.schedule import Schedule, make_schedule
from launch.started import started
from launch.task import Task
from launch.weights import init_from
from parallel import Engine, Settings, UsageError, World, use_deterministic_algorithms


@dataclass(frozen=True)
class Surroundings:
    """What a run meets: its processes, who listens, what it goes on from, who writes.

    writer: rank 0's, None on the others.
    """

    world: World
    tell: Listener
    control: Control
    choice: Choice
    writer: Writer | None


def assemble(prepared: Prepared, around: Surroundings) -> Training:
    """Return a run that is ready for its next step, and tell that it starts. Collective."""
    config, world, tell = prepared.config, around.world, around.tell
    if config.train.deterministic:
        use_deterministic_algorithms()
    datasets = prepare_data(prepared, world)
    length = Length.of(config, datasets["train"])
    engine, initial = _engine(prepared, around, length)
    schedule = make_schedule(
        config.scheduler, engine.optimizers, length.steps, length.steps_per_epoch
    )
    training = _training(prepared, around, datasets, engine, schedule)
    run = Resumed(
        training=training,
        task=prepared.task,
        config=config,
        world=world,
        replica=_replica(prepared, world),
        built=Built(engine.optimizers, schedule),
        samples=_samples(datasets),
        shards=_shards(prepared, datasets),
    )
    training.checkpoints.capture = partial(capture, run)
    saved = load(around.choice, world)
    notes = restore(run, saved) if saved is not None else []
    tell(started(prepared, world, engine, length, training.at.step))
    for text in (*prepared.notes, *engine.notices, *initial, *around.choice.notes, *notes):
        tell(Notice(text))
    if config.fault.kind is not None:
        from launch.fault import inject

        inject(training, config.fault, prepared.folder, world)
    return training


def _training(
    prepared: Prepared,
    around: Surroundings,
    datasets: Datasets,
    engine: Engine,
    schedule: Schedule,
) -> Training:
    config, world, tell, control = prepared.config, around.world, around.tell, around.control
    train, evaluate, early = config.train, config.evaluate, config.early_stop
    splits = _splits(prepared, datasets, world)
    return Training(
        engine=engine,
        shares=_shares(prepared, datasets, world),
        schedule=schedule,
        evaluator=Evaluator(
            engine, world, splits, tell, control, evaluate.every_epochs, evaluate.every_steps
        ),
        reporter=Reporter(
            Meter(world, engine.phases), tell, control, config.log.every_steps, train.max_skipped
        ),
        checkpoints=_checkpoints(config, around),
        control=control,
        limits=Limits(train.epochs, train.max_steps, early.patience if early else None),
        early=Best(early.metric, early.mode, "early_stop") if early else None,
        after_step=after_step(prepared.task, engine.module, world, tell),
        compare_replicas=train.compare_replicas,
    )


def _checkpoints(config: Config, around: Surroundings) -> Checkpoints:
    settings = config.checkpoint
    best = settings.best
    return Checkpoints(
        around.world,
        around.control,
        around.tell,
        around.writer,
        every_epochs=settings.every_epochs,
        every_steps=settings.every_steps,
        best=Best(best.metric, best.mode, "checkpoint.best") if best else None,
        goes_on=settings.on_error == "go_on",
    )


def _samples(datasets: Datasets) -> int | None:
    train = datasets["train"]
    if isinstance(train, IterableDataset):
        return None
    return len(train)  # type: ignore[arg-type]  # a map-style dataset has a length


def _shards(prepared: Prepared, datasets: Datasets) -> int | None:
    train = datasets["train"]
    if not isinstance(train, IterableDataset) or not hasattr(train, "shard"):
        return None
    return prepared.replicas * max(1, prepared.config.data.workers)


def _engine(prepared: Prepared, around: Surroundings, length: Length) -> tuple[Engine, list[str]]:
    """Return the strategy at work on a model that starts alike on every rank, and notices."""
    config, task, world = prepared.config, prepared.task, around.world
    seed_all(config.seed)
    model = task.model()
    if not isinstance(model, nn.Module):
        raise UsageError(f"the task's model() returned a {type(model).__name__}, wanted a Module")
    weights, notices = config.checkpoint.init_from, []
    if weights is not None and around.choice.path is None:  # a resumed run has its own
        notices = init_from(Path(weights), model, config.checkpoint.init_strict)
    train = config.train
    settings = Settings(train.precision, train.clip_norm, train.compile)
    make = optimizer_maker(task, config.optimizer, length.steps, length.steps_per_epoch)
    engine = prepared.strategy.engine(model, make, objective(task), settings, world)
    seed_all(derive(config.seed, "replica", _replica(prepared, world)))
    return engine, notices


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
