"""What cannot be divided over processes, refused in words before anything is."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from parallel.agreement import listed
from parallel.errors import UsageError
from parallel.sharded.blocks import Blocks
from parallel.sharded.keys import Keys


def refuse(
    model: nn.Module, precision: str, keys: Keys, blocks: Blocks, device: torch.device
) -> None:
    """Raise ``UsageError`` where ``model`` cannot be trained by parts of its parameters."""
    named = dict(model.named_parameters())
    lazy = [name for name, parameter in named.items() if is_lazy(parameter)]
    if lazy:
        raise UsageError(
            f"parameters without a shape yet cannot be divided: {listed(lazy)}; give their layers "
            "all sizes, or call the model once where the task makes it"
        )
    _refuse_unlike_dtypes(named, blocks)
    if keys.mixed_precision:
        _refuse_precision(named, precision)
    points = [name for name, parameter in named.items() if not parameter.ndim]
    if keys.cpu_offload and points and device.type == "cuda":
        raise UsageError(
            f"strategy.cpu_offload: a parameter without dimensions is not divided, so that it "
            f"cannot be offloaded: {listed(points)}; give it the shape [1]"
        )


def _refuse_unlike_dtypes(named: dict[str, nn.Parameter], blocks: Blocks) -> None:
    """A block is gathered and reduced in one piece, which has one dtype."""
    dtypes: dict[str, dict[torch.dtype, str]] = {}
    for name, parameter in named.items():
        around = [block for block in blocks.modules if name.startswith(f"{block}.")]
        if parameter.requires_grad and parameter.ndim:
            block = max(around, key=len, default="")
            dtypes.setdefault(block, {}).setdefault(parameter.dtype, name)
    for block, found in dtypes.items():
        if len(found) > 1:
            where = f"block {block}" if block else "what no block holds"
            met = ", ".join(f"{name} {str(dtype)[6:]}" for dtype, name in found.items())
            raise UsageError(
                f"parameters that are gathered together have one dtype, but {where} has {met}; "
                "name modules that hold one each in strategy.blocks"
            )


def _refuse_precision(named: dict[str, nn.Parameter], precision: str) -> None:
    if precision not in ("float32", "bfloat16"):
        raise UsageError(
            f"strategy.mixed_precision computes in bfloat16, train.precision={precision} does "
            "not; leave one of them out"
        )
    unlike = [n for n, p in named.items() if p.is_complex()]
    if unlike:
        raise UsageError(
            f"strategy.mixed_precision knows no complex numbers, as in {listed(unlike)}; "
            "set strategy.mixed_precision=false"
        )
