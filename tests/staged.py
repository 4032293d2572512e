"""Tasks that can be cut into stages, for the tests of whole runs."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from launch.task import Task
from tests.tasks import Stream, fail


class Scale(nn.Module):
    """A layer that changes nothing, until it is trained to."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.factor


@dataclass
class Same(Task):
    """Numbers that are their own targets, and a model that knows it: its loss is 0."""

    samples: int = 24

    def datasets(self):
        numbers = torch.arange(float(self.samples)).unsqueeze(1)
        return {"train": TensorDataset(numbers, numbers), "valid": TensorDataset(numbers, numbers)}

    def model(self):
        return nn.Sequential(*(Scale() for _ in range(4)))

    def loss(self, model, batch):
        return self.loss_of_outputs(model(batch[0]), batch)

    def loss_of_outputs(self, outputs, batch):
        return (outputs - batch[1]).square().mean()


@dataclass
class Waves(Same):
    """A regression with a metric. fault: what happens in layer ``layer``, in its 20th call."""

    fault: str = ""
    layer: int = 0
    where: str = "forward"
    stream: bool = False

    def datasets(self):
        if self.stream:
            return {"train": Stream(self.samples)}
        x = torch.linspace(-1, 1, 3 * self.samples).reshape(-1, 3)
        y = x.sum(1, keepdim=True).sin()
        return {"train": TensorDataset(x, y), "valid": TensorDataset(x[:7], y[:7])}

    def model(self):
        layers = [nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)]
        if self.fault:
            layers[self.layer] = Faulty(layers[self.layer], self.fault, self.where)
        return nn.Sequential(OrderedDict(layers=nn.Sequential(*layers)))

    def loss_of_outputs(self, outputs, batch):
        error = (outputs - batch[1].reshape(-1, 1)).square().squeeze(1)
        return {"loss": error.mean(), "accuracy": (error < 0.25).float()}


@dataclass
class OwnEvaluation(Waves):
    """Judges in a way of its own, from the whole model."""

    def evaluate(self, model, batch):
        return self.loss(model, batch)


class Faulty(nn.Module):
    """A layer in which something happens, in training and not before."""

    def __init__(self, layer, fault, where):
        super().__init__()
        self.layer, self.fault, self.where, self.calls = layer, fault, where, 0

    def forward(self, x):
        self.calls += 1
        is_due = self.calls == 20
        if is_due and self.where == "forward":
            befall(self.fault)
        outputs = self.layer(x)
        if is_due and self.where == "backward":
            outputs.register_hook(lambda gradient: befall(self.fault))
        return outputs


def befall(fault):
    if fault == "hang":
        time.sleep(60)
    fail(fault)


class Watch(TensorDataset):
    """Leaves a file that says which rank read a sample."""

    def __getitem__(self, index):
        Path(f"read-by-{os.environ['RANK']}.txt").touch()
        return super().__getitem__(index)


@dataclass
class Watched(Waves):
    """Says by which ranks its samples are read."""

    def datasets(self):
        return {split: Watch(*part.tensors) for split, part in super().datasets().items()}


@dataclass
class Seeded(Waves):
    """A model that seeds torch while it is built."""

    def model(self):
        torch.manual_seed(3)
        return super().model()


class Leaky(nn.Module):
    """Offers layers, and does something between them that they do not."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.second(self.first(x).relu())

    def pipeline_layers(self):
        return {"first": self.first, "second": self.second}


@dataclass
class Leaks(Waves):
    """A model whose layers in order are another model."""

    def model(self):
        return Leaky()


@dataclass
class Named(Waves):
    """Batches that are dicts, of which nobody said what the model gets."""

    def collate(self, samples):
        x, y = super().collate(samples)
        return {"x": x, "y": y}
