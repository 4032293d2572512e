"""A sign of life on the run folder's lock, for those who ask from another host."""

from __future__ import annotations

import time
from collections.abc import Callable

from launch.events import Event

EVERY_S = 30.0


class Heartbeat:
    """Calls ``beat`` when something happens, at most every ``EVERY_S`` seconds."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self.beat, self._last = beat, time.monotonic()

    def __call__(self, event: Event) -> None:
        """Hear of one event."""
        if time.monotonic() - self._last > EVERY_S:
            self._last = time.monotonic()
            self.beat()

    def close(self) -> None:
        """Nothing to let go of: the folder's owner releases the lock."""
