"""The weights inside what a training script saved: among its epochs, optimizers and settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from launch.weights.errors import WeightsError, first

KEYS = ("state_dict", "model_state_dict", "model", "net", "module")


def weights_in(found: Any, source: str) -> dict[str, Any]:
    """Return the mapping of names to tensors that lies in ``found``, under ``KEYS`` or bare.

    Raises ``WeightsError`` where there is none, or more than one.
    """
    if not isinstance(found, Mapping):
        raise WeightsError(
            f"{source} holds a {type(found).__name__}, wanted names and their tensors, as "
            "torch.save(model.state_dict(), PATH) writes them"
        )
    places = _places(found, (), set())
    if len(places) > 1:
        paths = [".".join(path) for path in places]
        raise WeightsError(
            f"{source} holds weights in {len(places)} places, {first(paths)}; save the one that "
            "you mean in a file of its own"
        )
    if not places:
        names = [str(key) for key in found]
        raise WeightsError(
            f"{source} holds no tensors, neither bare nor under {', '.join(KEYS)}; it holds "
            f"{first(names) or 'nothing'}"
        )
    return _named(next(iter(places.values())), source)


def _places(
    found: Mapping[Any, Any], path: tuple[str, ...], seen: set[int]
) -> dict[tuple[str, ...], Mapping[Any, Any]]:
    """Return the innermost mappings with tensors, by the keys that lead there; each once.

    A pickle may hold one mapping twice, or within itself.
    """
    seen.add(id(found))
    places: dict[tuple[str, ...], Mapping[Any, Any]] = {}
    for key in KEYS:
        inner = found.get(key)
        if isinstance(inner, Mapping) and id(inner) not in seen:
            places |= _places(inner, (*path, key), seen)
    if not places and any(isinstance(value, Tensor) for value in found.values()):
        return {path: found}
    return places


def _named(found: Mapping[Any, Any], source: str) -> dict[str, Any]:
    """Return ``found`` without what modules keep beside their tensors, if that is no tensor."""
    for name in found:
        if not isinstance(name, str):
            raise WeightsError(
                f"{source} names a tensor {name!r}, a {type(name).__name__}; wanted text, as in "
                "model.state_dict()"
            )
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, Tensor) or name.rpartition(".")[2] != "_extra_state"
    }
