"""A run from a configuration to its end: the processes meet, train, save, and part."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from launch.assemble import Surroundings, assemble
from launch.attached import listen, writer
from launch.config import Config, plain_defaults, to_dict, to_yaml
from launch.control import FILE, REASONS, Control, Ending
from launch.ending import RunFailedError, say_and_linger, settle, stopped_code
from launch.events import RunEnded
from launch.failures import Failure, TrainingError
from launch.folder import Found, OpenFolder, RunFolder, inspect, open_folder
from launch.loop import Training
from launch.prepare import Prepared, prepare
from launch.processes import Owner
from launch.ranklog import rank_log
from launch.resume import Choice, choose, is_complete, named
from launch.signals import Signals
from launch.watch import Hang, Launcher, StartUp
from parallel import Place, UsageError, World, join


def run(
    config: Config, place: Place, notes: Sequence[str] = (), max_minutes: float | None = None
) -> int:
    """Train as ``config`` says and return the exit code. Collective.

    max_minutes: after which this process saves and stops, to be started again.
    """
    signals = Signals()
    control = _control(config, place, signals, max_minutes)
    stopped = stopped_code(place)
    world: World | None = None
    try:
        with ExitStack() as stack:
            stack.enter_context(signals.heard())
            start_up = StartUp.of(place, signals)
            signals.every_second(start_up.check)
            prepared = prepare(config, place, notes)
            opened = _open(prepared, place, stack)
            launch = config.launch
            world = stack.enter_context(
                join(device=launch.device, backend=launch.backend, timeout_s=launch.timeout_s)
            )
            start_up.is_over = True
            choice = _choose(prepared, opened, world)
            if choice is None:
                return _already_complete(prepared, opened.found, world)
            stack.enter_context(rank_log(prepared.folder / "ranks", world))
            folder = opened.folder
            control.stop_file = folder.stop if folder else None
            tell, saves = listen(config, folder, stack), writer(prepared, folder, choice, stack)
            around = Surroundings(world, tell, control, choice, saves)
            ending = _Run(prepared, around).train(stack)
            return 0 if ending.state == "completed" else stopped
    except RunFailedError as error:
        if world is not None:
            say_and_linger(error, world)
        raise


def _control(config: Config, place: Place, signals: Signals, max_minutes: float | None) -> Control:
    limit, save = config.train.max_minutes, config.checkpoint.every_minutes
    control = Control(
        signals,
        limit_s=limit * 60 if limit is not None else None,
        budget_s=max_minutes * 60 if max_minutes is not None else None,
        save_every_s=save * 60 if save is not None else None,
    )
    if place.launcher == "torchrun":  # it runs as long as we do; a shell need not
        signals.every_second(Launcher(control).check)
    return control


@dataclass(frozen=True)
class _Opened:
    """The folder on rank 0, whose it is to judge and hold; none where all is done.

    given: the checkpoint that checkpoint.resume names.
    """

    found: Found
    folder: OpenFolder | None = None
    given: Choice | None = None


def _open(prepared: Prepared, place: Place, stack: ExitStack) -> _Opened:
    config = prepared.config
    if place.rank:
        return _Opened(Found("new"))
    defaults = plain_defaults(type(prepared.task))
    checkpoints = RunFolder(prepared.folder).checkpoints
    found = inspect(prepared.folder, to_dict(config), defaults)
    if is_complete(checkpoints, found, config):
        return _Opened(found)
    given = named(checkpoints, config, defaults)
    folder = stack.enter_context(open_folder(prepared.folder, job=place.job))
    found = inspect(prepared.folder, to_dict(config), defaults)  # as whoever held it left it
    return _Opened(found, folder, given)


def _choose(prepared: Prepared, opened: _Opened, world: World) -> Choice | None:
    """Return what to go on from, as rank 0 found it; None where all is done. Collective.

    Only now, because reading large checkpoints takes longer than ranks wait to be met.
    """
    choice, problem, folder = None, "", opened.folder
    if folder is not None:
        world.notes.announce("reads the checkpoints")
        try:
            choice = choose(folder.checkpoints, opened.found, opened.given, prepared.config)
            folder.write_config(to_yaml(prepared.config))
        except UsageError as error:
            problem = str(error)
        world.notes.announce("")
    choice, problem = world.share((choice, problem))
    if problem:
        failure = Failure(0, "CheckpointError", problem, "", is_usage=True)
        raise RunFailedError(failure, world.is_main, problem if world.is_main else "")
    return choice


@dataclass
class _Run:
    """Training from its first event to its last."""

    prepared: Prepared
    around: Surroundings
    training: Training | None = None
    start: float = field(default_factory=time.monotonic)

    def train(self, stack: ExitStack) -> Ending:
        """Train and return how that ended. Collective."""
        world = self.around.world
        peers = world.gather_objects(Owner.here())
        try:
            self.training = assemble(self.prepared, self.around)
            self.start = time.monotonic()
            self._watch_over(stack)
            ending = self.training.fit()
            if world.is_main and ending.reason == REASONS[FILE]:
                RunFolder(self.prepared.folder).stop.unlink(missing_ok=True)
            self._end(ending.state, ending.reason)
            world.barrier()  # who leaves first may have a launcher that ends the others
            return ending
        except BaseException as error:  # sys.exit in a task, too, would leave the others alone
            failed = settle(error, world, self._step(), peers)
            self._fail(failed.failure)
            raise failed from error

    def _watch_over(self, stack: ExitStack) -> None:
        """Look for a main thread that hangs, in a world of several."""
        world, timeout_s = self.around.world, self.prepared.config.launch.timeout_s
        if world.size == 1:
            return
        stacks = RunFolder(self.prepared.folder).ranks / f"rank-{world.rank}.log"
        hang = Hang(world, timeout_s, stacks, self._step, self._fail)
        self.around.control.tick = hang.tick
        signals = self.around.control.signals
        signals.every_second(hang.check)
        stack.callback(signals.no_more, hang.check)

    def _step(self) -> int:
        return self.training.at.step if self.training else 0

    def _fail(self, failure: Failure) -> None:
        with suppress(TrainingError):  # a full disk was the failure, or is no news any more
            self._end("failed", failure.reason, failure.rank)

    def _end(self, state: str, reason: str, rank: int | None = None) -> None:
        at = self.training.at if self.training else None
        metrics = self.training.metrics if self.training else {}
        step, epoch = (at.step, at.epoch) if at else (0, 0)
        seconds = time.monotonic() - self.start
        self.around.tell(RunEnded(state, step, epoch, reason, rank, metrics, seconds))


def _already_complete(prepared: Prepared, found: Found, world: World) -> int:
    if world.is_main:
        metrics = ", ".join(f"{k} {v:.4g}" for k, v in found.metrics.items() if v is not None)
        sys.stdout.write(
            f"already complete: {prepared.folder}, {found.step} steps in {found.epoch} epochs"
            f"{': ' + metrics if metrics else ''}\n"
            f"to train anew: name={prepared.config.name}-2\n"
        )
    return 0
