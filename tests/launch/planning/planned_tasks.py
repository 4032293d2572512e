"""Tasks that planning meets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import IterableDataset, TensorDataset

from launch.task import Task


@dataclass
class Plain(Task):
    """A chain of linear layers."""

    width: int = 32
    layers: int = 4
    samples: int = 256

    def datasets(self):
        x = torch.randn(self.samples, self.width, generator=torch.Generator().manual_seed(1))
        return {"train": TensorDataset(x, x.roll(1, 0))}

    def model(self):
        return nn.Sequential(*(nn.Linear(self.width, self.width) for _ in range(self.layers)))

    def loss(self, model, batch):
        return self.loss_of_outputs(model(batch[0]), batch)

    def loss_of_outputs(self, outputs, batch):
        return functional.mse_loss(outputs, batch[1])


class Uncut(Plain):
    """The same, without a word on outputs."""

    loss_of_outputs = Task.loss_of_outputs

    def loss(self, model, batch):
        return functional.mse_loss(model(batch[0]), batch[1])


class Reads(Uncut):
    """Its loss depends on what the numbers are."""

    def loss(self, model, batch):
        loss = functional.mse_loss(model(batch[0]), batch[1])
        return loss * float(batch[0].numpy().size > 0)


class Pairs(IterableDataset):
    def __iter__(self):
        for number in range(1000):
            yield torch.full((4,), float(number)), torch.zeros(4)


class Streamed(Plain):
    """Data without an end that is known."""

    def datasets(self):
        return {"train": Pairs()}

    def model(self):
        return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
