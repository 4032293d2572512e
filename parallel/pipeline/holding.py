"""A whole model of which this process holds one stage; all else is on the meta device.

So names, order and number of parameters are the model's own on every process, and what belongs to
another stage has a shape and no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from parallel import naming
from parallel.errors import UsageError
from parallel.partition import bounds
from parallel.pipeline.layers import Layers, named_tensors, tensors_of
from parallel.scaling import Scaler
from parallel.strategy import EngineState, MakeOptimizers
from parallel.world import World

Stages = Sequence[Sequence[nn.Module]]  # the layers of each


class Holding:
    """The stage ``own`` of ``stages``, together the layers of ``model``."""

    def __init__(self, model: nn.Module, stages: Stages, own: int) -> None:
        self.module, self.own = model, own
        self.owners: dict[Tensor, list[int]] = {}  # a tied parameter has several
        for number, held in enumerate(stages):
            for tensor in dict.fromkeys(t for layer in held for t in tensors_of(layer)):
                self.owners.setdefault(tensor, []).append(number)
        self._refuse_shared_statistics()
        named = named_tensors(model)
        self._written = {name for name, t in named.items() if self.owners[t][0] == own}
        self.tied = [  # the parameters of several stages, alike on all ranks
            (parameter, self.owners[parameter])
            for parameter in model.parameters()
            if len(self.owners[parameter]) > 1
        ]
        self.full: list[list[list[str]]] = []  # of each optimizer, the names of its groups

    def _refuse_shared_statistics(self) -> None:
        for name, part in self.module.named_modules():
            mean = part.running_mean if isinstance(part, _NormBase) else None
            if mean is not None and len(self.owners[mean]) > 1:
                raise UsageError(
                    f"layer {name!r}, a {type(part).__name__}, stands in several stages, and its "
                    "running statistics would part; give each place a layer of its own, or cut "
                    "elsewhere by strategy.split"
                )

    def is_own(self, tensor: Tensor) -> bool:
        """Whether this stage computes with ``tensor``."""
        return self.own in self.owners[tensor]

    def make(self, make_optimizer: MakeOptimizers) -> list[Optimizer]:
        """Return the optimizers of the whole model, holding this stage's parameters alone."""
        with self._stand_ins() as real:
            optimizers = make_optimizer(self.module)
            naming.check(self.module, optimizers)
            names = {parameter: name for name, parameter in self.module.named_parameters()}
            for optimizer in optimizers:
                groups = optimizer.param_groups
                self.full.append([[names[p] for p in group["params"]] for group in groups])
                for group in groups:
                    kept = [real.get(p, p) for p in group["params"]]
                    group["params"] = [p for p in kept if self.is_own(p)]
                for parameter in [p for p in optimizer.state if not self.is_own(real.get(p, p))]:
                    del optimizer.state[parameter]
        return optimizers

    @contextmanager
    def _stand_ins(self) -> Iterator[dict[Tensor, nn.Parameter]]:
        """Give parameters on meta one number each, meanwhile: optimizers refuse what has none."""
        swapped: dict[nn.Parameter, nn.Parameter] = {}
        places = list(_places(self.module))
        for part, name, parameter in places:
            if parameter.is_meta:
                if parameter not in swapped:
                    one = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
                    swapped[parameter] = nn.Parameter(one, parameter.requires_grad)
                part._parameters[name] = swapped[parameter]
        yield {stand_in: parameter for parameter, stand_in in swapped.items()}
        for part, name, parameter in places:
            part._parameters[name] = parameter

    def forget_others(self) -> None:
        """Move what other stages compute with to the meta device."""
        moved: dict[Tensor, Any] = {}
        for part in self.module.modules():
            for held in (part._parameters, part._buffers):
                for name, tensor in held.items():
                    if tensor is None or tensor.is_meta or self.is_own(tensor):
                        continue
                    if tensor not in moved:
                        moved[tensor] = _on_meta(tensor)
                        self.owners[moved[tensor]] = self.owners[tensor]
                    held[name] = moved[tensor]
        for tensor in moved:  # what refers to it keeps its memory
            del self.owners[tensor]
        self.tied = [(moved.get(tensor, tensor), stages) for tensor, stages in self.tied]

    def state(
        self, optimizers: Sequence[Optimizer], scaler: Scaler, world: World, *, writes: bool
    ) -> EngineState:
        """Return what this process is to write, and the settings of all. Collective.

        A tensor is written by the first stage that has it; ``writes``: False for further replicas.
        """
        found = naming.state(self.module, optimizers, scaler)
        numbers = world.gather_objects([described["numbers"] for described in found.groups])
        for at, (described, names) in enumerate(zip(found.groups, self.full, strict=True)):
            described["numbers"] = {k: v for each in numbers for k, v in each[at].items()}
            for group, full in zip(described["groups"], names, strict=True):
                group["params"] = full
        written = self._written if writes else set()
        found.model = {name: t for name, t in found.model.items() if name in written}
        found.optimizer = {
            name: t for name, t in found.optimizer.items() if naming.parameter_of(name) in written
        }
        return found

    def load(self, state: EngineState, optimizers: Sequence[Optimizer], scaler: Scaler) -> None:
        """Take this stage's part of ``state``, which has all. Raises ``UsageError``."""
        known = self.module.state_dict()
        unlike = sorted(known.keys() ^ state.model.keys())
        if unlike:
            where = "not in the model" if unlike[0] in state.model else "not saved"
            raise UsageError(f"the saved weights are of another model: {unlike[0]} is {where}")
        self._check_groups(state)
        own = {name for name, tensor in known.items() if not tensor.is_meta}
        groups = [_part(described, own) for described in state.groups]
        optimizer = {k: v for k, v in state.optimizer.items() if naming.parameter_of(k) in own}
        model = {name: state.model[name] for name in known if name in own}
        part = EngineState(model, optimizer, groups, state.scaler)
        naming.load(part, self.module, optimizers, scaler, is_part=True)

    def _check_groups(self, state: EngineState) -> None:
        saved = [[group["params"] for group in each["groups"]] for each in state.groups]
        if len(saved) == len(self.full) and saved != self.full:
            raise UsageError(naming.OTHER_GROUPS)


def split_layers(found: Layers, cuts: Sequence[int]) -> list[list[nn.Module]]:
    """Return the layers of each stage; ``cuts``: the first ones of all but stage 0."""
    modules = [layer for _, layer in found]
    return [modules[a:b] for a, b in bounds(len(modules), cuts)]


def _places(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                yield part, name, parameter


def _on_meta(tensor: Tensor) -> Tensor:
    there = tensor.detach().to("meta")
    is_parameter = isinstance(tensor, nn.Parameter)
    return nn.Parameter(there, tensor.requires_grad) if is_parameter else there


def _part(described: Mapping[str, Any], own: set[str]) -> dict[str, Any]:
    """Return groups and plain numbers of an optimizer, of the parameters in ``own`` alone."""
    return {
        "groups": [
            {**group, "params": [name for name in group["params"] if name in own]}
            for group in described["groups"]
        ],
        "numbers": {k: v for k, v in described["numbers"].items() if k in own},
    }
