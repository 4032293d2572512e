"""Where a step's time goes: consecutive marks, each ending the phase it names."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter

import torch

NAMES = ("data", "transfer", "forward", "backward", "communication", "optimizer")


class Phases:
    """Seconds by phase since the last ``forget``.

    On CPU the monotonic clock is read at each mark; on CUDA an event is recorded on the current
    stream, and ``seconds`` and ``forget`` resolve them: only these wait for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds = dict.fromkeys(NAMES, 0.0)
        self._events: list[tuple[str, torch.cuda.Event]] = []
        self.last = 0.0
        self.begin()

    def begin(self) -> None:
        """Start a phase: time up to here belongs to none."""
        if self._cuda:
            self._record("")
        else:
            self.last = perf_counter()

    def end(self, name: str) -> None:
        """Close the phase ``name``, one of ``NAMES``; the next begins here."""
        if self._cuda:
            self._record(name)
        else:
            now = perf_counter()
            self._seconds[name] += now - self.last
            self.last = now

    def seconds(self) -> dict[str, float]:
        """Return the seconds by phase since the last ``forget``. Waits for the device."""
        if self._cuda:
            torch.cuda.current_stream().synchronize()
            for (_, start), (name, stop) in pairwise(self._events):
                if name:
                    self._seconds[name] += start.elapsed_time(stop) / 1e3  # ms
            del self._events[:-1]
        return dict(self._seconds)

    def forget(self) -> None:
        """Start again from zero."""
        self.seconds()
        self._seconds = dict.fromkeys(NAMES, 0.0)

    def _record(self, name: str) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append((name, event))
