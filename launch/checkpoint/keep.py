"""Which checkpoints stay: the newest few and the best."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from launch.checkpoint import manifest
from launch.checkpoint.files import in_order


def retain(written: Path, keep: int, broken: Collection[Path] = ()) -> list[Path]:
    """Remove old checkpoints from beside ``written``, which is whole; return what went.

    The ``keep`` newest up to ``written`` stay, and what the link ``best`` points to. Those known
    to be ``broken`` do not count, and go once training has come past them. Nothing but folders
    that are named as checkpoints and have a manifest are touched.
    """
    found = in_order(written.parent)
    old = found[found.index(written) :] if written in found else []
    ours = [path for path in old if not path.is_symlink() and (path / manifest.NAME).is_file()]
    best = _target(written.with_name("best"))
    return [path for path in to_remove(ours, keep, best, broken) if _remove(path)]


def to_remove(
    newest_first: Sequence[Path], keep: int, best: Path | None, broken: Collection[Path] = ()
) -> list[Path]:
    """Return the broken ones and the others beyond the first ``keep``, without the best."""
    whole = [path for path in newest_first if path not in broken]
    stay = {*whole[:keep], best}
    return [path for path in newest_first if path not in stay]


def _target(link: Path) -> Path | None:
    with suppress(OSError):
        return link.with_name(link.readlink().name)
    return None


def _remove(path: Path) -> bool:
    """Remove a checkpoint under a name that no reader takes for whole."""
    part = path.with_name(f".{path.name.lstrip('.')}.part")
    with suppress(OSError):  # what cannot be removed now is tried again at the next save
        path.rename(part)
        shutil.rmtree(part)
        return True
    return False
