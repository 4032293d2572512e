"""Moving an opaque batch to a device."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from copy import copy
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from parallel import Batch


class Transfer:
    """Calls move a batch, keeping its type: tensors, containers, dataclasses, things with .to().

    What is none of these passes through. With ``double`` floating tensors become float64.
    """

    def __init__(self, device: torch.device, double: bool = False) -> None:
        self.device, self.double = device, double
        self.is_identity = device.type == "cpu" and not double

    def __call__(self, batch: Batch) -> Batch:
        """Return ``batch`` on the device."""
        return batch if self.is_identity else self._move(batch)

    def _move(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            dtype = torch.float64 if self.double and value.is_floating_point() else None
            return value.to(self.device, dtype, non_blocking=True)
        moves_itself = callable(getattr(value, "to", None))
        if moves_itself and not (self.double and isinstance(value, Mapping | tuple)):
            return value.to(self.device)
        if isinstance(value, Mapping):
            return self._move_mapping(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self._move, value))
        if isinstance(value, list | tuple):
            return type(value)(map(self._move, value))
        if is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in fields(value) if field.init]
            return replace(value, **{name: self._move(getattr(value, name)) for name in names})
        return value

    def _move_mapping(self, value: Mapping[Any, Any]) -> Mapping[Any, Any]:
        moved = {key: self._move(part) for key, part in value.items()}
        if type(value) is not dict and isinstance(value, MutableMapping):
            kept = copy(value)  # a defaultdict's factory, say, stays
            kept.update(moved)
            return kept
        kind: Any = type(value)
        return moved if kind is dict else kind(moved)
