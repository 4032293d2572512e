"""Gradients added up over replicas, and over the stages that share a parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from parallel.errors import UsageError
from parallel.world import World

BUCKET_BYTES = 25 * 2**20  # as torch's DistributedDataParallel sends them


class Reduction:
    """Adds up what each process has: ``peers`` hold this stage, ``owners`` one tied parameter.

    Sums only: the loss carries the weight of each part already.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        peers: World,
        owners: Sequence[tuple[nn.Parameter, World]],
    ) -> None:
        self.owners = list(owners)
        tied = {parameter for parameter, _ in owners}
        self.peers = peers
        self.own = [p for p in parameters if p not in tied]

    def add_up(self, names: Callable[[nn.Parameter], str]) -> None:
        """Replace gradients by their sums; collective over those that hold the same parameters.

        Raises ``UsageError`` where one of several replicas has no gradient to add; ``names``: of a
        parameter.
        """
        waits = []
        for parameter, world in self.owners:
            if parameter.requires_grad:
                waits += _start([parameter], world)
        if self.peers.size > 1:
            trained = [p for p in self.own if p.requires_grad]
            absent = [names(p) for p in trained if p.grad is None]
            if absent:
                raise UsageError(
                    f"these parameters took no part in the loss: {', '.join(absent[:8])}; freeze "
                    "or remove them, or train one replica alone: as many processes as stages"
                )
            waits += _start(trained, self.peers)
        for wait in waits:
            wait()


def _start(parameters: Sequence[nn.Parameter], world: World) -> list[Callable[[], None]]:
    """Start adding up the gradients of ``parameters``; each that is returned ends a bucket."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        elif parameter.grad.layout != torch.strided:
            raise UsageError(
                "sparse gradients are not added up over replicas of a pipeline; use "
                "torch.nn.Embedding(sparse=False), or as many processes as stages"
            )
    gradients = [p.grad for p in parameters if p.grad is not None]
    return [_bucket(bucket, world) for bucket in _buckets(gradients)]


def _bucket(gradients: Sequence[Tensor], world: World) -> Callable[[], None]:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    wait = world.sum_later(flat)

    def end() -> None:
        wait()
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    return end


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield gradients of one dtype that together are sent at once."""
    held: list[Tensor] = []
    for gradient in gradients:
        size = sum(each.nbytes for each in held)
        if held and (held[0].dtype != gradient.dtype or size + gradient.nbytes > BUCKET_BYTES):
            yield held
            held = []
        held.append(gradient)
    if held:
        yield held
