"""Tensors by name, from a file or folder of whichever kind; nothing in them is ever run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from launch.weights.archive import ZIP, load
from launch.weights.errors import WeightsError, first
from launch.weights.location import INDEX, locate
from launch.weights.nesting import weights_in

LFS = b"version https://git-lfs"  # opens the note that git keeps in the place of a large file


def read(path: Path) -> dict[str, Tensor]:
    """Return the tensors at ``path``, on the CPU, under the names that they have there.

    They are mapped from the file where its format allows: ranks on one machine share the memory,
    and the file must not be changed while they are in use. Raises ``WeightsError``.
    """
    file = locate(path)
    tensors = _read_index(file) if file.name.endswith(INDEX) else _read_file(file)
    if not tensors:
        raise WeightsError(f"{file} holds no tensors; wanted the weights of a model")
    for name, value in tensors.items():
        _refuse_odd(name, value, file)
    return {name: value.detach() for name, value in tensors.items()}


def _read_file(path: Path) -> Mapping[str, Any]:
    head = _head(path)
    if path.suffix.lower() != ".safetensors":
        if head[8:10] == b'{"':
            raise WeightsError(
                f"{path} is a safetensors file by another name; let it end in .safetensors"
            )
        return weights_in(load(path), str(path))
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        pickled = head[:1] == b"\x80" and any(head[4:8])  # else a header's length
        other = pickled or head.startswith(ZIP)
        met = "it may be one of torch.save, whose names end in .pt" if other else "fetch it again"
        raise WeightsError(f"{path} is no whole safetensors file: {error}; {met}") from error


def _read_index(path: Path) -> dict[str, Any]:
    """Return the tensors that an index names, each from the file where it says that it lies."""
    places = _weight_map(path)
    files = sorted(set(places.values()))
    absent = [name for name in files if not (path.parent / name).is_file()]
    if absent:
        raise WeightsError(
            f"{len(absent)} of the {len(files)} files that {path} names are not beside it: "
            f"{first(absent)}; fetch them too"
        )
    shards = {name: _read_file(path.parent / name) for name in files}
    lost = [f"{name} in {file}" for name, file in places.items() if name not in shards[file]]
    if lost:
        raise WeightsError(
            f"{path} names tensors that are not there: {first(lost)}; index and files are not of "
            "one download, fetch them again"
        )
    return {name: shards[file][name] for name, file in places.items()}


def _weight_map(path: Path) -> dict[str, str]:
    try:
        places = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        if all(_is_name(file) for file in places.values()):
            return dict(places)
        why = "it names files outside its own folder"
    except OSError as error:
        why = error.strerror or str(error)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        why = 'wanted JSON with {"weight_map": {NAME: FILE, ...}}'
    raise WeightsError(f"{path} is no index of weights: {why}; fetch it again")


def _is_name(file: Any) -> bool:
    return isinstance(file, str) and file not in ("", "..") and Path(file).name == file


def _head(path: Path) -> bytes:
    """Return the first bytes; raises where there are none, or none of the file's own."""
    try:
        with path.open("rb") as file:
            head = file.read(len(LFS))
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error
    if not head:
        raise WeightsError(f"{path} is empty; fetch it again")
    if head == LFS:
        raise WeightsError(f"{path} is git's note of a large file, not the file; git lfs pull")
    return head


def _refuse_odd(name: str, value: Any, file: Path) -> None:
    if not isinstance(value, Tensor):
        raise WeightsError(
            f"{name} in {file} is a {type(value).__name__}, wanted tensors only; save "
            "model.state_dict() alone, or under 'state_dict'"
        )
    plain = type(value) in (Tensor, torch.nn.Parameter) and value.layout == torch.strided
    if not plain or value.is_quantized or value.is_meta:
        raise WeightsError(
            f"{name} in {file} is a meta, sparse, quantized or otherwise special tensor; save it "
            "as a dense one"
        )
