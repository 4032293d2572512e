"""Ways to run a module that leave no trace in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

LOW = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def autocasting(precision: str, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Return what makes the context of a forward pass in ``precision``."""
    low = LOW.get(precision)
    return (lambda: torch.autocast(device.type, low)) if low else nullcontext


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards each part is in the mode it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def keeping_buffers(module: nn.Module) -> Iterator[None]:
    """Undo what happens to buffers meanwhile, be they written to or replaced."""
    kept = [
        (part, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:  # what is computed again for backward is left by an exception, once enough is there
        with torch.no_grad():
            for part, name, buffer, value in kept:
                setattr(part, name, buffer.copy_(value))


@contextmanager
def discarding(module: nn.Module, weight: Tensor | None, empty: bool) -> Iterator[None]:
    """Make backward add gradients of exactly 0 if ``empty``, or where ``weight`` [] is 0.

    They are replaced, not multiplied: a batch without weight may compute NaN.
    """
    if not empty and weight is None:
        yield
        return

    select = selecting(None if empty else weight)
    hooks = [p.register_hook(select) for p in module.parameters() if p.requires_grad]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def selecting(weight: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Return what makes a gradient 0, or leaves it where ``weight`` [] is more than 0."""

    def select(gradient: Tensor) -> Tensor:
        if weight is None:
            return torch.zeros_like(gradient)
        return torch.where(weight > 0, gradient, 0.0)

    return select
