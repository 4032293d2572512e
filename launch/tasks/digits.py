"""The built-in task: real handwritten digits of 8x8 pixels, and a small CNN that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from launch.config import ConfigError, key
from launch.task import Loss, Task
from launch.tasks.metrics import accuracy
from parallel import Batch

FILE = Path(__file__).with_name("digits.npz")  # source and licence: digits.LICENSE


@dataclass
class Digits(Task):
    """Which digit is it? 1,797 pictures, of which the last ``held_out`` judge the model.

    The file is in the order of its writers, more or less, so that most pictures held out are by
    hands that the model never saw. A batch is (pictures [n, 1, 8, 8] from 0 to 1, digits [n]).
    """

    width: int = key(32, "channels of the first two convolutions", at_least=1)
    batch_norm: bool = key(True, "normalise over the batch after each convolution")
    held_out: int = key(360, "pictures that judge the model", at_least=0)

    def datasets(self) -> Mapping[str, Dataset[tuple[Tensor, ...]]]:
        """Return the first pictures for training and the last ``held_out`` as "valid"."""
        splits = ("train", "valid") if self.held_out else ("train",)
        return {split: pictures(split, self.held_out) for split in splits}

    def model(self) -> nn.Sequential:
        """Return the network: 30,762 parameters with the defaults."""
        return network(self.width, self.batch_norm)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return the cross entropy and which pictures were read correctly."""
        return self.loss_of_outputs(model(self.inputs(batch)), batch)

    def loss_of_outputs(self, outputs: Tensor, batch: Batch) -> Loss:
        """Return the same from the outputs [n, 10]."""
        digits = batch[1]
        return {
            "loss": functional.cross_entropy(outputs, digits),
            "accuracy": accuracy(outputs, digits),
        }


def pictures(split: str, held_out: int = 360) -> TensorDataset:
    """Return a split of the shipped digits: pictures [n, 1, 8, 8] from 0 to 1, and labels [n]."""
    with np.load(FILE, allow_pickle=False) as arrays:
        images = torch.from_numpy(arrays["images"]).float().unsqueeze(1) / 16
        labels = torch.from_numpy(arrays["labels"]).long()
    if split not in ("train", "valid") or not 0 <= held_out < len(labels):
        raise ConfigError(
            f"wanted split train or valid of {len(labels)} digits, fewer than that held out, "
            f"met split={split} and held_out={held_out}; leave out held_out for 360"
        )
    cut = len(labels) - held_out
    part = slice(0, cut) if split == "train" else slice(cut, None)
    return TensorDataset(images[part], labels[part])


def network(width: int = 32, batch_norm: bool = True) -> nn.Sequential:
    """Return layers from [n, 1, 8, 8] to [n, 10] that can be cut anywhere."""
    return nn.Sequential(
        *_convolution(1, width, batch_norm),
        *_convolution(width, width, batch_norm),
        nn.MaxPool2d(2),  # [n, width, 4, 4]
        *_convolution(width, 2 * width, batch_norm),
        nn.AvgPool2d(2),  # [n, 2 width, 2, 2]
        nn.Flatten(),
        nn.Linear(8 * width, 10),
    )


def _convolution(inputs: int, outputs: int, batch_norm: bool) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=not batch_norm)
    return [convolution, *([nn.BatchNorm2d(outputs)] if batch_norm else []), nn.ReLU()]
