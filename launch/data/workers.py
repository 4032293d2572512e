"""DataLoaders as this project sets them up."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import wait
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

FOR_TRAINING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


@dataclass(frozen=True)
class WorkerSettings:
    """How many loader processes serve a training process, and how."""

    workers: int = 0
    prefetch: int = 2
    pin: bool = False
    persistent: bool = True
    start_method: str | None = None

    def batches(self, dataset: Dataset[Any], parts: Iterable[Any] | None) -> DataLoader[Any]:
        """Return a loader of ``dataset[part]`` for each part; of the dataset's items if None."""
        chosen: dict[str, Any] = {"batch_size": None}
        if parts is not None:  # an own generator: DataLoader would draw from the training's
            chosen = {"batch_sampler": parts, "generator": torch.Generator()}
        if self.workers:  # DataLoader refuses these without workers
            chosen["prefetch_factor"] = self.prefetch
            chosen["persistent_workers"] = self.persistent
            chosen["multiprocessing_context"] = self.start_method
        return Loader(
            dataset,
            num_workers=self.workers,
            pin_memory=self.pin,
            collate_fn=as_is,
            worker_init_fn=serve,
            **chosen,
        )


class Loader(DataLoader[Any]):
    """A DataLoader that forks at a quiet moment.

    A thread of gloo's that ends its last work makes itself known to the interpreter; a process
    forked just then has half of that thread, and hangs or crashes (1 of 400 forks). So those
    threads get a moment to be done, as when the group is closed (see ``parallel.world``).

    Its processes take no notice of signals that are meant for the training process: a launcher
    sends them to all, and without its loader a training process could not come to the end of its
    step, and save. They are blocked until each process has set itself up. When the training
    process is gone they end: torch looks at the parent alone, which may be a fork server.
    """

    def _get_iterator(self) -> Any:
        if not self.num_workers:
            return super()._get_iterator()
        time.sleep(0.05)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_TRAINING)
        try:
            return super()._get_iterator()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(worker: int) -> None:
    """Set a loader process up: deaf to what is meant for the one it serves, and ending with it."""
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)  # the training process would be told
        for number in FOR_TRAINING:
            signal.signal(number, nothing)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_TRAINING)
    served = parent_process()
    if served is not None:
        threading.Thread(target=_end_with, args=(served.sentinel,), daemon=True).start()


def _end_with(served: int) -> None:
    wait([served])
    os._exit(1)


def nothing(number: int, frame: object) -> None:
    """Do nothing; unlike SIG_IGN, a child process does not inherit it."""


def as_is(batch: Any) -> Any:
    """Return ``batch``: it is collated already."""
    return batch
