"""The one who writes a run's checkpoints: at once, or meanwhile in a thread of its own."""

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
        self._thread = None
        if asynchronous:
            self._thread = ThreadPoolExecutor(1, "checkpoints", initializer=_stand_back)
        self._copies: dict[str, Tensor] = {}  # reused: fresh memory costs ten times the copy
        self._under_way: Future[Written] | None = None
        self._done: list[Written] = []

    def write(self, order: Order) -> None:
        """Write ``order``, or begin to; ``finished`` tells how it went."""
        self.wait()
        self._check()
        start = time.monotonic()
        if self._thread is None:
            self._done.append(self._try(order, None, None, start, start))
            return
        try:
            contents = self._collect(order, self._copy)
        except CheckpointError as error:
            self._done.append(_failed(order, error, start))
            return
        ready = None
        if any(tensor.is_cuda for tensor in order.model.values()):
            ready = torch.cuda.Event()
            ready.record()
        copied = time.monotonic()
        self._under_way = self._thread.submit(self._try, order, contents, ready, start, copied)

    def finished(self) -> list[Written]:
        """Return what has ended since the last call; waits for nothing."""
        if self._under_way is not None and self._under_way.done():
            self._done.append(self._under_way.result())
            self._under_way = None
        done, self._done = self._done, []
        if any(written.error for written in done):
            self._check()  # which may know better why
        return done

    def wait(self) -> None:
        """Wait until nothing is under way; on every way out, so that the last one is whole."""
        if self._under_way is not None:
            self._done.append(self._under_way.result())
            self._under_way = None

    def close(self) -> None:
        """Wait, and end the thread: what is ordered later is written at once."""
        self.wait()
        if self._thread is not None:
            self._thread.shutdown()
        self._thread, self._copies = None, {}

    def _try(
        self,
        order: Order,
        contents: Contents | None,
        ready: torch.cuda.Event | None,
        start: float,
        copied: float,
    ) -> Written:
        try:
            if ready is not None:
                ready.synchronize()
            path = write(self.folder, contents or self._collect(order, to_cpu))
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
        stalled = copied - start if contents else now - start
        return Written(order.step, order.epoch, path, now - start, stalled)

    @staticmethod
    def _collect(order: Order, move: Any) -> Contents:
        return collect(order.step, order.model, order.optimizer, order.state, move)

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
