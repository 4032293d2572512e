"""The steps of a tape done for real: those that chosen storages need, and every draw before them.

Walking backwards tells what is needed. Draws are never left out, so that the generator moves as
the constructor would have moved it; what they give is dropped at once where nobody needs it.

    uniform_(a)  uniform_(b)  mul_(b, 2)  uniform_(a)      wanted: a
    drawn        drawn        -           kept
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from parallel.errors import UsageError
from parallel.pipeline.tape import Place, Step, Tape


@dataclass(frozen=True)
class Due:
    """A step to do, and the storages that nobody needs after it."""

    step: Step
    dropped: frozenset[int]


def plan(
    tape: Tape, wanted: Collection[int], draws: bool = True
) -> tuple[list[Due], frozenset[int]]:
    """Return what to do for the values of ``wanted``, and storages that lack values for it.

    draws: whether to include those whose numbers nobody needs.
    """
    needed = {number for number in wanted if tape.sizes[number]}  # nothing needs no values
    due = []
    for step in reversed(tape.steps):
        if not (step.writes & needed or (draws and step.is_random)):
            continue
        due.append(Due(step, (step.writes | step.reads) - needed))
        needed -= step.settles
        needed |= {number for number in step.reads if tape.sizes[number]}
    return due[::-1], frozenset(needed)


def replay(tape: Tape, due: Collection[Due]) -> dict[int, torch.UntypedStorage]:
    """Do what is ``due`` on the CPU with torch's generator as it is; return the wanted storages."""
    storages: dict[int, torch.UntypedStorage] = {}

    def real(leaf: Any) -> Any:
        if not isinstance(leaf, Place):
            return leaf
        if leaf.storage not in storages:
            storages[leaf.storage] = torch.UntypedStorage(tape.sizes[leaf.storage])
        return at(storages, leaf)

    with torch.no_grad():
        for each in due:
            step = each.step
            outputs = step.operation(*tree_map(real, step.args), **tree_map(real, step.kwargs))
            made = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
            for tensor, place in zip(made, step.made, strict=True):
                if place is not None:
                    _check(step, tensor, place)
                    storages[place.storage] = tensor.untyped_storage()
            for number in each.dropped:
                storages.pop(number, None)
    return storages


def evaluate(tape: Tape, place: Place) -> Tensor:
    """Return the numbers at ``place``, for a constructor that looks at them.

    Raises ``UsageError`` where they are drawn, or were never given.
    """
    due, missing = plan(tape, {place.storage}, draws=False)
    if missing or any(each.step.is_random for each in due):
        raise UsageError("it looks at numbers that are drawn at random, or that were never set")
    return at(replay(tape, due), place)


def at(storages: Mapping[int, torch.UntypedStorage], place: Place) -> Tensor:
    """Return the tensor at ``place`` in its real storage; one without numbers needs none."""
    storage = storages.get(place.storage)
    found = torch.empty(0, dtype=place.dtype, device="cpu")
    where = torch.UntypedStorage(0) if storage is None else storage
    return found.set_(where, place.offset, place.size, place.stride)


def _check(step: Step, met: Tensor, wanted: Place) -> None:
    """Raise where memory is laid out otherwise than was foreseen."""
    laid_out = met.dtype, tuple(met.shape), met.stride(), met.storage_offset()
    if laid_out != (wanted.dtype, wanted.size, wanted.stride, wanted.offset):
        raise UsageError(
            f"{step.operation} gave a tensor that lies otherwise in memory than foreseen, so that "
            "the model cannot be built in parts; use strategy.build=whole"
        )
