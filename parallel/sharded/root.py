"""Modules made to give up their parameters between uses, by torch's ``fully_shard``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import _disable_current_modes

from parallel.errors import UsageError, own_words
from parallel.sharded.keys import Keys
from parallel.strategy import Batch, Objective
from parallel.world import World

LOW = torch.bfloat16
IN_PARTS = (
    "here; a block's parameters are whole during its own forward only, so that neither the task "
    "nor another module can compute with them: set strategy.blocks=[], and all are, or leave out "
    "that block"
)


class Root(nn.Module):
    """The task's questions as one module's forward: all that the task calls is within it."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self._objective = model, objective

    def forward(
        self, batch: Batch, evaluate: bool = False
    ) -> tuple[Tensor, Any, dict[str, Tensor]]:
        """Return loss, weight and metrics: a tuple, whose tensors a wrapper can find."""
        ask = self._objective.evaluate if evaluate else self._objective.loss
        try:
            outcome = ask(self.model, batch)
        except RuntimeError as error:
            if "mixed torch.Tensor and DTensor" in own_words(error):
                raise UsageError(f"a part of a parameter met a whole tensor {IN_PARTS}") from error
            raise
        said = {"loss": outcome.loss, "weight": outcome.weight, **outcome.metrics}
        parts = [name for name, value in said.items() if isinstance(value, DTensor)]
        if parts:
            raise UsageError(f"{', '.join(parts)}: computed from parts of parameters {IN_PARTS}")
        return outcome.loss, outcome.weight, dict(outcome.metrics)


class Divider:
    """Divides modules over the processes of ``world``, innermost first."""

    def __init__(self, world: World, keys: Keys) -> None:
        group = world.group or torch.distributed.group.WORLD
        with _disable_current_modes():  # of tensors without numbers it could not tell its ranks
            self.mesh = DeviceMesh.from_group(group, world.device.type)  # type: ignore[arg-type]  # open
        self.world, self.keys = world, keys
        self._brought: set[Tensor] = set()  # buffers
        pin = world.device.type == "cuda"
        self._offload = CPUOffloadPolicy(pin_memory=pin) if keys.cpu_offload else OffloadPolicy()

    def divide(
        self,
        part: nn.Module,
        whole: set[nn.Parameter],
        *,
        is_root: bool = False,
        is_high: bool = False,
    ) -> None:
        """Leave each process its slice of the parameters of ``part``, but of those in ``whole``.

        They start as rank 0's. is_high: they are gathered as they are. Collective.
        """
        self._bring(part)
        if not is_root:
            part.register_forward_hook(_own_outputs)  # before torch's own hook looks at them
        fully_shard(
            part,
            mesh=self.mesh,
            reshard_after_forward=self.keys.reshard_after_forward and not is_root,
            mp_policy=self._policy(is_root=is_root, is_high=is_high),
            offload_policy=self._offload,
            ignored_params=whole,
        )
        if not is_root:
            part.register_forward_pre_hook(_own_inputs, with_kwargs=True)
        if isinstance(part, FSDPModule):
            part.set_force_sum_reduction_for_comms(True)
            part.set_gradient_divide_factor(1.0)  # the loss carries the weight of each part
            part.set_reduce_scatter_unused_params(True, recurse=False)  # or ranks send unlike sizes

    def _policy(self, *, is_root: bool, is_high: bool) -> MixedPrecisionPolicy:
        """Return in which dtype to gather; what the root is given are batches, left as they are."""
        if is_high or not self.keys.mixed_precision:
            return MixedPrecisionPolicy(cast_forward_inputs=False)
        return MixedPrecisionPolicy(LOW, torch.float32, cast_forward_inputs=not is_root)

    def _bring(self, part: nn.Module) -> None:
        """Move what is not yet divided to the device, and give it rank 0's values."""
        held = [*part.parameters(), *part.buffers()]
        fresh = [t for t in held if t not in self._brought and not isinstance(t, DTensor)]
        for tensor in fresh:
            there = tensor.detach().to(self.world.device)
            is_parameter = isinstance(tensor, nn.Parameter)
            tensor.data = there.contiguous() if is_parameter else there  # what torch divides is
        self.world.broadcast(fresh)
        self._brought.update(t for t in fresh if not isinstance(t, nn.Parameter))


def divided(root: nn.Module) -> list[nn.Module]:
    """Return the modules in ``root``, itself included, that gather their own parameters."""
    return [part for part in root.modules() if isinstance(part, FSDPModule)]


def give_up(root: nn.Module) -> None:
    """Leave slices alone of all that is still gathered."""
    for part in root.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def reduce_gradients(root: nn.Module, now: bool) -> None:
    """Have the next backward reduce gradients, or keep whole ones."""
    if isinstance(root, FSDPModule):
        root.set_requires_gradient_sync(now)


def own_places(part: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Yield the parameters that ``part`` gathers itself, with their modules and names there."""
    for name, parameter in part._parameters.items():
        if parameter is not None:
            yield part, name, parameter
    for child in part.children():
        if not isinstance(child, FSDPModule):
            yield from own_places(child)


def compute_low(model: nn.Module) -> None:
    """Give ``model`` inputs of the dtype its parameters are gathered in, and ask float32 of it."""
    model.register_forward_pre_hook(
        lambda _, args, named: (_mapped(args, _low), _mapped(named, _low)), with_kwargs=True
    )
    model.register_forward_hook(lambda _, args, outputs: _mapped(outputs, _high))


def keep_high(model: nn.Module) -> list[nn.Module]:
    """Return the normalisations with running statistics, which are float32 as their parameters."""
    found = (part for part in model.modules() if isinstance(part, _NormBase))
    return [part for part in found if part.affine]


def _low(tensor: Tensor) -> Tensor:
    return tensor.to(LOW) if tensor.is_floating_point() else tensor


def _high(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == LOW else tensor


class Own(torch.autograd.Function):
    """The same tensor, and no view of another to autograd: it may be changed in place.

    torch refuses that for what enters a block, and loses its hook on what leaves one.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """Return ``tensor``, in the same memory."""
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return ``gradient``."""
        return gradient


def _own(tensor: Tensor) -> Tensor:
    if not (tensor.requires_grad and torch.is_grad_enabled() and tensor._is_view()):
        return tensor
    return Own.apply(tensor)  # type: ignore[no-any-return, no-untyped-call]  # torch's


def _own_inputs(_: nn.Module, args: Any, named: Any) -> tuple[Any, Any]:
    return _mapped(args, _own), _mapped(named, _own)


def _own_outputs(_: nn.Module, args: Any, outputs: Any) -> Any:
    return _mapped(outputs, _own)


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return ``value`` with ``change`` made to the tensors in its tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(each, change) for each in value))
    if type(value) in (tuple, list):
        return type(value)(_mapped(each, change) for each in value)
    if isinstance(value, Mapping) and type(value) is dict:
        return {key: _mapped(each, change) for key, each in value.items()}
    return value
