"""The links to a run's newest and best checkpoint, and the clearing away of what is over."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from launch.checkpoint import manifest
from launch.folder.disk import sync
from parallel.errors import UsageError


class CheckpointError(UsageError):
    """A checkpoint that cannot be written, or that is not what was written."""


class ContentsError(CheckpointError):
    """Something that no checkpoint can hold: no room on a disk will help."""


def link(folder: Path, name: str, target: Path) -> None:
    """Let ``folder/name`` point to a checkpoint beside it; a reader sees the old or the new."""
    refuse_blocked(folder, name)
    part, place = folder / f".{name}.part", folder / name
    part.unlink(missing_ok=True)
    part.symlink_to(target.name)
    copied = not place.is_symlink() and place.is_dir()  # cp -L makes of a link what it points to
    if copied:
        place.rename(folder / f".{name}.old.part")
    part.replace(place)
    sync(folder)
    if copied:
        remove(folder, manifest.PART)


def refuse_blocked(folder: Path, *names: str) -> None:
    """Raise ``CheckpointError`` where a link cannot be put, for a folder that is not ours."""
    for place in (folder / name for name in names):
        theirs = not place.is_symlink() and place.is_dir()
        if theirs and not (place / manifest.NAME).is_file():
            raise CheckpointError(
                f"{place} is in the way: wanted a link to a checkpoint there, met a folder that is "
                "none; move it away, and give the same command again"
            )


def remove(folder: Path, names: re.Pattern[str]) -> None:
    """Remove what has one of ``names``: of our own making, and of no use any more."""
    for path in [each for each in folder.iterdir() if names.fullmatch(each.name)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
