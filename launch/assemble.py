"""The parts of a run put together: model, data, engine and everything that looks on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from launch.best import Best
from launch.checkpoint import Writer
from launch.config import Checkpoint, Config
from launch.control import Control
from launch.data import derive, seed_all
from launch.evaluation import Evaluator
from launch.events import Listener, Notice
from launch.feed import Feed
from launch.hooks import after_step
from launch.loop import Limits, Training
from launch.meter import Meter
from launch.objective import objective
from launch.optimizers import optimizer_maker
from launch.planning.auto import decide
from launch.prepare import Length, Prepared, prepare_data
from launch.reporting import Reporter
from launch.resume import Built, Choice, Resumed, Saved, capture, load, refuse_own_state, restore
from launch.saving import Checkpoints
from launch.schedule import Schedule, make_schedule
from launch.started import started
from launch.weights import init_from
from parallel import (
    Engine,
    Settings,
    UsageError,
    Work,
    World,
    use_deterministic_algorithms,
)


@dataclass(frozen=True)
class Surroundings:
    """What a run meets: its processes, who listens, what it goes on from, who writes."""

    world: World
    tell: Listener
    control: Control
    choice: Choice
    writer: Writer


def assemble(prepared: Prepared, around: Surroundings) -> Training:
    """Return a run that is ready for its next step, and tell that it starts. Collective."""
    config, world, tell = prepared.config, around.world, around.tell
    if config.train.deterministic:
        use_deterministic_algorithms()
    datasets = prepare_data(prepared, world)
    length = Length.of(config, datasets["train"])
    saved = load(around.choice, world)
    decided = decide(prepared, datasets, world, _remembered(saved))
    prepared = decided.prepared
    feed = Feed(prepared, datasets, world)
    engine, initial = _engine(feed, around, length, saved)
    engine.remembers = {**engine.remembers, **decided.remembers}
    refuse_own_state(prepared.task, _is_split(engine, world))
    schedule = make_schedule(
        config.scheduler, engine.optimizers, length.steps, length.steps_per_epoch
    )
    training = _training(feed, around, engine, schedule)
    run = Resumed(
        training=training,
        task=prepared.task,
        config=config,
        world=world,
        replica=feed.replica,
        built=Built(engine.optimizers, schedule),
        samples=feed.samples,
        shards=feed.shards,
    )
    training.checkpoints.capture = partial(capture, run)
    notes = restore(run, saved) if saved is not None else []
    tell(started(prepared, world, engine, length, training.at.step))
    for text in (*prepared.notes, *engine.notices, *initial, *around.choice.notes, *notes):
        tell(Notice(text))
    if config.fault.kind is not None:
        from launch.fault import inject

        inject(training, config.fault, prepared.folder, world)
    return training


def _training(feed: Feed, around: Surroundings, engine: Engine, schedule: Schedule) -> Training:
    prepared, world, tell, control = feed.prepared, around.world, around.tell, around.control
    config = prepared.config
    train, evaluate, early = config.train, config.evaluate, config.early_stop
    splits = feed.splits()
    if splits:
        engine.check_evaluation()
    return Training(
        engine=engine,
        shares=feed.shares(),
        schedule=schedule,
        evaluator=Evaluator(
            engine,
            world,
            splits,
            tell,
            control,
            evaluate.every_epochs,
            evaluate.every_steps,
        ),
        reporter=Reporter(
            Meter(world, engine.phases), tell, control, config.log.every_steps, train.max_skipped
        ),
        checkpoints=_checkpoints(config, around, engine),
        control=control,
        limits=Limits(train.epochs, train.max_steps, early.patience if early else None),
        early=Best(early.metric, early.mode, "early_stop") if early else None,
        after_step=after_step(prepared.task, engine.module, world, tell),
        compare_replicas=train.compare_replicas,
    )


def _checkpoints(config: Config, around: Surroundings, engine: Engine) -> Checkpoints:
    settings, world = config.checkpoint, around.world
    best, is_split = settings.best, _is_split(engine, world)
    if is_split:
        around.writer.split_over(world, config.launch.timeout_s)
    return Checkpoints(
        world,
        around.control,
        around.tell,
        around.writer if is_split or world.is_main else None,
        every_epochs=settings.every_epochs,
        every_steps=settings.every_steps,
        best=Best(best.metric, best.mode, "checkpoint.best") if best else None,
        goes_on=settings.on_error == "go_on",
    )


def _is_split(engine: Engine, world: World) -> bool:
    """Whether several ranks must save."""
    return engine.is_split and world.size > 1


def _engine(
    feed: Feed, around: Surroundings, length: Length, saved: Saved | None
) -> tuple[Engine, list[str]]:
    """Return the strategy at work on a model that starts alike on every rank, and notices."""
    prepared = feed.prepared
    config, task = prepared.config, prepared.task
    seed_all(config.seed)
    model = prepared.strategy.construct(task.model)
    if not isinstance(model, nn.Module):
        raise UsageError(f"the task's model() returned a {type(model).__name__}, wanted a Module")
    notices = _first_weights(model, config.checkpoint, around.choice)
    train = config.train
    settings = Settings(train.precision, train.clip_norm, train.compile)
    make = optimizer_maker(task, config.optimizer, length.steps, length.steps_per_epoch)
    before = _remembered(saved)
    work = Work(model, make, objective(task), settings, around.world, feed.example, before)
    engine = prepared.strategy.start(work)
    seed_all(derive(config.seed, "replica", *feed.noise))
    return engine, notices


def _remembered(saved: Saved | None) -> Mapping[str, Any]:
    """Return what the engine of the run before remembers."""
    return saved[2].get("strategy", {}) if saved is not None else {}


def _first_weights(model: nn.Module, settings: Checkpoint, choice: Choice) -> list[str]:
    """Give ``model`` the weights of a file; return what to tell of it.

    A resumed run gets its own later; but what has no memory would be made only to be overwritten.
    """
    if choice.path is not None:
        if any(parameter.is_meta for parameter in model.parameters()):
            init_from(choice.path, model)
        return []
    if settings.init_from is None:
        return []
    return init_from(Path(settings.init_from), model, settings.init_strict)
