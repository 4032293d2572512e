"""The table as text for a terminal, as Markdown and as CSV: strings, nothing is written here."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from launch.comparison.columns import ALIKE, columns
from launch.comparison.figures import listed, one_line
from launch.comparison.table import Line

GAP = "  "
MOST = 160  # characters of a reason; compare.json has all of it
SCALED = "Weak scaling: the batch grows with the devices"
GIVEN_DIGITS = 6  # of a number in CSV, which goes on to be reckoned with


def text(rows: Sequence[Line], head: Sequence[str], advice: str) -> str:
    """Return aligned columns for the terminal, with what stands above and below them."""
    blocks = ["\n".join(head)]
    for title, part in _tables(rows):
        blocks.append("\n".join([*([title] if title else []), *_aligned(part)]))
        blocks += ["\n".join(_footnotes(part))] if any(_footnotes(part)) else []
    return "\n\n".join([*blocks, advice]) + "\n"


def markdown(rows: Sequence[Line], head: Sequence[str], advice: str) -> str:
    """Return the same as Markdown; reasons stand in a last column."""
    blocks = ["\n".join(_escaped(line) + "  " for line in head)]
    for title, part in _tables(rows):
        blocks += [f"## {title}"] if title else []
        blocks.append("\n".join(_piped(part)))
        blocks += [_marked(part)] if _marked(part) else []
    return "\n\n".join([*blocks, _escaped(advice)]) + "\n"


def comma_separated(rows: Sequence[Line]) -> str:
    """Return all that is known of each row as CSV: SI units, shares of 1, named as the fields."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    plain = [{**asdict(row), "alike": "; ".join(row.alike)} for row in rows]
    names = list(asdict(Line("", 1, 1)))
    writer.writerow(names)
    writer.writerows([_cell(each[name]) for name in names] for each in plain)
    return file.getvalue()


def _tables(rows: Sequence[Line]) -> Iterator[tuple[str, list[Line]]]:
    """Yield the title and the rows of each table that has any."""
    for title, is_scaled in (("", False), (SCALED, True)):
        part = [row for row in rows if row.is_scaled == is_scaled]
        if part:
            yield title, part


def _aligned(rows: Sequence[Line]) -> Iterator[str]:
    """Yield two lines of head, then a line a row; a reason stands where figures would."""
    shown = columns(rows)
    cells = {row.name: [column.of(row) for column in shown] for row in rows}
    heads = [[c.name if c.unit else "" for c in shown], [c.unit or c.name for c in shown]]
    every = [*heads, *cells.values()]
    widths = [max(len(line[at]) for line in every) for at in range(len(shown))]
    for line in heads:
        yield _joined(line, widths)
    for row in rows:
        line = cells[row.name]
        if row.is_measured:
            yield _joined(line, widths)
        else:
            yield f"{_joined(line[:2], widths)}{GAP}{_reason(row)}"


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return cells side by side: the name to the left, figures to the right."""
    first, *others = (
        text.rjust(width) if at else text.ljust(width)
        for at, (text, width) in enumerate(zip(cells, widths, strict=False))
    )
    return GAP.join([first, *others]).rstrip()


def _footnotes(rows: Sequence[Line]) -> Iterator[str]:
    """Yield what else there is to know of rows that were run."""
    for row in rows:
        if row.is_measured and row.note:
            yield f"{row.name}: {one_line(row.note, MOST)}"
    if _marked(rows):
        yield _marked(rows)


def _marked(rows: Sequence[Line]) -> str:
    """Return what the mark means, with the rows it is about; "" where there is none."""
    groups = "; ".join(map(listed, alike(rows)))
    return f"{ALIKE} too close or too noisy to tell which is faster: {groups}" if groups else ""


def alike(rows: Sequence[Line]) -> list[list[str]]:
    """Return groups within which no row can be told from another; each such pair is in one."""
    like = {row.name: {row.name, *row.alike} for row in rows}
    groups: list[list[str]] = []
    for row in rows:
        for other in row.alike:
            if any(row.name in group and other in group for group in groups):
                continue
            group = {row.name, other}
            for each in rows:
                if group <= like[each.name]:
                    group.add(each.name)
            groups.append([each.name for each in rows if each.name in group])
    return groups


def _piped(rows: Sequence[Line]) -> Iterator[str]:
    shown = columns(rows)
    has_note = any(row.note or not row.is_measured for row in rows)
    titles = [*(column.title for column in shown), *(["note"] if has_note else [])]
    sides = ["---", *("---:" for _ in shown[1:]), *(["---"] if has_note else [])]
    yield _row(titles)
    yield f"|{'|'.join(sides)}|"
    for row in rows:
        note = _reason(row) if not row.is_measured else one_line(row.note, MOST)
        cells = [column.of(row) for column in shown]
        yield _row([*cells, *([note] if has_note else [])])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(text: str) -> str:
    """Return the text so that Markdown shows it as it is."""
    for character in "\\|*_`":
        text = text.replace(character, f"\\{character}")
    return text.replace("<", "&lt;")


def _reason(row: Line) -> str:
    return one_line(row.note, MOST) or "not run yet"


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.{GIVEN_DIGITS}g}"
    return " ".join(value.split()) if isinstance(value, str) else value
