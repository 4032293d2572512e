"""How fast messages travel between neighbouring stages, measured."""

from __future__ import annotations

from time import perf_counter

import torch
from torch import Tensor

from parallel.pipeline.link import Links

LARGE = 2**20  # numbers: 4 MiB
TURNS = 3  # the fastest of so many counts, after one that sets the connection up


def measure(links: Links, is_answering: bool, device: torch.device) -> tuple[float, float]:
    """Return latency [s] and bytes a second between stage 0 and 1, which call it together.

    is_answering: on stage 1. Both return what they saw themselves.
    """
    play = _answer if is_answering else _ask
    small, large = (
        min(play(links, torch.zeros(size, device=device)) for _ in range(TURNS + 1))
        for size in (1, LARGE)
    )
    return small / 2, 8 * LARGE / max(large - small, 1e-9)  # there and back, 4 bytes a number


def _ask(links: Links, tensor: Tensor) -> float:
    start = perf_counter()
    if links.outputs is not None and links.gradients is not None:
        links.outputs.send(tensor)
        _read(links.gradients.value())
        links.settle()
    return perf_counter() - start


def _answer(links: Links, tensor: Tensor) -> float:
    start = perf_counter()
    if links.inputs is not None and links.back is not None:
        links.back.send(links.inputs.value())
        links.settle()
    return perf_counter() - start


def _read(tensor: Tensor) -> None:
    """Wait until it is there, on a GPU as well."""
    tensor[:1].tolist()
