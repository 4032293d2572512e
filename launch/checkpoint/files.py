"""Checkpoints on the disk: written aside and renamed, verified when read, the newest whole one.

checkpoints/
  step-00000120/   model.safetensors optimizer.safetensors state.json MANIFEST.json
  last             -> step-00000120
  .*.part          being written; a killed run's is removed by the next write
  .*.old           the one that is just being replaced, as good as any
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from launch.checkpoint import manifest
from launch.checkpoint.tensors import pack, unpack
from launch.folder.disk import replace_text, sync
from parallel.errors import UsageError

STEP = re.compile(r"\.?step-(\d{8,})(\.old)?")
KINDS = ("model", "optimizer")  # of tensors, a file each
NOTES = ("aliases", "complex")  # keys of state.json: what the files do not say themselves


class CheckpointError(UsageError):
    """A checkpoint that cannot be written, or that is not what was written."""


def write(
    folder: Path,
    step: int,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> Path:
    """Write ``folder/step-...`` whole, point ``last`` to it, and return its path.

    state: plain JSON; tuples come back as lists. What lay under the same step is replaced.
    Raises ``CheckpointError`` and leaves the earlier checkpoints and ``last`` as they were.
    """
    path = folder / f"step-{step:08d}"
    part = folder / f".{path.name}.part"
    with _told(path):
        folder.mkdir(parents=True, exist_ok=True)
        _remove(folder.glob(".*.part"))
        try:
            part.mkdir()
            _fill(part, {"model": model, "optimizer": optimizer}, state)
            replace_text(part / manifest.NAME, manifest.describe(part, step))
            _put(part, path)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        link(folder, "last", path)
        _remove(folder.glob(".*.old"))
    return path


def link(folder: Path, name: str, target: Path) -> None:
    """Let ``folder/name`` point to a checkpoint beside it; a reader sees the old or the new."""
    part = folder / f".{name}.part"
    part.unlink(missing_ok=True)
    part.symlink_to(target.name)
    part.replace(folder / name)
    sync(folder)


def read(
    path: Path, *, verify: bool = True
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Return model, optimizer and state as they were written; nothing in it can run code.

    verify: False where ``newest`` has just read every byte. Raises ``CheckpointError``.
    """
    wrong = manifest.fault(path) if verify else None
    if wrong:
        raise CheckpointError(f"checkpoint {path} cannot be used: {wrong}")
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        aliases, pairs = (state.pop(note) for note in NOTES)
        model, optimizer = (
            unpack(load_file(path / f"{kind}.safetensors"), aliases[kind], pairs[kind])
            for kind in KINDS
        )
    except (OSError, SafetensorError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from error
    return model, optimizer, state


def newest(folder: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """Return the newest whole checkpoint, and the newer ones with what is wrong with them."""
    found = [
        (int(match[1]), path)
        for path in folder.glob("*step-*")
        if (match := STEP.fullmatch(path.name))
    ]
    skipped: list[tuple[Path, str]] = []
    for _, path in sorted(found, reverse=True):
        wrong = manifest.fault(path)
        if wrong is None:
            return path, skipped
        skipped.append((path, wrong))
    return None, skipped


def _fill(
    part: Path, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
) -> None:
    taken = state.keys() & set(NOTES)
    if taken:
        raise TypeError(f"the keys {sorted(taken)} of a checkpoint's state are taken")
    notes: dict[str, dict[str, Any]] = {note: {} for note in NOTES}
    for kind in KINDS:
        file = part / f"{kind}.safetensors"
        packed, notes["aliases"][kind], notes["complex"][kind] = pack(tensors[kind])
        save_file(packed, file, metadata={"format": "pt"})  # other tools ask for it
        sync(file)
    text = json.dumps({**state, **notes}, indent=1, sort_keys=True)
    replace_text(part / "state.json", text + "\n")


def _put(part: Path, path: Path) -> None:
    """Rename a whole checkpoint into place; at every moment a whole one of this step is there."""
    if path.exists():
        old = path.with_name(f".{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    part.rename(path)
    sync(path.parent)


def _remove(paths: Iterator[Path]) -> None:
    for path in list(paths):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn every way in which writing fails into a ``CheckpointError`` with the path."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
    except (SafetensorError, TypeError, ValueError) as error:
        why = str(error)
    else:
        return
    raise CheckpointError(
        f"cannot write checkpoint {path}: {why}; the checkpoints before it are untouched"
    )
