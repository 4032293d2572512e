"""A deep convolutional autoencoder on large random pictures: heavy in memory and arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from launch.config import key
from launch.task import Loss, Task
from parallel import Batch

CHANNELS = (3, 16, 32, 64, 128, 256, 512, 1024, 512, 256, 128, 64, 32, 16, 3)


@dataclass
class Autoencoder(Task):
    """Give back what came in, through 14 convolutions that keep the picture's size.

    A batch is one tensor: pictures [n, 3, image_size, image_size] from 0 to 1.
    """

    image_size: int = key(512, "pixels of a picture's side", at_least=1)
    channel_scale: float = key(1.0, "factor on all channels but the picture's own", above=0)
    samples: int = key(64, "pictures in an epoch", at_least=1)

    def datasets(self) -> Mapping[str, Dataset[Tensor]]:
        """Return pictures that are made when they are asked for, the same every time."""
        return {"train": RandomPictures(self.samples, self.image_size)}

    def model(self) -> nn.Sequential:
        """Return convolutions of 3x3, each with a ReLU after it."""
        channels = scaled(self.channel_scale)
        layers: list[nn.Module] = []
        for before, after in pairwise(channels):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
        return nn.Sequential(*layers)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return the mean squared error []."""
        return self.loss_of_outputs(model(self.inputs(batch)), batch)

    def inputs(self, batch: Batch) -> Tensor:
        """Return the batch: it is all there is."""
        pictures: Tensor = batch
        return pictures

    def loss_of_outputs(self, outputs: Tensor, batch: Batch) -> Loss:
        """Return the mean squared error [] of the outputs [n, 3, image_size, image_size]."""
        return functional.mse_loss(outputs, self.inputs(batch))


def scaled(scale: float) -> list[int]:
    """Return the channels before, between and after the convolutions, inner ones at least 1."""
    inner = [max(1, round(channels * scale)) for channels in CHANNELS[1:-1]]
    return [CHANNELS[0], *inner, CHANNELS[-1]]


class RandomPictures(Dataset[Tensor]):
    """Noise from 0 to 1 that depends on the index alone and is made when it is asked for."""

    def __init__(self, samples: int, size: int) -> None:
        self.samples, self.size = samples, size

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Tensor:
        if not 0 <= index < self.samples:
            raise IndexError(f"picture {index} of {self.samples}")
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, self.size, self.size, generator=generator)

    def __getitems__(self, indices: Sequence[int]) -> Tensor:
        """Return a ready batch [n, 3, size, size]."""
        return torch.stack([self[index] for index in indices])
