"""The columns of a comparison's table: what each is called, and what it shows of a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from launch.comparison.figures import digits, percent
from launch.comparison.table import Line

ALIKE = "~"


@dataclass(frozen=True)
class Column:
    """A column; show: a line's text in it, "" where there is none.

    of_all: whether it is of rows that were not run, too.
    """

    name: str
    unit: str
    show: Callable[[Line], str]
    of_all: bool = False

    @property
    def title(self) -> str:
        """The name with its unit."""
        return f"{self.name} {self.unit}".strip().replace(" /", "/")

    def of(self, row: Line) -> str:
        """Return what the line shows in it."""
        return self.show(row) if row.is_measured or self.of_all else ""


def columns(rows: Sequence[Line]) -> list[Column]:
    """Return the columns in which a row has something, first the row's name."""
    unit, scale = _unit(rows)
    every = [
        Column("row", "", lambda row: f"{row.name} {ALIKE}" if row.alike else row.name, True),
        Column("devices", "", lambda row: str(row.devices), True),
        Column("step", f"{unit} (quartiles)", lambda row: _spread(row, scale)),
        Column("predicted", unit, lambda row: _digits(row.foreseen_step_s, scale), True),
        Column("samples", "/s", lambda row: _digits(row.samples_per_s)),
        Column("speed-up", "", lambda row: _digits(row.speed_up)),
        Column("efficiency", "%", lambda row: _percent(row.efficiency)),
        Column("data", "%", lambda row: _percent(row.data)),
        Column("communication", "%", lambda row: _percent(row.communication)),
        Column("bubble", "%", lambda row: _percent(row.bubble or None)),
        Column("peak GiB", "per device", lambda row: _digits(row.peak_gib)),
        Column("predicted", "GiB", lambda row: _digits(row.foreseen_gib), True),
        Column("batch", "", lambda row: f"{row.batch:,}", True),
        Column("loss", "", lambda row: _digits(row.loss)),
    ]
    return [column for column in every if any(column.of(row) for row in rows)]


def _unit(rows: Sequence[Line]) -> tuple[str, float]:
    """Return the unit of the column of step times, and how many of it make a second."""
    times = [s for row in rows for s in (row.step_s, row.foreseen_step_s) if s is not None]
    return ("s", 1.0) if max(times, default=0.0) >= 1 else ("ms", 1e3)


def _spread(row: Line, scale: float) -> str:
    if row.step_s is None or row.low_s is None or row.high_s is None:
        return ""
    middle, low, high = (digits(s * scale) for s in (row.step_s, row.low_s, row.high_s))
    return f"{middle} ({low}-{high})" if row.turns > 1 else middle


def _digits(value: float | None, scale: float = 1.0) -> str:
    return "" if value is None else digits(value * scale)


def _percent(share: float | None) -> str:
    return "" if share is None else percent(share)
