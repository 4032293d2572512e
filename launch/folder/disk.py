"""Files that are written whole or not at all, and what is said where they cannot be."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from parallel.errors import UsageError


class FolderError(UsageError):
    """A run folder that cannot be used: another experiment's, another run's, or not writable."""


def replace_text(path: Path, text: str) -> None:
    """Put ``text`` in the place of ``path``; a reader sees the old file or the new, whole."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, content: bytes) -> None:
    """Put ``content`` in the place of ``path``, whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # a write names no path
    finally:
        with suppress(OSError):  # it is there still if anything came between, Ctrl-C too
            part.unlink()
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some network filesystems cannot sync a folder
            raise
    finally:
        os.close(descriptor)


def strict_json(value: Any) -> str:
    """Return JSON on one line that every reader accepts: numbers that are not finite are null."""
    return json.dumps(_finite(value), allow_nan=False, ensure_ascii=False)


@contextmanager
def told(folder: Path) -> Iterator[None]:
    """Turn the operating system's refusal into a ``FolderError`` with its words and the path."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        words = error.strerror or str(error)
        raise FolderError(
            f"cannot write the run folder {folder}: {words} ({where}); "
            "make room or give it a place that can be written: runs=FOLDER"
        ) from error


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, Path) else value
