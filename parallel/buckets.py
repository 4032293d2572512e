"""What DistributedDataParallel keeps beside a model: gradients lie in parcels that it sends."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from parallel.single import Whole
from parallel.strategy import Work


class Bucketed(Whole):
    """A replica without peers and without torch's wrapper, which takes the memory that both take.

    The wrapper makes the parcels before the first step and never gives them back. In a step's last
    round each gradient is computed in memory of its own, copied into its parcel, and let go; in
    the rounds before gradients are added up beside the parcels.
    """

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.replicas = self.world.size
        self._is_last = False
        self._places: dict[nn.Parameter, Tensor] = {}
        trained = [p for p in self.module.parameters() if p.requires_grad]
        for dtype in dict.fromkeys(p.dtype for p in trained):
            own = [p for p in trained if p.dtype == dtype]
            parcel = torch.empty(sum(map(torch.numel, own)), dtype=dtype, device=own[0].device)
            for parameter, part in zip(own, parcel.split([p.numel() for p in own]), strict=True):
                self._places[parameter] = part.view(parameter.shape)
                parameter.register_post_accumulate_grad_hook(self._move)

    def round(self, last: bool) -> AbstractContextManager[Any]:
        """Note whether gradients are sent in this round."""
        self._is_last = last
        return nullcontext()

    def _move(self, parameter: nn.Parameter) -> None:
        if self._is_last and parameter.grad is not None:
            with torch.no_grad():
                parameter.grad = self._places[parameter].copy_(parameter.grad)
