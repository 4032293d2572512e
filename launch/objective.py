"""What a task says of a batch, brought into the one form that engines take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from launch.task import Task
from parallel import Batch, Objective, Outcome, UsageError


def objective(task: Task) -> Objective:
    """Return ``task``'s loss and evaluation as an engine asks for them."""
    return Objective(_outcomes(task.loss), _outcomes(task.evaluate))


def _outcomes(ask: Callable[[nn.Module, Batch], Any]) -> Callable[[nn.Module, Batch], Outcome]:
    def answer(model: nn.Module, batch: Batch) -> Outcome:
        return outcome(ask(model, batch))

    return answer


def outcome(said: Any) -> Outcome:
    """Return loss, (loss, weight) or {"loss", "weight", metrics} as an ``Outcome``."""
    if isinstance(said, Tensor):
        return Outcome(said)
    if isinstance(said, Mapping) and isinstance(said.get("loss"), Tensor):
        metrics = {name: value for name, value in said.items() if name not in ("loss", "weight")}
        wrong = [name for name, value in metrics.items() if not isinstance(value, Tensor)]
        if not all(isinstance(name, str) for name in metrics):
            raise UsageError(f"the names of metrics are text, met {list(metrics)}")
        if not wrong:
            return Outcome(said["loss"], _weight(said.get("weight")), metrics)
        raise UsageError(
            f"the metric {wrong[0]!r} is a {type(metrics[wrong[0]]).__name__}, wanted a tensor: "
            "one value for each sample [n], or their mean []"
        )
    if isinstance(said, tuple) and len(said) == 2 and isinstance(said[0], Tensor):
        return Outcome(said[0], _weight(said[1]))
    raise UsageError(
        f"the task's loss is a {type(said).__name__}, wanted a 0-d tensor, (loss, weight), "
        'or a dict with "loss"'
    )


def _weight(value: Any) -> Tensor | float | None:
    if value is None or (isinstance(value, Tensor) and not value.ndim):
        return value
    if isinstance(value, int | float):
        return float(value)
    met = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    raise UsageError(
        f"the weight of the task's loss has {met}, wanted what the mean was taken over: a number, "
        "or a 0-d tensor, such as mask.sum()"
    )
