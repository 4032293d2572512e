"""What a person asks for as ``strategy.split``, turned into cuts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from parallel.errors import UsageError
from parallel.partition import Cuts, even


def cuts_of(split: Sequence[int | str], names: Sequence[str], stages: int) -> Cuts:
    """Return the numbers of the layers that ``split`` gives by number or name.

    Raises ``UsageError`` where a layer is not there, or a stage would be empty.
    """
    even(len(names), stages)  # refuses fewer layers than stages
    wanted = f"strategy.split={list(split)}"
    if len(split) != stages - 1:
        raise UsageError(
            f"{wanted} makes {len(split) + 1} stage{'s' if split else ''}, but "
            f"strategy.stages={stages}: name the first layer of each stage but the first, "
            f"{stages - 1} in all"
        )
    cuts = tuple(_number(each, names, wanted) for each in split)
    if any(b <= a for a, b in pairwise((0, *cuts))):
        raise UsageError(
            f"{wanted} leaves a stage empty: name layers whose numbers rise, from 1 to "
            f"{len(names) - 1}; these are {', '.join(map(str, cuts))}"
        )
    return cuts


def called(number: int, name: str) -> str:
    """Return a layer's number, and its name where that says more."""
    return name if name == str(number) else f"{number} ({name})"


def _number(layer: int | str, names: Sequence[str], wanted: str) -> int:
    number = names.index(layer) if layer in names else layer
    if not isinstance(number, int) or not 0 <= number < len(names):
        raise UsageError(
            f"{wanted}: the model has no layer {layer!r} to cut before; its layers are "
            f"{', '.join(map(called, range(len(names)), names))}"
        )
    return number
