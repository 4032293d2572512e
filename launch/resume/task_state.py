"""What a task keeps outside its model: tensors to one file, the rest to another, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from launch.failures import TrainingError
from launch.task import Task
from parallel import UsageError

PREFIX = "task/"  # before the names of a task's tensors, which lie with the optimizers'
TENSOR = "$tensor"  # in the place of one: {"$tensor": its name}


def refuse_own_state(task: Task, is_split: bool) -> None:
    """Raise ``UsageError`` where rank 0 cannot save for all ranks what the task keeps."""
    if is_split and type(task).state_dict is not Task.state_dict:
        name = type(task).__name__
        raise UsageError(
            f"{name}.state_dict() is saved as rank 0 holds it, and this strategy gives each "
            "process another part of the model; keep that state in buffers of the model and "
            f"remove {name}.state_dict(), or train with strategy.name=ddp"
        )


def taken(task: Task) -> tuple[Any, dict[str, Tensor]]:
    """Return what ``task.state_dict()`` holds: plain values, and the tensors anywhere in it."""
    state, tensors = task.state_dict(), dict[str, Tensor]()
    if not isinstance(state, Mapping):
        raise TrainingError(
            f"{type(task).__name__}.state_dict() returned a {type(state).__name__}, wanted a "
            "mapping of names to tensors, numbers, text, and lists and mappings of these"
        )
    try:
        return _without_tensors(state, PREFIX, tensors), tensors
    except RecursionError:
        raise TrainingError(
            f"{type(task).__name__}.state_dict() returned a mapping that holds itself, or too many "
            "within each other"
        ) from None


def give_back(task: Task, plain: Any, tensors: Mapping[str, Tensor]) -> None:
    """Hand it to ``task.load_state_dict`` as it was, with tensors that are nobody else's."""
    task.load_state_dict(_with_tensors(plain, tensors))


def _without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[name] = value
        return {TENSOR: name}
    if isinstance(value, Mapping):
        return {k: _without_tensors(v, _below(name, k), tensors) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_tensors(v, _below(name, i), tensors) for i, v in enumerate(value)]
    return value


def _with_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {TENSOR}:
            return tensors[value[TENSOR]].clone()
        return {key: _with_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_tensors(item, tensors) for item in value]
    return value


def _below(name: str, key: object) -> str:
    """Return a name that no other place in the state has: repr tells 1 from "1"."""
    return f"{name}{key if isinstance(key, str) else repr(key) + ':'}/"
