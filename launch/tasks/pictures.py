"""Picture files: which there are, which can be read, and their pixels."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset

from parallel import UsageError

EXTENSIONS = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"))


def find_pictures(folder: Path) -> list[str]:
    """Return the pictures' paths inside ``folder``, with "/", sorted; by their extension.

    Neither links nor hidden files and folders are followed.
    """
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = Path(place, name)
            is_shown = not (name.startswith(".") or path.is_symlink())
            if is_shown and path.suffix.lower() in EXTENSIONS:
                found.append(path.relative_to(folder).as_posix())
    return sorted(found)


def why_unreadable(path: Path) -> str | None:
    """Return why ``path`` is no picture, judged by its beginning (PNG: by all of it), or None."""
    try:
        with Image.open(path) as picture:
            picture.verify()
    except Exception as error:  # Pillow's readers raise whatever a broken file makes them raise
        return _reason(error)
    return None


def held_out(names: Sequence[str], share: float) -> set[str]:
    """Return about ``share`` of ``names``, each chosen by its own hash, whatever the others are.

    Of two names and more at least one is held out and one is not.
    """
    if not share or len(names) < 2:
        return set()
    places = {name: _place(name) for name in names}
    ordered = sorted(names, key=places.__getitem__)
    chosen = sum(place < share for place in places.values())
    return set(ordered[: min(max(chosen, 1), len(names) - 1)])


def read_pixels(path: Path, size: int) -> Tensor:
    """Return a picture's middle [3, size, size] from 0 to 1. Raises ``UsageError`` naming it."""
    try:
        with Image.open(path) as picture:
            picture.draft("RGB", (2 * size, 2 * size))  # JPEG: leaves out detail nobody will see
            upright = ImageOps.exif_transpose(picture)
            square = ImageOps.fit(_colours(upright), (size, size), Image.Resampling.BILINEAR)
    except Exception as error:  # as above
        raise UsageError(
            f"picture {path} begins like one but cannot be read to its end ({_reason(error)}); "
            "replace or remove it and start again"
        ) from None
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).float() / 255


class Pictures(Dataset[tuple[Tensor, ...]]):
    """Pictures of a folder, decoded when asked for: (pixels,) or (pixels, label [])."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        size: int,
        *,
        labels: Sequence[int] | None = None,
        mirror: bool = False,
    ) -> None:
        self.folder, self.names, self.size = folder, list(names), size
        self.labels, self.mirror = None if labels is None else torch.tensor(labels), mirror

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        pixels = read_pixels(self.folder / self.names[index], self.size)
        if self.mirror and torch.rand(()) < 0.5:  # torch's own generator: the loader seeds it
            pixels = pixels.flip(2)
        return (pixels,) if self.labels is None else (pixels, self.labels[index])


def _colours(picture: Image.Image) -> Image.Image:
    """Return ``picture`` in RGB; 16-bit greys keep their upper byte, transparency is dropped."""
    if picture.mode.startswith("I"):
        upper = (np.asarray(picture).astype(np.int64) >> 8).clip(0, 255)
        picture = Image.fromarray(upper.astype(np.uint8))
    elif "transparency" in picture.info:
        picture = picture.convert("RGBA")
    return picture.convert("RGB")


def _place(name: str) -> float:
    """Return a number from 0 to 1 that depends on ``name`` alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big") / 2**56


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "of no kind that Pillow knows"
    words = str(error).splitlines()
    return words[0] if words else type(error).__name__
