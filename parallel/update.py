"""The end of a step that all engines share: scale, judge, clip and apply the gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from parallel.strategy import Settings


class Update:
    """Applies gradients that are already reduced, so that every replica judges them alike."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        settings: Settings,
        device: torch.device,
    ) -> None:
        self.optimizers, self.clip_norm = list(optimizers), settings.clip_norm
        self.parameters: list[nn.Parameter] = [
            parameter
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        self.scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "float16")
        # A fused optimizer is told on the device that it must not update; others need an answer.
        self._told_on_device = device.type == "cuda" and all(
            getattr(optimizer, "_step_supports_amp_scaling", False) for optimizer in optimizers
        )

    def apply(self, factor: Tensor | None = None) -> tuple[Tensor | float, Tensor | bool]:
        """Multiply the gradients by ``factor``, clip them, and update, or skip if not finite.

        Returns their norm before clipping, and whether the update was skipped.
        """
        if self.scaler.is_enabled():
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)
        dense = [_dense(p) for p in self.parameters if p.grad is not None]
        if factor is not None:
            torch._foreach_mul_(dense, factor)
        norm = total_norm(dense)
        if self._told_on_device and not self.scaler.is_enabled():
            skipped = ~torch.isfinite(torch.as_tensor(norm))
            self._clip(dense, norm)
            self._step_unless(skipped)
            return norm, skipped
        norm = float(norm)
        if not math.isfinite(norm):
            if self.scaler.is_enabled():
                self.scaler.update()
            return norm, True
        self._clip(dense, norm)
        self._step()
        return norm, False

    def _clip(self, gradients: list[Tensor], norm: Tensor | float) -> None:
        if self.clip_norm is None:
            return
        factor = self.clip_norm / (norm + 1e-6)
        if isinstance(factor, Tensor):
            torch._foreach_mul_(gradients, factor.clamp(max=1.0))
        elif factor < 1.0:
            torch._foreach_mul_(gradients, factor)

    def _step(self) -> None:
        if not self.scaler.is_enabled():
            for optimizer in self.optimizers:
                optimizer.step()
            return
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()

    def _step_unless(self, skipped: Tensor) -> None:
        for optimizer in self.optimizers:
            optimizer.found_inf = skipped.float()  # type: ignore[attr-defined]  # as GradScaler does
            optimizer.grad_scale = None  # type: ignore[attr-defined]  # the same
            optimizer.step()


def total_norm(tensors: Sequence[Tensor]) -> Tensor | float:
    """Return the 2-norm of all ``tensors`` together, on the device; a number on the CPU."""
    norms = torch._foreach_norm(list(tensors)) if tensors else ()
    if not norms or not norms[0].is_cuda:
        return math.sqrt(sum(norm.item() ** 2 for norm in norms))
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def _dense(parameter: nn.Parameter) -> Tensor:
    """Return the numbers of a gradient in place; of a sparse one its values, each index once."""
    gradient = parameter.grad
    if gradient is None or gradient.layout == torch.strided:
        return gradient  # type: ignore[return-value]  # asked for parameters with a gradient only
    parameter.grad = gradient.coalesce()
    return parameter.grad._values()
