"""How long one layer's forward and backward take, on the device's own clock."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
from torch import nn

from parallel.pipeline.rehearsal import ends, entry

TIMINGS = 2  # at least; a layer that has not taken SHORT_S by then is timed again
SHORT_S, MOST_TIMINGS = 0.01, 20


def seconds(layer: nn.Module, given: Any, device: torch.device) -> tuple[float, float]:
    """Return the least of several forwards and of their backwards; run it once before."""
    found: list[tuple[float, float]] = []
    while len(found) < TIMINGS or (
        len(found) < MOST_TIMINGS and sum(a + b for a, b in found) < SHORT_S
    ):
        found.append(_once(layer, entry(given), device))
    return min(forward for forward, _ in found), min(backward for _, backward in found)


def _once(layer: nn.Module, inputs: Any, device: torch.device) -> tuple[float, float]:
    clock = _Clock(device)
    clock.mark()
    output = layer(inputs)
    clock.mark()
    outputs = ends(output)
    gradients = [torch.ones_like(each) for each in outputs]
    clock.mark()
    if outputs:
        torch.autograd.backward(outputs, gradients)
    clock.mark()
    forward_s, _, backward_s = clock.intervals()
    return forward_s, backward_s


class _Clock:
    """Seconds between marks."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._times: list[float] = []
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        if self._stream is None:
            self._times.append(perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        self._events.append(event)

    def intervals(self) -> list[float]:
        if self._stream is None:
            return [end - start for start, end in pairwise(self._times)]
        self._stream.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairwise(self._events)]  # ms
