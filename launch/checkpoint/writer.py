"""Who writes a run's checkpoints: at once, or meanwhile in a thread of its own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from launch.checkpoint.files import Contents, collect, write
from launch.checkpoint.keep import retain
from launch.checkpoint.links import CheckpointError, link
from launch.checkpoint.tensors import to_cpu
from launch.checkpoint.together import Together
from parallel import World

Move = Callable[[str, Tensor], Tensor]
NICE = 10  # of 19: a tenth of the processor time where training wants it all


@dataclass(frozen=True)
class Order:
    """A checkpoint that is to be written; best: whether the link of that name shall point to it."""

    step: int
    epoch: int
    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: Mapping[str, Any]
    best: bool = False


@dataclass(frozen=True)
class Written:
    """How an order ended: ``error`` says why nothing was written."""

    step: int
    epoch: int
    path: Path | None
    seconds: float  # until it was whole on the disk
    stalled_s: float  # of these, what training waited
    error: CheckpointError | None = None


class Writer:
    """Writes into ``folder`` and keeps the newest ``keep`` and the best.

    asynchronous: training waits for a copy in memory only, and for the write before, if that is
    still under way. Nothing that was ordered is lost but by a kill: see ``wait``. broken: found
    there, and not whole. check: raises where the folder must not be written to any more.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        *,
        asynchronous: bool = False,
        broken: Iterable[Path] = (),
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder, self.keep, self.broken = folder, keep, set(broken)
        self._check = check
        self._together: Together | None = None
        self._thread = None
        if asynchronous:
            self._thread = ThreadPoolExecutor(1, "checkpoints", initializer=_stand_back)
        self._copies: dict[str, Tensor] = {}  # reused: fresh memory costs ten times the copy
        self._under_way: Future[Written | None] | None = None
        self._done: list[Written] = []

    def split_over(self, world: World, timeout_s: float) -> None:
        """From now on write with the other ranks' writers, each what its rank holds.

        ``begin``, ``write``, ``wait`` and ``close`` are then collective, and rank 0's writer alone
        has something to tell. timeout_s: how long it waits for another rank's part.
        """
        self._together = Together(world, timeout_s)

    def begin(self, step: int) -> None:
        """Get ready for an order; a collective must lie between this and ``write``.

        What goes wrong is told of that order: all ranks have to come that far. Where one process
        writes all, there is nothing to do.
        """
        if self._together is not None:
            self.wait()
            self._together.begin(self.folder, step, self._check)

    def write(self, order: Order) -> None:
        """Write ``order``, or begin to; ``finished`` tells how it went."""
        if self._together is None:
            self.wait()
            self._check()
        start = time.monotonic()
        if self._thread is None:
            self._add(self._try(order, self._collect(order, to_cpu), None, start, None))
            return
        contents = self._collect(order, self._copy)
        ready = None
        if any(tensor.is_cuda for tensor in (*order.model.values(), *order.optimizer.values())):
            ready = torch.cuda.Event()
            ready.record()
        copied = time.monotonic()
        self._under_way = self._thread.submit(self._try, order, contents, ready, start, copied)

    def finished(self) -> list[Written]:
        """Return what has ended since the last call; waits for nothing."""
        if self._under_way is not None and self._under_way.done():
            self._join()
        done, self._done = self._done, []
        if any(written.error for written in done):
            self._check()  # which may know better why
        return done

    def wait(self) -> None:
        """Wait until nothing is under way.

        Rank 0 waits for the others' parts in a collective, which fails at once where one is gone.
        """
        world = self._together.world if self._together is not None and self._thread else None
        if world is not None and world.is_main:
            world.barrier()
        self._join()
        if world is not None and not world.is_main:
            world.barrier()

    def close(self) -> None:
        """Wait, and end the thread: what is ordered later is written at once."""
        self.wait()
        self._end()

    def leave(self) -> None:
        """Wait on every way out, so that the last one is whole if it can be. No collective."""
        if self._together is not None:
            self._together.leave()
        self._join()
        self._end()

    def _join(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            self._add(under_way.result())

    def _end(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
        self._thread, self._copies = None, {}

    def _add(self, written: Written | None) -> None:
        if written is not None:
            self._done.append(written)

    def _try(
        self,
        order: Order,
        contents: Contents | CheckpointError,
        ready: torch.cuda.Event | None,
        start: float,
        copied: float | None,
    ) -> Written | None:
        """Return how it went; None where that is rank 0's to tell.

        copied: in a thread, when training went on; else None.
        """
        try:
            if ready is not None:
                ready.synchronize()
            path = self._put(order.step, contents, in_thread=copied is not None)
            if path is None:
                return None
            if order.best:
                link(self.folder, "best", path)
            self.broken.discard(path)
            retain(path, self.keep, self.broken)
        except CheckpointError as error:
            return _failed(order, error, start)
        except OSError as error:
            why = f"cannot write to {self.folder}: {error.strerror or error}"
            return _failed(order, CheckpointError(why), start)
        now = time.monotonic()
        return Written(order.step, order.epoch, path, now - start, (copied or now) - start)

    def _put(
        self, step: int, contents: Contents | CheckpointError, *, in_thread: bool
    ) -> Path | None:
        if self._together is not None:
            return self._together.write(self.folder, step, contents, in_thread)
        if isinstance(contents, CheckpointError):
            raise contents
        return write(self.folder, contents)

    @staticmethod
    def _collect(order: Order, move: Move) -> Contents | CheckpointError:
        try:
            return collect(order.step, order.model, order.optimizer, order.state, move)
        except CheckpointError as error:
            return error

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        """Copy ``tensor`` into memory that training does not touch."""
        copy = self._copies.get(name)
        if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._copies[name] = copy
        return copy.copy_(tensor, non_blocking=tensor.is_cuda)


def _stand_back() -> None:
    """Let training have the processors first: where all are busy, a write can wait."""
    with suppress(OSError, AttributeError):  # Linux alone gives each thread a niceness
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def _failed(order: Order, error: CheckpointError, start: float) -> Written:
    seconds = time.monotonic() - start
    return Written(order.step, order.epoch, None, seconds, seconds, error)
