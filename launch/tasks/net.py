"""The smallest task there is: two linear layers on random samples, to measure the loop itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from launch.config import key
from launch.task import Loss, Task
from launch.tasks.metrics import accuracy
from parallel import Batch


@dataclass
class Net(Task):
    """Tell two classes apart that chance has assigned: there is nothing to learn but by heart.

    A batch is (samples [n, features], labels [n], 0 or 1).
    """

    samples: int = key(10_000, "random samples to train on", at_least=1)
    features: int = key(10, "numbers in a sample", at_least=1)
    width: int = key(5, "numbers in the hidden layer", at_least=1)
    valid_samples: int = key(0, "further samples that judge the model", at_least=0)

    def datasets(self) -> Mapping[str, Dataset[tuple[Tensor, ...]]]:
        """Return the same random numbers every time."""
        splits = {"train": self._random(self.samples, seed=0)}
        if self.valid_samples:
            splits["valid"] = self._random(self.valid_samples, seed=1)
        return splits

    def model(self) -> nn.Sequential:
        """Return the network 10-5-2."""
        return nn.Sequential(
            nn.Linear(self.features, self.width), nn.ReLU(), nn.Linear(self.width, 2)
        )

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return the cross entropy and which samples were told correctly."""
        return self.loss_of_outputs(model(self.inputs(batch)), batch)

    def loss_of_outputs(self, outputs: Tensor, batch: Batch) -> Loss:
        """Return the same from the outputs [n, 2]."""
        labels = batch[1]
        return {
            "loss": functional.cross_entropy(outputs, labels),
            "accuracy": accuracy(outputs, labels),
        }

    def _random(self, samples: int, seed: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(seed)
        numbers = torch.randn(samples, self.features, generator=generator)
        return TensorDataset(numbers, torch.randint(2, (samples,), generator=generator))
