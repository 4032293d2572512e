"""What outputs and targets say about a model, one value a sample."""

from __future__ import annotations

from torch import Tensor


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return which samples [n] have their target [n] as the largest of the outputs [n, classes]."""
    return outputs.argmax(dim=1) == targets


def psnr(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio [n] in dB of pictures [n, ...] from 0 to 1."""
    errors = (outputs.detach().float() - targets.float()).square().flatten(1).mean(dim=1)
    return -10 * errors.clamp_min(1e-10).log10()
