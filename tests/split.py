"""A model that is really split over ranks, a task for it, and checkpoints in parts."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import torch
import torch.distributed as dist
from torch import nn

from launch.checkpoint import collect
from launch.checkpoint.files import begin, complete
from launch.checkpoint.shards import unite, write_shard
from launch.task import Task
from parallel import Strategy
from parallel.single import Whole
from tests.tasks import Full, Noisy, Probe


@dataclass(frozen=True)
class Split(Strategy):
    """Every rank sees all data, updates its own tensors, and has the others' sent to it.

    spare: how many ranks, the first ones, have nothing.
    """

    spare: int = 0
    mistake: str = ""  # of rank 1: it saves a tensor "twice", or an "odd" one

    def start(self, work):
        return Part(work, self)


class Part(Whole):
    """The part of a model that is this rank's: the tensors are dealt out by turns."""

    is_split = True

    def __init__(self, work, strategy):
        super().__init__(work)
        self.strategy = strategy
        names = list(self.module.state_dict())
        others = self.world.size - strategy.spare
        self.owners = {n: strategy.spare + i % others for i, n in enumerate(names)}
        self.parameters = dict(self.module.named_parameters())

    def backward_done(self):
        for name, parameter in self.parameters.items():
            if self.owners[name] != self.world.rank:
                parameter.grad = None

    def train_step(self, share):
        result = super().train_step(share)
        for name, parameter in self.parameters.items():
            if self.world.size > 1:
                dist.broadcast(parameter.data, src=self.owners[name])
        return result

    def state(self, compare=False):
        held, rank = super().state(compare), self.world.rank
        held.model = {n: t for n, t in held.model.items() if self.owners[n] == rank}
        held.optimizer = {
            key: tensor
            for key, tensor in held.optimizer.items()
            if self.owners[key.partition("/")[2].rpartition("/")[0]] == rank
        }
        if self.strategy.mistake == "twice" and rank:
            held.model["0.weight"] = self.module[0].weight
        if self.strategy.mistake == "odd" and rank:
            held.model["odd"] = torch.eye(2).to_sparse()
        return held


def save_parts(folder, step, parts, state=None):
    """Write a checkpoint of which each rank holds one of ``parts``: (model, optimizer)."""
    contents = [collect(step, model, optimizer, state or {}) for model, optimizer in parts]
    begin(folder, step)
    shards = [write_shard(folder, rank, each) for rank, each in enumerate(contents)]
    return complete(folder, step, lambda part: unite(part, shards, contents[0]))


@dataclass
class Parted(Full):
    """A model with tied weights and a complex buffer, and ``ballast`` numbers on rank ``full``.

    full_at: after it, once, rank ``full`` has no room until ``free_at``. killed_at: the checkpoint
    in the middle of which rank ``killed`` is killed, once.
    """

    dropout: float = 0.0
    ballast: int = 0
    full: int = 1
    killed_at: int = 0
    killed: int = 1

    datasets = Probe.datasets
    state_dict, load_state_dict = Task.state_dict, Task.load_state_dict

    def model(self):
        norm = [nn.BatchNorm1d(4)] if self.batch_norm else [nn.LayerNorm(4)]
        layers = [
            nn.Linear(4, 4, bias=False),
            nn.Dropout(self.dropout),
            nn.Linear(4, 4, bias=False),
        ]
        model = nn.Sequential(nn.Linear(3, 4), *norm, *layers, nn.Linear(4, 1))
        model[4].weight = model[2].weight
        turn, ballast = torch.ones(2, dtype=torch.complex64), torch.zeros(self.ballast)
        buffers = {"turn": turn, "ballast": ballast}
        for name in sorted(buffers, reverse=self.full == 1):
            model.register_buffer(name, buffers[name])
        return model

    def after_step(self, context):
        Noisy.after_step(self, context)
        rank = int(os.environ.get("RANK", 0))
        is_due = rank == self.full and context.step in (self.full_at, self.free_at)
        if is_due and is_first(f"full-{context.step}"):
            self.limit(context.step)
        if rank == self.killed and context.step == self.killed_at and is_first("killed"):
            Thread(target=kill_once_it_writes, args=(rank,), daemon=True).start()
        if rank == self.fails and context.step == self.fails_at:
            raise ValueError("boom")


def is_first(what):
    """Whether this has not happened before, here or in an earlier attempt."""
    marker = Path(f"{what}.txt")
    if marker.exists():
        return False
    marker.touch()
    return True


def kill_once_it_writes(rank):
    """Kill this process as soon as its own shard of a model is being written."""
    while not list(Path("runs").glob(f"*/checkpoints/.step-*.part/model.rank-{rank}.safetensors")):
        time.sleep(0.001)
    os.kill(os.getpid(), 9)
