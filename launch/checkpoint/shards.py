"""A checkpoint in parts: what one rank writes of it, and how rank 0 makes it one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from launch.checkpoint import index, manifest
from launch.checkpoint.files import NOTES, Contents, part_of, place, save, save_state
from launch.checkpoint.index import KINDS
from launch.checkpoint.links import CheckpointError, ContentsError
from launch.checkpoint.reasons import REFUSED, unwritten, why_unwritten
from launch.folder.disk import replace_text

UNSEEN = (
    "does not see the folder that rank 0 made for it; wanted a run folder on a file system that "
    "all nodes share: runs=FOLDER"
)


@dataclass(frozen=True)
class Shard:
    """What a rank tells of its part; as JSON it travels between the ranks."""

    rank: int
    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # kind -> entry; none if empty
    notes: dict[str, dict[str, Any]] = field(default_factory=dict)  # NOTES, of its tensors
    problem: str = ""  # why it could not be written
    is_unfit: bool = False  # for any checkpoint: no room on a disk will help

    def to_json(self) -> str:
        """Return what another rank reads."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Shard:
        """Return what another rank wrote."""
        return Shard(**json.loads(text))


def write_shard(folder: Path, rank: int, contents: Contents | CheckpointError) -> Shard:
    """Write a rank's tensors to where ``begin`` made room; never raises for want of a disk.

    contents: an error where they could not be collected.
    """
    if isinstance(contents, CheckpointError):
        return Shard(rank, problem=str(contents), is_unfit=isinstance(contents, ContentsError))
    part, files = part_of(place(folder, contents.step)), {}
    if not part.is_dir():
        return Shard(rank, problem=UNSEEN)
    try:
        for kind in KINDS:
            if contents.tensors[kind]:
                file = part / _own(kind, rank)
                save(file, contents.tensors[kind])
                files[kind] = manifest.entry(file)
    except REFUSED as error:
        return Shard(rank, problem=why_unwritten(error))
    return Shard(rank, files, {note: contents.state[note] for note in NOTES})


def refuse_incomplete(path: Path, shards: Sequence[Shard]) -> None:
    """Raise ``CheckpointError`` where a shard was not written, naming the first such rank."""
    for shard in shards:
        if shard.is_unfit:
            raise ContentsError(f"rank {shard.rank}: {shard.problem}")
        if shard.problem:
            raise unwritten(path, f"rank {shard.rank}: {shard.problem}")


def unite(part: Path, shards: Sequence[Shard], contents: Contents) -> manifest.Entries:
    """Give the shards their names, list them, and add rank 0's state; return what is known.

    Where only one rank holds tensors of a kind, its file is as one process would have written it.
    """
    known: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        holders = [shard for shard in shards if kind in shard.files]
        names = index.shards(kind, len(holders)) if len(holders) > 1 else [index.whole(kind)]
        for name, shard in zip(names, holders, strict=False):  # one name where nobody holds any
            (part / _own(kind, shard.rank)).rename(part / name)
            known[name] = shard.files[kind]
        if not holders:
            save(part / names[0], {})
        elif len(holders) > 1:
            held = {name: index.sizes(part / name) for name in names}
            _refuse_twice([name for sizes in held.values() for name in sizes])
            replace_text(part / index.index_of(kind), index.describe(held))
    save_state(part, {**contents.state, **_merged(shards)})
    return known


def _own(kind: str, rank: int) -> str:
    """Return a shard's name until it is known how many there are."""
    return f"{kind}.rank-{rank}{index.SUFFIX}"


def _refuse_twice(names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ContentsError(
            f"{twice[0]} is in the shards of two ranks: the engine's state() must return each "
            "tensor on one rank only"
        )


def _merged(shards: Sequence[Shard]) -> dict[str, dict[str, Any]]:
    """Return the notes of all shards as those of one."""
    aliases: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    pairs: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for notes in (shard.notes for shard in shards):
        for kind in KINDS:
            aliases[kind] |= notes["aliases"][kind]
            pairs[kind] = sorted([*pairs[kind], *notes["complex"][kind]])
    return {"aliases": aliases, "complex": pairs}
