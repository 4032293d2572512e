"""The random generators of a process, as bytes and numbers, and back."""

from __future__ import annotations

import random
import sys
from array import array
from typing import Any

import torch
from torch import Tensor


def held_by(device: torch.device) -> dict[str, Any]:
    """Return the state of python's, numpy's (where it is in use), torch's and ``device``'s own."""
    version, words, gauss = random.getstate()
    held: dict[str, Any] = {
        "python": [version, array("I", words).tobytes(), gauss],
        "torch": _bytes(torch.get_rng_state()),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, at, has_gauss, cached = numpy.random.get_state()
        held["numpy"] = [kind, array("I", keys.tolist()).tobytes(), at, has_gauss, float(cached)]
    if device.type == "cuda":
        held["cuda"] = _bytes(torch.cuda.get_rng_state(device))
    return held


def give_back(held: dict[str, Any], device: torch.device) -> None:
    """Put the generators where ``held_by`` found them."""
    version, words, gauss = held["python"]
    random.setstate((version, tuple(array("I", words)), gauss))
    torch.set_rng_state(_tensor(held["torch"]))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in held:
        kind, keys, *rest = held["numpy"]
        numpy.random.set_state((kind, array("I", keys).tolist(), *rest))
    if device.type == "cuda" and "cuda" in held:
        torch.cuda.set_rng_state(_tensor(held["cuda"]), device)


def _bytes(state: Tensor) -> bytes:
    return bytes(state.tolist())


def _tensor(data: bytes) -> Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)
