"""One process of a row's job: it trains as any run does, so many steps at a time as it is told.

    torchrun --nproc_per_node=2 -m launch.comparison.worker --to SOCKET [FILE.yaml ...] [key=value]

The comparison starts it; what the two say to each other is in ``talk``.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from launch.assemble import Surroundings, assemble
from launch.checkpoint import Writer
from launch.comparison.memory import Beyond, warm_up
from launch.comparison.talk import Line, dial, failure_of
from launch.config import load, parse
from launch.control import Control
from launch.data.loader import Shares
from launch.events import Event, Progress
from launch.failures import describe, words_of
from launch.loop import Limits, Training
from launch.prepare import Prepared, prepare
from launch.resume import Choice
from launch.signals import Signals
from parallel import PeerLeftError, Phases, Share, UsageError, World, join, leave, whoami

FLAGS: dict[str, type] = {"to": str, "cores": int}
NEVER = 1 << 62  # steps: no report but at the end of a turn


class DoneError(Exception):
    """There is nothing more to train: the comparison is over, or the run begins anew."""


@dataclass
class Job:
    """A process among those of its row; line: to the comparison, on rank 0."""

    world: World
    line: Line | None
    beyond: Beyond
    told: list[Progress] = field(default_factory=list)
    wanted: int | None = None  # steps of the next turn, heard before the run that takes them
    is_over: bool = False
    round_began: int = 0

    def hear(self) -> int | None:
        """Return the steps of the next turn, alike on all ranks; None at the end. Collective."""
        message = self.line.hear() if self.line is not None else None
        steps: int | None = self.world.share(message["steps"] if message else None)
        self.is_over = steps is None
        return steps

    def listen(self, event: Event) -> None:
        """Keep what training tells at the end of a turn."""
        if isinstance(event, Progress):
            self.told.append(event)

    def report(self, first: int) -> None:
        """Say what the turn gave. Collective."""
        peaks = self.world.gather_objects(self.beyond.settle())
        if self.line is None:
            return
        said = self.told[-1]
        self.told.clear()
        turn = {
            "first": first,
            "last": said.step,
            "loss": said.loss,
            "step_s": said.time_s.get("step"),
            "time_s": {name: s for name, s in said.time_s.items() if name != "step"},
        }
        self.line.say({"turn": turn, "peak_bytes": peaks})


class Turns:
    """A run's shares, held back between turns."""

    def __init__(self, shares: Shares, job: Job, planned: int | None) -> None:
        self.shares, self.job, self.planned = shares, job, planned
        self.training: Training | None = None
        self._until = 0

    @property
    def steps_per_epoch(self) -> int | None:
        """Return the global batches of an epoch."""
        return self.shares.steps_per_epoch

    def epoch(self, epoch: int, start: int, phases: Phases) -> Iterator[Share]:
        """Yield a share a step, once the comparison asked for it. Collective."""
        own = self.shares.epoch(epoch, start, phases)
        while True:
            self._wait(phases)
            share = next(own, None)
            if share is None:
                return
            yield share

    def _wait(self, phases: Phases) -> None:
        """Report a turn that is done, and wait for the next one."""
        training, job = self.training, self.job
        if training is None or training.at.step < self._until:
            return
        step = training.at.step
        if step:
            training.reporter.finish(step, training.lr)
            job.report(job.round_began + 1)
        steps = job.wanted if job.wanted is not None else job.hear()
        job.wanted = None
        if steps is None:
            raise DoneError
        if step and self.planned is not None and step + steps > self.planned:  # a new run
            job.wanted = steps
            raise DoneError
        job.round_began, self._until = step, step + steps
        training.reporter.meter.resume_clock()
        phases.begin()


def main(args: list[str]) -> int:
    """Train as told until the other end of the line is closed; return the exit code."""
    words = parse(args, FLAGS)
    place, path = whoami(), Path(words.flags["to"])
    try:
        _keep_to(words.flags["cores"])
        prepared = prepare(load(words.files, words.overrides), place)
        launch = prepared.config.launch
        with join(
            device=launch.device, backend=launch.backend, timeout_s=launch.timeout_s
        ) as world:
            serve(prepared, world, dial(path) if world.is_main else None)
    except PeerLeftError:
        return 1
    except Exception as error:
        is_usage = isinstance(error, UsageError)
        text = words_of(error) if is_usage else describe(error, place.rank, 0).text(place.size)
        failure_of(path, place.rank).write_text(f"{time.time()}\n{text}")
        traceback.print_exc()
        return 1
    return 0


def serve(prepared: Prepared, world: World, line: Line | None) -> None:
    """Take turns until the comparison is over. Collective."""
    warm_up(world.device)
    job = Job(world, line, Beyond(world.device))
    is_first = True
    while not job.is_over:
        with ExitStack() as stack:
            training, turns = _begin(prepared, job, stack)
            if is_first:
                _introduce(job, training)
                job.beyond.begin()
                is_first = False
            else:
                training.reporter.meter.warm = 0
            with suppress(DoneError):
                training.fit()
        del training, turns
        gc.collect()


def _begin(prepared: Prepared, job: Job, stack: ExitStack) -> tuple[Training, Turns]:
    """Return a run at its beginning, with nothing to save, judge or end it. Collective."""
    writer = Writer(prepared.folder / "checkpoints", 1)
    stack.callback(writer.leave)
    around = Surroundings(job.world, job.listen, Control(Signals()), Choice(), writer)
    training = assemble(prepared, around)
    planned = _planned(training) if prepared.config.scheduler is not None else None
    turns = Turns(training.shares, job, planned)
    turns.training, training.shares = training, turns
    training.reporter.every_steps = NEVER
    training.limits = Limits(None, None)
    training.evaluator = replace(training.evaluator, splits={})
    return training, turns


def _planned(training: Training) -> int | None:
    """Return after how many steps a schedule ends; None where only time ends the run."""
    limits, each = training.limits, training.shares.steps_per_epoch
    by_epochs = limits.epochs * each if limits.epochs is not None and each is not None else None
    ends = [steps for steps in (by_epochs, limits.max_steps) if steps is not None]
    return min(ends, default=None)


def _introduce(job: Job, training: Training) -> None:
    """Say that the first turn may come. Collective."""
    pids = job.world.gather_objects(os.getpid())
    if job.line is not None:
        traits = _traits(training.engine.module)
        job.line.say({"ready": {"pids": pids, "traits": traits}})


def _traits(model: nn.Module) -> list[str]:
    """Return what makes losses depend on how a batch is divided."""
    parts = list(model.modules())
    found = []
    if any(isinstance(each, _BatchNorm) for each in parts):
        found.append("batch normalisation")
    if any(_drops(each) for each in parts):
        found.append("dropout")
    return found


def _drops(module: nn.Module) -> bool:
    rates = (getattr(module, name, 0.0) for name in ("p", "dropout"))
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


def _keep_to(cores: int | None) -> None:
    """Keep this process to so many of the cores that it may use."""
    if cores is None or not hasattr(os, "sched_setaffinity"):  # not on macOS
        return
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    torch.set_num_threads(cores)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
