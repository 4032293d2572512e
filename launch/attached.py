"""Who hears what happens, on rank 0, and who writes checkpoints."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import partial

from launch.checkpoint import Writer
from launch.config import Config
from launch.events import CheckpointSaved, Event, Listener, RunEnded
from launch.failures import TrainingError
from launch.folder import OpenFolder, RunFolder
from launch.listeners import Console, Heartbeat, Records, Status, TensorBoard, fan_out
from launch.prepare import Prepared
from launch.resume import Choice


def listen(config: Config, folder: OpenFolder | None, stack: ExitStack) -> Listener:
    """Attach the listeners; closed with ``stack``."""
    if folder is None:
        return deaf
    console = Console(config.log.progress)

    def beat() -> None:
        refuse_lost(folder)
        folder.touch_lock()

    listeners = fan_out(
        Records(folder.path),
        Status(folder.path),
        TensorBoard(folder.path),
        Heartbeat(beat),
        console,
    )

    def tell(event: Event) -> None:
        if isinstance(event, RunEnded) and event.state == "failed" and folder.lost():
            return console(event)  # what lies in the folder's place is none of ours
        if isinstance(event, CheckpointSaved | RunEnded):
            refuse_lost(folder)
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


def refuse_lost(folder: OpenFolder | None) -> None:
    """Raise ``TrainingError`` where the folder was removed or moved while the run went on."""
    lost = folder.lost() if folder is not None else ""
    if lost:
        raise TrainingError(lost)


def deaf(event: Event) -> None:
    """Hear nothing: what happens is told on rank 0."""


def writer(
    prepared: Prepared, folder: OpenFolder | None, choice: Choice, stack: ExitStack
) -> Writer:
    """Return this rank's writer of checkpoints; what it has begun is ended with ``stack``.

    Other ranks than 0 have a use for it only where the model is split over them.
    """
    settings = prepared.config.checkpoint
    ours = Writer(
        RunFolder(prepared.folder).checkpoints,
        settings.keep,
        asynchronous=settings.asynchronous,
        broken=choice.skipped,
        check=partial(refuse_lost, folder),
    )
    stack.callback(ours.leave)  # before the listeners, and whatever the end
    return ours
