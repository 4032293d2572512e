"""Weights from elsewhere in the place of those that a model made for itself."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from launch.weights.errors import WeightsError, first
from launch.weights.fitting import fit
from launch.weights.location import locate
from launch.weights.reading import read
from parallel.naming import separate_buffers


def init_from(path: Path, model: nn.Module, strict: bool = True) -> list[str]:
    """Overwrite the model's weights by those at ``path``; return what to tell of it.

    Every rank does it for itself, before the model is wrapped; nothing collective. Ties stay,
    dtype and device are the model's own. Raises ``WeightsError``; where the file cannot be read
    or does not fit, the model is as it was.
    """
    separate_buffers(model)
    file = locate(path)
    weights = read(file)
    try:
        fitted = fit(weights, model, strict)
    except WeightsError as error:
        raise WeightsError(f"{file}: {error}") from None
    try:
        with torch.no_grad():
            left = model.load_state_dict(fitted.weights, strict=False)
    except RuntimeError as error:
        raise WeightsError(f"{file} cannot be loaded into the model: {error}") from error
    if left.unexpected_keys:
        raise WeightsError(
            f"{file}: the model did not take {first(left.unexpected_keys)}, though it has them; "
            "look at its own load_state_dict hooks"
        )
    told = f"initial weights from {file}: {len(fitted.weights):,} of {fitted.own:,} tensors"
    return [told if fitted.is_whole else f"{told}; {fitted.remainder()}"]
