"""What the comparison and the jobs it started say to each other: JSON, a line each, on a socket.

job → {"ready": {"pids": [71, 72], "traits": ["dropout"]}}
{"steps": 50} → job → {"turn": {"first": 1, "last": 50, "step_s": ..., ...}}
closed → job ends
"""

from __future__ import annotations

import json
import select
import socket
from pathlib import Path
from time import monotonic
from typing import Any


class Line:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._unread = b""

    def say(self, message: dict[str, Any]) -> None:
        """Send a message. Raises ``OSError`` where nobody listens any more."""
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def hear(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Return the next message; None once the other end is closed.

        Raises ``TimeoutError`` where there is none for ``timeout_s`` seconds.
        """
        end = None if timeout_s is None else monotonic() + timeout_s
        while b"\n" not in self._unread:
            left = None if end is None else max(0.0, end - monotonic())
            if not select.select([self._socket], [], [], left)[0]:
                raise TimeoutError
            try:
                more = self._socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not more:
                return None
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Let the other end know that this is all."""
        self._socket.close()


def dial(path: Path) -> Line:
    """Return a connection to whoever listens at ``path``."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    return Line(connection)


def failure_of(path: Path, rank: int) -> Path:
    """Return where a rank of the job that was called from ``path`` leaves its last words."""
    return path.with_name(f"{path.name}.rank-{rank}")
