"""Blocks that are computed again in backward, instead of keeping what they computed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from parallel.errors import UsageError
from parallel.modes import Again


def recompute(block: nn.Module, name: str) -> None:
    """Make ``block`` keep its inputs alone for backward; its names stay its own.

    Computed again, it has the same random numbers and buffers, and leaves these as they are.
    """
    once = block.forward

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        again = Again(block)
        return again.first(), again.second()

    def forward(*args: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return once(*args, **named)
        given = [value for value in [*args, *named.values()] if isinstance(value, Tensor)]
        before = [tensor._version for tensor in given]
        result = checkpoint(once, *args, use_reentrant=False, context_fn=contexts, **named)
        if [tensor._version for tensor in given] != before:
            raise UsageError(
                f"{name} changes what it is given in place, so that it cannot be computed again; "
                "set strategy.checkpoint_every=0, or leave it out of strategy.blocks"
            )
        return result

    block.forward = forward  # a wrapper would give it other names
