"""Memory and values for some layers of a model that was built without, as the whole has them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from parallel.errors import UsageError
from parallel.pipeline.layers import named_tensors
from parallel.pipeline.replay import at, plan, replay
from parallel.pipeline.unbuilt import RECIPE, Recipe, recipe_of, refusal


def materialize(model: nn.Module, own: Collection[nn.Module], device: torch.device) -> None:
    """Give memory and values to the layers in ``own``, on ``device``; others stay as they are.

    The values are, to the bit, what the model's constructor gives with torch's generator as it
    is now, and the generator ends where the constructor leaves it. Tensors that have values
    already (of a file) keep them, in memory of their own and the dtype that the model chose;
    where all of ``own`` have some, nothing is drawn. Parameters are new objects; ties stay.
    Call it before the model's dtype is changed. Not collective.
    """
    named, recipe = named_tensors(model), recipe_of(model)
    mine = {id(value) for layer in own for value in named_tensors(layer).values()}
    given = {name: value for name, value in named.items() if id(value) in mine}
    values = _values(recipe, [name for name, value in given.items() if value.is_meta])
    dtypes = recipe.dtypes if recipe else {}
    fresh: dict[int, Tensor] = {}
    for name, old in given.items():
        if id(old) not in fresh:
            value = values.get(name)
            if value is None:  # a file's, to which it must not be bound
                value = old.detach().to(device, dtypes.get(name, old.dtype), copy=True)
            fresh[id(old)] = _like(old, value.to(device))
    _put(model, fresh)
    if recipe:
        delattr(model, RECIPE)


def _values(recipe: Recipe | None, names: Collection[str]) -> dict[str, Tensor]:
    """Return the values of the tensors named, on the CPU, by every draw of the constructor."""
    if not names:
        return {}
    if recipe is None:
        raise UsageError(
            f"the model has no memory (meta device) for {next(iter(names))}, and no values; "
            "make it on a device, or give them by checkpoint.init_from=PATH"
        )
    empty = recipe.empty(names)
    if empty:
        raise UsageError(refusal(empty))
    places = {name: recipe.places[name] for name in names}
    due, _ = plan(recipe.tape, {place.storage for place in places.values()})
    storages = replay(recipe.tape, due)
    return {name: at(storages, place) for name, place in places.items()}


def _like(old: Tensor, value: Tensor) -> Tensor:
    """Return ``value`` as what ``old`` is: a parameter, or a plain tensor."""
    if type(old) is Tensor:
        return value.requires_grad_(old.requires_grad)
    made: Tensor = torch.Tensor._make_subclass(type(old), value, old.requires_grad)
    made.__dict__.update(old.__dict__)
    return made


def _put(model: nn.Module, fresh: Mapping[int, Tensor]) -> None:
    """Set the tensors of ``model`` that ``fresh`` replaces, by the id of the old one."""
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, old in list(held.items()):
                if old is not None and id(old) in fresh:
                    setattr(module, name, fresh[id(old)])
