"""The end of a step that all engines share: scale, judge, clip and apply the gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from parallel.scaling import Scaler
from parallel.strategy import Settings

Norm = Tensor | float  # [] on the device, or a number on the CPU
Agree = Callable[[Norm], tuple[Norm, Norm | None]]


def alone(norm: Norm) -> tuple[Norm, Norm | None]:
    """Return what holds where the gradients here are all there are, and whole."""
    return norm, None


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
        self.elsewhere: set[nn.Parameter] = set()  # whose gradients another rank's norm has
        self.scaler = Scaler(enabled=settings.precision == "float16")
        # A fused optimizer is told on the device that it must not update; others need an answer.
        self._told_on_device = device.type == "cuda" and all(
            getattr(optimizer, "_step_supports_amp_scaling", False) for optimizer in optimizers
        )

    def apply(self, agree: Agree = alone) -> tuple[Norm, Tensor | bool]:
        """Make the gradients what they mean, clip them, and update, or skip if not finite.

        agree: of the norm of the gradients held here, returns that of all the model's, and what
        all gradients must be multiplied by (None: nothing). Returns their norm before clipping,
        and whether the update was skipped.
        """
        dense = [_dense(p) for p in self.parameters if p.grad is not None]
        if self.scaler.is_enabled() and dense:
            torch._foreach_mul_(dense, self.scaler.inverse)
        counted = dense
        if self.elsewhere:
            mine = [p for p in self.parameters if p.grad is not None]
            pairs = zip(mine, dense, strict=True)
            counted = [each for p, each in pairs if p not in self.elsewhere]
        norm, factor = agree(total_norm(counted))
        if factor is not None:
            norm = norm * factor
        if self._told_on_device and not self.scaler.is_enabled():
            skipped = ~torch.isfinite(torch.as_tensor(norm))
            self._multiply(dense, norm, factor)
            self._step_unless(skipped)
            return norm, skipped
        norm = float(norm)
        is_finite = math.isfinite(norm)
        if is_finite:
            self._multiply(dense, norm, factor)
            for optimizer in self.optimizers:
                optimizer.step()
        if self.scaler.is_enabled():
            self.scaler.update(skipped=not is_finite)
        return norm, not is_finite

    def _multiply(self, gradients: list[Tensor], norm: Norm, factor: Norm | None) -> None:
        """Multiply by ``factor``, and by what brings ``norm``, that of all, down to the limit."""
        if self.clip_norm is not None:
            clip = self.clip_norm / (norm + 1e-6)
            if isinstance(clip, Tensor):
                clip = clip.clamp(max=1.0)
            if isinstance(clip, Tensor) or clip < 1.0:
                factor = clip if factor is None else factor * clip
        if factor is not None and gradients:
            torch._foreach_mul_(gradients, factor)

    def _step_unless(self, skipped: Tensor) -> None:
        for optimizer in self.optimizers:
            optimizer.found_inf = skipped.float()  # type: ignore[attr-defined]  # as GradScaler does
            optimizer.grad_scale = None  # type: ignore[attr-defined]  # the same
            optimizer.step()


def total_norm(tensors: Sequence[Tensor]) -> Norm:
    """Return the 2-norm of all ``tensors`` together, on the device; a number on the CPU."""
    norms = torch._foreach_norm(list(tensors)) if tensors else ()
    if not norms or not norms[0].is_cuda:
        return math.sqrt(sum(norm.item() ** 2 for norm in norms))
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def _dense(parameter: nn.Parameter) -> Tensor:
    """Return the numbers of a gradient in place: of a divided one the part that is here.

    Of a sparse one, its values, each index once.
    """
    gradient = parameter.grad
    if hasattr(gradient, "to_local"):  # a DTensor: to import its class takes half a second
        return gradient.to_local()  # type: ignore[no-any-return,union-attr]  # the same
    if gradient is None or gradient.layout == torch.strided:
        return gradient  # type: ignore[return-value]  # asked for parameters with a gradient only
    parameter.grad = gradient.coalesce()
    return parameter.grad._values()
