"""What a task says of a batch, brought into the one form that engines take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from launch.task import Task
from parallel import Batch, Objective, Outcome, UsageError
from parallel.sums import mixed_forms

Weight = TypeVar("Weight", Tensor, float)
Asked = TypeVar("Asked")  # a model, or its outputs


def objective(task: Task) -> Objective:
    """Return ``task``'s loss and evaluation as an engine asks for them."""
    own = type(task)
    is_cut = own.loss_of_outputs is not Task.loss_of_outputs
    is_judged = own.evaluate is Task.evaluate or own.evaluate_outputs is not Task.evaluate_outputs
    return Objective(
        _outcomes(task.loss),
        _outcomes(task.evaluate),
        task.inputs,
        _outcomes(task.loss_of_outputs) if is_cut else None,
        _outcomes(task.evaluate_outputs) if is_cut and is_judged else None,
    )


def _outcomes(ask: Callable[[Asked, Batch], Any]) -> Callable[[Asked, Batch], Outcome]:
    forms: dict[str, int] = {}  # metric -> its dimensions, as the first batch had them

    def answer(asked: Asked, batch: Batch) -> Outcome:
        said = outcome(ask(asked, batch))
        for name, value in said.metrics.items():
            if forms.setdefault(name, value.ndim) != value.ndim:
                raise UsageError(mixed_forms(name))
        return said

    return answer


def outcome(said: Any) -> Outcome:
    """Return loss, (loss, weight) or {"loss", "weight", metrics} as an ``Outcome``."""
    if isinstance(said, Mapping) and "loss" in said:
        metrics = {name: value for name, value in said.items() if name not in ("loss", "weight")}
        if not all(isinstance(name, str) for name in metrics):
            raise UsageError(f"the names of metrics are text, met {list(metrics)}")
        for name, value in metrics.items():
            _check_metric(name, value)
        return Outcome(_loss(said["loss"], ' in the dict\'s "loss"'), _weight(said), metrics)
    if isinstance(said, tuple) and len(said) == 2:
        return Outcome(_loss(said[0], " in (loss, weight)"), _weight({"weight": said[1]}))
    return Outcome(_loss(said, ""))


def _loss(value: Any, place: str) -> Tensor:
    if not isinstance(value, Tensor):
        others = "" if place else ', (loss, weight), or a dict with "loss"'
        if isinstance(value, tuple) and "dict" in place:
            others = '; a weight stands beside it: {"loss": mean, "weight": tokens, ...}'
        raise UsageError(
            f"the task's loss is a {type(value).__name__}{place}, wanted a 0-d tensor{others}"
        )
    return value


def _check_metric(name: str, value: Any) -> None:
    """Raise where ``value`` has no mean that is a number."""
    if isinstance(value, Tensor) and value.ndim < 2 and not value.is_complex():
        return
    met = f"a {type(value).__name__}"
    if isinstance(value, Tensor):
        met = "complex" if value.is_complex() else f"of shape {list(value.shape)}"
    raise UsageError(
        f"the metric {name!r} is {met}, wanted a tensor of real numbers: one value for each "
        "sample [n], or their mean []"
    )


def _weight(said: Mapping[str, Any]) -> Tensor | float | None:
    value = said.get("weight")
    if isinstance(value, Tensor) and not value.ndim and not value.is_complex():
        return value if value.device.type != "cpu" else _counted(value)  # elsewhere it would wait
    if value is None:
        return None
    if isinstance(value, int | float):
        return _counted(float(value))
    met = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    if isinstance(value, Tensor) and value.is_complex():
        met = "complex numbers"
    raise UsageError(
        f"the weight of the task's loss has {met}, wanted what the mean was taken over: a number, "
        "or a 0-d tensor, such as mask.sum()"
    )


def _counted(weight: Weight) -> Weight:
    """Return ``weight``, once it can be a number of things."""
    if not 0 <= float(weight) < math.inf:
        raise UsageError(
            f"the weight of the task's loss is {float(weight):g}, wanted how many samples or "
            "tokens the mean was taken over: 0 or more, such as mask.sum()"
        )
    return weight
