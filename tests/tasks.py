"""Tasks that misbehave, or look closely, for the tests of whole runs."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from launch.task import Task


class Numbers(Dataset):
    """Samples that are their own number, written down as they are fetched."""

    def __init__(self, size: int, fault: str = "", rank: int = 1, at: int = 5) -> None:
        self.size, self.fault, self.rank, self.at, self.seen = size, fault, rank, at, 0

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        rank = int(os.environ.get("RANK", 0))
        self.seen += 1
        if self.fault and rank == self.rank and self.seen > self.at:
            fail(self.fault)
        with Path(f"seen-{rank}.txt").open("a") as file:
            file.write(f"{index}\n")
        return torch.tensor([float(index)] * 3), torch.tensor(float(index))


def fail(fault):
    if fault == "raise":
        raise ValueError("boom")
    if fault == "memory":
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
    if fault == "exit":
        sys.exit(0)
    if fault == "kill":
        os.kill(os.getpid(), 9)


class Stream(IterableDataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self):
        for index in range(self.size):
            yield torch.tensor([float(index)] * 3), torch.tensor(float(index))


@dataclass
class Probe(Task):
    """Linear regression on 0, 1, 2, ...; fault: what goes wrong on rank 1 after a few samples."""

    samples: int = 16
    valid: int = 5
    fault: str = ""
    sleep_s: float = 0.0
    stream: bool = False
    batch_norm: bool = False

    def prepare(self):
        with Path("prepared.txt").open("a") as file:
            file.write(f"{os.environ.get('RANK', 0)}\n")
        time.sleep(self.sleep_s)
        if self.fault == "prepare":
            raise OSError("no such mirror")

    def datasets(self):
        train = Stream(self.samples) if self.stream else Numbers(self.samples, self.fault)
        found = {"train": train}
        if self.valid:
            numbers = torch.arange(float(self.valid))
            found["valid"] = TensorDataset(numbers.unsqueeze(1).expand(-1, 3), numbers)
        return found

    def model(self):
        layers = [nn.Linear(3, 4), *([nn.BatchNorm1d(4)] if self.batch_norm else [])]
        return nn.Sequential(*layers, nn.Linear(4, 1))

    def loss(self, model, batch):
        inputs, targets = batch
        loss = (model(inputs / 10).squeeze(1) - targets / 10).square()
        if self.fault == "nan" and os.environ.get("RANK", "0") == "1":
            loss = loss * float("nan")
        return {"loss": loss.mean(), "target": targets}

    def after_step(self, context):
        context.scalar("probe/step", context.step)


@dataclass
class Ranks(Probe):
    """A loss that is 1 on rank 0 and 3 on rank 1, whatever the model says."""

    def loss(self, model, batch):
        value = 1.0 + 2 * int(os.environ.get("RANK", 0))
        return model(batch[0]).sum() * 0 + value


@dataclass
class Longer(Probe):
    """A train split that is one sample longer on rank 1."""

    def datasets(self):
        found = super().datasets()
        extra = os.environ.get("RANK") == "1"
        return {**found, "train": Numbers(self.samples + extra)}


class LongerAtOnce(Longer):
    """The same, known before the ranks meet."""

    prepare = Task.prepare
