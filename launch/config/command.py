"""The words of a command line: YAML files, overrides, flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.config.errors import ConfigError, nearest
from launch.config.layers import is_override

_FILES = (".yaml", ".yml")


@dataclass(frozen=True)
class Parsed:
    """A command line, sorted.

    flags: every known one; False or None where it was not given.
    ignored: words of older launchers that mean nothing here, such as --local-rank=1.
    """

    files: tuple[Path, ...]
    overrides: tuple[str, ...]
    flags: Mapping[str, Any]
    ignored: tuple[str, ...]


def parse(args: Sequence[str], flags: Mapping[str, type]) -> Parsed:
    """Return ``[FILE.yaml ...] [key=value ...] [--flag ...]`` sorted.

    ``flags`` are names with the type of their value, bool for those without one:
    {"help": bool, "minutes": float}. Raises ``ConfigError``.
    """
    files, overrides, ignored = [], [], []
    given: dict[str, Any] = {name: False if kind is bool else None for name, kind in flags.items()}
    words = iter(args)
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if word == "-h" and "help" in flags:
            given["help"] = True
        elif word.startswith("--") and name in flags:
            given[name] = _flag(name, value if equals else None, flags[name], words)
        elif word.startswith("--") and name.replace("_", "-") == "local-rank":
            ignored.append(word if equals else " ".join([word, *_next(words)]))
        elif is_override(word.removeprefix("--")):
            overrides.append(word.removeprefix("--"))
        elif word.lower().endswith(_FILES) and not word.startswith("-"):
            files.append(Path(word))
        else:
            raise ConfigError(_unknown(word, flags))
    return Parsed(tuple(files), tuple(overrides), given, tuple(ignored))


def _flag(name: str, value: str | None, kind: type, words: Iterator[str]) -> Any:
    if kind is bool:
        if value is not None:
            raise ConfigError(f"--{name} takes no value, met {value!r}; type --{name} alone")
        return True
    if value is None:
        value = "".join(_next(words))
    try:
        return kind(value)
    except ValueError:
        wanted = {int: "a whole number", float: "a number"}.get(kind, kind.__name__)
        raise ConfigError(f"--{name}: wanted {wanted}, met {value!r}; such as --{name}=2") from None


def _next(words: Iterator[str]) -> list[str]:
    """Return the next word, if there is one, and step over it."""
    return [word for word in [next(words, None)] if word is not None]


def _unknown(word: str, flags: Mapping[str, type]) -> str:
    """Return what could have been meant by a word that is nothing."""
    known = ", ".join(f"--{name}" for name in flags) or "none"
    name, equals, _ = word.lstrip("-").partition("=")
    if word.startswith("-"):
        key = f"; a key of the configuration is set by {name}=VALUE" if "." in name else ""
        return f"unknown flag {word}{nearest(f'--{name}', known.split(', '))} (known: {known}){key}"
    if equals:
        return f"{name!r} is not the name of a key, in {word!r}; wanted such as train.epochs=5"
    if Path(word).is_dir():
        inside = sorted(path for end in _FILES for path in Path(word).glob(f"*{end}"))
        hint = f"did you mean {inside[0]}?" if inside else f"it holds no {_FILES[0]} file"
        return f"{word!r} is a folder, wanted FILE.yaml or key=value; {hint}"
    beside = next((word + end for end in _FILES if Path(word + end).is_file()), None)
    hint = f"; did you mean {beside}?" if beside else f"; to set a key type {word}=VALUE"
    return f"{word!r} is neither FILE.yaml nor key=value{hint}"
