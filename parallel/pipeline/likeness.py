"""Whether a model's layers in order compute what the model does: seen on one batch."""

from __future__ import annotations

import torch
from torch import Tensor

from parallel.errors import UsageError
from parallel.modes import autocasting, evaluating
from parallel.pipeline.layers import Layers
from parallel.strategy import Batch, Work

CLOSE = 1e-4  # of float32 losses, which sums in another order may part a little


def refuse_another_model(found: Layers, work: Work, batch: Batch | None) -> None:
    """Raise ``UsageError`` where the layers in order, or ``loss_of_outputs``, say another loss.

    Only where the whole model and a batch are at hand: on the CPU, with random generators and
    modes left as they were. Not collective.
    """
    objective, settings, device = work.objective, work.settings, work.world.device
    inputs, ask = objective.inputs, objective.loss_of_outputs
    is_there = not any(parameter.is_meta for parameter in work.model.parameters())
    if batch is None or inputs is None or ask is None or device.type != "cpu" or not is_there:
        return
    precise = autocasting(settings.precision, device)()
    with torch.random.fork_rng(devices=[]), evaluating(work.model), precise:
        whole = objective.loss(work.model, batch).loss
        value = inputs(batch)
        for _, layer in found:
            value = layer(value)
        cut = ask(value, batch).loss
    if not _alike(whole, cut):
        raise UsageError(
            f"cut into layers, the model says a loss of {float(cut):.6g} where it says "
            f"{float(whole):.6g} as a whole: pipeline_layers() leaves out or adds something that "
            "forward() does, such as a functional relu (write it as a layer), or loss_of_outputs() "
            "computes something else than loss()"
        )


def _alike(whole: Tensor, cut: Tensor) -> bool:
    return torch.allclose(whole.double(), cut.double(), rtol=CLOSE, atol=1e-7, equal_nan=True)
