"""A run's progress, taken from it for a checkpoint and given back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launch.checkpoint import CheckpointError
from launch.checkpoint.plain import encode
from launch.config import Config
from launch.data import derive, seed_all
from launch.generators import give_back, held_by
from launch.loop import Training
from launch.resume import task_state
from launch.resume.choice import Saved, same_experiment
from launch.resume.settings import Built, Groups, carry_on, merge_groups, options
from launch.resume.task_state import PREFIX, taken
from launch.task import Task
from parallel import EngineState, World


@dataclass(frozen=True)
class Resumed:
    """What a run is resumed into.

    samples: of the training split, None of a stream. shards: into how many parts a stream's own
    ``shard`` divides it, None where the samples of a global batch do not depend on that.
    """

    training: Training
    task: Task
    config: Config
    world: World
    replica: int
    built: Built
    samples: int | None
    shards: int | None


def capture(run: Resumed) -> tuple[EngineState, dict[str, Any]]:
    """Return all that must be known to go on: tensors, and on rank 0 plain values. Collective."""
    training, config = run.training, run.config
    held = training.engine.state(compare=training.compare_replicas)
    generators = run.world.gather_objects(held_by(run.world.device))
    at, meter = training.at, training.reporter.meter
    own, tensors = taken(run.task) if run.world.is_main else (None, {})
    state = {
        **same_experiment(config),
        **vars(at),
        "train_samples": run.samples,
        "shards": run.shards,
        "world_size": run.world.size,
        "metrics": training.metrics,
        "judged": training.judged,
        "early_stop": training.early.state() if training.early else None,
        "best": training.checkpoints.best.state() if training.checkpoints.best else None,
        "skipped": int(meter.skipped),
        "skipped_in_a_row": int(meter.in_a_row),
        "trained_s": training.control.trained_s if config.train.max_minutes else None,
        "optimizers": held.groups,
        "scaler": held.scaler,
        "schedulers": training.schedule.state(),
        "schedule_steps": training.schedule.steps,
        "built": run.built.state(),
        "generators": generators,
        "strategy": dict(training.engine.remembers),
        "task_state": own,
    }
    held.optimizer |= tensors
    return held, state if run.world.is_main else {}


def restore(run: Resumed, saved: Saved) -> list[str]:
    """Give a checkpoint's progress back; return what a person should know. On every rank."""
    model, optimizer, state = saved
    training = run.training
    notes = [*_check_data(run, state), *_load_schedule(run, state)]
    moments = {k: v for k, v in optimizer.items() if not k.startswith(PREFIX)}
    training.engine.load(EngineState(model, moments, state["optimizers"], state["scaler"]))
    for name in vars(training.at):
        setattr(training.at, name, state[name])
    training.metrics, training.judged = dict(state["metrics"]), state["judged"]
    if training.early:
        training.early.load(state["early_stop"])
    training.checkpoints.resumed(training.at.step, state["best"])
    meter = training.reporter.meter
    meter.skipped, meter.in_a_row = state["skipped"], state["skipped_in_a_row"]
    training.control.spent_s = state["trained_s"] or 0.0
    task_state.give_back(run.task, state["task_state"], optimizer)
    return notes + _restore_generators(run, state)


def _check_data(run: Resumed, state: Mapping[str, Any]) -> list[str]:
    """Refuse other data in the middle of an epoch: which samples it has seen is not known."""
    if not state["batch"]:
        return []
    if state["train_samples"] != run.samples:
        raise CheckpointError(
            f"the training split has {run.samples} samples, and had {state['train_samples']} when "
            f"step {state['step']} was saved in the middle of an epoch; go on with the data it had"
        )
    if state["shards"] == run.shards:
        return []
    return [
        f"the stream's shard() divided it into {state['shards']} parts and divides it into "
        f"{run.shards} now: some samples of this epoch may come twice or not at all"
    ]


def _load_schedule(run: Resumed, state: Mapping[str, Any]) -> list[str]:
    """Bring the schedule to where it was, and the saved parameter groups to the settings of now.

    Where the settings are others the new schedule is followed from its start up to here: most
    compute a rate from the one before, and would never come back from an old schedule's end.
    """
    schedule, built, then = run.training.schedule, run.built, state["built"]
    saved, states, steps = state["optimizers"], state["schedulers"], state["schedule_steps"]
    same_kind = len(states) == len(built.schedulers)
    is_same = encode(then) == built.state()
    if same_kind and built.schedulers and schedule.metric is None and not is_same:
        schedule.replay(steps)
        now = options(run.training.engine.optimizers)
        for each, groups in zip(saved, now, strict=False):
            for group, option in zip(each["groups"], groups, strict=False):
                group.update(option)
        return [f"the schedule is another one now: after {steps} steps its rate is {_rate(now)}"]
    merge_groups(saved, then["groups"], built.groups, keeps_rate=same_kind)
    if not same_kind:
        word = "new: it begins now" if built.schedulers else "gone: the rate is optimizer.lr"
        return [f"the scheduler is {word}"]
    now_states = schedule.state()
    pairs = zip(states, then["schedulers"], now_states, strict=True)
    schedule.load([carry_on(*each) for each in pairs], steps)
    return []


def _rate(groups: Groups) -> str:
    return f"{groups[0][0]['lr']:.3g}"


def _restore_generators(run: Resumed, state: Mapping[str, Any]) -> list[str]:
    held, world = state["generators"], run.world
    if len(held) == world.size:
        give_back(held[world.rank], world.device)
        return []
    seed_all(derive(run.config.seed, "replica", run.replica, "after", state["step"]))
    return [
        f"saved by {len(held)} processes, going on with {world.size}: the order of samples is the "
        "same, but dropout and other noise of each replica begin anew"
    ]
