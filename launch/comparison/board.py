"""The comparison as a TensorBoard run: the table, the picture, and a point a row and quantity."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from launch.comparison.picture import Drawing
from launch.comparison.table import Line
from launch.events import Picture
from launch.folder.disk import sync
from launch.folder.run import RunFolder
from launch.listeners.eventfile import EventFile, name_now


def write(folder: Path, rows: Sequence[Line], table: str, drawing: Drawing) -> None:
    """Put a whole event file in the place of those that ``folder`` holds; table: Markdown."""
    earlier = RunFolder(folder).events()
    part = folder / ".board.part"  # no name that TensorBoard would read
    part.unlink(missing_ok=True)
    try:
        file = EventFile(part)
        try:
            file.text("compare/table", table, 0)
            file.picture(Picture(0, "compare/picture", drawing.pixels()))
            file.scalars(points(rows), 0)
        finally:
            file.close()
        sync(part)
        part.replace(folder / name_now())
    finally:
        with suppress(OSError):
            part.unlink()
    for path in earlier:
        path.unlink(missing_ok=True)
    sync(folder)


def points(rows: Sequence[Line]) -> dict[str, float]:
    """Return tag → value of all that was measured."""
    found = {}
    for row in rows:
        if not row.is_measured:
            continue
        values = {"step_time_s": row.step_s, "speed_up": row.speed_up, "peak_gib": row.peak_gib}
        for name, value in values.items():
            if value is not None:
                found[f"compare/{name}/{row.label}"] = value
    return found
