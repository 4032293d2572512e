"""What is wrong with a configuration, in words that say what to type next.

UsageError
└── ConfigError      a key, a value, a file or a `_target_` that cannot be used
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from parallel import UsageError


class ConfigError(UsageError):
    """The configuration cannot be used; nothing was started."""


def refuse(problems: Sequence[str]) -> None:
    """Raise ``ConfigError`` with all ``problems`` at once, where there are any."""
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise ConfigError(f"{len(problems)} mistakes in the configuration:{listed}")


def nearest(name: str, names: Iterable[str], inside: str = "") -> str:
    """Return "; did you mean 'lr'?", or "" where none of ``names`` comes close.

    Of dotted names the last part may match: for "epochs", "train.epochs". ``inside`` is the key
    that they belong to.
    """
    known = list(names)
    last = {full: full.rpartition(".")[2] for full in known if "." in full}
    found = get_close_matches(name, [full for full in known if full not in last], n=1)
    if not found:
        long = len(name) > 2
        found = [n for n, part in last.items() if part == name or (long and name in part)][:3]
    if not found:
        close = get_close_matches(name, last.values(), n=1)
        found = [full for full, part in last.items() if part in close][:3]
    meant = " or ".join(repr(joined(inside, full)) for full in found)
    return f"; did you mean {meant}?" if found else ""


def shown(value: Any) -> str:
    """Return ``value`` as YAML has it, text in quotes."""
    return repr(value) if isinstance(value, str) else as_typed(value)


def as_typed(value: Any) -> str:
    """Return ``value`` as one types it on the command line."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def joined(key: str, part: str | int) -> str:
    """Return the full name of what ``part`` names inside ``key``."""
    if isinstance(part, int):
        return f"{key}[{part}]"
    return f"{key}.{part}" if key else part
