"""The errors a caller may want to tell apart.

Exception
├── UsageError         a mistake of the user's: printed in one piece, no traceback, exit code 2
│   └── WorldError     the processes do not add up: variables, devices, rendezvous
├── DisagreementError  replicas came apart: raised on all ranks alike, its message says it all
└── PeerLeftError      another rank failed, and says so itself
"""

from __future__ import annotations

from collections.abc import Sequence


class UsageError(Exception):
    """What was wanted, what was met, and what to type next."""


class WorldError(UsageError):
    """The processes that should train together cannot be found or do not add up."""


class DisagreementError(Exception):
    """Replicas no longer hold the same parameters, or buffers: their training is not one."""


class PeerLeftError(RuntimeError):
    """Another rank failed, and says so itself."""


def own_words(error: BaseException) -> str:
    """Return the texts that an exception was made of; a user's ``__str__`` may raise."""
    return " ".join(each for each in error.args if isinstance(each, str))


def require_at_least(key: str, value: int, least: int) -> None:
    """Raise ``UsageError`` where the value of ``key`` is less."""
    if value < least:
        raise UsageError(f"{key}: wanted a whole number of at least {least}, met {value}")


def require_one_of(key: str, value: str, known: Sequence[str]) -> None:
    """Raise ``UsageError`` where the value of ``key`` is none of ``known``."""
    if value not in known:
        raise UsageError(f"{key}: wanted {' or '.join(known)}, met {value!r}")
