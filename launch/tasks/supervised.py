"""Any model, data set and loss that can be imported, made into a task without writing a class."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from launch.config import ConfigError, build, check_target, import_target
from launch.task import Loss, Task
from parallel import Batch, UsageError

Target = Mapping[str, Any]  # {_target_: package.module.Name, and its arguments}


class Supervised(Task):
    """``x, y = batch; loss(model(x), y)``, from pieces that are named or ready.

    model: a module. train, valid: data sets of pairs. loss, metrics: called with the model's
    outputs and y; a metric returns [n], one value a sample, or a mean []. Each is a dict with a
    ``_target_``, or the thing itself; a loss or metric may be a function's import path.
    """

    def __init__(
        self,
        model: Target | nn.Module,
        train: Target | Dataset[Any],
        loss: Target | str | Callable[..., Any],
        valid: Target | Dataset[Any] | None = None,
        metrics: Mapping[str, Target | str | Callable[..., Any]] | None = None,
    ) -> None:
        given = {"train": train, "valid": valid}
        self._model = _checked(model, nn.Module, "task.model")
        self._splits = {
            split: _checked(data, object, f"task.{split}")
            for split, data in given.items()
            if data is not None
        }
        self._loss = _function(loss, "task.loss")
        self._metrics = {
            name: _function(metric, f"task.metrics.{name}")
            for name, metric in (metrics or {}).items()
        }
        _refuse_unfit(self._loss, self._metrics)

    def datasets(self) -> Mapping[str, Dataset[Any]]:
        """Return what ``train`` and ``valid`` stand for."""
        return {split: _dataset(data, f"task.{split}") for split, data in self._splits.items()}

    def model(self) -> nn.Module:
        """Return the model, built anew; of a ready one, a copy."""
        if isinstance(self._model, nn.Module):
            return copy.deepcopy(self._model)
        return build(self._model, nn.Module, "task.model")

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return the loss [] and the metrics."""
        return self.loss_of_outputs(model(self.inputs(batch)), batch)

    def inputs(self, batch: Batch) -> Any:
        """Return the first of the pair."""
        return _pair(batch)[0]

    def loss_of_outputs(self, outputs: Any, batch: Batch) -> Loss:
        """Return the loss [] and the metrics of the model's outputs."""
        targets = _pair(batch)[1]
        if isinstance(self._loss, nn.Module) and isinstance(targets, Tensor):
            self._loss.to(targets.device)  # weights of classes must be where the data are
        loss = self._loss(outputs, targets)
        with torch.no_grad():
            metrics = {
                name: torch.as_tensor(metric(outputs, targets))
                for name, metric in self._metrics.items()
            }
        return {"loss": loss, **metrics}


def _checked(value: Any, kind: type[Any], key: str) -> Any:
    """Return ``value``, once it is of ``kind`` or its `_target_` can be called with its keys."""
    if isinstance(value, Mapping):
        check_target(value, kind, key)
    elif not isinstance(value, kind) or isinstance(value, str):
        raise ConfigError(f"{key}: wanted {key}._target_=package.module.Name, met {value!r}")
    return value


def _function(value: Any, key: str) -> Callable[..., Any]:
    """Return what is to be called with outputs and targets."""
    if isinstance(value, Mapping):
        made: Any = build(value, object, key)
    else:
        made = import_target(value, key) if isinstance(value, str) else value
        if isinstance(made, type):
            raise ConfigError(
                f"{key}: {made.__name__} is a class, which must be made first; "
                f"type {key}={{_target_: {made.__module__}.{made.__qualname__}}}"
            )
    if not callable(made):
        raise ConfigError(
            f"{key}: wanted a function of outputs and targets, such as "
            f"torch.nn.functional.cross_entropy; met {made!r}"
        )
    function: Callable[..., Any] = made
    return function


def _dataset(value: Any, key: str) -> Dataset[Any]:
    """Return a data set: anything with samples to count and index, or to iterate over."""
    made: Any = build(value, object, key) if isinstance(value, Mapping) else value
    is_map = hasattr(made, "__getitem__") and hasattr(made, "__len__")
    if isinstance(made, nn.Module | str | Mapping) or not (is_map or hasattr(made, "__iter__")):
        raise ConfigError(
            f"{key}: wanted a data set, with __getitem__ and __len__ or with __iter__; "
            f"met {type(made).__name__}"
        )
    dataset: Dataset[Any] = made
    return dataset


def _refuse_unfit(loss: Any, metrics: Mapping[str, Any]) -> None:
    """Raise where a loss would have to learn, or a metric has a name that means the loss."""
    if isinstance(loss, nn.Module) and any(True for _ in loss.parameters()):
        raise ConfigError(
            f"task.loss: {type(loss).__name__} has parameters, and only the model's are trained; "
            "write a Task whose model() holds both"
        )
    taken = {"loss", "weight"} & set(metrics)
    if taken:
        name = taken.pop()
        raise ConfigError(f"task.metrics.{name}: that name means the loss's own; choose another")


def _pair(batch: Batch) -> tuple[Any, Any]:
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    met = f"a {type(batch).__name__}"
    if isinstance(batch, tuple | list):
        met += f" of {len(batch)}"
    raise UsageError(
        f"Supervised wants batches that are a pair (inputs, targets), met {met}; "
        "let the data set return pairs, or write a Task: its loss(model, batch) takes any batch"
    )
