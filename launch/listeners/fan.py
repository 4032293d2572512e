"""Several listeners as one: each is told, and closed, even where another fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from launch.events import Event


class ClosingListener(Protocol):
    """What rank 0 attaches: told of each event, closed on every way out."""

    def __call__(self, event: Event) -> None:
        """Hear of one event."""

    def close(self) -> None:
        """Let go of files and threads; nothing is told afterwards."""


class FanOut:
    """A listener made of listeners, told in order."""

    def __init__(self, listeners: Sequence[ClosingListener]) -> None:
        self.listeners = tuple(listeners)

    def __call__(self, event: Event) -> None:
        """Tell all, then raise the first error that one of them met."""
        _each([partial(listener, event) for listener in self.listeners])

    def close(self) -> None:
        """Close all, then raise the first error that one of them met."""
        _each([listener.close for listener in self.listeners])


def fan_out(*listeners: ClosingListener) -> FanOut:
    """Return one listener that tells each of ``listeners``."""
    return FanOut(listeners)


def _each(calls: Sequence[Callable[[], None]]) -> None:
    first: Exception | None = None
    for call in calls:
        try:
            call()
        except Exception as error:  # a full disk must not keep the screen from saying so
            first = first or error
    if first is not None:
        raise first
