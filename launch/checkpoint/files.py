"""Checkpoints on the disk: written aside and renamed, verified when read, the newest whole one.

checkpoints/
  step-00000120/   model.safetensors optimizer.safetensors state.json MANIFEST.json
                   (of a split model: model-00001-of-00002.safetensors, ..., and an index)
  last             -> step-00000120
  .*.part          being written; a killed run's is removed by the next write
  .*.old           the one that is just being replaced, as good as any
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from launch.checkpoint import index, manifest
from launch.checkpoint.index import KINDS
from launch.checkpoint.links import CheckpointError, ContentsError, link, remove
from launch.checkpoint.plain import decode, encode
from launch.checkpoint.reasons import reason, told, understood
from launch.checkpoint.tensors import pack, to_cpu, unpack
from launch.folder.disk import replace_text, sync

NOTES = ("aliases", "complex")  # keys of state.json: what the files do not say themselves


@dataclass(frozen=True)
class Contents:
    """A checkpoint that is not on the disk yet: safetensors' tensors, and what JSON holds."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]  # of each kind, as ``pack`` made them
    state: Mapping[str, Any]


def collect(
    step: int,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
    move: Callable[[str, Tensor], Tensor] = to_cpu,
) -> Contents:
    """Return what is to be written; ``move`` brings each tensor to the CPU.

    state: see ``plain``. Raises ``CheckpointError`` for what neither file format holds.
    """
    tensors: dict[str, dict[str, Tensor]] = {}
    notes: dict[str, dict[str, Any]] = {note: {} for note in NOTES}
    try:
        taken = state.keys() & set(NOTES)
        if taken:
            raise TypeError(f"the keys {sorted(taken)} of a checkpoint's state are taken")
        for kind, held in zip(KINDS, (model, optimizer), strict=True):
            own = partial(_move, move, kind)
            tensors[kind], notes["aliases"][kind], notes["complex"][kind] = pack(held, own)
        return Contents(step, tensors, {**encode(state), **notes})
    except (TypeError, RecursionError) as error:
        raise ContentsError(f"cannot save a checkpoint of step {step}: {error}") from None


def _move(move: Callable[[str, Tensor], Tensor], kind: str, name: str, tensor: Tensor) -> Tensor:
    return move(f"{kind}/{name}", tensor)


def write(folder: Path, contents: Contents) -> Path:
    """Write ``folder/step-...`` whole, point ``last`` to it, and return its path.

    What lay under the same step is replaced. Raises ``CheckpointError`` and leaves the earlier
    checkpoints and ``last`` as they were.
    """
    begin(folder, contents.step)
    return complete(folder, contents.step, partial(_fill, contents))


def place(folder: Path, step: int) -> Path:
    """Return where the checkpoint of ``step`` lies once it is whole."""
    return folder / f"step-{step:08d}"


def part_of(path: Path) -> Path:
    """Return where a checkpoint lies while it is written."""
    return path.with_name(f".{path.name}.part")


def begin(folder: Path, step: int) -> None:
    """Make the empty folder that ``complete`` fills. Raises ``CheckpointError``."""
    path = place(folder, step)
    with told(path):
        folder.mkdir(exist_ok=True)  # a run folder that is gone stays so
        remove(folder, manifest.PART)
        part_of(path).mkdir()


def complete(folder: Path, step: int, fill: Callable[[Path], manifest.Entries]) -> Path:
    """Let ``fill`` put files where ``begin`` made room, and all of it in place; as ``write``.

    fill: returns entries of the manifest that it knows already.
    """
    path = place(folder, step)
    part = part_of(path)
    with told(path):
        try:
            known = fill(part)
            replace_text(part / manifest.NAME, manifest.describe(part, step, known))
            _put(part, path)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        link(folder, "last", path)
        remove(folder, manifest.OLD)
    return path


def read(
    path: Path, *, verify: bool = True
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Return model, optimizer and state as they were written; nothing in it can run code.

    verify: False where ``newest`` has just read every byte. Raises ``CheckpointError``.
    """
    wrong = manifest.fault(path) if verify else None
    if wrong:
        raise CheckpointError(f"checkpoint {path} cannot be used: {wrong}")
    with understood(path):
        state, listed = _state(path), manifest.listed(path)
        aliases, pairs = (state.pop(note) for note in NOTES)
        model, optimizer = (
            unpack(index.load(path, kind, listed), aliases[kind], pairs[kind]) for kind in KINDS
        )
    return model, optimizer, state


def read_state(path: Path) -> dict[str, Any]:
    """Return a checkpoint's state alone. Raises ``CheckpointError``."""
    with understood(path):
        state = _state(path)
        return {key: value for key, value in state.items() if key not in NOTES}


def _state(path: Path) -> dict[str, Any]:
    state = decode(json.loads((path / "state.json").read_text(encoding="utf-8")))
    if not isinstance(state, dict) or not state.keys() >= set(NOTES):
        raise ValueError("state.json is not a checkpoint's state")
    return state


def newest(folder: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """Return the newest whole checkpoint, and the newer ones with what is wrong with them."""
    skipped: list[tuple[Path, str]] = []
    for path in in_order(folder):
        wrong = fault(path)
        if wrong is None:
            return path, skipped
        skipped.append((path, wrong))
    return None, skipped


def fault(path: Path) -> str | None:
    """Return what is wrong with a checkpoint; None where ``read`` gives back what was written."""
    wrong = manifest.fault(path)
    if wrong is None:
        try:
            read(path, verify=False)  # looks at names, shapes and state; maps the rest
        except CheckpointError as error:
            return f"cannot be read: {reason(error.__cause__)}"
    return wrong


def in_order(folder: Path) -> list[Path]:
    """Return what looks like a checkpoint in ``folder``, the newest first.

    Raises ``CheckpointError`` for one that is there and cannot be looked into: what it holds must
    not be taken for nothing.
    """
    try:
        paths = list(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(
            f"cannot look for checkpoints in {folder}: {error.strerror}; mend that, or train anew "
            "under another name: name=OTHER"
        ) from None
    found = [(int(m[2]), path) for path in paths if (m := manifest.STEP.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def _fill(contents: Contents, part: Path) -> manifest.Entries:
    for kind in KINDS:
        save(part / index.whole(kind), contents.tensors[kind])
    save_state(part, contents.state)
    return {}


def save(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors, and wait until they are on the disk."""
    save_file(dict(tensors), file, metadata={"format": "pt"})  # others ask
    sync(file)


def save_state(part: Path, state: Mapping[str, Any]) -> None:
    """Write what JSON holds of a checkpoint."""
    text = json.dumps(state, indent=1, sort_keys=True, allow_nan=False)
    replace_text(part / "state.json", text + "\n")


def _put(part: Path, path: Path) -> None:
    """Rename a whole checkpoint into place; at every moment a whole one of this step is there."""
    if path.exists():
        old = path.with_name(f".{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    part.rename(path)
    sync(path.parent)
