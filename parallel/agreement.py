"""Whether replicas hold the same tensors: their bits, summed up and compared over the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.parameter import is_lazy

from parallel.errors import DisagreementError, UsageError
from parallel.world import World

LANES = 16  # 4 to 64 cost up to 8 times as much: a row is then no multiple of two CPU vectors
ROW = 8 * LANES  # bytes


def fingerprint(tensor: Tensor) -> Tensor:
    """Return [LANES] sums of the bits of ``tensor`` as int64 words, dealt out to lanes by turns.

    They wrap around, so the order of summation does not matter, and any single element that
    differs is seen. Lanes, since one sum would miss signs that flip in pairs.
    """
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    flat = plain.reshape(-1).view(torch.uint8)
    if flat.storage_offset() % 8:  # words begin at multiples of 8 bytes
        flat = flat.clone()
    whole = len(flat) // ROW * ROW
    sums = flat[:whole].view(torch.int64).view(-1, LANES).sum(0)
    if whole == len(flat):
        return sums
    return sums + pad(flat[whole:], (0, whole + ROW - len(flat))).view(torch.int64)


def differing(tensors: Mapping[str, Tensor], world: World) -> dict[str, list[int]]:
    """Return the names whose bits, or that themselves, differ, and the ranks unlike most.

    Collective. Where all is alike it takes 8 bytes from each rank, and one wait for the device.
    """
    described = describe(tensors)
    none = torch.zeros(0, LANES, dtype=torch.int64, device=world.device)
    prints = torch.stack([fingerprint(t) for t in tensors.values()]) if tensors else none
    if _alike(_digest(prints) + _number(described), world):
        return {}
    pairs = zip(described.values(), prints.tolist(), strict=True)
    held = world.gather_objects(dict(zip(described, pairs, strict=True)))
    found = {name: _unlike([own.get(name) for own in held]) for own in held for name in own}
    return {name: ranks for name, ranks in found.items() if ranks}


def first_unlike(described: Mapping[str, str], world: World) -> str:
    """Return in words the first name of which the ranks' mappings say different things, or "".

    Collective.
    """
    number = torch.full((), _number(described), dtype=torch.int64, device=world.device)
    if _alike(number, world):
        return ""
    said = world.gather_objects(described)
    for name in dict.fromkeys(name for own in said for name in own):
        ranks: dict[str, list[int]] = {}
        for rank, own in enumerate(said):
            ranks.setdefault(own.get(name, "not there"), []).append(rank)
        if len(ranks) > 1:
            return f"{name} is " + ", ".join(f"{t} on {ranked(r)}" for t, r in ranks.items())
    return "the same names stand in another order"


def refuse_unlike(model: nn.Module, world: World) -> None:
    """Raise ``UsageError`` on all ranks where they built different models. Collective."""
    described = describe({**dict(model.named_parameters()), **dict(model.named_buffers())})
    frozen = {name: ", frozen" for name, p in model.named_parameters() if not p.requires_grad}
    unlike = first_unlike({n: t + frozen.get(n, "") for n, t in described.items()}, world)
    if unlike:
        raise UsageError(
            f"the ranks built different models: {unlike}; build the model from the configuration "
            "alone, not from a rank's number, data or random numbers"
        )


def refuse_unlike_buffers(model: nn.Module, world: World) -> None:
    """Raise ``DisagreementError`` on all ranks where they hold other buffers. Collective."""
    unlike = first_unlike(describe(dict(model.named_buffers())), world)
    if unlike:
        raise DisagreementError(
            f"the replicas have other buffers: {unlike}; register the same buffers, of "
            "the same shape, on every rank"
        )


def describe(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return name -> "[4, 3] float32": what must be alike before tensors can be compared."""
    return {
        name: "of no shape yet" if is_lazy(t) else f"{list(t.shape)} {str(t.dtype)[6:]}"
        for name, t in tensors.items()
    }


def listed(names: Sequence[str]) -> str:
    """Return the first eight of ``names``, and how many more there are."""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def ranked(ranks: Sequence[int]) -> str:
    """Return "rank 1" or "ranks 1, 2"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _digest(prints: Tensor) -> Tensor:
    """Return one number [] of all ``prints``: halves mixed, so that sign bits do not cancel.

    Both steps can be undone, so that any single print that differs is seen.
    """
    flat = prints.flatten()
    mixed = flat ^ (flat >> 32 & 0xFFFFFFFF)
    odd = torch.arange(1, 2 * len(flat) + 1, 2, device=flat.device)
    return (mixed * odd).sum()


def _number(described: Mapping[str, str]) -> int:
    """Return a number that stands for the text, on every rank the same."""
    text = repr(list(described.items())).encode()
    return int.from_bytes(blake2b(text, digest_size=7).digest(), "big")


def _alike(number: Tensor, world: World) -> bool:
    rows = world.gather(number)
    return bool((rows == rows[0]).all())


def _unlike(values: Sequence[Any]) -> list[int]:
    """Return the places that hold something other than most do; in a tie, than the first does."""
    most = max(values, key=values.count)
    return [place for place, value in enumerate(values) if value != most]
