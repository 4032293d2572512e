"""When a run saves, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from launch.best import Best
from launch.checkpoint import ContentsError, Order, Writer
from launch.control import Control
from launch.events import CheckpointSaved, Listener, Notice
from launch.failures import TrainingError
from parallel import EngineState, World

ROOM = "make room or mend its folder, and give the same command again"
GO_ON = "; to train on where that happens: checkpoint.on_error=go_on"
CONTENTS = (
    "give it a form that can be saved, in Task.state_dict() if it is the task's own, and give the "
    "same command again"
)


@dataclass
class Checkpoints:
    """Saves every so many steps, epochs or minutes, at the best evaluation, and at the end.

    writer: of what this rank holds; None where rank 0 writes all. capture: collective. goes_on:
    whether training goes on where a checkpoint cannot be written, the last one excepted.
    """

    world: World
    control: Control
    tell: Listener
    writer: Writer | None
    every_epochs: int | None = 1
    every_steps: int | None = None
    best: Best | None = None
    goes_on: bool = False
    capture: Callable[[], tuple[EngineState, Mapping[str, Any]]] | None = None
    _step: int = 0  # of the last one that was ordered
    _problem: str | None = None  # on rank 0: why the run must fail
    _lost: bool = False  # on rank 0: it could not be written
    _is_last: bool = False
    _is_best: bool = False  # the model as it is now
    _is_stale: bool = False  # judged since the last one

    def resumed(self, step: int, best: Mapping[str, Any] | None) -> None:
        """Take in that the run goes on after ``step``, which is saved."""
        self._step = step
        if self.best:
            self.best.load(best)

    def judged(self, metrics: Mapping[str, float]) -> None:
        """Take in an evaluation; alike on all ranks."""
        self._is_stale = True
        if self.best and self.best.judge(metrics):
            self._is_best = True

    def is_due(self, step: int, epochs_done: int | None) -> bool:
        """Whether to save after ``step``, or at the end of the ``epochs_done``-th epoch.

        Asked after every step, so that what has become of a write is told here, too.
        """
        self.settle()
        if self._is_best:
            return True
        if self._step == step:
            return False
        every, count = (
            (self.every_steps, step) if epochs_done is None else (self.every_epochs, epochs_done)
        )
        return self.control.save_is_due or (every is not None and count % every == 0)

    def save(self, step: int, epoch: int) -> None:
        """Write a checkpoint, or begin to. Collective."""
        if self.capture is None:
            return
        if self.world.is_main:
            self.world.notes.announce("writes the checkpoint")
        if self.writer is not None:
            self.writer.begin(step)
        held, state = self.capture()
        if self.writer is not None:
            order = Order(step, epoch, held.model, held.optimizer, state, self._is_best)
            self.writer.write(order)
        if self.world.is_main:
            self.world.notes.announce("")
        self._step, self._is_best, self._is_stale = step, False, False
        self.control.saved()
        self.control.tick()
        self.settle()

    def settle(self) -> None:
        """Tell what has become of the writes. Raises ``TrainingError`` where one failed."""
        for written in self.writer.finished() if self.writer is not None else ():
            self._lost = written.path is None
            if written.path is not None:
                at = written.step, written.epoch, written.path
                self.tell(CheckpointSaved(*at, written.seconds, written.stalled_s))
            elif isinstance(written.error, ContentsError):
                raise TrainingError(f"{written.error}; {CONTENTS}")
            elif self.goes_on and not self._is_last:
                self.tell(Notice(f"{written.error}; training goes on without it"))
            else:
                raise TrainingError(f"{written.error}; {ROOM}{'' if self.goes_on else GO_ON}")

    def finish(self, step: int, epoch: int) -> None:
        """Save what is not saved yet, and wait until it is whole. Collective.

        Raises ``TrainingError`` on all ranks where that cannot be.
        """
        self._drain()
        lost = self.world.share(self._lost)
        self._is_last = True  # no later one makes up for this
        if step and (self._step != step or self._is_stale or lost):
            try:
                self.save(step, epoch)
            except TrainingError as error:
                self._problem = str(error)
        self._drain()
        problem = self.world.share(self._problem)
        if problem is not None:
            raise TrainingError(problem)

    def _drain(self) -> None:
        """Wait until nothing is under way; keep what went wrong for when the ranks meet."""
        try:
            if self.writer is not None:
                self.writer.close()  # training is over: the last one need not stand back for it
            self.settle()
        except TrainingError as error:
            self._problem = str(error)
