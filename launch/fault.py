"""Faults on purpose, for people who test their recovery before a cluster does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from launch.checkpoint import newest
from launch.config import Fault
from launch.data.loader import Shares
from launch.folder import RunFolder
from launch.folder.disk import replace_text
from launch.loop import Training
from parallel import Phases, Share, UsageError, World

SLOW_S = 10.0


class InjectedError(RuntimeError):
    """What ``fault.kind=raise`` raises."""


@dataclass
class Faulty:
    """Shares that bring a fault about as they are handed out, before the step they are for."""

    shares: Shares
    is_due: Callable[[], bool]
    strike: Callable[[], None]

    @property
    def steps_per_epoch(self) -> int | None:
        """As the shares say."""
        return self.shares.steps_per_epoch

    def epoch(self, epoch: int, start: int, phases: Phases) -> Iterator[Share]:
        """Yield what the shares yield."""
        for share in self.shares.epoch(epoch, start, phases):
            if self.is_due():
                self.strike()
            yield share


def inject(training: Training, fault: Fault, path: Path, world: World) -> None:
    """Let ``fault`` strike in its step, once in the life of the run whose folder is ``path``.

    A file in ranks/ remembers that it did, so that the same command recovers. Raises
    ``UsageError`` for a rank that does not exist.
    """
    if fault.rank >= world.size:
        raise UsageError(
            f"fault.rank={fault.rank}, but there are {world.size} processes: 0 to {world.size - 1}"
        )
    folder = RunFolder(path)
    mark = folder.ranks / f"fault-{fault.kind}-{fault.rank}-{fault.step}"

    def is_due() -> bool:
        here = training.at.step + 1 == fault.step and world.rank == fault.rank
        return here and not mark.exists()

    def strike() -> None:
        replace_text(mark, "this fault has struck\n")
        _strike(fault.kind or "", training, folder)

    training.shares = Faulty(training.shares, is_due, strike)


def _strike(kind: str, training: Training, folder: RunFolder) -> None:
    if kind == "raise":
        raise InjectedError("fault.kind=raise")
    if kind == "hang":
        while True:
            time.sleep(1)
    if kind == "slow":
        time.sleep(SLOW_S)
    elif kind == "nan":
        _spoil_a_gradient(training.engine.module)
    elif kind == "truncate":
        path, _ = newest(folder.checkpoints)
        if path is not None:
            os.truncate(min(path.glob("model*.safetensors")), 100)
    if kind in ("kill", "truncate"):
        os.kill(os.getpid(), signal.SIGKILL)


def _spoil_a_gradient(module: torch.nn.Module) -> None:
    """Make one gradient NaN, once."""
    parameter = next(p for p in module.parameters() if p.requires_grad and len(_here(p)))

    def spoil(gradient: Tensor) -> Tensor:
        hook.remove()
        return gradient * float("nan")

    def spoil_slice(parameter: Tensor) -> None:
        hook.remove()
        if parameter.grad is not None:
            parameter.grad.mul_(float("nan"))

    if hasattr(parameter, "to_local"):  # torch calls no other hook of what it divides
        hook = parameter.register_post_accumulate_grad_hook(spoil_slice)
        return
    hook = parameter.register_hook(spoil)


def _here(parameter: Tensor) -> Tensor:
    """Return the numbers that this process holds, in a row."""
    held = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return held.detach().reshape(-1)
