"""Tasks that misbehave, or look closely, for the tests of whole runs."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path

import numpy
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
    if fault == "odd":
        raise RuntimeError("\udcff bad")
    if fault == "mute":
        raise MuteError
    if fault == "endless":
        raise ValueError("x" * 3_000_000)
    if fault == "memory":
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
    if fault == "exit":
        sys.exit(0)
    if fault == "leave":
        os._exit(0)
    if fault == "kill":
        os.kill(os.getpid(), 9)


class MuteError(RuntimeError):
    """An error that cannot say what it is."""

    def __str__(self):
        raise KeyError("no such format")


class Stream(IterableDataset):
    """Numbers one by one; filtered: some are left out, so that nobody knows how many there are."""

    def __init__(self, size: int, filtered: bool = False) -> None:
        self.size, self.filtered = size, filtered

    def __iter__(self):
        for index in range(self.size):
            if self.filtered and index % 7 in (1, 2, 4):
                continue
            yield torch.tensor([float(index)] * 3), torch.tensor(float(index))


@dataclass
class Probe(Task):
    """Linear regression on 0, 1, 2, ...; fault: what goes wrong on rank 1 after a few samples."""

    samples: int = 16
    valid: int = 5
    fault: str = ""
    fault_rank: int = 1
    sleep_s: float = 0.0
    stream: bool = False
    filtered: bool = False
    batch_norm: bool = False

    def prepare(self):
        with Path("prepared.txt").open("a") as file:
            file.write(f"{os.environ.get('RANK', 0)}\n")
        time.sleep(self.sleep_s)
        if self.fault == "prepare":
            raise OSError("no such mirror")

    def datasets(self):
        numbers = Numbers(self.samples, self.fault, self.fault_rank)
        found = {"train": Stream(self.samples, self.filtered) if self.stream else numbers}
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
class Apart(Probe):
    """A weight that rank 1 changes on its own in the step ``apart_at``."""

    apart_at: int = 1

    def after_step(self, context):
        if context.step == self.apart_at and os.environ.get("RANK") == "1":
            with torch.no_grad():
                context.model[0].weight.add_(0.001)


@dataclass
class Longer(Probe):
    """A train split that is one sample longer on rank 1."""

    def datasets(self):
        found = super().datasets()
        extra = os.environ.get("RANK") == "1"
        return {**found, "train": Numbers(self.samples + extra)}


class Ready(Probe):
    """Splits that are known before the ranks meet."""

    prepare = Task.prepare


class LongerAtOnce(Longer):
    """The same, known before the ranks meet."""

    prepare = Task.prepare


class NoisyNumbers(Dataset):
    """Numbers with noise of every generator."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        noise = [random.random(), float(numpy.random.rand()), float(torch.rand(()))]
        return torch.tensor(noise) + index, torch.tensor(float(index))


@dataclass
class Noisy(Probe):
    """All that must be carried over: dropout, normalisation, noise, an average kept by the task.

    told_at: the step in which rank ``told`` gets ``signal``, once; twice: and again; group: its
    loader processes too. told_building, told_saving, told_judging: when rank 0 gets SIGTERM, once.
    """

    samples: int = 45
    told_at: int = 0
    told: int = 0
    signal: int = 15
    twice: bool = False
    group: bool = False
    told_building: bool = False
    told_saving: int = 0
    told_judging: int = 0
    slow_s: float = 0.0
    judged_s: float = 0.0
    saving_s: float = 0.0

    def __post_init__(self):
        self.average = torch.zeros(4, 3)
        self.draws = 0.0
        self.step = self.seen = 0

    def datasets(self):
        found = super().datasets()
        return {**found, "train": found["train"] if self.stream else NoisyNumbers(self.samples)}

    def model(self):
        if self.told_building:
            tell_once("building", 0)
        norm = nn.BatchNorm1d(4) if self.batch_norm else nn.LayerNorm(4)
        return nn.Sequential(nn.Linear(3, 4), norm, nn.Dropout(0.5), nn.Linear(4, 1))

    def loss(self, model, batch):
        if model.training:
            with Path(f"batches-{os.environ.get('RANK', 0)}.txt").open("a") as file:
                file.write(" ".join(str(int(n)) for n in batch[1]) + "\n")
        time.sleep(self.slow_s)
        return super().loss(model, batch)

    def after_step(self, context):
        self.average = 0.9 * self.average + 0.1 * next(context.model.parameters()).detach()
        self.draws += random.random() + float(numpy.random.rand())
        self.step = context.step
        if context.step == self.told_at:
            children = active_children() if self.group else []
            tell_once("step", self.told, self.signal, [child.pid for child in children])
            if self.twice:
                time.sleep(0.5)
                tell_once("again", self.told, self.signal)

    def evaluate(self, model, batch):
        time.sleep(self.judged_s)
        self.seen += 1
        if self.seen == self.told_judging:
            tell_once("judging", 0)
        return super().evaluate(model, batch)

    def state_dict(self):
        time.sleep(self.saving_s)
        if self.told_saving and self.step == self.told_saving:
            tell_once("saving", 0)
        return {"kept": {"average": self.average}, "draws": [self.draws]}

    def load_state_dict(self, state):
        self.average, [self.draws] = state["kept"]["average"], state["draws"]


def tell_once(when, told, number=signal.SIGTERM, others=()):
    """Send this process, if it is rank ``told``, and ``others`` a signal, the first time only."""
    marker = Path(f"told-{when}.txt")
    if int(os.environ.get("RANK", 0)) == told and not marker.exists():
        marker.touch()
        for pid in (*others, os.getpid()):
            os.kill(pid, number)


@dataclass
class Expanded(Noisy):
    """A model with a buffer that is one number many times."""

    def model(self):
        model = super().model()
        model[0].register_buffer("scale", torch.ones(1).expand(4))
        return model


@dataclass
class Full(Noisy):
    """A megabyte to save, which after step ``full_at``, once, has no room until ``free_at``.

    blocked: a file takes the folder's place instead. fails_at, on rank ``fails``: an exception.
    """

    full_at: int = 0
    free_at: int = 99
    blocked: bool = False
    ballast: int = 250_000
    fails_at: int = 0
    fails: int = 1

    def state_dict(self):
        return {**super().state_dict(), "ballast": torch.zeros(self.ballast)}

    def after_step(self, context):
        super().after_step(context)
        if not int(os.environ.get("RANK", 0)) and context.step in (self.full_at, self.free_at):
            marker = Path(f"full-{context.step}.txt")
            if not marker.exists():
                marker.touch()
                self.block() if self.blocked else self.limit(context.step)
        if int(os.environ.get("RANK", 0)) == self.fails and context.step == self.fails_at:
            raise ValueError("boom")

    def limit(self, step):
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000 if step == self.full_at else hard, hard))

    def block(self):
        folder = next(Path("runs").glob("*/checkpoints"))
        folder.rename(folder.with_name("moved"))
        folder.write_text("mine")


@dataclass
class Gone(Probe):
    """A run whose folder meets something after step ``gone_at``, on rank 0, once."""

    samples: int = 64
    gone_at: int = 3
    how: str = "removed"

    def after_step(self, context):
        is_main, marker = os.environ.get("RANK", "0") == "0", Path("met.txt")
        if context.step == self.gone_at and is_main and not marker.exists():
            marker.touch()
            meet(Path("runs/a"), self.how)


def meet(folder, how):
    if how in ("removed", "another's"):
        shutil.rmtree(folder.rename("gone"))  # at once, whatever is written to it by then
    if how == "another's":
        folder.mkdir()
        (folder / "config.yaml").write_text("name: theirs")
    if how == "moved":
        folder.rename("elsewhere")
    if how == "no config":
        (folder / "config.yaml").unlink()
    if how == "no lock":
        (folder / "lock").unlink()


@dataclass
class Frozen(Probe):
    """Rank ``frozen`` is held by a signal after its second step, until somebody frees it."""

    frozen: int = 1

    def after_step(self, context):
        if context.step == 2 and int(os.environ.get("RANK", 0)) == self.frozen:
            Path("frozen.part").write_text(str(os.getpid()))
            Path("frozen.part").rename("frozen.txt")
            os.kill(os.getpid(), signal.SIGSTOP)
