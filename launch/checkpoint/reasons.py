"""What is said where a checkpoint cannot be written or read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from launch.checkpoint.links import CheckpointError

REFUSED = (OSError, SafetensorError, TypeError, ValueError)  # what writing raises


def unwritten(path: Path, why: str) -> CheckpointError:
    """Return the error of a checkpoint that could not be written to ``path``."""
    return CheckpointError(
        f"cannot write checkpoint {path}: {why}; the checkpoints before it are untouched"
    )


def why_unwritten(error: BaseException) -> str:
    """Return one of ``REFUSED`` in the system's words, without the path of a part."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    number = re.search(r"\(os error (\d+)\)", str(error))  # how safetensors words it
    return os.strerror(int(number[1])) if number else str(error)


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn every way in which writing fails into a ``CheckpointError`` with the path."""
    try:
        yield
        return
    except REFUSED as error:
        why = why_unwritten(error)
    raise unwritten(path, why)


@contextmanager
def understood(path: Path) -> Iterator[None]:
    """Turn every way in which reading fails into a ``CheckpointError`` with the path."""
    try:
        yield
    except Exception as error:  # files can be wrong in more ways than a list would have
        raise CheckpointError(f"checkpoint {path} cannot be read: {reason(error)}") from error


def reason(error: BaseException | None) -> str:
    """Return an error in words, with its class where the words alone say little."""
    if isinstance(error, OSError | SafetensorError):
        return str(error)
    return f"{type(error).__name__}: {error}"
