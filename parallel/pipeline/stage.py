"""One stage's layers at work on one microbatch after the other, and what it keeps of each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

from parallel.errors import UsageError
from parallel.modes import Again
from parallel.pipeline.tree import described, flatten, unflatten


class Arrival(torch.autograd.Function):
    """Makes received tensors part of this stage's graph, and catches their gradients.

    They are no leaves, so that a layer may change them in place.
    """

    @staticmethod
    def forward(ctx: Any, caught: list[Tensor | None], root: Tensor, *tensors: Tensor) -> Any:
        """Return ``tensors``, in the same memory; ``root`` [] makes them require gradients."""
        ctx.caught = caught
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Keep ``gradients``: they go to the stage before."""
        ctx.caught.extend(gradients)
        return (None, None, *(None for _ in gradients))


@dataclass
class Held:
    """What a microbatch's backward needs: where its outputs came from, where gradients end."""

    outputs: list[GradientEdge] = field(default_factory=list)
    caught: list[Tensor | None] = field(default_factory=list)
    wants: int = 0  # tensors whose gradients the stage before waits for


class Stage(nn.Module):
    """Layers in order; of each microbatch only its graph is kept, not what was sent on.

    checkpoint_every: so many layers are computed again in backward, instead of kept; 0: none.
    giver: the last layer, in words.
    """

    def __init__(
        self, layers: Sequence[nn.Module], checkpoint_every: int, giver: str = "a layer"
    ) -> None:
        super().__init__()
        self.giver = giver
        self.layers = nn.ModuleList(layers)
        self.every = checkpoint_every

    def forward(self, value: Any) -> Any:
        """Return what the last layer makes of ``value``."""
        if not self.every or not torch.is_grad_enabled():
            return _run(self.layers, value)
        rest = iter(self.layers)
        while group := list(islice(rest, self.every)):
            value = _again(group, value)
        return value

    def receive(self, received: tuple[Any, list[Tensor]], held: Held) -> Any:
        """Return a received value whose gradients ``held`` will catch."""
        form, tensors = received
        needs = [requires for _, _, requires in described(form)]
        held.wants = sum(needs)
        if held.wants:
            inner = [tensor for tensor, needed in zip(tensors, needs, strict=True) if needed]
            root = torch.zeros((), requires_grad=True)
            entered = iter(_arrive(held.caught, root, *inner))
            pairs = zip(tensors, needs, strict=True)
            tensors = [next(entered) if needed else tensor for tensor, needed in pairs]
        return unflatten(form, tensors)

    def edges(self, outputs: Any) -> list[GradientEdge]:
        """Return where the gradients of the tensors in ``outputs`` enter their graph."""
        tensors, _ = flatten(outputs, self.giver)
        return [get_gradient_edge(tensor) for tensor in tensors if tensor.requires_grad]

    def backward(self, held: Held, gradients: Sequence[Tensor | None]) -> None:
        """Add this stage's gradients, from those of its outputs that required one."""
        pairs = zip(held.outputs, gradients, strict=True)
        known = [(edge, gradient) for edge, gradient in pairs if gradient is not None]
        if known:
            torch.autograd.backward([edge for edge, _ in known], [given for _, given in known])


def _arrive(caught: list[Tensor | None], root: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    return Arrival.apply(caught, root, *tensors)  # type: ignore[no-any-return, no-untyped-call]


def _run(layers: Sequence[nn.Module] | nn.ModuleList, value: Any) -> Any:
    for layer in layers:
        value = layer(value)
    return value


def _again(group: list[nn.Module], value: Any) -> Any:
    """Compute ``group`` now, and once more in backward, with the buffers of now."""

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        again = Again(nn.ModuleList(group))
        return again.first(), again.second()

    def run(given: Any) -> Any:
        if getattr(group[0], "inplace", False):  # what backward computes from must stay as it is
            given = tree_map_only(Tensor, Tensor.clone, given)
        return _run(group, given)

    tensors = [each for each in tree_leaves(value) if isinstance(each, Tensor)]
    before = [tensor._version for tensor in tensors]
    result = checkpoint(run, value, use_reentrant=False, context_fn=contexts)
    if [tensor._version for tensor in tensors] != before:
        raise UsageError(
            f"a {type(group[0]).__name__} changes what it is given in place, so that it cannot be "
            "computed again; set strategy.checkpoint_every=0, or another number of layers"
        )
    return result
