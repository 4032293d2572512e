"""What a user brings: a model, data, a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, default_collate

from parallel import Batch, UsageError

Loss = Tensor | tuple[Tensor, Tensor | float] | Mapping[str, Any]


@dataclass(frozen=True)
class StepContext:
    """What ``Task.after_step`` may see and say. ``scalar`` and ``picture`` reach TensorBoard."""

    step: int  # optimizer steps done, the first is 1
    epoch: int
    model: nn.Module  # unwrapped
    is_main: bool
    scalar: Callable[[str, float], None]
    picture: Callable[[str, Tensor], None]  # [1 or 3, height, width], 0 to 1


class Task(ABC):
    """What is learnt. Subclass as a dataclass: its fields are its configuration keys.

    A batch is whatever ``collate`` makes of a list of samples; only the task looks inside.
    """

    def prepare(self) -> None:  # noqa: B027 - a hook, empty unless a task needs it
        """Download or unpack. Called once on each node before ``datasets``.

        The others wait, up to launch.timeout_s.
        """

    @abstractmethod
    def datasets(self) -> Mapping[str, Dataset[Any]]:
        """Return ``{"train": ..., "valid": ...}``; every split but train is evaluated.

        Map-style, with ``__getitems__`` returning a ready batch where that is faster, or
        iterable, with ``shard(rank, world)`` returning a part where it can be divided: the parts
        then decide which samples share a global batch, and equal parts keep it full.
        """

    @abstractmethod
    def model(self) -> nn.Module:
        """Return a fresh model on the CPU; the run's seed is already set."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return the batch's mean loss [], or (loss, weight), or a dict.

        The weight (e.g. tokens) is what the mean was taken over; without it the samples count.
        The dict has "loss", perhaps "weight", and metrics by name: [n], one value a sample or
        token, or [], a mean with the loss's weight.
        """

    def evaluate(self, model: nn.Module, batch: Batch) -> Loss:
        """Return the same for evaluation. ``model`` is in evaluation mode, without gradients."""
        return self.loss(model, batch)

    def optimizers(self, model: nn.Module) -> Optimizer | list[Optimizer] | None:
        """Return the optimizer or optimizers, or None for the one of the configuration."""
        return None

    def collate(self, samples: list[Any]) -> Batch:
        """Make a batch of samples: torch's default collation."""
        return default_collate(samples)

    def after_step(self, context: StepContext) -> None:  # noqa: B027 - a hook
        """Run after each optimizer step, on every rank: averages of weights, pictures."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return what ``after_step`` keeps outside the model, to be saved with each checkpoint.

        Tensors, numbers, text, bytes, and lists and mappings of these, as they are on rank 0.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - a hook
        """Go on from what ``state_dict`` returned, on every rank; tuples are lists, all on the CPU.

        It is called before the first step of a resumed run, and never in one that begins.
        """

    # For strategies that cut the model: where it begins and where it ends.

    def inputs(self, batch: Batch) -> Any:
        """Return what the model's first layer gets: the first of a pair."""
        if not isinstance(batch, tuple | list):
            raise UsageError(
                f"the batch is a {type(batch).__name__}, of which the model's first layer gets a "
                f"part; define inputs(self, batch) in {type(self).__name__}"
            )
        return batch[0]

    def loss_of_outputs(self, outputs: Any, batch: Batch) -> Loss:
        """Return the loss of the last layer's outputs, as ``loss`` does."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot be cut into stages: define "
            "loss_of_outputs(self, outputs, batch), the loss of the last layer's outputs"
        )

    def evaluate_outputs(self, outputs: Any, batch: Batch) -> Loss:
        """Return the same for evaluation: define it where ``evaluate`` is not ``loss``."""
        return self.loss_of_outputs(outputs, batch)
