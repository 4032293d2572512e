"""What the CPU's kernels take beside what fake tensors tell of: copies, and losses that stay large.

Found by training on one machine and looking at the process; a GPU's kernels are others.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

ATEN: Any = torch.ops.aten
ONEDNN = (torch.float32, torch.bfloat16, torch.float16)
LOW = (torch.bfloat16, torch.float16)
PRODUCTS = (ATEN.mm.default, ATEN.addmm.default, ATEN.bmm.default, ATEN.baddbmm.default)
MEANS = (ATEN.mse_loss.default, ATEN.smooth_l1_loss.default, ATEN.huber_loss.default)


def workspace(operation: Any, inputs: Sequence[Any], output: Any) -> int:
    """Return the bytes that an operation takes meanwhile, beside its inputs and outputs."""
    if operation is ATEN.convolution.default:
        return _convolution(inputs[0], inputs[1], inputs[0], output)
    if operation is ATEN.convolution_backward.default:
        gradient, given, weight = inputs[:3]
        into = output[0] if isinstance(output[0], Tensor) else given
        return _convolution(given, weight, gradient, max(given, into, key=lambda t: int(t.nbytes)))
    if operation in PRODUCTS and output.dtype in LOW:
        return 4 * int(output.numel())  # added up in float32
    return 0


def oversize(operation: Any, inputs: Sequence[Any]) -> int:
    """Return the bytes of storage that a result keeps beyond its own; 0 of most.

    torch computes a mean or sum of these losses in the memory of all their terms.
    """
    is_reduced = operation in MEANS and (len(inputs) < 3 or inputs[2] != 0)
    return int(inputs[0].nbytes) if is_reduced else 0


def _convolution(given: Tensor, weight: Tensor, one: Tensor, other: Tensor) -> int:
    """Return the bytes of oneDNN's copies, in blocks of channels, of what it reads and writes.

    Those are input and output; in backward the output's gradient, and the input or its gradient.
    Of float64 torch's own kernel lays the pixels under the filter out in columns: the whole
    batch's, once for each place of the filter.
    """
    if given.dtype in ONEDNN:
        return int(one.nbytes) + int(other.nbytes) + int(weight.nbytes)
    return prod(weight.shape[2:]) * int(given.nbytes)
