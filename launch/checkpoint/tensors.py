"""Tensors as safetensors can hold them, and back: ties once, complex as pairs, all on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


def to_cpu(name: str, tensor: Tensor) -> Tensor:
    """Return ``tensor`` itself, or its copy where it is on a device."""
    return tensor.cpu()


def pack(
    tensors: Mapping[str, Tensor], move: Callable[[str, Tensor], Tensor] = to_cpu
) -> tuple[dict[str, Tensor], dict[str, str], list[str]]:
    """Return contiguous CPU tensors that share no memory, and what undoes the packing.

    That is: aliases (name -> the name under which the same tensor is stored), and the names of
    complex tensors, stored as real [..., 2]. Names are taken in sorted order, so that the result
    does not depend on the mapping's. Raises ``TypeError`` for tensors that have no plain bytes.
    """
    packed: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    kept: dict[tuple[Any, ...], str] = {}
    storages: set[int] = set()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        _refuse_odd(name, tensor)
        same = kept.setdefault(_place(name, tensor), name)
        if same != name:
            aliases[name] = same
        else:
            packed[name] = _alone(_plain(move(name, tensor)), storages)
    return packed, aliases, [name for name in packed if tensors[name].is_complex()]


def unpack(
    packed: Mapping[str, Tensor], aliases: Mapping[str, str], pairs: Iterable[str]
) -> dict[str, Tensor]:
    """Return what was packed; an alias is the very tensor that it names."""
    tensors = dict(packed)
    for name in pairs:
        own = tensors[name].clone()  # a file aligns pairs to one real number, torch wants to two
        tensors[name] = torch.view_as_complex(own)
    for name, same in aliases.items():
        tensors[name] = tensors[same]
    return tensors


def _refuse_odd(name: str, tensor: Tensor) -> None:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise TypeError(f"{name} is a meta, sparse or quantized tensor, which has no plain bytes")
    if tensor.numel() and tensor.data_ptr() == 0:
        raise TypeError(f"{name} is a {type(tensor).__name__} without memory of its own")


def _place(name: str, tensor: Tensor) -> tuple[Any, ...]:
    """Return what two names of one tensor have in common; unique where there is no memory."""
    if tensor.numel() == 0:
        return (name,)
    conjugate = tensor.is_conj(), tensor.is_neg()
    memory = tensor.device, tensor.data_ptr(), tensor.dtype
    return (*memory, tuple(tensor.shape), tensor.stride(), *conjugate)


def _plain(tensor: Tensor) -> Tensor:
    tensor = tensor.resolve_conj().resolve_neg()
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.contiguous()


def _alone(tensor: Tensor, storages: set[int]) -> Tensor:
    """Return ``tensor``, cloned where another one already lies in its storage."""
    pointer = tensor.untyped_storage().data_ptr()
    if pointer in storages:
        return tensor.clone()
    storages.add(pointer)
    return tensor
