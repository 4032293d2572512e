"""Checkpoints on the disk: written aside and renamed, verified when read, the newest whole one.

checkpoints/
  step-00000120/   model.safetensors optimizer.safetensors state.json MANIFEST.json
  last             -> step-00000120
  .*.part          being written; a killed run's is removed by the next write
  .*.old           the one that is just being replaced, as good as any
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from launch.checkpoint import manifest
from launch.checkpoint.links import CheckpointError, ContentsError, link, remove
from launch.checkpoint.plain import decode, encode
from launch.checkpoint.tensors import pack, to_cpu, unpack
from launch.folder.disk import replace_text, sync

KINDS = ("model", "optimizer")  # of tensors, a file each
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
    path = folder / f"step-{contents.step:08d}"
    part = folder / f".{path.name}.part"
    with _told(path):
        folder.mkdir(exist_ok=True)  # a run folder that is gone stays so
        remove(folder, manifest.PART)
        try:
            part.mkdir()
            _fill(part, contents)
            replace_text(part / manifest.NAME, manifest.describe(part, contents.step))
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
    with _understood(path):
        state = _state(path)
        aliases, pairs = (state.pop(note) for note in NOTES)
        model, optimizer = (
            unpack(load_file(path / f"{kind}.safetensors"), aliases[kind], pairs[kind])
            for kind in KINDS
        )
    return model, optimizer, state


def read_state(path: Path) -> dict[str, Any]:
    """Return a checkpoint's state alone. Raises ``CheckpointError``."""
    with _understood(path):
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
            return f"cannot be read: {_reason(error.__cause__)}"
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


def _fill(part: Path, contents: Contents) -> None:
    for kind in KINDS:
        file = part / f"{kind}.safetensors"
        save_file(dict(contents.tensors[kind]), file, metadata={"format": "pt"})  # others ask
        sync(file)
    text = json.dumps(contents.state, indent=1, sort_keys=True, allow_nan=False)
    replace_text(part / "state.json", text + "\n")


def _put(part: Path, path: Path) -> None:
    """Rename a whole checkpoint into place; at every moment a whole one of this step is there."""
    if path.exists():
        old = path.with_name(f".{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    part.rename(path)
    sync(path.parent)


@contextmanager
def _understood(path: Path) -> Iterator[None]:
    """Turn every way in which reading fails into a ``CheckpointError`` with the path."""
    try:
        yield
    except Exception as error:  # files can be wrong in more ways than a list would have
        raise CheckpointError(f"checkpoint {path} cannot be read: {_reason(error)}") from error


def _reason(error: BaseException | None) -> str:
    """Return an error in words, with its class where the words alone say little."""
    if isinstance(error, OSError | SafetensorError):
        return str(error)
    return f"{type(error).__name__}: {error}"


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn every way in which writing fails into a ``CheckpointError`` with the path."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
    except (SafetensorError, TypeError, ValueError) as error:
        number = re.search(r"\(os error (\d+)\)", str(error))  # how safetensors words it
        why = os.strerror(int(number[1])) if number else str(error)
    else:
        return
    raise CheckpointError(
        f"cannot write checkpoint {path}: {why}; the checkpoints before it are untouched"
    )
