"""The list of a checkpoint's files, with size and SHA-256, by which it is known to be whole."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

NAME = "MANIFEST.json"
STEP = re.compile(r"(\.)?step-([0-9]{8,})(?(1)\.old)")  # the folder of a checkpoint, or OLD
OLD = re.compile(r"\.step-[0-9]{8,}\.old")  # the one that was just replaced
PART = re.compile(
    r"\.(step-[0-9]{8,}(\.old)?|(last|best)(\.old)?)\.part"
)  # being written, or removed
FORMAT = 1
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


def describe(folder: Path, step: int) -> str:
    """Return the manifest of the files in ``folder``, as JSON."""
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": _digest(folder / name)}
        for name in FILES
    }
    return json.dumps({"format": FORMAT, "step": step, "files": files}, indent=1) + "\n"


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
        for name in FILES:
            wrong = _difference(folder / name, manifest["files"][name], digests)
            if wrong:
                return f"{name} {wrong}"
    except OSError as error:
        return f"{Path(error.filename or folder).name}: {error.strerror}"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return f"{NAME} is not a checkpoint's manifest"
    return None


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
