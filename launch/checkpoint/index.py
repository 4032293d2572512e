"""Where the tensors of one kind lie: in one file, or in shards that an index lists."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

KINDS = ("model", "optimizer")  # of tensors
SUFFIX = ".safetensors"


def whole(kind: str) -> str:
    """Return the name of the one file of a kind that is not in shards."""
    return kind + SUFFIX


def index_of(kind: str) -> str:
    """Return the name of the list of a kind's shards."""
    return f"{kind}{SUFFIX}.index.json"


def shards(kind: str, count: int) -> list[str]:
    """Return the names of a kind's files where there are ``count``."""
    return [f"{kind}-{number:05d}-of-{count:05d}{SUFFIX}" for number in range(1, count + 1)]


def files_of(kind: str, listed: Collection[str]) -> list[str]:
    """Return the files of a kind among all the names of a checkpoint's files.

    Raises ``ValueError`` where they are not complete.
    """
    if whole(kind) in listed:
        return [whole(kind)]
    found = sorted(n for n in listed if n.startswith(f"{kind}-") and n.endswith(SUFFIX))
    if not found or found != shards(kind, len(found)) or index_of(kind) not in listed:
        raise ValueError(f"the files of the {kind} are not all there")
    return found


def load(folder: Path, kind: str, listed: Collection[str]) -> dict[str, Tensor]:
    """Return a kind's tensors, mapped from its files.

    Raises ``ValueError`` where an index says something else than its shards.
    """
    files = files_of(kind, listed)
    if files == [whole(kind)]:
        return load_file(folder / files[0])
    places = json.loads((folder / index_of(kind)).read_text(encoding="utf-8"))["weight_map"]
    tensors: dict[str, Tensor] = {}
    met: dict[str, str] = {}
    for file in files:
        held = load_file(folder / file)
        tensors |= held
        met |= dict.fromkeys(held, file)
    if met != places:
        raise ValueError(f"{index_of(kind)} names other tensors than its files hold")
    return tensors


def sizes(file: Path) -> dict[str, int]:
    """Return the names in a safetensors file, each with its bytes.

    The file begins with the length of its header, 8 bytes, little-endian; the header is JSON:
    https://huggingface.co/docs/safetensors
    """
    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    offsets = {n: entry["data_offsets"] for n, entry in header.items() if n != "__metadata__"}
    return {name: end - begin for name, (begin, end) in offsets.items()}


def describe(held: Mapping[str, Mapping[str, int]]) -> str:
    """Return the index of files that hold tensors of these names and bytes, as JSON.

    The format is Hugging Face's: https://huggingface.co/docs/transformers/big_models
    """
    places = {name: file for file, names in held.items() for name in names}
    total = sum(size for names in held.values() for size in names.values())
    entries = {"metadata": {"total_size": total}, "weight_map": places}
    return json.dumps(entries, indent=2, sort_keys=True) + "\n"
