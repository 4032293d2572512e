"""The errors a caller may want to tell apart.

Exception
├── UsageError       a mistake of the user's: printed in one piece, no traceback, exit code 2
│   └── WorldError   the processes do not add up: variables, devices, rendezvous
└── PeerLeftError    another rank failed, and says so itself
"""

from __future__ import annotations


class UsageError(Exception):
    """What was wanted, what was met, and what to type next."""


class WorldError(UsageError):
    """The processes that should train together cannot be found or do not add up."""


class PeerLeftError(RuntimeError):
    """Another rank failed, and says so itself."""
