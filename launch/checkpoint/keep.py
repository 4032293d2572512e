"""Which checkpoints stay: the newest few and the best."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from launch.checkpoint.files import in_order


def retain(folder: Path, keep: int, written: Path) -> list[Path]:
    """Remove old checkpoints from ``folder``, once ``written`` is whole; return what went.

    The ``keep`` newest up to ``written`` stay, and what the link ``best`` points to. Newer ones,
    which a resumed run found broken, stay too until training has come past them. Nothing but
    folders named as checkpoints are touched.
    """
    found = in_order(folder)
    old = found[found.index(written) :] if written in found else []
    best = _target(folder / "best")
    return [path for path in to_remove(old, keep, best) if _remove(path)]


def to_remove(newest_first: Sequence[Path], keep: int, best: Path | None) -> list[Path]:
    """Return those beyond the first ``keep`` that are not the best."""
    return [path for path in newest_first[keep:] if path != best]


def _target(link: Path) -> Path | None:
    with suppress(OSError):
        return link.with_name(link.readlink().name)
    return None


def _remove(path: Path) -> bool:
    """Remove a checkpoint under a name that no reader takes for whole."""
    if path.is_symlink() or not path.is_dir():
        return False
    part = path.with_name(f".{path.name.lstrip('.')}.part")
    with suppress(OSError):  # what cannot be removed now is tried again at the next save
        path.rename(part)
        shutil.rmtree(part)
        return True
    return False
