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
    kept = [(part, name, buffer, buffer.clone()) for part, name, buffer in _own(module)]
    try:
        yield
    finally:
        with torch.no_grad():
            for part, name, buffer, value in kept:
                setattr(part, name, buffer.copy_(value))


class Again:
    """The contexts of one forward, and of the same computed again for its backward.

    The second finds buffers as the first found them, and leaves them as they are: what a forward
    writes to and reads (spectral norm's vectors) is the same both times, what it adds up (batch
    statistics, which torch changes without a trace, and does not read) is added once.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before: dict[tuple[nn.Module, str], Tensor] = {}  # of buffers that it changed

    @contextmanager
    def first(self) -> Iterator[None]:
        """Look at what the forward does to buffers."""
        found = [(part, name, b, b._version, b.clone()) for part, name, b in _own(self._module)]
        yield
        for part, name, buffer, version, value in found:
            if getattr(part, name) is not buffer or buffer._version != version:
                self._before[part, name] = value

    @contextmanager
    def second(self) -> Iterator[None]:
        """Put copies in the buffers' places for a while, with the values of then."""
        now = list(_own(self._module))
        copies: dict[Tensor, Tensor] = {}
        for part, name, buffer in now:
            value = self._before.get((part, name), buffer)
            setattr(part, name, copies.setdefault(buffer, value.clone()))
        try:
            yield
        finally:  # it is left by an exception, once enough is there
            for part, name, buffer in now:
                setattr(part, name, buffer)


def _own(module: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Yield each buffer with the part that holds it."""
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            yield part, name, buffer


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
