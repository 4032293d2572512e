"""The text of ``--help``: usage, flags, and every key of the schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from textwrap import fill as wrap
from typing import Any

from launch.config.annotations import hints_of, section_of, settings_of
from launch.config.errors import as_typed
from launch.config.schema import Config
from parallel import STRATEGIES

_WIDTH = 100
_FLAGS = (
    ("--help", "show this"),
    ("--print-config", "show the configuration in full and end"),
    ("--max-minutes M", "save and stop after M minutes; the same command goes on"),
)
_ENDING = (
    "Tasks to begin with are in launch/tasks, your own is any class that task._target_ names.",
    "Configurations with their command, machine, minutes and result are in configs/*.yaml.",
)

Row = tuple[str, str, str]  # key, default, meaning


def help_text(module: str = "launch.train", flags: Sequence[tuple[str, str]] = _FLAGS) -> str:
    """Return how ``python -m module`` is called, with all that can be set."""
    sections = _sections()
    rows = [row for _, section in sections for row in section]
    widths = (max(len(row[0]) for row in rows), max(len(row[1]) for row in rows))
    words = "[FILE.yaml ...] [key=value ...]"
    usage = [f"usage: python -m {module} {words} [--flag ...]"]
    if module == "launch.train":
        usage = [
            f"usage: torchrun --nproc_per_node=2 -m {module} {words}",
            f"       python -m {module} {words}",
        ]
    lines = [
        *usage,
        "",
        "Files are laid over each other in order, key=value words last; --key=value is the same.",
        "Without a file it is the built-in run on handwritten digits.",
        "",
        *(f"  {flag:<{widths[0]}}  {meaning}" for flag, meaning in flags),
    ]
    for title, section in sections:
        lines += ["", wrap(title, _WIDTH), *(_line(row, widths) for row in section)]
    return "\n".join([*lines, "", *_ENDING])


def _sections() -> list[tuple[str, list[Row]]]:
    """Return titles with their rows: first the keys at the top, then each section."""
    hints = hints_of(Config)
    top: list[Row] = []
    inner = []
    for field in fields(Config):
        section = section_of(hints[field.name])
        if section is None or field.default is None:
            top += _rows(field, field.name)
        if section is not None:
            inner.append((f"{field.name}: {section.__doc__}", _section(section, field.name)))
    return [("keys, with their defaults", top), *inner, *_strategies()]


def _strategies() -> list[tuple[str, list[Row]]]:
    """Return the keys of each strategy that has some of its own."""
    found = []
    for name, strategy in STRATEGIES.items():
        rows = [
            row
            for field in settings_of(strategy) or []
            for row in _rows(field, "strategy." + field.name)
        ]
        if rows:
            first = (strategy.__doc__ or "").partition("\n")[0]
            found.append((f"strategy.name={name}: {first}", rows))
    return found


def _section(section: type, name: str) -> list[Row]:
    """Return the rows of a section; those of a section within it follow its own."""
    rows: list[Row] = []
    for field in fields(section):
        rows += _rows(field, f"{name}.{field.name}")
        within = section_of(hints_of(section)[field.name])
        rows += _section(within, f"{name}.{field.name}") if within is not None else []
    return rows


def _rows(field: Field[Any], key: str) -> list[Row]:
    meaning = field.metadata.get("help", "")
    choices = field.metadata.get("choices", ())
    if not all(choice in meaning for choice in choices):
        meaning += f" ({', '.join(choices)})"
    default = field.default if field.default_factory is MISSING else field.default_factory()
    if not isinstance(default, dict):
        return [(key, as_typed(default), meaning)]
    rows = [(f"{key}.{name}", as_typed(value), "") for name, value in default.items()]
    return [(*rows[0][:2], meaning), *rows[1:]]


def _line(row: Row, widths: tuple[int, int]) -> str:
    start = f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  "
    if not row[2]:
        return start.rstrip()
    return wrap(row[2], _WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
