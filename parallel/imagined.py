"""A process among others that are not there, and a model without numbers: to try a step on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_map_only

from parallel.errors import UsageError
from parallel.world import World

T = TypeVar("T")
DOUBLE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


@dataclass(frozen=True)
class Imagined(World):
    """A world in which every other rank says what this one says; nothing is sent."""

    def sum_later(self, value: Tensor) -> Callable[[], Tensor]:
        """Return what returns ``value``."""
        return lambda: value

    def gather_later(self, row: Tensor) -> Callable[[], Tensor]:
        """Return what returns ``size`` times the ``row``."""
        return lambda: torch.stack([row] * self.size)

    def gather_objects(self, value: T) -> list[T]:
        """Return ``size`` times the ``value``."""
        return [value] * self.size

    def share(self, value: T) -> T:
        """Return ``value``."""
        return value

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Leave ``tensors`` as they are."""

    def barrier(self) -> None:
        """Wait for nobody."""

    def among(self, teams: Sequence[Sequence[int]], backend: str | None = None) -> World:
        """Return this rank's place in the one of ``teams`` that it is in."""
        for team in teams:
            if self.rank in team:
                return replace(self, rank=list(team).index(self.rank), size=len(team))
        return replace(self, rank=0, size=1)


@contextmanager
def unconnected(size: int) -> Iterator[None]:
    """Open a process group of ``size``, of whose ranks this one alone is there; close it again.

    For what asks torch for a group. Collectives return at once, and what they return means
    nothing. Raises ``UsageError`` in a process that trains.
    """
    if dist.is_initialized():
        raise UsageError(
            "the memory that this strategy takes is predicted in a process of its own, and this "
            "one trains with others; start one without torchrun"
        )
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def fresh(tree: Any, device: torch.device) -> Any:
    """Return ``tree`` with fresh tensors of the same shapes, types and strides on ``device``."""
    return tree_map_only(Tensor, lambda each: _like(each, each.dtype, device), tree)


def stand_in(
    model: nn.Module, precision: str, is_held: Callable[[Tensor], bool] = lambda _: True
) -> nn.Module:
    """Return a copy of ``model``, its numbers aside: under a fake mode it takes no memory.

    Tensors that are not ``is_held`` are on the meta device. It stays where and what it is: a
    ``.to()`` is left out, which has nothing to do, and which torch refuses to fake tensors.
    """
    wider = DOUBLE if precision == "float64" else {}

    def own(tensor: Tensor) -> Tensor:
        device = torch.device("cpu" if is_held(tensor) else "meta")
        return _like(tensor, wider.get(tensor.dtype, tensor.dtype), device)

    found = copied(model, own)
    for part in found.modules():
        part.__dict__["_apply"] = lambda fn, recurse=True, part=part: part
    return found


def copied(module: nn.Module, make: Callable[[Tensor], Tensor]) -> nn.Module:
    """Return a copy in training mode whose parameters and buffers are what ``make`` returns.

    Its own tensors are never copied, so nothing takes memory that ``make`` does not take.
    """
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(make(parameter), parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = make(buffer)
    return copy.deepcopy(module, memo).train()


def _like(tensor: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=dtype, device=device)
