"""Weights from elsewhere in the place of those that a model made for itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from launch.weights.errors import WeightsError, first
from launch.weights.fitting import fit
from launch.weights.location import locate
from launch.weights.reading import read
from parallel.naming import separate_buffers
from parallel.pipeline.layers import named_tensors
from parallel.pipeline.unbuilt import recipe_of

CHUNK = 1 << 16  # numbers looked at together: what that takes is memory of this process alone


def init_from(path: Path, model: nn.Module, strict: bool = True) -> list[str]:
    """Overwrite the model's weights by those at ``path``; return what to tell of it.

    Every rank does it for itself, before the model is wrapped; nothing collective. Ties stay,
    dtype and device are the model's own. Raises ``WeightsError``; where the file cannot be read
    or does not fit, the model is as it was.

    A model that was built without memory is given the file's own memory, mapped and not yet read,
    in the file's dtype; ``materialize`` copies and converts what a process keeps. Whether those
    numbers are finite is not looked at: that would read them all.
    """
    recipe = recipe_of(model)
    if recipe is None:
        _refuse_meta(model)
        separate_buffers(model)
    file = locate(path)
    weights = read(file)
    try:
        fitted = fit(weights, model, strict)
    except WeightsError as error:
        raise WeightsError(f"{file}: {error}") from None
    try:
        with torch.no_grad():
            left = _load(model, fitted.weights, assign=recipe is not None)
    except RuntimeError as error:
        raise WeightsError(f"{file} cannot be loaded into the model: {error}") from error
    if left.unexpected_keys:
        raise WeightsError(
            f"{file}: the model did not take {first(left.unexpected_keys)}, though it has them; "
            "look at its own load_state_dict hooks"
        )
    told = f"initial weights from {file}: {len(fitted.weights):,} of {fitted.own:,} tensors"
    spoilt = _first_spoilt(fitted.weights, model) if recipe is None else []
    return [told if fitted.is_whole else f"{told}; {fitted.remainder()}", *spoilt]


def _refuse_meta(model: nn.Module) -> None:
    unmade = [name for name, value in named_tensors(model).items() if value.is_meta]
    if unmade:  # copying to it would do nothing, and torch only warns
        raise WeightsError(
            f"the model has no memory yet (meta device) for {first(unmade)}; wanted one on a "
            "device, as task.model() makes it"
        )


def _load(model: nn.Module, weights: Mapping[str, Tensor], assign: bool) -> Any:
    """Return what the model says to ``weights``; assign: they take the place of its tensors."""
    if not assign:
        return model.load_state_dict(weights, strict=False)
    before = named_tensors(model)
    left = model.load_state_dict(weights, strict=False, assign=True)
    after = named_tensors(model)
    one = {id(old): after[name] for name, old in before.items() if after[name] is not old}
    for name, old in before.items():  # assigning gives each of tied names an object of its own
        part, _, last = name.rpartition(".")
        if id(old) in one:
            setattr(model.get_submodule(part), last, one[id(old)])
    return left


def _first_spoilt(weights: Mapping[str, Tensor], model: nn.Module) -> list[str]:
    """Return a sentence about the first tensor that holds NaN, or a parameter that is infinite.

    In a buffer infinity may be meant: masks have it.
    """
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name in model.state_dict():
        value = weights.get(name)
        if value is None or not (value.is_floating_point() or value.is_complex()):
            continue
        for part in value.flatten().split(CHUNK):
            part = part.float() if part.itemsize == 1 else part  # of 8 bits torch asks nothing
            if part.isnan().any() or (name in parameters and not part.isfinite().all()):
                return [f"the initial weights hold NaN or infinite numbers, first in {name}"]
    return []
