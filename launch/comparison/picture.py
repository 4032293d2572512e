"""The comparison as a picture: bars of step time, speed-up and memory, side by side."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from launch.comparison.figures import digits, one_line
from launch.comparison.table import Line

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg

COLOURS = {  # Okabe and Ito's, which colour-blind people can tell apart
    "single": "#999999",
    "data_parallel": "#CC79A7",
    "ddp": "#0072B2",
    "fsdp": "#56B4E9",
    "model_parallel": "#E69F00",
    "pipeline": "#009E73",
}
OTHER = "#D55E00"
DARK = "#333333"
WIDTH, ROW, AROUND = 12.0, 0.5, 1.5  # inches: of all, of a row, of titles and scales
DPI = 110
ROOM = 1.45  # of the longest bar: the panel's width, so that values fit in
MOST = 130  # characters of a reason, which has the row's whole width
WRAP = 150  # characters of a line above or below


@dataclass(frozen=True)
class Panel:
    """One quantity of all rows.

    of: a row's bar. ends: where its spread begins and ends. foreseen: what was predicted.
    """

    title: str
    of: Callable[[Line], float | None]
    ends: Callable[[Line], tuple[float, float]] | None = None
    foreseen: Callable[[Line], float | None] = lambda row: None


class Drawing:
    """The picture of a table, drawn once."""

    def __init__(self, rows: Sequence[Line], title: str, below: str) -> None:
        self._canvas = _draw(rows, title, below)

    def png(self) -> bytes:
        """Return it as a PNG file holds it."""
        file = io.BytesIO()
        self._canvas.print_png(file)
        return file.getvalue()

    def pixels(self) -> Tensor:
        """Return it as [3, height, width], 0 to 1."""
        width, height = self._canvas.get_width_height()
        flat = torch.frombuffer(bytearray(self._canvas.buffer_rgba()), dtype=torch.uint8)
        return flat.view(height, width, 4)[..., :3].permute(2, 0, 1) / 255


def _draw(rows: Sequence[Line], title: str, below: str) -> FigureCanvasAgg:
    # Imported here: a second, which only a finished comparison need spend.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [p for p in _panels(rows) if any(_known(p.of(row), row) for row in rows)]
    height = AROUND + ROW * max(len(rows), 1)
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained", facecolor="white")
    canvas = FigureCanvasAgg(figure)
    figure.suptitle(_wrapped(title), fontsize=11)
    figure.supxlabel(_wrapped(below), fontsize=10, color=DARK)
    every = figure.subplots(1, max(len(panels), 1), sharey=True, squeeze=False)[0]
    for axes in every:
        _prepare(axes, rows)
    for axes, panel in zip(every, panels, strict=False):
        _fill(axes, panel, rows)
    for at, row in enumerate(rows):
        if not row.is_measured:
            reason = one_line(row.note, MOST) or "not run"
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            _write(every[0], reason, (0, at), 8, bbox=box).set_in_layout(False)
    every[0].set_zorder(1)  # reasons go on over the next panels
    canvas.draw()
    figure.set_layout_engine("none")  # it is laid out now; again would move things by a hair
    return canvas


def _panels(rows: Sequence[Line]) -> list[Panel]:
    slowest = max((row.step_s for row in rows if row.step_s is not None), default=0.0)
    unit, scale = ("s", 1.0) if slowest >= 1 else ("ms", 1e3)
    mark = "; \N{WHITE DIAMOND} predicted" if any(map(_is_foreseen, rows)) else ""
    return [
        Panel(
            f"step time, {unit} (line: quartiles{mark})",
            lambda row: _times(row.step_s, scale),
            lambda row: (scale * (row.low_s or 0.0), scale * (row.high_s or 0.0)),
            lambda row: _times(row.foreseen_step_s, scale),
        ),
        Panel("speed-up (line: quartiles)", _speed_up, _gains),
        Panel(
            "peak memory per device, GiB",
            lambda row: row.peak_gib,
            foreseen=lambda row: row.foreseen_gib,
        ),
    ]


def _prepare(axes: Axes, rows: Sequence[Line]) -> None:
    """Write the rows' names, first row on top, and leave out what is no information."""
    axes.set_yticks(range(len(rows)), [_plain(row.label) for row in rows], fontsize=10)
    axes.set_ylim(max(len(rows), 1) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _fill(axes: Axes, panel: Panel, rows: Sequence[Line]) -> None:
    """Draw a panel's bars, each with its value, its spread and what was predicted."""
    axes.set_title(panel.title, fontsize=9, loc="left")
    longest = 0.0
    for at, row in enumerate(rows):
        value = _known(panel.of(row), row)
        if value is None:
            continue
        axes.barh(at, value, height=0.62, color=COLOURS.get(row.strategy, OTHER), zorder=2)
        end = value
        if panel.ends is not None and row.turns > 1:
            low, high = panel.ends(row)
            axes.errorbar((low + high) / 2, at, xerr=(high - low) / 2, color=DARK, capsize=3)
            end = max(end, high)
        foreseen = panel.foreseen(row)
        if foreseen is not None:
            axes.plot(foreseen, at, marker="D", color="white", markeredgecolor=DARK, markersize=5)
            end = max(end, foreseen)
        _write(axes, digits(value), (end, at), 9)
        longest = max(longest, end)
    axes.set_xlim(0, ROOM * longest or 1.0)


def _write(axes: Axes, text: str, beside: tuple[float, float], size: int, **style: Any) -> Artist:
    """Write text to the right of a point."""
    place: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": size}
    return axes.annotate(_plain(text), beside, (6, 0), **place, **style)


def _wrapped(text: str) -> str:
    return _plain("\n".join(textwrap.fill(line, WRAP) for line in text.splitlines()))


def _plain(text: str) -> str:
    """Return text that is shown as it is: what stands between two $ would be read as a formula."""
    return text.replace("$", r"\$")


def _is_foreseen(row: Line) -> bool:
    return row.is_measured and (row.foreseen_step_s or row.foreseen_gib) is not None


def _known(value: float | None, row: Line) -> float | None:
    """Return the value of a row that was measured."""
    return value if row.is_measured else None


def _times(seconds: float | None, scale: float) -> float | None:
    return None if seconds is None else seconds * scale


def _speed_up(row: Line) -> float | None:
    return row.speed_up


def _gains(row: Line) -> tuple[float, float]:
    """Return what the speed-up would be at the quartiles of the step time, the lower first."""
    gain = (row.speed_up or 0.0) * (row.step_s or 0.0)
    return gain / (row.high_s or 1.0), gain / (row.low_s or 1.0)
