"""The comparison's folder: compare.md, .csv, .json and .png and an event file, each whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from launch.comparison import board, report
from launch.comparison.header import Header, head
from launch.comparison.picture import Drawing
from launch.comparison.table import Line
from launch.comparison.turns import Found, from_json, to_json
from launch.folder.disk import FolderError, replace_bytes, replace_text, strict_json, told

PICTURE = "![Step time, speed-up and peak memory of each row](compare.png)\n"


def write(
    folder: Path, found: Sequence[Found], rows: Sequence[Line], header: Header, advice: str
) -> None:
    """Write what there is so far as text: compare.md, compare.csv, compare.json.

    Raises ``FolderError`` where it cannot be written.
    """
    with told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / "compare.json", _json(found, header, advice))
        replace_text(folder / "compare.csv", report.comma_separated(rows))
        replace_text(folder / "compare.md", _page(found, rows, header, advice))


def finish(
    folder: Path, found: Sequence[Found], rows: Sequence[Line], header: Header, advice: str
) -> None:
    """Write all that ``write`` does, and the picture and the TensorBoard run.

    Raises ``FolderError`` where it cannot be written.
    """
    write(folder, found, rows, header, advice)
    drawing = Drawing(rows, "\n".join(head(header, found)), advice)
    page = _page(found, rows, header, advice)
    with told(folder):
        replace_bytes(folder / "compare.png", drawing.png())
        replace_text(folder / "compare.md", f"{page}\n{PICTURE}")
        board.write(folder, rows, page, drawing)


def read(folder: Path) -> tuple[Header, list[Found]] | None:
    """Return what ``write`` left in the folder; None where it left nothing.

    Raises ``FolderError`` for a compare.json that holds something else.
    """
    path = folder / "compare.json"
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return Header(**said["header"]), from_json(said["rows"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FolderError(
            f"{path} is not what a comparison wrote ({type(error).__name__}: {error}); "
            "--anew begins again, another name=NAME keeps both"
        ) from error


def _json(found: Sequence[Found], header: Header, advice: str) -> str:
    said = {"header": asdict(header), "advice": advice, "rows": to_json(found)}
    return strict_json(said) + "\n"


def _page(found: Sequence[Found], rows: Sequence[Line], header: Header, advice: str) -> str:
    """Return the table as Markdown between the command and what it ran with."""
    table = report.markdown(rows, head(header, found), advice)
    versions = ", ".join(f"{name} {number}" for name, number in header.versions.items())
    made = ", with ".join(filter(None, (header.date, versions)))
    return f"```\n{header.command}\n```\n\n{table}\n{made}\n"
