"""A run from a configuration to its end: the processes meet, train, save, and part."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from launch.assemble import assemble
from launch.checkpoint import CheckpointError, write
from launch.config import Config, to_yaml
from launch.ending import RunFailedError, say_and_linger, settle
from launch.events import CheckpointSaved, Event, Listener, RunEnded
from launch.failures import TrainingError
from launch.folder import Found, OpenFolder, open_folder
from launch.listeners import Console, Heartbeat, Records, Status, TensorBoard, fan_out
from launch.loop import Training
from launch.prepare import Prepared, find_earlier, prepare
from launch.ranklog import rank_log
from parallel import Place, World, join


def run(config: Config, place: Place, notes: Sequence[str] = ()) -> int:
    """Train as ``config`` says and return the exit code. Collective."""
    prepared = prepare(config, place, notes)
    world: World | None = None
    try:
        with ExitStack() as stack:
            found, folder = Found("new"), None
            if not place.rank:  # the folder is rank 0's to judge and to hold
                found = find_earlier(prepared)
                if found.state != "completed":
                    folder = stack.enter_context(open_folder(prepared.folder, to_yaml(config)))
            launch = config.launch
            world = stack.enter_context(
                join(device=launch.device, backend=launch.backend, timeout_s=launch.timeout_s)
            )
            if world.share(found.state) == "completed":
                return _already_complete(prepared, found, world)
            stack.enter_context(rank_log(prepared.folder / "ranks", world))
            _train(prepared, world, _listen(config, folder, stack))
    except RunFailedError as error:
        if world is not None:
            say_and_linger(error, world)
        raise
    return 0


def _listen(config: Config, folder: OpenFolder | None, stack: ExitStack) -> Listener:
    """Attach the listeners on rank 0, the only one with the folder; closed with ``stack``."""
    if folder is None:
        return _deaf
    listeners = fan_out(
        Records(folder.path),
        Status(folder.path),
        TensorBoard(folder.path),
        Heartbeat(folder.touch_lock),
        Console(config.log.progress),
    )

    def tell(event: Event) -> None:
        try:
            listeners(event)
        except OSError as error:
            raise TrainingError(
                f"cannot write to the run folder {error.filename or folder.path}: "
                f"{error.strerror or error}; make room, or train anew: runs=FOLDER"
            ) from None

    def close() -> None:
        with suppress(OSError):  # what could be written has been flushed with the last event
            listeners.close()

    stack.callback(close)
    return tell


def _deaf(event: Event) -> None:
    """Hear nothing: what happens is told on rank 0."""


def _train(prepared: Prepared, world: World, tell: Listener) -> None:
    start = time.monotonic()
    training: Training | None = None

    def end(state: str, reason: str, rank: int | None = None) -> None:
        at = training.at if training else None
        metrics = training.metrics if training else {}
        seconds = time.monotonic() - start
        step, epoch = (at.step, at.epoch) if at else (0, 0)
        tell(RunEnded(state, step, epoch, reason, rank, metrics, seconds))

    try:
        training = assemble(prepared, world, tell)
        start = time.monotonic()
        reason = training.fit()
        _save(prepared, training, world, tell)
        end("completed", reason)
    except KeyboardInterrupt:
        end("stopped", "interrupted from the keyboard")
        raise
    except Exception as error:
        failed = settle(error, world, training.at.step if training else 0)
        with suppress(TrainingError):  # a full disk was the failure, or is no news any more
            end("failed", failed.failure.reason, failed.failure.rank)
        raise failed from error


def _save(prepared: Prepared, training: Training, world: World, tell: Listener) -> None:
    """Write the final checkpoint on rank 0; whether that worked is known to all. Collective."""
    start = time.monotonic()
    held, at, config = training.engine.state(), training.at, prepared.config
    problem = None
    if world.is_main:
        state = {
            "step": at.step,
            "epoch": at.epoch,
            "batch": at.batch,
            "task": config.task,
            "seed": config.seed,
            "global_batch_size": config.train.global_batch_size,
            "drop_last": config.data.drop_last,
            "world_size": world.size,
            "metrics": training.metrics,
            "optimizers": held.groups,
            "scaler": held.scaler,
        }
        folder = prepared.folder / "checkpoints"
        world.announce("writes the checkpoint")
        try:
            path = write(folder, at.step, held.model, held.optimizer, state)
            tell(CheckpointSaved(at.step, at.epoch, path, time.monotonic() - start))
        except CheckpointError as error:
            problem = str(error)
        world.announce("")
    problem = world.share(problem)
    if problem is not None:
        raise CheckpointError(problem)


def _already_complete(prepared: Prepared, found: Found, world: World) -> int:
    if world.is_main:
        metrics = ", ".join(f"{k} {v:.4g}" for k, v in found.metrics.items() if v is not None)
        sys.stdout.write(
            f"already complete: {prepared.folder}, {found.step} steps in {found.epoch} epochs"
            f"{': ' + metrics if metrics else ''}\n"
            f"to train anew: name={prepared.config.name}-2\n"
        )
    return 0
