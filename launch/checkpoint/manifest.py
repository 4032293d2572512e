"""The list of a checkpoint's files, with size and SHA-256, by which it is known to be whole."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.checkpoint.index import KINDS, files_of

NAME = "MANIFEST.json"
STEP = re.compile(r"(\.)?step-([0-9]{8,})(?(1)\.old)")  # the folder of a checkpoint, or OLD
OLD = re.compile(r"\.step-[0-9]{8,}\.old")  # the one that was just replaced
PART = re.compile(
    r"\.(step-[0-9]{8,}(\.old)?|(last|best)(\.old)?)\.part"
)  # being written, or removed
FORMAT = 1

Entries = Mapping[str, Mapping[str, Any]]  # of each file: bytes, sha256


def describe(folder: Path, step: int, known: Entries | None = None) -> str:
    """Return the manifest of the files in ``folder``, as JSON.

    known: entries that need not be read from the disk once more.
    """
    names = sorted(p.name for p in folder.iterdir() if p.name[0] != "." and p.name != NAME)
    files = {name: (known or {}).get(name) or entry(folder / name) for name in names}
    return json.dumps({"format": FORMAT, "step": step, "files": files}, indent=1) + "\n"


def entry(file: Path) -> dict[str, Any]:
    """Return what a manifest says of ``file``."""
    return {"bytes": file.stat().st_size, "sha256": _digest(file)}


def listed(folder: Path) -> dict[str, Any]:
    """Return the entries of a manifest that ``fault`` found nothing wrong with."""
    return dict(json.loads((folder / NAME).read_text(encoding="utf-8"))["files"])


def fault(folder: Path, *, digests: bool = True) -> str | None:
    """Return what is wrong with a checkpoint; None where every file is as it was written.

    digests: False where it is enough that all is there, and as large as it was.
    """
    try:
        manifest = json.loads((folder / NAME).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            return f"{NAME} has format {manifest['format']}, this version reads {FORMAT}"
        named = STEP.fullmatch(folder.name)
        if named and int(named[2]) != manifest["step"]:
            return f"{NAME} is of step {manifest['step']}"
        entries = dict(manifest["files"])
        _require_complete(entries)
        for name in entries:
            wrong = _difference(folder / name, entries[name], digests)
            if wrong:
                return f"{name} {wrong}"
    except OSError as error:
        return f"{Path(error.filename or folder).name}: {error.strerror}"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return f"{NAME} is not a checkpoint's manifest"
    return None


def _require_complete(entries: Entries) -> None:
    """Raise where a manifest lacks one of a checkpoint's files, or names what is not beside it."""
    for kind in KINDS:
        files_of(kind, entries)
    if "state.json" not in entries or any(Path(name).name != name for name in entries):
        raise ValueError("wanted state.json, and files of the checkpoint's own folder")


def _difference(path: Path, entry: dict[str, Any], digests: bool) -> str | None:
    size = path.stat().st_size
    if size != entry["bytes"]:
        return f"has {size} bytes, the manifest says {entry['bytes']}"
    if digests and _digest(path) != entry["sha256"]:
        return "has other contents than the manifest says (SHA-256)"
    return None


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
