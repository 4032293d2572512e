"""What an engine holds, under the model's own names, and back again."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from parallel.errors import UsageError
from parallel.scaling import Scaler
from parallel.strategy import EngineState

OTHER_GROUPS = "the saved optimizer has other parameter groups than this run's"


def check(module: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Raise ``UsageError`` where an optimizer updates what is no parameter of ``module``."""
    names = _names(module)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                _name(parameter, names)


def separate_buffers(module: nn.Module) -> None:
    """Give memory of their own to buffers of which many elements share one (``expand``).

    They could be saved, and never be written to again.
    """
    separate: dict[Tensor, Tensor] = {}  # a buffer may have several names
    for part in module.modules():
        for name, buffer in list(part.named_buffers(recurse=False, remove_duplicate=False)):
            if _shares_within(buffer):
                if buffer not in separate:
                    separate[buffer] = buffer.clone(memory_format=torch.contiguous_format)
                setattr(part, name, separate[buffer])


def _shares_within(tensor: Tensor) -> bool:
    if is_lazy(tensor) or tensor.layout != torch.strided:
        return False
    return any(n > 1 and not step for n, step in zip(tensor.shape, tensor.stride(), strict=True))


def state(module: nn.Module, optimizers: Sequence[Optimizer], scaler: Scaler) -> EngineState:
    """Return references to all that training changed; raises ``UsageError`` if no tensor."""
    tensors: dict[str, Tensor] = {}
    groups: list[dict[str, Any]] = []
    for number, optimizer in enumerate(optimizers):
        held, described = _optimizer_state(optimizer, _names(module), f"{number}/")
        tensors |= held
        groups.append(described)
    model = module.state_dict()
    for name, value in model.items():
        if not isinstance(value, Tensor):
            raise UsageError(
                f"the model's state {name!r} is a {type(value).__name__}, and only tensors are "
                "saved: keep it in a buffer, or let the model's constructor make it"
            )
    return EngineState(dict(model), tensors, groups, dict(scaler.state_dict()))


def load(
    state: EngineState,
    module: nn.Module,
    optimizers: Sequence[Optimizer],
    scaler: Scaler,
    *,
    is_part: bool = False,
) -> None:
    """Overwrite module, optimizers and scaler by copies of ``state``, which stays as it is.

    is_part: ``state`` has some of the model's tensors only. Raises ``UsageError`` where names
    differ.
    """
    try:
        module.load_state_dict(state.model, strict=not is_part)
    except RuntimeError as error:
        raise UsageError(f"the saved weights are of another model: {error}") from None
    if len(state.groups) != len(optimizers):
        raise UsageError(
            f"{len(state.groups)} optimizers were saved, but the task makes {len(optimizers)}"
        )
    for number, (optimizer, described) in enumerate(zip(optimizers, state.groups, strict=True)):
        prefix = f"{number}/"
        held = {
            k.removeprefix(prefix): v for k, v in state.optimizer.items() if k.startswith(prefix)
        }
        _load_optimizer(optimizer, _names(module), held, described)
        _settle(optimizer, _names(module), held, state.model)
    if scaler.is_enabled() and state.scaler:
        scaler.load_state_dict(state.scaler)


def parameter_of(key: str) -> str:
    """Return the parameter's name in "0/name/slot"."""
    return key.partition("/")[2].rpartition("/")[0]


def _names(module: nn.Module) -> dict[Tensor, str]:
    return {parameter: name for name, parameter in module.named_parameters()}


def _optimizer_state(
    optimizer: Optimizer, names: dict[Tensor, str], prefix: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors by "prefix + parameter/slot", and the rest: groups and plain numbers."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for parameter, slots in optimizer.state.items():
        name = _name(parameter, names)
        for slot, value in slots.items():
            if isinstance(value, Tensor):
                tensors[f"{prefix}{name}/{slot}"] = value
            else:
                numbers.setdefault(name, {})[slot] = value
    groups = [
        {
            **{k: v.item() if isinstance(v, Tensor) else v for k, v in group.items()},
            "params": [_name(parameter, names) for parameter in group["params"]],
        }
        for group in optimizer.param_groups
    ]
    return tensors, {"groups": groups, "numbers": numbers}


def _load_optimizer(
    optimizer: Optimizer,
    names: dict[Tensor, str],
    held: dict[str, Tensor],
    described: dict[str, Any],
) -> None:
    saved = [group["params"] for group in described["groups"]]
    own = [[_name(p, names) for p in group["params"]] for group in optimizer.param_groups]
    if saved != own:
        raise UsageError(OTHER_GROUPS)
    index = {name: i for i, name in enumerate(name for group in own for name in group)}
    slots: dict[int, dict[str, Any]] = {}
    for key, value in held.items():
        name, _, slot = key.rpartition("/")
        slots.setdefault(index[name], {})[slot] = value
    for name, numbers in described["numbers"].items():
        slots.setdefault(index[name], {}).update(deepcopy(numbers))
    groups = [
        {**group, "params": [index[name] for name in group["params"]]}
        for group in described["groups"]
    ]
    optimizer.load_state_dict({"state": slots, "param_groups": groups})


def _settle(
    optimizer: Optimizer,
    names: dict[Tensor, str],
    held: dict[str, Tensor],
    model: dict[str, Tensor],
) -> None:
    """Make loaded slots the optimizer's own, and of the dtype that they were saved in.

    torch adopts tensors as they are given, and casts them to the parameter's dtype. That is right
    for what had the parameter's dtype when it was saved, and loses bits of all else. ("step" torch
    leaves alone, or makes what a fused update wants.)
    """
    for parameter, slots in optimizer.state.items():
        name = names[parameter]
        for slot in [slot for slot in slots if f"{name}/{slot}" in held]:
            saved, loaded = held[f"{name}/{slot}"], slots[slot]
            apart = name in model and saved.dtype != model[name].dtype
            if apart and slot != "step":
                slots[slot] = saved.to(loaded.device, copy=True)
            elif loaded is saved:
                slots[slot] = saved.clone()


def _name(parameter: Tensor, names: dict[Tensor, str]) -> str:
    if parameter not in names:
        raise UsageError(
            f"an optimizer updates a parameter of shape {list(parameter.shape)} that is none of "
            "the model's: make it part of the module that the task's model() returns"
        )
    return names[parameter]
